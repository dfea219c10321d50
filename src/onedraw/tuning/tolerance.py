"""Which tolerance gives the acceptance rate I want? A noisy root search on log eps, with its error.

The acceptance rate r(eps) of Algorithm 2 rises with eps, and log r is close to a straight line in log eps over a
factor of two. The search has four stages:

1. Prior simulations give the scale of the distances and a first guess.
2. Short runs step to the root, by secants kept inside the bracket found so far.
3. Two runs at eps e^(-h) and eps e^(h), the *wings*, give the slope of log r against log eps and a better root.
4. A long *verifying* run at that root measures log r. What it misses the target by is small, and one step along the
   parabola through the three runs corrects it. To first order, with the slope at the verifying run,

       log eps = log eps_verified - (log r_verified - log target) / slope,
       se(log eps)^2 = (se(log r_verified)^2 + (correction x se(slope))^2) / slope^2.

Every run is a plain `od.pseudo_marginal`, started exactly by rejection with streams of its own. A Robbins-Monro
recursion on one block of chains would save the starts, but its chains lag behind a moving eps (and lose their
positive estimate when it shrinks), its average forgets bad early steps only slowly, and its error is hard to state.
Here the verifying run is stationary from its first step and gets most of the simulations, so that the error is the
one that all of them would give at the root, but for the share of the wings.

Reference: the study of Bornn, Pillai, Smith and Woodard (docs/study.md) asks this question at every point.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import optional_whole_number, positive, whole_number
from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.model.kernels import Kernel, uniform
from onedraw.model.model import Model
from onedraw.model.simulator import JaxSimulator
from onedraw.results.posterior import Posterior
from onedraw.run.blocks import Deadline
from onedraw.run.options import Shared, check_model
from onedraw.run.pilot import learn_distance
from onedraw.run.progress import Show
from onedraw.samplers.pseudo_marginal import pseudo_marginal
from onedraw.samplers.rejection import block_size, rejection

PRECISION = 0.02
"""Relative standard error of eps aimed at where neither a precision nor a budget is given."""
EVERYTHING = 3e38
"""A tolerance that lets every distance through, also as a number of single precision."""
PILOT = {True: 10_000, False: 400}
"""Prior simulations of the first stage, for batched simulators and for others."""
CHAINS = {True: (32, 4096), False: (4, 64)}
"""The fewest and the most chains of a run, for batched simulators and for others."""
DEVICE_CHAINS = (256, 16_384)
"""The same on a device, where a step of many costs no more than one of few."""
AMPLE = 2_000_000
"""Times M: a budget below which a search on a device makes do with fewer, so as to take steps."""
DEVICE_STEPS = 64
"""The fewest steps of a chain there, if its starting point cost nothing."""
DEVICE_THIN = 16
"""Steps between the draws that come back from a device: a search asks for rates, not for draws."""
FEW_CHAINS = 8
"""The fewest where a budget pays for few simulations of a batched simulator."""
START_SHARE, DEVICE_START_SHARE = 0.1, 0.25
"""Share of a run's simulations that may go into its starting points; on a device steps are what takes time."""
ROUGH_MOVES = 200
"""Accepted moves of a short run at the target: log r to 7 % if they were independent."""
ROUGH_SHARE, WING_SHARE = 1 / 20, 1 / 8
"""Shares of a budget for one short run and for one wing; the verifying run gets what is left."""
ROUGH_ERROR = 0.15
"""Standard error of log r that a short run must have for its distance from the target to count."""
CLOSE, TOO_FAR = 0.2, 0.35
"""Distance of log r from its target at which the short runs end, and at which a verifying run has failed."""
WING = 0.3
"""Distance of a wing from the middle, in log r: far enough for the slope, near enough for a straight line."""
FEW = 10
"""Distances below which the first stage's simulations say too little."""
SURE_SLOPE = 4.0
"""Standard errors a slope must be from zero for the wings to be done."""
CENTRAL = 0.4
"""Distance of the root from the middle of the wings, in units of theirs, up to which they are left where they are."""
MOST_WINGS = 5
WIDEST = 1.5
"""Largest distance of a wing from the middle, in log eps."""
SLOPES = (0.15, 20.0)
"""Slopes of log r in log eps that are believed before the wings have measured it."""
LONGEST_STEP = math.log(8.0)
MOST_ROUGH = 40
SMALLEST_BUDGET = 1000
"""Times M; and the starting points of four runs, which come in whole blocks."""
ENDS = (1e-6, 1e3)
"""Range of the search: times the smallest positive and the largest distance of the first stage."""
JUMP = 1e-3
"""Width of a bracket in log eps inside which the rate is said to jump."""


