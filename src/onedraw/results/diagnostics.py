"""How far an estimate from a budget of simulations can be trusted, and what a larger budget would give."""

import math
from typing import Any

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.model.model import Model
from onedraw.results.assessment import Assessment, own_distance, scaled_summary, spread_of
from onedraw.results.regression import distances_from
from onedraw.results.trial import TrialResult

FAR = 0.99
"""Share of simulated data sets that must have nearer neighbours than the data before a warning is given."""
FEW_DRAWS = 100
FEWEST_REPLICATES, LEAST_ALIKE = 20, 0.02
LEAST_COVERAGE = 0.8
LATEST = 3
"""Stages, the last ones, from which the gain from a larger budget is estimated."""


def tolerance_path(distances: Array, ends: tuple[int, ...], nearest: int) -> list[list[float]]:
    """The distance of the nearest simulations at the end of each stage: [simulations, tolerance]."""
    count = max(10, min(nearest, ends[0] // 4))
    return [[end, float(np.partition(distances[:end], count)[count])] for end in ends if end > count]


def forecast(path: list[list[float]], eps: float) -> list[str]:
    """What ten times the budget would give, in plain words; nothing if it cannot be estimated."""
    usable = [(n, at) for n, at in path if at > 0]
    if len(usable) < 2:
        return []
    # The first stages approach the posterior and fall faster than simulations from one proposal can: along a line the
    # tolerance falls with their number, and in more dimensions more slowly.
    log_n, log_eps = np.log(np.array(usable[-LATEST:])).T
    slope = float(np.clip(np.polyfit(log_n, log_eps, 1)[0], -1.0, 0.0))
    if 10**slope > 0.95:
        return [f"Ten times the budget would leave the tolerance near {eps:.3g} and give ten times the draws."]
    return [
        f"Ten times the budget would lower the tolerance from {eps:.3g} to about {eps * 10**slope:.2g} for the same "
        "number of draws, or give ten times the draws."
    ]


def share_nearer(model: Model, pilot: Array) -> float:
    """Share of pilot rows (n, s) that have nearer neighbours in the pilot than the data have; 0 if they are too few."""
    some = pilot[:500]
    if len(some) < 50 or own_distance(model) is not None:
        return 0.0
    _, scale = scaled_summary(model, pilot)
    near, scaled = max(2, len(some) // 50), scale(some)
    data = np.partition(distances_from(scaled, scale(model.observed_row[None])[0]), near)[near]
    # Each is its own nearest neighbour.
    others = [np.partition(distances_from(scaled, one), near + 1)[near + 1] for one in scaled[:200]]
    return float(np.mean(np.array(others) < data))


def chosen_settings(found: Assessment, proposals: int, path: list[list[float]]) -> dict[str, Any]:
    """What a run has chosen, for `settings`; `proposals` besides the prior were adapted to the posterior."""
    trial, method = found.trial, found.method
    return {
        "method": _method(proposals), "summary": found.names[method.summary], "nearest": len(found.draws.source),
        "adjustment": method.words(), "smoothing": "local" if method.local else "whole", "path": path,
        "held_out": {"number": trial.tried, "gain": _or_none(trial.gain), "se": _or_none(trial.gain_se),
                     "cover_90": _or_none(trial.coverage)},
    }  # fmt: skip


def _method(proposals: int) -> str:
    others = f" and from {proposals} adapted proposal{'s' if proposals > 1 else ''}" if proposals else ""
    return f"simulations from the prior{others}"


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def notes(
    found: Assessment,
    proposals: int,
    simulations: int,
    effective: float,
    path: list[list[float]],
    nearer: float,
    unadjusted: float,
) -> list[str]:
    """What was done, how far to trust it, and what a larger budget would give, in plain words."""
    name, count, eps = found.names[found.method.summary], len(found.draws.source), found.draws.eps
    told = [
        f"Method: {_method(proposals)}; the nearest {count:,} of {simulations:,} by {name} are used.",
        f"Tolerance: {eps:.4g}. Effective sample size: about {effective:.0f}.",
        f"The draws are {found.trial.words()}.",
        *forecast(path, eps),
        *warnings(effective, found.trial, nearer),
    ]
    if unadjusted > 0.01:
        share = f"{100 * unadjusted:.0f} %"
        told.append(f"{share} of the draws were left unadjusted: adjustment would have moved them outside the prior.")
    return told


def warnings(effective: float, trial: TrialResult, nearer: float) -> list[str]:
    """What a reader must know before using the draws, in plain words."""
    found = []
    if effective < FEW_DRAWS:
        found.append(
            f"warning: the effective sample size is only about {effective:.0f}, so the estimates are rough; raise the "
            "budget"
        )
    if trial.tried and trial.coverage < LEAST_COVERAGE:
        found.append(
            f"warning: 90 % intervals cover only {100 * trial.coverage:.0f} % of the known parameters of simulations "
            "near the data: this posterior is too narrow or biased"
        )
    if nearer > FAR:
        found.append(
            f"warning: the data are farther from the simulations than {100 * nearer:.0f} % of simulated data sets are: "
            "check that prior and simulator can produce such data"
        )
    return found


def predictive_check(rows: Array, observed: Array) -> list[str]:
    """Whether the observed row looks like replicates (n, s) in plain words; nothing if there are too few of them."""
    rows = rows[~np.isnan(rows[:, 0])]
    if len(rows) < FEWEST_REPLICATES:
        return []
    away = np.abs((np.concatenate([rows, observed[None]]) - np.median(rows, axis=0)) / spread_of(rows)).mean(axis=1)
    alike = int(np.count_nonzero(away[:-1] >= away[-1]))
    counted = f"{alike} of {len(rows)} replicates lie at least as far from their median as the data"
    if alike / len(rows) < LEAST_ALIKE:
        return [
            f"warning: the posterior predictive check failed: {counted}. The model may not be able to produce such data"
        ]
    return [f"Posterior predictive check passed: {counted}."]
