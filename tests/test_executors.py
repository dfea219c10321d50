"""The same bytes from one process, from workers of any kind, and from workers that die."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace

import cloudpickle
import numpy as np
import psutil
import pytest
from scipy import stats

import onedraw as od
from onedraw.cost import Cost
from onedraw.engines import threads as blas
from onedraw.engines.children import Limited
from onedraw.engines.lifetimes import guardian
from onedraw.run import pool as pool_module
from onedraw.run.blocks import Deadline, cut, in_chain_blocks, in_order
from onedraw.run.pool import WorkerPool, opened_pool
from onedraw.run.progress import Progress
from tests.deadlines import wait_until
from tests.marks import long_in_slow_tests
from tests.reference import toy
from tests.test_contract import ALL, SEQUENTIAL, bytes_of, run

SILENT = Progress(False, "", None)


@contextmanager
def dask(workers, **more):
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50, **more
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


PLACES = ["loky 2", "loky 3", "dask 2", "dask 3", "processes 2", "threads 2"]
"""Threads are last, since what is last stays open in the tests that follow, and an idle cluster is not free."""


@pytest.fixture(scope="module", params=PLACES)
def where(request):
    """Arguments that send a run's work somewhere else."""
    kind, number = request.param.split()
    if kind == "loky":
        yield {"workers": int(number)}
    elif kind == "threads":
        with ThreadPoolExecutor(int(number)) as pool:
            yield {"executor": pool}
    elif kind == "processes":
        import multiprocessing

        with ProcessPoolExecutor(int(number), mp_context=multiprocessing.get_context("spawn")) as pool:
            yield {"executor": pool}
    else:
        with dask(int(number)) as client:
            yield {"executor": client}


def same(post):
    alone = replace(post, cost=post.cost._replace(surplus=0))
    return *bytes_of(alone), [one.message for one in post.failures]


def plain_model():
    return od.Model(
        od.Prior(theta=stats.norm()), lambda rng, theta: rng.normal(theta, 1.0), 2.0, distance=od.scaled(pilot=40)
    )


SIDE_BY_SIDE = {
    **ALL,
    **SEQUENTIAL,
    "infer": od.infer,
    "layout draws": lambda *a, **k: od.pseudo_marginal(*a, pseudo_samples=3, layout="draws", **k),
}
serial = {}


def one_run(name, kind, **more):
    model = plain_model() if kind == "plain" else toy(kind)
    if name == "infer":
        return od.infer(model, budget=300, draws=500, seed=1, **more)
    if name in SEQUENTIAL:
        return SIDE_BY_SIDE[name](model, budget=600, seed=1, **more)
    if name == "layout draws":
        return SIDE_BY_SIDE[name](model, od.uniform(0.8), draws=25, chains=5, seed=1, **more)
    return run(name, model, draws=25, **({"chains": 5} if name != "rejection" else {}), **more)


# Only plain simulators draw side by side.
KINDS = [
    (name, kind)
    for name in SIDE_BY_SIDE
    for kind in ("plain", "batched", "staged")
    if kind == "plain" or name != "layout draws"
]


ONE_OF_EACH_REQUEST = ("rejection", "pseudo_marginal", "smc", "infer", "layout draws")
"""Rounds, blocks of chains, rounds left open, rounds answered early, draws side by side."""
HERE = {"loky 2": tuple(SIDE_BY_SIDE), "threads 2": ONE_OF_EACH_REQUEST, "dask 3": ()}
EVERYWHERE = [
    pytest.param(
        place, name, marks=[] if name in HERE.get(place, ("rejection", "pseudo_marginal")) else pytest.mark.slow
    )
    for place in PLACES
    for name in SIDE_BY_SIDE
]
"""All samplers with two workers of loky, one of each request with threads; a round and blocks of chains elsewhere, and
the others with the slow tests."""


@pytest.mark.parametrize(("where", "name"), EVERYWHERE, indirect=["where"])
def test_every_sampler_gives_the_same_bytes_everywhere(name, where, quick):
    same_bytes(name, "plain", where)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [one for one in KINDS if one[1] != "plain"])
def test_every_kind_of_simulator_gives_the_same_bytes_everywhere(name, kind, where, quick):
    same_bytes(name, kind, where)


@pytest.mark.parametrize(("name", "kind"), [one for one in KINDS if one[1] != "plain"])
def test_every_kind_of_simulator_gives_the_same_bytes_with_workers(name, kind, quick):
    same_bytes(name, kind, {"workers": 2})


def same_bytes(name, kind, where):
    if (name, kind) not in serial:
        serial[name, kind] = same(one_run(name, kind))
    assert same(one_run(name, kind, **where)) == serial[name, kind]


def test_functions_that_workers_import_give_the_same_bytes(by_name):
    alone = same(one_run("rejection", "batched"))
    assert b"tests.reference" in cloudpickle.dumps(toy("batched"))
    assert same(one_run("rejection", "batched", workers=2)) == alone


