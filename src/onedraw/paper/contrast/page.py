"""The contrast's page: the figure, what it shows, and all numbers."""

from __future__ import annotations

import math
from typing import Any

from onedraw.paper.contrast.figure import NAME
from onedraw.paper.contrast.problems import LINES, ContrastLine
from onedraw.paper.contrast.run import Contrast, Measured
from onedraw.paper.contrast.shapes import shapes_of
from onedraw.paper.tasks import machine
from onedraw.results.monte_carlo_error import Interval
from onedraw.run.progress import clock

INTRO = (
    "Efficiency is the number of effective draws per unit of cost, 1/(κ × cost of a step), where κ is the integrated "
    "autocorrelation time. Inside ABC one pseudo-sample is within a factor of two of the best, unless draws after the "
    "first are cheap. In particle MCMC the estimate is no average of independent ones, and one particle is ruinous."
)
CAPTION = (
    "Each line is divided by its largest value. Bars are 95 % intervals; open triangles are upper limits, if κ was too "
    "large to be measured. Cost counts simulations in 1 and 2, seconds of whole steps in 3 (the prices of a step, a "
    "set-up and a draw are timed), particles moved in 4. In 5 the bars and bands are the range over groups of chains, "
    "all runs at about equal cost."
)
METHOD = (
    "Every point is a run of the public samplers. κ and its interval come from the chains themselves, costs are what "
    "the chains really spent."
)


def shown(value: Interval) -> str:
    """An estimate with its interval; only a limit if there is no more."""
    if math.isnan(value.value):
        return f"below {value.high:.3g}" if math.isfinite(value.high) else f"above {value.low:.3g}"
    return f"{value.value:.3g} [{value.low:.3g}, {value.high:.3g}]"


def row_of(point: Measured) -> tuple[Any, ...]:
    """A line of a table, as text."""
    chains, draws = point.shape
    return (
        point.number, shown(point.kappa), f"{point.cost.value:.4g}", shown(point.efficiency),
        f"{100 * point.acceptance_rate:.2g} %", f"{point.stall.value:,.0f} ({100 * point.stall.value / draws:.2g} %)",
        f"{chains} x {draws:,}",
    )  # fmt: skip


def table_of(line: ContrastLine, points: tuple[Measured, ...]) -> dict[str, Any]:
    """All points of a line."""
    letter = "N" if line.panel == "4" else "r" if line.key == "hits" else "M"
    unit = line.unit.removesuffix("s")
    columns = (letter, "κ", f"{line.unit} per step", f"effective draws per {unit}")
    return {
        "title": f"{line.panel}: {line.label}",
        "columns": (*columns, "accepted", "longest stall", "draws"),
        "rows": [row_of(point) for point in points],
        "bold": (),
    }


def content_of(contrast: Contrast) -> dict[str, Any]:
    """Everything the page shows."""
    plan, shapes = contrast.plan, shapes_of(contrast)
    quick = " --quick" if plan.quick else ""
    return {
        "title": "When more than one pays",
        "heading": "When does more than one pseudo-sample pay?",
        "intro": INTRO,
        "boxes": [
            (f"{sum(shape.holds for shape in shapes)} of {len(shapes)}", "shapes as theory says"),
            (f"{contrast.simulations:,}", "simulations"),
            (
                clock(contrast.wall_seconds),
                f"of time with {contrast.workers} process{'es' if contrast.workers > 1 else ''}",
            ),
            (str(plan.seed), "seed" + (", quick" if plan.quick else "")),
        ],
        "captions": {NAME: ("", CAPTION)},
        "question": "What theory says, and what was measured",
        "claims": shapes,
        "verdicts": ("seen", "not seen"),
        "sections": [
            {
                "heading": "All numbers",
                "text": "Brackets are 95 % intervals. A stall is the longest run of equal draws of any chain, with its "
                "share of that chain.",
                "tables": [table_of(line, points) for line in LINES if (points := contrast.line(line.key))],
            }
        ],
        "method": METHOD,
        "facts": {**machine(), "command": f"onedraw contrast{quick} --seed {plan.seed}"},
    }
