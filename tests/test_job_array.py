"""Job arrays: shards in any order, killed, begun twice and left behind, give the bytes of one process."""

import errno
import functools
import json
import math
import os
import random
import re
import shutil
import signal
import socket
import time
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

import onedraw as od
from onedraw.cli.main import main
from onedraw.cli.shards import _copy
from onedraw.run import job_array, shard_files
from onedraw.run.shard_files import Lease, newest_round, read_json, read_lease, write_json, write_lease
from onedraw.run.shard_progress import look_at
from onedraw.run.shard_work import work
from onedraw.run.store import JOURNAL_MAGIC, Store
from tests import stored_run
from tests.stored_run import Child, Test, told

SHARDS = 8


@functools.cache
def alone(name):
    """What a run in one process gives."""
    return told(call(name))


def call(name, **more):
    if name == "infer":
        return od.infer(stored_run.model, budget=300, draws=50, seed=5, **more)
    # keep="all" needs a file, which a run on its own has not.
    kept = {"keep": "distances"} if name == "rejection" else {}
    return stored_run.run(name, **kept, **more)


def stepped(folder, make, shards=SHARDS):
    """The result of a run, or the shards that it waits for."""
    try:
        return make(executor=od.job_array(folder, shards=shards)), ()
    except od.ShardsMissing as missing:
        return None, missing.shards


def driven(folder, make, do=lambda folder, missing: [work(folder, shard) for shard in missing], shards=SHARDS):
    """The result of a run whose shards are done by `do`."""
    while True:
        post, missing = stepped(folder, make, shards)
        if post is not None:
            return post
        do(folder, missing)


def at_once(folder, shards, *, kills, draw, pause=0.001):
    """All shards at once, in random order, one of them twice, some killed at random moments until all are done."""

    def begin(shard):
        def done():
            Test.pause = pause
            assert work(folder, shard, segment=0.01) == "done"

        return shard, Child(done)

    order = draw.sample(shards, len(shards))
    running = [begin(shard) for shard in (*order, order[0])]
    killed = dict.fromkeys(shards, 0)
    while running:
        time.sleep(draw.random() * 0.03)
        shard, child = draw.choice(running)
        # After three deaths in a row a shard would simulate in children, and tracebacks would be theirs.
        if kills and killed[shard] < 2 and draw.random() < 0.5:
            child.send(signal.SIGKILL)
            killed[shard] += 1
            kills -= 1
        for one in list(running):
            code = one[1].poll()
            if code is not None:
                running.remove(one)
                assert code in (0, -signal.SIGKILL)
                if code:
                    running.append(begin(one[0]))


# ---------------------------------------------------------------------------------------------------------------------
# The same bytes


@pytest.mark.parametrize(
    "name", ["rejection", "smc", "importance", pytest.param("pseudo_marginal", marks=pytest.mark.slow)]
)
def test_shards_in_any_order_give_the_bytes_of_one_process(name, tmp_path):
    draw = random.Random(1)
    done = driven(tmp_path, functools.partial(call, name), lambda folder, some: backwards(folder, some, draw))
    assert told(done) == alone(name)
    assert told(od.load(tmp_path / "run.db"))[0] == alone(name)[0]


def backwards(folder, shards, draw):
    for shard in draw.sample(shards, len(shards)):
        assert work(folder, shard) == "done"


@pytest.mark.parametrize("name", ["rejection", "pseudo_marginal"])
def test_shards_at_once_with_kills_and_one_twice_give_the_bytes_of_one_process(name, tmp_path):
    draw = random.Random(2)
    done = driven(
        tmp_path, functools.partial(call, name), lambda folder, some: at_once(folder, some, kills=6, draw=draw)
    )
    assert told(done) == alone(name)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", [*stored_run.RUNS, "infer"])
def test_every_sampler_with_many_kills_of_shards_and_steps(name, seed, tmp_path):
    """Steps are killed, too, wherever they are: what they have taken is in the run's file or still in the folder."""
    draw, output = random.Random(seed), tmp_path / "told.json"

    def step():
        post, missing = stepped(tmp_path / "run", functools.partial(call, name, segment=0.01))
        output.write_text(json.dumps([list(missing), None if post is None else told(post)]))

    while True:
        output.unlink(missing_ok=True)
        child = Child(step)
        if draw.random() < 0.5:
            time.sleep(draw.random() * 0.4)
            child.send(signal.SIGKILL)
        if child.wait() != 0 or not output.exists():
            continue
        missing, found = json.loads(output.read_text())
        if found is not None:
            assert found == alone(name)
            return
        at_once(tmp_path / "run", missing, kills=draw.randrange(8), draw=draw, pause=0.0005)


def test_chains_continue_within_a_shard(tmp_path):
    """A shard that is stopped after a few steps begins there again."""
    make = functools.partial(call, "pseudo_marginal")
    steps = []

    def do(folder, shards):
        found = newest_round(Path(folder))
        for shard in shards:
            if found.header["kind"] == "chains":
                Test.pause = 0.0005
                assert work(folder, shard, max_seconds=0.02) in ("max_seconds", "done")
                Test.pause = 0.0
                steps.append(found.parts()[shard].done)
            assert work(folder, shard) == "done"

    assert told(driven(tmp_path, make, do)) == alone("pseudo_marginal")
    assert any(0 < some < 300 for some in steps)


def test_workers_without_a_number_do_all_shards_and_wait_for_the_rounds_to_come(tmp_path):
    make = functools.partial(call, "importance")
    stepped(tmp_path, make)
    helpers = [Child(lambda: work(tmp_path, wait=60.0)) for _ in range(2)]
    post = make(executor=od.job_array(tmp_path, shards=3, wait=60.0))
    assert told(post) == alone("importance")
    # They end with the run, not after a minute.
    assert [one.wait(20) for one in helpers] == [0, 0]


def test_calibrate_goes_by_shards(tmp_path):
    measure = stored_run.MEASUREMENTS["calibrate"]
    found = driven(tmp_path, lambda executor: measure(None, executor=executor))
    assert str(found) == str(measure(None))


def test_fit_summary_goes_by_shards(tmp_path):
    make = functools.partial(od.fit_summary, stored_run.model, budget=200, seed=5)
    found, here = driven(tmp_path, make), make()
    assert found.theta.tobytes() == here.theta.tobytes() and found.rows.tobytes() == here.rows.tobytes()


@pytest.mark.slow
def test_compare_goes_by_shards(tmp_path):
    other = od.Model(od.Prior(a=stats.norm(0, 1)), far_off, stored_run.model.observed)
    models = {"one": stored_run.model, "other": other}
    make = functools.partial(od.compare, models, budget=300, seed=1)
    assert str(driven(tmp_path, make)) == str(make())


def far_off(rng, a):
    return rng.normal(a, 5.0, size=2)


# ---------------------------------------------------------------------------------------------------------------------
# What is spent


