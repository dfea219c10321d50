"""Estimates from simulators in two parts, and the continuation probability that is best for them.

With R what the first part alone says (K of the cheap data, or 0 for a simulation in stages) and c = 1/alpha if the
second part was run and 0 if it was not,

    T = R + c (K(expensive) - R) = (1 - c) R + c K(expensive)

has the mean of K(expensive), whatever alpha is (docs/theory.md). A simulation is kept as three numbers: its last
distance, c and the distance of the cheap data (inf for stages, for which R = 0).
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Purpose, Rng
from onedraw.estimators.protocol import Evaluation
from onedraw.failures import Failure, first_failures
from onedraw.model.kernels import Kernel
from onedraw.model.model import Model
from onedraw.model.pair import ALWAYS, ContinuationRule, Pair, first_part
from onedraw.model.prior import Prior
from onedraw.model.simulator import CHUNK_ROWS, CHUNK_VALUES

BINS = 8
"""Most parts, equal in how often the second part matters, into which signals are cut."""
FEWEST_HITS = 25
"""Hits of the pilot from which a continuation probability is learnt, at a larger tolerance if need be."""


LEAST_GAIN = 0.97
"""Share of the cost of whole simulations that a rule learnt from half of a pilot must undercut at the other half."""


class PairDraws(NamedTuple):
    """One simulation at each of n rows of theta."""

    distances: Array
    """(n,) of the expensive data; of the cheap ones if the second part was not run, and inf without any."""
    factor: Array
    """(n,) c: 1/alpha if the second part was run, otherwise 0."""
    cheap: Array
    """(n,) distance of the cheap data; inf for stages."""
    signal: Array
    """(n,) what alpha depends on."""
    cost: Cost
    failures: tuple[Failure, ...] = ()
    ignored_rng: bool = False

    @property
    def counted(self) -> Array:
        """(n, 2): c and the distance of the cheap data, as evaluations have them."""
        return np.column_stack([self.factor, self.cheap])


def draw_pairs(
    model: Model, rng: Rng, theta: Array, index: Array | None, on_error: str, certain: bool = False
) -> PairDraws:
    """Run the first parts at all rows of theta, and the second parts where a coin says so, or if `certain` all."""
    n, places = len(theta), np.arange(len(theta)) if index is None else index
    # A coin for each row of the block, so that it does not depend on which of them are simulated.
    coins = rng.bulk(Purpose.CONTINUE).random(int(places.max()) + 1)[places]
    if certain:
        coins[:] = -1.0
    height = max(1, min(CHUNK_ROWS, CHUNK_VALUES // model.recipe.width))
    parts = []
    for chunk, top in enumerate(range(0, n, height)):
        some = slice(top, top + height)
        parts.append(_drawn(model, rng, theta[some], places[some], coins[some], chunk, on_error))
    if len(parts) == 1:
        return parts[0]
    distances, factor, cheap, signal = (
        np.concatenate(found) for found in zip(*(part[:4] for part in parts), strict=True)
    )
    cost, failures = Cost.total(part.cost for part in parts), first_failures(*(part.failures for part in parts))
    return PairDraws(distances, factor, cheap, signal, cost, failures[:1], parts[0].ignored_rng)


def _drawn(
    model: Model, rng: Rng, theta: Array, places: Array, coins: Array, chunk: int, on_error: str
) -> PairDraws:  # fmt: skip
    pair = model.pair
    assert pair is not None
    part = first_part(pair, model.recipe, rng, theta, places, chunk, on_error)
    begun = part.found
    distances = np.full(len(theta), np.inf)
    alive = np.ones(len(theta), dtype=bool)
    signal = distances
    if not pair.signed:
        signal = begun.rows[:, 0, 0]
        alive = ~np.isnan(signal)
    elif not pair.expensive_alone:
        begun, found = model.measured(begun, rng, theta, places, 0, on_error)
        distances = found[:, 0].copy()
        signal = distances.copy()
    cheap = distances.copy()
    alpha = np.ones(len(theta))
    # A simulation in stages with an infinite signal is always finished.
    said = alive if pair.signed else np.isfinite(signal)
    if not pair.learns and said.any():
        alpha[said] = pair.probability(signal[said], model.prior.columns(theta[said]))
    on = np.flatnonzero(alive & (coins < alpha))
    factor = np.zeros(len(theta))
    factor[on] = 1.0 / alpha[on]
    cost, failures, ignored = begun.cost, begun.failures, False
    if on.size:
        ended = part.second(on)
        ended, found = model.measured(ended, part.later, theta[on], places[on], 0, on_error)
        distances[on] = found[:, 0]
        # A simulation of which both parts fail is one that failed.
        twice = int(np.count_nonzero(np.isnan(begun.rows[on, 0, 0]) & np.isnan(ended.rows[:, 0, 0])))
        cost = cost._replace(
            expensive=int(on.size),
            failed=cost.failed + ended.cost.failed - twice,
            surplus=cost.surplus + ended.cost.surplus,
        )
        failures = first_failures(failures, ended.failures)[:1]
        ignored = begun.ignored_rng and ended.ignored_rng
    return PairDraws(distances, factor, cheap, signal, cost, failures, ignored)


def evaluate_pairs(
    model: Model, kernel: Kernel, rng: Rng, theta: Array, index: Array | None, on_error: str, certain: bool
) -> Evaluation:
    """Estimates at rows of theta; of a pair whose estimates may be negative, the log is that of their positive part."""
    drawn = draw_pairs(model, rng, theta, index, on_error, certain)
    with np.errstate(divide="ignore"):
        if model.pair is not None and model.pair.signed:
            log_estimate = np.log(np.maximum(estimates(kernel, drawn.distances, drawn.counted), 0.0))
        else:
            log_estimate = kernel.log_weight(drawn.distances) + np.log(drawn.factor)
    return Evaluation(
        log_estimate, drawn.distances[:, None], drawn.cost, drawn.failures, drawn.ignored_rng, counted=drawn.counted
    )


def estimates(kernel: Kernel, distances: Array, counted: Array) -> Array:
    """T (n,) at a kernel, of simulations with these last distances (n,)."""
    return combined(np.exp(kernel.log_weight(distances)), np.exp(kernel.log_weight(counted[:, 1])), counted[:, 0])


def hits(kernel: Kernel, log_u: Array, distances: Array, counted: Array) -> Array:
    """T (n,) with K replaced by whether a uniform u is below it, the same u for both parts: it has the same mean."""
    expensive, cheap = (log_u < kernel.log_weight(of) for of in (distances, counted[:, 1]))
    return combined(expensive.astype(float), cheap.astype(float), counted[:, 0])


def combined(expensive: Array, cheap: Array, factor: Array) -> Array:
    """R + c (K - R)."""
    return cheap + factor * (expensive - cheap)


@dataclass(frozen=True, eq=False)
class WithFactors:
    """The estimates of a simulator in stages whose distances (n, 1) are followed by the factors c (n, 1)."""

    inner: Any
    log_bound: float | None

    @property
    def prior(self) -> Prior:
        prior: Prior = self.inner.prior
        return prior

    def evaluate(self, rng: Rng, theta: Array, log_needed: Array | None) -> Evaluation:
        """As the estimator within."""
        part: Evaluation = self.inner.evaluate(rng, theta, log_needed)
        factor = np.zeros((len(theta), 1)) if part.counted is None else part.counted[:, :1]
        return part._replace(distances=np.concatenate([part.distances, factor], axis=1))


class PairMoments(NamedTuple):
    """What the second moment of an estimate is made of, for each of n simulations."""

    whole: Array
    """(n,) that of the expensive data alone: K², or K if hits are counted."""
    change: Array
    """(n,) what the second part changes: (K - R)², or |K - R|."""


def moments(kernel: Kernel, cheap: Array, expensive: Array, by_hits: bool) -> PairMoments:
    """Of simulations with these distances (n,); `by_hits` as rejection counts them, with 1{u < K} for K."""
    of_expensive, of_cheap = (np.exp(kernel.log_weight(of)) for of in (expensive, cheap))
    change = np.abs(of_expensive - of_cheap)
    return PairMoments(of_expensive, change) if by_hits else PairMoments(of_expensive**2, change**2)


def learnt_rule(
    pair: Pair, kernel: Kernel, signal: Array, cheap: Array, expensive: Array, by_hits: bool = False
) -> tuple[ContinuationRule, float]:
    """The best continuation probability by pilot simulations with these signals and distances (n,).

    Also the tolerance at which it was learnt: the kernel's, or the least at which the pilot has some hits; at a larger
    one the rule does not rise with the signal. A rule that does not do better than whole simulations at draws that it
    was not learnt from is not used: alpha is 1 then.
    """
    near = np.sort(expensive[np.isfinite(expensive)])
    if near.size <= FEWEST_HITS:
        return ALWAYS, math.inf
    kernel, asked = kernel.with_eps(max(kernel.eps, float(near[FEWEST_HITS]))), kernel.eps
    whole, change = moments(kernel, cheap, expensive, by_hits)
    # The first stage may have failed: such a simulation is never taken up again. Without a signal it always is.
    alive = ~np.isnan(signal) if pair.signed else np.isfinite(signal)
    signal, change, whole = signal[alive], change[alive], whole[alive]
    eps, judged = kernel.eps if pair.signed else None, np.ones(len(signal))

    def fitted(some: Any) -> ContinuationRule:
        rule = _fitted(pair, signal[some], PairMoments(whole[some], change[some]), eps)
        return rule if kernel.eps == asked else falling(rule)

    for one, other in halves(len(signal)):
        judged[other] = fitted(one)(signal[other])
    assert pair.price is not None
    every = PairMoments(whole, change)
    if not effective_price(pair.price, every, judged) < LEAST_GAIN * effective_price(pair.price, every):
        return ALWAYS, kernel.eps
    return fitted(slice(None)), kernel.eps


def falling(rule: ContinuationRule) -> ContinuationRule:
    """The least rule above this one that does not rise with the signal.

    At a larger tolerance than the run's, two models disagree farther from the data than they will in the run: what lies
    nearer must not be left out for that.
    """
    return rule._replace(alpha=np.maximum.accumulate(rule.alpha[::-1])[::-1])


def halves(count: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Which of so many simulations teach a rule and which judge it, and the other way round."""
    half = np.arange(count) // 10 % 2 == 0
    return (half, ~half), (~half, half)


