"""What a step of a chain costs in seconds: the step's own overhead, a set-up, a draw.

Whole steps at several M are timed in turns, so that a busy machine disturbs all of them alike, and the seconds are
split by least squares into prices for what each step did. Errors come from leaving out one turn at a time.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from onedraw.arguments import seed_or_fresh
from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Rng
from onedraw.engines.threads import one_blas_thread
from onedraw.estimators.average import AbcAverage
from onedraw.model.kernels import Kernel
from onedraw.model.model import Model
from onedraw.proposals.proposals import resolve
from onedraw.results.efficiency import Estimate, estimate
from onedraw.results.posterior import Posterior
from onedraw.run.blocks import Deadline
from onedraw.run.lockstep import advance
from onedraw.run.starts import starting_states
from onedraw.samplers.pseudo_marginal import PseudoMarginal, starting_state

ROUNDS = 6
"""Turns in which steps are timed; the first is thrown away."""


class Prices(NamedTuple):
    """Seconds, for one chain among those timed."""

    step: float
    """The step's own overhead: proposal, prior, acceptance."""
    setup: float
    draw: float

    def of(self, simulations: float, setups: float) -> float:
        """A step that makes so many simulations and set-ups on average."""
        return self.step + self.setup * setups + self.draw * simulations


class Stages(NamedTuple):
    """Seconds of a staged simulator's two parts, timed directly."""

    prepare: float
    draw: float


class Counts(Protocol):
    """What a chain does in a step, on average."""

    @property
    def simulations(self) -> float: ...

    @property
    def setups(self) -> float: ...


class Segment(NamedTuple):
    """Steps that were timed together."""

    turn: int
    pseudo_samples: int
    steps: int
    simulations: int
    setups: int
    seconds: float


@dataclass(frozen=True)
class Timed:
    """Prices, and the same with each turn left out, from which their errors come."""

    prices: Prices
    without: tuple[Prices, ...]

    def _jackknifed(self, of: Callable[[Prices], float]) -> Estimate:
        value = of(self.prices)
        others = np.log([of(prices) for prices in self.without])
        size = len(others)
        relative = math.sqrt((size - 1) / size * float(((others - others.mean()) ** 2).sum()))
        return estimate(value, value * relative, size - 1)

    def price(self, simulations: float, setups: float) -> Estimate:
        """Seconds of a step with so many simulations and set-ups."""
        return self._jackknifed(lambda prices: prices.of(simulations, setups))

    def cost(self, one: Counts, simulations: float, setups: float) -> Estimate:
        """c_M of a step with so many simulations and set-ups, in steps of M = 1."""
        return self._jackknifed(lambda p: p.of(simulations, setups) / p.of(one.simulations, one.setups))

    def discount(self, one: Counts) -> Estimate:
        """delta: a step with M = 1 over what another draw in every step adds; at most 10,000."""

        def ratio(prices: Prices) -> float:
            step = prices.of(one.simulations, one.setups)
            return step / max(prices.draw * one.simulations, 1e-4 * step)

        return self._jackknifed(ratio)

    def nominal(self, pseudo_samples: int) -> float:
        """c_M before pilots have told how much early rejection saves: every draw of every step is made."""
        setups = 1.0 if self.prices.setup else 0.0
        return self.prices.of(pseudo_samples, setups) / self.prices.of(1, setups)


class TimedSteps(NamedTuple):
    """Prices, and what it cost to find them."""

    timed: Timed
    cost: Cost


