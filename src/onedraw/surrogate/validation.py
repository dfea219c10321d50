"""How a surrogate does at held-out simulations: the density it gives to their known parameters.

The posterior of a held-out simulation with summaries s has the density

    pi(theta) p(s | theta) / mean_j w_j p(s | theta_j)

at its known parameters; theta_j are draws from all proposals of the run, which cost no simulations, and w_j their
weights. A surrogate that is right about the summaries but has posterior mass in a wrong place is punished by the mean.
"""

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.engines.clock import look
from onedraw.surrogate.choice import Form, choose_form, choose_series
from onedraw.surrogate.likelihood import better
from onedraw.surrogate.success import Success
from onedraw.surrogate.surrogate import Surrogate, fit_surrogate, fit_surrogates
from onedraw.surrogate.tempering import next_power
from onedraw.surrogate.training import Training

POWERS = (1.0, 0.85, 0.7, 0.5)
"""Powers of the likelihood that are tried."""
OF_PRIOR = 0.02
"""Share of the prior in the posteriors by which powers and surrogates are compared."""
FOLDS = ((4000, 1), (800, 2), (0, 4))
"""Simulations from which held-out ones are left out of this many fits, each time a part of them."""
FEWEST_LEFT = 100.0
"""Effective draws that must be left when draws are reweighted."""


class FreeDraws(NamedTuple):
    """Draws from the proposals of a run, with weights that make them draws from the prior."""

    points: Array
    """(n, dim) in unbounded coordinates."""
    log_weights: Array
    log_aimed: Array
    """Log weights that make them draws from the proposals near the posterior."""


class HeldOut(NamedTuple):
    """The known parameters of held-out simulations under a surrogate."""

    at_known: Array
    """(m,) log likelihood at the known parameters."""
    at_draws: Array
    """(m, n) log likelihood at the free draws."""

    def some(self, index: Array) -> "HeldOut":
        """For some of them."""
        return HeldOut(self.at_known[index], self.at_draws[index])

    def weights(self, log_weights: Array, power: float) -> Array:
        """Weights (m, n) of the free draws as draws from the posteriors, summing to 1."""
        found, _ = self._likelihoods(log_weights, power)
        found /= found.sum(axis=1, keepdims=True)
        return found

    def log_ratios(self, log_weights: Array, power: float) -> Array:
        """Log of posterior over prior densities (m,) at the known parameters; the prior is that of the weights."""
        each, top = self._likelihoods(log_weights, power)
        sums = each.sum(axis=1)
        mean = top + np.log(sums) - _log_sum(log_weights)
        # The log of a sum of few draws is too small by about half of its relative variance; so is that of the weights.
        prior = np.exp(log_weights - _log_sum(log_weights))
        few = 0.5 * (np.einsum("ij,ij->i", each, each) / np.square(sums) - float(prior @ prior))
        found: Array = power * self.at_known - mean - few
        return found

    def _likelihoods(self, log_weights: Array, power: float) -> tuple[Array, Array]:
        """Weights (m, n) of the free draws, the largest of each posterior 1, and the logs (m,) of what they lack."""
        logged = power * self.at_draws
        logged += log_weights
        top = logged.max(axis=1)
        logged -= top[:, None]
        return np.exp(logged, out=logged), top

    def bounded_ratios(self, log_weights: Array, power: float) -> Array:
        """The log ratios with a share of the prior in each posterior, so that none dominates their mean."""
        # A ratio beyond the number of draws cannot be told from one at it.
        ratios = np.minimum(self.log_ratios(log_weights, power), math.log(len(log_weights)))
        return np.logaddexp(math.log1p(-OF_PRIOR) + ratios, math.log(OF_PRIOR))


def choose_power(held: HeldOut, log_weights: Array) -> float:
    """The power of the likelihood that does best at held-out simulations.

    Less than 1 if that gains more than a standard error: a power that is too small biases the posterior to the prior.
    """
    share = np.full(len(held.at_known), 1.0 / max(len(held.at_known), 1))
    best, scores = POWERS[0], held.bounded_ratios(log_weights, POWERS[0])
    for power in POWERS[1:]:
        others = held.bounded_ratios(log_weights, power)
        if better(others, scores, share, 1.0):
            best, scores = power, others
    return best


def _log_sum(values: Array) -> float:
    top = float(values.max())
    return top + math.log(float(np.exp(values - top).sum()))


