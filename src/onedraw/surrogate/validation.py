"""How a surrogate does at held-out simulations: the density it gives to their known parameters.

The posterior of a held-out simulation with summaries s has the density

    pi(theta) p(s | theta) / mean_j w_j p(s | theta_j)

at its known parameters; theta_j are draws from all proposals of the run, which cost no simulations, and w_j their
weights. A surrogate that is right about the summaries but has posterior mass in a wrong place is punished by the mean.
"""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.engines.clock import look
from onedraw.surrogate.choice import Form, choose_form
from onedraw.surrogate.likelihood import better
from onedraw.surrogate.success import Success
from onedraw.surrogate.surrogate import Surrogate, fit_surrogate
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
        found = power * self.at_draws + log_weights
        found = np.exp(found - found.max(axis=1, keepdims=True))
        normalised: Array = found / found.sum(axis=1, keepdims=True)
        return normalised

    def log_ratios(self, log_weights: Array, power: float) -> Array:
        """Log of posterior over prior densities (m,) at the known parameters; the prior is that of the weights."""
        logged = power * self.at_draws + log_weights
        top = logged.max(axis=1)
        mean = top + np.log(np.exp(logged - top[:, None]).sum(axis=1)) - _log_sum(log_weights)
        # The log of a sum of few draws is too small by about half of its relative variance; so is that of the weights.
        prior = np.exp(log_weights - _log_sum(log_weights))
        few = 0.5 * (np.square(self.weights(log_weights, power)).sum(axis=1) - float(prior @ prior))
        found: Array = power * self.at_known - mean - few
        return found

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
    columns, of_free = form.columns(training.theta[held_out]), form.columns(free.points)
    for part in folds(held_out, len(training.rows)):
        kept = np.ones(len(training.rows), dtype=bool)
        kept[held_out[part]] = False
        surrogate, some = fit_surrogate(form, training.some(kept), success), training.some(held_out[part])
        uncertain = surrogate.uncertain(of_free)
        for place, given in zip(part, surrogate.at(some.rows, some.places), strict=True):
            look()
            at_known[place] = surrogate.log_likelihood(columns[place : place + 1], given)[0]
            at_draws[place] = surrogate.log_likelihood(of_free, given, uncertain)
    return HeldOut(at_known, at_draws)


def jackknife_error(surrogate: Surrogate, training: Training, observed: Array, draws: Array, groups: int) -> Array:
    """Standard errors (dim,) of posterior means from the simulations' number, by fits without a part of them.

    `draws` (n, dim) of the posterior are reweighted by what each fit says.
    """
    number = np.arange(len(training.rows)) % groups
    others = (_fitted_as(surrogate, surrogate.form, training.some(number != group)) for group in range(groups))
    means = _reweighted_means(surrogate, others, observed, draws)
    found: Array = np.sqrt((groups - 1) / groups * np.square(means - means.mean(axis=0)).sum(axis=0))
    return found


def choice_error(surrogate: Surrogate, training: Training, observed: Array, draws: Array) -> Array:
    """Standard errors (dim,) of posterior means from the form's choice, by forms that halves of the simulations choose.

    If all forms were as good as each other, their means would differ by twice the variance of one.
    """
    # Where simulations fail is the same for all.
    surrogate, support = surrogate._replace(success=None), surrogate.form.coordinates.support
    forms = (choose_form(support, training.some(slice(half, None, 2)), observed, thorough=False) for half in (0, 1))
    others = (_fitted_as(surrogate, form, training) for form in forms if form is not None)
    away = _reweighted_means(surrogate, others, observed, draws) - draws.mean(axis=0)
    found: Array = np.sqrt(0.5 * np.square(away).mean(axis=0)) if len(away) else np.zeros(draws.shape[1])
    return found


def evidence_ratio(surrogate: Surrogate, other: Surrogate, observed: Array, draws: Array) -> float:
    """Log of the evidence of another surrogate over that of one, from draws (n, dim) of the posterior of the latter."""
    log_ratios = other.log_density(draws, observed) - surrogate.log_density(draws, observed)
    return _log_sum(log_ratios) - math.log(len(draws))


def _fitted_as(surrogate: Surrogate, form: Form, training: Training) -> Surrogate:
    """The surrogate of another form or other simulations."""
    return fit_surrogate(form, training, surrogate.success)._replace(power=surrogate.power)


def _reweighted_means(surrogate: Surrogate, others: Iterable[Surrogate], observed: Array, draws: Array) -> Array:
    """Means (m, dim) of draws from the posterior of a surrogate, reweighted by what others say.

    If another says so much else that few draws would keep their weight, they are reweighted by a power of it, and the
    change of the mean is extrapolated in proportion.
    """
    before = surrogate.log_likelihood(surrogate.form.columns(draws), surrogate.at(observed[None])[0])
    means, middle = np.empty((0, draws.shape[1])), draws.mean(axis=0)
    for other in others:
        ratio = other.log_likelihood(other.form.columns(draws), other.at(observed[None])[0]) - before
        power = next_power(ratio, 0.0, min(1.0, FEWEST_LEFT / len(draws)))
        share = np.exp(power * (ratio - ratio.max()))
        means = np.append(means, [middle + (share @ draws / share.sum() - middle) / power], axis=0)
    return means
