"""Whether the data can come from the model at all, by an exact test, and which summaries are to blame.

The data are put among n simulations. Under the model, and with simulations from the prior, all n + 1 are exchangeable.
So any statistic that treats them alike has a rank that is uniform, whatever it looks for, and

    p = share of the n + 1 whose statistic is at least that of the data

is a p-value for every n, every model and every dependence between summaries (a conformal p-value). Each of the n + 1 is
compared with the others as if it had been left out:

1. *Marginally*: how far is each summary from the median, in robust standard deviations (heavy tails: their logarithm)?
2. *Given the others*: how far is each summary from what the other summaries predict, by a leave-one-out regression of
   its mean and of its scale?
3. *Jointly*: how far away are its nearest neighbours, relative to how far away theirs are, after whitening?

Each kind of departure is divided by the mean of its largest tenth, and the statistic is the largest of all of them. The
same ranks give p-values for single summaries that allow for their number: the largest departure of each of the n + 1 is
what a single one is compared with (Westfall and Young 1993).

With simulations at posterior draws, which have seen the data, p is conservative: too large on average.

References: Gelman, Meng and Stern (1996) for discrepancies; Vovk, Gammerman and Shafer (2005) for the ranks; Breunig et
al. (2000) for distances relative to those of the neighbours; docs/did_it_work.md.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.spatial.distance import cdist

from onedraw.arguments import seed_or_fresh, shown, whole_number
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.engines.threads import one_blas_thread
from onedraw.failures import FAULTS, told
from onedraw.model.layout import numbers
from onedraw.model.model import Model
from onedraw.model.simulator import JaxSimulator, summarise_observed
from onedraw.results.assessment import spread_of
from onedraw.results.posterior import Posterior

FEWEST = 20
"""Simulations below which nothing is compared."""
MOST, MOST_WORK = 1000, 10**8
"""Simulations that are compared at most, and their number squared times that of the summaries, beyond 100."""
LINEAR, LOCAL, SQUARES = 5, 10, 20
"""Simulations per summary from which a summary is regressed on the others, its scale too, and squares are used."""
HEAVY = 3.5
"""Robust standard deviations beyond which one in twenty lies if a tail is heavy: 2.0 if normal, 3.3 if exponential."""
LARGEST = 10
"""One in this many of the departures of a kind counts as its largest."""
SURE, DOUBTFUL = 0.02, 0.05
"""p-values up to which a misfit is found, and suspected: the one rule for all notes and verdicts."""
ROUNDING = 1e-7
"""Departures from a regression, in standard deviations of the summary, that are rounding errors."""
EQUAL = 1e-9
"""Relative difference up to which statistics and distances are equal: sums over rows depend on their order, so that
equal rows at different places differ in the last digits, and a tie would be broken by them."""
FEWEST_VALUES = 8
"""Numbers that a data set needs for the standard checks."""

Check = Callable[[Any], Any]


class Departure(NamedTuple):
    """How far one summary or check of the data is from the simulations."""

    label: str
    observed: float
    p: float
    """That any summary of a simulation is so far away, in the way in which this one is farthest."""
    away: float
    """Robust standard deviations: from the median of the simulations, or from what the others predict."""
    given_others: bool
    """Which of these."""

    def __str__(self) -> str:
        where = "from what the other summaries predict" if self.given_others else "from the median of the simulations"
        return f"{self.label} = {self.observed:.4g} is {abs(self.away):.2g} standard deviations {where}"


class AmongSimulations(NamedTuple):
    """The data among simulations."""

    p: float
    """Uniform if the simulations are from the prior and the model is right; conservative at posterior draws."""
    number: int
    """Simulations."""
    departures: tuple[Departure, ...]
    """One for each summary and check, in their order."""
    beyond: float = 1.0
    """The largest departure of the data over the largest of any simulation."""

    @property
    def alike(self) -> int:
        """Simulations that depart from the others at least as much as the data do."""
        return round(self.p * (self.number + 1)) - 1

    @property
    def blamed(self) -> tuple[Departure, ...]:
        """The summaries and checks that are too far away by themselves, the farthest first."""
        return tuple(
            sorted((one for one in self.departures if one.p <= DOUBTFUL), key=lambda one: (one.p, -abs(one.away)))
        )

    def words(self) -> str:
        """Which summaries are to blame, in plain words."""
        if self.blamed:
            return "; ".join(map(str, self.blamed[:3]))
        return "no single summary departs, but their combination does"


@dataclass(frozen=True, eq=False)
class Misfit:
    """Whether the data can come from the model, with what speaks against it; printed in plain words."""

    prior: AmongSimulations | None
    """The data among simulations from the prior: could this prior and simulator produce them?"""
    posterior: AmongSimulations | None
    """The data among simulations at posterior draws: do the best parameters reproduce them?"""
    rows: Array | None = None
    """(n, s) summaries and checks of the simulations at posterior draws."""
    observed: Array | None = None
    """(s,) those of the data."""
    labels: tuple[str, ...] = ()
    """Their names."""

    @property
    def p(self) -> float:
        """One p-value for both comparisons (Bonferroni); 1 if there is none."""
        known = [one.p for one in (self.prior, self.posterior) if one is not None]
        return min(1.0, len(known) * min(known)) if known else 1.0

    @property
    def worst(self) -> AmongSimulations | None:
        """The comparison with the smaller p-value."""
        return min(
            (one for one in (self.posterior, self.prior) if one is not None), key=lambda one: one.p, default=None
        )

    def __str__(self) -> str:
        lines = [
            f"{where}: p = {one.p:.2g}, {one.alike} of {one.number} simulations are at least as unusual as the data"
            for where, one in (("Prior predictive", self.prior), ("Posterior predictive", self.posterior))
            if one is not None
        ]
        if self.worst is not None and self.p <= DOUBTFUL:
            lines.append(
                f"The model {'does' if self.p <= SURE else 'may'} not reproduce the data: {self.worst.words()}"
            )
        else:
            few = f"Nothing was compared: fewer than {FEWEST} simulations succeeded."
            lines.append("No misfit found." if lines else few)
        return "\n".join(lines)

    __repr__ = __str__


def compare(rows: Array, observed: Array, labels: list[str] | None = None) -> AmongSimulations | None:
    """The data (s,) among simulations (n, s), failed ones (NaN) left out; None if there are fewer than 20.

    >>> rng = np.random.default_rng(1)
    >>> mean = rng.normal(0, 5, 200)
    >>> rows = np.column_stack([mean, mean + rng.normal(0, 0.1, 200)])
    >>> compare(rows, np.array([0.0, 0.1])).p > 0.05
    True
    >>> found = compare(rows, np.array([0.0, 0.9]), ["mean", "median"])
    >>> round(found.p, 3), [one.label for one in found.blamed]
    (0.005, ['mean', 'median'])
    """
    rows = rows[np.isfinite(rows).all(axis=1)]
    width = rows.shape[1]
    rows = rows[: min(MOST, max(100, math.isqrt(MOST_WORK // max(width, 1))))]
    if len(rows) < FEWEST:
        return None
    labels = [f"summary {k + 1}" for k in range(width)] if labels is None else labels
    with one_blas_thread():
        # The data are the first of all, and are treated as all others are.
        everything = np.concatenate([observed[None], rows])
        scaled = (everything - np.median(everything, axis=0)) / spread_of(everything)
        # Large values on a logarithmic scale, so that none of them decides about a regression.
        tamed = np.arcsinh(scaled)
        heavy = np.quantile(np.abs(scaled), 0.95, axis=0) > HEAVY
        signed = [np.where(heavy, tamed, scaled), *_given_others(tamed)]
        size = np.concatenate([*map(np.abs, signed), _isolation(tamed)], axis=1)
    size /= np.maximum(np.sort(size, axis=0)[-(len(size) // LARGEST) :].mean(axis=0), ROUNDING)
    largest = size.max(axis=1)
    single = size[0, : len(signed) * width].reshape(len(signed), width)
    kind = single.argmax(axis=0)
    departures = []
    for k, label in enumerate(labels):
        column = rows[:, k] if kind[k] == 0 else signed[kind[k]][1:, k]
        value = observed[k] if kind[k] == 0 else signed[kind[k]][0, k]
        away = (value - np.median(column)) / spread_of(column[:, None])[0]
        p = _share_of(largest, single[kind[k], k])
        departures.append(Departure(label, float(observed[k]), p, float(away), bool(kind[k])))
    beyond = float(largest[0] / max(float(largest[1:].max()), ROUNDING))
    return AmongSimulations(_share_of(largest, largest[0]), len(rows), tuple(departures), beyond)


def _share_of(statistics: Array, least: float) -> float:
    """The share that is at least as large, ties counted."""
    return float(np.mean(statistics >= least * (1.0 - EQUAL)))


def _given_others(scaled: Array) -> list[Array]:
    """How far each number is from what the others of its row predict (n, s), as a list of one; of none if n is small.

    Its mean is regressed on the others and, if there are enough rows, on their squares; the logarithm of its distance
    from there on the others again, which gives its scale.
    """
    n, width = scaled.shape
    if width < 2 or n < LINEAR * width:
        return []
    found = np.empty_like(scaled)
    for k in range(width):
        others = np.delete(scaled, k, axis=1)
        linear = np.column_stack([np.ones(n), others])
        both = np.column_stack([linear, np.square(others)]) if n >= SQUARES * width else linear
        away = _left_out(both, scaled[:, k])
        away[np.abs(away) < ROUNDING] = 0.0
        if n >= LOCAL * width and away.any():
            log_size = np.log(np.abs(away) + 0.3 * max(float(np.median(np.abs(away))), ROUNDING))
            away /= np.exp(log_size - _left_out(linear, log_size))
        found[:, k] = away
    return [found]


def _left_out(columns: Array, values: Array) -> Array:
    """What remains of each value after a least-squares fit to all others (n,), by its leverage.

    >>> x, y = np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 1.0, 2.0, 6.0])
    >>> _left_out(np.column_stack([np.ones(4), x]), y).round(6).tolist()  # from lines through the other three
    [2.0, -0.428571, -1.714286, 3.0]
    """
    u, singular, _ = np.linalg.svd(columns, full_matrices=False)
    u = u[:, singular > 1e-9 * singular[0]]
    leverage = np.einsum("ij,ij->i", u, u)
    rest: Array = (values - u @ (u.T @ values)) / np.maximum(1.0 - leverage, 1e-3)
    return rest


def _isolation(scaled: Array) -> Array:
    """How far away the nearest neighbours of each row are, relative to how far away theirs are (n, 1).

    All that are as near as the last of them are neighbours: a choice by place would treat rows differently.
    """
    n, width = scaled.shape
    if width < 2:
        return np.empty((n, 0))
    covariance = np.cov(scaled, rowvar=False)
    covariance = covariance + np.diag(1e-6 * np.diag(covariance) + 1e-12)
    if n < LINEAR * width:
        covariance = np.diag(np.diag(covariance))
    white = scaled @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    number = max(2, math.isqrt(n) // 2)
    apart = cdist(white, white)
    own = np.partition(apart, number, axis=1)[:, number]
    near = apart <= (own * (1.0 + EQUAL) + EQUAL)[:, None]
    np.fill_diagonal(near, False)
    # Equal rows, of which there are many if summaries are counts, are not infinitely isolated from each other.
    floor = 0.1 * float(own.mean()) + 1e-12
    found: Array = ((own + floor) / (near @ own / near.sum(axis=1) + floor))[:, None]
    return found


def standard_checks(observed: Any) -> dict[str, Check]:
    """Extremes, skewness, tails and autocorrelation of a data set of at least 8 numbers, or of each part of a dict.

    >>> list(standard_checks(np.zeros(10)))
    ['minimum', 'maximum', 'skewness', 'tails', 'autocorrelation']
    >>> list(standard_checks({"a": np.zeros((2, 5)), "b": 3.0}))
    ['a: minimum', 'a: maximum', 'a: skewness', 'a: tails']
    """
    if isinstance(observed, Mapping):
        return {
            f"{key}: {name}": _of_part(key, check)
            for key, part in observed.items()
            for name, check in standard_checks(part).items()
        }
    if not isinstance(observed, np.ndarray) or observed.dtype.kind not in "fiub" or observed.size < FEWEST_VALUES:
        return {}
    found: dict[str, Check] = {
        "minimum": np.min, "maximum": np.max, "skewness": lambda data: _moment(data, 3),
        "tails": lambda data: _moment(data, 4),
    }  # fmt: skip
    return {**found, "autocorrelation": autocorrelation} if observed.ndim == 1 else found


def _of_part(key: Any, check: Check) -> Check:
    return lambda data: check(data[key])


def _moment(data: Any, power: int) -> float:
    """Mean of a power of the standardised numbers; 0 if they are all equal."""
    data = np.asarray(data, dtype=float).ravel()
    away = data - data.mean()
    sd = float(away.std())
    return float(np.mean((away / sd) ** power)) if sd > 0 else 0.0


def autocorrelation(data: Any) -> float:
    """Correlation of neighbours in a series; 0 if all its numbers are equal.

    >>> autocorrelation(np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0]))
    -0.8333333333333334
    """
    away = np.asarray(data, dtype=float).ravel()
    away = away - away.mean()
    square = float(away @ away)
    return float(away[1:] @ away[:-1]) / square if square > 0 else 0.0


def checks_of(model: Model, own: Mapping[str, Check] | None) -> dict[str, Check]:
    """The standard checks and the user's own, tried on the data."""
    if own is not None and not isinstance(own, Mapping):
        raise ValueError(f"checks must be a dict of functions of a data set by name, got {shown(own)}")
    checks = {**standard_checks(model.observed), **(own or {})}
    for name, check in checks.items():
        if not callable(check):
            raise ValueError(f"checks[{name!r}] must be a function of a data set, got {shown(check)}")
        try:
            value = numbers(check(model.observed))
        except FAULTS as error:
            raise ValueError(f"checks[{name!r}] failed on the observed data: {told(error)}") from error
        if value.shape not in ((), (1,)) or not np.isfinite(value).all():
            raise ValueError(f"checks[{name!r}] gave {value} on the observed data: it must give one finite number")
    return checks


