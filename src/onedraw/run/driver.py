"""The one driver of all runs: it alone knows the run's file, the worker pool, signals, deadlines and progress.

It asks a plan (see `run.plan`) for requests and answers them: with what the file holds first, in order, then with new
results, which it saves. Where a session ends, where segments are cut and who does the work has no influence on any
number.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import chain
from operator import methodcaller
from typing import Any

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.clock import OutOfTime
from onedraw.engines.threads import one_blas_thread
from onedraw.failures import Failure, first_failures, refuse_if_all_failed, warn_ignored_rng
from onedraw.model.first_simulation import LooksAtFirst, listener
from onedraw.run.blocks import BlockLine, BlockLines, Deadline, divided, even_parts, in_parts, part_size, taking_parts
from onedraw.run.chain_blocks import ChainDraws, ChainRound, advance_blocks
from onedraw.run.job_array import Division, JobArray, Pace, Place
from onedraw.run.plan import Bar, Decision, Gathered, Limits, Outcome, Plan, Round, Value
from onedraw.run.pool import InProcess, WorkerPool, current_pool
from onedraw.run.progress import Progress, Show
from onedraw.run.record import Record, StoreError
from onedraw.run.saving import Saver, as_recorded
from onedraw.run.shard_files import ShardsMissing
from onedraw.run.signals import Stopped

NUMERICS: dict[str, Any] = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
"""NumPy's own defaults for floating point, whatever the user's code has set: workers have them too."""


class Driver:
    """Answers the requests of one run's plan."""

    def __init__(self, saver: Saver, pool: Any, deadline: Deadline, show: Show, bar: Bar) -> None:
        self.saver, self.pool, self.deadline, self.show = saver, pool, deadline, show
        self.cost = Cost()
        """What all requests so far have cost."""
        self.failures: tuple[Failure, ...] = ()
        self.fresh = False
        """Whether this session has simulated anything."""
        self.stopped = False
        """Whether time or a signal has ended a request before its end."""
        self.pace = float("inf")
        """Seconds per simulation in the latest round of this session."""
        self._bar = bar
        self._stack = ExitStack()
        self._whole: Progress | None = None
        self._numbers: Counter[str] = Counter()
        self._records: dict[str, Iterator[Record]] = {}
        self._next: dict[str, Record | None] = {}
        self._warned = False
        self._open: RoundWork | None = None
        """The round that was left open."""
        self._taken = len(saver.limits) > 1
        """Whether anything that the plan knows comes from the file."""

    def limits(self, draws: int | None, budget: int | None) -> list[Limits]:
        """The limits of earlier sessions, each beyond the one before, and those of this one."""
        every = [*(Limits(*one) for one in self.saver.limits), Limits(draws, budget)]
        return [one for one, later in zip(every, [*every[1:], None], strict=True) if one != later]

    def run(self, plan: Plan[Value]) -> Value:
        """What the plan returns."""
        with one_blas_thread(), self._stack, np.errstate(**NUMERICS):
            self._stack.callback(self._abandon)
            go_on: Callable[[], Any] = partial(next, plan)
            while True:
                # A StopIteration of a user's function, which comes with an answer, does not end the plan.
                try:
                    with self._as_recorded(), np.errstate(**NUMERICS):
                        request = go_on()
                except StopIteration as done:
                    value: Value = done.value
                    return value
                try:
                    go_on = partial(plan.send, self._answer(request))
                except Stopped as stopped:
                    self.stopped = True
                    go_on = partial(plan.throw, stopped)

    def _abandon(self) -> None:
        """Where an error has ended the plan: save what is known of a round that was left open, and drop the rest."""
        if self._open is not None:
            self._open.save()
            if self._open.lines is not None:
                self.pool.drop(kill=True)

    def _as_recorded(self) -> AbstractContextManager[None]:
        return as_recorded(self.saver, lambda: self._taken)

    def _answer(self, request: Any) -> Any:
        if isinstance(request, Decision):
            return self._decide(request)
        if isinstance(request, ChainRound):
            assert self._open is None
            return self._advance(request)
        return self._gather(request)

    # --- what the file holds -------------------------------------------------------------------------------

    def _recorded(self, name: str, number: int) -> list[Record]:
        """The records of one round, in order; the one behind them is kept for the round that it belongs to."""
        if name not in self._records:
            self._records[name] = self.saver.records(name)
            self._next[name] = next(self._records[name], None)
        self._taken = self._taken or self._next[name] is not None
        found = []
        while (record := self._next[name]) is not None and record.scalars["round"] <= number:
            if record.scalars["round"] < number:
                raise StoreError(
                    "the file's results do not follow from its settings: it was written by another version; give "
                    "store= another name"
                )
            found.append(record)
            self._next[name] = next(self._records[name], None)
        return found

    def _decide(self, request: Decision) -> Any:
        number = self._numbers[request.name]
        self._numbers[request.name] += 1
        with self._as_recorded():
            known = self._recorded(request.name, number)
        for record in known:
            return record.scalars, {name: array.copy(order="K") for name, array in record.arrays.items()}
        make: Callable[[Decision], Any] = methodcaller("make")
        if request.droppable:
            make = self.deadline.limiting(make)
        try:
            with self._as_recorded(), np.errstate(**NUMERICS):
                scalars, arrays = make(request)
        except OutOfTime:
            raise Stopped("max_seconds", self._leave_open()) from None
        self.saver.put(request.name, {**scalars, "round": number}, arrays)
        return scalars, arrays

    # --- independent items ---------------------------------------------------------------------------------

    def _gather(self, request: Round) -> Outcome:
        number, name = self._numbers[request.phase], f"{request.phase}.segment"
        self._numbers[request.phase] += 1
        before, self._open = self._open, None
        work = RoundWork(request, Unsaved(self.saver, request, number), before)
        with self._as_recorded():
            for record in self._recorded(name, number):
                outcome = _outcome_of(record)
                self._count(outcome)
                work.add(int(record.scalars["size"]), outcome)
        self._refuse_if_all_failed(request)
        reason, gathered = "done", work.gathered
        if self._next[name] is None and not (request.enough is not None and request.enough(gathered)):
            reason = self._compute(work, number)
        with self._as_recorded():
            whole = work.answer()
        if reason not in ("done", "enough"):
            raise Stopped(reason, whole)
        refuse_if_all_failed(self.cost.simulations, self.cost.failed, self.failures, last=True)
        self._open = None if request.prefix is None else work
        return whole

    def _compute(self, work: "RoundWork", number: int) -> str:
        request = work.request
        bar, show = self._progress(request)
        began, before, ears = self.deadline.seconds(), self.cost.simulations, listener()
        away = self.pool.workers if ears is not None and isinstance(self.pool, WorkerPool) else None

        def take(item: Any, outcome: Outcome) -> bool:
            if outcome.ignored_rng and not self._warned and self.cost.simulations == 0:
                self._warned = True
                warn_ignored_rng()
            if outcome.first is not None and ears is not None:
                ears.tell(outcome.first)
            self.fresh = True
            self._count(outcome)
            work.take(item.size, outcome)
            self._refuse_if_all_failed(request)
            show(work.gathered)
            return request.enough is not None and request.enough(work.gathered)

        try:
            task = LooksAtFirst(request.task, away) if before == 0 else request.task
            if isinstance(self.pool, JobArray) and not request.made:
                reason = self._from_shards(self.pool, work, number, task, take)
            else:
                with bar:
                    reason = self._in_lines(work, task, take)
        finally:
            work.save()
        self.pace = (self.deadline.seconds() - began) / max(1, self.cost.simulations - before)
        return reason

    def _in_lines(self, work: "RoundWork", task: Any, take: Callable[[Any, Outcome], bool]) -> str:
        """Have workers do a round, behind the one that was left open; of one that is left open, its prefix."""
        request, before = work.request, work.before
        pool = InProcess() if request.made else self.pool
        lines = work.lines = (None if before is None else before.lines) or BlockLines(pool, self.deadline)

        def add(some: Iterable[Any]) -> BlockLine[Any, Any]:
            blocks, taking = (some, take) if request.join is None else in_parts(pool, some, take, request.join)
            work.last = lines.add(
                task, blocks, taking, followed=request.prefix is not None, early=request.enough is not None
            )
            return work.last

        items: Iterable[Any] = request.items(work.gathered)
        rest: Iterable[Any]
        if request.prefix is None:
            return lines.run(add(items))
        if request.rest is None:
            items, rest = divided(items, request.prefix - work.gathered.done)
            first = add(items)
        else:
            first = add(items)
            # Workers are at these while the round before is completed, from which the others follow.
            if before is not None and before.last is not None and (why := lines.run(before.last)) != "done":
                return why
            rest = request.rest(work.gathered, work.late())
        add(rest)
        return lines.run(first)

    def _leave_open(self) -> Outcome | None:
        """When time is up: what is still in flight of a round that was left open, for the plan."""
        work, self._open = self._open, None
        if work is None:
            return None
        try:
            if work.lines is not None:
                work.lines.end()
        finally:
            work.save()
        return Outcome({}, Cost(), before=work.rest.outcome())

    def _from_shards(
        self, array: JobArray, work: "RoundWork", number: int, task: Any, take: Callable[[Any, Outcome], bool]
    ) -> str:
        """The outcomes that the shards of a job array have made; ShardsMissing if there are not enough yet."""
        request, gathered, unsaved, late = work.request, work.gathered, work.unsaved, work.late()
        bar, first = request.bar, self.cost.simulations == 0
        pace = None
        if request.enough is not None and bar is not None and bar.total is not None:
            pace = partial(_pace, bar.position, bar.total, gathered)

        def keep(seconds: float) -> None:
            unsaved.save()
            self.saver.commit(seconds)

        here, parts = self.place(request.phase, number), None
        if request.join is not None:
            parts = Division(part_size, even_parts, partial(taking_parts, join=request.join))

        def items() -> Iterable[Any]:
            return chain(request.items(gathered), request.rest(gathered, late) if request.rest is not None else ())

        try:
            return array.in_order(here, task, items, take, pace, keep, self.deadline.passed, first, parts)
        except ShardsMissing:
            last = self.saver.last()
            if last is None or not last.name.endswith("result"):
                unsaved.show()
            raise

    def place(self, phase: str, number: int) -> Place:
        """A round of this run as a job array knows it."""
        return Place(phase, number, dict(self._numbers))

    def _refuse_if_all_failed(self, request: Round) -> None:
        """Before the end of a round."""
        if not request.mixed:
            refuse_if_all_failed(self.cost.simulations, self.cost.failed, self.failures, last=False)

    def _count(self, outcome: Outcome) -> None:
        self.cost = self.cost.plus(outcome.cost)
        if outcome.failures:
            self.failures = first_failures(self.failures, outcome.failures)

    def _progress(self, request: Round) -> tuple[Progress, Callable[[Gathered], None]]:
        """The bar of a round: its own, or that of the whole run."""
        own = request.bar
        if own is None:
            whole = self._whole_run()

            def show_whole(gathered: Gathered) -> None:
                if whole.due():
                    whole.update(self.cost.simulations, request.note(gathered))

            return Progress(False, "", None), show_whole
        bar, position = Progress(self.show, own.label, own.total, own.unit), own.position

        def show(gathered: Gathered) -> None:
            if bar.due():
                bar.update(position(gathered), request.note(gathered), self.cost.simulations)

        return bar, show

    def _whole_run(self) -> Progress:
        if self._whole is None:
            bar = self._bar
            self._whole = self._stack.enter_context(Progress(self.show, bar.label, bar.total, bar.unit))
        return self._whole

    # --- chains --------------------------------------------------------------------------------------------

    def _advance(self, request: ChainRound) -> ChainDraws:
        number = self._numbers["run"]
        self._numbers["run"] += 1
        with self._as_recorded():
            known = self._recorded("run.segment", number)
            for record in known:
                self._count(_outcome_of(record))
            draws = request.draws_of(known)
            if draws.steps > request.steps:
                raise ValueError(f"{draws.steps} steps are recorded of a round of {request.steps}")
        if self._next["run.segment"] is not None or draws.steps == request.steps:
            return draws
        return advance_blocks(self, request, draws, number)


