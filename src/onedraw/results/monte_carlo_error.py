"""Monte Carlo errors: of means, standard deviations, quantiles and probabilities, for every kind of draws.

`monte_carlo` is the one account of the error of an estimate, and effective draws follow from it. To first order every
estimate is a mean of the influences of its draws, so that all that is needed is the error of a mean (docs/theory.md,
"Monte Carlo errors"):

- Units that are independent of each other (draws of rejection, groups of weighted particles, chains if there are at
  least MANY): the jackknife over the units. For equal weights this is sd(means of units)/sqrt(units), and it holds
  however short the chains are, since chains start stationary.
- Few chains: autocovariances within the chains, summed up to a lag L, with the weight 1 - k/n that lag k has in the
  mean of n draws. With L = n - 1 this is again sd(chain means)/sqrt(chains), the fallback if no shorter L will do.

Every such error is itself an estimate, and widened for that: by Student's t for its degrees of freedom, and for the
skewness of what the units add (draws, groups, chains, or segments of few chains), since a run whose estimate is off
then states too small an error.

`variances` gives v(f), the variance of f under the target, v(f, Q) = lim n Var(mean of f over n steps), and
kappa = v(f, Q)/v(f), each with its error: what chains of any length would give, beyond the run at hand.
v(f, Q) is the sum of the autocovariances over all lags. Autocovariances of all chains are pooled around the *overall*
mean, so that many short chains (whose means differ by what a single chain cannot see) serve as well as a few long ones.
The sum is cut at the first lag L that is at least 4 kappa(L) (Sokal's window). The error is how much the same sum
differs from chain to chain, or between segments of a few long chains, and so assumes nothing about the chain.

How the cut was chosen: on four exact chains (kappa 8 to 25; 1024 x 200, 256 x 300, 32 x 1500 and 4 x 12,000 draws,
100 runs each) cuts at 2, 3 and 4 kappa had a mean bias of -2.5, -0.4 and 0 %, and stated 95 % intervals held the
truth in 84, 94 and 95 % of runs; Geyer's initial positive sequence, whose cut is itself noisy, had +1.3 % and 91 %.
Chains with sticky states (rare, long stays; kappa 35, 200 runs) are the hard case: 84 to 96 % by layout, and 89 to
98 % once errors are widened for skewness (SKEW), the least at 4 x 6,000 draws. A widening by the squared skewness, as
that of means, covers as often with a factor of 3 (4 x 6,000 to 1024 x 200, 60 to 150 runs).
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import number_or_nan
from onedraw.engines.arrays import Array
from onedraw.estimators.weights import cumulated

MANY = 64
"""From so many chains on, the spread of their means gives the error: with 63 degrees of freedom, known to 9 %."""
FEWEST_CHAINS = 4
"""With fewer chains that are too short for their own autocovariances, no error is stated."""
FEWEST_WINDOWS = 8
"""Draws of all chains together, in longest lags, that autocovariances are believed from."""
WINDOW = 4.0
"""Autocovariances are summed up to the first lag of at least this many kappa."""
UNITS = 32
"""Chains, or segments of them, from which the error of v(f, Q) is estimated."""
FEWEST_UNITS = 8
"""With fewer, no error is stated."""
SEGMENT = 4
"""A segment of a chain is at least this many times as long as the longest lag that is summed."""
SHARE = 0.75
"""The longest lag, as a share of a chain's length, beyond which too few pairs are left."""
SKEW = 0.5
"""How much errors of v(f, Q) are widened for the skewness of the sums, over the root of the units."""
RARE = 1.8
"""The skewness of what units add, over that in a sample, which hardly has the rare large ones; 1 for two values."""
LARGEST_TAIL = 0.25
"""The largest extrapolated share of v(f, Q) that is believed."""
EQUAL_UNITS = "all chains have the same mean: the error is unknown"
FFT_VALUES = 2**22
"""Numbers that are transformed at once."""


class Interval(NamedTuple):
    """An estimate of a positive number with its standard error and its 95 % interval; NaN if no error is known."""

    value: float
    se: float = math.nan
    low: float = math.nan
    high: float = math.nan

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


