"""Figures of a run: `od.plots.marginals(post)` and others, each a matplotlib Figure that a paper can use.

Every function takes the same four arguments. `parameters` selects which parameters to draw (or summaries, series,
estimates or functions, if there are no parameters). `names` gives labels, a dict or one label for each, with
mathematics between dollars: `names={"mu": r"$\\mu$"}`. `truth` marks known values, a dict or one number for each.
`ax` says where to draw: a matplotlib Axes, several if there are several panels, or a Figure; by default a new Figure.
In your own axes you draw the legend yourself (`ax.legend()`). The Figure is returned; `od.plots.save` writes it as
SVG, PDF and PNG.

Nothing here touches pyplot, so no figure stays in a global list; a notebook shows the Figure that is returned.
Lines differ in style and not only in colour, and greys keep their order in print. Weights are used everywhere.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onedraw.arguments import numbers, one_of, shown, whole_number
from onedraw.engines.arrays import Array
from onedraw.estimators.weights import effective
from onedraw.report.binning import MarginalHistogram, density_grid, density_of, edges_of, marginals_of
from onedraw.report.calibration_plots import coverage, rank_histogram
from onedraw.report.chain_plots import ranks, traces
from onedraw.report.panels import (
    LINES,
    TRUTH,
    Names,
    One,
    Panels,
    Posts,
    Quantity,
    Truth,
    a_posterior,
    columns_for,
    empty_figure,
    few_plain_ticks,
    in_style,
    labelled,
    line_of,
    of_posteriors,
    panels,
    parameters_of,
    plain_label,
    quantities,
    rows_labelled,
    titled,
)
from onedraw.report.style import BLUE, DASHED, ORANGE, counts_on_x, plain_numbers, save
from onedraw.results.certificate import Certificate
from onedraw.results.posterior import Posterior
from onedraw.results.summary import SummaryRow, ToleranceCurve
from onedraw.tuning.advise import Advice, Gain

MOST_PAIRS, MOST_SUMMARIES = 6, 30
HELD = (0.5, 0.9)
"""Shares of the posterior that intervals, contours and bands hold."""

__all__ = [
    "alternatives", "corner", "coverage", "efficiency", "intervals", "marginals", "pairs", "path", "predictive",
    "predictive_band", "rank_histogram", "ranks", "save", "tolerances", "traces",
]  # fmt: skip


def plot(post: Posterior, what: str, **options: Any) -> Any:
    """The figure that `Posterior.plot` asks for by its name."""
    drawn_of_posteriors = (
        marginals, intervals, pairs, corner, traces, ranks, predictive, predictive_band, path, coverage, alternatives,
    )  # fmt: skip
    known = {one.__name__: one for one in drawn_of_posteriors}
    return known[one_of("what", what, tuple(known))](post, **options)


def marginals(post: Posts, parameters: One = None, *, names: Names = None, truth: Truth = None, ax: Any = None) -> Any:
    """Each parameter's posterior (filled), with the prior (dashed) if the run has its model.

    A dict of posteriors by label draws them over each other: runs, tolerances or methods, the prior of the first.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> post = od.rejection(model, od.uniform(0.5), draws=100, seed=1)
    >>> len(od.plots.marginals(post).axes)
    1
    >>> figure = od.plots.marginals({"eps = 0.5": post, "eps = 0.2": post.at(0.2)}, truth=1.0)
    """
    posts = of_posteriors(post)
    drawn = parameters_of(posts, parameters, names, truth)
    first = next(iter(posts.values()))
    counted, summary = {label: marginals_of(each) for label, each in posts.items()}, first.summary()
    with in_style():
        found = panels(ax, len(drawn), columns_for(len(drawn)), size=(3.4, 2.5))
        for axes, one in zip(found.places, drawn, strict=True):
            histograms = {label: each[one.key] for label, each in counted.items()}
            if len(posts) == 1:
                _marginal(axes, next(iter(histograms.values())), summary[one.key])
            else:
                _marginals_over(axes, histograms)
            if one.truth is not None:
                low, high = axes.get_xlim()
                axes.axvline(one.truth, label="truth", **TRUTH)
                axes.set_xlim(min(low, one.truth), max(high, one.truth))
            axes.set_ylim(bottom=0)
            axes.set_yticks([])
            if first.columns[one.key].dtype.kind in "iu":
                axes.xaxis.get_major_locator().set_params(integer=True)
            axes.spines["left"].set_visible(False)
            titled(axes, one)
        found.legend()
    return found.figure


def _marginal(axes: Any, found: MarginalHistogram, row: SummaryRow) -> None:
    """One posterior, filled, with its prior and interval."""
    axes.stairs(found.density, found.edges, fill=True, color=BLUE, alpha=0.35, label="posterior")
    axes.stairs(found.density, found.edges, color=BLUE, linewidth=1.2)
    if found.prior is not None:
        axes.stairs(found.prior, found.edges, color="0.25", linestyle=DASHED, linewidth=1.2, label="prior")
    axes.plot([row.hdi_low, row.hdi_high], [0, 0], color="black", linewidth=4, solid_capstyle="butt",
              clip_on=False, label="90 % interval")  # fmt: skip
    axes.plot([row.mean], [0], "o", color="white", markeredgecolor="black", markersize=5, clip_on=False)
    axes.set_xlim(found.edges[0], found.edges[-1])


def _marginals_over(axes: Any, histograms: Mapping[str, MarginalHistogram]) -> None:
    """Several posteriors as lines over each other, each with bins of its own width."""
    ends = []
    for index, (label, found) in enumerate(histograms.items()):
        colour, line = line_of(index)
        if index == 0 and found.prior is not None:
            axes.stairs(found.prior, found.edges, color="0.25", linestyle=DASHED, linewidth=1.0, label="prior")
        inside = np.flatnonzero(found.density)
        ends += [found.edges[inside[0]], found.edges[inside[-1] + 1]]
        axes.stairs(found.density, found.edges, fill=True, color=colour, alpha=0.12)
        axes.stairs(found.density, found.edges, color=colour, linestyle=line, linewidth=1.3, label=label)
    room = 0.1 * (max(ends) - min(ends))
    axes.set_xlim(min(ends) - room, max(ends) + room)


def intervals(post: Posts, parameters: One = None, *, names: Names = None, truth: Truth = None, ax: Any = None) -> Any:
    """Means with intervals that contain 50 % (thick) and 90 % (thin), one row per parameter, for one run or several.

    For many parameters of one scale, such as the groups of a hierarchical model; otherwise use `marginals`.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(a=stats.norm(), b=stats.norm()), lambda rng, a, b: rng.normal([a, b]), [1.0, 0.0])
    >>> figure = od.plots.intervals(od.rejection(model, od.uniform(1.0), draws=100, seed=1))
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['a', 'b']
    """
    posts = of_posteriors(post)
    drawn = parameters_of(posts, parameters, names, truth)
    rows = np.arange(len(drawn))[::-1].astype(float)
    with in_style():
        found = panels(ax, 1, columns=1, size=(5.0, 0.7 + 0.16 * len(drawn) * (1 + len(posts))))
        axes = found.places[0]
        for index, (label, one) in enumerate(posts.items()):
            colour, _ = line_of(index)
            places = rows + 0.22 * ((len(posts) - 1) / 2 - index)
            summaries = [one.summary(held) for held in HELD]
            for summary, width in zip(summaries, (4.0, 1.3), strict=True):
                ends = [(summary[each.key].hdi_low, summary[each.key].hdi_high) for each in drawn]
                axes.hlines(places, *np.transpose(ends), color=colour, linewidth=width)
            means = [summaries[0][each.key].mean for each in drawn]
            axes.plot(means, places, "o^sDv"[index % 5], color="white", markeredgecolor=colour, markersize=5,
                      linestyle="none", label=label or "mean, 50 % and 90 % intervals")  # fmt: skip
        known = [(place, each.truth) for place, each in zip(rows, drawn, strict=True) if each.truth is not None]
        for index, (place, value) in enumerate(known):
            axes.plot([value] * 2, [place - 0.35, place + 0.35], label="truth" if index == 0 else None, **TRUTH)
        rows_labelled(axes, rows, drawn)
        axes.set_ylim(-0.6, len(drawn) - 0.4)
        found.legend()
    return found.figure


def corner(post: Posts, parameters: One = None, *, names: Names = None, truth: Truth = None, ax: Any = None) -> Any:
    """Each two parameters, with contours that contain 50 % and 90 % of the posterior, and marginals on the diagonal.

    A dict of posteriors by label draws them over each other. Densities are smoothed, by the effective number of draws.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(a=stats.norm(), b=stats.norm()), lambda rng, a, b: rng.normal([a, b]), [1.0, 0.0])
    >>> figure = od.plots.corner(od.rejection(model, od.uniform(1.0), draws=500, seed=1), truth={"a": 1.0, "b": 0.0})
    >>> len(figure.axes)
    4
    """
    posts = of_posteriors(post)
    drawn = parameters_of(posts, parameters, names, truth)
    flat = {label: _flat(one, [each.key for each in drawn]) for label, one in posts.items()}
    edges = {each.key: _edges_over(flat, each) for each in drawn}
    with in_style():
        found, grid = _square(ax, drawn, edges)
        for row, below in enumerate(drawn):
            for column, across in enumerate(drawn[: row + 1]):
                for index, (values, weight) in enumerate(flat.values()):
                    colour, line = line_of(index)
                    if row == column:
                        _curve(grid[row][row], values[across.key], weight, edges[across.key], colour, line)
                    else:
                        _contours(grid[row][column], values[across.key], values[below.key], weight, colour, line)
                _mark_truth(grid[row][column], across, None if row == column else below)
        _legend_in_corner(found, grid, list(posts), any(one.truth is not None for one in drawn))
    return found.figure


def _edges_over(flat: Mapping[str, tuple[dict[str, Array], Array]], one: Quantity) -> Array:
    """Bins that hold the draws of all runs, and the truth."""
    each = [_close_edges(values[one.key], effective(weight)) for values, weight in flat.values()]
    if next(iter(flat.values()))[0][one.key].dtype.kind in "iu":
        return np.arange(min(ends[0] for ends in each), max(ends[-1] for ends in each) + 0.5)
    known = [] if one.truth is None else [one.truth]
    low, high = min([*(ends[0] for ends in each), *known]), max([*(ends[-1] for ends in each), *known])
    width = max(ends[1] - ends[0] for ends in each)
    return np.linspace(low, high, min(max(round((high - low) / width), 12), 80) + 1)


def _curve(axes: Any, values: Array, weight: Array, edges: Array, colour: str, line: Any) -> None:
    density = density_of(values, weight, edges)
    axes.stairs(density, edges, fill=True, color=colour, alpha=0.2)
    axes.stairs(density, edges, color=colour, linestyle=line, linewidth=1.2)
    axes.set_ylim(0, max(axes.get_ylim()[1], 1.08 * density.max()))


def _contours(axes: Any, across: Array, up: Array, weight: Array, colour: str, line: Any) -> None:
    """Filled contours of one posterior; of values that lie on a line, the draws themselves."""
    if np.ptp(across) == 0 or np.ptp(up) == 0:
        axes.plot(across, up, ".", color=colour, markersize=3)
        return
    grid = density_grid(across.astype(float), up.astype(float), weight)
    levels = sorted({grid.level(share) for share in HELD})
    top = float(grid.density.max())
    for level, alpha in zip(levels, (0.18, 0.35), strict=False):
        axes.contourf(
            grid.across, grid.up, grid.density, [level, max(top, level) * 1.001], colors=[colour], alpha=alpha
        )
    axes.contour(grid.across, grid.up, grid.density, levels, colors=[colour], linestyles=[line], linewidths=1.0)


def _mark_truth(axes: Any, across: Quantity, up: Quantity | None) -> None:
    if across.truth is not None:
        axes.axvline(across.truth, **TRUTH)
    if up is not None and up.truth is not None:
        axes.axhline(up.truth, **TRUTH)
        if across.truth is not None:
            axes.plot([across.truth], [up.truth], "s", color=TRUTH["color"], markersize=4.5)


def _legend_in_corner(found: Panels, grid: list[list[Any]], labels: Sequence[str], known: bool) -> None:
    """The labels of several runs in the empty corner at the top right."""
    from matplotlib.lines import Line2D

    lines = [(*line_of(index), label) for index, label in enumerate(labels) if label]
    handles = [Line2D([], [], color=colour, linestyle=line, label=label) for colour, line, label in lines]
    handles += [Line2D([], [], label="truth", **TRUTH)] if known else []
    if handles:
        grid[0][-1].legend(handles=handles, loc="upper right")


def pairs(post: Posterior, parameters: One = None, *, names: Names = None, truth: Truth = None, ax: Any = None) -> Any:
    """Each two parameters: density below the diagonal (stronger is more), correlation above it, marginals on it.

    Nothing is smoothed; `corner` has smooth contours. Only the first six parameters are drawn.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(a=stats.norm(), b=stats.norm()), lambda rng, a, b: rng.normal([a, b]), [1.0, 0.0])
    >>> figure = od.plots.pairs(od.rejection(model, od.uniform(1.0), draws=100, seed=1))
    >>> len(figure.axes)
    4
    """
    drawn = parameters_of({"": post}, parameters, names, truth)[:MOST_PAIRS]
    flat, weight = _flat(post, [one.key for one in drawn])
    edges = {name: _close_edges(values, effective(weight)) for name, values in flat.items()}
    with in_style():
        found, grid = _square(ax, drawn, edges)
        for row, below in enumerate(drawn):
            for column, across in enumerate(drawn):
                axes = grid[row][column]
                if row == column:
                    density = density_of(flat[across.key], weight, edges[across.key])
                    axes.stairs(density, edges[across.key], fill=True, color="0.6")
                elif row > column:
                    sides = (edges[across.key], edges[below.key])
                    counted = np.histogram2d(flat[across.key], flat[below.key], sides, weights=weight)[0].T
                    filled = np.where(counted > 0, counted, np.nan)
                    axes.pcolormesh(*sides, filled, cmap=_tones(), vmin=0, vmax=counted.max(), rasterized=True)
                else:
                    axes.text(0.5, 0.5, _correlation(flat[across.key], flat[below.key], weight), ha="center",
                              va="center", fontsize=11, transform=axes.transAxes)  # fmt: skip
                if row >= column:
                    _mark_truth(axes, across, None if row == column else below)
    return found.figure


def _tones() -> Any:
    """From nearly nothing to black by opacity: the page shines through, whatever its colour."""
    from matplotlib.colors import ListedColormap

    return ListedColormap([(0.0, 0.0, 0.0, 0.06 + 0.94 * step / 63) for step in range(64)])


def _square(ax: Any, drawn: Sequence[Quantity], edges: Mapping[str, Array]) -> tuple[Panels, list[list[Any]]]:
    """A panel for each two parameters, those above the diagonal without axes."""
    size = len(drawn)
    if ax is None:
        figure = empty_figure(1.7 * size + 0.8, 1.6 * size + 0.6)
        found = Panels(figure, list(figure.subplots(size, size, squeeze=False).reshape(-1)), True)
    else:
        found = panels(ax, size * size, columns=size, size=(1.7, 1.6))
    grid = [found.places[size * row : size * (row + 1)] for row in range(size)]
    for row, below in enumerate(drawn):
        for column, across in enumerate(drawn):
            axes = grid[row][column]
            if row < column:
                axes.axis("off")
                continue
            axes.set_xlim(edges[across.key][0], edges[across.key][-1])
            axes.locator_params(axis="x", nbins=3)
            axes.tick_params(labelbottom=row == size - 1, labelleft=column == 0 and row > 0, labelsize=7)
            labelled(axes, across if row == size - 1 else None, below if column == 0 and row > 0 else None)
            if row == column:
                axes.set_yticks([])
                axes.spines["left"].set_visible(False)
            else:
                axes.set_ylim(edges[below.key][0], edges[below.key][-1])
                axes.locator_params(axis="y", nbins=4)
    return found, grid


def _flat(post: Posterior, keys: Sequence[str]) -> tuple[dict[str, Array], Array]:
    """Draws that have a weight, by parameter, and their weights."""
    weight = np.ones(math.prod(post.shape)) if post.weights is None else post.weights.reshape(-1)
    kept = np.flatnonzero(weight)
    return {key: np.reshape(post.columns[key], -1)[kept] for key in keys}, weight[kept]


def predictive(
    post: Posterior,
    n: int = 200,
    *,
    seed: int | None = None,
    parameters: One = None,
    names: Names = None,
    truth: Truth = None,
    ax: Any = None,
) -> Any:
    """New simulations at posterior draws, summary by summary, against the observed ones.

    Each summary is shown in units of its own predictive spread: a thin line for 90 % of the simulations, a thick one
    for 50 %, a diamond for the data. A diamond far outside means that the model does not reproduce that summary. It
    costs n simulations. `parameters`, `names` and `truth` are of the summaries.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(a=stats.norm(), b=stats.norm()), lambda rng, a, b: rng.normal([a, b]), [1.0, 0.0])
    >>> figure = od.plots.predictive(od.rejection(model, od.uniform(1.0), draws=100, seed=1), n=20)
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['observed[0]', 'observed[1]']
    """
    rows, observed, labels = predicted(post, n, seed)
    return predictive_figure(rows, observed, labels, parameters=parameters, names=names, truth=truth, ax=ax)


def predictive_figure(
    rows: Array,
    observed: Array,
    labels: list[str],
    *,
    parameters: One = None,
    names: Names = None,
    truth: Truth = None,
    ax: Any = None,
) -> Any:
    """Simulated summaries (n, s), failed ones (NaN) left out, against the observed ones (s,)."""
    drawn = quantities(labels, parameters, names, truth, "the summaries")[:MOST_SUMMARIES]
    columns = [labels.index(one.key) for one in drawn]
    rows, observed = _not_failed(rows)[:, columns], observed[columns]
    middle = np.median(rows, axis=0)
    spread = rows.std(axis=0)
    spread = np.where(spread > 0, spread, np.where(observed != middle, np.abs(observed - middle), 1.0))
    place = np.arange(len(drawn))[::-1]
    with in_style():
        found = panels(ax, 1, columns=1, size=(5.2, 0.5 + 0.3 * max(len(drawn), 3)))
        axes = found.places[0]
        for (low, high, told), width, grey in zip(_bands(rows), (1.2, 6.0), ("0.35", "0.65"), strict=True):
            ends = ((end - middle) / spread for end in (low, high))
            axes.hlines(place, *ends, color=grey, linewidth=width, label=told)
        apart = (observed - middle) / spread
        axes.plot(np.clip(apart, -6, 6), place, "D", color=ORANGE, markeredgecolor="black", markersize=6, label="data")
        for at, value in zip(place, apart, strict=True):
            if abs(value) > 6:
                axes.annotate(f"{value:+.3g}", (math.copysign(5.6, value), at), fontsize=8, va="bottom",
                              ha="right" if value > 0 else "left")  # fmt: skip
        known = [(at, (one.truth - middle[k]) / spread[k]) for k, (at, one) in enumerate(zip(place, drawn, strict=True))
                 if one.truth is not None]  # fmt: skip
        if known:
            axes.plot([value for _, value in known], [at for at, _ in known], "|", color=TRUTH["color"], markersize=13,
                      markeredgewidth=2, label="truth")  # fmt: skip
        axes.axvline(0, color="0.7", linewidth=0.8, linestyle=":", zorder=0)
        rows_labelled(axes, place, drawn)
        axes.set_ylim(-0.7, len(drawn) - 0.3)
        axes.set_xlabel("standard deviations from the predictive median")
        if parameters is None and len(labels) > len(drawn):
            axes.set_title(f"the first {len(drawn)} of {len(labels)} summaries", loc="left")
        found.legend()
    return found.figure


def predicted(post: Posterior, n: int, seed: int | None = None) -> tuple[Array, Array, list[str]]:
    """n predictive summaries (rows; NaN if one failed), the observed one, and their names."""
    simulated = a_posterior(post).predict(n, seed=seed)
    assert post.model is not None
    observed, labels = post.model.observed_row, post.model.labels()
    parts = list(simulated.values()) if isinstance(simulated, dict) else [simulated]
    rows = np.column_stack([np.asarray(part, dtype=float).reshape(n, -1) for part in parts])
    return rows, observed, labels


def _not_failed(rows: Array) -> Array:
    good = rows[~np.isnan(rows).reshape(len(rows), -1).any(axis=1)]
    if len(good) == 0:
        raise ValueError(f"all {len(rows)} predictive simulations failed: there is nothing to compare the data with")
    return good


def _bands(rows: Array) -> list[tuple[Array, Array, str]]:
    """Lower and upper ends of central intervals that hold 90 % and 50 % of simulations (n, ...), with their labels."""
    labels = (f"90 % of {len(rows)} simulations", "50 % of them")
    ends = (np.quantile(rows, [0.5 - held / 2, 0.5 + held / 2], axis=0) for held in HELD[::-1])
    return [(low, high, label) for (low, high), label in zip(ends, labels, strict=True)]


def predictive_band(
    post: Posterior,
    time: Any = None,
    n: int = 200,
    *,
    seed: int | None = None,
    parameters: One = None,
    names: Names = None,
    truth: Any = None,
    ax: Any = None,
) -> Any:
    """Bands over time that contain 50 % and 90 % of new simulations at posterior draws, with the data as points.

    Simulated data are drawn, not their summaries. `time` has the times of the observations; by default they are
    counted from 0. Data with several series (an array with a second axis, or a dict) get one panel per series;
    `parameters` says which. `truth` is the true series: an array over time, or a dict of them by series. It costs n
    simulations.

    >>> import numpy as np
    >>> import onedraw as od
    >>> from scipy import stats
    >>> days = np.arange(10)
    >>> def grow(rng, rate):
    ...     return rng.poisson(5 * np.exp(rate * days))
    >>> model = od.Model(od.Prior(rate=stats.uniform(0, 0.5)), grow, grow(np.random.default_rng(1), 0.2),
    ...                  summary=lambda counts: np.log1p(counts[[4, 9]]))
    >>> post = od.rejection(model, od.uniform(0.5), draws=100, seed=1)
    >>> figure = od.plots.predictive_band(post, time=days, n=20, truth=5 * np.exp(0.2 * days))
    >>> figure.axes[0].get_xlabel()
    'time'
    """
    simulated = a_posterior(post).predict(n, seed=seed, data=True)
    assert post.model is not None
    times = None if time is None else _times(time)
    several, observed = _series(simulated, times, n), _series(post.model.observed, times)
    drawn = quantities(list(observed), parameters, names, None, "the series of the data")
    courses = truth if isinstance(truth, Mapping) else {} if truth is None else {drawn[0].key: truth}
    unknown = [key for key in courses if key not in observed]
    if unknown or (truth is not None and not isinstance(truth, Mapping) and len(drawn) > 1):
        raise ValueError(f"truth must be a dict of arrays for {', '.join(observed)}, got {shown(truth)}")
    with in_style():
        found = panels(ax, len(drawn), columns=1, size=(5.2, 2.3 if len(drawn) == 1 else 1.6))
        for axes, one in zip(found.places, drawn, strict=True):
            rows, data = _not_failed(several[one.key]), observed[one.key]
            at = np.arange(len(data)) if times is None else times
            for (low, high, told), alpha in zip(_bands(rows), (0.22, 0.35), strict=True):
                axes.fill_between(at, low, high, color=BLUE, alpha=alpha, linewidth=0, label=told)
            axes.plot(at, np.median(rows, axis=0), color=BLUE, linewidth=1.2, label="their median")
            if one.key in courses:
                axes.plot(at, _course(one.key, courses[one.key], len(data)), linestyle=DASHED, label="truth", **TRUTH)
            axes.plot(at, data, "o", color="black", markersize=3.5, label="data")
            axes.margins(x=0.02)
            if one.math or len(observed) > 1 or one.key != "observed":
                labelled(axes, up=one, longest=18)
        for axes in found.places[:-1]:
            axes.tick_params(labelbottom=False)
        found.places[-1].set_xlabel("time")
        found.legend()
    return found.figure


def _times(given: Any) -> Array:
    """The times of a series: numbers or dates."""
    times = np.asarray(given)
    if times.ndim != 1 or times.dtype.kind in "OSUV":
        raise ValueError(f"time must be a list of numbers or dates, one for each value of a series, got {shown(given)}")
    return times


def _course(key: str, given: Any, length: int) -> Array:
    try:
        course = numbers(given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"truth of {key} must be a list of numbers, got {shown(given)}") from error
    if course.shape != (length,):
        raise ValueError(f"truth of {key} has shape {course.shape}: the series has {length} times")
    return course


def _series(data: Any, times: Array | None, n: int | None = None) -> dict[str, Array]:
    """Series by name, (times,) each, or (n, times) of n data sets; an axis of as many numbers as `times` is time."""
    parts = data if isinstance(data, Mapping) else {"observed": data}
    found: dict[str, Array] = {}
    for name, part in parts.items():
        values = np.asarray(part, dtype=float)
        values = values[None] if n is None else values
        fits = [axis for axis in range(1, values.ndim) if times is None or values.shape[axis] == len(times)]
        if not fits:
            continue
        values = np.moveaxis(values, fits[0], 1).reshape(len(values), values.shape[fits[0]], -1)
        for k in range(values.shape[2]):
            label = str(name) if values.shape[2] == 1 else f"{name}[{k}]"
            found[label] = values[:, :, k] if n is not None else values[0, :, k]
    if not found:
        sizes = {str(name): np.shape(part)[0 if n is None else 1 :] for name, part in parts.items()}
        wanted = "any times" if times is None else f"{len(times)} times, as time= has"
        raise ValueError(f"no axis of the data has {wanted}: shapes are {sizes}")
    return found


def path(post: Posts, parameters: One = None, *, names: Names = None, truth: Truth = None, ax: Any = None) -> Any:
    """The tolerance of a sequential run against the simulations spent, with the acceptance rate below it.

    A dict of runs by label draws them over each other. `parameters` picks from "tolerance" and "acceptance", `truth`
    marks values of theirs, such as the tolerance that is wanted.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> figure = od.plots.path(od.smc(model, budget=5_000, seed=1))
    >>> len(figure.axes)
    2
    """
    posts = of_posteriors(post)
    paths = {label: path_of(one) for label, one in posts.items()}
    for label, run in posts.items():
        if not paths[label][1]:
            raise ValueError(
                f"a tolerance path needs a sequential run (od.smc, od.importance): {run.settings.get('algorithm')} has "
                "one tolerance"
            )
    kinds = {"tolerance": (1, "tolerance ε"), "acceptance": (2, "accepted share")}
    known = [key for key, (place, _) in kinds.items() if any(one[place] for one in paths.values())]
    drawn = quantities(known, parameters, names, truth, "the quantities that change along the path")
    with in_style():
        found = panels(ax, len(drawn), columns=1, size=(5.2, 1.9))
        for axes, one in zip(found.places, drawn, strict=True):
            place, word = kinds[one.key]
            for index, (label, along) in enumerate(paths.items()):
                colour, line = line_of(index)
                if along[place]:
                    axes.plot(along[0], along[place], color=colour, linestyle=line, marker="o^sDv*"[index % 6],
                              markersize=3.5, linewidth=1.2, label=label or None)  # fmt: skip
            if one.truth is not None:
                axes.axhline(one.truth, **TRUTH)
            axes.set_yscale("log")
            plain_numbers(axes, subs=(1.0, 2.0, 5.0), numticks=8)
            labelled(axes, up=one if one.math else one._replace(label=word))
            axes.xaxis.set_major_formatter("{x:,.0f}")
        found.places[-1].set_xlabel("simulations")
        found.legend()
    return found.figure


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


def tolerances(
    curve: ToleranceCurve, parameters: One = None, *, names: Names = None, truth: Truth = None, ax: Any = None
) -> Any:
    """How estimates change with the tolerance, with their Monte Carlo intervals: the result of `post.over`.

    If the curve flattens before its interval widens, a smaller tolerance would not change the answer.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> post = od.pseudo_marginal(model, od.uniform(1.0), draws=200, chains=64, seed=1)
    >>> od.plots.tolerances(post.over([1.0, 0.5, 0.25]), truth=1.0).axes[0].get_xlabel()
    'tolerance ε'
    """
    if not isinstance(curve, ToleranceCurve):
        raise ValueError(f"curve must be the result of post.over([0.5, 0.25]), got {shown(curve)}")
    drawn = quantities(list(curve), parameters, names, truth, "the functions of the curve")
    with in_style():
        found = panels(ax, len(drawn), columns_for(len(drawn)), size=(3.4, 2.3))
        for axes, one in zip(found.places, drawn, strict=True):
            at, mean, low, high = np.transpose([point[:4] for point in curve[one.key]])
            axes.fill_between(at, low, high, color=BLUE, alpha=0.25, linewidth=0,
                              label=f"{100 * curve.probability:g} % Monte Carlo interval")  # fmt: skip
            axes.plot(at, mean, color=BLUE, marker="o", markersize=3.5, linewidth=1.2, label="posterior mean")
            if one.truth is not None:
                axes.axhline(one.truth, label="truth", **TRUTH)
            axes.set_xscale("log")
            few_plain_ticks(axes, at)
            axes.invert_xaxis()
            axes.set_xlabel("tolerance ε")
            titled(axes, one)
        found.legend()
    return found.figure


def alternatives(
    post: Posterior, parameters: One = None, *, names: Names = None, truth: Truth = None, ax: Any = None
) -> Any:
    """The estimates that `od.infer` tried: how far each is behind the chosen one at held-out simulations.

    The score is the mean log density of known parameters, so that 0.1 is a tenth of a nat per simulation. Bars are two
    standard errors. `parameters` and `names` are of the estimates, as in `post.alternatives`.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> figure = od.plots.alternatives(od.infer(model, budget=1_000, seed=1))
    >>> figure.axes[0].get_yticklabels()[0].get_text().startswith("chosen: ")
    True
    """
    tried = {str(one["estimate"]): one for one in a_posterior(post).alternatives}
    if not tried:
        raise ValueError(f"only od.infer tries several estimates: this run is one of {post.settings.get('algorithm')}")
    drawn = quantities(list(tried), parameters, names, truth, "the estimates that were tried")
    place = np.arange(len(drawn))[::-1].astype(float)
    with in_style():
        found = panels(ax, 1, columns=1, size=(5.2, 0.6 + 0.42 * len(drawn)))
        axes = found.places[0]
        for at, one in zip(place, drawn, strict=True):
            behind, error = (tried[one.key].get(key) for key in ("behind", "se"))
            if behind is None:
                axes.annotate("not compared", (0, at), va="center", fontsize=8)
                continue
            axes.errorbar([behind], [at], xerr=[2 * (error or 0.0)], marker="o", markersize=6, color=BLUE,
                          elinewidth=1.6, capsize=3, linestyle="none")  # fmt: skip
            if one.truth is not None:
                axes.plot([one.truth], [at], "|", markersize=14, markeredgewidth=2, color=TRUTH["color"])
        axes.axvline(0, color="0.6", linewidth=0.9, linestyle=":", zorder=0)
        first = post.alternatives[0]["estimate"]
        told = [one._replace(label=f"chosen: {one.label}") if one.key == first else one for one in drawn]
        rows_labelled(axes, place, [_wrapped(one) for one in told])
        axes.set_ylim(-0.6, len(drawn) - 0.4)
        axes.margins(x=0.15)
        axes.set_xlabel("mean log score behind\nthe chosen estimate (± 2 se)")
    return found.figure


def _wrapped(one: Quantity, width: int = 36) -> Quantity:
    """A long name on several lines; as it is, so that dollars stay dollars."""
    import textwrap

    text = one.label if one.math else one.label.replace("$", r"\$")
    return one._replace(label="\n".join(textwrap.wrap(text, width)), math=True)


def efficiency(
    found: Advice | Certificate,
    most: int = 64,
    *,
    parameters: One = None,
    names: Names = None,
    truth: Truth = None,
    ax: Any = None,
) -> Any:
    """The gain of M pseudo-samples over one, in accuracy for the same cost: measured (points) and its bound (dashed).

    `found` is the result of `od.advise`, or of `od.certificate`, which has the dashed line alone. `parameters` are the
    functions whose gains were measured, and `truth` their limits, if they are known.

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
        raise ValueError(f"found must be the result of od.advise or od.certificate, got {shown(found)}")
    counts = np.unique(np.concatenate([[1.0], np.geomspace(1, most, 60).round()])).astype(int)
    bound = np.array([certificate.gain(int(count)) for count in counts])
    functions = list(dict.fromkeys(name for gain in gains for name in gain.each))
    asked = any(one is not None for one in (parameters, names, truth))
    if asked and not functions:
        raise ValueError("parameters=, names= and truth= are of measured functions, and none was measured here")
    drawn = quantities(functions, parameters, names, truth, "the functions measured") if functions else []
    with in_style():
        place = panels(ax, 1, columns=1, size=(5.2, 2.8))
        axes = place.places[0]
        known = np.isfinite(bound)
        if known.sum() > 1:
            axes.plot(counts[known], bound[known], color="0.3", linestyle=DASHED, linewidth=1.3,
                      label=f"bound, with {100 * certificate.confidence:g} % confidence")  # fmt: skip
        if not known.all():
            axes.text(0.98, 0.03, "no bound is known beyond the dashed line", ha="right", va="bottom",
                      fontsize=8, transform=axes.transAxes)  # fmt: skip
        for index, one in enumerate(drawn):
            (colour, _), marker = LINES[index % len(LINES)], "os^Dv*"[index % 6]
            ours = [(gain.pseudo_samples, gain.each[one.key]) for gain in gains if one.key in gain.each]
            at, value = [count for count, _ in ours], np.array([each.value for _, each in ours])
            low, high = (np.array([getattr(each, end) for _, each in ours]) for end in ("low", "high"))
            bars = np.nan_to_num(np.clip([value - low, high - value], 0, None))
            axes.errorbar(at, value, yerr=bars, linestyle="none", marker=marker, markersize=5, color=colour,
                          elinewidth=1, capsize=2, label=f"measured, {plain_label(one)}")  # fmt: skip
            if one.truth is not None:
                axes.axhline(one.truth, **TRUTH)
        axes.axhline(1.0, color="0.6", linewidth=0.8, linestyle=":")
        counts_on_x(axes, [2**power for power in range(int(math.log2(most)) + 1)], "pseudo-samples M")
        # A bound far above the measurements would flatten them.
        measured = [gain.each[name].value for gain in gains for name in gain.each]
        axes.set_ylim(0, min(max([*bound[known], *measured]) * 1.1, max([4.0, *(2.5 * value for value in measured)])))
        axes.set_ylabel(f"gain over M = 1, in {unit}")
        axes.legend(loc="best")
    return place.figure


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
