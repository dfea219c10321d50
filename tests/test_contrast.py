"""The contrast at a small budget: each line has its shape, by intervals, and loses it when T is drawn again."""

import json
import math
from dataclasses import replace

import click.testing
import numpy as np
import pytest
from scipy import stats

from onedraw.cli.main import main
from onedraw.engines.streams import Rng
from onedraw.estimators.protocol import evaluate
from onedraw.paper.contrast import figure, page, problems, run
from onedraw.paper.contrast.problems import line_of
from onedraw.paper.contrast.run import (
    Contrast,
    ContrastPlan,
    longest_stall,
    measure,
    run_filter,
    run_process,
    run_tails,
)
from onedraw.paper.contrast.shapes import ratio, shapes_of
from onedraw.paper.page import arranged, render
from onedraw.paper.study.efficiency import independence_variance, posterior_moments
from onedraw.paper.study.settings import Toy
from onedraw.paper.tasks import StudyError
from onedraw.report.style import svg_of
from onedraw.samplers.pseudo_marginal import PseudoMarginal


def points(key, numbers, share):
    plan = ContrastPlan(share=share, lines=(key,))
    return tuple(measure(plan, key, number) for number in numbers)


def shape(*lines):
    (only,) = shapes_of(Contrast(ContrastPlan(), tuple(point for line in lines for point in line), 1, 0.0))
    return only


def filters(monkeypatch, steps=6000):
    """Particle MCMC on 25 observations with less noise, whose best number of particles is that of 100 with more."""
    monkeypatch.setattr(problems, "NOISE", 1.0)
    line = replace(line_of("filter-100"), times=25, chains=64)
    return tuple(run_filter(line, number, 64 * 25 * steps, 1) for number in (1, 16, 256))


def stalls(budget=200_000):
    fixed = [run_tails(line_of("tails"), number, budget, 2) for number in (1, 4, 16)]
    return fixed, [run_tails(line_of("hits"), 1, budget, 2)]


@pytest.fixture
def redrawn(monkeypatch):
    """Algorithm 2 broken: the estimate of the current state is drawn anew at every step."""
    step = PseudoMarginal.step

    def with_fresh_estimate(self, rng, state):
        other = Rng(rng.seed ^ 1, rng.phase, rng.first, rng.step)
        fresh = evaluate(self.estimator, other, state.theta, None).log_estimate
        return step(self, rng, state._replace(log_estimate=fresh))

    monkeypatch.setattr(PseudoMarginal, "step", with_fresh_estimate)


# The shapes


@pytest.fixture(scope="module")
def toy_line():
    return points("toy", line_of("toy").counts, 0.05)


def test_the_toy_is_flat_or_falls(toy_line):
    found = shape(toy_line)
    assert found.holds, found.number


def test_the_toy_has_its_exact_efficiency(toy_line):
    v = posterior_moments(Toy(), run.TOY_EPS).sd ** 2
    for point in toy_line[:5]:
        exact = v / (independence_variance(Toy(), run.TOY_EPS, point.number) * point.number)
        assert point.cost.value == point.number
        assert abs(math.log(point.efficiency.value / exact)) < 4 * point.efficiency.se / point.efficiency.value


@pytest.mark.slow
def test_g_and_k_is_flat_or_falls():
    found = shape(points("g-and-k", (1, 4, 64), 0.1))
    assert found.holds, found.number


@pytest.mark.slow
def test_a_shared_set_up_makes_it_rise_and_fall():
    budgets = {1: 10_000, 16: 10_000, 1024: 10_000}
    line = tuple(run_process(line_of("process"), number, budgets[number], 1, starts=64) for number in budgets)
    found = shape(line)
    assert found.holds, found.number
    # In simulations, which do not see the set-up, the same chains only fall.
    ratios = [point.kappa.value * point.number for point in line]
    assert ratios[0] < ratios[1] < ratios[2]


@pytest.mark.slow
def test_particle_mcmc_rises_by_an_order_of_magnitude_and_falls(monkeypatch):
    found = shape(filters(monkeypatch))
    assert found.holds, found.number


@pytest.mark.slow
def test_r_hit_does_not_stall_where_fixed_m_does():
    fixed, hits = stalls()
    found = shape(fixed, hits)
    assert found.holds, found.number
    assert fixed[0].stall.value > 20 * hits[0].stall.value


@pytest.mark.slow
def test_particle_mcmc_loses_its_shape_when_t_is_redrawn(monkeypatch, redrawn):
    """One particle then moves as freely as many, and there is no rise: not even its upper limit is near."""
    few, many, _ = filters(monkeypatch, steps=600)
    assert few.resolved
    assert ratio(many, few).high < 2
    assert not shape((few, many)).holds


# The parts


def test_kalman_is_the_joint_normal():
    times, mu = 30, 0.7
    gap = np.abs(np.subtract.outer(np.arange(times), np.arange(times)))
    cov = problems.MEMORY**gap + problems.NOISE**2 * np.eye(times)
    exact = stats.multivariate_normal(np.full(times, mu), cov).logpdf(problems.series(times))
    assert problems.kalman(times, mu)[0] == pytest.approx(exact, rel=1e-12)


