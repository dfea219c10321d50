"""A surrogate for the likelihood: the law of the summaries given the parameters, one summary after another.

    p(s | theta) = prod_k p(s_k | s_<k, theta),

each factor with a mean and a log scale that are linear in features of the parameters,

    s_k = phi(theta) b_k + sum_{l<k} s_l (psi(theta) c_kl) + exp(chi(theta) g_k) e_k.

With normal e_k the summaries are jointly normal given the parameters, with a mean and a covariance that depend on them.
Means are fitted by penalised weighted least squares, log scales by Fisher scoring, in turn. The fit does not depend on
the law of the parameters, so that simulations of all stages count without weights.

Reference: Papamakarios, Sterratt and Murray (2019) for the sequential use of a learnt likelihood; Pourahmadi (1999) for
the autoregressive form of a covariance.
"""

import math
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.engines.clock import look
from onedraw.surrogate.features import Sets

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
ITERATIONS, STEPS = 3, 3
"""Fits of the mean, and steps of the log scale before each."""
LARGEST_STEP = 1.0
"""Of a log scale."""
LARGEST_SQUARE = 10.0
"""Squares of standardised residuals beyond this count as this: a scale that varies does not follow outliers."""
LARGEST_LEVERAGE = 0.95
"""Of a simulation in its own fit, so that its residual without it stays finite."""
LEAST_GAIN = 1e-3
"""In mean log score: less is no reason to change anything."""
ROOM = 4.0
"""Range of log scales around their mean, in their standard deviations."""


ALL = 10**6
"""More summaries than there are."""


class Terms(NamedTuple):
    """Which sets of features a factor has, by name (`Features.sets`), and the penalty on its coefficients."""

    mean: str = "1"
    earlier: str = "0"
    """What multiplies the earlier summaries; "" leaves them out."""
    scale: str = "0"
    ridge: float = 1.0
    lags: int = ALL
    """How many of the earlier summaries count, the latest; a time series depends on few."""

    def begin(self, k: int) -> int:
        """The first of the earlier summaries that counts for summary k; k if none does."""
        return max(0, k - self.lags) if self.earlier else k


class Factor(NamedTuple):
    """The law of one standardised summary given the parameters and the earlier ones."""

    mean: Array
    """(p,) coefficients of all features; zero for those that are not used."""
    earlier: Array
    """(k, p)"""
    scale: Array
    """(p,)"""
    low: float
    high: float
    """Range of the log scale."""


class Fit(NamedTuple):
    """A factor, and what it says of each simulation if that is left out."""

    factor: Factor
    residuals: Array
    """(n,) standardised."""
    scores: Array
    """(n,) log densities."""


class MeanFit(NamedTuple):
    """Coefficients of a mean, residuals, and how far each fitted value follows its own datum."""

    coefficients: Array
    residuals: Array
    leverage: Array


def design(columns: Array, rows: Array, k: int, terms: Terms, sets: Sets) -> Array:
    """Columns (n, q) of the regression of summary k on features (n, p) and on the earlier summaries."""
    own, begin = columns[:, sets[terms.mean]], terms.begin(k)
    if begin == k:
        return own
    multiplied = columns[:, sets[terms.earlier]]
    products = (rows[:, begin:k, None] * multiplied[:, None, :]).reshape(len(rows), -1)
    return np.concatenate([own, products], axis=1)


def fit_factor(columns: Array, rows: Array, weights: Array, k: int, terms: Terms, sets: Sets) -> Fit:
    """The factor of summary k, from features (n, p) and standardised summaries (n, s) of simulations with weights."""
    return _left_out(*_fitted(columns, rows, weights, k, terms, sets, leverage=True), weights)


def only_factor(columns: Array, rows: Array, weights: Array, k: int, terms: Terms, sets: Sets) -> Factor:
    """The same without what it says of simulations left out."""
    factor, *_ = _fitted(columns, rows, weights, k, terms, sets, leverage=False)
    return factor


class ScaleFit(NamedTuple):
    """The fit of a log scale at features (n, q)."""

    features: Array
    inverse: Array
    """(q, q) of the penalised information."""
    fitted: Array
    """(n,) log scales."""


def _fitted(
    columns: Array, rows: Array, weights: Array, k: int, terms: Terms, sets: Sets, leverage: bool
) -> tuple[Factor, MeanFit, ScaleFit]:
    """The factor with its mean and its scale; whether the leverages of the mean are each simulation's own."""
    look()
    x, y, z = design(columns, rows, k, terms, sets), rows[:, k], columns[:, sets[terms.scale]]
    inverse = np.linalg.inv(2.0 * gram(z, np.sqrt(weights)) + np.diag(penalty(z.shape[1], terms.ridge)))
    scale, constant = np.zeros(z.shape[1]), z.shape[1] == 1
    fit = _fit_mean(x, y, weights, terms.ridge, leverage=constant)
    scale[0] = _log_deviation(_squares(fit), weights)
    log_scale = np.full(len(y), scale[0])
    for iteration in range(1 if constant else ITERATIONS):
        if not constant:
            scale = _fit_scale(z, _squares(fit), weights, scale, inverse, terms.ridge)
            log_scale = _limited(z @ scale, weights)
        last = constant or iteration == ITERATIONS - 1
        fit = _fit_mean(x, y, weights * np.exp(-2.0 * log_scale), terms.ridge, leverage and last)
    factor = _factor(terms, sets, columns.shape[1], k, fit.coefficients, scale, log_scale)
    return factor, fit, ScaleFit(z, inverse, log_scale)


