"""Rounds that are left open: workers go on with the rest of one while the next is decided, and no number depends on it.

A plan of its own shows the mechanism without what `od.infer` computes between its stages.
"""

import math
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from benchmarks.cluster import Cluster, spend, virtual
from onedraw.cost import Cost
from onedraw.engines.clock import OutOfTime
from onedraw.run import population as population_module
from onedraw.run import sequence as sequence_module
from onedraw.run.blocks import Deadline, cut
from onedraw.run.driver import Driver, RoundWork, Unsaved
from onedraw.run.plan import Bar, Decision, Outcome, Round, both
from onedraw.run.pool import InProcess, WorkerPool, opened_pool
from onedraw.run.saving import Specification, begin
from onedraw.run.signals import Stopped
from onedraw.run.store import Store
from onedraw.samplers import importance as importance_module
from onedraw.samplers import infer as infer_module
from tests.test_executors import same

BLOCK, SIZE, PREFIX = 3, 40, 20
"""The prefix ends within a block, which then belongs to it."""


class Numbers:
    """The numbers of a block, some of which take long."""

    def __init__(self, number, slow=None, pause=spend):
        self.number, self.slow, self.pause = number, slow or {}, pause

    def __call__(self, block):
        self.pause(sum(self.slow.get((self.number, k), 0.1) for k in range(block.first, block.first + block.size)))
        x = self.number * 1000.0 + np.arange(block.first, block.first + block.size)
        return Outcome({"x": x}, Cost(simulations=block.size, proposals=block.size))


def no_pause(seconds):
    pass


def plan(prefix=PREFIX, rounds=3, task=Numbers, decide=lambda known: float(known.sum()), stops=None):
    """Rounds of which each but the last is left open; what was known when each was decided on, and all in the end."""
    known, part, decided = [], None, []

    def now():
        return np.concatenate([*known, *([] if part is None else [part.arrays["x"]]), []])

    def close(answer):
        nonlocal part
        if part is not None and answer is not None and answer.before is not None:
            known.append(both(part, answer.before).arrays["x"])
            part = None

    try:
        for number in range(rounds):
            scalars, _ = yield Decision("stage", lambda: ({"value": decide(now())}, {}), droppable=True)
            decided.append((len(now()), scalars["value"]))
            last = number == rounds - 1
            answer = yield Round(
                task(number), lambda gathered: cut(SIZE, BLOCK, gathered.done), prefix=None if last else prefix
            )
            close(answer)
            part = answer
    except Stopped as stopped:
        if stops is None:
            raise
        stops.append(stopped.reason)
        close(stopped.partial)
        if stopped.partial is not None and "x" in stopped.partial.arrays:
            part = stopped.partial
    return decided, now()


def carried_out(a_plan, pool=None, store=None, max_seconds=None):
    with begin(store, 1e-9, lambda: Specification("look_ahead", {}, {})) as saver:
        driver = Driver(saver, pool or InProcess(), Deadline(max_seconds), False, Bar("", None, ""))
        return driver.run(a_plan), driver.cost


def quick_task(number):
    return Numbers(number, pause=no_pause)


EXACT = np.concatenate([1000.0 * number + np.arange(SIZE) for number in range(3)])
AT = [0, 21, SIZE + 21]
"""Numbers that are known when each round is decided on: all before the last round, and the blocks of its prefix."""


def right(found):
    (decided, every), cost = found
    assert [known for known, _ in decided] == AT
    assert [value for _, value in decided] == [float(EXACT[:known].sum()) for known in AT]
    np.testing.assert_array_equal(every, EXACT)
    assert cost.simulations == len(EXACT)
    return True


def test_one_process_decides_by_the_prefix():
    assert right(carried_out(plan(task=quick_task)))


@pytest.mark.parametrize("workers", [1, 3, 7, 300])
def test_every_number_of_workers_decides_by_the_prefix(workers):
    """Also if the first of the prefix is the last to end, or some of the rest."""
    for slow in ({}, {(0, 0): 50.0}, {(0, 39): 50.0, (1, 22): 9.0}):
        with virtual(Cluster(workers)) as cluster:
            assert right(carried_out(plan(task=partial(Numbers, slow=slow)), WorkerPool(cluster)))


