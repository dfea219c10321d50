"""What sequential samplers share: rounds of blocks run in order, saved, and taken back; and rules for the tolerance.

Such a run alternates between a *join*, which decides from all results so far what to simulate next, and a round, which
simulates it in blocks. A join is a pure function of the results, so a run that goes on takes the results of its file
back one by one, in order, and every decision comes out as before.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.threads import one_blas_thread
from onedraw.estimators.average import AbcAverage
from onedraw.model.kernels import Kernel, uniform
from onedraw.model.model import Model
from onedraw.model.simulator import Failure
from onedraw.results.posterior import Posterior, Simulations, Status
from onedraw.run.blocks import Deadline, in_order
from onedraw.run.options import Shared, ended, opened
from onedraw.run.pilot import learn_distance, refuse_hopeless, warn_ignored_rng
from onedraw.run.progress import Progress
from onedraw.run.record import Record, StoreError
from onedraw.run.saving import Saver
from onedraw.run.signals import Stopped
from onedraw.run.specification import distance_setting, in_time, specify

FAILURES_KEPT = 20
COUNTS = ("simulations", "setups", "skipped", "failed", "proposals")
REACHED = ("eps", "exact", "collapsed", "ess")
"""Reasons of a run that ends by itself before its budget is spent."""


class Stage(NamedTuple):
    """One entry of the path of a sequential run: what was simulated, and at which tolerance it ended."""

    eps: float
    acceptance_rate: float
    """Share of this stage's proposals that were accepted at this eps."""
    proposals: int
    simulations: int
    ess: float
    """Effective number of draws at the end of the stage, by their weights alone."""


class Outcome(NamedTuple):
    """What one block hands back: arrays by name, and counts."""

    arrays: dict[str, Array]
    simulations: int
    setups: int = 0
    skipped: int = 0
    failed: int = 0
    proposals: int = 0
    failures: tuple[Failure, ...] = ()
    ignored_rng: bool = False


class Ledger:
    """Results of all rounds in their order: those of the file first, then new ones, which it saves."""

    def __init__(self, saver: Saver, deadline: Deadline, progress: Progress, budget: int | None, pilot: Cost) -> None:
        self.saver, self.deadline, self.progress = saver, deadline, progress
        self.cost = pilot
        self.failures: list[Failure] = []
        self.fresh = False
        """Whether this session has simulated anything."""
        self.limits = self._limits(budget)
        """Budgets of this and earlier sessions, each larger than the one before: a run fulfils them one by one."""
        self._known: deque[tuple[tuple[int, int], Outcome]] = deque()
        for record in saver.records("run.segment"):
            self._known.extend(_unpacked(record))
        self.partial: list[Outcome] = []
        """Results of a round that was stopped."""
        self._unsaved: list[tuple[tuple[int, int], Outcome]] = []
        self._bytes = 0

    def _limits(self, budget: int | None) -> list[int | None]:
        limits: list[int | None] = [record.scalars["budget"] for record in self.saver.records("run.budget")]
        if not limits or limits[-1] != budget:
            limits.append(budget)
            self.saver.put("run.budget", {"budget": budget})
        return limits

    def run(self, task: Any, items: Iterable[Any], note: str) -> list[Outcome]:
        """The results of one round; Stopped where time or a signal came first (what is done is then saved).

        An item has a `first` and a `step`, which together name it.
        """
        done: list[Outcome] = []

        def take(item: Any, outcome: Outcome) -> bool:
            done.append(outcome)
            self._add(outcome, note)
            return False

        todo: Any = iter(items)
        while self._known:
            item = next(todo, None)
            if item is None:
                return done
            key, outcome = self._known.popleft()
            if key != (item.first, item.step):
                raise StoreError(
                    "the file's results do not follow from its settings: it was written by another version; give "
                    "store= another name"
                )
            take(item, outcome)

        def take_new(item: Any, outcome: Outcome) -> bool:
            if self.cost.simulations == 0 and outcome.ignored_rng:
                warn_ignored_rng()
            self.fresh = True
            self._unsaved.append(((item.first, item.step), outcome))
            self._bytes += sum(array.nbytes for array in outcome.arrays.values())
            take(item, outcome)
            refuse_hopeless(self.cost.simulations, self.cost.failed, self.failures, last=False)
            if self.saver.due(self._bytes):
                self.save()
            return False

        try:
            reason = in_order(task, todo, take_new, self.deadline, Progress(False, "", None))
        finally:
            self.save()
        if reason != "done":
            self.partial = done
            raise Stopped(reason)
        return done

    def refuse_nothing(self) -> None:
        """At the end of a run: an error where every simulation has failed."""
        refuse_hopeless(self.cost.simulations, self.cost.failed, self.failures, last=True)

    def skip(self, simulations: int, proposals: int) -> None:
        """Count proposals that needed no simulation."""
        self.cost = self.cost.plus(Cost(skipped=simulations, proposals=proposals))

    def _add(self, outcome: Outcome, note: str) -> None:
        self.cost = self.cost.plus(Cost(*(getattr(outcome, name) for name in COUNTS)))
        self.failures.extend(outcome.failures[: FAILURES_KEPT - len(self.failures)])
        self.progress.update(self.cost.simulations, note)

    def save(self) -> None:
        """Put new results into the file."""
        if self._unsaved and self.saver.store is not None:
            self.saver.put("run.segment", *_packed(self._unsaved))
        self._unsaved, self._bytes = [], 0


