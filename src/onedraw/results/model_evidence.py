"""The evidence of a learnt likelihood: the density that a model gives to the data, by its surrogate."""

import math
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.results.learnt_likelihood import LearntLikelihood, SimulatedPairs
from onedraw.surrogate.surrogate import Surrogate, fit_surrogate
from onedraw.surrogate.tempering import tempered
from onedraw.surrogate.training import Training
from onedraw.surrogate.validation import evidence_error

RUNS, PARTICLES = 4, 3000
"""Runs of the sequential sampler, and draws of each; their spread is the Monte Carlo error."""
GROUPS = 16
"""Parts of the simulations that are left out in turn."""
FREEDOM = GROUPS - 1
"""Degrees of freedom of the error."""
RIDGE = 0.1
"""Penalty on coefficients."""
FREE = 3000
"""Draws from all proposals over which the evidence of held-out simulations is a mean."""


class LearntEvidence(NamedTuple):
    """The log evidence of a surrogate, and its variance."""

    value: float
    variance: float


def comparable(learnt: list[LearntLikelihood | None]) -> str:
    """Why densities of several models cannot be compared; "" if they can.

    Each surrogate must describe all summaries as they are: one that hardly ever varies under a model has no density.
    """
    known = [one for one in learnt if one is not None]
    if len(known) < len(learnt):
        return "not every model has a learnt likelihood"
    if any(one.learnt_summary for one in known):
        return "there are too many summaries for a learnt likelihood of all of them"
    first = known[0].surrogate.form.transform
    for one in known:
        transform = one.surrogate.form.transform
        if len(transform.kept) < len(one.observed):
            return "some summaries hardly vary under a model"
        if not np.array_equal(transform.whole, first.whole):
            return "some summaries are whole numbers under one model alone"
    return ""


def density(learnt: LearntLikelihood, training: Training) -> Surrogate:
    """The surrogate as a density of the summaries: without a power, and hardly penalised.

    A penalty lowers the error of predictions on average, and biases the density at one point, the data.
    """
    form = learnt.surrogate.form
    form = form._replace(terms=tuple(one._replace(ridge=min(one.ridge, RIDGE)) for one in form.terms))
    return fit_surrogate(form, training, learnt.surrogate.success)


def learnt_evidence(learnt: LearntLikelihood, pairs: SimulatedPairs, rng: np.random.Generator) -> LearntEvidence:
    """The log evidence at the data by sequential Monte Carlo from the prior, with the error of everything behind it."""
    surrogate = density(learnt, learnt.training)
    runs = [
        tempered(
            pairs.of_prior(rng, PARTICLES), pairs.log_prior,
            lambda points: surrogate.log_density(points, learnt.observed), pairs.discrete, rng,
        )
        for _ in range(RUNS)
    ]  # fmt: skip
    logs = np.array([one.log_evidence for one in runs])
    if not np.isfinite(logs).all():
        return LearntEvidence(-math.inf, math.inf)
    top = float(logs.max())
    value = top + math.log(float(np.exp(logs - top).mean()))
    bias, variance = evidence_error(surrogate, learnt.training, learnt.observed, runs[0].draws, GROUPS)
    return LearntEvidence(value - bias, variance + float(logs.var(ddof=1)) / RUNS)


def held_out_evidence(
    learnt: LearntLikelihood, pairs: SimulatedPairs, left_out: Array, rows: Array, rng: np.random.Generator
) -> Array:
    """Log evidence (m,) of some rows of summaries (m, s), by a fit without the simulations `left_out` of its training.

    It is a mean over draws from all proposals, with weights that make them draws from the prior.
    """
    keep = np.ones(len(learnt.training.rows), dtype=bool)
    keep[left_out] = False
    surrogate = density(learnt, learnt.training.some(keep))
    points = pairs.of_proposals(rng, FREE)
    log_weights, columns = pairs.log_weights(points), surrogate.form.columns(points)
    log_weights = log_weights - np.logaddexp.reduce(log_weights)
    slopes = np.array([surrogate.form.transform.log_slope(row) for row in rows])
    found = [
        np.logaddexp.reduce(log_weights + surrogate.log_likelihood(columns, given)) for given in surrogate.at(rows)
    ]
    return np.array(found) + slopes
