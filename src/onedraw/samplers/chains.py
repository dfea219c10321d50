"""What all chain samplers share: starts, steps within a budget, and the Posterior of a run.

A run is: pilot simulations of the distance, starting states, then rounds of steps in which all chains take part.
A round takes as many steps as the rest of the budget pays for in the worst case; what early rejection saved is spent
in the next round, until less than one proposal a chain is left. So the budget is never passed, draws stay
rectangular, and where a run is cut into blocks or rounds has no influence on any number.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from onedraw.arguments import one_of, optional_whole_number, positive, seed_or_fresh, whole_number
from onedraw.arrays import Array
from onedraw.cost import Cost
from onedraw.engine.blocks import Block, Deadline, cut, one_blas_thread
from onedraw.engine.lockstep import Sampler, Tally, advance
from onedraw.engine.streams import Phase, Purpose, Rng
from onedraw.estimator import AbcAverage
from onedraw.kernels import Kernel
from onedraw.model import Model
from onedraw.posterior import Posterior, Status
from onedraw.prior import Prior
from onedraw.progress import Progress
from onedraw.proposal import resolve
from onedraw.samplers.pilot import learn_distance, warn_ignored_rng
from onedraw.samplers.start import Start, keeps_distances, points_in, starting_states
from onedraw.simulator import Failure

PLAIN_CHAINS, BATCHED_CHAINS = 4, 1024
PLAIN_BLOCK, BATCHED_BLOCK = 4, 16_384
"""Chains a block: they share the streams of proposals and uniforms, so this is part of a run's identity."""
LOOK_SECONDS = 0.2
"""About how often a run looks at the clock and at Ctrl-C, and shows progress."""
UNITS = 32
"""Stretches of chains from which the error of the acceptance rate is estimated, at the least."""


@dataclass(frozen=True)
class Request:
    """The arguments that every chain sampler takes, checked."""

    draws: int | None
    chains: int
    budget: int | None
    thin: int
    seed: int
    on_error: str
    max_seconds: float | None
    progress: bool | None
    start: Any
    proposal: Any

    @staticmethod
    def checked(model: Model | None, **given: Any) -> "Request":
        draws = optional_whole_number("draws", given["draws"], "the number of draws kept of each chain")
        budget = optional_whole_number("budget", given["budget"], "the largest number of simulations")
        if draws is None and budget is None:
            raise ValueError("give draws=, budget= or both: one of them must end the run")
        chains = optional_whole_number("chains", given["chains"], "the number of chains run side by side")
        if chains is None:
            default = BATCHED_CHAINS if model is not None and model.batched else PLAIN_CHAINS
            chains = points_in(given["start"]) or default
        max_seconds = given["max_seconds"]
        if max_seconds is not None:
            max_seconds = positive("max_seconds", max_seconds, "the longest time the run may take")
        return Request(
            draws=draws,
            chains=chains,
            budget=budget,
            thin=whole_number("thin", given["thin"], "the number of steps between kept draws"),
            seed=seed_or_fresh(given["seed"]),
            on_error=one_of("on_error", given["on_error"], ("reject", "raise")),
            max_seconds=max_seconds,
            progress=Progress(given["progress"], "", None).asked,
            start=given["start"],
            proposal=given["proposal"],
        )


@dataclass
class Rounds:
    """Draws and sums of a run as it goes on."""

    theta: list[Array]
    """Arrays (draws, chains, dim), one a round."""
    distances: list[Array]
    accepted: list[Array]
    proposals: list[Array]
    cost: Cost
    failures: list[Failure]
    capped: int = 0
    reason: str = "finished"


def run_chains(
    algorithm: str,
    request: Request,
    estimator: Any,
    make_sampler: Callable[[Any, Any], Sampler],
    make_state: Callable[[Start, Array], Any],
    worst: int,
    settings: dict[str, Any],
) -> Posterior:
    """Run a chain sampler.

    `make_sampler(estimator, proposal)` builds it once the distance and the proposal are ready, `make_state(start,
    log_prior)` its state from the starting draws of a block. `worst` is the most simulations one step of one chain
    can take.
    """
    deadline = Deadline(request.max_seconds)
    model, kernel = _model_and_kernel(estimator)
    pilot = Cost()
    if model is not None and model.pilot:
        model, pilot = learn_distance(model, request.seed, request.budget, request.on_error, request.progress)
        estimator = estimator.with_model(model)
    left = None if request.budget is None else request.budget - pilot.simulations
    start = starting_states(request.start, estimator, request.chains, request.seed, left, deadline, request.progress)
    rounds = Rounds([], [], [], [], pilot.plus(start.cost), list(start.failures))
    notes = [start.note] if start.note else []
    if len(start.theta) < request.chains:
        rounds.reason = {"done": "budget"}.get(start.reason, start.reason)
        notes.append(
            f"only {len(start.theta)} of {request.chains} chains found a starting point in {start.cost.simulations:,} "
            f"simulations: raise eps or the budget, or ask for fewer chains"
        )
        proposal = None
    else:
        proposal = resolve(request.proposal, estimator.prior, lambda: _spread(start, estimator.prior, request.seed))
        sampler = make_sampler(estimator, proposal)
        _rounds_of_steps(algorithm, request, estimator, sampler, make_state, start, worst, deadline, rounds)
    settings = {
        "algorithm": algorithm,
        "kernel": None if kernel is None else kernel.name,
        "eps": None if kernel is None else kernel.eps,
        **settings,
        "draws": request.draws,
        "chains": request.chains,
        "budget": request.budget,
        "thin": request.thin,
        "proposal": None if proposal is None else proposal.described(),
        "start": request.start if isinstance(request.start, str) else type(request.start).__name__,
        "on_error": request.on_error,
    }
    return _posterior(request, estimator, model, kernel, rounds, settings, notes, deadline)


