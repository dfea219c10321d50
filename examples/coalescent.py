"""Where ABC began: how much a population mutates, from the number of sites at which its sequences differ.

Going back in time, k lineages wait an exponential time T_k with rate k(k - 1)/2 until two of them have a common
ancestor; mutations fall on the branches at rate theta/2 and each hits a new site. One line simulates this, and
rejection at eps < 1 on a count is exact: the draws have the posterior given S itself. The exact answer is also known
(the number of mutations while there are k lineages is geometric), so the two can be compared. The
times of the accepted trees are draws of the time to the common ancestor given the data.

Data: 63 people of the Nuu-Chah-Nulth, 360 base pairs of the mitochondrial control region, 26 variable sites: Ward,
Frazier, Dew-Jager and Paabo (1991), PNAS 88, 8720 (numbers from the abstract). Method: Tavare, Balding, Griffiths and
Donnelly (1997), Genetics 145, 505; Pritchard, Seielstad, Perez-Lezaun and Feldman (1999), Mol. Biol. Evol. 16, 1791.

python examples/coalescent.py [figure.png] [--quick]
"""

import sys

import numpy as np
from scipy import integrate, stats

import onedraw as od

SEQUENCES, SITES = 63, 26
LINEAGES = np.arange(2, SEQUENCES + 1)
prior = od.Prior(theta=stats.expon(0, 10))


@od.batched
def simulate(rng, theta):
    """Variable sites of a sample, and the time to its common ancestor in units of N generations."""
    times = rng.exponential(2 / (LINEAGES * (LINEAGES - 1)), size=(theta.size, LINEAGES.size))
    return {"sites": rng.poisson(theta / 2 * (times @ LINEAGES)), "age": times.sum(axis=1)}


@od.batched
def distance(simulated, observed):
    """Sites alone: the age is not observed, and is carried along so that it is kept with the accepted trees."""
    return abs(simulated["sites"] - observed["sites"])


model = od.Model(prior, simulate, observed={"sites": SITES, "age": 0.0}, distance=distance)


def exact_likelihood(theta, sites=SITES):
    """P(S = sites | theta) and E(age; S = sites | theta) for theta (n,), adding up the mutations level by level.

    While there are k lineages, m mutations have probability p (1 - p)^m with p = (k - 1)/(k - 1 + theta), and the time
    until two lineages meet has mean 2 (m + 1)/(k (k - 1 + theta)) given m.
    """
    chance, age = np.zeros((2, sites + 1, theta.size))
    chance[0] = 1.0
    for k in LINEAGES:
        m = np.arange(sites + 1)[:, None]
        here = (k - 1) / (k - 1 + theta) * (theta / (k - 1 + theta)) ** m
        time = here * 2 * (m + 1) / (k * (k - 1 + theta))
        age = added(age, here) + added(chance, time)
        chance = added(chance, here)
    return chance[-1], age[-1]


def added(one, other):
    """The law of a sum: arrays (counts, n) convolved along the counts."""
    return np.array([(one[: total + 1] * other[total::-1]).sum(axis=0) for total in range(len(one))])


def exact_posterior(points=400):
    """A grid of theta, the exact posterior density on it, and the exact mean age."""
    theta = np.linspace(1e-3, 25, points)
    chance, age = exact_likelihood(theta)
    weight = np.exp(prior.logpdf(theta[:, None]))
    total = integrate.simpson(chance * weight, theta)
    return theta, chance * weight / total, integrate.simpson(age * weight, theta) / total


def draw_figure(post, chosen, path):
    from matplotlib.figure import Figure

    theta, density, _ = exact_posterior()
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    panel = figure.add_subplot(1, 2, 1)
    bins = np.linspace(0, 14, 57)
    panel.hist(post.draws["theta"][0], bins, density=True, color="#0072b2", alpha=0.35, label="rejection, eps < 1")
    panel.hist(chosen.draws["theta"].ravel(), bins, density=True, histtype="step", color="#d55e00", label="od.infer")
    panel.plot(theta, density, color="black", linewidth=1.5, label="exact")
    panel.plot(theta, np.exp(prior.logpdf(theta[:, None])), color="0.25", linestyle=(0, (4, 2)), label="prior")
    panel.set(xlabel="mutation rate theta", xlim=(0, 14))
    panel.legend(frameon=False, fontsize=8.5)
    panel = figure.add_subplot(1, 2, 2)
    before = model.prior.sample(np.random.default_rng(1), 20_000)[:, 0]
    bins = np.linspace(0, 6, 61)
    panel.hist(age_of(post), bins, density=True, color="#0072b2", alpha=0.35, label="given 26 sites")
    panel.hist(simulate(np.random.default_rng(2), before)["age"], bins, density=True, histtype="step", color="0.25",
               linestyle=(0, (4, 2)), label="before the data")  # fmt: skip
    panel.set(xlabel="age of the common ancestor (N generations)", xlim=(0, 6))
    panel.legend(frameon=False, fontsize=8.5)
    for panel in figure.axes:
        panel.set_yticks([])
        panel.spines[["left", "top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def age_of(post):
    """The age of each accepted tree: the second number of its kept summary."""
    return post.bank.rows[:, 0, 1]


def main(path=None, budget=2_000_000):
    post = od.rejection(model, od.uniform(0.5), budget=budget, keep="summaries", seed=1)
    print(post)
    print(post.summary())
    chosen = od.infer(od.Model(prior, od.batched(lambda rng, theta: simulate(rng, theta)["sites"]), SITES),
                      budget=budget // 100, seed=1)  # fmt: skip
    theta, density, exact_age = exact_posterior()
    exact = integrate.simpson(theta * density, theta)
    print(f"The mean of theta: exactly {exact:.3f}; by rejection {post.summary()['theta'].mean:.3f}; by od.infer with "
          f"a hundredth of the simulations {chosen.summary()['theta'].mean:.3f}.")  # fmt: skip
    if path is not None:
        draw_figure(post, chosen, path)
        print(f"wrote {path}")
    low, high = np.quantile(post.draws["theta"], [0.05, 0.95])
    print(
        f"The {SITES} variable sites put theta between {low:.1f} and {high:.1f} (90 %), and the common ancestor "
        f"{age_of(post).mean():.2f} N generations ago ({exact_age:.2f} exactly)."
    )
    return post, chosen


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    paths = [word for word in sys.argv[1:] if word != "--quick"]
    main(*paths[:1], **({"budget": 200_000} if quick else {}))
