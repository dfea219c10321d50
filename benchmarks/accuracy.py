"""How accurate `od.infer` is for its budget, on public tasks with reference posteriors: python -m benchmarks.accuracy.

For each task, budget and observation the draws of `od.infer`, and those of plain rejection with the same budget (the
nearest simulations to the data), are scored against reference draws by a network and by trees (benchmarks/c2st.py),
beside the published scores of rejection (REJ-ABC), sequential ABC (SMC-ABC) and neural posterior estimation (NPE). With
`--beside`, other samplers of this package have the same budget and are scored, too.
"""

import argparse
import sys
import time
from dataclasses import replace

import numpy as np
from scipy import stats

import onedraw as od
from benchmarks.c2st import c2st
from benchmarks.sbibm import FURTHER, TASKS, published, task

BUDGETS = [1_000, 10_000, 100_000]
NOISE = 0.02
"""Differences of mean scores that are not told apart."""


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


def main(arguments: list[str] | None = None) -> bool:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__.splitlines()[0])
    parser.add_argument("--task", nargs="+", default=list(TASKS), choices=[*TASKS, *FURTHER])
    parser.add_argument("--budget", nargs="+", type=int, default=BUDGETS)
    parser.add_argument("--observations", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--draws", type=int, default=4_000, help="draws on each side of a score")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trees-only", action="store_true", help="leave out the network, which takes most of the time")
    parser.add_argument("--beside", nargs="+", default=[], choices=BESIDE, help="other samplers to score")
    parser.add_argument("--full", action="store_true", help="ten observations and 10,000 draws, as published")
    given = parser.parse_args([] if arguments is None else arguments)
    observations = list(range(1, 11)) if given.full else given.observations
    size = 10_000 if given.full else given.draws
    kinds = ["trees"] if given.trees_only else ["network", "trees"]
    print(f"C2ST, mean over observations {observations}, {size:,} draws a side; 0.5 is perfect")
    columns = [
        *(f"{who} {kind}" for who in ("infer", "rejection", *given.beside) for kind in kinds),
        "REJ-ABC",
        "SMC-ABC",
        "NPE",
    ]
    print(f"{'task':24}{'budget':>9}" + "".join(f"{name:>18}" for name in columns) + f"{'seconds':>9}", flush=True)
    reached = True
    gains: dict[tuple[int, str], list[float]] = {}
    for budget in given.budget:
        for name in given.task:
            this = task(name)
            scores: dict[str, list[float]] = {column: [] for column in columns}
            seconds = 0.0
            for observation in observations:
                model, reference = this.model(observation), this.reference(observation)[:size]
                began = time.perf_counter()
                post = od.infer(model, budget=budget, seed=given.seed, draws=size)
                seconds += (time.perf_counter() - began) / len(observations)
                assert post.cost.simulations <= budget
                drawn = np.column_stack([values[0] for values in post.draws.values()])
                samples = {"infer": drawn, "rejection": rejection_draws(model, budget, given.seed, size)}
                other_model = scaled(model) if given.beside else model
                samples |= {other: BESIDE[other](other_model, budget, given.seed, size) for other in given.beside}
                for who, sample in samples.items():
                    for kind in kinds:
                        scores[f"{who} {kind}"].append(c2st(reference, sample, kind))
            there = published(name, budget, observations)
            mean = {column: float(np.mean(values)) if values else there.get(column, np.nan)
                    for column, values in scores.items()}  # fmt: skip
            best = np.nanmin([there["REJ-ABC"], there["SMC-ABC"]]) if not np.isnan(there["REJ-ABC"]) else np.nan
            worse = [kind for kind in kinds if mean[f"infer {kind}"] > best + NOISE]
            reached = reached and not worse
            for kind in kinds:
                gains.setdefault((budget, kind), []).append(there["SMC-ABC"] - mean[f"infer {kind}"])
            line = "".join(f"{mean[column]:18.3f}" for column in columns)
            print(f"{name:24}{budget:9,}{line}{seconds:9.1f}" + ("  MISSED" if worse else ""), flush=True)
    for (budget, kind), gain in gains.items():
        if not np.isnan(gain).any():
            reached = reached and (np.mean(gain) >= 0.05 or set(given.task) != set(TASKS))
            print(f"below SMC-ABC at {budget:,} by {kind}, mean of {len(gain)} tasks: {np.mean(gain):.3f}")
    return bool(reached)


if __name__ == "__main__":
    raise SystemExit(0 if main(sys.argv[1:]) else 1)
