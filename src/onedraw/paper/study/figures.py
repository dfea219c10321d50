"""The study's figures: the paper's two in its arrangement, and a third with the cost of a unit of accuracy.

Lines are exact values, points are simulated ones with bars of two standard errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from onedraw.paper.page import Panel, draw_bars, draw_level, finish_axes
from onedraw.paper.study.claims import FigureLine, lines_of
from onedraw.paper.study.efficiency import EfficiencyCurve, cost_floor, parallel_cost, serial_cost
from onedraw.paper.study.run import StudyResults
from onedraw.paper.study.settings import DISCOUNTS_1R, PSEUDO_SAMPLES, greys, series
from onedraw.report.style import MARKER

MARKERS = ("o", "s", "^", "D", "v", "P")
"""One for each line: greys alone are hard to tell apart."""

BARS = 2.0
"""Length of the error bars in standard errors."""

SYMBOLS = {"eps": "ε", "discount": "δ", "y_obs": r"$y_{\mathrm{obs}}$", "sigma_y": r"$\sigma_y$"}

PAPER_PANELS: dict[str, tuple[str, str]] = {
    "1L": ("Acceptance rate per pseudo-sample", "accepted moves / pseudo-samples"),
    "1R": ("ε for 0.4 % accepted per unit of cost", "ε"),
    "2L": (r"ε for 0.4 % per unit of cost, δ = 8, by $y_{\mathrm{obs}}$", "ε / ε at M = 1"),
    "2R": (r"ε for 0.4 % per unit of cost, δ = 8, by $\sigma_y$", "ε / ε at M = 1"),
}
PROPOSALS = {"independence": "prior proposals", "random_walk": "random walk"}
FLOOR: dict[str, Any] = {"linewidth": 1.1, "linestyle": (0, (3, 2))}


def label_of(series_label: str) -> str:
    """A line's label as the figures write it.

    >>> label_of("discount=8")
    'δ = 8'
    """
    name, value = series_label.split("=")
    return f"{SYMBOLS[name]} = {value}"


def _finish(axes: Any, title: str, unit: str) -> None:
    finish_axes(axes, title, unit, PSEUDO_SAMPLES)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=1.6, borderaxespad=0.2)


def draw_paper_panel(figure: str, lines: dict[str, FigureLine], axes: Any) -> None:
    """One panel of the paper's figures 1 and 2."""
    normalised = figure in ("2L", "2R")
    styles = {line.label: str(line.grey) for line in series([figure])}
    for marker, (label, line) in zip(MARKERS, lines.items(), strict=False):
        grey = styles[label]
        # The legend shows line and marker together, though one is exact and the other simulated.
        axes.plot([], [], color=grey, linewidth=1.4, label=label_of(label), marker=marker, **MARKER)
        exact, value, error = line.exact, line.simulated, line.std_error
        if normalised:
            # The figure divides by the value at M = 1, whose own error then belongs to every other point.
            relative = np.hypot(error / value, error[0] / value[0])
            exact, value = exact / exact[0], value / value[0]
            error = np.where(line.pseudo_samples == 1, 0.0, value * relative)
        axes.plot(line.pseudo_samples, exact, color=grey, linewidth=1.4, zorder=2)
        draw_bars(axes, line.pseudo_samples, value, BARS * error, grey, linestyle="none", marker=marker, zorder=3)
    if normalised:
        draw_level(axes)
    _finish(axes, *PAPER_PANELS[figure])


def draw_cost_panel(curve: EfficiencyCurve, axes: Any) -> None:
    """v(f, Q_M) c_M against M for every discount, over its value at M = 1, with the certificate's floor."""
    for marker, discount, grey in zip(MARKERS, DISCOUNTS_1R, map(str, greys(len(DISCOUNTS_1R))), strict=False):
        cost, floor = (part(curve, discount) / curve.single_variance for part in (serial_cost, cost_floor))
        label = f"δ = {discount:g}"
        axes.plot(curve.pseudo_samples, cost, color=grey, marker=marker, linewidth=1.4, label=label, zorder=3, **MARKER)
        axes.plot(curve.pseudo_samples, floor, color=grey, zorder=2, **FLOOR)
    axes.plot([], [], color="0.3", label="least possible", **FLOOR)
    draw_level(axes)
    title = f"Cost of accuracy, {PROPOSALS[curve.proposal]}, ε = {curve.eps:.3g}"
    _finish(axes, title, r"$v(f,Q_M)\,c_M\ /\ v(f,Q_1)$")


def draw_parallel_panel(curves: Sequence[EfficiencyCurve], axes: Any) -> None:
    """Cost on M processors of one chain with M draws (a) and of M chains with one (b), for both proposals."""
    for curve, grey in zip(curves, ("0.0", "0.6"), strict=False):
        one_chain, many_chains = (cost / curve.single_variance for cost in parallel_cost(curve))
        name = {"independence": "prior", "random_walk": "walk"}[curve.proposal]
        axes.plot(curve.pseudo_samples, one_chain, color=grey, linewidth=1.4, marker="o", label=f"(a) {name}", **MARKER)
    # (b) is 1/M whatever the proposal.
    axes.plot(curve.pseudo_samples, many_chains, "--", color="0.3", marker="s", label="(b) either", **MARKER)
    _finish(axes, f"On M processors, ε = {curves[0].eps:.3g}", "time / time of one chain, M = 1")


def panels_of(study: StudyResults) -> dict[str, list[Panel]]:
    """The panels of every figure this study has, by figure."""
    figures: dict[str, list[Panel]] = {"figure1": [], "figure2": [], "figure3": []}
    for panel in PAPER_PANELS:
        if lines := lines_of(study.outcomes, panel):
            figures[f"figure{panel[0]}"].append(Panel(panel, partial(draw_paper_panel, panel, lines)))
    for eps in dict.fromkeys(curve.eps for curve in study.curves):
        here = [curve for curve in study.curves if curve.eps == eps]
        figures["figure3"] += [Panel(f"3-{one.proposal}-{eps:.3g}", partial(draw_cost_panel, one)) for one in here]
        figures["figure3"].append(Panel(f"3-parallel-{eps:.3g}", partial(draw_parallel_panel, here)))
    return {name: panels for name, panels in figures.items() if panels}