@pytest.mark.parametrize("draws", [50, 60, 70, 80])
def test_what_is_not_used_is_surplus_and_the_budget_holds(draws, tmp_path):
    make = functools.partial(
        od.rejection, stored_run.model, od.uniform(0.8), draws=draws, budget=1500, seed=3, keep="draws"
    )
    post, here = driven(tmp_path, make, shards=2), make()
    assert told(post) == told(here)
    closed = read_json(tmp_path / "closed.json")
    made = sum(one["simulations"] for one in closed)
    assert post.cost.surplus > 0 and post.cost.simulations + post.cost.surplus == made <= 1500


@pytest.mark.parametrize(
    ("pace", "items"),
    [((0, 1600, 0), 100), ((0, 4, 0), 10), ((0, 4, 160), 40), ((4, 4, 160), 5), ((100, 10_000, 1600), 1000)],
)
def test_rounds_that_end_when_they_have_enough_are_sized_by_what_was_found(pace, items):
    assert job_array.items_wanted(job_array.Pace(*pace), 16, 50) == items


def test_a_budget_alone_is_one_round(tmp_path):
    model = od.Model(od.Prior(a=stats.norm(0, 1)), normal, 2.0)
    post = driven(tmp_path, functools.partial(od.rejection, model, od.uniform(0.5), budget=640, seed=1))
    assert post.cost.surplus == 0
    assert [one["round"] for one in read_json(tmp_path / "closed.json")] == [1]


def test_a_round_of_few_blocks_is_shared_by_all_shards(tmp_path):
    """The pilot of infer is 196 simulations here, seven blocks: sixteen shards make twelve or so of them each.

    A step that finds only some parts of a block takes those that are whole, and no more.
    """
    model = od.Model(od.Prior(a=stats.norm(0, 1)), normal, 2.0)
    make = functools.partial(od.infer, model, budget=970, draws=50, seed=3)
    shared = []

    def do(folder, missing):
        found = newest_round(folder)
        for shard in (1, 2, 3, 5):
            if shard in missing:
                work(folder, shard)
        assert stepped(folder, make, 16)[1] == tuple(one for one in missing if one not in (1, 2, 3, 5))
        for shard in missing:
            work(folder, shard)
        shared.append([found.counted(found.parts()[shard])[0] for shard in range(1, found.shards + 1)])

    assert told(driven(tmp_path, make, do, shards=16)) == told(make())
    assert sum(shared[0]) == 196 and len(shared[0]) == 16 and max(shared[0]) <= 16
    assert all(len(one) == 16 for one in shared)


def normal(rng, a):
    return rng.normal(a, 1.0)


# ---------------------------------------------------------------------------------------------------------------------
# Failures and errors


def test_an_error_is_that_of_a_run_in_one_process(tmp_path):
    make = functools.partial(
        od.rejection, stored_run.model, stored_run.KERNEL, budget=2000, seed=3, keep="draws", on_error="raise"
    )
    with pytest.raises(od.SimulationError) as here:
        make()
    with pytest.raises(od.SimulationError) as there:
        driven(tmp_path, make, tried)
    assert str(there.value) == str(here.value)


def tried(folder, shards):
    """All shards, whatever becomes of them."""
    for shard in shards:
        try:
            work(folder, shard)
        except od.SimulationError:
            state = look_at(Path(folder)).shards[shard - 1]
            assert state.state == "error" and "beyond the model" in state.error


def test_a_model_whose_simulations_all_fail_is_refused_by_the_first_shard(tmp_path):
    model = od.Model(od.Prior(a=stats.norm(0, 1)), hopeless, 2.0)
    make = functools.partial(od.rejection, model, od.uniform(1.0), budget=20_000, seed=1)
    assert stepped(tmp_path, make) == (None, tuple(range(1, 9)))
    with pytest.raises(od.SimulationError, match="all of the first 112 simulations failed"):
        work(tmp_path, 1)
    with pytest.raises(od.SimulationError, match=r"shard 1 of this round ended with an error, .* not needed"):
        work(tmp_path, 5, segment=1e-6)
    with pytest.raises(od.SimulationError, match="all of the first 112 simulations failed"):
        stepped(tmp_path, make)


def hopeless(rng, a):
    raise RuntimeError("never")


@pytest.mark.slow
def test_code_that_kills_its_process_is_a_failed_simulation_in_the_end(tmp_path):
    model = od.Model(od.Prior(a=stats.norm(0, 1)), deadly, 2.0)
    make = functools.partial(od.rejection, model, od.uniform(1.0), budget=16, seed=4)
    assert stepped(tmp_path, make, shards=1)[1] == (1,)
    # Twice before all parts in front of it are saved, and three times there.
    begun = [Child(functools.partial(work, tmp_path, 1)).wait() for _ in range(5)]
    assert begun == [9] * 5
    said = []
    assert work(tmp_path, 1, tell=said.append) == "done"
    assert "shard 1 has killed 3 processes: its simulations run in children" in said
    post = driven(tmp_path, make)
    assert post.cost.failed == 1 and "killed its process" in post.failures[0].message


def deadly(rng, a):
    if a > 1.8:
        os._exit(9)
    return rng.normal(a, 1.0)


@pytest.mark.slow
def test_a_time_limit_holds_in_shards(tmp_path):
    model = od.Model(od.Prior(a=stats.norm(0, 1)), sometimes_slow, 2.0)
    make = functools.partial(od.rejection, model, od.uniform(1.0), budget=16, seed=4, timeout=0.3)
    post = driven(tmp_path, make)
    assert post.cost.failed == 1 and "timeout" in post.failures[0].message
    assert told(post) == told(make())


def sometimes_slow(rng, a):
    if a > 1.8:
        time.sleep(60)
    return rng.normal(a, 1.0)


def test_a_signal_saves_what_is_done(tmp_path):
    model = od.Model(od.Prior(a=stats.norm(0, 1)), a_little_slow, 2.0)
    assert stepped(tmp_path, functools.partial(od.rejection, model, od.uniform(1.0), budget=1600, seed=1))[1]
    child = Child(lambda: os._exit({"terminated": 7}.get(work(tmp_path, 1), 1)))
    found, until = newest_round(tmp_path), time.monotonic() + 20
    while read_lease(found.lease_name(1)) is None or not read_lease(found.lease_name(1))[0].done:
        assert time.monotonic() < until
        time.sleep(0.02)
    child.send(signal.SIGTERM)
    assert child.wait() == 7
    assert 0 < found.parts()[1].done < found.size(1)
    assert read_lease(found.lease_name(1)) is None


def a_little_slow(rng, a):
    time.sleep(0.01)
    return rng.normal(a, 1.0)


# ---------------------------------------------------------------------------------------------------------------------
# Who works on a shard


@pytest.fixture
def planned(tmp_path):
    """A folder with a first round of four shards, and the call that it belongs to."""
    model = od.Model(od.Prior(a=stats.norm(0, 1)), normal, 2.0)
    make = functools.partial(od.rejection, model, od.uniform(1.0), budget=64, seed=4)
    assert stepped(tmp_path, make, shards=4)[1] == (1, 2, 3, 4)
    return tmp_path, make


