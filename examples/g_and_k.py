"""The g-and-k distribution, easy to simulate and without a likelihood in closed form, by `od.infer`.

A g-and-k variable is x = a + b (1 + 0.8 tanh(g z/2)) (1 + z^2)^k z with z normal: place, scale, skewness and tails of,
say, income, insurance claims or image noise (Rayner and MacGillivray 2002, Statistics and Computing 12, 57; by ABC:
Allingham, King and Mengersen 2009, Statistics and Computing 19, 189). The data are simulated with the values of the
latter, a = 3, b = 1, g = 2, k = 0.5, and the summaries are the seven octiles of a thousand observations.

The target of ABC is known: the octiles are order statistics, whose joint density follows from the distribution
function, found by solving for z. Algorithm 2 with that likelihood gives the exact posterior given the octiles.

python examples/g_and_k.py [figure.png] [--quick]
"""

import sys

import numpy as np
from scipy import stats

import onedraw as od

OBSERVATIONS = 999
RANKS = np.arange(1, 8) * (OBSERVATIONS + 1) // 8
TRUTH = {"a": 3.0, "b": 1.0, "g": 2.0, "k": 0.5}
prior = od.Prior(a=stats.uniform(0, 10), b=stats.uniform(0.01, 10), g=stats.uniform(0, 10), k=stats.uniform(0, 10))


def quantile(z, a, b, g, k):
    """The g-and-k value at a normal z, which grows with z; arrays of parameters give rows."""
    a, b, g, k = (np.asarray(value)[..., None] for value in (a, b, g, k))
    return a + b * (1 + 0.8 * np.tanh(g * z / 2)) * (1 + z**2) ** k * z


@od.batched
def simulate(rng, a, b, g, k):
    return quantile(rng.standard_normal((a.size, OBSERVATIONS)), a, b, g, k)


@od.batched
def octiles(y):
    return np.partition(y, RANKS - 1, axis=1)[:, RANKS - 1]


data = simulate(np.random.default_rng(8), **{name: np.array([value]) for name, value in TRUTH.items()})[0]
model = od.Model(prior, simulate, observed=data, summary=octiles)


def exact_log_likelihood(theta, x=model.observed_row):
    """Log density of the octiles x at each row of theta (n, 4), by bisection for the z of each octile."""
    a, b, g, k = theta.T
    low, high = np.full((len(theta), x.size), -9.0), np.full((len(theta), x.size), 9.0)
    for _ in range(40):
        middle = (low + high) / 2
        below = quantile(middle, a, b, g, k) < x
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    z = (low + high) / 2
    b, g, k = b[:, None], g[:, None], k[:, None]
    tanh = np.tanh(g * z / 2)
    slope = b * (1 + z**2) ** (k - 1) * (
        (1 + 0.8 * tanh) * (1 + (2 * k + 1) * z**2) + 0.4 * g * (1 - tanh**2) * z * (1 + z**2)
    )  # fmt: skip
    share = np.diff(stats.norm.cdf(z), axis=1, prepend=0, append=1)
    between = np.diff(RANKS, prepend=0, append=OBSERVATIONS + 1) - 1
    return (between * np.log(np.maximum(share, 1e-300))).sum(axis=1) + (stats.norm.logpdf(z) - np.log(slope)).sum(
        axis=1
    )


def exact_draws(steps=1500, chains=64):
    """The exact posterior given the octiles: a likelihood is an estimate of itself without error. Draws by name."""
    exact = od.unbiased(lambda rng, theta: exact_log_likelihood(theta), prior, simulations=1)
    start = {name: np.random.default_rng(1).normal(value, 0.02, chains) for name, value in TRUTH.items()}
    walk = od.random_walk([0.03**2, 0.06**2, 0.14**2, 0.07**2])
    first = od.pseudo_marginal(estimator=exact, start=start, proposal=walk, chains=chains, draws=300, seed=2)
    # Chains that start from earlier ones take the shape of their walk from them.
    post = od.pseudo_marginal(estimator=exact, start=first, chains=chains, draws=steps, seed=3)
    return {name: values[:, steps // 4 :] for name, values in post.draws.items()}


def draw_figure(post, exact, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.4), layout="constrained")
    words = {"a": "a, place", "b": "b, scale", "g": "g, skewness", "k": "k, tails"}
    for place, (name, values) in enumerate(exact.items()):
        panel = figure.add_subplot(2, 2, place + 1)
        bins = np.linspace(*np.quantile(post.draws[name], [0.002, 0.998]), 40)
        panel.hist(post.draws[name].ravel(), bins, density=True, color="#0072b2", alpha=0.35, label="od.infer")
        panel.hist(values.ravel(), bins, density=True, histtype="step", color="black", linewidth=1.5,
                   label="exact, given the octiles")  # fmt: skip
        panel.axvline(TRUTH[name], color="#d55e00", linestyle=(0, (4, 2)), label="truth")
        panel.set_xlabel(words[name])
        panel.set_yticks([])
        panel.spines[["left", "top", "right"]].set_visible(False)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=3, frameon=False,
                  fontsize=8.5)  # fmt: skip
    figure.savefig(path, dpi=150)


def main(path=None, budget=30_000):
    post = od.infer(model, budget=budget, seed=1)
    print(post.summary())
    exact = exact_draws(steps=1500 if budget > 10_000 else 400)
    if path is not None:
        draw_figure(post, exact, path)
        print(f"wrote {path}")
    gap = {name: abs(post.draws[name].mean() - values.mean()) / values.std() for name, values in exact.items()}
    worst = max(gap, key=gap.get)
    print(
        f"From {budget:,} simulations all four means lie within {gap[worst]:.2f} exact standard deviations of the "
        f"exact ones ({worst} is the farthest), and the skewness is {exact['g'].mean():.2f} ± {exact['g'].std():.2f}."
    )
    return post, exact


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    paths = [word for word in sys.argv[1:] if word != "--quick"]
    main(*paths[:1], **({"budget": 8_000} if quick else {}))