def time_steps(
    model: Model,
    kernel: Kernel,
    proposal: Any,
    starts: Posterior,
    counts: Sequence[int],
    chains: int,
    steps: int,
    seed: int,
    early: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> TimedSteps:
    """Time `steps` steps of `chains` chains at each M of `counts` in turns; starts are draws of the posterior.

    A simulator that only computes may be timed by the process's own `clock`, which other work on the machine does
    not disturb.
    """
    proposal = resolve(proposal, model.prior, lambda: np.eye(model.prior.dim))
    samplers, states = [], []
    segments: list[Segment] = []
    cost = Cost()
    theta = np.empty((steps, chains, model.prior.dim))
    rng = Rng(seed, Phase.RUN)
    with one_blas_thread():
        for m in counts:
            average = AbcAverage(model, kernel, m, keep_distances=False, early=early)
            start = starting_states(starts, average, chains, seed, None, Deadline(None), False)
            cost = cost.plus(start.cost)
            samplers.append(PseudoMarginal(average, proposal, early, m))
            states.append(starting_state(start, model.prior.logpdf(start.theta)))
        for turn in range(ROUNDS):
            for place, m in enumerate(counts):
                began = clock()
                states[place], tally = advance(samplers[place], rng, states[place], turn * steps, steps, 1, theta, None)
                seconds = clock() - began
                cost = cost.plus(tally.cost())
                if turn:
                    segments.append(Segment(turn, m, steps * chains, tally.simulations, tally.setups, seconds))
    without = ([s for s in segments if s.turn != turn] for turn in range(1, ROUNDS))
    return TimedSteps(Timed(_prices(segments), tuple(_prices(rest) for rest in without)), cost)


def _prices(segments: list[Segment]) -> Prices:
    """Non-negative least squares of the relative error of seconds = steps, set-ups and simulations times prices."""
    from scipy import optimize

    counts = np.array([[s.steps, s.setups, s.simulations] for s in segments], dtype=float)
    seconds = np.array([s.seconds for s in segments])
    kept = np.ones(len(segments), dtype=bool)
    found = np.zeros(3)
    for _ in range(2):
        scaled = counts[kept] / seconds[kept, None]
        scale = np.maximum(scaled.max(axis=0), 1e-300)
        found = optimize.nnls(scaled / scale, np.ones(int(kept.sum())))[0] / scale
        found = np.where(counts.any(axis=0), found, 0.0)
        # A segment in which the machine was busy with something else stands out.
        excess = seconds / np.maximum(counts @ found, 1e-300)
        kept = excess < 2.0 * np.median(excess)
    return Prices(*(float(price) for price in found))


def time_stages(model: Model, theta: Array, seed: int, budget: int) -> tuple[Stages, Cost]:
    """Median seconds of `prepare` and of one more row of `draw`, timed apart at the rows of theta."""
    generator, simulate = np.random.default_rng(seed), model.simulate
    prepared, drawn = [], []
    few, many = 1, 9
    cost = Cost()
    for row in theta:
        if budget - cost.simulations < few + many:
            break
        cost = cost.plus(Cost(simulations=few + many, setups=1))
        with one_blas_thread():
            try:
                began = time.perf_counter()
                state = simulate.prepare(**model.prior.named(row))
                ready = time.perf_counter()
                simulate.draw(generator, state, few)
                one = time.perf_counter()
                simulate.draw(generator, state, many)
                end = time.perf_counter()
            except Exception:
                continue
        prepared.append(ready - began)
        drawn.append(max((end - one) - (one - ready), 0.0) / (many - few))
    if not prepared:
        return Stages(math.nan, math.nan), cost
    return Stages(float(np.median(prepared)), float(np.median(drawn))), cost


def measured_discount(model: Model, *, theta: Array | None = None, seed: int | None = None) -> Estimate:
    """delta of a simulator alone, in seconds: further draws at one theta cost 1/delta of the first with its set-up.

    Parameters: `theta` (n, dim), where to time it; by default at draws of the prior. A step of a chain has an overhead
    of its own, which acts as a further discount: `advise` measures whole steps.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(mu=stats.norm(0, 1)), lambda rng, mu: rng.normal(mu, 1.0), observed=0.0)
    >>> measured_discount(model, seed=1).value >= 1
    True
    """
    seed = seed_or_fresh(seed)
    if theta is None:
        theta = model.prior.sample(np.random.default_rng(seed), 1024 if model.batched else 8)
    many, ratios = 9, []
    with one_blas_thread():
        for turn in range(ROUNDS):
            seconds = []
            for draws in (1, many):
                began = time.perf_counter()
                model.simulate_rows(Rng(seed, Phase.SEARCH, step=turn), theta, None, draws)
                seconds.append(time.perf_counter() - began)
            ratios.append(seconds[1] / seconds[0])
    each = np.log((many - 1) / np.maximum(np.array(ratios[1:]) - 1, 1e-3))
    value = float(np.exp(np.median(each)))
    # The error of a median is about 1.25 times that of a mean; no draw can cost more than the first by its nature.
    return estimate(max(value, 1.0), value * 1.25 * float(each.std(ddof=1)) / math.sqrt(len(each)), len(each) - 1)
