"""What all chain samplers share: starts, steps within a budget, and the Posterior of a run.

A run is: pilot simulations of the distance, starting states, then rounds of steps in which all chains take part.
A round takes as many steps as the rest of the budget pays for in the worst case; what early rejection saved is spent
in the next round, until less than one proposal a chain is left. So the budget is never passed, draws stay
rectangular, and where a run is cut into blocks or rounds has no influence on any number.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import one_of, optional_whole_number, whole_number
from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.engines.threads import one_blas_thread
from onedraw.estimators.average import AbcAverage
from onedraw.model.kernels import Kernel
from onedraw.model.model import Model
from onedraw.model.prior import FAMILIES, Prior
from onedraw.model.simulator import Failure
from onedraw.proposals.proposals import Independence, Lazy, resolve
from onedraw.results.posterior import Posterior, Status
from onedraw.run.blocks import Block, Deadline, cut, in_lanes
from onedraw.run.lockstep import FAILURES_KEPT, Sampler, Tally, advance
from onedraw.run.options import Shared, checked_ends, ended, on_engine, opened
from onedraw.run.pilot import learn_distance, warn_ignored_rng
from onedraw.run.pool import Here
from onedraw.run.pool import current as current_crew
from onedraw.run.progress import Progress
from onedraw.run.record import Record
from onedraw.run.saving import Saver, Specification
from onedraw.run.signals import Stopped
from onedraw.run.specification import in_time, specify
from onedraw.run.starts import Start, chains_a_block, keeps_distances, points_in, starting_states

PLAIN_CHAINS, BATCHED_CHAINS = 4, 1024
LOOK_SECONDS = 0.2
"""About how often a run looks at the clock and at Ctrl-C, and shows progress."""
STEPS_A_SIMULATION = 200
"""Steps that a chain takes at the most for each simulation of its share of the budget."""
UNITS = 32
"""Stretches of chains from which the error of the acceptance rate is estimated, at the least."""


@dataclass(frozen=True)
class Request:
    """The arguments that every chain sampler takes, checked."""

    shared: Shared
    draws: int | None
    chains: int
    budget: int | None
    thin: int
    start: Any
    proposal: Any
    layout: str = "chains"

    @property
    def seed(self) -> int:
        """Of the run."""
        return self.shared.seed

    @staticmethod
    def checked(model: Model | None, given: Mapping[str, Any]) -> "Request":
        """From the arguments of a call by name: see `Shared.checked`."""
        draws, budget = checked_ends(given["draws"], given["budget"], "the number of draws kept of each chain")
        chains = optional_whole_number("chains", given["chains"], "the number of chains run side by side")
        if chains is None:
            default = BATCHED_CHAINS if model is not None and model.batched else PLAIN_CHAINS
            chains = points_in(given["start"]) or default
        return Request(
            shared=Shared.checked(given),
            draws=draws,
            chains=chains,
            budget=budget,
            thin=whole_number("thin", given["thin"], "the number of steps between kept draws"),
            start=given["start"],
            proposal=given["proposal"],
            layout=one_of("layout", given.get("layout", "chains"), ("chains", "draws")),
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
    plans: list[tuple[int, int]] = field(default_factory=list)
    """First step and steps planned of each round."""
    taken: int = 0
    """Steps taken of the last round."""
    pace: float = math.inf
    """Seconds a simulation, while starting points were looked for."""

    def done(self) -> int:
        """Steps taken in all rounds."""
        return self.plans[-1][0] + self.taken if self.plans else 0


def run_chains(
    algorithm: str,
    request: Request,
    estimator: Any,
    make_sampler: Callable[[Any, Any], Sampler],
    make_state: Callable[[Start, Array], Any],
    worst: int,
    settings: dict[str, Any],
    also: Mapping[str, Any] | None = None,
) -> Posterior:
    """Run a chain sampler.

    `make_sampler(estimator, proposal)` builds it once the distance and the proposal are ready, `make_state(start,
    log_prior)` its state from the starting draws of a block. `worst` is the most simulations one step of one chain
    can take. `also` are arguments of the run that its settings do not show.
    """
    estimator = on_engine(_in_time(estimator, request.shared.timeout), request.shared)
    _check_proposal(request.proposal, estimator)
    arguments = {
        **settings, **(also or {}), "draws": request.draws, "budget": request.budget, "chains": request.chains,
        "thin": request.thin, **request.shared.identity(estimator), "layout": request.layout,
    }  # fmt: skip

    def specification() -> Specification:
        made = specify(algorithm, estimator, arguments, proposal=request.proposal, start=request.start)
        return replace(made, facts={**made.facts, "settings": list(settings), "start": _start_setting(request.start)})

    return opened(
        request.shared,
        specification,
        lambda saver, deadline: _run(
            algorithm, request, estimator, make_sampler, make_state, worst, settings, saver, deadline
        ),
        threads=_compiled(estimator),
    )


def _run(
    algorithm: str,
    request: Request,
    estimator: Any,
    make_sampler: Callable[[Any, Any], Sampler],
    make_state: Callable[[Start, Array], Any],
    worst: int,
    settings: dict[str, Any],
    saver: Saver,
    deadline: Deadline,
) -> Posterior:
    shared = request.shared
    model, kernel = _model_and_kernel(estimator)
    rounds = Rounds([], [], [], [], Cost(), [])
    notes: list[str] = []
    proposal = None
    try:
        if model is not None and model.pilot:
            model, pilot = learn_distance(model, shared.seed, request.budget, shared.on_error, shared.progress, saver)
            estimator = estimator.with_model(model)
            rounds.cost = pilot
        left = None if request.budget is None else request.budget - rounds.cost.simulations
        known, began = saver.last("start") is not None, deadline.seconds()
        start = starting_states(
            request.start, estimator, request.chains, shared.seed, left, deadline, shared.progress, saver
        )
        if not known:
            rounds.pace = (deadline.seconds() - began) / max(1, start.cost.simulations)
    except Stopped as stopped:
        rounds.reason = stopped.reason
    else:
        rounds.cost = rounds.cost.plus(start.cost)
        rounds.failures = list(start.failures)
        notes = [start.note] if start.note else []
        if not start.complete(request.chains):
            rounds.reason = {"done": "budget"}.get(start.reason, start.reason)
            if len(start.theta) < request.chains:
                notes.append(
                    f"only {len(start.theta)} of {request.chains} chains found a starting point in "
                    f"{start.cost.simulations:,} simulations: raise eps or the budget, or ask for fewer chains"
                )
        else:
            proposal = resolve(request.proposal, estimator.prior, lambda: _spread(start, estimator.prior, shared.seed))
            if saver.last("ready") is None:
                saver.put("ready", {"proposal": proposal.described(), "notes": notes})
            load_rounds(rounds, saver.records("run.segment"))
            sampler = make_sampler(estimator, proposal)
            _rounds_of_steps(algorithm, request, estimator, sampler, make_state, start, worst, deadline, rounds, saver)
    notes.extend(in_time({"timeout": shared.timeout}))
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
        "start": _start_setting(request.start),
        "on_error": shared.on_error,
    }
    most = math.inf if request.budget is None else STEPS_A_SIMULATION * request.budget // request.chains
    if request.budget is not None and rounds.done() > most - request.thin:
        notes.append(
            f"stopped with {request.budget - rounds.cost.simulations:,} simulations unspent: hardly any of "
            f"{rounds.done():,} steps proposed what was worth simulating; use smaller steps"
        )
    made = f"{request.chains} x {sum(map(len, rounds.theta)):,} draws"
    status = ended(rounds.reason, request.budget, made)
    saver.finish(status.reason, status.message, notes)
    keep = keeps_distances(estimator) and kernel is not None
    rounds.cost = rounds.cost._replace(seconds=saver.seconds())
    return posterior_of(
        rounds, estimator.prior, keep, settings, shared.seed, status, model, kernel, [*notes, *saver.notes]
    )


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
    saver: Saver,
) -> None:
    blocks = list(cut(request.chains, chains_a_block(estimator, request.chains)))
    log_prior = estimator.prior.logpdf(start.theta)
    states = [make_state(_part(start, block), log_prior[block.first : block.first + block.size]) for block in blocks]
    last = saver.last("run.segment")
    if last is not None:
        states = [_state_of(type(states[0]), last.arrays, block) for block in blocks]
    wanted = None if request.draws is None else request.draws * request.thin
    keep = keeps_distances(estimator)
    bar = Progress(request.shared.progress, algorithm, wanted or request.budget, "steps" if wanted else "simulations")
    with one_blas_thread(), bar:
        while True:
            if not rounds.plans or rounds.taken == rounds.plans[-1][1]:
                done = rounds.done()
                steps, rounds.reason = _affordable(request, wanted, done, worst, rounds.cost.simulations)
                if steps == 0:
                    return
                rounds.plans.append((done, steps))
                rounds.taken = 0
            done, steps = rounds.plans[-1]
            kept = steps // request.thin
            theta = np.empty((kept, request.chains, estimator.prior.dim))
            width = states[0].distances.shape[1] if keep else 0
            distances = np.empty((kept, request.chains, width)) if keep else None
            if rounds.taken == 0:
                batches = max(1, math.ceil(UNITS / request.chains))
                rounds.accepted.append(np.zeros((batches, request.chains), dtype=np.int64))
                rounds.proposals.append(np.zeros((batches, request.chains), dtype=np.int64))
            else:
                known = rounds.taken // request.thin
                theta[:known] = rounds.theta.pop()
                if distances is not None:
                    distances[:known] = rounds.distances.pop()
            _segments(request, sampler, blocks, states, theta, distances, deadline, rounds, bar, wanted, worst, saver)
            rounds.theta.append(theta[: rounds.taken // request.thin])
            if distances is not None:
                rounds.distances.append(distances[: rounds.taken // request.thin])
            if rounds.taken < steps:
                return


def _affordable(request: Request, wanted: int | None, done: int, worst: int, spent: int) -> tuple[int, str]:
    """Steps that can be taken for certain, a multiple of thin, and why the run ends if there are none."""
    if wanted is not None and done >= wanted:
        return 0, "finished"
    if request.budget is None:
        assert wanted is not None
        return wanted - done, "finished"
    steps = (request.budget - spent) // (request.chains * worst)
    # Proposals that are all rejected unseen spend nothing, and would go on for ever.
    steps = min(steps, STEPS_A_SIMULATION * request.budget // request.chains - done)
    steps -= steps % request.thin
    if wanted is not None:
        steps = min(steps, wanted - done)
    return max(steps, 0), "budget"


def _segments(
    request: Request,
    sampler: Sampler,
    blocks: list[Block],
    states: list[Any],
    theta: Array,
    distances: Array | None,
    deadline: Deadline,
    rounds: Rounds,
    bar: Progress,
    wanted: int | None,
    worst: int,
    saver: Saver,
) -> None:
    """Take the steps of the last round in segments short enough to look up in between, and save some of the times."""
    done, steps = rounds.plans[-1]
    batches = len(rounds.accepted[-1])
    saved, told = rounds.taken, len(rounds.failures)

    def save() -> None:
        nonlocal saved, told
        if rounds.taken > saved:
            rows = slice(saved // request.thin, rounds.taken // request.thin)
            draws = (
                {"theta": theta[rows]} if distances is None else {"theta": theta[rows], "distances": distances[rows]}
            )
            _save(saver, rounds, saved, told, draws, states)
            saved, told = rounds.taken, len(rounds.failures)

    step_bytes = theta[:1].nbytes + (0 if distances is None else distances[:1].nbytes)
    crew = current_crew() if request.layout == "chains" else Here()
    walk = Walk(sampler, request.seed, request.thin, batches, (done, done + steps), distances is not None)
    cuts = [rounds.taken]
    """Where legs begin, by step of the round; the clock decides, and no number depends on it."""
    growth, length = 4, request.thin
    if walk.engine is not None:
        # A leg must be worth asking a device for, and the first may well be the last. Starting points are looked for
        # in short calls, so the pace there is that of the way to the device, mostly.
        growth, step_seconds = 64, rounds.pace * request.chains * worst
        length = int(np.clip(5 * LOOK_SECONDS / (step_seconds * request.thin), 8, 64)) * request.thin

    def told_of_steps() -> bool:
        return any(one.phase == Phase.RUN for one in rounds.failures)

    def leg_of(lane: int, leg: int, last: Walked | None) -> Leg | None:
        if cuts[leg] == steps:
            return None
        if leg + 1 == len(cuts):
            cuts.append(cuts[leg] + walk.length(min(length, steps - cuts[leg]), states[lane]))
        state = states[lane] if last is None else last.state
        return Leg(blocks[lane], state, done + cuts[leg], cuts[leg + 1] - cuts[leg], told_of_steps())

    def take(walked: list[Walked], seconds: float) -> None:
        nonlocal length
        taken, now = rounds.taken, rounds.taken + walked[0].steps
        rows = slice(taken // request.thin, now // request.thin)
        for lane, (block, one) in enumerate(zip(blocks, walked, strict=True)):
            columns = slice(block.first, block.first + block.size)
            theta[rows, columns] = one.theta
            if distances is not None:
                distances[rows, columns] = one.distances
            states[lane] = one.state
        known = len(rounds.failures) + (not told_of_steps())
        _add_up(rounds, [one.tally for one in walked])
        if walk.engine is not None:
            # A leg on a device has its first failure alone; more of them would depend on where legs are cut.
            del rounds.failures[known:]
        if done == taken == 0 and all(one.tally.ignored_rng for one in walked):
            warn_ignored_rng()
        rounds.taken = now
        moves, tried = int(rounds.accepted[-1].sum()), int(rounds.proposals[-1].sum())
        position = done + now if wanted else rounds.cost.simulations
        bar.update(position, f"{moves / max(tried, 1):.3g} accepted", rounds.cost.simulations)
        if saver.due((now - saved) // request.thin * step_bytes):
            save()
        aim = crew.piece if crew.remote else LOOK_SECONDS / len(blocks)
        longest = min(aim * (now - taken) / max(seconds, 1e-9), growth * (now - taken))
        length = max(1, round(longest / request.thin)) * request.thin

    try:
        if in_lanes(crew, walk, len(blocks), leg_of, take, deadline) == "max_seconds":
            rounds.reason = "max_seconds"
    except Stopped as stopped:
        rounds.reason = stopped.reason
    finally:
        save()


class Leg(NamedTuple):
    """Some steps of one block of chains, from the state that they begin with."""

    block: Block
    state: Any
    first_step: int
    steps: int
    told: bool = False
    """Whether a failure of an earlier step is known: a device looks for the first one only."""


class Walked(NamedTuple):
    """What a leg gives."""

    state: Any
    theta: Array
    distances: Array | None
    tally: Tally
    steps: int

    @property
    def simulations(self) -> int:
        """What the leg cost."""
        return self.tally.simulations


@dataclass(frozen=True, eq=False)
class Walk:
    """The pure task of chains: take the steps of one leg."""

    sampler: Sampler
    seed: int
    thin: int
    batches: int
    stretch: tuple[int, int]
    keep_distances: bool

    @property
    def engine(self) -> Any:
        """The JAX engine, where the steps are taken there."""
        return getattr(getattr(self.sampler, "estimator", None), "engine", None)

    def length(self, steps: int, state: Any) -> int:
        """Steps of a leg that is to take about so many."""
        if self.engine is None:
            return steps
        from onedraw.engines.jax import most_kept

        return min(steps, most_kept(state) * self.thin)

    def __call__(self, leg: Leg) -> Walked:
        if self.engine is not None:
            from onedraw.engines import jax as device

            state, theta, distances, tally = device.walk(self, self.engine, leg)
            return Walked(state, theta, distances, tally, leg.steps)
        kept, n = leg.steps // self.thin, leg.block.size
        theta = np.empty((kept, n, leg.state.theta.shape[1]))
        distances = np.empty((kept, n, leg.state.distances.shape[1])) if self.keep_distances else None
        rng = Rng(self.seed, Phase.RUN, leg.block.first)
        state, tally = advance(
            self.sampler, rng, leg.state, leg.first_step, leg.steps, self.thin, theta, distances, self.batches,
            self.stretch,
        )  # fmt: skip
        return Walked(state, theta, distances, tally, leg.steps)


def _save(saver: Saver, rounds: Rounds, saved: int, told: int, draws: dict[str, Array], states: list[Any]) -> None:
    """Put what the last round did since step `saved` into the file, with all that is needed to go on from here."""
    begin_step, planned = rounds.plans[-1]
    scalars = {
        "begin": begin_step,
        "planned": planned,
        "from": saved,
        "to": rounds.taken,
        "cost": rounds.cost,
        "capped": rounds.capped,
        "failures": [one._asdict() for one in rounds.failures[told:]],
    }
    tallies = {"accepted": rounds.accepted[-1].copy(), "proposals": rounds.proposals[-1].copy()}
    names = type(states[0])._fields
    joined = {f"state.{name}": _end_to_end([np.asarray(getattr(one, name)) for one in states]) for name in names}
    saver.put("run.segment", scalars, {**draws, **tallies, **joined})


def load_rounds(rounds: Rounds, records: Iterable[Record]) -> None:
    """Take in the steps that earlier sessions saved."""
    theta: list[list[Array]] = []
    distances: list[list[Array]] = []
    for record in records:
        scalars, arrays = record.scalars, record.arrays
        plan = (int(scalars["begin"]), int(scalars["planned"]))
        if not rounds.plans or rounds.plans[-1] != plan:
            rounds.plans.append(plan)
            theta.append([])
            distances.append([])
            rounds.accepted.append(arrays["accepted"])
            rounds.proposals.append(arrays["proposals"])
        theta[-1].append(arrays["theta"])
        if "distances" in arrays:
            distances[-1].append(arrays["distances"])
        rounds.accepted[-1], rounds.proposals[-1] = arrays["accepted"].copy(), arrays["proposals"].copy()
        rounds.cost, rounds.capped = Cost(*scalars["cost"]), int(scalars["capped"])
        rounds.failures.extend(Failure(**one) for one in scalars["failures"])
        rounds.taken = int(scalars["to"])
    rounds.theta = [np.concatenate(parts) for parts in theta]
    rounds.distances = [np.concatenate(parts) for parts in distances if parts]


def _end_to_end(parts: list[Array]) -> Array:
    """Arrays of all blocks as one, in the order in memory that they have."""
    if len(parts) == 1:
        return parts[0]
    joined = np.concatenate(parts)
    return np.asfortranarray(joined) if any(map(_columnwise, parts)) else joined


def _columnwise(array: Array) -> bool:
    return array.flags.f_contiguous and not array.flags.c_contiguous


def _state_of(kind: Any, arrays: dict[str, Array], block: Block) -> Any:
    """The state of a block from the saved one of all."""
    rows = slice(block.first, block.first + block.size)
    whole = {name: arrays[f"state.{name}"] for name in kind._fields}
    # Contiguous in the order that the whole had: some sums depend on it in their last bit.
    return kind(
        **{
            name: np.asfortranarray(value[rows]).copy(order="F") if _columnwise(value) else value[rows].copy(order="C")
            for name, value in whole.items()
        }
    )


def _add_up(rounds: Rounds, tallies: list[Tally]) -> None:
    rounds.accepted[-1] += np.concatenate([tally.accepted for tally in tallies], axis=1)
    rounds.proposals[-1] += np.concatenate([tally.proposals for tally in tallies], axis=1)
    for tally in tallies:
        rounds.cost = rounds.cost.plus(tally.cost())
        rounds.capped += tally.capped
    # By step, not by block: which failures are kept must not depend on where the run looked up.
    failures = sorted((one for tally in tallies for one in tally.failures), key=lambda one: (one.step, one.chain))
    rounds.failures.extend(failures[: max(0, FAILURES_KEPT - len(rounds.failures))])


def posterior_of(
    rounds: Rounds,
    prior: Any,
    keep_distances: bool,
    settings: dict[str, Any],
    seed: int,
    status: Status,
    model: Model | None,
    kernel: Kernel | None,
    notes: list[str],
) -> Posterior:
    """The Posterior of a run of chains; of `prior` only the parameters' names and types are used."""
    chains, dim = settings["chains"], len(prior.names)
    theta = _joined(rounds.theta, (0, chains, dim))
    draws = {}
    for column, name in enumerate(prior.names):
        values = theta[:, :, column].T
        draws[name] = values.astype(np.int64) if prior.discrete[column] else values
    distances = None
    if keep_distances:
        width = rounds.distances[0].shape[2] if rounds.distances else 1
        distances = _joined(rounds.distances, (0, chains, width)).transpose(1, 0, 2)
        distances = distances[:, :, 0] if width == 1 else distances
    rate, error = _acceptance(rounds)
    notes = list(notes)
    if rounds.cost.failed and rounds.failures:
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
        cost=rounds.cost,
        status=status,
        seed=seed,
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


