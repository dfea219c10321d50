"""Which tolerance gives a wanted acceptance rate? A noisy root search on log eps, with its error.

The acceptance rate r(eps) of Algorithm 2 rises with eps, and log r is close to a straight line in log eps over a
factor of two. The search has four stages:

1. Prior simulations give the scale of the distances and a first guess.
2. Short runs step to the root, by secants kept inside the bracket found so far.
3. Two *bracketing* runs at eps e^(-h) and eps e^(h) give the slope of log r against log eps and a better root.
4. A long *verifying* run at that root measures log r. Its difference from the target is small, and one step along the
   parabola through the three runs corrects it. To first order, with the slope at the verifying run,

       log eps = log eps_verified - (log r_verified - log target) / slope,
       se(log eps)^2 = (se(log r_verified)^2 + (correction x se(slope))^2) / slope^2.

Every run is a plain `od.pseudo_marginal`, started exactly by rejection with streams of its own. A Robbins-Monro
recursion on one block of chains would save the starts, but its chains lag behind a moving eps (and lose their
positive estimate when it shrinks), its average forgets bad early steps only slowly, and its error is hard to state.
Here the verifying run is stationary from its first step and gets most of the simulations, so the error is nearly the
one that all of them would give at the root.

Reference: the study of Bornn, Pillai, Smith and Woodard (docs/study.md) asks this question at every point.
"""

import math
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, Unpack

import numpy as np

from onedraw.arguments import MOST_AT_ONCE, checked_pseudo_samples, optional_whole_number, positive
from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.estimators.abc_average import AbcAverage
from onedraw.failures import NoAnswer
from onedraw.model.kernels import Kernel, uniform
from onedraw.model.model import Model
from onedraw.model.simulator import JaxSimulator
from onedraw.run.chains import check_proposal
from onedraw.run.options import Options, RunOptions, check_parts, on_engine
from onedraw.run.pilot import FromPrior, learned, pilot_round
from onedraw.run.plan import Outcome, Plan
from onedraw.run.prior_draws import block_size
from onedraw.run.specification import specify
from onedraw.samplers.pseudo_marginal import pseudo_marginal
from onedraw.samplers.rejection import rejection
from onedraw.tuning.runs import Runs, measurement

PRECISION = 0.02
"""Relative standard error of eps if neither a precision nor a budget is given."""
EVERYTHING = 3e38
"""A tolerance that accepts every distance, in single precision too."""
PILOT = {True: 10_000, False: 400}
"""Prior simulations of the first stage, for batched simulators and for others."""
CHAINS = {True: (32, 4096), False: (4, 64)}
"""The fewest and the most chains of a run, for batched simulators and for others."""
DEVICE_CHAINS = (256, 4096)
"""The same on a device, where a step of many chains costs no more than one of a few, and each number is a program."""
AMPLE = 2_000_000
"""Times M: a budget below which a search on a device uses fewer chains, to have enough steps."""
DEVICE_STEPS = 64
"""The fewest steps of a chain on a device, if its starting point cost nothing."""
DEVICE_THIN = 16
"""Steps between the draws that come back from a device: a search needs rates, not draws."""
FEW_CHAINS = 8
"""The fewest chains if a budget is small for a batched simulator."""
START_SHARE, DEVICE_START_SHARE = 0.1, 0.25
"""Share of a run's simulations for its starting points; on a device, time goes into steps instead."""
ROUGH_MOVES = 200
"""Accepted moves of a short run at the target: log r to 7 % if they were independent."""
ROUGH_SHARE, BRACKET_SHARE = 1 / 20, 1 / 8
"""Shares of a budget for one short run and for one bracketing run; the verifying run gets what is left."""
ROUGH_ERROR = 0.15
"""Standard error of log r that a short run must have for its distance from the target to count."""
CLOSE, TOO_FAR = 0.2, 0.35
"""Distance of log r from its target at which the short runs end, and at which a verifying run has failed."""
HALF_WIDTH = 0.3
"""Distance of a bracketing run from the middle, in log r: wide enough for the slope, narrow enough for a straight
line."""
FEW = 10
"""The fewest distances from which the first stage can estimate a share."""
SURE_SLOPE = 4.0
"""Standard errors that a slope must be from zero for the bracketing runs to be enough."""
CENTRAL = 0.4
"""Distance of the root from the middle of the bracket, in half-widths, up to which the bracket is not moved."""
MOST_BRACKETS = 5
WIDEST = 1.5
"""The largest half-width of a bracket, in log eps."""
SLOPES = (0.15, 20.0)
"""Slopes of log r in log eps that are believed before the bracketing runs have measured it."""
LONGEST_STEP = math.log(8.0)
MOST_ROUGH = 40
SMALLEST_BUDGET = 1000
"""Times M; and the starting points of four runs, which come in whole blocks."""
ENDS = (1e-6, 1e3)
"""Range of the search: times the smallest positive and the largest distance of the first stage."""
JUMP = 1e-3
"""The width in log eps within which a change of the rate is called a jump."""


