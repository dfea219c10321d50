"""The evidence of a learnt likelihood: the density that a model gives to the data, by its surrogate."""

import math
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.results.learnt_likelihood import LearntLikelihood, SimulatedPairs, success_of
from onedraw.surrogate.choice import Form, choose_form
from onedraw.surrogate.success import Success
from onedraw.surrogate.surrogate import Surrogate, fit_surrogate, fit_surrogates
from onedraw.surrogate.tempering import MOST_MOVES, tempered
from onedraw.surrogate.training import Training
from onedraw.surrogate.validation import evidence_ratio

RUNS, PARTICLES = 4, 2000
"""Runs of the sequential sampler, and draws of each; their spread is the Monte Carlo error."""
GROUPS, HALVES = 16, 15
"""Groups of simulations, and halves made of them, to which the surrogate is fitted again."""
FREEDOM = HALVES
"""Degrees of freedom of the error."""
CHOICES, FEWEST_CHOICES = 4, 2
"""Halves that choose what the surrogate is made of again, and how many of them must choose the same summaries."""
RIDGE = 0.1
"""Penalty on coefficients."""
FREE = 3000
"""Draws from all proposals over which the evidence of held-out simulations is a mean."""


class LearntEvidence(NamedTuple):
    """The log evidence of a surrogate, and its variance."""

    value: float
    variance: float


NO_EVIDENCE = LearntEvidence(-math.inf, math.inf)
"""Of a model that has none."""


def comparable(learnt: list[LearntLikelihood | None]) -> str:
    """Why densities of several models cannot be compared; "" if they can.

    Each surrogate must describe all summaries as they are: one that hardly ever varies under a model has no density.
    """
    known = [one for one in learnt if one is not None]
    if len(known) < len(learnt):
        return "not every model has a learnt likelihood"
    if any(one.learnt_summary or one.surrogate.form.long for one in known):
        return "there are too many summaries for a learnt likelihood of all of them"
    if any(one.rows for one in known):
        return "the likelihood of a model was learnt for single rows of the data (replicates=)"
    first = known[0].surrogate.form.transform
    for one in known:
        transform = one.surrogate.form.transform
        mine, its = first.measures(), transform.measures()
        if len(its) < len(one.observed):
            return "some summaries hardly vary under a model, or follow from others"
        if [which[:2] for which in mine] != [which[:2] for which in its]:
            return "some summaries are whole numbers under one model alone"
        if mine != its:
            return "some summaries often have the same value under one model alone"
    return ""


def of_prior(learnt: LearntLikelihood, pairs: SimulatedPairs) -> LearntLikelihood | None:
    """A likelihood that depends on no parameter, learnt from simulations that count as draws from the prior.

    What it says of the data is then their density under the prior, the evidence itself, even if it depends on
    parameters more than so few simulations show.
    """
    weights = np.exp(pairs.log_weights(learnt.training.theta))
    # As many as they are worth.
    training = learnt.training._replace(weights=weights * weights.sum() / np.square(weights).sum())
    form = choose_form(pairs.support, training, learnt.observed, thorough=True)
    return None if form is None else learnt._replace(surrogate=fit_surrogate(form, training, None), training=training)


def unpenalised(form: Form) -> Form:
    """The form whose surrogates are densities of the summaries, hardly penalised.

    A penalty lowers the error of predictions on average, and biases the density at one point, the data.
    """
    return form._replace(terms=tuple(one._replace(ridge=min(one.ridge, RIDGE)) for one in form.terms))


def density(form: Form, training: Training, success: Success | None) -> Surrogate:
    """The surrogate of a form as a density of the summaries: without a power, and hardly penalised."""
    return fit_surrogate(unpenalised(form), training, success)


def balanced_halves(n: int) -> Array:
    """Halves (HALVES, n) of n simulations, any two of which share half of their members.

    Simulations are dealt out to groups, and a column of a Hadamard matrix says which groups a half has (McCarthy 1969).

    >>> halves = balanced_halves(32)
    >>> halves.sum(axis=1).tolist()
    [16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16]
    >>> int((halves[0] & halves[1]).sum()), int((halves[2] & halves[7]).sum())
    (8, 8)
    """
    from scipy.linalg import hadamard

    found: Array = hadamard(GROUPS)[1 : HALVES + 1][:, np.arange(n) % GROUPS] > 0
    return found