def test_threads_decide_by_the_prefix():
    with opened_pool(None, ThreadPoolExecutor(2)) as pool:
        assert right(carried_out(plan(task=quick_task), pool))


def test_nobody_waits_for_the_last_of_a_round():
    """The last simulation takes 20 s; meanwhile three workers do the 13.3 s of the next round."""
    slow = {(0, SIZE - 1): 20.0}
    ended = []
    for prefix in (PREFIX, SIZE):
        with virtual(Cluster(4, piece_seconds=0.0)) as cluster:
            carried_out(plan(prefix, 2, partial(Numbers, slow=slow)), WorkerPool(cluster))
            ended.append(cluster.now)
    assert ended[0] < 22.0 and ended[1] > 20.9 + SIZE * 0.1 / 4


def test_nobody_waits_for_the_last_of_the_prefix():
    """While one simulation of the prefix takes long, the others do all of the rest."""
    seen = []

    def decide(known):
        seen.append(cluster.worked)
        return 0.0

    with virtual(Cluster(4, piece_seconds=0.0)) as cluster:
        carried_out(plan(task=partial(Numbers, slow={(0, 5): 20.0}), decide=decide, rounds=2), WorkerPool(cluster))
    assert seen[1] == pytest.approx(20.0 + (SIZE - 1) * 0.1)


def test_a_run_that_is_killed_at_any_record_goes_on_to_the_same_numbers(tmp_path):
    whole = tmp_path / "whole.db"
    assert right(carried_out(plan(task=quick_task), store=whole))
    with Store(whole) as file:
        number = file.count()
        names = [(one.name, one.scalars.get("round")) for one in file.records()]
    # Every block is a record: none goes beyond the prefix, and all are in the order of their rounds.
    assert names.count(("run.segment", 0)) == 14 and [one for one in names if one[0] != "stage"] == sorted(
        one for one in names if one[0] != "stage"
    )
    for kept in range(number + 1):
        for kind in ("one process", "cluster"):
            path = tmp_path / f"{kept} {kind}.db"
            shutil.copy(whole, path)
            with Store(path, write=True) as file:
                file.drop_after(kept)
            with virtual(Cluster(3)) as cluster:
                pool = WorkerPool(cluster) if kind == "cluster" else None
                assert right(carried_out(plan(), pool, path))


def test_one_record_for_many_blocks_ends_with_the_prefix(tmp_path):
    """A file that is seldom saved: a kill after the first save leaves the prefix, or the round, and nothing between."""
    with begin(tmp_path / "run.db", 1e9, lambda: Specification("look_ahead", {}, {})) as saver:
        Driver(saver, InProcess(), Deadline(None), False, Bar("", None, "")).run(plan(task=quick_task))
    with Store(tmp_path / "run.db") as file:
        sizes = [(one.scalars["round"], one.scalars["size"]) for one in file.records("run.segment")]
    assert sizes == [(0, 21), (0, 19), (1, 21), (1, 19), (2, 40)]
    assert right(carried_out(plan(task=quick_task), store=tmp_path / "run.db"))


def test_outcomes_that_come_at_once_are_a_record_to_the_prefix_and_one_behind_it(tmp_path):
    """As shards of a job array give them: a record across the prefix would be taken for it when the run goes on."""
    request = Round(quick_task(0), lambda gathered: cut(SIZE, BLOCK, gathered.done), prefix=PREFIX)
    with begin(tmp_path / "run.db", 1e9, lambda: Specification("look_ahead", {}, {})) as saver:
        work = RoundWork(request, Unsaved(saver, request, 0), None)
        for block in cut(SIZE, BLOCK, 0):
            work.take(block.size, request.task(block))
        work.save()
        np.testing.assert_array_equal(work.answer().arrays["x"], np.arange(21))
    with Store(tmp_path / "run.db") as file:
        assert [one.scalars["size"] for one in file.records("run.segment")] == [21, 19]


