"""Student distributions around draws, as wide as is best: the proposals of importance sampling.

They are made from the nearest draws of the run itself, or from those of another run that is given as a proposal.
"""

import math
from typing import NamedTuple

import numpy as np

from onedraw.arguments import shown
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.estimators.weights import effective, systematic
from onedraw.model.prior import Prior
from onedraw.proposals.mixture import Mixture, local_mixture, log_prior_constant
from onedraw.results.posterior import Posterior, points

FREEDOM = 5
"""Degrees of freedom of the Student distributions: tails that a normal posterior does not outrun."""
COMPONENTS, MOST_COMPONENTS = 16, 200
"""Most Student distributions in the proposal of a round: 16 for one parameter, twice as many for each further one since
each then covers less of the posterior, and 200 at the most."""
NEIGHBOURS = 0.1
"""Share of the near draws that are the neighbours of one of them."""
WIDENINGS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Factors by which the variances of the components may be widened."""
VALIDATION = 1000
"""Draws, about, by which the widening is chosen."""
MOST_NEAR = 10_000.0
"""Most draws, by their effective number, from which a mixture is made."""


class GivenProposal(NamedTuple):
    """A mixture fitted to the draws of another run."""

    mixture: Mixture
    constant: tuple[float, float]
    """Log of what the prior's density integrates to, and its standard error."""
    source: str
    """The draws in words."""


def around(theta: Array, weight: Array, discrete: Array, rng: np.random.Generator) -> tuple[Mixture, Array]:
    """Student distributions around draws (n, dim) picked by weight, with the covariance of neighbours; and which."""
    n, dim = theta.shape
    most = min(COMPONENTS * 2 ** (dim - 1), MOST_COMPONENTS)
    number = int(min(most, max(1, effective(weight) // 2)))
    centres = systematic(weight, number, rng.random())
    count = int(min(n, max(3 * (dim + 1), math.ceil(NEIGHBOURS * n))))
    return local_mixture(theta, weight, centres, count, discrete, FREEDOM, shrink=True), centres


def widened(
    made: tuple[Mixture, ...], theta: Array, weight: Array, log_prior: Array, centres: Array, defensive: float
) -> Mixture:
    """The best of some mixtures with its components widened as the draws say is best.

    A weighted mean of f from proposals q has a variance proportional to the sum over the draws of weight² (f - mean)²
    as that sum is under q, which is the integral of pi² E[K] (f - mean)² / q; draws that stand for pi E[K] estimate it
    by the mean of pi (f - mean)² / q. What is least is wider than the posterior: most simulations miss, also where
    the posterior is. Components' own centres are left out, where each of them is sure to be dense.
    """
    some = np.setdiff1d(np.arange(len(theta)), centres)
    if some.size < 2:
        return made[-1].widened(WIDENINGS[len(WIDENINGS) // 2])
    some = some[:: max(1, some.size // VALIDATION)]
    theta, weight, log_prior = theta[some], weight[some], log_prior[some]
    square = (theta - weight @ theta / weight.sum()) ** 2
    variance = np.maximum(weight @ square / weight.sum(), 1e-300)
    value = weight * (1.0 + (square / variance).mean(axis=1))

    def cost(mixture: Mixture) -> float:
        log_other = math.log1p(-defensive) + mixture.log_density(theta) - log_prior
        return float((value / (defensive + np.exp(np.minimum(log_other, 700.0)))).sum())

    return min((one.widened(factor) for one in made for factor in WIDENINGS), key=cost)


def prior_constant(prior: Prior, seed: int) -> tuple[float, float]:
    """Log of what the prior's density integrates to, and its standard error.

    The bridge to a joint prior begins at a mixture as wide as the prior: one around the posterior hardly overlaps it.
    """
    rng = Rng(seed, Phase.IMPORTANCE, 0, 2)
    theta = prior.sample(rng.bulk(Purpose.PRIOR), VALIDATION)
    made, _ = around(theta, np.ones(VALIDATION), np.asarray(prior.discrete), rng.bulk(Purpose.HANDICAP))
    return log_prior_constant(prior, seed, made)


def check_proposal(post: Posterior, prior: Prior) -> None:
    """A ValueError, before anything is simulated, if no proposal for this prior can be made from the draws."""
    if not isinstance(post, Posterior):
        raise ValueError(
            "proposal must be a Posterior of a run with the same parameters, such as od.infer returns, got "
            f"{shown(post)}"
        )
    if set(post.columns) != set(prior.labels):
        raise ValueError(f"proposal holds draws of {list(post.columns)}, the model has {list(prior.labels)}")
    theta, _ = draws_inside(post, prior)
    if len(theta) < prior.dim + 2:
        raise ValueError(
            f"proposal has {len(theta)} draws inside the prior's support, of {math.prod(post.shape)}: a mixture takes "
            f"at least {prior.dim + 2}; give the Posterior of a longer run, or of one with this prior"
        )


def draws_inside(post: Posterior, prior: Prior) -> tuple[Array, Array]:
    """The draws (n, dim) of another run that have a weight and lie inside this prior's support, and their weights."""
    theta = np.asfortranarray(points({name: post.columns[name] for name in prior.labels}))
    weight = np.ones(len(theta)) if post.weights is None else post.weights.reshape(-1)
    inside = (weight > 0) & (prior.logpdf(theta) > -np.inf)
    return theta[inside], weight[inside]


def given_proposal(post: Posterior, prior: Prior, defensive: float, seed: int) -> GivenProposal:
    """Student distributions around the draws of another run, as wide as is best if these stand for the posterior."""
    rng, constant = Rng(seed, Phase.IMPORTANCE, 0, 3), prior_constant(prior, seed)
    theta, weight = draws_inside(post, prior)
    if len(theta) > MOST_NEAR:
        pick = systematic(weight, int(MOST_NEAR), float(rng.bulk(Purpose.PRIOR).random()))
        theta, weight = theta[pick], np.ones(len(pick))
    made, centres = around(theta, weight, np.asarray(prior.discrete), rng.bulk(Purpose.HANDICAP))
    log_prior = prior.logpdf(np.asfortranarray(theta)) - constant[0]
    best = widened((made,), theta, weight, log_prior, centres, defensive)
    return GivenProposal(best, constant, f"{math.prod(post.shape):,} draws of {post.settings.get('algorithm')}")
