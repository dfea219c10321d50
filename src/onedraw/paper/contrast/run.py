"""Run the contrast: for every point kappa with its interval, the cost of a step, and what they make together.

The efficiency of a point is 1/(kappa x cost of a step): effective draws per unit of cost. Cost counts simulations
(particles moved, in a filter), or seconds if set-ups are shared. Seconds are prices of a step, a set-up and a draw,
timed in turns at all M, times what the chain really did. If a problem has several parameters the worst counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import onedraw as od
from onedraw.engines.arrays import Array
from onedraw.engines.streams import derived_seed
from onedraw.model.kernels import Kernel
from onedraw.paper.contrast import problems
from onedraw.paper.contrast.problems import LINES, QUICK, ContrastLine, line_of
from onedraw.paper.study.run import toy_model
from onedraw.paper.study.settings import Toy
from onedraw.paper.tasks import Task, finished, run_tasks
from onedraw.results.efficiency import chain_simulations
from onedraw.results.monte_carlo_error import Interval, Variances, exactly, interval, variances
from onedraw.run.progress import Show
from onedraw.tuning.prices import Timed, time_steps

TOY_EPS = 0.25
BURN_IN = 4
"""A chain that does not start in its stationary law drops one part in this many."""
GROUPS = 8
"""Groups of chains whose longest stalls say how far the longest of all may be trusted."""
STARTS = 1000


@dataclass(frozen=True)
class ContrastPlan:
    """What a contrast computes; with equal plans all that is counted, not timed, is equal."""

    seed: int = 1
    share: float = 1.0
    """Of the full budget of each point, if `quick` does not say less."""
    quick: bool = False
    lines: tuple[str, ...] = tuple(line.key for line in LINES)

    def budget(self, line: ContrastLine) -> int:
        """Simulations of a point of that line."""
        return max(1, int(line.budget * self.share / (QUICK[line.key] if self.quick else 1)))

    def identity(self) -> str:
        """What must agree for finished points to be used again."""
        return f"contrast{', quick' if self.quick else ''}, {self.share:g} of the budget, seed {self.seed}"


class Measured(NamedTuple):
    """One point."""

    line: str
    number: int
    kappa: Interval
    reason: str
    """Why kappa could only be bounded from below, if that is so."""
    cost: Interval
    """Of a step of one chain, in the line's unit."""
    efficiency: Interval
    degrees: int
    shape: tuple[int, int]
    """(chains, draws) that count."""
    acceptance_rate: float
    stall: Interval
    """Longest run of equal draws of a chain: of all chains, with the range over groups of chains."""
    simulations: int
    seconds: float

    @property
    def resolved(self) -> bool:
        return not self.reason


def measured(line: ContrastLine, count: int, each: Sequence[Array], cost: Interval, post: od.Posterior) -> Measured:
    """The point that draws (chains, n) of the functions and the cost of a step make."""
    found = [variances(values) for values in each]
    worst = _worst(found)
    kappa = worst.kappa
    if worst.reason:
        # Only a limit: no more than this.
        efficiency = Interval(math.nan, math.nan, 0.0, 1 / (max(kappa.low, 1.0) * cost.value))
    else:
        value = 1 / (kappa.value * cost.value)
        relative = math.hypot(kappa.se / kappa.value, cost.se / cost.value)
        efficiency = interval(value, value * relative, worst.degrees)
    chains, draws = each[0].shape
    return Measured(
        line.key, count, kappa, worst.reason, cost, efficiency, worst.degrees, (chains, draws), post.acceptance_rate,
        longest_stall(each[0]), post.cost.simulations, post.cost.seconds,
    )  # fmt: skip


def _worst(found: Sequence[Variances]) -> Variances:
    """The function with the largest kappa; one that could not be estimated is the worst of all."""
    unresolved = [one for one in found if one.reason]
    if unresolved:
        return max(unresolved, key=lambda one: np.nan_to_num(one.kappa.low))
    return max(found, key=lambda one: one.kappa.value)


def longest_stall(values: Array) -> Interval:
    """Longest run of equal neighbours over all rows (chains, n), with the range of it over groups of chains.

    >>> longest_stall(np.array([[1, 1, 2, 2, 2, 3.0]])).value
    3.0
    """
    stalls = np.array([np.diff(np.flatnonzero(np.r_[True, row[1:] != row[:-1], True])).max() for row in values])
    groups = [float(part.max()) for part in np.array_split(stalls, min(GROUPS, len(stalls)))]
    return Interval(float(stalls.max()), math.nan, min(groups), max(groups))


# --- the lines ----------------------------------------------------------------------------------------------


def _parameters(post: od.Posterior, first: int = 0) -> list[Array]:
    return [np.asarray(values[:, first:], dtype=float) for values in post.draws.values()]


def _counted(post: od.Posterior) -> Interval:
    """Mean simulations of a chain's step, whose error is far below that of kappa."""
    simulations, _ = chain_simulations(post)
    return exactly(simulations / math.prod(post.shape))


def run_toy(line: ContrastLine, count: int, budget: int, seed: int) -> Measured:
    """The paper's toy, proposals from the prior."""
    post = od.pseudo_marginal(
        toy_model(Toy()), od.uniform(TOY_EPS), proposal=od.independence(), pseudo_samples=count, chains=line.chains,
        draws=budget // (line.chains * count), keep="draws", seed=seed, progress=False,
    )  # fmt: skip
    return measured(line, count, _parameters(post), _counted(post), post)


