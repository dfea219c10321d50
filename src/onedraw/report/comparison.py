"""The page of a comparison of models: its decision, probabilities, curve, error rates and predictive checks."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from onedraw.arguments import file_name
from onedraw.report.pages import filled, image_of, write_page
from onedraw.report.panels import empty_figure, few_plain_ticks, in_style, line_of, short
from onedraw.report.style import BLUE
from onedraw.results.comparison import LEVEL, Comparison, RouteTried, factor_shown, shown
from onedraw.results.misfit import SURE, Misfit
from onedraw.results.model_choice import RouteEstimate, probabilities
from onedraw.run.progress import clock
from onedraw.run.saving import versions

MOST_DRAWN = 12
"""Summaries and checks in the picture of the predictives."""


def write_comparison(found: Comparison, path: str | os.PathLike[str]) -> Path:
    """Write the page as one HTML file that needs no network; returns its path."""
    place = file_name("path", path)
    return write_page(place, filled(Path(__file__).parent, content_of(found), "comparison.html.j2"))


def content_of(found: Comparison) -> dict[str, Any]:
    """Everything the template shows."""
    return {
        "found": found,
        "level": f"{100 * LEVEL:.0f} %",
        "boxes": boxes_of(found),
        "findings": [sentence(found, one) for one in found.findings],
        "models": [row_of(found, name) for name in found.names],
        "bars": image_of(probability_bars(found)),
        "curve": None if found.decided.exact else image_of(tolerance_curve(found)),
        "eps": f"{found.decided.eps:.4g}",
        "factors": factors_of(found),
        "trial": [trial_row(one) for one in found.trial],
        "held_out": sum(1 for one in found.decided.scores if one is not None) and len(found.decided.share),
        "confusion": confusion_of(found),
        "predictive": predictive_of(found),
        "settings": settings_of(found),
        "versions": versions(),
    }


def sentence(found: Comparison, finding: str) -> str:
    """A finding as a sentence; the name of a model stays as it was given."""
    begins = any(finding.startswith(f"{name} ") for name in found.names)
    return f"{finding if begins else finding[0].upper() + finding[1:]}."


def boxes_of(found: Comparison) -> list[tuple[str, str]]:
    """The numbers at the top."""
    best, errors = found[found.best], found.decided.errors
    boxes = [
        (best.told, f"probability of {best.name}"),
        (best.interval, f"{100 * LEVEL:.0f} % interval"),
    ]
    if not math.isnan(errors.local):
        boxes.append((f"{100 * errors.local:.2g} %", "wrong choices near the data"))
    return [*boxes, (f"{found.cost.simulations:,}", "simulations")]


def row_of(found: Comparison, name: str) -> dict[str, Any]:
    """A row of the table of models."""
    one = found[name]
    factor = signed(factor_shown(one.log_evidence, one.log_evidence_se))
    cells = [
        one.told, one.interval, f"{one.se:.2g}", factor, f"{one.prior:.3g}", f"{one.simulations:,}",
        f"{one.failed:,}", f"{one.near:,}",
    ]  # fmt: skip
    return {"name": name, "cells": cells, "best": name == found.best}


def signed(text: str) -> str:
    """A number as a page shows it.

    >>> signed("-inf"), signed("-0.2 ± 0.1")
    ('−∞', '−0.2 ± 0.1')
    """
    return text.replace("-", "−").replace("inf", "∞")


def factors_of(found: Comparison) -> list[dict[str, Any]]:
    """Log Bayes factors of each model against each."""
    rows = []
    for first in found.names:
        cells = []
        for second in found.names:
            value, se = found.log_bayes_factor(first, second)
            unknown = first == second or math.isnan(value)
            cells.append("" if unknown else signed(factor_shown(value, se)))
        rows.append({"name": first, "cells": cells})
    return rows


def trial_row(one: RouteTried) -> dict[str, Any]:
    """A row of the table of routes."""
    known = not math.isnan(one.score)
    behind = f"{one.behind:.3f} ± {one.behind_se:.2g}" if known and one.behind_se > 0 else "0" if known else ""
    cells = [signed(f"{one.score:.3f}") if known else "", behind, *(shown(p, 0.01) for p in one.probabilities)]
    return {"name": one.route, "chosen": one.chosen, "cells": cells}


def confusion_of(found: Comparison) -> list[dict[str, Any]]:
    """Shares of simulations of each model for which each is the most probable."""
    rows = found.decided.errors.confusion
    return [
        {
            "name": name,
            "cells": [
                (f"{100 * share:.0f} %" if rows[number].any() else "", k == number)
                for k, share in enumerate(rows[number])
            ],
        }
        for number, name in enumerate(found.names)
    ]


def settings_of(found: Comparison) -> dict[str, str]:
    """What was compared, and what it took."""
    cost = found.cost
    every = {**found.settings, "route": found.route, "seed": found.seed}
    every |= {"simulations": f"{cost.simulations:,}, {cost.failed:,} of them failed", "time": clock(cost.seconds)}
    return {key: str(value) for key, value in every.items()}


# --- pictures -----------------------------------------------------------------------------------------------


def probability_bars(found: Comparison) -> Any:
    """Posterior probabilities as bars with their intervals, prior ones as marks."""
    with in_style():
        number = len(found.names)
        figure = empty_figure(5.2, 0.8 + 0.42 * number)
        axes = figure.add_subplot()
        places = np.arange(number)[::-1]
        values = [one.probability for one in found.models]
        axes.barh(places, values, height=0.55, color=BLUE, alpha=0.75)
        for place, one in zip(places, found.models, strict=True):
            axes.plot([one.low, one.high], [place, place], color="black", linewidth=1.6, solid_capstyle="butt")
            for end in (one.low, one.high):
                axes.plot([end, end], [place - 0.12, place + 0.12], color="black", linewidth=1.2)
            axes.plot(
                [one.prior] * 2, [place - 0.33, place + 0.33], color="0.35", linewidth=1.2, linestyle=(0, (2, 1.5))
            )
        axes.set_yticks(places, [short(name) for name in found.names])
        axes.set(xlim=(0, 1.02), xlabel=f"posterior probability, {100 * LEVEL:.0f} % interval (dashed: prior)")
        return figure


def tolerance_curve(found: Comparison) -> Any:
    """Probabilities by the acceptance ratio against the tolerance, with intervals, and those stated at the left."""
    curve, models = found.decided.curve, len(found.names)
    nothing = np.full(models, np.nan)
    values, lows, highs = (np.full((len(curve), models), np.nan) for _ in range(3))
    for k, row in enumerate(curve):
        estimate = RouteEstimate(row[1 : 1 + models], np.diag(row[1 + models :]))
        if np.isfinite(estimate.log_evidence).any():
            some = probabilities(estimate, found.log_prior, nothing, LEVEL)
            values[k], lows[k], highs[k] = ([getattr(one, name) for one in some] for name in ("value", "low", "high"))
    with in_style():
        figure = empty_figure(5.2, 2.9)
        axes = figure.add_subplot()
        for k, one in enumerate(found.models):
            colour, style = line_of(k)
            # Side by side: several models may have a probability of zero.
            left = curve[0, 0] * (curve[0, 0] / curve[-1, 0]) ** (0.08 + 0.025 * (models - 1 - k))
            axes.fill_between(curve[:, 0], lows[:, k], highs[:, k], color=colour, alpha=0.18, linewidth=0)
            axes.plot(curve[:, 0], values[:, k], color=colour, linestyle=style, linewidth=1.4, label=short(one.name))
            axes.plot([left, left], [one.low, one.high], color=colour, linewidth=2)
            axes.plot([left], [one.probability], marker="o", color=colour, markersize=4.5)
        axes.set_xscale("log")
        few_plain_ticks(axes, curve[:, 0])
        axes.axvline(found.decided.eps, color="0.5", linewidth=0.8, linestyle=(0, (2, 2)))
        axes.set(ylim=(-0.02, 1.02), xlabel="tolerance, in scaled summaries", ylabel="probability")
        figure.legend(loc="outside upper left", ncols=min(models, 4))
        return figure


def predictive_of(found: Comparison) -> list[dict[str, Any]]:
    """How alike each model's predictive is to the data: a verdict, and a picture of all summaries and checks."""
    rows = []
    for name in found.names:
        misfit = found.misfits[name]
        level = "amber" if misfit.worst is None else "red" if misfit.p <= SURE else "green"
        image = None if misfit.rows is None or len(misfit.rows) < 5 else image_of(predictive_panel(misfit))
        told = "not compared" if misfit.worst is None else f"p = {misfit.p:.2g}"
        rows.append({"name": name, "p": told, "level": level, "image": image, "told": str(misfit).splitlines()})
    return rows


def predictive_panel(misfit: Misfit) -> Any:
    """Summaries and checks of replicates, in units of their spread, with those of the data."""
    assert misfit.rows is not None and misfit.observed is not None
    rows = misfit.rows[np.isfinite(misfit.rows).all(axis=1)]
    some = np.arange(min(rows.shape[1], MOST_DRAWN))
    low, middle, high = np.quantile(rows[:, some], (0.05, 0.5, 0.95), axis=0)
    spread = np.where(high > low, (high - low) / 2, 1.0)
    away = np.clip((misfit.observed[some] - middle) / spread, -3.2, 3.2)
    with in_style():
        figure = empty_figure(3.5, 0.7 + 0.24 * len(some))
        axes = figure.add_subplot()
        places = np.arange(len(some))[::-1]
        axes.barh(places, (high - low) / spread, left=(low - middle) / spread, height=0.5, color="0.8")
        axes.plot(np.zeros(len(some)), places, "|", color="0.35", markersize=8)
        axes.plot(away, places, "o", color=BLUE, markersize=4.5)
        axes.set_yticks(places, [short(misfit.labels[k], 18) for k in some])
        axes.set(xlim=(-3.4, 3.4), xlabel="data (dot) among replicates (90 %)")
        return figure