def _packed(results: list[tuple[tuple[int, int], Outcome]]) -> tuple[dict[str, Any], dict[str, Array]]:
    """Results of several blocks as the values and arrays of one record: arrays end to end, with their lengths."""
    outcomes = [outcome for _, outcome in results]
    arrays: dict[str, Array] = {
        "keys": np.array([key for key, _ in results], dtype=np.int64),
        "counts": np.array([[getattr(one, name) for name in COUNTS] for one in outcomes], dtype=np.int64),
    }
    names = list(dict.fromkeys(name for outcome in outcomes for name in outcome.arrays))
    for name in names:
        parts = [outcome.arrays[name] for outcome in outcomes if name in outcome.arrays]
        lengths = [len(outcome.arrays[name]) if name in outcome.arrays else -1 for outcome in outcomes]
        arrays[f"length.{name}"] = np.array(lengths, dtype=np.int64)
        arrays[f"array.{name}"] = np.concatenate(parts)
    failures = [
        [place, [one._asdict() for one in outcome.failures]]
        for place, outcome in enumerate(outcomes)
        if outcome.failures
    ]
    return {"names": names, "failures": failures}, arrays


def _unpacked(record: Record) -> Iterator[tuple[tuple[int, int], Outcome]]:
    arrays = record.arrays
    failures = {place: tuple(Failure(**one) for one in some) for place, some in record.scalars["failures"]}
    tops = dict.fromkeys(record.scalars["names"], 0)
    for place, (key, counts) in enumerate(zip(arrays["keys"].tolist(), arrays["counts"].tolist(), strict=True)):
        parts = {}
        for name in record.scalars["names"]:
            length = int(arrays[f"length.{name}"][place])
            if length >= 0:
                parts[name] = arrays[f"array.{name}"][tops[name] : tops[name] + length]
                tops[name] += length
        simulations, setups, skipped, failed, proposals = counts
        some = failures.get(place, ())
        yield tuple(key), Outcome(parts, simulations, setups, skipped, failed, proposals, some)


def together(outcomes: Sequence[Outcome], name: str) -> Array:
    """One array of all blocks, end to end, its columns contiguous as prior and simulator expect them."""
    return np.asfortranarray(np.concatenate([outcome.arrays[name] for outcome in outcomes]))


def effective(weight: Array) -> float:
    """(sum w)² / sum w²: equal weights that would be worth as much.

    >>> effective(np.array([1.0, 1.0, 0.0]))
    2.0
    """
    # A product, where `weights.effective` takes a power: they may differ in their last bit, and proposals rest on it.
    total = float(weight.sum())
    return total * total / float((weight * weight).sum()) if total > 0 else 0.0


