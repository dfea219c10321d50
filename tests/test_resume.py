"""Runs that were interrupted, killed or stopped must end as the run they would have been."""

import json
import os
import random
import signal
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

import onedraw as od
from onedraw import paper
from onedraw.cli import inspect as looking
from onedraw.cli import models
from onedraw.cli import run as running
from onedraw.run import chain_blocks, driver, plan, saving
from onedraw.run import store as store_module
from onedraw.run.fingerprint import fingerprint
from onedraw.run.pool import InProcess
from onedraw.run.store import Store
from onedraw.samplers import importance
from tests.marks import long_in_slow_tests
from tests.stored_run import KERNEL, RUNS, SEQUENTIAL, Child, Test, in_child, model, run, told, wait_for_writer

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def whole():
    """Uninterrupted runs, without a file."""
    return {name: told(run(name)) for name in RUNS}


@pytest.fixture(autouse=True)
def undisturbed():
    Test.pause, Test.stop_at, Test.calls = 0.0, 0, 0
    yield
    Test.stop_at = 0


def survive(name, folder, kills, seed):
    """A run that was killed this many times, at random moments and within commits."""
    rng = random.Random(seed)
    store = folder / "run.db"
    killed, longest = 0, 0.4
    for kill in range(kills):
        commit = rng.randint(2, 8) if kill % 3 == 2 else 0
        child = in_child(name, store, commit=commit)
        if not commit:
            time.sleep(rng.uniform(0.0, longest))
            child.send(signal.SIGKILL)
        killed += child.wait() == -signal.SIGKILL
        if not killed:
            # It has ended by itself: it begins anew, and its first kill comes sooner.
            store.unlink()
            longest /= 2
        if store.exists():
            # A run that is killed while it makes its file leaves an empty one.
            with Store(store, write=True) as file:
                assert file.good()[0] == file.count()
    assert killed
    return run(name, store)


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork and no SIGKILL")


@needs_fork
@pytest.mark.parametrize("name", long_in_slow_tests(RUNS, "wilkinson", "r_hit"))
def test_a_killed_run_ends_as_if_nothing_had_happened(name, whole, tmp_path):
    assert told(survive(name, tmp_path, kills=6, seed=name)) == whole[name]
    assert told(od.load(tmp_path / "run.db")) == whole[name]


@needs_fork
@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_forty_kills(name, whole, tmp_path):
    """Each round of kills begins anew when the run has come to its end, so that kills fall into all its parts."""
    for part in range(4):
        folder = tmp_path / str(part)
        folder.mkdir()
        assert told(survive(name, folder, kills=10, seed=f"{name} {part}")) == whole[name]


@pytest.mark.parametrize("name", RUNS)
def test_the_segment_has_no_influence(name, whole, tmp_path):
    for segment in (1e-9, 30.0):
        path = tmp_path / f"{segment}.db"
        assert told(run(name, path, segment=segment)) == whole[name]
        assert told(od.load(path)) == whole[name]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1e-09.db", "30.0.db"]


def test_a_reader_of_importance_has_densities_of_its_own(whole, tmp_path, monkeypatch):
    """Whatever is filled in for a reader changes no bit of the run, here by what no rounding error could do."""
    real, shown = importance.result_of, []

    def spoilt(now, reason):
        found = real(now, reason)
        if reason == "unfinished":
            shown.append(len(now.sources))
            for one in now.sources:
                one.log_density[:] = 99.0
        return found

    monkeypatch.setattr(importance, "result_of", spoilt)
    assert told(run("importance", tmp_path / "run.db", segment=1e-9)) == whole["importance"] and max(shown) > 1


@pytest.mark.parametrize("name", RUNS)
def test_interrupted_in_every_phase(name, whole, tmp_path):
    """Ctrl-C in pilot, start, fill and run: what is done is kept, and nothing is simulated twice but the block."""
    path, reasons, calls = tmp_path / "run.db", [], 0
    for stop_at in (10, 50, 40, 70, 30, 200, 300):
        Test.stop_at, Test.calls = stop_at, 0
        post = run(name, path, segment=1e-9) if not path.exists() else od.resume(path, model, segment=1e-9)
        calls += Test.calls
        reasons.append(post.status.reason)
        read = od.load(path)
        assert read.status.reason == post.status.reason
        assert all(np.array_equal(read.draws[key], post.draws[key]) for key in post.draws)
    Test.stop_at = Test.calls = 0
    post = od.resume(path, model)
    assert "interrupted" in reasons[:3] and told(post) == whole[name]
    assert calls + Test.calls - post.cost.simulations < 7 * 64