def effective_price(price: tuple[float, float], seen: PairMoments, alpha: Any = 1.0) -> float:
    """Mean price times second moment of simulations with these moments and alpha (n,).

    Divided by the squared mean of K, which is the same for every alpha, it is what an effective draw costs.
    """
    moment = float((seen.whole - seen.change + seen.change / alpha).mean())
    return moment * (price[0] + price[1] * float(np.mean(alpha)))


def _fitted(pair: Pair, signal: Array, seen: PairMoments, eps: float | None) -> ContinuationRule:
    """The best rule for simulations with these signals (n,) and moments."""
    change = seen.change
    edges = rule_edges(signal, change, eps)
    part = np.searchsorted(edges, signal, side="right")
    count = np.bincount(part, minlength=edges.size + 1)
    # Half a change more in each part, as Jeffreys has it: where there was none, changes are rare, and count 1/alpha.
    typical = float(change[change > 0].mean()) if change.any() else 0.0
    mean = (np.bincount(part, change, minlength=edges.size + 1) + 0.5 * typical) / (count + 1.0)
    assert pair.price is not None
    rest = float((seen.whole - change).mean())
    return ContinuationRule(edges, best_alpha(count / count.sum(), mean, rest, pair.price, pair.floor))


def rule_edges(signal: Array, change: Array, eps: float | None) -> Array:
    """Edges of signals (n,) between which the squared changes (n,) have equal sums, and around all that changed."""
    changed = np.flatnonzero(change)
    edges = [] if eps is None else [eps]
    if changed.size:
        order = changed[np.argsort(signal[changed], kind="stable")]
        mass = np.cumsum(change[order])
        inner = signal[order[np.searchsorted(mass, mass[-1] * np.arange(1, BINS) / BINS)]]
        edges += [*inner.tolist(), float(signal[order[0]]), float(np.nextafter(signal[order[-1]], np.inf))]
    return np.unique([edge for edge in edges if math.isfinite(edge)])


