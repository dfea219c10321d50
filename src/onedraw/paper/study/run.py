"""Run the study: every point by the public samplers, on all cores, with each finished point kept on disk.

Figure 1L is `od.pseudo_marginal` at a given eps; figures 1R, 2L and 2R are `tolerance_for`. A point's seed depends on
the study's seed and on the point alone, so that no number depends on the number of workers, on the figures asked for,
or on where a study was interrupted. Finished points are lines of `points.jsonl`; a study that finds some there goes
on after them.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

import onedraw as od
from onedraw.engines.threads import one_blas_thread
from onedraw.paper.study.efficiency import EfficiencyCurve, efficiency_curve
from onedraw.paper.study.exact import acceptance_rate, exact_value, tolerance
from onedraw.paper.study.settings import (
    EFFICIENCY,
    EPS_1L,
    FIGURES,
    ITERATIONS,
    EfficiencySetting,
    Engine,
    Kernel,
    Point,
    Toy,
    points,
)
from onedraw.report.pages import write_whole
from onedraw.run.progress import Progress, Show
from onedraw.tuning.tolerance import DEVICE_THIN, tolerance_for

QUICK_ITERATIONS = ITERATIONS // 10
LEAST_ITERATIONS = {"1L": 1000, "1R": 300_000, "2L": 300_000, "2R": 300_000}
"""Below this a rate has no useful error, and a search for eps at 0.4 % too few moves to state one."""
CHAINS, SIDE_BY_SIDE = (2000, 8000), 128_000
"""Fewest and most chains in figure 1L, and the pseudo-samples that all of them draw in one step: enough for array code
to be fast, few enough to stay in the cache."""
DEVICE_CHAINS = 8192
"""The same on a device, for every M: few enough that their starting points are soon found."""
DEVICE_PROCESSES = 8
"""The most processes that share a device unless asked for: while one waits for it, others prepare their questions."""
CHECKPOINT, TABLE = "points.jsonl", "study.csv"
COLUMNS = ("figure", "series", "pseudo_samples", "simulated", "std_error", "exact")

MATCHED_EPS: tuple[float, ...] = (EPS_1L[0], EPS_1L[-1])
MATCHED_PSEUDO_SAMPLES: tuple[int, ...] = (1, 4, 16, 64)
"""Where the Gaussian kernel is compared with the uniform one."""

CORE_SECONDS_GAUSSIAN = 1.1
"""Time for one exact value of the Gaussian kernel's tolerance (112 s for all points), for the forecast alone."""
SEARCH_OVERHEAD, SEARCH_SECONDS = 1.2, 0.4
"""Time of a tolerance point over that of as many steps of one long run, and what its short runs add, for the forecast
alone."""
FIXED_SECONDS = 8.0
"""Start of the workers, exact variances, figures and page, for the forecast alone."""


class StudyError(Exception):
    """A study that cannot begin or go on, with the remedy."""


@dataclass(frozen=True)
class Plan:
    """What a study computes; two runs with equal plans give equal numbers."""

    iterations: int = ITERATIONS
    kernel: Kernel = "uniform"
    seed: int = 1
    figures: tuple[str, ...] = FIGURES
    engine: Engine = "numpy"

    def __post_init__(self) -> None:
        for figure in self.figures:
            if figure not in FIGURES:
                raise StudyError(f"no figure {figure!r} in the study: choose from {', '.join(FIGURES)}")
            if self.iterations < LEAST_ITERATIONS[figure]:
                raise StudyError(
                    f"figure {figure} needs at least {LEAST_ITERATIONS[figure]:,} iterations, got {self.iterations:,}: "
                    "with fewer the error of its values cannot be stated"
                )

    def identity(self) -> dict[str, Any]:
        """What must agree for finished points to be used again."""
        named = {"study": 1, "iterations": self.iterations, "kernel": self.kernel, "seed": self.seed}
        return named if self.engine == "numpy" else {**named, "engine": self.engine}


