"""Sequential ABC: particles from the prior follow a falling tolerance to the data.

The particles of a stage are all states that N chains of Algorithm 2 have visited, each weighted by the time spent
there. A stage:

1. *lower*: eps' < eps is the least at which the particles are still worth N/2 draws; a particle with distances
   d_1..d_M gets its weight times mean K_eps'(d_i) / mean K_eps(d_i), which makes them particles of pi_K at eps';
2. *resample*: N starts are drawn from them by their weights (lowering goes on until the weights have degenerated to
   N/2, so there is always need), each with its own pseudo-samples;
3. *move*: all chains step side by side at eps' until there were MOVES moves for each of them on average, however many
   steps that takes, with a random walk scaled from the particles and early rejection. The estimate of a state is
   carried, never refreshed, so the chains keep pi_K at eps'.

All that was visited is kept, so no accepted simulation is thrown away within a stage. A stage that ends early has
fewer steps and is as valid; before the first step the reweighted particles of the last one are the answer.

Reference: Del Moral, Doucet and Jasra (2012); Drovandi and Pettitt (2011) for the number of moves; Dau and Chopin
(2022) for keeping all states.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import optional_whole_number, positive, whole_number
from onedraw.engines.arrays import Array
from onedraw.engines.numba import chains_a_block
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.estimators.average import AbcAverage, Evaluation, evaluate
from onedraw.model.kernels import EPS_MEANING, Kernel
from onedraw.model.model import Model
from onedraw.model.prior import Prior
from onedraw.model.simulator import Failure, Simulated
from onedraw.proposals.proposals import RandomWalk, random_walk
from onedraw.proposals.weights import systematic
from onedraw.results.posterior import Posterior
from onedraw.run.blocks import cut
from onedraw.run.options import Shared, check_model, on_engine
from onedraw.run.progress import Show
from onedraw.run.rounds import (
    REACHED,
    Found,
    Ledger,
    Outcome,
    Stage,
    effective,
    kernel_family,
    nothing_found,
    reweighted,
    run_in_rounds,
    together,
    tolerance_keeping,
    tolerance_with,
)
from onedraw.run.signals import Stopped
from onedraw.run.specification import distance_setting
from onedraw.samplers.pseudo_marginal import PseudoMarginal, State

PLAIN_BLOCK, BATCHED_BLOCK = 16, 16_384
"""Particles a block: they share the streams of proposals and uniforms, so this is part of a run's identity."""
PLAIN_STEPS, BATCHED_STEPS = 4, 64
"""Steps between two looks at the acceptance rate, at the most."""
MOVES = 2.0
"""Accepted moves for each chain that end a stage."""
LAST_MOVES = 6.0
"""The same for the stage at the tolerance asked for: its states are the draws that are returned."""
SHARE = 0.5
"""Effective number of particles, as a share of the chains, down to which the tolerance is lowered."""
WORTHWHILE = 0.95
"""A tolerance is lowered so that at most this share of the weight is left, or not at all."""
DEFAULT_PARTICLES = {True: 4096, False: 500}
"""Where there is no budget to tell, for batched simulators and for others."""


class Item(NamedTuple):
    """A block of chains that take `steps` steps, the first of them being number `step` of the run."""

    first: int
    size: int
    step: int
    steps: int
    eps: float
    state: State | None
    """None at step 0, at which the block draws its particles from the prior."""
    root: Array


class Particles(NamedTuple):
    """Weighted draws of pi_K at one tolerance."""

    theta: Array
    """(n, dim)"""
    log_prior: Array
    distances: Array
    """(n, M), followed by the summaries where the distance adapts: (n, M + M s)."""
    weight: Array
    """(n,), summing to 1."""
    group: Array
    """(n,) equal for particles whose chains began at the same particle."""
    family: Array
    """(n,) the group, one stage before, of the particle at which the chain began."""


