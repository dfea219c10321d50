"""Run the study: every point by the public samplers, compared with its exact value (docs/study.md).

Figure 1L is `od.pseudo_marginal` at a given eps; figures 1R, 2L and 2R are `od.tolerance_for`. A point's seed
depends on the study's seed and on the point alone, so that no number depends on the figures asked for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import onedraw as od
from onedraw.engines.streams import derived_seed
from onedraw.engines.threads import one_blas_thread
from onedraw.model.kernels import Kernel
from onedraw.paper.study.efficiency import EfficiencyCurve, efficiency_curve
from onedraw.paper.study.quadrature import acceptance_rate, exact_value, tolerance
from onedraw.paper.study.settings import EFFICIENCY, EPS_1L, FIGURES, ITERATIONS, EngineName, KernelName, Toy, points
from onedraw.paper.tasks import StudyError, Task, finished, run_tasks, usable_cores
from onedraw.report.pages import write_whole
from onedraw.run.progress import Show
from onedraw.tuning.tolerance import DEVICE_THIN

QUICK_ITERATIONS = ITERATIONS // 10
LEAST_ITERATIONS = {"1L": 1000, "1R": 300_000, "2L": 300_000, "2R": 300_000}
"""With fewer a rate has no useful error, and a search for eps at 0.4 % too few moves to state one."""
CHAINS, SIDE_BY_SIDE = (2000, 8000), 128_000
"""Fewest and most chains in figure 1L, and the pseudo-samples that all of them draw in one step: enough for array code
to be fast, few enough to stay in the cache."""
DEVICE_CHAINS = 4096
"""The same on a device, for every M: few enough that their starting points are soon found, and those of the searches in
the other figures, so that they share programs."""
DEVICE_PROCESSES = 8
"""The most processes that share a device by default: while one waits for it, others prepare their questions."""
TABLE = "study.csv"
COLUMNS = ("figure", "series", "pseudo_samples", "simulated", "std_error", "exact")

MATCHED_EPS: tuple[float, ...] = (EPS_1L[0], EPS_1L[-1])
MATCHED_PSEUDO_SAMPLES: tuple[int, ...] = (1, 4, 16, 64)
"""At which eps and M the Gaussian kernel is compared with the uniform one."""

CORE_SECONDS_GAUSSIAN = 1.1
"""Time for one exact value of the Gaussian kernel's tolerance (112 s for all points), for the forecast alone."""
SEARCH_OVERHEAD, SEARCH_SECONDS = 1.2, 0.4
"""Time of a tolerance point over that of as many steps of one long run, and what its short runs add, for the forecast
alone."""
FIXED_SECONDS = 8.0
"""Start of the processes, exact variances, figures and page, for the forecast alone."""


@dataclass(frozen=True)
class StudyPlan:
    """What a study computes; two runs with equal plans give equal numbers."""

    iterations: int = ITERATIONS
    kernel: KernelName = "uniform"
    seed: int = 1
    figures: tuple[str, ...] = FIGURES
    engine: EngineName = "numpy"

    def __post_init__(self) -> None:
        for figure in self.figures:
            if figure not in FIGURES:
                raise StudyError(f"no figure {figure!r} in the study: choose from {', '.join(FIGURES)}")
            if self.iterations < LEAST_ITERATIONS[figure]:
                raise StudyError(
                    f"figure {figure} needs at least {LEAST_ITERATIONS[figure]:,} iterations, got {self.iterations:,}: "
                    "with fewer the error of its values cannot be stated"
                )

    def identity(self) -> str:
        """What must agree for finished points to be used again."""
        engine = "" if self.engine == "numpy" else f", {self.engine} engine"
        return f"{self.iterations:,} iterations, {self.kernel} kernel, seed {self.seed}{engine}"


class SimulatedPoint(NamedTuple):
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


