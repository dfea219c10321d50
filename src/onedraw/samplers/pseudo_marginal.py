"""Algorithm 2, pseudo-marginal ABC-MCMC.

State (x, T). Propose x' from q, draw an unbiased estimate T' of the unnormalised target at x', and accept when
u <= T' q(x | x') / (T q(x' | x)). The old T is kept, never drawn again: that is what makes the chain exact. T' = 0 is
never accepted. For the ABC average, T = pi(x) (1/M) sum_i K(distance_i).

Before anything is simulated, u says what T' must at least be; where no T' can reach it, the proposal is rejected at
once. The chain is the same, step by step; only its cost falls (docs/theory.md).

Reference: Bornn, Pillai, Smith and Woodard, Algorithm 2; Andrieu and Roberts (2009).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, Unpack

import numpy as np

from onedraw.arguments import checked_pseudo_samples, one_of, true_or_false
from onedraw.engines.arrays import Array, DeviceParts, Formula, namespace
from onedraw.engines.streams import Purpose, Rng
from onedraw.estimators.abc_average import AbcAverage, check_model_and_kernel
from onedraw.estimators.protocol import Evaluation, check_estimator, evaluate
from onedraw.model.kernels import Kernel
from onedraw.model.model import Model
from onedraw.proposals.protocol import Proposed
from onedraw.results.posterior import Posterior
from onedraw.run.chains import recorded_chains, run_chains
from onedraw.run.lockstep import Info
from onedraw.run.options import Options, RunOptions
from onedraw.run.registry import sampler
from onedraw.run.starts import Start, keeps_distances, pseudo_samples_of

Carried = TypeVar("Carried", bound=Any)


class State(NamedTuple):
    """What a block of n chains carries from step to step."""

    theta: Array
    """(n, dim)"""
    log_prior: Array
    """(n,); not kept up where the prior is the proposal, since it cancels."""
    log_estimate: Array
    """Of the accepted theta; carried, never refreshed."""
    distances: Array
    """(n, M) of the accepted pseudo-samples where they are kept, otherwise (n, 0)."""


def least_needed(state: State, proposed: Proposed, log_u: Array) -> Array:
    """The least log estimate at theta' that u would accept; inf where none would."""
    needed = (state.log_estimate + log_u) - proposed.log_ratio
    return needed if proposed.held is None else namespace(needed).where(proposed.held, np.inf, needed)


def wanted(log_needed: Array, early: bool) -> Array:
    """What the estimator is told of the least log estimate: without early rejection only whether one is wanted."""
    return log_needed if early else namespace(log_needed).where(log_needed < np.inf, -np.inf, np.inf)


def accept(log_estimate: Array, log_needed: Array) -> Array:
    """u <= T' q(x | x') / (T q(x' | x)) on the log scale.

    An estimate of zero (-inf) is never accepted: what is needed is above -inf, since u and T are above zero.
    """
    return log_estimate >= log_needed


def _nobody(accepted: Array) -> bool:
    """Whether no chain moves: most steps of few chains, after which nothing need be built anew."""
    return isinstance(accepted, np.ndarray) and not np.count_nonzero(accepted)


def chosen(accepted: Array, new: Array, old: Array) -> Array:
    """The new value of accepted chains and the old of the others, (n,) or (n, k)."""
    if new is old or _nobody(accepted):
        return old
    return namespace(accepted).where(accepted if new.ndim == 1 else accepted[:, None], new, old)


def moved(state: Carried, proposed: Proposed, result: Evaluation, accepted: Array) -> Carried:
    """The state after a step, of any sampler that carries fields of these names: the proposal's if it is accepted."""
    if _nobody(accepted):
        return state
    new = {
        "theta": proposed.theta, "log_prior": proposed.log_prior,
        "log_estimate": result.log_estimate, "distances": result.distances,
    }  # fmt: skip
    kept = [(new[name], old) for name, old in zip(state._fields, state, strict=True)]
    where, column = namespace(accepted).where, accepted[:, None]
    return type(state)(
        *(
            old if one is old or (old.ndim == 2 and not old.shape[1])
            else where(accepted if old.ndim == 1 else column, one, old)
            for one, old in kept
        )
    )  # fmt: skip


def proposals_of(proposed: Proposed) -> int | Array:
    """1 for chains that proposed and 0 for those that were held."""
    return 1 if proposed.held is None else ~proposed.held


def info_of(accepted: Array, proposed: Proposed, result: Evaluation, draws: int) -> Info:
    """What a step reports that asked its estimator for up to `draws` simulations a proposal."""
    proposals = proposals_of(proposed)
    cost = result.cost
    if isinstance(accepted, np.ndarray):
        asked = (len(accepted) if proposed.held is None else int(np.count_nonzero(proposals))) * draws
        cost = cost._replace(skipped=asked - cost.simulations)
    return Info(accepted, proposals, cost, result.failures, result.ignored_rng)


