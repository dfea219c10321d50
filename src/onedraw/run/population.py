"""The particles of sequential ABC: what a run carries, how chains move them, and how they become the next ones.

Everything here is a pure function of its arguments; what to do next is decided in `samplers.smc`.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.numba import chains_per_block
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.estimators.abc_average import AbcAverage
from onedraw.estimators.pairs import WithFactors
from onedraw.estimators.tolerances import reweighted
from onedraw.estimators.weights import effective, systematic
from onedraw.estimators.with_rows import WithRows
from onedraw.failures import Failure
from onedraw.model.model import Model
from onedraw.model.prior import Prior
from onedraw.proposals.mixture import moments
from onedraw.proposals.random_walk import random_walk
from onedraw.run.lockstep import Sampler
from onedraw.run.pilot import continuation_setting
from onedraw.run.plan import Outcome
from onedraw.run.result import Result, Stage, nothing
from onedraw.run.specification import distance_setting

PLAIN_BLOCK, BATCHED_BLOCK = 16, 16_384
"""Particles per block: they share the streams of proposals and uniforms, so this is part of a run's identity."""
DEFAULT_PARTICLES = {True: 4096, False: 500}
"""Without a budget, for batched simulators and for others."""
REACHED = ("eps", "exact", "collapsed")
"""Reasons of a run that ends by itself before its budget is spent."""
VISITED = ("theta", "log_prior", "distances")
"""What is kept of a visited state."""
States = Mapping[str, Array]
"""What chains carry from step to step, by name: theta, log_prior, log_estimate, distances."""


class ParticleBlock(NamedTuple):
    """A block of chains that take `steps` steps, the first of them being number `step` of the run."""

    first: int
    size: int
    step: int = 0
    steps: int = 0
    eps: float = math.inf
    states: States | None = None
    """None at step 0, at which the block draws its particles from the prior."""
    root: Array | None = None


class Particles(NamedTuple):
    """Weighted draws of pi_K at one tolerance."""

    theta: Array
    """(n, dim)"""
    log_prior: Array
    distances: Array
    """(n, M), followed by the summaries if the distance adapts: (n, M + M s); by what the simulation counts if it is
    one in stages: (n, 2)."""
    weight: Array
    """(n,), summing to 1."""
    group: Array
    """(n,) equal for particles whose chains began at the same particle."""
    family: Array
    """(n,) the group, one stage before, of the particle at which the chain began."""
    founder: Array
    """(n,) the particle from the prior that each descends from."""


class StageChains(NamedTuple):
    """Chains at one tolerance, where they began, and the states they have visited since."""

    origin: Particles
    """The particles at some of which they began."""
    ancestor: Array
    """(N,) the particle at which each chain began."""
    states: States
    root: Array
    stages: int
    """Stages of the run's path before this one."""
    begin: int
    """The number of the first step."""
    moves: Mapping[str, Array]
    """Accepted moves: chain, time, and what is kept of the states."""
    steps: int = 0
    simulations: int = 0
    units: float = 0.0
    """What they have cost, in the unit of the budget."""
    lead: int = 0
    """The first chains, which have taken `ahead` steps more than the others: those are on their way."""
    ahead: int = 0

    @property
    def accepted(self) -> int:
        """Moves of all chains."""
        return len(self.moves["chain"])

    @property
    def taken(self) -> Array:
        """(N,) steps of each chain."""
        steps = np.full(len(self.ancestor), self.steps)
        steps[: self.lead] += self.ahead
        return steps

    @property
    def proposals(self) -> int:
        """Steps of all chains."""
        return int(self.taken.sum())


class Schedule(NamedTuple):
    """How a run is to go on: its chains, and where it ends."""

    chains: int
    target: float | None
    least_acceptance: float
    seed: int

    def reached(self, eps: float) -> bool:
        """Whether a tolerance is the one asked for."""
        return self.target is not None and eps <= self.target


