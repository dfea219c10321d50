"""The contrast's page: the figure, what it shows, and all numbers, in one HTML file that needs no network."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from onedraw.paper.contrast.figure import NAME, draw_contrast
from onedraw.paper.contrast.problems import LINES
from onedraw.paper.contrast.run import Contrast, Measured
from onedraw.paper.contrast.shapes import shapes_of
from onedraw.paper.study.run import duration, machine
from onedraw.report.pages import filled, write_whole
from onedraw.report.style import svg_of
from onedraw.results.efficiency import Estimate


def shown(value: Estimate) -> str:
    """An estimate with its interval; a limit where there is no more."""
    if math.isnan(value.value):
        return f"below {value.high:.3g}" if math.isfinite(value.high) else f"above {value.low:.3g}"
    return f"{value.value:.3g} [{value.low:.3g}, {value.high:.3g}]"


def row_of(point: Measured) -> dict[str, Any]:
    """A line of a table, as text."""
    chains, draws = point.shape
    return {
        "number": point.number,
        "kappa": shown(point.kappa),
        "cost": f"{point.cost.value:.4g}",
        "efficiency": shown(point.efficiency),
        "acceptance": f"{100 * point.acceptance_rate:.2g} %",
        "stall": f"{point.stall.value:,.0f} ({100 * point.stall.value / draws:.2g} %)",
        "draws": f"{chains} x {draws:,}",
    }


def content_of(contrast: Contrast) -> dict[str, Any]:
    """Everything the template shows."""
    from markupsafe import Markup

    svg = svg_of(draw_contrast(contrast), NAME)
    shapes = shapes_of(contrast)
    return {
        "plan": contrast.plan,
        # The only text that is not escaped: a drawing that matplotlib made from numbers and our own labels.
        "figure": Markup(svg[svg.index("<svg") :]),
        "shapes": shapes,
        "holding": sum(shape.holds for shape in shapes),
        "tables": [
            {
                "title": f"{line.panel}: {line.label}",
                "letter": "N" if line.panel == "4" else "r" if line.key == "hits" else "M",
                "unit": line.unit,
                "rows": [row_of(point) for point in contrast.line(line.key)],
            }
            for line in LINES
            if contrast.line(line.key)
        ],
        "machine": machine(),
        "simulations": f"{contrast.simulations:,}",
        "wall_time": duration(contrast.wall_seconds),
        "workers": contrast.workers,
    }


def render(contrast: Contrast) -> str:
    """The page as text."""
    return filled(Path(__file__).parent, content_of(contrast))


def write_page(contrast: Contrast, out: Path) -> Path:
    """Write index.html; returns its path."""
    return write_whole(out / "index.html", render(contrast))