@dataclass(frozen=True, eq=False)
class PseudoMarginal:
    """Algorithm 2 with an estimator and a proposal."""

    estimator: Any
    proposal: Any
    early: bool
    draws: int
    """Simulations of one estimate, for the count of those that were skipped."""
    device_parts = DeviceParts(("estimator", "proposal"), ("early", "draws"))
    formula = Formula("pseudo_marginal")

    def step(self, rng: Rng, state: State) -> tuple[State, Info]:
        """One step of every chain of the block."""
        moves = rng.bulk(Purpose.MOVE)
        proposed = self.proposal.propose(moves, state.theta, state.log_prior)
        log_u = -moves.standard_exponential(len(state.theta))
        log_needed = least_needed(state, proposed, log_u)
        result = evaluate(self.estimator, rng, proposed.theta, wanted(log_needed, self.early), state.theta)
        accepted = accept(result.log_estimate, log_needed)
        return moved(state, proposed, result, accepted), info_of(accepted, proposed, result, self.draws)


def starting_state(start: Start, log_prior: Array) -> State:
    """The state of a block from its starting draws."""
    return State(start.theta, log_prior, start.log_estimate, start.distances)


@sampler(recorded_chains)
def pseudo_marginal(
    model: Model | None = None,
    kernel: Kernel | None = None,
    *,
    draws: int | None = None,
    chains: int | None = None,
    pseudo_samples: int = 1,
    proposal: Any = None,
    start: Any = "rejection",
    budget: int | None = None,
    thin: int = 1,
    early: bool = True,
    keep: str | None = None,
    layout: str = "chains",
    estimator: Any = None,
    **options: Unpack[RunOptions],
) -> Posterior:
    """Draws from pi_K by Algorithm 2: many chains, each of which keeps its estimate until the next acceptance.

    Parameters
    ----------
    model, kernel
        What to simulate, and how distances become weights; or `estimator` instead of both.
    draws
        Draws kept per chain; a chain takes draws x thin steps.
    chains
        Chains run side by side: by default 1024 for batched and compiled simulators, 4 for others.
    pseudo_samples
        M, the pseudo-samples of one estimate. One is within a factor two of the best (docs/theory.md, L5).
    proposal
        `od.random_walk()` (the default), `od.independence()`, `od.lazy(...)`, or a function
        `(rng, theta (n, dim)) -> (theta', log q(theta | theta') - log q(theta' | theta))`.
    start
        "rejection" (exact: no burn-in), points (a dict by name, or an array (dim,) or (chains, dim)), or a Posterior.
    budget
        The largest number of simulations, pilot and starts included. It is never exceeded, and all but less than one
        proposal (times thin) per chain are used. `draws` or `budget` or both: whichever comes first.
    thin
        Keep every `thin`-th step.
    early
        Reject before simulating if no simulation could lead to acceptance. For plain simulators the chain is the same,
        for others equally good; without it the chain costs more.
    keep
        "distances" keeps those of all M pseudo-samples of each draw, for `Posterior.at` (the default for M = 1);
        "draws" keeps the draws alone.
    layout
        How work is divided among workers: "chains" (blocks of chains), or "draws" (the M pseudo-samples of one
        estimate, all of which are then drawn; for plain simulators). The first is never more than
        twice as slow (docs/scaling.md).
    estimator
        Any unbiased non-negative estimator (`od.unbiased`, `od.particle_filter`, or an `Estimator` of your own).
    **options
        As in every function that simulates: see `RunOptions` (seed, workers, executor, engine, timeout, store,
        segment, progress, max_seconds, on_error).

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> post = od.pseudo_marginal(model, od.uniform(0.5), draws=100, chains=64, seed=1)
    >>> post.draws["theta"].shape
    (64, 100)
    """
    checked = Options.checked(options)
    draws_each = checked_pseudo_samples(pseudo_samples)
    early = true_or_false("early", early)
    one_of("layout", layout, ("chains", "draws"))
    if keep is not None:
        one_of("keep", keep, ("draws", "distances"))
    if estimator is None:
        check_model_and_kernel(model, kernel)
        assert model is not None and kernel is not None
        keep = keep or ("distances" if draws_each == 1 else "draws")
        if layout == "draws" and not model.plain:
            raise ValueError("layout='draws' is for plain simulators: others draw their pseudo-samples together anyway")
        estimator = AbcAverage(
            model, kernel, draws_each, on_error=checked.on_error, keep_distances=keep == "distances", early=early
        )
    elif layout != "chains":
        raise ValueError(f"layout = {layout!r} needs a model and a kernel: an estimator of your own draws as it likes")
    elif model is not None or kernel is not None or draws_each != 1:
        raise ValueError("give a model and a kernel (with pseudo_samples), or an estimator, not both")
    else:
        check_estimator(estimator)
        draws_each = pseudo_samples_of(estimator)
        keep = "distances" if keeps_distances(estimator) else "draws"
    return run_chains(
        "pseudo_marginal", checked, estimator,
        lambda ready, proposal: PseudoMarginal(ready, proposal, early, draws_each), starting_state,
        worst=getattr(estimator, "worst", draws_each),
        arguments={"pseudo_samples": draws_each, "early": early, "keep": keep}, draws=draws, budget=budget,
        chains=chains, thin=thin, start=start, proposal=proposal, layout=layout,
    )  # fmt: skip