class Outcome(NamedTuple):
    """One point, simulated and exact; in figures 1R, 2L and 2R the value is eps, not divided by that at M = 1."""

    figure: str
    series: str
    pseudo_samples: int
    simulated: float
    std_error: float
    exact: float
    simulations: int
    seconds: float

    @property
    def z(self) -> float:
        """Standard errors between the simulated and the exact value."""
        return (self.simulated - self.exact) / self.std_error


class Matched(NamedTuple):
    """Rates per pseudo-sample of both kernels, the Gaussian's eps being such that they agree at M = 1."""

    eps: float
    gaussian_eps: float
    pseudo_samples: int
    uniform: float
    gaussian: float
    gaussian_same_eps: float
    simulated: float
    std_error: float
    simulations: int
    seconds: float


@dataclass(frozen=True)
class Study:
    """All results of a study."""

    plan: Plan
    outcomes: tuple[Outcome, ...]
    matched: tuple[Matched, ...]
    curves: tuple[EfficiencyCurve, ...]
    workers: int
    wall_seconds: float
    picked_up: int
    """Points that were already there."""

    @property
    def simulations(self) -> int:
        """Pseudo-samples drawn for the points."""
        return sum(one.simulations for one in self.outcomes) + sum(one.simulations for one in self.matched)

    @property
    def core_seconds(self) -> float:
        """Time the points took, were they done one after another."""
        return sum(one.seconds for one in self.outcomes) + sum(one.seconds for one in self.matched)


def toy_model(toy: Toy, engine: Engine = "numpy") -> od.Model:
    """The study's model as a user of that engine would write it."""
    sigma = toy.sigma_y
    if engine == "jax":
        import jax

        # As a Partial the noise is a number that may change, and not a part of the program.
        partial: Any = jax.tree_util.Partial
        return od.Model(prior(), od.jax_simulator(partial(simulate_on_jax, sigma=np.float64(sigma))), toy.y_obs)

    if engine == "numba":
        return od.Model(prior(), compiled_simulator(sigma), observed=toy.y_obs)

    @od.batched
    def simulate(rng: np.random.Generator, theta: Any) -> Any:
        return theta + sigma * rng.standard_normal(theta.size)

    return od.Model(prior(), simulate, observed=toy.y_obs)


@cache
def compiled_simulator(sigma: float) -> Any:
    """One pseudo-sample of the toy, compiled once a process and sigma."""

    def simulate(rng: Any, theta: float) -> float:
        return float(theta + sigma * rng.standard_normal())

    return od.compiled(simulate)


def simulate_on_jax(key: Any, theta: Any, sigma: Any) -> Any:
    """One pseudo-sample of the toy."""
    import jax

    return theta + sigma * jax.random.normal(key, dtype=theta.dtype)


@cache
def prior() -> od.Prior:
    """One object for all points: a prior is a part of the programs that JAX compiles."""
    from scipy import stats

    return od.Prior(theta=stats.norm(0, 1))