class Trial(NamedTuple):
    """One run of the search."""

    stage: str
    """"search", "bracket" or "verify"."""
    eps: float
    acceptance_rate: float
    acceptance_rate_se: float
    chains: int
    steps: int
    """Steps of each chain."""
    simulations: int

    @property
    def log_rate(self) -> float:
        """log of the rate; if nothing was accepted, that of half a move."""
        return math.log(max(self.acceptance_rate, 0.5 / (self.chains * self.steps)))

    @property
    def error(self) -> float:
        """Standard error of `log_rate`, never below that of one move counted (a rate of exactly 0 or 1 has none)."""
        moves = max(self.acceptance_rate * self.chains * self.steps, 0.5)
        return max(self.acceptance_rate_se * self.chains * self.steps, math.sqrt(min(1.0, moves))) / moves

    @property
    def inflation(self) -> float:
        """Variance of the rate over that of independent moves."""
        variance = max(self.acceptance_rate * (1 - self.acceptance_rate), 1e-12)
        return self.acceptance_rate_se**2 * self.chains * self.steps / variance


@dataclass(frozen=True)
class Tolerance:
    """An eps that gives an acceptance rate, with its standard error.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> found = od.tolerance_for(model, 0.1, budget=20_000, seed=1)
    >>> found.target, found.cost.simulations <= 20_000
    (0.1, True)
    """

    eps: float
    """The answer: the verified eps, corrected along the slope for the remaining difference from the target."""
    std_error: float
    target: float
    """The acceptance rate asked for."""
    verified_eps: float
    """The eps of the verifying run, next to the answer."""
    acceptance_rate: float
    """Of the verifying run."""
    acceptance_rate_se: float
    slope: float
    """Of the log acceptance rate against log eps at the answer."""
    slope_se: float
    cost: Cost
    path: tuple[Trial, ...]
    """The runs of the search, the verifying run last."""
    seed: int

    def __str__(self) -> str:
        return (
            f"eps = {self.eps:.4g} ± {self.std_error:.2g} for an acceptance rate of {self.target:.4g} (verified at "
            f"{self.verified_eps:.4g}: {self.acceptance_rate:.4g} ± {self.acceptance_rate_se:.2g}; "
            f"{self.cost.simulations:,} simulations)"
        )