def _started(model: od.Model, kernel: Kernel, draws: int, seed: int) -> tuple[od.Posterior, Array]:
    """Draws of Algorithm 1 for the chains to start from, and the covariance of others for their walk."""
    found = od.rejection(model, kernel, draws=2 * draws, seed=seed, progress=False)
    theta = np.stack([values[0, draws:] for values in found.draws.values()]).astype(float)
    assert found.distances is not None
    first = {name: values[:, :draws] for name, values in found.draws.items()}
    return replace(found, draws=first, distances=found.distances[:, :draws]), np.atleast_2d(np.cov(theta))


def run_g_and_k(line: ContrastLine, count: int, budget: int, seed: int) -> Measured:
    """The g-and-k model, a random walk with the posterior's covariance."""
    model, kernel = problems.g_and_k(), od.uniform(problems.G_AND_K_EPS)
    start, cov = _started(model, kernel, STARTS, seed)
    post = od.pseudo_marginal(
        model, kernel, proposal=od.random_walk(cov, scale=2.38 / 2), pseudo_samples=count, chains=line.chains,
        budget=budget, start=start, keep="draws", seed=seed, progress=False,
    )  # fmt: skip
    return measured(line, count, _parameters(post), _counted(post), post)


@lru_cache(maxsize=1)
def process_prices(chains: int) -> Timed:
    """Prices of a step, a set-up and a draw of the Gaussian process, timed once: points differ in what they count."""
    model, kernel = problems.process(), od.uniform(problems.PROCESS_EPS)
    start, cov = _started(model, kernel, 64, 1)
    walk = od.random_walk(cov, scale=2.38)
    seconds, _ = time_steps(model, kernel, walk, start, (1, 8, 64), chains, 16, 1, clock=time.process_time)
    return Timed.of(seconds["seconds"])


def run_process(line: ContrastLine, count: int, budget: int, seed: int, starts: int | None = None) -> Measured:
    """The Gaussian process; the cost is in seconds."""
    model, kernel = problems.process(), od.uniform(problems.PROCESS_EPS)
    # Starts cost more than a short run, and sixteen chains can do with fewer.
    start, cov = _started(model, kernel, starts or (200 if budget > 10_000 else 64), seed)
    walk = od.random_walk(cov, scale=2.38)
    # Set-ups take most of the time, so larger M may draw more for as long.
    spend = int(budget * count**0.75)
    post = od.pseudo_marginal(
        model, kernel, proposal=walk, pseudo_samples=count, chains=line.chains, budget=spend,
        draws=8 * spend // (line.chains * count), start=start, keep="draws", seed=seed, progress=False,
    )  # fmt: skip
    steps = math.prod(post.shape)
    setups = (post.cost.setups - (line.chains if count > 1 else 0)) / steps
    cost = process_prices(line.chains).price(_counted(post).value, setups)
    return measured(line, count, _parameters(post), cost, post)


def run_filter(line: ContrastLine, count: int, budget: int, seed: int) -> Measured:
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


def run_tails(line: ContrastLine, count: int, budget: int, seed: int) -> Measured:
    """A target with heavy tails, by fixed M or by r-hit at about the same cost; f is whether theta is far out."""
    model, kernel = problems.tails(), od.uniform(problems.TAILS_EPS)
    start, _ = _started(model, kernel, STARTS, seed)
    given: dict[str, Any] = {
        "proposal": od.random_walk(problems.WALK**2), "chains": line.chains, "start": start, "seed": seed,
        "progress": False,
    }  # fmt: skip
    if line.key == "tails":
        draws = budget // (line.chains * count)
        post = od.pseudo_marginal(model, kernel, pseudo_samples=count, draws=draws, keep="draws", **given)
        cost = _counted(post)
    else:
        # A hit takes as many draws on average as the prior is wider than the kernel.
        a_step = (2 * count - 1) * problems.REACH / problems.TAILS_EPS
        post = od.r_hit(
            model, kernel, hits=count, draws=max(8, int(budget / (line.chains * a_step))), max_draws=10**6, **given
        )
        cost = exactly(post.cost.simulations / math.prod(post.shape))
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


def measure(plan: ContrastPlan, key: str, number: int) -> Measured:
    """Measure one point; its seed depends on the plan's seed and on the point alone."""
    line = line_of(key)
    return RUNNERS[key](line, number, plan.budget(line), derived_seed(plan.seed, LINES.index(line), number))


def tasks_of(plan: ContrastPlan) -> list[Task]:
    """All points of a plan."""
    wanted = [line for line in LINES if line.key in plan.lines and not (plan.quick and line.key not in QUICK)]
    return [
        Task(f"{line.key} {count}", measure, (plan, line.key, count), Measured)
        for line in wanted
        for count in line.counts
    ]


@dataclass(frozen=True)
class Contrast:
    """All points, by line and M."""

    plan: ContrastPlan
    points: tuple[Measured, ...]
    workers: int
    wall_seconds: float

    def line(self, key: str) -> tuple[Measured, ...]:
        """The points of one line, in the order of M."""
        return tuple(point for point in self.points if point.line == key)

    @property
    def simulations(self) -> int:
        return sum(point.simulations for point in self.points)


def run_contrast(plan: ContrastPlan, out: Path, *, workers: int = 1, progress: Show = None) -> Contrast:
    """Measure the points that are missing in the folder `out`, and return all of them in the lines' order."""
    began = time.perf_counter()
    tasks = tasks_of(plan)
    done = finished(out, plan.identity(), tasks)
    # Filters with few particles have the longest chains, and would finish last if they began last.
    missing = sorted(
        (task for task in tasks if task.key not in done), key=lambda task: not task.key.startswith(("filter", "hits"))
    )
    found = done | run_tasks(missing, out, "contrast", workers=workers, progress=progress)
    return Contrast(plan, tuple(found[task.key] for task in tasks), workers, time.perf_counter() - began)