class Population(NamedTuple):
    """What a run has reached: particles at a tolerance, and chains that move them."""

    schedule: Schedule
    estimator: AbcAverage
    """With the distance as it was learned last."""
    particles: Particles
    spent: float
    """By the whole run, in the unit of the budget."""
    late: float = 0.0
    """What is on its way, if every proposal is simulated."""
    eps: float = math.inf
    chains: StageChains | None = None
    step: int = 1
    """The number of the next step."""
    resampled: int = 0
    """How often new chains were begun: it names streams."""
    path: tuple[Stage, ...] = ()
    scales: tuple[list[float], ...] = ()
    """Of the distance, as it was learned again."""
    rate: float = 1.0
    """Acceptance rate of the last stage."""
    simulated: float = 1.0
    """What one of its proposals has cost, in the unit of the budget: the share that was simulated if that is 1."""
    log_evidence: float = 0.0
    """Log of the prior mean of K at this tolerance."""
    influence: Array = np.empty(0)
    """What the descendants of each particle from the prior have added to it, less what they would if all were alike."""

    @property
    def distances(self) -> Array:
        """Of the particles, (n, M)."""
        return self.particles.distances[:, : self.estimator.pseudo_samples]

    @property
    def adaptive(self) -> bool:
        """Whether the distance is learned again as the tolerance falls."""
        return self.estimator.model.adaptive

    def acceptance(self) -> tuple[float, float]:
        """Acceptance rate of the last stage, and its error from what differs between the chains."""
        if self.chains is None or self.chains.taken.min() == 0:
            return math.nan, math.nan
        n = len(self.chains.ancestor)
        each = np.bincount(self.chains.moves["chain"], minlength=n) / self.chains.taken
        return float(each.mean()), float(each.std(ddof=min(1, n - 1)) / math.sqrt(n))


def visited(sampler: Sampler, rng: Rng, state: Any, item: ParticleBlock) -> Outcome:
    """The states that a block of chains visits in some steps: the accepted ones with chain and time, and the last."""
    cost, failures = Cost(proposals=item.steps * item.size), tuple[Failure, ...]()
    chain, time = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    new = {name: [getattr(state, name)[:0]] for name in VISITED}
    for step in range(item.step, item.step + item.steps):
        rng.step = step
        state, info = sampler.step(rng, state)
        cost, failures = cost.plus(info.cost), failures or info.failures[:1]
        rows = np.flatnonzero(info.accepted)
        if rows.size:
            chain.append(rows + item.first)
            time.append(np.full(rows.size, step))
            for name, parts in new.items():
                parts.append(getattr(state, name)[rows])
    arrays = {name: np.concatenate(parts) for name, parts in ({"chain": chain, "time": time} | new).items()}
    return Outcome(arrays | {f"last.{name}": part for name, part in state._asdict().items()}, cost, failures)


def occupation(chain: Array, time: Array, chains: int, begin: int, end: int | Array) -> tuple[Array, Array]:
    """Steps spent in the states of `chains` chains from `begin` to before `end`: where they began, and after each move.

    Moves are given by chain and time, in the order of time for each chain; `end` may differ between chains.

    >>> occupation(np.array([1, 1]), np.array([2, 3]), 2, 0, 5)
    (array([5, 2]), array([1, 2]))
    """
    order = np.lexsort((time, chain))
    of, at = chain[order], time[order]
    last = np.append(of[1:] != of[:-1], True)[: of.size]
    ends = np.full(chains, end, dtype=np.int64)
    until = np.where(last, ends[of], np.append(at[1:], 0)[: of.size])
    spent = np.empty(of.size, dtype=np.int64)
    spent[order] = until - at
    first = ends.copy()
    np.minimum.at(first, chain, time)
    return first - begin, spent


def spread(particles: Particles, prior: Prior) -> Array:
    """The covariance of particles, its correlations shrunk a little so that few particles give a full one."""
    mean, covariance = moments(particles.theta, particles.weight)
    few = prior.dim / (effective(particles.weight) + prior.dim)
    covariance = (1 - few) * covariance + few * np.diag(np.diag(covariance))
    smallest = 1e-12 * np.maximum(mean * mean, float(np.diag(covariance).max()) or 1.0)
    return covariance + np.diag(np.maximum(smallest - np.diag(covariance), 0.0))