@pytest.mark.parametrize(("eps", "chains", "stops"), [(0.1, 6, (200, 100)), (100.0, 55, (150,))])
def test_interrupted_in_the_search_for_starts(eps, chains, stops, tmp_path):
    """What the search has found and rejected so far shapes the proposal, also where it has found enough points.

    The pilot takes 80 simulations, then come blocks of 64 proposals. At eps = 0.1 the second one is dropped, and the
    next; at eps = 100 the first one has points for all 55 chains, and the search goes on for the proposal alone.
    """
    given = {"draws": 20, "chains": chains, "seed": 5}
    whole = od.wilkinson(model, od.uniform(eps), **given)
    path = tmp_path / "run.db"
    for stop_at in stops:
        Test.stop_at, Test.calls = stop_at, 0
        post = od.wilkinson(model, od.uniform(eps), **given, store=path)
        assert post.status.reason == "interrupted" and post.shape[1] == 0
    Test.stop_at = 0
    resumed = od.resume(path, model)
    assert resumed.settings["proposal"] == whole.settings["proposal"] and told(resumed) == told(whole)


def test_the_same_call_goes_on_and_then_returns_what_is_there(tmp_path, whole):
    path = tmp_path / "run.db"
    Test.stop_at = 700
    first = run("rejection", path)
    assert first.status.reason == "interrupted" and not first.status.complete
    assert told(run("rejection", path)) == whole["rejection"]
    size, Test.calls = path.stat().st_size, 0
    assert told(run("rejection", path)) == whole["rejection"]
    assert Test.calls == 0 and path.stat().st_size == size
    # Without a seed it is the file's run that goes on, not a new one.
    assert told(run("rejection", path, seed=None)) == whole["rejection"]


def test_seconds_of_all_sessions_are_added(tmp_path):
    path = tmp_path / "run.db"
    Test.pause, Test.stop_at = 0.0005, 700
    first = run("rejection", path)
    Test.pause = 0.0
    assert od.resume(path, model).cost.seconds > first.cost.seconds > 0.2


@pytest.mark.parametrize("name", [name for name in RUNS if name not in SEQUENTIAL])
def test_draws_may_be_raised(name, tmp_path):
    path, draws = tmp_path / "run.db", RUNS[name][1]["draws"]
    run(name, path)
    more = od.resume(path, model, draws=2 * draws)
    straight = run(name, draws=2 * draws)
    assert told(more)[:3] == told(straight)[:3] and more.acceptance_rate == straight.acceptance_rate
    with pytest.raises(od.StoreError, match=rf"draws: {2 * draws} -> {draws} \(it may be raised, not lowered\)"):
        od.resume(path, model, draws=draws)


@pytest.mark.parametrize("name", ["pseudo_marginal", "wilkinson", "r_hit"])
def test_the_budget_of_chains_may_be_raised(name, tmp_path):
    path, more = tmp_path / "run.db", {"max_draws": 100} if name == "r_hit" else {}
    few = run(name, path, draws=None, budget=900, **more)
    assert few.status.reason == "budget"
    many = od.resume(path, model, budget=2500)
    straight = run(name, draws=None, budget=2500, **more)
    assert many.draws["a"].tobytes() == straight.draws["a"].tobytes() and many.shape[1] > few.shape[1]
    assert many.cost._replace(seconds=0) == straight.cost._replace(seconds=0)


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_the_budget_of_sequential_samplers_may_be_raised_and_nothing_is_lost(name, tmp_path):
    """The run under the first budget is taken back whole, also where it was stopped on the way, and then goes on."""
    path, stopped = tmp_path / "run.db", tmp_path / "stopped.db"
    few = run(name, path)
    Test.calls = 0
    many = od.resume(path, model, budget=5000)
    assert Test.calls == many.cost.simulations - few.cost.simulations
    assert few.cost.simulations < 2000 + 1 < many.cost.simulations <= 5000
    assert many.settings["eps"] < few.settings["eps"]
    Test.calls, Test.stop_at = 0, 900
    assert run(name, stopped).status.reason == "interrupted"
    Test.stop_at = 0
    assert told(od.resume(stopped, model, budget=5000)) == told(many)
    with pytest.raises(od.StoreError, match="which has no draws="):
        od.resume(path, model, draws=100)


def test_the_budget_of_rejection_may_be_raised_and_nothing_is_lost(tmp_path):
    path = tmp_path / "run.db"
    few = run("rejection", path, draws=None, budget=1000)
    many = od.resume(path, model, budget=3000)
    assert many.cost.simulations == 3000
    assert np.array_equal(many.draws["a"][:, : few.shape[1]], few.draws["a"])


