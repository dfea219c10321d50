"""How many pseudo-samples? Measured on the user's own model, with a guarantee (docs/theory.md).

In this order, within one budget of simulations that is never passed:

1. Algorithm 1 at the kernel: its acceptance rate, and draws from which all pilots start.
2. Steps are timed for M = 1, 2, 4, ... together, in turns, and the time is split into a price for the step itself, for
   a set-up and for a draw.
3. A pilot with M = 1 gives kappa, and the certificate says what any other M could at most gain.
4. Pilots with M = 2, 4, 8, ... at equal cost measure the gain, until it stops growing. Between and beyond them the
   inequalities of `bounds.py` say what is still possible.
5. Layouts on several processors, and plain rejection, are compared from the same numbers.

Two currencies are kept apart: simulations, and seconds of whole steps on this machine. With a nearly free simulator
the step's own overhead acts as a discount in the second and not in the first.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import optional_whole_number, seed_or_fresh, whole_number
from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Rng
from onedraw.estimators.average import AbcAverage, check_model_and_kernel
from onedraw.model.kernels import Kernel
from onedraw.model.model import Model
from onedraw.model.simulator import Staged
from onedraw.proposals.proposals import resolve
from onedraw.results.certificate import (
    WORTH,
    Certificate,
    certify,
    kappa_floor,
    known_nonnegative,
    largest_gain,
    shared_confidence,
)
from onedraw.results.efficiency import (
    Estimate,
    Function,
    Variances,
    chain_simulations,
    estimate,
    function_values,
    variances,
)
from onedraw.results.posterior import Posterior
from onedraw.run.chains import BATCHED_CHAINS, PLAIN_CHAINS
from onedraw.samplers.pseudo_marginal import pseudo_marginal
from onedraw.samplers.rejection import rejection
from onedraw.tuning.particles import Tuning, tune
from onedraw.tuning.prices import ROUNDS, Prices, Stages, Timed, measured_discount, time_stages, time_steps

BATCHED_BUDGET, PLAIN_BUDGET = 2_000_000, 100_000
BATCHED_PILOT_CHAINS, PLAIN_PILOT_CHAINS = 32, 8
REJECTION_SHARE, TIMING_SHARE = 0.25, 0.1
"""Shares of the budget for the acceptance rate with the starts, and for timing steps."""
WANTED_DRAWS = 200
"""Draws of Algorithm 1: half of them start the pilots, half teach the random walk its scale."""
FIRST_SHARES = 3
"""Simulations of the pilot with M = 1, to which all others are compared, in those of another pilot."""
FEWEST_STARTS = 16
"""Acceptances below which nothing more is tried."""
UNDECIDED = 2.0
"""M = 1 is not recommended where another M could still be better by more than this."""
MOST_STEPS = 50
"""Steps timed in one turn."""
LONGEST = 8
"""Steps a pilot may take at most, in those it could take without early rejection."""
FEWEST_STEPS = 4
"""Steps a chain takes in a pilot, at the least."""
CONFIDENCE = 0.95
MOST_BY_DEFAULT, MOST_PARTICLES = 64, 65_536
"""The largest M, and the largest number of particles, that are considered where nothing is said."""

__all__ = ["Advice", "advise", "measured_discount"]


NO_TUNING = (
    "an ABC average is one of independent estimates: the variance of its log need not be tuned, as a particle filter's "
    "must be; the gains above are the measured curve"
)


class Pilot(NamedTuple):
    """One pilot run."""

    pseudo_samples: int
    variances: dict[str, Variances]
    simulations: float
    """Per step of one chain, after early rejection."""
    setups: float
    acceptance_rate: float
    shape: tuple[int, int]
    """(chains, steps)."""

    @property
    def degrees(self) -> int:
        return max(1, min(part.degrees for part in self.variances.values()))


class Gain(NamedTuple):
    """What M pseudo-samples gain over one: v(f, Q_1)/(c_M v(f, Q_M))."""

    pseudo_samples: int
    cost: Estimate
    """c_M."""
    each: dict[str, Estimate]
    """For each function whose kappa could be estimated."""
    bound: float
    """By the certificate, from the pilot with M = 1 alone."""

    @property
    def least(self) -> Estimate | None:
        """Of the function that gains least, as measured; None where some kappa could not be estimated."""
        return min(self.each.values(), key=lambda gain: gain.value) if self.each else None

    @property
    def settled(self) -> Estimate | None:
        """The same, and not above what is proved."""
        least = self.least
        if least is None:
            return None
        return Estimate(min(least.value, self.bound), least.se, min(least.low, self.bound), min(least.high, self.bound))

    def __str__(self) -> str:
        measured = "not measured well enough" if self.least is None else f"gain {self.least}"
        proved = "" if math.isinf(self.bound) else f", proved below {self.bound:.3g}"
        return f"M = {self.pseudo_samples}: a step costs {self.cost.value:.3g} x, {measured}{proved}"


@dataclass(frozen=True)
class Answer:
    """The best M in one currency."""

    currency: str
    pseudo_samples: int | None
    """None where it cannot be told."""
    gains: tuple[Gain, ...]
    certificate: Certificate
    still_possible: float
    """No M up to `max_pseudo_samples` can be better than the choice by more than this factor."""
    text: str

    @property
    def gain(self) -> Estimate:
        """Of the choice over M = 1."""
        found = {gain.pseudo_samples: gain.settled for gain in self.gains}
        return found.get(self.pseudo_samples or 1) or Estimate(1.0, 0.0, 1.0, 1.0)


class Layout(NamedTuple):
    """Two ways to use several processors, in time for the same accuracy (docs/theory.md)."""

    processors: int
    ratio: Estimate
    """Time of (a), one chain with its draws side by side, over time of (b), a chain with one draw on each."""
    text: str


class AgainstRejection(NamedTuple):
    """What an independent draw, or the accuracy of one, costs in the currency of the choice."""

    acceptance_rate: Estimate
    rejection: Estimate
    chain: Estimate
    rejection_is_better: bool
    text: str


@dataclass(frozen=True)
class Advice:
    """How many pseudo-samples to use, with the numbers behind it; printed in plain words.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> found = od.advise(model, od.uniform(0.5), budget=20_000, seed=1)
    >>> found.cost.simulations <= found.budget
    True
    """

    verdict: str
    pseudo_samples: int | None
    """The choice: by seconds for staged simulators, whose set-ups simulations do not show, otherwise by simulations;
    None where it cannot be told."""
    simulations: Answer | None
    seconds: Answer | None
    pilots: tuple[Pilot, ...]
    prices: Prices | None
    discount: Estimate | None
    """delta in seconds of whole steps: further draws at one theta cost 1/delta of a step with one."""
    stages: Stages | None
    against_rejection: AgainstRejection | None
    layout: Layout | None
    cost: Cost
    budget: int
    seed: int

    def __str__(self) -> str:
        lines = [self.verdict]
        for answer in (self.simulations, self.seconds):
            if answer is not None and answer.gains:
                lines.append(f"in {answer.currency}:")
                lines += [f"  {gain}" for gain in answer.gains]
        if self.discount is not None:
            lines.append(f"in seconds, a step costs {self.discount} times what a further draw adds to it")
        if self.stages is not None:
            lines.append(f"a set-up takes {self.stages.prepare:.3g} s, a draw {self.stages.draw:.3g} s")
        lines += [part.text for part in (self.against_rejection, self.layout) if part is not None]
        if self.simulations is not None:
            lines.append(NO_TUNING)
        lines.append(f"spent {self.cost.simulations:,} of {self.budget:,} simulations, seed {self.seed}")
        return "\n".join(lines)

    __repr__ = __str__

    def to_json(self) -> str:
        """The numbers as JSON text."""
        return json.dumps(plain(self), allow_nan=False)


def plain(value: Any) -> Any:
    """Numbers, texts, lists and dicts of anything above; NaN and infinity become None."""
    if isinstance(value, Certificate):
        names = ("confidence", "nonnegative", "certified", "nothing_from", "worth")
        kappa = {name: plain(part) for name, part in value.kappa.items()}
        return {"kappa": kappa, **{name: getattr(value, name) for name in names}, "largest": plain(value.largest)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(part) for name, part in value._asdict().items()}
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


class CannotTell(Exception):
    """Raised inside `advise` where an honest answer is not possible; never leaves it."""


@dataclass(frozen=True)
class Question:
    """What was asked, checked; `model` and `proposal` are replaced by what is ready for use."""

    model: Model
    kernel: Kernel
    proposal: Any
    chains: int
    functions: Mapping[str, Function] | None
    seed: int
    processors: int
    most: int
    early: bool

    @property
    def staged(self) -> bool:
        return isinstance(self.model.simulate, Staged)

    def seed_of(self, number: int) -> int:
        """A seed for each part."""
        return int(np.random.SeedSequence([self.seed, number]).generate_state(1, np.uint64)[0] >> 1)


@dataclass
class Notebook:
    """What has been found so far: enough to hand back even where the question stays open."""

    budget: int
    cost: Cost
    pilots: tuple[Pilot, ...] = ()
    prices: Prices | None = None
    stages: Stages | None = None

    @property
    def left(self) -> int:
        return self.budget - self.cost.simulations

    def pay(self, cost: Cost) -> None:
        self.cost = self.cost.plus(cost)


def advise(
    model: Model | None = None,
    kernel: Kernel | None = None,
    *,
    estimator: Any = None,
    start: Any = None,
    budget: int | None = None,
    proposal: Any = None,
    chains: int | None = None,
    functions: Mapping[str, Function] | None = None,
    seed: int | None = None,
    processors: int = 1,
    max_pseudo_samples: int = MOST_BY_DEFAULT,
    early: bool = True,
) -> Advice | Tuning:
    """How many pseudo-samples a step of `od.pseudo_marginal` should draw, measured, with a guarantee.

    For an `estimator` such as `od.particle_filter(...)`: how many particles, by the published rules and by measurement.

    Parameters
    ----------
    model, kernel, proposal, early
        As in `od.pseudo_marginal`.
    budget
        The most simulations all of this may take; by default 2,000,000 for batched simulators, 100,000 for others.
    chains
        Chains of the run to come: the time of a step is measured with that many.
    functions
        Functions of the parameters by name whose means are wanted; by default the parameters themselves.
    seed
        A whole number. Times are measured, so only what is counted in simulations is the same again.
    processors
        Of the machine the run is meant for, to compare layouts.
    max_pseudo_samples
        The largest M considered.
    estimator, start
        In place of model and kernel: a particle filter, or a function from the number N of particles to an estimator,
        with starting points as in `od.pseudo_marginal`. Then the budget is 20,000 estimates by default, and N is
        limited by `max_pseudo_samples` only where it is above 64. An ABC average is taken apart into model and kernel.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> found = od.advise(model, od.uniform(0.5), proposal=od.independence(), budget=200_000, seed=1)
    >>> found.pseudo_samples
    1
    """
    if estimator is not None:
        if model is not None or kernel is not None:
            raise ValueError("give a model and a kernel, or an estimator, not both")
        if not isinstance(estimator, AbcAverage):
            most = whole_number("max_pseudo_samples", max_pseudo_samples, "the largest number considered", least=2)
            return tune(
                estimator, start, budget=budget, proposal=proposal, functions=functions, seed=seed_or_fresh(seed),
                most=most if most > MOST_BY_DEFAULT else MOST_PARTICLES,
            )  # fmt: skip
        model, kernel = estimator.model, estimator.kernel
    check_model_and_kernel(model, kernel)
    assert model is not None and kernel is not None
    default = BATCHED_BUDGET if model.batched else PLAIN_BUDGET
    budget = default if budget is None else whole_number("budget", budget, "the largest number of simulations")
    chains = optional_whole_number("chains", chains, "the number of chains of the run to come")
    chains = (BATCHED_CHAINS if model.batched else PLAIN_CHAINS) if chains is None else chains
    processors = whole_number("processors", processors, "the number of processors")
    most = whole_number("max_pseudo_samples", max_pseudo_samples, "the largest number considered", least=2)
    seed = seed_or_fresh(seed)
    if budget <= model.pilot:
        raise ValueError(
            f"budget = {budget} leaves nothing after the {model.pilot} pilot simulations of the distance: raise it"
        )
    book = Notebook(budget, Cost())
    asked = Question(model, kernel, proposal, chains, functions, seed, processors, most, early)
    try:
        return _advise(asked, book)
    except CannotTell as reason:
        nothing = Advice(
            f"cannot tell: {reason}", None, None, None, (), None, None, None, None, None, book.cost, budget, seed
        )
        return replace(nothing, pilots=book.pilots, prices=book.prices, stages=book.stages)


def _advise(asked: Question, book: Notebook) -> Advice:
    _refuse_deterministic(asked, book)
    found = _rejection(asked, book)
    starts, proposal = _starts(found, asked.proposal)
    assert found.model is not None
    asked = replace(asked, model=found.model, proposal=proposal)
    counts = [1 << power for power in range(asked.most.bit_length())]
    timed = _time_steps(asked, starts, counts, book)
    book.prices = timed.prices
    if asked.staged:
        book.stages = _time_stages(asked, starts, book)
    positive = _pilots(asked, starts, counts, timed, book)
    one = book.pilots[0]
    for name, part in one.variances.items():
        if part.reason:
            raise CannotTell(f"kappa of {name} cannot be estimated with M = 1: {part.reason}; raise the budget or eps")
    by_simulations, by_seconds = (
        _answer(currency, book.pilots, timed, positive, asked.most) for currency in ("simulations", "seconds")
    )
    chosen, other = (by_seconds, by_simulations) if asked.staged else (by_simulations, by_seconds)
    against = _against_rejection(found, one, chosen, timed.prices)
    return Advice(
        verdict=_verdict(chosen, other, against),
        pseudo_samples=chosen.pseudo_samples,
        simulations=by_simulations,
        seconds=by_seconds,
        pilots=book.pilots,
        prices=timed.prices,
        discount=timed.discount(one),
        stages=book.stages,
        against_rejection=against,
        layout=_layout(asked.processors, book.pilots, positive),
        cost=book.cost,
        budget=book.budget,
        seed=asked.seed,
    )


# --- 1: rejection and starts --------------------------------------------------------------------------------


def _refuse_deterministic(asked: Question, book: Notebook) -> None:
    """One look at whether a simulator uses its generator: pseudo-samples that are all equal say nothing about M."""
    model, simulate = asked.model, asked.model.simulate
    theta = model.prior.sample(np.random.default_rng(asked.seed_of(0)), 1)
    book.pay(Cost(simulations=1, setups=int(asked.staged)))
    if asked.staged:
        generator = np.random.default_rng(0)
        before = generator.bit_generator.state
        try:
            simulate.draw(generator, simulate.prepare(**model.prior.named(theta[0])), 1)
        except Exception:
            # A failure at one theta; if all fail, the next part says so.
            return
        ignored = generator.bit_generator.state == before
    else:
        ignored = model.simulate_rows(Rng(asked.seed_of(0), Phase.SEARCH), theta).ignored_rng
    if ignored:
        raise CannotTell(
            "the simulator draws nothing from the rng it is given. If it is deterministic, all pseudo-samples at one "
            "theta are equal and more than one is wasted; if it draws from a source of its own, runs cannot be repeated"
        )


def _rejection(asked: Question, book: Notebook) -> Posterior:
    share = max(int(REJECTION_SHARE * book.left), min(book.left, asked.model.pilot + 1))
    found = rejection(
        asked.model, asked.kernel, draws=WANTED_DRAWS, budget=share, seed=asked.seed_of(1), progress=False
    )
    book.pay(found.cost)
    if found.shape[1] < FEWEST_STARTS:
        raise CannotTell(
            f"{found.shape[1] or 'nothing'} was accepted at eps = {asked.kernel.eps:g} in "
            f"{found.cost.simulations:,} simulations, and {FEWEST_STARTS} are needed: raise eps or the budget"
        )
    return found


def _starts(found: Posterior, proposal: Any) -> tuple[Posterior, Any]:
    """Draws for the pilots to start from, and the proposal ready for use: every second draw serves its scale."""
    assert found.model is not None and found.distances is not None
    prior = found.model.prior
    even = slice(0, None, 2)
    theta = np.column_stack([values[0, 1::2] for values in found.draws.values()]).astype(float)
    starts = replace(
        found, draws={name: values[:, even] for name, values in found.draws.items()}, distances=found.distances[:, even]
    )

    def spread() -> Array:
        pool = theta
        if len(np.unique(pool, axis=0)) < max(10, 2 * prior.dim):
            pool = prior.sample(np.random.default_rng(found.seed), 1000)
        return np.atleast_2d(np.cov(pool, rowvar=False))

    return starts, resolve(proposal, prior, spread)


# --- 2: what a step costs -----------------------------------------------------------------------------------


def _time_steps(asked: Question, starts: Posterior, counts: list[int], book: Notebook) -> Timed:
    """Time whole steps at several M, at as many as a share of the budget pays for."""
    share = min(int(TIMING_SHARE * book.budget), book.left // 2)
    chains = asked.chains
    while True:
        affordable = [m for m in counts if chains * (m - 1 + ROUNDS * 2 * m) <= share]
        if len(affordable) >= 2 or chains == 1:
            break
        # Fewer chains than the run will have: dearer steps, but a time at all.
        chains //= 2
    if len(affordable) < 2:
        raise CannotTell(f"a budget of {book.budget:,} simulations does not pay for timing steps: raise it")
    steps = max(1, min(MOST_STEPS, share // (chains * (ROUNDS + 1) * sum(affordable))))
    found = time_steps(
        asked.model, asked.kernel, asked.proposal, starts, affordable, chains, steps, asked.seed_of(2), asked.early
    )
    book.pay(found.cost)
    return found.timed


def _time_stages(asked: Question, starts: Posterior, book: Notebook) -> Stages:
    """Seconds of a set-up and of a draw, at draws of the posterior."""
    theta = np.column_stack([values.reshape(-1) for values in starts.draws.values()]).astype(float)
    stages, cost = time_stages(asked.model, theta[:5], asked.seed_of(3), book.left)
    book.pay(cost)
    return stages


# --- 3 and 4: pilots ----------------------------------------------------------------------------------------


def _pilots(asked: Question, starts: Posterior, counts: list[int], timed: Timed, book: Notebook) -> bool:
    """Pilots for M = 1, 2, 4, ... until the gain stops growing; returns whether Q_M >= 0 is known.

    kappa falls about like 1/M at first, so equally many simulations give about equally accurate kappas; M = 1, to
    which all are compared, has three times as many. With a staged simulator, where set-ups are what takes time, larger
    M are given more, halfway to equally many set-ups. Shares do not depend on the clock, so pilots can be repeated.
    """
    chains = BATCHED_PILOT_CHAINS if asked.model.batched else PLAIN_PILOT_CHAINS
    shares = {m: math.sqrt(m) if asked.staged else 1.0 for m in counts} | {1: FIRST_SHARES}
    unit = book.left / sum(shares.values())
    positive = False
    best = {"simulations": 0.0, "seconds": 0.0}
    falling = 0
    for m in counts:
        share = min(int(unit * shares[m]), book.left)
        if share < chains * (m - 1 + FEWEST_STEPS * m):
            if m == 1:
                raise CannotTell(
                    f"{book.left:,} simulations are left for pilots, too few for {chains} chains: raise the budget"
                )
            break
        post = pseudo_marginal(
            asked.model,
            asked.kernel,
            # A walk that leaves the prior at every step simulates nothing and would never spend its budget.
            draws=LONGEST * share // (chains * m),
            budget=share,
            chains=chains,
            pseudo_samples=m,
            proposal=asked.proposal,
            start=starts,
            seed=asked.seed_of(10 + m),
            early=asked.early,
            keep_distances=False,
            progress=False,
        )
        book.pay(post.cost)
        book.pilots += (_pilot(post, asked.functions),)
        if m == 1:
            positive = known_nonnegative(post)
            if not post.acceptance_rate > 0:
                raise CannotTell(
                    f"the chains did not move in {post.shape[1]} steps with M = 1: use smaller steps, a larger eps or "
                    "a larger budget"
                )
            if any(part.reason for part in book.pilots[0].variances.values()):
                break
            continue
        grew = False
        for currency, top in best.items():
            gain = _gain(currency, book.pilots[0], book.pilots[-1], timed, positive).settled
            # What could not be measured may have grown.
            grew = grew or gain is None or gain.value > top
            best[currency] = top if gain is None else max(top, gain.value)
        falling = 0 if grew else falling + 1
        if falling == 2:
            break
    return positive


def _pilot(post: Posterior, functions: Mapping[str, Function] | None) -> Pilot:
    chains, steps = post.shape
    m = int(post.settings["pseudo_samples"])
    each = {name: variances(along) for name, along in function_values(post, functions).items()}
    simulations, _ = chain_simulations(post)
    # To complete its M draws, the start of each chain took one set-up.
    setups = post.cost.setups - (chains if m > 1 and post.cost.setups else 0)
    size = chains * steps
    return Pilot(m, each, simulations / size, setups / size, post.acceptance_rate, post.shape)


def _cost(currency: str, one: Pilot, many: Pilot, timed: Timed) -> Estimate:
    """c_M, with the error of the two mean numbers of simulations a step."""
    if many is one:
        return Estimate(1.0, 0.0, 1.0, 1.0)
    ratio = many.simulations / one.simulations
    by_time = timed.cost(one, many.simulations, many.setups)
    value = ratio if currency == "simulations" else by_time.value
    timing = 0.0 if currency == "simulations" else by_time.se / by_time.value
    relative = math.sqrt(timing**2 + _count_error(one) ** 2 + _count_error(many) ** 2)
    return estimate(value, value * relative, len(timed.without) - 1 if timing else one.degrees)


def _count_error(pilot: Pilot) -> float:
    """Relative error of the simulations a step: that of a count, doubled because steps depend on each other."""
    share = min(pilot.simulations / pilot.pseudo_samples, 1.0)
    return 2 * math.sqrt((1 - share) / (share * math.prod(pilot.shape)))


def _gain(currency: str, one: Pilot, many: Pilot, timed: Timed, positive: bool) -> Gain:
    """Measured for every function, with intervals that hold for all of them together."""
    m, cost = many.pseudo_samples, _cost(currency, one, many, timed)
    confidence = shared_confidence(CONFIDENCE, len(one.variances))
    each, bounds = {}, []
    for name, first in one.variances.items():
        second = many.variances[name]
        kappa = estimate(first.kappa.value, first.kappa.se, first.degrees, confidence)
        bounds.append(largest_gain(kappa, m, max(cost.low, 1.0), positive))
        if second.reason:
            continue
        value = first.kappa.value / (cost.value * second.kappa.value)
        parts = (first.kappa, second.kappa, cost)
        relative = math.sqrt(sum((part.se / part.value) ** 2 for part in parts))
        each[name] = estimate(value, value * relative, min(first.degrees, second.degrees), confidence)
    return Gain(m, cost, each if len(each) == len(one.variances) else {}, max(bounds))


def _cost_of_any(currency: str, pilots: tuple[Pilot, ...], timed: Timed) -> Callable[[int], float]:
    """A lower limit of c_M for every M: measured at the pilots, and on straight lines between and beyond them."""
    at = np.array([pilot.pseudo_samples for pilot in pilots], dtype=float)
    costs = np.array([_cost(currency, pilots[0], pilot, timed).low for pilot in pilots])
    costs = np.maximum.accumulate(np.maximum(costs, 1.0))

    def cost(pseudo_samples: int) -> float:
        if pseudo_samples <= at[-1]:
            return float(np.interp(pseudo_samples, at, costs))
        if len(at) == 1:
            return timed.nominal(pseudo_samples) if currency == "seconds" else float(pseudo_samples)
        slope = (costs[-1] - costs[-2]) / (at[-1] - at[-2])
        return float(costs[-1] + slope * (pseudo_samples - at[-1]))

    return cost


def _answer(currency: str, pilots: tuple[Pilot, ...], timed: Timed, positive: bool, most: int) -> Answer:
    one = pilots[0]
    kappas = {
        name: estimate(part.kappa.value, part.kappa.se, part.degrees, shared_confidence(CONFIDENCE, len(one.variances)))
        for name, part in one.variances.items()
    }
    cost = _cost_of_any(currency, pilots, timed)
    found = certify(kappas, cost=cost, positive=positive, confidence=CONFIDENCE)
    gains = tuple(_gain(currency, one, pilot, timed, positive) for pilot in pilots[1:])
    good = {gain.pseudo_samples: gain.settled for gain in gains if gain.settled is not None}
    good = {m: gain for m, gain in good.items() if gain.low > 1 and gain.value >= WORTH}
    chosen, advantage = 1, 1.0
    if good:
        # By the lower limit, so that a badly measured M is not chosen for its luck; the fewest draws among equals.
        top = max(gain.low for gain in good.values())
        chosen = next(m for m, gain in good.items() if gain.low >= top / 1.05)
        advantage = good[chosen].value
    others = [m for m in range(2, most + 1) if m != chosen]
    possible = max((_possible(m, pilots, gains, found, cost, positive) for m in others), default=1.0) / advantage
    text = _sentence(chosen, gains, found, possible, most, pilots)
    if chosen == 1 and possible > UNDECIDED:
        return Answer(currency, None, gains, found, possible, f"cannot tell: a larger budget may settle it ({text})")
    return Answer(currency, chosen, gains, found, possible, text)


def _possible(
    m: int,
    pilots: tuple[Pilot, ...],
    gains: tuple[Gain, ...],
    found: Certificate,
    cost: Callable[[int], float],
    positive: bool,
) -> float:
    """What M could at most gain over one: by the certificate, by measuring it, or by what was measured around it."""
    bound = found.gain(m)
    for gain in gains:
        if gain.pseudo_samples == m and gain.each:
            bound = min(bound, max(part.high for part in gain.each.values()))
    around = []
    for name, kappa in found.kappa.items():
        low = {p.pseudo_samples: p.variances[name].kappa.low for p in pilots if p.variances[name].kappa.low > 0}
        floor = kappa_floor(m, low, positive)
        around.append(kappa.high / (cost(m) * floor) if floor > 0 else math.inf)
    return min(bound, max(around))


def _sentence(
    chosen: int, gains: tuple[Gain, ...], found: Certificate, possible: float, most: int, pilots: tuple[Pilot, ...]
) -> str:
    settled = {gain.pseudo_samples: gain.settled for gain in gains if gain.settled is not None}
    if chosen == 1:
        parts = []
        if found.certified > 1:
            parts.append(f"certified against M <= {min(found.certified, most)}")
        measured = [m for m in settled if m > found.certified]
        if measured:
            parts.append(f"measured against {_listed(measured)}")
        text = f"pseudo_samples=1: {', '.join(parts) or 'nothing could be measured against it'}"
        if settled:
            text += f"; the largest gain found is {max(settled.values(), key=lambda gain: gain.value)}"
    else:
        text = f"pseudo_samples={chosen}: the measured gain over 1 is {settled[chosen]}"
    unsettled = [pilot.pseudo_samples for pilot in pilots[1:] if any(part.reason for part in pilot.variances.values())]
    if unsettled:
        text += f"; the pilots were too short at {_listed(unsettled)}"
    if math.isinf(possible):
        return text + f"; what other M up to {most} could gain is not bounded"
    better = "" if possible < 1.005 else f" by more than {possible:.3g} x"
    return text + f"; no other choice up to {most} is better{better}"


def _listed(counts: list[int]) -> str:
    return f"M = {', '.join(map(str, counts))}"


# --- 5 and 6: layouts and rejection -------------------------------------------------------------------------


def _layout(processors: int, pilots: tuple[Pilot, ...], positive: bool) -> Layout | None:
    """(a) one chain with a draw on each processor takes v(f, Q_P); (b) a chain on each takes v(f, Q_1)/P."""
    if processors == 1:
        return None
    one = pilots[0].variances
    for pilot in pilots:
        if pilot.pseudo_samples == processors and not any(part.reason for part in pilot.variances.values()):
            ratios = []
            for name, part in pilot.variances.items():
                value = processors * part.kappa.value / one[name].kappa.value
                relative = math.hypot(part.kappa.se / part.kappa.value, one[name].kappa.se / one[name].kappa.value)
                ratios.append(estimate(value, value * relative, min(part.degrees, one[name].degrees)))
            ratio = min(ratios, key=lambda found: found.value)
            text = f"takes {ratio} times as long as"
            break
    else:
        floors = []
        for name, part in one.items():
            low = {p.pseudo_samples: p.variances[name].kappa.low for p in pilots if p.variances[name].kappa.low > 0}
            floors.append(processors * kappa_floor(processors, low, positive) / part.kappa.high)
        ratio = Estimate(math.nan, math.nan, min(floors), math.inf)
        text = f"takes at least {ratio.low:.3g} times as long as"
    return Layout(
        processors, ratio,
        f"on {processors} processors, (a) one chain with {processors} draws side by side {text} (b) a chain on each "
        "with one draw",
    )  # fmt: skip


def _against_rejection(found: Posterior, one: Pilot, chosen: Answer, prices: Prices) -> AgainstRejection:
    """1/p_acc proposals against kappa steps, in the currency of the choice."""
    rate = estimate(found.acceptance_rate, found.acceptance_rate_se, max(found.shape[1] - 1, 1))
    by_time = chosen.currency == "seconds"
    proposal = prices.setup + prices.draw if by_time else 1.0
    step = prices.of(one.simulations, one.setups) if by_time else one.simulations
    alone = Estimate(
        proposal / rate.value, proposal * rate.se / rate.value**2, proposal / rate.high, proposal / rate.low
    )
    worst = max(one.variances.values(), key=lambda part: part.kappa.value).kappa
    gain = chosen.gain.value
    chain = Estimate(*(step / gain * part for part in worst))
    better = alone.high < chain.low
    if better:
        comparison = "plain rejection (od.rejection) is the better choice at this kernel"
    elif alone.low > chain.high:
        comparison = "the chain is the better choice"
    else:
        comparison = "which is better is within the error"
    text = (
        f"an independent draw takes plain rejection {alone.value:.4g} {chosen.currency}; the accuracy of one takes the "
        f"chain with M = {chosen.pseudo_samples or 1} {chain}: {comparison}"
    )
    return AgainstRejection(rate, alone, chain, better, text)


def _verdict(chosen: Answer, other: Answer, against: AgainstRejection) -> str:
    lines = [f"{chosen.text} (counted in {chosen.currency})"]
    if other.pseudo_samples != chosen.pseudo_samples:
        why = "" if other.pseudo_samples == 1 else f" (measured gain {other.gain})"
        choice = "it cannot be told" if other.pseudo_samples is None else f"pseudo_samples={other.pseudo_samples}{why}"
        lines.append(f"where {other.currency} are what costs, {choice}")
    if against.rejection_is_better:
        lines.append("plain rejection (od.rejection) is cheaper than the chain at this kernel")
    return "\n".join(lines)