@pytest.mark.parametrize("workers", [None, 3])
def test_a_decision_that_is_given_up_keeps_what_is_on_its_way(workers, tmp_path):
    def late(known):
        if len(known):
            raise OutOfTime
        return 0.0

    stops = []
    with virtual(Cluster(workers or 1)) as cluster:
        pool = None if workers is None else WorkerPool(cluster)
        stopped = plan(decide=late, stops=stops)
        (decided, every), cost = carried_out(stopped, pool, tmp_path / "run.db", max_seconds=1e6)
        assert stops == ["max_seconds"] and len(decided) == 1
        # Workers had the rest in hand; one process does it when it is asked for.
        assert len(every) == cost.simulations == (21 if workers is None else SIZE)
        np.testing.assert_array_equal(every, EXACT[: len(every)])
        with Store(tmp_path / "run.db") as file:
            assert sum(one.scalars["size"] for one in file.records("run.segment")) == len(every)
        again = carried_out(plan(decide=lambda known: float(known.sum())), pool, tmp_path / "run.db")
    assert right(again)


@pytest.mark.parametrize("limit", [0.5, 1.0, 1.5, 2.0, 3.0, 5.0])
def test_time_that_is_up_in_the_overlap_loses_nothing(limit, tmp_path):
    """Virtual seconds: the limit falls into the first prefix, the overlaps, and the last round."""
    stops = []
    with virtual(Cluster(3)) as cluster:
        stopped = plan(stops=stops)
        (_, every), cost = carried_out(stopped, WorkerPool(cluster), tmp_path / "run.db", max_seconds=limit)
        np.testing.assert_array_equal(every, EXACT[: len(every)])
        assert cost.simulations == len(every)
        assert (stops == ["max_seconds"]) == (len(every) < len(EXACT))
        assert right(carried_out(plan(), WorkerPool(cluster), tmp_path / "run.db"))
    assert bool(stops) == (limit < 4.0)


def test_an_error_leaves_no_work_behind(tmp_path):
    """The pool may be that of a run around this one, which goes on with it."""

    def fails(known):
        if len(known):
            raise RuntimeError("no decision")
        return 0.0

    with virtual(Cluster(3)) as cluster:
        pool = WorkerPool(cluster)
        with pytest.raises(RuntimeError, match="no decision"):
            carried_out(plan(decide=fails), pool, tmp_path / "run.db")
        assert right(carried_out(plan(), pool))
    with Store(tmp_path / "run.db") as file:
        assert sum(one.scalars["size"] for one in file.records("run.segment")) >= 21


# --- a rest that follows from the round before -------------------------------------------------------------


class Steps:
    """Each item is a few numbers, to which a step adds one."""

    def __init__(self, number, slow=None, pause=spend):
        self.number, self.slow, self.pause = number, slow or {}, pause

    def __call__(self, item):
        self.pause(self.slow.get((self.number, item.first), 0.1))
        return Outcome({"x": item.x + 1.0}, Cost(simulations=item.size, proposals=item.size))


class Item(NamedTuple):
    first: int
    size: int
    x: np.ndarray


def steps_plan(task=Steps, rounds=4, stops=None, lead=21):
    """Numbers that take steps: the first of them as soon as their own are done, the others when theirs are."""
    x, part, seen = 10.0 * np.arange(SIZE), None, []

    def blocks(x, end, first):
        return (Item(*block, x[block.first : block.first + block.size]) for block in cut(end, BLOCK, first))

    def whole(late):
        return x if part is None else np.concatenate([part, late.arrays["x"]])

    try:
        for number in range(rounds):
            now = x if part is None else np.concatenate([part, x[lead:]])
            answer = yield Round(
                task(number),
                lambda gathered, now=now: blocks(now, lead, gathered.done),
                prefix=lead,
                rest=lambda gathered, late: blocks(whole(late), SIZE, max(lead, gathered.done)),
            )
            x, part = whole(answer.before), answer.arrays["x"]
            seen.append(part.tolist())
        answer = yield Round(task(rounds), lambda gathered: (), made=True)
        x, part = whole(answer.before), None
    except Stopped as stopped:
        if stops is None:
            raise
        stops.append(stopped.reason)
    return x, seen


def stepped_right(found, rounds=4):
    (x, seen), cost = found
    np.testing.assert_array_equal(x, 10.0 * np.arange(SIZE) + rounds)
    assert seen == [(10.0 * np.arange(21) + k + 1).tolist() for k in range(rounds)]
    assert cost.simulations == rounds * SIZE
    return True


