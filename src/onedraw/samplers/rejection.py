"""Algorithm 1, generalised rejection ABC.

Repeat: theta' from the prior, M pseudo-samples at theta', u uniform on [0, 1]; accept when
u < (1/M) sum_i K(distance_i). The draws are independent and exactly from pi_K for every kernel K <= 1 and every M.
The acceptance rate does not depend on M, so M > 1 costs M times as much for nothing (docs/theory.md, L1).

Reference: Bornn, Pillai, Smith and Woodard, Algorithm 1; Wilkinson (2013).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import one_of, whole_number
from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.estimators.average import AbcAverage, Evaluation, check_model_and_kernel, evaluate
from onedraw.model.kernels import Kernel
from onedraw.model.model import Model
from onedraw.model.simulator import Failure
from onedraw.results.posterior import Posterior, Simulations, Status
from onedraw.run.blocks import Block, Deadline, cut, in_order
from onedraw.run.options import Shared, check_pays, checked_ends, ended, on_engine, opened
from onedraw.run.pilot import learn_distance, refuse_hopeless, warn_ignored_rng
from onedraw.run.progress import Progress, Show
from onedraw.run.record import Record
from onedraw.run.saving import Saver
from onedraw.run.signals import Stopped
from onedraw.run.specification import distance_setting, in_time, specify

PLAIN_BLOCK = 16
"""Proposals a block for simulators that are called once a pseudo-sample."""
KEPT_PSEUDO_SAMPLES = 64
"""The largest M for which the distances of all M pseudo-samples are kept unless asked for."""
FAILURES_KEPT = 20
SURPLUS_KEPT = 1000
"""Acceptances beyond those asked for that are handed over with the neighbours."""


class Accepted(NamedTuple):
    """What one block of proposals yields."""

    theta: Array
    log_estimate: Array
    distances: Array
    evaluation: Evaluation
    near_theta: Array
    """Rejected proposals that came nearest to the data, where they are asked for, with their distances."""
    near_distance: Array
    bank: dict[str, Array]
    """Theta, summaries and distances of all proposals, where they are kept."""
    rows: Array | None = None
    """Summaries (n, M, s) of those accepted, where they are kept."""

    @property
    def simulations(self) -> int:
        """What the block cost."""
        return self.evaluation.simulations


@dataclass(frozen=True, eq=False)
class Proposals:
    """The pure task of rejection: propose, simulate and accept in one block."""

    estimator: Any
    log_bound: float
    seed: int
    phase: int
    neighbours: int = 0
    """How many of the nearest rejected proposals to hand back."""
    keep: str = "all"
    """Whose summaries are handed back, where the estimator has them."""

    def __call__(self, block: Block) -> Accepted:
        engine = getattr(self.estimator, "engine", None)
        if engine is not None:
            from onedraw.engines import jax as device

            found: Accepted = device.proposals(self, engine, block)
            return found
        rng = Rng(self.seed, self.phase, block.first)
        theta = self.estimator.prior.sample(rng.bulk(Purpose.PRIOR), block.size)
        result = evaluate(self.estimator, rng, theta, None)
        chosen = choose(rng, result.log_estimate, self.log_bound)
        distances = result.distances[chosen] if result.distances.size else result.distances
        bank = {}
        if result.rows is not None and self.keep == "all":
            bank = {"theta": theta, "rows": result.rows, "distances": result.distances}
        spent = result._replace(log_estimate=np.empty(0), distances=np.empty((0, 0)), rows=None)
        near = self._nearest_rejected(result.distances, chosen)
        near_distance = result.distances[near, 0] if near.size else np.empty(0)
        rows = result.rows[chosen] if result.rows is not None and self.keep == "summaries" else None
        return Accepted(
            theta[chosen], result.log_estimate[chosen], distances, spent, theta[near], near_distance, bank, rows
        )

    def _nearest_rejected(self, distances: Array, chosen: Array) -> Array:
        if self.neighbours == 0 or distances.size == 0:
            return np.empty(0, dtype=np.intp)
        nearest = distances[:, 0].copy()
        nearest[chosen] = np.inf
        rejected = np.flatnonzero(nearest < np.inf)
        if rejected.size <= self.neighbours:
            return rejected
        return rejected[np.argpartition(nearest[rejected], self.neighbours)[: self.neighbours]]


def choose(rng: Rng, log_estimate: Array, log_bound: float) -> Array:
    """Which proposals of a block are accepted: u < estimate, decided on the log scale."""
    # A uniform is needed only where the estimate is above zero.
    hits = np.flatnonzero(log_estimate > -np.inf)
    if hits.size == 0:
        return hits
    log_u = -rng.bulk(Purpose.ACCEPT).standard_exponential(hits.size)
    return hits[passes(log_u, log_estimate[hits], log_bound)]


def passes(log_u: Array, log_estimate: Array, log_bound: float) -> Array:
    """u < estimate / bound on the log scale; an estimate of zero never passes."""
    passed: Array = log_u < log_estimate - log_bound
    return passed


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
    rows: Array | None = None
    """Summaries of the acceptances, where they are kept."""


class Basket:
    """Acceptances as they come in, block after block, and what of them is not saved yet."""

    def __init__(self, neighbours: int) -> None:
        self.neighbours = neighbours
        self.theta: list[Array] = []
        self.log_estimate: list[Array] = []
        self.distances: list[Array] = []
        self.near: list[tuple[Array, Array]] = []
        self.rows: list[Array] = []
        self.failures: list[Failure] = []
        self.bank: list[dict[str, Array]] = []
        self.sizes: list[int] = []
        """Proposals in each block whose simulations are in the bank, which name the streams used to accept."""
        self.accepted = self.simulations = self.setups = self.failed = self.made = 0
        self.unsaved = 0
        """Bytes that are not saved yet."""
        self._saved = self._saved_failures = self._saved_made = 0

    def add(self, block: Block, result: Accepted) -> None:
        """Take in the result of one block."""
        spent = result.evaluation
        if len(result.theta):
            self.theta.append(result.theta)
            self.log_estimate.append(result.log_estimate)
            self.distances.append(result.distances)
            if result.rows is not None:
                self.rows.append(result.rows)
        if self.neighbours:
            self.near.append((result.near_theta, result.near_distance))
            if len(self.near) > 64:
                self.near[:] = [_nearest(self.near, self.neighbours)]
        if result.bank:
            self.bank.append(result.bank)
            self.sizes.append(block.size)
        self.failures.extend(spent.failures[: FAILURES_KEPT - len(self.failures)])
        self.made += block.size
        self.unsaved += result.theta.nbytes + result.distances.nbytes
        self.unsaved += sum(part.nbytes for part in result.bank.values())
        self.accepted += len(result.theta)
        self.simulations += spent.simulations
        self.setups += spent.setups
        self.failed += spent.failed

    def save(self, saver: Saver, name: str) -> None:
        """Put what is new into the file."""
        if self.made == self._saved_made:
            return
        bank: dict[str, Array] = {}
        if self.bank:
            bank = {key: np.concatenate([some[key] for some in self.bank]) for key in self.bank[0]}
            bank["sizes"] = np.array(self.sizes, dtype=np.int64)
        new = slice(self._saved, None)
        arrays: dict[str, Array] = {}
        if self.theta[new]:
            arrays = {"theta": np.concatenate(self.theta[new]), "distances": np.concatenate(self.distances[new])}
            if self.neighbours:
                arrays["log_estimate"] = np.concatenate(self.log_estimate[new])
            if self.rows:
                arrays["rows"] = np.concatenate(self.rows[new])
        if self.neighbours:
            self.near[:] = [_nearest(self.near, self.neighbours)]
            arrays["near_theta"], arrays["near_distance"] = self.near[0]
        counts = {key: getattr(self, key) for key in COUNTS}
        failures = [one._asdict() for one in self.failures[self._saved_failures :]]
        with_bank = {f"{name}.bank": bank} if bank else {}
        saver.put(f"{name}.segment", {**counts, "failures": failures}, arrays, with_bank)
        self._mark_saved()

    def load(self, records: Iterable[Record]) -> None:
        """Take in what earlier sessions saved."""
        for record in records:
            arrays = record.arrays
            if "theta" in arrays:
                self.theta.append(arrays["theta"])
                self.distances.append(arrays["distances"])
                self.log_estimate.append(arrays.get("log_estimate", np.zeros(len(arrays["theta"]))))
                if "rows" in arrays:
                    self.rows.append(arrays["rows"])
            if self.neighbours:
                self.near[:] = [(arrays["near_theta"], arrays["near_distance"])]
            self.failures.extend(Failure(**one) for one in record.scalars["failures"])
            for key in COUNTS:
                setattr(self, key, int(record.scalars[key]))
        self._mark_saved()

    def _mark_saved(self) -> None:
        self._saved, self._saved_failures, self._saved_made = len(self.theta), len(self.failures), self.made
        self.bank, self.sizes, self.unsaved = [], [], 0

    def collected(self, draws: int | None, dim: int, reason: str, seconds: float) -> Collected:
        """All that was taken in, cut to `draws`."""
        kept = self.accepted if draws is None else min(self.accepted, draws)
        every = np.concatenate(self.theta) if self.theta else np.empty((0, dim))
        beyond = every[kept:][:SURPLUS_KEPT] if self.neighbours else every[kept:kept]
        if len(beyond) < self.neighbours and self.near:
            beyond = np.concatenate([beyond, _nearest(self.near, self.neighbours - len(beyond))[0]])
        return Collected(
            every[:kept],
            np.concatenate(self.log_estimate)[:kept] if self.theta else np.empty(0),
            np.concatenate(self.distances)[:kept] if self.theta else np.empty((0, 0)),
            self.accepted,
            Cost(self.simulations, self.setups, 0, self.failed, self.made, 0, seconds),
            tuple(self.failures),
            reason,
            beyond,
            np.concatenate(self.rows)[:kept] if self.rows else None,
        )


COUNTS = ("accepted", "simulations", "setups", "failed", "made")


def collect(
    estimator: Any,
    *,
    seed: int,
    phase: int,
    draws: int | None,
    proposals: int | None,
    block: int | Callable[[int, int], int],
    deadline: Deadline,
    progress: Progress,
    neighbours: int = 0,
    saver: Saver | None = None,
    keep: str = "all",
) -> Collected:
    """Run Algorithm 1 until there are `draws` acceptances or `proposals` proposals were made.

    `block` is the number of proposals in a block, or a function of those made and accepted before, which names it.
    """
    task = Proposals(estimator, float(estimator.log_bound), seed, phase, neighbours, keep)
    saver = Saver() if saver is None else saver
    name = Phase(phase).name.lower()
    basket = Basket(neighbours)
    basket.load(saver.records(f"{name}.segment"))
    refuse_hopeless(basket.simulations, basket.failed, basket.failures, last=basket.made == proposals)

    def enough() -> bool:
        return draws is not None and basket.accepted >= draws and basket.made >= draws + neighbours

    def take(block: Block, result: Accepted) -> bool:
        if block.first == 0 and result.evaluation.ignored_rng:
            warn_ignored_rng()
        basket.add(block, result)
        refuse_hopeless(basket.simulations, basket.failed, basket.failures, last=basket.made == proposals)
        done = basket.made if draws is None else min(basket.accepted, draws)
        progress.update(done, f"{basket.accepted / basket.made:.3g} accepted", basket.simulations)
        if saver.store is not None and saver.due(basket.unsaved):
            basket.save(saver, name)
        return enough()

    reason = "enough"
    try:
        if not enough():
            blocks = _as_it_goes(basket, proposals, block) if callable(block) else cut(proposals, block, basket.made)
            reason = in_order(task, blocks, take, deadline, progress)
    finally:
        basket.save(saver, name)
    return basket.collected(draws, estimator.prior.dim, reason, deadline.seconds())


def _as_it_goes(basket: Basket, proposals: int | None, size: Callable[[int, int], int]) -> Iterator[Block]:
    """Blocks on a device, each asked for when those before it are in the basket."""
    while proposals is None or basket.made < proposals:
        block = size(basket.made, basket.accepted)
        yield Block(basket.made, block if proposals is None else min(block, proposals - basket.made))


def _nearest(parts: list[tuple[Array, Array]], count: int) -> tuple[Array, Array]:
    theta = np.concatenate([part[0] for part in parts])
    distance = np.concatenate([part[1] for part in parts])
    order = np.argsort(distance, kind="stable")[:count]
    return theta[order], distance[order]


def block_size(model: Model, pseudo_samples: int) -> int:
    """Proposals a block: a chunk of simulations for batched simulators, few for those called one by one."""
    return max(1, (model.block or PLAIN_BLOCK) // pseudo_samples)


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
    keep: str = "draws",
    workers: int | None = None,
    executor: Any = None,
    engine: str | None = None,
    timeout: float | None = None,
    store: Any = None,
    segment: float = 30.0,
    progress: Show = None,
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
    keep
        "summaries" keeps those of the draws, for `post.adjust()`; "all" keeps theta, summaries and distances of every
        proposal in the file, for `od.reuse`.
    workers
        Simulate in so many processes on this machine (threads for compiled simulators). The result is the same, byte
        for byte.
    executor
        Simulate on this `concurrent.futures.Executor` or `dask.distributed.Client` instead (docs/scaling.md).
    engine
        What takes the steps (docs/engines.md); by default what the simulator is for. "jax" is for `od.jax_simulator`,
        with double precision on a CPU and single on a GPU ("jax:float64" or "jax:float32" to choose); "numba" makes
        sure that the simulator is an `od.compiled` one; "numpy" is for all others.
    timeout
        Seconds that one simulation of a plain simulator or an `od.command` may take. One that takes longer is killed
        and counts as failed, so the posterior is that of a model that always ends in time.
    store
        The file of this run. What is done is saved there, and the same call goes on where an earlier one ended
        (docs/store.md). None: in memory only.
    segment
        Seconds between saves; without influence on the result.
    progress
        Show how far the run is: True, False, None (a bar in terminals, a line now and then in logs), or a function
        that is called with an `onedraw.run.progress.Tick`.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> post = od.rejection(model, od.uniform(0.5), draws=200, seed=1)
    >>> post.draws["theta"].shape
    (1, 200)
    """
    shared = Shared.checked(locals())
    check_model_and_kernel(model, kernel)
    draws, budget = checked_ends(draws, budget, "the number of posterior draws")
    pseudo_samples = whole_number("pseudo_samples", pseudo_samples, "the number M of pseudo-samples at one theta")
    check_pays(budget, pseudo_samples)
    if keep_distances is None:
        keep_distances = pseudo_samples <= KEPT_PSEUDO_SAMPLES
    if one_of("keep", keep, ("draws", "summaries", "all")) == "all" and store is None:
        raise ValueError("keep='all' keeps every simulation in the run's file: say which with store='run.db'")
    estimator = AbcAverage(
        model.limited(timeout), kernel, pseudo_samples, on_error=on_error,
        keep_distances=keep_distances or keep != "draws", early=False, keep_rows=keep != "draws",
    )  # fmt: skip
    estimator = on_engine(estimator, shared)
    arguments = {
        "pseudo_samples": pseudo_samples, "draws": draws, "budget": budget, "keep_distances": keep_distances,
        "keep": keep, "block": block_size(model, pseudo_samples), **shared.identity(estimator),
    }  # fmt: skip
    return opened(
        shared,
        lambda: specify("rejection", estimator, arguments),
        lambda saver, deadline: _run(estimator, arguments, shared, saver, deadline),
        threads=model.compiled,
    )


