"""Algorithm 3, Wilkinson's ABC-MCMC.

Propose theta' from q, draw one pseudo-sample y' at theta', and accept with probability
K(distance') min{1, pi(theta') q(theta | theta') / (pi(theta) q(theta' | theta))}. No estimate is carried: a lucky
one is not remembered, and the chain is never better than the marginal one (docs/theory.md, L6).

Reference: Bornn, Pillai, Smith and Woodard, Algorithm 3; Wilkinson (2013).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from onedraw.engines.arrays import Array, namespace
from onedraw.engines.streams import Purpose, Rng
from onedraw.estimators.average import AbcAverage, check_model_and_kernel, evaluate
from onedraw.model.kernels import Kernel
from onedraw.model.model import Model
from onedraw.proposals.proposals import Proposed
from onedraw.results.posterior import Posterior
from onedraw.run.chains import Request, run_chains
from onedraw.run.lockstep import Info
from onedraw.run.progress import Show
from onedraw.run.starts import Start
from onedraw.samplers.pseudo_marginal import accept, chosen, info_of, wanted


class State(NamedTuple):
    """What a block of n chains carries from step to step."""

    theta: Array
    log_prior: Array
    distances: Array
    """(n, 1) of the accepted pseudo-sample, for smaller tolerances later; no decision depends on it."""


def least_needed(proposed: Proposed, log_u: Array) -> Array:
    """The least log K that u would accept; inf where none would."""
    xp = namespace(log_u)
    needed = log_u - xp.minimum(proposed.log_ratio, 0.0)
    return needed if proposed.held is None else xp.where(proposed.held, np.inf, needed)


@dataclass(frozen=True, eq=False)
class Wilkinson:
    """Algorithm 3 with a proposal; the estimator is the kernel of one pseudo-sample."""

    estimator: AbcAverage
    proposal: Any
    early: bool

    def step(self, rng: Rng, state: State) -> tuple[State, Info]:
        """One step of every chain of the block."""
        moves = rng.bulk(Purpose.MOVE)
        proposed = self.proposal.propose(moves, state.theta, state.log_prior)
        log_u = -moves.standard_exponential(len(state.theta))
        log_needed = least_needed(proposed, log_u)
        result = evaluate(self.estimator, rng, proposed.theta, wanted(log_needed, self.early), state.theta)
        accepted = accept(result.log_estimate, log_needed)
        state = State(
            chosen(accepted, proposed.theta, state.theta),
            chosen(accepted, proposed.log_prior, state.log_prior),
            chosen(accepted, result.distances, state.distances),
        )
        return state, info_of(accepted, proposed, result, 1)


def starting_state(start: Start, log_prior: Array) -> State:
    """The state of a block from its starting draws."""
    return State(start.theta, log_prior, start.distances)


def wilkinson(
    model: Model,
    kernel: Kernel,
    *,
    draws: int | None = None,
    chains: int | None = None,
    proposal: Any = None,
    start: Any = "rejection",
    budget: int | None = None,
    thin: int = 1,
    seed: int | None = None,
    on_error: str = "reject",
    max_seconds: float | None = None,
    early: bool = True,
    workers: int | None = None,
    executor: Any = None,
    engine: str | None = None,
    timeout: float | None = None,
    store: Any = None,
    segment: float = 30.0,
    progress: Show = None,
) -> Posterior:
    """Draws from pi_K by Algorithm 3. The arguments are those of `od.pseudo_marginal`.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> od.wilkinson(model, od.gaussian(0.5), draws=100, chains=64, seed=1).shape
    (64, 100)
    """
    given = locals()
    check_model_and_kernel(model, kernel)
    if not isinstance(early, bool):
        raise ValueError(f"early must be True or False, got {early!r}")
    return run_chains(
        "wilkinson",
        Request.checked(model, given),
        AbcAverage(model, kernel, 1, on_error=on_error),
        lambda ready, walk: Wilkinson(ready, walk, early),
        starting_state,
        worst=1,
        settings={"pseudo_samples": 1, "early": early},
    )
