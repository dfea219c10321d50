"""Run the contrast: for every point kappa with its interval, the cost of a step, and what they make together.

The efficiency of a point is 1/(kappa x cost of a step): effective draws a unit of cost, where cost counts simulations
(particles moved, in a filter), or seconds where set-ups are shared. Seconds are prices of a step, a set-up and a draw,
timed in turns at all M, times what the chain really did. Where a problem has several parameters the worst counts.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import onedraw as od
from onedraw.engines.arrays import Array
from onedraw.engines.threads import one_blas_thread
from onedraw.paper.contrast import problems
from onedraw.paper.contrast.problems import LINES, QUICK, Line, line_of
from onedraw.paper.study.run import toy_model
from onedraw.paper.study.settings import Toy
from onedraw.report.pages import write_whole
from onedraw.results.efficiency import Estimate, Variances, chain_simulations, estimate, variances
from onedraw.results.posterior import Posterior
from onedraw.run.progress import Progress, Show
from onedraw.tuning.prices import Timed, time_steps

TOY_EPS = 0.25
BURN_IN = 4
"""A chain that does not start in its stationary law gives up one part in so many."""
GROUPS = 8
"""Groups of chains whose longest stalls say how far the longest of all may be trusted."""
STARTS = 1000
RESULTS = "contrast.json"


@dataclass(frozen=True)
class Plan:
    """What a contrast computes; with equal plans all that is counted, not timed, is equal."""

    seed: int = 1
    share: float = 1.0
    """Of the full budget of each point, where `quick` does not say less."""
    quick: bool = False
    lines: tuple[str, ...] = tuple(line.key for line in LINES)

    def budget(self, line: Line) -> int:
        """Simulations of a point of that line."""
        return max(1, int(line.budget * self.share / (QUICK[line.key] if self.quick else 1)))


class Measured(NamedTuple):
    """One point."""

    line: str
    number: int
    kappa: Estimate
    reason: str
    """Why kappa could only be bounded from below, where that is so."""
    cost: Estimate
    """Of a step of one chain, in the line's unit."""
    efficiency: Estimate
    degrees: int
    shape: tuple[int, int]
    """(chains, draws) that count."""
    acceptance_rate: float
    stall: Estimate
    """Longest run of equal draws of a chain: of all chains, with the range over groups of chains."""
    simulations: int
    seconds: float

    @property
    def resolved(self) -> bool:
        return not self.reason


def measured(line: Line, count: int, each: Sequence[Array], cost: Estimate, post: Posterior) -> Measured:
    """The point that draws (chains, n) of the functions and the cost of a step make."""
    found = [variances(values) for values in each]
    worst = _worst(found)
    kappa = worst.kappa
    if worst.reason:
        # Only a limit: no more than this.
        efficiency = Estimate(math.nan, math.nan, 0.0, 1 / (max(kappa.low, 1.0) * cost.value))
    else:
        value = 1 / (kappa.value * cost.value)
        relative = math.hypot(kappa.se / kappa.value, cost.se / cost.value)
        efficiency = estimate(value, value * relative, worst.degrees)
    return Measured(
        line.key,
        count,
        kappa,
        worst.reason,
        cost,
        efficiency,
        worst.degrees,
        (int(each[0].shape[0]), int(each[0].shape[1])),
        post.acceptance_rate,
        longest_stall(each[0]),
        post.cost.simulations,
        post.cost.seconds,
    )


def _worst(found: Sequence[Variances]) -> Variances:
    """The function with the largest kappa; one that could not be estimated is the worst of all."""
    unresolved = [one for one in found if one.reason]
    if unresolved:
        return max(unresolved, key=lambda one: np.nan_to_num(one.kappa.low))
    return max(found, key=lambda one: one.kappa.value)


def longest_stall(values: Array) -> Estimate:
    """Longest run of equal neighbours over all rows (chains, n), with the range of it over groups of chains.

    >>> longest_stall(np.array([[1, 1, 2, 2, 2, 3.0]])).value
    3.0
    """
    stalls = np.array([np.diff(np.flatnonzero(np.r_[True, row[1:] != row[:-1], True])).max() for row in values])
    groups = [float(part.max()) for part in np.array_split(stalls, min(GROUPS, len(stalls)))]
    return Estimate(float(stalls.max()), math.nan, min(groups), max(groups))


# --- the lines ----------------------------------------------------------------------------------------------


def _parameters(post: Posterior, first: int = 0) -> list[Array]:
    return [np.asarray(values[:, first:], dtype=float) for values in post.draws.values()]


