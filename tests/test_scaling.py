"""Many workers: pieces of work that keep them busy and do not overwhelm one scheduler, with the same bytes."""

import math
import os
import shutil
import subprocess
import sys
import time

import pytest
from scipy import stats

import onedraw as od
from benchmarks import scaling
from benchmarks.cluster import Cluster, spend, virtual
from onedraw.run.blocks import Block, Deadline, Supply, cut, in_parts, parts_of, whole_of
from onedraw.run.pool import PIECES_PER_SECOND, WorkerPool
from tests.marks import long_in_slow_tests
from tests.test_executors import dask, same

GOAL = {"rejection": 0.95, "chains": 0.93, "infer": 0.9}


@pytest.mark.parametrize("kind", GOAL)
def test_sixteen_simulated_workers_are_kept_busy(kind, quick):
    share, _, load = scaling.simulated(kind, 16, simulations=240)
    assert share > GOAL[kind] and load < 0.4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "workers", "least"),
    [("rejection", 1024, 0.8), ("chains", 1024, 0.8), ("infer", 256, 0.95), ("infer", 1024, 0.8)],
)
def test_many_simulated_workers_are_kept_busy(kind, workers, least):
    share, _, load = scaling.simulated(kind, workers)
    assert share > least and load < 0.7


@pytest.mark.parametrize("times", [scaling.log_normal, scaling.rare])
def test_uneven_times_keep_most_of_the_workers_busy(times):
    assert scaling.simulated("rejection", 64, times, simulations=480)[0] > 0.85


@pytest.mark.slow
@pytest.mark.parametrize(("times", "least"), [(scaling.log_normal, 0.75), (scaling.rare, 0.82)])
def test_stages_of_infer_do_not_wait_for_slow_simulations(times, least):
    assert scaling.simulated("infer", 64, times)[0] > least


def uneven(rng, theta):
    """Slow, quick, wrong and failing simulations."""
    spend(0.1 * math.exp(rng.standard_normal()))
    if theta > 2:
        raise ValueError(f"too large: {theta}")
    return rng.normal(theta) if theta > -2 else math.nan


@pytest.mark.parametrize("kind", long_in_slow_tests(scaling.KINDS, "infer"))
def test_the_size_of_the_cluster_changes_no_number(kind, quick):
    with virtual(Cluster(1)):
        model = od.Model(od.Prior(theta=stats.norm(0, 1)), uneven, observed=1.0)
        found = [same(scaling.run(kind, model, 3, 200))]
    for workers in (7, 300):
        cluster = Cluster(workers)
        with virtual(cluster):
            model = od.Model(od.Prior(theta=stats.norm(0, 1)), uneven, observed=1.0)
            found.append(same(scaling.run(kind, model, 3, 200, executor=cluster)))
    assert found[0] == found[1] == found[2]
    if kind != "chains":
        assert found[0][-1]


def test_parts_of_a_block_are_its_rows():
    block = Block(64, 10)
    parts = parts_of(block, 4)
    assert whole_of(parts[0])[0] is block
    assert [row for part in parts for row in whole_of(part)[1]] == list(range(10))
    taken = []
    with virtual(Cluster(3)) as cluster:
        pool = WorkerPool(cluster)
        items, take = in_parts(
            pool, cut(100, 32), lambda item, whole: bool(taken.append((item, whole))), lambda _, sizes: sum(sizes)
        )
        parts = list(items)
        assert {part.size for part in parts} == {4}
        for part in parts:
            take(part, part.size)
    assert taken == [(one, one.size) for one in cut(100, 32)]


def sizes_of(supply):
    sizes = []
    while group := supply.next_group():
        sizes.append(len(group))
    return sizes


