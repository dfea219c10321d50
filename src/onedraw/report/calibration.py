"""The page of a calibration: its verdict, the table of coverage, and three pictures of each quantity."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from onedraw.arguments import file_name
from onedraw.engines.arrays import Array
from onedraw.report.pages import filled, image_of, write_page
from onedraw.report.panels import empty_figure, in_style
from onedraw.report.style import BLUE, DASHED
from onedraw.results.calibration import (
    ALARM,
    LEVELS,
    SMALL,
    SMALL_DIFFERENCE,
    SURE,
    Calibrated,
    Calibration,
    shown_p,
)
from onedraw.results.uniformity import bins_for, chance_band, counts_of, ecdf_band
from onedraw.run.progress import clock
from onedraw.run.saving import versions

MOST_DRAWN = 12
"""Quantities with pictures; the others are in the table only."""
BAND = "0.88"
COLUMNS = (
    ("p", "smallest p-value of four tests, adjusted for the number of all tests"),
    ("bias", "how far the posterior lies above the truth on average, in its standard deviations"),
    ("width", "the posterior standard deviation divided by the correct one"),
    ("sharpness", "the posterior standard deviation divided by that of the prior"),
    *((f"{100 * level:.0f} %", f"share of {100 * level:.0f} % intervals that hold the truth") for level in LEVELS),
)


def write_calibration(found: Calibration, path: str | os.PathLike[str]) -> Path:
    """Write the page as one HTML file that needs no network; returns its path."""
    place = file_name("path", path)
    return write_page(place, filled(Path(__file__).parent, content_of(found), "calibration.html.j2"))


def content_of(found: Calibration) -> dict[str, Any]:
    """Everything the template shows."""
    worst = sorted(range(len(found.rows)), key=lambda column: (found.rows[column].p, column))[:MOST_DRAWN]
    bands = [chance_band(found.number, level) for level in LEVELS]
    return {
        "found": found,
        "tests": 4 * len(found.rows),
        "alarm": f"{100 * ALARM:.0f} %",
        "sure": f"{100 * SURE:.0f} %",
        "small": SMALL,
        "small_share": f"{100 * SMALL:.0f} %",
        "difference": SMALL_DIFFERENCE,
        "boxes": boxes_of(found),
        "columns": COLUMNS,
        "table": [{"name": one.name, "cells": cells_of(one, bands)} for one in found.rows],
        "chance": [
            *("" for _ in range(4)),
            *(f"{100 * float(low):.0f}–{100 * float(high):.0f}" for low, high in bands),
        ],
        "figures": [figures_of(found, column) for column in sorted(worst)],
        "left_out": len(found.rows) - len(worst),
        "settings": settings_of(found),
        "versions": versions(),
    }


def boxes_of(found: Calibration) -> list[tuple[str, str]]:
    """The numbers at the top."""
    least = min(found.rows, key=lambda one: one.p)
    boxes = [
        (f"{len(found.picked):,}", "data sets"),
        (shown_p(least.p), f"smallest adjusted p ({least.name})"),
        (f"{np.median(found.picked):.0f}", "draws per rank (median)"),
        (f"{found.cost.simulations:,}", "simulations"),
    ]
    return [*boxes, (f"{found.unanswered:,}", "without a posterior")] if found.unanswered else boxes


def cells_of(one: Calibrated, bands: list[tuple[Array, Array]]) -> list[tuple[str, bool]]:
    """A row of the table: text, and whether it is outside of what chance gives."""
    numbers = [(shown_p(one.p), one.p < ALARM)]
    numbers += [("" if math.isnan(value) else f"{value:.2f}", False) for value in (one.bias, one.width, one.sharpness)]
    pairs = zip(one.coverage, bands, strict=True)
    return [*numbers, *((f"{100 * held:.1f}", not float(low) <= held <= float(high)) for held, (low, high) in pairs)]


def settings_of(found: Calibration) -> dict[str, str]:
    """What was calibrated, and what it took."""
    given = {key: value for key, value in found.settings.items() if key != "arguments" and value is not None}
    every = {**given, **found.settings["arguments"], "ranks": found.number_of_ranks, "seed": found.seed}
    cost = found.cost
    every |= {"simulations": f"{cost.simulations:,}, {cost.failed:,} of them failed", "time": clock(cost.seconds)}
    return {key: str(value) for key, value in every.items()}


# --- pictures -----------------------------------------------------------------------------------------------


def figures_of(found: Calibration, column: int) -> dict[str, Any]:
    """Ranks, distribution function and coverage of one quantity, as images."""
    places = found.places[found.answered, column]
    drawn = (
        (rank_bars(places, found.number_of_ranks), "Histogram of ranks"),
        (ecdf_difference(places, found.number_of_ranks), "Distribution function of ranks less the uniform one"),
        (coverage_curve(found.held_at(column), found.number_of_ranks), "Coverage against level"),
    )
    one = found.rows[column]
    return {"name": one.name, "level": one.level, "images": [(image_of(figure), words) for figure, words in drawn]}


def panel(draw: Callable[[Any], None]) -> Any:
    """A small figure with one pair of axes."""
    with in_style():
        figure = empty_figure(3.5, 2.5)
        draw(figure.add_subplot())
        return figure


def rank_bars(places: Array, ranks: int) -> Any:
    """Counts of ranks in bins, with the band in which all bars lie with 95 % if the ranks are uniform.

    Bins hold whole ranks and the band is that of all bars, as the tests on this page; `od.plots.rank_histogram` is of
    shares between 0 and 1, and its band is that of each bar.
    """
    n = len(places)
    bins = bins_for(n, ranks)
    counts = counts_of(places, ranks).reshape(bins, -1).sum(axis=1)
    low, high = (float(end) * n for end in chance_band(n, 1 / bins, 1 - ALARM / bins))

    def draw(axes: Any) -> None:
        axes.axhspan(low, high, color=BAND, linewidth=0)
        axes.axhline(n / bins, color="0.4", linewidth=0.8)
        width = ranks / bins
        axes.bar((np.arange(bins) + 0.5) * width, counts, width=0.86 * width, color=BLUE)
        axes.set(xlim=(0, ranks), ylim=(0, 1.08 * max(counts.max(), high)), xlabel="rank", ylabel="data sets")

    return panel(draw)


def shares_below(places: Array, ranks: int) -> tuple[Array, Array, Array, Array]:
    """Ends of cells, the share of places below each, and the simultaneous band of these shares by chance alone."""
    share = np.r_[0, np.cumsum(counts_of(places, ranks))] / len(places)
    return np.arange(ranks + 1) / ranks, share, *ecdf_band(len(places), ranks)


def ecdf_difference(places: Array, ranks: int) -> Any:
    """The distribution function of places less the uniform one, with its simultaneous band."""
    at, share, low, high = shares_below(places, ranks)

    def draw(axes: Any) -> None:
        axes.fill_between(at, low - at, high - at, color=BAND, linewidth=0)
        axes.axhline(0, color="0.4", linewidth=0.8)
        axes.plot(at, share - at, color=BLUE, linewidth=1.4)
        axes.set(xlim=(0, 1), xlabel="rank / largest rank", ylabel="difference")

    return panel(draw)


def coverage_curve(held: Array, ranks: int) -> Any:
    """The share of intervals that hold the truth against their level, with its simultaneous band."""
    at, share, low, high = shares_below(held, ranks)

    def draw(axes: Any) -> None:
        axes.fill_between(100 * at, 100 * low, 100 * high, color=BAND, linewidth=0)
        axes.plot((0, 100), (0, 100), color="0.4", linewidth=0.8, linestyle=DASHED)
        axes.plot(100 * at, 100 * share, color=BLUE, linewidth=1.4)
        axes.set(xlim=(0, 100), ylim=(0, 100), xlabel="level, %", ylabel="hold the truth, %")

    return panel(draw)