def lease(folder, shard, *, host, pid, age=0.0, attempts=0, place=None):
    path = newest_round(folder).lease_name(shard)
    if place is None:
        place = shard_files.process_place() if host == socket.gethostname() else "elsewhere"
    write_lease(
        path, Lease("token", host, pid, place, shard_files.process_start(pid) or 1, 0, attempts, 0, 1.0, 0, 0, 0)
    )
    then = time.time() - age
    os.utime(path, (then, then))


def test_a_shard_whose_process_has_left_is_stale_and_taken_over(planned):
    folder, _ = planned
    gone = Child(lambda: None)
    gone.wait()
    lease(folder, 1, host=socket.gethostname(), pid=gone.pid)
    lease(folder, 2, host="elsewhere", pid=1, age=shard_files.STALE + 10)
    lease(folder, 3, host="elsewhere", pid=1)
    lease(folder, 4, host=socket.gethostname(), pid=os.getpid())
    states = [one.state for one in look_at(folder).shards]
    assert states == ["stale", "stale", "running", "running"]
    said = []
    # Those of others are left alone unless they are asked for by number.
    assert work(folder, tell=said.append) == "left"
    assert [one.state for one in look_at(folder).shards] == ["done", "done", "running", "running"]
    assert "shard 1 is taken over: process" in "\n".join(said)
    assert work(folder, 3, tell=said.append) == "done"
    assert "shard 3 is also worked on by process 1 on elsewhere" in said


def test_hosts_of_the_same_name_leave_each_others_shards_alone(planned):
    """Containers often have the same name, and each its own numbers of processes: 1 is in all of them."""
    folder, _ = planned
    gone, name, mine = Child(lambda: None), socket.gethostname(), shard_files.process_place()
    gone.wait()
    boot = mine.split()[1]
    lease(folder, 1, host=name, pid=gone.pid, place=mine.replace(boot, "another-start"))
    lease(folder, 2, host=name, pid=gone.pid, place=mine.replace("pid:[", "pid:[1"))
    lease(folder, 3, host=name, pid=gone.pid, place="")
    lease(folder, 4, host=name, pid=gone.pid)
    assert [one.state for one in look_at(folder).shards] == ["running", "running", "running", "stale"]
    assert work(folder) == "left"
    assert [one.state for one in look_at(folder).shards] == ["running", "running", "running", "done"]
    for shard in (1, 2, 3):
        path = newest_round(folder).lease_name(shard)
        then = path.stat().st_mtime - shard_files.STALE - 10
        os.utime(path, (then, then))
    assert work(folder) == "done"


def test_a_process_with_the_number_of_one_that_is_gone_is_another(planned):
    """A container that is started again has the same numbers, so that its deaths would never be counted."""
    folder, _ = planned
    lease(folder, 1, host=socket.gethostname(), pid=os.getpid(), attempts=1)
    path = newest_round(folder).lease_name(1)
    write_lease(path, read_lease(path)[0]._replace(start=7))
    assert look_at(folder).shards[0].state == "stale"
    said = []
    assert work(folder, 1, tell=said.append) == "done"
    assert "shard 1 is taken over" in said[0]


@pytest.mark.parametrize(("host", "blamed"), [(socket.gethostname(), False), ("elsewhere", True)])
def test_a_process_that_lives_has_not_died_of_its_simulations(host, blamed, planned, monkeypatch):
    """Begun twice on one host, a shard has no deaths; a process elsewhere, whose lease is young, may be dead."""
    from onedraw.run import shard_work

    seen = []

    def worked(shard, task, items):
        seen.append(shard.lease.attempts)
        return "terminated"

    monkeypatch.setattr(shard_work, "_worked", worked)
    lease(planned[0], 1, host=host, pid=os.getpid(), attempts=3)
    said = []
    assert work(planned[0], 1, tell=said.append) == "terminated"
    assert seen == [4 if blamed else 3]
    assert any("run in children" in line for line in said) == blamed


def test_a_shard_that_is_done_does_nothing(planned):
    folder, _ = planned
    assert work(folder, 2) == "done"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("part-*")}
    assert work(folder, 2) == "done"
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("part-*")} == before


def test_whoever_has_done_more_of_a_shard_goes_on(planned, by_name, monkeypatch):
    """Two processes at one shard: the one behind continues from the part of the other."""
    from onedraw.run import shard_work

    model = od.Model(od.Prior(a=stats.norm(0, 1)), counted, 2.0)
    folder = planned[0] / "more"
    make = functools.partial(od.rejection, model, od.uniform(1.0), budget=640, seed=4)
    stepped(folder, make)
    before, calls, Test.calls = shard_work.Shard.save_if_due, [], 0

    def overtaken(shard):
        calls.append(shard.done)
        if len(calls) == 2:
            monkeypatch.setattr(shard_work.Shard, "save_if_due", before)
            assert work(folder, 1) == "done"
            shard.save()

    monkeypatch.setattr(shard_work.Shard, "save_if_due", overtaken)
    assert work(folder, 1, segment=1e-6) == "done"
    # Two half blocks by the one, all ten by the other, and none twice after that.
    assert calls == [1, 2] and Test.calls == 12 * 8
    assert told(driven(folder, make)) == told(make())


def counted(rng, a):
    Test.calls += 1
    return rng.normal(a, 1.0)


def test_a_round_that_is_closed_meanwhile_ends_the_work_on_it(planned, monkeypatch):
    from onedraw.run import shard_work

    folder, make = planned
    found = newest_round(folder)
    monkeypatch.setattr(shard_work, "newest_round", lambda path: found)
    shard_files.remove_round(found)
    assert work(folder, 1) == "done"
    monkeypatch.undo()
    # The run plans it again.
    assert told(driven(folder, make)) == told(make())