def _counted(post: Posterior) -> Estimate:
    """Mean simulations of a chain's step, whose error is far below that of kappa."""
    simulations, _ = chain_simulations(post)
    mean = simulations / math.prod(post.shape)
    return Estimate(mean, 0.0, mean, mean)


def run_toy(line: Line, count: int, budget: int, seed: int) -> Measured:
    """The paper's toy, proposals from the prior."""
    post = od.pseudo_marginal(
        toy_model(Toy()), od.uniform(TOY_EPS), proposal=od.independence(), pseudo_samples=count, chains=line.chains,
        draws=budget // (line.chains * count), keep_distances=False, seed=seed, progress=False,
    )  # fmt: skip
    return measured(line, count, _parameters(post), _counted(post), post)


def _started(model: od.Model, kernel: od.Kernel, draws: int, seed: int) -> tuple[Posterior, Array]:
    """Draws of Algorithm 1 for the chains to start from, and the covariance of others for their walk."""
    found = od.rejection(model, kernel, draws=2 * draws, seed=seed, progress=False)
    theta = np.stack([values[0, draws:] for values in found.draws.values()]).astype(float)
    assert found.distances is not None
    first = {name: values[:, :draws] for name, values in found.draws.items()}
    return replace(found, draws=first, distances=found.distances[:, :draws]), np.atleast_2d(np.cov(theta))


def run_g_and_k(line: Line, count: int, budget: int, seed: int) -> Measured:
    """The g-and-k model, a random walk with the posterior's covariance."""
    model, kernel = problems.g_and_k(), od.uniform(problems.G_AND_K_EPS)
    start, cov = _started(model, kernel, STARTS, seed)
    post = od.pseudo_marginal(
        model, kernel, proposal=od.random_walk(cov, scale=2.38 / 2), pseudo_samples=count, chains=line.chains,
        budget=budget, start=start, keep_distances=False, seed=seed, progress=False,
    )  # fmt: skip
    return measured(line, count, _parameters(post), _counted(post), post)


@lru_cache(maxsize=1)
def process_prices(chains: int) -> Timed:
    """Prices of a step, a set-up and a draw of the Gaussian process, timed once: points differ in what they count."""
    model, kernel = problems.process(), od.uniform(problems.PROCESS_EPS)
    start, cov = _started(model, kernel, 64, 1)
    walk = od.random_walk(cov, scale=2.38)
    return time_steps(model, kernel, walk, start, (1, 8, 64), chains, 16, 1, clock=time.process_time).timed


def run_process(line: Line, count: int, budget: int, seed: int, starts: int | None = None) -> Measured:
    """The Gaussian process; the cost is in seconds."""
    model, kernel = problems.process(), od.uniform(problems.PROCESS_EPS)
    # Starts cost more than a short run, and sixteen chains can do with fewer.
    start, cov = _started(model, kernel, starts or (200 if budget > 10_000 else 64), seed)
    walk = od.random_walk(cov, scale=2.38)
    # Set-ups take most of the time, so larger M may draw more for as long.
    spend = int(budget * count**0.75)
    post = od.pseudo_marginal(
        model, kernel, proposal=walk, pseudo_samples=count, chains=line.chains, budget=spend,
        draws=8 * spend // (line.chains * count), start=start, keep_distances=False, seed=seed, progress=False,
    )  # fmt: skip
    steps = math.prod(post.shape)
    setups = (post.cost.setups - (line.chains if count > 1 else 0)) / steps
    cost = process_prices(line.chains).price(_counted(post).value, setups)
    return measured(line, count, _parameters(post), cost, post)


