"""Whether a simulator in two parts pays: the cost of an effective draw beside the expensive simulator alone.

Both parts are run at draws from the prior. A continuation probability that is learnt from half of them is judged by the
other half, so that it is not flattered by the draws that it was made from (docs/theory.md, "Simulations in two parts").
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import whole_number
from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.estimators.abc_average import AbcAverage
from onedraw.estimators.pairs import FEWEST_HITS, effective_price, halves, learnt_rule, moments
from onedraw.model.kernels import Kernel
from onedraw.model.model import Model
from onedraw.model.pair import ContinuationRule, Pair
from onedraw.results.monte_carlo_error import UNKNOWN, Interval, interval
from onedraw.results.plain import as_json
from onedraw.run.options import Options
from onedraw.run.pilot import FromPrior, PairsFromPrior, learned, pilot_round
from onedraw.run.plan import Limits, Outcome, Plan
from onedraw.run.session import Run
from onedraw.run.specification import specify

GROUPS = 10
"""Parts of the pilot of which each is left out once for the error of the gain."""
WORTHWHILE = 1.1
"""A gain below this is not called one."""


@dataclass(frozen=True)
class PairAdvice:
    """What a simulator in two parts gains over its expensive simulator alone; printed in plain words.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> cheap, expensive = od.batched(lambda rng, theta: theta), od.batched(lambda rng, theta: rng.normal(theta, 0.1))
    >>> pair = od.multifidelity(cheap, expensive, price=(1, 50))
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), pair, observed=2.0)
    >>> found = od.advise(model, od.uniform(0.5), budget=200_000, seed=1)
    >>> found.pays, found.gain.low > 3
    (True, True)
    """

    verdict: str
    gain: Interval
    """What an effective draw of od.rejection costs with the expensive simulator alone, over what it costs with both."""
    pays: bool | None
    """Whether that is above 1 for certain; None if it cannot be told."""
    continuation: dict[str, list[float]] | None
    """Edges of the signal, and alpha below, between and above them, if it was learnt."""
    cost: Cost
    budget: int
    seed: int

    def __str__(self) -> str:
        spent = f"spent {self.cost.simulations:,} first and {self.cost.expensive:,} second parts, seed {self.seed}"
        return f"{self.verdict}\n{spent}"

    __repr__ = __str__

    def to_json(self) -> str:
        """The numbers as JSON text."""
        return as_json(self, None)


class PilotPairs(NamedTuple):
    """Both parts at draws from the prior."""

    theta: Array
    signal: Array
    cheap: Array
    expensive: Array

    def some(self, which: Array) -> "PilotPairs":
        """Some of them."""
        return PilotPairs(*(part[which] for part in self))


def plan(model: Model, options: Options, limits: list[Limits]) -> Plan[tuple[Model, Outcome]]:
    """The pilot of the distance, if it needs one, and pairs of simulations for the rest of the budget."""
    budget = limits[-1].budget
    assert budget is not None
    count = int(budget // model.worst) - model.pilot
    if model.pilot:
        outcome = yield pilot_round(FromPrior(model, options.seed, options.on_error), model.pilot)
        model = learned(model, outcome.arrays["rows"])
    outcome = yield pilot_round(PairsFromPrior(model, options.seed, options.on_error), count)
    return model, outcome


def advise_pair(model: Model, kernel: Kernel, budget: Any, options: Options) -> PairAdvice:
    """Whether the two parts of a model's simulator pay at this kernel."""
    pair = model.pair
    assert pair is not None
    if pair.price is None:
        raise ValueError(
            "give price=(cheap, expensive) to the simulator, what the two parts cost: the gain depends on it"
        )
    least = int(np.ceil((50 + model.pilot) * model.worst))
    default = int(np.ceil((2000 + model.pilot) * model.worst))
    budget = default if budget is None else whole_number("budget", budget, "what the pilot may cost", least=least)
    average = AbcAverage(model, kernel)
    arguments = {"budget": budget, **options.identity(average)}
    (model, outcome), cost = Run(
        "advise", arguments, lambda: specify("advise", average, arguments), options,
        lambda limits: plan(model, options, limits), model.prior, None, model.compiled,
    ).value()  # fmt: skip
    drawn = PilotPairs(*(outcome.arrays[name] for name in ("theta", "signal", "cheap", "expensive")))
    gain = measured_gain(model, kernel, drawn)
    rule = learnt_rule(pair, kernel, *drawn[1:], by_hits=True)[0] if pair.learns else None
    shown = None if rule is None else {"edges": rule.edges.tolist(), "alpha": rule.alpha.tolist()}
    pays = None if not np.isfinite(gain.low) or gain.low <= 1 <= gain.high else gain.low > 1
    return PairAdvice(verdict(gain, drawn, kernel), gain, pays, shown, cost, budget, options.seed)


def verdict(gain: Interval, drawn: PilotPairs, kernel: Kernel) -> str:
    """In plain words."""
    if not np.isfinite(gain.low):
        hits = int(np.count_nonzero(kernel.log_weight(drawn.expensive) > -np.inf))
        return f"cannot tell: {hits} of {len(drawn.expensive)} simulations are near the data; raise eps or the budget"
    if gain.low > 1:
        much = "" if gain.value >= WORTHWHILE else ", which is little"
        return f"the two parts pay: an effective draw costs {gain} times less than with the expensive one alone{much}"
    if gain.high < 1:
        more = f"{1 / gain.value:.3g}"
        return f"the two parts do not pay: an effective draw costs {more} times as much as with the expensive one alone"
    return f"no difference can be seen: an effective draw costs {gain} times less than with the expensive one alone"


def measured_gain(model: Model, kernel: Kernel, drawn: PilotPairs) -> Interval:
    """The gain with its error, by leaving out parts of the pilot; unknown if there are too few hits."""
    if np.count_nonzero(kernel.log_weight(drawn.expensive) > -np.inf) < FEWEST_HITS:
        return UNKNOWN
    number = np.arange(len(drawn.expensive))
    value = crossed_gain(model, kernel, drawn)
    without = [np.log(crossed_gain(model, kernel, drawn.some(number % GROUPS != group))) for group in range(GROUPS)]
    error = float(np.sqrt((GROUPS - 1) * np.var(without)))
    return interval(value, value * error, GROUPS - 1)


def crossed_gain(model: Model, kernel: Kernel, drawn: PilotPairs) -> float:
    """The gain of probabilities learnt from one half of the pilot, by the other half, and the other way round."""
    pair = model.pair
    assert pair is not None and pair.price is not None
    alpha = np.ones(len(drawn.expensive))
    for one, other in halves(len(drawn.expensive)):
        rule = learnt_rule(pair, kernel, *drawn.some(one)[1:], by_hits=True)[0] if pair.learns else None
        alpha[other] = probabilities(model, pair, rule, drawn.some(other))
    seen = moments(kernel, drawn.cheap, drawn.expensive, by_hits=True)
    alone = float(seen.whole.mean()) * (pair.price[1] if pair.signed else sum(pair.price))
    return alone / max(effective_price(pair.price, seen, alpha), 1e-300)


def probabilities(model: Model, pair: Pair, rule: ContinuationRule | None, drawn: PilotPairs) -> Array:
    """The continuation probability of each simulation; 1 if its first part failed, after which there is nothing."""
    alive = ~np.isnan(drawn.signal)
    alpha = np.ones(len(drawn.signal))
    used = pair if rule is None else pair.with_rule(rule)
    alpha[alive] = used.probability(drawn.signal[alive], model.prior.columns(drawn.theta[alive]))
    return alpha