UNKNOWN = Interval(math.nan)


def exactly(value: float) -> Interval:
    """A number without an error."""
    return Interval(value, 0.0, value, value)


def interval(value: float, se: float, degrees: int, probability: float = 0.95) -> Interval:
    """A positive estimate with its interval, symmetric on the log scale, by Student's t."""
    from scipy import stats

    if not value > 0:
        return Interval(value, se)
    factor = math.exp(min(float(stats.t.ppf((1 + probability) / 2, degrees)) * se / value, 700.0))
    return Interval(value, se, value / factor, value * factor)


class MonteCarlo(NamedTuple):
    """An estimate with its Monte Carlo error."""

    value: float
    mcse: float = math.nan
    """Monte Carlo standard error."""
    ess: float = math.nan
    """Independent draws that would give this error: the variance of one draw's influence over mcse²."""
    degrees: float = 0.0
    """Degrees of freedom of mcse, about: how well it is known itself."""
    reason: str = ""
    """Why no error is known, in plain words."""


class Variances(NamedTuple):
    """What the draws say about one function f."""

    mean: float
    v: Interval = UNKNOWN
    """v(f), the variance of f under the target."""
    v_chain: Interval = UNKNOWN
    """v(f, Q)."""
    kappa: Interval = UNKNOWN
    degrees: int = 0
    """Degrees of freedom of the errors: units - 1."""
    longest_lag: int = 0
    reason: str = ""
    """Why v(f, Q) could not be estimated, in plain words; `kappa.low` is still a lower limit then."""

    @property
    def resolved(self) -> bool:
        """Whether v(f, Q) could be estimated."""
        return not self.reason


class Draws(NamedTuple):
    """What the error of an estimate depends on, besides the values themselves."""

    weights: Array | None = None
    """(chains, n), summing to 1; None if they are equal."""
    independent: bool = False
    """Whether the draws are independent of each other."""
    groups: Array | None = None
    """(chains, n) whole numbers, equal for draws whose errors may go together; other draws are independent."""
    effective: float | None = None
    """The number of independent draws that draws from a smoothed estimate are worth."""
    refits: Array | None = None
    """(m, k) of a learnt likelihood: how the shares of k of the draws (`some_of`) change with m other fits. The squared
    error of a mean, from the simulations behind it, is the sum of the m squared changes that these make."""
    worth: float | None = None
    """How many independent draws of its own posterior the draws of a learnt likelihood are worth; as many as `refits`
    has, if that is not known."""


def monte_carlo(values: Array, draws: Draws | None = None, of: str | float = "mean") -> MonteCarlo:
    """The mean or the sd of values (chains, n), or the quantile of a probability, with its Monte Carlo error.

    >>> monte_carlo(np.array([[0.0, 0.0, 1.0, 1.0]]), Draws(independent=True))[:3]  # of 3 degrees of freedom
    (0.5, 0.5, 4.0)
    >>> monte_carlo(np.array([[0.0, 0.0, 1.0, 1.0]]), Draws(groups=np.array([[0, 0, 1, 1]])))[:2]
    (0.5, 0.8660...)
    """
    draws, values = draws or Draws(), np.asarray(values, dtype=float)
    if not values.size:
        return MonteCarlo(math.nan, reason="there are no draws")
    weights = _weights(values, draws)
    if of not in ("mean", "sd"):
        return _quantile(values, weights, draws, checked_probability(of))
    of_mean = _of_mean(values, weights, draws)
    mean = _limited(_mean(values, weights, draws), of_mean, _behind(values, draws))
    return mean if of == "mean" else _sd(values, weights, draws, mean, of_mean)


def mean_and_sd(values: Array, draws: Draws) -> tuple[MonteCarlo, MonteCarlo]:
    """What `monte_carlo` gives of both; the error of the mean, which both need, is computed once."""
    weights = _weights(values, draws)
    of_mean = _of_mean(values, weights, draws)
    mean = _limited(_mean(values, weights, draws), of_mean, _behind(values, draws))
    return mean, _sd(values, weights, draws, mean, of_mean)


