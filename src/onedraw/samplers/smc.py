"""Sequential ABC: particles from the prior follow a falling tolerance to the data.

The particles of a stage are all states that N chains of Algorithm 2 have visited, each weighted by the time spent
there. A stage:

1. *lower*: eps' < eps is the least at which the effective number of particles is still N/2; a particle with distances
   d_1..d_M gets its weight times mean K_eps'(d_i) / mean K_eps(d_i), which makes them particles of pi_K at eps';
2. *resample*: N starts are drawn from them by their weights (the tolerance is lowered until the weights have
   degenerated to N/2, so there is always need), each with its own pseudo-samples;
3. *move*: all chains step side by side at eps' until there were MOVES moves per chain on average, however many steps
   that takes, with a random walk scaled from the particles and early rejection. The estimate of a state is carried,
   never refreshed, so the chains keep pi_K at eps'.

All visited states are kept, so no accepted simulation is thrown away within a stage. A stage that ends early has fewer
steps and is as valid; before the first step the reweighted particles of the last one are the answer.

Reference: Del Moral, Doucet and Jasra (2012); Drovandi and Pettitt (2011) for the number of moves; Dau and Chopin
(2022) for keeping all states.
"""

import math
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np

from onedraw.arguments import MOST_AT_ONCE, checked_pseudo_samples, optional_whole_number, positive, share
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.estimators.abc_average import AbcAverage
from onedraw.estimators.protocol import evaluate
from onedraw.estimators.tolerances import kernel_asked, reweighted, tolerance_keeping, tolerance_with
from onedraw.model.kernels import Kernel
from onedraw.model.model import Model
from onedraw.proposals.random_walk import RandomWalk
from onedraw.results.posterior import Posterior
from onedraw.run.options import Options, RunOptions, check_parts, on_engine
from onedraw.run.pilot import pilot
from onedraw.run.plan import Limits, Outcome, Plan
from onedraw.run.population import (
    REACHED,
    ParticleBlock,
    Population,
    Schedule,
    carried,
    default_particles,
    first_population,
    lowered,
    result_of,
    settings_of,
    stage_ended,
    visited,
)
from onedraw.run.registry import sampler
from onedraw.run.result import Result, nothing
from onedraw.run.sequence import Course, closed, drawn, entered, relearning, stepped
from onedraw.run.session import Run
from onedraw.run.signals import Stopped
from onedraw.run.specification import specify
from onedraw.samplers.pseudo_marginal import PseudoMarginal, State

PLAIN_STEPS, BATCHED_STEPS = 4, 64
"""Most steps between two looks at the acceptance rate."""
MOVES = 2.0
"""Accepted moves per chain that end a stage."""
LAST_MOVES = 6.0
"""The same for the stage at the tolerance asked for: its states are the draws that are returned."""
SHARE = 0.5
"""Effective number of particles, as a share of the chains, down to which the tolerance is lowered."""
WORTHWHILE = 0.95
"""A tolerance is lowered so that at most this share of the weight is left, or not at all."""


@dataclass(frozen=True, eq=False)
class Moves:
    """The pure task of a sequential run: draw particles from the prior, or move chains at one tolerance.

    With no steps to take it simulates once at each state, for a distance to learn its scale from.
    """

    estimator: AbcAverage
    seed: int

    def __call__(self, item: ParticleBlock) -> Outcome:
        rng = Rng(self.seed, Phase.SEQUENCE, item.first, item.step)
        if item.states is None:
            theta = self.estimator.prior.sample(rng.bulk(Purpose.PRIOR), item.size)
            once = replace(self.estimator, early=False)
            result = evaluate(carried(once), rng, theta, None)
            arrays = {"theta": theta, "distances": result.distances}
        elif item.steps == 0:
            probe = replace(self.estimator, pseudo_samples=1, early=False, keep_rows=True)
            result = probe.evaluate(rng, item.states["theta"], None)
            assert result.rows is not None
            arrays = {"rows": result.rows[:, 0, :]}
        else:
            estimator = replace(self.estimator, kernel=self.estimator.kernel.with_eps(item.eps))
            walk, draws = RandomWalk(None, None, item.root, estimator.prior), estimator.pseudo_samples
            sampler = PseudoMarginal(carried(estimator), walk, True, draws)
            return visited(sampler, rng, State(**item.states), item)
        return Outcome(arrays, result.cost._replace(proposals=item.size), result.failures, result.ignored_rng)


def relearns(now: Population, budget: int | None) -> bool:
    """Whether the distance is to be learned again before the next stage."""
    due = now.adaptive and now.chains is not None and not now.schedule.reached(now.eps)
    return due and affordable(now, budget) >= 2


def affordable(now: Population, budget: int | None) -> float:
    """Steps that the rest of the budget pays for in the worst case."""
    if budget is None:
        return math.inf
    return (budget - now.spent - now.late) // (now.schedule.chains * now.estimator.worst)