def test_a_raised_budget_finds_the_starting_points_that_were_missing(tmp_path):
    path = tmp_path / "run.db"
    post = run("wilkinson", path, draws=3, budget=82)
    assert post.status.reason == "budget" and "found a starting point" in str(post.summary())
    assert told(od.load(path)) == told(post)
    assert od.resume(path, model, budget=5000).shape == (6, 3)


def other(**changes):
    return replace(model, **changes)


def drifted(rng, a, b, k):
    return rng.normal(a, 1.0 + b, size=2) + k + 0.001


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: other(simulate=drifted), r"model\.simulate changed \(code"),
        (lambda: other(observed=[2.0, 4.5]), "observed changed"),
        (lambda: other(summary=lambda y: y[::-1]), r"model\.summary changed"),
        (lambda: other(distance=od.euclidean()), r"model\.distance changed"),
        (
            lambda: other(prior=od.Prior(a=stats.norm(0, 2.5), b=stats.uniform(0, 3), k=stats.poisson(2))),
            "prior changed",
        ),
    ],
)
def test_a_changed_model_is_refused_by_its_part(make, words, tmp_path):
    path = tmp_path / "run.db"
    Test.stop_at = 600
    run("rejection", path)
    with pytest.raises(od.StoreError, match=words):
        od.resume(path, make())
    forced = od.resume(path, make(), force=True)
    assert forced.status.reason == "finished"
    assert "force=True" in str(forced.summary()) and "force=True" in str(od.load(path).summary())
    # The file now belongs to the new model, and still says what happened.
    assert "force=True" in str(od.resume(path, make()).summary())
    with pytest.raises(od.StoreError, match="changed"):
        od.resume(path, model)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"kernel": od.uniform(1.5)}, r"eps: 2\.0 -> 1\.5"),
        ({"kernel": od.gaussian(2.0)}, "kernel: uniform -> gaussian"),
        ({"thin": 3}, "thin: 2 -> 3"),
        ({"seed": 6}, "seed: 5 -> 6"),
        ({"chains": 7}, "chains: 6 -> 7"),
        ({"proposal": od.random_walk(0.5)}, r"proposal: None -> .*0\.5"),
        ({"start": {"a": 1.0, "b": 1.0, "k": 2}}, "start: rejection -> "),
        ({"on_error": "raise"}, "on_error: reject -> raise"),
    ],
)
def test_changed_settings_are_refused_by_name(more, words, tmp_path):
    path = tmp_path / "run.db"
    given = {"draws": 5, "chains": 6, "seed": 5, "thin": 2}
    od.wilkinson(model, KERNEL, **given, store=path)
    with pytest.raises(od.StoreError, match=words):
        od.wilkinson(model, **{"kernel": KERNEL, **given, **more}, store=path)
    with pytest.raises(od.StoreError, match="holds a run of wilkinson, not of r_hit"):
        od.r_hit(model, KERNEL, **given, store=path)


def test_another_version_is_warned_of(tmp_path, monkeypatch):
    path = tmp_path / "run.db"
    Test.stop_at = 600
    run("rejection", path)
    here = saving.versions()
    monkeypatch.setattr(saving, "versions", lambda engine: {**here, "numpy": "3.0.0"})
    with pytest.warns(UserWarning, match=r"numpy .* -> 3\.0\.0.*no longer guaranteed"):
        od.resume(path, model)


def test_another_python_does_not_compare_bytecode(tmp_path, monkeypatch):
    path = tmp_path / "run.db"
    Test.stop_at = 600
    run("rejection", path)
    here = saving.versions()
    monkeypatch.setattr(saving, "versions", lambda engine: {**here, "python": "3.99.0"})
    with pytest.warns(UserWarning, match=r"python .* -> 3\.99\.0"):
        od.resume(path, replace(model, simulate=lambda rng, a, b, k: [a, k], observed=[2.0, 4.0]), force=True)


def fails_when_used():
    """A proposal that is tried once before a run begins, and fails in its steps."""
    calls = []

    def propose(rng, theta):
        calls.append(1)
        if len(calls) > 2:
            raise ZeroDivisionError
        return theta, 0.0

    return propose