def test_budgets_and_files_with_workers(tmp_path):
    """A budget is kept, a file is the same, and a run may go on with another number of workers."""
    for name in ("rejection", "pseudo_marginal"):
        alone = run(name, plain_model(), budget=2000)
        post = run(name, plain_model(), budget=2000, workers=2, store=tmp_path / f"{name}.db")
        assert same(post) == same(alone)
        assert post.cost.simulations + post.cost.surplus <= 2000 + post.cost.surplus * (name != "rejection")
        half = tmp_path / f"{name}-half.db"
        run(name, plain_model(), budget=900, workers=3, store=half)
        with pytest.raises(od.StoreError, match="seed"):
            run(name, plain_model(), budget=2000, store=half, seed=9)
        first = run(name, plain_model(), draws=30, store=tmp_path / f"{name}-d.db", workers=2)
        more = od.resume(tmp_path / f"{name}-d.db", plain_model(), draws=60, workers=2)
        assert same(more)[:2] == same(run(name, plain_model(), draws=60))[:2]
        assert first.shape[1] == 30


class Killer:
    """Kills a random child of this process now and then."""

    def __init__(self, seed, pause):
        self.random, self.pause, self.killed = random.Random(seed), pause, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def _work(self):
        me = psutil.Process()
        while self.killed < 2 and not self._stop.wait(self.random.uniform(*self.pause)):
            workers = [
                one for one in me.children(recursive=True) if "popen_loky" in " ".join(_command(one)) or _dask(one)
            ]
            if workers:
                os.kill(self.random.choice(workers).pid, signal.SIGKILL)
                self.killed += 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def _command(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _dask(process):
    return any("multiprocessing.spawn" in word for word in _command(process))


def slow_model(seconds=0.004):
    def simulate(rng, theta):
        time.sleep(seconds)
        return rng.normal(theta, 1.0)

    return od.Model(od.Prior(theta=stats.norm()), simulate, 2.0)


@pytest.mark.parametrize(
    "name", long_in_slow_tests(["rejection", "pseudo_marginal", "one-hit"], "rejection", "one-hit")
)
def test_killed_loky_workers_change_nothing(name):
    settings = {"rejection": {"budget": 1500}, "pseudo_marginal": {"draws": 250, "chains": 6}}.get(
        name, {"draws": 60, "chains": 6}
    )
    alone = run(name, slow_model(0.0), **settings)
    run("rejection", slow_model(0.0), draws=1, workers=2)
    with Killer(1, (0.2, 3.0)) as killer:
        post = run(name, slow_model(), workers=2, **settings)
    assert killer.killed >= 1
    assert same(post) == same(alone)


@pytest.mark.slow
def test_killed_dask_workers_change_nothing():
    alone = run("rejection", slow_model(0.0), budget=1500)
    with dask(2) as client, Killer(2, (0.7, 1.2)) as killer:
        post = run("rejection", slow_model(), budget=1500, executor=client)
    assert killer.killed >= 1
    assert same(post) == same(alone)


def deadly(rng, theta):
    value = rng.normal(theta, 1.0)
    if theta > 1.6:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def raising(rng, theta):
    value = rng.normal(theta, 1.0)
    if theta > 1.6:
        raise RuntimeError
    return value


@pytest.mark.parametrize("kind", ["loky", pytest.param("dask", marks=pytest.mark.slow)])
def test_a_simulation_that_kills_its_worker_is_a_failed_one(kind):
    """As if it had raised: the run goes on, and says where it was."""
    prior = od.Prior(theta=stats.norm())
    settings = {"draws": 4, "chains": 3, "seed": 1, "start": {"theta": 1.4}}
    expected = od.pseudo_marginal(od.Model(prior, raising, 2.0), od.uniform(0.8), **settings)
    assert expected.cost.failed
    with dask(2) if kind == "dask" else contextmanager(lambda: (yield 2))() as one:
        there = {"executor": one} if kind == "dask" else {"workers": one}
        post = od.pseudo_marginal(od.Model(prior, deadly, 2.0), od.uniform(0.8), **settings, **there)
    assert np.array_equal(post.draws["theta"], expected.draws["theta"])
    assert post.cost.failed == expected.cost.failed
    found, raised = post.failures[0], expected.failures[0]
    assert found[:6] == raised[:6] and found.theta["theta"] > 1.6
    assert "killed its process 3 times in a row (signal SIGKILL)" in found.message


def test_a_simulation_that_crashes_or_leaves_is_a_failed_one():
    """A segmentation fault and os._exit end the process without a word to Python."""

    def simulate(rng, theta):
        value = rng.normal(theta, 1.0)
        if theta > 2:
            os._exit(0)
        if theta > 1.6:
            import ctypes

            ctypes.string_at(0)
        return value

    prior = od.Prior(theta=stats.norm())
    expected = od.rejection(od.Model(prior, raising, 2.0), od.uniform(9.0), budget=32, seed=16)
    post = od.rejection(od.Model(prior, simulate, 2.0), od.uniform(9.0), budget=32, seed=16, workers=2)
    assert np.array_equal(post.draws["theta"], expected.draws["theta"]) and post.cost.failed == expected.cost.failed
    told = " ".join(one.message for one in post.failures)
    assert "signal SIGSEGV" in told and "exit status 0" in told


class WorkerCrashedError(Exception):
    """Has the name of Ray's error."""


class Replacing(Executor):
    """One worker after another, as in Ray: a piece of work that kills its worker is an error, and the pool goes on."""

    _max_workers = 1

    def submit(self, function, /, *args):
        future = Future()
        with ProcessPoolExecutor(1) as worker:
            try:
                future.set_result(worker.submit(function, *args).result())
            except BrokenExecutor:
                future.set_exception(WorkerCrashedError("the worker died unexpectedly"))
        return future


def test_a_simulation_that_kills_a_worker_of_a_pool_that_replaces_it_is_a_failed_one():
    prior = od.Prior(theta=stats.norm())
    expected = od.rejection(od.Model(prior, raising, 2.0), od.uniform(9.0), budget=32, seed=16)
    post = od.rejection(od.Model(prior, deadly, 2.0), od.uniform(9.0), budget=32, seed=16, executor=Replacing())
    assert np.array_equal(post.draws["theta"], expected.draws["theta"])
    assert post.cost.failed == expected.cost.failed > 0


def test_a_batched_simulator_that_kills_its_workers_is_an_error():
    model = od.Model(od.Prior(theta=stats.norm()), od.batched(lambda rng, theta: os.kill(os.getpid(), 9)), 2.0)
    with pytest.raises(od.SimulationError, match="killed its process 3 times"):
        od.rejection(model, od.uniform(0.5), budget=100, seed=1, workers=2)


@pytest.mark.slow
def test_a_broken_pool_of_the_users_is_an_error_and_the_file_is_intact(tmp_path):
    import multiprocessing

    file = tmp_path / "run.db"
    model = slow_model()
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(time.sleep, [0, 0]))
        workers = list(pool._processes)
        threading.Thread(target=send_when_saved, args=(file, workers[0], signal.SIGKILL)).start()
        with pytest.raises(od.WorkerError, match=r"cannot replace it.*saved"):
            od.rejection(model, od.uniform(0.5), budget=3000, seed=1, executor=pool, store=file, segment=0.2)
    assert 0 < od.load(file).cost.simulations < 3000
    post = od.resume(file, slow_model(), workers=2, budget=3000)
    assert same(post)[:2] == same(od.rejection(slow_model(0.0), od.uniform(0.5), budget=3000, seed=1))[:2]