def next_eps(now: Population, budget: int | None) -> float:
    """The tolerance of the next stage, or the present one if lowering it is not worthwhile.

    If the budget would not pay for the moves of the stage, it is lowered less.
    """
    kernel, distances, weight, schedule = now.estimator.kernel, now.distances, now.particles.weight, now.schedule
    # Of the draws from the prior the first may be known alone.
    number = len(weight) if math.isinf(now.eps) else schedule.chains
    eps = tolerance_with(kernel, now.eps, distances, weight, SHARE * number)
    if budget is not None and math.isfinite(now.eps):
        rate = max(now.rate, schedule.least_acceptance)
        needed = MOVES * schedule.chains * now.estimator.pseudo_samples * now.simulated / rate
        left = budget - now.spent - now.late * min(now.simulated, 1.0)
        share = min(needed / max(left, 1), 1.0)
        eps = max(eps, tolerance_keeping(kernel, now.eps, distances, weight, share))
    if schedule.target is not None and eps <= schedule.target:
        # The rule would go further: stop at the tolerance asked for.
        return min(schedule.target, now.eps)
    if math.isinf(now.eps):
        # Chains need a tolerance, if only one beyond all distances: most simulations may have failed.
        return eps
    kept = float(reweighted(kernel, now.eps, eps, distances, weight).sum()) if eps < now.eps else 1.0
    return eps if kept <= WORTHWHILE else now.eps


def next_stage(now: Population, budget: int | None) -> tuple[float, float, str]:
    """The tolerance of the next stage, the moves per chain that end it, and why the run ends instead, if it does."""
    eps = next_eps(now, budget)
    if eps < now.eps:
        return eps, LAST_MOVES if eps == now.schedule.target else MOVES, ""
    if now.schedule.reached(now.eps) and now.chains is not None:
        return eps, 0.0, "eps"
    alive = now.distances[now.particles.weight > 0]
    if not (alive[np.isfinite(alive)] > 0).any():
        return eps, 0.0, "exact"
    # Too few distinct particles, or too little left, for a smaller tolerance: more moves at this one.
    done = 0.0 if now.chains is None else now.chains.accepted / now.schedule.chains
    return eps, done + MOVES / 2, ""


def next_steps(now: Population, moves: float, budget: int | None) -> tuple[int, str]:
    """Steps to take next in a stage that ends at so many moves per chain, or why it ends."""
    chains, n, least = now.chains, now.schedule.chains, now.schedule.least_acceptance
    assert chains is not None
    rate = (chains.accepted + 1) / (chains.proposals + 1 / max(now.rate, least))
    # The last chains may be on their way: their moves are those to be expected.
    steps = chains.steps + chains.ahead
    accepted = chains.accepted + (n * steps - chains.proposals) * rate
    if accepted >= moves * n:
        return 0, "done"
    if chains.proposals * least >= 10 and chains.accepted < least * chains.proposals:
        return 0, "collapsed"
    ahead = math.ceil(min((moves * n - accepted) / (n * rate), 2.0 * max(steps, 1)))
    longest = BATCHED_STEPS if now.estimator.model.batched else PLAIN_STEPS
    steps = int(min(max(ahead, 1), longest, affordable(now, budget)))
    return (steps, "") if steps >= 1 else (0, "budget")


def plan(estimator: AbcAverage, schedule: Schedule, limits: list[Limits]) -> Plan[Result]:
    """Follow the falling tolerance under each budget in turn."""
    course, reason, estimator = None, "budget", estimator.with_model(estimator.model.for_budget(limits[0].budget))
    try:
        kernel = estimator.kernel if schedule.target is None else estimator.kernel.with_eps(schedule.target)
        model = yield from pilot(estimator.model, schedule.seed, limits[0].budget, estimator.on_error, kernel)
        spent, estimator = estimator.model.ahead, estimator.with_model(model)
        course = yield from drawn(Moves, estimator, schedule, spent)
        for _, budget in limits:
            reason = ""
            while not reason:
                now = course.seen if course.seen.chains is None else stage_ended(course.seen)
                same = now.chains is not None and now.particles is course.seen.particles
                if course.taken is not None and (same or relearns(now, budget)):
                    course = yield from closed(Moves, course)
                    continue
                if relearns(now, budget):
                    now = yield from relearning(Moves, now, SHARE * schedule.chains)
                eps, moves, reason = next_stage(now, budget)
                if (reason or eps == now.eps) and course.taken is not None:
                    # A run ends, or stays where it is, by all that it knows.
                    course, reason = (yield from closed(Moves, course)), ""
                    continue
                course = Course(now) if reason else entered(course, now, eps)
                while not reason:
                    steps, reason = next_steps(course.seen, moves, budget)
                    if steps:
                        course = yield from stepped(Moves, course, steps)
                    elif reason != "done" and course.taken is not None:
                        course, reason = (yield from closed(Moves, course)), ""
                reason = "" if reason == "done" else reason
            if reason in REACHED:
                break
    except Stopped as stopped:
        reason, late = stopped.reason, stopped.partial
        if course is not None:
            course = Course(course.stopped(None if late is None else late.before))
        elif late is not None and "distances" in late.arrays:
            course = Course(first_population(schedule, estimator, 0, late))
    if course is None:
        settings, model = settings_of(schedule, estimator.model), estimator.model
        return nothing(model.prior.dim, reason, settings=settings, eps=math.nan, model=model)
    now = course.seen
    if math.isinf(now.eps) and math.isfinite(eps := next_eps(now, None)):
        now = lowered(now, eps)
    return result_of(now, reason)


