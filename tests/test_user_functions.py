"""Functions of the user's own that raise, give what is no number, or write to what they are given.

Whatever they do, a run counts failed simulations, with theta, or ends in an error that says whose function it was.
"""

import contextlib
import itertools
import os
import signal
import sys
import warnings
import zlib

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.failures import NoAnswer

pytestmark = pytest.mark.usefixtures("quick")


class MuteError(Exception):
    """An exception that cannot even be shown."""

    def __str__(self):
        raise RuntimeError("no text")


def raising(error):
    def fault(value):
        raise error

    return fault


def as_array(value):
    return np.atleast_1d(np.asarray(value, dtype=float))


FAULTS = {
    "raises": raising(RuntimeError("mine")),
    "raises a ValueError": raising(ValueError("mine")),
    "stops an iteration": raising(StopIteration("mine")),
    "runs out of memory": raising(MemoryError("mine")),
    "asserts": raising(AssertionError("mine")),
    "exits": lambda value: sys.exit(3),
    "cannot be shown": raising(MuteError()),
    "nan": lambda value: as_array(value) * np.nan,
    "inf": lambda value: as_array(value) + np.inf,
    "wrong shape": lambda value: np.stack([as_array(value)] * 3),
    "one too many": lambda value: np.append(as_array(value), 1.0),
    "nothing": lambda value: np.empty(0),
    "huge": lambda value: np.broadcast_to(1.0, 10**8),
    "objects": lambda value: np.array([object()] * as_array(value).size, dtype=object),
    "text": lambda value: "text",
    "array of text": lambda value: np.array(["x"] * as_array(value).size),
    "None": lambda value: None,
    "masked": lambda value: np.ma.array(as_array(value), mask=True),
    "complex": lambda value: as_array(value) + 1j,
    "dict": lambda value: {"x": value},
    "generator": lambda value: (one for one in as_array(value)),
    "function": lambda value: len,
    "date": lambda value: np.datetime64("2020-01-01"),
}
RAISING = list(FAULTS)[: list(FAULTS).index("nan")]
KERNEL = od.uniform(1.0)
SAMPLERS = {
    "rejection": lambda model, **more: od.rejection(model, KERNEL, budget=150, **more),
    "pseudo_marginal": lambda model, **more: od.pseudo_marginal(model, KERNEL, draws=15, chains=3, **more),
    "M=3": lambda model, **more: od.pseudo_marginal(model, KERNEL, draws=8, chains=3, pseudo_samples=3, **more),
    "wilkinson": lambda model, **more: od.wilkinson(model, KERNEL, draws=15, chains=3, **more),
    "r_hit": lambda model, **more: od.r_hit(model, KERNEL, draws=8, chains=3, hits=2, **more),
    "smc": lambda model, **more: od.smc(model, budget=200, **more),
    "importance": lambda model, **more: od.importance(model, budget=200, **more),
    "infer": lambda model, **more: od.infer(model, budget=120, draws=20, **more),
    "fit_summary": lambda model, **more: od.fit_summary(model, budget=100, **more),
    "tolerance_for": lambda model, **more: od.tolerance_for(model, 0.3, budget=1000, chains=2, **more),
    "advise": lambda model, **more: od.advise(model, KERNEL, budget=300, max_pseudo_samples=2, **more),
}
WALKS = ("pseudo_marginal", "M=3", "wilkinson", "r_hit", "tolerance_for", "advise")
"""Samplers that take a proposal."""


class NowAndThen:
    """A function with a fault at every third call once it is armed.

    Memory runs out at a twelfth of the arguments instead: only what another process finds again is a failure.
    """

    def __init__(self, function, fault):
        self.function, self.fault, self.armed, self.calls, self.faults = function, fault, False, itertools.count(), 0

    def __call__(self, *given, **named):
        value = self.function(*given, **named)
        again = self.fault is FAULTS["runs out of memory"]
        numbers = [one for one in (*given, *named.values(), value) if not isinstance(one, np.random.Generator)]
        place = zlib.crc32(repr(numbers).encode()) if again else next(self.calls)
        if self.armed and place % (12 if again else 3) == 2:
            self.faults += 1
            return self.fault(value)
        return value


def simulate(rng, a, b):
    return rng.normal(a, 0.5 + b, 2)


def batched(rng, a, b):
    return rng.normal(a[:, None], 0.5 + b[:, None], (len(a), 2))


