"""How accurate `od.infer` is for its budget, on public tasks with reference posteriors: python -m benchmarks.accuracy.

For each task, budget and observation the draws of `od.infer`, and those of plain rejection with the same budget (the
nearest simulations to the data), are scored against reference draws by a network and by trees (benchmarks/c2st.py; with
a GPU, benchmarks/network.py trains the networks side by side). Beside them stand the published scores of rejection
(REJ-ABC), sequential ABC (SMC-ABC) and neural posterior estimation (NPE), a dash if there are none. With `--beside`,
other samplers of this package have the same budget and are scored, too.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats

import onedraw as od
from benchmarks.c2st import c2st
from benchmarks.sbibm import FURTHER, TASKS, published, task

BUDGETS = [1_000, 10_000, 100_000]
NOISE = 0.02
"""Differences of mean scores that are not told apart."""
TARGETS = {
    "gaussian_linear": {1_000: 0.53, 10_000: 0.51},
    "gaussian_linear_uniform": {1_000: 0.53, 10_000: 0.51},
    "sir": {1_000: 0.56, 10_000: 0.52},
    "slcp": {1_000: 0.86, 10_000: 0.65},
    "bernoulli_glm": {1_000: 0.63, 10_000: 0.57},
    "gaussian_mixture": {1_000: 0.62, 10_000: 0.55},
    "two_moons": {1_000: 0.60, 10_000: 0.53},
}
"""The largest mean score of the network that is wanted of `od.infer`, by task and budget."""
TREES_ABOVE = 0.03
"""How far the trees' mean score may lie above the network's, or above its target if the network is left out."""
PUBLISHED = ("REJ-ABC", "SMC-ABC", "NPE")


def rejection_draws(model: od.Model, budget: int, seed: int, n: int) -> np.ndarray:
    """n draws of rejection: the nearest 100 simulations (1 in 100 of large budgets), smoothed by a normal kernel."""
    rng = np.random.default_rng(seed)
    theta = model.prior.sample(rng, budget)
    rows = model.simulate(rng, **model.prior.columns(theta))
    distance = np.linalg.norm(rows - model.observed_row, axis=1)
    kept = np.argsort(distance)[: max(100, budget // 100)]
    return stats.gaussian_kde(theta[kept].T).resample(n, seed=rng).T


def smoothed(post: od.Posterior, n: int, seed: int) -> np.ndarray:
    """n draws of weighted ones, smoothed by a normal kernel."""
    theta = np.concatenate([values.reshape(1, -1) for values in post.draws.values()])
    weights = None if post.weights is None else post.weights.ravel()
    return stats.gaussian_kde(theta, weights=weights).resample(n, seed=np.random.default_rng(seed)).T


def adjusted_draws(model: od.Model, budget: int, seed: int, n: int) -> np.ndarray:
    """n draws of importance sampling after one regression adjustment."""
    post = od.importance(model, budget=budget, seed=seed, keep="all").adjust(draws=n, seed=seed)
    return smoothed(post, n, seed) if post.weights is not None else np.column_stack([v[0] for v in post.draws.values()])


BESIDE = {
    "rejection": rejection_draws,
    "smc": lambda model, budget, seed, n: smoothed(od.smc(model, budget=budget, seed=seed), n, seed),
    "importance": lambda model, budget, seed, n: smoothed(od.importance(model, budget=budget, seed=seed), n, seed),
    "adjusted": adjusted_draws,
}
"""Draws of other samplers with the same budget."""


def scaled(model: od.Model) -> od.Model:
    """The model with summaries in their standard deviations, which are learnt beside the budget."""
    rng = np.random.default_rng(0)
    spread = model.simulate(rng, **model.prior.columns(model.prior.sample(rng, 1000))).std(axis=0)
    return replace(model, distance=od.scaled(scale=np.where(spread > 0, spread, 1.0)))


class Job(NamedTuple):
    """One observation of a task at one budget."""

    task: str
    budget: int
    observation: int
    seed: int
    draws: int
    kinds: list[str]
    beside: list[str]
    keep: Path | None
    """A folder for the draws, which `benchmarks.network` scores."""


class Scores(NamedTuple):
    """What a job found: seconds of `od.infer`, and the score of each sampler by each classifier."""

    job: Job
    seconds: float
    simulations: int
    c2st: dict[str, float]


def scored(job: Job) -> Scores:
    """Run `od.infer` and the samplers beside it, and score their draws."""
    this = task(job.task)
    model, reference = this.model(job.observation), this.reference(job.observation)[: job.draws]
    began = time.perf_counter()
    post = od.infer(model, budget=job.budget, seed=job.seed, draws=job.draws)
    seconds = time.perf_counter() - began
    assert post.cost.simulations <= job.budget
    samples = {"infer": np.column_stack([values[0] for values in post.draws.values()])}
    for other in job.beside:
        its_model = model if other == "rejection" else scaled(model)
        samples[other] = BESIDE[other](its_model, job.budget, job.seed, job.draws)
    if job.keep is not None:
        pair = {"reference": reference.astype(np.float32), "infer": samples["infer"].astype(np.float32)}
        np.savez(job.keep / f"{job.task}-{job.budget}-{job.observation}.npz", **pair)
    found = {f"{who} {kind}": c2st(reference, one, kind) for who, one in samples.items() for kind in job.kinds}
    return Scores(job, seconds, post.cost.simulations, found)


def as_record(one: Scores) -> dict[str, object]:
    """Scores as one flat record."""
    job = one.job
    place = {"task": job.task, "budget": job.budget, "observation": job.observation, "seed": job.seed}
    return place | {"draws": job.draws, "seconds": one.seconds, "simulations": one.simulations, "c2st": one.c2st}


def results(jobs: list[Job], processes: int) -> Iterator[Scores]:
    """Scores in the order of the jobs, from this process or from several with a thread each."""
    if processes == 1:
        yield from map(scored, jobs)
        return
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(scored, jobs)


def shortfalls(name: str, budget: int, mean: dict[str, float], there: dict[str, float]) -> list[str]:
    """Where mean scores miss their target or, beyond noise, published ABC; in words."""
    network, trees = mean.get("infer network"), mean.get("infer trees")
    target, best = TARGETS.get(name, {}).get(budget), np.nanmin([there["REJ-ABC"], there["SMC-ABC"], np.inf])
    found = [
        f"{kind} above published ABC"
        for kind, value in (("network", network), ("trees", trees))
        if value is not None and value > best + NOISE
    ]
    if target is not None and network is not None and network > target:
        found.append(f"network {network:.3f}, wanted {target}")
    base = network if network is not None else target
    if target is not None and trees is not None and base is not None and trees > base + TREES_ABOVE:
        found.append(f"trees {trees:.3f}, wanted {base + TREES_ABOVE:.3f}")
    return found


def table_line(name: str, budget: int, mean: dict[str, float], seconds: float, missed: list[str]) -> str:
    cells = "".join("-".rjust(18) if np.isnan(value) else f"{value:18.3f}" for value in mean.values())
    wanted = TARGETS.get(name, {}).get(budget)
    target = "-".rjust(8) if wanted is None else f"{wanted:8.2f}"
    return f"{name:24}{budget:9,}{target}{cells}{seconds:9.1f}" + (f"  MISSED: {'; '.join(missed)}" if missed else "")


def main(arguments: list[str] | None = None) -> bool:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__.splitlines()[0])
    parser.add_argument("--task", nargs="+", default=[*TASKS, *FURTHER], choices=[*TASKS, *FURTHER])
    parser.add_argument("--budget", nargs="+", type=int, default=BUDGETS)
    parser.add_argument("--observations", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--draws", type=int, default=4_000, help="draws on each side of a score")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--by",
        nargs="*",
        default=["network", "trees"],
        choices=["network", "trees"],
        help="the classifiers; the network takes most of the time",
    )
    parser.add_argument("--keep", type=Path, help="keep the draws in this folder, for python -m benchmarks.network")
    parser.add_argument("--infer-only", action="store_true", help="leave out rejection")
    parser.add_argument("--beside", nargs="+", default=[], choices=BESIDE, help="other samplers to score")
    parser.add_argument("--full", action="store_true", help="ten observations and 10,000 draws, as published")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with observations of its own")
    parser.add_argument("--out", type=Path, help="write a line of JSON for each observation to this file")
    given = parser.parse_args([] if arguments is None else arguments)
    observations = list(range(1, 11)) if given.full else given.observations
    size = 10_000 if given.full else given.draws
    kinds = given.by
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    beside = [] if given.infer_only else ["rejection"]
    beside += [name for name in given.beside if name not in beside]
    print(f"C2ST, mean over observations {observations}, {size:,} draws a side; 0.5 is perfect")
    columns = [*(f"{who} {kind}" for who in ("infer", *beside) for kind in kinds), *PUBLISHED]
    head = f"{'task':24}{'budget':>9}{'target':>8}" + "".join(f"{name:>18}" for name in columns)
    print(f"{head}{'seconds':>9}", flush=True)
    jobs = [
        Job(name, budget, observation, given.seed, size, kinds, beside, given.keep)
        for budget in given.budget for name in given.task for observation in observations
    ]  # fmt: skip
    reached = True
    gains: dict[tuple[int, str], list[float]] = {}
    some: list[Scores] = []
    for one in results(jobs, given.jobs):
        some.append(one)
        if given.out:
            with given.out.open("a") as file:
                file.write(json.dumps(as_record(one)) + "\n")
        if len(some) < len(observations):
            continue
        name, budget = one.job.task, one.job.budget
        there = published(name, budget, observations)
        mean = {column: float(np.mean([each.c2st[column] for each in some])) for column in one.c2st} | there
        missed = shortfalls(name, budget, mean, there)
        reached = reached and not missed
        print(table_line(name, budget, mean, float(np.mean([each.seconds for each in some])), missed), flush=True)
        for kind in kinds:
            if not np.isnan(there["SMC-ABC"]):
                gains.setdefault((budget, kind), []).append(there["SMC-ABC"] - mean[f"infer {kind}"])
        some = []
    for (budget, kind), gain in gains.items():
        reached = reached and (np.mean(gain) >= 0.05 or len(gain) < len(TASKS))
        print(f"below SMC-ABC at {budget:,} by {kind}, mean of {len(gain)} tasks: {np.mean(gain):.3f}")
    return bool(reached)


if __name__ == "__main__":
    raise SystemExit(0 if main(sys.argv[1:]) else 1)