def test_a_file_in_which_nothing_was_saved_binds_nobody(tmp_path):
    path = tmp_path / "run.db"
    with pytest.raises(ValueError, match="proposal must be"):
        od.wilkinson(model, KERNEL, draws=5, proposal=3, store=path)
    assert not path.exists()  # nothing was simulated
    with pytest.raises(ValueError, match=r"the proposal failed .*ZeroDivisionError"):
        od.wilkinson(model, KERNEL, draws=5, proposal=fails_when_used(), store=path)
    with pytest.raises(od.StoreError, match="holds a run of wilkinson"):  # its start was simulated
        od.rejection(model, KERNEL, draws=5, store=path)
    path, ready = tmp_path / "other.db", replace(model, distance=None)
    with pytest.raises(ValueError, match="start names"):
        od.wilkinson(ready, KERNEL, draws=5, start={"x": 1.0}, store=path)
    assert od.rejection(ready, KERNEL, draws=5, seed=1, store=path).shape == (1, 5)


def test_your_own_kernel_proposal_and_start_are_given_again(tmp_path):
    own = od.kernel(lambda u: -np.log1p(u * u), 2.0)
    walk = lambda rng, theta: (theta + 0.1 * rng.standard_normal(theta.shape), 0.0)  # noqa: E731
    simple = od.Model(od.Prior(theta=stats.norm()), lambda rng, theta: rng.normal(theta), 1.0)
    earlier = od.rejection(simple, od.uniform(1.0), draws=50, seed=1)
    path = tmp_path / "run.db"
    given = {"draws": 20, "seed": 1, "proposal": walk, "start": earlier}
    post = od.pseudo_marginal(simple, own, **given, store=path)
    with pytest.raises(od.StoreError, match="kernel of your own: give it again, as kernel="):
        od.resume(path, simple)
    with pytest.raises(od.StoreError, match="proposal of your own: give it again, as proposal="):
        od.resume(path, simple, kernel=own)
    with pytest.raises(od.StoreError, match="started from a Posterior: give it again"):
        od.resume(path, simple, kernel=own, proposal=walk)
    with pytest.raises(od.StoreError, match="proposal changed"):
        od.resume(path, simple, kernel=own, proposal=lambda rng, theta: (theta, 0.0), start=earlier)
    with pytest.raises(od.StoreError, match="kernel changed"):
        od.resume(path, simple, kernel=od.kernel(lambda u: -np.log1p(2 * u), 2.0), proposal=walk, start=earlier)
    more = od.resume(path, simple, kernel=own, proposal=walk, start=earlier, draws=40)
    assert told(more)[:3] == told(od.pseudo_marginal(simple, own, **{**given, "draws": 40}))[:3]
    assert np.array_equal(more.draws["theta"][:, :20], post.draws["theta"])
    assert od.load(path).kernel is None and od.load(path).distances is not None


@pytest.mark.parametrize(
    "proposal", [od.random_walk([0.5, 0.2, 1.0]), od.independence(), od.lazy(od.random_walk(scale=1.5), hold=0.3)]
)
@pytest.mark.parametrize("start", ["rejection", {"a": 1.0, "b": 1.0, "k": 2}, np.tile([1.0, 1.0, 2.0], (6, 1))])
def test_built_in_proposals_and_points_come_from_the_file(proposal, start, tmp_path):
    given = {"draws": 20, "chains": 6, "seed": 2, "proposal": proposal, "start": start}
    path = tmp_path / "run.db"
    Test.stop_at = 95
    assert od.wilkinson(model, KERNEL, **given, store=path, segment=1e-9).status.reason == "interrupted"
    Test.stop_at = 0
    post = od.resume(path, model)
    assert told(post)[:5] == told(od.wilkinson(model, KERNEL, **given))[:5]
    assert str(post.summary()) == str(od.load(path).summary())


def test_an_estimator_is_given_again(tmp_path):
    prior = od.Prior(theta=stats.norm())
    mine = od.unbiased(lambda rng, theta: -((theta[:, 0] - 1.0) ** 2) - rng.random(len(theta)), prior, log_bound=0.0)
    given = {"draws": 30, "chains": 6, "seed": 2}
    path = tmp_path / "run.db"
    od.pseudo_marginal(estimator=mine, **given, store=path)
    with pytest.raises(od.StoreError, match="give it again, as estimator="):
        od.resume(path)
    more = od.resume(path, estimator=mine, draws=60)
    assert told(more)[:3] == told(od.pseudo_marginal(estimator=mine, **{**given, "draws": 60}))[:3]
    assert told(od.load(path)) == told(more)
    held = paper.handicapped(paper.abc_average(model, KERNEL, pseudo_samples=2), 0.3)
    path = tmp_path / "handicapped.db"
    od.pseudo_marginal(estimator=held, **given, store=path)
    with pytest.raises(od.StoreError, match="estimator changed"):
        od.resume(path, estimator=paper.handicapped(paper.abc_average(model, KERNEL, pseudo_samples=2), 0.4))
    more = od.resume(path, estimator=held, draws=60)
    assert told(more)[:3] == told(od.pseudo_marginal(estimator=held, **{**given, "draws": 60}))[:3]


