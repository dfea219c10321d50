"""Calibration of a whole analysis: where true parameters lie among draws, and what that says of the analysis.

A place is made so that it is uniform if the analysis is right, whatever kind of draws there are:

1. *Draws that count as independent.* Of N draws, L are picked at equal distances along the sum of their weights, from
   a uniform on. L is the smallest of the wanted number, the effective draws of every parameter (of the mean and of the
   5 % and 95 % quantiles), and 1/(largest weight), so that no draw is picked twice: this is rejection sampling by
   weight. Chains are thinned to their effective draws in the same way.
2. *Rank and ties.* The rank is the number of these draws below the truth. Among draws that equal it, as of discrete
   parameters, it takes each position with the same probability.
3. *Place.* (rank + V)/(L + 1), V uniform, which is uniform for every L: analyses with few effective draws give coarse
   places, not wrong ones.

Besides the parameters there are two joint quantities. *joint*: the truth's distance from the centre of truth and
draws, in units of their covariance; since truth and draws come in alike, its rank is uniform too. *TARP*: its distance
from a reference point drawn from the prior (Lemos et al. 2023).

The draws of a smoothed estimate, as those of `od.infer`, are independent draws of that estimate. They count as such:
the error of the estimate is part of the analysis, and calibration is there to see it.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.estimators.weights import systematic
from onedraw.results.posterior import HIGHER, Posterior, points
from onedraw.results.uniformity import TESTS, Uniformity, cell_of, chance_band, holm, uniformity

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Levels of intervals and regions in the table."""
ALARM, SURE = 0.05, 0.01
"""Adjusted p-values below which the verdict is no longer green, and below which it may be red."""
SMALL, SMALL_DIFFERENCE = 0.1, 0.05
"""Errors that matter: a bias in posterior sds, a relative width, or a distance of distribution functions."""
MANY_UNANSWERED = 0.05
"""Share of data sets without a posterior from which the verdict is red."""
JOINT, TARP = "joint", "TARP"
HEADLINES = {
    "green": "No sign that the posteriors are wrong",
    "amber": "The posteriors may be slightly wrong",
    "red": "The posteriors are wrong",
}
TAILS: tuple[str | float, ...] = ("mean", 0.05, 0.95)
"""Estimates whose effective draws count."""


class Placed(NamedTuple):
    """One data set: where its true parameters lie in its posterior."""

    places: Array
    """(dim + 2,): of the parameters, joint and TARP; NaN if there are no draws."""
    mean: Array
    sd: Array
    picked: int
    """L, the draws that the ranks are made of."""
    draws: int
    """All draws of the posterior."""


def placed(
    truth: Array, post: Posterior, most: int, reference: Array, scale: Array, rng: np.random.Generator
) -> Placed:
    """The places of the truth (dim,) among at most `most` draws of a posterior.

    `reference` is TARP's point, and `scale` (dim,) puts the parameters into one unit.
    """
    theta = points(post.columns)
    count, dim = theta.shape
    if count == 0:
        return Placed(np.full(dim + 2, np.nan), np.full(dim, np.nan), np.full(dim, np.nan), 0, 0)
    weights = np.full(count, 1 / count) if post.weights is None else post.weights.reshape(-1)
    picked = independent_draws(post, most)
    draws = theta[systematic(weights, picked, rng.random())]
    mean = weights @ theta
    sd = np.sqrt(weights @ (theta - mean) ** 2)
    every = np.concatenate([truth[None], draws])
    from_reference = np.sqrt((((every - reference) / scale) ** 2).sum(axis=1))
    columns = [*every.T, from_centre(truth, draws), from_reference]
    return Placed(np.array([place(column, rng) for column in columns]), mean, sd, picked, count)


def independent_draws(post: Posterior, most: int) -> int:
    """How many draws of a posterior may be picked that count as independent, at most `most`.

    If chains cannot tell their effective draws, it is one, which is always right.
    """
    count = math.prod(post.shape)
    limits = [float(most), float(count)]
    if post.weights is not None:
        limits.append(1 / float(post.weights.max()) * (1 + 1e-12))
    if not (post.independent and post.weights is None):
        found = [post.estimate(name, of).ess for name in post.columns for of in TAILS]
        limits += [1.0 if math.isnan(ess) else ess for ess in found]
    return max(1, int(min(limits)))


