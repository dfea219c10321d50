"""How many pseudo-samples? Measured on the user's own model, with a guarantee (docs/theory.md).

In this order, within one budget of simulations that is never passed:

1. Algorithm 1 at the kernel: its acceptance rate, and draws from which all pilots start.
2. Steps are timed for M = 1, 2, 4, ... together, in turns, and the time is split into a price for the step itself, for
   a set-up and for a draw.
3. A pilot with M = 1 gives kappa, and the certificate bounds the gain of any other M.
4. Pilots with M = 2, 4, 8, ... at equal cost measure the gain, until it stops growing. Between and beyond them the
   inequalities of `results/certificate.py` bound what is still possible.
5. Layouts on several processors, and plain rejection, are compared from the same numbers.

Two currencies are kept apart: simulations, and seconds of whole steps on this machine. With a nearly free simulator
the step's own overhead acts as a discount in the second and not in the first.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Unpack

import numpy as np

from onedraw import markup
from onedraw.arguments import MOST_AT_ONCE, optional_whole_number, shown, true_or_false, whole_number
from onedraw.cost import Cost
from onedraw.engines.streams import Phase, Rng
from onedraw.estimators.abc_average import AbcAverage, check_model_and_kernel
from onedraw.model.kernels import Kernel
from onedraw.model.model import Model
from onedraw.model.simulator import Staged
from onedraw.proposals.resolve import resolve
from onedraw.results.certificate import (
    WORTH,
    Certificate,
    certify,
    joint_kappas,
    kappa_floor,
    known_nonnegative,
    largest_gain,
    shared_confidence,
)
from onedraw.results.efficiency import TURNS, Function, chain_simulations
from onedraw.results.monte_carlo_error import UNKNOWN, Interval, Variances, exactly, interval, variances
from onedraw.results.plain import as_json
from onedraw.results.posterior import Posterior, check_functions, function_values, points
from onedraw.run.chains import BATCHED_CHAINS, PLAIN_CHAINS, check_proposal, spread_of
from onedraw.run.options import Options, RunOptions, on_engine
from onedraw.run.specification import specify
from onedraw.samplers.pseudo_marginal import pseudo_marginal
from onedraw.samplers.rejection import rejection
from onedraw.tuning.pair_advice import PairAdvice, advise_pair
from onedraw.tuning.particles import Tuning, tune
from onedraw.tuning.prices import Prices, Stages, Timed, time_stages, time_steps
from onedraw.tuning.runs import CannotTell, Runs, measurement

BATCHED_BUDGET, PLAIN_BUDGET = 2_000_000, 100_000
BATCHED_PILOT_CHAINS, PLAIN_PILOT_CHAINS = 32, 8
REJECTION_SHARE, TIMING_SHARE = 0.25, 0.1
"""Shares of the budget for the acceptance rate with the starts, and for timing steps."""
WANTED_DRAWS = 200
"""Draws of Algorithm 1: half of them start the pilots, half give the random walk its scale."""
FIRST_SHARES = 3
"""Simulations of the pilot with M = 1, to which all others are compared, in those of another pilot."""
FEWEST_STARTS = 16
"""Acceptances below which nothing more is tried."""
UNDECIDED = 2.0
"""M = 1 is not recommended if another M could still be better by more than this."""
MOST_STEPS = 50
"""Steps timed in one turn."""
LONGEST = 8
"""The most steps of a pilot, in those it could take without early rejection."""
FEWEST_STEPS = 4
"""The fewest steps of a chain in a pilot."""
CONFIDENCE = 0.95
MOST_BY_DEFAULT, MOST_PARTICLES = 64, 65_536
"""The default for the largest M, and for the largest number of particles, that are considered."""

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
        """Degrees of freedom of the least certain kappa."""
        return max(1, min(part.degrees for part in self.variances.values()))

    @property
    def counts(self) -> tuple[float, float]:
        """Mean numbers of simulations and set-ups per step."""
        return self.simulations, self.setups

    @property
    def resolved(self) -> bool:
        """Whether every kappa could be estimated."""
        return all(part.resolved for part in self.variances.values())

    @property
    def count_error(self) -> float:
        """Relative error of the simulations per step: that of a count, doubled because steps are correlated."""
        share = min(self.simulations / self.pseudo_samples, 1.0)
        return 2 * math.sqrt((1 - share) / (share * math.prod(self.shape)))


class Gain(NamedTuple):
    """What M pseudo-samples gain over one: v(f, Q_1)/(c_M v(f, Q_M))."""

    pseudo_samples: int
    cost: Interval
    """c_M."""
    each: dict[str, Interval]
    """For each function; empty if some kappa could not be estimated."""
    bound: float
    """By the certificate, from the pilot with M = 1 alone."""

    @property
    def least(self) -> Interval | None:
        """Of the function that gains least, as measured; None if some kappa could not be estimated."""
        return min(self.each.values(), key=lambda gain: gain.value) if self.each else None

    @property
    def capped(self) -> Interval | None:
        """The same, but not above the bound."""
        if self.least is None:
            return None
        value, se, *ends = self.least
        return Interval(min(value, self.bound), se, *(min(end, self.bound) for end in ends))

    def __str__(self) -> str:
        measured = "not measured well enough" if self.least is None else f"gain {self.least}"
        proved = "" if math.isinf(self.bound) else f", proved below {self.bound:.3g}"
        return f"M = {self.pseudo_samples}: a step costs {self.cost.value:.3g} x, {measured}{proved}"


@dataclass(frozen=True)
class Answer:
    """The best M in one currency."""

    currency: str
    pseudo_samples: int | None
    """None if it is undecided."""
    gains: tuple[Gain, ...]
    certificate: Certificate
    still_possible: float
    """No M up to `max_pseudo_samples` can be better than the choice by more than this factor."""
    text: str

    @property
    def gain(self) -> Interval:
        """Of the choice over M = 1."""
        found = {gain.pseudo_samples: gain.capped for gain in self.gains}
        return found.get(self.pseudo_samples or 1) or exactly(1.0)


class ProcessorLayout(NamedTuple):
    """Two layouts on several processors, compared by their time for the same accuracy (docs/theory.md)."""

    processors: int
    ratio: Interval
    """Time of (a), one chain with its draws side by side, over time of (b), a chain with one draw on each."""
    text: str


class AgainstRejection(NamedTuple):
    """The cost of an independent draw by rejection, and of an effective draw by the chain, in the chosen currency."""

    acceptance_rate: Interval
    rejection: Interval
    chain: Interval
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
    cost: Cost
    budget: int
    seed: int
    pilots: tuple[Pilot, ...]
    prices: Prices | None
    stages: Stages | None
    pseudo_samples: int | None = None
    """The choice: by seconds for staged simulators, whose set-ups simulations do not show, otherwise by simulations;
    None if it is undecided."""
    simulations: Answer | None = None
    seconds: Answer | None = None
    discount: Interval | None = None
    """delta in seconds of whole steps: further draws at one theta cost 1/delta of a step with one."""
    against_rejection: AgainstRejection | None = None
    layout: ProcessorLayout | None = None

    def __str__(self) -> str:
        lines = [self.verdict]
        for answer in (self.simulations, self.seconds):
            if answer is not None and answer.gains:
                lines += [f"in {answer.currency}:", *(f"  {gain}" for gain in answer.gains)]
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

    def _repr_html_(self) -> str:
        """For notebooks: the verdict, and the gains with their intervals as bars."""
        first, *others = self.verdict.split("\n")
        parts = [markup.heading(first), markup.lines(others)]
        for answer in (self.simulations, self.seconds):
            if answer is not None and answer.gains:
                gains = [gain.least or UNKNOWN for gain in answer.gains]
                rows = [
                    [f"M = {gain.pseudo_samples}", f"{gain.cost.value:.3g}", f"{least.value:.3g}", f"{least.low:.3g}",
                     f"{least.high:.3g}", "–" if math.isinf(gain.bound) else f"{gain.bound:.3g}"]
                    for gain, least in zip(answer.gains, gains, strict=True)
                ]  # fmt: skip
                drawn = markup.bars([markup.Span(least.low, least.value, least.high) for least in gains])
                head = ["", "cost of a step", "gain", "95 % low", "high", "bound"]
                parts.append(markup.table([head, *rows], drawn, f"in {answer.currency}"))
        others = [part.text for part in (self.against_rejection, self.layout) if part is not None]
        others = [text for text in others if text not in self.verdict]
        spent = f"spent {self.cost.simulations:,} of {self.budget:,} simulations, seed {self.seed}"
        return markup.block(*parts, markup.lines([*others, spent]))

    def to_json(self) -> str:
        """The numbers as JSON text."""
        return as_json(self, None)


@dataclass(frozen=True)
class Question:
    """The checked arguments; `model` and `proposal` are replaced when they are ready for use."""

    model: Model
    kernel: Kernel
    proposal: Any
    chains: int
    functions: Mapping[str, Function] | None
    processors: int
    most: int
    early: bool

    @property
    def staged(self) -> bool:
        """Whether the simulator is staged."""
        return isinstance(self.model.simulate, Staged)

    @property
    def counts(self) -> list[int]:
        """M = 1, 2, 4, ... up to the largest considered."""
        return [1 << power for power in range(self.most.bit_length())]


@dataclass
class Evidence:
    """What has been measured so far: returned even if the question stays open."""

    pilots: tuple[Pilot, ...] = ()
    timed: Timed | None = None
    stages: Stages | None = None
    positive: bool = False
    """Whether Q_M >= 0 is known."""

    def cost(self, currency: str, many: Pilot) -> Interval:
        """c_M, with the error of the two mean numbers of simulations per step."""
        one = self.pilots[0]
        if many is one:
            return exactly(1.0)
        value, timing, degrees = many.simulations / one.simulations, 0.0, one.degrees
        if currency == "seconds":
            assert self.timed is not None
            by_time = self.timed.cost(one.counts, many.counts)
            value, timing, degrees = by_time.value, by_time.se / by_time.value, len(self.timed.without) - 1
        relative = math.sqrt(timing**2 + one.count_error**2 + many.count_error**2)
        return interval(value, value * relative, degrees)

    def gain(self, currency: str, many: Pilot) -> Gain:
        """Measured for every function, with intervals that hold for all of them together."""
        one, m, cost = self.pilots[0].variances, many.pseudo_samples, self.cost(currency, many)
        kappas = joint_kappas(one, CONFIDENCE)
        bounds = [largest_gain(kappa, m, max(cost.low, 1.0), self.positive) for kappa in kappas.values()]
        each = {}
        for name, first in one.items() if many.resolved else ():
            second = many.variances[name]
            confidence = shared_confidence(CONFIDENCE, len(one))
            each[name] = quotient(first, second, 1 / cost.value, cost.se / cost.value, confidence)
        return Gain(m, cost, each, max(bounds))

    def cost_of_any(self, currency: str) -> Callable[[int], float]:
        """A lower limit of c_M for every M: measured at the pilots, and on straight lines between and beyond them."""
        at = np.array([pilot.pseudo_samples for pilot in self.pilots], dtype=float)
        costs = np.array([self.cost(currency, pilot).low for pilot in self.pilots])
        costs = np.maximum.accumulate(np.maximum(costs, 1.0))

        def cost(pseudo_samples: int) -> float:
            if pseudo_samples <= at[-1]:
                return float(np.interp(pseudo_samples, at, costs))
            if len(at) == 1:
                assert self.timed is not None
                return self.timed.nominal(pseudo_samples) if currency == "seconds" else float(pseudo_samples)
            slope = (costs[-1] - costs[-2]) / (at[-1] - at[-2])
            return float(costs[-1] + slope * (pseudo_samples - at[-1]))

        return cost

    def kappa_floor(self, name: str, pseudo_samples: int) -> float:
        """A lower limit of kappa at any M, from the pilots at other M."""
        lows = {pilot.pseudo_samples: pilot.variances[name].kappa.low for pilot in self.pilots}
        return kappa_floor(pseudo_samples, {m: low for m, low in lows.items() if low > 0}, self.positive)


def quotient(
    above: Variances, below: Variances, factor: float, relative: float = 0.0, probability: float = 0.95
) -> Interval:
    """factor x kappa above / kappa below; the factor has a relative error of its own."""
    value = factor * above.kappa.value / below.kappa.value
    errors = (relative, above.kappa.se / above.kappa.value, below.kappa.se / below.kappa.value)
    return interval(value, value * math.hypot(*errors), min(above.degrees, below.degrees), probability)


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
    processors: int = 1,
    max_pseudo_samples: int = MOST_BY_DEFAULT,
    early: bool = True,
    **options: Unpack[RunOptions],
) -> Advice | Tuning | PairAdvice:
    """Measure how many pseudo-samples a step of `od.pseudo_marginal` should draw, with a guarantee.

    For an `estimator` such as `od.particle_filter(...)`: how many particles, by the published rules and by measurement.
    For a simulator in two parts (`od.stages`, `od.multifidelity`): whether the parts pay, and how much, from a pilot.

    Parameters
    ----------
    model, kernel, proposal, early
        As in `od.pseudo_marginal`.
    budget
        The largest number of simulations; by default 2,000,000 for batched simulators, 100,000 for others.
    chains
        Number of chains of the planned run: the time of a step is measured with as many.
    functions
        Functions of the parameters by name whose means are wanted; by default the parameters themselves.
    processors
        Number of processors of the machine for the run, to compare layouts.
    max_pseudo_samples
        The largest M considered.
    estimator, start
        In place of model and kernel: a particle filter, or a function from the number N of particles to an estimator,
        with starting points as in `od.pseudo_marginal`. Then the budget is 20,000 estimates by default, and N is
        limited by `max_pseudo_samples` only if that is above 64. An ABC average is taken apart into model and kernel.
    **options
        As in every function that simulates: see `RunOptions`. Times are measured, so only results counted in
        simulations are reproducible; a file keeps both.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> found = od.advise(model, od.uniform(0.5), proposal=od.independence(), budget=200_000, seed=1)
    >>> found.pseudo_samples
    1
    """
    checked = Options.checked(options)
    most = whole_number("max_pseudo_samples", max_pseudo_samples, "the largest number considered", 2, MOST_AT_ONCE)
    if estimator is not None:
        if model is not None or kernel is not None:
            raise ValueError("give a model and a kernel, or an estimator, not both")
        if not isinstance(estimator, AbcAverage):
            return tune(
                estimator, start, budget=budget, proposal=proposal, functions=functions, options=checked,
                most=most if most > MOST_BY_DEFAULT else MOST_PARTICLES,
            )  # fmt: skip
        model, kernel = estimator.model, estimator.kernel
    if start is not None:
        raise ValueError(
            f"start is for an estimator of your own, got {shown(start)}: with a model and a kernel, advise finds the "
            "starting points itself"
        )
    check_model_and_kernel(model, kernel)
    assert model is not None and kernel is not None
    if model.pair is not None:
        return advise_pair(model, kernel, budget, checked)
    default = BATCHED_BUDGET if model.batched else PLAIN_BUDGET
    budget = (
        default if budget is None else whole_number("budget", budget, "the largest number of simulations", least=10)
    )
    chains = optional_whole_number("chains", chains, "the number of chains of the run to come", MOST_AT_ONCE)
    chains = (BATCHED_CHAINS if model.batched else PLAIN_CHAINS) if chains is None else chains
    processors = whole_number("processors", processors, "the number of processors", most=MOST_AT_ONCE)
    early = true_or_false("early", early)
    if budget <= model.pilot:
        raise ValueError(
            f"budget = {budget} leaves nothing after the {model.pilot} pilot simulations of the distance: raise it"
        )
    asked = Question(model, kernel, proposal, chains, functions, processors, most, early)
    arguments = {
        "simulations": budget, "chains": chains, "processors": processors, "max_pseudo_samples": most, "early": early,
        "seed": checked.seed, "on_error": checked.on_error, "engine": checked.engine, "timeout": checked.timeout,
    }  # fmt: skip
    average = AbcAverage(model, kernel)
    check_proposal(proposal, on_engine(average.with_model(model.limited(checked.timeout)), checked), chains)
    check_functions(functions, model.prior.names)
    found = Evidence()
    answers: dict[str, Any] = {}
    with measurement(checked, budget, lambda: specify("advise", average, arguments, proposal=proposal)) as runs:
        try:
            verdict, answers = _advise(asked, runs, found)
        except (CannotTell, TimeoutError) as reason:
            verdict = f"cannot tell: {reason}"
        prices = None if found.timed is None else found.timed.prices
        return Advice(verdict, runs.cost, budget, runs.seed, found.pilots, prices, found.stages, **answers)


def _advise(asked: Question, runs: Runs, found: Evidence) -> tuple[str, dict[str, Any]]:
    """Fill in the evidence; returns the verdict and the answers drawn from it."""
    _refuse_deterministic(asked, runs)
    accepted = _rejection(asked, runs)
    starts, proposal = _starts(accepted, asked.proposal)
    assert accepted.model is not None
    asked = replace(asked, model=accepted.model, proposal=proposal)
    found.timed = _time_steps(asked, starts, runs)
    if asked.staged:
        seconds = runs.recorded(
            "stages", lambda: time_stages(asked.model, points(starts.columns)[:5], runs.seed_of(3), runs.left)
        )
        found.stages = Stages.of(seconds["seconds"])
    _pilots(asked, starts, runs, found)
    for name, part in found.pilots[0].variances.items():
        if part.reason:
            raise CannotTell(f"kappa of {name} cannot be estimated with M = 1: {part.reason}; raise the budget or eps")
    by_simulations, by_seconds = (_answer(currency, found, asked.most) for currency in ("simulations", "seconds"))
    chosen, other = (by_seconds, by_simulations) if asked.staged else (by_simulations, by_seconds)
    against = _against_rejection(accepted, found, chosen)
    return _verdict(chosen, other, against), {
        "pseudo_samples": chosen.pseudo_samples,
        "simulations": by_simulations,
        "seconds": by_seconds,
        "discount": found.timed.discount(found.pilots[0].counts),
        "against_rejection": against,
        "layout": _layout(asked.processors, found),
    }


# --- 1: rejection and starts --------------------------------------------------------------------------------


def _refuse_deterministic(asked: Question, runs: Runs) -> None:
    """Test whether a simulator uses its generator: pseudo-samples that are all equal say nothing about M."""
    theta = asked.model.prior.sample(np.random.default_rng(runs.seed_of(0)), 1)
    rng = Rng(runs.seed_of(0), Phase.SEARCH)
    found = asked.model.simulate_rows(rng, theta)
    runs.pay(Cost(simulations=1, setups=int(asked.staged)))
    # A failure at one theta is no answer; if all fail, the next part says so.
    if found.ignored_rng or (asked.staged and not found.cost.failed and not rng.used()):
        raise CannotTell(
            "the simulator draws nothing from the rng it is given. If it is deterministic, all pseudo-samples at one "
            "theta are equal and more than one is wasted; if it draws from a source of its own, runs cannot be repeated"
        )


def _rejection(asked: Question, runs: Runs) -> Posterior:
    share = int(max(int(REJECTION_SHARE * runs.left), min(runs.left, asked.model.pilot + 1)))
    found = runs.run(rejection, asked.model, asked.kernel, draws=WANTED_DRAWS, budget=share, seed=runs.seed_of(1))
    if found.shape[1] < FEWEST_STARTS:
        raise CannotTell(
            f"{found.shape[1] or 'nothing'} was accepted at eps = {asked.kernel.eps:g} in "
            f"{found.cost.simulations:,} simulations, and {FEWEST_STARTS} are needed: raise eps or the budget"
        )
    return found


def _starts(found: Posterior, proposal: Any) -> tuple[Posterior, Any]:
    """Draws from which the pilots start, and the proposal ready for use: every second draw serves its scale."""
    assert found.model is not None and found.distances is not None
    prior = found.model.prior
    even, odd = ({name: values[:, first::2] for name, values in found.columns.items()} for first in (0, 1))
    starts = replace(found, draws=even, distances=found.distances[:, ::2])
    return starts, resolve(proposal, prior, lambda: spread_of(points(odd), prior, np.random.default_rng(found.seed)))


# --- 2: what a step costs -----------------------------------------------------------------------------------


def _time_steps(asked: Question, starts: Posterior, runs: Runs) -> Timed:
    """Time whole steps at several M, at as many as a share of the budget pays for."""
    assert runs.budget is not None
    share = int(min(int(TIMING_SHARE * runs.budget), runs.left // 2))
    chains = asked.chains
    while True:
        affordable = [m for m in asked.counts if chains * (m - 1 + TURNS * 2 * (m + asked.staged)) <= share]
        if len(affordable) >= 2 or chains == 1:
            break
        # With fewer chains than in the run to come, a step costs more per chain, but it can be timed.
        chains //= 2
    if len(affordable) < 2:
        raise CannotTell(f"a budget of {runs.budget:,} simulations does not cover timing steps: raise it")
    steps = max(1, min(MOST_STEPS, share // (chains * (TURNS + 1) * (sum(affordable) + asked.staged))))
    measured = runs.recorded(
        "steps",
        lambda: time_steps(
            asked.model, asked.kernel, asked.proposal, starts, affordable, chains, steps, runs.seed_of(2), asked.early
        ),
    )
    return Timed.of(measured["seconds"])


# --- 3 and 4: pilots ----------------------------------------------------------------------------------------


def _pilots(asked: Question, starts: Posterior, runs: Runs, found: Evidence) -> None:
    """Pilots for M = 1, 2, 4, ... until the gain has stopped growing in both currencies.

    kappa falls about like 1/M at first, so equal numbers of simulations give about equally accurate kappas; M = 1, to
    which all are compared, has three times as many. With a staged simulator, whose set-ups take most of the time,
    larger M get more, halfway to equal numbers of set-ups. Shares do not depend on the clock, so pilots are
    reproducible.
    """
    chains = BATCHED_PILOT_CHAINS if asked.model.batched else PLAIN_PILOT_CHAINS
    shares = {m: math.sqrt(m) if asked.staged else 1.0 for m in asked.counts} | {1: FIRST_SHARES}
    unit = runs.left / sum(shares.values())
    best = {"simulations": 0.0, "seconds": 0.0}
    falling = 0
    for m in asked.counts:
        share = int(min(int(unit * shares[m]), runs.left))
        if share < chains * (m - 1 + FEWEST_STEPS * m):
            if m > 1:
                return
            raise CannotTell(
                f"{runs.left:,.0f} simulations are left for pilots, too few for {chains} chains: raise the budget"
            )
        post = runs.run(
            pseudo_marginal,
            asked.model,
            asked.kernel,
            # A walk that leaves the prior at every step simulates nothing and would never spend its budget.
            draws=LONGEST * share // (chains * m),
            budget=share,
            chains=chains,
            pseudo_samples=m,
            proposal=asked.proposal,
            start=starts,
            seed=runs.seed_of(10 + m),
            early=asked.early,
            keep="draws",
        )
        pilot = _pilot(post, asked.functions)
        found.pilots += (pilot,)
        if m == 1:
            found.positive = known_nonnegative(post)
            if not post.acceptance_rate > 0:
                raise CannotTell(
                    f"the chains did not move in {post.shape[1]} steps with M = 1: use smaller steps, a larger eps or "
                    "a larger budget"
                )
            if not pilot.resolved:
                return
            continue
        gains = {currency: found.gain(currency, pilot).capped for currency in best}
        # A gain that could not be measured may have grown.
        grew = any(gain is None or gain.value > best[currency] for currency, gain in gains.items())
        best = {currency: max(best[currency], 0.0 if gain is None else gain.value) for currency, gain in gains.items()}
        falling = 0 if grew else falling + 1
        if falling == 2:
            return


def _pilot(post: Posterior, functions: Mapping[str, Function] | None) -> Pilot:
    chains, steps = post.shape
    m = int(post.settings["pseudo_samples"])
    each = {name: variances(along) for name, along in function_values(post, functions).items()}
    # To complete its M draws, the start of each chain took one set-up.
    setups = post.cost.setups - (chains if m > 1 and post.cost.setups else 0)
    size = chains * steps
    return Pilot(m, each, chain_simulations(post)[0] / size, setups / size, post.acceptance_rate, post.shape)


def _answer(currency: str, found: Evidence, most: int) -> Answer:
    """The best M in a currency, by the lower limits of the gains, and what other M could still gain."""
    cost = found.cost_of_any(currency)
    kappas = joint_kappas(found.pilots[0].variances, CONFIDENCE)
    proved = certify(kappas, cost=cost, positive=found.positive, confidence=CONFIDENCE)
    gains = tuple(found.gain(currency, pilot) for pilot in found.pilots[1:])
    measured = {gain.pseudo_samples: gain.capped for gain in gains if gain.capped is not None}
    good = {m: gain for m, gain in measured.items() if gain.low > 1 and gain.value >= WORTH}
    chosen, advantage = 1, 1.0
    if good:
        # By the lower limit, so that a badly measured M is not chosen for its luck; the fewest draws among equals.
        top = max(gain.low for gain in good.values())
        chosen = next(m for m, gain in good.items() if gain.low >= top / 1.05)
        advantage = good[chosen].value
    highest = {gain.pseudo_samples: max(part.high for part in gain.each.values()) for gain in gains if gain.each}

    def possible(m: int) -> float:
        """The most that M could gain: by the certificate, by its own pilot, or by the pilots around it."""
        floors = {name: cost(m) * found.kappa_floor(name, m) for name in kappas}
        around = max(kappas[name].high / floor if floor > 0 else math.inf for name, floor in floors.items())
        return min(proved.gain(m), highest.get(m, math.inf), around)

    largest = max((possible(m) for m in range(2, most + 1) if m != chosen), default=1.0) / advantage
    text = _sentence(chosen, measured, proved, largest, most, found.pilots)
    if chosen == 1 and largest > UNDECIDED:
        return Answer(currency, None, gains, proved, largest, f"cannot tell: a larger budget may decide it ({text})")
    return Answer(currency, chosen, gains, proved, largest, text)


def _sentence(
    chosen: int,
    measured: dict[int, Interval],
    proved: Certificate,
    possible: float,
    most: int,
    pilots: tuple[Pilot, ...],
) -> str:
    text = f"pseudo_samples={chosen}: "
    if chosen == 1:
        parts = [f"certified against M <= {min(proved.certified, most)}"] if proved.certified > 1 else []
        beyond = [m for m in measured if m > proved.certified]
        parts += [f"measured against {_listed(beyond)}"] if beyond else []
        text += ", ".join(parts) or "nothing could be measured against it"
        if measured:
            text += f"; the largest gain found is {max(measured.values(), key=lambda gain: gain.value)}"
    else:
        text += f"the measured gain over 1 is {measured[chosen]}"
    short = [pilot.pseudo_samples for pilot in pilots[1:] if not pilot.resolved]
    if short:
        text += f"; the pilots were too short at {_listed(short)}"
    if math.isinf(possible):
        return text + f"; the gain of other M up to {most} is not bounded"
    better = "" if possible < 1.005 else f" by more than {possible:.3g} x"
    return text + f"; no other choice up to {most} is better{better}"


def _listed(counts: list[int]) -> str:
    return f"M = {', '.join(map(str, counts))}"


# --- 5: layouts and rejection -------------------------------------------------------------------------------


def _layout(processors: int, found: Evidence) -> ProcessorLayout | None:
    """(a) one chain with a draw on each processor takes v(f, Q_P); (b) a chain on each takes v(f, Q_1)/P."""
    if processors == 1:
        return None
    one = found.pilots[0].variances
    pilot = next((pilot for pilot in found.pilots if pilot.pseudo_samples == processors and pilot.resolved), None)
    if pilot is not None:
        ratios = [quotient(part, one[name], processors) for name, part in pilot.variances.items()]
        ratio = min(ratios, key=lambda each: each.value)
        text = f"takes {ratio} times as long as"
    else:
        floors = [processors * found.kappa_floor(name, processors) / part.kappa.high for name, part in one.items()]
        ratio = Interval(math.nan, math.nan, min(floors), math.inf)
        text = f"takes at least {ratio.low:.3g} times as long as"
    text = (
        f"on {processors} processors, (a) one chain with {processors} draws side by side {text} (b) one chain with one "
        "draw on each processor"
    )
    return ProcessorLayout(processors, ratio, text)


def _against_rejection(accepted: Posterior, found: Evidence, chosen: Answer) -> AgainstRejection:
    """1/p_acc proposals against kappa steps, in the currency of the choice."""
    rate = interval(accepted.acceptance_rate, accepted.acceptance_rate_se, max(accepted.shape[1] - 1, 1))
    one, proposal = found.pilots[0], 1.0
    step = one.simulations
    if chosen.currency == "seconds":
        assert found.timed is not None
        prices = found.timed.prices
        proposal, step = prices.setup + prices.draw, prices.of(*one.counts)
    se = proposal * rate.se / rate.value**2
    alone = Interval(proposal / rate.value, se, proposal / rate.high, proposal / rate.low)
    worst = max(one.variances.values(), key=lambda part: part.kappa.value).kappa
    chain = Interval(*(step / chosen.gain.value * part for part in worst))
    better = alone.high < chain.low
    if better:
        comparison = "plain rejection (od.rejection) is the better choice at this kernel"
    elif alone.low > chain.high:
        comparison = "the chain is the better choice"
    else:
        comparison = "the difference is within the error"
    text = (
        f"plain rejection takes {alone.value:.4g} {chosen.currency} per independent draw, the chain with "
        f"M = {chosen.pseudo_samples or 1} takes {chain} per effective draw: {comparison}"
    )
    return AgainstRejection(rate, alone, chain, better, text)


def _verdict(chosen: Answer, other: Answer, against: AgainstRejection) -> str:
    lines = [f"{chosen.text} (counted in {chosen.currency})"]
    if other.pseudo_samples != chosen.pseudo_samples:
        gain = "" if other.pseudo_samples == 1 else f" (measured gain {other.gain})"
        choice = "undecided" if other.pseudo_samples is None else f"pseudo_samples={other.pseudo_samples}{gain}"
        lines.append(f"counted in {other.currency}: {choice}")
    if against.rejection_is_better:
        lines.append("plain rejection (od.rejection) is cheaper than the chain at this kernel")
    return "\n".join(lines)