def test_a_step_that_ends_before_it_has_closed_its_round(planned, monkeypatch):
    """What was taken is in the run's file; the round is closed by the next step, and not taken twice."""
    folder, make = planned
    for shard in (1, 2, 3, 4):
        work(folder, shard)

    def lost(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(job_array.JobArray, "_close", lost)
    with pytest.raises(KeyboardInterrupt):
        stepped(folder, make)
    monkeypatch.undo()
    post, missing = stepped(folder, make)
    assert missing == () and told(post) == told(make())
    assert not list(folder.glob("round-*"))


@pytest.mark.parametrize("name", ["smc", "importance", "pseudo_marginal"])
def test_every_step_ends_before_it_has_closed_its_round(name, tmp_path, monkeypatch):
    """The rounds of smc have the same blocks: one that is left behind is not taken for the next."""
    make, close = functools.partial(call, name), job_array.JobArray._close
    lost = []

    def closed(self, found, unused):
        if found.number not in lost:
            lost.append(found.number)
            raise ZeroDivisionError
        close(self, found, unused)

    monkeypatch.setattr(job_array.JobArray, "_close", closed)
    post = None
    while post is None:
        try:
            post, missing = stepped(tmp_path, make)
        except ZeroDivisionError:
            continue
        for shard in missing:
            work(tmp_path, shard)
    assert len(lost) > 3 or name == "pseudo_marginal"
    assert told(post) == alone(name)


def test_a_step_that_ends_in_the_middle_of_a_shard(tmp_path, monkeypatch):
    """What is in the run's file is not taken again from the shard."""
    from onedraw.run import driver

    model = od.Model(od.Prior(a=stats.norm(0, 1)), normal, 2.0)
    make = functools.partial(od.rejection, model, od.uniform(1.0), budget=640, seed=4, segment=1e-9)
    stepped(tmp_path, make)
    work(tmp_path)
    for items in (3, 4, 9):
        # The last calls are those for what the file holds.
        left = [items]

        def limited(*_, last, left=left):
            left[0] -= 1
            if left[0] == 0:
                raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr(driver, "refuse_if_all_failed", limited)
            with pytest.raises(ZeroDivisionError):
                stepped(tmp_path, make)
    assert 16 < od.load(tmp_path / "run.db").cost.simulations < 640
    assert told(driven(tmp_path, make)) == told(make())


def test_a_step_that_runs_out_of_time_leaves_the_round_to_the_next(planned):
    folder, make = planned
    lease(folder, 4, host="elsewhere", pid=1)
    work(folder, 1)
    waiting = od.job_array(folder, shards=SHARDS, wait=60.0)
    post = make(executor=waiting, max_seconds=0.3)
    assert post.status.reason == "max_seconds" and post.cost.simulations == 16
    assert newest_round(folder) is not None and not (folder / "complete").exists()
    assert told(driven(folder, make)) == told(make())
    assert (folder / "complete").exists()


def test_a_full_disk_keeps_the_shards(planned, monkeypatch):
    """What could not be committed is still in the folder."""
    import sqlite3

    folder, make = planned
    work(folder)

    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put", full)
        with pytest.warns(UserWarning, match="could not be written"), pytest.raises(od.StoreError, match="make room"):
            stepped(folder, make)
    assert len(newest_round(folder).parts()) == 4
    assert told(driven(folder, make)) == told(make())


def test_without_a_seed_the_one_drawn_first_is_used(planned):
    _, make = planned
    folder = planned[0] / "more"
    post = driven(folder, functools.partial(make, seed=None))
    assert told(post) == told(make(seed=post.seed))


def test_a_run_is_shown_between_its_rounds(tmp_path):
    make = functools.partial(call, "importance")
    for _ in range(3):
        work(tmp_path, stepped(tmp_path, make)[1] and None)
    post = od.load(tmp_path / "run.db")
    assert post.shape[1] > 0 and post.status.reason == "unfinished" and post.cost.simulations < 2000


def test_a_step_says_whether_anything_has_moved(planned):
    folder, make = planned
    jobs = od.job_array(folder, shards=SHARDS)

    def moved():
        with pytest.raises(od.ShardsMissing) as found:
            make(executor=jobs)
        return found.value.moved

    assert not moved()
    work(folder, 3)
    assert moved()
    assert not moved()


# ---------------------------------------------------------------------------------------------------------------------
# Folders that cannot be used


def test_another_model_or_other_settings_are_refused(planned):
    """Also before anything was saved, when the run's file binds nobody yet."""
    folder, make = planned
    other = od.Model(od.Prior(a=stats.norm(0, 1)), a_little_slow, 2.0)
    with pytest.raises(od.StoreError, match=r"model.simulate changed \(code"):
        stepped(folder, functools.partial(od.rejection, other, od.uniform(1.0), budget=64, seed=4))
    with pytest.raises(od.StoreError, match=r"eps: 1\.0 -> 2\.0"):
        stepped(folder, functools.partial(od.rejection, other, od.uniform(2.0), budget=64, seed=4))
    with pytest.raises(od.StoreError, match="budget: 64 -> 32"):
        stepped(folder, functools.partial(make, budget=32))
    with pytest.raises(od.StoreError, match="smc"):
        stepped(folder, functools.partial(od.smc, other, budget=640, seed=4))


def test_a_larger_budget_continues(planned):
    folder, make = planned
    driven(folder, make)
    post = driven(folder, functools.partial(make, budget=160))
    assert told(post)[0] == told(make(budget=160))[0]


@pytest.mark.parametrize("name", ["rejection", "pseudo_marginal"])
def test_a_larger_number_before_the_first_shard_is_done(name, tmp_path):
    """The last item of the first plan is another one then, and chains take more steps; nothing wrong is taken."""
    model = od.Model(od.Prior(a=stats.norm(0, 1)), normal, 2.0)
    if name == "rejection":
        make = functools.partial(od.rejection, model, od.uniform(1.0), seed=4)
        small, large = {"budget": 60}, {"budget": 100}
    else:
        make = functools.partial(od.pseudo_marginal, model, od.uniform(1.0), seed=4, start={"a": np.ones(3)})
        small, large = {"draws": 20}, {"draws": 30}
        work_all(tmp_path, stepped(tmp_path, functools.partial(make, **small))[1])
    stepped(tmp_path, functools.partial(make, **small))
    before = newest_round(tmp_path)
    assert before.header["kind"] == ("items" if name == "rejection" else "chains")
    work_all(tmp_path, range(1, before.shards + 1))
    post = driven(tmp_path, functools.partial(make, **large))
    assert told(post)[:3] == told(make(**large))[:3]


def work_all(folder, shards):
    for shard in shards:
        assert work(folder, shard) == "done"


def test_fewer_shards_than_the_present_round_has(planned):
    folder, make = planned
    assert stepped(folder, make, shards=2)[1] == (1, 2, 3, 4)
    assert work(folder, 4) == "done"
    assert told(driven(folder, make, shards=2)) == told(make())


def test_an_error_that_passes(tmp_path):
    """A shard that is begun again tries the simulation again, and the run continues."""
    model = od.Model(od.Prior(a=stats.norm(0, 1)), needs_a_file, 2.0)
    make = functools.partial(od.rejection, model, od.uniform(1.0), budget=640, seed=4, on_error="raise")
    Test.needed = tmp_path / "needed"
    stepped(tmp_path / "run", make)
    with pytest.raises(od.SimulationError, match="No such file"):
        work(tmp_path / "run", 1)
    assert look_at(tmp_path / "run").shards[0].state == "error"
    with pytest.raises(od.SimulationError, match="No such file"):
        stepped(tmp_path / "run", make)
    Test.needed.write_text("")
    assert work(tmp_path / "run", 1) == "done"
    post = driven(tmp_path / "run", make)
    assert told(post)[:4] == told(make())[:4]


def needs_a_file(rng, a):
    Test.needed.read_text()
    return rng.normal(a, 1.0)


def test_waiting_steps_do_not_fill_the_file(tmp_path):
    make = functools.partial(call, "importance")
    for _ in range(2):
        work_all(tmp_path, stepped(tmp_path, make)[1])
    sizes = []
    for _ in range(4):
        stepped(tmp_path, make)
        with Store(tmp_path / "run.db") as store:
            sizes.append(store.count())
    assert sizes[1:] == [sizes[1]] * 3


def changed(path, **more):
    header, body = shard_files.read_whole(path)
    for name in ("bytes", "digest"):
        header.pop(name)
    shard_files.write_whole(path, {**header, **more}, body)


def test_another_version_is_refused(planned):
    folder, make = planned
    path = folder / "round-0001" / "task"
    there = shard_files.header_of(path)["versions"]
    changed(path, versions={**there, "onedraw": "99.0"})
    for use in (lambda: work(folder, 1), lambda: stepped(folder, make)):
        with pytest.raises(od.StoreError, match=r"made with onedraw 99.0, .* use the same on all hosts"):
            use()
    changed(path, versions={**there, "python": "2.7.18"})
    with pytest.raises(od.StoreError, match=r"made with python 2.7.18"):
        work(folder, 1)
    changed(path, versions={**there, "numpy": "1.0"})
    said = []
    assert work(folder, 1, tell=said.append) == "done"
    assert "made with numpy 1.0, here" in said[0]


BROKEN = {
    "no task": (lambda path: (path / "task").unlink(), None),
    "an empty task": (lambda path: (path / "task").write_bytes(b""), "is no file of a job array"),
    "another task": (lambda path: (path / "task").write_bytes(b"GIF89a" * 10), "is no file of a job array"),
    "a cut task": (lambda path: cut(path / "task", 10), "is damaged: it is not as it was written"),
    "a header that is none": (
        lambda path: (path / "task").write_bytes(shard_files.MAGIC + b"[]\n"),
        "its first lines cannot be read",
    ),
    "a header without shards": (lambda path: changed(path / "task", shards="4"), "has no 'shards'"),
    "sizes that do not fit": (lambda path: changed(path / "task", sizes=[1]), "does not say what its shards do"),
    "an unknown kind": (lambda path: changed(path / "task", kind="x"), "has no 'kind'"),
    "cut items": (lambda path: cut(path / "items-00001", 3), "is damaged"),
    "items of another round": (lambda path: changed(path / "items-00001", token="x"), "belongs to another round"),
    "a task that cannot be unpacked": (
        lambda path: shard_files.write_whole(path / "task", head(path / "task"), b"cnone\nnone\n."),
        "cannot be unpacked here .* the same versions of Python",
    ),
}


def head(path):
    return {key: one for key, one in shard_files.header_of(path).items() if key not in ("bytes", "digest")}


def cut(path, number):
    path.write_bytes(path.read_bytes()[:-number])


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_round_is_named(name, planned):
    folder, _ = planned
    breaking, message = BROKEN[name]
    breaking(folder / "round-0001")
    if message is None:
        assert work(folder, 1) == "done"
        return
    with pytest.raises(od.StoreError, match=message):
        work(folder, 1)


@pytest.mark.parametrize("damage", ["cut", "other", "token", "short"])
def test_a_damaged_part_is_named_and_made_again(damage, planned):
    folder, make = planned
    for shard in (1, 2, 3, 4):
        work(folder, shard)
    part = newest_round(folder).parts()[2].path
    if damage == "cut":
        cut(part, 5)
    elif damage == "other":
        part.write_bytes(b"noise" * 100)
    elif damage == "token":
        changed(part, token="x")
    else:
        import pickle

        shard_files.write_whole(part, head(part), pickle.dumps(([], None)))
    with pytest.raises(od.StoreError, match=re.escape(str(part)) + ".*remove it, and start the work"):
        stepped(folder, make)
    part.unlink()
    assert told(driven(folder, make)) == told(make())


def test_a_damaged_part_is_made_again_by_its_shard(planned):
    folder, make = planned
    model = od.Model(od.Prior(a=stats.norm(0, 1)), normal, 2.0)
    folder = folder / "more"
    make = functools.partial(od.rejection, model, od.uniform(1.0), budget=640, seed=4)
    stepped(folder, make)
    found = newest_round(folder)
    found.part_name(1, 2).write_bytes(b"noise")
    found.part_name(1, 10**8).write_bytes(b"beyond the end")
    said = []
    assert work(folder, 1, tell=said.append) == "done"
    assert "is no file of a job array" in said[0] and "It is made again" in said[0]
    assert told(driven(folder, make)) == told(make())


@pytest.mark.parametrize("name", ["run.json", "closed.json", "seen.json"])
@pytest.mark.parametrize("content", ["", "{", "3", '{"crc": 3, "value": 3}', "[" * 100_000, b"\xff\xfe"])
def test_notes_that_cannot_be_read_are_named(name, content, planned):
    folder, make = planned
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    if name == "closed.json":
        work(folder)
    with pytest.raises(od.StoreError, match=f"{name} cannot be read .*: remove it"):
        stepped(folder, make)


@pytest.mark.parametrize("name", ["run.json", "closed.json", "seen.json"])
@pytest.mark.parametrize("value", [3, {"specification": 3}, [{"round": "x"}], None, math.nan])
def test_notes_of_another_kind_are_named(name, value, planned):
    folder, make = planned
    write_json(folder / name, value)
    if name == "closed.json":
        work(folder)
    if name == "seen.json" or value is None:
        # It says only whether anything has moved; and what holds nothing is as good as none.
        assert stepped(folder, make)[1] in ((1, 2, 3, 4), ())
        return
    with pytest.raises(od.StoreError, match=f"{name} .*: remove it"):
        stepped(folder, make)


@pytest.mark.parametrize("name", ["plan.json", "run.json", "closed.json", "seen.json"])
def test_every_changed_byte_of_a_note_is_found_or_means_the_same(name, commands):
    """A flipped digit of a budget is a valid budget, which would be spent."""
    plan = ("plan", "model.py", "--budget", "640", "--eps", "1", "--seed", "1", "--shards", "2", "--out", "run")
    onedraw(*plan)
    onedraw("work", "run")
    onedraw("step", "run")
    path = Path("run") / name
    before, value = path.read_bytes(), read_json(path)
    for k in range(len(before)):
        for bits in (1, 2, 32):
            path.write_bytes(before[:k] + bytes([before[k] ^ bits]) + before[k + 1 :])
            assert read_or_refused(path) in (value, f"run/{name} cannot be read")
    if name == "plan.json":
        path.write_bytes(before.replace(b'"budget": 640', b'"budget": 740'))
        for command in (("step", "run"), ("collect", "run"), plan):
            said = onedraw(*command, status=1)
            assert "its checksum does not fit" in said and "give onedraw plan again, with the same options" in said
        path.unlink()
        assert "640 simulations" in onedraw(*plan)


def read_or_refused(path):
    try:
        return read_json(path)
    except od.StoreError as error:
        return str(error).partition(" (")[0]


def test_a_lease_that_cannot_be_read_is_none(planned):
    folder, make = planned
    for content in (b"", b"{", b"[3]", b'{"host": 3}', b"\xff\xfe"):
        newest_round(folder).lease_name(1).write_bytes(content)
        assert look_at(folder).shards[0].state == "waiting"
    assert told(driven(folder, make)) == told(make())


# A disk and a clock that cannot be relied on


@pytest.mark.parametrize(
    ("use", "name"), [("work", "lease-00001"), ("work", "part-00001-000000002"), ("step", "run.json")]
)
def test_what_cannot_be_written_is_named_and_leaves_nothing(use, name, planned, monkeypatch):
    """A shard whose file cannot be written has not ended with an error of its simulations."""
    folder, make = planned
    path, replace = newest_round(folder).part_name(1, newest_round(folder).size(1)), os.replace
    name = path.name if name.startswith("part") else name

    def full(source, target, **more):
        if Path(target).name == name:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(od.StoreError, match=rf"{name} could not be written \(No space left on device\): make room"):
            work(folder, 1) if use == "work" else stepped(folder, make)
    assert [path for path in folder.rglob(".*") if not path.name.startswith(".look")] == []
    assert not list(folder.rglob("*.error"))
    assert told(driven(folder, make)) == told(make())


def test_items_that_are_missing_are_named(planned):
    folder, make = planned
    work(folder, 1)
    (folder / "round-0001" / "items-00002").unlink()
    for use in (lambda: work(folder, 2), lambda: stepped(folder, make)):
        with pytest.raises(
            od.StoreError, match=r"items-00002 is missing: remove the folder .*round-0001, and the next"
        ):
            use()
    assert not list(folder.rglob("*.error"))
    shutil.rmtree(folder / "round-0001")
    assert told(driven(folder, make)) == told(make())


def test_a_round_whose_task_is_missing_is_written_again(planned):
    folder, make = planned
    work(folder, 1)
    (folder / "round-0001" / "task").unlink()
    assert stepped(folder, make, 4)[1] == (1, 2, 3, 4)
    assert told(driven(folder, make)) == told(make())


def test_files_that_cannot_be_read_are_named(planned):
    folder, make = planned
    path = newest_round(folder).path / "task"
    path.unlink()
    path.mkdir()
    for use in (lambda: work(folder, 1), lambda: stepped(folder, make), lambda: look_at(folder)):
        with pytest.raises(od.StoreError, match=r"task cannot be read .*Is a directory.*: make it readable"):
            use()


@pytest.mark.parametrize("name", ["part", "items-00001", "task"])
def test_a_changed_digit_in_a_header_is_found(name, planned):
    folder, make = planned
    work(folder, 1)
    found = newest_round(folder)
    path = found.parts()[1].path if name == "part" else found.path / name
    place = {"part": b'"simulations": 1', "items-00001": b'"places": [[', "task": b'"sizes": ['}[name]
    before = path.read_bytes()
    at = before.index(place) + len(place)
    path.write_bytes(before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :])
    with pytest.raises(od.StoreError, match=f"{path.name} is damaged: its first lines"):
        stepped(folder, make)