def test_resume_says_what_it_needs(tmp_path):
    path = tmp_path / "run.db"
    with pytest.raises(od.StoreError, match="does not exist"):
        od.resume(path, model)
    assert not path.exists()
    run("rejection", path)
    with pytest.raises(od.StoreError, match="holds no functions: give the run's model"):
        od.resume(path)
    with pytest.raises(od.StoreError, match="holds a run of rejection, which has no start"):
        od.resume(path, model, start="rejection")
    with pytest.raises(ValueError, match="segment must be positive"):
        od.resume(path, model, segment=0)
    with pytest.raises(ValueError, match="store must be the name of a file"):
        run("rejection", 3)


def simulate_batch(rng, a, b):
    values = rng.normal(a, b)
    values[a > 2] = np.nan
    return values


def staged_draw(rng, state, m):
    if state[0] > 2:
        raise RuntimeError("beyond the model")
    return rng.normal(*state, size=m)


@pytest.mark.parametrize("simulate", [od.batched(simulate_batch), od.staged(lambda a, b: (a, b), staged_draw)])
@pytest.mark.parametrize("name", SEQUENTIAL)
def test_batched_and_staged_simulators_of_sequential_samplers(name, simulate, tmp_path):
    """Half of the records of a whole run are cut off, and computed again."""
    prior = od.Prior(a=stats.norm(), b=stats.uniform(0.5, 1))
    two = od.Model(prior, simulate, 1.0, distance=od.mahalanobis(pilot=50))
    sampler, arguments = RUNS[name]
    path = tmp_path / "run.db"
    straight = sampler(two, **arguments, store=path, segment=1e-9)
    with Store(path, write=True) as file:
        file.drop_after(file.count() // 2)
    assert told(od.resume(path, two)) == told(straight) == told(od.load(path))


@pytest.mark.parametrize("simulate", [od.batched(simulate_batch), od.staged(lambda a, b: (a, b), staged_draw)])
@pytest.mark.parametrize("name", [name for name in RUNS if name not in SEQUENTIAL])
def test_batched_and_staged_simulators(name, simulate, tmp_path):
    prior = od.Prior(a=stats.norm(), b=stats.uniform(0.5, 1))
    two = od.Model(prior, simulate, 1.0, distance=od.mahalanobis(pilot=50))
    sampler, arguments = RUNS[name]
    given = {**arguments, "chains": 16, "draws": 40} if "chains" in arguments else arguments
    path = tmp_path / "run.db"
    straight = sampler(two, KERNEL, **{key: value for key, value in given.items() if value != "all"})
    half = {"draws": given["draws"] // 2}
    sampler(two, KERNEL, **{**given, **half}, store=path, segment=1e-9)
    assert told(od.resume(path, two, draws=given["draws"]))[:3] == told(straight)[:3]


@needs_fork
class TestSignals:
    def stopped(self, tmp_path, *signals, name="pseudo_marginal"):
        store, output = tmp_path / "run.db", tmp_path / "output.json"
        child = in_child(name, store, output, pause=0.01)
        wait_for_writer(store)
        time.sleep(0.3)
        for number in signals:
            child.send(number)
            time.sleep(0.02)
        return child.wait(), output, store

    @pytest.mark.parametrize(("number", "reason"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
    @pytest.mark.parametrize("name", ["rejection", "pseudo_marginal"])
    def test_one_signal_saves_and_returns(self, name, number, reason, tmp_path, whole):
        code, output, store = self.stopped(tmp_path, number, name=name)
        assert code == 0
        _, ended = json.loads(output.read_text())
        assert ended == reason and od.load(store).status.reason == reason
        assert told(od.resume(store, model)) == whole[name]

    def test_a_second_signal_leaves_at_once(self, tmp_path, whole):
        code, _, store = self.stopped(tmp_path, *[signal.SIGINT] * 4)
        assert code in (-signal.SIGINT, 1, 130, 0)
        assert told(od.resume(store, model)) == whole["pseudo_marginal"]

    def test_a_second_signal_interrupts_what_must_not_be_dropped(self):
        from onedraw.run.signals import guarded

        before = signal.getsignal(signal.SIGINT)
        with guarded(terminate=True) as guard:
            os.kill(os.getpid(), signal.SIGINT)
            assert guard.asked == "interrupted"
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is before
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    def test_a_users_handler_stays(self, tmp_path):
        got = []
        before = signal.signal(signal.SIGTERM, lambda *_: got.append(1))
        try:
            sampler = od.rejection
            hit = od.Model(od.Prior(theta=stats.norm()), lambda rng, theta: send(rng), 0.0)

            def send(rng):
                if not got:
                    os.kill(os.getpid(), signal.SIGTERM)
                return rng.normal()

            post = sampler(hit, od.uniform(1.0), budget=100, seed=1, store=tmp_path / "run.db")
        finally:
            signal.signal(signal.SIGTERM, before)
        assert got and post.status.reason == "budget"


@pytest.mark.parametrize("name", RUNS)
def test_max_seconds_is_of_a_session(name, tmp_path, whole):
    path = tmp_path / "run.db"
    Test.pause = 0.001
    first = run(name, path, max_seconds=0.3)
    assert first.status.reason == "max_seconds"
    Test.pause = 0.0
    assert told(od.resume(path, model)) == whole[name]


@pytest.mark.parametrize("name", RUNS)
def test_an_exception_loses_nothing(name, tmp_path, whole, monkeypatch):
    """A run that ends with an error has saved what it had, and goes on once the error is gone."""
    path = tmp_path / "run.db"

    count = []

    def broken(self):
        count.append(1)
        if len(count) == 14:
            raise ValueError("a bug")
        return good(self)

    good = InProcess.next
    monkeypatch.setattr(InProcess, "next", broken)
    with pytest.raises(ValueError, match="a bug"):
        run(name, path)
    monkeypatch.setattr(InProcess, "next", good)
    read = od.load(path)
    assert read.status.reason == "unfinished" and read.cost.simulations > 80
    assert told(od.resume(path, model)) == whole[name]


class Interrupting:
    """Ctrl-C at the nth line that is run in functions which change what a run saves."""

    FILES = frozenset(one.__file__ for one in (chain_blocks, driver, plan, saving, store_module))
    FUNCTIONS = frozenset({
        "take", "add", "save", "put", "_flush", "_start", "_count", "outcome", "_writing", "commit", "show", "_take",
        "_taken_at_once", "_saved_at_once", "__enter__", "__exit__", "answer",
    })  # fmt: skip

    def __init__(self, at):
        self.at, self.seen = at, 0

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *error):
        sys.settrace(self._before)

    def _called(self, frame, event, arg):
        code = frame.f_code
        return self._line if code.co_filename in self.FILES and code.co_name in self.FUNCTIONS else None

    def _line(self, frame, event, arg):
        self.seen += event == "line"
        if self.seen == self.at:
            self.at = 0
            raise KeyboardInterrupt
        return self._line


@pytest.mark.parametrize("places", [12, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["smc", "pseudo_marginal"])
def test_ctrl_c_between_any_two_lines_writes_nothing_twice_and_nothing_by_halves(name, places, tmp_path, whole):
    """A second Ctrl-C leaves at once. Results were saved again, or in part, if it came while they were being saved."""
    with Interrupting(0) as every:
        run(name, tmp_path / "whole.db")
    for place in range(places):
        path = tmp_path / f"{place}.db"
        with Interrupting(every.seen * (place + 1) // (places + 1)), pytest.raises(KeyboardInterrupt):
            run(name, path)
        assert told(run(name, path)) == whole[name]


class TestReplay:
    @pytest.mark.parametrize("name", RUNS)
    def test_a_failure_raises_again(self, name, tmp_path):
        path = tmp_path / "run.db"
        post = run(name, path)
        for number in range(len(post.failures)):
            with pytest.raises(RuntimeError, match="beyond the model"):
                od.replay(path, number, model=model)
        with pytest.raises(ValueError, match=r"keeps \d+ failures"):
            od.replay(path, len(post.failures), model=model)

    @pytest.mark.parametrize("pseudo_samples", [1, 3])
    @pytest.mark.parametrize("kind", ["plain", "staged"])
    def test_the_stream_is_that_of_the_run(self, kind, pseudo_samples, tmp_path):
        """A failure that depends on the random numbers alone happens again; elsewhere it would be rare."""

        def unlucky(rng, theta):
            return np.nan if rng.random() < 0.01 else theta + rng.normal()

        def draw(rng, theta, m):
            return np.array([unlucky(rng, theta) for _ in range(m)])

        simulate = unlucky if kind == "plain" else od.staged(lambda theta: theta, draw)
        chancy = od.Model(od.Prior(theta=stats.norm()), simulate, 1.0)
        for sampler, more in ((od.rejection, {}), (od.pseudo_marginal, {"chains": 6})):
            path = tmp_path / f"{sampler.__name__}.db"
            post = sampler(
                chancy, od.uniform(1.0), draws=300, seed=3, pseudo_samples=pseudo_samples, store=path, **more
            )
            assert len(post.failures) > 2
            for number in range(len(post.failures)):
                assert np.isnan(od.replay(path, number, model=chancy)).any()

    def test_batched_simulators_cannot_be_replayed(self, tmp_path):
        chancy = od.Model(
            od.Prior(theta=stats.norm()), od.batched(lambda rng, theta: np.where(theta > 1, np.nan, theta)), 0.0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            od.rejection(chancy, od.uniform(1.0), draws=10, seed=1, store=tmp_path / "run.db")
        with pytest.raises(ValueError, match="a batched simulator draws a whole block from one stream"):
            od.replay(tmp_path / "run.db", model=chancy)


class TestReuse:
    @pytest.fixture
    def bank(self, tmp_path):
        path = tmp_path / "bank.db"
        run("rejection", path, draws=None, budget=1100, segment=1e-9)
        return path

    @pytest.mark.parametrize("kernel", [od.uniform(1.2), od.uniform(4.0), od.gaussian(1.0)])
    def test_another_kernel_is_as_a_run_of_its_own(self, bank, kernel):
        straight = od.rejection(model, kernel, budget=1100, seed=5)
        Test.calls = 0
        for given in ({}, {"model": model}):
            again = od.reuse(bank, kernel=kernel, **given)
            assert told(again)[:4] == told(straight)[:4]
        assert Test.calls == 0
        assert "none is new" in str(again.summary())

    def test_other_data_and_another_distance(self, bank):
        data = [0.0, 1.0]
        straight = od.rejection(replace(model, observed=data), od.uniform(1.5), budget=1100, seed=5)
        assert told(od.reuse(bank, kernel=od.uniform(1.5), observed=data))[:4] == told(straight)[:4]
        assert told(od.reuse(bank, kernel=od.uniform(1.5), observed=data, model=model))[:4] == told(straight)[:4]
        scaled = replace(model, distance=od.scaled(scale=[1.0, 2.0]))
        straight = od.rejection(scaled, od.uniform(1.5), budget=1020, seed=5)
        assert told(od.reuse(bank, kernel=od.uniform(1.5), model=scaled))[:2] == told(straight)[:2]
        learnt = replace(model, distance=od.mahalanobis(pilot=80))
        straight = od.rejection(learnt, od.uniform(1.5), budget=1100, seed=5)
        assert told(od.reuse(bank, kernel=od.uniform(1.5), model=learnt))[:2] == told(straight)[:2]

    def test_it_is_refused_where_it_is_not_valid(self, bank, tmp_path):
        with pytest.raises(od.StoreError, match=r"another model: model\.simulate changed"):
            od.reuse(bank, kernel=KERNEL, model=replace(model, simulate=drifted))
        run("wilkinson", tmp_path / "chains.db")
        with pytest.raises(od.StoreError, match="not at draws from the prior"):
            od.reuse(tmp_path / "chains.db", kernel=KERNEL)
        run("rejection", tmp_path / "few.db", keep="draws")
        with pytest.raises(od.StoreError, match="kept no simulations that were rejected"):
            od.reuse(tmp_path / "few.db", kernel=KERNEL)
        with pytest.raises(ValueError, match="kernel must be a kernel"):
            od.reuse(bank, kernel=0.5)
        with pytest.raises(ValueError, match="keep='all' keeps every simulation in the run's file"):
            od.rejection(model, KERNEL, draws=5, keep="all")


class TestFingerprint:
    def test_what_is_seen(self):
        rate, table = 2.0, np.arange(3.0)
        base = fingerprint(lambda x: rate * x + table[0])
        assert fingerprint(lambda x: rate * x + table[0]) == base
        assert fingerprint(lambda x: rate * x + table[1])["code"] != base["code"]
        table = np.arange(1.0, 4.0)
        changed = fingerprint(lambda x: rate * x + table[0])
        assert [key for key in base if changed[key] != base[key]] == ["closure table"]
        assert fingerprint(lambda x, y=1: x) != fingerprint(lambda x, y=2: x)
        assert fingerprint(stats.norm(0, 1)) != fingerprint(stats.norm(0, 2))
        assert fingerprint(stats.norm(0, 1)) == fingerprint(stats.norm(0, 1))
        assert fingerprint(od.Prior(a=stats.t(3))) != fingerprint(od.Prior(a=stats.t(4)))
        assert fingerprint(od.Prior(a=stats.rayleigh(3))) != fingerprint(od.Prior(a=stats.rayleigh(4)))
        assert fingerprint(od.Prior(a=stats.rayleigh(3))) == fingerprint(od.Prior(a=stats.rayleigh(3)))

    def test_globals_are_seen_and_docstrings_are_not(self):
        def made(source, **names):
            space = {"__name__": "__main__", **names}
            exec(source, space)
            return fingerprint(space["f"])

        base = made("def f(x): return x * RATE", RATE=2)
        assert made("def f(x):\n    'New words.'\n    # and comments\n    return x * RATE", RATE=2) == base
        changed = made("def f(x): return x * RATE", RATE=3)
        assert [key for key in base if changed[key] != base[key]] == ["global RATE"]
        inner = made("def g(x): return x + 1\ndef f(x): return g(x)")
        assert made("def g(x): return x + 2\ndef f(x): return g(x)") != inner
        around = made("def g(x): return f(x - 1) if x else 0\ndef f(x): return g(x)")
        assert around == made("def g(x): return f(x - 1) if x else 0\ndef f(x): return g(x)")

    def test_objects_by_their_attributes(self):
        class Simulator:
            def __init__(self, rate):
                self.rate = rate

            def __call__(self, rng, theta):
                return rng.normal(theta, self.rate)

        assert fingerprint(Simulator(1)) == fingerprint(Simulator(1)) != fingerprint(Simulator(2))
        assert fingerprint(Simulator(1).__call__) != fingerprint(Simulator(2).__call__)


class TestCommands:
    def test_show(self, tmp_path):
        path = tmp_path / "run.db"
        post = run("pseudo_marginal", path)
        shown = CliRunner().invoke(looking.show, [str(path), "--failures"])
        assert shown.exit_code == 0
        assert str(post.summary()) in shown.output and "RuntimeError: beyond the model" in shown.output
        described = json.loads(CliRunner().invoke(looking.show, [str(path), "--json", "--failures"]).output)
        assert described["cost"]["simulations"] == post.cost.simulations
        assert described["summary"]["a"]["mean"] == post.summary()["a"].mean
        assert len(described["failures"]) == len(post.failures)
        missing = CliRunner().invoke(looking.show, [str(tmp_path / "no.db")])
        assert missing.exit_code == 1 and "does not exist" in missing.output

    def test_resume(self, tmp_path, whole):
        path = tmp_path / "run.db"
        Test.stop_at = 800
        run("rejection", path)
        file = f"{ROOT / 'tests' / 'stored_run.py'}"
        wrong = CliRunner().invoke(running.resume, [str(path), f"{file}:nothing"])
        assert wrong.exit_code == 1 and "does not define 'nothing'" in wrong.output
        done = CliRunner().invoke(running.resume, [str(path), file])
        assert done.exit_code == 0 and "finished: 900 draws" in done.output
        assert told(od.load(path)) == whole["rejection"]
        own = CliRunner().invoke(running.resume, [str(path), f"{file}:model", "--draws", "10"])
        assert own.exit_code == 1 and "it may be raised, not lowered" in own.output

    @needs_fork
    def test_sigterm_gives_a_non_zero_exit(self, tmp_path):
        path, file = tmp_path / "run.db", tmp_path / "slow.py"
        file.write_text(
            "import time, onedraw as od\nfrom scipy import stats\n"
            "def simulate(rng, theta):\n    time.sleep(0.01)\n    return rng.normal(theta)\n"
            "model = od.Model(od.Prior(theta=stats.norm()), simulate, 1.0)\n"
        )
        slow = models.loaded(file).model
        od.rejection(slow, od.uniform(0.5), draws=10**6, seed=1, store=path, max_seconds=0.1)
        child = Child(lambda: running.resume.main([str(path), str(file)]))
        wait_for_writer(path)
        time.sleep(0.2)
        child.send(signal.SIGTERM)
        assert child.wait() == 143 and od.load(path).status.reason == "terminated"


def test_a_hopeless_run_is_refused_again_when_it_is_resumed(tmp_path):
    def fails(rng, theta):
        raise RuntimeError("no such table")

    for _ in range(2):
        model = od.Model(od.Prior(theta=stats.norm()), fails, 2.0)
        with pytest.raises(od.SimulationError, match="no such table"):
            od.rejection(model, od.uniform(1.0), budget=500, seed=1, store=tmp_path / "run.db")
