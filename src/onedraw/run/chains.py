"""What all chain samplers share: starts, steps within a budget, and the result of a run.

A run is: pilot simulations of the distance, starting states, then rounds of steps in which all chains take part.
A round takes as many steps as the rest of the budget pays for in the worst case; what early rejection saved is spent
in the next round, until less than one proposal per chain is left. So the budget is never passed, draws stay
rectangular, and where a run is cut into blocks, segments or rounds has no influence on any number.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from onedraw.arguments import MOST_AT_ONCE, one_of, optional_whole_number, whole_number
from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.estimators.abc_average import AbcAverage
from onedraw.model.kernels import Kernel
from onedraw.model.model import Model
from onedraw.model.prior import FAMILIES, Prior
from onedraw.proposals.independence import Independence
from onedraw.proposals.lazy import Lazy
from onedraw.proposals.random_walk import RandomWalk
from onedraw.proposals.resolve import resolve
from onedraw.results.monte_carlo_error import MANY
from onedraw.results.posterior import Posterior
from onedraw.run.blocks import cut
from onedraw.run.chain_blocks import ChainDraws, ChainRound, recorded_draws
from onedraw.run.job_array import JobArray
from onedraw.run.lockstep import Advance, Sampler
from onedraw.run.options import Options, check_parts, checked_ends, on_engine
from onedraw.run.pilot import continuation_setting, pilot
from onedraw.run.plan import Decision, Limits, Plan
from onedraw.run.recorded import Recorded
from onedraw.run.result import Result
from onedraw.run.saving import Specification
from onedraw.run.session import Run
from onedraw.run.signals import Stopped
from onedraw.run.specification import specify
from onedraw.run.starts import (
    Start,
    chains_per_block,
    check_start,
    keeps_distances,
    points_in,
    pseudo_samples_of,
    starting_states,
)

PLAIN_CHAINS, BATCHED_CHAINS = 4, 1024
STEPS_PER_SIMULATION = 200
"""The most steps of a chain for each simulation of its share of the budget."""
BATCHES = 32
"""The fewest parts of chains from which the error of the acceptance rate is estimated."""


@dataclass(frozen=True, eq=False)
class Chains:
    """A run of a chain sampler: what every one of them takes, checked, and what makes it this one."""

    algorithm: str
    options: Options
    estimator: Any
    make_sampler: Callable[[Any, Any], Sampler]
    """From the estimator with its distance ready and the proposal with its scale."""
    make_state: Callable[[Start, Array], Any]
    """From the starting draws of a block and their log prior densities."""
    worst: float
    """What one step of one chain costs at most, in the unit of the budget."""
    draws: int | None
    chains: int
    budget: int | None
    thin: int
    start: Any
    proposal: Any
    arguments: Mapping[str, Any]
    """The sampler's own, as the run's file and settings have them."""
    layout: str = "chains"

    def posterior(self) -> Posterior:
        """Carry the run out."""
        arguments = {
            **self.arguments, "draws": self.draws, "budget": self.budget, "chains": self.chains, "thin": self.thin,
            "layout": self.layout, **self.options.identity(self.estimator),
        }  # fmt: skip
        model, kernel = _model_and_kernel(self.estimator)

        def specification() -> Specification:
            found = specify(self.algorithm, self.estimator, arguments, proposal=self.proposal, start=self.start)
            return replace(found, facts={**found.facts, "start": _start_setting(self.start)})

        return Run(
            self.algorithm, arguments, specification, self.options, lambda limits: plan(self, limits),
            self.estimator.prior, kernel, threads=model is not None and model.compiled,
        ).posterior()  # fmt: skip


def chains_for(start: Any, chains: Any, prior: Prior, model: Model | None) -> int:
    """The number of chains: as asked for, as starting points were given, or by what the simulator is."""
    asked = optional_whole_number("chains", chains, "the number of chains run side by side", MOST_AT_ONCE)
    if asked is not None:
        return asked
    return points_in(start, prior) or (BATCHED_CHAINS if model is not None and model.batched else PLAIN_CHAINS)


def run_chains(
    algorithm: str,
    options: Options,
    estimator: Any,
    make_sampler: Callable[[Any, Any], Sampler],
    make_state: Callable[[Start, Array], Any],
    *,
    worst: float,
    arguments: Mapping[str, Any],
    draws: Any,
    budget: Any,
    chains: Any,
    thin: Any,
    start: Any,
    proposal: Any,
    layout: str = "chains",
) -> Posterior:
    """Check what every chain sampler takes, and run it: see `Chains`."""
    draws, budget = checked_ends(draws, budget, "the number of draws kept of each chain")
    model, _ = _model_and_kernel(estimator)
    if model is not None:
        check_parts(model, algorithm, pseudo_samples=pseudo_samples_of(estimator))
    estimator = on_engine(_in_time(estimator, options.timeout), options)
    number = chains_for(start, chains, estimator.prior, model)
    thin = whole_number("thin", thin, "the number of steps between kept draws")
    if one_of("layout", layout, ("chains", "draws")) == "draws" and isinstance(options.executor, JobArray):
        raise ValueError(
            "layout='draws' shares out single simulations, and a job array whole chains: leave layout= out"
        )
    check_start(start, estimator, number)
    check_proposal(proposal, estimator, number)
    return Chains(
        algorithm, options, estimator, make_sampler, make_state, worst, draws, number, budget, thin, start, proposal,
        arguments, layout,
    ).posterior()  # fmt: skip


def plan(run: Chains, limits: list[Limits]) -> Plan[Result]:
    """Pilot, starts, and rounds of steps under each of the limits in turn."""
    rounds: list[ChainDraws] = []
    notes: list[str] = []
    resolved: dict[str, Any] = {"proposal": None, "start": _start_setting(run.start)}
    estimator, reason, spent, ahead, done = run.estimator, "budget", Cost(), 0.0, 0
    units: Array | None = None
    try:
        model, kernel = _model_and_kernel(estimator)
        if model is not None and model.pair is not None:
            model = model.for_budget(limits[0].budget)
            estimator = estimator.with_model(model)
        if model is not None and model.ahead:
            ahead = model.ahead
            ready = yield from pilot(model, run.options.seed, limits[-1].budget, run.options.on_error, kernel)
            estimator, model = estimator.with_model(ready), ready
        if model is not None and model.pair is not None:
            resolved |= continuation_setting(model)
        left = None if limits[-1].budget is None else limits[-1].budget - ahead
        start = yield from starting_states(run.start, estimator, run.chains, run.options.seed, left)
        notes += [start.note] if start.note else []
        if len(start.theta) < run.chains:
            notes.append(_too_few(len(start.theta), run.chains, start.cost))
        else:
            prior, spent = estimator.prior, spent.plus(start.cost)
            rng = Rng(run.options.seed, Phase.START).bulk(Purpose.MOVE)
            proposal = resolve(run.proposal, prior, lambda: spread_of(start.spread, prior, rng))
            resolved["proposal"] = {**proposal.described(), "nonnegative": known_nonnegative(proposal)}
            units = units_of_many(start.units)
            kept = {} if units is None else {"units": units}
            yield Decision("ready", lambda: ({"settings": dict(resolved), "notes": list(notes)}, kept))
            blocks = list(cut(run.chains, chains_per_block(estimator, run.chains)))
            log_prior = prior.logpdf(start.theta)
            states = [run.make_state(start.part(one), log_prior[one.first : one.first + one.size]) for one in blocks]
            sampler = run.make_sampler(estimator, proposal)
            for limit in limits:
                while True:
                    steps, reason = affordable(run, limit, done, ahead + _units(estimator, spent))
                    if steps == 0:
                        break
                    task = Advance(
                        sampler, run.options.seed, run.thin, max(1, math.ceil(BATCHES / run.chains)),
                        (done, done + steps), keeps_distances(estimator),
                    )  # fmt: skip
                    wanted = None if limit.draws is None else limit.draws * run.thin
                    found = yield ChainRound(
                        task, blocks, states, done, steps, run.worst, run.algorithm, wanted, limit.budget,
                        run.layout == "draws",
                    )  # fmt: skip
                    rounds.append(found)
                    states, done, spent = found.states, done + found.steps, spent.plus(found.cost)
    except Stopped as stopped:
        reason = stopped.reason
        if isinstance(stopped.partial, ChainDraws):
            rounds.append(stopped.partial)
            done += stopped.partial.steps
            spent = spent.plus(stopped.partial.cost)
        elif stopped.partial is not None and "theta" in stopped.partial.arrays and not rounds:
            found_so_far = min(len(stopped.partial.arrays["theta"]), run.chains)
            if found_so_far < run.chains:
                notes.append(_too_few(found_so_far, run.chains, stopped.partial.cost))
    budget = limits[-1].budget
    if budget is not None and done > STEPS_PER_SIMULATION * budget // run.chains - run.thin:
        notes.append(
            f"stopped with {budget - ahead - _units(estimator, spent):,.0f} simulations unspent: hardly any of "
            f"{done:,} steps proposed what was worth simulating; use smaller steps"
        )
    model, kernel = _model_and_kernel(estimator)
    keep = keeps_distances(estimator) and kernel is not None
    dim = estimator.prior.dim
    return replace(result_of(rounds, run.chains, dim, keep, reason, resolved, notes, units), model=model)


def units_of_many(units: Array | None) -> Array | None:
    """What tells chains apart whose starts are independent, if there are many chains, and fewer such starts.

    The means of many chains give the error of an estimate, and those of chains that start from one draw go together.
    """
    if units is None or len(units) < MANY or len(np.unique(units)) == len(units):
        return None
    return units


def _too_few(found: int, chains: int, cost: Cost) -> str:
    return (
        f"only {found} of {chains} chains found a starting point in {cost.simulations:,} simulations: raise eps or the "
        "budget, or ask for fewer chains"
    )


def affordable(run: Chains, limit: Limits, done: int, spent: float) -> tuple[int, str]:
    """Steps that can be taken for certain, a multiple of thin, and why the run ends if there are none."""
    wanted = None if limit.draws is None else limit.draws * run.thin
    if wanted is not None and done >= wanted:
        return 0, "finished"
    if limit.budget is None:
        assert wanted is not None
        return wanted - done, "finished"
    steps = int((limit.budget - spent) // (run.chains * run.worst))
    # Proposals that are all rejected unseen spend nothing, and would go on for ever.
    steps = min(steps, STEPS_PER_SIMULATION * limit.budget // run.chains - done)
    steps -= steps % run.thin
    if wanted is not None:
        steps = min(steps, wanted - done)
    return max(steps, 0), "budget"


def result_of(
    rounds: list[ChainDraws], chains: int, dim: int, keep_distances: bool, reason: str, settings: Mapping[str, Any],
    notes: list[str], units: Array | None,
) -> Result:  # fmt: skip
    """The result of rounds of steps; `units` (chains,) are equal for chains that are not independent of each other."""
    theta = _joined([one.theta for one in rounds], (0, chains, dim))
    distances = None
    if keep_distances:
        some = [one.distances for one in rounds if one.distances is not None]
        distances = _joined(some, (0, chains, 1)).transpose(1, 0, 2)
    rate, error = acceptance(rounds)
    capped = sum(one.capped for one in rounds)
    if capped:
        notes = [
            *notes,
            f"{capped:,} steps reached the limit of draws and were rejected for it, which biases the posterior: raise "
            "max_draws or eps",
        ]
    return Result(
        theta.transpose(1, 0, 2), distances, reason, f"{chains} x {len(theta):,} draws", rate, error, settings,
        tuple(notes), independent=False,
        groups=None if units is None else np.broadcast_to(units[:, None], (chains, len(theta))),
    )  # fmt: skip


def recorded_chains(run: Recorded) -> Result:
    """The result so far of a run of chains that a file holds."""
    by_round = groupby(run.segments("run"), key=lambda record: record.scalars["round"])
    rounds = [recorded_draws(list(records)) for _, records in by_round]
    ready, finished = run.decision("ready"), run.finished
    settings = {"proposal": None, "start": run.facts["start"]} if ready is None else ready.scalars["settings"]
    notes = finished if finished is not None else ready
    keep = "kernel" in run.arguments and run.arguments.get("keep") != "draws"
    units = None if ready is None else ready.arrays.get("units")
    found = result_of(
        rounds, run.arguments["chains"], run.columns.layout.size, keep, "unfinished", settings, [], units
    )  # fmt: skip
    return replace(found, notes=() if notes is None else tuple(notes.scalars["notes"]))


def acceptance(rounds: list[ChainDraws]) -> tuple[float, float]:
    """Moves over proposals, with the error of that ratio from batches of steps of the chains.

    A batch is a chain, or a part of one if there are few chains.
    """
    if not rounds:
        return math.nan, math.nan
    accepted = np.concatenate([one.accepted for one in rounds])
    proposals = np.concatenate([one.proposals for one in rounds])
    total = int(proposals.sum())
    if total == 0:
        return math.nan, math.nan
    rate = accepted.sum() / total
    wanted = max(1, math.ceil(BATCHES / accepted.shape[1]))
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


def spread_of(near: Array, prior: Prior, rng: np.random.Generator) -> Array:
    """The covariance of draws (n, dim) near the posterior; of the prior if there are too few of them."""
    pool = near
    if len(np.unique(near, axis=0)) < max(10, 2 * prior.dim):
        pool = prior.sample(rng, 1000)
    return np.atleast_2d(np.cov(pool, rowvar=False))


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


def check_proposal(proposal: Any, estimator: Any, chains: int) -> None:
    """A ValueError, before anything is simulated, if a proposal does not fit the parameters or the engine.

    It is resolved with a stand-in for the covariance that starts would give, and moves prior draws once, as many as
    there are chains in a block. On a device only its distribution is looked at: its program is built there.
    """
    prior = estimator.prior
    resolved = resolve(proposal, prior, lambda: np.eye(prior.dim))
    if getattr(estimator, "engine", None) is None:
        rng = np.random.Generator(np.random.SFC64(0))
        theta = prior.sample(rng, min(chains, chains_per_block(estimator, chains)))
        resolved.propose(rng, theta, prior.logpdf(theta))
        return
    inner = resolved.proposal if isinstance(resolved, Lazy) else resolved
    if isinstance(inner, Independence) and not inner.distribution.on_device:
        raise ValueError(
            f"engine='{estimator.engine}' has no JAX form of the proposal's distribution {inner.distribution!r}: it "
            f"takes {', '.join(FAMILIES)} with bounded densities, or write the proposal as a function with jax.numpy"
        )


def known_nonnegative(proposal: Any) -> bool:
    """Whether Q_M >= 0 is known for a proposal that is ready for use (docs/theory.md); False if it is not known.

    It is for independence proposals, for Gaussian random walks without rounded increments (those of discrete
    parameters are rounded), and for chains held with probability 1/2 or more. The type decides: a proposal of the
    user's own may have any name.
    """
    if type(proposal) is Lazy:
        return proposal.hold >= 0.5 or known_nonnegative(proposal.proposal)
    if type(proposal) is RandomWalk:
        return proposal.prior is not None and not proposal.prior.discrete.any()
    return type(proposal) is Independence


def _units(estimator: Any, cost: Cost) -> float:
    """What was spent, in the unit of the budget."""
    model, _ = _model_and_kernel(estimator)
    return cost.simulations if model is None else model.units(cost)


def _model_and_kernel(estimator: Any) -> tuple[Model | None, Kernel | None]:
    if isinstance(estimator, AbcAverage):
        return estimator.model, estimator.kernel
    inner = getattr(estimator, "estimator", None)
    return (inner.model, None) if isinstance(inner, AbcAverage) else (None, None)