def test_signs_of_life_in_the_future_are_of_a_clock_that_was_set_back(planned):
    folder, make = planned
    lease(folder, 1, host="elsewhere", pid=1, age=-86400.0)
    for path in (folder / "round-0001").iterdir():
        os.utime(path, (time.time() + 86400,) * 2)
    os.utime(folder / "round-0001", (time.time() + 86400,) * 2)
    state = look_at(folder)
    assert state.shards[0].state == "stale" and not state.moves
    assert work(folder) == "done"
    assert told(driven(folder, make)) == told(make())


def test_a_lease_with_an_impossible_process_is_that_of_nobody_here(planned):
    folder, _ = planned
    lease(folder, 1, host=socket.gethostname(), pid=10**30, age=4000)
    assert look_at(folder).shards[0].state == "stale"


def test_a_process_that_leaves_keeps_the_lease_of_another(planned, monkeypatch):
    from onedraw.run import shard_work

    folder, _ = planned
    path = newest_round(folder).lease_name(1)

    def overtaken(*_):
        lease(folder, 1, host=socket.gethostname(), pid=os.getpid())
        return "terminated"

    monkeypatch.setattr(shard_work, "_worked", overtaken)
    assert work(folder, 1) == "terminated"
    # Of the same name and number, as in two containers.
    assert read_lease(path)[0].token == "token"