def from_centre(truth: Array, draws: Array) -> Array:
    """(1 + L,): distances of the truth, then of the draws, from their common centre, by their common covariance.

    Ties up to rounding, as among fewer draws than parameters, are made exact.
    """
    every = np.concatenate([truth[None], draws])
    away = every - every.mean(axis=0)
    spread = away.std(axis=0)
    away = away / np.where(spread > 0, spread, 1.0)
    inverse = np.linalg.pinv(away.T @ away / len(every), rcond=1e-10, hermitian=True)
    return np.round(np.einsum("ij,jk,ik->i", away, inverse, away), 9)


def place(values: Array, rng: np.random.Generator) -> float:
    """The place of the first of values (1 + L,) among the others.

    >>> 0.5 < place(np.array([2.0, 1.0, 1.5, 3.0]), np.random.default_rng(1)) < 0.75
    True
    """
    truth, draws = values[0], values[1:]
    below, ties = int((draws < truth).sum()), int((draws == truth).sum())
    return (below + int(rng.integers(0, ties + 1)) + rng.random()) / (len(draws) + 1)


class Calibrated(NamedTuple):
    """What calibration says of one quantity: a parameter, "joint" or "TARP"."""

    name: str
    tests: Uniformity
    adjusted: tuple[float, ...]
    """p-values of bias, width, bins and ecdf, adjusted for the number of tests of all quantities."""
    coverage: tuple[float, ...]
    """Share of data sets whose interval or region of each level (`LEVELS`) holds the truth."""
    bias: float = math.nan
    """How far the posterior lies above the truth on average, in its own sds; of parameters only."""
    width: float = math.nan
    """The posterior's sd over the one that it should have; of parameters only."""
    sharpness: float = math.nan
    """The posterior's sd over the prior's, root mean square; of parameters only."""

    @property
    def p(self) -> float:
        """The smallest of the adjusted p-values."""
        return min(self.adjusted)

    @property
    def small(self) -> bool:
        """Whether what is wrong, if anything, is too small to matter."""
        of_moments = math.isnan(self.bias) or max(abs(self.bias), abs(self.width - 1)) <= SMALL
        return of_moments and self.tests.difference <= SMALL_DIFFERENCE

    @property
    def level(self) -> str:
        """ "green", "amber" or "red"."""
        if self.p >= ALARM:
            return "green"
        return "red" if self.p < SURE and not self.small else "amber"

    @property
    def told(self) -> str:
        """What is wrong, in words; "" if nothing is."""
        if self.level == "green":
            return ""
        biased, wide = self.adjusted[0] < ALARM, self.adjusted[1] < ALARM
        found, ninety = [], f"{100 * self.coverage[LEVELS.index(0.9)]:.0f} %"
        if math.isnan(self.bias):
            what = "joint regions" if self.name == JOINT else "regions around random points (TARP)"
            side = "too small" if self.tests.mean > 0 else "too large"
            wrong = side if biased else "not of the right size"
            return f"{what} are {wrong}: 90 % regions contain the truth in {ninety} of the data sets"
        if wide:
            side = "too narrow" if self.width < 1 else "too wide"
            found.append(f"{side} (its sd is {self.width:.2f} times what it should be)")
        if biased:
            side = "high" if self.bias > 0 else "low"
            found.append(f"too {side} (by {abs(self.bias):.2f} of its sds on average)")
        wrong = " and ".join(found) or "of the wrong shape"
        return f"the posterior of {self.name} is {wrong}: 90 % intervals contain the truth in {ninety} of the data sets"


