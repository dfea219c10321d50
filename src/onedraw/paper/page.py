"""The page of a study: figures, statements with their numbers, tables, and how it was computed, in one HTML file.

A figure is a list of panels, each drawn by a function on any axes: files show the panels side by side, and the page
shows them one by one, for narrow screens. The page needs no network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from onedraw.report.pages import filled, write_whole
from onedraw.report.style import MARKER, counts_on_x, plain_numbers, styled, svg_of, write_figure

FILE_PANEL, PAGE_PANEL = (5.0, 3.5), (4.4, 3.3)
"""Sizes of a panel in inches: smaller on the page than in the files, so that its text is larger on a phone."""


class Panel(NamedTuple):
    """One panel of a figure and the function that draws it on axes."""

    name: str
    draw: Callable[[Any], None]


Figures = Mapping[str, Sequence[Panel]]


class Claim(NamedTuple):
    """A statement of the paper or of the theory, whether it was found to hold, and the number that decides."""

    short: str
    statement: str
    holds: bool
    number: str
    remark: str = ""


def write_figures(figures: Figures, out: Path) -> list[Path]:
    """Write every figure as .svg and .png, its panels in rows of three; returns the paths."""
    return [
        path
        for name, panels in figures.items()
        for path in write_figure(arranged(panels, min(3, len(panels)), name, FILE_PANEL), out, name, dpi=160)
    ]


def write_page(figures: Figures, content: Mapping[str, Any], out: Path) -> Path:
    """Write index.html; returns its path."""
    return write_whole(out / "index.html", render(figures, content))


def render(figures: Figures, content: Mapping[str, Any]) -> str:
    """The page as text.

    Its content: `title`, `heading`, `intro`; `boxes` [(number, words)]; `captions` {figure: (heading, caption)};
    `question`, `claims` and the `verdicts` (if a claim holds, if not); `sections` with heading, text and `tables`
    (title, columns, rows, and the indices of rows in bold); `method`; `facts` {name: value}.
    """
    drawn = {name: svg_elements(panels) for name, panels in figures.items()}
    return filled(Path(__file__).parent, {**content, "figures": drawn})


def arranged(panels: Sequence[Panel], columns: int, salt: str, size: tuple[float, float]) -> Any:
    """A matplotlib Figure with the panels in rows of `columns`, each of a size in inches."""
    from matplotlib.figure import Figure

    rows = -(-len(panels) // columns)
    with styled({"svg.hashsalt": salt}):
        figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
        for index, panel in enumerate(panels):
            panel.draw(figure.add_subplot(rows, columns, index + 1))
    return figure


def svg_elements(panels: Sequence[Panel]) -> list[Any]:
    """Each panel as an SVG element for a page, without fixed size; ids are made unique over the page."""
    from markupsafe import Markup

    # The only text that is not escaped: drawings that matplotlib made from numbers and our own labels.
    return [Markup(_element(svg_of(arranged([one], 1, one.name, PAGE_PANEL), one.name), one.name)) for one in panels]


def _element(svg: str, name: str) -> str:
    element = svg[svg.index("<svg") :]
    prefix = "p" + re.sub(r"[^A-Za-z0-9]", "-", name) + "-"
    element = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}\1"', element)
    element = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}\1"', element)
    element = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}\1)", element)
    head, rest = element.split(">", 1)
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    return f'{head} role="img">{rest}'


def draw_bars(axes: Any, x: Any, y: Any, errors: Any, color: str, **more: Any) -> None:
    """Points with error bars, as all figures of the studies have them."""
    axes.errorbar(
        x, y, yerr=errors, color=color, markerfacecolor=color, ecolor="0.35", elinewidth=0.9, capsize=1.8,
        **MARKER, **more,
    )  # fmt: skip


def draw_level(axes: Any) -> None:
    """A thin line at 1."""
    axes.axhline(1.0, color="0.6", linewidth=0.7, linestyle=":", zorder=1)


def finish_axes(axes: Any, title: str, unit: str, counts: Sequence[int], label: str = "pseudo-samples M") -> None:
    """Logarithmic axes over counts with plain numbers, and a title."""
    axes.set_yscale("log")
    plain_numbers(axes, subs=(1.0, 2.0, 5.0))
    counts_on_x(axes, counts, label)
    axes.set_ylabel(unit)
    axes.set_title(title, loc="left")
