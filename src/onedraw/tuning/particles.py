"""How many particles? What the tuning rules say, and what a run is worth around it (docs/contrast.md).

A particle filter's estimate is not an average of independent ones, so that few particles are ruinous and many are
wasted. Three rules choose N by the standard deviation of the log estimate at a central theta: about 0.92 (Pitt, Silva,
Giordani and Kohn, 2012), 1.0 to 1.7 (Doucet, Pitt, Deligiannidis and Kohn, 2015: the less the chain itself mixes, the
more), 1.81, a variance of 3.28 (Sherlock, Thiery, Roberts and Rosenthal, 2015). In this order, within one budget:

1. A pilot at the estimator's own N finds a central theta and the scale of the walk.
2. Estimates repeated at that theta give the standard deviation at N, 2N, N/2, ... until the rules' range is covered.
3. Chains at equal cost from half of the least N to twice the largest that the rules name measure what each is worth.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import whole_number
from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Rng
from onedraw.engines.threads import one_blas_thread
from onedraw.estimators.average import check_estimator, evaluate
from onedraw.proposals.proposals import random_walk
from onedraw.results.efficiency import Estimate, Function, chain_simulations, estimate, function_values, variances
from onedraw.results.posterior import Posterior
from onedraw.run.starts import given_points, pseudo_samples_of
from onedraw.samplers.pseudo_marginal import pseudo_marginal

ESTIMATES = 20_000
"""The default budget, in estimates at the number of particles that is given."""
FIRST = 16
"""Particles of the pilot where the estimator does not say."""
CHAINS = 32
PILOT_SHARE, SPREAD_SHARE = 0.2, 0.2
REPEATS = 200
"""Estimates at the central theta for one standard deviation."""
FEWEST_STEPS = 24
"""Steps of a chain, below which an N is not tried."""
LEAST_MOVES = 0.002
"""Acceptance rate of the pilot below which it has found nothing out."""
BURN_IN = 4
"""Starting estimates are not those of a chain at rest: one part in so many is thrown away."""


class Rule(NamedTuple):
    """A published choice of the standard deviation of the log estimate."""

    name: str
    smallest: float
    largest: float


RULES = (
    Rule("Pitt et al. (2012)", 0.92, 0.92),
    Rule("Doucet et al. (2015)", 1.0, 1.7),
    Rule("Sherlock et al. (2015)", 1.81, 1.81),
)


class Spread(NamedTuple):
    """The log estimate at the central theta with N particles."""

    particles: int
    variance: Estimate
    """Of the log estimate; infinite where some estimates were zero."""
    zeros: float
    """Share of estimates that were zero."""

    @property
    def sd(self) -> float:
        return math.sqrt(self.variance.value)


class Choice(NamedTuple):
    """What a rule would choose."""

    rule: Rule
    fewest: int
    """Particles for its largest standard deviation."""
    most: int

    def __str__(self) -> str:
        sd = f"{self.rule.smallest:g}" + (f" to {self.rule.largest:g}" if self.most > self.fewest else "")
        particles = f"{self.fewest}" + (f" to {self.most}" if self.most > self.fewest else "")
        return f"{self.rule.name}: a standard deviation of {sd}, particles={particles}"


class Worth(NamedTuple):
    """What a chain with N particles is worth."""

    particles: int
    kappa: Estimate
    cost: float
    """Simulations of a step."""
    efficiency: Estimate
    """Effective draws a simulation; only its upper limit where the chain was too short."""
    acceptance_rate: float
    reason: str

    def __str__(self) -> str:
        if self.reason:
            return f"N = {self.particles}: below {self.efficiency.high:.3g} effective draws a simulation"
        return f"N = {self.particles}: {self.efficiency} effective draws a simulation, kappa {self.kappa}"


@dataclass(frozen=True)
class Tuning:
    """How many particles to use, by the rules and by measurement; printed in plain words."""

    verdict: str
    particles: int | None
    """The N measured to be worth most; None where it cannot be told."""
    central: dict[str, float]
    spreads: tuple[Spread, ...]
    rules: tuple[Choice, ...]
    curve: tuple[Worth, ...]
    cost: Cost
    budget: int
    seed: int

    def __str__(self) -> str:
        lines = [self.verdict]
        if self.spreads:
            where = ", ".join(f"{name} = {value:.4g}" for name, value in self.central.items())
            lines.append(f"standard deviation of the log estimate at {where}:")
            for one in self.spreads:
                zeros = f", {one.zeros:.0%} of the estimates are zero" if one.zeros else ""
                lines.append(f"  N = {one.particles}: {one.sd:.3g}{zeros}")
        lines += [f"{choice}" for choice in self.rules]
        if self.curve:
            lines.append("measured at equal cost:")
            lines += [f"  {worth}" for worth in self.curve]
        lines.append(f"spent {self.cost.simulations:,} of {self.budget:,} simulations, seed {self.seed}")
        return "\n".join(lines)

    __repr__ = __str__

    def to_json(self) -> str:
        """The numbers as JSON text."""
        from onedraw.tuning.advise import plain

        return json.dumps(plain(self), allow_nan=False)


def log_variance(log_estimate: Array) -> tuple[Estimate, float]:
    """Variance of log estimates with its interval, and the share of estimates that were zero.

    >>> log_variance(np.array([0.0, 2.0, 0.0, 2.0]))[0].value
    1.3333333333333333
    """
    zeros = float(np.mean(np.isneginf(log_estimate)))
    if zeros:
        return Estimate(math.inf, math.nan, math.nan, math.inf), zeros
    size = len(log_estimate)
    deviation = log_estimate - log_estimate.mean()
    variance = float((deviation**2).sum()) / (size - 1)
    error = math.sqrt(max(float((deviation**4).mean()) - variance**2, 0.0) / size)
    return estimate(variance, error, size - 1), zeros


def particles_for(spreads: tuple[Spread, ...], sd: float) -> int:
    """The fewest particles with that standard deviation: on a line in logarithms, beyond it by the law 1/N.

    >>> spreads = tuple(Spread(n, Estimate(8.0 / n, 0.0, 0.0, 0.0), 0.0) for n in (4, 8, 16))
    >>> particles_for(spreads, 1.0), particles_for(spreads, 0.5), particles_for(spreads, 2.0)
    (8, 32, 2)
    """
    finite = sorted(one for one in spreads if math.isfinite(one.variance.value) and one.variance.value > 0)
    at = np.log([one.particles for one in finite])
    log_variances = np.log([one.variance.value for one in finite])
    wanted = 2 * math.log(sd)
    if wanted >= log_variances[0]:
        # Where fewer particles give zeros, no law is known: the fewest that were measured.
        known = at[0] if len(finite) < len(spreads) else at[0] + log_variances[0] - wanted
        return max(1, math.ceil(math.exp(known) - 1e-9))
    if wanted <= log_variances[-1]:
        return math.ceil(math.exp(at[-1] + log_variances[-1] - wanted) - 1e-9)
    # Falling in N but for noise.
    falling = np.minimum.accumulate(log_variances)
    return max(1, math.ceil(math.exp(float(np.interp(-wanted, -falling, at))) - 1e-9))


@dataclass
class Purse:
    """What is left of the budget."""

    budget: int
    cost: Cost

    @property
    def left(self) -> int:
        return self.budget - self.cost.simulations

    def pay(self, cost: Cost) -> None:
        self.cost = self.cost.plus(cost)


class CannotTune(Exception):
    """Raised inside `tune` where an honest answer is not possible; never leaves it."""


def tune(
    estimator: Any,
    start: Any,
    *,
    budget: int | None,
    proposal: Any,
    functions: Mapping[str, Function] | None,
    seed: int,
    most: int,
) -> Tuning:
    """The advice of `od.advise(estimator=...)`: see the module's docstring."""
    make, first = makers(estimator)
    sample = make(first)
    check_estimator(sample)
    if start is None:
        raise ValueError(
            "advise(estimator=...) needs starting points, as od.pseudo_marginal does: start={"
            + ", ".join(f"{name!r}: ..." for name in sample.prior.names)
            + "}"
        )
    if not isinstance(start, Posterior):
        given_points(start, sample.prior, CHAINS)
    each = pseudo_samples_of(sample)
    if budget is None:
        budget = ESTIMATES * each
    budget = whole_number("budget", budget, "the largest number of simulations")
    purse = Purse(budget, Cost())
    central: dict[str, float] = {}
    spreads: tuple[Spread, ...] = ()
    rules: tuple[Choice, ...] = ()
    curve: tuple[Worth, ...] = ()
    chosen = None
    try:
        pilot, walk = _pilot(sample, start, proposal, purse, seed)
        theta = np.array([float(values[:, values.shape[1] // 2 :].mean()) for values in pilot.draws.values()])
        theta = _inside(sample.prior, theta, pilot)
        central = {name: float(value) for name, value in zip(pilot.names, theta, strict=True)}
        spreads = _spreads(make, first, theta, purse, seed, most)
        rules = tuple(
            Choice(rule, particles_for(spreads, rule.largest), particles_for(spreads, rule.smallest)) for rule in RULES
        )
        last = np.column_stack([values[:, -1] for values in pilot.draws.values()]).astype(float)
        curve = _curve(make, rules, last, walk, functions, purse, seed, most)
        chosen, verdict = _verdict(curve, rules)
    except CannotTune as reason:
        verdict = f"cannot tell: {reason}"
    return Tuning(verdict, chosen, central, spreads, rules, curve, purse.cost, budget, seed)


def makers(estimator: Any) -> tuple[Callable[[int], Any], int]:
    """A function from N to an estimator, and the N to begin with."""
    if hasattr(estimator, "with_particles"):
        return estimator.with_particles, int(estimator.particles)
    if callable(estimator) and not hasattr(estimator, "log_estimate"):
        return estimator, FIRST
    check_estimator(estimator)
    raise ValueError(
        f"advise cannot change the number of particles of {type(estimator).__name__}: give a function from that number "
        "to the estimator, as in advise(estimator=lambda n: ..., start=...)"
    )


def _seed(seed: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, 77, number]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _pilot(estimator: Any, start: Any, proposal: Any, purse: Purse, seed: int) -> tuple[Posterior, Any]:
    """Two runs: one with a guessed walk, one with what it learnt."""
    each, walk = pseudo_samples_of(estimator), proposal
    points, found = start, None
    for turn, share in enumerate((0.4, 0.6)):
        spend = int(purse.budget * PILOT_SHARE * share)
        if spend < CHAINS * each * FEWEST_STEPS:
            raise CannotTune(
                f"the pilot's {spend:,} simulations do not pay for {FEWEST_STEPS} steps of {CHAINS} chains at {each:,} "
                "an estimate: raise the budget"
            )
        found = pseudo_marginal(
            estimator=estimator, start=points, chains=CHAINS, budget=spend, proposal=walk, progress=False,
            draws=8 * spend // (CHAINS * each), seed=_seed(seed, turn),
        )  # fmt: skip
        purse.pay(found.cost)
        theta = np.stack([values[:, found.shape[1] // 2 :].ravel() for values in found.draws.values()]).astype(float)
        if not found.acceptance_rate >= LEAST_MOVES:
            raise CannotTune(
                f"the pilot accepted {found.acceptance_rate:.2%} of its proposals: give more particles, better "
                "starting points or a smaller walk"
            )
        if proposal is None:
            walk = random_walk(np.atleast_2d(np.cov(theta)), scale=2.38 / math.sqrt(len(theta)))
        points = np.column_stack([values[:, -1] for values in found.draws.values()]).astype(float)
    assert found is not None
    return found, walk


def _inside(prior: Any, theta: Array, pilot: Posterior) -> Array:
    """The mean of the pilot, or its last draw where the mean is outside the prior (a curved support)."""
    if np.isfinite(prior.logpdf(theta[None])[0]) and not any(prior.discrete):
        return theta
    return np.array([float(values[0, -1]) for values in pilot.draws.values()])


def _spreads(
    make: Callable[[int], Any], first: int, theta: Array, purse: Purse, seed: int, most: int
) -> tuple[Spread, ...]:
    """Standard deviations at first, 2 first, first/2, ... as far as the rules reach and the share pays."""
    found: dict[int, Spread] = {}
    left = int(SPREAD_SHARE * purse.budget)

    def measure(particles: int) -> bool:
        nonlocal left
        estimator = make(particles)
        price = REPEATS * pseudo_samples_of(estimator)
        if price > left:
            return False
        with one_blas_thread():
            rng = Rng(_seed(seed, 10), Phase.SEARCH, step=particles)
            result = evaluate(estimator, rng, np.asfortranarray(np.tile(theta, (REPEATS, 1))), None)
        left -= result.simulations
        purse.pay(Cost(simulations=result.simulations, failed=result.failed))
        variance, zeros = log_variance(result.log_estimate)
        found[particles] = Spread(particles, variance, zeros)
        return True

    if not measure(first):
        raise CannotTune(f"{REPEATS} estimates with {first} particles are beyond their share of the budget: raise it")
    particles = first
    while particles > 1 and not found[particles].sd > RULES[-1].largest and measure(particles // 2):
        particles //= 2
    particles = first
    while 2 * particles <= most and not found[particles].sd < RULES[0].smallest and measure(2 * particles):
        particles *= 2
    if not any(0 < one.variance.value < math.inf for one in found.values()):
        raise CannotTune(
            f"with up to {max(found)} particles some estimates at the central theta are zero, or all are equal: give "
            "more particles"
        )
    return tuple(found[particles] for particles in sorted(found))


def _curve(
    make: Callable[[int], Any],
    rules: tuple[Choice, ...],
    points: Array,
    walk: Any,
    functions: Mapping[str, Function] | None,
    purse: Purse,
    seed: int,
    most: int,
) -> tuple[Worth, ...]:
    """Chains of equal cost from half of the least N of the rules to twice the largest."""
    low, high = min(choice.fewest for choice in rules), max(choice.most for choice in rules)
    grid = [max(1, low // 2)]
    while grid[-1] < 2 * high and 2 * grid[-1] <= most:
        grid.append(2 * grid[-1])
    found = []
    for place, particles in enumerate(grid):
        estimator = make(particles)
        each = pseudo_samples_of(estimator)
        share = purse.left // (len(grid) - place)
        if share < CHAINS * each * FEWEST_STEPS:
            break
        post = pseudo_marginal(
            estimator=estimator, start=points, chains=CHAINS, budget=share, proposal=walk, progress=False,
            draws=8 * share // (CHAINS * each), seed=_seed(seed, 100 + particles),
        )  # fmt: skip
        purse.pay(post.cost)
        found.append(_worth(particles, post, functions))
    if not found:
        raise CannotTune(f"{purse.left:,} simulations do not pay for chains with {grid[0]} particles: raise the budget")
    return tuple(found)


def _worth(particles: int, post: Posterior, functions: Mapping[str, Function] | None) -> Worth:
    """The worst function counts; one that could not be estimated is the worst of all."""
    burnt = post.shape[1] // BURN_IN
    each = [variances(values[:, burnt:]) for values in function_values(post, functions).values()]
    worst = max(each, key=lambda one: (bool(one.reason), one.kappa.low if one.reason else one.kappa.value))
    cost = chain_simulations(post)[0] / math.prod(post.shape)
    if worst.reason:
        efficiency = Estimate(math.nan, math.nan, 0.0, 1 / (max(worst.kappa.low, 1.0) * cost))
    else:
        kappa = worst.kappa
        efficiency = Estimate(*(1 / (cost * part) for part in (kappa.value, kappa.value, kappa.high, kappa.low)))
        efficiency = efficiency._replace(se=efficiency.value * kappa.se / kappa.value)
    return Worth(particles, worst.kappa, cost, efficiency, post.acceptance_rate, worst.reason)


def _verdict(curve: tuple[Worth, ...], rules: tuple[Choice, ...]) -> tuple[int | None, str]:
    good = [worth for worth in curve if not worth.reason]
    if not good:
        raise CannotTune("every chain was too short for its kappa: raise the budget")
    best = max(good, key=lambda worth: worth.efficiency.value)
    range_of = f"{min(choice.fewest for choice in rules)} to {max(choice.most for choice in rules)}"
    like = [worth.particles for worth in good if worth is not best and worth.efficiency.high >= best.efficiency.value]
    text = f"particles={best.particles}: measured to be worth most, {best.efficiency} effective draws a simulation"
    if like:
        text += f"; N = {', '.join(map(str, like))} cannot be told apart from it"
    text += f". The rules say {range_of}"
    if best is curve[0] and best.particles > 1:
        text += "; it is the fewest that was tried, fewer may be better still"
    return best.particles, text