def best_alpha(share: Array, change: Array, rest: float, price: tuple[float, float], floor: float) -> Array:
    """The alpha (k,) between floor and 1 that makes cost times second moment least.

    Parts of the signals have these shares (k,) of the simulations and these mean squared changes (k,), and the second
    moment is rest + sum share change / alpha. The best alpha is a root of the changes times one number, cut off at
    floor and 1 (docs/theory.md), so that the number is found exactly, among the ends of the pieces and one point in
    each.

    >>> best_alpha(np.array([0.5, 0.5]), np.array([0.04, 0.0]), 0.2, (1.0, 50.0), 0.01).round(3)
    array([0.071, 0.01 ])
    """
    root = np.sqrt(change)
    if not root.any():
        return np.full(root.size, floor)
    positive = root[root > 0]
    ends = np.unique(np.concatenate([floor / positive, 1.0 / positive]))

    def alpha_at(number: float) -> Array:
        return np.clip(number * root, floor, 1.0)

    def objective(number: float) -> float:
        alpha = alpha_at(number)
        return (rest + float((share * change / alpha).sum())) * (price[0] + price[1] * float((share * alpha).sum()))

    tried = list(ends)
    for low, high in pairwise(ends):
        alpha = alpha_at(math.sqrt(low * high))
        free = (alpha > floor) & (alpha < 1.0)
        slope = float((share * root)[free].sum())
        moment = rest + float((share * change / alpha)[~free].sum())
        spent = price[0] + price[1] * float((share * alpha)[~free].sum())
        if moment > 0 and slope > 0:
            tried.append(float(np.clip(math.sqrt(spent / (price[1] * moment)), low, high)))
    return alpha_at(min(tried, key=objective))