def test_a_process_of_a_removed_round_writes_nothing_into_the_next_of_its_name(planned, monkeypatch):
    """The folder of a round is removed by hand, and the step writes it again while somebody is at the first."""
    from onedraw.run import shard_work

    folder, make = planned
    worked = shard_work._worked

    def late(*given):
        reason = worked(*given)
        shutil.rmtree(folder / "round-0001")
        stepped(folder, make)
        return reason

    monkeypatch.setattr(shard_work, "_worked", late)
    assert work(folder, 1) == "done"
    monkeypatch.undo()
    assert newest_round(folder).parts() == {}
    assert told(driven(folder, make)) == told(make())


def test_notes_that_a_killed_step_has_not_renamed_are_removed(planned):
    folder, make = planned
    for name in ("run.json", "seen.json"):
        (folder / f".{name}.123.abcd").write_text("{")
    stepped(folder, make)
    assert not list(folder.glob(".run.json*")) and not list(folder.glob(".seen.json*"))


def test_a_folder_of_another_version_says_which(planned):
    folder, make = planned
    known = read_json(folder / "run.json")
    write_json(folder / "run.json", {**known, "versions": {**known["versions"], "onedraw": "99.0"}})
    with pytest.raises(od.StoreError, match=r"run.json was written by onedraw 99.0, .*: use the same version"):
        stepped(folder, make)