class Trial(NamedTuple):
    """One run of the search."""

    stage: str
    """"search", "wing" or "verify"."""
    eps: float
    acceptance_rate: float
    acceptance_rate_se: float
    chains: int
    steps: int
    """Steps of each chain."""
    simulations: int


@dataclass(frozen=True)
class Tolerance:
    """An eps that gives an acceptance rate, with what is known of its error.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> found = od.tolerance_for(model, 0.1, budget=20_000, seed=1)
    >>> found.target, found.cost.simulations <= 20_000
    (0.1, True)
    """

    eps: float
    """The answer: the verified eps corrected along the slope by what its rate missed the target."""
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


@dataclass(frozen=True, eq=False)
class Search:
    """What all runs of one search share."""

    model: Model
    kernel: Callable[[float], Kernel]
    pseudo_samples: int
    proposal: Any
    chains: int | None
    target: float
    seed: int
    progress: Show
    distances: Array
    """Of the first stage's simulations, sorted; failed ones are missing."""
    pilot: int
    fewest: int
    """The fewest chains of a run."""
    engine: str | None = None
    small: bool = False
    """Whether the budget is less than a few blocks of a batched simulator: then starts must cost less."""

    def chains_for(self, eps: float, simulations: float) -> int:
        """As many chains as a share of the simulations should find starting points for."""
        if self.chains is not None:
            return self.chains
        weight = self.mean_weight(eps)
        if self.on_device:
            affordable = simulations * min(DEVICE_START_SHARE * weight, 1 / (DEVICE_STEPS * self.pseudo_samples))
            chains = int(np.clip(affordable, self.fewest, DEVICE_CHAINS[1]))
            # Each number of chains is a program of its own on a device, so there are few: the nearest power of four.
            return max(self.fewest, 4 ** (chains.bit_length() // 2))
        affordable = START_SHARE * simulations
        if not self.small:
            # Half a block is soon drawn where a run is many blocks long.
            affordable = max(affordable, 0.5 * min(block_size(self.model, 1), simulations))
        return int(np.clip(affordable * weight, self.fewest, CHAINS[self.model.batched][1]))

    @property
    def on_device(self) -> bool:
        """Whether the steps are taken by the JAX engine."""
        return isinstance(self.model.simulate, JaxSimulator)

    def mean_weight(self, eps: float) -> float:
        """Mean kernel value of prior simulations; a power law from the nearest ones where eps is below them."""
        total = float(np.exp(self.kernel(eps).log_weight(self.distances)).sum())
        if total < FEW:
            near, far = self.distances[FEW - 1], self.distances[min(4 * FEW, self.distances.size) - 1]
            power = math.log(4) / math.log(far / near) if 0 < near < far else 1.0
            total = FEW * min(1.0, eps / near) ** power if near > 0 else FEW
        return total / self.pilot

    def affordable_step(self, log_eps: float, step: float, budget: int | None) -> float:
        """A step of the short runs, made less until it leads where one can start: the slopes are rough."""
        step = float(np.clip(step, -LONGEST_STEP, LONGEST_STEP))
        while step < -0.1 and not self.starts(log_eps + step, budget, 3.0):
            step *= 0.5
        return step

    def affordable_half(self, middle: float, half: float, budget: int | None) -> float:
        """The distance of the wings, made less until the budget of the lower one should find its starting points."""
        while half > 0.1 and not self.starts(middle - half, budget, 1.5):
            half *= 0.8
        return half

    def starts(self, log_eps: float, budget: int | None, times: float) -> bool:
        """Whether a budget should find the starting points of so many times the fewest chains."""
        return budget is None or self.mean_weight(math.exp(log_eps)) * budget >= times * self.fewest

    def slope_of_prior(self, eps: float) -> float:
        """Slope of the log of `mean_weight` in log eps: the rate's own for M = 1 and proposals from the prior."""
        apart = 0.2
        while True:
            high, low = (self.mean_weight(eps * math.exp(side * apart)) for side in (1, -1))
            # Few simulations in between would leave the slope to chance.
            if (high - low) * self.pilot >= 4 * FEW or apart > 1.0:
                return float(np.clip(math.log(high / low) / (2 * apart), *SLOPES))
            apart *= 1.5

    def run(self, path: list[Trial], stage: str, log_eps: float, steps: float, budget: int | None) -> Posterior:
        """A run of about `steps` steps over all chains, or for `budget` simulations; appended to the path."""
        eps = math.exp(log_eps)
        planned = steps * self.pseudo_samples if budget is None else min(steps * self.pseudo_samples, budget)
        chains = self.chains_for(eps, planned)
        long = planned >= 8 * DEVICE_THIN * chains * self.pseudo_samples
        thin = DEVICE_THIN if self.on_device and long else 1
        post = pseudo_marginal(
            self.model,
            self.kernel(eps),
            draws=None if math.isinf(steps) else max(2, math.ceil(steps / (chains * thin))),
            chains=chains,
            thin=thin,
            pseudo_samples=self.pseudo_samples,
            proposal=self.proposal,
            budget=budget,
            seed=_seed_of_run(self.seed, len(path)),
            keep_distances=False,
            engine=self.engine,
            progress=self.progress,
        )
        if post.status.reason == "interrupted":
            raise KeyboardInterrupt
        if post.shape[1] < 1:
            raise ValueError(
                f"the budget ran out on the way to an acceptance rate of {self.target}: at eps = {eps:.4g} "
                f"{budget or 0:,} simulations did not find {chains} starting points and take a step; raise budget, "
                "or ask for fewer chains"
            )
        path.append(
            Trial(
                stage,
                eps,
                post.acceptance_rate,
                post.acceptance_rate_se,
                chains,
                post.shape[1] * thin,
                post.cost.simulations,
            )
        )
        return post


@dataclass
class Spending:
    """What a search has spent of its budget so far."""

    budget: int | None
    cost: Cost
    least: int
    """Starting points come in blocks: a run that pays for less than two of them would hardly take a step."""

    def add(self, post: Posterior) -> None:
        self.cost = self.cost.plus(post.cost)

    def share(self, part: float) -> int | None:
        """A part of the budget for one run; at most a quarter of what is left, unless all of it is asked for."""
        if self.budget is None:
            return None
        left = self.budget - self.cost.simulations
        if part == 1.0:
            return max(1, left)
        return max(1, min(max(int(part * self.budget), self.least), max(left // 4, min(self.least, left // 2))))

    def scarce(self) -> bool:
        """Whether one more short run would leave too little for the wings and the verifying run."""
        return self.budget is not None and self.budget - self.cost.simulations < 4.5 * self.least

    def short_of(self, share: int | None) -> bool:
        """Whether two more runs of a share would leave less than another one for the verifying run."""
        return self.budget is not None and share is not None and self.budget - self.cost.simulations < 3 * share

    def limited(self, part: float, simulations: float) -> bool:
        """Whether another run of that share is out of reach, or would not be longer than one of `simulations`."""
        if self.budget is None:
            return False
        share = self.share(part)
        assert share is not None
        left = self.budget - self.cost.simulations
        return share <= simulations or share < int(part * self.budget) or left < 4 * share


def _seed_of_run(seed: int, run: int) -> int:
    return int(Rng(seed, Phase.SEARCH, run).bulk(Purpose.MOVE).integers(2**62))


def log_rate(trial: Trial) -> float:
    """log of the rate; where nothing was accepted, that of half a move."""
    return math.log(max(trial.acceptance_rate, 0.5 / (trial.chains * trial.steps)))


def relative_error(trial: Trial) -> float:
    """Standard error of `log_rate`, never below that of one move counted (a rate of exactly 0 or 1 has none)."""
    moves = max(trial.acceptance_rate * trial.chains * trial.steps, 0.5)
    return max(trial.acceptance_rate_se * trial.chains * trial.steps, math.sqrt(min(1.0, moves))) / moves


def first_guess(distances: Array, pilot: int, target: float, pseudo_samples: int) -> float:
    """log eps between the quantiles that bound the answer when proposing from the prior with a uniform kernel.

    There the rate at M lies between the one at M = 1, P(distance < eps), and M times that. Quantiles below the tenth
    smallest distance are noise, and the search steps down from there.
    """
    low, high = (
        max(distances[min(max(int(share * pilot), 9), distances.size - 1)], np.finfo(float).tiny)
        for share in (target / pseudo_samples, target)
    )
    return 0.5 * (math.log(low) + math.log(high))


def rough_slope(search: Search, path: list[Trial]) -> float:
    """Slope of log r in log eps between the last two runs where they tell it, otherwise that of the prior."""
    for before in reversed(path[:-1]):
        apart = math.log(path[-1].eps / before.eps)
        rise = log_rate(path[-1]) - log_rate(before)
        if rise * apart > 0 and abs(rise) > 5 * math.hypot(relative_error(path[-1]), relative_error(before)):
            return float(np.clip(rise / apart, *SLOPES))
    return search.slope_of_prior(path[-1].eps)


def _rough_root(search: Search, path: list[Trial], spending: "Spending", steps: float) -> float:
    """Short runs until one is CLOSE to the target and says so reliably: log eps of the root as it then seems."""
    positive_distances = search.distances[search.distances > 0]
    if positive_distances.size == 0:
        raise ValueError(
            "every simulation matches the data exactly (distance 0): the acceptance rate is the same for every eps"
        )
    floor = math.log(positive_distances[0] * ENDS[0])
    ceiling = math.log(search.distances[-1] * ENDS[1])
    low, high = -math.inf, math.inf
    log_eps = first_guess(search.distances, search.pilot, search.target, search.pseudo_samples)
    log_eps = min(max(log_eps, floor), ceiling)
    for _ in range(MOST_ROUGH):
        spending.add(search.run(path, "search", log_eps, steps, spending.share(ROUGH_SHARE)))
        miss, error = log_rate(path[-1]) - math.log(search.target), relative_error(path[-1])
        slope = rough_slope(search, path)
        short = spending.scarce() or spending.limited(ROUGH_SHARE, steps * search.pseudo_samples)
        if error > ROUGH_ERROR and abs(miss) < 4 * error and not short:
            # Sticky chains repeat their moves in clusters, and the run was too short for its own error.
            steps *= min(8.0, 1.5 * (error / ROUGH_ERROR) ** 2)
            continue
        if abs(miss) < CLOSE:
            return log_eps - miss / slope
        if miss < 0 and log_eps == ceiling:
            raise ValueError(
                f"an acceptance rate of {search.target} cannot be reached: even at eps = {path[-1].eps:.4g}, beyond "
                f"every distance, it is {path[-1].acceptance_rate:.3g} ± {path[-1].acceptance_rate_se:.1g}; ask for "
                "less, or give a proposal that moves less far"
            )
        if miss > 0 and log_eps == floor:
            raise ValueError(
                f"an acceptance rate as low as {search.target} cannot be reached: it is still "
                f"{path[-1].acceptance_rate:.3g} ± {path[-1].acceptance_rate_se:.1g} at eps = {path[-1].eps:.2g}, "
                "since simulations match the data exactly; ask for more"
            )
        if spending.scarce():
            return log_eps - float(np.clip(miss / slope, -LONGEST_STEP, LONGEST_STEP))
        if abs(miss) > 4 * error:
            low, high = (max(low, log_eps), high) if miss < 0 else (low, min(high, log_eps))
        if high - low < JUMP:
            raise _jump(search, path)
        log_eps += search.affordable_step(log_eps, -miss / slope, spending.share(ROUGH_SHARE))
        if not low < log_eps < high:
            log_eps = 0.5 * (low + high)
        log_eps = min(max(log_eps, floor), ceiling)
    raise _jump(search, path)


def _wings(
    search: Search, path: list[Trial], spending: "Spending", middle: float, steps: float
) -> tuple[Trial, Trial, float]:
    """Two runs on both sides of the root, and log eps of the root between them.

    They are moved where the root lies outside them, and set further apart where they cannot tell the slope.
    """
    slope = rough_slope(search, path)
    half = min(_half_width(slope, search, steps, spending.share(WING_SHARE)), WIDEST)
    for attempt in range(MOST_WINGS):
        budget = spending.share(WING_SHARE)
        half = search.affordable_half(middle, half, budget)
        for side in (-1, 1):
            spending.add(search.run(path, "wing", middle + side * half, steps, budget))
        low, high = path[-2:]
        slope, slope_se = chord(low, high)
        shift = (math.log(search.target) - 0.5 * (log_rate(high) + log_rate(low))) / max(slope, slope_se)
        if slope > SURE_SLOPE * slope_se and abs(shift) <= CENTRAL * half:
            break
        if attempt == MOST_WINGS - 1 or spending.short_of(budget):
            if slope > 2 * slope_se:
                break
            # All wings so far, taken together, lie further apart than the last two.
            wings = sorted((trial for trial in path if trial.stage == "wing"), key=lambda trial: trial.eps)
            low, high = wings[0], wings[-1]
            slope, slope_se = chord(low, high)
            if slope <= 2 * slope_se:
                raise ValueError(
                    f"the acceptance rate hardly changes with eps near {math.exp(middle):.4g} (slope {slope:.2g} ± "
                    f"{slope_se:.1g} on log scales): {search.target} is too near its limit, or the budget too small "
                    "to tell"
                )
            root = math.log(low.eps) + (math.log(search.target) - log_rate(low)) / slope
            return low, high, float(np.clip(root, math.log(low.eps), math.log(high.eps)))
        above = math.log(search.target) - log_rate(high) > 3 * relative_error(high)
        below = log_rate(low) - math.log(search.target) > 3 * relative_error(low)
        if slope > SURE_SLOPE * slope_se:
            middle += float(np.clip(shift, -2 * half, 2 * half))
        elif above != below:
            middle += 2 * half if above else -2 * half
        else:
            half = min(2.5 * half, WIDEST)
    return low, high, middle + float(np.clip(shift, -2 * half, 2 * half))


def chord(low: Trial, high: Trial) -> tuple[float, float]:
    """Slope of log r in log eps between two runs, and its standard error."""
    apart = math.log(high.eps / low.eps)
    error = math.hypot(relative_error(high), relative_error(low))
    return (log_rate(high) - log_rate(low)) / apart, error / apart


def parabola(low: Trial, middle: Trial, high: Trial) -> tuple[float, float, float]:
    """Slope of log r in log eps at the middle run, its standard error, and the second derivative, from three runs."""
    a, b, c = (math.log(trial.eps) for trial in (low, middle, high))
    first, last = (b - c) / ((a - b) * (a - c)), (b - a) / ((c - a) * (c - b))
    weights = (first, -first - last, last)
    trials = (low, middle, high)
    slope = sum(weight * log_rate(trial) for weight, trial in zip(weights, trials, strict=True))
    error = math.hypot(*(weight * relative_error(trial) for weight, trial in zip(weights, trials, strict=True)))
    left = (log_rate(middle) - log_rate(low)) / (b - a)
    right = (log_rate(high) - log_rate(middle)) / (c - b)
    return slope, error, 2 * (right - left) / (c - a)


def _jump(search: Search, path: list[Trial]) -> ValueError:
    below = max((trial for trial in path if trial.acceptance_rate < search.target), key=lambda trial: trial.eps)
    above = min((trial for trial in path if trial.acceptance_rate >= search.target), key=lambda trial: trial.eps)
    return ValueError(
        f"no eps gives an acceptance rate of {search.target}: it jumps from {below.acceptance_rate:.3g} at eps = "
        f"{below.eps:.6g} to {above.acceptance_rate:.3g} at eps = {above.eps:.6g}, as it does where distances take few "
        "values; ask for a rate on one side of the jump"
    )


def tolerance_for(
    model: Model,
    acceptance_rate: float,
    *,
    kernel: Callable[[float], Kernel] | None = None,
    pseudo_samples: int = 1,
    proposal: Any = None,
    chains: int | None = None,
    budget: int | None = None,
    precision: float | None = None,
    seed: int | None = None,
    engine: str | None = None,
    progress: Show = None,
) -> Tolerance:
    """The eps at which Algorithm 2 accepts a given share of its proposals.

    Parameters
    ----------
    model
        What to simulate.
    acceptance_rate
        The share wanted, between 0 and 1.
    kernel
        A function of eps that gives a kernel: `od.uniform` (the default), `od.gaussian`, ...
    pseudo_samples, proposal
        As in `od.pseudo_marginal`.
    chains
        Chains of every run of the search; by default as many as a tenth of the run's simulations can start (on a
        device, where steps are what takes time, about a quarter).
    budget
        The most simulations, never passed. Without a precision all of them are used.
    precision
        The relative standard error of eps at which the search may end; 0.02 where there is no budget either.
    seed, engine, progress
        As in every sampler.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> found = tolerance_for(model, 0.05, proposal=od.independence(), seed=1)
    >>> abs(found.eps - 0.2397) < 4 * found.std_error
    True
    """
    shared = Shared.checked(locals())
    check_model(model)
    target = _checked_rate(acceptance_rate)
    kernel = _checked_kernel(kernel)
    pseudo_samples = whole_number("pseudo_samples", pseudo_samples, "the number M of pseudo-samples at one theta")
    chains = optional_whole_number("chains", chains, "the number of chains run side by side")
    budget = optional_whole_number("budget", budget, "the largest number of simulations")
    if precision is not None:
        precision = positive("precision", precision, "the relative standard error of eps at which the search may end")
    elif budget is None:
        precision = PRECISION
    small = model.batched and budget is not None and budget < 8 * block_size(model, 1)
    # Few chains look for their starting points in small blocks (see `start.py`).
    block = min(block_size(model, 1), max(64, 16 * (chains or FEW_CHAINS))) if small else block_size(model, 1)
    smallest = max(SMALLEST_BUDGET * pseudo_samples, 8 * block)
    if budget is not None and budget < smallest:
        raise ValueError(
            f"budget = {budget} is too small for a search with M = {pseudo_samples}: give at least {smallest}"
        )
    fewest = chains or (FEW_CHAINS if small else CHAINS[model.batched][0])
    if chains is None and isinstance(model.simulate, JaxSimulator):
        ample = budget is None or budget >= AMPLE * pseudo_samples
        fewest = DEVICE_CHAINS[0] // (16 if small else 1 if ample else 4)
    seed, show = shared.seed, shared.progress
    began = Deadline(None)
    model, cost = learn_distance(model, seed, budget, shared.on_error, show)
    search, pilot_cost = _with_pilot(
        Search(
            model, kernel, pseudo_samples, proposal, chains, target, seed, show, np.empty(0), 0, fewest, engine, small
        ),
        None if budget is None else budget - cost.simulations,
    )
    cost = cost.plus(pilot_cost)
    path: list[Trial] = []
    spending = Spending(budget, cost, 2 * block)
    rough_steps = ROUGH_MOVES * (1 - target) / target + ROUGH_MOVES
    middle = _rough_root(search, path, spending, rough_steps)
    # A wing gets a sixth of what the verifying run should need, if moves were independent.
    needed = math.inf
    if precision is not None:
        needed = (1 - target) / (target * (precision * rough_slope(search, path)) ** 2)
    low, high, middle = _wings(search, path, spending, middle, max(needed / 6, 4 * rough_steps))
    if precision is not None:
        needed = _steps_needed(high, low, target, precision * chord(low, high)[0])
    spending.add(search.run(path, "verify", middle, needed, spending.share(1.0)))
    verified = path[-1]
    miss = log_rate(verified) - math.log(target)
    if abs(miss) > TOO_FAR + 4 * relative_error(verified):
        raise _jump(search, path)
    correction, slope, slope_se = _correction(low, verified, high, miss)
    eps = verified.eps * math.exp(correction)
    error = math.hypot(relative_error(verified), correction * slope_se) / slope
    return Tolerance(
        eps=eps,
        std_error=eps * error,
        target=target,
        verified_eps=verified.eps,
        acceptance_rate=verified.acceptance_rate,
        acceptance_rate_se=verified.acceptance_rate_se,
        slope=slope,
        slope_se=slope_se,
        cost=spending.cost._replace(seconds=began.seconds()),
        path=tuple(path),
        seed=seed,
    )


def _half_width(slope: float, search: Search, steps: float, budget: int | None) -> float:
    """Distance of the wings in log eps: wider where few moves would leave the slope to chance."""
    if budget is not None:
        steps = min(steps, budget / search.pseudo_samples)
    error = math.sqrt((1 - search.target) / (search.target * steps))
    return float(np.clip(10 * error, WING, 3 * WING)) / slope


def _correction(low: Trial, verified: Trial, high: Trial, miss: float) -> tuple[float, float, float]:
    """Step in log eps from the verifying run to the root of the parabola, the slope there and its standard error."""
    slope, slope_se, bend = parabola(low, verified, high)
    if not (low.eps < verified.eps < high.eps and slope > SURE_SLOPE * slope_se):
        # Too near a wing, or beyond it, the parabola says less of the slope than the line between the wings.
        slope, slope_se, bend = *chord(low, high), 0.0
    correction = -miss / slope
    correction = -(miss + 0.5 * bend * correction**2) / slope
    at_root = slope + bend * correction
    return correction, at_root if at_root > 0.5 * slope else slope, slope_se


def _steps_needed(first: Trial, second: Trial, target: float, error: float) -> float:
    """Steps at which log r has the standard error wanted, from the errors that two runs nearby had."""
    inflation = [
        trial.acceptance_rate_se**2
        * trial.chains
        * trial.steps
        / max(trial.acceptance_rate * (1 - trial.acceptance_rate), 1e-12)
        for trial in (first, second)
    ]
    return max(1.0, sum(inflation) / 2) * (1 - target) / (target * error**2)


def _with_pilot(search: Search, budget: int | None) -> tuple[Search, Cost]:
    """Distances of prior simulations: Algorithm 1 with a tolerance that lets everything through."""
    count = PILOT[search.model.batched]
    if budget is not None:
        count = max(1, min(count, budget // 20))
    seed = _seed_of_run(search.seed, MOST_ROUGH + 10)
    found = rejection(search.model, uniform(EVERYTHING), budget=count, seed=seed, engine=search.engine,
                      progress=search.progress)  # fmt: skip
    if found.status.reason == "interrupted":
        raise KeyboardInterrupt
    assert found.distances is not None
    distances = np.sort(found.distances.reshape(-1))
    if distances.size < 10:
        raise ValueError(
            f"only {distances.size} of {count} simulations gave a distance, too few to begin with: see to the failing "
            "ones, or raise budget"
        )
    return replace(search, distances=distances, pilot=count), found.cost


def _checked_rate(rate: Any) -> float:
    number = positive("acceptance_rate", rate, "the share of proposals to be accepted, so between 0 and 1")
    if number >= 1:
        raise ValueError(f"acceptance_rate must be below 1, got {rate!r}: it is the share of proposals to be accepted")
    return number


def _checked_kernel(kernel: Any) -> Callable[[float], Kernel]:
    if kernel is None:
        return uniform
    if isinstance(kernel, Kernel):
        raise ValueError(
            f"kernel must be a function of eps, such as od.{kernel.name}, got that kernel at eps = {kernel.eps}"
        )
    if not callable(kernel) or not isinstance(kernel(1.0), Kernel):
        raise ValueError(f"kernel must be a function of eps that gives a kernel, such as od.uniform, got {kernel!r}")
    function: Callable[[float], Kernel] = kernel
    return function