def reweighted(kernel: Kernel, eps: float, new: float, distances: Array, weight: Array) -> Array:
    """Weights (n,) at tolerance `new` of draws with distances (n, M) that have `weight` at `eps`; not normalised.

    Each is multiplied by the ratio of the averages of K over its M pseudo-samples (docs/theory.md). At eps = inf, K is
    1 for every simulation.
    """
    log_ratio = kernel.with_eps(new).log_average(distances)
    if math.isfinite(eps):
        before = kernel.with_eps(eps).log_average(distances)
        log_ratio = np.where(np.isneginf(before), -np.inf, log_ratio - np.maximum(before, -1e300))
    ratio: Array = weight * np.exp(log_ratio)
    return ratio


def tolerance_with(kernel: Kernel, eps: float, distances: Array, weight: Array, target: float) -> float:
    """The smallest tolerance up to `eps` at which draws of that weight at `eps` are still worth `target` draws.

    Where there is none, it is the largest that makes sense: eps, or beyond all distances where eps is inf. For the
    uniform kernel with M = 1 it is the distance of the next draw, which is itself left out: given that distance,
    those nearer are distributed as at a tolerance fixed beforehand.

    >>> from onedraw.model.kernels import uniform
    >>> distances = np.array([[0.1], [0.2], [0.3], [0.3], [0.7]])
    >>> tolerance_with(uniform(1.0), 1.0, distances, np.ones(5), 2.0)
    0.3
    """
    alive = (weight > 0) & np.isfinite(distances).any(axis=1)
    distances, weight = distances[alive], weight[alive]
    finite = distances[np.isfinite(distances)]
    if finite.size == 0:
        return eps
    largest = eps if math.isfinite(eps) else float(np.nextafter(finite.max(), np.inf))
    if kernel.indicator and distances.shape[1] == 1:
        order = np.argsort(distances[:, 0], kind="stable")
        ordered, some = distances[order, 0], weight[order]
        worth = np.cumsum(some) ** 2 / np.cumsum(some * some)
        ends = np.flatnonzero((worth[:-1] >= target) & (ordered[1:] > ordered[:-1]))
        return min(largest, float(ordered[ends[0] + 1])) if ends.size else largest
    if not math.isfinite(eps) and math.isinf(kernel.support):
        largest *= 10.0
    positive = finite[finite > 0]
    if positive.size == 0 or positive.min() >= largest:
        return largest
    low, high = math.log(float(positive.min())), math.log(largest)
    while high - low > 1e-9:
        middle = 0.5 * (low + high)
        enough = effective(reweighted(kernel, eps, math.exp(middle), distances, weight)) >= target
        low, high = (low, middle) if enough else (middle, high)
    return min(math.exp(high), largest)


def tolerance_keeping(kernel: Kernel, eps: float, distances: Array, weight: Array, share: float) -> float:
    """The smallest tolerance up to `eps` that keeps this share of the weight at `eps`."""
    largest = eps
    if not math.isfinite(eps):
        finite = distances[np.isfinite(distances)]
        largest = float(np.nextafter(finite.max(), np.inf)) * (10.0 if math.isinf(kernel.support) else 1.0)
    positive = distances[np.isfinite(distances) & (distances > 0)]
    if positive.size == 0 or positive.min() >= largest or share >= 1:
        return largest
    whole = float(weight.sum())
    if kernel.indicator and distances.shape[1] == 1:
        # A tolerance that is itself one of the distances leaves out the draws at that distance.
        order = np.argsort(distances[:, 0], kind="stable")
        ordered, mass = distances[order, 0], np.cumsum(weight[order])
        ends = np.flatnonzero((mass[:-1] >= share * whole) & (ordered[1:] > ordered[:-1]) & np.isfinite(ordered[1:]))
        return min(largest, float(ordered[ends[0] + 1])) if ends.size else largest
    low, high = math.log(float(positive.min())), math.log(largest)
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        enough = float(reweighted(kernel, eps, math.exp(middle), distances, weight).sum()) >= share * whole
        low, high = (low, middle) if enough else (middle, high)
    return min(math.exp(high), largest)


