"""Algorithm 1, generalised rejection ABC.

Repeat: theta' from the prior, M pseudo-samples at theta', u uniform on [0, 1]; accept when
u < (1/M) sum_i K(distance_i). The draws are independent and exactly from pi_K for every kernel K <= 1 and every M.
The acceptance rate does not depend on M, so M > 1 costs M times as much for nothing (docs/theory.md, L1).

Reference: Bornn, Pillai, Smith and Woodard, Algorithm 1; Wilkinson (2013).
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import one_of, optional_whole_number, positive, seed_or_fresh, whole_number
from onedraw.arrays import Array
from onedraw.cost import Cost
from onedraw.engine.blocks import Block, Deadline, cut, in_order
from onedraw.engine.streams import Phase, Purpose, Rng
from onedraw.estimator import AbcAverage, Evaluation, check_model_and_kernel, evaluate
from onedraw.kernels import Kernel
from onedraw.model import Model
from onedraw.posterior import Posterior, Status
from onedraw.progress import Progress
from onedraw.samplers.pilot import learn_distance, refuse_hopeless, warn_ignored_rng
from onedraw.simulator import CHUNK_ROWS, Failure

PLAIN_BLOCK = 64
"""Proposals a block for simulators that are called once a pseudo-sample."""
KEPT_PSEUDO_SAMPLES = 64
"""The largest M for which the distances of all M pseudo-samples are kept unless asked for."""
FAILURES_KEPT = 20


class Accepted(NamedTuple):
    """What one block of proposals yields."""

    theta: Array
    log_estimate: Array
    distances: Array
    evaluation: Evaluation
    near_theta: Array
    """Rejected proposals that came nearest to the data, where they are asked for, with their distances."""
    near_distance: Array


@dataclass(frozen=True, eq=False)
class Proposals:
    """The pure task of rejection: propose, simulate and accept in one block."""

    estimator: Any
    log_bound: float
    seed: int
    phase: int
    neighbours: int = 0
    """How many of the nearest rejected proposals to hand back."""

    def __call__(self, block: Block) -> Accepted:
        rng = Rng(self.seed, self.phase, block.first)
        theta = self.estimator.prior.sample(rng.bulk(Purpose.PRIOR), block.size)
        result = evaluate(self.estimator, rng, theta, None)
        # A uniform is needed only where the estimate is above zero; u < estimate is decided on the log scale.
        hits = np.flatnonzero(result.log_estimate > -np.inf)
        log_u = -rng.bulk(Purpose.ACCEPT).standard_exponential(hits.size)
        chosen = hits[log_u < result.log_estimate[hits] - self.log_bound]
        distances = result.distances[chosen] if result.distances.size else result.distances
        spent = result._replace(log_estimate=np.empty(0), distances=np.empty((0, 0)))
        near = self._nearest_rejected(result.distances, chosen)
        near_distance = result.distances[near, 0] if near.size else np.empty(0)
        return Accepted(theta[chosen], result.log_estimate[chosen], distances, spent, theta[near], near_distance)

    def _nearest_rejected(self, distances: Array, chosen: Array) -> Array:
        if self.neighbours == 0 or distances.size == 0:
            return np.empty(0, dtype=np.intp)
        nearest = distances[:, 0].copy()
        nearest[chosen] = np.inf
        rejected = np.flatnonzero(nearest < np.inf)
        if rejected.size <= self.neighbours:
            return rejected
        return rejected[np.argpartition(nearest[rejected], self.neighbours)[: self.neighbours]]


@dataclass
class Collected:
    """Acceptances of a run of Algorithm 1, in the order of their proposals."""

    theta: Array
    log_estimate: Array
    distances: Array
    accepted: int
    cost: Cost
    failures: tuple[Failure, ...]
    reason: str
    neighbours: Array
    """(k, dim): acceptances beyond `draws`, then the nearest rejected proposals. Given how many were accepted, they
    are independent of the draws above, so that a scale learnt from them leaves those draws exact."""


def collect(
    estimator: Any,
    *,
    seed: int,
    phase: int,
    draws: int | None,
    proposals: int | None,
    block: int,
    deadline: Deadline,
    progress: Progress,
    neighbours: int = 0,
) -> Collected:
    """Run Algorithm 1 until there are `draws` acceptances or `proposals` proposals were made."""
    task = Proposals(estimator, float(estimator.log_bound), seed, phase, neighbours)
    near: list[tuple[Array, Array]] = []
    thetas: list[Array] = []
    log_estimates: list[Array] = []
    distances: list[Array] = []
    failures: list[Failure] = []
    accepted = simulations = setups = failed = made = 0

    def take(block: Block, result: Accepted) -> bool:
        nonlocal accepted, simulations, setups, failed, made
        spent = result.evaluation
        if block.first == 0 and spent.ignored_rng:
            warn_ignored_rng()
        if len(result.theta):
            thetas.append(result.theta)
            log_estimates.append(result.log_estimate)
            distances.append(result.distances)
        if neighbours:
            near.append((result.near_theta, result.near_distance))
            if len(near) > 64:
                near[:] = [_nearest(near, neighbours)]
        failures.extend(spent.failures[: FAILURES_KEPT - len(failures)])
        made += block.size
        accepted += len(result.theta)
        simulations += spent.simulations
        setups += spent.setups
        failed += spent.failed
        refuse_hopeless(simulations, failed, failures, last=made == proposals)
        progress.update(made if draws is None else min(accepted, draws), f"{accepted / made:.3g} accepted")
        return draws is not None and accepted >= draws and made >= draws + neighbours

    reason = in_order(task, cut(proposals, block), take, deadline, progress)
    kept = accepted if draws is None else min(accepted, draws)
    every = np.concatenate(thetas) if thetas else np.empty((0, estimator.prior.dim))
    beyond = every[kept:][:neighbours]
    if len(beyond) < neighbours:
        beyond = np.concatenate([beyond, _nearest(near, neighbours - len(beyond))[0]])
    return Collected(
        every[:kept],
        np.concatenate(log_estimates)[:kept] if thetas else np.empty(0),
        np.concatenate(distances)[:kept] if thetas else np.empty((0, 0)),
        accepted,
        Cost(simulations, setups, 0, failed, made, 0, deadline.seconds()),
        tuple(failures),
        reason,
        beyond,
    )


def _nearest(parts: list[tuple[Array, Array]], count: int) -> tuple[Array, Array]:
    theta = np.concatenate([part[0] for part in parts])
    distance = np.concatenate([part[1] for part in parts])
    order = np.argsort(distance, kind="stable")[:count]
    return theta[order], distance[order]


def block_size(model: Model, pseudo_samples: int) -> int:
    """Proposals a block: a chunk of simulations for batched simulators, few for those called one by one."""
    return max(1, (CHUNK_ROWS if model.batched else PLAIN_BLOCK) // pseudo_samples)


def rejection(
    model: Model,
    kernel: Kernel,
    *,
    draws: int | None = None,
    budget: int | None = None,
    pseudo_samples: int = 1,
    seed: int | None = None,
    on_error: str = "reject",
    max_seconds: float | None = None,
    keep_distances: bool | None = None,
    progress: bool | None = None,
) -> Posterior:
    """Independent draws from pi_K by Algorithm 1.

    Parameters
    ----------
    model, kernel
        What to simulate, and how distances become weights.
    draws
        Stop when this many proposals were accepted.
    budget
        Stop before this many simulations would be passed: floor(budget / M) proposals are made, pilot simulations
        of the distance taken off first. `draws` or `budget` or both: whichever comes first.
    pseudo_samples
        M, the number of pseudo-samples a proposal. The posterior is the same for every M, and 1 is the cheapest.
    seed
        A whole number; drawn and recorded when None. The same seed gives the same bytes.
    on_error
        "reject" counts a failed simulation as a miss (K = 0), "raise" stops at the first.
    max_seconds
        Stop after the block in which this time has passed.
    keep_distances
        Whether the distances of all M pseudo-samples of each draw are kept; by default up to M = 64.
    progress
        Show a bar: True, False, or None for terminals only.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> post = od.rejection(model, od.uniform(0.5), draws=200, seed=1)
    >>> post.draws["theta"].shape
    (1, 200)
    """
    check_model_and_kernel(model, kernel)
    draws = optional_whole_number("draws", draws, "the number of posterior draws")
    budget = optional_whole_number("budget", budget, "the largest number of simulations")
    pseudo_samples = whole_number("pseudo_samples", pseudo_samples, "the number M of pseudo-samples at one theta")
    if draws is None and budget is None:
        raise ValueError("give draws=, budget= or both: one of them must end the run")
    if budget is not None and budget < pseudo_samples:
        raise ValueError(
            f"budget = {budget} does not pay for one proposal of pseudo_samples = {pseudo_samples} simulations"
        )
    if max_seconds is not None:
        max_seconds = positive("max_seconds", max_seconds, "the longest time the run may take")
    one_of("on_error", on_error, ("reject", "raise"))
    seed = seed_or_fresh(seed)
    if keep_distances is None:
        keep_distances = pseudo_samples <= KEPT_PSEUDO_SAMPLES
    deadline = Deadline(max_seconds)
    model, pilot_cost = learn_distance(model, seed, budget, on_error, progress)
    proposals = None if budget is None else (budget - pilot_cost.simulations) // pseudo_samples
    if proposals == 0:
        raise ValueError(
            f"budget = {budget} does not pay for one proposal of pseudo_samples = {pseudo_samples} simulations "
            f"after {pilot_cost.simulations} pilot simulations"
        )
    estimator = AbcAverage(model, kernel, pseudo_samples, on_error=on_error, keep_distances=keep_distances, early=False)
    total, unit = (proposals, "proposals") if draws is None else (draws, "draws")
    found = collect(
        estimator,
        seed=seed,
        phase=Phase.RUN,
        draws=draws,
        proposals=proposals,
        block=block_size(model, pseudo_samples),
        deadline=deadline,
        progress=Progress(progress, "rejection", total, unit),
    )
    cost = pilot_cost.plus(found.cost)._replace(seconds=deadline.seconds())
    made = found.cost.proposals
    rate = found.accepted / made if made else math.nan
    kept = len(found.theta)
    distances = found.distances if kept else np.empty((0, pseudo_samples if keep_distances else 0))
    return Posterior(
        draws={name: column[None, :] for name, column in model.prior.columns(found.theta).items()},
        weights=None,
        distances=_shaped(distances, kept, pseudo_samples) if keep_distances else None,
        acceptance_rate=rate,
        acceptance_rate_se=math.sqrt(rate * (1 - rate) / made) if made else math.nan,
        cost=cost,
        status=_status(found.reason, kept, draws, budget, made),
        seed=seed,
        settings={
            "algorithm": "rejection",
            "kernel": kernel.name,
            "eps": kernel.eps,
            "pseudo_samples": pseudo_samples,
            "draws": draws,
            "budget": budget,
            "on_error": on_error,
            "distance": _distance_setting(model),
        },
        failures=found.failures,
        model=model,
        kernel=kernel,
        independent=True,
        notes=_notes(found, kept, kernel),
    )


def _shaped(distances: Array, kept: int, pseudo_samples: int) -> Array:
    shaped = distances.reshape(1, kept, pseudo_samples)
    return shaped[:, :, 0] if pseudo_samples == 1 else shaped


def _status(reason: str, kept: int, draws: int | None, budget: int | None, made: int) -> Status:
    if reason == "enough" or (reason == "done" and draws is not None and kept == draws):
        return Status("finished", f"finished: {kept:,} draws")
    if reason == "done":
        return Status("budget", f"the budget of {budget:,} simulations is spent: {kept:,} draws")
    if reason == "max_seconds":
        return Status("max_seconds", f"stopped by max_seconds after {made:,} proposals: {kept:,} draws")
    return Status("interrupted", f"interrupted after {made:,} proposals: {kept:,} draws")


def _notes(found: Collected, kept: int, kernel: Kernel) -> tuple[str, ...]:
    notes = []
    if kept == 0:
        notes.append(
            f"nothing was accepted in {found.cost.proposals:,} proposals: raise eps = {kernel.eps:g} or the budget"
        )
    if found.cost.failed:
        notes.append(
            f"{found.cost.failed:,} of {found.cost.simulations:,} simulations failed and count as misses; the first "
            f"failed {found.failures[0]}"
        )
    return tuple(notes)


def _distance_setting(model: Model) -> Any:
    scale = getattr(model.distance, "scale", None)
    name = getattr(model.distance, "__name__", type(model.distance).__name__).lower()
    return name if scale is None else {"name": name, "scale": np.asarray(scale).tolist()}
