"""What `od.infer` itself costs: seconds besides the simulator and memory, by budget; beside a fixed NumPy job.

python -m benchmarks infer_time. The model has 5 parameters and 20 summaries, and its simulator costs next to nothing.
Each budget runs in a process of its own with one thread. Seconds are the processor's, and are stated as a ratio to a
job of about a second in the same process (sorts, products of matrices, exponentials), so that machines can be compared.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np
from scipy import stats

import onedraw as od
from benchmarks.timing import Watched, report

WANTED = {1_000: 3.0, 10_000: 15.0, 100_000: 60.0}
"""Seconds on a machine that needs one second for the fixed job, by budget."""
MOST_MEMORY = 1_000.0
"""MB at the peak, the interpreter and its libraries included."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_MIX = np.cos(np.outer(np.arange(1, 6), np.arange(1, 21)))


def simulate(rng, **theta):
    """Twenty summaries, each a curved function of a mixture of five parameters, with noise."""
    mixed = np.column_stack(list(theta.values())) @ _MIX
    return mixed + 0.2 * mixed**2 + rng.standard_normal(mixed.shape)


def fixed_job() -> float:
    """Seconds of a job that is always the same."""
    rng = np.random.default_rng(1)
    square, long = rng.standard_normal((300, 300)), rng.standard_normal(500_000)
    began = time.process_time()
    for _ in range(22):
        for _ in range(10):
            square = square @ square
            square /= np.linalg.norm(square)
        np.linalg.solve(square + 300 * np.eye(300), square)
        long = np.sort(np.exp(-(np.roll(long, 1) ** 2)) + long)[::-1].copy()
    return time.process_time() - began


def measured(budget: int) -> dict[str, float]:
    """Seconds of the fixed job, those of `od.infer` besides its simulator, and the peak of memory in MB."""
    import resource

    before = min(fixed_job() for _ in range(2))
    watched = Watched(simulate)
    prior = od.Prior(**{f"t{i}": stats.norm(0, 1) for i in range(5)})
    observed = simulate(np.random.default_rng(1), **prior.columns(np.full((1, 5), 0.3)))[0]
    model = od.Model(prior, od.batched(watched), observed)
    began = time.process_time()
    post = od.infer(model, budget=budget, seed=1, draws=4_000)
    seconds = time.process_time() - began - watched.seconds
    assert post.cost.simulations <= budget
    unit = min(before, fixed_job())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    return {"budget": budget, "unit": unit, "seconds": seconds, "memory": peak}


def in_child(budget: int) -> dict[str, float]:
    """What a process of its own, with one thread, measures."""
    alone = os.environ | dict.fromkeys(THREADS, "1")
    command = [sys.executable, "-m", "benchmarks.infer_time", "--child", str(budget)]
    done = subprocess.run(command, env=alone, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main(arguments: list[str] | None = None) -> bool:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.infer_time", description=__doc__.splitlines()[0])
    parser.add_argument("--budget", nargs="+", type=int, default=list(WANTED))
    parser.add_argument("--child", type=int, help="measure this budget here, and print a line of JSON")
    given = parser.parse_args([] if arguments is None else arguments)
    if given.child:
        print(json.dumps(measured(given.child)))
        return True
    rows: list[tuple[str, str, str, bool | None]] = []
    for budget in given.budget:
        found = in_child(budget)
        ratio, wanted = found["seconds"] / found["unit"], WANTED.get(budget)
        told = f"{found['seconds']:.1f} s here, {ratio:.1f} fixed jobs"
        rows.append((f"{budget:,} simulations: time", told, "" if wanted is None else f"{wanted:g}",
                     None if wanted is None else ratio <= wanted))  # fmt: skip
        rows.append((f"{budget:,} simulations: memory", f"{found['memory']:.0f} MB", f"{MOST_MEMORY:.0f} MB",
                     found["memory"] <= MOST_MEMORY))  # fmt: skip
    return report("od.infer besides its simulator: 5 parameters, 20 summaries, one core", rows)


if __name__ == "__main__":
    raise SystemExit(0 if main(sys.argv[1:]) else 1)
