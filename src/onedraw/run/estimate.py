"""The draws of an assessment's best estimate, and everything there is to say of them."""

import math
from dataclasses import replace

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.model.model import Model
from onedraw.proposals.mixture import Mixture, normals_around
from onedraw.results.assessment import Assessment
from onedraw.results.diagnostics import (
    chosen_settings,
    learnt_notes,
    learnt_settings,
    little_learnt,
    notes,
    tolerance_path,
)
from onedraw.results.learnt_likelihood import LearntLikelihood
from onedraw.results.misfit import AmongSimulations, compare, packed
from onedraw.results.monte_carlo_error import effective_on_average
from onedraw.results.regression import effective_draws, posterior_draws
from onedraw.run.bank import Bank
from onedraw.run.result import Result

PARTICLES = 1000
"""Draws of a learnt likelihood around which the normals of a proposal are placed."""
COMPONENTS, LEARNT_SCALE = 300, 0.25
"""The number of these normals, and their covariances in covariances of a draw's neighbours: they are many."""
SPARE = 50
"""One draw in this many is spare."""
PRIOR_DRAWS = 2000
"""Draws of the prior with whose spread that of the posterior is compared."""
FEWEST_DRAWS = 100
"""Draws that the sampler over a learnt likelihood needs to reach the posterior, however few are wanted of them."""
MOST_LEFT_OUT = 0.5
"""Share of the draws of a learnt likelihood that may be left out because no simulation is near them."""


def around_estimate(
    bank: Bank, learnt: LearntLikelihood, of_draws: np.random.Generator, of_normals: np.random.Generator
) -> Mixture:
    """Normals around draws of a learnt likelihood: where the posterior seems to be."""
    theta = learnt.draws(bank.simulations(), PARTICLES, of_draws).draws
    discrete = np.asarray(bank.prior.discrete)
    return normals_around(theta, np.ones(len(theta)), LEARNT_SCALE, COMPONENTS, of_normals, discrete)


def estimated(model: Model, bank: Bank, found: Assessment, draws: int, rng: np.random.Generator, reason: str) -> Result:
    """Draws of the best estimate and everything there is to say of them."""
    if found.likelihood is not None:
        result = _learnt(model, bank, found, found.likelihood, draws, rng, reason)
    else:
        result = _adjusted(model, bank, found, draws, rng, reason)
    return _with_bank(result, bank) if bank.reused else result


def _with_bank(result: Result, bank: Bank) -> Result:
    """The result with what it owes to earlier simulations."""
    unknown = 0 if bank.more is None else len(bank.more.x)
    told = f"Bank: {bank.reused:,} earlier simulations are used; they do not count towards the budget."
    if unknown:
        told += f" The proposals of {unknown:,} are not known: only a learnt likelihood uses these."
    notes, settings = result.notes, {"simulations": bank.reused, "unknown_proposals": unknown}
    return replace(result, settings={**result.settings, "bank": settings}, notes=(notes[0], told, *notes[1:]))


def _adjusted(model: Model, bank: Bank, found: Assessment, draws: int, rng: np.random.Generator, reason: str) -> Result:
    """Draws of the best regression and everything there is to say of them."""
    (near, observed), method, (_, rows) = found.chosen, found.method, bank.good()
    theta, source, unadjusted = posterior_draws(rng, near, found.draws, method, draws, model.prior, bank.support)
    effective, count, eps = (
        effective_draws(near, observed, method, found.draws),
        len(found.draws.source),
        found.draws.eps,
    )
    little = _little_learnt(model, bank, theta, rng) if method.summary else []
    path, before = tolerance_path(found.distances(rows), bank.ends, count), _among_prior(model, bank, rows)
    rate = count / len(rows)
    return Result(
        theta=theta[None],
        distances=near.distances(observed)[source][None, :, None],
        reason=reason,
        made=f"{draws:,} draws, eps = {eps:.3g}, effective sample size {effective:.0f}",
        rate=rate,
        rate_se=rate * math.sqrt((1 - rate) / count),
        settings={
            **chosen_settings(found, len(bank.mixtures), path),
            "stages": len(bank.ends),
            "misfit": packed(before),
        },
        notes=(*notes(found, len(bank.mixtures), len(rows), effective, before, unadjusted), *little),
        eps=eps,
        effective=effective,
        after=f" after {bank.cost.simulations:,} simulations",
        model=model,
        kept=bank,
    )


def _among_prior(model: Model, bank: Bank, rows: Array) -> AmongSimulations | None:
    """The data among the simulations of the first stage, which are from the prior."""
    return compare(rows[: bank.ends[0]], model.observed_row, model.labels())


def _little_learnt(model: Model, bank: Bank, draws: Array, rng: np.random.Generator) -> list[str]:
    """Of which parameters learnt summaries say hardly anything, as draws (n, dim) of the posterior show."""
    unbounded = bank.support.unbounded
    return little_learnt(unbounded(draws), unbounded(model.prior.sample(rng, PRIOR_DRAWS)), model.prior.labels)


def _learnt(
    model: Model,
    bank: Bank,
    found: Assessment,
    learnt: LearntLikelihood,
    draws: int,
    rng: np.random.Generator,
    reason: str,
) -> Result:
    """Draws of the posterior under a learnt likelihood and everything there is to say of them."""
    simulations, names = bank.simulations(), model.prior.labels
    # A few more than are wanted take the places of those that are left out.
    made = learnt.draws(simulations, max(draws + draws // SPARE, FEWEST_DRAWS), rng)
    theta, worth = made.draws, made.worth * draws / len(made.draws)
    far = learnt.unseen(theta)
    left_out = float(far.mean())
    theta = theta[np.resize(np.flatnonzero(~far), draws)] if left_out < MOST_LEFT_OUT else theta[:draws]
    refits, values = learnt.refits(theta), np.asfortranarray(bank.support.bounded(theta))
    effective = effective_on_average(values, refits, worth)
    before = _among_prior(model, bank, simulations.rows)
    little = _little_learnt(model, bank, values, rng) if learnt.learnt_summary else []
    number = len(simulations.together()[1])
    return Result(
        theta=values[None],
        distances=None,
        reason=reason,
        made=f"{draws:,} draws of a learnt likelihood, effective sample size {effective:.0f}",
        settings={
            **learnt_settings(found, learnt, names, len(bank.mixtures)),
            "stages": len(bank.ends),
            "misfit": packed(before),
        },
        notes=(*learnt_notes(found, learnt, names, len(bank.mixtures), number, effective, before, left_out), *little),
        effective=effective,
        refits=refits,
        draws_worth=worth,
        after=f" after {bank.cost.simulations:,} simulations",
        model=model,
        kept=bank,
    )
