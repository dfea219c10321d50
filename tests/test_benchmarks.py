"""The benchmarks' own answers: likelihoods that belong to their simulators, posteriors computed twice, small runs."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import integrate, stats

import onedraw as od
from benchmarks import (
    accuracy,
    alarms,
    budgets,
    calibration,
    choices,
    compare,
    coverage,
    growth,
    known,
    peers,
    references,
)
from benchmarks.sbibm import FURTHER, TASKS, task
from onedraw.cli.export import FIRST_MODEL
from tests.marks import long_in_slow_tests


@pytest.mark.parametrize("name", long_in_slow_tests(known.PROBLEMS, "seir"))
def test_the_likelihood_of_a_known_model_is_its_simulators(name):
    # E[p(s | theta') / p(s | theta)] = 1 for s simulated at theta; likewise with the ratio times any statistic of s.
    problem, at, n = known.PROBLEMS[name], known.moments(name), 20_000
    there, here = (np.tile(at.mean + shift * at.sd, (n, 1)) for shift in (0.3 / np.sqrt(at.mean.size), 0.0))
    first, second = np.random.default_rng(1), np.random.default_rng(2)
    rows = problem.simulate(first, **problem.prior.columns(here))
    ratio = np.exp(problem.log_likelihood(there, rows) - problem.log_likelihood(here, rows))
    assert abs(ratio.mean() - 1) < 5 * ratio.std() / np.sqrt(n)
    scaled, moved = (np.arctan((one - rows.mean(axis=0)) / rows.std(axis=0))
                     for one in (rows, problem.simulate(second, **problem.prior.columns(there))))  # fmt: skip
    weighted = ratio[:, None] * scaled
    error = np.sqrt((weighted.var(axis=0) + moved.var(axis=0)) / n)
    assert (np.abs(weighted.mean(axis=0) - moved.mean(axis=0)) < 5 * error).all()


def metropolis(problem, at, chains=400, steps=1200, seed=3):
    """Moments by random walks from around the mean, their errors from the differences between chains."""
    rng, size = np.random.default_rng(seed), 1.2 / np.sqrt(at.mean.size) * at.sd
    theta = at.mean + 0.1 * at.sd * rng.standard_normal((chains, at.mean.size))
    value, sums = known.log_posterior(problem, theta), []
    for step in range(steps):
        proposed = theta + size * rng.standard_normal(theta.shape)
        there = known.log_posterior(problem, proposed)
        accept = np.log(rng.random(chains)) < there - value
        theta, value = np.where(accept[:, None], proposed, theta), np.where(accept, there, value)
        if step >= steps // 3:
            sums.append(theta)
    kept = np.stack(sums)
    mean, sd = kept.mean(axis=(0, 1)), kept.std(axis=(0, 1))
    square = ((kept - mean) ** 2).mean(axis=0)
    errors = kept.mean(axis=0).std(axis=0), square.std(axis=0) / (2 * sd)
    return known.Moments(mean, sd, *(error / np.sqrt(chains) for error in errors))


@pytest.mark.parametrize("name", long_in_slow_tests(known.PROBLEMS, "g-and-k", "seir"))
def test_known_posteriors_agree_with_a_second_computation(name):
    problem, stored = known.PROBLEMS[name], known.moments(name)
    again = metropolis(problem, stored) if problem.solve else known.sampled(problem, 60_000, 10, seed=2)
    mean_error, sd_error = np.hypot(again.mean_error, stored.mean_error), np.hypot(again.sd_error, stored.sd_error)
    assert (np.abs(again.mean - stored.mean) < 5 * mean_error).all()
    assert (np.abs(again.sd - stored.sd) < 5 * sd_error).all()
    assert (np.append(again.mean_error, again.sd_error) < 0.03 * np.tile(stored.sd, 2)).all()
    assert (np.append(stored.mean_error, stored.sd_error) < 0.005 * np.tile(stored.sd, 2)).all()


def test_the_template_is_what_onedraw_new_writes():
    written = {}
    exec(FIRST_MODEL, written)
    problem, theta = known.PROBLEMS["template"], np.array([[1.0, 2.0], [-3.0, 0.5]])
    assert written["model"].observed_row == pytest.approx(problem.observed, abs=1e-7)
    assert written["prior"].logpdf(theta) == pytest.approx(problem.prior.logpdf(theta))
    data = written["simulate"](np.random.default_rng(1), 1.0, 2.0)
    row = problem.simulate(np.random.default_rng(1), np.array([1.0]), np.array([2.0]))[0]
    assert list(written["summary"](data).values()) == pytest.approx(row)


# What the benchmarks conclude


def test_a_rise_has_the_p_value_of_its_exchanges():
    low, high = np.array([1.0, 2.0, 3.0, 4.0]), np.array([5.0, 6.0, 7.0, 8.0])
    assert budgets.rise(low, high) == pytest.approx(1 / 70)
    assert budgets.rise(high, low) == 1.0
    assert budgets.rise(low, low) > 0.5


def test_what_runs_say_of_larger_budgets_is_read():
    today = (
        "Ten times the budget would lower the tolerance from 2.21 to about 0.52 for the same number of draws, or give "
        "ten times the draws."
    )
    assert budgets.claims(today, 300, 14.0) == [("draws", 3000, 140.0), ("tolerance", 3000, 0.52)]
    other = "For 400 effective draws: some 28,000 simulations."
    assert budgets.claims(other, 1000, 30.0) == [("draws", 28_000.0, 400.0)]
    assert budgets.claims("Ten times the budget would give about 1,300 effective draws.", 100, 5.0)[0].value == 1300
    assert budgets.claims("Tolerance: 2.211. Effective sample size: about 14.", 300, 14.0) == []


def test_what_happened_lies_between_the_budgets_tried():
    def run(budget, ess):
        return budgets.Score("toy", budget, 1, [0.0], [0.0], [True], ess, 0.0, [f"Tolerance: {10 / budget}."])

    scores = {100: [run(100, 10.0)], 10_000: [run(10_000, 1000.0)]}
    assert budgets.happened(budgets.Claim("draws", 1000, 200.0), scores) == pytest.approx(100.0)
    assert budgets.happened(budgets.Claim("tolerance", 1000, 0.01), scores) == pytest.approx(0.01)
    assert budgets.happened(budgets.Claim("draws", 20_000, 200.0), scores) is None


def test_uniform_ranks_are_told_from_others():
    rng = np.random.default_rng(1)
    even = rng.random((500, 2))
    narrow = np.column_stack([even[:, 0], rng.beta(0.5, 0.5, 500)])
    assert coverage.uniformity(even)[1] > 0.05
    assert coverage.uniformity(narrow)[1] < 1e-6
    assert coverage.covered(even, 0.9) == pytest.approx(0.9, abs=5 * np.sqrt(0.09 / 1000))
    assert coverage.covered(np.array([[0.04], [0.05], [0.5], [0.95], [0.96]]), 0.9) == pytest.approx(0.6)


@pytest.mark.parametrize("name", coverage.MODELS)
def test_models_of_the_coverage_simulate_finite_rows(name):
    prior, simulate = coverage.MODELS[name]
    rng = np.random.default_rng(1)
    rows = simulate(rng, **prior.columns(prior.sample(rng, 2000)))
    assert len(rows) == 2000
    assert np.isfinite(rows).all()


def test_scores_are_held_against_targets_and_published_abc():
    nothing = dict.fromkeys(accuracy.PUBLISHED, np.nan)
    assert set(accuracy.TARGETS) == {*TASKS, *FURTHER}
    good, bad = {"infer network": 0.55, "infer trees": 0.57}, {"infer network": 0.57, "infer trees": 0.61}
    assert accuracy.shortfalls("sir", 1000, good, nothing) == []
    assert accuracy.shortfalls("sir", 1000, bad, nothing) == ["network 0.570, wanted 0.56", "trees 0.610, wanted 0.600"]
    assert accuracy.shortfalls("sir", 1000, {"infer trees": 0.61}, nothing) == ["trees 0.610, wanted 0.590"]
    assert accuracy.shortfalls("sir", 5000, bad, nothing) == []
    there = nothing | {"REJ-ABC": 0.6, "SMC-ABC": 0.5}
    assert accuracy.shortfalls("sir", 5000, bad, there) == ["network above published ABC", "trees above published ABC"]


@pytest.mark.parametrize("name", long_in_slow_tests(FURTHER, "bernoulli_glm"))
def test_reference_posteriors_agree_with_a_second_computation(name):
    this = task(name)
    first, second = this.reference(1), references.SECOND[name](this.observed(1), np.random.default_rng(7))
    mean, spread, p = references.differences(first, second)
    assert max(mean, spread) < references.LARGEST
    assert p > references.LEAST_P
    assert references.differences(first, second + 0.1 * second.std(axis=0))[0] > references.LARGEST


def test_warnings_are_counted_by_name(capsys):
    assert alarms.given(alarms.apart(1), 0) == {"R-hat", "Effective draws"}
    right = alarms.Task("", "rejection, 300 draws, 50 normals", 0)
    wrong = alarms.Task("Misfit", "8 % outliers at 7 sd that no summary shows, rejection", 0)
    lines = [alarms.one_run(one) for one in (right, right._replace(number=1), wrong, wrong._replace(number=1))]
    assert alarms.false_alarms(lines) == {right.kind: (2, {})}
    assert alarms.powers(lines)["Misfit"] == [(f"{wrong.kind} (2 runs)", 1.0)]
    assert 0.8 < alarms.narrow_power() < 1.0
    # Twelve of 100 runs are more than 5 % and its error.
    often, rarely = (alarms.Counted(100, {"Misfit": number}) for number in (12, 7))
    assert (
        alarms.concluded({"x": rarely}, {"Misfit": [("y", 0.9)]}) and "| Misfit | 7 of 100 |" in capsys.readouterr().out
    )
    assert not alarms.concluded({"x": rarely, "z": often}, {"Misfit": [("y", 0.9)]})
    # Runs with something wrong alone.
    assert alarms.concluded({}, {"Misfit": [("y", 0.9)]})
    assert not alarms.concluded({"x": rarely}, {"Misfit": [("y", 0.7)]})


# Stated Monte Carlo errors


def test_answers_are_those_of_closed_forms():
    assert calibration.answers("counts", od.uniform(0.5)) == pytest.approx(_of(stats.gamma(6, scale=5 / 6), 6.0))
    edge = stats.truncnorm(0.7, 3.7, -0.7, 1.0)
    assert calibration.answers("corner", None) == pytest.approx(_of(edge, 1.0), rel=2e-4)
    # A Gaussian kernel adds eps² to the variance of the noise, and normal priors stay normal.
    matrix, noise = np.array([[1.0, 1.0], [0.5, -0.5]]), 0.6**2 + 0.4**2
    covariance = np.linalg.inv(np.eye(2) + matrix.T @ matrix / noise)
    mean = covariance @ matrix.T @ [1.2, 0.4] / noise
    normal = stats.norm(mean[0], math.sqrt(covariance[0, 0]))
    assert calibration.answers("plane", od.gaussian(0.4)) == pytest.approx(_of(normal, 1.0), rel=5e-4)


@pytest.mark.parametrize("name", ["two modes", "skewed"])
def test_answers_are_those_of_quadrature(name):
    problem = calibration.PROBLEMS[name]
    (low, high), (y,), eps = problem.ends[0], problem.observed, problem.eps

    def density(theta):
        law = stats.norm(theta**2, 0.5) if name == "two modes" else stats.gamma(3.0, scale=1 / theta)
        return float(np.exp(problem.prior.logpdf(np.array([[theta]])))[0] * (law.cdf(y + eps) - law.cdf(y - eps)))

    def integral(f, begin=low):
        return integrate.quad(lambda theta: f(theta) * density(theta), begin, high, limit=200)[0]

    total = integral(lambda theta: 1.0)
    mean = integral(lambda theta: theta) / total
    found = calibration.answers(name, od.uniform(eps))
    assert found.mean == pytest.approx(mean, rel=1e-4)
    assert found.sd == pytest.approx(math.sqrt(integral(lambda theta: (theta - mean) ** 2) / total), rel=1e-4)
    assert found.above == pytest.approx(integral(lambda theta: 1.0, problem.above) / total, rel=1e-4)
    assert integral(lambda theta: 1.0, found.upper) / total == pytest.approx(0.1, rel=1e-3)


def _of(law, above):
    return calibration.Answers(law.mean(), law.std(), law.ppf(0.9), law.sf(above))


def test_errors_that_are_right_too_small_or_too_large_are_told_apart():
    z = np.random.default_rng(1).standard_normal(200)
    assert calibration.right(calibration.calibrated(z))
    assert not calibration.right(calibration.calibrated(1.6 * z))
    assert not calibration.right(calibration.calibrated(0.6 * z))
    with_unknown = calibration.calibrated(np.append(z, np.nan))
    assert (with_unknown.runs, with_unknown.known) == (201, 200)
    assert with_unknown.rms == pytest.approx(math.sqrt(np.mean(z**2)))


def test_runs_of_the_calibration_continue_and_do_not_depend_on_the_processes(tmp_path):
    file = tmp_path / "runs.jsonl"
    asked = ["--only", "rejection, 300", "counts", "--out", str(file)]
    calibration.main(["--runs", "1", *asked])
    calibration.main(["--runs", "3", "--jobs", "2", *asked])
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted(line["seed"] for line in lines) == [0, 1, 2]
    for line in lines:
        assert line["z"] == calibration.one_run(calibration.Task("rejection, 300 draws", "counts", line["seed"]))["z"]


@pytest.mark.parametrize("case", [case for case in calibration.CASES if not case.startswith("infer")])
def test_every_case_of_the_calibration_runs(case):
    found = calibration.one_run(calibration.Task(case, "two modes", 1))
    assert not found["reasons"] and all(abs(z) < 5 for z in found["z"].values())


def test_a_share_of_the_alarms_is_selected():
    assert len(alarms.selected(0.001, None)) == 2 * (len(alarms.WELL) + sum(map(len, alarms.POWER.values())))
    some = alarms.selected(1.0, ["R-hat"])
    assert {(one.warning, one.kind) for one in some} == {("R-hat", "two modes, chains that stay in one")}
    assert len(some) == len(set(some)) == 20


def test_the_score_of_a_package_beside_others():
    """In exact standard deviations, over parameters and seeds; what it cost is the median."""
    exact = known.moments("ricker")
    runs = [
        {"mean": (exact.mean + away * exact.sd).tolist(), "sd": (np.exp(wide) * exact.sd).tolist(),
         "simulations": 1000, "seconds": seconds, "version": "1"}
        for away, wide, seconds in ((3.0, 0.1, 1.0), (-4.0, -0.1, 3.0), (0.0, 0.1, 2.0))
    ]  # fmt: skip
    found = peers.score("ricker", runs)
    assert np.allclose(found[:2], (np.sqrt(25 / 3), 0.1)) and found[2:] == (1000.0, 2.0, "1")
    assert peers.line("mine", "ricker", 1000, found).split() == [
        "mine", "(1)", "ricker", "1,000", "2.89", "0.10", "1,000", "2.0", "s"
    ]  # fmt: skip


def test_a_package_that_is_not_there_is_named(monkeypatch, capsys):
    monkeypatch.delenv("ONEDRAW_PEERS", raising=False)
    monkeypatch.setattr(peers, "PACKAGES", {"no_such_package": "Nothing"})
    assert peers.main() and "no_such_package is not installed here" in capsys.readouterr().out


def test_simulators_for_other_packages_need_none_of_ours():
    code = "import sys, benchmarks.simulators; print('onedraw' in sys.modules)"
    root = known.FILE.parent.parent
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "False"


def test_exponents_of_growth_are_fitted_and_shown(tmp_path, monkeypatch):
    linear, quadratic = growth.Grown([1.0, 10.0], [1.0, 1.0], 1.0, 0.0), [4.0, 16.0, 64.0]
    assert growth.exponent([2, 4, 8], quadratic) == pytest.approx(2.0)
    page = tmp_path / "page.md"
    page.write_text(f"before\n{growth.BEGIN}\nold\n{growth.END}\nafter\n")
    monkeypatch.setattr(growth, "PAGE", page)
    monkeypatch.setattr(growth, "FIGURE", tmp_path / "img" / "growth.png")
    growth.write({"M": linear})
    text = page.read_text()
    assert text.startswith("before") and text.endswith("after\n") and "old" not in text
    assert "| M |" in text and "| 1.00 | 0.00 |" in text and (tmp_path / "img" / "growth.png").exists()


@pytest.mark.parametrize("what", ["simulations", "chains", "parameters", "summaries", "M"])
def test_every_growing_run_can_be_made_small(what):
    (case,) = (one for one in growth.CASES if one.what == what)
    assert growth.seconds_of(case, case.sizes[0], 1) > 0 and growth.megabytes_of(case.run, case.sizes[0]) > 0


@pytest.mark.parametrize(("name", "n"), [("normal", 400), ("counts", 2000), ("regression", 2000), ("nested", 400)])
def test_exact_evidences_of_models_belong_to_their_simulators(name, n):
    """Over data of the last model, which is the widest, the evidence of another over its own has the mean 1."""
    problem, rng = choices.PROBLEMS[name], np.random.default_rng(4)
    last = list(problem.priors)[-1]
    theta = problem.priors[last].columns(problem.priors[last].sample(rng, n))
    rows = np.asarray(problem.simulators[last](rng, **theta), dtype=float).reshape(n, -1)
    logs = np.array([problem.log_evidence(row) for row in rows])
    ratio = np.exp(logs[:, :-1] - logs[:, -1:])
    assert np.all(np.abs(ratio.mean(axis=0) - 1) < 4.5 * ratio.std(axis=0) / math.sqrt(n))


@pytest.mark.parametrize("name", ["regression", "nested"])
def test_intervals_of_local_routes_hold_as_often_as_they_say(name):
    """At 60 data sets: so few hold, or errors are so far from those stated, with a probability of 1e-3 at most."""
    every = [one for seed in range(400, 460) for one in compare.local_run(name, seed)]
    for route in ("acceptance ratio", "classifier"):
        some = [one for one in every if one.route == route]
        assert len(some) > 50 and sum(one.held for one in some) >= stats.binom.ppf(1e-3, len(some), 0.9)
        # The acceptance ratio allows for a bias that may not be there.
        assert math.sqrt(np.mean([one.z**2 for one in some])) > 0.5


def test_repetitions_of_comparisons_continue_in_their_file(tmp_path, monkeypatch):
    made = []

    def run(name, seed, budget):
        made.append((name, seed))
        return compare.Repetition(name, seed, budget, "classifier", 0.5, 0.4, 0.3, 0.45 + 0.1 * seed, -1.0, False)

    monkeypatch.setattr(compare, "run", run)
    some = ["normal", "rare"], range(2), 500, tmp_path / "runs.jsonl"
    first = compare.repetitions(*some)
    assert compare.repetitions(*some) == first and len(made) == 4
    assert compare.repetitions(["normal"], range(3), 500, some[3])[:2] == first[::2] and len(made) == 5
    share, error, of_z = compare.told(first)
    assert share == 0.5 and error == pytest.approx(0.25) and of_z == "; z: mean -1.00, rms 1.00"