@dataclass(eq=False)
class ToleranceSearch:
    """The runs of one search, and what they have found so far."""

    model: Model
    kernel: Kernel
    pseudo_samples: int
    proposal: Any
    chains: int | None
    target: float
    runs: Runs
    fewest: int
    """The fewest chains of a run."""
    small: bool = False
    """Whether the budget is less than a few blocks of a batched simulator: then starts must cost less."""
    least: int = 1
    """Starting points come in blocks: a run that pays for less than two of them would hardly take a step."""
    distances: Array = field(default_factory=lambda: np.empty(0))
    """Of the first stage's simulations, sorted; failed ones are missing."""
    pilot: int = 0
    """Simulations of the first stage."""
    path: list[Trial] = field(default_factory=list)

    # --- 1: the prior ---------------------------------------------------------------------------------------

    def simulate_prior(self) -> None:
        """Distances of prior simulations: Algorithm 1 with a tolerance that accepts everything."""
        self.pilot = PILOT[self.model.batched]
        if self.runs.budget is not None:
            self.pilot = max(1, min(self.pilot, int(self.runs.left // 20)))
        found = self.runs.run(
            rejection, self.model, uniform(EVERYTHING), budget=self.pilot, seed=self.runs.seed_of(MOST_ROUGH + 10)
        )
        assert found.distances is not None
        self.distances = np.sort(found.distances.reshape(-1))
        if self.distances.size < 10:
            raise NoAnswer(
                f"only {self.distances.size} of {self.pilot} simulations gave a distance, too few to start from: fix "
                "the failing ones, or raise budget"
            )

    def mean_weight(self, eps: float) -> float:
        """Mean kernel value of prior simulations; a power law from the nearest ones if eps is below them."""
        total = float(np.exp(self.kernel.with_eps(eps).log_weight(self.distances)).sum())
        if total < FEW:
            near, far = self.distances[FEW - 1], self.distances[min(4 * FEW, self.distances.size) - 1]
            power = math.log(4) / math.log(far / near) if 0 < near < far else 1.0
            total = FEW * min(1.0, eps / near) ** power if near > 0 else FEW
        return total / self.pilot

    def slope_of_prior(self, eps: float) -> float:
        """Slope of the log of `mean_weight` in log eps: the rate's own for M = 1 and proposals from the prior."""
        apart = 0.2
        while True:
            high, low = (self.mean_weight(eps * math.exp(side * apart)) for side in (1, -1))
            # With few simulations in between, the slope would be noise.
            if (high - low) * self.pilot >= 4 * FEW or apart > 1.0:
                return float(np.clip(math.log(high / low) / (2 * apart), *SLOPES))
            apart *= 1.5

    def first_guess(self) -> float:
        """log eps between the quantiles that bound the answer when proposing from the prior with a uniform kernel.

        There the rate at M lies between the one at M = 1, P(distance < eps), and M times that. Quantiles below the
        tenth smallest distance are noise, and the search steps down from there.
        """
        last = self.distances.size - 1
        places = (
            min(max(int(share * self.pilot), 9), last) for share in (self.target / self.pseudo_samples, self.target)
        )
        low, high = (math.log(max(self.distances[place], np.finfo(float).tiny)) for place in places)
        return 0.5 * (low + high)

    # --- one run --------------------------------------------------------------------------------------------

    @property
    def on_device(self) -> bool:
        """Whether the steps are taken by the JAX engine."""
        return isinstance(self.model.simulate, JaxSimulator)

    def chains_for(self, eps: float, simulations: float) -> int:
        """As many chains as a share of the simulations should find starting points for."""
        if self.chains is not None:
            return self.chains
        weight = self.mean_weight(eps)
        if self.on_device:
            affordable = simulations * min(DEVICE_START_SHARE * weight, 1 / (DEVICE_STEPS * self.pseudo_samples))
            chains = int(np.clip(affordable, self.fewest, DEVICE_CHAINS[1]))
            # To compile a program takes longer than to run it, and each number of chains is a program of its own: the
            # power of 16 below. The weight is a guess; a run that cannot pay for its starting points ends the search.
            return max(self.fewest, 16 ** ((chains.bit_length() - 1) // 4))
        affordable = START_SHARE * simulations
        if not self.small:
            # Half a block is drawn quickly if a run is many blocks long.
            affordable = max(affordable, 0.5 * min(block_size(self.model, 1), simulations))
        return int(np.clip(affordable * weight, self.fewest, CHAINS[self.model.batched][1]))

    def run(self, stage: str, log_eps: float, steps: float, budget: int | None) -> Trial:
        """A run of about `steps` steps over all chains, or for `budget` simulations; appended to the path."""
        eps = math.exp(log_eps)
        planned = steps * self.pseudo_samples if budget is None else min(steps * self.pseudo_samples, budget)
        chains = self.chains_for(eps, planned)
        long = planned >= 8 * DEVICE_THIN * chains * self.pseudo_samples
        thin = DEVICE_THIN if self.on_device and long else 1
        post = self.runs.run(
            pseudo_marginal,
            self.model,
            self.kernel.with_eps(eps),
            draws=None if math.isinf(steps) else max(2, math.ceil(steps / (chains * thin))),
            chains=chains,
            thin=thin,
            pseudo_samples=self.pseudo_samples,
            proposal=self.proposal,
            budget=budget,
            seed=self.runs.seed_of(len(self.path)),
            keep="draws",
        )
        if post.shape[1] < 1:
            raise NoAnswer(
                f"the budget ran out in the search for an acceptance rate of {self.target}: at eps = {eps:.4g} "
                f"{budget or 0:,} simulations did not find {chains} starting points and take a step; raise budget, "
                "or ask for fewer chains"
            )
        rate, steps_each = (post.acceptance_rate, post.acceptance_rate_se), post.shape[1] * thin
        self.path.append(Trial(stage, eps, *rate, chains, steps_each, post.cost.simulations))
        return self.path[-1]

    # --- the budget -----------------------------------------------------------------------------------------

    def share(self, part: float) -> int | None:
        """A part of the budget for one run; at most a quarter of what is left, unless all of it is asked for."""
        if self.runs.budget is None:
            return None
        left = int(self.runs.left)
        if part == 1.0:
            return max(1, left)
        wanted = max(int(part * self.runs.budget), self.least)
        return max(1, min(wanted, max(left // 4, min(self.least, left // 2))))

    def scarce(self) -> bool:
        """Whether one more short run would leave too little for the bracketing runs and the verifying run."""
        return self.runs.left < 4.5 * self.least

    def limited(self, part: float, simulations: float) -> bool:
        """Whether another run of that share is unaffordable, or would not be longer than one of `simulations`."""
        share = self.share(part)
        if self.runs.budget is None or share is None:
            return False
        return share <= simulations or share < int(part * self.runs.budget) or self.runs.left < 4 * share

    def starts(self, log_eps: float, budget: int | None, times: float) -> bool:
        """Whether a budget should find starting points for `times` the fewest chains."""
        return budget is None or self.mean_weight(math.exp(log_eps)) * budget >= times * self.fewest

    def affordable_step(self, log_eps: float, step: float, budget: int | None) -> float:
        """A step of the short runs, shortened until chains can start at its end: the slopes are rough."""
        step = float(np.clip(step, -LONGEST_STEP, LONGEST_STEP))
        while step < -0.1 and not self.starts(log_eps + step, budget, 3.0):
            step *= 0.5
        return step

    def affordable_half(self, middle: float, half: float, budget: int | None) -> float:
        """The half-width of a bracket, reduced until the budget of the lower run should find its starting points."""
        while half > 0.1 and not self.starts(middle - half, budget, 1.5):
            half *= 0.8
        return half

    # --- 2: short runs --------------------------------------------------------------------------------------

    def rough_slope(self) -> float:
        """Slope of log r in log eps between the last run and an earlier one if they tell it, else that of the prior."""
        last = self.path[-1]
        for before in reversed(self.path[:-1]):
            apart = math.log(last.eps / before.eps)
            rise = last.log_rate - before.log_rate
            if rise * apart > 0 and abs(rise) > 5 * math.hypot(last.error, before.error):
                return float(np.clip(rise / apart, *SLOPES))
        return self.slope_of_prior(last.eps)

    def rough_root(self, steps: float) -> float:
        """Short runs until one is CLOSE to the target, and reliably so: an estimate of log eps at the root."""
        above_zero = self.distances[self.distances > 0]
        if above_zero.size == 0:
            raise NoAnswer(
                "every simulation matches the data exactly (distance 0): the acceptance rate is the same for every eps"
            )
        floor, ceiling = math.log(above_zero[0] * ENDS[0]), math.log(self.distances[-1] * ENDS[1])
        low, high = -math.inf, math.inf
        log_eps = min(max(self.first_guess(), floor), ceiling)
        for _ in range(MOST_ROUGH):
            trial = self.run("search", log_eps, steps, self.share(ROUGH_SHARE))
            miss, error, slope = trial.log_rate - math.log(self.target), trial.error, self.rough_slope()
            short = self.scarce() or self.limited(ROUGH_SHARE, steps * self.pseudo_samples)
            if error > ROUGH_ERROR and abs(miss) < 4 * error and not short:
                # Sticky chains repeat their moves in clusters, and the run was too short for its own error.
                steps *= min(8.0, 1.5 * (error / ROUGH_ERROR) ** 2)
                continue
            if abs(miss) < CLOSE:
                return log_eps - miss / slope
            if (miss < 0 and log_eps == ceiling) or (miss > 0 and log_eps == floor):
                raise self._out_of_reach(trial)
            if self.scarce():
                return log_eps - float(np.clip(miss / slope, -LONGEST_STEP, LONGEST_STEP))
            if abs(miss) > 4 * error:
                low, high = (max(low, log_eps), high) if miss < 0 else (low, min(high, log_eps))
            if high - low < JUMP:
                break
            log_eps += self.affordable_step(log_eps, -miss / slope, self.share(ROUGH_SHARE))
            if not low < log_eps < high:
                log_eps = 0.5 * (low + high)
            log_eps = min(max(log_eps, floor), ceiling)
        raise self.jump()

    def _out_of_reach(self, trial: Trial) -> ValueError:
        rate = f"{trial.acceptance_rate:.3g} ± {trial.acceptance_rate_se:.1g}"
        if trial.acceptance_rate < self.target:
            return ValueError(
                f"an acceptance rate of {self.target} cannot be reached: even at eps = {trial.eps:.4g}, beyond every "
                f"distance, it is {rate}; ask for less, or give a proposal with smaller steps"
            )
        return ValueError(
            f"an acceptance rate as low as {self.target} cannot be reached: it is still {rate} at eps = "
            f"{trial.eps:.2g}, since simulations match the data exactly; ask for more"
        )

    def jump(self) -> ValueError:
        """The error that no eps has the rate: the runs on both sides of a jump, or runs too short to agree."""
        below = max(
            (one for one in self.path if one.acceptance_rate < self.target), key=attrgetter("eps"), default=None
        )
        above = min(
            (one for one in self.path if one.acceptance_rate >= self.target), key=attrgetter("eps"), default=None
        )
        if below is None or above is None:
            return ValueError(
                f"no eps for an acceptance rate of {self.target} was found: all {len(self.path)} runs lie "
                f"{'below' if above is None else 'above'} it; raise budget, or ask for another rate"
            )
        between = self.distances[(self.distances >= below.eps) & (self.distances <= above.eps)]
        if np.unique(between).size > 1:
            # Distances are spread over the interval, so the rate rises through it, and the runs were too short.
            return NoAnswer(
                f"no eps for an acceptance rate of {self.target} was found: the runs of the search disagree "
                f"({below.acceptance_rate:.2g} ± {below.acceptance_rate_se:.1g} at eps = {below.eps:.4g}, "
                f"{above.acceptance_rate:.2g} ± {above.acceptance_rate_se:.1g} at {above.eps:.4g}); raise budget"
            )
        return ValueError(
            f"no eps gives an acceptance rate of {self.target}: it jumps from {below.acceptance_rate:.3g} at eps = "
            f"{below.eps:.6g} to {above.acceptance_rate:.3g} at eps = {above.eps:.6g}, because distances take few "
            "values; ask for a rate on one side of the jump"
        )

    # --- 3: bracketing runs ---------------------------------------------------------------------------------

    def half_width(self, steps: float) -> float:
        """Half-width of a bracket in log eps: wider if few moves would leave the slope to chance."""
        budget = self.share(BRACKET_SHARE)
        if budget is not None:
            steps = min(steps, budget / self.pseudo_samples)
        error = math.sqrt((1 - self.target) / (self.target * steps))
        return min(float(np.clip(10 * error, HALF_WIDTH, 3 * HALF_WIDTH)) / self.rough_slope(), WIDEST)

    def bracket(self, middle: float, steps: float) -> tuple[Trial, Trial, float]:
        """Two runs on both sides of the root, and log eps of the root between them.

        The bracket is moved if the root lies outside it, and widened if it does not show the slope.
        """
        half = self.half_width(steps)
        for attempt in range(1, MOST_BRACKETS + 1):
            budget = self.share(BRACKET_SHARE)
            half = self.affordable_half(middle, half, budget)
            low, high = (self.run("bracket", middle + side * half, steps, budget) for side in (-1, 1))
            slope, slope_se = chord(low, high)
            shift = (math.log(self.target) - 0.5 * (high.log_rate + low.log_rate)) / max(slope, slope_se)
            last = attempt == MOST_BRACKETS or (budget is not None and self.runs.left < 3 * budget)
            if (slope > SURE_SLOPE * slope_se and abs(shift) <= CENTRAL * half) or (last and slope > 2 * slope_se):
                break
            if last:
                return self._widest_bracket(middle)
            above = math.log(self.target) - high.log_rate > 3 * high.error
            below = low.log_rate - math.log(self.target) > 3 * low.error
            if slope > SURE_SLOPE * slope_se:
                middle += float(np.clip(shift, -2 * half, 2 * half))
            elif above != below:
                middle += 2 * half if above else -2 * half
            else:
                half = min(2.5 * half, WIDEST)
        return low, high, middle + float(np.clip(shift, -2 * half, 2 * half))

    def _widest_bracket(self, middle: float) -> tuple[Trial, Trial, float]:
        """The outermost bracketing runs so far lie further apart than the last two."""
        runs = sorted((trial for trial in self.path if trial.stage == "bracket"), key=attrgetter("eps"))
        low, high = runs[0], runs[-1]
        slope, slope_se = chord(low, high)
        if slope <= 2 * slope_se:
            raise NoAnswer(
                f"the acceptance rate hardly changes with eps near {math.exp(middle):.4g} (slope {slope:.2g} ± "
                f"{slope_se:.1g} on log scales): {self.target} is too near its limit, or the budget is too small"
            )
        root = math.log(low.eps) + (math.log(self.target) - low.log_rate) / slope
        return low, high, float(np.clip(root, math.log(low.eps), math.log(high.eps)))


def chord(low: Trial, high: Trial) -> tuple[float, float]:
    """Slope of log r in log eps between two runs, and its standard error."""
    apart = math.log(high.eps / low.eps)
    return (high.log_rate - low.log_rate) / apart, math.hypot(high.error, low.error) / apart


def parabola(low: Trial, middle: Trial, high: Trial) -> tuple[float, float, float]:
    """Slope of log r in log eps at the middle run, its standard error, and the second derivative, from three runs."""
    trials = (low, middle, high)
    a, b, c = (math.log(trial.eps) for trial in trials)
    first, last = (b - c) / ((a - b) * (a - c)), (b - a) / ((c - a) * (c - b))
    weights = (first, -first - last, last)
    slope = sum(weight * trial.log_rate for weight, trial in zip(weights, trials, strict=True))
    error = math.hypot(*(weight * trial.error for weight, trial in zip(weights, trials, strict=True)))
    return slope, error, 2 * (chord(middle, high)[0] - chord(low, middle)[0]) / (c - a)


def correction(low: Trial, verified: Trial, high: Trial, miss: float) -> tuple[float, float, float]:
    """Step in log eps from the verifying run to the root of the parabola, the slope there and its standard error."""
    slope, slope_se, bend = *chord(low, high), 0.0
    # At an end of the bracket there is no parabola through three points, and outside it the line is better.
    if low.eps < verified.eps < high.eps:
        curved = parabola(low, verified, high)
        if curved[0] > SURE_SLOPE * curved[1]:
            slope, slope_se, bend = curved
    step = -miss / slope
    step = -(miss + 0.5 * bend * step**2) / slope
    at_root = slope + bend * step
    return step, at_root if at_root > 0.5 * slope else slope, slope_se


def tolerance_for(
    model: Model,
    acceptance_rate: float,
    *,
    kernel: Kernel | None = None,
    pseudo_samples: int = 1,
    proposal: Any = None,
    chains: int | None = None,
    budget: int | None = None,
    precision: float | None = None,
    **options: Unpack[RunOptions],
) -> Tolerance:
    """The eps at which Algorithm 2 accepts a given fraction of its proposals.

    Parameters
    ----------
    model
        What to simulate.
    acceptance_rate
        The acceptance rate wanted, between 0 and 1.
    kernel
        A kernel without a tolerance: `od.uniform()` (the default), `od.gaussian()`, ...
    pseudo_samples, proposal
        As in `od.pseudo_marginal`.
    chains
        Chains of every run of the search; by default as many as a tenth of the run's simulations can start (on a
        device, about a quarter).
    budget
        The largest number of simulations, never exceeded. Without a precision all of them are used.
    precision
        The relative standard error of eps at which the search may end; 0.02 if there is no budget either.
    **options
        As in every function that simulates: see `RunOptions`.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> found = tolerance_for(model, 0.05, proposal=od.independence(), seed=1)
    >>> abs(found.eps - 0.2397) < 4 * found.std_error
    True
    """
    checked = Options.checked(options)
    check_parts(model, "tolerance_for")
    target = _checked_rate(acceptance_rate)
    kernel = _checked_kernel(kernel)
    pseudo_samples = checked_pseudo_samples(pseudo_samples)
    chains = optional_whole_number("chains", chains, "the number of chains run side by side", MOST_AT_ONCE)
    budget = optional_whole_number("budget", budget, "the largest number of simulations")
    if precision is not None:
        precision = positive("precision", precision, "the relative standard error of eps at which the search may end")
    elif budget is None:
        precision = PRECISION
    small = model.batched and budget is not None and budget < 8 * block_size(model, 1)
    # A few chains look for their starting points in small blocks (see `run/starts.py`).
    block = min(block_size(model, 1), max(64, 16 * (chains or FEW_CHAINS))) if small else block_size(model, 1)
    smallest = max(SMALLEST_BUDGET * pseudo_samples, 8 * block)
    if budget is not None and budget <= model.pilot:
        raise ValueError(f"budget = {budget} leaves nothing after the {model.pilot} pilot simulations: raise it")
    if budget is not None and budget < smallest:
        raise ValueError(
            f"budget = {budget} is too small for a search with pseudo_samples = {pseudo_samples}: give at least "
            f"{smallest}"
        )
    fewest = chains or (FEW_CHAINS if small else CHAINS[model.batched][0])
    if chains is None and isinstance(model.simulate, JaxSimulator):
        ample = budget is None or budget >= AMPLE * pseudo_samples
        fewest = DEVICE_CHAINS[0] // (16 if small else 1 if ample else 4)
    arguments = {
        "acceptance_rate": target, "pseudo_samples": pseudo_samples, "chains": chains, "simulations": budget,
        "precision": precision, "seed": checked.seed, "on_error": checked.on_error, "engine": checked.engine,
        "timeout": checked.timeout,
    }  # fmt: skip
    average = AbcAverage(model, kernel.with_eps(1.0))
    check_proposal(proposal, on_engine(average.with_model(model.limited(checked.timeout)), checked), fewest)
    with measurement(checked, budget, lambda: specify("tolerance_for", average, arguments, proposal=proposal)) as runs:
        if model.pilot:
            model = learned(model, runs.recorded("pilot", lambda: _pilot(model, runs))["rows"])
        search = ToleranceSearch(
            model, kernel, pseudo_samples, proposal, chains, target, runs, fewest, small, least=2 * block
        )
        return found_by(search, precision)


def _pilot(model: Model, runs: Runs) -> tuple[dict[str, Array], Cost]:
    """The simulations from which the distance learns."""

    def plan() -> Plan[Outcome]:
        return (yield pilot_round(FromPrior(model, runs.seed, runs.options.on_error), model.pilot))

    outcome = runs.drive(plan())
    return {"rows": outcome.arrays["rows"]}, outcome.cost


def found_by(search: ToleranceSearch, precision: float | None) -> Tolerance:
    """The search: prior simulations, rough runs, a bracket, the verifying run, and the correction."""
    target, began = search.target, search.runs.deadline
    search.simulate_prior()
    rough_steps = ROUGH_MOVES * (1 - target) / target + ROUGH_MOVES
    middle = search.rough_root(rough_steps)

    def steps_for(slope: float, inflation: float = 1.0) -> float:
        """Steps after which log eps has the wanted precision; `inflation` is for correlated moves."""
        wanted = 0.0 if precision is None else (precision * slope) ** 2
        # A slope may be so small that its square is zero.
        return max(1.0, inflation) * (1 - target) / (target * wanted) if target * wanted > 0 else math.inf

    # A bracketing run gets a sixth of what the verifying run should need if moves were independent.
    low, high, middle = search.bracket(middle, max(steps_for(search.rough_slope()) / 6, 4 * rough_steps))
    needed = steps_for(chord(low, high)[0], (high.inflation + low.inflation) / 2)
    verified = search.run("verify", middle, needed, search.share(1.0))
    miss = verified.log_rate - math.log(target)
    if abs(miss) > TOO_FAR + 4 * verified.error:
        raise search.jump()
    step, slope, slope_se = correction(low, verified, high, miss)
    eps = verified.eps * math.exp(step)
    return Tolerance(
        eps=eps,
        std_error=eps * math.hypot(verified.error, step * slope_se) / slope,
        target=target,
        verified_eps=verified.eps,
        acceptance_rate=verified.acceptance_rate,
        acceptance_rate_se=verified.acceptance_rate_se,
        slope=slope,
        slope_se=slope_se,
        cost=search.runs.cost._replace(seconds=began.seconds()),
        path=tuple(search.path),
        seed=search.runs.seed,
    )


def _checked_rate(rate: Any) -> float:
    number = positive("acceptance_rate", rate, "the share of proposals to be accepted, so between 0 and 1")
    if number >= 1:
        raise ValueError(f"acceptance_rate must be below 1, got {rate!r}: it is the share of proposals to be accepted")
    return number


def _checked_kernel(kernel: Any) -> Kernel:
    if kernel is None:
        return uniform()
    if not isinstance(kernel, Kernel):
        raise ValueError(f"kernel must be a kernel without a tolerance, such as od.uniform(), got {kernel!r}")
    if kernel.eps is not None:
        raise ValueError(
            f"kernel has the tolerance eps = {kernel.eps}, which is what od.tolerance_for looks for: give "
            f"od.{kernel.name}() without one"
        )
    return kernel
