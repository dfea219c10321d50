"""How it grows: one Dask scheduler with up to 64 workers in this process, and simulators that sleep."""

import logging
import time

import numpy as np
from scipy import stats

import onedraw as od
from benchmarks.timing import report
from onedraw.run.blocks import cut
from onedraw.run.pool import opened_pool

SECONDS = 0.100
SIZES = (1, 4, 16, 32, 64)


def sleeping(rng, theta):
    time.sleep(SECONDS)
    return rng.normal(theta, 1.0)


def nothing(block):
    return block.first


def cluster(workers):
    import dask
    from distributed import LocalCluster

    # Each worker would take samples of itself a hundred times a second, all in this one process.
    dask.config.set({"distributed.worker.profile.enabled": False})
    return LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=False, dashboard_address=":0", silence_logs=logging.CRITICAL
    )


def cost_of_a_piece(client):
    """Seconds that one process spends on sending, scheduling and collecting one piece of work that does nothing."""
    count = 400

    with opened_pool(None, client) as pool:
        began = time.perf_counter()
        done = sent = 0
        while done < count:
            while sent < count and sent - done < pool.slots:
                pool.submit(sent, nothing, list(cut(1, 1)))
                sent += 1
            pool.next()
            done += 1
        return (time.perf_counter() - began) / count


def efficiency(client, workers, kind):
    """Simulations a second of the workers, as a share of what they could do."""
    model = od.Model(od.Prior(theta=stats.norm(0, 1)), sleeping, observed=2.0)
    if kind == "rejection":
        budget = 96 * workers
        began = time.perf_counter()
        post = od.rejection(model, od.uniform(0.5), budget=budget, seed=1, executor=client)
    else:
        chains = 2 * workers
        began = time.perf_counter()
        post = od.pseudo_marginal(
            model, od.uniform(0.5), draws=48, seed=1, executor=client, early=False,
            proposal=od.independence(), start={"theta": np.ones(chains)},
        )  # fmt: skip
    seconds = time.perf_counter() - began
    return post.cost.simulations * SECONDS / (seconds * workers)


def main():
    from distributed import Client

    rows = []
    for workers in SIZES:
        with cluster(workers) as one, Client(one) as client:
            client.wait_for_workers(workers)
            in_order_of = {kind: efficiency(client, workers, kind) for kind in ("rejection", "chains")}
            piece = cost_of_a_piece(client)
        good = workers > 32 or min(in_order_of.values()) > 0.8
        rows.append(
            (
                f"{workers} workers",
                f"{in_order_of['rejection']:.2f}   {in_order_of['chains']:.2f}",
                f"{1e3 * piece:.1f} ms a piece",
                good,
            )
        )
    return report("A 100 ms simulator on workers in one process: share of ideal, rejection and chains", rows)


if __name__ == "__main__":
    main()