def _run(
    estimator: AbcAverage, arguments: Mapping[str, Any], shared: Shared, saver: Saver, deadline: Deadline
) -> Posterior:
    model, kernel, pseudo_samples = estimator.model, estimator.kernel, estimator.pseudo_samples
    draws, budget, pilot_cost = arguments["draws"], arguments["budget"], Cost()
    try:
        model, pilot_cost = learn_distance(model, shared.seed, budget, shared.on_error, shared.progress, saver)
    except Stopped as stopped:
        found = Basket(0).collected(draws, model.prior.dim, stopped.reason, 0.0)
    else:
        check_pays(budget, pseudo_samples, pilot_cost.simulations)
        proposals = None if budget is None else (budget - pilot_cost.simulations) // pseudo_samples
        if saver.last("ready") is None:
            saver.put("ready", {"distance": distance_setting(model)})
        total, unit = (proposals, "proposals") if draws is None else (draws, "draws")
        found = collect(
            estimator.with_model(model),
            seed=shared.seed,
            phase=Phase.RUN,
            draws=draws,
            proposals=proposals,
            block=arguments["block"],
            deadline=deadline,
            progress=Progress(shared.progress, "rejection", total, unit),
            saver=saver,
            keep=arguments["keep"],
        )
    cost = pilot_cost.plus(found.cost)._replace(seconds=saver.seconds())
    kept = len(found.theta)
    finished = found.reason == "enough" or (found.reason == "done" and kept == draws)
    reason = "finished" if finished else {"done": "budget"}.get(found.reason, found.reason)
    status = ended(reason, budget, f"{kept:,} draws", f" after {found.cost.proposals:,} proposals")
    saver.finish(status.reason, status.message)
    named = {**arguments, "kernel": kernel.name, "eps": kernel.eps}
    return posterior_of(found, model.prior, named, cost, status, kernel, distance_setting(model), model, saver.notes)


