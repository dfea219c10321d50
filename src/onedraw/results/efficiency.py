"""What a run is worth: asymptotic variance with its error, kappa, cost of accuracy, running times (docs/theory.md).

v(f) is the variance of f under the target, v(f, Q) = lim n Var(mean of f over n steps), kappa = v(f, Q)/v(f).
v(f, Q) is the sum of the autocovariances over all lags. Those of all chains are pooled around the *overall* mean, so
that many short chains (whose means differ by what a single chain cannot see) serve as well as few long ones; summed
over all lags they are the variance of the chain means times their length. The sum is cut at the first lag L that
is at least 4 kappa(L) (Sokal's window). The error is how much the same sum differs from chain to chain, or between
stretches of few long chains, and so assumes nothing about the chain. Chains that start in the stationary law need no
burn-in.

How the cut was chosen: on four exact chains (kappa 8 to 25; 1024 x 200, 256 x 300, 32 x 1500 and 4 x 12,000 draws,
100 runs each) cuts at 2, 3 and 4 kappa had a mean bias of -2.5, -0.4 and 0 %, and stated 95 % intervals held the
truth in 84, 94 and 95 % of runs; Geyer's initial positive sequence, whose cut is itself noisy, had +1.3 % and 91 %.
Chains with sticky states (rare, long stays; kappa 35, 200 runs) are the hard case: 84 to 96 % by layout, and 89 to
98 % once errors are widened for skewness (SKEW), the least at 4 x 6,000 draws.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import positive, whole_number
from onedraw.engines.arrays import Array
from onedraw.results.posterior import Posterior
from onedraw.results.summary import ratio_error

WINDOW = 4.0
"""Autocovariances are summed up to the first lag of at least this many kappa."""
UNITS = 32
"""Chains, or stretches of them, from which the error of v(f, Q) is estimated."""
FEWEST_UNITS = 8
"""With fewer, no error is stated."""
STRETCH = 4
"""A stretch of a chain is at least this many times as long as the longest lag that is summed."""
SHARE = 0.75
"""The longest lag, as a share of a chain's length, beyond which too few pairs are left."""
SKEW = 0.5
"""How much errors are widened for the skewness of what they are estimated from, over the root of the units."""
LARGEST_TAIL = 0.25
"""The largest extrapolated share of v(f, Q) that is believed."""
FFT_VALUES = 2**22
"""Numbers that are transformed at once."""

Function = Callable[..., Any]


class Estimate(NamedTuple):
    """A positive number with its standard error and its 95 % interval (NaN where no error can be stated)."""

    value: float
    se: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


NOTHING = Estimate(math.nan, math.nan, math.nan, math.nan)


class Variances(NamedTuple):
    """What the draws say about one function f."""

    mean: float
    v: Estimate
    """v(f), the variance of f under the target."""
    v_chain: Estimate
    """v(f, Q)."""
    kappa: Estimate
    degrees: int
    """Degrees of freedom of the errors: units - 1."""
    longest_lag: int
    reason: str = ""
    """Why v(f, Q) could not be estimated, in plain words; then `kappa.low` still holds from below."""

    @property
    def resolved(self) -> bool:
        return not self.reason


class Row(NamedTuple):
    """One function's efficiency."""

    name: str
    variances: Variances
    ess: float
    """Independent draws that would be as accurate: draws / kappa."""
    ess_per_simulation: float
    ess_per_second: float
    kappa_arviz: float
    """kappa by arviz-stats' ESS of the mean, as a cross-check; too small where chains are short."""

    @property
    def kappa(self) -> Estimate:
        return self.variances.kappa


@dataclass(frozen=True)
class Efficiency:
    """A row for each function of a run, `efficiency["mu"].kappa`; printed as a table.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> post = od.pseudo_marginal(model, od.uniform(0.25), draws=1_000, chains=64, seed=1)
    >>> found = post.efficiency()
    >>> found["theta"].ess < post.draws["theta"].size
    True
    """

    rows: dict[str, Row]
    draws: int
    """Kept draws of all chains together."""
    simulations: float
    """Simulations that the rows are divided by."""
    seconds: float
    notes: tuple[str, ...]

    def __getitem__(self, name: str) -> Row:
        return self.rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __str__(self) -> str:
        head = ["", "v(f)", "v(f,Q)", "kappa [95 %]", "arviz", "ess", "ess/simulation", "ess/second"]
        lines = [head]
        for name, row in self.rows.items():
            numbers = row.variances
            kappa = f"above {numbers.kappa.low:.3g}" if numbers.reason else str(numbers.kappa)
            cells = (numbers.v.value, numbers.v_chain.value)
            rest = (row.kappa_arviz, row.ess, row.ess_per_simulation, row.ess_per_second)
            lines.append([name, *(f"{x:.4g}" for x in cells), kappa, *(f"{x:.4g}" for x in rest)])
        return "\n".join([*_table(lines), *self.notes])

    __repr__ = __str__