@dataclass(frozen=True, eq=False)
class WithRows:
    """The ABC average whose distances (n, M) are followed by the summaries (n, M s) that they were measured on.

    Chains then carry both, and their states can be measured again when the distance changes.
    """

    inner: AbcAverage
    log_bound: float | None = 0.0

    @property
    def prior(self) -> Prior:
        return self.inner.prior

    def evaluate(self, rng: Rng, theta: Array, log_needed: Array | None) -> Evaluation:
        """As the average within, all M draws at once."""
        rows = np.arange(len(theta)) if log_needed is None else np.flatnonzero(log_needed <= 0.0)
        width = self.inner.pseudo_samples * (1 + self.inner.model.observed_row.size)
        wide, log_estimate = np.full((len(theta), width), np.inf), np.full(len(theta), -np.inf)
        if rows.size == 0:
            return Evaluation(log_estimate, wide, 0)
        inner = replace(self.inner, keep_rows=True)
        if self.inner.engine is None or log_needed is None:
            part = inner._in_chunks(rng, theta[rows], rows)
        else:
            # A device simulates all rows, those that nothing is wanted of where something is.
            there = theta.copy()
            there[log_needed > 0.0] = theta[rows[0]]
            part, rows = inner.evaluate(rng, there, log_needed), np.arange(len(theta))
        assert part.rows is not None
        log_estimate[rows] = part.log_estimate
        wide[rows] = np.concatenate([part.distances, part.rows.reshape(rows.size, -1)], axis=1)
        if log_needed is not None:
            log_estimate[log_needed > 0.0] = -np.inf
        return part._replace(log_estimate=log_estimate, distances=wide, rows=None)


@dataclass(frozen=True, eq=False)
class Moves:
    """The pure task of a sequential run: draw particles from the prior, or move chains at one tolerance.

    With no steps to take it simulates once at each state, for a distance to learn its scale from.
    """

    estimator: AbcAverage
    seed: int

    def __call__(self, item: Item) -> Outcome:
        rng = Rng(self.seed, Phase.SEQUENCE, item.first, item.step)
        adaptive = is_adaptive(self.estimator.model)
        if item.state is None:
            theta = self.estimator.prior.sample(rng.bulk(Purpose.PRIOR), item.size)
            once = replace(self.estimator, early=False)
            result = evaluate(WithRows(once) if adaptive else once, rng, theta, None)
            return Outcome(
                {"theta": theta, "distances": result.distances}, result.simulations, result.setups, 0, result.failed,
                item.size, result.failures, result.ignored_rng,
            )  # fmt: skip
        if item.steps == 0:
            probe = replace(self.estimator, pseudo_samples=1, early=False, keep_rows=True)
            result = probe.evaluate(rng, item.state.theta, None)
            assert result.rows is not None
            return Outcome(
                {"rows": result.rows[:, 0, :]}, result.simulations, result.setups, 0, result.failed, item.size,
                result.failures,
            )  # fmt: skip
        estimator = replace(self.estimator, kernel=self.estimator.kernel.with_eps(item.eps))
        walk = RandomWalk(None, None, item.root, estimator.prior)
        sampler = PseudoMarginal(WithRows(estimator) if adaptive else estimator, walk, True, estimator.pseudo_samples)
        return visited(sampler, rng, item.state, item.step, item.steps)


def is_adaptive(model: Model) -> bool:
    """Whether a model's distance is learnt again as the tolerance falls."""
    return bool(getattr(model.distance, "adapt", False))


def visited(sampler: PseudoMarginal, rng: Rng, state: State, first_step: int, steps: int) -> Outcome:
    """The states that a block of chains visits in some steps: the accepted ones with chain and step, and the last."""
    rows, times = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    new = {name: [getattr(state, name)[:0]] for name in State._fields}
    counts: dict[str, Any] = dict.fromkeys(("simulations", "setups", "skipped", "failed"), 0)
    failures: list[Failure] = []
    for step in range(first_step, first_step + steps):
        rng.step = step
        state, info = sampler.step(rng, state)
        moved = np.flatnonzero(info.accepted)
        if moved.size:
            rows.append(moved)
            times.append(np.full(moved.size, step))
            for name, parts in new.items():
                parts.append(getattr(state, name)[moved])
        for name in counts:
            counts[name] += getattr(info, name)
        failures.extend(info.failures[: 1 - len(failures)])
    arrays = {f"last.{name}": getattr(state, name) for name in State._fields}
    arrays |= {f"new.{name}": np.concatenate(new[name]) for name in ("theta", "log_prior", "distances")}
    arrays |= {"row": np.concatenate(rows), "time": np.concatenate(times)}
    return Outcome(arrays, **counts, proposals=steps * len(state.theta), failures=tuple(failures))


