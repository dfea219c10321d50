"""Algorithm 3, Wilkinson's ABC-MCMC.

Propose theta' from q, draw one pseudo-sample y' at theta', and accept with probability
K(distance') min{1, pi(theta') q(theta | theta') / (pi(theta) q(theta' | theta))}. No estimate is carried: a lucky
one is not remembered, and the chain is never better than the marginal one (docs/theory.md, L6).

Reference: Bornn, Pillai, Smith and Woodard, Algorithm 3; Wilkinson (2013).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack

import numpy as np

from onedraw.arguments import true_or_false
from onedraw.engines.arrays import Array, DeviceParts, Formula, namespace
from onedraw.engines.streams import Purpose, Rng
from onedraw.estimators.abc_average import AbcAverage, check_model_and_kernel
from onedraw.estimators.protocol import evaluate
from onedraw.model.kernels import Kernel
from onedraw.model.model import Model
from onedraw.proposals.protocol import Proposed
from onedraw.results.posterior import Posterior
from onedraw.run.chains import recorded_chains, run_chains
from onedraw.run.lockstep import Info
from onedraw.run.options import Options, RunOptions
from onedraw.run.registry import sampler
from onedraw.run.starts import Start
from onedraw.samplers.pseudo_marginal import accept, info_of, moved, wanted


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
    device_parts = DeviceParts(("estimator", "proposal"), ("early",))
    formula = Formula("wilkinson")

    def step(self, rng: Rng, state: State) -> tuple[State, Info]:
        """One step of every chain of the block."""
        moves = rng.bulk(Purpose.MOVE)
        proposed = self.proposal.propose(moves, state.theta, state.log_prior)
        log_u = -moves.standard_exponential(len(state.theta))
        log_needed = least_needed(proposed, log_u)
        result = evaluate(self.estimator, rng, proposed.theta, wanted(log_needed, self.early), state.theta)
        accepted = accept(result.log_estimate, log_needed)
        return moved(state, proposed, result, accepted), info_of(accepted, proposed, result, 1)


def starting_state(start: Start, log_prior: Array) -> State:
    """The state of a block from its starting draws."""
    return State(start.theta, log_prior, start.distances)


@sampler(recorded_chains)
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
    early: bool = True,
    **options: Unpack[RunOptions],
) -> Posterior:
    """Draws from pi_K by Algorithm 3. The arguments are those of `od.pseudo_marginal`.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> od.wilkinson(model, od.gaussian(0.5), draws=100, chains=64, seed=1).shape
    (64, 100)
    """
    checked = Options.checked(options)
    check_model_and_kernel(model, kernel)
    early = true_or_false("early", early)
    estimator = AbcAverage(model, kernel, 1, on_error=checked.on_error)
    return run_chains(
        "wilkinson", checked, estimator, lambda ready, proposal: Wilkinson(ready, proposal, early), starting_state,
        worst=1, arguments={"pseudo_samples": 1, "early": early}, draws=draws, budget=budget, chains=chains, thin=thin,
        start=start, proposal=proposal,
    )  # fmt: skip
