"""The simulations of `infer` with the proposals they came from, and their weights."""

import math
from functools import cache
from typing import NamedTuple

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.model.coordinates import Support
from onedraw.model.first_simulation import LOOKS
from onedraw.model.model import Model
from onedraw.model.prior import Prior
from onedraw.model.simulator import CHUNK_VALUES
from onedraw.proposals.mixture import Mixture, log_prior_constant, log_weights
from onedraw.results.learnt_likelihood import SimulatedPairs, UnweightedPairs
from onedraw.results.posterior import SimulatedData
from onedraw.run.plan import Outcome

DEFENSIVE = 10
"""One proposal of a stage in this many comes from the prior."""
PLAIN_BLOCK, SMALL_STAGE = 32, 100
"""Simulations per block for simulators that are called once per pseudo-sample, and stages with smaller ones."""


def block_size(model: Model) -> int:
    """Simulations per block."""
    return PLAIN_BLOCK if model.block is None else max(1, min(model.block, CHUNK_VALUES // model.recipe.width))


def stage_block(model: Model, size: int) -> int:
    """Simulations per block of a stage of this size: those that are looked at first, if a plain one's stage is small.

    Such a simulator may be slow: many workers share the stage, and a kill loses little.
    """
    return LOOKS if model.block is None and size < SMALL_STAGE else block_size(model)


class Bank(NamedTuple):
    """All simulations of a run, and the proposals they came from."""

    prior: Prior
    support: Support
    theta: Array
    rows: Array
    """Summaries (n, s); NaN if a simulation failed."""
    mixtures: tuple[tuple[int, Mixture], ...] = ()
    """Proposals of the stages, with how many were made from each."""
    of_prior: int = 0
    log_constant: float = 0.0
    """Log of what the prior's density integrates to, if that is not 1."""
    stages: int = 0
    ends: tuple[int, ...] = ()
    """Good simulations at the end of each stage."""
    cost: Cost = Cost()
    """Of everything, checks included."""
    reused: int = 0
    """How many of the simulations are those of earlier runs."""
    earlier: int = 0
    """How many of the mixtures are those of earlier runs, which were not made for these data."""
    more: SimulatedData | None = None
    """Earlier simulations whose proposals are not known; NaN if a simulation failed."""
    focus: Mixture | None = None
    """Where the posterior seems to be, if no proposal was made for these data."""

    def good(self) -> tuple[Array, Array]:
        """Parameters and summaries of all simulations that did not fail."""
        good = ~np.isnan(self.rows[:, 0])
        # In one layout, whether they come from blocks or from a file: sums depend on it in their last bit.
        return np.ascontiguousarray(self.theta[good]), np.ascontiguousarray(self.rows[good])

    def data(self) -> SimulatedData:
        """All of them as arrays, those whose proposals are not known last."""
        parts = [(self.theta, self.rows)] if self.more is None else [(self.theta, self.rows), self.more]
        return SimulatedData.of(*map(np.concatenate, zip(*parts, strict=True)))

    def proposals(self) -> int:
        """How many were made."""
        return self.of_prior + sum(number for number, _ in self.mixtures)

    def log_prior(self, unbounded: Array) -> Array:
        """Log density of the prior in unbounded coordinates."""
        theta = np.asfortranarray(self.support.bounded(unbounded))
        log_density: Array = self.prior.logpdf(theta) + self.support.log_jacobian(unbounded) - self.log_constant
        return log_density

    def log_weights(self, unbounded: Array) -> Array:
        """Log of the prior over the mixture of all proposals, at rows in unbounded coordinates."""
        if not self.mixtures:
            return np.zeros(len(unbounded))
        others = [(number, mixture.log_density(unbounded)) for number, mixture in self.mixtures]
        return log_weights(self.log_prior(unbounded), self.of_prior, others)

    def aimed(self, unbounded: Array, log_weights: Array) -> Array:
        """The share of the proposals, at rows of these log weights, that was made for these data; 1 if none was.

        With a `focus` it is the share that as many draws from it would have. Any function of the parameters would be
        right: simulations are picked by it, and their posteriors have a prior to match.
        """
        if self.focus is not None:
            log_others = self.log_prior(unbounded) - log_weights
            return 1.0 / (1.0 + np.exp(np.clip(log_others - self.focus.log_density(unbounded), -700.0, 700.0)))
        if len(self.mixtures) == self.earlier:
            return np.ones(len(log_weights))
        made = self.proposals()
        others = self.of_prior / made * np.exp(log_weights)
        if self.earlier:
            log_over_prior = log_weights - self.log_prior(unbounded)
            for number, mixture in self.mixtures[: self.earlier]:
                others += number / made * np.exp(mixture.log_density(unbounded) + log_over_prior)
        return np.clip(1.0 - others, 0.0, 1.0)

    def sample(self, rng: np.random.Generator, n: int) -> Array:
        """n draws (n, dim) from the mixture of all proposals inside the prior, in unbounded coordinates."""
        made = self.proposals()
        numbers = [round(n * number / made) for number, _ in self.mixtures]
        parts = [mixture.sample(rng, number) for number, (_, mixture) in zip(numbers, self.mixtures, strict=True)]
        of_prior = max(n - sum(numbers), 1)
        parts.append(self.support.unbounded(self.prior.sample(rng, of_prior)))
        points = np.concatenate(parts)
        return points[self.log_prior(points) > -np.inf]

    def simulations(self) -> SimulatedPairs:
        """As their assessment needs them."""
        (good, rows), failed = self.good(), np.ascontiguousarray(self.theta[np.isnan(self.rows[:, 0])])
        theta = self.support.unbounded(good)
        of_all = cache(lambda: self.log_weights(theta))

        def log_weights(points: Array) -> Array:
            """Those of all simulations are often asked for."""
            return of_all().copy() if np.array_equal(points, theta) else self.log_weights(points)

        return SimulatedPairs(
            self.support, theta, rows, self.support.unbounded(failed),
            np.asarray(self.prior.discrete), log_weights, self.log_prior, self.aimed, self.sample,
            lambda rng, n: self.support.unbounded(self.prior.sample(rng, n)), self._unweighted(),
            self.reused > 0,
        )  # fmt: skip

    def _unweighted(self) -> UnweightedPairs | None:
        if self.more is None:
            return None
        theta, bad = self.support.unbounded(self.more.theta), np.isnan(self.more.x[:, 0])
        return UnweightedPairs(theta[~bad], self.more.x[~bad], theta[bad])

    def for_other_data(self) -> "Bank":
        """The same simulations, of which none was made for the data at hand and all are paid for."""
        number = len(self.rows) + (0 if self.more is None else len(self.more.x))
        return self._replace(cost=Cost(), reused=number, earlier=len(self.mixtures), focus=None)

    def with_cost(self, cost: Cost) -> "Bank":
        """With what else was spent."""
        return self._replace(cost=self.cost.plus(cost))

    def with_stage(self, outcome: Outcome, mixture: Mixture | None, seed: int) -> "Bank":
        """With the simulations of one more stage."""
        made = outcome.cost.proposals
        of_prior = made if mixture is None else math.ceil(made / DEFENSIVE)
        bank = self.with_cost(outcome.cost)._replace(of_prior=self.of_prior + of_prior)
        if made:
            theta, rows = (np.concatenate([getattr(self, name), outcome.arrays[name]]) for name in ("theta", "rows"))
            bank = bank._replace(theta=theta, rows=rows)
        if mixture is not None and made > of_prior:
            if not self.mixtures:
                unbounded = self.support.unbounded
                constant, _ = log_prior_constant(self.prior, seed, mixture, unbounded, self.log_prior)
                bank = bank._replace(log_constant=constant)
            bank = bank._replace(mixtures=(*self.mixtures, (made - of_prior, mixture)))
        good = int(np.count_nonzero(~np.isnan(bank.rows[:, 0])))
        return bank._replace(stages=self.stages + 1, ends=(*self.ends, good) if good else self.ends)
