"""How many particles? What the tuning rules say, and the efficiency measured around them (docs/contrast.md).

A particle filter's estimate is not an average of independent ones: with too few particles the chain sticks, and too
many are wasted. Three rules choose N by the standard deviation of the log estimate at a central theta: about 0.92
(Pitt, Silva, Giordani and Kohn, 2012), 1.0 to 1.7 (Doucet, Pitt, Deligiannidis and Kohn, 2015: the less the chain
itself mixes, the more), 1.81, a variance of 3.28 (Sherlock, Thiery, Roberts and Rosenthal, 2015). In this order, within
one budget:

1. A pilot at the estimator's own N finds a central theta and the scale of the walk.
2. Estimates repeated at that theta give the standard deviation at N, 2N, N/2, ... until the rules' range is covered.
3. Chains at equal cost, from half of the least N of the rules to twice the largest, measure the efficiency of each.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import whole_number
from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Rng
from onedraw.engines.threads import one_blas_thread
from onedraw.estimators.protocol import check_estimator, evaluate
from onedraw.proposals.random_walk import random_walk
from onedraw.results.efficiency import Function, chain_simulations
from onedraw.results.monte_carlo_error import Interval, interval, variances
from onedraw.results.plain import as_json
from onedraw.results.posterior import Posterior, check_functions, function_values, points
from onedraw.run.chains import check_proposal
from onedraw.run.options import Options, on_engine
from onedraw.run.specification import specify
from onedraw.run.starts import check_start, pseudo_samples_of
from onedraw.samplers.pseudo_marginal import pseudo_marginal
from onedraw.tuning.runs import CannotTell, Runs, measurement

ESTIMATES = 20_000
"""The default budget, in estimates at the number of particles that is given."""
FIRST = 16
"""Particles of the pilot if the estimator does not say."""
CHAINS = 32
PILOT_SHARE, SPREAD_SHARE = 0.2, 0.2
REPEATS = 200
"""Estimates at the central theta for one standard deviation."""
FEWEST_STEPS = 24
"""The fewest steps of a chain with which an N is tried."""
LEAST_MOVES = 0.002
"""The smallest acceptance rate of a pilot that is of use."""
BURN_IN = 4
"""Starting estimates are not stationary: the first 1/BURN_IN of a chain is thrown away."""


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
    variance: Interval
    """Of the log estimate; infinite if some estimates were zero."""
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


class ParticleEfficiency(NamedTuple):
    """The efficiency of a chain with N particles."""

    particles: int
    kappa: Interval
    cost: float
    """Simulations per step."""
    efficiency: Interval
    """Effective draws per simulation; only an upper limit if the chain was too short."""
    acceptance_rate: float
    reason: str

    def __str__(self) -> str:
        if self.reason:
            return f"N = {self.particles}: below {self.efficiency.high:.3g} effective draws per simulation"
        return f"N = {self.particles}: {self.efficiency} effective draws per simulation, kappa {self.kappa}"


@dataclass(frozen=True)
class Tuning:
    """How many particles to use, by the rules and by measurement; printed in plain words."""

    verdict: str
    cost: Cost
    budget: int
    seed: int
    particles: int | None = None
    """The N measured to be most efficient; None if it is undecided."""
    central: dict[str, float] = field(default_factory=dict)
    spreads: tuple[Spread, ...] = ()
    rules: tuple[Choice, ...] = ()
    curve: tuple[ParticleEfficiency, ...] = ()

    def __str__(self) -> str:
        lines = [self.verdict]
        if self.spreads:
            where = ", ".join(f"{name} = {value:.4g}" for name, value in self.central.items())
            lines.append(f"standard deviation of the log estimate at {where}:")
            for one in self.spreads:
                zeros = f", {one.zeros:.0%} of the estimates are zero" if one.zeros else ""
                lines.append(f"  N = {one.particles}: {one.sd:.3g}{zeros}")
        lines += map(str, self.rules)
        if self.curve:
            lines += ["measured at equal cost:", *(f"  {one}" for one in self.curve)]
        lines.append(f"spent {self.cost.simulations:,} of {self.budget:,} simulations, seed {self.seed}")
        return "\n".join(lines)

    __repr__ = __str__

    def to_json(self) -> str:
        """The numbers as JSON text."""
        return as_json(self, None)


def log_variance(log_estimate: Array) -> tuple[Interval, float]:
    """Variance of log estimates with its interval, and the share of estimates that were zero.

    >>> log_variance(np.array([0.0, 2.0, 0.0, 2.0]))[0].value
    1.3333333333333333
    """
    zeros = float(np.mean(np.isneginf(log_estimate)))
    if zeros:
        return Interval(math.inf, high=math.inf), zeros
    size = len(log_estimate)
    deviation = log_estimate - log_estimate.mean()
    variance = float((deviation**2).sum()) / (size - 1)
    error = math.sqrt(max(float((deviation**4).mean()) - variance**2, 0.0) / size)
    return interval(variance, error, size - 1), zeros


def particles_for(spreads: tuple[Spread, ...], sd: float) -> int:
    """The fewest particles with that standard deviation: on a line in logarithms, beyond it by the law 1/N.

    >>> spreads = tuple(Spread(n, Interval(8.0 / n, 0.0, 0.0, 0.0), 0.0) for n in (4, 8, 16))
    >>> particles_for(spreads, 1.0), particles_for(spreads, 0.5), particles_for(spreads, 2.0)
    (8, 32, 2)
    """
    finite = sorted(one for one in spreads if math.isfinite(one.variance.value) and one.variance.value > 0)
    at = np.log([one.particles for one in finite])
    log_variances = np.log([one.variance.value for one in finite])
    wanted = 2 * math.log(sd)
    if wanted >= log_variances[0]:
        # If fewer particles give zeros, no law is known: the fewest that were measured.
        known = at[0] if len(finite) < len(spreads) else at[0] + log_variances[0] - wanted
        return max(1, math.ceil(math.exp(known) - 1e-9))
    if wanted <= log_variances[-1]:
        return math.ceil(math.exp(at[-1] + log_variances[-1] - wanted) - 1e-9)
    # Falling in N, apart from noise.
    falling = np.minimum.accumulate(log_variances)
    return max(1, math.ceil(math.exp(float(np.interp(-wanted, -falling, at))) - 1e-9))


def tune(
    estimator: Any,
    start: Any,
    *,
    budget: int | None,
    proposal: Any,
    functions: Mapping[str, Function] | None,
    options: Options,
    most: int,
) -> Tuning:
    """The advice of `od.advise(estimator=...)`: see the module's docstring."""
    make, first = family_of(estimator)
    sample = make(first)
    check_estimator(sample)
    if start is None:
        names = ", ".join(f"{name!r}: ..." for name in sample.prior.names)
        raise ValueError(f"advise(estimator=...) needs starting points, as od.pseudo_marginal does: start={{{names}}}")
    check_start(start, sample, CHAINS)
    budget = ESTIMATES * pseudo_samples_of(sample) if budget is None else budget
    budget = whole_number("budget", budget, "the largest number of simulations")
    check_proposal(proposal, on_engine(sample, options), CHAINS)
    check_functions(functions, sample.prior.names)
    arguments = {
        "simulations": budget, "most": most, "seed": options.seed, "on_error": options.on_error,
        "engine": options.engine, "timeout": options.timeout,
    }  # fmt: skip
    found: dict[str, Any] = {}
    with measurement(
        options, budget, lambda: specify("advise", sample, arguments, proposal=proposal, start=start)
    ) as runs:
        search = ParticleSearch(make, most, functions, runs)
        try:
            pilot, walk = search.pilot(sample, start, proposal)
            theta = _central(sample.prior, pilot)
            found["central"] = dict(zip(pilot.names, theta.tolist(), strict=True))
            spreads = found["spreads"] = search.spreads(first, theta)
            rules = found["rules"] = tuple(
                Choice(rule, particles_for(spreads, rule.largest), particles_for(spreads, rule.smallest))
                for rule in RULES
            )
            curve = found["curve"] = search.curve(rules, _last(pilot), walk)
            found["particles"], verdict = _verdict(curve, rules)
        except (CannotTell, TimeoutError) as reason:
            verdict = f"cannot tell: {reason}"
        return Tuning(verdict, runs.cost, budget, runs.seed, **found)


