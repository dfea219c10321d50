"""What users give is checked before anything is simulated: a typed error that names the argument, or a right result."""

import contextlib
import inspect
import math
import operator
import re
import shutil
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

import onedraw as od
from onedraw import arguments
from onedraw.failures import NoAnswer
from tests.deadlines import LONG, up_after

PRIOR = od.Prior(a=stats.norm(0, 1), b=stats.uniform(0, 2))


class Counting:
    """A simulator that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, rng, a, b):
        self.calls += 1
        return rng.normal(a, 0.1 + b)


def counted() -> tuple[Counting, od.Model]:
    simulate = Counting()
    return simulate, od.Model(PRIOR, simulate, observed=2.0, distance=od.scaled(pilot=50))


def text_of_wrong_type(rng, theta):
    return [["x", "y"]] * len(theta), 0.0


def wrong_shape(rng, theta):
    return theta[:, :1], 0.0


def one_value_only(rng, theta):
    return theta


WRONG_PROPOSALS = [
    ("x", "proposal must be"),
    (7, "proposal must be"),
    (od.random_walk, "the proposal failed"),
    (od.random_walk(np.eye(3)), "cov has shape"),
    (od.random_walk([1.0, 2.0, 3.0]), "cov has 3 variances for 2 parameters"),
    (od.random_walk([[1.0, 1.0], [1.0, 1.0]]), "not positive definite"),
    (od.independence(stats.norm(0, 1)), "independence"),
    (od.independence(od.Prior(c=stats.norm(0, 1))), "distribution of"),
    (od.independence("x"), "independence"),
    (od.lazy("x"), "proposal must be"),
    (od.lazy(od.random_walk(np.eye(3))), "cov has shape"),
    (text_of_wrong_type, "the proposal failed"),
    (wrong_shape, "the proposal returned shapes"),
    (one_value_only, "the proposal"),
    (lambda rng: 0, "the proposal failed"),
]


@pytest.mark.parametrize(("proposal", "words"), WRONG_PROPOSALS, ids=[str(n) for n in range(len(WRONG_PROPOSALS))])
@pytest.mark.parametrize("function", ["pseudo_marginal", "wilkinson", "r_hit", "tolerance_for", "advise"])
def test_a_wrong_proposal_costs_no_simulation(proposal, words, function):
    simulate, model = counted()
    second = 0.2 if function == "tolerance_for" else od.uniform(0.01)
    with pytest.raises(ValueError, match=words):
        getattr(od, function)(model, second, proposal=proposal, budget=100_000, seed=1)
    assert simulate.calls == 0


@pytest.mark.parametrize(
    "start",
    [
        "x",
        {"a": 1.0},
        {"a": 1.0, "b": 9.0},
        [1.0, 2.0, 3.0],
        [[1.0], [2.0, 3.0]],
        {1: 2.0, "b": 1.0},
        None,
        3j,
        False,
        {"a": True, "b": 1.0},
    ],
)
def test_a_wrong_start_costs_no_simulation(start):
    simulate, model = counted()
    with pytest.raises(ValueError, match="start"):
        od.pseudo_marginal(model, od.uniform(0.5), start=start, budget=1000, seed=1)
    assert simulate.calls == 0


HUGE = 10**30
WRONG = [
    ("rejection", "draws", [HUGE, "10", 1.5, True, np.inf, [1], -1, np.float64(3)]),
    ("rejection", "budget", [HUGE, "10", np.array([10, 20])]),
    ("rejection", "pseudo_samples", [HUGE, "1", 0]),
    ("rejection", "keep", ["x", 3, np.array(["all", "draws"]), ["all"]]),
    ("rejection", "timeout", [1e300, "1", 0, math.nan, HUGE, True]),
    ("rejection", "max_seconds", ["1", -1, [1.0], 10**400]),
    ("rejection", "segment", ["1", None]),
    ("rejection", "workers", [HUGE, "2", 1.5, 0]),
    ("rejection", "seed", ["1", HUGE, 1.5, -1, 10**5000]),
    ("rejection", "on_error", ["x", 1, np.array(["reject", "raise"])]),
    ("rejection", "engine", ["x", 3]),
    ("rejection", "executor", ["x", 3]),
    ("rejection", "store", [3, "", 1.5]),
    ("pseudo_marginal", "chains", [HUGE, "4", 0]),
    ("pseudo_marginal", "thin", [HUGE, "4", 0]),
    ("pseudo_marginal", "early", ["x", 1, None]),
    ("pseudo_marginal", "layout", ["x", 1, np.array(["chains", "draws"])]),
    ("pseudo_marginal", "keep", ["x", 1, np.array(["all", "draws"])]),
    ("wilkinson", "early", ["x", 1]),
    ("r_hit", "hits", [HUGE, "x", 0]),
    ("r_hit", "max_draws", [HUGE, "x", 0]),
    ("smc", "least_acceptance", [1e9, "0.1", 0, 1, math.nan]),
    ("smc", "particles", [HUGE, "x"]),
    ("importance", "defensive", [1e9, "0.1", 0, 1]),
    ("importance", "ess", ["x", -1]),
    ("importance", "proposal", ["x", 3, od.random_walk(), PRIOR, {"a": 1.0, "b": 1.0}]),
    ("importance", "keep", ["x", np.array(["all", "distances"])]),
    ("infer", "coverage", ["x", -1, HUGE]),
    ("infer", "draws", ["x", 0, HUGE]),
    ("fit_summary", "terms", ["x", 1]),
    ("tolerance_for", "precision", ["x", 0]),
    ("tolerance_for", "chains", ["x", 0, HUGE]),
    ("advise", "processors", ["x", 0, HUGE]),
    ("advise", "max_pseudo_samples", ["x", 1, HUGE]),
    ("advise", "early", ["x", 1]),
    ("advise", "functions", ["x", {"f": 1}]),
    ("pseudo_marginal", "start", ["5", b"5", True, -1, {"a": "1", "b": "1"}, ["0.5", "0.5"]]),
    ("advise", "start", ["5", True, -1, {"a": 1.0, "b": 1.0}]),
    ("rejection", "max_seconds", ["5", b"5", True, math.nan, 0]),
    ("rejection", "segment", ["5", b"5", 0, -1]),
    ("importance", "ess", ["5", b"5", True, 0, math.inf]),
    ("smc", "least_acceptance", [2, 1e9, b"0.1"]),
    ("calibrate", "method", ["x", 3]),
    ("calibrate", "budget", ["x", 0, HUGE]),
    ("calibrate", "data_sets", ["x", 19, HUGE]),
    ("calibrate", "arguments", ["x", {"seed": 1}, {1: 2}, {"nothing": 1}]),
    ("calibrate", "shared", ["x", 1]),
    ("calibrate", "ranks", ["x", 10, 101, HUGE]),
]


def call(function: str, model: od.Model, **arguments):
    second = {"tolerance_for": (0.2,), "smc": (), "importance": (), "infer": (), "fit_summary": (), "calibrate": ()}
    given = second.get(function, (od.uniform(0.5),))
    limit = {} if "budget" in arguments or "draws" in arguments else {"budget": 2000}
    if function in ("infer", "fit_summary", "importance", "calibrate"):
        limit = {"budget": 2000} if "budget" not in arguments else {}
    return getattr(od, function)(model, *given, **{"seed": 1, **limit, **arguments})


@pytest.mark.parametrize(("function", "name", "values"), WRONG, ids=[f"{one[0]}-{one[1]}" for one in WRONG])
def test_a_wrong_argument_is_named_before_the_first_simulation(function, name, values):
    for value in values:
        simulate, model = counted()
        with pytest.raises((ValueError, TypeError), match=name) as caught:
            call(function, model, **{name: value})
        assert type(caught.value) in (ValueError, TypeError)
        assert simulate.calls == 0, value


TEXT = [
    (od.random_walk, "cov"),
    (lambda scale: od.scaled(scale=scale), "scale"),
    (lambda price: od.stages(len, len, continuation=0.5, price=price), "price"),
    (lambda theta: od.bank_from_arrays(theta, [1.0, 2.0]), "theta"),
    (lambda x: od.bank_from_arrays([1.0, 2.0], x), "x"),
    (lambda data: od.particle_filter(**{**PARTS["particle_filter"], "data": data}), "data"),
    (od.uniform, "eps"),
    (lambda support: od.kernel(lambda u: -u, 1.0, support=support), "support"),
]


@pytest.mark.parametrize("made", TEXT, ids=[name for _, name in TEXT])
def test_text_is_no_number(made):
    make, name = made
    for value in ("5", b"5", bytearray(b"5"), ["1", "2"], [1.0, "2"], np.array(["1", "2"], dtype=object), ["1", b"2"]):
        with pytest.raises(ValueError, match=rf"\b{name}\b"):
            make(value)


@pytest.mark.filterwarnings("ignore:overflow")
def test_data_far_beyond_all_simulations_are_told(quick):
    model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta), observed=2.0)
    post = od.infer(model, budget=200, draws=50, seed=1, coverage=0)
    with pytest.raises(NoAnswer, match="units"):
        post.observed(1e300)


NUMPY_SCALARS = [
    ("rejection", {"draws": np.int64(20), "budget": np.uint32(3000), "pseudo_samples": np.int8(2)}),
    (
        "rejection",
        {"draws": np.array(20), "seed": np.int32(3), "on_error": np.str_("reject"), "keep": np.str_("draws")},
    ),
    ("rejection", {"draws": 20, "timeout": np.float32(5), "max_seconds": np.float64(50), "segment": np.int64(3)}),
    ("pseudo_marginal", {"draws": np.int64(5), "chains": np.int16(2), "thin": np.int8(2), "early": np.bool_(False)}),
    ("pseudo_marginal", {"draws": 5, "proposal": od.lazy(od.random_walk(np.float32(0.5)), hold=np.float32(0.25))}),
    ("pseudo_marginal", {"draws": 5, "layout": np.str_("chains"), "start": {"a": np.float32(1), "b": np.float16(1)}}),
    ("r_hit", {"draws": np.int64(5), "hits": np.int64(2), "max_draws": np.int64(500), "chains": np.int64(2)}),
    ("smc", {"budget": np.int64(2000), "particles": np.int64(50), "least_acceptance": np.float32(0.1)}),
    ("importance", {"budget": np.int64(2000), "ess": np.float32(50), "defensive": np.float32(0.2)}),
    ("infer", {"budget": np.int64(500), "draws": np.int64(50), "coverage": np.int64(0)}),
    ("tolerance_for", {"budget": np.int64(4000), "chains": np.int64(4), "pseudo_samples": np.int64(1)}),
    ("advise", {"budget": np.int64(3000), "processors": np.int64(2), "early": np.bool_(True)}),
    (
        "calibrate",
        {
            "method": od.rejection,
            "budget": np.int64(50),
            "data_sets": np.int32(20),
            "shared": np.bool_(True),
            "ranks": np.int64(20),
            "arguments": {"kernel": od.uniform(2.0), "draws": np.int64(10)},
        },
    ),
]


@pytest.mark.parametrize(("function", "arguments"), NUMPY_SCALARS, ids=[f"{n}" for n in range(len(NUMPY_SCALARS))])
def test_numpy_scalars_work_with_a_store(function, arguments, tmp_path):
    model = od.Model(PRIOR, lambda rng, a, b: rng.normal(a, 0.1 + b), observed=1.0)
    assert call(function, model, store=tmp_path / "run.db", **arguments) is not None
    if function not in ("tolerance_for", "advise", "calibrate"):
        assert od.load(tmp_path / "run.db").cost.simulations > 0


@pytest.mark.parametrize("seed", [3, 12, 19, 29, 30, 43])
def test_a_tolerance_is_found_where_the_verifying_run_lies_at_an_end_of_the_bracket(seed):
    """The root is kept inside the bracket, so that it may be one of its ends, through which there is no parabola."""
    prior = od.Prior(theta=stats.norm(0, 1))
    model = od.Model(prior, lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    found = od.tolerance_for(model, 0.4, chains=1, budget=1000, seed=seed)
    bracket = [one.eps for one in found.path if one.stage == "bracket"]
    assert found.verified_eps in (pytest.approx(min(bracket)), pytest.approx(max(bracket)))
    assert 0 < found.eps < math.inf and 0 < found.std_error < math.inf


def test_what_a_terminal_would_obey_is_shown(tmp_path, monkeypatch):
    from click.testing import CliRunner

    from onedraw.cli.main import main

    def simulate(rng, theta):
        if theta < 0:
            raise RuntimeError("\x1b[2J\x1b]0;title\x07 gone \x9b1m \u202e")
        return rng.normal(theta, 1.0)

    model = od.Model(od.Prior(theta=stats.norm(0, 1)), simulate, observed=2.0)
    od.rejection(model, od.uniform(1.0), draws=20, seed=1, store=tmp_path / "run.db")
    wrong = set("\x1b\x07\x9b\u202e")
    for command in (["show", "--failures"], ["show", "--failures", "--json"], ["watch", "--once"]):
        found = CliRunner().invoke(main, [command[0], str(tmp_path / "run.db"), *command[1:]])
        assert found.exit_code == 0 and not wrong & set(found.output)
    found = CliRunner().invoke(main, ["show", str(tmp_path / "\x1b[2Jno.db")])
    assert found.exit_code == 1 and "\\x1b[2Jno.db" in found.output and not wrong & set(found.output)


def test_masked_values_are_refused():
    masked = np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0])
    prior = od.Prior(theta=stats.norm(0, 1))
    for observed in (masked, {"y": masked}, np.ma.masked):
        with pytest.raises(ValueError, match=r"observed .*masked"):
            od.Model(prior, lambda rng, theta: rng.normal(theta, 1.0, 3), observed)
    with pytest.raises(ValueError, match=r"summary .*masked"):
        od.Model(prior, lambda rng, theta: rng.normal(theta, 1.0, 3), np.ones(3), summary=lambda y: masked)
    model = od.Model(prior, lambda rng, theta: np.ma.array(rng.normal(theta, 1.0, 3), mask=[0, 1, 0]), np.ones(3))
    with pytest.raises(od.SimulationError, match="masked"):
        od.rejection(model, od.uniform(1.0), draws=5, seed=1)
    unmasked = od.Model(prior, lambda rng, theta: np.ma.array(rng.normal(theta, 1.0, 3)), np.ma.array(np.ones(3)))
    assert od.rejection(unmasked, od.uniform(3.0), draws=5, seed=1).shape == (1, 5)


def flat(theta):
    return np.zeros(len(theta))


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (lambda rng, n: np.random.default_rng().random((n, 2)), "same state"),
        (lambda rng, n: np.random.default_rng(1).random((n, 2)), "whatever generator"),
        (lambda rng, n: np.linspace(0, 1, 2 * n).reshape(n, 2), "whatever generator"),
        (lambda rng, n: 10 * rng.random((n, 2)), "'k', which is said to be a whole number"),
    ],
)
def test_a_joint_prior_draws_from_its_generator_and_whole_numbers_where_it_says_so(sample, words):
    with pytest.raises(ValueError, match=words):
        od.Prior.joint(["a", "k"], sample, flat, discrete=["k"] if "whole" in words else [])


def test_a_joint_prior_of_one_point_is_one():
    assert od.Prior.joint(["a"], lambda rng, n: np.ones((n, 1)), flat).names == ("a",)


def test_parameters_may_be_called_chain_and_draw_but_not_self(tmp_path):
    with pytest.raises(ValueError, match="'self' cannot be a parameter's name"):
        od.Prior(self=stats.norm(0, 1))
    prior = od.Prior(chain=stats.norm(0, 1), draw=stats.norm(0, 1))
    model = od.Model(prior, lambda rng, chain, draw: rng.normal(chain + draw), observed=1.0)
    post = od.pseudo_marginal(model, od.uniform(1.0), draws=20, seed=1, store=tmp_path / "run.db")
    assert od.load(tmp_path / "run.db").draws["chain"].tobytes() == post.draws["chain"].tobytes()
    assert "chain" in str(post.summary())
    with pytest.raises(ValueError, match="chain"):
        post.to_datatree()


def test_keys_of_data_are_text_or_whole_numbers(tmp_path):
    def simulate(rng, theta):
        return {0: rng.normal(theta, 1.0), 1: rng.normal(theta, 1.0, 2)}

    prior = od.Prior(theta=stats.norm(0, 1))
    observed = {0: 1.0, 1: [1.0, 2.0]}
    model = od.Model(prior, simulate, observed)
    post = od.rejection(model, od.uniform(2.0), draws=20, seed=1, store=tmp_path / "run.db", keep="all")
    assert post.cost.failed == 0 and od.load(tmp_path / "run.db").shape == (1, 20)
    summed = od.Model(
        prior, simulate, observed, summary=lambda y: [y[0], y[1].mean()], distance=lambda a, b: abs(a - b)[0]
    )
    assert od.rejection(summed, od.uniform(2.0), draws=20, seed=1).cost.failed == 0
    with pytest.raises(ValueError, match=r"observed has the key \(1, 2\)"):
        od.Model(prior, simulate, {(1, 2): 1.0})


def test_an_asynchronous_dask_client_is_refused():
    class Client:
        asynchronous = True

        def get_executor(self, pure):
            raise AssertionError

    with pytest.raises(ValueError, match="asynchronous"):
        od.rejection(PLAIN, od.uniform(1.0), draws=5, executor=Client())


def normal(rng, theta):
    return rng.normal(theta, 1.0)


PLAIN = od.Model(od.Prior(theta=stats.norm(0, 1)), normal, observed=2.0)
BATCHED = od.Model(od.Prior(theta=stats.norm(0, 1)), od.batched(normal), observed=2.0)


@pytest.mark.parametrize("model", [PLAIN, BATCHED], ids=["plain", "batched"])
@pytest.mark.parametrize(
    "arguments", [{"thin": 10**6}, {"pseudo_samples": 10**7}, {"chains": 20_000}], ids=["thin", "M", "chains"]
)
def test_time_ends_a_run_whose_single_steps_take_long(model, arguments):
    if model is BATCHED and "chains" in arguments:
        arguments = {"chains": 10**6}
    began = time.process_time()
    post = od.pseudo_marginal(model, od.uniform(1.0), draws=10**9, seed=1, max_seconds=0.1, **arguments)
    assert time.process_time() - began < 5
    assert post.status.reason == "max_seconds"


def test_time_ends_a_proposal_of_rejection_with_many_pseudo_samples():
    began = time.process_time()
    post = od.rejection(PLAIN, od.uniform(1.0), draws=5, pseudo_samples=10**7, seed=1, max_seconds=0.1)
    assert time.process_time() - began < 5
    assert post.status.reason == "max_seconds"


@pytest.mark.parametrize("model", [PLAIN, BATCHED], ids=["plain", "batched"])
def test_a_run_that_time_ends_between_kept_draws_goes_on_to_the_same_bytes(model, tmp_path):
    arguments = {"draws": 3, "chains": 2, "thin": 1501, "seed": 1}
    whole = od.pseudo_marginal(model, od.uniform(1.0), **arguments)
    given = {**arguments, "store": tmp_path / "run.db", "segment": 0.01}
    for looks in (1, 1, 2):
        with up_after(looks):
            post = od.pseudo_marginal(model, od.uniform(1.0), **given, max_seconds=LONG)
        assert post.status.reason == "max_seconds"
    assert 0 < post.cost.simulations < whole.cost.simulations
    post = od.pseudo_marginal(model, od.uniform(1.0), **given)
    assert post.status.complete
    assert post.draws["theta"].tobytes() == whole.draws["theta"].tobytes()
    assert post.cost.simulations == whole.cost.simulations
    assert post.acceptance_rate == whole.acceptance_rate


@pytest.mark.parametrize("function", ["rejection", "pseudo_marginal", "smc", "importance", "tolerance_for", "advise"])
def test_time_ends_the_pilot_of_a_distance(function):
    calls = []

    def slow(rng, theta):
        calls.append(1)
        time.sleep(0.02)
        return rng.normal(theta, 1.0, 2)

    model = od.Model(od.Prior(theta=stats.norm(0, 1)), slow, [2.0, 1.0], distance=od.scaled(pilot=1000))
    if function == "tolerance_for":
        with pytest.raises(TimeoutError, match="max_seconds"):
            call(function, model, budget=5000, max_seconds=0.2)
    else:
        found = call(function, model, budget=5000, max_seconds=0.2)
        assert "max_seconds" in (str(found) if function == "advise" else found.status.reason)
    assert len(calls) < 200  # four seconds


def test_fit_summary_says_that_there_was_no_time():
    with pytest.raises(TimeoutError, match="max_seconds"):
        od.fit_summary(PLAIN, budget=1000, max_seconds=1e-9, seed=1)


def test_a_step_costs_the_same_however_many_plain_chains_there_are():
    """A heap of idle blocks: sorting them for each piece of work made the price of a chain grow with their number."""
    from onedraw.run.blocks import Deadline, in_chain_blocks
    from onedraw.run.pool import InProcess

    def seconds(blocks: int) -> float:
        began = time.process_time()
        found = []
        item = lambda block, segment, last: (block, segment) if segment < 2 else None  # noqa: E731
        reason = in_chain_blocks(
            InProcess(), lambda one: one, blocks, item, lambda r, s: found.append(r), Deadline(None)
        )
        assert reason == "done" and found == [[(block, segment) for block in range(blocks)] for segment in range(2)]
        return time.process_time() - began

    few, many = (min(seconds(blocks) for _ in range(3)) for blocks in (1000, 16_000))
    assert many < 16 * 4 * few


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 12),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.complex_numbers(),
    st.lists(st.floats(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.sampled_from(
        [10**30, -(10**30), 10**400, 1e300, -1e300, math.nan, math.inf, object(), type, len, b"x", "1", "0.5"]
    ),
    st.sampled_from(
        [np.int64(3), np.float32(0.5), np.bool_(True), np.array(3), np.array([1, 2]), np.array("x"), np.nan]
    ),
    st.sampled_from([np.ma.masked, np.datetime64("NaT"), range(3), iter(()), set(), Ellipsis, stats.norm(0, 1), PRIOR]),
    st.sampled_from([od.uniform(0.5), od.random_walk(), od.Prior, "rejection", "draws", "all", lambda *given: given]),
)
CHAIN = ("draws", "chains", "proposal", "start", "budget", "thin", "early")
OPTIONS = ("seed", "on_error", "workers", "executor", "engine", "timeout", "segment", "progress", "store")
OPTIONS += ("max_seconds",)
FUNCTIONS = {
    "rejection": ("draws", "budget", "pseudo_samples", "keep"),
    "pseudo_marginal": (*CHAIN, "pseudo_samples", "keep", "layout", "estimator"),
    "wilkinson": CHAIN,
    "r_hit": (*CHAIN[:-1], "hits", "max_draws"),
    "smc": ("budget", "kernel", "particles", "pseudo_samples", "least_acceptance"),
    "importance": ("budget", "kernel", "pseudo_samples", "ess", "defensive", "proposal", "keep"),
    "infer": ("budget", "draws", "coverage", "bank"),
    "fit_summary": ("budget", "terms"),
    "tolerance_for": ("kernel", "pseudo_samples", "proposal", "chains", "budget", "precision"),
    "advise": (
        "estimator", "start", "budget", "proposal", "chains", "functions", "processors", "max_pseudo_samples", "early"
    ),
    "calibrate": ("method", "budget", "data_sets", "arguments", "shared", "ranks"),
    "compare": ("budget", "prior", "draws"),
}  # fmt: skip
SECOND = {
    **{name: {} for name in ("smc", "importance", "infer", "fit_summary", "compare")},
    "tolerance_for": {"acceptance_rate": 0.3},
    "calibrate": {"method": od.rejection, "data_sets": 20, "arguments": {"kernel": od.uniform(0.5)}, "budget": 50},
}
"""What a function takes besides the model; the others take a kernel."""
PARTS = {
    **{name: {"eps": 1.0} for name in ("uniform", "gaussian", "epanechnikov", "triangular", "laplace")},
    "kernel": {"log_profile": lambda u: -u, "eps": 1.0, "support": math.inf},
    "random_walk": {"cov": 1.0, "scale": 1.0},
    "lazy": {"proposal": None, "hold": 0.5},
    "independence": {"distribution": None},
    "scaled": {"pilot": 100, "scale": None, "adapt": False, "robust": False},
    "mahalanobis": {"pilot": 100},
    "job_array": {"folder": "run", "shards": 2, "wait": None},
    "Model": {
        "prior": PRIOR,
        "simulate": lambda rng, a, b: rng.normal(a),
        "observed": 1.0,
        "summary": None,
        "distance": None,
        "names": None,
        "replicates": None,
    },
    "euclidean": {},
    "vector": {"distribution": stats.norm(0, 1), "size": 3},
    "stages": {
        "first": len, "rest": len, "signal": None, "continuation": 0.5, "price": None, "floor": 0.1, "pilot": 50
    },
    "multifidelity": {
        "cheap": len, "expensive": len, "continuation": 0.5, "price": None, "floor": 0.1, "pilot": 50, "common": False
    },
    "bank_from_arrays": {"theta": {"a": [1.0, 2.0], "b": [1.0, 0.5]}, "x": [1.0, 2.0], "from_prior": False},
    "unbiased": {
        "function": lambda rng, theta: np.zeros(len(theta)),
        "prior": PRIOR,
        "log_bound": 0.0,
        "simulations": 1,
    },
    "batched": {"function": len},
    "staged": {"prepare": len, "draw": len},
    "compiled": {"function": len},
    "jax_simulator": {"function": len},
    "command": {
        "arguments": ["x"], "parse": "json", "environment": None, "folder": None, "timeout": None, "unused": "error",
        "persistent": False,
    },
    "particle_filter": {
        "prior": PRIOR,
        "initial": lambda rng, shape, a, b: np.zeros(shape),
        "transition": lambda rng, x, a, b: x,
        "log_observation": lambda y, x, a, b: np.zeros(x.shape),
        "data": [1.0, 2.0],
        "particles": 10,
        "on_error": "reject",
    },
    "Prior": {"a": stats.norm(0, 1), "where": None},
    "Prior.joint": {
        "names": ["a", "b"],
        "sample": lambda rng, n: rng.random((n, 2)),
        "logpdf": lambda theta: np.zeros(len(theta)),
        "discrete": (),
        "where": None,
    },
    "run.registry.sampler": {"shown": len, "kept": None},
}  # fmt: skip
FILES = {
    "load": {"path": None, "model": None},
    "resume": dict.fromkeys(
        ("path", "model", "kernel", "estimator", "proposal", "start", "draws", "budget", "force", "max_seconds",
         "workers", "executor", "segment", "progress", "bank")
    ),
    "replay": {"path": None, "failure": 0, "model": None},
    "reuse": {"path": None, "kernel": None, "observed": None, "model": None},
    "certificate": {"post": None, "discount": 1.0, "confidence": 0.95, "functions": None},
}  # fmt: skip
"""Functions that are given a run, and their arguments."""
METHODS = {
    "adjust": {"draws": 20, "seed": 1},
    "at": {"eps": 0.4},
    "efficiency": {"functions": None},
    "estimate": {"function": "a", "of": "mean"},
    "mcse": {"function": "a", "of": "mean"},
    "misfit": {"n": 20, "prior": 20, "checks": None, "seed": 1},
    "observed": {"data": 1.0, "draws": 20, "seed": 1},
    "over": {"eps": [0.3, 0.4], "functions": None, "probability": 0.9},
    "picked": {"n": 5, "seed": 1},
    "plot": {"what": "marginals"},
    "predict": {"n": 5, "seed": 1, "data": False},
    "report": {"path": "report.html", "predictive": 5, "checks": None},
    "resample": {"draws": 20, "seed": 1},
    "sample": {"n": 5, "seed": 1},
    "summary": {"hdi_prob": 0.9},
    "to_dataframe": {"weighted": False, "draws": 20, "seed": 1},
    "to_datatree": {"weighted": False, "draws": 20, "predictive": 5, "seed": 1},
}
"""Methods of posteriors."""
PLOTTED = {
    **dict.fromkeys(("marginals", "intervals", "corner", "pairs", "predictive", "predictive_band"), "accepted"),
    **dict.fromkeys(("traces", "ranks"), "chains"), **dict.fromkeys(("coverage", "rank_histogram"), "ranks"),
    "path": "smc", "alternatives": "inferred", "tolerances": "curve", "efficiency": "certificate", "save": "figure",
}  # fmt: skip
"""Functions of `od.plots`, and what each is tried with."""
VALUES = {"Posterior", "ShardsMissing", "SimulationError", "StoreError", "WorkerError", "plots"}
"""Public names that users take from a result, and do not call."""


def taken_by(function: str) -> set[str]:
    """The arguments of a public function, less those that belong to every run."""
    given = inspect.signature(operator.attrgetter(function)(od)).parameters
    return {name for name, one in given.items() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)} - {
        *OPTIONS,
        "model",
        "models",
    }


def test_every_argument_of_every_public_function_is_tried():
    tried = {
        **{name: {*FUNCTIONS[name], *SECOND.get(name, ["kernel"])} for name in FUNCTIONS}, **PARTS, **FILES,
        **{f"Posterior.{name}": {"self", *METHODS[name]} for name in METHODS},
    }  # fmt: skip
    methods = {name for name, one in vars(od.Posterior).items() if inspect.isfunction(one) and name[0] != "_"}
    assert methods - set(METHODS) == {"moves", "kernel_for_at", "model_for"}
    assert set(od.plots.__all__) == set(PLOTTED)
    assert set(od.__all__) - VALUES == {name for name in tried if "." not in name}
    for function, names in tried.items():
        assert taken_by(function) - {"marginals", "options"} <= set(names), function


REFUSALS = (ValueError, TypeError, od.StoreError)
OUTCOMES = (NoAnswer, TimeoutError, od.SimulationError)
"""What may happen after arguments were accepted: these say what to change."""


def names_of(path) -> tuple[str, ...]:
    """How a message may begin that names a file."""
    return path, repr(path), str(Path(path)), repr(str(Path(path)))


def refused(work, odd) -> str | None:
    """The message of a refusal, which must name an argument; None if there is none. Other errors are ours."""
    said = None
    try:
        work()
    except OUTCOMES:
        return None
    except REFUSALS as error:
        said = str(error)
    if said is not None and isinstance(odd.get("path"), str) and said.startswith(names_of(odd["path"])):
        return said
    if said is not None and any(isinstance(one, str) and repr(one) in said for one in odd.values()):
        return said
    assert said is None or any(re.search(rf"\b{re.escape(name)}\b", said) for name in odd), (odd, said)
    return said


def odd_arguments(data, names, most=2):
    chosen = data.draw(st.lists(st.sampled_from(sorted(names)), min_size=1, max_size=most, unique=True))
    return {name: data.draw(ODD) for name in chosen}


def safe(odd) -> bool:
    """Whether a call neither starts many processes nor writes files of odd names."""
    workers, text = odd.get("workers"), odd.get("store")
    return not (isinstance(workers, int) and workers > 1) and not isinstance(text, str)


def fuzz_samplers(data) -> None:
    """A call with odd arguments: an error that names one of them, before anything is simulated; or a result."""
    function = data.draw(st.sampled_from(sorted(FUNCTIONS)))
    odd = odd_arguments(data, (*FUNCTIONS[function], *OPTIONS, "models" if function == "compare" else "model"))
    if not safe(odd):
        return
    simulate = Counting()
    model = od.Model(PRIOR, simulate, observed=1.0)
    simulate.calls = 0
    base = {"budget": 1500, "max_seconds": 0.05, "progress": False, "seed": 1}
    first = {"models": {"one": model, "other": model}} if function == "compare" else {"model": model}
    given = {**first, **base, **SECOND.get(function, {"kernel": od.uniform(0.5)}), **odd}
    said = refused(lambda: getattr(od, function)(**given), odd)
    assert said is None or simulate.calls == 0, said


def fuzz_parts(data) -> None:
    """One part of a run made from an odd argument: an error that names it, or a part."""
    function = data.draw(st.sampled_from(sorted(PARTS)))
    if not PARTS[function]:
        return
    odd = odd_arguments(data, PARTS[function], most=1)
    make = operator.attrgetter(function)(od)
    refused(lambda: make(**{**PARTS[function], **odd}), odd)


def fuzz_files(data, file, post) -> None:
    """Something done with a run, with an odd argument: an error that names it, or a result."""
    function = data.draw(st.sampled_from(sorted(FILES)))
    odd = odd_arguments(data, FILES[function], most=1)
    if not safe(odd):
        return
    model = od.Model(PRIOR, beyond, observed=1.0)
    whole = {"path": file, "model": model, "kernel": od.uniform(0.5), "post": post}
    given = {
        name: whole.get(name, value) for name, value in FILES[function].items() if value is not None or name in whole
    }
    if function == "resume":
        given = {"path": file, "model": model, "max_seconds": 0.2}
    with contextlib.suppress(Beyond):
        refused(lambda: getattr(od, function)(**{**given, **odd}), odd)


def large(value) -> bool:
    """Whether a number of draws is allowed, and too many for the memory of a machine that runs tests."""
    return isinstance(value, int | float) and 10**6 < value <= arguments.MOST


def fuzz_methods(data, posts) -> None:
    """Something done with a posterior, with an odd argument: an error that names it, or a result."""
    function = data.draw(st.sampled_from(sorted(METHODS)))
    odd = odd_arguments(data, METHODS[function], most=1)
    if isinstance(odd.get("path"), str | bytes) or any(large(value) for value in odd.values()):
        return
    post = data.draw(st.sampled_from([post for post in posts if can(post, function)]))
    # The other data of `observed` are the model's observed data.
    named = {**odd, "observed": None} if function == "observed" else odd
    refused(lambda: getattr(post, function)(**{**METHODS[function], **odd}), named)


@cache
def can(post, function) -> bool:
    """Whether a posterior has what the method needs."""
    try:
        getattr(post, function)(**METHODS[function])
    except ValueError:
        return False
    return True


def fuzz_plots(data, whole) -> None:
    """A figure with an odd argument: an error that names it, or a figure."""
    function = data.draw(st.sampled_from(sorted(PLOTTED)))
    make = getattr(od.plots, function)
    names = list(inspect.signature(make).parameters)
    odd = odd_arguments(data, names, most=1)
    if large(odd.get("n")) or large(odd.get("most")) or large(odd.get("dpi")) or large(odd.get("bins")):
        return
    given = {names[0]: whole[PLOTTED[function]]}
    if function == "save":
        path = odd.pop("paths", "figure.svg")
        given, odd = {**given, **odd}, {**odd, "paths": None}
        refused(lambda: make(given["figure"], path, **{"dpi": given.get("dpi", 30)}), odd)
    else:
        refused(lambda: make(**{**given, **({"n": 5} if "n" in names else {}), **odd}), odd)


class Beyond(RuntimeError):
    """What the simulator raises at some parameters."""


def beyond(rng, a, b):
    if a > 1:
        raise Beyond
    return rng.normal(a, 0.1 + b)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The file of a run with failures, and a run of chains."""
    model = od.Model(PRIOR, beyond, observed=1.0)
    file = tmp_path_factory.mktemp("kept") / "run.db"
    od.rejection(model, od.uniform(0.5), budget=300, seed=1, keep="all", store=file)
    return file, od.pseudo_marginal(model, od.uniform(0.5), draws=200, chains=4, seed=1)


QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True, "database": None}
MANY = pytest.mark.slow


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("examples", [25, pytest.param(2000, marks=MANY)])
def test_odd_arguments_of_samplers(examples, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings(max_examples=examples, **QUIET)(given(st.data())(fuzz_samplers))()
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("examples", [200, pytest.param(5000, marks=MANY)])
def test_odd_arguments_of_parts(examples):
    settings(max_examples=examples, **QUIET)(given(st.data())(fuzz_parts))()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("examples", [100, pytest.param(2000, marks=MANY)])
def test_odd_arguments_of_files(examples, kept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file, post = kept
    before = file.read_bytes()

    @settings(max_examples=examples, **QUIET)
    @given(st.data())
    def fuzz(data):
        copy = tmp_path / "run.db"
        shutil.copy(file, copy)
        fuzz_files(data, copy, post)

    fuzz()
    assert file.read_bytes() == before and {one.name for one in tmp_path.iterdir()} <= {"run.db", "run.db.lock"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("examples", [25, pytest.param(3000, marks=MANY)])
def test_odd_arguments_of_posteriors(examples, tmp_path, monkeypatch, quick):
    monkeypatch.chdir(tmp_path)
    model = od.Model(PRIOR, lambda rng, a, b: rng.normal(a, 0.1 + b), observed=1.0)
    posts = [od.infer(model, budget=300, draws=100, seed=1, coverage=0)]
    posts += [od.rejection(model, od.uniform(0.5), budget=300, seed=1, keep="summaries")]
    posts += [od.pseudo_marginal(model, od.uniform(0.5), draws=50, chains=4, seed=1)]
    settings(max_examples=examples, **QUIET)(given(st.data())(lambda data: fuzz_methods(data, posts)))()
    assert {one.name for one in tmp_path.iterdir()} <= {"report.html"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("examples", [40, pytest.param(3000, marks=MANY)])
def test_odd_arguments_of_plots(examples, tmp_path, monkeypatch, quick):
    monkeypatch.chdir(tmp_path)
    model = od.Model(PRIOR, lambda rng, a, b: rng.normal(a, 0.1 + b, size=3), observed=[1.0, 2.0, 1.5])
    accepted = od.rejection(model, od.uniform(2.0), budget=500, seed=1)
    chains = od.pseudo_marginal(model, od.uniform(2.0), draws=500, chains=8, seed=1)
    whole = {
        "accepted": accepted, "chains": chains, "ranks": {"a": np.linspace(0.01, 0.99, 50)},
        "smc": od.smc(model, budget=600, seed=1), "inferred": od.infer(model, budget=100, draws=50, seed=1),
        "curve": accepted.over([2.0, 1.5]), "certificate": od.certificate(chains),
        "figure": od.plots.marginals(accepted),
    }  # fmt: skip
    settings(max_examples=examples, **QUIET)(given(st.data())(lambda data: fuzz_plots(data, whole)))()
    assert {one.name for one in tmp_path.iterdir()} <= {"figure.svg"}


@pytest.mark.filterwarnings("ignore")
def test_pages_need_the_name_of_a_file(quick):
    model = od.Model(PRIOR, lambda rng, a, b: rng.normal(a, 0.1 + b), observed=1.0)
    compared = od.compare({"one": model, "other": model}, budget=200, seed=1)
    measured = od.calibrate(
        model, method=od.rejection, data_sets=20, arguments={"kernel": od.uniform(2.0)}, budget=50, seed=1
    )
    for one in (compared, measured):
        for path in (3, None, b"page.html", ["page.html"]):
            with pytest.raises(ValueError, match="path must be the name of a file, got"):
                one.report(path)
    with pytest.raises(KeyError, match="there is no model"):
        compared[np.array([1, 2])]


@pytest.mark.parametrize(("number", "budget"), [(100, 300), (3, 5), (10**6, 300)])
def test_a_budget_of_less_than_one_estimate_per_chain_gives_no_draws(number, budget):
    post = od.pseudo_marginal(PLAIN, od.uniform(0.5), pseudo_samples=number, budget=budget, chains=4, seed=1)
    assert post.shape == (4, 0) and post.cost.simulations == 0 and "budget" in post.status.message
