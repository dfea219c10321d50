"""Eight schools: a hierarchical prior and a vector parameter, beside the exact posterior.

Eight schools tried a coaching programme, and its effect on test scores was estimated in each, with a known standard
error (Rubin 1981). How large is the effect in each school? Separately, the estimates range from -3 to 28. Pooled, they
are about 8. A hierarchical prior lies in between: the effects have a distribution whose mean mu and spread tau are
parameters too.

The exact posterior is known, by quadrature over tau, and `od.infer` is compared with it.

python examples/eight_schools.py [figure.png] [--quick]
"""

import sys
from pathlib import Path

import numpy as np
from scipy import stats

import onedraw as od

ESTIMATES = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
CENTRE, SPREAD = 20.0, 10.0

prior = od.Prior(
    mu=stats.norm(0, CENTRE),
    tau=stats.halfnorm(0, SPREAD),
    effect=lambda mu, tau: od.vector(stats.norm(mu, tau), 8),
)


def simulate(rng, mu, tau, effect):
    """The eight estimates of a study in which the effects are these."""
    return rng.normal(effect, ERRORS)


model = od.Model(prior, simulate, observed=ESTIMATES)


def exact_posterior(points=2_000):
    """Means and standard deviations of mu, tau and the effects: normal given tau, and a sum over tau."""
    taus = (np.arange(points) + 0.5) / points * 6 * SPREAD
    log_weight, means, squares = [], [], []
    for tau in taus:
        covariance = np.full((9, 9), CENTRE**2)
        covariance[1:, 1:] += tau**2 * np.eye(8)
        of_data = covariance[1:, 1:] + np.diag(ERRORS**2)
        gain = np.linalg.solve(of_data, covariance[1:]).T
        rest = covariance - gain @ covariance[1:]
        log_weight.append(
            stats.multivariate_normal(np.zeros(8), of_data).logpdf(ESTIMATES) + stats.halfnorm.logpdf(tau, 0, SPREAD)
        )
        means.append(np.insert(gain @ ESTIMATES, 1, tau))
        squares.append(np.insert(rest.diagonal(), 1, 0.0) + means[-1] ** 2)
    weight = np.exp(np.array(log_weight) - np.max(log_weight))
    weight /= weight.sum()
    mean = weight @ np.array(means)
    return mean, np.sqrt(weight @ np.array(squares) - mean**2)


def draw_figure(post, mean, path):
    """Each school alone, all of them as one, and what the hierarchical prior gives."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    pooled = np.average(ESTIMATES, weights=ERRORS**-2)
    low, high = np.quantile(post.draws["effect"][0], [0.05, 0.95], axis=0)
    places = np.arange(8)
    figure, axes = plt.subplots(figsize=(7.5, 4), layout="constrained")
    axes.axvline(pooled, color="0.6", linestyle="--", label="all schools as one")
    axes.errorbar(ESTIMATES, places + 0.18, xerr=1.645 * ERRORS, fmt="o", color="0.5", label="each school alone")
    middle = post.draws["effect"][0].mean(axis=0)
    width = [middle - low, high - middle]
    axes.errorbar(middle, places, xerr=width, fmt="o", color="tab:blue", label="hierarchical, od.infer")
    axes.plot(mean[2:], places - 0.18, "k|", markersize=9, label="hierarchical, exact mean")
    axes.set_yticks(places, [f"school {letter}" for letter in "ABCDEFGH"])
    axes.invert_yaxis()
    axes.set_xlabel("effect of coaching (points), with 90 % intervals")
    figure.legend(frameon=False, fontsize="small", loc="outside upper center", ncols=4)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main(path=None, budget=5_000):
    """Run `od.infer`, compare its answer with the exact one, and draw it."""
    post = od.infer(model, budget=budget, seed=1)
    print(post.summary())
    mean, sd = exact_posterior()
    if path is not None:
        draw_figure(post, mean, Path(path))
        print(f"wrote {path}")
    found = np.array([row.mean for row in post.summary().rows.values()])
    gap = np.abs(found - mean) / sd
    print(
        f"From {budget:,} simulations all ten means lie within {gap.max():.2f} exact standard deviations of the exact "
        f"ones ({list(post.columns)[gap.argmax()]} is the farthest). The effects range from {found[2:].min():.1f} to "
        f"{found[2:].max():.1f}, the estimates of single schools from {ESTIMATES.min():.0f} to {ESTIMATES.max():.0f}."
    )
    return post, mean, sd


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    paths = [word for word in sys.argv[1:] if word != "--quick"]
    main(*paths[:1], **({"budget": 1_000} if quick else {}))
