"""Figures of calibration: how often intervals contain known parameters, and the ranks of those."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from onedraw.arguments import numbers, shown, whole_number
from onedraw.engines.arrays import Array
from onedraw.report.panels import (
    TRUTH,
    Names,
    One,
    Truth,
    columns_for,
    in_style,
    line_of,
    panels,
    plain_label,
    quantities,
    titled,
)
from onedraw.report.style import BLUE, DASHED
from onedraw.results.posterior import Posterior
from onedraw.results.uniformity import chance_band

Ranks = Mapping[str, Any]
"""By parameter: the share of each posterior that lies below the known parameter, between 0 and 1."""


def coverage(
    found: Posterior | Ranks, parameters: One = None, *, names: Names = None, truth: Truth = None, ax: Any = None
) -> Any:
    """How often intervals of each level contain known parameters: on the diagonal if intervals are right.

    `found` is a result of `od.infer(..., coverage=...)`, or ranks by parameter: for each known parameter, the share of
    its posterior that lies below it. The grey band contains 95 % of what chance alone gives. `truth` marks the coverage
    of 90 % intervals, if it is known from elsewhere.

    >>> import numpy as np
    >>> import onedraw as od
    >>> ranks = {"theta": np.random.default_rng(1).uniform(size=200)}
    >>> od.plots.coverage(ranks).axes[0].get_xlabel()
    'level of the interval'
    """
    measured = found.settings.get("coverage") if isinstance(found, Posterior) else None
    if isinstance(found, Posterior) and not isinstance(measured, Mapping):
        raise ValueError("coverage was not measured in this run: od.infer(..., coverage=200) measures it")
    curves, number = _held(measured) if isinstance(measured, Mapping) else _of_ranks(_checked(found))
    drawn = quantities(list(curves), parameters, names, truth, "the parameters whose coverage is known")
    with in_style():
        place = panels(ax, 1, columns=1, size=(3.6, 3.3), extra=0.0)
        axes = place.places[0]
        levels = np.linspace(0, 1, 101)
        low, high = chance_band(number, levels)
        axes.fill_between(levels, low, high, color="0.85", linewidth=0, label="95 % by chance")
        axes.plot([0, 1], [0, 1], color="0.4", linewidth=0.9, linestyle=":")
        for index, one in enumerate(drawn):
            (colour, line), marker = line_of(index), "os^Dv"[index % 5]
            at, held = curves[one.key]
            axes.plot(at, held, color=colour, linestyle=line, linewidth=1.3, marker=marker if len(at) < 20 else None,
                      markersize=4.5, label=plain_label(one))  # fmt: skip
            if one.truth is not None:
                axes.plot([0.9], [one.truth], marker="*", markersize=9, linestyle="none", color=TRUTH["color"])
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.set_aspect("equal")
        axes.set_xlabel("level of the interval")
        axes.set_ylabel("share that contains the parameter")
        axes.legend(loc="upper left")
    return place.figure


def rank_histogram(
    found: Ranks,
    parameters: One = None,
    bins: int | None = None,
    *,
    names: Names = None,
    truth: Truth = None,
    ax: Any = None,
) -> Any:
    """Histograms of the ranks of known parameters in their posteriors: flat if the posteriors are right.

    `found` are ranks by parameter, each the share of a posterior below the parameter that its data came from
    (simulation-based calibration, Talts et al. 2018). A hump in the middle means that posteriors are too wide, a
    valley that they are too narrow, and a slope that they are biased. The grey band contains 95 % of the
    bars of a flat histogram. `truth` marks a rank.

    >>> import numpy as np
    >>> import onedraw as od
    >>> ranks = {"theta": np.random.default_rng(1).uniform(size=200)}
    >>> int(od.plots.rank_histogram(ranks, bins=10).axes[0].patches[0].get_data().values.sum())
    200
    """
    all_ranks = _checked(found)
    drawn = quantities(list(all_ranks), parameters, names, truth, "the parameters whose ranks are known")
    number = len(next(iter(all_ranks.values())))
    wanted = (
        max(4, min(20, number // 10)) if bins is None else whole_number("bins", bins, "the number of bins", least=2)
    )
    with in_style():
        place = panels(ax, len(drawn), columns_for(len(drawn)), size=(3.2, 2.1))
        for axes, one in zip(place.places, drawn, strict=True):
            counted, edges = np.histogram(all_ranks[one.key], wanted, (0.0, 1.0))
            axes.stairs(counted, edges, fill=True, color=BLUE, alpha=0.5)
            number = len(all_ranks[one.key])
            low, high = (number * end for end in chance_band(number, 1 / wanted))
            axes.axhspan(low, high, color="0.5", alpha=0.25, linewidth=0, label="95 % of the bars by chance")
            axes.axhline(number / wanted, color="0.25", linestyle=DASHED, linewidth=1.0)
            if one.truth is not None:
                axes.axvline(one.truth, label="truth", **TRUTH)
            axes.set_xlim(0, 1)
            axes.set_ylim(0, max(counted.max(), high) * 1.08)
            axes.set_xlabel("rank of the known parameter")
            titled(axes, one)
        place.legend()
    return place.figure


def _checked(found: Any) -> dict[str, Array]:
    if not isinstance(found, Mapping) or not found:
        raise ValueError(
            f"found must be a run of od.infer, or ranks as arrays by parameter, {{'mu': [0.2, 0.7, ...]}}, got "
            f"{shown(found)}"
        )
    try:
        ranks = {str(name): numbers(values).reshape(-1) for name, values in found.items()}
    except (TypeError, ValueError) as error:
        raise ValueError(f"found must have an array of ranks for each parameter, got {shown(found)}") from error
    for name, values in ranks.items():
        if not values.size or not ((values >= 0) & (values <= 1)).all():
            raise ValueError(
                f"in found, ranks of {name} must lie between 0 and 1 (the share of the posterior below the "
                f"parameter), got {shown(values)}"
            )
    return ranks


def _held(measured: Mapping[str, Any]) -> tuple[dict[str, tuple[Array, Array]], int]:
    """Coverage at each level as `settings` have it, and the number of simulations behind it."""
    if not measured.get("number"):
        raise ValueError("coverage could not be measured in this run: too few simulations lie near the data")
    levels = np.asarray(measured["levels"])
    return {name: (levels, np.asarray(held)) for name, held in measured["held"].items()}, int(measured["number"])


def _of_ranks(ranks: Mapping[str, Array]) -> tuple[dict[str, tuple[Array, Array]], int]:
    levels = np.linspace(0, 1, 101)
    away = {name: np.sort(2 * np.abs(values - 0.5)) for name, values in ranks.items()}
    curves = {name: (levels, np.searchsorted(one, levels, "right") / one.size) for name, one in away.items()}
    return curves, min(map(len, ranks.values()))
