"""The study's figures: the paper's two in its arrangement, and a third with the cost of a unit of accuracy.

Lines are exact values, points are simulated ones with bars of two standard errors. A panel is drawn by one function
on any axes, so that the files show two panels side by side and the page shows them one by one, for narrow screens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onedraw.paper.study.claims import Line, lines_of
from onedraw.paper.study.efficiency import EfficiencyCurve, cost_floor, parallel_cost, serial_cost
from onedraw.paper.study.run import Study
from onedraw.paper.study.settings import DISCOUNTS_1R, PSEUDO_SAMPLES, greys, series
from onedraw.report.style import MARKER, counts_on_x, plain_numbers, styled, svg_of, write_figure

Draw = Callable[[Any], None]

MARKERS = ("o", "s", "^", "D", "v", "P")
"""One a line: greys alone are hard to tell apart."""

BARS = 2.0
"""Length of the error bars in standard errors."""

PAGE_PANEL = (4.4, 3.3)
"""Size of a panel on the page in inches: smaller than in the files, so that its text is larger on a phone."""

SYMBOLS = {"eps": "ε", "discount": "δ", "y_obs": r"$y_{\mathrm{obs}}$", "sigma_y": r"$\sigma_y$"}

PAPER_PANELS: dict[str, tuple[str, str]] = {
    "1L": ("Acceptance rate per pseudo-sample", "accepted moves / pseudo-samples"),
    "1R": ("ε for 0.4 % accepted per unit of cost", "ε"),
    "2L": (r"ε for 0.4 % per unit of cost, δ = 8, by $y_{\mathrm{obs}}$", "ε / ε at M = 1"),
    "2R": (r"ε for 0.4 % per unit of cost, δ = 8, by $\sigma_y$", "ε / ε at M = 1"),
}


def label_of(series_label: str) -> str:
    """A line's label as the figures write it.

    >>> label_of("discount=8")
    'δ = 8'
    """
    name, value = series_label.split("=")
    return f"{SYMBOLS[name]} = {value}"


def _logarithmic(axes: Any) -> None:
    """Both axes: M, and plain numbers."""
    axes.set_yscale("log")
    plain_numbers(axes, subs=(1.0, 2.0, 5.0))
    counts_on_x(axes, PSEUDO_SAMPLES, "pseudo-samples M")


def draw_paper_panel(axes: Any, figure: str, lines: dict[str, Line]) -> None:
    """One panel of the paper's figures 1 and 2."""
    normalised = figure in ("2L", "2R")
    title, unit = PAPER_PANELS[figure]
    styles = {line.label: line.grey for line in series([figure])}
    for marker, (label, line) in zip(MARKERS, lines.items(), strict=False):
        grey = str(styles[label])
        # The legend shows line and marker together, though one is exact and the other simulated.
        axes.plot([], [], color=grey, linewidth=1.4, label=label_of(label), marker=marker, **MARKER)
        scale = line.exact[0] if normalised else 1.0
        axes.plot(line.pseudo_samples, line.exact / scale, color=grey, linewidth=1.4, zorder=2)
        value, error = line.simulated / scale, line.std_error / scale
        if normalised:
            # The figure divides by the value at M = 1, whose own error then belongs to every other point.
            value = line.simulated / line.simulated[0]
            relative = np.hypot(line.std_error / line.simulated, line.std_error[0] / line.simulated[0])
            error = np.where(line.pseudo_samples == 1, 0.0, value * relative)
        axes.errorbar(
            line.pseudo_samples,
            value,
            yerr=BARS * error,
            linestyle="none",
            marker=marker,
            markerfacecolor=grey,
            ecolor="0.35",
            elinewidth=0.9,
            capsize=1.8,
            zorder=3,
            **MARKER,
        )
    if normalised:
        axes.axhline(1.0, color="0.6", linewidth=0.7, linestyle=":", zorder=1)
    _logarithmic(axes)
    axes.set_ylabel(unit)
    axes.set_title(title, loc="left")
    _legend(axes)


def _legend(axes: Any, **more: Any) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=1.6, borderaxespad=0.2, **more)


PROPOSALS = {"independence": "prior proposals", "random_walk": "random walk"}


