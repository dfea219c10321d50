"""One chain of a plain simulator, with one pseudo-sample per estimate: steps on numbers instead of arrays of one row.

The draws are those of `lockstep.advance`, which a chain of its own would pay for with a few dozen array calls per step.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array, declared
from onedraw.engines.clock import limited, look
from onedraw.engines.streams import Purpose, Rng
from onedraw.estimators.abc_average import AbcAverage
from onedraw.failures import FAULTS, Failure, SimulationError, first_failures
from onedraw.model.distance import Euclidean
from onedraw.model.model import Model
from onedraw.model.simulator import SCALARS, PlainCall, Simulated, not_finite, note_failure
from onedraw.proposals.independence import Independence
from onedraw.proposals.random_walk import RandomWalk


class SingleChain(NamedTuple):
    """What steps of one chain give."""

    state: dict[str, Array]
    theta: Array
    """(n, 1, dim), the draws that are kept."""
    distances: list[float]
    accepted: list[int]
    """By batch of steps."""
    proposals: list[int]
    simulations: int
    failed: int
    failures: tuple[Failure, ...]
    ignored_rng: bool


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
        self.failed = 0
        self.failures: tuple[Failure, ...] = ()
        self.ignored_rng = False
        """Whether the first simulation of a run did not draw from its generator."""

    def __call__(self, rng: Rng, theta: Array | float) -> float:
        """The distance at theta (1, dim), or at a number if that is the only parameter; inf if it failed."""
        recipe, call = self._model.recipe, self._call
        try:
            if self._one_parameter is not None:
                number = theta if isinstance(theta, float) else theta.item()
                value = call.simulate(rng.single(0), **{self._one_parameter: number})
            else:
                value = call.simulate(rng.single(0), **recipe.prior.rows(_rows(theta))[0])
            if rng.first == 0 and rng.step == 0:
                self.ignored_rng = not rng.used()
            if not call.as_they_are or type(value) not in SCALARS:
                value = call.summarised(value)
        except FAULTS as error:
            failures = list[Failure]()
            note_failure(recipe, rng, _rows(theta)[0], 0, 0, error, failures, self._on_error)
            return self._noted(tuple(failures))
        if not (math.isfinite(value) if call.one_number else np.isfinite(value).all()):
            failure = not_finite(recipe, rng, _rows(theta)[0], 0, 0)
            if self._on_error == "raise":
                raise SimulationError(f"simulation failed {failure}")
            return self._noted((failure,))
        if self._difference:
            return abs(value - self._observed)
        rows = np.array(value, dtype=float).reshape(1, 1, -1)
        found, distances = self._model.measured(
            Simulated(rows, Cost(1)), rng, _rows(theta), None, 0, self._on_error
        )  # fmt: skip
        if found.failures:
            self._noted(found.failures)
        return distances.item()

    def _noted(self, failures: tuple[Failure, ...]) -> float:
        self.failed += 1
        self.failures = first_failures(self.failures, failures)
        return math.inf


def _rows(theta: Array | float) -> Array:
    """Theta as (1, dim)."""
    return np.array([[theta]]) if isinstance(theta, float) else theta


def advance(
    sampler: Any, rng: Rng, state: Any, steps: int, *, thin: int, batches: int, stretch: tuple[int, int]
) -> SingleChain:
    """Take `steps` steps from `rng.step` on."""
    estimator, proposal, prior = sampler.estimator, sampler.proposal, sampler.estimator.prior
    kernel, simulation = estimator.kernel, Simulation(estimator.model, estimator.on_error)
    carried = hasattr(state, "log_estimate")
    number = prior.dim == 1 and not prior.discrete[0]
    walks = number and type(proposal) is RandomWalk
    from_prior = type(proposal) is Independence and proposal.distribution is prior and prior.draw_number is not None
    root, log_density = float(proposal.root[0, 0]) if walks else 0.0, prior.logpdf_of_number
    # Beyond this no estimate is accepted, or none is wanted.
    most = estimator.log_bound if sampler.early else np.finfo(float).max
    log_priors = state.log_prior
    log_prior, distance = float(log_priors[0]), float(state.distances[0, 0])
    log_estimate = float(state.log_estimate[0]) if carried else 0.0
    place = float(state.theta[0, 0])
    theta: Array | float = place if walks or from_prior else state.theta
    kept: list[Array | float] = []
    distances: list[float] = []
    accepted, proposals = [0] * batches, [0] * batches
    simulations, in_time = 0, limited()
    indicator, eps = kernel.indicator, kernel.eps
    begin, length = stretch[0], stretch[1] - stretch[0]
    for step in range(rng.step, rng.step + steps):
        if in_time:
            look()
        rng.step = step
        moves = rng.bulk(Purpose.MOVE)
        held = False
        if walks:
            proposed = moves.standard_normal() * root + place
            there = float(prior.logpdf(_rows(proposed))[0]) if log_density is None else log_density(proposed)
            log_ratio = there - log_prior
        elif from_prior:
            proposed, there, log_ratio = prior.draw_number(moves), log_prior, 0.0
        else:
            made = proposal.propose(moves, theta, log_priors)
            proposed, there, log_ratio = made.theta, float(made.log_prior[0]), float(np.ravel(made.log_ratio)[0])
            held = made.held is not None and bool(made.held[0])
        if from_prior and indicator:
            # A hit is accepted and a miss is not, whatever u is.
            needed = 0.0
        else:
            needed = log_estimate - moves.standard_exponential() - (log_ratio if carried or log_ratio < 0.0 else 0.0)
        batch = (step - begin) * batches // length
        if not held:
            proposals[batch] += 1
            if needed <= most:
                simulations += 1
                found = simulation(rng, proposed)
                if indicator:
                    log_weight = 0.0 if found < eps else -math.inf
                else:
                    log_weight = float(kernel.log_weight(np.array([found]))[0])
                if log_weight >= needed:
                    accepted[batch] += 1
                    theta, log_prior, log_estimate, distance = proposed, there, log_weight, found
                    if not carried:
                        log_estimate = 0.0
                    if walks:
                        place = proposed
                    elif not from_prior:
                        log_priors = made.log_prior
        if (step + 1 - begin) % thin == 0:
            kept.append(theta)
            distances.append(distance)
    after = {
        "theta": _rows(theta), "log_prior": np.array([log_prior]) if walks else log_priors,
        "log_estimate": np.array([log_estimate]), "distances": np.array([[distance]]),
    }  # fmt: skip
    draws = np.array(kept, dtype=float).reshape(len(kept), 1, prior.dim)
    return SingleChain(
        after, draws, distances, accepted, proposals, simulations, simulation.failed,
        simulation.failures, simulation.ignored_rng,
    )  # fmt: skip