def kernel_family(kernel: Any) -> Kernel:
    """The kernel whose eps a run will choose, from a function of eps or from a kernel at any eps."""
    if kernel is None:
        return uniform(1.0)
    made = kernel if isinstance(kernel, Kernel) else kernel(1.0) if callable(kernel) else None
    if not isinstance(made, Kernel):
        raise ValueError(f"kernel must be a function of eps that gives a kernel, such as od.uniform, got {kernel!r}")
    return made.with_eps(1.0)


@dataclass(frozen=True, eq=False)
class Found:
    """What a sequential run has found so far: weighted draws at a tolerance, and how it came there."""

    theta: Array
    """(n, dim)"""
    weight: Array
    """(n,), summing to 1; empty where there is no draw."""
    distances: Array
    """(n, M)"""
    group: Array | None
    eps: float
    rate: float
    rate_se: float
    path: tuple[Stage, ...]
    cost: Cost
    failures: tuple[Failure, ...]
    settings: Mapping[str, Any]
    """What the run resolved."""
    notes: tuple[str, ...]

    def save(self, saver: Saver) -> None:
        """Put it into the file."""
        arrays = {"theta": self.theta, "weight": self.weight, "distances": self.distances}
        if self.group is not None:
            arrays["group"] = self.group
        arrays["path"] = np.array([tuple(stage) for stage in self.path], dtype=float).reshape(-1, len(Stage._fields))
        scalars = {
            "eps": repr(self.eps), "rate": repr(self.rate), "rate_se": repr(self.rate_se),
            "cost": self.cost._replace(seconds=0.0), "failures": [one._asdict() for one in self.failures],
            "settings": dict(self.settings), "notes": list(self.notes),
        }  # fmt: skip
        saver.put("result", scalars, arrays)

    @staticmethod
    def load(record: Record) -> "Found":
        """As it was saved."""
        arrays, scalars = {name: part.copy(order="K") for name, part in record.arrays.items()}, record.scalars
        return Found(
            arrays["theta"], arrays["weight"], arrays["distances"], arrays.get("group"),
            float(scalars["eps"]), float(scalars["rate"]), float(scalars["rate_se"]),
            tuple(Stage(a, b, int(c), int(d), e) for a, b, c, d, e in arrays["path"].tolist()),
            Cost(*scalars["cost"]), tuple(Failure(**one) for one in scalars["failures"]), scalars["settings"],
            tuple(scalars["notes"]),
        )  # fmt: skip


def nothing_found(dim: int, pseudo_samples: int, cost: Cost, settings: Mapping[str, Any]) -> Found:
    """What a run has found that was stopped before its first draws."""
    empty = np.empty((0, dim)), np.empty(0), np.empty((0, pseudo_samples))
    return Found(*empty, None, math.nan, math.nan, math.nan, (), cost, (), settings, ())


def cost_of_segments(records: Iterable[Record], pilot: Cost) -> Cost:
    """What the results in a file have cost."""
    for record in records:
        pilot = pilot.plus(Cost(*record.arrays["counts"].sum(axis=0).tolist()))
    return pilot


class Sequential(Protocol):
    """What `run_in_rounds` asks of a sequential sampler, which is made from an estimator, arguments and a ledger."""

    estimator: AbcAverage
    """As it is now: its distance may be learnt again on the way."""

    def begun(self) -> bool:
        """Whether there is a draw."""

    def run(self) -> str:
        """Spend each budget in turn: why it ended."""

    def found(self, reason: str) -> Found:
        """What there is, wherever the run was stopped."""

    def bank(self) -> Simulations | None:
        """All simulations, where they are to be kept."""