@dataclass(frozen=True, eq=False, repr=False)
class Calibration:
    """How an analysis does on data sets drawn from the prior, whose true parameters are known.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(mu=stats.norm(0, 1)), lambda rng, mu: rng.normal(mu, 1.0), observed=2.0)
    >>> def exact(model, seed):
    ...     return np.random.default_rng(seed).normal(model.observed / 2, 0.5**0.5, size=99)
    >>> found = od.calibrate(model, exact, data_sets=100, seed=1)
    >>> found.level, found.ranks.shape
    ('green', (100, 3))
    >>> 0.6 < found["mu"].sharpness < 0.8
    True
    """

    names: tuple[str, ...]
    places: Array
    """(n, dim + 2): places of the truth in the posteriors, of the parameters, joint and TARP. NaN if there is none."""
    theta: Array
    """(n, dim): the true parameters."""
    mean: Array
    """(n, dim): posterior means."""
    sd: Array
    """(n, dim): posterior sds."""
    picked: Array
    """(n,): draws that each rank is made of."""
    draws: Array
    """(n,): draws of each posterior."""
    prior_sd: Array
    """(dim,)"""
    number_of_ranks: int
    cost: Cost
    """What all analyses and data sets have cost together."""
    seed: int
    settings: Mapping[str, Any]
    """method, budget, data_sets, shared and the method's own arguments."""
    notes: tuple[str, ...] = ()

    @property
    def quantities(self) -> tuple[str, ...]:
        """The parameters, "joint" and "TARP"."""
        return (*self.names, JOINT, TARP)

    @property
    def answered(self) -> Array:
        """(n,): whether a data set has a posterior."""
        return self.picked > 0

    @property
    def number(self) -> int:
        """Data sets that have a posterior."""
        return int(self.answered.sum())

    @property
    def ranks(self) -> Array:
        """(number, dim + 2): ranks from 0 to number_of_ranks - 1, of the data sets that have a posterior.

        If the ranks are made of fewer draws, they are spread over this range at random.
        """
        return cell_of(self.places[self.answered], self.number_of_ranks)

    def held_at(self, column: int) -> Array:
        """(number,): the smallest level of an interval (of a region, for joint and TARP) that holds the truth."""
        places = self.places[self.answered, column]
        return np.abs(2 * places - 1) if column < len(self.names) else places

    @cached_property
    def rows(self) -> tuple[Calibrated, ...]:
        """What is said of each quantity."""
        good = self.answered
        tests = [uniformity(column, self.number_of_ranks) for column in self.places[good].T]
        adjusted = holm(np.array([one.p_values for one in tests]).reshape(-1)).reshape(len(tests), -1)
        sharpness = np.sqrt((self.sd[good] ** 2).mean(axis=0)) / self.prior_sd
        found = []
        for column, (name, one) in enumerate(zip(self.quantities, tests, strict=True)):
            held = self.held_at(column)
            covered = tuple(float((held <= level).mean()) for level in LEVELS)
            own = (-one.mean, 1 / one.spread, float(sharpness[column])) if column < len(self.names) else ()
            found.append(Calibrated(name, one, tuple(map(float, adjusted[column])), covered, *own))
        return tuple(found)

    def __getitem__(self, name: str) -> Calibrated:
        """What is said of a parameter, of "joint" or of "TARP"."""
        if name not in self.quantities:
            raise KeyError(f"there is no {name!r}: there are {', '.join(self.quantities)}")
        return self.rows[self.quantities.index(name)]

    @property
    def unanswered(self) -> int:
        """Data sets whose analysis gave no draws."""
        return len(self.picked) - self.number

    @property
    def of_tests(self) -> str:
        """The level of the worst quantity."""
        levels = {one.level for one in self.rows}
        return next(level for level in ("red", "amber", "green") if level in levels)

    @property
    def level(self) -> str:
        """The verdict: "green", "amber" or "red".

        Green turns into amber if any of the tests has a p-value below .05, adjusted for their number (Holm), and into
        red if it is below .01 and what is wrong is more than small. So a right analysis is not green in at most 5 % of
        cases. Data sets without a posterior give amber, and red if they are more than 5 %.
        """
        if self.of_tests == "red" or self.unanswered > MANY_UNANSWERED * len(self.picked):
            return "red"
        return "amber" if self.unanswered else self.of_tests

    @property
    def findings(self) -> tuple[str, ...]:
        """What is wrong, in words, the worst first."""
        wrong = sorted((one for one in self.rows if one.told), key=lambda one: one.p)
        found = [one.told for one in wrong]
        if self.unanswered:
            found.append(
                f"the analysis of {self.unanswered} of {len(self.picked)} data sets gave no draws: the others were "
                "easier to analyse, and say little about these"
            )
        return tuple(found)

    @property
    def headline(self) -> str:
        """The verdict in words."""
        if self.unanswered and self.of_tests == "green":
            return f"{self.unanswered} of {len(self.picked)} data sets have no posterior"
        return HEADLINES[self.of_tests]

    @property
    def advice(self) -> str:
        """What to do next."""
        if self.level == "green":
            smallest = visible(self.number, len(self.rows))
            return (
                f"With {self.number} data sets, an sd that is {100 * smallest.width:.0f} % too small, or a bias of "
                f"{smallest.bias:.2f} posterior sds, would have been found in 9 of 10 cases. State the number of data "
                "sets with your results."
            )
        if self.unanswered and self.of_tests == "green":
            return "Raise the tolerance or the budget until every data set has a posterior."
        if self.level == "amber":
            return "Raise data_sets and calibrate again: a real error persists, chance does not."
        narrow = any(one.told and one.width < 1 for one in self.rows)
        more = "Raise the budget, or lower the tolerance" if not narrow else "Raise the budget, or use another method"
        return f"{more}, and calibrate again. Until then, do not report these intervals."

    def summary(self) -> str:
        """The verdict and a table, as text."""
        return "\n".join((*self._heading(), "", *self._table(), *(f"note: {note}" for note in self.notes)))

    __str__ = summary

    def __repr__(self) -> str:
        return f"Calibration({self.title}: {self.level})"

    def _heading(self) -> Sequence[str]:
        told = [f"- {one}" for one in self.findings]
        tests = TESTS * len(self.rows)
        rate = f"False alarms: at most {100 * ALARM:.0f} % of correct analyses are not green ({tests} tests)."
        return (f"{self.title}\n{self.level}: {self.headline}.", *told, self.advice, rate)

    @property
    def title(self) -> str:
        """What was calibrated."""
        given = self.settings
        budget = "" if given["budget"] is None else f", {given['budget']:,} simulations each"
        budget = budget.replace("each", "for all together") if given["shared"] else budget
        spent = f"{self.cost.simulations:,} simulations in all"
        return f"calibration of {given['method']} on {len(self.picked)} data sets{budget} ({spent})"

    def _table(self) -> list[str]:
        wide = max(len("by chance"), *map(len, self.quantities))
        head = f"{'':{wide}}  {'p':>7} {'bias':>6} {'width':>6} {'sharpness':>9} "
        lines = [head + " ".join(f"{100 * level:>6.0f} %" for level in LEVELS)]
        for one in self.rows:
            columns = ((one.bias, 6), (one.width, 6), (one.sharpness, 9))
            numbers = f"{shown_p(one.p):>7} " + "".join(f"{_shown(value):>{w}} " for value, w in columns)
            lines.append(f"{one.name:{wide}}  {numbers}" + " ".join(f"{100 * held:>8.1f}" for held in one.coverage))
        bands = [chance_band(self.number, level) for level in LEVELS]
        chance = " ".join(f"{f'{100 * float(low):.0f}–{100 * float(high):.0f}':>8}" for low, high in bands)
        return [*lines, f"{'by chance':{wide}}  {'':>7} {'':>6} {'':>6} {'':>9} {chance}"]

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write the verdict, the table and the pictures as one offline HTML file; returns its path."""
        return cast(Path, HIGHER["calibration"](self, path))


def _shown(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"


def shown_p(p: float) -> str:
    """A p-value as text.

    >>> shown_p(1e-7), shown_p(0.0123), shown_p(0.5)
    ('< 0.001', '0.012', '0.50')
    """
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


class Visible(NamedTuple):
    """The smallest errors that would have been found in 9 of 10 cases."""

    bias: float
    width: float


def visible(number: int, quantities: int) -> Visible:
    """By the tests of bias and width of one parameter, adjusted for the number of all tests.

    >>> found = visible(200, 3)
    >>> round(found.bias, 2), round(found.width, 2)
    (0.29, 0.18)
    """
    from scipy import stats

    tail = ALARM / (TESTS * quantities) / 2
    bias = (stats.norm.isf(tail) + stats.norm.isf(0.1)) / math.sqrt(number)
    # Too narrow by a factor: the variance of z is 1/width^2.
    ratio = stats.chi2.isf(tail, number - 1) / stats.chi2.ppf(0.1, number - 1)
    return Visible(float(bias), float(1 - 1 / math.sqrt(ratio)))
