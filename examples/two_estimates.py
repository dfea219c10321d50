"""Two ways from simulations to a posterior, the two families that `od.infer` chooses from, beside the exact posterior.

A dose theta, uniform between 0 and 10, has a response s that levels off and becomes noisier. The same 100 simulations
from the prior are used twice. Regression adjustment takes those whose s is near the observed one, and moves each along
a regression of theta on s. A learnt likelihood describes how s depends on theta, by all simulations, and multiplies it
by the prior.

python examples/two_estimates.py [figure.png]
"""

import sys
from pathlib import Path

import numpy as np
from scipy import stats

import onedraw as od
from onedraw.model.coordinates import support_of
from onedraw.results.assessment import assess
from onedraw.results.regression import posterior_draws
from onedraw.run.bank import Bank

OBSERVED = 4.5
GRID = np.linspace(0.0, 10.0, 401)


def response(theta):
    """Mean and standard deviation of s."""
    return 8.0 * (1.0 - np.exp(-theta / 3.0)), 0.1 + 0.08 * theta


@od.batched
def simulate(rng, theta):
    mean, deviation = response(theta)
    return rng.normal(mean, deviation)


model = od.Model(od.Prior(theta=stats.uniform(0, 10)), simulate, observed=OBSERVED)


def exact_posterior():
    """The density on GRID."""
    density = stats.norm.pdf(OBSERVED, *response(GRID))
    return density / (density.sum() * (GRID[1] - GRID[0]))


def estimates(number, draws=20_000, seed=1):
    """The simulations, and what both families make of them: draws each, and the assessment with all that was learnt."""
    rng = np.random.default_rng(seed)
    theta = model.prior.sample(rng, number)
    rows = model.simulate(rng, theta=theta[:, 0]).reshape(number, 1)
    bank = Bank(model.prior, support_of(model.prior), theta, rows, of_prior=number, stages=1, ends=(number,))
    simulations = bank.simulations()
    found = assess(model, simulations, number, rng, thorough=True)
    near, _ = found.chosen
    adjusted, _, _ = posterior_draws(rng, near, found.draws, found.method, draws, model.prior, bank.support)
    learnt = bank.support.bounded(found.learnt.draws(simulations, draws, rng).draws)
    return theta[:, 0], rows[:, 0], found, {"regression": adjusted[:, 0], "learnt likelihood": learnt[:, 0]}


def regression_curve(theta, s, terms):
    """Points (s, theta) of the regression that the draws are moved along; near simulations count most."""
    degree, along = {"none": 0, "linear": 1, "products": 2}[terms], np.linspace(s.min(), s.max(), 101)
    away = np.abs(s - OBSERVED)
    weights = np.sqrt(np.maximum(1.0 - (away / (1.001 * away.max())) ** 2, 0.0))
    odds = np.polyfit(s, np.log(theta / (10.0 - theta)), degree, w=weights)
    return along, 10.0 / (1.0 + np.exp(-np.polyval(odds, along)))


def learnt_quantiles(found, levels):
    """Quantiles of s at each theta of GRID, by the learnt likelihood."""
    surrogate, s = found.learnt.surrogate, np.linspace(-4.0, 14.0, 721)
    columns = surrogate.form.columns(support_of(model.prior).unbounded(np.clip(GRID, 1e-3, 10 - 1e-3)[:, None]))
    there = surrogate.form.transform(s[:, None])[:, 0]
    log_density = np.array([surrogate.log_likelihood(columns, given) for given in surrogate.at(s[:, None])])
    mass = np.exp(log_density) * np.gradient(there)[:, None]
    law = np.cumsum(mass, axis=0) / mass.sum(axis=0)
    return np.array([[np.interp(level, column, s) for column in law.T] for level in levels])


def draw_figure(theta, s, found, draws, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        2, 2, figsize=(9, 5.4), sharex=True, sharey="row", height_ratios=(2, 1), constrained_layout=True
    )
    for panel in panels[0]:
        panel.plot(theta, s, ".", color="0.65", markersize=4)
        panel.axhline(OBSERVED, color="black", linewidth=1)
        panel.text(0.1, OBSERVED + 0.15, "observed s", fontsize=8)
    used = found.members[found.draws.source]
    low, high = s[used].min(), s[used].max()
    left, right = panels[0]
    left.axhspan(low, high, color="tab:blue", alpha=0.12, linewidth=0)
    left.plot(theta[used], s[used], ".", color="tab:blue", markersize=5)
    along, curve = regression_curve(theta[used], s[used], found.method.terms)
    left.plot(curve, along, color="tab:blue", linewidth=2)
    left.set_title(f"Regression of theta on s, at the {len(used)} nearest simulations", fontsize=9)
    wide, narrow, middle, upper, widest = learnt_quantiles(found, (0.05, 0.25, 0.5, 0.75, 0.95))
    right.fill_between(GRID, wide, widest, color="tab:orange", alpha=0.2, linewidth=0)
    right.fill_between(GRID, narrow, upper, color="tab:orange", alpha=0.35, linewidth=0)
    right.plot(GRID, middle, color="tab:orange", linewidth=2)
    right.set_title(f"Learnt likelihood: s given theta, from all {len(s)} simulations", fontsize=9)
    left.set_ylabel("s")
    for panel, (name, values), color in zip(panels[1], draws.items(), ("tab:blue", "tab:orange"), strict=True):
        panel.hist(values, bins=np.linspace(0, 10, 61), density=True, color=color, alpha=0.45, label=name)
        panel.plot(GRID, exact_posterior(), color="black", linewidth=1.5, label="exact posterior")
        panel.set_xlabel("theta")
        panel.set_yticks([])
        panel.legend(frameon=False, fontsize=8)
    panels[0, 0].set_ylim(-1.0, 11.0)
    for panel in panels.ravel():
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main(path=None, number=100):
    theta, s, found, draws = estimates(number)
    density = exact_posterior() / exact_posterior().sum()
    mean = density @ GRID
    print(f"exact: mean {mean:.2f}, sd {np.sqrt(density @ (GRID - mean) ** 2):.2f}")
    for name, values in draws.items():
        print(f"{name}: mean {values.mean():.2f}, sd {values.std():.2f}")
    gain, error = found.gain
    print(f"Mean log score of the learnt likelihood over that of the regression: {gain:.2f} ± {error:.2f}")
    if path is not None:
        draw_figure(theta, s, found, draws, path)
        print(f"wrote {path}")
    return draws


if __name__ == "__main__":
    paths = [Path(argument) for argument in sys.argv[1:] if argument != "--quick"]
    main(*paths, number=60 if "--quick" in sys.argv else 100)
