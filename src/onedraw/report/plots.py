"""Figures of a run: `od.plots.marginals(post)` and others, each a matplotlib Figure of its own.

Nothing here touches pyplot, so no figure stays in a global list; a notebook shows the Figure that is returned.
Posterior and prior, measured and proved differ by line style and not by colour alone, and greys keep their order in
print. Weights count everywhere.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onedraw.arguments import one_of, whole_number
from onedraw.engines.arrays import Array
from onedraw.estimators.weights import effective
from onedraw.report.binning import density_of, edges_of, marginals_of
from onedraw.report.style import BLUE, DASHED, ORANGE, SKY, plain_numbers, styled
from onedraw.results.certificate import Certificate
from onedraw.results.posterior import Posterior
from onedraw.tuning.advise import Advice, Gain

CHAINS: tuple[tuple[str, Any], ...] = (
    ("black", "-"), (BLUE, "-"), (ORANGE, (0, (4, 1))), (SKY, "-"), ("0.55", (0, (2, 1))), ("#009e73", "-"),
)  # fmt: skip
MOST_PAIRS, MOST_SUMMARIES, MOST_POINTS = 6, 30, 1500
LONGEST_NAME = 24

__all__ = ["efficiency", "marginals", "pairs", "path", "predictive", "traces"]


def plot(post: Posterior, what: str, **options: Any) -> Any:
    """The figure that `Posterior.plot` asks for by its name."""
    known: dict[str, Any] = {
        "marginals": marginals,
        "pairs": pairs,
        "traces": traces,
        "predictive": predictive,
        "path": path,
    }
    return known[one_of("what", what, tuple(known))](post, **options)


def marginals(post: Posterior, names: Sequence[str] | None = None) -> Any:
    """Each parameter's posterior (filled), with the prior (dashed) if the run has its model.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> figure = od.plots.marginals(od.rejection(model, od.uniform(0.5), draws=100, seed=1))
    >>> len(figure.axes)
    1
    """
    names = _chosen(post, names)
    found = marginals_of(post)
    intervals = post.summary()
    with _styled():
        figure, places = _figure(len(names), columns=_columns(len(names)), size=(3.4, 2.5))
        for axes, name in zip(places, names, strict=True):
            one = found[name]
            axes.stairs(one.density, one.edges, fill=True, color=BLUE, alpha=0.35, label="posterior")
            axes.stairs(one.density, one.edges, color=BLUE, linewidth=1.2)
            if one.prior is not None:
                axes.stairs(one.prior, one.edges, color="0.25", linestyle=DASHED, linewidth=1.2, label="prior")
            row = intervals[name]
            axes.plot([row.hdi_low, row.hdi_high], [0, 0], color="black", linewidth=4, solid_capstyle="butt",
                      clip_on=False, label="90 % interval")  # fmt: skip
            axes.plot([row.mean], [0], "o", color="white", markeredgecolor="black", markersize=5, clip_on=False)
            axes.set_xlim(one.edges[0], one.edges[-1])
            axes.set_ylim(bottom=0)
            axes.set_yticks([])
            if post.draws[name].dtype.kind in "iu":
                axes.xaxis.get_major_locator().set_params(integer=True)
            axes.spines["left"].set_visible(False)
            axes.set_title(_short(name), loc="left", parse_math=False)
        _legend_above(figure, places[0])
    return figure


def pairs(post: Posterior, names: Sequence[str] | None = None) -> Any:
    """Each two parameters: density below the diagonal (darker is more), correlation above it, marginals on it.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(a=stats.norm(), b=stats.norm()), lambda rng, a, b: rng.normal([a, b]), [1.0, 0.0])
    >>> figure = od.plots.pairs(od.rejection(model, od.uniform(1.0), draws=100, seed=1))
    >>> len(figure.axes)
    4
    """
    names = _chosen(post, names)[:MOST_PAIRS]
    size = len(names)
    weight = np.ones(math.prod(post.shape)) if post.weights is None else post.weights.reshape(-1)
    kept = np.flatnonzero(weight)
    weight = weight[kept]
    flat = {name: np.reshape(post.draws[name], -1)[kept] for name in names}
    edges = {name: _close_edges(values, effective(weight)) for name, values in flat.items()}
    with _styled():
        figure = _empty_figure(1.7 * size + 0.8, 1.6 * size + 0.6)
        places = figure.subplots(size, size, squeeze=False)
        for row, below in enumerate(names):
            for column, across in enumerate(names):
                axes = places[row][column]
                if row == column:
                    axes.stairs(density_of(flat[across], weight, edges[across]), edges[across], fill=True, color="0.6")
                    axes.set_yticks([])
                elif row > column:
                    counted = np.histogram2d(flat[across], flat[below], (edges[across], edges[below]), weights=weight)
                    axes.pcolormesh(edges[across], edges[below], counted[0].T, cmap="Greys", rasterized=True)
                else:
                    axes.axis("off")
                    axes.text(0.5, 0.5, _correlation(flat[across], flat[below], weight), ha="center", va="center",
                              fontsize=11, transform=axes.transAxes)  # fmt: skip
                if row >= column:
                    axes.set_xlim(edges[across][0], edges[across][-1])
                    axes.tick_params(labelbottom=row == size - 1, labelleft=column == 0 and row > 0, labelsize=7)
                    axes.locator_params(axis="x", nbins=3)
                    if row == size - 1:
                        axes.set_xlabel(_short(across), parse_math=False)
                    if column == 0 and row > 0:
                        axes.set_ylabel(_short(below), parse_math=False)
    return figure


def traces(post: Posterior, names: Sequence[str] | None = None, chains: int = 4) -> Any:
    """The first chains step by step, and at the bottom for how many steps each has not moved.

    Draws of rejection are independent: they have no chains and no stalls.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(a=stats.norm(), b=stats.norm()), lambda rng, a, b: rng.normal([a, b]), [1.0, 0.0])
    >>> post = od.pseudo_marginal(model, od.uniform(1.0), draws=50, chains=4, seed=1)
    >>> [axes.get_ylabel() for axes in od.plots.traces(post).axes]
    ['a', 'b', 'steps still']
    """
    names = _chosen(post, names)
    if post.independent or post.weights is not None:
        raise ValueError("traces are of chains: these draws are independent or weighted, and have no order")
    chains = min(whole_number("chains", chains, "the number of chains to draw"), post.shape[0], len(CHAINS))
    steps = np.arange(post.shape[1])
    stride = max(1, math.ceil(len(steps) / MOST_POINTS))
    thin = int(post.settings.get("thin", 1))
    with _styled():
        figure, places = _figure(len(names) + 1, columns=1, size=(7.0, 1.25))
        for axes, name in zip(places, names, strict=False):
            for chain in range(chains):
                colour, line = CHAINS[chain]
                values = post.draws[name][chain, ::stride]
                axes.plot(steps[::stride], values, color=colour, linestyle=line, linewidth=0.8, alpha=0.85)
            axes.set_ylabel(_short(name, 14), parse_math=False)
            axes.tick_params(labelbottom=False)
            axes.margins(x=0.01)
        stalls = _stalls(post)[:chains] * thin
        last = places[-1]
        for chain in range(chains):
            colour, line = CHAINS[chain]
            # The longest in each stretch, so that no stall is lost between two points.
            pooled = np.maximum.reduceat(stalls[chain], steps[::stride])
            last.plot(steps[::stride], pooled, color=colour, linestyle=line, linewidth=0.9, label=f"chain {chain}")
        last.set_ylabel("steps still")
        last.set_xlabel("draw")
        last.margins(x=0.01)
        last.set_ylim(bottom=0)
        figure.suptitle(
            f"{chains} of {post.shape[0]} chains; the longest stall of all is {post.longest_stall:,} steps",
            x=0.01, ha="left", fontsize=10,
        )  # fmt: skip
        handles, labels = last.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=chains)
    return figure


def predictive(post: Posterior, n: int = 200, *, seed: int | None = None) -> Any:
    """New simulations at posterior draws, summary by summary, against the observed ones.

    Each summary is shown in units of its own predictive spread: a thin line for 90 % of the simulations, a thick one
    for 50 %, a diamond for the data. A diamond far outside means that the model does not reproduce that summary. It
    costs n simulations.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(a=stats.norm(), b=stats.norm()), lambda rng, a, b: rng.normal([a, b]), [1.0, 0.0])
    >>> figure = od.plots.predictive(od.rejection(model, od.uniform(1.0), draws=100, seed=1), n=20)
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['observed[0]', 'observed[1]']
    """
    return predictive_figure(*predicted(post, n, seed))


def predictive_figure(rows: Array, observed: Array, labels: list[str]) -> Any:
    """Simulated summaries (n, s), failed ones (NaN) left out, against the observed ones (s,)."""
    rows = rows[~np.isnan(rows).any(axis=1)]
    if len(rows) == 0:
        raise ValueError("all predictive simulations failed: there is nothing to compare the data with")
    shown = min(len(labels), MOST_SUMMARIES)
    middle = np.median(rows, axis=0)
    spread = rows.std(axis=0)
    spread = np.where(spread > 0, spread, np.where(observed != middle, np.abs(observed - middle), 1.0))
    place = np.arange(shown)[::-1]
    with _styled():
        figure = _empty_figure(6.4, 0.9 + 0.3 * max(shown, 3))
        axes = figure.add_subplot()
        for low, high, width, grey in ((5, 95, 1.2, "0.35"), (25, 75, 6.0, "0.65")):
            ends = (np.percentile(rows, [low, high], axis=0) - middle) / spread
            axes.hlines(place, ends[0][:shown], ends[1][:shown], color=grey, linewidth=width,
                        label=f"{high - low} % of {len(rows)} simulations")  # fmt: skip
        apart = ((observed - middle) / spread)[:shown]
        axes.plot(np.clip(apart, -6, 6), place, "D", color=ORANGE, markeredgecolor="black", markersize=6, label="data")
        for at, value in zip(place, apart, strict=True):
            if abs(value) > 6:
                axes.annotate(f"{value:+.3g}", (math.copysign(5.6, value), at), fontsize=8, va="bottom",
                              ha="right" if value > 0 else "left")  # fmt: skip
        axes.axvline(0, color="0.7", linewidth=0.8, linestyle=":", zorder=0)
        axes.set_yticks(place, [_short(label) for label in labels[:shown]])
        for text in axes.get_yticklabels():
            text.set_parse_math(False)
        axes.set_ylim(-0.7, shown - 0.3)
        axes.set_xlabel("predictive standard deviations from the predictive median")
        if len(labels) > shown:
            axes.set_title(f"the first {shown} of {len(labels)} summaries", loc="left")
        _legend_above(figure, axes)
    return figure


def predicted(post: Posterior, n: int, seed: int | None = None) -> tuple[Array, Array, list[str]]:
    """n predictive summaries (rows; NaN if one failed), the observed one, and their names."""
    simulated = post.predict(n, seed=seed)
    assert post.model is not None
    observed, labels = post.model.observed_row, post.model.labels()
    parts = list(simulated.values()) if isinstance(simulated, dict) else [simulated]
    rows = np.column_stack([np.asarray(part, dtype=float).reshape(n, -1) for part in parts])
    return rows, observed, labels


def path(post: Posterior) -> Any:
    """The tolerance of a sequential run against the simulations spent, with the acceptance rate below it.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> figure = od.plots.path(od.smc(model, budget=5_000, seed=1))
    >>> len(figure.axes)
    2
    """
    simulations, eps, rate = path_of(post)
    if not eps:
        raise ValueError(
            f"a tolerance path needs a sequential run (od.smc, od.importance): {post.settings.get('algorithm')} has "
            "one tolerance"
        )
    with _styled():
        figure, places = _figure(2 if rate else 1, columns=1, size=(6.4, 2.1))
        for axes, values, label in zip(places, (eps, rate), ("tolerance ε", "accepted share"), strict=False):
            axes.plot(simulations, values, color=BLUE, marker="o", markersize=3.5, linewidth=1.2)
            axes.set_yscale("log")
            plain_numbers(axes, subs=(1.0, 2.0, 5.0), numticks=8)
            axes.set_ylabel(label)
        places[-1].set_xlabel("simulations")
    return figure


def path_of(post: Posterior) -> tuple[list[float], list[float], list[float]]:
    """Simulations spent, tolerance and acceptance rate of each stage; empty if a run has no stages."""
    stages, written = getattr(post, "path", ()), post.settings.get("path")
    points: list[tuple[float, ...]] = []
    if stages:
        spent = np.cumsum([stage.simulations for stage in stages]).tolist()
        points = [(n, one.eps, max(one.acceptance_rate, 1e-12)) for n, one in zip(spent, stages, strict=True)]
    elif isinstance(written, list | tuple) and len(written) > 1:
        points = [(float(n), float(eps)) for n, eps in written]
    points = [one for one in points if 0 < one[1] < math.inf]
    return [one[0] for one in points], [one[1] for one in points], [one[2] for one in points if len(one) > 2]


def efficiency(found: Advice | Certificate, most: int = 64) -> Any:
    """The gain of M pseudo-samples over one, in accuracy for the same cost: measured (points) and its bound (dashed).

    `found` is the result of `od.advise`, or of `od.certificate`, which has the dashed line alone.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(a=stats.norm(), b=stats.norm()), lambda rng, a, b: rng.normal([a, b]), [1.0, 0.0])
    >>> post = od.pseudo_marginal(model, od.uniform(1.0), draws=500, chains=8, seed=1)
    >>> od.plots.efficiency(od.certificate(post)).axes[0].get_xlabel()
    'pseudo-samples M'
    """
    most = whole_number("most", most, "the largest number of pseudo-samples to draw", least=2)
    gains: tuple[Gain, ...]
    if isinstance(found, Certificate):
        certificate, gains, unit = found, (), "simulations"
    elif isinstance(found, Advice):
        answer = found.simulations or found.seconds
        if answer is None:
            raise ValueError(f"this advice has no measurements to draw: {found.verdict}")
        certificate, gains, unit = answer.certificate, answer.gains, answer.currency
    else:
        raise ValueError(f"efficiency is drawn of od.advise(...) or od.certificate(...), got {type(found).__name__}")
    counts = np.unique(np.concatenate([[1.0], np.geomspace(1, most, 60).round()])).astype(int)
    bound = np.array([certificate.gain(int(count)) for count in counts])
    with _styled():
        figure, (axes,) = _figure(1, columns=1, size=(6.4, 3.0))
        known = np.isfinite(bound)
        if known.sum() > 1:
            axes.plot(counts[known], bound[known], color="0.3", linestyle=DASHED, linewidth=1.3,
                      label=f"bound, with {100 * certificate.confidence:g} % confidence")  # fmt: skip
        if not known.all():
            axes.text(0.98, 0.03, "no bound is known beyond the dashed line", ha="right", va="bottom",
                      fontsize=8, transform=axes.transAxes)  # fmt: skip
        functions = list(dict.fromkeys(name for gain in gains for name in gain.each))
        for (colour, _), marker, name in zip(CHAINS, "os^Dv*", functions, strict=False):
            ours = [(gain.pseudo_samples, gain.each[name]) for gain in gains if name in gain.each]
            at, value = [count for count, _ in ours], np.array([one.value for _, one in ours])
            low, high = (np.array([getattr(one, end) for _, one in ours]) for end in ("low", "high"))
            bars = np.nan_to_num(np.clip([value - low, high - value], 0, None))
            axes.errorbar(at, value, yerr=bars, linestyle="none", marker=marker, markersize=5, color=colour,
                          elinewidth=1, capsize=2, label=f"measured, {_short(name)}".replace("$", r"\$"))  # fmt: skip
        axes.axhline(1.0, color="0.6", linewidth=0.8, linestyle=":")
        axes.set_xscale("log", base=2)
        ticks = [2**power for power in range(int(math.log2(most)) + 1)]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        # A bound far above the measurements would flatten them.
        measured = [gain.each[name].value for gain in gains for name in gain.each]
        axes.set_ylim(0, min(max([*bound[known], *measured]) * 1.1, max([4.0, *(2.5 * value for value in measured)])))
        axes.set_xlabel("pseudo-samples M")
        axes.set_ylabel(f"gain over M = 1, in {unit}")
        axes.legend(loc="best")
    return figure


def _chosen(post: Posterior, names: Sequence[str] | None) -> list[str]:
    if math.prod(post.shape) == 0:
        raise ValueError("there are no draws to plot: nothing was accepted")
    if names is None:
        return list(post.names)
    names = [names] if isinstance(names, str) else list(names)
    unknown = [name for name in names if name not in post.draws]
    if unknown or not names:
        raise ValueError(f"names must be among {', '.join(post.names)}, got {names!r}")
    return names


def _stalls(post: Posterior) -> Array:
    """(chains, draws): the number of draws since a chain last moved."""
    chains, draws = post.shape
    moved = np.ones((chains, draws), dtype=bool)
    moved[:, 1:] = post.moves()
    steps = np.arange(draws)
    return np.asarray(steps - np.maximum.accumulate(np.where(moved, steps, 0), axis=1))


def _close_edges(values: Array, draws: float) -> Array:
    if values.dtype.kind in "iu":
        return edges_of(values)
    low, high = np.quantile(values, [0.002, 0.998])
    room = 0.05 * (high - low) if high > low else max(abs(low), 1.0) * 0.5
    return np.linspace(low - room, high + room, int(min(max(2.2 * draws ** (1 / 3), 12), 40)) + 1)


def _correlation(one: Array, other: Array, weight: Array) -> str:
    weight = weight / weight.sum()
    one, other = (values - (weight * values).sum() for values in (one.astype(float), other.astype(float)))
    scale = math.sqrt((weight * one**2).sum() * (weight * other**2).sum())
    return f"{(weight * one * other).sum() / scale:+.2f}" if scale > 0 else "–"


def _short(name: str, longest: int = LONGEST_NAME) -> str:
    """A name for an axis: one line, and not longer than a panel is wide."""
    name = " ".join("".join(letter if letter.isprintable() else " " for letter in str(name)).split())
    return name if len(name) <= longest else name[: longest - 1] + "…"


def _styled() -> Any:
    try:
        return styled({"axes.formatter.useoffset": False})
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'onedraw[report]'") from error


def _empty_figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _figure(panels: int, columns: int, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    rows = -(-panels // columns)
    figure = _empty_figure(size[0] * columns, size[1] * rows + 0.4)
    return figure, [figure.add_subplot(rows, columns, index + 1) for index in range(panels)]


def _columns(panels: int) -> int:
    """The number of columns, up to three, that leaves the fewest gaps."""
    return min(range(1, min(3, panels) + 1), key=lambda columns: (-panels % columns, -columns))


def _legend_above(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels))