def occupation(chain: Array, time: Array, chains: int, begin: int, end: int) -> tuple[Array, Array]:
    """Steps spent in the states of `chains` chains from `begin` to before `end`: where they began, and after each move.

    Moves are given by chain and time, in the order of time for each chain.

    >>> occupation(np.array([1, 1]), np.array([2, 3]), 2, 0, 5)
    (array([5, 2]), array([1, 2]))
    """
    order = np.lexsort((time, chain))
    of, at = chain[order], time[order]
    last = np.append(of[1:] != of[:-1], True)[: of.size]
    until = np.where(last, end, np.append(at[1:], end)[: of.size])
    spent = np.empty(of.size, dtype=np.int64)
    spent[order] = until - at
    first = np.full(chains, end, dtype=np.int64)
    np.minimum.at(first, chain, time)
    return first - begin, spent


def spread(particles: Particles, prior: Prior) -> Array:
    """The covariance of particles, its correlations shrunk a little so that few particles give a full one."""
    mean = particles.weight @ particles.theta
    centred = particles.theta - mean
    covariance = (particles.weight[:, None] * centred).T @ centred
    few = prior.dim / (effective(particles.weight) + prior.dim)
    covariance = (1 - few) * covariance + few * np.diag(np.diag(covariance))
    smallest = 1e-12 * np.maximum(mean * mean, float(np.diag(covariance).max()) or 1.0)
    return covariance + np.diag(np.maximum(smallest - np.diag(covariance), 0.0))


class Chains(NamedTuple):
    """Chains on their way at one tolerance, and where they began."""

    origin: Particles
    """The particles at some of which they began."""
    state: State
    ancestor: Array
    """(N,) the particle at which each chain began."""
    root: Array
    begin: int
    """The number of the first step."""
    end: int
    """The number of the next step."""
    moves: dict[str, Array]
    accepted: int
    simulations: int


