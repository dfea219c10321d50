"""What a step of a chain costs in seconds: the step's own overhead, a set-up, a draw.

Whole steps at several M are timed in turns, so that a busy machine disturbs all of them alike, and the seconds are
split by least squares into prices for what each step did. Errors come from leaving out one turn at a time. If every
step of a staged simulator makes one set-up, as with an independence proposal, whole steps alone cannot say which part
of their time is the set-up: estimates are timed without the steps too.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Rng
from onedraw.engines.threads import one_blas_thread
from onedraw.estimators.abc_average import AbcAverage
from onedraw.estimators.protocol import evaluate
from onedraw.failures import FAULTS
from onedraw.model.kernels import Kernel
from onedraw.model.model import Model
from onedraw.proposals.resolve import resolve
from onedraw.results.efficiency import TURNS
from onedraw.results.monte_carlo_error import Interval, interval
from onedraw.results.posterior import Posterior, points
from onedraw.run.driver import drive
from onedraw.run.lockstep import Tally, advance
from onedraw.run.starts import starting_states
from onedraw.samplers.pseudo_marginal import PseudoMarginal, starting_state


class Prices(NamedTuple):
    """Seconds, for one chain among those timed."""

    step: float
    """The step's own overhead: proposal, prior, acceptance."""
    setup: float
    draw: float

    def of(self, simulations: float, setups: float) -> float:
        """A step with this mean number of simulations and set-ups."""
        return self.step + self.setup * setups + self.draw * simulations


class Stages(NamedTuple):
    """Seconds of a staged simulator's two parts, timed directly."""

    prepare: float
    draw: float

    @staticmethod
    def of(seconds: Array) -> "Stages":
        """Medians of timings (n, 2) of `prepare` and of one more row of `draw`."""
        return Stages(*np.median(seconds, axis=0).tolist()) if len(seconds) else Stages(math.nan, math.nan)


@dataclass(frozen=True)
class Timed:
    """Prices, and the same with each turn left out, from which their errors come."""

    prices: Prices
    without: tuple[Prices, ...]

    @staticmethod
    def of(seconds: Array) -> "Timed":
        """From timings: rows of turn, steps, set-ups, simulations and seconds."""
        return Timed(_prices(seconds), tuple(_prices(seconds[seconds[:, 0] != turn]) for turn in range(1, TURNS)))

    def _jackknifed(self, of: Callable[[Prices], float]) -> Interval:
        value = of(self.prices)
        others = np.log([of(prices) for prices in self.without])
        size = len(others)
        relative = math.sqrt((size - 1) / size * float(((others - others.mean()) ** 2).sum()))
        return interval(value, value * relative, size - 1)

    def price(self, simulations: float, setups: float) -> Interval:
        """Seconds of a step with these mean numbers of simulations and set-ups."""
        return self._jackknifed(lambda prices: prices.of(simulations, setups))

    def cost(self, one: tuple[float, float], many: tuple[float, float]) -> Interval:
        """c_M in steps of M = 1, from the mean numbers of (simulations, set-ups) per step of both."""
        return self._jackknifed(lambda prices: prices.of(*many) / prices.of(*one))

    def discount(self, one: tuple[float, float]) -> Interval:
        """delta: a step with M = 1 over what another draw in every step adds; at most 10,000."""

        def ratio(prices: Prices) -> float:
            step = prices.of(*one)
            return step / max(prices.draw * one[0], 1e-4 * step)

        return self._jackknifed(ratio)

    def nominal(self, pseudo_samples: int) -> float:
        """c_M before pilots have shown how much early rejection saves: every draw of every step is made."""
        setups = 1.0 if self.prices.setup else 0.0
        return self.prices.of(pseudo_samples, setups) / self.prices.of(1, setups)


def stepper(
    average: AbcAverage, proposal: Any, starts: Posterior, chains: int, seed: int, steps: int
) -> tuple[Callable[[], Tally], Cost]:
    """A function that advances chains of Algorithm 2 by `steps` steps with each call, and the cost of their starts.

    The chains start from draws of a posterior.
    """
    start = drive(starting_states(starts, average, chains, seed, None))
    sampler = PseudoMarginal(average, proposal, average.early, average.pseudo_samples)
    state = starting_state(start, average.model.prior.logpdf(start.theta))
    rng, kept, done = Rng(seed, Phase.RUN), np.empty((steps, *start.theta.shape)), 0

    def take() -> Tally:
        nonlocal state, done
        state, tally = advance(sampler, rng, state, done, steps, 1, kept, None)
        done += steps
        return tally

    return take, start.cost