@pytest.mark.parametrize("workers", [None, 3, 300])
def test_a_rest_follows_from_the_round_before(workers):
    for slow in ({}, {(0, 0): 50.0}, {(0, 39): 50.0, (1, 24): 9.0}):
        with virtual(Cluster(workers or 1)) as cluster:
            pool = None if workers is None else WorkerPool(cluster)
            assert stepped_right(carried_out(steps_plan(partial(Steps, slow=slow)), pool))


def test_the_first_go_on_while_the_last_are_on_their_way():
    """One of the last takes 10 s in the first round. Until then three workers do the next round of the first."""
    with virtual(Cluster(4, piece_seconds=0.0)) as cluster:
        carried_out(steps_plan(partial(Steps, slow={(0, 39): 10.0}), rounds=2), WorkerPool(cluster))
    assert cluster.now < 10.0 + 1.0


def test_a_run_of_steps_that_is_killed_at_any_record_goes_on_to_the_same_numbers(tmp_path):
    whole = tmp_path / "whole.db"
    quick = partial(Steps, pause=no_pause)
    assert stepped_right(carried_out(steps_plan(quick, 2), store=whole), 2)
    with Store(whole) as file:
        number, rounds = file.count(), [one.scalars["round"] for one in file.records()]
    assert rounds == sorted(rounds) and number == 2 * 14
    for kept in range(number + 1):
        path = tmp_path / f"{kept}.db"
        shutil.copy(whole, path)
        with Store(path, write=True) as file:
            file.drop_after(kept)
        with virtual(Cluster(3)) as cluster:
            pool = WorkerPool(cluster) if kept % 2 else None
            assert stepped_right(carried_out(steps_plan(rounds=2), pool, path), 2)


@pytest.mark.parametrize("limit", [0.3, 0.9, 5.0])
def test_steps_that_are_stopped_in_the_overlap_go_on_to_the_same_numbers(limit, tmp_path):
    stops = []
    with virtual(Cluster(3)) as cluster:
        carried_out(steps_plan(stops=stops), WorkerPool(cluster), tmp_path / "run.db", max_seconds=limit)
        assert stepped_right(carried_out(steps_plan(), WorkerPool(cluster), tmp_path / "run.db"))
    assert bool(stops) == (limit < 1.5)


# --- smc ---------------------------------------------------------------------------------------------------


def test_smc_decides_by_numbers_alone():
    """As many workers as you like, slow simulations anywhere, and every simulation is used."""
    found = []
    for workers in (None, 3, 200):
        with virtual(Cluster(workers or 1)) as cluster:
            where = {} if workers is None else {"executor": cluster}
            post = od.smc(model_of(slow_now_and_then), budget=900, particles=50, seed=1, **where)
            assert 800 <= post.cost.simulations <= 900 and len(post.path) > 1
            found.append((same(post), post.path, post.settings))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(("sampler", "more"), [(od.smc, {"particles": 50}), (od.importance, {})])
def test_a_file_that_is_cut_behind_any_record_goes_on_to_the_same_draws(sampler, more, tmp_path):
    model, path = model_of(lambda rng, theta: rng.normal(theta, 1.0)), tmp_path / "whole.db"
    asked = {"budget": 400, "seed": 1, **more}
    whole = sampler(model, store=path, segment=1e-9, **asked)
    with Store(path) as file:
        number = file.count()
    assert number > 20
    for kept in range(0, number, 3):
        shutil.copy(path, tmp_path / "cut.db")
        with Store(tmp_path / "cut.db", write=True) as file:
            file.drop_after(kept)
        again = sampler(model, store=tmp_path / "cut.db", **asked)
        assert same(again)[:-1] == same(whole)[:-1] and again.path == whole.path


@pytest.mark.parametrize("limit", [0.5, 4.0, 8.0])
def test_smc_that_is_out_of_time_in_the_overlap(limit, tmp_path):
    """Draws are valid wherever it ends, and going on gives those of a run without a limit."""
    asked = {"budget": 900, "particles": 100, "seed": 1}

    def simulate(rng, theta):
        # By its name, so that the model is the same whatever the cluster's clock says.
        from benchmarks.cluster import spend

        spend(5.0 if rng.random() < 0.05 else 0.1)
        return rng.normal(theta, 1.0)

    with virtual(Cluster(7)) as cluster:
        whole = od.smc(model_of(simulate), **asked)
        path = tmp_path / "run.db"
        post = od.smc(model_of(simulate), **asked, executor=cluster, store=path, max_seconds=limit)
        assert post.status.reason == "max_seconds" and post.weights.sum() == pytest.approx(1.0)
        assert (post.distances <= post.settings["eps"]).all()
        again = od.smc(model_of(simulate), **asked, executor=cluster, store=path)
    assert same(again)[:-1] == same(whole)[:-1]