def run_filter(line: Line, count: int, budget: int, seed: int) -> Measured:
    """Particle MCMC, from draws of the exact posterior; the first quarter is thrown away.

    Starting points are right and starting estimates are not yet: those of a chain at rest are larger.
    """
    times = line.times
    mu, mass = problems.exact_posterior(times)
    sd = math.sqrt(float(mass @ mu**2 - (mass @ mu) ** 2))
    # Few particles need long chains to show how slow they are, and are all overhead; many need enough steps too.
    draws = max(8, int(budget / (line.chains * count**line.power * times)))
    start = {"mu": np.random.default_rng(seed).choice(mu, line.chains, p=mass)}
    post = od.pseudo_marginal(
        estimator=problems.state_space(times, count), proposal=od.random_walk(sd**2, scale=2.38), start=start,
        draws=draws, seed=seed, progress=False,
    )  # fmt: skip
    return measured(line, count, _parameters(post, draws // BURN_IN), _counted(post), post)


def run_tails(line: Line, count: int, budget: int, seed: int) -> Measured:
    """A target with heavy tails, by fixed M or by r-hit at about the same cost; f is whether theta is far out."""
    model, kernel = problems.tails(), od.uniform(problems.TAILS_EPS)
    start, _ = _started(model, kernel, STARTS, seed)
    given: dict[str, Any] = {
        "proposal": od.random_walk(problems.WALK**2), "chains": line.chains, "start": start, "seed": seed,
        "progress": False,
    }  # fmt: skip
    if line.key == "tails":
        draws = budget // (line.chains * count)
        post = od.pseudo_marginal(model, kernel, pseudo_samples=count, draws=draws, keep_distances=False, **given)
        cost = _counted(post)
    else:
        # A hit takes as many draws on average as the prior is wider than the kernel.
        a_step = (2 * count - 1) * problems.REACH / problems.TAILS_EPS
        post = od.r_hit(
            model, kernel, hits=count, draws=max(8, int(budget / (line.chains * a_step))), max_draws=10**6, **given
        )
        mean = post.cost.simulations / math.prod(post.shape)
        cost = Estimate(mean, 0.0, mean, mean)
    theta = _parameters(post)[0]
    found = measured(line, count, [(np.abs(theta) > problems.REACH / 3).astype(float)], cost, post)
    return found._replace(stall=longest_stall(theta))


RUNNERS = {
    "toy": run_toy,
    "g-and-k": run_g_and_k,
    "process": run_process,
    "filter-100": run_filter,
    "filter-400": run_filter,
    "tails": run_tails,
    "hits": run_tails,
}


class Task(NamedTuple):
    """One point to be measured."""

    plan: Plan
    line: str
    number: int


def tasks_of(plan: Plan) -> list[Task]:
    """All points of a plan."""
    wanted = [line for line in LINES if line.key in plan.lines and not (plan.quick and line.key not in QUICK)]
    return [Task(plan, line.key, count) for line in wanted for count in line.counts]


def seed_of(task: Task) -> int:
    """The seed of a point, from the plan's seed and the point's place alone."""
    places = [line.key for line in LINES]
    # All points of a line start from the same draws: they differ in M alone.
    key = np.random.SeedSequence([task.plan.seed, places.index(task.line), task.number])
    return int(key.generate_state(1, np.uint64)[0] >> np.uint64(1))


def run_task(task: Task) -> Measured:
    """Measure one point."""
    line = line_of(task.line)
    with one_blas_thread():
        return RUNNERS[task.line](line, task.number, task.plan.budget(line), seed_of(task))


@dataclass(frozen=True)
class Contrast:
    """All points, by line and M."""

    plan: Plan
    points: tuple[Measured, ...]
    workers: int
    wall_seconds: float

    def line(self, key: str) -> tuple[Measured, ...]:
        """The points of one line, in the order of M."""
        return tuple(point for point in self.points if point.line == key)

    @property
    def simulations(self) -> int:
        return sum(point.simulations for point in self.points)

    def to_json(self) -> str:
        """The numbers as JSON text; null where there is none."""

        def plain(value: Any) -> Any:
            if isinstance(value, tuple) and hasattr(value, "_asdict"):
                return {name: plain(part) for name, part in value._asdict().items()}
            if isinstance(value, float):
                return value if math.isfinite(value) else None
            return list(value) if isinstance(value, tuple) else value

        from onedraw.paper.contrast.shapes import shapes_of

        return json.dumps(
            {
                "seed": self.plan.seed,
                "quick": self.plan.quick,
                "points": [plain(point) for point in self.points],
                "shapes": [plain(shape) for shape in shapes_of(self)],
            },
            allow_nan=False,
        )


def _results(tasks: Sequence[Task], workers: int) -> Iterator[tuple[Task, Measured]]:
    """Each task with its point, as they finish."""
    if workers == 1:
        for task in tasks:
            yield task, run_task(task)
        return
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        futures = {pool.submit(run_task, task): task for task in tasks}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def run_contrast(plan: Plan, out: Path | None = None, *, workers: int = 1, progress: Show = None) -> Contrast:
    """Measure all points, write `contrast.json` into the folder `out`, and return them in the lines' order."""
    began = time.perf_counter()
    tasks = tasks_of(plan)
    # Filters with few particles have the longest chains, and are the last to finish if they begin last.
    order = sorted(tasks, key=lambda task: not task.line.startswith(("filter", "hits")))
    found: dict[Task, Measured] = {}
    with Progress(progress, "contrast", len(tasks), "points") as bar:
        for number, (task, point) in enumerate(_results(order, workers), start=1):
            found[task] = point
            bar.update(number)
    contrast = Contrast(plan, tuple(found[task] for task in tasks), workers, time.perf_counter() - began)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / RESULTS, contrast.to_json() + "\n")
    return contrast
