"""The contrast's one figure: efficiency per unit of cost against M, a panel for each kind of problem.

Every line is divided by its largest value, so that panels can be compared by eye. Lines differ in marker and in dash as
well as in shade. A triangle that points down is an upper limit: kappa was too large to be measured.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from onedraw.paper.contrast.problems import LINES
from onedraw.paper.contrast.run import Contrast, Measured
from onedraw.paper.contrast.shapes import best_of
from onedraw.paper.page import Panel, draw_bars, draw_level, finish_axes
from onedraw.report.style import DASHED, ORANGE

NAME = "contrast"
"""Of the files, and in the ids of the drawing."""
PLAIN: dict[str, Any] = {"color": "#000000", "marker": "o", "linestyle": "-"}
STYLES: dict[str, dict[str, Any]] = {
    "filter-400": {"color": ORANGE, "marker": "s", "linestyle": DASHED},
    "hits": {"color": ORANGE, "marker": "D", "linestyle": DASHED},
}
"""Of the second line in a panel. Black and vermilion differ in grey too, and to colour-blind eyes."""

TITLES = {
    "1": "1  ABC, the toy",
    "2": "2  ABC, g-and-k, random walk",
    "3": "3  ABC, Gaussian process with a set-up",
    "4": "4  Particle MCMC, linear state space",
    "5": "5  ABC with heavy tails: longest stall",
}
UNITS = {"1": "simulation", "2": "simulation", "3": "second", "4": "particle moved"}


def draw_line(axes: Any, line: tuple[Measured, ...], label: str) -> None:
    """One line of efficiencies over the largest, with 95 % intervals and upper limits."""
    look = STYLES.get(line[0].line, PLAIN)
    top = best_of(line).efficiency.value
    good = [(one.number, *(part / top for part in one.efficiency)) for one in line if one.resolved]
    numbers, values, lows, highs = ([one[k] for one in good] for k in (0, 1, 3, 4))
    errors = [
        [v - low for v, low in zip(values, lows, strict=True)],
        [h - v for v, h in zip(values, highs, strict=True)],
    ]
    draw_bars(axes, numbers, values, errors, linewidth=1.4, label=label, **look)
    limits = [(one.number, one.efficiency.high / top) for one in line if not one.resolved]
    axes.plot(
        [number for number, _ in limits], [limit for _, limit in limits], linestyle="none", marker="v", markersize=7,
        markerfacecolor="white", markeredgecolor=look["color"], markeredgewidth=1.2,
    )  # fmt: skip


def draw_efficiency(panel: str, contrast: Contrast, axes: Any) -> None:
    """A panel of efficiency per unit of cost."""
    here = [line for line in LINES if line.panel == panel and contrast.line(line.key)]
    for line in here:
        draw_line(axes, contrast.line(line.key), line.label.split(", ")[-1])
    draw_level(axes)
    numbers = sorted({number for line in here for number in line.counts})
    unit, label = (
        f"effective draws per {UNITS[panel]},\nover the most",
        "particles N" if panel == "4" else "pseudo-samples M",
    )
    finish_axes(axes, TITLES[panel], unit, numbers, label)
    axes.set_ylim(0.008, 2.5)
    if len(here) > 1:
        axes.legend(loc="lower right")


def draw_stalls(contrast: Contrast, axes: Any) -> None:
    """The panel of longest stalls: fixed M as a line, r-hit as levels across."""
    fixed, color = contrast.line("tails"), STYLES["hits"]["color"]
    numbers, stalls = [one.number for one in fixed], [one.stall.value for one in fixed]
    below = [[one.stall.value - one.stall.low for one in fixed], [0.0 for _ in fixed]]
    draw_bars(axes, numbers, stalls, below, linewidth=1.4, label="fixed M", **PLAIN)
    for one, dashes in zip(contrast.line("hits"), (DASHED, (0, (1, 1.5))), strict=False):
        axes.axhspan(one.stall.low, one.stall.high, color=color, alpha=0.15, linewidth=0)
        axes.axhline(one.stall.value, color=color, linestyle=dashes, linewidth=1.6, label=f"r-hit, r = {one.number}")
    finish_axes(axes, TITLES["5"], "longest stall, draws", numbers)
    axes.legend(loc="upper right")


def panels_of(contrast: Contrast) -> dict[str, list[Panel]]:
    """A panel for each kind of problem that was run; the empty sixth place says how to read the others."""
    names = dict.fromkeys(line.panel for line in LINES if contrast.line(line.key))
    panels = [Panel(f"{NAME}-{name}", partial(draw_efficiency, name, contrast)) for name in names if name != "5"]
    if "5" in names:
        panels.append(Panel(f"{NAME}-5", partial(draw_stalls, contrast)))
    return {NAME: [*panels, Panel(f"{NAME}-reading", _explain)] if len(panels) == 5 else panels}


def _explain(axes: Any) -> None:
    """How to read the other panels."""
    axes.axis("off")
    axes.text(
        0.0, 0.95,
        "Bars: 95 % intervals (5: the range over groups of\nchains). Open triangles: upper limits:\n"
        "chains hardly moved there.\n\n"
        "1, 2  One pseudo-sample is best, or as good as any.\n"
        "3  Further draws are cheap once the set-up is paid:\n    some pay.\n"
        "4  Few particles are ruinous, and too many are\n    wasted: N must be tuned.\n"
        "5  In the tails a chain with fixed M waits, and\n    r-hit draws as often as it takes.",
        va="top", ha="left", fontsize=9, transform=axes.transAxes,
    )  # fmt: skip