def posterior_of(
    found: Collected,
    prior: Any,
    arguments: Mapping[str, Any],
    cost: Cost,
    status: Status,
    kernel: Kernel | None,
    distance: Any,
    model: Model | None,
    notes: tuple[str, ...],
) -> Posterior:
    """The Posterior of a run of Algorithm 1; of `prior` only the columns' names and types are used."""
    made, kept = found.cost.proposals, len(found.theta)
    pseudo_samples, keep_distances = arguments["pseudo_samples"], arguments["keep_distances"]
    rate = found.accepted / made if made else math.nan
    distances = found.distances if kept else np.empty((0, pseudo_samples if keep_distances else 0))
    return Posterior(
        draws={name: column[None, :] for name, column in prior.columns(found.theta).items()},
        weights=None,
        distances=_shaped(distances, kept, pseudo_samples) if keep_distances else None,
        acceptance_rate=rate,
        acceptance_rate_se=math.sqrt(rate * (1 - rate) / made) if made else math.nan,
        cost=cost,
        status=status,
        seed=arguments["seed"],
        settings={
            "algorithm": "rejection",
            "kernel": arguments["kernel"],
            "eps": arguments["eps"],
            "pseudo_samples": pseudo_samples,
            "draws": arguments["draws"],
            "budget": arguments["budget"],
            "on_error": arguments["on_error"],
            "distance": distance,
        },
        failures=found.failures,
        model=model,
        kernel=kernel,
        independent=True,
        bank=_bank(found, model),
        notes=(*_notes(found, kept, arguments["eps"]), *in_time(arguments), *notes),
    )


def _bank(found: Collected, model: Model | None) -> Simulations | None:
    """The draws' summaries for `adjust`; without a model they could not be used."""
    if found.rows is None or model is None:
        return None
    return Simulations(found.theta, found.distances, np.zeros(len(found.theta)), found.rows)


def _shaped(distances: Array, kept: int, pseudo_samples: int) -> Array:
    shaped = distances.reshape(1, kept, pseudo_samples)
    return shaped[:, :, 0] if pseudo_samples == 1 else shaped


def _notes(found: Collected, kept: int, eps: float) -> tuple[str, ...]:
    notes = []
    if kept == 0:
        notes.append(f"nothing was accepted in {found.cost.proposals:,} proposals: raise eps = {eps:g} or the budget")
    if found.cost.failed:
        notes.append(
            f"{found.cost.failed:,} of {found.cost.simulations:,} simulations failed and count as misses; the first "
            f"failed {found.failures[0]}"
        )
    return tuple(notes)