@dataclass(frozen=True, eq=False)
class Described:
    """A data set as its summaries and checks, one after the other."""

    model: Model
    checks: Mapping[str, Check]

    def __call__(self, data: Any) -> Array:
        given = np.asarray(data) if isinstance(self.model.observed, np.ndarray) else data
        summaries = self.model.recipe.layout.flatten(summarise_observed(self.model.summary, given))
        return np.concatenate([summaries, [float(numbers(check(given)).item()) for check in self.checks.values()]])

    @property
    def labels(self) -> list[str]:
        """A name for each number."""
        return [*self.model.labels(), *self.checks]

    def simulated(self, rng: Rng, theta: Array) -> Array:
        """One data set at each row of theta (n, dim), described (n, s); NaN if its simulation failed."""
        if not isinstance(self.model.simulate, JaxSimulator):
            return self.model.with_summary(self).simulate_rows(rng, theta).rows[:, 0, :]
        # Functions of NumPy cannot be part of a program of JAX.
        raw = self.model.with_summary(None)
        rows = raw.simulate_rows(rng, theta).rows[:, 0, :]
        good = np.isfinite(rows).all(axis=1)
        found = np.full((len(rows), len(self.labels)), np.nan)
        for k in np.flatnonzero(good).tolist():
            found[k] = self(raw.recipe.layout.restore(rows[k]))
        return found


