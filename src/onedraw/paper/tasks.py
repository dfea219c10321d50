"""Points of a study as tasks: computed side by side in processes, kept on disk as they finish, continued after a break.

Finished tasks are lines of `points.jsonl`, under a first line that says which plan they belong to. No number depends
on the number of processes or on where a study was interrupted, since a task's seed depends on its key alone.
"""

from __future__ import annotations

import json
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, as_completed, wait
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, get_type_hints

import numpy as np

import onedraw as od
from onedraw.engines.threads import one_blas_thread
from onedraw.report.pages import write_whole
from onedraw.run.progress import Progress, Show

CHECKPOINT = "points.jsonl"


class StudyError(Exception):
    """A study or contrast that cannot begin or continue, with the remedy."""


class Task(NamedTuple):
    """One piece of work for a process; `key` names it in the checkpoint."""

    key: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    result: type | None = None
    """The named tuple that comes back and is kept on disk; None for results that are not kept."""
    programs: tuple[int, ...] = ()
    """Tasks that have this in common run the same programs on a device; the larger, the longer they take to compile."""


def do(task: Task) -> Any:
    """The result of a task."""
    with one_blas_thread():
        return task.function(*task.arguments)


def finished(folder: Path, plan: str, tasks: Sequence[Task]) -> dict[str, Any]:
    """Results in the folder's checkpoint by key; a line that was cut off by a crash is dropped from the file.

    A StudyError if the file belongs to a study with another plan: its points are not these.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CHECKPOINT
    stored = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    good = [(line, entry) for line in stored if (entry := _parsed(line)) is not None]
    if good and good[0][1].get("plan") != plan:
        raise StudyError(
            f"{path} holds points of another study ({good[0][1].get('plan', 'no header')}; asked for: {plan}): choose "
            "another --out, or remove that file to begin again"
        )
    lines = [line for line, _ in good] or [json.dumps({"plan": plan})]
    write_whole(path, "".join(line + "\n" for line in lines))
    kinds = {task.key: task.result for task in tasks if task.result is not None}
    return {
        entry["key"]: _revived(kinds[entry["key"]], entry["value"]) for _, entry in good[1:] if entry["key"] in kinds
    }


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None


def _revived(kind: type, value: Mapping[str, Any]) -> Any:
    """A named tuple from its fields, some of which may be named tuples or tuples."""
    hints = get_type_hints(kind)

    def field(name: str, part: Any) -> Any:
        if not isinstance(part, list):
            return part
        return hints[name](*part) if hasattr(hints[name], "_fields") else tuple(part)

    return kind(**{name: field(name, part) for name, part in value.items()})


def run_tasks(
    tasks: Sequence[Task], folder: Path, label: str, *, workers: int = 1, progress: Show = None, device: bool = False
) -> dict[str, Any]:
    """The results of the tasks by key; each is added to the folder's checkpoint as it finishes."""
    found: dict[str, Any] = {}
    with (
        _results(tasks, workers, device) as results,
        Progress(progress, label, len(tasks), "points") as bar,
        (folder / CHECKPOINT).open("a", encoding="utf-8", newline="\n") as file,
    ):
        for count, (task, result) in enumerate(results, start=1):
            found[task.key] = result
            if task.result is not None:
                file.write(json.dumps({"key": task.key, "value": result._asdict()}) + "\n")
                file.flush()
            bar.update(count)
    return found


@contextmanager
def _results(tasks: Sequence[Task], workers: int, device: bool) -> Iterator[Iterator[tuple[Task, Any]]]:
    """Each task with its result, as they finish; a single worker is this process."""
    if workers == 1:
        yield ((task, do(task)) for task in tasks)
        return
    if not device:
        with processes(workers) as pool:
            futures = {pool.submit(do, task): task for task in tasks}
            yield ((futures[future], future.result()) for future in as_completed(futures))
        return
    with ExitStack() as opened:
        yield _shared_out(tasks, [opened.enter_context(processes(1, device=True)) for _ in range(workers)])


def _shared_out(tasks: Sequence[Task], pools: Sequence[Executor]) -> Iterator[tuple[Task, Any]]:
    """Each task with its result, as they finish; a process prefers tasks whose programs it has compiled.

    If any process took any task, each would compile nearly all programs.
    """
    waiting: dict[tuple[int, ...], list[Task]] = {}
    for task in reversed(tasks):
        waiting.setdefault(task.programs, []).append(task)
    seconds: dict[tuple[int, ...], list[float]] = {}
    """What finished tasks took; with the first, programs are compiled."""
    compiled: list[set[tuple[int, ...]]] = [set() for _ in pools]
    running: dict[Future[Any], tuple[int, Task, float]] = {}

    def worth_joining(programs: tuple[int, ...]) -> bool:
        taken = seconds.get(programs, [])
        return len(taken) > 1 and len(waiting[programs]) * taken[-1] > taken[0]

    def submit(process: int) -> None:
        left = {programs for programs in waiting if waiting[programs]}
        begun = set().union(*compiled)
        choices = left & compiled[process] or left - begun or set(filter(worth_joining, left))
        if choices:
            task = waiting[max(choices)].pop()
            compiled[process].add(task.programs)
            running[pools[process].submit(do, task)] = process, task, time.monotonic()

    idle = set(range(len(pools)))
    while idle:
        for process in sorted(idle):
            submit(process)
        idle -= {process for process, *_ in running.values()}
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            process, task, began = running.pop(future)
            seconds.setdefault(task.programs, []).append(time.monotonic() - began)
            idle.add(process)
            yield task, future.result()


@contextmanager
def processes(workers: int, *, device: bool = False) -> Iterator[ProcessPoolExecutor]:
    """Worker processes; those that share a `device` share what they compile, too. An interrupt drops what waits."""
    with TemporaryDirectory(prefix="onedraw-") as programs:
        initargs = (programs if device else None,)
        pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_share_device, initargs=initargs)
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()


def _share_device(programs: str | None) -> None:
    if programs is None:
        return
    # Otherwise the first process takes most of a GPU's memory for itself.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    # A study that has ended removes its compiled programs; what is still under way need not warn about it.
    warnings.filterwarnings("ignore", message="Error .* persistent compilation cache")
    import jax

    import onedraw.engines.jax  # noqa: F401  # on a GPU it says where compiled programs are kept

    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", programs)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def usable_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine() -> dict[str, str]:
    """What a study ran on, for its page: no names of hosts or users."""
    import scipy

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.exists() else []
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return {
        "processor": next(models, platform.processor() or platform.machine()),
        "cores": str(usable_cores()),
        "system": platform.system(),
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "SciPy": scipy.__version__,
        "onedraw": od.__version__,
    }