class Sequence:
    """A sequential run as it goes on: particles at a tolerance, and chains that move them."""

    def __init__(self, estimator: AbcAverage, arguments: Mapping[str, Any], ledger: Ledger) -> None:
        self.estimator, self.ledger = estimator, ledger
        self.count, self.seed, self.target = arguments["particles"], arguments["seed"], arguments["eps"]
        self.least = arguments["least_acceptance"]
        self.kernel = estimator.kernel
        batched = estimator.model.batched
        self.block = BATCHED_BLOCK if batched else PLAIN_BLOCK
        if estimator.model.compiled:
            self.block = chains_a_block(arguments["particles"])
        self.longest = BATCHED_STEPS if batched else PLAIN_STEPS
        self.task = Moves(estimator, self.seed)
        self.eps = math.inf
        self.particles: Particles | None = None
        self.chains: Chains | None = None
        self.step = 0
        self.stages = 0
        self.path: list[Stage] = []
        self.scales: list[list[float]] = []
        """Of the distance, as it was learnt again."""
        self.rate = self.worth = 1.0
        """Acceptance rate of the last stage, and the share of its proposals that was simulated."""

    def measured(self, distances: Array) -> Array:
        """The distances (n, M) among what particles or states carry."""
        return distances[:, : self.estimator.pseudo_samples]

    # --- simulations ---------------------------------------------------------------------------------------

    def draw(self) -> None:
        """Particles from the prior, at a tolerance beyond every distance."""
        items = [
            Item(block.first, block.size, 0, 0, math.inf, None, np.empty(0)) for block in cut(self.count, self.block)
        ]
        try:
            self._begin(self.ledger.run(self.task, items, "prior"))
        except Stopped:
            if self.ledger.partial:
                self._begin(self.ledger.partial)
            raise

    def _begin(self, outcomes: list[Outcome]) -> None:
        theta, distances = together(outcomes, "theta"), together(outcomes, "distances")
        weight = np.where(np.isfinite(self.measured(distances)).any(axis=1), 1.0, 0.0)
        if not weight.any():
            weight[:] = 1.0
        number = np.arange(len(theta))
        log_prior = self.estimator.prior.logpdf(theta)
        self.particles = Particles(theta, log_prior, distances, weight / weight.sum(), number, number)
        self.step = 1

    def move(self, steps: int) -> None:
        """Take some steps with all chains."""
        chains = self.chains
        assert chains is not None
        items = []
        for block in cut(self.count, self.block):
            rows = slice(block.first, block.first + block.size)
            state = State(*(np.asfortranarray(part[rows]) for part in chains.state))
            items.append(Item(block.first, block.size, self.step, steps, self.eps, state, chains.root))
        outcomes = self.ledger.run(self.task, items, f"eps {self.eps:.3g}")
        state = State(*(together(outcomes, f"last.{name}") for name in State._fields))
        chain = np.concatenate(
            [outcome.arrays["row"] + item.first for item, outcome in zip(items, outcomes, strict=True)]
        )
        new = {"chain": chain, "time": together(outcomes, "time")}
        new |= {name: together(outcomes, f"new.{name}") for name in ("theta", "log_prior", "distances")}
        self.step += steps
        self.chains = chains._replace(
            state=state,
            end=self.step,
            moves={name: np.concatenate([chains.moves[name], part]) for name, part in new.items()},
            accepted=chains.accepted + chain.size,
            simulations=chains.simulations + sum(outcome.simulations for outcome in outcomes),
        )

    def relearn(self, limit: int | None) -> None:
        """Scale the distance by simulations at the particles, and state tolerance and weights in the new one.

        With rho the largest growth of a column's scale, the old distance is at most rho times the new one. So what is
        within eps / rho by the new distance was within eps by the old, and the particles reach it by new weights.
        Where these would be worth too little, the distance stays as it is.
        """
        particles, model = self.particles, self.estimator.model
        assert particles is not None
        if self.affordable(limit) < 2:
            return
        u = Rng(self.seed, Phase.SEQUENCE, 1, self.stages).bulk(Purpose.ACCEPT).random()
        theta = particles.theta[systematic(particles.weight, self.count, u)]
        items = []
        for block in cut(self.count, self.block):
            rows = slice(block.first, block.first + block.size)
            nothing = np.empty(0)
            state = State(np.asfortranarray(theta[rows]), nothing, nothing, nothing)
            items.append(Item(block.first, block.size, self.step, 0, self.eps, state, nothing))
        seen = together(self.ledger.run(self.task, items, "distance"), "rows")
        self.step += 1
        seen = seen[~np.isnan(seen[:, 0])]
        if len(seen) < 2:
            return
        before = self.measured(particles.distances)
        distance = model.distance.relearnt(seen, model.observed_row)
        eps = self.eps / float((distance.scale / model.distance.scale).max())
        model = model.with_distance(distance)
        kept = particles.distances[:, before.shape[1] :].reshape(*before.shape, -1)
        distances = model.distances(Simulated(kept.copy(), int(np.isnan(kept[:, :, 0]).sum())))
        with np.errstate(invalid="ignore"):
            log_ratio = self.kernel.with_eps(eps).log_average(distances) - np.maximum(
                self.kernel.with_eps(self.eps).log_average(before), -1e300
            )
        weight = np.where(particles.weight > 0, particles.weight * np.exp(np.minimum(log_ratio, 0.0)), 0.0)
        if effective(weight) < SHARE * self.count:
            return
        self.estimator = self.estimator.with_model(model)
        self.task = Moves(self.estimator, self.seed)
        wide = np.concatenate([distances, particles.distances[:, before.shape[1] :]], axis=1)
        self.particles = particles._replace(distances=wide, weight=weight / weight.sum())
        self.eps, self.chains = eps, None
        self.scales.append(np.asarray(distance.scale).tolist())

    # --- joins ---------------------------------------------------------------------------------------------

    def lower(self, eps: float) -> None:
        """The same particles at a smaller tolerance."""
        assert self.particles is not None
        distances = self.measured(self.particles.distances)
        weight = reweighted(self.kernel, self.eps, eps, distances, self.particles.weight)
        self.particles = self.particles._replace(weight=weight / weight.sum())
        self.eps, self.chains = eps, None
        self.stages += 1

    def resample(self) -> None:
        """Chains that begin at particles drawn by their weights, each with its own pseudo-samples."""
        particles = self.particles
        assert particles is not None
        u = Rng(self.seed, Phase.SEQUENCE, 0, self.stages).bulk(Purpose.ACCEPT).random()
        ancestor = systematic(particles.weight, self.count, u)
        distances = particles.distances[ancestor]
        state = State(
            particles.theta[ancestor],
            particles.log_prior[ancestor],
            self.kernel.with_eps(self.eps).log_average(self.measured(distances)),
            distances,
        )
        prior = self.estimator.prior
        walk = random_walk().resolved(prior, lambda: spread(particles, prior))
        assert walk.root is not None
        moves = {
            "chain": np.empty(0, dtype=np.int64),
            "time": np.empty(0, dtype=np.int64),
            "theta": state.theta[:0],
            "log_prior": state.log_prior[:0],
            "distances": distances[:0],
        }
        self.chains = Chains(particles, state, ancestor, walk.root, self.step, self.step, moves, 0, 0)

    def harvest(self) -> Particles:
        """All states that the chains have visited, weighted by the time spent there: particles at this tolerance."""
        chains = self.chains
        assert chains is not None
        before, moves = chains.origin, chains.moves
        at_start, after = occupation(moves["chain"], moves["time"], self.count, chains.begin, chains.end + 1)
        # Chains that began at the same particle waited there together.
        origin, member = np.unique(chains.ancestor, return_inverse=True)
        weight = np.concatenate([np.bincount(member, at_start), after.astype(float)])
        which = np.concatenate([np.arange(origin.size), member[moves["chain"]]])
        return Particles(
            np.concatenate([before.theta[origin], moves["theta"]]),
            np.concatenate([before.log_prior[origin], moves["log_prior"]]),
            np.concatenate([before.distances[origin], moves["distances"]]),
            weight / weight.sum(),
            origin[which],
            before.group[origin][which],
        )

    def settle(self) -> None:
        """End the stage: the chains' states become the particles, unless those before are worth more still."""
        chains, particles = self.chains, self.particles
        assert particles is not None
        if chains is None or chains.end == chains.begin:
            self.path.append(Stage(self.eps, math.nan, 0, 0, effective(particles.weight)))
            return
        proposals = self.count * (chains.end - chains.begin)
        self.rate = chains.accepted / proposals
        self.worth = max(chains.simulations, 1) / (proposals * self.estimator.pseudo_samples)
        found = self.harvest()
        if effective(found.weight) >= effective(particles.weight):
            self.particles = found
        ess = effective(self.particles.weight) if self.particles is not None else math.nan
        self.path.append(Stage(self.eps, self.rate, proposals, chains.simulations, ess))

    # --- decisions -----------------------------------------------------------------------------------------

    def affordable(self, limit: int | None) -> float:
        """Steps that the rest of the budget pays for in the worst case."""
        if limit is None:
            return math.inf
        return (limit - self.ledger.cost.simulations) // (self.count * self.estimator.pseudo_samples)

    def next_eps(self, target: float | None, limit: int | None) -> float:
        """The tolerance of the next stage, or the present one where lowering it is not worthwhile.

        Where the budget would not pay for the moves of the stage, it is lowered less.
        """
        particles = self.particles
        assert particles is not None
        arguments = self.kernel, self.eps, self.measured(particles.distances), particles.weight
        eps = tolerance_with(*arguments, SHARE * self.count)
        if limit is not None and math.isfinite(self.eps):
            left = max(limit - self.ledger.cost.simulations, 1)
            needed = MOVES * self.count * self.estimator.pseudo_samples * self.worth / max(self.rate, self.least)
            eps = max(eps, tolerance_keeping(*arguments, min(needed / left, 1.0)))
        if target is not None and eps <= target:
            # The rule would go further: stop at the tolerance asked for.
            return min(target, self.eps)
        kept = float(reweighted(*arguments[:2], eps, *arguments[2:]).sum()) if eps < self.eps else 1.0
        return eps if kept <= WORTHWHILE else self.eps

    def stage(self, limit: int | None, moves: float) -> str:
        """Move the chains until there were `moves` moves for each: "done", "budget" or "collapsed"."""
        assert self.chains is not None
        expected = max(self.rate, self.least)
        wanted = moves * self.count
        while True:
            chains = self.chains
            taken = chains.end - chains.begin
            if chains.accepted >= wanted:
                return "done"
            if self.count * taken * self.least >= 10 and chains.accepted < self.least * self.count * taken:
                return "collapsed"
            rate = (chains.accepted + 1) / (self.count * taken + 1 / expected)
            ahead = math.ceil(min((wanted - chains.accepted) / (self.count * rate), 2.0 * max(taken, 1)))
            steps = int(min(max(ahead, 1), self.longest, self.affordable(limit)))
            if steps < 1:
                return "budget"
            self.move(steps)

    def begun(self) -> bool:
        """Whether there are particles."""
        return self.particles is not None

    def bank(self) -> None:
        """Simulations that were rejected are not kept."""

    def run(self) -> str:
        """Follow the falling tolerance under each budget in turn: why it ended."""
        reason = "budget"
        for limit in self.ledger.limits:
            if self.particles is None:
                self.draw()
            reason = self._until(self.target, limit)
            if reason in REACHED:
                break
        return reason

    def _until(self, target: float | None, limit: int | None) -> str:
        while True:
            if self.chains is not None and is_adaptive(self.estimator.model) and not self._reached(target):
                self.relearn(limit)
            eps = self.next_eps(target, limit)
            if eps < self.eps:
                self.lower(eps)
                self.resample()
                ended = self.stage(limit, LAST_MOVES if eps == target else MOVES)
                self.settle()
                if ended != "done":
                    return ended
                continue
            if self._reached(target) and self.chains is not None:
                return "eps"
            if not self._can_fall():
                return "exact"
            fresh = self.chains is None
            if fresh:
                self.stages += 1
                self.resample()
            assert self.chains is not None
            # Too few distinct particles, or too little left, for a smaller tolerance: more moves at this one.
            before = self.chains.end
            ended = self.stage(limit, self.chains.accepted / self.count + MOVES / 2)
            if self.chains.end > before:
                if not fresh:
                    self.path.pop()
                self.settle()
            if ended != "done":
                return ended

    def _reached(self, target: float | None) -> bool:
        return target is not None and self.eps <= target

    def found(self, reason: str) -> Found:
        """What the run has found, wherever it was stopped."""
        assert self.particles is not None
        target, notes = self.target, []
        resolved = {"distance": distance_setting(self.estimator.model)}
        if self.scales:
            resolved["scales"] = self.scales
        if math.isinf(self.eps):
            eps = self.next_eps(target, None)
            if math.isfinite(eps):
                self.lower(eps)
        if math.isinf(self.eps):
            notes.append("every simulation failed: there are no draws")
            empty = nothing_found(self.estimator.prior.dim, self.estimator.pseudo_samples, self.ledger.cost, resolved)
            return replace(empty, failures=tuple(self.ledger.failures), notes=tuple(notes))
        if not self.path or self.path[-1].eps != self.eps or reason not in (*REACHED, "budget"):
            if self.path and self.path[-1].eps == self.eps:
                self.path.pop()
            self.settle()
        if reason == "collapsed":
            notes.append(
                f"stopped at eps = {self.eps:.4g} since fewer than {self.least:g} of the moves were accepted; a "
                "smaller least_acceptance goes further"
            )
        if reason == "exact":
            notes.append(f"every simulation matches the data exactly (distance 0): no eps below {self.eps:.4g} differs")
        if target is not None and self.eps > target:
            notes.append(f"eps = {target:g} was not reached: the run ended at eps = {self.eps:.4g}")
        rate, error = self._acceptance()
        return Found(
            self.particles.theta, self.particles.weight, self.measured(self.particles.distances),
            self.particles.family, self.eps, rate, error, tuple(self.path), self.ledger.cost,
            tuple(self.ledger.failures), resolved, tuple(notes),
        )  # fmt: skip

    def _acceptance(self) -> tuple[float, float]:
        """Acceptance rate of the last stage, and its error from what differs between the chains."""
        chains = self.chains
        if chains is None or chains.end == chains.begin:
            return math.nan, math.nan
        each = np.bincount(chains.moves["chain"], minlength=self.count) / (chains.end - chains.begin)
        return float(each.mean()), float(each.std(ddof=min(1, self.count - 1)) / math.sqrt(self.count))

    def _can_fall(self) -> bool:
        assert self.particles is not None
        alive = self.measured(self.particles.distances)[self.particles.weight > 0]
        return bool((alive[np.isfinite(alive)] > 0).any())


