"""One chain of a plain simulator, with one pseudo-sample per estimate: steps on numbers instead of arrays of one row.

The draws are those of `lockstep.advance`, which a chain of its own would pay for with a few dozen array calls per step.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.clock import look
from onedraw.engines.numba import declared
from onedraw.engines.streams import Purpose, Rng
from onedraw.estimators.abc_average import AbcAverage
from onedraw.failures import FAULTS, Failure, SimulationError, first_failures
from onedraw.model.distance import Euclidean
from onedraw.model.model import Model
from onedraw.model.simulator import PlainCall, Simulated, not_finite, note_failure
from onedraw.proposals.random_walk import RandomWalk


class SingleChain(NamedTuple):
    """What steps of one chain give."""

    state: dict[str, Array]
    theta: list[Array]
    """(1, dim) of each draw that is kept."""
    distances: list[float]
    accepted: list[int]
    """By batch of steps."""
    proposals: list[int]
    simulations: int
    failed: int
    failures: tuple[Failure, ...]
    ignored_rng: bool


class OneDistance(NamedTuple):
    """The distance of one pseudo-sample, inf if it failed."""

    distance: float
    failures: tuple[Failure, ...] = ()
    used: bool = True
    """Whether the simulator drew from its generator; True unless that is watched."""


def alone(sampler: Any, chains: int) -> bool:
    """Whether a block of chains is one that can be stepped here."""
    estimator = getattr(sampler, "estimator", None)
    return (
        chains == 1
        and type(estimator) is AbcAverage
        and declared(sampler) is not None
        and estimator.pseudo_samples == 1
        and estimator.keep_distances
        and estimator.map_draws is None
        and estimator.model.plain
        and estimator.model.pair is None
    )


class Simulation:
    """One pseudo-sample of a plain simulator, compared with the data; prepared for many of them."""

    def __init__(self, model: Model, on_error: str) -> None:
        self._model, self._on_error = model, on_error
        self._call = PlainCall(model.recipe)
        shapes = model.prior.layout.shapes
        self._one_parameter = model.prior.names[0] if shapes == ((),) and not model.prior.discrete[0] else None
        self._difference = self._call.one_number and type(model.distance) is Euclidean
        """Whether the distance is the difference of two numbers."""
        self._observed = float(model.observed_row[0])

    def __call__(self, rng: Rng, theta: Array) -> OneDistance:
        """At theta (1, dim)."""
        recipe, failures = self._model.recipe, list[Failure]()
        used = True
        try:
            if self._one_parameter is not None:
                value = self._call.simulate(rng.single(0), **{self._one_parameter: theta.item()})
            else:
                value = self._call.simulate(rng.single(0), **recipe.prior.rows(theta)[0])
            used = rng.first != 0 or rng.step != 0 or rng.used()
            value = self._call.summarised(value)
        except FAULTS as error:
            note_failure(recipe, rng, theta[0], 0, 0, error, failures, self._on_error)
            return OneDistance(math.inf, tuple(failures))
        if not (math.isfinite(value) if self._call.one_number else np.isfinite(value).all()):
            failure = not_finite(recipe, rng, theta[0], 0, 0)
            if self._on_error == "raise":
                raise SimulationError(f"simulation failed {failure}")
            return OneDistance(math.inf, (failure,), used)
        if self._difference:
            return OneDistance(abs(value - self._observed), (), used)
        rows = np.array(value, dtype=float).reshape(1, 1, -1)
        found, distances = self._model.measured(
            Simulated(rows, Cost(1)), rng, theta, None, 0, self._on_error
        )  # fmt: skip
        return OneDistance(distances.item(), found.failures, used)


def advance(
    sampler: Any, rng: Rng, state: Any, steps: int, *, thin: int, batches: int, stretch: tuple[int, int]
) -> SingleChain:
    """Take `steps` steps from `rng.step` on."""
    estimator, proposal, prior = sampler.estimator, sampler.proposal, sampler.estimator.prior
    kernel, simulation = estimator.kernel, Simulation(estimator.model, estimator.on_error)
    carried = hasattr(state, "log_estimate")
    walks = type(proposal) is RandomWalk and prior.dim == 1 and not prior.discrete[0]
    root = float(proposal.root[0, 0]) if walks else 0.0
    # Beyond this no estimate is accepted, or none is wanted.
    most = estimator.log_bound if sampler.early else np.finfo(float).max
    theta, log_priors = state.theta, state.log_prior
    log_prior, distance = float(log_priors[0]), float(state.distances[0, 0])
    log_estimate = float(state.log_estimate[0]) if carried else 0.0
    place = float(theta[0, 0])
    kept: list[Array] = []
    distances: list[float] = []
    accepted, proposals = [0] * batches, [0] * batches
    simulations = failed = 0
    failures: tuple[Failure, ...] = ()
    ignored = False
    begin, length = stretch[0], stretch[1] - stretch[0]
    for step in range(rng.step, rng.step + steps):
        look()
        rng.step = step
        moves = rng.bulk(Purpose.MOVE)
        held = False
        if walks:
            proposed = np.array([[moves.standard_normal() * root + place]])
            there = float(prior.logpdf(proposed)[0])
            log_ratio = there - log_prior
        else:
            made = proposal.propose(moves, theta, log_priors)
            proposed, there, log_ratio = made.theta, float(made.log_prior[0]), float(np.ravel(made.log_ratio)[0])
            held = made.held is not None and bool(made.held[0])
        needed = log_estimate - moves.standard_exponential() - (log_ratio if carried or log_ratio < 0.0 else 0.0)
        batch = (step - begin) * batches // length
        if not held:
            proposals[batch] += 1
            if needed <= most:
                simulations += 1
                found = simulation(rng, proposed)
                ignored |= not found.used
                if found.failures:
                    failed, failures = failed + 1, first_failures(failures, found.failures)
                if kernel.indicator:
                    log_weight = 0.0 if found.distance < kernel.eps else -math.inf
                else:
                    log_weight = float(kernel.log_weight(np.array([found.distance]))[0])
                if log_weight >= needed:
                    accepted[batch] += 1
                    theta, log_prior, log_estimate, distance = proposed, there, log_weight, found.distance
                    if not carried:
                        log_estimate = 0.0
                    if walks:
                        place = float(theta[0, 0])
                    elif made.log_prior is not log_priors:
                        log_priors = made.log_prior
        if (step + 1 - begin) % thin == 0:
            kept.append(theta)
            distances.append(distance)
    after = {
        "theta": theta, "log_prior": np.array([log_prior]) if walks else log_priors,
        "log_estimate": np.array([log_estimate]), "distances": np.array([[distance]]),
    }  # fmt: skip
    return SingleChain(after, kept, distances, accepted, proposals, simulations, failed, failures, ignored)
