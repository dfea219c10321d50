"""The first simulation of a run is inspected before the others are run."""

import json
import re
import time

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.model.first_simulation import listening
from onedraw.tuning.first_look import beside, first_look
from tests.test_cli import folder, onedraw

pytestmark = pytest.mark.usefixtures("brief")

__all__ = ["folder"]

DATA = np.zeros(5)
KERNEL = od.uniform(3.0)
SAMPLERS = {
    "rejection": lambda model: od.rejection(model, KERNEL, budget=200, seed=1),
    "pilot": lambda model: od.rejection(
        od.Model(model.prior, model.simulate, DATA, distance=od.scaled(pilot=20)), KERNEL, budget=200, seed=1
    ),
    "M=3": lambda model: od.rejection(model, KERNEL, budget=200, pseudo_samples=3, seed=1),
    "chains": lambda model: od.pseudo_marginal(model, KERNEL, draws=20, chains=2, seed=1),
    "points": lambda model: od.pseudo_marginal(model, KERNEL, draws=20, chains=2, start={"mu": 0.1}, seed=1),
    "r_hit": lambda model: od.r_hit(model, KERNEL, draws=20, chains=2, seed=1),
    "smc": lambda model: od.smc(model, budget=200, seed=1),
    "importance": lambda model: od.importance(model, budget=200, seed=1),
    "infer": lambda model: od.infer(model, budget=200, draws=20, seed=1),
    "fit_summary": lambda model: od.fit_summary(model, budget=200, seed=1),
    "advise": lambda model: od.advise(model, KERNEL, budget=300, max_pseudo_samples=2, seed=1),
}


class Counting:
    """A plain simulator whose calls are counted, and whose output may be another one from a call on."""

    def __init__(self, wrong=lambda: np.zeros(4), at=lambda call: True):
        self.calls, self.wrong, self.at = 0, wrong, at

    def __call__(self, rng, mu):
        self.calls += 1
        return self.wrong() if self.at(self.calls) else rng.normal(mu, 1.0, 5)


def model_of(simulate):
    return od.Model(od.Prior(mu=stats.norm()), simulate, DATA)


@pytest.mark.parametrize("name", SAMPLERS)
def test_data_in_the_wrong_form_end_every_run_after_two_parameter_values(name):
    """Two calls; more if there are pseudo-samples at the first value, one at a given start; advise adds one."""
    simulate = Counting()
    words = (
        r"the first simulations failed: at mu = -?[\d.]+ the output has shape \(4,\), but the observed .* give \(5,\)"
    )
    with pytest.raises(od.SimulationError, match=words):
        SAMPLERS[name](model_of(simulate))
    assert simulate.calls == {"M=3": 4, "points": 1, "advise": 3}.get(name, 2)


def undefined():
    return nothing_of_this_name  # noqa: F821


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: {"x": 1.0}, "the output is not an array of numbers"),
        (lambda: None, "the output is None: a return statement may be missing"),
        (lambda: np.ma.masked_invalid([np.nan] * 5), "the output is a masked array"),
        (undefined, "NameError: name 'nothing_of_this_name' is not defined"),
        (lambda: __import__("nothing_of_this_name"), "ModuleNotFoundError: No module named"),
    ],
)
def test_what_is_wrong_everywhere_ends_the_run(wrong, words):
    simulate = Counting(wrong)
    with pytest.raises(od.SimulationError, match=words):
        od.infer(model_of(simulate), budget=200, seed=1)
    assert simulate.calls == (1 if "Error" in words else 2)


@pytest.mark.parametrize("wrong", [lambda: len(3), lambda: [].mean()])
def test_mistakes_at_two_parameter_values_end_the_run_and_one_alone_does_not(wrong):
    simulate = Counting(wrong)
    with pytest.raises(od.SimulationError, match=r"the first simulation failed at mu = .*(TypeError|AttributeError)"):
        od.infer(model_of(simulate), budget=200, seed=1)
    assert simulate.calls == 2
    calls = []

    def once(rng, mu):
        calls.append(mu)
        return wrong() if len(calls) == 1 else rng.normal(mu, 1.0, 5)

    assert od.rejection(model_of(once), od.uniform(9.0), budget=20, seed=1).cost.failed == 1


def test_other_kinds_of_simulators():
    calls = []

    def draw(rng, mu, m):
        calls.append(m)
        return np.zeros((m, 4))

    with pytest.raises(od.SimulationError, match=r"the output .*shape \(1, 4\) for 1 rows: expected \(1, 5\)"):
        od.infer(model_of(od.staged(lambda mu: mu, draw)), budget=200, seed=1)
    assert calls == [1, 1]
    with pytest.raises(od.SimulationError, match=r"the summary has shape \(3,\), but the observed data give \(2,\)"):
        od.infer(
            od.Model(od.Prior(mu=stats.norm()), Counting(), DATA, summary=lambda y: y[:2] if len(y) == 5 else y[:3]),
            budget=200, seed=1,
        )  # fmt: skip


