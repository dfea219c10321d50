"""How often central intervals contain the known parameters of simulations near the data.

Reference: Prangle, Blum, Popovic and Sisson (2014).
"""

import math
from typing import Any

import numpy as np

from onedraw.estimators.weights import effective
from onedraw.results.assessment import Assessment
from onedraw.results.learnt_likelihood import LearntLikelihood
from onedraw.results.trial import near_data, ranks

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Of the intervals whose coverage is measured."""


def measure_coverage(
    found: Assessment, names: tuple[str, ...], number: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Coverage at simulations near the data from which nothing was chosen, neither the method nor a learnt summary.

    They are picked by weight, so that they represent data from the prior that are like those observed; there the
    intervals of a posterior contain the parameters as often as their level says. As `settings` have it: the `number` of
    simulations that were taken as data, `levels`, the shares `held` for each parameter, and their standard errors `se`.
    """
    if found.likelihood is not None:
        return _of_likelihood(found.likelihood, names)
    near, observed = found.chosen
    allowed = found.members % 2 == 1
    allowed[found.held_out] = False
    among = max(4 * number, int(np.count_nonzero(allowed)) // 10)
    picked, times = np.unique(near_data(near, observed, among, number, rng, allowed), return_counts=True)
    levels = LEVELS if len(picked) else ()
    away = np.abs(ranks(near, found.method, picked) - 0.5)
    held = {name: [float(times @ (column < 0.5 * level) / times.sum()) for level in levels]
            for name, column in zip(names, away.T, strict=True)}  # fmt: skip
    errors = [math.sqrt(level * (1 - level) / effective(times.astype(float))) for level in levels]
    return {"number": len(picked), "levels": list(levels), "held": held, "se": errors}


def _of_likelihood(learnt: LearntLikelihood, names: tuple[str, ...]) -> dict[str, Any]:
    """The same of a learnt likelihood, at the simulations near the posterior that were left out of it."""
    levels = LEVELS if len(learnt.ranks) else ()
    held = {name: [float(learnt.coverage(level)[k]) for level in levels] for k, name in enumerate(names)}
    errors = [math.sqrt(level * (1 - level) / len(learnt.ranks)) for level in levels]
    return {"number": len(learnt.ranks), "levels": list(levels), "held": held, "se": errors}


def coverage_note(settings: dict[str, Any]) -> str:
    """Coverage as `settings` have it in plain words, with two standard errors."""
    if not settings["number"]:
        return "Coverage: no simulations near the data are left to take as data; raise the budget."
    shares = [f"{name} {_percent(held)} %" for name, held in settings["held"].items()]
    error = _percent([2 * se for se in settings["se"]])
    return (
        f"Coverage: {_percent(settings['levels'])} % intervals at {settings['number']} simulations near the data "
        f"contain the known parameters this often: {', '.join(shares)} (± {error} % by chance)."
    )


def _percent(shares: list[float]) -> str:
    return " / ".join(f"{100 * one:.0f}" for one in shares)