def summary(y):
    return np.array([y.mean(), y.std()])


def distance(one, other):
    return float(np.abs(one - other).sum())


def sample(rng, n):
    return rng.random((n, 2))


def logpdf(theta):
    return np.where(((theta >= 0) & (theta <= 1)).all(axis=1), 0.0, -np.inf)


def where(a, b):
    return a + b < 1.9


def walk(rng, theta):
    return theta + rng.normal(0.0, 0.3, theta.shape), 0.0


def log_estimate(rng, theta):
    return -rng.exponential(size=len(theta))


def prepare(a, b):
    return a, b


def draw(rng, state, m):
    return rng.normal(state[0], 0.5 + state[1], (m, 2))


def batched_summary(y):
    return np.stack([y.mean(axis=1), y.std(axis=1)], axis=1)


def batched_distance(some, other):
    return np.abs(some - other).sum(axis=1)


ROLES = {
    "simulate": (simulate, ""), "batched": (batched, ""), "prepare": (prepare, ""), "draw": (draw, ""),
    "summary": (summary, ""), "batched summary": (batched_summary, ""), "distance": (distance, "distance"),
    "batched distance": (batched_distance, "distance"), "sample": (sample, "prior"), "logpdf": (logpdf, "prior"),
    "where": (where, "where="), "proposal": (walk, "proposal"), "estimator": (log_estimate, "log_estimate"),
}  # fmt: skip
"""The function of each role, and the word by which an error names it."""


def problem(role, one):
    """A model in which one function is `one`."""
    sampled = one if role == "sample" else sample
    prior = od.Prior.joint(
        ["a", "b"], sampled, one if role == "logpdf" else logpdf, where=one if role == "where" else None
    )
    simulator = {"simulate": one, "batched": od.batched(one), "prepare": od.staged(one, draw), "draw": None}.get(
        role, simulate
    )
    if role == "draw":
        simulator = od.staged(prepare, one)
    parts = {}
    if "summary" in role:
        parts["summary"] = od.batched(one) if "batched" in role else one
    if "distance" in role:
        parts["distance"] = od.batched(one) if "batched" in role else one
    return od.Model(prior, simulator, [0.5, 1.0], **parts)


def ended(role, name, one, arm=lambda: None):
    """The result of a run, or None and what the error said."""
    arguments = {"seed": 1, "progress": False, "max_seconds": 300.0}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = problem(role, one)
            if role == "proposal":
                arguments["proposal"] = one
            arm()
            if role == "estimator":
                estimator = od.unbiased(one, model.prior, simulations=1)
                start = {"a": 0.5, "b": 0.5}
                return od.pseudo_marginal(estimator=estimator, start=start, draws=15, chains=3, **arguments), ""
            return SAMPLERS[name](model, **arguments), ""
    except NoAnswer as error:
        return None, f"{type(error).__name__}: budget {error}"
    except (ValueError, od.SimulationError) as error:
        return None, f"{type(error).__name__}: {error}"


def check(role, name, fault):
    """A result that counts its failures, with theta, or an error that names the function."""
    one = NowAndThen(ROLES[role][0], FAULTS[fault])
    found, said = ended(role, name, one, lambda: setattr(one, "armed", True))
    what = (role, name, fault, said)
    if found is None:
        assert said.startswith("SimulationError: ") or ROLES[role][1] in said or "budget" in said, what
        assert "theta" in said or "'a'" in said or not said.startswith("SimulationError"), what
        return
    if getattr(found, "draws", None):
        assert all(np.isfinite(values).all() for values in found.draws.values()), what
    failed = found.cost.failed
    assert failed <= found.cost.simulations, what
    if one.faults and (role in ("simulate", "distance", "draw") or (role == "prepare" and fault in RAISING)):
        assert failed or fault in BENIGN, what
    if failed and hasattr(found, "failures"):
        assert set(found.failures[0].theta) == {"a", "b"} and found.failures[0].message, what


BENIGN = ("inf",)
"""An infinite distance is one."""
TAKES = {
    "proposal": WALKS,
    "estimator": ("pseudo_marginal",),
    "batched distance": [name for name in SAMPLERS if name != "fit_summary"],
    "distance": [name for name in SAMPLERS if name != "fit_summary"],
}
CASES = [(role, name) for role in ROLES for name in TAKES.get(role, SAMPLERS)]


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_users_functions(fault):
    """Some cases of each fault; the slow test has more.

    Where memory is short, every failed simulation is tried once more in a process of its own, which takes time.
    """
    rng = np.random.default_rng(list(FAULTS).index(fault))
    for k in rng.choice(len(CASES), 1 if fault == "runs out of memory" else 4, replace=False):
        check(*CASES[k], fault)