@pytest.mark.parametrize("name", ["run.json", "closed.json", "seen.json"])
def test_what_is_said_of_notes_that_cannot_be_read_helps(name, planned):
    folder, make = planned
    for shard in (1, 2):
        work(folder, shard)
    stepped(folder, make)
    (folder / name).write_text("{")
    if name == "closed.json":
        work(folder)
    with pytest.raises(od.StoreError, match=f"{name} cannot be read .*: remove it"):
        stepped(folder, make)
    (folder / name).unlink()
    assert told(driven(folder, make)) == told(make())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shards": 0}, "shards must be a whole number of at least 1, got 0"),
        ({"shards": "3"}, "shards must be a whole number"),
        ({"shards": 2, "wait": -1}, "wait must be positive"),
        ({"shards": 2, "folder": 3}, "folder must be the name of a folder"),
        ({"shards": 2, "folder": __file__}, "is a file"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        od.job_array(**{"folder": tmp_path, **arguments})


def test_what_does_not_go_with_a_job_array_is_refused(tmp_path):
    jobs, model = od.job_array(tmp_path, shards=2), stored_run.model
    with pytest.raises(ValueError, match="not both"):
        od.rejection(model, od.uniform(1.0), budget=64, workers=2, executor=jobs)
    with pytest.raises(ValueError, match=r"keeps its run in .*run.db: leave store= out"):
        od.rejection(model, od.uniform(1.0), budget=64, store="other.db", executor=jobs)
    with pytest.raises(ValueError, match=r"is for single runs, .* and this makes several runs"):
        od.tolerance_for(model, 0.3, budget=2000, chains=4, seed=5, executor=jobs)
    with pytest.raises(ValueError, match="layout='draws'"):
        od.pseudo_marginal(model, od.uniform(1.0), draws=10, layout="draws", executor=jobs)
    with pytest.raises(od.StoreError, match="is not the folder of a job array"):
        work(tmp_path / "..", 1)
    with pytest.raises(od.StoreError, match="is not a folder"):
        work(tmp_path / "none", 1)


def test_the_folder_can_be_named_as_the_store_too(tmp_path):
    model = od.Model(od.Prior(a=stats.norm(0, 1)), normal, 2.0)
    make = functools.partial(od.rejection, model, od.uniform(1.0), budget=64, seed=4, store=tmp_path / "run.db")
    assert np.isfinite(driven(tmp_path, make).draws["a"]).all()
    # And od.resume continues it, here with more to do.
    more = driven(tmp_path, lambda executor: od.resume(tmp_path / "run.db", model, budget=96, executor=executor))
    assert more.cost.simulations == 96


# ---------------------------------------------------------------------------------------------------------------------
# The command line

MODEL = """
from scipy import stats
import onedraw as od

RATE = 1.0

def simulate(rng, a):
    return rng.normal(a, RATE)

model = od.Model(od.Prior(a=stats.norm(0, 1)), simulate, 2.0)
"""


def onedraw(*words, status=0):
    found = CliRunner().invoke(main, [str(word) for word in words])
    assert found.exit_code == status, (found.output, found.exception)
    return found.output


@pytest.fixture
def commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)


def test_plan_work_step_and_collect(commands):
    plan = ("plan", "model.py", "--budget", "640", "--eps", "1", "--seed", "1", "--shards", "4")
    assert "round 1 waits for 4 of 4 shards" in onedraw(*plan)
    assert "4 waiting" in onedraw("watch", "model-run", "--once")
    assert "No job has worked on a shard since the last step" in onedraw("step", "model-run", status=5)
    onedraw("work", "model-run", "--shard", 2)
    assert json.loads(onedraw("step", "model-run", "--json", status=4))["missing"] == [1, 3, 4]
    assert "3 waiting" in onedraw("watch", "model-run", "--once")
    # What is done in order is shown; the first shard is not, and later ones wait for it.
    onedraw("work", "model-run", "--shard", 1)
    so_far = json.loads(onedraw("collect", "model-run", "--json", status=4))
    assert so_far["cost"]["simulations"] == 320 and so_far["waits"]
    assert "320 simulations" in onedraw("show", "model-run/run.db")
    onedraw("work", "model-run")
    ended = onedraw("collect", "model-run", "-o", "copy.db")
    assert "640 simulations" in ended
    seen = json.loads(onedraw("watch", "model-run", "--once", "--json"))
    assert seen["complete"] and seen["simulations"] == 640 and seen["moves"]
    onedraw("run", "model.py", "--budget", "640", "--eps", "1", "--seed", "1", "--out", "alone.db")
    assert told(od.load("copy.db"))[:3] == told(od.load("alone.db"))[:3]
    # The same plan with more to do continues.
    assert "round 2 waits" in onedraw(*plan[:3], "960", *plan[4:])
    onedraw("work", "model-run")
    assert "960 simulations" in onedraw("step", "model-run")


def test_a_changed_model_file_is_refused(commands):
    onedraw("plan", "model.py", "--budget", "64", "--eps", "1", "--shards", "2", "--out", "run")
    Path("model.py").write_text(MODEL.replace("RATE = 1.0", "RATE = 2.0"))
    said = onedraw("step", "run", status=1)
    assert "model.simulate changed (global RATE)" in said and "plan the run again in another folder" in said
    Path("model.py").write_text(MODEL)
    onedraw("step", "run", status=5)


def test_a_plan_that_is_refused_leaves_the_one_before(commands):
    plan = ("plan", "model.py", "--budget", "64", "--eps", "1", "--shards", "2", "--out", "run")
    onedraw(*plan)
    assert "budget: 64 -> 32" in onedraw(*plan[:3], "32", *plan[4:], status=1)
    assert "waits for 2 of 2 shards" in onedraw("step", "run", status=5)
    Path("other").mkdir()
    onedraw("run", "model.py", "--budget", "64", "--eps", "2", "--out", "other/run.db")
    onedraw(*plan[:-1], "other", status=1)
    assert not Path("other/plan.json").exists()


def test_a_folder_and_its_model_file_that_were_moved(commands):
    """Neither draws nor seed are lost; another model is refused."""
    plan = ("--budget", "64", "--eps", "1", "--shards", "2", "--out")
    onedraw("plan", "model.py", *plan, "run")
    onedraw("work", "run", "--shard", "1")
    shutil.copytree("run", "there/copy")
    Path("model.py").rename("there/moved.py")
    said = onedraw("step", "there/copy", status=1)
    assert "model.py of there/copy/plan.json is not there: put it back, or give its new place to onedraw plan" in said
    assert "waits for 1 of 2 shards" in onedraw("plan", "there/moved.py", *plan, "there/copy")
    Path("there/copy/plan.json").unlink()
    assert "waits for 1 of 2 shards" in onedraw("plan", "there/moved.py", *plan, "there/copy")
    Path("other.py").write_text(MODEL.replace("RATE = 1.0", "RATE = 2.0"))
    assert "model.simulate changed (global RATE)" in onedraw("plan", "other.py", *plan, "there/copy", status=1)
    onedraw("work", "there/copy")
    onedraw("step", "there/copy")


def test_collect_copies_a_file_that_is_whole_or_none(commands):
    onedraw("plan", "model.py", "--budget", "64", "--eps", "1", "--shards", "2", "--out", "run")
    onedraw("work", "run")
    with Store("run/run.db", write=True):
        assert "is being written by" in onedraw("collect", "run", "-o", "copy.db", status=1)
        assert not Path("copy.db").exists()
    Path("link.db").symlink_to("run/run.db")
    for name in ("run/run.db", "run/run.db.lock", "run/run.db-journal", "link.db"):
        assert "is the run itself" in onedraw("collect", "run", "-o", name, status=1)
    assert "is no plain file" in onedraw("collect", "run", "-o", "/dev/null", status=1)
    assert "no/copy.db could not be written" in onedraw("collect", "run", "-o", "no/copy.db", status=1)
    for _ in range(2):
        onedraw("collect", "run", "-o", "copy.db")
        assert told(od.load("copy.db")) == told(od.load("run/run.db"))


