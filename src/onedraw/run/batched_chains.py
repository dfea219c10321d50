"""A block of chains of a batched simulator, with one pseudo-sample per estimate: steps that change the states in place.

The draws are those of `lockstep.advance`, which makes all arrays of a state anew at each step. With a thousand chains
that takes longer than drawing the random numbers.
"""

import sys
from typing import Any, NamedTuple

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array, declared
from onedraw.engines.clock import look
from onedraw.engines.streams import Purpose, Rng
from onedraw.estimators.abc_average import AbcAverage
from onedraw.failures import Failure, first_failures
from onedraw.model.simulator import CHUNK_ROWS, CHUNK_VALUES, Batched
from onedraw.proposals.independence import Independence
from onedraw.proposals.lazy import Lazy
from onedraw.proposals.random_walk import RandomWalk

OWN = (RandomWalk, Independence)
"""Proposals that do not keep the states which they are given."""


class Moved(NamedTuple):
    """What steps of n chains give."""

    state: Any
    accepted: Array
    """(batches, n)"""
    proposals: Array
    cost: Cost
    failures: tuple[Failure, ...]
    ignored_rng: bool


def suits(sampler: Any, chains: int) -> bool:
    """Whether a block of chains can be stepped here."""
    estimator, proposal = getattr(sampler, "estimator", None), getattr(sampler, "proposal", None)
    inner = proposal.proposal if type(proposal) is Lazy else proposal
    return (
        type(estimator) is AbcAverage
        and declared(sampler) is not None
        and type(inner) in OWN
        and estimator.pseudo_samples == 1
        and type(estimator.model.simulate) is Batched
        and chains <= min(CHUNK_ROWS, CHUNK_VALUES // estimator.model.recipe.width)
    )


def advance(
    sampler: Any, rng: Rng, before: Any, steps: int, kept: Array, kept_distances: Array | None, *, thin: int,
    batches: int, stretch: tuple[int, int],
) -> Moved:  # fmt: skip
    """Take `steps` steps from `rng.step` on, writing every `thin`-th state into `kept` (draws, n, dim)."""
    model, kernel, proposal = sampler.estimator.model, sampler.estimator.kernel, sampler.proposal
    on_error, early, eps = sampler.estimator.on_error, sampler.early, kernel.eps
    state = type(before)(*(part.copy(order="K") for part in before))
    theta, log_prior, distances, n = state.theta, state.log_prior, state.distances, len(before.theta)
    carried, measures = hasattr(state, "log_estimate"), distances.shape[1] > 0
    # Beyond this no estimate is accepted, or none is wanted.
    most = 0.0 if early else sys.float_info.max
    # A hit at a draw from the prior is accepted and a miss is not, whatever u is.
    decided = type(proposal) is Independence and proposal.distribution is proposal.prior and kernel.indicator
    winners: list[list[Array]] = [[] for _ in range(batches)]
    all_proposed, proposals = [0] * batches, np.zeros((batches, n), dtype=np.int64)
    simulations = failed = place = 0
    failures: tuple[Failure, ...] = ()
    ignored = False
    begin, length = stretch[0], stretch[1] - stretch[0]
    needed: Any = None
    for step in range(rng.step, rng.step + steps):
        look()
        rng.step = step
        batch, moves = (step - begin) * batches // length, rng.bulk(Purpose.MOVE)
        made = proposal.propose(moves, theta, log_prior)
        if made.held is None:
            all_proposed[batch] += 1
        else:
            proposals[batch] += ~made.held
        rows: Any = None
        if not decided:
            needed = moves.standard_exponential(n)
            if carried:
                np.subtract(state.log_estimate, needed, out=needed)
                needed -= made.log_ratio
            else:
                np.negative(needed, out=needed)
                needed -= np.minimum(made.log_ratio, 0.0)
            if made.held is not None:
                needed[made.held] = np.inf
            worth = needed <= most
            if np.count_nonzero(worth) < n:
                rows = worth.nonzero()[0]
        there = made.theta if rows is None else made.theta[rows]
        if len(there):
            part = model.simulate_rows(rng, there, rows, on_error=on_error)
            part, apart = model.measured(part, rng, there, rows, 0, on_error)
            simulations, failed = simulations + part.cost.simulations, failed + part.cost.failed
            if part.failures:
                failures = first_failures(failures, part.failures)
            ignored |= part.ignored_rng
            apart = apart[:, 0]
            log_weight: Any = None
            if not kernel.indicator:
                log_weight = kernel.log_weight(apart)
                won = (log_weight >= (needed if rows is None else needed[rows])).nonzero()[0]
            elif early or decided:
                won = (apart < eps).nonzero()[0]
            else:
                won = ((apart < eps) & ((needed if rows is None else needed[rows]) <= 0.0)).nonzero()[0]
            if won.size:
                chains = won if rows is None else rows[won]
                winners[batch].append(chains)
                if theta.shape[1] == 1:
                    # Rows of an array with two axes take three times as long to copy.
                    theta[:, 0][chains] = there[:, 0][won]
                else:
                    theta[chains] = there[won]
                if measures:
                    distances[chains, 0] = apart[won]
                if log_weight is not None and carried:
                    state.log_estimate[chains] = log_weight[won]
                if made.log_prior is not log_prior:
                    log_prior[chains] = made.log_prior[chains]
        if (step + 1 - begin) % thin == 0:
            kept[place] = theta
            if kept_distances is not None:
                kept_distances[place] = distances
            place += 1
    accepted = np.array([np.bincount(np.concatenate([[], *some]).astype(np.intp), minlength=n) for some in winners])
    proposals += np.array(all_proposed)[:, None]
    asked = int(proposals.sum())
    cost = Cost(simulations, skipped=asked - simulations, failed=failed, proposals=asked)
    return Moved(state, accepted, proposals, cost, failures, ignored)
