"""The study end to end at reduced iterations: agreement with exact values, checkpoints, workers, figures and page."""

import csv
import itertools
import json
import re
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from markupsafe import escape

import onedraw.samplers.pseudo_marginal as algorithm_2
from onedraw.cli.studies import study as study_command
from onedraw.paper import tasks
from onedraw.paper.page import render, write_figures, write_page
from onedraw.paper.study import claims, figures, page, run, settings
from onedraw.proposals import independence as proposal
from tests.browser import CHROMIUM, needs_chromium

CURVES = settings.EFFICIENCY[2:]
"""Both proposals at the smaller eps, which is the cheaper one."""


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """One comparison of the kernels and the cheap variances: the others have tests of their own."""
    monkeypatch.setattr(run, "MATCHED_EPS", (0.25,))
    monkeypatch.setattr(run, "MATCHED_PSEUDO_SAMPLES", (1, 16))


def run_reduced(plan, out):
    """A study with one row of the third figure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "MATCHED_EPS", (0.25,))
        patch.setattr(run, "MATCHED_PSEUDO_SAMPLES", (1, 16))
        patch.setattr(run, "EFFICIENCY", CURVES)
        return run.run_study(plan, out, progress=False)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """Figure 1L at 60,000 iterations: the slow tests have five times as many, and figure 2L whole."""
    out = tmp_path_factory.mktemp("study")
    return run_reduced(run.StudyPlan(60_000, figures=("1L",)), out), out


@pytest.fixture(scope="module")
def reduced(simulated):
    """Figure 2L besides, which needs 300,000 iterations: its exact values stand for simulated ones."""
    study, out = simulated
    plan = run.StudyPlan(300_000, figures=("1L", "2L"))
    return replace(study, plan=plan, outcomes=(*study.outcomes, *exact_outcomes("2L"))), out


@pytest.fixture(scope="module")
def written(reduced):
    """index.html of the reduced study."""
    study, out = reduced
    return write_page(figures.panels_of(study), page.content_of(study), out)


def check_agreement(outcomes, points):
    """Within 4 standard errors (all right: 1 alarm in 250), chi-squared between its 1e-4 quantiles on both sides."""
    found = run.agreement(outcomes)
    assert found.points == points
    assert found.within_4 == points
    assert 1e-4 < found.p_above < 1 - 1e-4
    assert found.fine


def test_simulated_values_agree_with_exact_ones(simulated):
    """All of figure 1L, and of 2L the points that one pseudo-sample makes cheap."""
    study, _ = simulated
    plan = run.StudyPlan(300_000, figures=("2L",))
    cheap = [i for i, one in enumerate(settings.points()) if one.figure == "2L" and one.pseudo_samples == 1]
    check_agreement((*study.outcomes, *(run.run_point(plan, index) for index in cheap)), 39)
    for one in study.matched:
        assert abs(one.simulated - one.gaussian) < 4 * one.std_error


@pytest.mark.slow
def test_all_simulated_values_of_two_figures_agree_with_exact_ones(tmp_path):
    study = run_reduced(run.StudyPlan(300_000, figures=("1L", "2L")), tmp_path)
    check_agreement(study.outcomes, 63)
    for one in study.matched:
        assert abs(one.simulated - one.gaussian) < 4 * one.std_error
    wanted = [(point.figure, point.series, point.pseudo_samples) for point in settings.points(["1L", "2L"])]
    assert [one[:3] for one in study.outcomes] == wanted


def test_every_point_is_there_and_in_the_captions_order(simulated):
    study, out = simulated
    with (out / "study.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["figure", "series", "pseudo_samples", "simulated", "std_error", "exact"]
    wanted = [(point.figure, point.series, str(point.pseudo_samples)) for point in settings.points(["1L"])]
    assert [(row["figure"], row["series"], row["pseudo_samples"]) for row in rows] == wanted
    assert [float(row["simulated"]) for row in rows] == [one.simulated for one in study.outcomes]
    first = next(row for row in rows if row["series"] == "eps=0.25" and row["pseudo_samples"] == "64")
    assert float(first["exact"]) == pytest.approx(0.0058751, abs=5e-8)


def outcomes_of(indices):
    plan = run.StudyPlan(100_000, figures=("1L",))
    return [run.run_point(plan, index) for index in indices]


def old_estimate_forgotten(monkeypatch):
    """Algorithm 2 with T taken as 1 at every step instead of being carried."""
    real = algorithm_2.least_needed
    monkeypatch.setattr(
        algorithm_2,
        "least_needed",
        lambda state, *more: real(state._replace(log_estimate=np.zeros(len(state.theta))), *more),
    )


def q_ratio_dropped(monkeypatch):
    """The proposal's density left out of the ratio: only the prior's remains."""
    real = proposal.Independence.propose

    def propose(self, rng, theta, log_prior):
        there = real(self, rng, theta, log_prior)
        return there._replace(log_ratio=self.prior.logpdf(there.theta) - self.prior.logpdf(theta))

    monkeypatch.setattr(proposal.Independence, "propose", propose)


@pytest.mark.parametrize("break_it", [old_estimate_forgotten, q_ratio_dropped])
def test_a_broken_sampler_is_noticed(monkeypatch, break_it):
    indices = [1, 3, 5, 8]
    assert run.agreement(outcomes_of(indices)).fine
    break_it(monkeypatch)
    assert not run.agreement(outcomes_of(indices)).fine


@pytest.fixture
def short(monkeypatch):
    """A plan of 1L with few iterations, and the cheapest variances alone."""
    monkeypatch.setattr(run, "EFFICIENCY", CURVES[:1])
    return run.StudyPlan(2000, figures=("1L",))


def table_of(out):
    return (out / "study.csv").read_bytes()


def test_interrupted_and_continued_gives_the_same_bytes(tmp_path, short, monkeypatch):
    whole = run.run_study(short, tmp_path / "whole", progress=False)
    assert whole.picked_up == 0
    real, calls = run.run_point, []

    def interrupted(plan, index):
        calls.append(index)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(plan, index)

    monkeypatch.setattr(run, "run_point", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.run_study(short, tmp_path / "parts", progress=False)
    assert not (tmp_path / "parts" / "study.csv").exists()
    monkeypatch.setattr(run, "run_point", real)
    # A crash may leave half a line behind.
    with (tmp_path / "parts" / tasks.CHECKPOINT).open("a") as file:
        file.write('{"key": "point 7", "val')
    again = run.run_study(short, tmp_path / "parts", progress=False)
    assert again.picked_up == 5
    assert table_of(tmp_path / "parts") == table_of(tmp_path / "whole")
    for line in (tmp_path / "parts" / tasks.CHECKPOINT).read_text().splitlines():
        json.loads(line)


def test_finished_study_is_not_run_again(tmp_path, short, monkeypatch):
    run.run_study(short, tmp_path, progress=False)
    before = table_of(tmp_path)
    monkeypatch.setattr(run, "run_point", None)
    assert run.run_study(short, tmp_path, progress=False).picked_up == 37
    assert table_of(tmp_path) == before


@pytest.mark.slow
def test_workers_change_no_number(tmp_path, short):
    for workers in (1, 2):
        run.run_study(short, tmp_path / str(workers), workers=workers, progress=False)
    assert table_of(tmp_path / "1") == table_of(tmp_path / "2")


def test_points_of_another_study_are_not_mixed_in(tmp_path, short):
    tasks.finished(tmp_path, short.identity(), run.point_tasks(short))
    with pytest.raises(
        tasks.StudyError, match=r"another study \(2,000 iterations, uniform kernel, seed 1;.*another --out"
    ):
        tasks.finished(tmp_path, run.StudyPlan(3000, figures=("1L",)).identity(), [])


def test_too_few_iterations_are_refused():
    with pytest.raises(tasks.StudyError, match="1R needs at least 300,000 iterations"):
        run.StudyPlan(1000)
    with pytest.raises(tasks.StudyError, match="no figure '3'"):
        run.StudyPlan(figures=("3",))


def test_chains_times_steps_is_the_number_of_iterations():
    for iterations in (5_000_000, 1_000_000, 300_000, 2000):
        for count in settings.PSEUDO_SAMPLES:
            chains, steps = run.chains_and_steps(iterations, count)
            assert chains * steps == iterations
            chains, steps = run.chains_and_steps(iterations, count, "jax")
            assert iterations <= chains * steps < iterations + run.DEVICE_THIN * chains
            assert steps % run.DEVICE_THIN == 0
    chains, steps = run.chains_and_steps(1_000_003)
    assert 1_000_003 <= chains * steps < 1_000_003 + chains


def test_forecast_counts_what_is_left(short):
    every = [task.key for task in run.point_tasks(short)]
    assert run.forecast_seconds(short, 1, every) == pytest.approx(run.FIXED_SECONDS)
    assert run.forecast_seconds(run.StudyPlan(), 2) > run.forecast_seconds(short, 2)


# Claims


def test_claims_are_decided_by_their_numbers(reduced):
    study, _ = reduced
    found = {claim.short: claim for claim in claims.claims_of(study)}
    assert found["M > 1 accepts no more per pseudo-sample"].holds
    assert found["the benefit shrinks as y_obs grows"].holds
    assert not found["the benefit disappears at y_obs = 8"].holds
    assert "12.6 %" in found["the benefit disappears at y_obs = 8"].number
    assert not found["eps = 0.08 at y_obs = 2"].holds
    assert "0.019272" in found["eps = 0.08 at y_obs = 2"].number
    assert "1.66 %" in found["eps = 0.08 at y_obs = 2"].remark
    assert not found["eps = 7.64 at y_obs = 8"].holds
    assert "4.2494" in found["eps = 7.64 at y_obs = 8"].number
    assert "40 %" in found["eps = 7.64 at y_obs = 8"].remark
    assert found["Gaussian kernel has the same shape"].holds
    assert not found["Gaussian kernel indistinguishable at the same eps"].holds
    assert found["25.6 % and 2.0 % at M = 64"].holds


def exact_outcomes(figure):
    return [
        run.SimulatedPoint(point.figure, point.series, point.pseudo_samples, value, 0.01 * value, value, 1, 1.0)
        for point, value in run_exact(figure)
    ]


def run_exact(figure):
    from onedraw.paper.study.quadrature import exact_value

    return [(point, exact_value(point)) for point in settings.points([figure])]


def test_claims_of_the_other_figures():
    outcomes = (*exact_outcomes("1R"), *exact_outcomes("2R"))
    study = run.StudyResults(run.StudyPlan(figures=("1R", "2R")), outcomes, (), (), 1, 1.0, 0)
    found = {claim.short: claim for claim in claims.claims_of(study)}
    assert len(found) == 5 and all(claim.holds for claim in found.values())
    # The same with the lines turned round: the verdicts must not come out by themselves.
    upside_down = tuple(one._replace(exact=1 / one.exact, simulated=1 / one.simulated) for one in outcomes)
    turned = claims.claims_of(run.StudyResults(study.plan, upside_down, (), (), 1, 1.0, 0))
    assert [claim.short for claim in turned if claim.holds] == ["25.6 % and 2.0 % at M = 64"]


# Figures and page


def test_figures_are_written(reduced):
    study, out = reduced
    names = sorted(path.name for path in write_figures(figures.panels_of(study), out))
    assert names == sorted(f"figure{number}.{kind}" for number in (1, 2, 3) for kind in ("svg", "png"))
    for number in (1, 2, 3):
        assert (out / f"figure{number}.svg").read_text().lstrip().startswith("<?xml")
        assert (out / f"figure{number}.png").read_bytes()[1:4] == b"PNG"


def test_page_is_self_contained(reduced, written):
    study, _ = reduced
    text = written.read_text()
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', text) == []
    assert "<script" not in text and "@import" not in text
    assert text.count("<svg") == 1 + 1 + 3
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    for claim in claims.claims_of(study):
        assert ("reproduced" if claim.holds else "not reproduced") in text
        assert escape(claim.statement) in text
    for words in ("quadrature gives 0.019272", "quadrature gives 4.2494", "χ² =", "NumPy"):
        assert words in text


def test_page_escapes_text(reduced, monkeypatch):
    study, _ = reduced
    monkeypatch.setattr(page, "machine", lambda: {"processor": "<b>fast</b>"})
    assert "&lt;b&gt;fast" in render({}, page.content_of(study))


PROBE = """<script>
const boxes = [...document.querySelectorAll('.panel svg')].map(one => one.getBoundingClientRect());
document.body.dataset.probe = JSON.stringify({
  inner: window.innerWidth, scroll: document.documentElement.scrollWidth,
  widths: boxes.map(one => one.width), heights: boxes.map(one => one.height)});
