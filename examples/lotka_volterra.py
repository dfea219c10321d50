"""Predators and prey: three rates of a stochastic Lotka-Volterra model, by `od.infer`.

Prey are born at rate birth x prey, prey are eaten and predators born at rate predation x prey x predators, predators
die at rate death x predators. Every event is simulated, by Gillespie's direct method (1977, J. Phys. Chem. 81, 2340).
If predators die out, prey grow without limit. Such a simulation is stopped after MOST events and returns NaN: it has
failed, and counts as far from the data.

The data are simulated, with rates and start of Boys, Wilkinson and Kirkwood (2008), Statistics and Computing 18, 125.
ABC for this model: Toni, Welch, Strelkowa, Ipsen and Stumpf (2009), J. R. Soc. Interface 6, 187.

python examples/lotka_volterra.py [figure.png] [--quick]
"""

import sys

import numpy as np
from scipy import stats

import onedraw as od

TRUTH = {"birth": 1.0, "predation": 0.005, "death": 0.6}
TIMES = np.arange(1.0, 21.0)
MOST = 15_000


def simulate(rng, birth, predation, death, prey=50, predators=100):
    """Counts (times, 2) of prey and predators; NaN from where there were too many events. In loops that Numba knows."""
    seen = np.full((TIMES.size, 2), np.nan)
    clock, place = 0.0, 0
    for _ in range(MOST):
        born, eaten, dead = birth * prey, predation * prey * predators, death * predators
        total = born + eaten + dead
        clock += rng.exponential() / total if total > 0 else np.inf
        while place < TIMES.size and clock > TIMES[place]:
            seen[place, 0], seen[place, 1] = prey, predators
            place += 1
        if place == TIMES.size:
            break
        u = rng.random() * total
        if u < born:
            prey += 1
        elif u < born + eaten:
            prey -= 1
            predators += 1
        else:
            predators -= 1
    return seen


def summary(counts):
    """Of the logarithms: means, variances, correlations over one and two steps, and that of prey with predators."""
    logs = np.log1p(counts)
    spread = logs.std(axis=0)
    z = (logs - logs.mean(axis=0)) / np.maximum(spread, 1e-9)
    over = [(z[lag:] * z[:-lag]).mean(axis=0) for lag in (1, 2)]
    return [*logs.mean(axis=0), *np.log(spread**2 + 1e-3), *over[0], *over[1], z.prod(axis=1).mean()]


data = simulate(np.random.default_rng(3), **TRUTH)
prior = od.Prior(
    birth=stats.loguniform(0.1, 10), predation=stats.loguniform(5e-4, 5e-2), death=stats.loguniform(0.06, 6)
)
model = od.Model(prior, od.compiled(simulate), observed=data, summary=summary)


def draw_figure(post, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    grid = figure.add_gridspec(2, 3, height_ratios=[1.3, 1])
    panel = figure.add_subplot(grid[0, :])
    draws, rng = post.sample(40, seed=1), np.random.default_rng(1)
    runs = [simulate(rng, *theta) for theta in zip(*draws.values(), strict=True)]
    for column, (name, colour, mark) in enumerate((("prey", "#0072b2", "o"), ("predators", "#d55e00", "s"))):
        for run in runs:
            panel.plot(TIMES, run[:, column], color=colour, linewidth=0.6, alpha=0.2)
        panel.plot(TIMES, data[:, column], mark, color=colour, markersize=4, label=name)
    panel.set(xlabel="time", ylabel="animals", ylim=(0, 1.6 * data.max()), xticks=TIMES[1::2])
    panel.legend(
        frameon=False, fontsize=8.5, loc="upper center", ncols=2, title="data (points), runs at 40 draws (lines)"
    )
    panel.spines[["top", "right"]].set_visible(False)
    for place, (name, truth) in enumerate(TRUTH.items()):
        panel = figure.add_subplot(grid[1, place])
        panel.hist(post.draws[name].ravel(), 40, density=True, color="#0072b2", alpha=0.35, label="posterior")
        panel.axvline(truth, color="#d55e00", linestyle=(0, (4, 2)), label="truth")
        panel.set_xlabel(f"rate of {name}")
        panel.set_yticks([])
        panel.spines[["left", "top", "right"]].set_visible(False)
    figure.axes[1].legend(frameon=False, fontsize=8.5)
    figure.savefig(path, dpi=150)


def main(path=None, budget=20_000):
    post = od.infer(model, budget=budget, seed=1)
    print(post.summary())
    if path is not None:
        draw_figure(post, path)
        print(f"wrote {path}")
    rows = post.summary()
    inside = [name for name in TRUTH if rows[name].hdi_low < TRUTH[name] < rows[name].hdi_high]
    said = ", ".join(f"{name} {rows[name].mean:.2g} ± {rows[name].sd:.1g}" for name in TRUTH)
    print(
        f"{budget:,} simulations, {100 * post.cost.failed / post.cost.simulations:.0f} % of them ended after {MOST:,} "
        f"events, find {said}: {len(inside)} of 3 true rates lie in their 90 % intervals."
    )
    return post


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    paths = [word for word in sys.argv[1:] if word != "--quick"]
    main(*paths[:1], **({"budget": 200} if quick else {}))