def family_of(estimator: Any) -> tuple[Callable[[int], Any], int]:
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


@dataclass(frozen=True)
class ParticleSearch:
    """The runs of one question, all within one budget."""

    make: Callable[[int], Any]
    most: int
    functions: Mapping[str, Function] | None
    runs: Runs

    def chains(self, estimator: Any, start: Any, walk: Any, budget: int, part: int) -> Posterior | None:
        """A run of CHAINS chains for a budget; None if that does not cover FEWEST_STEPS steps of each."""
        each = pseudo_samples_of(estimator)
        if budget < CHAINS * each * FEWEST_STEPS:
            return None
        return self.runs.run(
            pseudo_marginal, estimator=estimator, start=start, chains=CHAINS, budget=budget, proposal=walk,
            draws=8 * budget // (CHAINS * each), seed=self.runs.seed_of(77, part),
        )  # fmt: skip

    def share(self, share: float) -> int:
        """A share of the whole budget."""
        assert self.runs.budget is not None
        return int(self.runs.budget * share)

    def pilot(self, estimator: Any, start: Any, proposal: Any) -> tuple[Posterior, Any]:
        """Two runs: one with a guessed walk, one with the walk learnt from it."""
        walk, found = proposal, None
        for turn, part in enumerate((0.4, 0.6)):
            budget = self.share(PILOT_SHARE * part)
            found = self.chains(estimator, start if found is None else _last(found), walk, budget, turn)
            if found is None:
                raise CannotTell(
                    f"the pilot's {budget:,} simulations do not cover {FEWEST_STEPS} steps of {CHAINS} chains at "
                    f"{pseudo_samples_of(estimator):,} per estimate: raise the budget"
                )
            if not found.acceptance_rate >= LEAST_MOVES:
                raise CannotTell(
                    f"the pilot accepted {found.acceptance_rate:.2%} of its proposals: use more particles, better "
                    "starting points or a smaller walk"
                )
            if proposal is None:
                theta = points(_second_half(found))
                walk = random_walk(np.atleast_2d(np.cov(theta.T)), scale=2.38 / math.sqrt(theta.shape[1]))
        assert found is not None
        return found, walk

    def spreads(self, first: int, theta: Array) -> tuple[Spread, ...]:
        """Standard deviations at first, 2 first, first/2, ... as far as the rules reach and the share pays."""
        found: dict[int, Spread] = {}
        left = self.share(SPREAD_SHARE)

        def measure(particles: int) -> bool:
            nonlocal left
            estimator = self.make(particles)
            if REPEATS * pseudo_samples_of(estimator) > left:
                return False

            def estimates() -> tuple[dict[str, Array], Cost]:
                with one_blas_thread():
                    rng = Rng(self.runs.seed_of(77, 10), Phase.SEARCH, step=particles)
                    result = evaluate(estimator, rng, np.asfortranarray(np.tile(theta, (REPEATS, 1))), None)
                return {"log_estimate": result.log_estimate}, result.cost

            before = self.runs.cost.simulations
            log_estimate = self.runs.recorded(f"spread {particles}", estimates)["log_estimate"]
            left -= self.runs.cost.simulations - before
            found[particles] = Spread(particles, *log_variance(log_estimate))
            return True

        if not measure(first):
            raise CannotTell(
                f"{REPEATS} estimates with {first} particles are beyond their share of the budget: raise it"
            )
        particles = first
        while particles > 1 and not found[particles].sd > RULES[-1].largest and measure(particles // 2):
            particles //= 2
        particles = first
        while 2 * particles <= self.most and not found[particles].sd < RULES[0].smallest and measure(2 * particles):
            particles *= 2
        if not any(0 < one.variance.value < math.inf for one in found.values()):
            raise CannotTell(
                f"with up to {max(found)} particles some estimates at the central theta are zero, or all are equal: "
                "use more particles"
            )
        return tuple(found[particles] for particles in sorted(found))

    def curve(self, rules: tuple[Choice, ...], start: Array, walk: Any) -> tuple[ParticleEfficiency, ...]:
        """Chains of equal cost from half of the least N of the rules to twice the largest."""
        low, high = _range(rules)
        grid = [max(1, low // 2)]
        while grid[-1] < 2 * high and 2 * grid[-1] <= self.most:
            grid.append(2 * grid[-1])
        found: list[ParticleEfficiency] = []
        for particles in grid:
            share = int(self.runs.left // (len(grid) - len(found)))
            post = self.chains(self.make(particles), start, walk, share, 100 + particles)
            if post is None:
                break
            found.append(_efficiency(particles, post, self.functions))
        if not found:
            left = self.runs.left
            raise CannotTell(f"{left:,.0f} simulations do not cover chains with {grid[0]} particles: raise the budget")
        return tuple(found)


def _second_half(post: Posterior) -> dict[str, Array]:
    return {name: values[:, values.shape[1] // 2 :] for name, values in post.columns.items()}


def _last(post: Posterior) -> Array:
    """The last state of every chain."""
    return points({name: values[:, -1] for name, values in post.columns.items()})


def _central(prior: Any, pilot: Posterior) -> Array:
    """The mean of the pilot, or its last draw if the mean is outside the prior (a curved support)."""
    theta = np.array([float(values.mean()) for values in _second_half(pilot).values()])
    if np.isfinite(prior.logpdf(theta[None])[0]) and not any(prior.discrete):
        return theta
    return _last(pilot)[0]


def _efficiency(particles: int, post: Posterior, functions: Mapping[str, Function] | None) -> ParticleEfficiency:
    """The worst function counts; one that could not be estimated is the worst of all."""
    burn_in = post.shape[1] // BURN_IN
    each = [variances(values[:, burn_in:]) for values in function_values(post, functions).values()]
    worst = max(each, key=lambda one: (bool(one.reason), one.kappa.low if one.reason else one.kappa.value))
    cost, kappa = chain_simulations(post)[0] / math.prod(post.shape), worst.kappa
    if worst.reason:
        efficiency = Interval(math.nan, math.nan, 0.0, 1 / (max(kappa.low, 1.0) * cost))
    else:
        value, low, high = (1 / (cost * part) for part in (kappa.value, kappa.high, kappa.low))
        efficiency = Interval(value, value * kappa.se / kappa.value, low, high)
    return ParticleEfficiency(particles, kappa, cost, efficiency, post.acceptance_rate, worst.reason)


def _range(rules: tuple[Choice, ...]) -> tuple[int, int]:
    return min(choice.fewest for choice in rules), max(choice.most for choice in rules)


def _verdict(curve: tuple[ParticleEfficiency, ...], rules: tuple[Choice, ...]) -> tuple[int, str]:
    good = [one for one in curve if not one.reason]
    if not good:
        raise CannotTell("every chain was too short to estimate its kappa: raise the budget")
    best = max(good, key=lambda one: one.efficiency.value)
    like = [one.particles for one in good if one is not best and one.efficiency.high >= best.efficiency.value]
    text = (
        f"particles={best.particles}: measured to be most efficient, {best.efficiency} effective draws per simulation"
    )
    if like:
        text += f"; N = {', '.join(map(str, like))} cannot be told apart from it"
    low, high = _range(rules)
    text += f". The rules say {low} to {high}"
    if best is curve[0] and best.particles > 1:
        text += "; it is the smallest N that was tried, and a smaller one may be better still"
    return best.particles, text
