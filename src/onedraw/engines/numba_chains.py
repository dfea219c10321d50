"""Chains of compiled simulators: the steps of a block, one after the other, in compiled code.

Random numbers have the names that `streams.Rng` gives them. What is random about a proposal (increments of a walk,
draws of an independence proposal, whether a chain is held, u) does not depend on the states, so it is drawn first, for
a group of steps: each step has its stream, of which only the state is kept between two kinds of draws. Then one loop
goes through steps and chains: propose, reject early, simulate, compare, accept, record. It draws the pseudo-samples of
a step from the stream of this step, chain after chain.

So the draws are those of `lockstep.advance` with the same sampler, and where steps are cut into groups or segments has
no influence on them.

Samplers, estimators, proposals and priors declare as `formula` what they are (`Formula`). A sampler of which some
part declares none is stepped in NumPy.
"""

import math
import sys
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from onedraw.engines.arrays import Array, Formula, declared
from onedraw.engines.clock import look
from onedraw.engines.numba import (
    BAD_DISTANCE,
    NO_ROWS,
    PROFILES,
    LoopReport,
    array_type,
    compiled_loop,
    distance_in_loops,
    fixed,
    made,
    numba_module,
    refuse_distance,
    row_average,
    simulator_key,
)
from onedraw.engines.streams import Purpose, Rng
from onedraw.failures import FAILURES_KEPT

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
GROUP_VALUES = 2**15
"""Numbers drawn ahead for a group of steps, few enough for the cache."""
FAMILIES = ("norm", "uniform", "expon", "gamma", "beta", "lognorm", "t", "randint", "poisson")
"""What a marginal may name as its formula."""
NORM, UNIFORM, EXPON, GAMMA, BETA, LOGNORM, T, RANDINT, POISSON = range(len(FAMILIES))
WALK, FROM_PRIOR, INDEPENDENT = range(3)
PROPOSALS = {"random_walk": WALK, "prior": FROM_PRIOR, "independence": INDEPENDENT}


class ChainLoop(NamedTuple):
    """A sampler in the form in which the loop takes it."""

    model: Any
    kernel: Any
    draws: int
    keep: bool
    early: bool
    carried: bool
    """Whether the estimate is carried, as in Algorithm 2."""
    kind: int
    """Of the proposal."""
    hold: float
    """The chance that a chain is held; -1 if none ever is."""
    root: Array
    """(dim, dim), of a random walk."""
    prior: Array
    """(dim, 7): family and numbers of each parameter."""
    other: Array
    """The same of an independence proposal's own distribution."""


class FailedStep(NamedTuple):
    """The first failure of a step."""

    step: int
    theta: Array
    """(1, dim)"""
    chain: int
    report: LoopReport


class Advanced(NamedTuple):
    """What steps of a block of n chains give."""

    state: dict[str, Array]
    accepted: Array
    """(batches, n)"""
    proposals: Array
    simulations: int
    failed: int
    failures: list[FailedStep]
    ignored_rng: bool


def chain_loop(sampler: Any) -> ChainLoop | None:
    """A sampler for the loop; None if a part of it has no form there."""
    formula: Formula | None = declared(sampler)
    estimator: Any = getattr(sampler, "estimator", None)
    if formula is None or declared(estimator) is None:
        return None
    proposal, hold = declared(sampler.proposal), -1.0
    if proposal is not None and proposal.name == "lazy":
        assert proposal.array is not None
        hold, proposal = float(proposal.array[0]), proposal.parts[0]
    if proposal is None:
        return None
    tables = [_table(one) for one in proposal.parts]
    root = np.eye(len(tables[0])) if proposal.array is None else proposal.array
    return ChainLoop(
        estimator.model, estimator.kernel, estimator.pseudo_samples, estimator.keep_distances, sampler.early,
        formula.name == "pseudo_marginal", PROPOSALS[proposal.name], hold, root, tables[0], tables[-1],
    )  # fmt: skip


def _table(prior: Formula) -> Array:
    """(dim, 7) of a prior's formula."""
    return fixed(np.array([[FAMILIES.index(one.name), *np.asarray(one.array)] for one in prior.parts], dtype=float))