class Time(NamedTuple):
    """Running times of one function, in draws of a pseudo-sample with its set-up (docs/theory.md)."""

    steps: float
    """Steps of all chains together (proposals, for rejection) that reach the error: v(f, Q)/error²."""
    serial: float
    """On one processor: steps times c_M."""
    within: float
    """(a) one chain whose M draws are made side by side."""
    across: float
    """(b) as many chains as processors, each with all its M draws."""
    simulations: float
    """Simulations after early rejection, at this run's mean per step."""
    seconds: float
    """At this run's speed, on as many processors as it had."""


@dataclass(frozen=True)
class RunningTime:
    """Times to reach a Monte Carlo error, `running_time(...)["mu"].serial`; printed as a table."""

    rows: dict[str, Time]
    mc_error: dict[str, float]
    pseudo_samples: int
    processors: int
    discount: float
    notes: tuple[str, ...]

    def __getitem__(self, name: str) -> Time:
        return self.rows[name]

    def __str__(self) -> str:
        head = ["", "mc_error", "steps", "serial", "(a) within", "(b) across", "simulations", "seconds"]
        lines = [head]
        for name, row in self.rows.items():
            lines.append([name, f"{self.mc_error[name]:.4g}", *(f"{x:.4g}" for x in row)])
        setting = (
            f"M = {self.pseudo_samples}, {self.processors} processors, discount {self.discount:.4g}; serial, (a) and "
            "(b) in draws of one pseudo-sample with its set-up, no early rejection"
        )
        return "\n".join([*_table(lines), setting, *self.notes])

    __repr__ = __str__


def _table(lines: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    ]


# --- the estimator ------------------------------------------------------------------------------------------


def variances(values: Array, weights: Array | None = None, independent: bool = False) -> Variances:
    """v(f), v(f, Q) and kappa with their errors, from f along chains.

    Parameters: `values` (chains, n); `weights` of the same shape and summing to 1, or None; `independent` where the
    draws are, as in rejection, so that kappa is 1. The intervals are symmetric on the log scale, with Student's t.
    """
    values = np.asarray(values, dtype=float)
    mean = float(values.mean()) if weights is None else float((weights * values).sum())
    centred = values - mean
    spread = centred**2
    if weights is not None:
        # A weighted mean is a ratio; this is the series whose mean has its error (to first order).
        spread = spread * weights * weights.size
        centred = centred * weights * weights.size
    chains, n = values.shape
    v = float(spread.mean()) if values.size else math.nan
    if values.size < 2 or not v > 0:
        return Variances(mean, NOTHING, NOTHING, NOTHING, 0, 0, "f never changed along the chains")
    window = Window(0, False) if independent else _window(centred)
    units = None if window is None else _units(chains, n, window)
    if window is None or units is None:
        return _from_below(mean, v, centred, spread)
    sums, each_v = _sums(_cut(centred, units), window), _cut(spread, units).mean(axis=1)
    each_chain = _leave_one_out(sums)
    degrees = len(each_v) - 1
    # The overall mean takes Var(mean) = v(f, Q)/N out of each of the 2L + 1 lags, and out of v(f).
    whole = float(_total(_sums(centred, window).mean(axis=0))) / (1 - (2 * window.longest + 1) / values.size)
    if window.tail and not (
        np.isfinite(each_chain).all() and whole - float(sums[:, 0].mean()) <= LARGEST_TAIL * whole < math.inf
    ):
        return _from_below(mean, v, centred, spread)
    v += whole / values.size
    kappa, error = 1.0, 0.0
    if not independent or weights is not None:
        kappa = whole / v
        error = _error((each_chain - kappa * each_v) / v)
    return Variances(
        mean,
        estimate(v, _error(each_v), degrees),
        estimate(whole, _error(each_chain), degrees),
        estimate(kappa, error, degrees),
        degrees,
        window.longest,
    )


