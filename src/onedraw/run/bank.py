"""The simulations of `infer` with the proposals they came from, and their weights."""

import math
from typing import NamedTuple

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.model.coordinates import Support
from onedraw.model.prior import Prior
from onedraw.proposals.mixture import Mixture, log_prior_constant, log_weights
from onedraw.results.learnt_likelihood import SimulatedPairs
from onedraw.run.plan import Outcome

DEFENSIVE = 10
"""One proposal of a stage in this many comes from the prior."""


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

    def good(self) -> tuple[Array, Array]:
        """Parameters and summaries of all simulations that did not fail."""
        good = ~np.isnan(self.rows[:, 0])
        # In one layout, whether they come from blocks or from a file: sums depend on it in their last bit.
        return np.ascontiguousarray(self.theta[good]), np.ascontiguousarray(self.rows[good])

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
        theta, rows = self.good()
        failed = np.ascontiguousarray(self.theta[np.isnan(self.rows[:, 0])])
        return SimulatedPairs(
            self.support, self.support.unbounded(theta), rows, self.support.unbounded(failed),
            np.asarray(self.prior.discrete), self.log_weights, self.log_prior, self.of_prior / self.proposals(),
            self.sample,
            lambda rng, n: self.support.unbounded(self.prior.sample(rng, n)),
        )  # fmt: skip

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