@sampler()
def smc(
    model: Model,
    *,
    particles: int | None = None,
    budget: int | None = None,
    kernel: Kernel | None = None,
    pseudo_samples: int = 1,
    least_acceptance: float = 1e-4,
    **options: Unpack[RunOptions],
) -> Posterior:
    """Weighted draws from pi_K by sequential ABC, at a tolerance that the run finds itself.

    Particles from the prior follow a decreasing tolerance, moved by Algorithm 2 (docs/theory.md).
    The run ends at the tolerance of the kernel, when the budget is spent, or when the acceptance rate collapses. Its
    draws are valid at `settings["eps"]`, the tolerance that it has reached. `path` of the Posterior has a stage for
    each tolerance.

    Tolerances, the walk's scale and the number of moves are chosen from the particles themselves, as in every adaptive
    sequential sampler: the draws are consistent as the number of particles grows, with a bias of order 1/particles.
    A distance `od.scaled(adapt=True)` is learned again after every stage, from one simulation at each of as many
    particles; the units of `eps` and the path then change during the run, and `settings["distance"]` has the last.
    Errors are estimated from families of particles with a common ancestor.

    Parameters
    ----------
    model
        What to simulate.
    particles
        Number of chains, and of draws from the prior at the start. By default about 2 sqrt(budget / M), with the first
        budget of the run if it is raised later.
    budget
        The largest number of simulations, pilot included; never exceeded.
    kernel
        `od.uniform()` (the default), `od.gaussian()`, ...; with a tolerance, as `od.uniform(0.1)`, the run ends when it
        is reached. A budget or a tolerance or both: whichever comes first.
    pseudo_samples
        M, the pseudo-samples of one estimate. One is within a factor two of the best (docs/theory.md, L5).
    least_acceptance
        The acceptance rate of moves below which the run ends.
    **options
        As in every function that simulates: see `RunOptions` (seed, workers, executor, engine, timeout, store,
        segment, progress, max_seconds, on_error).

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
    checked = Options.checked(options)
    kernel = kernel_asked(kernel)
    budget = optional_whole_number("budget", budget, "the largest number of simulations")
    particles = optional_whole_number("particles", particles, "the number of chains side by side", MOST_AT_ONCE)
    pseudo_samples = checked_pseudo_samples(pseudo_samples)
    if budget is None and kernel.eps is None:
        raise ValueError("give budget=, a kernel with a tolerance or both: one of them must end the run")
    check_parts(model, "smc", pseudo_samples=pseudo_samples, kernel=kernel)

    def chains_for(first: int | None) -> tuple[int, int | None]:
        """Particles of a run that begins with this budget, and the simulations that it pays for."""
        left = None if first is None else int((first - model.for_budget(first).ahead) // model.worst)
        fit = default_particles(None if left is None else max(left, 1), pseudo_samples, model.batched)
        return fit if particles is None else particles, left

    number, left = chains_for(budget)
    if left is not None and 0 < left < number * pseudo_samples:
        raise ValueError(
            f"budget = {budget} does not cover particles = {number} of pseudo_samples = {pseudo_samples} "
            "simulations each: raise it, or ask for fewer particles"
        )
    meaning = "the acceptance rate at which the run ends"
    least_acceptance = share("least_acceptance", positive("least_acceptance", least_acceptance, meaning), meaning)
    family = kernel.with_eps(1.0)
    estimator = AbcAverage(model.limited(checked.timeout), family, pseudo_samples, on_error=checked.on_error)
    estimator = on_engine(estimator, checked)
    arguments = {
        "eps": kernel.eps, "particles": particles, "pseudo_samples": pseudo_samples, "budget": budget,
        "least_acceptance": least_acceptance, **checked.identity(estimator),
    }  # fmt: skip

    def begin(limits: list[Limits]) -> Plan[Result]:
        # A run that goes on with a larger budget keeps the particles that it has.
        chains, _ = chains_for(limits[0].budget)
        return plan(estimator, Schedule(chains, kernel.eps, least_acceptance, checked.seed), limits)

    return Run(
        "smc", arguments, lambda: specify("smc", estimator, arguments), checked, begin, model.prior, kernel,
        threads=model.compiled,
    ).posterior()  # fmt: skip