def test_collect_does_not_play_a_journal_that_names_another_file(commands):
    """SQLite deletes the file that such a journal names."""
    onedraw("plan", "model.py", "--budget", "64", "--eps", "1", "--shards", "2", "--out", "run")
    onedraw("work", "run")
    onedraw("step", "run")
    Path("victim").write_text("")
    name = str(Path("victim").resolve()).encode()
    journal = JOURNAL_MAGIC + bytes(504) + name + len(name).to_bytes(4, "big") + sum(name).to_bytes(4, "big")
    Path("run/run.db-journal").write_bytes(journal + JOURNAL_MAGIC)
    with pytest.raises(click.ClickException, match="names another file, which SQLite would delete"):
        _copy("run/run.db", Path("copy.db"))
    assert Path("victim").exists() and not Path("copy.db").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["step", "nowhere"], "holds no plan"),
        (["work", "nowhere"], "is not a folder"),
        (["watch", ".", "--once"], "is not the folder of a job array"),
        (["work", "run", "--shard", "7"], "there is no shard 7: run has shards 1 to 2"),
        (["plan", "model.py", "--budget", "64", "--eps", "2", "--shards", "2", "--out", "run"], "another run (--eps"),
    ],
)
def test_wrong_commands_say_what_is_wrong(words, message, commands):
    onedraw("plan", "model.py", "--budget", "64", "--eps", "1", "--shards", "2", "--out", "run")
    assert message in onedraw(*words, status=1)


def test_a_plan_looks_at_the_model_first(commands):
    Path("model.py").write_text(MODEL.replace("rng.normal(a, RATE)", "[1.0, 2.0]"))
    said = onedraw("plan", "model.py", "--budget", "64", "--eps", "1", "--shards", "2", "--out", "run", status=1)
    assert "the first simulations failed" in said
    assert not Path("run").exists()


HOSTILE = {
    "nothing": lambda plan: None,
    "a number": lambda plan: 3,
    "a list": lambda plan: [plan],
    "no options": lambda plan: {**plan, "options": None},
    "a missing option": lambda plan: {**plan, "options": {k: v for k, v in plan["options"].items() if k != "seed"}},
    "an unknown option": lambda plan: {**plan, "options": {**plan["options"], "segment": 3}},
    "another key": lambda plan: {**plan, "executor": 3},
    "shards that are none": lambda plan: {**plan, "shards": None},
    "shards that are text": lambda plan: {**plan, "shards": "2"},
    "shards that are too many": lambda plan: {**plan, "shards": 10**400},
    "a bank that is text": lambda plan: {**plan, "bank": "model.py"},
    "a model that is a number": lambda plan: {**plan, "model": 3},
    "a model that is a folder": lambda plan: {**plan, "model": "."},
    **{
        f"{name} = {str(value)[:20]}": (
            lambda plan, name=name, value=value: {**plan, "options": {**plan["options"], name: value}}
        )
        for name, value in [
            ("budget", True), ("budget", "64"), ("budget", 64.0), ("budget", -64), ("budget", 0), ("budget", [64]),
            ("budget", math.nan), ("budget", {}), ("seed", 2**63), ("seed", -1), ("seed", "x"), ("seed", 1.0),
            ("eps", math.nan), ("eps", math.inf), ("eps", 0), ("eps", "1"), ("eps", []), ("kernel", "exec"),
            ("kernel", 3), ("algorithm", "__init__"), ("algorithm", 3), ("engine", ""), ("timeout", math.nan),
            ("draws", True), ("chains", 10**400), ("on_error", None.__class__.__name__), ("keep", ["all"]),
        ]
    },
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_plan_that_nobody_has_made_is_refused_in_words(name, commands):
    """With a checksum that fits: by a program, or by another version."""
    onedraw("plan", "model.py", "--budget", "64", "--eps", "1", "--seed", "1", "--shards", "2", "--out", "run")
    write_json(Path("run/plan.json"), HOSTILE[name](read_json(Path("run/plan.json"))))
    found = CliRunner().invoke(main, ["step", "run"])
    assert found.exit_code in (1, 2) and isinstance(found.exception, SystemExit), found.exception
    assert "Error: " in found.output and "Traceback" not in found.output
    # Nothing was written for it.
    assert newest_round(Path("run")).number == 1 and newest_round(Path("run")).shards == 2


@pytest.mark.parametrize("kind", ["a pipe", "a folder", "endless", "a link to nothing", "a link to another file"])
def test_a_plan_that_is_no_plain_file_is_refused(kind, commands):
    onedraw("plan", "model.py", "--budget", "64", "--eps", "1", "--seed", "1", "--shards", "2", "--out", "run")
    path = Path("run/plan.json")
    path.unlink()
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    else:
        targets = {"endless": "/dev/zero", "a link to nothing": "nowhere"}
        path.symlink_to(Path(targets.get(kind, "model.py")).absolute())
    said = onedraw("step", "run", status=1)
    assert "plan.json" in said or "holds no plan" in said


def test_a_huge_budget_is_planned_a_million_blocks_at_a_time(planned, monkeypatch):
    """Of all blocks at once there would be no end."""
    folder = planned[0] / "more"
    make = functools.partial(planned[1], budget=640)
    monkeypatch.setattr(job_array, "MOST_ITEMS", 15)
    assert told(driven(folder, make)) == told(make())
    assert [one["simulations"] for one in read_json(folder / "closed.json")] == [240, 240, 160]


def test_watch_shows_the_pace_of_a_shard_and_what_is_next(planned):
    folder, _ = planned
    found = newest_round(folder)
    write_lease(found.lease_name(1), Lease("token", "elsewhere", 12, "", 0, 0, 0, 0, 4.0, 2, 8, 3))
    said = onedraw("watch", folder, "--once")
    assert "shard 1: running, 25 % done, 8 simulations, 3 failed, 2/s, process 12 on elsewhere" in said
    assert "Next" not in said
    for shard in range(1, 5):
        work(folder, shard)
    assert f"All shards are done. Next: onedraw step {folder}" in onedraw("watch", folder, "--once")


def test_watch_shows_who_works_and_whether_it_stands_still(planned):
    folder, _ = planned
    lease(folder, 1, host="elsewhere", pid=12)
    lease(folder, 2, host="elsewhere", pid=13, age=4000)
    said = onedraw("watch", folder, "--once")
    assert "4 shards: 1 running, 1 stale, 2 waiting" in said
    assert "shard 2: stale, 0 % done, 0 simulations, process 13 on elsewhere, last sign of life 1:06:40 ago" in said
    for path in (folder / "round-0001").iterdir():
        os.utime(path, (1e9, 1e9))
    os.utime(folder / "round-0001", (1e9, 1e9))
    assert "standing still" in onedraw("watch", folder, "--once", status=5)
    write_json(folder / "complete", {})
    onedraw("watch", folder, "--once")