</script></body>"""


def browse(page_path, profile, width, *more):
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", "--disable-component-update",
        "--disable-sync", f"--user-data-dir={profile}", "--enable-logging=stderr",
        "--hide-scrollbars", f"--window-size={width},3000", *more, page_path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


@needs_chromium
@pytest.mark.parametrize("width", [1280, 390])
def test_page_in_a_browser(written, tmp_path, width):
    from PIL import Image

    shot = tmp_path / "shot.png"
    browse(written, tmp_path / "profile", width, f"--screenshot={shot}")
    with Image.open(shot) as image:
        grey = np.asarray(image.convert("L"))
    assert grey.shape[1] == width
    assert 0.005 < np.mean(grey < 100) < 0.5  # ink on paper, neither blank nor black
    probed = tmp_path / "probed.html"
    probed.write_text(written.read_text().replace("</body>", PROBE))
    dom = browse(probed, tmp_path / "profile", width, "--dump-dom")
    found = json.loads(re.search(r'data-probe="([^"]*)"', dom).group(1).replace("&quot;", '"'))
    assert len(found["widths"]) == 5
    assert min(found["widths"]) >= 300 and min(found["heights"]) >= 200
    assert found["scroll"] <= found["inner"] <= max(width, 500)


# The command


def test_command_ends_with_a_summary(tmp_path, short):
    done = CliRunner().invoke(
        study_command, ["--figure", "1L", "--iterations", "2000", "--out", str(tmp_path), "--workers", "1"]
    )
    assert done.exit_code == 0, done.output
    assert "This will take about" in done.output
    assert re.search(r"35 simulated values against exact ones: \d+ within 2 standard errors, 35 within 4", done.output)
    assert "Chi-squared" in done.output and "claims" in done.output
    assert (tmp_path / "index.html").exists() and str(tmp_path / "index.html") in done.output
    again = CliRunner().invoke(
        study_command, ["--figure", "1L", "--iterations", "3000", "--out", str(tmp_path), "--workers", "1"]
    )
    assert again.exit_code == 1 and "another --out" in again.output


def test_command_refuses_two_numbers_of_iterations():
    done = CliRunner().invoke(study_command, ["--quick", "--iterations", "5"])
    assert done.exit_code == 2 and "not both" in done.output


def test_command_fails_where_values_do_not_agree(tmp_path, short, monkeypatch):
    real = run.run_point

    def wrong(plan, index):
        one = real(plan, index)
        return one._replace(simulated=one.simulated * 1.5)

    monkeypatch.setattr(run, "run_point", wrong)
    done = CliRunner().invoke(
        study_command, ["--figure", "1L", "--iterations", "5000", "--out", str(tmp_path), "--workers", "1"]
    )
    assert done.exit_code == 1 and "do not agree" in done.output


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["numba", "jax"])
def test_other_engines_agree_with_the_exact_values(engine):
    """Three points of figure 1L; the seed is the same, and the numbers are the engine's own."""
    plan = run.StudyPlan(60_000, figures=("1L",), engine=engine)
    outcomes = [run.run_point(plan, index) for index in (0, 2, 7)]
    assert all(abs(one.z) < 4 for one in outcomes), outcomes
    numpy = run.run_point(run.StudyPlan(60_000, figures=("1L",)), 0)
    assert outcomes[0].simulated != numpy.simulated
    assert outcomes[0].std_error == pytest.approx(numpy.std_error, rel=0.3)
    assert plan.identity() != run.StudyPlan(60_000, figures=("1L",)).identity()