def _from_below(mean: float, v: float, centred: Array, spread: Array) -> Variances:
    """What can be said where the chains are too short: n times the variance of their means is below v(f, Q)."""
    chains, n = centred.shape
    reason = f"the chains are too short: {chains} x {n} draws, and f is still correlated over most of a chain"
    only_v = Estimate(v, math.nan, math.nan, math.nan)
    if chains < FEWEST_UNITS:
        return Variances(mean, only_v, NOTHING, NOTHING, 0, n, reason)
    each_chain, each_v = n * centred.mean(axis=1) ** 2, spread.mean(axis=1)
    below = float(each_chain.mean()) / v
    limit = estimate(below, _error(each_chain / v - below * each_v / v), chains - 1).low
    floor = Estimate(math.nan, math.nan, limit, math.inf)
    return Variances(mean, only_v, Estimate(math.nan, math.nan, limit * v, math.inf), floor, chains - 1, n, reason)


def estimate(value: float, se: float, degrees: int, probability: float = 0.95) -> Estimate:
    """A positive estimate with its interval, symmetric on the log scale, by Student's t."""
    from scipy import stats

    if not value > 0:
        return Estimate(value, se, math.nan, math.nan)
    factor = math.exp(min(float(stats.t.ppf((1 + probability) / 2, degrees)) * se / value, 700.0))
    return Estimate(value, se, value / factor, value * factor)


def _error(each: Array) -> float:
    """Standard error of the mean of each unit's value, wider where rare large values (sticky states) make it."""
    size = len(each)
    deviation = each - each.mean()
    sd = math.sqrt(float((deviation**2).sum()) / (size - 1))
    if sd == 0:
        return 0.0
    skewness = float((deviation**3).mean()) / sd**3
    return sd / math.sqrt(size) * (1 + SKEW * max(skewness, 0.0) / math.sqrt(size))