def _weights(values: Array, draws: Draws) -> Array:
    return np.full(values.shape, 1 / values.size) if draws.weights is None else draws.weights


def _mean(values: Array, weights: Array, draws: Draws) -> float:
    return float(values.mean() if draws.weights is None else (weights * values).sum())


def checked_probability(of: str | float) -> float:
    """The probability of a quantile."""
    if not 0 < number_or_nan(of) < 1:
        raise ValueError(f'of must be "mean", "sd" or the probability of a quantile between 0 and 1, got {of!r}')
    return float(of)


def _quantile(values: Array, weights: Array, draws: Draws, probability: float) -> MonteCarlo:
    """The error is that of the probability over the density, which is the slope of the quantiles within two errors."""
    order = np.argsort(values, axis=None, kind="stable")
    ordered, mass = values.reshape(-1)[order], cumulated(weights.reshape(-1)[order])

    def quantile(at: float) -> float:
        return float(ordered[min(int(np.searchsorted(mass, at * mass[-1] * (1 - 1e-9))), mass.size - 1)])

    value = quantile(probability)
    below = (values <= value).astype(float)
    # The share below the estimate is what was asked for, however the draws fall.
    found = _limited(value, _of_mean(below, weights, draws), _behind(below, draws), skewed=False)
    if found.reason:
        return found
    for errors in (2, 1):
        low, high = probability - errors * found.mcse, probability + errors * found.mcse
        if low > 0 and high < 1:
            # The slope is known to 1/sqrt(k) from k effective draws, and dividing by it takes 3/k of the square.
            slope = (quantile(high) - quantile(low)) / (high - low)
            noise = math.sqrt(1 + 3 / (found.ess * (high - low)))
            return found._replace(mcse=found.mcse * slope * noise)
    few = f"there are too few effective draws beyond the quantile of {probability:g}"
    return MonteCarlo(value, ess=found.ess, degrees=found.degrees, reason=few)


class Worth(NamedTuple):
    """What a mean of draws is worth: the variance of one draw, and how many independent ones it equals."""

    variance: float = math.nan
    ess: float = math.nan
    degrees: float = 0.0
    reason: str = ""
    widened: float = 1.0
    """The factor of the squared error for the skewness of what it is estimated from."""
    counted: bool = False
    """Whether `ess` counts independent draws, which are that many however much their error is widened."""

    @property
    def squared_error(self) -> float:
        """Variance of the mean."""
        return self.variance / self.ess


def _worth(spread: float, squared_error: float, degrees: float, widened: float) -> Worth:
    """From the mean square around the estimated mean, which is too small by the squared error of that mean."""
    variance = spread + squared_error
    return Worth(variance, variance / squared_error, degrees, widened=widened)


class Behind(NamedTuple):
    """How many independent draws the simulations behind smoothed draws are worth, and how well that is known."""

    effective: float
    degrees: float
    widened: float = 1.0
    """As that of a mean."""


def _limited(value: float, of_mean: Worth, behind: Behind | None, skewed: bool = True) -> MonteCarlo:
    """With at most as many independent draws as there are behind it; `skewed` if its error varies with the estimate."""
    variance, ess, degrees, reason, widened, counted = of_mean
    stated = ess / _student(degrees) / (widened if skewed else 1.0)
    if not counted:
        ess = stated
    if not reason and behind is not None and behind.effective < ess:
        few = f"the estimate rests on {behind.effective:.2g} effective simulations"
        ess, degrees, reason = behind.effective, behind.degrees, few if behind.effective < 2 else ""
        stated = ess / (behind.widened if skewed else 1.0)
    if reason:
        return MonteCarlo(value, ess=ess, reason=reason)
    return MonteCarlo(value, math.sqrt(variance / stated), ess, degrees)