@pytest.mark.parametrize("workers", [2, 5])
def test_each_program_is_compiled_by_one_process(workers, monkeypatch):
    """Tasks that share their programs are done by one process if they take no time once these are compiled."""
    monkeypatch.setattr(tasks, "time", SimpleNamespace(monotonic=lambda: 0.0))
    seen = []

    def work(name):
        seen.append((threading.get_ident(), name))
        return name

    todo = [tasks.Task(f"{name} {k}", work, (name,), None, (name,)) for k in range(6) for name in range(3)]
    with ExitStack() as opened:
        pools = [opened.enter_context(ThreadPoolExecutor(1)) for _ in range(workers)]
        found = list(tasks._shared_out(todo, pools))
    assert sorted(task.key for task, _ in found) == sorted(task.key for task in todo)
    assert all(result == task.arguments[0] for task, result in found)
    assert len(set(seen)) == 3 and len({thread for thread, _ in seen}) == min(workers, 3)


def test_idle_processes_join_tasks_that_take_longer_than_compiling(monkeypatch):
    monkeypatch.setattr(tasks, "time", SimpleNamespace(monotonic=itertools.count().__next__))
    started = threading.Barrier(2, timeout=20)
    seen = []

    def work(k):
        seen.append(threading.get_ident())
        # From the third on, tasks can only end in pairs.
        if k >= 2:
            started.wait()

    with ExitStack() as opened:
        pools = [opened.enter_context(ThreadPoolExecutor(1)) for _ in range(2)]
        list(tasks._shared_out([tasks.Task(str(k), work, (k,)) for k in range(6)], pools))
    assert len(seen) == 6 and len(set(seen)) == 2


@pytest.mark.slow
def test_a_study_on_a_device_is_shared_by_processes_and_kept(tmp_path, monkeypatch):
    """The same numbers by two processes and by this one; what is there is used again, by the same engine only."""
    monkeypatch.setattr(run, "MATCHED_EPS", ())
    monkeypatch.setattr(run, "EFFICIENCY", CURVES[:1])
    monkeypatch.setattr(run, "points", lambda: settings.points()[:2])
    plan = run.StudyPlan(200_000, figures=("1L",), engine="jax")
    first = run.run_study(plan, tmp_path, workers=2, progress=False)
    assert [one.pseudo_samples for one in first.outcomes] == [1, 2]
    alone = run.run_study(plan, tmp_path / "alone", progress=False)
    assert [one._replace(seconds=0) for one in alone.outcomes] == [one._replace(seconds=0) for one in first.outcomes]
    assert run.run_study(plan, tmp_path, progress=False).picked_up == 2
    with pytest.raises(tasks.StudyError, match="another study"):
        run.run_study(run.StudyPlan(200_000, figures=("1L",)), tmp_path, progress=False)