def test_workers_are_busy_while_smc_waits_for_slow_simulations(monkeypatch):
    shares = []
    for lead_of in (population_module.lead_of, lambda model, chains: chains):
        for module in (population_module, sequence_module):
            monkeypatch.setattr(module, "lead_of", lead_of)
        with virtual(Cluster(4)) as cluster:
            od.smc(model_of(slow_now_and_then), budget=3000, particles=256, seed=1, executor=cluster)
            shares.append(cluster.worked / cluster.now / 4)
    assert shares[0] > shares[1] + 0.05


# --- importance --------------------------------------------------------------------------------------------


def test_importance_decides_by_numbers_alone():
    """As many workers as you like, slow simulations anywhere, proposals outside the prior, and all of the budget."""
    found = []
    for workers in (None, 3, 200):
        with virtual(Cluster(workers or 1)) as cluster:
            where = {} if workers is None else {"executor": cluster}
            constraint = {"where": lambda theta: theta > 0}
            post = od.importance(model_of(slow_now_and_then, **constraint), budget=900, seed=1, **where)
            assert post.cost.simulations == 900 and len(post.path) > 3
            assert sum(stage.simulations for stage in post.path) <= 900
            found.append((same(post), post.path, post.settings, post.log_evidence))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("limit", [2.0, 8.0, 14.0])
def test_importance_that_is_out_of_time_in_the_overlap(limit, tmp_path):
    """Every simulation that came home counts, and going on gives the draws of a run without a limit."""
    asked = {"budget": 900, "seed": 1}

    def simulate(rng, theta):
        from benchmarks.cluster import spend

        spend(5.0 if rng.random() < 0.05 else 0.1)
        return rng.normal(theta, 1.0)

    with virtual(Cluster(7)) as cluster:
        whole = od.importance(model_of(simulate), **asked, keep="all")
        path = tmp_path / "run.db"
        post = od.importance(model_of(simulate), **asked, keep="all", executor=cluster, store=path, max_seconds=limit)
        assert post.status.reason == "max_seconds" and post.weights.sum() == pytest.approx(1.0)
        some = len(post.bank.theta)
        assert some == post.cost.simulations and 0 < some < 900
        np.testing.assert_array_equal(post.bank.theta, whole.bank.theta[:some])
        again = od.importance(model_of(simulate), **asked, keep="all", executor=cluster, store=path)
    assert same(again)[:-1] == same(whole)[:-1]


def test_a_round_of_importance_is_made_before_the_last_simulations_of_the_one_before(monkeypatch):
    """Its mixture comes from all but a sixth of the draws, weighted by as many proposals; no stream is used twice."""
    seen, blocks = [], []

    class Simulate(importance_module.Simulate):
        def __call__(self, item):
            blocks.append((item.first, item.size))
            return super().__call__(item)

    def next_mixture(now):
        seen.append((len(now.theta), now.of_prior, now.proposals - sum(one.number for one in now.sources)))
        return made(now)

    made = importance_module.next_mixture
    monkeypatch.setattr(importance_module, "next_mixture", next_mixture)
    monkeypatch.setattr(importance_module, "Simulate", Simulate)
    post = od.importance(model_of(lambda rng, theta: rng.normal(theta, 1.0)), budget=1600, seed=1)
    sizes = importance_module.round_sizes(1600, 1)
    ends = np.cumsum(sizes)[:-1]
    assert post.cost.simulations == 1600 and len(seen) == len(sizes) - 1
    # The first of a round come from the prior: all of the first round, a tenth of the others.
    of_prior = np.cumsum([sizes[0], *(math.ceil(0.1 * size) for size in sizes[1:])])
    for number, (known, counted, others) in enumerate(seen):
        # Whole blocks of sixteen.
        assert ends[number] * 5 / 6 <= known < ends[number] * 5 / 6 + 17
        assert counted == others == (of_prior[number] if number else known)
    assert [first for first, _ in blocks] == np.cumsum([0, *(size for _, size in blocks)])[:-1].tolist()