def some_of(draws: int, refits: Array) -> Array:
    """The numbers of the draws whose shares `refits` has: one in so many.

    >>> some_of(10, np.empty((3, 4))).tolist(), some_of(3, np.empty((3, 3))).tolist()
    ([0, 3, 6, 9], [0, 1, 2])
    """
    return np.arange(0, draws, -(-draws // refits.shape[1]))


def _behind(values: Array, draws: Draws, around: Array | None = None) -> Behind | None:
    """What the simulations behind smoothed draws are worth for the mean of these values; None for other draws.

    Of a learnt likelihood, the error of its draws is added to that of the simulations behind it.

    >>> refits = np.array([[-0.02, 0.0, 0.0, 0.02], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    >>> found = _behind(np.array([[-1.0, 0.0, 0.0, 1.0]]), Draws(refits=refits))  # 0.5 / (3 0.04^2 + 0.5 / 4)
    >>> round(found.effective, 6), found.degrees
    (3.85208, 3)
    """
    if draws.refits is None:
        number, size = draws.effective, values.size
        if number is None:
            return None
        beside = None if around is None else around / size
        return Behind(number, number, _widened((values - values.mean()) / size, beside, number))
    some = values.reshape(-1)[some_of(values.size, draws.refits)]
    away = some - some.mean()
    variance, moved, degrees = float(away @ away) / some.size, draws.refits @ away, len(draws.refits) - 1
    if not variance > 0:
        return Behind(1.0, degrees)
    count = some.size if draws.worth is None else draws.worth
    return Behind(variance / (_student(degrees) * float(moved @ moved) + variance / count), degrees)


def effective_on_average(theta: Array, refits: Array, worth: float | None = None) -> float:
    """The effective draws of the means of parameters, from draws (n, dim): harmonic mean over those that vary.

    >>> effective_on_average(np.array([[0.0, 7.0], [1.0, 7.0]]), np.zeros((4, 2)))
    2.0
    >>> effective_on_average(np.array([[0.0, 7.0], [1.0, 7.0]]), np.zeros((4, 2)), 1.5)
    1.5
    """
    found = [_behind(one, Draws(refits=refits, worth=worth)) for one in theta[:, theta.var(axis=0) > 0].T]
    shares = [1 / one.effective for one in found if one is not None]
    return 1 / float(np.mean(shares)) if shares else 1.0


def _sd(values: Array, weights: Array, draws: Draws, mean: MonteCarlo, of_mean: Worth) -> MonteCarlo:
    around = values - mean.value
    spread = around**2
    variance = float((weights * spread).sum())
    if draws.weights is None and not of_mean.reason:
        # The mean of the draws lies nearer to them than the mean of the target; for independent draws this is n - 1.
        variance += of_mean.squared_error
    of_spread, behind = _of_mean(spread, weights, draws, around), _behind(spread, draws, around)
    found = _limited(math.sqrt(max(variance, 0.0)), of_spread, behind)
    return found if found.reason else found._replace(mcse=found.mcse / (2 * found.value))


def _of_mean(values: Array, weights: Array, draws: Draws, around: Array | None = None) -> Worth:
    """Of sum w f, f the values, to first order; `around` for the squares of these, x less its estimated mean."""
    away = values - (values.mean() if draws.weights is None else (weights * values).sum())
    influence, beside = weights * away, None if around is None else weights * around
    if np.count_nonzero(influence) < 2:
        equal = "all draws are equal" if np.count_nonzero(weights) > 1 else "one draw has all the weight"
        return Worth(reason=f"{equal}: the error is unknown")
    (chains, n), size = values.shape, values.size
    spread = float((influence * away).sum())
    if spread <= 0:
        return Worth(reason="negative weights outweigh the others, so the error is unknown: run longer")
    if draws.groups is not None:
        return _over_units(spread, influence, weights, draws.groups, beside)
    if draws.independent and draws.weights is None:
        widened = _widened(influence, beside)
        return Worth(spread * size / (size - 1), float(size), size - 1, widened=widened, counted=True)
    if draws.independent:
        return _over_units(spread, influence, weights, np.arange(size), beside)
    within = None if chains >= MANY else _within_chains(spread, influence, beside)
    if within is not None:
        return within
    if chains < FEWEST_CHAINS:
        few = f"{chains} x {n} draws are too few to know their error: they are correlated over most of a chain"
        return Worth(spread, reason=few)
    return _over_units(spread, influence, weights, np.repeat(np.arange(chains), n), beside)


def _student(degrees: float) -> float:
    """The mean square of Student's law, that of z if its error is known so well; never above that of three degrees.

    >>> _student(6.0), _student(2.0)
    (1.5, 3.0)
    """
    return max(degrees, 3.0) / (max(degrees, 3.0) - 2.0)


def _over_units(spread: float, influence: Array, weights: Array, units: Array, beside: Array | None) -> Worth:
    """The jackknife: without unit u the mean differs by the sum of its influences over the weight of the others."""
    _, member = np.unique(units, return_inverse=True)
    member = member.reshape(-1)
    weight = np.bincount(member, weights.reshape(-1))
    some = weight != 0
    size = int(np.count_nonzero(some))
    if size < 2:
        return Worth(spread, reason="all draws belong to one group: their error is unknown")
    others = np.maximum(1 - weight[some], 1 / size)

    def without(one: Array) -> Array:
        return np.asarray(np.bincount(member, one.reshape(-1))[some] / others)

    moved = without(influence)
    squares = float((moved**2).sum()) * (size - 1) / size
    if not squares > 0:
        return Worth(spread, reason=EQUAL_UNITS)
    widened = _widened(moved, None if beside is None else without(beside))
    return _worth(spread, squares, size - 1, widened)


def _widened(added: Array, beside: Array | None = None, number: float | None = None) -> float:
    """The factor of a squared error that is too small in runs whose estimate is off (docs/theory.md).

    With skewness g of what U units add, the mean of z² is 1 + 2 g²/U to first order. In a sample g² is 6/U even if g is
    0. Of squares around a mean, `beside` has what the units add to that mean, which also moves the squares. `number` is
    that of the units behind draws from a smoothed estimate.

    >>> round(_widened(np.array([-1.0, 1.0])), 3), round(_widened(np.append(np.full(100, -0.01), 1.0)), 2)
    (1.0, 2.94)
    >>> round(_widened(np.append(np.linspace(-0.02, 0.0, 100), 1.0)), 2)
    7.22
    """
    squares, units = float((added**2).sum()), added.size
    if not squares > 0:
        return 1.0
    rare = 1.0 if ((added == added.min()) | (added == added.max())).all() else RARE
    cubes = rare * float((added**3).sum()) - (0.0 if beside is None else 4 * float((added * beside).sum()) ** 2)
    skewness = math.sqrt(units) * cubes / squares**1.5
    return 1 + 2 * max(skewness**2 - 6 * rare**2 / units, 0.0) / (number or units)


def _within_chains(spread: float, influence: Array, beside: Array | None) -> Worth | None:
    """By autocovariances, of a series (chains, n) whose overall mean is 0; None if the chains are too short."""
    (chains, n), centred = influence.shape, influence * influence.size
    pooled = _pooled(centred)
    window = _window(pooled, chains)
    if window is None or window.tail or FEWEST_WINDOWS * window.longest > centred.size:
        return None
    squares, lags = _summed(pooled, chains, window.longest)
    if not squares > 0:
        return None
    # Half of the longest lag is twice kappa: such segments hardly go together.
    pieces = n // max(window.longest // 2, 1)
    by_mean = None if beside is None else _cut(beside, pieces).sum(axis=1)
    return _worth(spread, squares, centred.size / lags, _widened(_cut(influence, pieces).sum(axis=1), by_mean))


def _summed(pooled: Array, chains: int, longest: int) -> tuple[float, float]:
    """The variance of the overall mean by autocovariances up to a lag, and the number of lags that went into it.

    At the longest lag, n - 1, this is the variance of the chain means over the number of chains.
    """
    n = pooled.size
    share = 1 - np.arange(longest + 1) / n
    share[1:] *= 2
    lags = float(share.sum())
    # The overall mean has taken Var(mean) out of every lag.
    return float(pooled[: longest + 1] @ share) / chains / (chains * n - lags), lags


def variances(values: Array, weights: Array | None = None, independent: bool = False) -> Variances:
    """v(f), v(f, Q) and kappa with their errors, from f along chains.

    Parameters: `values` (chains, n); `weights` of the same shape and summing to 1, or None; `independent` if the draws
    are, as in rejection, so that kappa is 1. The intervals are symmetric on the log scale, with Student's t.
    """
    values = np.asarray(values, dtype=float)
    mean = float(values.mean()) if weights is None else float((weights * values).sum())
    centred = values - mean
    spread = centred**2
    if weights is not None:
        # A weighted mean is a ratio; this is the series whose mean has its error (to first order).
        spread = spread * weights * weights.size
        centred = centred * weights * weights.size
    v = float(spread.mean()) if values.size else math.nan
    if values.size < 2 or not v > 0:
        return Variances(mean, reason="f never changed along the chains")
    window = Window(0, False) if independent else _window(_pooled(centred), len(centred))
    pieces = 0 if window is None else _pieces(values, window)
    if window is None or not pieces:
        return _from_below(mean, v, centred, spread)
    sums, each_v = _sums(_cut(centred, pieces), window), _cut(spread, pieces).mean(axis=1)
    each_chain = _leave_one_out(sums)
    degrees = len(each_v) - 1
    # The overall mean takes Var(mean) = v(f, Q)/N out of each of the 2L + 1 lags, and out of v(f).
    whole = float(_total(_sums(centred, window).mean(axis=0))) / (1 - (2 * window.longest + 1) / values.size)
    beyond = whole - float(sums[:, 0].mean())
    if window.tail and not (np.isfinite(each_chain).all() and beyond <= LARGEST_TAIL * whole < math.inf):
        return _from_below(mean, v, centred, spread)
    v += whole / values.size
    kappa, error = 1.0, 0.0
    if not independent or weights is not None:
        kappa = whole / v
        error = _error((each_chain - kappa * each_v) / v)
    return Variances(
        mean,
        interval(v, _error(each_v), degrees),
        interval(whole, _error(each_chain), degrees),
        interval(kappa, error, degrees),
        degrees,
        window.longest,
    )


def _from_below(mean: float, v: float, centred: Array, spread: Array) -> Variances:
    """If the chains are too short: n times the variance of their means is below v(f, Q)."""
    chains, n = centred.shape
    reason = f"the chains are too short: {chains} x {n} draws, and f is still correlated over most of a chain"
    found = Variances(mean, Interval(v), longest_lag=n, reason=reason)
    if chains < FEWEST_UNITS:
        return found
    each_chain, each_v = n * centred.mean(axis=1) ** 2, spread.mean(axis=1)
    below = float(each_chain.mean()) / v
    limit = interval(below, _error(each_chain / v - below * each_v / v), chains - 1).low
    v_chain, kappa = (Interval(math.nan, math.nan, low, math.inf) for low in (limit * v, limit))
    return found._replace(v_chain=v_chain, kappa=kappa, degrees=chains - 1)


def _error(each: Array) -> float:
    """Standard error of the mean of each unit's value, wider if it comes from rare large values (sticky states)."""
    size = len(each)
    deviation = each - each.mean()
    sd = math.sqrt(float((deviation**2).sum()) / (size - 1))
    if sd == 0:
        return 0.0
    skewness = float((deviation**3).mean()) / sd**3
    return sd / math.sqrt(size) * (1 + SKEW * max(skewness, 0.0) / math.sqrt(size))


def _autocovariances(centred: Array) -> Iterator[Array]:
    """Blocks of (chains, n): at each lag k the mean of x_t x_(t+k) over the n - k pairs of a chain."""
    from scipy import fft

    chains, n = centred.shape
    size = fft.next_fast_len(2 * n, real=True)
    height = max(1, FFT_VALUES // (2 * n))
    for top in range(0, chains, height):
        power = np.abs(fft.rfft(centred[top : top + height], size, axis=1)) ** 2
        yield np.asarray(fft.irfft(power, size, axis=1)[:, :n] / np.arange(n, 0, -1))


class Window(NamedTuple):
    """Lags that are summed, and whether the sum beyond them is extrapolated."""

    longest: int
    tail: bool


def _pooled(centred: Array) -> Array:
    """(n,) autocovariances of a series (chains, n) at each lag, summed over the chains."""
    pooled = np.zeros(centred.shape[1])
    for block in _autocovariances(centred):
        pooled += block.sum(axis=0)
    return pooled


def _window(pooled: Array, chains: int) -> Window | None:
    """Up to the first lag L of at least WINDOW kappa(L), by the autocovariances (n,) of all chains.

    If chains are too short for that but many, as far as there are enough pairs, with the tail extrapolated.
    """
    n = pooled.size
    kappa = 2 * np.cumsum(_as_if_positive(pooled / pooled[0], chains)) - 1
    enough = np.flatnonzero(np.arange(n) >= WINDOW * np.maximum(kappa, 0.25))
    if enough.size and enough[0] <= SHARE * n:
        return Window(int(enough[0]), False)
    longest = int(SHARE * n) // 3 * 3
    return Window(longest, True) if chains >= UNITS and longest >= 3 else None


def _as_if_positive(correlation: Array, chains: int) -> Array:
    """Autocorrelations with their sign turned if they are negative beyond their noise (3 errors, Bartlett's).

    Those of an antithetic chain take turns, and their sum is small long before they are.
    """
    n = correlation.size
    noise = np.sqrt((2 * np.cumsum(correlation**2) - 1) / (chains * np.arange(n, 0, -1)))
    return np.where(correlation < -3 * noise, -correlation, correlation)


def _sums(centred: Array, window: Window) -> Array:
    """(chains, 1): sums of each chain's autocovariances over the window, both directions counted.

    With a tail, (chains, 3): with the parts of the sum in the last two thirds of the lags.
    """
    longest, third = window.longest, window.longest // 3
    found = []
    for block in _autocovariances(centred):
        parts = [2 * block[:, : longest + 1].sum(axis=1) - block[:, 0]]
        if window.tail:
            parts += [2 * block[:, k * third + 1 : (k + 1) * third + 1].sum(axis=1) for k in (1, 2)]
        found.append(np.stack(parts, axis=1))
    return np.concatenate(found)


def _total(sums: Array) -> Any:
    """Sum over all lags from `_sums`, (..., 1) or (..., 3) -> (...).

    The tail is taken to keep falling from third to third as it last did. Autocovariances of a reversible chain are
    mixtures of geometric series, whose decay only slows down, so this is too small rather than too large.
    """
    if sums.shape[-1] == 1:
        return sums[..., 0]
    earlier, last = sums[..., 1], np.maximum(sums[..., 2], 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return sums[..., 0] + np.where(earlier > last, last * last / (earlier - last), np.where(last > 0, np.inf, 0.0))


def _leave_one_out(sums: Array) -> Array:
    """Each unit's share in the total: the jackknife's pseudo-values, which without a tail are the sums themselves."""
    size = len(sums)
    others = (sums.sum(axis=0) - sums) / (size - 1)
    with np.errstate(invalid="ignore"):
        return np.asarray(size * _total(sums.mean(axis=0)) - (size - 1) * _total(others))


def _pieces(values: Array, window: Window) -> int:
    """Segments per chain from which errors are estimated; 0 if there would be too few.

    Whole chains are independent of each other, however short they are.
    """
    (chains, n), shortest = values.shape, SEGMENT * window.longest
    pieces = max(min(math.ceil(UNITS / chains), n // max(shortest, 2)), 1)
    too_few = pieces * chains < FEWEST_UNITS or (pieces > 1 and n // pieces < shortest)
    return 0 if too_few else pieces


def _cut(values: Array, pieces: int) -> Array:
    length = values.shape[1] // pieces
    return values[:, : pieces * length].reshape(len(values) * pieces, length)