def test_a_slow_simulator_fails_in_workers_too():
    def slow(rng, mu):
        time.sleep(0.5)
        return np.zeros(4)

    began = time.perf_counter()
    with pytest.raises(od.SimulationError, match=r"the output has shape \(4,\)"):
        od.infer(model_of(slow), budget=500, seed=1, workers=2)
    # A block of 32 would take 16 s.
    assert time.perf_counter() - began < 15


@pytest.mark.parametrize("wrong", [lambda: np.zeros(4), lambda: np.full(5, np.nan), undefined])
@pytest.mark.parametrize("name", ["rejection", "pilot", "chains", "infer"])
def test_only_the_first_simulations_end_a_run(name, wrong):
    """Later ones are counted failures, the first of a later phase as well, and one form that is wrong among two."""
    simulate = Counting(
        wrong, lambda call: call in (1, 3, 21, 22, 40, 60) if wrong is not undefined else call in (2, 21, 22, 40, 60)
    )
    post = SAMPLERS[name](model_of(simulate))
    assert post.cost.failed >= 3 and simulate.calls == post.cost.simulations


def test_a_first_simulation_that_fails_for_other_reasons_is_a_counted_failure():
    def raised():
        raise RuntimeError("died out")

    for wrong in (raised, lambda: np.full(5, np.nan)):
        post = od.rejection(model_of(Counting(wrong, lambda call: call == 1)), KERNEL, budget=50, seed=1)
        assert post.cost.failed == 1 and post.cost.simulations == 50


def test_a_run_that_goes_on_was_looked_at(tmp_path):
    file = tmp_path / "run.db"
    simulate = Counting(at=lambda call: call == 51)
    model = model_of(simulate)
    od.rejection(model, KERNEL, budget=50, seed=1, store=file)
    calls = simulate.calls
    post = od.resume(file, model, budget=90, force=True)
    assert calls == 50 and post.cost.failed == 1 and post.cost.simulations == 90


# Whoever asks is told


@pytest.mark.parametrize("name", ["rejection", "pilot", "M=3", "chains", "infer"])
def test_listening_changes_nothing_but_the_surplus(name):
    heard = []
    alone = SAMPLERS[name](model_of(Counting(at=lambda call: False)))
    with listening(heard.append):
        told = SAMPLERS[name](model_of(Counting(at=lambda call: False)))
    assert told.draws["mu"].tobytes() == alone.draws["mu"].tobytes()
    assert told.cost._replace(seconds=0, surplus=0) == alone.cost._replace(seconds=0, surplus=0)
    assert told.cost.surplus == alone.cost.surplus + 1
    (first,) = heard
    assert first.same and first.used_rng and first.failed == "" and 0 < first.seconds < 1 and set(first.theta) == {"mu"}


def test_a_simulator_that_draws_elsewhere_is_found_out():
    other = np.random.default_rng()
    heard = []
    with listening(heard.append):
        od.rejection(model_of(lambda rng, mu: rng.normal(mu, 1, 5) + other.normal()), KERNEL, budget=20, seed=1)
        with pytest.warns(UserWarning, match="drew nothing"):
            od.rejection(model_of(lambda rng, mu: np.full(5, mu)), KERNEL, budget=20, seed=1)
        od.rejection(model_of(od.batched(lambda rng, mu: rng.normal(mu, 1, (5, mu.size)).T)), KERNEL, budget=20, seed=1)
    assert [one.same for one in heard] == [False, True, None]
    assert [one.used_rng for one in heard] == [True, False, True] and heard[2].together == 20


def test_a_long_simulation_is_not_made_twice(monkeypatch):
    monkeypatch.setattr("onedraw.model.simulator.QUICK", 0.0)
    heard, simulate = [], Counting(at=lambda call: False)
    with listening(heard.append):
        post = od.rejection(model_of(simulate), KERNEL, budget=20, seed=1)
    assert heard[0].same is None and simulate.calls == 20 and post.cost.surplus == 0


# onedraw check, and what onedraw run says first


@pytest.mark.parametrize(
    "simulate",
    [
        lambda rng, mu: rng.normal(mu, 1.0, 5),
        od.batched(lambda rng, mu: rng.normal(mu, 1.0, (5, mu.size)).T),
        od.staged(lambda mu: mu, lambda rng, mu, m: rng.normal(mu, 1.0, (m, 5))),
    ],
)
def test_a_first_look_compares_prior_and_data(simulate):
    """P(x < 1) with x normal with variance 2 is 0.7602; 1,000 simulations have an error of 0.0135."""
    model = od.Model(od.Prior(mu=stats.norm()), simulate, np.array([1.0, 0.0, 0.0, 0.0, 40.0]))
    look = first_look(model, 1000, 1, None, 60.0)
    assert look.first.same and look.cost.simulations == 1000
    assert abs(look.beside[0].below - 0.7602) < 4 * 0.0135
    assert [one.outside for one in look.beside] == [False] * 4 + [True]
    assert abs(look.beside[1].quantiles[2] - 1.645 * np.sqrt(2)) < 4 * 0.1