def misfit_of(
    post: Posterior, n: int, prior: int | None, checks: Mapping[str, Check] | None, seed: int | None
) -> Misfit:
    """The data among simulations at posterior draws, and from the prior: see `Posterior.misfit`."""
    n = whole_number("n", n, "the number of simulations at posterior draws", least=FEWEST)
    prior = n if prior is None else whole_number("prior", prior, "the number of simulations from the prior", least=0)
    model = post.model_for("misfit")
    described = Described(model, checks_of(model, checks))
    observed, labels = described(model.observed), described.labels
    theta = post.picked(n, seed)
    seed = seed_or_fresh(post.seed if seed is None else seed)
    rows = described.simulated(Rng(seed, Phase.PREDICT), theta)
    some = _different(np.concatenate([observed[None], rows]))
    rows, observed, labels = rows[:, some], observed[some], [labels[k] for k in some]
    before = kept(post.settings)
    if prior:
        rng = Rng(seed, Phase.PREDICT, step=1)
        draws = np.asfortranarray(model.prior.sample(rng.bulk(Purpose.PRIOR), prior))
        before = compare(described.simulated(rng, draws)[:, some], observed, labels)
    return Misfit(before, compare(rows, observed, labels), rows, observed, tuple(labels))


def _different(rows: Array) -> list[int]:
    """The columns that equal none before them: a check may be one of the summaries."""
    found: list[int] = []
    for k, column in enumerate(rows.T):
        if not any(np.array_equal(column, rows[:, other], equal_nan=True) for other in found):
            found.append(k)
    return found


def packed(found: AmongSimulations | None) -> dict[str, Any]:
    """A comparison as `settings` have it, with the departures that are to blame."""
    if found is None:
        return {}
    return {"p": found.p, "number": found.number, "departures": [one._asdict() for one in found.blamed]}


def kept(settings: Mapping[str, Any]) -> AmongSimulations | None:
    """The comparison with simulations from the prior that a run has made itself, if there is one."""
    found = settings.get("misfit")
    if not found:
        return None
    return AmongSimulations(found["p"], found["number"], tuple(Departure(**one) for one in found["departures"]))