def _start_setting(start: Any) -> str:
    return start if isinstance(start, str) else type(start).__name__


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


def _in_time(estimator: Any, timeout: float | None) -> Any:
    """The estimator with its simulations limited in time."""
    if timeout is None:
        return estimator
    inner = getattr(estimator, "estimator", estimator)
    if not isinstance(inner, AbcAverage):
        raise ValueError(f"timeout = {timeout!r} is for simulators, and this run has an estimator of your own")
    return estimator.with_model(inner.model.limited(timeout))


def _check_proposal(proposal: Any, estimator: Any) -> None:
    """A ValueError where a proposal draws from what an engine on a device has no formulas for."""
    inner = proposal.proposal if isinstance(proposal, Lazy) else proposal
    if getattr(estimator, "engine", None) is None or not isinstance(inner, Independence) or inner.distribution is None:
        return
    distribution = inner.resolved(estimator.prior, lambda: np.empty(0)).distribution
    if not distribution.on_device:
        raise ValueError(
            f"engine='{estimator.engine}' has no JAX form of the proposal's distribution {inner.distribution!r}: it "
            f"takes {', '.join(FAMILIES)} with bounded densities, or write the proposal as a function with jax.numpy"
        )


def _compiled(estimator: Any) -> bool:
    """Whether the simulator of an estimator is compiled."""
    inner = getattr(estimator, "estimator", estimator)
    return isinstance(inner, AbcAverage) and inner.model.compiled


def _model_and_kernel(estimator: Any) -> tuple[Model | None, Kernel | None]:
    if isinstance(estimator, AbcAverage):
        return estimator.model, estimator.kernel
    inner = getattr(estimator, "estimator", None)
    return (inner.model, None) if isinstance(inner, AbcAverage) else (None, None)