def test_numbers_beside_simulated_ones():
    (one,) = beside(np.array([[1.0], [2.0], [2.0], [3.0]]), np.array([2.0]), ["x"])
    assert one.below == 0.5 and one.quantiles[1] == 2.0 and not one.outside
    assert beside(np.empty((0, 1)), np.array([2.0]), ["x"]) == ()


def test_check_stops_in_time():
    def slow(rng, mu):
        time.sleep(0.05)
        return rng.normal(mu, 1.0, 5)

    look = first_look(model_of(slow), 1000, 1, None, 0.5)
    assert 1 < look.cost.simulations < 12 and 0.05 <= look.seconds < 0.5


MODEL = """
import numpy as np
import onedraw as od
from scipy import stats

def simulate(rng, mu):
    return BODY

model = od.Model(od.Prior(mu=stats.norm()), simulate, np.array([0.5, -0.2, 9.0]))
"""


def write(folder, body):
    (folder / "mine.py").write_text(MODEL.replace("BODY", body))


def test_check_says_what_it_finds(folder):
    write(folder, "rng.normal(mu, 1, 3)")
    found = onedraw("check", "mine.py", "--budget", "1e4")
    assert found.exit_code == 0, found.output
    assert "Model(mu -> 3 values)\nFirst simulation, at mu = " in found.output
    assert "3 finite numbers, in the form of the data\nThe same random stream gives the same data.\n" in found.output
    assert re.search(r"One simulation takes [\d.]+ .?s: 10,000 take about [\d.]+ m?s on one core\.", found.output)
    assert re.search(
        r"observed\[2\] +9 .* 100 %\nThe data lie beyond all 200 simulations in observed\[2\]\.", found.output
    )
    assert not list(folder.glob("*.db"))
    look = json.loads(onedraw("check", "mine.py", "--json", "--simulations", 60).output)
    assert look["first"]["same"] and look["cost"]["simulations"] == 60 and look["beside"][2]["below"] == 1


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("rng.normal(mu, 1, 2)", 1, "the output has shape (2,), but the observed data give (3,)"),
        ("rng.normal(mu, np.random.rand(), 3)", 0, "the same random stream gave different data"),
        ("rng.normal(mu, 1, 3) if mu < 0 else 1 / 0", 0, "failed\nThe first failed at mu = "),
        ("1 / 0", 1, "all of the first"),
        ("np.arange(3.0)", 0, "gives the same data; it draws nothing from rng."),
    ],
)
@pytest.mark.filterwarnings("ignore:the simulator drew nothing")
def test_check_names_what_is_wrong(folder, body, code, words):
    write(folder, body)
    found = onedraw("check", "mine.py")
    assert found.exit_code == code and words in found.output, found.output


def test_run_says_how_long_it_will_take(folder):
    write(folder, "rng.normal(mu, 1, 3)")
    found = onedraw("run", "mine.py", "--budget", "2,000", "--eps", 9, "--seed", 1)
    assert found.exit_code == 0
    assert re.search(r"^One simulation takes [\d.]+ .?s: 2,000 take about [\d.]+ m?s on one core\.", found.stderr)
    again = onedraw("run", "mine.py", "--budget", "2,000", "--eps", 9, "--seed", 1)
    assert "One simulation takes" not in again.stderr
    quiet = onedraw("run", "mine.py", "--budget", "2,000", "--eps", 9, "--out", "b.db", "--json")
    assert quiet.stderr == "" and json.loads(quiet.stdout)["cost"]["surplus"] == 1
    write(folder, "rng.normal(mu, 1, 3) + np.random.rand()")
    warned = onedraw("run", "mine.py", "--budget", "200", "--eps", 9, "--out", "c.db")
    assert warned.stderr.startswith("warning: the same random stream gave different data.")


def test_check_of_a_program_that_never_starts(folder):
    """Also if its time is over before a hundred simulations have failed; no traceback without a line of the user's."""
    write(folder, "None")
    text = (
        (folder / "mine.py").read_text().replace("simulate, np", "od.command(['sh', '-c', 'echo bad >&2; exit 3']), np")
    )
    (folder / "mine.py").write_text(text.replace("exit 3']", "exit 3'], persistent=True"))
    for more in (["--max-seconds", 0.2], ["--simulations", 20]):
        found = onedraw("check", "mine.py", *more)
        assert found.exit_code == 1 and "ended with status 3 and gave no answer: bad" in found.output
        assert "simulations failed. The first failed at mu = " in found.output and "Traceback" not in found.output
