"""What a job array costs besides its simulations: the plan, each shard, and the step, in seconds of the processor."""

import tempfile
import time
from contextlib import suppress

import numpy as np
from scipy import stats

import onedraw as od
from benchmarks.timing import report
from onedraw.run.shard_work import work

BUDGET, SHARDS = 1_000_000, 200


def simulate(rng, theta):
    return rng.normal(theta, 1.0)


def main():
    model = od.Model(od.Prior(theta=stats.norm(0, 1)), simulate, observed=2.0)

    def run(**more):
        return od.rejection(model, od.uniform(0.5), budget=BUDGET, seed=1, **more)

    def planned():
        with suppress(od.ShardsMissing):
            run(executor=jobs)

    def seconds(job):
        began = time.process_time()
        found = job()
        return time.process_time() - began, found

    with tempfile.TemporaryDirectory() as folder:
        jobs = od.job_array(folder, shards=SHARDS)
        plan, _ = seconds(planned)
        shards, _ = seconds(lambda: work(folder))
        step, post = seconds(lambda: run(executor=jobs))
    alone, other = seconds(run)
    rows = [
        ("plan", f"{plan:.2f} s", "", None),
        ("a shard, beside its simulations", f"{1e3 * (shards - alone) / SHARDS:.0f} ms", "", None),
        ("step", f"{step:.2f} s", "5 s", step < 5),
        ("same draws", "", "", bool(np.array_equal(post.draws["theta"], other.draws["theta"]))),
    ]
    return report(f"{BUDGET:,} cheap simulations in {SHARDS} shards", rows)


if __name__ == "__main__":
    main()