class KernelComparison(NamedTuple):
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
class StudyResults:
    """All results of a study."""

    plan: StudyPlan
    outcomes: tuple[SimulatedPoint, ...]
    matched: tuple[KernelComparison, ...]
    curves: tuple[EfficiencyCurve, ...]
    workers: int
    wall_seconds: float
    picked_up: int
    """Points that were already there."""

    @property
    def points(self) -> list[SimulatedPoint | KernelComparison]:
        """All that was simulated."""
        return [*self.outcomes, *self.matched]

    @property
    def simulations(self) -> int:
        """Pseudo-samples drawn for the points."""
        return sum(one.simulations for one in self.points)

    @property
    def core_seconds(self) -> float:
        """Time the points took, were they done one after another."""
        return sum(one.seconds for one in self.points)


def toy_model(toy: Toy, engine: EngineName = "numpy") -> od.Model:
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
    """One pseudo-sample of the toy, compiled once per process and sigma."""

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


def chains_and_steps(iterations: int, pseudo_samples: int = 1, engine: EngineName = "numpy") -> tuple[int, int]:
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


def kernel_function(kernel: KernelName) -> Callable[..., Kernel]:
    """od.uniform or od.gaussian."""
    return {"uniform": od.uniform, "gaussian": od.gaussian}[kernel]


def rate_per_pseudo_sample(
    toy: Toy, kernel: Kernel, pseudo_samples: int, iterations: int, seed: int, engine: EngineName = "numpy"
) -> tuple[float, float, int]:
    """Simulated acceptance rate over M, its standard error, and the simulations it took."""
    chains, steps = chains_and_steps(iterations, pseudo_samples, engine)
    thin = DEVICE_THIN if engine == "jax" else 1
    post = od.pseudo_marginal(
        toy_model(toy, engine), kernel, proposal=od.independence(), chains=chains, draws=steps // thin, thin=thin,
        pseudo_samples=pseudo_samples, keep="draws", seed=seed, progress=False,
    )  # fmt: skip
    if not post.status.complete:
        raise KeyboardInterrupt
    return post.acceptance_rate / pseudo_samples, post.acceptance_rate_se / pseudo_samples, post.cost.simulations


def seed_at(plan: StudyPlan, place: int) -> int:
    """The seed of the point at this place; the two kernels have different ones."""
    return derived_seed(plan.seed, int(plan.kernel == "gaussian"), place)


def run_point(plan: StudyPlan, index: int) -> SimulatedPoint:
    """Simulate the point of that index among all points of the study, and compute its exact value."""
    point, began = points()[index], time.perf_counter()
    count, kernel, seed = point.pseudo_samples, kernel_function(plan.kernel), seed_at(plan, index)
    if point.eps is not None:
        value, error, simulations = rate_per_pseudo_sample(
            point.toy, kernel(point.eps), count, plan.iterations, seed, plan.engine
        )
    else:
        assert point.acceptance_rate is not None
        try:
            found = od.tolerance_for(
                toy_model(point.toy, plan.engine), point.acceptance_rate, kernel=kernel(), pseudo_samples=count,
                proposal=od.independence(), budget=plan.iterations * count, seed=seed, progress=False,
            )  # fmt: skip
        except ValueError as problem:
            raise StudyError(
                f"figure {point.figure}, {point.series}, M = {count}: {problem}. More --iterations help"
            ) from problem
        value, error, simulations = found.eps, found.std_error, found.cost.simulations
    exact = exact_value(point, plan.kernel)
    seconds = time.perf_counter() - began
    return SimulatedPoint(point.figure, point.series, count, value, error, exact, simulations, seconds)


def run_matched(plan: StudyPlan, index: int, eps: float, count: int) -> KernelComparison:
    """Compare the two kernels at one eps and M of figure 1L."""
    began, toy = time.perf_counter(), Toy()
    gaussian_eps = tolerance(acceptance_rate(toy, eps, 1), toy, 1, "gaussian")
    seed = seed_at(plan, len(points()) + index)
    simulated = rate_per_pseudo_sample(toy, od.gaussian(gaussian_eps), count, plan.iterations, seed, plan.engine)
    exact = (
        acceptance_rate(toy, eps, count) / count,
        acceptance_rate(toy, gaussian_eps, count, "gaussian") / count,
        acceptance_rate(toy, eps, count, "gaussian") / count,
    )
    return KernelComparison(eps, gaussian_eps, count, *exact, *simulated, time.perf_counter() - began)