def test_pieces_grow_with_the_number_of_workers_and_shrink_towards_the_end():
    with virtual(Cluster(1000)) as cluster:
        pool = WorkerPool(cluster)
        assert pool.piece == 1000 / PIECES_PER_SECOND
        supply = Supply(pool, cut(10**6, 1), Deadline(None))
        assert len(supply.next_group()) == 1
        supply.took([Block(0, 1)], 0.1)
        cluster.now += 1000
        sizes = sizes_of(supply)
    assert sum(sizes) == 10**6 - 1
    assert max(sizes) == 250 and sizes[len(sizes) // 4] == 250
    assert sizes[-2] == 62


def test_pieces_are_longer_if_too_many_were_sent():
    """With 400 pieces sent at once, ten seconds of them at 40 per second."""
    with virtual(Cluster(1000)) as cluster:
        pool = WorkerPool(cluster)
        for ticket in range(400):
            pool.submit(ticket, abs, [-1])
        assert pool.piece == pytest.approx(1000 / PIECES_PER_SECOND + 10)
        cluster.now += 4
        assert pool.piece == pytest.approx(1000 / PIECES_PER_SECOND + 6)
        cluster.now += 100
        assert pool.piece == 1000 / PIECES_PER_SECOND
        for ticket in range(400, 10_000):
            pool.submit(ticket, abs, [-1])
        assert pool.piece == 2 * 1000 / PIECES_PER_SECOND


def test_pieces_do_not_shrink_if_other_work_follows():
    with virtual(Cluster(10)) as cluster:
        pool = WorkerPool(cluster)
        before = Supply(pool, cut(20, 2), Deadline(None))
        before.took(before.next_group(), 0.02)
        # Twice as large a block takes twice as long: 0.02 s of 0.25 s each.
        last = Supply(pool, cut(400, 4), Deadline(None), before=before)
        followed = Supply(pool, cut(400, 4), Deadline(None), followed=True, before=before)
        shrinking, even = sizes_of(last), sizes_of(followed)
    assert len(set(even[:-1])) == 1 and even[0] * 0.04 <= pool.piece
    assert sum(even) == sum(shrinking) == 100
    assert len(shrinking) > len(even) and shrinking[-1] < shrinking[0]


@pytest.mark.slow
def test_an_adaptive_cluster_grows():
    """Dask asks for workers by the seconds of work that wait: two pieces per worker would never be enough."""

    def simulate(rng, theta):
        time.sleep(0.05)
        return rng.normal(theta)

    model = od.Model(od.Prior(theta=stats.norm(0, 1)), simulate, observed=1.0)
    most = 0

    with dask(1) as client:
        client.cluster.adapt(minimum=1, maximum=3, interval="200ms")

        def look(*_, **__):
            nonlocal most
            most = max(most, len(client.scheduler_info(-1)["workers"]))

        post = od.rejection(model, od.uniform(0.5), budget=2000, seed=1, executor=client, progress=look)
        look()
    assert most == 3
    alone = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta), observed=1.0)
    assert same(post) == same(od.rejection(alone, od.uniform(0.5), budget=2000, seed=1))


MPI = """
from mpi4py.futures import MPIPoolExecutor
from scipy import stats
import onedraw as od

def simulate(rng, theta):
    return rng.normal(theta, 1.0)

if __name__ == "__main__":
    model = od.Model(od.Prior(theta=stats.norm(0, 1)), simulate, observed=2.0)
    with MPIPoolExecutor() as pool:
        for run in (od.rejection, od.pseudo_marginal):
            there, here = (run(model, od.uniform(0.5), draws=50, seed=1, **more) for more in ({"executor": pool}, {}))
            print(there.draws["theta"].tobytes() == here.draws["theta"].tobytes())
"""


@pytest.mark.slow
def test_mpi_gives_the_same_bytes(tmp_path):
    pytest.importorskip("mpi4py")
    if shutil.which("mpiexec") is None:
        pytest.skip("mpiexec is not installed")
    file = tmp_path / "run.py"
    file.write_text(MPI)
    command = ["mpiexec", "--oversubscribe", "-n", "3", sys.executable, "-m", "mpi4py.futures", file]
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **allowed}
    )
    assert done.stdout.split() == ["True", "True"], done.stderr
