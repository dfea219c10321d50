"""Independence proposals: drawn from one distribution whatever theta is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from onedraw.engines.arrays import Array, DeviceParts, Formula, declared
from onedraw.model.prior import Prior
from onedraw.proposals.protocol import Proposed


@dataclass(frozen=True, eq=False)
class Independence:
    """theta' drawn from one distribution whatever theta is; made by `independence`."""

    distribution: Any
    prior: Prior | None = None
    device_parts = DeviceParts(fixed=("distribution", "prior"))

    @property
    def formula(self) -> Formula | None:
        """For compiled loops."""
        prior, distribution = declared(self.prior), declared(self.distribution)
        if prior is None or distribution is None:
            return None
        return Formula("prior" if self.distribution is self.prior else "independence", None, (prior, distribution))

    def resolved(self, prior: Prior, spread: Callable[[], Array]) -> "Independence":
        if self.distribution is None:
            return Independence(prior, prior)
        distribution = self.distribution
        if not isinstance(distribution, Prior):
            if prior.dim != 1:
                raise ValueError(
                    f"independence() needs a distribution of {list(prior.labels)}: give an od.Prior with these names"
                )
            distribution = Prior(**{prior.names[0]: distribution})
        if distribution.labels != prior.labels:
            raise ValueError(
                f"the proposal is a distribution of {list(distribution.labels)}, the model has {list(prior.labels)}"
            )
        return Independence(distribution, prior)

    def propose(self, rng: np.random.Generator, theta: Array, log_prior: Array) -> Proposed:
        assert self.prior is not None
        there = self.distribution.sample(rng, len(theta))
        if self.distribution is self.prior:
            # Densities cancel, so none is computed: the chains' log_prior is not read again.
            return Proposed(there, log_prior, 0.0)
        log_prior_there = self.prior.logpdf(there)
        log_q_ratio = self.distribution.logpdf(theta) - self.distribution.logpdf(there)
        return Proposed(there, log_prior_there, log_prior_there - log_prior + log_q_ratio)

    def described(self) -> dict[str, Any]:
        return {
            "name": "independence",
            "distribution": "prior" if self.distribution is self.prior else repr(self.distribution),
        }


def independence(distribution: Any = None) -> Independence:
    """Proposals drawn from one distribution: the prior by default, an `od.Prior`, or SciPy's for one parameter.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> post = od.pseudo_marginal(model, od.uniform(0.5), draws=100, chains=64, proposal=od.independence(), seed=1)
    >>> post.settings["proposal"]["name"]
    'independence'
    """
    return Independence(distribution)
