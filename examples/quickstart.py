"""The README's quick start, with a figure: ABC at three tolerances beside the exact posterior.

python examples/quickstart.py [figure.png]
"""

import sys
from pathlib import Path

import numpy as np
from scipy import stats

import onedraw as od

data = np.random.default_rng(2026).normal(1.5, 2.0, size=40)


@od.batched
def simulate(rng, mu, sigma):
    return rng.normal(mu[:, None], sigma[:, None], size=(mu.size, data.size))


@od.batched
def summary(y):
    return np.stack([y.mean(axis=1), y.std(axis=1)], axis=1)


model = od.Model(
    prior=od.Prior(mu=stats.norm(0, 5), sigma=stats.uniform(0.1, 8)),
    simulate=simulate,
    observed=data,
    summary=summary,
)


def exact_marginals(points=400):
    """The posterior by the likelihood, on a grid: what ABC approaches as eps falls (mean and sd are sufficient)."""
    mu, sigma = np.linspace(0, 3, points), np.linspace(0.4, 3.2, points)
    log_likelihood = stats.norm.logpdf(data[:, None, None], mu[:, None], sigma[None, :]).sum(axis=0)
    density = np.exp(log_likelihood - log_likelihood.max()) * stats.norm.pdf(mu, 0, 5)[:, None]
    density /= density.sum() * (mu[1] - mu[0]) * (sigma[1] - sigma[0])
    return {
        "mu": (mu, density.sum(axis=1) * (sigma[1] - sigma[0])),
        "sigma": (sigma, density.sum(axis=0) * (mu[1] - mu[0])),
    }


def draw_figure(post, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(8, 3), constrained_layout=True)
    for panel, (name, (grid, density)) in zip(panels, exact_marginals().items(), strict=True):
        for eps, style in ((1.0, "0.8"), (0.5, "0.55"), (0.2, "0.25")):
            at = post.at(eps)
            bins = np.linspace(grid[0], grid[-1], 29)
            panel.hist(
                at.draws[name].ravel(),
                bins=bins,
                weights=at.weights.ravel(),
                density=True,
                histtype="step",
                color=style,
                label=f"ABC, eps = {eps:g}",
            )
        panel.plot(grid, density, color="tab:orange", linewidth=2, label="exact posterior")
        panel.set_xlabel(name)
        panel.set_yticks([])
        panel.spines[["left", "top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, fontsize=8, loc="upper right")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    post = od.rejection(model, od.uniform(1.0), draws=50_000, seed=1)
    print(post)
    print("\nAt eps = 1.0, the tolerance of the run:")
    print(post.summary())
    print("\nAt eps = 0.2, from the same simulations:")
    print(post.at(0.2).summary())
    if len(sys.argv) > 1:
        draw_figure(post, Path(sys.argv[1]))
        print(f"\nwrote {sys.argv[1]}")