def estimates_alone(average: AbcAverage, proposal: Any, starts: Posterior, chains: int, seed: int) -> Array:
    """Proposals (n, dim) inside the prior, from draws of a posterior: what steps estimate, without the steps."""
    generator = np.random.default_rng(seed)
    theta = points(starts.columns)
    theta = np.asfortranarray(theta[np.arange(chains) % len(theta)])
    proposed = proposal.propose(generator, theta, average.model.prior.logpdf(theta)).theta
    inside = proposed[average.model.prior.logpdf(proposed) > -np.inf]
    return np.asfortranarray(inside if len(inside) else theta)


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
) -> tuple[dict[str, Array], Cost]:
    """Time `steps` steps of `chains` chains at each M of `counts` in turns; starts are draws of the posterior.

    Returns the "seconds" from which `Timed.of` makes prices, and what they cost.
    A simulator that only computes may be timed by the process's own `clock`, which other work on the machine does
    not disturb.
    """
    proposal = resolve(proposal, model.prior, lambda: np.eye(model.prior.dim))
    rows: list[tuple[float, ...]] = []
    cost, takers = Cost(), []
    alone = AbcAverage(model, kernel, 1, keep_distances=False, early=early)
    proposed = estimates_alone(alone, proposal, starts, chains, seed) if hasattr(model.simulate, "prepare") else None
    with one_blas_thread():
        for m in counts:
            average = AbcAverage(model, kernel, m, keep_distances=False, early=early)
            take, spent = stepper(average, proposal, starts, chains, seed, steps)
            takers.append(take)
            cost = cost.plus(spent)
        for turn in range(TURNS):
            for take in takers:
                began = clock()
                tally = take()
                rows.append((turn, steps * chains, tally.cost.setups, tally.cost.simulations, clock() - began))
                cost = cost.plus(tally.cost)
            if proposed is not None:
                streams = [Rng(seed, Phase.SEARCH, step=turn * steps + step) for step in range(steps)]
                began = clock()
                spent = Cost.total(evaluate(alone, rng, proposed, None).cost for rng in streams)
                rows.append((turn, 0, spent.setups, spent.simulations, clock() - began))
                cost = cost.plus(spent)
    timed = np.array(rows, dtype=float)
    return {"seconds": timed[timed[:, 0] > 0]}, cost


def _prices(timed: Array) -> Prices:
    """Non-negative least squares of the relative error of seconds = steps, set-ups and simulations times prices.

    Rows of `timed`: turn, steps, set-ups, simulations, seconds.
    """
    from scipy import optimize

    counts, seconds = timed[:, 1:4], timed[:, 4]
    kept = np.ones(len(timed), dtype=bool)
    found = np.zeros(3)
    for _ in range(2):
        scaled = counts[kept] / seconds[kept, None]
        scale = np.maximum(scaled.max(axis=0), 1e-300)
        found = optimize.nnls(scaled / scale, np.ones(int(kept.sum())))[0] / scale
        found = np.where(counts.any(axis=0), found, 0.0)
        # A row timed while the machine was busy with something else stands out.
        excess = seconds / np.maximum(counts @ found, 1e-300)
        kept = excess < 2.0 * np.median(excess)
    return Prices(*(float(price) for price in found))


def time_stages(model: Model, theta: Array, seed: int, budget: float) -> tuple[dict[str, Array], Cost]:
    """Seconds of `prepare` and of one more row of `draw`, timed apart at the rows of theta, and what they cost."""
    generator, simulate = np.random.default_rng(seed), model.simulate
    seconds = []
    few, many = 1, 9
    cost = Cost()
    for row in theta:
        if budget - cost.simulations < few + many:
            break
        cost = cost.plus(Cost(simulations=few + many, setups=1))
        with one_blas_thread():
            try:
                times = [time.perf_counter()]
                state = simulate.prepare(**model.prior.rows(row[None])[0])
                times.append(time.perf_counter())
                for draws in (few, many):
                    simulate.draw(generator, state, draws)
                    times.append(time.perf_counter())
            except FAULTS:
                continue
        prepare, one, more = np.diff(times)
        seconds.append((prepare, max(more - one, 0.0) / (many - few)))
    return {"seconds": np.array(seconds, dtype=float).reshape(-1, 2)}, cost