def drive(plan: Plan[Value], deadline: Deadline | None = None) -> Value:
    """What a plan returns, carried out without a file by the worker pool of the run around it, if there is one."""
    return Driver(Saver(), current_pool(), deadline or Deadline(None), False, Bar("", None, "")).run(plan)


class RoundWork:
    """A round on its way: what is gathered of it, and what lies behind its prefix if it is to be left open."""

    def __init__(self, request: Round, unsaved: "Unsaved", before: "RoundWork | None") -> None:
        self.request, self.unsaved = request, unsaved
        self.before = before
        """The round before, if it was left open."""
        self.gathered, self.rest = Gathered(request.condense), Gathered()
        self.lines: BlockLines | None = None
        self.last: BlockLine[Any, Any] | None = None
        """The last of its blocks."""
        self._prefix: Outcome | None = None

    def add(self, size: int, outcome: Outcome) -> bool:
        """Take in an outcome; whether the prefix is complete with it."""
        if self._prefix is not None:
            self.rest.add(size, outcome)
        self.gathered.add(size, outcome)
        complete = self._prefix is None and self.gathered.done >= (self.request.prefix or np.inf)
        if complete:
            self._prefix = self.gathered.outcome()
        return complete

    def take(self, size: int, outcome: Outcome) -> None:
        """Take in a new outcome. No record goes beyond the prefix, and none comes before one of the round before."""
        with self.unsaved.saver.at_once:
            if self.before is not None:
                self.before.unsaved.save()
            complete = self.add(size, outcome)
            self.unsaved.add(size, outcome)
            if complete:
                self.unsaved.save()

    def save(self) -> None:
        """Put everything that is new into the file."""
        if self.unsaved.saver.at_once.torn:
            return
        with self.unsaved.saver.at_once:
            for one in (self.before, self):
                if one is not None:
                    one.unsaved.save()

    def late(self) -> Outcome | None:
        """What the round before had still to do when it was answered."""
        return None if self.before is None else self.before.rest.outcome()

    def answer(self) -> Outcome:
        """What the plan is told."""
        whole = self.gathered.outcome() if self._prefix is None else self._prefix
        whole, self.before = whole._replace(before=self.late()), None
        return whole