def draw_cost_panel(axes: Any, curve: EfficiencyCurve) -> None:
    """v(f, Q_M) c_M against M for every discount, over its value at M = 1, with the certificate's floor."""
    for marker, discount, grey in zip(MARKERS, DISCOUNTS_1R, greys(len(DISCOUNTS_1R), black_first=True), strict=False):
        cost = serial_cost(curve, discount) / curve.single_variance
        floor = cost_floor(curve, discount) / curve.single_variance
        axes.plot(
            curve.pseudo_samples,
            cost,
            color=str(grey),
            marker=marker,
            linewidth=1.4,
            label=f"δ = {discount:g}",
            zorder=3,
            **MARKER,
        )
        axes.plot(curve.pseudo_samples, floor, color=str(grey), linewidth=1.1, linestyle=(0, (3, 2)), zorder=2)
    axes.plot([], [], color="0.3", linewidth=1.1, linestyle=(0, (3, 2)), label="least possible")
    axes.axhline(1.0, color="0.6", linewidth=0.7, linestyle=":", zorder=1)
    _logarithmic(axes)
    axes.set_ylabel(r"$v(f,Q_M)\,c_M\ /\ v(f,Q_1)$")
    axes.set_title(f"Cost of accuracy, {PROPOSALS[curve.proposal]}, ε = {curve.eps:.3g}", loc="left")
    _legend(axes)


def draw_parallel_panel(axes: Any, curves: Sequence[EfficiencyCurve]) -> None:
    """Cost on M processors of one chain with M draws (a) and of M chains with one (b), for both proposals."""
    for curve, grey in zip(curves, ("0.0", "0.6"), strict=False):
        one_chain, many_chains = (cost / curve.single_variance for cost in parallel_cost(curve))
        name = {"independence": "prior", "random_walk": "walk"}[curve.proposal]
        axes.plot(curve.pseudo_samples, one_chain, color=grey, linewidth=1.4, marker="o", label=f"(a) {name}", **MARKER)
    # (b) is 1/M whatever the proposal.
    axes.plot(curve.pseudo_samples, many_chains, "--", color="0.3", marker="s", label="(b) either", **MARKER)
    _logarithmic(axes)
    axes.set_ylabel("time / time of one chain, M = 1")
    axes.set_title(f"On M processors, ε = {curves[0].eps:.3g}", loc="left")
    _legend(axes)


def panels_of(study: Study) -> dict[str, list[tuple[str, Draw]]]:
    """The panels of every figure this study has, by figure: (name, function that draws it)."""

    def paper(figure: str, lines: dict[str, Line]) -> Draw:
        return lambda axes: draw_paper_panel(axes, figure, lines)

    figures: dict[str, list[tuple[str, Draw]]] = {}
    for name, panels in {"figure1": ("1L", "1R"), "figure2": ("2L", "2R")}.items():
        drawn = [(panel, lines_of(study.outcomes, panel)) for panel in panels]
        figures[name] = [(panel, paper(panel, lines)) for panel, lines in drawn if lines]
    third: list[tuple[str, Draw]] = []
    for eps in dict.fromkeys(curve.eps for curve in study.curves):
        here = [curve for curve in study.curves if curve.eps == eps]
        third += [(f"3-{curve.proposal}-{eps:.3g}", _cost(curve)) for curve in here]
        third.append((f"3-parallel-{eps:.3g}", _parallel(here)))
    figures["figure3"] = third
    return {name: panels for name, panels in figures.items() if panels}


def _cost(curve: EfficiencyCurve) -> Draw:
    return lambda axes: draw_cost_panel(axes, curve)


def _parallel(curves: Sequence[EfficiencyCurve]) -> Draw:
    return lambda axes: draw_parallel_panel(axes, curves)


def _drawn(panels: Sequence[tuple[str, Draw]], columns: int, salt: str, size: tuple[float, float] = (5.0, 3.5)) -> Any:
    """A matplotlib Figure with the panels in rows of `columns`, each of a size in inches."""
    from matplotlib.figure import Figure

    rows = -(-len(panels) // columns)
    with styled({"svg.hashsalt": salt}):
        figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
        for index, (_, draw) in enumerate(panels):
            draw(figure.add_subplot(rows, columns, index + 1))
    return figure


def write_figures(study: Study, out: Path) -> list[Path]:
    """Write figure1 to figure3 as .svg and .png; returns the paths."""
    written = []
    for name, panels in panels_of(study).items():
        figure = _drawn(panels, 3 if name == "figure3" else len(panels), name)
        written += write_figure(figure, out, name, dpi=160)
    return written


def inline_panels(study: Study) -> dict[str, list[str]]:
    """Each panel as an SVG element for a page, by figure; ids are made unique over the page."""
    return {
        name: [_for_page(svg_of(_drawn([panel], 1, panel[0], PAGE_PANEL), panel[0]), panel[0]) for panel in panels]
        for name, panels in panels_of(study).items()
    }


def _for_page(svg: str, name: str) -> str:
    """The svg element alone, without fixed size, its ids prefixed with the panel's name."""
    element = svg[svg.index("<svg") :]
    prefix = "p" + re.sub(r"[^A-Za-z0-9]", "-", name) + "-"
    element = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}\1"', element)
    element = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}\1"', element)
    element = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}\1)", element)
    head, rest = element.split(">", 1)
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    return f'{head} role="img">{rest}'