def send_when_saved(file, process, number):
    """A signal to a process once a run has saved draws."""
    saved = 0
    while not saved:
        time.sleep(0.1)
        with suppress(od.StoreError):
            saved = od.load(file).shape[1]
    os.kill(process, number)


class Idle(Executor):
    """Takes work and does nothing."""

    _max_workers = 2

    def submit(self, function, /, *args, **kwargs):
        return Future()


def test_an_executor_that_does_nothing_is_an_error(monkeypatch):
    monkeypatch.setattr(pool_module, "PATIENCE", 0.5)
    with pytest.raises(od.WorkerError, match=r"nothing has run on the executor.*3 pieces of work"):
        od.rejection(plain_model(), od.uniform(0.5), draws=5, seed=1, executor=Idle())


def test_a_dask_cluster_without_workers_is_an_error(monkeypatch):
    monkeypatch.setattr(pool_module, "PATIENCE", 1.0)
    with dask(0) as client, pytest.raises(od.WorkerError, match=r"Dask cluster.*wait_for_workers"):
        od.rejection(plain_model(), od.uniform(0.5), draws=5, seed=1, executor=client)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers must be a whole number of at least 1, got 0"),
        ({"workers": 2, "executor": Idle()}, "not both"),
        (
            {"executor": 3},
            "executor must be a concurrent.futures.Executor, a dask.distributed.Client or an od.job_array, got 3",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        od.rejection(plain_model(), od.uniform(0.5), draws=5, **arguments)


def test_a_model_that_cannot_be_sent_is_refused():
    lock = threading.Lock()

    def simulate(rng, theta):
        with lock:
            return rng.normal(theta)

    model = od.Model(od.Prior(theta=stats.norm()), simulate, 2.0)
    with pytest.raises(ValueError, match=r"cannot be sent to workers.*run without workers"):
        od.rejection(model, od.uniform(0.5), draws=5, workers=2)


class Odd(Exception):
    """Cannot be made again from its own arguments."""

    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


def test_errors_come_back_from_workers_with_their_place():
    def simulate(rng, theta):
        if theta > 0.5:
            raise Odd("too", "large")
        return rng.normal(theta)

    model = od.Model(od.Prior(theta=stats.norm()), simulate, 2.0)
    with pytest.raises(od.SimulationError) as alone:
        od.rejection(model, od.uniform(0.5), budget=2000, seed=1, on_error="raise")
    with pytest.raises(od.SimulationError, match="Odd: too large") as caught:
        od.rejection(model, od.uniform(0.5), budget=2000, seed=1, on_error="raise", workers=2)
    assert str(caught.value) == str(alone.value)
    assert "raise Odd" in "".join(caught.value.__notes__)


@pytest.fixture
def threads():
    with ThreadPoolExecutor(2) as pool:
        yield pool


def test_a_slow_block_keeps_no_worker_waiting(threads):
    """The first block ends only once 31 others have, which would be never if they waited for it."""
    others, ended, taken = threading.Event(), [], []

    def task(block):
        if block.first == 0:
            assert others.wait(60)
        ended.append(block.first)
        if len(ended) == 31:
            others.set()
        return block.first

    with opened_pool(None, threads) as pool:
        take = lambda block, first: bool(taken.append(first))  # noqa: E731
        reason = in_order(pool, task, cut(40, 1), take, Deadline(None), SILENT)
    assert reason == "done" and taken == list(range(40))
    assert ended.index(0) > 30


def test_a_slow_lane_keeps_no_worker_waiting(threads):
    """The first block's first segment ends only once the others are through, which would be never if they waited."""
    others, ended, segments = threading.Event(), [], []

    def item(block, segment, last):
        return None if segment == 8 else (block, segment)

    def task(piece):
        if piece == (0, 0):
            assert others.wait(60)
        ended.append(piece)
        if len(ended) == 5 * 8:
            others.set()
        return piece

    reason = in_chain_blocks(WorkerPool(threads), task, 6, item, lambda some, _: segments.append(some), Deadline(None))
    assert reason == "done"
    assert segments == [[(block, segment) for block in range(6)] for segment in range(8)]
    assert ended.index((0, 0)) == 5 * 8


def test_lanes_end_whole_when_time_is_up(threads):
    done, segments = [], []

    def task(piece):
        time.sleep(0.02)
        done.append(piece)
        return piece

    def item(block, segment, last):
        assert (last is None) == (segment == 0) and last in (None, (block, segment - 1))
        return block, segment

    reason = in_chain_blocks(WorkerPool(threads), task, 3, item, lambda some, _: segments.append(some), Deadline(0.4))
    assert reason == "max_seconds"
    assert segments == [[(block, segment) for block in range(3)] for segment in range(len(segments))]
    assert len(done) - 3 * len(segments) <= 6


class Counted(int):
    """A result that has cost seven simulations."""

    cost = Cost(simulations=7)


def test_enough_ends_the_rest_and_counts_it(threads):
    done, taken = [], []

    def task(block):
        # While this one is waited for, those behind it are done in vain.
        time.sleep(0.1 if block.first == 5 else 0.0)
        done.append(block.first)
        return Counted(block.first)

    def take(block, result):
        taken.append(block.first)
        return block.first == 5

    with opened_pool(None, threads) as pool:
        assert in_order(pool, task, cut(None, 1), take, Deadline(None), SILENT) == "enough"
        assert taken == list(range(6))
        assert pool.surplus == 7 * (len(done) - 6) > 0


def test_segments_that_are_not_used_are_counted(threads):
    pool, done, segments = WorkerPool(threads), [], []

    def task(piece):
        time.sleep(0.2 if piece[0] == 0 else 0.005)
        done.append(piece)
        return Counted(piece[1])

    def item(block, segment, last):
        return block, segment

    reason = in_chain_blocks(pool, task, 3, item, lambda *some: segments.append(some), Deadline(0.5))
    assert reason == "max_seconds"
    assert pool.surplus == 7 * (len(done) - 3 * len(segments)) > 0


def test_max_seconds_and_signals_with_workers(tmp_path):
    file = tmp_path / "run.db"
    post = od.rejection(slow_model(), od.uniform(0.5), budget=10**6, seed=1, workers=2, max_seconds=1.0, store=file)
    assert post.status.reason == "max_seconds" and post.cost.seconds < 8
    other = tmp_path / "chains.db"
    threading.Thread(target=send_when_saved, args=(other, os.getpid(), signal.SIGINT)).start()
    post = od.pseudo_marginal(slow_model(), od.uniform(0.5), draws=10**5, seed=1, workers=2, start={"theta": 1.0},
                              store=other, segment=0.2)  # fmt: skip
    assert post.status.reason == "interrupted" and post.shape[1] > 0
    # The workers are usable again.
    assert len(od.rejection(slow_model(), od.uniform(0.5), draws=5, seed=1, workers=2).draws["theta"][0]) == 5


class TestTimeouts:
    def test_a_simulation_that_takes_too_long_is_killed_and_failed(self):
        def hangs(rng, theta):
            value = rng.normal(theta, 1.0)
            if theta > 1.6:
                time.sleep(60)
            return value

        prior = od.Prior(theta=stats.norm())
        expected = od.rejection(od.Model(prior, raising, 2.0), od.uniform(0.5), budget=40, seed=3)
        began = time.perf_counter()
        for there in ({}, {"workers": 2}):
            post = od.rejection(od.Model(prior, hangs, 2.0), od.uniform(0.5), budget=40, seed=3, timeout=0.6, **there)
            assert np.array_equal(post.draws["theta"], expected.draws["theta"])
            assert post.cost.failed == expected.cost.failed > 1
            assert "timeout = 0.6 s" in post.failures[0].message
            assert "conditional on finishing in time" in str(post.notes)
        assert time.perf_counter() - began < 30

    def test_numbers_are_those_without_a_limit(self):
        for name in ("rejection", "pseudo_marginal, M=3"):
            assert same(run(name, plain_model(), draws=10, timeout=20.0)) == same(run(name, plain_model(), draws=10))

    def test_what_the_simulator_prints_reads_and_raises_does_no_harm(self):
        def chatty(rng, theta):
            print("to be or not to be")
            with suppress(EOFError):
                input()
            if theta < -1:
                raise ValueError(f"below at {theta}")
            return rng.normal(theta)

        model = od.Model(od.Prior(theta=stats.norm()), chatty, 2.0)
        post = od.rejection(model, od.uniform(0.5), budget=60, seed=1, timeout=10.0)
        assert post.cost.simulations == 60 and post.failures[0].message.startswith("Failed: ValueError: below at")
        assert "raise ValueError" in post.failures[0].traceback

    def test_it_is_for_plain_simulators(self):
        with pytest.raises(ValueError, match=r"plain simulators and od\.command"):
            od.rejection(toy(), od.uniform(0.5), draws=5, timeout=1.0)
        with pytest.raises(ValueError, match="timeout must be positive, got 0"):
            od.rejection(plain_model(), od.uniform(0.5), draws=5, timeout=0)

    def test_no_child_is_left_behind(self):
        od.rejection(plain_model(), od.uniform(0.5), draws=3, seed=1, timeout=10.0)
        wait_until(lambda: not _helpers())

    def test_a_run_that_ends_leaves_the_children_of_others_alone(self):
        """Runs in several threads, and processes that were forked from one with children."""

        def simulate(rng, theta):
            time.sleep(0.5)
            return rng.normal(theta, 1.0)

        model, found = od.Model(od.Prior(theta=stats.norm()), simulate, 2.0), []
        slow = threading.Thread(
            target=lambda: found.append(od.rejection(model, od.uniform(9.0), budget=3, seed=1, timeout=20.0))
        )
        slow.start()
        while slow.is_alive():
            od.rejection(plain_model(), od.uniform(0.5), draws=1, seed=1)
            time.sleep(0.02)
        assert found[0].cost.failed == 0
        assert same(found[0]) == same(od.rejection(model, od.uniform(9.0), budget=3, seed=1))

    def test_threads_of_an_executor_end_their_children_with_the_run(self, threads):
        before = len(_helpers())
        model = od.Model(od.Prior(theta=stats.norm()), lambda rng, theta: rng.normal(theta), 2.0)
        od.rejection(model, od.uniform(0.5), budget=60, seed=1, timeout=10.0, executor=threads)
        wait_until(lambda: len(_helpers()) <= before)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_simulator_that_forks_gives_one_answer(self):
        """Both processes return from it; a second answer would be that of the next simulation."""

        def forks(rng):
            if os.fork() > 0:
                time.sleep(0.2)
            return rng.normal()

        limited = Limited(forks, 20.0)
        found = [limited(np.random.default_rng(seed)) for seed in range(3)]
        assert found == [np.random.default_rng(seed).normal() for seed in range(3)]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_forked_process_does_not_share_children(self):
        limited = Limited(lambda rng: rng.normal(), 20.0)
        alone = [limited(np.random.default_rng(seed)) for seed in range(3)]
        before = limited._mine.child
        pid = os.fork()
        if pid == 0:
            os._exit(not (limited(np.random.default_rng(7)) and limited._mine.child is not before))
        _, status = os.waitpid(pid, 0)
        assert status == 0
        assert [limited(np.random.default_rng(seed)) for seed in range(3)] == alone
        assert limited._mine.child is before


def _helpers():
    return [one for one in psutil.Process().children() if "engines.children" in " ".join(_command(one))]


class Mute(Exception):
    """Says nothing, not even what it is."""

    def __str__(self):
        raise RuntimeError("no words")


def leaves(theta):
    """Four ways for the user's code to go wrong that are no usual exceptions."""
    if theta > 1.6:
        sys.exit(0)
    if theta < -1.6:
        raise Mute


def leaving_model(kind):
    prior = od.Prior(theta=stats.norm())
    if kind == "summary":
        return od.Model(
            prior, lambda rng, theta: [rng.normal(theta), theta], [2.0, 0.0], lambda y: leaves(y[1]) or y[0]
        )
    if kind == "staged":
        return od.Model(
            prior, od.staged(lambda theta: leaves(theta) or theta, lambda rng, x, m: rng.normal(x, 1, m)), 2.0
        )

    def simulate(rng, theta):
        value = rng.normal(theta)
        leaves(theta)
        return value

    return od.Model(prior, simulate, 2.0)


@pytest.mark.parametrize("kind", ["plain", "staged", "summary"])
@pytest.mark.parametrize("there", [{}, {"workers": 2}, {"timeout": 20.0}], ids=str)
def test_a_simulation_that_calls_exit_is_a_failed_one(kind, there):
    if kind != "plain" and "timeout" in there:
        pytest.skip("children are for plain simulators")
    post = od.rejection(leaving_model(kind), od.uniform(9.0), budget=150, seed=1, **there)
    told = [failure.message.removeprefix("Failed: ") for failure in post.failures]
    assert post.cost.simulations == 150 and len(told) > 2
    assert post.shape[1] == 150 - post.cost.failed and np.abs(post.draws["theta"]).max() < 1.6
    assert set(told) == {"SystemExit: 0", "Mute: (its text cannot be read: RuntimeError)"}
    with pytest.raises(od.SimulationError, match=r"simulation failed at .*theta.*(SystemExit|Mute)"):
        od.rejection(leaving_model(kind), od.uniform(9.0), budget=150, seed=1, on_error="raise", **there)


@pytest.mark.parametrize("there", [{}, {"workers": 2}], ids=str)
def test_exit_where_no_single_simulation_is_at_fault_is_an_error(there):
    prior = od.Prior(theta=stats.norm())
    batched = od.Model(prior, od.batched(lambda rng, theta: sys.exit(3)), 2.0)
    with pytest.raises(od.SimulationError, match=r"the batched simulator failed.*SystemExit: 3"):
        od.rejection(batched, od.uniform(0.5), budget=100, seed=1, **there)
    own = od.unbiased(lambda rng, theta: sys.exit(4), prior)
    with pytest.raises(ValueError, match=r"log_estimate failed at .*SystemExit: 4"):
        od.pseudo_marginal(estimator=own, start={"theta": 0.0}, draws=5, seed=1, proposal=od.random_walk(1.0), **there)


def test_a_summary_that_exits_on_the_data_is_refused():
    with pytest.raises(ValueError, match=r"summary failed on the observed data: SystemExit: 5"):
        od.Model(od.Prior(theta=stats.norm()), lambda rng, theta: theta, 2.0, summary=lambda y: sys.exit(5))


def test_a_child_that_the_simulator_ends_is_a_failure_with_any_status():
    """An idle child ends with status 0 too, and is started again."""
    model = od.Model(od.Prior(theta=stats.norm()), lambda rng, theta: os._exit(0) if theta > 1 else rng.normal(), 2.0)
    post = od.rejection(model, od.uniform(9.0), budget=8, seed=1, timeout=20.0)
    assert 0 < post.cost.failed < 8
    assert "killed its process 3 times in a row (exit status 0)" in post.failures[0].message


LEFT = Counter()
"""What simulations have left behind, by process."""


def leaking(rng, theta):
    """Leaves something in its process each time, which has room for thirty."""
    LEFT[os.getpid()] += 1
    if LEFT[os.getpid()] > 30:
        raise MemoryError("no room")
    return rng.normal(theta, 1.0)


def demanding(rng, theta):
    if theta > 1.8:
        raise MemoryError("far too much")
    return rng.normal(theta, 1.0)


def refusing(rng, theta):
    if theta > 1.8:
        raise ValueError("far too much")
    return rng.normal(theta, 1.0)


MEMORY = {
    "rejection": lambda model: od.rejection(model, od.uniform(1.0), budget=64, seed=1),
    "one chain": lambda model: od.pseudo_marginal(model, od.uniform(1.0), draws=60, chains=1, seed=1),
}


@pytest.mark.parametrize("kind", MEMORY)
def test_simulations_that_leak_memory_change_no_number(kind):
    """A process that is full says nothing of the simulation that finds it full: another process makes it."""
    LEFT.clear()
    prior = od.Prior(theta=stats.norm(0, 1))
    found = MEMORY[kind](od.Model(prior, leaking, observed=1.0))
    assert LEFT[os.getpid()] > 30 and found.cost.failed == 0
    assert same(found) == same(MEMORY[kind](od.Model(prior, lambda rng, theta: rng.normal(theta, 1.0), observed=1.0)))


@pytest.mark.parametrize("kind", MEMORY)
def test_a_simulation_that_needs_too_much_memory_anywhere_is_a_failed_one(kind):
    prior = od.Prior(theta=stats.norm(0, 1))
    found, refused = (MEMORY[kind](od.Model(prior, one, observed=1.0)) for one in (demanding, refusing))
    assert found.draws["theta"].tobytes() == refused.draws["theta"].tobytes()
    assert found.cost.failed == refused.cost.failed > 0
    assert found.failures[0].message == "Failed: MemoryError: far too much"


class TooLarge:
    """What a simulator has kept, and for which no other process has room."""

    def __reduce__(self):
        raise MemoryError("too large")


def test_a_simulator_that_keeps_too_much_to_be_sent_ends_the_run():
    kept = []

    def keeps(rng, theta):
        if len(kept) == 20:
            raise MemoryError("no room")
        kept.append(TooLarge())
        return rng.normal(theta, 1.0)

    model = od.Model(od.Prior(theta=stats.norm(0, 1)), keeps, observed=1.0)
    with pytest.raises(od.SimulationError, match=r"no memory left.* \(MemoryError: too large\).* workers=2"):
        MEMORY["rejection"](model)


def test_ctrl_c_in_a_simulator_still_interrupts():
    def simulate(rng, theta):
        if theta > 1.6:
            raise KeyboardInterrupt
        return rng.normal(theta)

    post = od.rejection(od.Model(od.Prior(theta=stats.norm()), simulate, 2.0), od.uniform(9.0), budget=300, seed=1)
    assert post.status.reason == "interrupted" and post.cost.failed == 0


def in_threads(*works):
    """What several works give, each in a thread of its own; the first error if there is one."""
    with ThreadPoolExecutor(len(works)) as several:
        return [one.result(timeout=60) for one in [several.submit(work) for work in works]]


def test_threads_have_workers_of_their_own():
    """A run that ends drops work and replaces its workers, which is no concern of other threads."""

    def long():
        return same(od.rejection(slow_model(), od.uniform(0.5), budget=300, seed=1, workers=2))

    def short():
        for seed in range(4):
            od.rejection(slow_model(0.02), od.uniform(9.0), draws=1, seed=seed, workers=2, max_seconds=0.3)
        with pytest.raises(od.SimulationError):
            od.rejection(od.Model(od.Prior(theta=stats.norm()), lambda rng, theta: 1 / 0, 2.0), od.uniform(0.5),
                         draws=1, seed=1, workers=2, on_error="raise")  # fmt: skip

    alone = same(od.rejection(slow_model(0.0), od.uniform(0.5), budget=300, seed=1))
    found, _ = in_threads(long, short)
    assert found == alone
    assert sum(len(idle) for idle in pool_module._idle.values()) <= len(pool_module._idle)


# Without SciPy, which takes longer to import than all that they do.
PROGRAM = """
import multiprocessing, os, sys, time
import onedraw as od
prior = od.Prior.joint(["theta"], lambda rng, n: rng.standard_normal((n, 1)), lambda theta: -0.5 * theta[:, 0] ** 2)

def simulate(rng, theta):
    return rng.normal(theta)

def run(workers=2):
    model = od.Model(prior, simulate, 2.0)
    return od.rejection(model, od.uniform(0.5), draws=5, seed=1, workers=workers).draws["theta"].tolist()

def report():
    try:
        found = "the same" if run() == run(None) else "other numbers"
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    print(found, flush=True)

if __name__ == "__main__":
    if sys.argv[1] == "daemon":
        one = multiprocessing.get_context("spawn").Process(target=report, daemon=True)
        one.start()
        one.join()
    else:
        run()
        pid = os.fork()
        if pid == 0:
            report()
            os._exit(0)
        os.waitpid(pid, 0)
        report()
"""


def run_program(tmp_path, text, *words, **more):
    file = tmp_path / "program.py"
    file.write_text(text)
    return subprocess.run(
        [sys.executable, file, *words], capture_output=True, text=True, timeout=60, check=False, **more
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_workers_in_a_fork_of_a_process_with_workers_are_refused(tmp_path):
    done = run_program(tmp_path, PROGRAM, "fork")
    forked, parent = done.stdout.splitlines()
    assert (
        forked.startswith("ValueError: workers = 2 cannot be started in a process that was forked")
        and "spawn" in forked
    )
    assert parent == "the same"


def test_workers_in_a_daemonic_process_are_refused(tmp_path):
    done = run_program(tmp_path, PROGRAM, "daemon")
    assert done.stdout.startswith("ValueError: workers = 2 cannot be started in a daemonic process"), done
    assert "daemon=False" in done.stdout


TOGETHER = """
import asyncio, os, threading
from scipy import stats
import onedraw as od

def simulate(rng, theta):
    return rng.normal(theta)

def run(**more):
    model = od.Model(od.Prior(theta=stats.norm()), simulate, 2.0)
    return od.infer(model, budget=200, draws=100, seed=1, coverage=0, **more).draws["theta"].tobytes()

async def main(alone):
    inside = run(workers=2)
    others = await asyncio.gather(*(asyncio.to_thread(run, **more) for more in ({}, {"workers": 2}, {"timeout": 30.0})))
    return [one == alone for one in (inside, *others)]

if __name__ == "__main__":
    alone = run()
    print(asyncio.run(main(alone)), flush=True)
    pid = os.fork()
    if pid == 0:
        print([run() == alone], flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_does_not_wait_for_a_thread_that_it_does_not_have():
    """Another thread may begin a run, and hold a lock, at the moment of the fork."""
    with blas._lock:
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            with blas.one_blas_thread():
                os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_an_event_loop_threads_and_a_fork_have_the_same_bytes(tmp_path):
    done = run_program(tmp_path, TOGETHER)
    assert done.stdout.splitlines() == ["[True, True, True, True]", "[True]"], done.stderr


ENDLESS = """
import ctypes, os, signal, subprocess, sys, time
from concurrent.futures import ProcessPoolExecutor
import multiprocessing
import onedraw as od

kind, folder = sys.argv[1:]
prior = od.Prior.joint(["theta"], lambda rng, n: rng.standard_normal((n, 1)), lambda theta: -0.5 * theta[:, 0] ** 2)

def here():
    open(os.path.join(folder, str(os.getpid())), "w").close()

def starts_another(rng, theta):
    here()
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, folder])
    time.sleep(300)