def _rounds_of_steps(
    algorithm: str,
    request: Request,
    estimator: Any,
    sampler: Sampler,
    make_state: Callable[[Start, Array], Any],
    start: Start,
    worst: int,
    deadline: Deadline,
    rounds: Rounds,
) -> None:
    size = BATCHED_BLOCK if _in_batches(estimator) else PLAIN_BLOCK
    blocks = list(cut(request.chains, size))
    log_prior = estimator.prior.logpdf(start.theta)
    states = [make_state(_part(start, block), log_prior[block.first : block.first + block.size]) for block in blocks]
    rngs = [Rng(request.seed, Phase.RUN, block.first) for block in blocks]
    wanted = None if request.draws is None else request.draws * request.thin
    keep = keeps_distances(estimator)
    done = 0
    bar = Progress(request.progress, algorithm, wanted or request.budget, "steps" if wanted else "simulations")
    with one_blas_thread(), bar:
        while True:
            steps, rounds.reason = _affordable(request, wanted, done, worst, rounds.cost.simulations)
            if steps == 0:
                return
            kept = steps // request.thin
            theta = np.empty((kept, request.chains, estimator.prior.dim))
            width = states[0].distances.shape[1] if keep else 0
            distances = np.empty((kept, request.chains, width)) if keep else None
            taken = _segments(
                request, sampler, blocks, states, rngs, done, steps, theta, distances, deadline, rounds, bar, wanted
            )
            rounds.theta.append(theta[: taken // request.thin])
            if distances is not None:
                rounds.distances.append(distances[: taken // request.thin])
            done += taken
            if taken < steps:
                return


def _affordable(request: Request, wanted: int | None, done: int, worst: int, spent: int) -> tuple[int, str]:
    """Steps that can be taken for certain, a multiple of thin, and why the run ends if there are none."""
    if wanted is not None and done >= wanted:
        return 0, "finished"
    if request.budget is None:
        assert wanted is not None
        return wanted - done, "finished"
    steps = (request.budget - spent) // (request.chains * worst)
    steps -= steps % request.thin
    if wanted is not None:
        steps = min(steps, wanted - done)
    return max(steps, 0), "budget"


def _segments(
    request: Request,
    sampler: Sampler,
    blocks: list[Block],
    states: list[Any],
    rngs: list[Rng],
    done: int,
    steps: int,
    theta: Array,
    distances: Array | None,
    deadline: Deadline,
    rounds: Rounds,
    bar: Progress,
    wanted: int | None,
) -> int:
    """Take the steps of one round in segments short enough to look up in between; returns the steps taken."""
    batches = max(1, math.ceil(UNITS / request.chains))
    stretch = (done, done + steps)
    rounds.accepted.append(np.zeros((batches, request.chains), dtype=np.int64))
    rounds.proposals.append(np.zeros((batches, request.chains), dtype=np.int64))
    taken, length = 0, request.thin
    while taken < steps:
        length = min(length, steps - taken)
        began = time.perf_counter()
        rows = slice(taken // request.thin, (taken + length) // request.thin)
        fresh: list[Any] = []
        tallies: list[Tally] = []
        try:
            for block, state, rng in zip(blocks, states, rngs, strict=True):
                columns = slice(block.first, block.first + block.size)
                into = None if distances is None else distances[rows, columns]
                state, tally = advance(
                    sampler,
                    rng,
                    state,
                    done + taken,
                    length,
                    request.thin,
                    theta[rows, columns],
                    into,
                    batches,
                    stretch,
                )
                fresh.append(state)
                tallies.append(tally)
        except KeyboardInterrupt:
            rounds.reason = "interrupted"
            surplus = sum(tally.simulations for tally in tallies)
            rounds.cost = rounds.cost.plus(Cost(surplus=surplus))
            return taken
        states[:] = fresh
        _add_up(rounds, tallies)
        if done == taken == 0 and all(tally.ignored_rng for tally in tallies):
            warn_ignored_rng()
        taken += length
        moves, tried = int(rounds.accepted[-1].sum()), int(rounds.proposals[-1].sum())
        bar.update(done + taken if wanted else rounds.cost.simulations, f"{moves / max(tried, 1):.3g} accepted")
        if taken < steps and deadline.passed():
            rounds.reason = "max_seconds"
            return taken
        # The clock decides only where we look up, never what is computed.
        speed = length / max(time.perf_counter() - began, 1e-9)
        length = max(request.thin, int(min(speed * LOOK_SECONDS, 4 * length)) // request.thin * request.thin)
    return taken


def _add_up(rounds: Rounds, tallies: list[Tally]) -> None:
    rounds.accepted[-1] += np.concatenate([tally.accepted for tally in tallies], axis=1)
    rounds.proposals[-1] += np.concatenate([tally.proposals for tally in tallies], axis=1)
    for tally in tallies:
        rounds.cost = rounds.cost.plus(tally.cost())
        rounds.capped += tally.capped
        rounds.failures.extend(tally.failures[: 20 - len(rounds.failures)])


def _posterior(
    request: Request,
    estimator: Any,
    model: Model | None,
    kernel: Kernel | None,
    rounds: Rounds,
    settings: dict[str, Any],
    notes: list[str],
    deadline: Deadline,
) -> Posterior:
    prior: Prior = estimator.prior
    theta = _joined(rounds.theta, (0, request.chains, prior.dim))
    kept = len(theta)
    draws = {}
    for column, name in enumerate(prior.names):
        values = theta[:, :, column].T
        draws[name] = values.astype(np.int64) if prior.discrete[column] else values
    distances = None
    if keeps_distances(estimator) and kernel is not None:
        width = rounds.distances[0].shape[2] if rounds.distances else 1
        distances = _joined(rounds.distances, (0, request.chains, width)).transpose(1, 0, 2)
        distances = distances[:, :, 0] if width == 1 else distances
    rate, error = _acceptance(rounds)
    if rounds.cost.failed:
        notes.append(
            f"{rounds.cost.failed:,} of {rounds.cost.simulations:,} simulations failed and count as misses; the first "
            f"failed {rounds.failures[0]}"
        )
    if rounds.capped:
        notes.append(
            f"{rounds.capped:,} steps reached the limit of draws and were rejected for it, which bends the posterior: "
            "raise max_draws or eps"
        )
    return Posterior(
        draws=draws,
        weights=None,
        distances=distances,
        acceptance_rate=rate,
        acceptance_rate_se=error,
        cost=rounds.cost._replace(seconds=deadline.seconds()),
        status=_status(rounds.reason, kept, request),
        seed=request.seed,
        settings=settings,
        failures=tuple(rounds.failures),
        model=model,
        kernel=kernel,
        notes=tuple(notes),
    )


def _acceptance(rounds: Rounds) -> tuple[float, float]:
    """Moves over proposals, with the error of that ratio from stretches of the chains.

    A stretch is a chain, or a part of one where there are few chains.
    """
    if not rounds.accepted:
        return math.nan, math.nan
    accepted, proposals = np.concatenate(rounds.accepted), np.concatenate(rounds.proposals)
    total = int(proposals.sum())
    if total == 0:
        return math.nan, math.nan
    rate = accepted.sum() / total
    wanted = max(1, math.ceil(UNITS / accepted.shape[1]))
    # Equal shares of the proposals: rounds differ in length.
    marks = np.cumsum(proposals.sum(axis=1))
    ends = np.unique(np.searchsorted(marks, marks[-1] * np.arange(1, wanted + 1) / wanted - 0.5))
    starts = np.concatenate([[0], ends[:-1] + 1])
    residual = np.add.reduceat(accepted - rate * proposals, starts, axis=0).ravel()
    if residual.size < 2:
        return float(rate), math.nan
    spread = math.sqrt(float((residual**2).sum()) * residual.size / (residual.size - 1))
    return float(rate), spread / total


def _status(reason: str, kept: int, request: Request) -> Status:
    made = f"{request.chains} x {kept:,} draws"
    message = {
        "finished": f"finished: {made}",
        "budget": f"the budget of {request.budget or 0:,} simulations is spent: {made}",
        "max_seconds": f"stopped by max_seconds: {made}",
        "interrupted": f"interrupted: {made}",
    }[reason]
    return Status(reason, message)


def _spread(start: Start, prior: Prior, seed: int) -> Array:
    """The covariance of draws near the posterior; of the prior where there are too few of them."""
    pool = start.spread
    if len(np.unique(pool, axis=0)) < max(10, 2 * prior.dim):
        pool = prior.sample(Rng(seed, Phase.START).bulk(Purpose.MOVE), 1000)
    return np.atleast_2d(np.cov(pool, rowvar=False))


def _part(start: Start, block: Block) -> Start:
    rows = slice(block.first, block.first + block.size)
    return Start(
        start.theta[rows], start.log_estimate[rows], start.distances[rows], start.spread, start.cost, (), start.reason
    )


def _joined(parts: list[Array], empty: tuple[int, ...]) -> Array:
    if not parts:
        return np.empty(empty)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _in_batches(estimator: Any) -> bool:
    inner = getattr(estimator, "estimator", estimator)
    return not isinstance(inner, AbcAverage) or inner.model.batched


def _model_and_kernel(estimator: Any) -> tuple[Model | None, Kernel | None]:
    if isinstance(estimator, AbcAverage):
        return estimator.model, estimator.kernel
    inner = getattr(estimator, "estimator", None)
    return (inner.model, None) if isinstance(inner, AbcAverage) else (None, None)