def test_the_filter_estimates_what_kalman_computes():
    """10,000 filters: the mean of the estimate is the likelihood, the mean of its log is not."""
    theta = np.full((10_000, 1), -0.5)
    log_estimate = problems.state_space(50, 64).evaluate(Rng(1, 1), theta, None).log_estimate
    log_ratio = log_estimate - problems.kalman(50, -0.5)[0]
    value = np.exp(log_ratio)
    error = value.std(ddof=1) / 100
    assert error < 0.01
    assert abs(value.mean() - 1) < 4 * error
    assert log_ratio.mean() < -8 * log_ratio.std() / 100


def test_octiles_of_a_known_row():
    row = np.arange(problems.OBSERVATIONS, dtype=float)[None]
    assert problems.octiles(row)[0] == pytest.approx([24, 24, 0, 1])


def test_the_longest_stall_and_its_range():
    rows = np.array([[0, 0, 0, 1, 2, 2], [5, 5, 5, 5, 5, 5], [1, 2, 3, 4, 5, 6.0]])
    assert longest_stall(rows) == (6.0, pytest.approx(math.nan, nan_ok=True), 1.0, 6.0)


def test_ratios_to_points_that_are_only_bounded(toy_line):
    first, second = toy_line[:2]
    stuck = first._replace(reason="too short", efficiency=first.efficiency._replace(value=math.nan, low=0.0))
    assert ratio(second, stuck).low == second.efficiency.low / stuck.efficiency.high
    assert ratio(second, stuck).high == math.inf
    assert ratio(second, first).value == pytest.approx(second.efficiency.value / first.efficiency.value)


def test_the_same_seed_gives_the_same_points(toy_line):
    again = points("toy", (4,), 0.05)[0]
    assert again._replace(seconds=0.0) == toy_line[2]._replace(seconds=0.0)


def test_the_command_writes_everything(tmp_path, monkeypatch, toy_line):
    """With the points of one line at hand: numbers, figure and page."""
    known = {point.number: point for point in toy_line}
    monkeypatch.setattr(run, "LINES", (line_of("toy"),))
    monkeypatch.setattr(run, "measure", lambda plan, key, number: known[number])
    result = click.testing.CliRunner().invoke(
        main, ["contrast", "--quick", "--out", str(tmp_path), "--workers", "1", "--json"]
    )
    assert result.exit_code == 0, result.output
    numbers = json.loads((tmp_path / "contrast.json").read_text())
    assert [point["number"] for point in numbers["points"]] == [1, 2, 4, 8, 16, 32, 64]
    assert numbers["shapes"][0]["holds"] is True
    assert (tmp_path / "contrast.png").stat().st_size > 10_000
    text = (tmp_path / "index.html").read_text()
    assert "flat or falling from M = 1" in text and "http://" not in text.replace("http://www.w3.org", "").replace(
        "http://purl.org", ""
    ).replace("http://creativecommons.org", "")
    assert "NOT SEEN" not in result.output and "as theory says" in result.output


def test_finished_points_are_used_again(tmp_path, monkeypatch, toy_line):
    """Interrupted at the third point: the first two come back from the disk as they were, limits included."""
    known = {point.number: point for point in (only_bounded(toy_line[0]), *toy_line[1:])}
    monkeypatch.setattr(run, "LINES", (line_of("toy"),))
    calls = []

    def interrupted(plan, key, number):
        calls.append(number)
        if number == 4:
            raise KeyboardInterrupt
        return known[number]

    monkeypatch.setattr(run, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.run_contrast(ContrastPlan(), tmp_path, progress=False)
    monkeypatch.setattr(run, "measure", lambda plan, key, number: calls.append(number) or known[number])
    whole = run.run_contrast(ContrastPlan(), tmp_path, progress=False)
    assert calls == [1, 2, 4, 4, 8, 16, 32, 64]
    assert repr(whole.points) == repr(tuple(known.values()))
    with pytest.raises(StudyError, match="another study"):
        run.run_contrast(ContrastPlan(quick=True), tmp_path, progress=False)


def test_every_line_can_be_drawn(toy_line):
    """Limits, two lines in a panel and levels across: each line's drawing, with the toy's numbers."""
    stuck = only_bounded(toy_line[0])
    lines = []
    for line in problems.LINES:
        for place, number in enumerate(line.counts):
            point = toy_line[min(place, 6)]._replace(line=line.key, number=number)
            lines.append(stuck._replace(line=line.key, number=number) if place == 0 else point)
    contrast = Contrast(ContrastPlan(), tuple(lines), 1, 1.0)
    panels = figure.panels_of(contrast)
    assert svg_of(arranged(panels[figure.NAME], 3, figure.NAME, (5.0, 3.5)), figure.NAME).count('<g id="axes_') == 6
    assert "below" in render(panels, page.content_of(contrast))


def only_bounded(point):
    efficiency = point.efficiency._replace(value=math.nan, se=math.nan, low=0.0)
    return point._replace(reason="too short", efficiency=efficiency)