class _Ahead(NamedTuple):
    """What is random about S steps of n chains, without their pseudo-samples."""

    streams: Array
    """(S, 5) of the pseudo-samples."""
    moves: Array
    """(S, n, dim): increments of a walk, otherwise the proposals."""
    held: Array
    """(S, n), or (0, 0) if no chain is ever held."""
    exponentials: Array
    """(S, n): -log u, or 0 if it decides nothing."""

    def step(self, one: int) -> "_Ahead":
        """Only one of the steps."""
        return _Ahead(*(part[one : one + 1] for part in self))


def _drawn_ahead(loop: ChainLoop, rng: Rng, step: int, steps: int, n: int) -> _Ahead:
    dim = len(loop.prior)
    streams = [_named(rng, purpose, step, steps) for purpose in (Purpose.MOVE, Purpose.SIMULATE)]

    def filled(family: int, width: int, *shapes: float) -> Array:
        values = np.empty((steps, width))
        _draws(family)(streams[0], *(shapes or (0.0, 0.0)), values)
        return values

    held = filled(UNIFORM, n) < loop.hold if loop.hold >= 0.0 else np.empty((0, 0), dtype=bool)
    if loop.kind == WALK:
        moves = filled(NORM, n * dim).reshape(steps, n, dim)
        # As in a step of its own, so that the products have the same last bits.
        moves = moves * loop.root[0, 0] if dim == 1 else moves @ loop.root.T
        whole = loop.prior[:, 0] >= RANDINT
        if whole.any():
            moves = np.where(whole, np.rint(moves), moves)
    else:
        columns = [filled(int(family), n, *shapes) for family, _, _, _, *shapes, _ in loop.other]
        for k, (loc, scale) in enumerate(loop.other[:, 1:3]):
            if (loc, scale) != (0.0, 1.0):
                columns[k] = columns[k] * scale + loc
        moves = columns[0][:, :, None] if dim == 1 else np.stack(columns, axis=2)
    # With one pseudo-sample, proposed from the prior, a hit is accepted and a miss is not, whatever u is.
    decided = loop.kind == FROM_PRIOR and loop.draws == 1 and loop.kernel.indicator
    return _Ahead(streams[1], moves, held, np.zeros((steps, n)) if decided else filled(EXPON, n))


def _named(rng: Rng, purpose: int, step: int, steps: int) -> Array:
    """The states (S, 5) of the streams that `rng.bulk` names at S steps."""
    from onedraw.engines.numba_streams import kept_on_disk, philox

    states = np.empty((steps, 5), np.uint64)
    kept_on_disk(philox)(states, *map(np.uint64, (rng.seed, rng.phase << 8 | purpose, rng.first, step)))
    return states


class _Now(NamedTuple):
    """The states of n chains and the counts of their steps, as the loop changes them."""

    theta: Array
    """(dim, n)"""
    log_prior: Array
    log_estimate: Array
    distances: Array
    accepted: Array
    """(batches, n)"""
    proposals: Array


class _Group(NamedTuple):
    """What a group of steps gives."""

    now: _Now
    simulations: int
    failed: int
    failures: list[FailedStep]


