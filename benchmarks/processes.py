"""Runs side by side in processes, with a line of JSON for each as it ends."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
TOLD = 500
"""Runs between two lines that say how many have ended."""

Line = dict[str, Any]
Run = Callable[[Any], Line]
"""A function of a module: a NamedTuple in, a line out, which has the fields of the NamedTuple among its own."""


def _made(run: Run, tasks: Sequence[Any], jobs: int) -> Iterator[Line]:
    """The lines, as they are made."""
    if jobs == 1:
        yield from map(run, tasks)
        return
    # Processes side by side must not start threads of their own.
    os.environ |= dict.fromkeys(THREADS, "1")
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(run, task) for task in tasks]):
            yield done.result()


def recorded(file: Path | None) -> list[Line]:
    """The lines of earlier calls."""
    return [] if file is None or not file.exists() else [json.loads(line) for line in file.read_text().splitlines()]


def collected(run: Run, tasks: Sequence[Any], jobs: int, file: Path | None) -> list[Line]:
    """A line for each task; those that the file has are not run again, and new ones are added to it."""

    def key(line: Line) -> tuple[Any, ...]:
        return tuple(line[field] for field in tasks[0]._fields)

    found = [line for line in recorded(file) if key(line) in set(tasks)] if tasks else []
    there = set(map(key, found))
    left = [task for task in tasks if tuple(task) not in there]
    for number, line in enumerate(_made(run, left, jobs), 1):
        found.append(line)
        if file is not None:
            with file.open("a") as out:
                out.write(json.dumps(line) + "\n")
        if number % TOLD == 0:
            print(f"  {number:,} of {len(left):,} runs", flush=True)
    return found