def fitted_again(learnt: LearntLikelihood, pairs: SimulatedPairs) -> list[Surrogate]:
    """Densities of the same form, each fitted to half of the simulations."""
    form, number = learnt.surrogate.form, len(learnt.training.rows)
    parts = zip(*(balanced_halves(len(some)) for some in (pairs.theta, pairs.failed)), strict=True)
    some = (
        pairs._replace(theta=pairs.theta[good], rows=pairs.rows[good], failed=pairs.failed[bad]) for good, bad in parts
    )
    successes = [success_of(one, form) for one in some]
    # All have the features of the one that has most.
    most = max(successes, key=lambda one: 0 if one is None else len(one.coefficients))
    fitted = fit_surrogates(unpenalised(form), learnt.training, balanced_halves(number), most)
    return [one._replace(success=own) for one, own in zip(fitted, successes, strict=True)]


def chosen_again(learnt: LearntLikelihood, pairs: SimulatedPairs) -> list[Surrogate]:
    """Densities of the same summaries, of forms that halves of the simulations choose, fitted to all simulations."""
    own, found = learnt.surrogate.form, []
    halves = balanced_halves(len(learnt.training.rows))[: CHOICES // 2]
    for half in (*halves, *~halves):
        form = choose_form(own.coordinates.support, learnt.training.some(half), learnt.observed, thorough=True)
        if form is not None and np.array_equal(form.transform.kept, own.transform.kept):
            found.append(density(form, learnt.training, success_of(pairs, form)))
    return found


def learnt_evidence(learnt: LearntLikelihood, pairs: SimulatedPairs, rng: np.random.Generator) -> LearntEvidence:
    """The log evidence at the data by sequential Monte Carlo from the prior, with the error of everything behind it.

    The evidence from half of the simulations differs from that of all by as much as that differs from the truth: the
    variance of both is that of the one from all. Halves are fitted again, and choose the form again; the variances of
    both, and that of the sampler, are added.
    """
    surrogate, observed = density(learnt.surrogate.form, learnt.training, learnt.surrogate.success), learnt.observed
    runs = [
        tempered(
            pairs.of_prior(rng, PARTICLES), pairs.log_prior,
            lambda points: surrogate.log_density(points, observed), pairs.discrete, rng, last_moves,
        )
        for last_moves in (MOST_MOVES, *[0] * (RUNS - 1))
    ]  # fmt: skip
    logs = np.array([one.log_evidence for one in runs])
    if not np.isfinite(logs).all():
        return NO_EVIDENCE
    top = float(logs.max())
    value = top + math.log(float(np.exp(logs - top).mean()))
    variance, others = float(logs.var(ddof=1)) / RUNS, chosen_again(learnt, pairs)
    if len(others) < FEWEST_CHOICES:
        return LearntEvidence(value, math.inf)
    for some in (others, fitted_again(learnt, pairs)):
        away = [evidence_ratio(surrogate, one, observed, runs[0].draws) for one in some]
        variance += float(np.square(away).mean())
    return LearntEvidence(value, variance)


def held_out_evidence(
    learnt: LearntLikelihood, pairs: SimulatedPairs, left_out: Array, rows: Array, rng: np.random.Generator
) -> Array:
    """Log evidence (m,) of some rows of summaries (m, s), by a fit without the simulations `left_out` of its training.

    It is a mean over draws from all proposals, with weights that make them draws from the prior.
    """
    keep = np.ones(len(learnt.training.rows), dtype=bool)
    keep[left_out] = False
    surrogate = density(learnt.surrogate.form, learnt.training.some(keep), learnt.surrogate.success)
    points = pairs.of_proposals(rng, FREE)
    log_weights, columns = pairs.log_weights(points), surrogate.form.columns(points)
    log_weights, there = log_weights - np.logaddexp.reduce(log_weights), surrogate.there(columns)
    slopes = np.array([surrogate.form.transform.log_slope(row) for row in rows])
    found = [np.logaddexp.reduce(log_weights + surrogate.data_log_likelihood(columns, row, there)) for row in rows]
    return np.array(found) + slopes
