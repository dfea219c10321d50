"""Interleaved timing: the jobs of a comparison take turns, and each one's best time counts."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np


class Watched:
    """A batched simulator that adds up its own seconds of the processor."""

    def __init__(self, simulate: Callable[..., Any]) -> None:
        self.simulate, self.seconds = simulate, 0.0

    def __call__(self, rng: Any, **columns: Any) -> Any:
        began = time.process_time()
        rows = self.simulate(rng, **columns)
        self.seconds += time.process_time() - began
        return rows


def best_times(
    jobs: dict[str, Callable[[], object]],
    rounds: int = 7,
    clock: Callable[[], float] = time.perf_counter,
    megabytes: int = 0,
) -> dict[str, float]:
    """The least seconds of each job over `rounds` turns; the first turn warms up and is not counted.

    With `clock=time.process_time` they are seconds of the processor, which a busy machine leaves nearly as they are.
    So many `megabytes` are used and freed before each job: a virtual machine gives memory that was free for some
    seconds back to its host, and whoever asks for more of it would be charged for getting it again.
    """
    best = dict.fromkeys(jobs, float("inf"))
    for turn in range(rounds + 1):
        for name, job in jobs.items():
            np.ones(megabytes * 2**17)
            began = clock()
            job()
            seconds = clock() - began
            if turn:
                best[name] = min(best[name], seconds)
    return best


def report(title: str, rows: list[tuple[str, str, str, bool | None]]) -> bool:
    """Print (what, measured, wanted, reached) rows as a table; False where something wanted was not reached."""
    print(f"\n{title}")
    width = max(len(row[0]) for row in rows)
    for what, measured, wanted, reached in rows:
        mark = {True: "ok", False: "MISSED", None: ""}[reached]
        print(f"  {what.ljust(width)}  {measured:>14}  {wanted:>16}  {mark}")
    return all(reached is not False for *_, reached in rows)