def default_particles(budget: int | None, pseudo_samples: int, batched: bool) -> int:
    """Chains that fit a budget: about twice its root, so that more simulations also mean a smaller tolerance.

    >>> [default_particles(budget, 1, False) for budget in (10, 100, 10_000, 1_000_000)]
    [5, 20, 200, 2000]
    """
    if budget is None:
        return DEFAULT_PARTICLES[batched]
    estimates = budget // pseudo_samples
    return max(1, min(max(1, estimates // 2), int(2 * math.sqrt(estimates))))


def smc(
    model: Model,
    *,
    particles: int | None = None,
    budget: int | None = None,
    eps: float | None = None,
    kernel: Callable[[float], Kernel] | Kernel | None = None,
    pseudo_samples: int = 1,
    least_acceptance: float = 1e-4,
    seed: int | None = None,
    on_error: str = "reject",
    max_seconds: float | None = None,
    workers: int | None = None,
    executor: Any = None,
    engine: str | None = None,
    timeout: float | None = None,
    store: Any = None,
    segment: float = 30.0,
    progress: Show = None,
) -> Posterior:
    """Weighted draws from pi_K at a tolerance that the run finds by itself, by sequential ABC.

    Particles from the prior follow a falling tolerance, moved by Algorithm 2 with one pseudo-sample (docs/theory.md).
    It ends at `eps`, when the budget is spent, or when the acceptance rate collapses, and its draws are valid at
    `settings["eps"]`, the tolerance it has reached then. `path` of the Posterior has a stage for each tolerance.

    Tolerances, the walk's scale and the number of moves are chosen from the particles themselves, as in every adaptive
    sequential sampler: the draws are consistent as the number of particles grows, with a bias of order 1/particles.
    A distance `od.scaled(adapt=True)` is learnt again after every stage, from one simulation at each of as many
    particles; `eps` and the path are then in units that change on the way, and `settings["distance"]` has the last.
    Errors are estimated from families of particles with a common ancestor.

    Parameters
    ----------
    model
        What to simulate.
    particles
        Chains that run side by side, and draws from the prior at the start. By default about 2 sqrt(budget / M).
    budget
        The most simulations, pilot included: never passed.
    eps
        The tolerance at which the run may end. `budget` or `eps` or both: whichever comes first.
    kernel
        A function of eps that gives a kernel: `od.uniform` (the default), `od.gaussian`, ...
    pseudo_samples
        M, the pseudo-samples of one estimate. One is within a factor two of the best (docs/theory.md, L5).
    least_acceptance
        The acceptance rate of moves below which the run ends.
    seed, on_error, max_seconds, workers, executor, engine, timeout, store, segment, progress
        As in every sampler: see `od.rejection`.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> post = od.smc(model, budget=50_000, seed=1)
    >>> post.settings["eps"] < 0.2, post.cost.simulations <= 50_000
    (True, True)
    >>> abs(post.summary()["theta"].mean - 1.0) < 0.2
    True
    """
    shared = Shared.checked(locals())
    check_model(model)
    family = kernel_family(kernel)
    model = model.limited(timeout)
    budget = optional_whole_number("budget", budget, "the largest number of simulations")
    particles = optional_whole_number("particles", particles, "the number of chains that run side by side")
    pseudo_samples = whole_number("pseudo_samples", pseudo_samples, "the number M of pseudo-samples at one theta")
    if eps is not None:
        eps = positive("eps", eps, EPS_MEANING)
    if budget is None and eps is None:
        raise ValueError("give budget=, eps= or both: one of them must end the run")
    left = None if budget is None else budget - model.pilot
    if particles is None:
        particles = default_particles(None if left is None else max(left, 1), pseudo_samples, model.batched)
    if left is not None and left > 0 and left < particles * pseudo_samples:
        raise ValueError(
            f"budget = {budget} does not pay for particles = {particles} of pseudo_samples = {pseudo_samples} "
            "simulations each: raise it, or ask for fewer particles"
        )
    least_acceptance = positive("least_acceptance", least_acceptance, "the acceptance rate at which the run ends")
    estimator = AbcAverage(model, family, pseudo_samples, on_error=on_error, keep_distances=True)
    estimator = on_engine(estimator, shared)
    arguments = {
        "eps": eps, "particles": particles, "pseudo_samples": pseudo_samples, "budget": budget,
        "least_acceptance": least_acceptance, **shared.identity(estimator),
    }  # fmt: skip
    return run_in_rounds("smc", shared, estimator, arguments, Sequence)