def _blocks(chains: int, n: int) -> Iterator[slice]:
    height = max(1, FFT_VALUES // (2 * n))
    for top in range(0, chains, height):
        yield slice(top, top + height)


def _autocovariances(centred: Array) -> Array:
    """(chains, n): at each lag k the mean of x_t x_(t+k) over the n - k pairs of a chain."""
    from scipy import fft

    n = centred.shape[1]
    size = fft.next_fast_len(2 * n, real=True)
    power = np.abs(fft.rfft(centred, size, axis=1)) ** 2
    return np.asarray(fft.irfft(power, size, axis=1)[:, :n] / np.arange(n, 0, -1))


class Window(NamedTuple):
    """Lags that are summed, and whether what lies beyond them is extrapolated."""

    longest: int
    tail: bool


def _window(centred: Array) -> Window | None:
    """Up to the first lag L of at least WINDOW kappa(L), by the autocovariances of all chains.

    Where chains are too short for that but many, as far as pairs are plenty, with the tail extrapolated.
    """
    chains, n = centred.shape
    pooled = np.zeros(n)
    for block in _blocks(chains, n):
        pooled += _autocovariances(centred[block]).sum(axis=0)
    kappa = 2 * np.cumsum(pooled) / pooled[0] - 1
    enough = np.flatnonzero(np.arange(n) >= WINDOW * np.maximum(kappa, 0.25))
    if enough.size and enough[0] <= SHARE * n:
        return Window(int(enough[0]), False)
    longest = int(SHARE * n) // 3 * 3
    return Window(longest, True) if chains >= UNITS and longest >= 3 else None


def _sums(centred: Array, window: Window) -> Array:
    """(chains, 1): sums of each chain's autocovariances over the window, both directions counted.

    Where there is a tail, (chains, 3): with the parts of the sum in the last two thirds of the lags.
    """
    longest = window.longest
    sums = np.empty((len(centred), 3 if window.tail else 1))
    for block in _blocks(*centred.shape):
        autocovariances = _autocovariances(centred[block])[:, : longest + 1]
        sums[block, 0] = 2 * autocovariances.sum(axis=1) - autocovariances[:, 0]
        if window.tail:
            third = longest // 3
            sums[block, 1] = 2 * autocovariances[:, third + 1 : 2 * third + 1].sum(axis=1)
            sums[block, 2] = 2 * autocovariances[:, 2 * third + 1 :].sum(axis=1)
    return sums


def _total(sums: Array) -> Any:
    """Sum over all lags from `_sums`, (..., 1) or (..., 3) -> (...).

    The tail is taken to fall on from third to third as it last did. Autocovariances of a reversible chain are mixtures
    of geometric series, whose decay only slows down, so this is rather too small than too large.
    """
    if sums.shape[-1] == 1:
        return sums[..., 0]
    earlier, last = sums[..., 1], np.maximum(sums[..., 2], 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return sums[..., 0] + np.where(earlier > last, last * last / (earlier - last), np.where(last > 0, np.inf, 0.0))


def _leave_one_out(sums: Array) -> Array:
    """Each unit's share in the total: the jackknife's pseudo-values, which are the sums themselves without a tail."""
    size = len(sums)
    others = (sums.sum(axis=0) - sums) / (size - 1)
    with np.errstate(invalid="ignore"):
        return np.asarray(size * _total(sums.mean(axis=0)) - (size - 1) * _total(others))


def _units(chains: int, n: int, window: Window) -> tuple[int, int] | None:
    """(stretches a chain, their length) from which errors are estimated; None where there would be too few."""
    longest = window.longest
    pieces = min(math.ceil(UNITS / chains), n // max(STRETCH * longest, 2))
    # Whole chains are independent of each other, however short they are.
    pieces = max(pieces, 1)
    if pieces * chains < FEWEST_UNITS or (pieces > 1 and n // pieces < STRETCH * longest):
        return None
    return pieces, n // pieces


def _cut(values: Array, units: tuple[int, int]) -> Array:
    pieces, length = units
    return values[:, : pieces * length].reshape(len(values) * pieces, length)


# --- a run --------------------------------------------------------------------------------------------------


def function_values(post: Posterior, functions: Mapping[str, Function] | None) -> dict[str, Array]:
    """f along the chains, (chains, draws): the parameters, or the functions given in their place."""
    if functions is None:
        return {name: np.asarray(values, dtype=float) for name, values in post.draws.items()}
    found = {}
    for name, function in functions.items():
        if not callable(function):
            raise ValueError(f"functions[{name!r}] must be a function of {', '.join(post.names)}, got {function!r}")
        try:
            values = np.asarray(function(**post.draws), dtype=float)
        except TypeError as error:
            raise ValueError(
                f"functions[{name!r}] failed ({error}): it is called with the draws of {', '.join(post.names)} by "
                "name, as arrays (chains, draws)"
            ) from error
        if values.shape != post.shape:
            raise ValueError(f"functions[{name!r}] returned shape {values.shape}: expected {post.shape}, as the draws")
        if not np.isfinite(values).all():
            raise ValueError(f"functions[{name!r}] is not finite everywhere: leave such functions out")
        found[name] = values
    return found


def chain_simulations(post: Posterior) -> tuple[float, bool]:
    """Simulations of the chains' own steps, and True; or of the whole run, and False, where they cannot be told apart.

    A step of Algorithm 2 or 3 asks for M pseudo-samples; those it did not draw are counted as skipped, which pilots
    and starts never are. Of a lazy chain, the number of steps that were not held is taken at its expectation.
    """
    settings = post.settings
    if settings.get("algorithm") not in ("pseudo_marginal", "wilkinson"):
        return float(post.cost.simulations), False
    chains, draws = post.shape
    steps = chains * draws * int(settings.get("thin", 1))
    if not steps:
        return 0.0, True
    proposal = settings.get("proposal") or {}
    proposals = steps * (1 - proposal.get("hold", 0.0)) if proposal.get("name") == "lazy" else steps
    return float(int(settings.get("pseudo_samples", 1)) * proposals - post.cost.skipped), True


def efficiency(post: Posterior, functions: Mapping[str, Function] | None = None) -> Efficiency:
    """v(f), v(f, Q), kappa and the ESS per simulation and per second of a run, for each f (docs/theory.md).

    `functions` maps names to functions of the parameters by name, each an array (chains, draws), and replaces the
    parameters themselves. Draws are kept draws: with thin > 1 kappa counts those.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> post = od.pseudo_marginal(model, od.uniform(0.5), draws=200, chains=256, seed=1)
    >>> found = efficiency(post, {"tail": lambda theta: theta > 2})
    >>> found["tail"].kappa.low < found["tail"].kappa.value < found["tail"].kappa.high
    True
    """
    simulations, own = chain_simulations(post)
    seconds = post.cost.seconds
    size = math.prod(post.shape)
    rows, notes = {}, []
    for name, values in function_values(post, functions).items():
        found = variances(values, post.weights, post.independent)
        ess = size / found.kappa.value
        if post.weights is not None:
            # The weighted mean's own error decides, whatever the run's draws would have given.
            ess = size * found.v.value / found.v_chain.value
            if post.groups is not None:
                ess = found.v.value / ratio_error(values, post.weights, True, post.groups) ** 2
        per_simulation = ess / simulations if simulations else math.nan
        per_second = ess / seconds if seconds else math.nan
        rows[name] = Row(name, found, ess, per_simulation, per_second, _kappa_arviz(values, post, found))
        if found.reason:
            notes.append(f"kappa of {name} cannot be estimated: {found.reason}")
    if post.independent:
        notes.append("independent draws: kappa is 1; simulations and seconds are those of the whole run")
    elif own:
        notes.append("simulations are those of the chains' own steps; seconds include the pilot and the starts")
    else:
        notes.append("simulations and seconds include the pilot and the starts")
    if int(post.settings.get("thin", 1)) > 1:
        notes.append(f"kappa counts kept draws, each of {post.settings['thin']} steps")
    return Efficiency(rows, size, simulations, seconds, tuple(notes))


def _kappa_arviz(values: Array, post: Posterior, found: Variances) -> float:
    if post.independent or post.weights is not None or values.shape[1] < 4 or not found.v.value > 0:
        return math.nan
    from arviz_stats.base import array_stats

    with np.errstate(divide="ignore", invalid="ignore"):
        return values.size / float(array_stats.ess(values, chain_axis=0, draw_axis=1, method="mean"))


def running_time(
    post: Posterior,
    *,
    mc_error: float | Mapping[str, float],
    processors: int = 1,
    discount: float | str = 1.0,
    functions: Mapping[str, Function] | None = None,
) -> RunningTime:
    """How long this run's algorithm takes to bring the Monte Carlo error of a mean down to `mc_error`.

    Parameters
    ----------
    mc_error
        The standard error wanted of the posterior mean of each function: one number for all, or a dict by name.
        The Monte Carlo variance of docs/theory.md is its square.
    processors
        Of the parallel layouts: (a) one chain whose M draws are made side by side, (b) a chain on each processor.
    discount
        delta: draws after the first at one theta cost 1/delta, so that a step costs c_M = 1 + (M - 1)/delta; or
        "measured", by timing the simulator at draws of the run.
    functions
        As in `efficiency`.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> post = od.pseudo_marginal(model, od.uniform(0.25), draws=1_000, chains=64, seed=1)
    >>> coarse, fine = (od.running_time(post, mc_error=error)["theta"].serial for error in (0.02, 0.01))
    >>> round(fine / coarse, 6)
    4.0
    """
    processors = whole_number("processors", processors, "the number of processors")
    if discount == "measured":
        discount = _measured_discount(post)
    discount = positive("discount", discount, "how much cheaper further draws at one theta are")
    if discount < 1:
        raise ValueError(f"discount must be at least 1, got {discount!r}: further draws never cost more than the first")
    found = efficiency(post, functions)
    if isinstance(mc_error, Mapping) and set(mc_error) != set(found.rows):
        raise ValueError(f"mc_error names {sorted(mc_error)}, the functions are {sorted(found.rows)}")
    errors = dict(mc_error) if isinstance(mc_error, Mapping) else dict.fromkeys(found.rows, mc_error)
    errors = {name: positive("mc_error", value, "the standard error wanted") for name, value in errors.items()}
    draws_each = int(post.settings.get("pseudo_samples", 1))
    thin = int(post.settings.get("thin", 1))
    # Algorithm 1 needs 1/p_acc proposals for a draw.
    per_draw = 1 / post.acceptance_rate if post.independent and post.acceptance_rate > 0 else float(thin)
    cost = 1 + (draws_each - 1) / discount
    # Side by side, every processor pays the set-up of its own share of the M draws.
    cost_within = 1 + (math.ceil(draws_each / processors) - 1) / discount
    rows = {}
    for name, row in found.rows.items():
        draws = row.variances.v_chain.value / errors[name] ** 2
        steps = draws * per_draw
        share = draws / found.draws if found.draws else math.nan
        rows[name] = Time(
            steps, steps * cost, steps * cost_within, steps * cost / processors,
            share * found.simulations, share * found.seconds,
        )  # fmt: skip
    return RunningTime(rows, errors, draws_each, processors, discount, found.notes)


def _measured_discount(post: Posterior) -> float:
    # Imported here because prices are built on this module.
    from onedraw.tuning.prices import measured_discount

    if post.model is None:
        raise ValueError("discount='measured' needs a model to time: this run used an estimator of its own")
    theta = np.column_stack([values.reshape(-1)[-1024:] for values in post.draws.values()]).astype(float)
    theta = theta if post.model.batched else theta[-8:]
    return measured_discount(post.model, theta=np.asfortranarray(theta), seed=post.seed).value
