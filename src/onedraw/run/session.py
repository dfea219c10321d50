"""One session of a run: its worker pool, its guard against signals, its file, and the driver between them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from onedraw.cost import Cost
from onedraw.model.kernels import Kernel
from onedraw.results.posterior import Posterior
from onedraw.run.blocks import Deadline
from onedraw.run.driver import Driver
from onedraw.run.job_array import JobArray
from onedraw.run.options import Options
from onedraw.run.plan import Bar, Limits, Plan, Value
from onedraw.run.pool import opened_pool
from onedraw.run.record import OtherRun
from onedraw.run.recorded import recorded_result
from onedraw.run.registry import SAMPLERS
from onedraw.run.result import Result, posterior, status_of
from onedraw.run.saving import Saver, Specification, begin
from onedraw.run.signals import guarded


@dataclass(frozen=True, eq=False)
class Run:
    """What a run is, and the plan that makes it."""

    algorithm: str
    arguments: Mapping[str, Any]
    """Plain values; with them the file and the settings say what the run is."""
    specification: Callable[[], Specification]
    """Made only if there is a file, since fingerprints take time."""
    options: Options
    plan: Callable[[list[Limits]], Plan[Any]]
    prior: Any
    kernel: Kernel | None
    """At any eps; None if the run has no kernel."""
    threads: bool = False
    """Whether workers are threads, as for compiled simulators, which release Python's lock."""

    def posterior(self) -> Posterior:
        """Carry the run out, or what its file does not hold of it."""

        def finished(result: Result, driver: Driver, saver: Saver, cost: Cost) -> Posterior:
            status = status_of(result, self.arguments.get("budget"))
            self._save(driver, saver, result, status.message)
            saver.finish(status.reason, status.message, result.notes)
            asked = None if self.kernel is None else (self.kernel.name, self.kernel.eps)
            return posterior(
                self.algorithm, self.arguments, result, self.prior, self.kernel, asked, cost, driver.failures, status,
                saver.notes,
            )  # fmt: skip

        return self._carried_out(finished)

    def value(self) -> tuple[Any, Cost]:
        """What the plan returns, for one that makes no Posterior, and what all sessions of the run have cost."""

        def finished(value: Any, driver: Driver, saver: Saver, cost: Cost) -> tuple[Any, Cost]:
            saver.finish("finished", f"finished: {cost.simulations:,} simulations")
            return value, cost

        try:
            return self._carried_out(finished)
        except OtherRun as error:
            # od.resume continues runs that have draws, and no others.
            raise OtherRun(error.what, "Repeat the call that it was made with, or give store= another name") from None

    def _carried_out(self, finished: Callable[[Any, Driver, Saver, Cost], Value]) -> Value:
        options, arguments = self.options, self.arguments
        draws, budget = arguments.get("draws"), arguments.get("budget")
        deadline = Deadline(options.max_seconds)
        bar, specification = Bar(self.algorithm, budget, "simulations"), cache(self.specification)
        with (
            opened_pool(options.workers, options.executor, threads=self.threads) as pool,
            guarded(terminate=options.store is not None),
            begin(options.store, options.segment, specification) as saver,
        ):
            if isinstance(pool, JobArray):
                pool.begin(specification(), self.threads)
            driver = Driver(saver, pool, deadline, options.progress, bar)
            value = driver.run(self.plan(driver.limits(draws, budget)))
            cost = driver.cost.plus(Cost(surplus=pool.surplus))._replace(seconds=saver.seconds())
            done = finished(value, driver, saver, cost)
            if isinstance(pool, JobArray) and not driver.stopped:
                saver.commit()
                pool.end()
            return done

    def _save(self, driver: Driver, saver: Saver, result: Result, message: str) -> None:
        """Save the result of a sampler whose segments do not show it, unless the file has it."""
        if SAMPLERS[self.algorithm].shown is not recorded_result:
            return
        if driver.fresh or not saver.ended_with(message):
            saver.put("result", *result.packed())