def mean_gain(scores: Array, others: Array, share: Array) -> tuple[float, float]:
    """The mean of scores (n,) less that of others, by weights that sum to 1, and its standard error.

    >>> mean_gain(np.array([1.0, 3.0]), np.array([0.0, 0.0]), np.array([0.5, 0.5]))
    (2.0, 0.7071067811865476)
    """
    gain = scores - others
    mean = float(share @ gain)
    return mean, math.sqrt(float(np.square(share) @ np.square(gain - mean))) if math.isfinite(mean) else math.inf


def better(scores: Array, others: Array, share: Array, errors: float = 0.0) -> bool:
    """Whether scores (n,) are above others on average, by weights that sum to 1 and by this many standard errors."""
    counted = share > 0
    mean, error = mean_gain(scores[counted], others[counted], share[counted])
    return mean > (max(LEAST_GAIN, errors * error) if math.isfinite(mean) else 0.0)


def penalty(size: int, ridge: float) -> Array:
    """On the squares of so many coefficients, the first that of the constant."""
    found = np.full(size, ridge)
    found[0] = 1e-8
    return found


def gram(x: Array, root_weights: Array) -> Array:
    """Sums (q, q) of products of columns (n, q) over simulations with weights, given their roots."""
    weighted = x * root_weights[:, None]
    found: Array = weighted.T @ weighted
    return found


def _fit_mean(x: Array, y: Array, weights: Array, ridge: float, leverage: bool) -> MeanFit:
    root = np.linalg.cholesky(gram(x, np.sqrt(weights)) + np.diag(penalty(x.shape[1], ridge)))
    inverse = np.linalg.inv(root)
    coefficients = inverse.T @ (inverse @ (x.T @ (weights * y)))
    if not leverage:
        # The mean leverage is good enough on the way.
        return MeanFit(coefficients, y - x @ coefficients, np.full(1, min(x.shape[1] / len(y), LARGEST_LEVERAGE)))
    spread = x @ inverse.T
    own = weights * np.einsum("ij,ij->i", spread, spread)
    return MeanFit(coefficients, y - x @ coefficients, np.minimum(own, LARGEST_LEVERAGE))


def _squares(fit: MeanFit) -> Array:
    """Squared residuals whose mean is the variance, in spite of the coefficients that were fitted."""
    found: Array = np.square(fit.residuals) / (1.0 - fit.leverage)
    return found


def _log_deviation(squares: Array, weights: Array) -> float:
    return 0.5 * math.log(max(float(weights @ squares) / float(weights.sum()), 1e-20))


def _fit_scale(z: Array, squares: Array, weights: Array, scale: Array, inverse: Array, ridge: float) -> Array:
    log_scale = z @ scale
    for _ in range(STEPS):
        ratio = np.minimum(squares * np.exp(-2.0 * log_scale), LARGEST_SQUARE)
        gradient = z.T @ (weights * (ratio - 1.0)) - penalty(len(scale), ridge) * scale
        step = inverse @ gradient
        change = z @ step
        length = min(1.0, LARGEST_STEP / (float(np.abs(change).max()) + 1e-12))
        scale, log_scale = scale + length * step, log_scale + length * change
    return scale


def _limited(log_scale: Array, weights: Array) -> Array:
    mean = float(weights @ log_scale) / float(weights.sum())
    room = ROOM * math.sqrt(float(weights @ np.square(log_scale - mean)) / float(weights.sum()))
    return np.clip(log_scale, mean - room, mean + room)


def _factor(terms: Terms, sets: Sets, p: int, k: int, coefficients: Array, scale: Array, log_scale: Array) -> Factor:
    of_mean = sets[terms.mean]
    mean, earlier, of_scale = np.zeros(p), np.zeros((k, p)), np.zeros(p)
    mean[of_mean] = coefficients[: len(of_mean)]
    begin = terms.begin(k)
    if begin < k:
        earlier[begin:, sets[terms.earlier]] = coefficients[len(of_mean) :].reshape(k - begin, -1)
    of_scale[sets[terms.scale]] = scale
    return Factor(mean, earlier, of_scale, float(log_scale.min()), float(log_scale.max()))


def _left_out(factor: Factor, fit: MeanFit, scale: ScaleFit, weights: Array) -> Fit:
    """What the fit without a simulation says of it: exact for the mean, to first order for the log scale."""
    # A constant scale is the mean of all squares, as they are.
    z, log_scale = scale.features, scale.fitted
    most = LARGEST_SQUARE if z.shape[1] > 1 else np.inf
    ratio = np.minimum(_squares(fit) * np.exp(-2.0 * log_scale), most)
    # The information has each simulation twice its weight.
    own = np.minimum(2.0 * weights * np.einsum("ij,ij->i", z, z @ scale.inverse), LARGEST_LEVERAGE)
    without = log_scale - 0.5 * own * (ratio - 1.0) / (1.0 - own)
    # The mean without it is uncertain, too: the variance of what is left out is 1 / (1 - leverage) that of a residual.
    spread = without - 0.5 * np.log1p(-fit.leverage)
    residuals = fit.residuals / (1.0 - fit.leverage) * np.exp(-spread)
    return Fit(factor, residuals, -0.5 * np.square(residuals) - spread - HALF_LOG_2PI)