def carried(estimator: AbcAverage) -> Any:
    """The estimator, with what its states must carry besides their distances."""
    if estimator.model.adaptive:
        return WithRows(estimator)
    return estimator if estimator.model.pair is None else WithFactors(estimator, estimator.log_bound)


def default_particles(budget: int | None, pseudo_samples: int, batched: bool) -> int:
    """Chains that fit a budget: about twice its root, so that more simulations also mean a smaller tolerance.

    >>> [default_particles(budget, 1, False) for budget in (10, 100, 10_000, 1_000_000)]
    [5, 20, 200, 2000]
    """
    if budget is None:
        return DEFAULT_PARTICLES[batched]
    estimates = budget // pseudo_samples
    return max(1, min(max(1, estimates // 2), int(2 * math.sqrt(estimates))))


def block_size(model: Model, chains: int) -> int:
    """Chains per block."""
    return chains_per_block(chains) if model.compiled else BATCHED_BLOCK if model.batched else PLAIN_BLOCK


def lead_of(model: Model, chains: int) -> int:
    """The first chains, whose steps decide what is next while workers are at the others: half of the blocks."""
    size = block_size(model, chains)
    return min(chains, size * math.ceil(math.ceil(chains / size) / 2))


def first_population(schedule: Schedule, estimator: AbcAverage, spent: float, outcome: Outcome) -> Population:
    """Particles from the prior, or the first of them, at a tolerance beyond every distance."""
    theta, distances = (np.asfortranarray(outcome.arrays[name]) for name in ("theta", "distances"))
    weight = np.where(np.isfinite(distances[:, : estimator.pseudo_samples]).any(axis=1), 1.0, 0.0)
    if estimator.model.pair is not None:
        weight *= distances[:, 1]
    if not weight.any():
        weight[:] = 1.0
    number, share = np.arange(len(theta)), float(weight.mean())
    log_prior = estimator.prior.logpdf(theta)
    particles = Particles(theta, log_prior, distances, weight / weight.sum(), number, number, number)
    late = (schedule.chains - len(theta)) * estimator.worst
    return Population(
        schedule, estimator, particles, spent + estimator.model.units(outcome.cost), late, log_evidence=math.log(share),
        influence=(weight / share - 1.0) / len(theta),
    )  # fmt: skip


def moved(now: Population, steps: int, outcome: Outcome) -> Population:
    """With the states that all chains have visited in some steps, or the first chains if the others are still on it."""
    arrays, chains = outcome.arrays, now.chains
    assert chains is not None
    known, units = len(arrays["last.theta"]), now.estimator.model.units(outcome.cost)
    late = len(chains.ancestor) - known
    states = {name: np.concatenate([arrays[f"last.{name}"], part[known:]]) for name, part in chains.states.items()}
    chains = chains._replace(
        states={name: np.asfortranarray(part) for name, part in states.items()},
        moves={name: np.concatenate([part, arrays[name]]) for name, part in chains.moves.items()},
        steps=chains.steps if late else chains.steps + steps,
        lead=known if late else 0,
        ahead=steps if late else 0,
        simulations=chains.simulations + outcome.cost.simulations,
        units=chains.units + units,
    )
    on_its_way = late * steps * now.estimator.worst
    return now._replace(chains=chains, step=now.step + steps, spent=now.spent + units, late=on_its_way)


def lowered(now: Population, eps: float) -> Population:
    """The same particles at a smaller tolerance."""
    weight = reweighted(now.estimator.kernel, now.eps, eps, now.distances, now.particles.weight)
    now = with_evidence(now, weight)
    return now._replace(particles=now.particles._replace(weight=weight / weight.sum()), eps=eps, chains=None)


def with_evidence(now: Population, weight: Array) -> Population:
    """With the factor by which the evidence falls if the particles get these weights, which do not sum to 1.

    The factor is a mean over the particles. Those that descend from one particle of the prior are alike, in this factor
    and in all later ones; different ones are independent (Lee and Whiteley 2018).
    """
    particles, factor = now.particles, float(weight.sum())
    away = np.bincount(particles.founder, weight - factor * particles.weight, len(now.influence))
    return now._replace(
        log_evidence=now.log_evidence + math.log(max(factor, 1e-300)),
        influence=now.influence + away / max(factor, 1e-300),
    )


def picked(now: Population, number: int, which: int, count: int) -> Array:
    """Particles drawn by their weights, `count` of them; two numbers name the stream."""
    u = Rng(now.schedule.seed, Phase.SEQUENCE, which, number).bulk(Purpose.ACCEPT).random()
    return systematic(now.particles.weight, count, u)


def resampled(now: Population, begun: StageChains | None = None) -> Population:
    """Chains that begin at particles drawn by their weights, each with its own pseudo-samples.

    The first chains may have begun already, when fewer particles were known. Each half is drawn from all particles that
    are known, so that each stands for the whole of them.
    """
    particles, prior, number = now.particles, now.estimator.prior, now.resampled + 1
    chains, lead = now.schedule.chains, lead_of(now.estimator.model, now.schedule.chains)
    first = picked(now, number, 0, lead) if begun is None else begun.ancestor[:lead]
    ancestor = np.concatenate([first, picked(now, number, 2, chains - lead)])
    states = {name: getattr(particles, name)[ancestor] for name in VISITED}
    states["log_estimate"] = now.estimator.kernel.with_eps(now.eps).log_average(now.distances[ancestor])
    if now.estimator.model.pair is not None:
        states["log_estimate"] += np.log(particles.distances[ancestor, 1])
    root = random_walk().resolved(prior, lambda: spread(particles, prior)).root if begun is None else begun.root
    assert root is not None
    none = np.empty(0, dtype=np.int64)
    moves = {"chain": none, "time": none, **{name: states[name][:0] for name in VISITED}}
    return now._replace(
        chains=StageChains(particles, ancestor, states, root, len(now.path), now.step, moves), resampled=number
    )


def begun(now: Population, eps: float, first: StageChains | None = None) -> Population:
    """Chains at a tolerance, which begin at particles unless they are there already; the first may have begun."""
    if eps < now.eps:
        return resampled(lowered(now, eps), first)
    return resampled(now, first) if now.chains is None else now


def collected(chains: StageChains) -> Particles:
    """All states that the chains have visited, weighted by the time spent there: particles at this tolerance."""
    before, moves, end = chains.origin, chains.moves, chains.begin + chains.taken
    # Each state counts as often as the chain stood there: before the first step, and after each of them.
    at_start, after = occupation(moves["chain"], moves["time"], len(chains.ancestor), chains.begin - 1, end)
    # Chains that began at the same particle waited there together.
    origin, member = np.unique(chains.ancestor, return_inverse=True)
    weight = np.concatenate([np.bincount(member, at_start), after.astype(float)])
    which = np.concatenate([np.arange(origin.size), member[moves["chain"]]])
    theta, log_prior, distances = (np.concatenate([getattr(before, name)[origin], moves[name]]) for name in VISITED)
    weight /= weight.sum()
    which = origin[which]
    return Particles(theta, log_prior, distances, weight, which, before.group[which], before.founder[which])


def stage_ended(now: Population, sure: bool = False) -> Population:
    """With the visited states as particles, unless those before have a larger effective number, and with its path.

    If chains have begun at the visited states already, these are the particles for `sure`.
    """
    chains, particles = now.chains, now.particles
    before = now.path if chains is None else now.path[: chains.stages]
    if chains is None or chains.proposals == 0:
        return now._replace(path=(*before, Stage(now.eps, math.nan, 0, 0, effective(particles.weight))))
    proposals = chains.proposals
    rate = chains.accepted / proposals
    simulated = max(chains.units, 1) / (proposals * now.estimator.pseudo_samples)
    found = collected(chains)
    if sure or effective(found.weight) >= effective(particles.weight):
        particles = found
    stage = Stage(now.eps, rate, proposals, chains.simulations, effective(particles.weight))
    return now._replace(particles=particles, path=(*before, stage), rate=rate, simulated=simulated)


def relearned(now: Population, outcome: Outcome, least: float) -> Population:
    """With the distance scaled by simulations at the particles, and tolerance and weights stated in the new one.

    With rho the largest growth of a column's scale, the old distance is at most rho times the new one. So what is
    within eps / rho by the new distance was within eps by the old, and the particles reach it by new weights. If their
    effective number were below `least`, the distance stays as it is.
    """
    now = now._replace(step=now.step + 1, spent=now.spent + outcome.cost.simulations)
    model, kernel, particles, before = now.estimator.model, now.estimator.kernel, now.particles, now.distances
    seen = outcome.arrays["rows"]
    seen = np.asfortranarray(seen[~np.isnan(seen[:, 0])])
    if len(seen) < 2:
        return now
    distance = model.distance.relearnt(seen, model.observed_row)
    eps = now.eps / float((distance.scale / model.distance.scale).max())
    model = model.with_distance(distance)
    rows = particles.distances[:, before.shape[1] :]
    distances = model.distances(rows.reshape(*before.shape, -1).copy())
    with np.errstate(invalid="ignore"):
        log_ratio = kernel.with_eps(eps).log_average(distances) - np.maximum(
            kernel.with_eps(now.eps).log_average(before), -1e300
        )
    weight = np.where(particles.weight > 0, particles.weight * np.exp(np.minimum(log_ratio, 0.0)), 0.0)
    if effective(weight) < least:
        return now
    now = with_evidence(now, weight)
    particles = particles._replace(distances=np.concatenate([distances, rows], axis=1), weight=weight / weight.sum())
    return now._replace(
        estimator=now.estimator.with_model(model), particles=particles, eps=eps, chains=None,
        scales=(*now.scales, np.asarray(distance.scale).tolist()),
    )  # fmt: skip


def settings_of(schedule: Schedule, model: Model) -> dict[str, Any]:
    """What a run has chosen, whether it has draws or not."""
    return {
        "particles": schedule.chains, "distance": distance_setting(model), **continuation_setting(model)
    }  # fmt: skip


def result_of(now: Population, reason: str) -> Result:
    """What a run has found, wherever it is stopped."""
    model = now.estimator.model
    settings = settings_of(now.schedule, model) | ({"scales": list(now.scales)} if now.scales else {})
    why = "finished" if reason in REACHED else reason
    if math.isinf(now.eps):
        notes = ("every simulation failed: there are no draws",)
        return nothing(model.prior.dim, why, notes=notes, settings=settings, eps=math.nan, model=model)
    now = stage_ended(now)
    particles, alive, se = now.particles, now.particles.weight > 0, float(np.linalg.norm(now.influence))
    made = f"eps = {now.eps:.4g}, effective sample size {effective(particles.weight):,.0f}"
    return Result(
        particles.theta[alive][None], now.distances[alive][None], why, made, *now.acceptance(), settings,
        notes_on(now.eps, now.schedule, reason), particles.weight[alive][None], particles.family[alive][None], now.path,
        now.eps, model=model, log_evidence=now.log_evidence, log_evidence_se=se,
    )  # fmt: skip


def notes_on(eps: float, schedule: Schedule, reason: str) -> tuple[str, ...]:
    """What a reader must know of how a run ended."""
    notes = []
    if reason == "collapsed":
        notes.append(
            f"stopped at eps = {eps:.4g} since fewer than {schedule.least_acceptance:g} of the moves were accepted; a "
            "smaller least_acceptance goes further"
        )
    if reason == "exact":
        notes.append(f"every simulation matches the data exactly (distance 0): no eps below {eps:.4g} differs")
    if schedule.target is not None and eps > schedule.target:
        notes.append(f"eps = {schedule.target:g} was not reached: the run ended at eps = {eps:.4g}")
    return tuple(notes)