@pytest.mark.parametrize("role", ["proposal", "estimator", "logpdf"])
def test_a_stop_of_an_iteration_does_not_end_the_run(role):
    """Plans are generators, whose end is a StopIteration too."""
    one = NowAndThen(ROLES[role][0], FAULTS["stops an iteration"])
    found, said = ended(role, "pseudo_marginal", one, lambda: setattr(one, "armed", True))
    assert found is None and ROLES[role][1] in said and "StopIteration: mine" in said


@pytest.mark.slow
@pytest.mark.parametrize(("role", "name"), CASES)
def test_faults_of_every_function_in_every_sampler(role, name):
    """A sixth of the faults in each case, others in the next."""
    first = CASES.index((role, name)) % 6
    for fault in list(FAULTS)[first::6]:
        check(role, name, fault)


def writing(function):
    """The function, which then overwrites all that it was given, if it can."""

    def one(*given, **named):
        value = function(*given, **named)
        for each in (*given, *named.values()):
            with contextlib.suppress(ValueError, TypeError, IndexError):
                each[...] = 7.0
        return value.copy() if isinstance(value, np.ndarray) else value

    return one


@pytest.mark.parametrize(
    ("role", "name"),
    [
        case
        if case[1] == "pseudo_marginal" or case in [("simulate", "infer"), ("distance", "infer"), ("logpdf", "infer")]
        else pytest.param(*case, marks=pytest.mark.slow)
        for case in CASES
    ],
)
def test_functions_that_write_to_what_they_are_given_change_nothing(role, name):
    if name == "advise":
        pytest.skip("it measures times")
    clean, _ = ended(role, name, ROLES[role][0])
    written, said = ended(role, name, writing(ROLES[role][0]))
    if clean is None:
        clean, _ = ended(role, name, lambda *given, **named: ROLES[role][0](*given, **named))
    assert (clean is None) == (written is None), said
    if clean is not None and hasattr(clean, "draws"):
        for key, values in clean.draws.items():
            assert values.tobytes() == written.draws[key].tobytes()
        assert clean.cost._replace(seconds=0) == written.cost._replace(seconds=0)
    elif hasattr(clean, "rows"):
        assert clean.rows.tobytes() == written.rows.tobytes()


def test_distances_that_are_all_infinite_end_in_words(quick):
    model = problem("distance", lambda one, other: np.inf)
    with pytest.raises(NoAnswer, match=r"none of the .* simulations has a finite distance"):
        od.infer(model, budget=200, seed=1)


def rude(folder):
    """A simulator that changes what the whole process shares."""

    def simulate(rng, theta):
        value = rng.normal(theta, 1.0)
        os.chdir(folder)
        np.seterr(all="raise")
        np.random.seed(0)  # noqa: NPY002
        warnings.simplefilter("error")
        np.set_printoptions(precision=1)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        return value

    return simulate


@pytest.mark.parametrize("name", ["rejection", "pseudo_marginal", "smc", "infer"])
def test_simulators_that_change_what_a_process_shares_change_no_number(name, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    given = {"budget": 400, "seed": 1}
    kernel = () if name in ("smc", "infer") else (od.uniform(0.5),)
    prior, found = od.Prior(theta=stats.norm(0, 1)), []
    for simulate in (lambda rng, theta: rng.normal(theta, 1.0), rude(tmp_path / "elsewhere")):
        with np.errstate(), warnings.catch_warnings(), np.printoptions():
            os.chdir(tmp_path)
            np.seterr(all="raise" if found else "warn", under="raise" if found else "ignore")
            store = f"run{len(found)}.db"
            post = getattr(od, name)(od.Model(prior, simulate, 2.0), *kernel, store=store, segment=0.001, **given)
            os.chdir(tmp_path)
            np.seterr(all="ignore")
            found.append((post.draws["theta"].tobytes(), od.load(store).draws["theta"].tobytes(), str(post.summary())))
    assert found[0] == found[1]
    assert not list((tmp_path / "elsewhere").iterdir())