def chains_and_steps(iterations: int, pseudo_samples: int = 1, engine: Engine = "numpy") -> tuple[int, int]:
    """Chains and steps of each whose product is `iterations`, or the next number above it that can be cut evenly.

    >>> chains_and_steps(5_000_000), chains_and_steps(5_000_000, 64)
    ((8000, 625), (2000, 2500))
    """
    if engine == "jax":
        chains = min(DEVICE_CHAINS, 1 << max(0, (iterations // 50).bit_length() - 1))
        return chains, math.ceil(iterations / (chains * DEVICE_THIN)) * DEVICE_THIN
    most = min(int(np.clip(SIDE_BY_SIDE // pseudo_samples, *CHAINS)), max(1, iterations // 50))
    for chains in range(most, most // 2, -1):
        if iterations % chains == 0:
            return chains, iterations // chains
    return most, math.ceil(iterations / most)


def seed_of(plan: Plan, *place: int) -> int:
    """The seed of one task, from the study's seed and the task's place alone."""
    key = np.random.SeedSequence([plan.seed, int(plan.kernel == "gaussian"), *place])
    return int(key.generate_state(1, np.uint64)[0] >> np.uint64(1))


def kernel_function(kernel: str) -> Callable[[float], od.Kernel]:
    """od.uniform or od.gaussian."""
    return {"uniform": od.uniform, "gaussian": od.gaussian}[kernel]


def rate_per_pseudo_sample(
    toy: Toy, kernel: od.Kernel, pseudo_samples: int, iterations: int, seed: int, engine: Engine = "numpy"
) -> tuple[float, float, int]:
    """Simulated acceptance rate over M, its standard error, and the simulations it took."""
    chains, steps = chains_and_steps(iterations, pseudo_samples, engine)
    thin = DEVICE_THIN if engine == "jax" else 1
    post = od.pseudo_marginal(
        toy_model(toy, engine),
        kernel,
        proposal=od.independence(),
        chains=chains,
        draws=steps // thin,
        thin=thin,
        pseudo_samples=pseudo_samples,
        keep_distances=False,
        seed=seed,
        progress=False,
    )
    if not post.status.complete:
        raise KeyboardInterrupt
    return post.acceptance_rate / pseudo_samples, post.acceptance_rate_se / pseudo_samples, post.cost.simulations


def run_point(plan: Plan, index: int) -> Outcome:
    """Simulate the point of that index among all points of the study, and compute its exact value."""
    point: Point = points()[index]
    began = time.perf_counter()
    kernel, seed = kernel_function(plan.kernel), seed_of(plan, index)
    if point.eps is not None:
        value, error, simulations = rate_per_pseudo_sample(
            point.toy, kernel(point.eps), point.pseudo_samples, plan.iterations, seed, plan.engine
        )
    else:
        assert point.acceptance_rate is not None
        try:
            found = tolerance_for(
                toy_model(point.toy, plan.engine),
                point.acceptance_rate,
                kernel=kernel,
                pseudo_samples=point.pseudo_samples,
                proposal=od.independence(),
                budget=plan.iterations * point.pseudo_samples,
                seed=seed,
                progress=False,
            )
        except ValueError as problem:
            raise StudyError(
                f"figure {point.figure}, {point.series}, M = {point.pseudo_samples}: {problem}. More --iterations help"
            ) from problem
        value, error, simulations = found.eps, found.std_error, found.cost.simulations
    exact = exact_value(point, plan.kernel)
    seconds = time.perf_counter() - began
    return Outcome(point.figure, point.series, point.pseudo_samples, value, error, exact, simulations, seconds)


def run_matched(plan: Plan, index: int, eps: float, count: int) -> Matched:
    """Compare the two kernels at one eps and M of figure 1L."""
    began = time.perf_counter()
    toy = Toy()
    gaussian_eps = tolerance(acceptance_rate(toy, eps, 1), toy, 1, "gaussian")
    value, error, simulations = rate_per_pseudo_sample(
        toy, od.gaussian(gaussian_eps), count, plan.iterations, seed_of(plan, len(points()) + index), plan.engine
    )
    return Matched(
        eps,
        gaussian_eps,
        count,
        acceptance_rate(toy, eps, count) / count,
        acceptance_rate(toy, gaussian_eps, count, "gaussian") / count,
        acceptance_rate(toy, eps, count, "gaussian") / count,
        value,
        error,
        simulations,
        time.perf_counter() - began,
    )


def run_efficiency(setting: EfficiencySetting) -> EfficiencyCurve:
    """Exact asymptotic variances of one panel of the third figure."""
    return efficiency_curve(setting.proposal, setting.toy, setting.eps, setting.pseudo_samples)


class Task(NamedTuple):
    """One piece of work for a worker; `key` names it in the checkpoint."""

    key: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


def do(task: Task) -> Any:
    """The result of a task."""
    with one_blas_thread():
        return task.function(*task.arguments)


def point_tasks(plan: Plan) -> list[Task]:
    """The points of the plan's figures, then the comparison of the kernels."""
    tasks = [
        Task(f"point {index}", run_point, (plan, index))
        for index, point in enumerate(points())
        if point.figure in plan.figures
    ]
    if "1L" in plan.figures:
        tasks += [
            Task(f"matched {index}", run_matched, (plan, index, eps, count))
            for index, (eps, count) in enumerate(product(MATCHED_EPS, MATCHED_PSEUDO_SAMPLES))
        ]
    return tasks


def read_checkpoint(path: Path, plan: Plan) -> dict[str, Outcome | Matched]:
    """Finished tasks by key; a line that was cut off by a crash is dropped from the file.

    A StudyError where the file belongs to a study with other settings: its points are not these.
    """
    if not path.exists():
        _write_lines(path, [json.dumps(plan.identity())])
        return {}
    good: list[str] = []
    done: dict[str, Outcome | Matched] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if not good:
            if entry != plan.identity():
                raise StudyError(
                    f"{path} holds points of another study ({_described(entry)}; asked for: "
                    f"{_described(plan.identity())}): choose another --out, or remove that file to begin again"
                )
        else:
            kind = Outcome if entry["key"].startswith("point") else Matched
            done[entry["key"]] = kind(**entry["value"])
        good.append(line)
    _write_lines(path, good or [json.dumps(plan.identity())])
    return done


def _described(identity: Any) -> str:
    if not isinstance(identity, dict) or "iterations" not in identity:
        return "no study's header"
    return f"{identity['iterations']:,} iterations, {identity['kernel']} kernel, seed {identity['seed']}"


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    write_whole(path, "".join(line + "\n" for line in lines))


def table(outcomes: Sequence[Outcome]) -> str:
    """study.csv: numbers in the shortest form that reads back the same."""
    rows = [
        [one.figure, one.series, one.pseudo_samples, repr(one.simulated), repr(one.std_error), repr(one.exact)]
        for one in outcomes
    ]
    return "".join(",".join(map(str, row)) + "\n" for row in [COLUMNS, *rows])


@contextmanager
def _processes(workers: int, engine: Engine) -> Iterator[Executor | None]:
    """Worker processes, one a core; none for a single worker. An interrupt drops what has not begun."""
    if workers == 1:
        yield None
        return
    with TemporaryDirectory(prefix="onedraw-") as programs:
        pool = processes(workers, programs if engine == "jax" else None)
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()


def processes(workers: int, programs: str | None) -> ProcessPoolExecutor:
    """Worker processes; given a folder they share a device, and keep there what they compile for each other."""
    return ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_share_device, initargs=(programs,)
    )  # fmt: skip


def _share_device(programs: str | None) -> None:
    if programs is None:
        return
    # Otherwise the first process takes most of a GPU's memory for itself.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    # A study that has ended takes its programs away, and what is still under way need not say so.
    warnings.filterwarnings("ignore", message="Error .* persistent compilation cache")
    import jax

    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", programs)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _results(tasks: Sequence[Task], pool: Executor | None) -> Iterator[tuple[Task, Any]]:
    """Each task with its result, as they finish."""
    if pool is None:
        yield from ((task, do(task)) for task in tasks)
        return
    futures = {pool.submit(do, task): task for task in tasks}
    for future in as_completed(futures):
        yield futures[future], future.result()


def run_study(plan: Plan, out: Path, *, workers: int = 1, progress: Show = None) -> Study:
    """Run what is missing of the study, write `study.csv`, and return all results in the captions' order.

    Parameters: `out` the folder of the checkpoint and the table; `workers` processes; `progress` as in the samplers.
    """
    began = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    checkpoint = out / CHECKPOINT
    done = read_checkpoint(checkpoint, plan)
    wanted = point_tasks(plan)
    missing = [task for task in wanted if task.key not in done]
    curves = [Task(f"curve {index}", run_efficiency, (setting,)) for index, setting in enumerate(EFFICIENCY)]
    found: dict[str, EfficiencyCurve] = {}
    picked_up = len(wanted) - len(missing)
    with (
        _processes(workers, plan.engine) as pool,
        Progress(progress, "study", len(missing) + len(curves), "points") as bar,
        checkpoint.open("a", encoding="utf-8", newline="\n") as file,
    ):
        for count, (task, result) in enumerate(_results([*missing, *curves], pool), start=1):
            if isinstance(result, EfficiencyCurve):
                found[task.key] = result
            else:
                done[task.key] = result
                file.write(json.dumps({"key": task.key, "value": result._asdict()}) + "\n")
                file.flush()
            bar.update(count)
    results = [done[task.key] for task in wanted]
    study = Study(
        plan=plan,
        outcomes=tuple(one for one in results if isinstance(one, Outcome)),
        matched=tuple(one for one in results if isinstance(one, Matched)),
        curves=tuple(found[task.key] for task in curves),
        workers=workers,
        wall_seconds=time.perf_counter() - began,
        picked_up=picked_up,
    )
    write_whole(out / TABLE, table(study.outcomes))
    return study


def forecast_seconds(plan: Plan, workers: int, done: Iterable[str] = ()) -> float:
    """About how long the missing points will take here, from two short timed runs.

    A step costs a part that does not depend on M and a part that grows with it.
    """
    steps = 50_000

    def seconds(count: int) -> float:
        began = time.perf_counter()
        rate_per_pseudo_sample(Toy(), kernel_function(plan.kernel)(EPS_1L[0]), count, steps, 0, plan.engine)
        return (time.perf_counter() - began) / steps

    with one_blas_thread():
        seconds(1)
        one, many = seconds(1), seconds(64)
    finished = set(done)
    total = 0.0
    for task in point_tasks(plan):
        if task.key in finished:
            continue
        if task.function is run_matched:
            total += plan.iterations * (one + many) / 2
            continue
        point = points()[task.arguments[1]]
        step = one + (many - one) * (point.pseudo_samples - 1) / 63
        total += plan.iterations * step
        if point.eps is None:
            total += plan.iterations * step * (SEARCH_OVERHEAD - 1) + SEARCH_SECONDS
        if plan.kernel == "gaussian" and point.pseudo_samples > 1:
            total += CORE_SECONDS_GAUSSIAN
    return FIXED_SECONDS + total / workers


class Agreement(NamedTuple):
    """How well simulated values agree with exact ones."""

    points: int
    within_2: int
    within_4: int
    chi_squared: float
    p_above: float
    """Probability of a larger chi-squared if all is right."""
    worst: Outcome

    @property
    def fine(self) -> bool:
        """All within 4 standard errors, and chi-squared between its 1e-4 quantiles on both sides."""
        return self.within_4 == self.points and 1e-4 < self.p_above < 1 - 1e-4


def agreement(outcomes: Sequence[Outcome]) -> Agreement:
    """Chi-squared of the simulated values against the exact ones; the points are independent of each other."""
    from scipy.stats import chi2

    z = np.array([one.z for one in outcomes])
    total = float(z @ z)
    return Agreement(
        len(outcomes),
        int(np.count_nonzero(np.abs(z) <= 2)),
        int(np.count_nonzero(np.abs(z) <= 4)),
        total,
        float(chi2.sf(total, len(outcomes))),
        outcomes[int(np.abs(z).argmax())],
    )


def machine() -> dict[str, str]:
    """What the study ran on, for the page: no names of hosts or users."""
    import scipy

    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return {
        "processor": model,
        "cores": str(usable_cores()),
        "system": platform.system(),
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "SciPy": scipy.__version__,
        "onedraw": od.__version__,
    }


def default_workers(engine: Engine) -> int:
    """Processes where none are asked for."""
    return min(usable_cores(), DEVICE_PROCESSES) if engine == "jax" else usable_cores()


def usable_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(100)
    '1 min 40 s'
    """
    seconds = max(1, round(seconds))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"