def run_in_rounds(
    algorithm: str,
    shared: Shared,
    estimator: AbcAverage,
    arguments: Mapping[str, Any],
    make: Callable[[AbcAverage, Mapping[str, Any], Ledger], Sequential],
) -> Posterior:
    """Run a sequential sampler, which `make` builds once the distance is ready."""
    show = Progress(shared.progress, algorithm, arguments["budget"], "simulations")

    def run(saver: Saver, deadline: Deadline) -> Posterior:
        model, budget, cost = estimator.model, arguments["budget"], Cost()
        sampler: Sequential | None = None
        ledger: Ledger | None = None
        try:
            model, cost = learn_distance(model, shared.seed, budget, shared.on_error, shared.progress, saver)
            ledger = Ledger(saver, deadline, show, budget, cost)
            sampler = make(estimator.with_model(model), arguments, ledger)
            reason = sampler.run()
            ledger.refuse_nothing()
        except Stopped as stopped:
            reason = stopped.reason
        cost = cost if ledger is None else ledger.cost
        if sampler is None or not sampler.begun():
            resolved = {"distance": distance_setting(model)}
            found = nothing_found(model.prior.dim, estimator.pseudo_samples, cost, resolved)
        else:
            found = sampler.found(reason)
        made = f"eps = {found.eps:.4g}, worth {effective(found.weight):,.0f} draws by their weights"
        status = ended("finished" if reason in REACHED else reason, budget, made)
        finish(saver, ledger, found, status)
        return sequential_posterior(
            algorithm, found, model.prior, arguments, cost._replace(seconds=saver.seconds()), status, estimator.kernel,
            estimator.kernel.name, model if sampler is None else sampler.estimator.model, saver.notes,
            None if sampler is None else sampler.bank(),
        )  # fmt: skip

    def shown(saver: Saver, deadline: Deadline) -> Posterior:
        with one_blas_thread(), show:
            return run(saver, deadline)

    return opened(shared, lambda: specify(algorithm, estimator, arguments), shown, threads=estimator.model.compiled)


def finish(saver: Saver, ledger: Ledger | None, found: Found, status: Status) -> None:
    """Save what was found and how the session ended, unless the file says so already."""
    if saver.store is None:
        return
    last = saver.last()
    known = last is not None and last.name == "finished" and last.scalars.get("message") == status.message
    if not known or (ledger is not None and ledger.fresh):
        found.save(saver)
    saver.finish(status.reason, status.message)


def sequential_posterior(
    algorithm: str,
    found: Found,
    prior: Any,
    arguments: Mapping[str, Any],
    cost: Cost,
    status: Status,
    kernel: Kernel | None,
    kernel_name: str,
    model: Model | None,
    notes: tuple[str, ...] = (),
    bank: Simulations | None = None,
) -> Posterior:
    """The Posterior of what a sequential run has found; of `prior` only the columns' names and types are used.

    `kernel` is the run's at any eps, None where it is not known.
    """
    some = found.weight > 0
    theta, distances = found.theta[some], found.distances[some][None]
    shown = {name: value for name, value in arguments.items() if name not in ("seed", "parameters", "kernel", "eps")}
    more = [*found.notes, *in_time(arguments)]
    if found.failures:
        more.append(
            f"{found.cost.failed:,} of {found.cost.simulations:,} simulations failed and count as misses; the first "
            f"failed {found.failures[0]}"
        )
    return Posterior(
        draws={name: column[None, :] for name, column in prior.columns(theta).items()},
        weights=found.weight[some][None],
        distances=distances[:, :, 0] if distances.shape[2] == 1 else distances,
        acceptance_rate=found.rate,
        acceptance_rate_se=found.rate_se,
        cost=cost,
        status=status,
        seed=arguments["seed"],
        settings={
            "algorithm": algorithm,
            "kernel": kernel_name,
            "eps": found.eps,
            "target_eps": arguments["eps"],
            **shown,
            **found.settings,
        },
        failures=found.failures,
        model=model,
        kernel=None if kernel is None or not math.isfinite(found.eps) else kernel.with_eps(found.eps),
        independent=True,
        notes=(*more, *notes),
        groups=None if found.group is None else found.group[some][None],
        path=found.path,
        bank=bank,
    )