def folds(held_out: Array, n: int) -> Iterator[Array]:
    """Parts of the held-out simulations that are left out together."""
    number = next(count for least, count in FOLDS if n >= least)
    for part in range(number):
        yield np.arange(part, len(held_out), number)


def held_out_likelihoods(
    form: Form, training: Training, held_out: Array, free: FreeDraws, success: Success | None
) -> HeldOut:
    """Log likelihoods at the known parameters and at free draws, by surrogates that have not seen the simulation."""
    at_known, at_draws = np.empty(len(held_out)), np.empty((len(held_out), len(free.points)))
    parts = list(folds(held_out, len(training.rows)))
    kept = np.ones((len(parts), len(training.rows)), dtype=bool)
    for mine, part in zip(kept, parts, strict=True):
        mine[held_out[part]] = False
    for part, surrogate in zip(parts, fit_surrogates(form, training, kept, success), strict=True):
        some = training.some(held_out[part])
        columns = surrogate.form.columns(np.concatenate([free.points, some.theta]))
        there = surrogate.there(columns)
        for own, (place, given) in enumerate(zip(part, surrogate.at(some.rows), strict=True), len(free.points)):
            look()
            found = surrogate.log_likelihood(columns, given, there)
            at_known[place], at_draws[place] = found[own], found[: len(free.points)]
    return HeldOut(at_known, at_draws)


def without_groups(surrogate: Surrogate, training: Training, observed: Array, draws: Array, groups: int) -> Array:
    """How the shares of draws (n, dim) of the posterior change without each group of simulations: (groups, n).

    They are scaled as the jackknife has them: a mean has as its squared error the sum of its squared changes.
    """
    kept = np.arange(len(training.rows)) % groups != np.arange(groups)[:, None]
    others = fit_surrogates(surrogate.form, training, kept, surrogate.success)
    found = _reweighted(surrogate, [one._replace(power=surrogate.power) for one in others], observed, draws)
    changes: Array = math.sqrt((groups - 1) / groups) * (found - found.mean(axis=0))
    return changes


def with_other_forms(surrogate: Surrogate, training: Training, observed: Array, draws: Array, thorough: bool) -> Array:
    """The same (2 or fewer, n) with the forms that halves of the simulations choose.

    What a half chooses differs from what all choose by as much as that does from the truth: the variance of both is
    that of the choice of all. They are chosen as `thorough` as that of the surrogate: what a brief choice leaves out,
    such as laws that are not normal, would count as doubt about the form. The one law of a series is compared with
    forms that have a law for each summary: what is wrong for one is wrong for all.
    """
    # Where simulations fail is the same for all.
    surrogate, support = surrogate._replace(success=None), surrogate.form.coordinates.support
    choose = choose_series if surrogate.form.long else partial(choose_form, series=False)
    halves = (training.counted().some(slice(half, None, 2)) for half in (0, 1))
    forms = (choose(support, half, observed, thorough) for half in halves)
    fitted = (fit_surrogate(form, training, None) for form in forms if form is not None)
    others = (one._replace(power=surrogate.power) for one in fitted)
    found = _reweighted(surrogate, others, observed, draws)
    return found * math.sqrt(1 / max(len(found), 1))


def evidence_ratio(surrogate: Surrogate, other: Surrogate, observed: Array, draws: Array) -> float:
    """Log of the evidence of another surrogate over that of one, from draws (n, dim) of the posterior of the latter."""
    log_ratios = other.log_density(draws, observed) - surrogate.log_density(draws, observed)
    return _log_sum(log_ratios) - math.log(len(draws))


def _reweighted(surrogate: Surrogate, others: Iterable[Surrogate], observed: Array, draws: Array) -> Array:
    """How the shares 1/n of draws from the posterior of a surrogate change if they are reweighted by what others say.

    (m, n). If another says so much else that few draws would keep their weight, they are reweighted by a power of it,
    and the change is extrapolated in proportion.
    """
    columns = surrogate.form.columns(draws)
    before = surrogate.data_log_likelihood(columns, observed)
    changes = np.empty((0, len(draws)))
    for other in others:
        there = columns if other.form is surrogate.form else other.form.columns(draws)
        ratio = other.data_log_likelihood(there, observed) - before
        power = next_power(ratio, 0.0, min(1.0, FEWEST_LEFT / len(draws)))
        share = np.exp(power * (ratio - ratio.max()))
        changes = np.append(changes, [(share / share.sum() - 1 / len(draws)) / power], axis=0)
    return changes