# --- infer -------------------------------------------------------------------------------------------------


def slow_now_and_then(rng, theta):
    spend(5.0 if rng.random() < 0.05 else 0.1)
    return rng.normal(theta, 1.0)


def model_of(simulate, **constraint):
    return od.Model(od.Prior(theta=stats.norm(0, 1), **constraint), simulate, observed=2.0)


def decisions(monkeypatch):
    """What each stage of infer is decided on: simulations that are known, and all that are made or on their way."""
    real, seen = infer_module.decide_stage, []

    def noted(run, bank, done, *others):
        seen.append((len(bank.rows), done))
        return real(run, bank, done, *others)

    monkeypatch.setattr(infer_module, "decide_stage", noted)
    return seen


def test_infer_decides_by_numbers_alone(monkeypatch, quick):
    seen, found = decisions(monkeypatch), []
    for workers in (1, 5, 200):
        with virtual(Cluster(workers)) as cluster:
            where = {} if workers == 1 else {"executor": cluster}
            post = od.infer(model_of(slow_now_and_then), budget=700, draws=50, seed=1, **where)
            assert post.cost.simulations == 700
            found.append((same(post), [*seen]))
            seen.clear()
    assert found[0] == found[1] == found[2]
    known, done = zip(*found[0][1], strict=True)
    # At least three quarters are known by then; the last stage is decided on with fewer than all.
    assert all(d * 3 / 4 - 1 <= k <= d for k, d in zip(known, done, strict=True)) and known[-1] < done[-1]


def test_what_is_on_its_way_counts_towards_the_budget(monkeypatch, quick):
    """Proposals outside the prior cost nothing, so that nobody knows how much of the rest will be paid for."""
    prior = od.Prior(a=stats.norm(0, 1), b=stats.norm(0, 1), where=lambda a, b: a + b > 0)
    model = od.Model(prior, lambda rng, a, b: rng.normal([a, b], 0.5), observed=[0.0, 0.1])
    seen = decisions(monkeypatch)
    post = od.infer(model, budget=700, draws=50, seed=1)
    assert post.cost.simulations <= 700 and post.cost.skipped > 0
    assert post.cost.simulations >= 690
    assert all(known <= done <= 700 for known, done in seen)


def test_workers_are_busy_while_infer_waits_for_slow_simulations(quick):
    with virtual(Cluster(8)) as cluster:
        od.infer(model_of(slow_now_and_then), budget=2000, draws=50, seed=1, executor=cluster)
        with_it = cluster.worked / cluster.now
    with virtual(Cluster(8)) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setattr(infer_module, "AHEAD", 0.0)
        od.infer(model_of(slow_now_and_then), budget=2000, draws=50, seed=1, executor=cluster)
        without = cluster.worked / cluster.now
    assert with_it > without + 0.5


def test_a_large_budget_has_few_stages():
    sizes, done = [], 0
    while done < 10**6:
        sizes.append(infer_module.next_size(10**6, done))
        done += sizes[-1]
    assert len(sizes) == 6 and sizes[0] > 50_000


def test_loading_a_run_in_the_overlap(tmp_path, quick):
    """A file whose last stage is decided on, while the stage before is not complete."""
    path = tmp_path / "run.db"
    whole = od.infer(model_of(lambda rng, theta: rng.normal(theta, 1.0)), budget=300, draws=50, seed=1, store=path,
                     segment=1e-9)  # fmt: skip
    with Store(path) as file:
        records = [(one.name, one.scalars.get("round")) for one in file.records()]
    cut_at = records.index(("stage", 1)) + 1
    with Store(path, write=True) as file:
        file.drop_after(cut_at)
    shown = od.load(path)
    assert shown.cost.simulations < infer_module.next_size(300, 0) and not shown.status.complete
    again = od.infer(model_of(lambda rng, theta: rng.normal(theta, 1.0)), budget=300, draws=50, seed=1, store=path)
    assert same(again)[:-1] == same(whole)[:-1]
