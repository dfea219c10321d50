"""The contrast's one figure: efficiency per unit of cost against M, a panel a kind of problem.

Every line is divided by its largest value, so that panels can be compared by eye. Lines differ in marker and in dash as
well as in shade. A triangle that points down is an upper limit: there kappa was too large to be measured.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from onedraw.paper.contrast.problems import LINES
from onedraw.paper.contrast.run import Contrast, Measured
from onedraw.paper.contrast.shapes import best_of
from onedraw.report import style as drawing
from onedraw.report.style import DASHED, MARKER, ORANGE, counts_on_x, plain_numbers, styled

NAME = "contrast"
"""Of the files, and in the ids of the drawing."""
STYLES: dict[str, dict[str, Any]] = {
    "toy": {"color": "#000000", "marker": "o", "linestyle": "-"},
    "g-and-k": {"color": "#000000", "marker": "o", "linestyle": "-"},
    "process": {"color": "#000000", "marker": "o", "linestyle": "-"},
    "filter-100": {"color": "#000000", "marker": "o", "linestyle": "-"},
    "filter-400": {"color": ORANGE, "marker": "s", "linestyle": DASHED},
    "tails": {"color": "#000000", "marker": "o", "linestyle": "-"},
    "hits": {"color": ORANGE, "marker": "D", "linestyle": DASHED},
}
"""Black and vermilion differ in grey too, and to colour-blind eyes."""

TITLES = {
    "1": "1  ABC, the toy",
    "2": "2  ABC, g-and-k, random walk",
    "3": "3  ABC, Gaussian process with a set-up",
    "4": "4  Particle MCMC, linear state space",
    "5": "5  ABC with heavy tails: longest stall",
}
AXES = {"1": "pseudo-samples M", "2": "pseudo-samples M", "3": "pseudo-samples M", "4": "particles N"}
UNITS = {"1": "simulation", "2": "simulation", "3": "second", "4": "particle moved"}


def draw_line(axes: Any, line: tuple[Measured, ...], label: str) -> None:
    """One line of efficiencies over the largest, with 95 % intervals and upper limits."""
    style = STYLES[line[0].line]
    top = best_of(line).efficiency.value
    good = [point for point in line if point.resolved]
    limits = [point for point in line if not point.resolved]
    axes.errorbar(
        [point.number for point in good],
        [point.efficiency.value / top for point in good],
        yerr=[
            [(point.efficiency.value - point.efficiency.low) / top for point in good],
            [(point.efficiency.high - point.efficiency.value) / top for point in good],
        ],
        ecolor="0.35", elinewidth=0.9, capsize=1.8, linewidth=1.4, markerfacecolor=style["color"], label=label,
        **style, **MARKER,
    )  # fmt: skip
    axes.plot(
        [point.number for point in limits],
        [point.efficiency.high / top for point in limits],
        linestyle="none", marker="v", markersize=7, markerfacecolor="white", markeredgecolor=style["color"],
        markeredgewidth=1.2,
    )  # fmt: skip


def draw_efficiency(axes: Any, panel: str, contrast: Contrast) -> None:
    """A panel of efficiency per unit of cost."""
    here = [line for line in LINES if line.panel == panel and contrast.line(line.key)]
    numbers = sorted({number for line in here for number in line.counts})
    for line in here:
        draw_line(axes, contrast.line(line.key), line.label.split(", ")[-1])
    axes.axhline(1.0, color="0.6", linewidth=0.7, linestyle=":", zorder=1)
    axes.set_yscale("log")
    axes.set_ylim(0.008, 2.5)
    plain_numbers(axes)
    counts_on_x(axes, numbers, AXES[panel])
    axes.set_ylabel(f"effective draws a {UNITS[panel]},\nover the most")
    axes.set_title(TITLES[panel], loc="left")
    if len(here) > 1:
        axes.legend(loc="lower right")


def draw_stalls(axes: Any, contrast: Contrast) -> None:
    """The panel of longest stalls: fixed M as a line, r-hit as levels across."""
    fixed, hits = contrast.line("tails"), contrast.line("hits")
    style = STYLES["tails"]
    axes.errorbar(
        [point.number for point in fixed],
        [point.stall.value for point in fixed],
        yerr=[[point.stall.value - point.stall.low for point in fixed], [0.0 for _ in fixed]],
        ecolor="0.35", elinewidth=0.9, capsize=1.8, linewidth=1.4, markerfacecolor=style["color"], label="fixed M",
        **style, **MARKER,
    )  # fmt: skip
    for point, dashes in zip(hits, (DASHED, (0, (1, 1.5))), strict=False):
        color = STYLES["hits"]["color"]
        axes.axhspan(point.stall.low, point.stall.high, color=color, alpha=0.15, linewidth=0)
        axes.axhline(
            point.stall.value, color=color, linestyle=dashes, linewidth=1.6, label=f"r-hit, r = {point.number}"
        )
    axes.set_yscale("log")
    plain_numbers(axes)
    counts_on_x(axes, [point.number for point in fixed], "pseudo-samples M")
    axes.set_ylabel("longest stall, draws")
    axes.set_title(TITLES["5"], loc="left")
    axes.legend(loc="upper right")


def draw_contrast(contrast: Contrast) -> Any:
    """The figure, with a panel for each kind of problem that was run."""
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys(line.panel for line in LINES if contrast.line(line.key)))
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    with styled({"svg.hashsalt": NAME}):
        figure = Figure(figsize=(4.1 * columns, 3.3 * rows), layout="constrained")
        for place, panel in enumerate(panels):
            axes = figure.add_subplot(rows, columns, place + 1)
            if panel == "5":
                draw_stalls(axes, contrast)
            else:
                draw_efficiency(axes, panel, contrast)
        if len(panels) == 5:
            _explain(figure.add_subplot(rows, columns, 6))
    return figure


def _explain(axes: Any) -> None:
    """The empty sixth place says how to read the others."""
    axes.axis("off")
    axes.text(
        0.0, 0.95,
        "Bars: 95 % intervals (5: the range over groups of\nchains). Open triangles: upper limits, where\n"
        "chains hardly moved.\n\n"
        "1, 2  One pseudo-sample is best, or as good as any.\n"
        "3  Further draws are cheap once the set-up is paid:\n    some pay.\n"
        "4  Few particles are ruinous, and too many are\n    wasted: N must be tuned.\n"
        "5  In the tails a chain with fixed M waits, and\n    r-hit draws as often as it takes.",
        va="top", ha="left", fontsize=9, transform=axes.transAxes,
    )  # fmt: skip


def write_figure(contrast: Contrast, out: Path) -> list[Path]:
    """Write contrast.svg and contrast.png; returns their paths."""
    return drawing.write_figure(draw_contrast(contrast), out, NAME, dpi=140)