def advance(
    loop: ChainLoop, rng: Rng, state: Any, steps: int, theta: Array, distances: Array | None, *, thin: int,
    batches: int, stretch: tuple[int, int],
) -> Advanced:  # fmt: skip
    """Take `steps` steps from `rng.step` on, writing kept states into theta (kept, n, dim) and distances."""
    n, dim = state.theta.shape
    log_estimate = state.log_estimate if loop.carried else np.zeros(n)
    counts = np.zeros((batches, n), dtype=np.int64)
    now = _Now(np.ascontiguousarray(state.theta.T), state.log_prior, log_estimate, state.distances, counts, counts)
    marks = _marks(rng.step, steps, thin, batches, stretch)
    record = _Record(theta, np.empty((0, 0, 0)) if distances is None else distances, marks, rng.step)
    words, simulations, failed, ignored = np.empty(5, np.uint64), 0, 0, False
    failures: list[FailedStep] = []
    first, last = rng.step, rng.step + steps
    longest = max(1, GROUP_VALUES // (n * dim))
    step = first
    while step < last:
        look()
        watched = rng.first == 0 and step == 0
        size = 1 if watched else min(longest, last - step)
        ahead = _drawn_ahead(loop, rng, step, size, n)
        for group in _taken(loop, words, ahead, now, step, record):
            now, simulations, failed = group.now, simulations + group.simulations, failed + group.failed
            failures += group.failures
        ignored |= watched and simulations > 0 and np.array_equal(words, ahead.streams[0])
        step += size
    after = {
        "theta": now.theta.T.copy(), "log_prior": now.log_prior, "log_estimate": now.log_estimate,
        "distances": now.distances,
    }  # fmt: skip
    proposals = now.proposals
    if loop.hold < 0.0:
        proposals = proposals + np.bincount(marks[:, 0], minlength=batches)[:, None]
    return Advanced(after, now.accepted, proposals, simulations, failed, failures, bool(ignored))


class _Record(NamedTuple):
    """Where the draws of a segment go, and which part of the run its steps belong to."""

    theta: Array
    distances: Array
    """(kept, n, M), or (0, 0, 0) if they are not kept."""
    marks: Array
    """(steps, 2): the batch of each step, and the place of the draw that is kept of it, -1 if none is."""
    first: int
    """The segment's first step."""


def _marks(first: int, steps: int, thin: int, batches: int, stretch: tuple[int, int]) -> Array:
    """The marks of a record: moves are counted in equal parts of a stretch, of which every thin-th step is kept."""
    begin, end = stretch
    after = np.arange(first, first + steps) + 1 - begin
    place = after // thin - 1 - (first - begin) // thin
    return np.column_stack([(after - 1) * batches // (end - begin), np.where(after % thin == 0, place, -1)])


def _taken(loop: ChainLoop, words: Array, ahead: _Ahead, now: _Now, step: int, record: _Record) -> list[_Group]:
    """Take the steps of a group; if something is raised, one by one, and that one guarded."""
    try:
        return [_group(loop, words, ahead, now, step, record, None)]
    except _RaisedInLoop as raised:
        if len(ahead.streams) == 1:
            return [_group(loop, words, ahead, now, step, record, raised.error)]
    groups: list[_Group] = []
    for one in range(len(ahead.streams)):
        groups += _taken(loop, words, ahead.step(one), now, step + one, record)
        now = groups[-1].now
    return groups


class _RaisedInLoop(Exception):
    """The simulator, or another function of the user, has raised."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _group(
    loop: ChainLoop, words: Array, ahead: _Ahead, now: _Now, step: int, record: _Record, raised: Exception | None
) -> _Group:
    """Take the steps of a group; guarded if it is known what they raise."""
    model, kernel, draws = loop.model, loop.kernel, loop.draws
    dim, width = len(loop.prior), draws if loop.keep else 0
    run = _steps_loop(loop, careful=raised is not None)
    _, own, extra = distance_in_loops(model)
    now = _Now(*(part.copy() for part in now))
    n, marks = now.theta.shape[1], record.marks[step - record.first :][: len(ahead.streams)]
    proposed, noted, totals = np.empty((dim, n)), np.zeros(4, np.int64), np.zeros(3, np.int64)
    # Beyond this no estimate is accepted, or none is wanted.
    most = 0.0 if loop.early else sys.float_info.max
    events, places = np.zeros((FAILURES_KEPT, 4), np.int64), np.empty((FAILURES_KEPT, dim))
    try:
        run(
            words, fixed(proposed), draws, fixed(model.observed_row), extra, PROFILES.index(kernel.formula),
            kernel.indicator, float(kernel.eps), float(kernel.support), np.empty((min(width, 1), width)), NO_ROWS,
            np.empty(model.recipe.layout.size), noted, *ahead, proposed, np.empty(n), np.empty(n),
            loop.kind, loop.carried, most, loop.prior, loop.other, *now, marks,
            record.theta, record.distances, totals, events, places, 0,
        )  # fmt: skip
    except Exception as error:
        raise _RaisedInLoop(error) from None
    simulations, failed, failing = totals.tolist()
    if noted[3] == BAD_DISTANCE:
        refuse_distance(own, model.recipe.prior.named(proposed[:, noted[1]]))
    failures = [
        FailedStep(step + s, places[k : k + 1], chain, LoopReport(1, 0, m, code, raised))
        for k, (s, chain, m, code) in enumerate(events[:failing].tolist())
    ]
    return _Group(now, simulations, failed, failures)


def _steps_loop(loop: ChainLoop, careful: bool) -> Any:
    recipe = loop.model.recipe
    formula, own, _ = distance_in_loops(loop.model)
    key = ("steps", *simulator_key(recipe), formula, own, careful)
    return made(recipe.simulator, key, lambda numba: _new_steps_loop(numba, recipe, formula, own, careful))


def _new_steps_loop(numba: Any, recipe: Any, formula: str, own: Any, careful: bool) -> Any:
    """The loop over steps and chains."""
    from onedraw.engines.numba_streams import left_by, own_stream

    average = row_average(recipe, formula, own, careful)
    log_density = _density()
    dim, users, infinity = recipe.prior.dim, own is not None, math.inf

    def steps(  # type: ignore[no-untyped-def]
        words, shown, draws, observed, extra, profile, indicator, eps, support, apart, rows, row, noted,
        streams, moves, held, exponentials, proposed, needed, there, kind, carried, most, prior, other,
        theta, log_prior, log_estimate, distances, accepted, proposals, marks, kept, kept_distances,
        totals, events, places, here,
    ):  # fmt: skip
        n, width = theta.shape[1], distances.shape[1]
        holds, walks, from_prior = held.size > 0, kind == WALK, kind == FROM_PRIOR
        for s in range(len(streams)):
            batch, place = marks[s, 0], marks[s, 1]
            # Proposals, and the least log estimate at each that u would accept.
            for i in range(n):
                for k in range(dim):
                    proposed[k, i] = moves[s, i, k] + theta[k, i] if walks else moves[s, i, k]
                needed[i] = -exponentials[s, i]
                if carried:
                    needed[i] += log_estimate[i]
            if not from_prior:
                for i in range(n):
                    there[i] = log_density(prior, proposed, i)
                    log_ratio = there[i] - log_prior[i]
                    if not walks:
                        log_ratio += log_density(other, theta, i) - log_density(other, proposed, i)
                    needed[i] -= log_ratio if carried or log_ratio < 0.0 else 0.0
            if holds:
                for i in range(n):
                    if held[s, i]:
                        needed[i] = infinity
                    else:
                        proposals[batch, i] += 1
            rng = own_stream(streams[s])
            for w in range(4):
                noted[w] = 0
            simulated = 0
            for i in range(n):
                if needed[i] <= most:
                    simulated += 1
                    found = average(
                        rng, shown, i, draws, observed, extra, profile, indicator, eps, support, apart, rows, here,
                        row, noted,
                    )  # fmt: skip
                    if users and noted[3] == BAD_DISTANCE:
                        return
                    if found >= needed[i]:
                        accepted[batch, i] += 1
                        log_estimate[i] = found
                        if not from_prior:
                            log_prior[i] = there[i]
                        for k in range(dim):
                            theta[k, i] = proposed[k, i]
                        for m in range(width):
                            distances[i, m] = apart[here, m]
            if place >= 0:
                for i in range(n):
                    for k in range(dim):
                        kept[place, i, k] = theta[k, i]
                if kept_distances.shape[2] == 1:
                    for i in range(n):
                        kept_distances[place, i, 0] = distances[i, 0]
                else:
                    for i in range(n):
                        for m in range(kept_distances.shape[2]):
                            kept_distances[place, i, m] = distances[i, m]
            left_by(rng, words)
            totals[0] += simulated * draws
            totals[1] += noted[0]
            if noted[0] > 0 and totals[2] < len(events):
                failing = totals[2]
                events[failing, 0], events[failing, 1] = s, noted[1]
                events[failing, 2], events[failing, 3] = noted[2], noted[3]
                for k in range(dim):
                    places[failing, k] = proposed[k, noted[1]]
                totals[2] += 1

    number, whole, word = numba.float64, numba.int64, numba.uint64
    one, two, three, fixed_two = number[::1], number[:, ::1], number[:, :, ::1], array_type(numba, 2)
    # Draws may belong to a part of a larger array.
    part = number[:, :, :]
    return compiled_loop(
        numba, steps, whole, array_type(numba, 1), fixed_two, whole, numba.boolean, number, number, two, three, one,
        whole[::1], word[:, ::1], three, numba.boolean[:, ::1], two, two, one, one, whole, numba.boolean,
        number, fixed_two, fixed_two, two, one, one, two, whole[:, ::1], whole[:, ::1], whole[:, ::1], part, part,
        whole[::1], whole[:, ::1], two, whole, _nrt=False,
    )  # fmt: skip


def _log_density(table: Array, theta: Array, i: int) -> float:
    """The log density of the distribution in `table` at theta[:, i]; the formulas are those of `model.prior`."""
    total = 0.0
    for k in range(len(table)):
        family, loc, scale, log_scale = table[k, 0], table[k, 1], table[k, 2], table[k, 3]
        a, b, constant = table[k, 4], table[k, 5], table[k, 6]
        x = theta[k, i]
        z = (x - loc) / scale
        value = -math.inf
        if family == NORM:
            value = z * z * -0.5 - LOG_SQRT_2PI - log_scale
        elif family == T:
            value = constant - (a + 1.0) / 2.0 * math.log1p(z * z / a) - log_scale
        elif family == RANDINT:
            if a <= z < b and z == math.floor(z):
                value = constant
        elif family == POISSON:
            if z >= 0.0 and x == math.floor(x):
                power = z * math.log(a) if z > 0.0 else 0.0
                value = power - math.lgamma(z + 1.0) - a
        elif z >= 0.0:
            if family == UNIFORM:
                if z <= 1.0:
                    value = -log_scale
            elif family == EXPON:
                value = -z - log_scale
            elif family == GAMMA:
                power = (a - 1.0) * math.log(z) if a != 1.0 else 0.0
                value = power - z - constant - log_scale
            elif family == BETA:
                if z <= 1.0:
                    power = (a - 1.0) * math.log(z) if a != 1.0 else 0.0
                    power += (b - 1.0) * math.log1p(-z) if b != 1.0 else 0.0
                    value = power - constant - log_scale
            elif z > 0.0:
                log_z = math.log(z)
                value = -0.5 * (log_z / a) * (log_z / a) - log_z - LOG_SQRT_2PI - constant - log_scale
        total += value
    return total


COMMON = {NORM: "normals", UNIFORM: "uniforms", EXPON: "exponentials"}
"""Which function of `numba_streams` draws a family."""
DRAWS = {
    GAMMA: lambda rng, a, b: rng.standard_gamma(a),
    BETA: lambda rng, a, b: rng.beta(a, b),
    LOGNORM: lambda rng, a, b: rng.lognormal(0.0, a),
    T: lambda rng, a, b: rng.standard_t(a),
    RANDINT: lambda rng, a, b: rng.integers(int(a), int(b)),
    POISSON: lambda rng, a, b: rng.poisson(a),
}
"""One draw of the other families, by their two shapes."""


@cache
def _draws(family: int) -> Any:
    """(states, a, b, values): draws of a family, a row of values from the stream of each step.

    Streams are left where the next draws begin.
    """
    from onedraw.engines import numba_streams as streams

    if family in COMMON:
        common = streams.kept_on_disk(getattr(streams, COMMON[family]))
        return lambda states, a, b, values: common(states, values)
    numba, stream = numba_module(), streams.stream
    draw = numba.njit(error_model="numpy")(DRAWS[family])

    def fill(states, a, b, values):  # type: ignore[no-untyped-def]
        for s in range(len(states)):
            rng = stream(states[s])
            for j in range(values.shape[1]):
                values[s, j] = draw(rng, a, b)

    number, word = numba.float64, numba.uint64
    return numba.njit((word[:, ::1], number, number, number[:, ::1]), nogil=True, error_model="numpy")(fill)


@cache
def _density() -> Any:
    """`_log_density`, compiled."""
    from onedraw.engines.numba_streams import kept_on_disk

    numba = numba_module()
    return kept_on_disk(_log_density, array_type(numba, 2), numba.float64[:, ::1], numba.int64)