def point_tasks(plan: StudyPlan) -> list[Task]:
    """The points of the plan's figures, then the comparison of the kernels."""
    tasks = [
        Task(f"point {index}", run_point, (plan, index), SimulatedPoint, (int(point.eps is None), point.pseudo_samples))
        for index, point in enumerate(points())
        if point.figure in plan.figures
    ]
    if "1L" in plan.figures:
        tasks += [
            Task(f"matched {index}", run_matched, (plan, index, eps, count), KernelComparison, (-1, count))
            for index, (eps, count) in enumerate(product(MATCHED_EPS, MATCHED_PSEUDO_SAMPLES))
        ]
    return tasks


def table(outcomes: Sequence[SimulatedPoint]) -> str:
    """study.csv: numbers in the shortest form that reads back the same."""
    rows = [[str(getattr(one, column)) for column in COLUMNS] for one in outcomes]
    return "".join(",".join(row) + "\n" for row in [COLUMNS, *rows])


def run_study(plan: StudyPlan, out: Path, *, workers: int = 1, progress: Show = None) -> StudyResults:
    """Run what is missing of the study, write `study.csv`, and return all results in the captions' order.

    Parameters: `out` the folder of the checkpoint and the table; `workers` processes; `progress` as in the samplers.
    """
    began = time.perf_counter()
    wanted = point_tasks(plan)
    curves = [
        Task(f"curve {k}", efficiency_curve, (proposal, Toy(), eps)) for k, (proposal, eps) in enumerate(EFFICIENCY)
    ]
    done = finished(out, plan.identity(), wanted)
    missing = [task for task in wanted if task.key not in done]
    found = run_tasks(
        [*missing, *curves], out, "study", workers=workers, progress=progress, device=plan.engine == "jax"
    )
    results = [found[task.key] if task.key in found else done[task.key] for task in wanted]
    study = StudyResults(
        plan=plan,
        outcomes=tuple(one for one in results if isinstance(one, SimulatedPoint)),
        matched=tuple(one for one in results if isinstance(one, KernelComparison)),
        curves=tuple(found[task.key] for task in curves),
        workers=workers,
        wall_seconds=time.perf_counter() - began,
        picked_up=len(wanted) - len(missing),
    )
    write_whole(out / TABLE, table(study.outcomes))
    return study


def default_workers(engine: EngineName) -> int:
    """The number of processes by default."""
    return min(usable_cores(), DEVICE_PROCESSES) if engine == "jax" else usable_cores()


def forecast_seconds(plan: StudyPlan, workers: int, done: Iterable[str] = ()) -> float:
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

    def task_seconds(task: Task) -> float:
        if task.function is run_matched:
            return plan.iterations * (one + many) / 2
        point = points()[task.arguments[1]]
        total = plan.iterations * (one + (many - one) * (point.pseudo_samples - 1) / 63)
        if point.eps is None:
            total = SEARCH_OVERHEAD * total + SEARCH_SECONDS
        return total + CORE_SECONDS_GAUSSIAN * (plan.kernel == "gaussian" and point.pseudo_samples > 1)

    known = set(done)
    return FIXED_SECONDS + sum(task_seconds(task) for task in point_tasks(plan) if task.key not in known) / workers


class Agreement(NamedTuple):
    """How well simulated values agree with exact ones."""

    points: int
    within_2: int
    within_4: int
    chi_squared: float
    p_above: float
    """Probability of a larger chi-squared if all is right."""
    worst: SimulatedPoint

    @property
    def fine(self) -> bool:
        """All within 4 standard errors, and chi-squared between its 1e-4 quantiles on both sides."""
        return self.within_4 == self.points and 1e-4 < self.p_above < 1 - 1e-4


def agreement(outcomes: Sequence[SimulatedPoint]) -> Agreement:
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