def endless(rng, theta):
    here()
    while True:
        theta = theta + 1

def locked(rng, theta):
    # Holds Python's lock: no other thread of the process runs meanwhile.
    here()
    open(os.path.join(os.path.dirname(folder), f"begun {os.getpid()}"), "w").close()
    ctypes.PyDLL(None).sleep(300)

PROGRAM = "import os, sys, time; open(os.path.join(sys.argv[1], str(os.getpid())), 'w').close(); time.sleep(300)"
STUBBORN = '''
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
time.sleep(300)
'''

def main():
    given = {"workers": 2} if "workers" in kind else {"timeout": 250.0} if "timeout" in kind else {}
    if "both" in kind:
        given = {"timeout": 250.0, "workers": 2}
    if "pool" in kind:
        given = {"executor": ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(kind.split()[0]))}
    if "programs" in kind:
        # A scheduler and workers that the run's process has started as programs.
        from distributed import Client
        place = os.path.join(os.path.dirname(folder), "scheduler.json")
        words = [["scheduler", "--port", "0", "--no-dashboard"]]
        words += 2 * [["worker", "--no-dashboard", "--no-nanny", "--nthreads", "1", "--death-timeout", "300"]]
        for name, *more in words:
            call = [sys.executable, "-m", f"distributed.cli.dask_{name}", "--scheduler-file", place, *more]
            program = subprocess.Popen(call, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            open(os.path.join(folder, str(program.pid)), "w").close()
        client = Client(scheduler_file=place, timeout=30)
        client.wait_for_workers(2)
        given = {"executor": client}
    elif "dask" in kind:
        from distributed import Client
        given = {"executor": Client(n_workers=2, threads_per_worker=1, dashboard_address=":0")}
    simulator = locked if "locked" in kind else starts_another if "timeout" in given else endless
    if "batched" in kind:
        simulator = od.batched(endless)
    if "command" in kind:
        text = STUBBORN if "stubborn" in kind else PROGRAM
        simulator = od.command([sys.executable, "-c", text, folder], unused="allow", persistent="persistent" in kind)
    model = od.Model(prior, simulator, 2.0)
    od.rejection(model, od.uniform(1.0), budget=100, seed=1, **given)

if __name__ == "__main__":
    main()
"""


def alive(folder):
    """Processes that have left their number in a folder and are still there."""
    left = []
    for pid in (int(one.name) for one in folder.iterdir()):
        with suppress(psutil.NoSuchProcess):
            left += [pid] * (psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return left


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
@pytest.mark.parametrize(
    ("kind", "number", "number_of"),
    [
        ("workers", signal.SIGKILL, 2),
        pytest.param("workers, locked", signal.SIGKILL, 2, marks=pytest.mark.slow),
        pytest.param("batched workers", signal.SIGTERM, 1, marks=pytest.mark.slow),
        pytest.param("timeout", signal.SIGKILL, 2, marks=pytest.mark.slow),
        ("timeout, locked", signal.SIGKILL, 1),
        ("both", signal.SIGHUP, 4),
        pytest.param("command", signal.SIGKILL, 1, marks=pytest.mark.slow),
        ("stubborn command in workers", signal.SIGKILL, 4),
        pytest.param("stubborn persistent command", signal.SIGKILL, 2, marks=pytest.mark.slow),
        ("fork pool", signal.SIGKILL, 2),
        ("spawn pool, locked", signal.SIGKILL, 2),
        pytest.param("stubborn command", signal.SIGKILL, 2, marks=pytest.mark.slow),
        pytest.param("command in workers", signal.SIGTERM, 2, marks=pytest.mark.slow),
        pytest.param("persistent command", signal.SIGKILL, 1, marks=pytest.mark.slow),
        pytest.param("forkserver pool", signal.SIGKILL, 2, marks=pytest.mark.slow),
        pytest.param("fork pool with stubborn command", signal.SIGKILL, 4, marks=pytest.mark.slow),
        pytest.param("stubborn persistent command in workers", signal.SIGKILL, 4, marks=pytest.mark.slow),
        pytest.param("dask, locked", signal.SIGKILL, 2, marks=pytest.mark.slow),
        pytest.param("dask programs, locked", signal.SIGKILL, 3, marks=pytest.mark.slow),
        pytest.param("dask with stubborn command", signal.SIGKILL, 4, marks=pytest.mark.slow),
    ],
)
def test_nothing_outlives_a_run_that_is_killed(tmp_path, kind, number, number_of):
    folder = tmp_path / "alive"
    folder.mkdir()
    file = tmp_path / "program.py"
    file.write_text(ENDLESS)
    run = subprocess.Popen([sys.executable, file, kind, folder], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: len(alive(folder)) >= number_of)
        wait_until(lambda: "programs" not in kind or len([*tmp_path.glob("begun*")]) >= 2, 60)
        run.send_signal(number)
        run.wait(10)
        wait_until(lambda: not alive(folder), 5)
    finally:
        for pid in (run.pid, *alive(folder)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_child_may_be_collected_as_garbage_at_any_moment():
    """Also while the guardian is being told of another, in the same thread: nobody waits for its lock."""
    program = guardian.start([sys.executable, "-c", "import time; time.sleep(60)"], {})
    with guardian._lock:
        ending = threading.Thread(target=lambda: (guardian.end(program), program.wait(), guardian.let_go(program)))
        ending.start()
        ending.join(20)
        assert not ending.is_alive()
    guardian.rest()
    assert program.returncode == -signal.SIGKILL and guardian.process is None


def test_children_of_workers_end_with_the_run():
    before = {one.pid for one in psutil.Process().children(recursive=True)}
    for seed in range(3):
        model = od.Model(od.Prior(theta=stats.norm()), lambda rng, theta: rng.normal(theta), 2.0)
        od.rejection(model, od.uniform(0.5), budget=40, seed=seed, timeout=20.0, workers=2)

    def left():
        some = [one for one in psutil.Process().children(recursive=True) if one.pid not in before]
        return [one for one in some if "engines.children" in " ".join(_command(one))]

    wait_until(lambda: not left(), 6)