class Unsaved:
    """Outcomes of a round that are not in the run's file yet."""

    def __init__(self, saver: Saver, request: Round, number: int) -> None:
        self.saver, self.request, self.number = saver, request, number
        self._shown = False
        self._start()

    def _start(self) -> None:
        self._gathered = Gathered(self.request.condense)
        self._filed: dict[str, list[Array]] = {}
        self._bytes = 0

    def add(self, size: int, outcome: Outcome) -> None:
        """Take in an outcome, and save if it is time to."""
        if self.saver.store is None:
            return
        self._gathered.add(size, outcome)
        for name, array in outcome.filed.items():
            self._filed.setdefault(name, []).append(array)
            self._bytes += array.nbytes
        if self.saver.due(self._gathered.bytes + self._bytes):
            self.show()
            self.save()

    def show(self) -> None:
        """Save the result of the run before this round, for those who look at the run meanwhile."""
        if self.request.shown is not None and not self._shown:
            self._shown = True
            self.saver.put("result", *self.request.shown().packed())

    def save(self) -> None:
        """Put everything that is new into the file."""
        if self._gathered.done == 0:
            return
        whole, phase = self._gathered.outcome(), self.request.phase
        filed = {name: np.concatenate(parts) for name, parts in self._filed.items()}
        scalars = {"size": self._gathered.done, **recorded(self.number, whole.cost, whole.failures)}
        self.saver.put(f"{phase}.segment", scalars, whole.arrays, {f"{phase}.bank": filed} if filed else {})
        self._start()


def _pace(position: Callable[[Gathered], int], total: int, gathered: Gathered) -> Pace:
    return Pace(position(gathered), total, gathered.done)


def recorded(number: int, cost: Cost, failures: tuple[Failure, ...]) -> dict[str, Any]:
    """What every segment in a file says of itself."""
    return {"round": number, "cost": list(cost), "failures": [one._asdict() for one in failures]}


def _outcome_of(record: Record) -> Outcome:
    failures = tuple(Failure(**one) for one in record.scalars["failures"])
    return Outcome(record.arrays, Cost(*record.scalars["cost"]), failures)
