"""Plots and the report of a run: that they show what the run says, in a real browser too."""

import base64
import itertools
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.estimators.weights import effective
from onedraw.failures import Failure
from onedraw.report import binning, chain_plots, page, pages, panels, plots, tolerances
from onedraw.report.verdict import judge
from onedraw.results.diagnostics import FEW, FEW_EFFECTIVE, KNOWN_SHARE, NARROW, USES, too_narrow
from onedraw.results.monte_carlo_error import Draws
from onedraw.results.posterior import Status
from onedraw.results.summary import SummaryRow, describe, disagree
from onedraw.run.store import StoreError

from .browser import Browser, fits, needs_chromium

HOSTILE = (
    '<img src=x onerror="console.error(1)">',
    "</script><script>console.error(2)</script>",
    "$\\frac{$ &amp; {{ 7 * 7 }} 参",
)


@od.batched
def simulate(rng, **theta):
    first, second, *_ = theta.values()
    return np.column_stack([rng.normal(first, 1.0), rng.normal(second, 0.5)])


def model_of(*names):
    return od.Model(od.Prior(**{name: stats.norm(0, 1) for name in names}), simulate, observed=[1.0, 0.2])


@pytest.fixture(scope="module")
def model():
    return model_of("mu", "nu")


@pytest.fixture(scope="module")
def chains(model):
    return od.pseudo_marginal(model, od.gaussian(0.5), draws=400, chains=8, pseudo_samples=2, keep="distances", seed=3)


@pytest.fixture(scope="module")
def accepted(model):
    return od.rejection(model, od.uniform(1.0), draws=3000, seed=1)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def clean(browser):
    """The browser, with an empty console before and after."""
    browser.console.clear()
    browser.requests.clear()
    yield browser
    assert browser.console == []
    assert [url[:60] for url in browser.requests if not url.startswith(("file:", "data:"))] == []


TABLE = "[...document.querySelectorAll('#summary tbody tr')].map(r => [...r.children].map(c => c.textContent))"


def expected(post, eps):
    """The table that a page should show, from `post.at` and nothing else."""
    return [
        [name, *(f"{value:.4g}" for value in row[:5]), f"{row.ess:.0f}"]
        for name, row in post.at(eps).summary().rows.items()
    ]


# The page in a browser


@needs_chromium
@pytest.mark.parametrize("kind", ["chains", "accepted"])
def test_the_slider_shows_what_at_gives(kind, request, clean, tmp_path):
    post = request.getfixturevalue(kind)
    clean.open(post.report(tmp_path / "run.html", predictive=20))
    wanted = tolerances.tolerances(post)
    assert wanted[0] == post.settings["eps"] and len(wanted) > 20
    assert clean.run("document.getElementById('eps').max") == str(len(wanted) - 1)
    paths = []
    for position, eps in enumerate(wanted):
        clean.run(
            f"eps => 0, (s => {{ s.value = {position}; s.dispatchEvent(new Event('input', {{bubbles: true}})) }})"
            "(document.getElementById('eps'))"
        )
        assert clean.run("document.getElementById('told').textContent") == f"{eps:.6g}"
        assert clean.run("document.getElementById('call-at').textContent") == f"post.at({eps!r})"
        assert clean.run(TABLE) == expected(post, eps)
        paths.append(clean.run("[...document.querySelectorAll('.posterior[d]')].map(p => p.getAttribute('d'))"))
    # The drawings move with the numbers.
    assert all(before != after for before, after in itertools.pairwise(paths))


@needs_chromium
def test_the_slider_moves_from_the_keyboard(accepted, clean, tmp_path):
    clean.open(accepted.report(tmp_path / "run.html", predictive=0))
    wanted = tolerances.tolerances(accepted)
    for _ in range(20):
        clean.press("Tab", 9)
        if clean.run("document.activeElement.id") == "eps":
            break
    assert clean.run("document.activeElement.id") == "eps"
    for key, code, position in (("ArrowRight", 39, 1), ("ArrowRight", 39, 2), ("End", 35, -1), ("Home", 36, 0)):
        clean.press(key, code)
        assert float(clean.run("document.getElementById('told').textContent")) == wanted[position]
        assert clean.run(TABLE) == expected(accepted, wanted[position])
    assert "tolerance" in clean.run("document.getElementById('eps').getAttribute('aria-valuetext')")


@needs_chromium
def test_a_report_of_at_begins_at_its_tolerance(accepted, clean, tmp_path):
    clean.open(accepted.at(0.4321).report(tmp_path / "run.html", predictive=0))
    assert clean.run("document.getElementById('told').textContent") == "0.4321"
    assert clean.run(TABLE) == expected(accepted, 0.4321)


def hostile(post):
    """A run with names that Prior refuses: from a file that somebody made, say."""
    failure = Failure({HOSTILE[0]: 1.0}, 1, 4, 0, 0, 0, HOSTILE[1], f"Traceback\n{HOSTILE[0]}\n{HOSTILE[1]}")
    draws = dict(zip(HOSTILE, itertools.cycle(post.draws.values()), strict=False))
    cost, settings = post.cost._replace(failed=1), {**post.settings, HOSTILE[0]: HOSTILE[1]}
    return replace(
        post, draws=draws, model=None, failures=(failure,), cost=cost, settings=settings, notes=(HOSTILE[1],)
    )


@needs_chromium
@pytest.mark.parametrize("kind", ["chains", "accepted"])
def test_hostile_names_stay_text(kind, request, clean, tmp_path):
    post = hostile(request.getfixturevalue(kind))
    clean.open(post.report(tmp_path / "run.html"))
    assert [row[0] for row in clean.run(TABLE)] == list(post.names)
    assert clean.run("[...document.querySelectorAll('.marginal h3')].map(h => h.textContent)") == list(post.names)
    shown = clean.run("[...document.querySelectorAll('pre')].map(p => p.textContent)")
    assert post.failures[0].traceback in shown
    assert clean.run("document.querySelectorAll('script').length") == 2
    assert clean.run("[...document.images].every(i => i.src.startsWith('data:') && i.naturalWidth > 0)")


@needs_chromium
def test_hostile_summaries_stay_text(clean, tmp_path):
    observed = {HOSTILE[0]: 1.0, HOSTILE[1]: [0.2, 0.1], HOSTILE[2]: 3.0}
    model = od.Model(
        od.Prior(mu=stats.norm(0, 1)),
        lambda rng, mu: {key: rng.normal(mu, 1.0, np.shape(value)) for key, value in observed.items()},
        observed,
    )
    post = od.rejection(model, od.uniform(6.0), draws=60, seed=1)
    clean.open(post.report(tmp_path / "run.html", predictive=30))
    assert clean.run("[...document.images].every(i => i.naturalWidth > 0)")


@pytest.fixture(scope="module")
def page_of_long_names(chains, tmp_path_factory):
    long = {"a_rather_long_name_of_a_rate": chains.draws["mu"], "nu": chains.draws["nu"]}
    return replace(chains, draws=long, model=None).report(tmp_path_factory.mktemp("long") / "run.html")


@needs_chromium
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1200])
def test_nothing_is_cut_off_and_figures_follow_the_colour_scheme(page_of_long_names, clean, width, dark):
    assert fits(clean, page_of_long_names, width, dark) >= 2


@needs_chromium
def test_numbers_have_their_names_on_a_narrow_page(accepted, clean, tmp_path):
    clean.open(accepted.report(tmp_path / "run.html", predictive=0), 400)
    names = clean.run("[...document.querySelectorAll('#summary tbody tr:first-child td')].map(one => one.dataset.name)")
    assert names == [name for name, _ in page.COLUMNS]
    shown = "getComputedStyle(document.querySelector('#summary td'), '::before').content"
    assert clean.run(shown) == '"mean"'


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, False), (390, True)])
def test_the_page_fits_and_is_not_blank(chains, clean, tmp_path, width, dark):
    from PIL import Image

    clean.open(chains.report(tmp_path / "run.html", predictive=50), width, dark=dark)
    assert clean.run("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
    boxes = clean.run("[...document.querySelectorAll('.marginal svg')].map(s => s.getBoundingClientRect().width)")
    assert len(boxes) == 2 and min(boxes) > 250
    clean.shot(tmp_path / "shot.png")
    with Image.open(tmp_path / "shot.png") as image:
        grey = np.asarray(image.convert("L"), dtype=float)
    assert grey.std() > 15 and (np.median(grey) < 60) == dark


@pytest.fixture(scope="module")
def large(model):
    """Four parameters, 4 chains of 25,000 draws, as a slow chain gives them."""
    rng = np.random.default_rng(1)
    names = ("alpha", "beta", "gamma", "delta")
    moved = rng.random((4, 25_000)) < 0.3
    last = np.maximum.accumulate(np.where(moved, np.arange(25_000), 0), axis=1)
    draws = {}
    for name in names:
        walk = np.zeros((4, 25_000))
        noise = rng.normal(size=(4, 25_000))
        for step in range(1, 25_000):
            walk[:, step] = 0.9 * walk[:, step - 1] + noise[:, step]
        draws[name] = np.take_along_axis(walk, last, axis=1)
    distances = np.take_along_axis(rng.random((4, 25_000)), last, axis=1)
    base = od.pseudo_marginal(model, od.uniform(1.0), draws=20, chains=4, seed=1)
    return replace(base, draws=draws, distances=distances, model=model_of(*names))


@pytest.fixture(scope="module")
def large_page(large, tmp_path_factory):
    return large.report(tmp_path_factory.mktemp("large") / "run.html")


@pytest.mark.slow
def test_a_large_report_is_small(large_page):
    assert large_page.stat().st_size < 5_000_000
    text = large_page.read_text()
    assert "Chains, step by step" in text and "kappa with 95 % confidence" in text


@needs_chromium
def test_a_large_report_opens_quickly(large_page, clean):
    assert min(clean.open(large_page) for _ in range(4)) < 2.0


# The page as text


def test_the_page_needs_no_network_and_forbids_scripts_but_its_own(chains, tmp_path):
    text = chains.report(tmp_path / "run.html", predictive=20).read_text()
    assert "http:" not in text and "https:" not in text and "//" not in re.sub(r"base64,[^\"]*|// .*", "", text)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1)
    assert "default-src 'none'" in policy and "script-src 'sha256-" in policy
    assert "'unsafe-inline'" not in policy.split("script-src")[1]


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def test_text_has_enough_contrast():
    template = (Path(page.__file__).parent / "page.css").read_text()
    schemes = re.findall(r":root \{(.*?)\}", template, flags=re.DOTALL)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", scheme))
        for ink, ground in (
            ("ink", "ground"), ("ink", "card"), ("quiet", "ground"), ("quiet", "card"), ("green", "green-ground"),
            ("red", "red-ground"), ("amber", "amber-ground"), ("ink", "green-ground"), ("ink", "amber-ground"),
            ("ink", "red-ground"),
        ):  # fmt: skip
            high, low = sorted((luminance(colours[ink]), luminance(colours[ground])), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, ground)


def test_the_call_on_the_page_makes_the_same_run(model, accepted, chains):
    for post in (accepted, chains, accepted.at(0.5)):
        names = {"od": od, "model": model}
        exec(page.call_of(post), names)
        again = names["post"]
        assert all(again.draws[name].tobytes() == post.draws[name].tobytes() for name in post.names)
        if post.weights is not None:
            assert again.weights.tobytes() == post.weights.tobytes()


def test_a_file_and_the_run_in_memory_have_one_fingerprint(model, tmp_path, unrendered):
    post = od.rejection(model, od.uniform(1.0), draws=50, seed=1, store=tmp_path / "run.db")
    source = page.source_of(tmp_path / "run.db")
    assert page._prints(post, None)["model"] == page._prints(post, source)["model"]
    other = od.rejection(model_of("mu", "xi"), od.uniform(1.0), draws=50, seed=1)
    assert page._prints(other, None)["model"] != page._prints(post, None)["model"]
    text = page.render(page.content_of(od.load(tmp_path / "run.db"), None, source))
    assert page._prints(post, None)["model"] in text and "session 1" in text and np.__version__ in text


def test_another_model_is_refused(model, tmp_path):
    od.rejection(model, od.uniform(1.0), draws=50, seed=1, store=tmp_path / "run.db")
    post, source = od.load(tmp_path / "run.db"), page.source_of(tmp_path / "run.db")
    wider = od.Model(od.Prior(mu=stats.norm(0, 2), nu=stats.norm(0, 1)), simulate, observed=[1.0, 0.2])
    with pytest.raises(ValueError, match="made with another model: prior changed"):
        page.write_report(post, tmp_path / "x.html", model=wider, source=source)
    with pytest.raises(ValueError, match="the model has the parameters mu, xi, the run mu, nu"):
        page.write_report(post, tmp_path / "x.html", model=model_of("mu", "xi"), source=source)
    assert not (tmp_path / "x.html").exists()
    path, verdict = page.write_report(post, tmp_path / "x.html", model=model, source=source)
    assert "Posterior predictive check" in path.read_text() and verdict.level == "amber"


def test_reports_of_runs_that_lack_something(model, accepted, chains, tmp_path, unrendered):
    nothing = od.rejection(model, od.uniform(1e-9), budget=100, seed=1)
    text = nothing.report(tmp_path / "a.html").read_text()
    assert "Do not use these numbers yet." in text and "Raise eps or the budget" in text and 'id="eps"' not in text
    for lacking in (
        replace(accepted, distances=None),
        replace(accepted, kernel=None, model=None),
        replace(chains, model=None),
        replace(accepted, draws={name: values[:, :2] for name, values in accepted.draws.items()},
                distances=accepted.distances[:, :2]),
        od.rejection(model, od.uniform(1.0), draws=1, seed=1),
        od.pseudo_marginal(model, od.uniform(1.0), draws=1, chains=2, seed=1),
        accepted.at(0.1),
    ):  # fmt: skip
        assert "<h2>Posterior</h2>" in lacking.report(tmp_path / "b.html", predictive=0).read_text()
    with pytest.raises(ValueError, match="predictive must be a whole number"):
        accepted.report(tmp_path / "c.html", predictive=-1)
    with pytest.raises(OSError, match="cannot be written"):
        accepted.report(tmp_path / "none" / "c.html", predictive=0)


def test_a_report_replaces_the_old_one_whole(accepted, tmp_path, monkeypatch, unrendered):
    path = accepted.report(tmp_path / "run.html", predictive=0)
    before = path.read_text()
    monkeypatch.setattr(page.os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        accepted.report(path, predictive=0)
    assert path.read_text() == before and list(tmp_path.iterdir()) == [path]


def test_slow_simulators_are_not_simulated_for_long(accepted):
    slow = replace(accepted, cost=accepted.cost._replace(seconds=float(accepted.cost.simulations)))
    assert page._predicted(accepted, None) == 200 and page._predicted(slow, None) == 20
    slower = replace(accepted, cost=accepted.cost._replace(seconds=2.0 * accepted.cost.simulations))
    assert page._predicted(slower, None) == 0 and page._predicted(slower, 7) == 7


# Tolerances


def test_tolerances_go_from_the_run_to_what_its_draws_carry(accepted, chains):
    for post in (accepted, chains):
        found = tolerances.tolerances(post)
        assert found[0] == post.settings["eps"] and list(found) == sorted(set(found), reverse=True)
        assert effective(post.at(found[-1]).weights) >= 0.8 * tolerances.FEWEST_DRAWS
        assert effective(post.at(found[-1] / 1.5).weights) < tolerances.FEWEST_DRAWS
        assert all(eps == float(f"{eps:.3g}") for eps in found[1:])
    with pytest.raises(ValueError, match="keep='distances'"):
        tolerances.tolerances(replace(accepted, distances=None))


# The verdict


def levels(post, positions=()):
    return {one.name: one.level for one in judge(post, positions).findings}


def test_verdict_of_good_and_bad_runs(model, accepted, chains):
    good = judge(accepted)
    assert (good.level, good.headline) == ("green", "No problems found.")
    few = judge(od.rejection(model, od.uniform(1.0), draws=50, seed=1))
    assert few.level == "amber" and "run about" in few.todo[0]
    rows = few.findings[1]
    assert rows.name == "Effective draws" and rows.level == "amber"
    stuck = {name: np.repeat(values[:, :1], 400, axis=1) for name, values in chains.draws.items()}
    still = judge(replace(chains, draws=stuck))
    assert still.level == "red" and "8 of 8 chains never moved" in still.findings[1].text
    apart = {name: values + 3.0 * np.arange(8)[:, None] for name, values in chains.draws.items()}
    assert levels(replace(chains, draws=apart))["R-hat"] == "red"
    assert (
        levels(replace(accepted, cost=accepted.cost._replace(failed=accepted.cost.simulations // 10)))[
            "Failed simulations"
        ]
        == "amber"
    )
    assert levels(replace(accepted, cost=accepted.cost._replace(failed=1)))["Failed simulations"] == "green"
    stopped = replace(accepted, status=Status("interrupted", "interrupted after 3 proposals"))
    assert levels(stopped)["The run"] == "amber"
    forced = replace(accepted, notes=("this run was continued with force=True although x changed: it is not one run",))
    assert judge(forced).level == "amber"
    assert judge(od.rejection(model, od.uniform(1e-9), budget=50, seed=1)).level == "red"


def test_the_plan_for_more_draws_is_in_proportion(model):
    post = od.rejection(model, od.uniform(1.0), draws=50, seed=1)
    least = min(row.ess for row in post.summary().rows.values())
    planned = float(re.search(r"\(([\d,]+) simulations\)", judge(post).todo[0]).group(1).replace(",", ""))
    assert planned == pytest.approx(post.cost.simulations * 400 / least, rel=0.05)


def test_verdict_sees_an_answer_that_depends_on_the_tolerance(model):
    def found(eps, draws):
        post = od.rejection(model, od.uniform(eps), draws=draws, seed=2)
        return levels(post, tolerances.positions_of(post, binning.marginals_of(post)))["Tolerance ε"]

    assert found(3.0, 4000) == "amber"
    assert found(0.4, 2000) == "green"


@pytest.mark.parametrize(
    ("mean", "sd", "mcse", "level"),
    [
        (0.05, 1.0, 0.001, "green"),  # certain, and too little to matter
        (0.30, 1.0, 0.001, "amber"),
        (0.30, 1.0, 0.100, "green"),  # large, and within its error
        (0.00, 0.7, 0.001, "amber"),
    ],
)
def test_verdict_on_the_tolerance_wants_a_change_that_is_large_and_certain(accepted, mean, sd, mcse, level):
    def position(eps, *numbers):
        return tolerances.SliderPosition(eps, 1000.0, {"mu": SummaryRow(*numbers, 1000.0, math.nan)}, {})

    before = position(1.0, 0.0, 1.0, -1.6, 1.6, 0.001)
    after = position(0.5, mean, sd, mean - 1.6, mean + 1.6, mcse)
    assert levels(accepted, [before, after])["Tolerance ε"] == level


def calibrated(post, number, covered, spread=(1.25, 0.8)):
    found = {"number": number, "cover_90": dict(zip(("mu", "nu"), covered, strict=True)),
             "spread": dict(zip(("mu", "nu"), spread, strict=True))}  # fmt: skip
    return replace(post, settings={**post.settings, "calibration": found})


def test_the_verdict_on_intervals_names_the_worst_parameter_and_the_errors(accepted):
    finding = next(one for one in judge(calibrated(accepted, 100, (0.93, 0.88))).findings if one.name == "Intervals")
    assert (finding.level, finding.value, finding.todo) == ("green", "88 %", "")
    # Two standard errors: 2 sqrt(.9 x .1 / 100) = 6 %, and 2 / sqrt(2 x 100) = 14 %; 1 / 1.25 = .8 and 1 / .8 = 1.25.
    assert finding.text == (
        "of the 90 % intervals of nu contain the known value, at 100 simulations near the posterior "
        "(± 6 % by chance); other parameters do at least as well. Posterior standard deviations are 0.80 to 1.25 times "
        "the errors of the posterior means there (± 14 % by chance)."
    )
    narrow = judge(calibrated(accepted, 100, (0.78, 0.88)))
    assert levels(calibrated(accepted, 100, (0.78, 0.88)))["Intervals"] == "amber" == narrow.level
    assert narrow.todo == ("The intervals of mu are too narrow or biased: raise the budget.",)
    unchecked = judge(calibrated(accepted, 19, (0.5, 0.5)))
    assert "unchecked" in [one.value for one in unchecked.findings] and unchecked.level == "amber"
    assert "nan" not in str(judge(calibrated(accepted, 100, (0.93, 0.88), (None, None))).findings).lower()


@pytest.mark.parametrize("parameters", [1, 4, 20])
@pytest.mark.parametrize("number", [20, 50, 100, 160])
def test_right_intervals_are_rarely_called_too_narrow(number, parameters):
    """By the law of the count of each parameter, whatever they have to do with each other (Bonferroni)."""
    called = [k for k in range(number + 1) if too_narrow(k / number, number, parameters)]
    assert called == list(range(len(called))) and len(called) > number // 2
    assert parameters * stats.binom.cdf(called[-1], number, 0.9) < 0.01
    # One that contains 70 % is found from 100 on.
    assert number < 100 or stats.binom.cdf(called[-1], number, 0.7) > 0.8


def test_what_the_verdict_says_of_intervals_is_not_said_again_by_a_note(accepted):
    note = f"{NARROW} of mu contain only 70 % of the known parameters"
    told = replace(calibrated(accepted, 100, (0.7, 0.9)), notes=(note, "warning: something else"))
    assert [one.text for one in judge(told).findings if one.name == "Note"] == ["warning: something else."]
    # A regression has no finding of its own, and keeps the note.
    assert [one.text for one in judge(replace(accepted, notes=(note,))).findings if one.name == "Note"] == [f"{note}."]


def autoregressive(rng, chains, steps, rho):
    """Stationary chains with standard normal states."""
    noise = rng.standard_normal((chains, steps))
    values = [noise[:, 0]]
    for k in range(1, steps):
        values.append(rho * values[-1] + np.sqrt(1 - rho**2) * noise[:, k])
    return np.stack(values, axis=1)


@pytest.mark.parametrize(("chains", "steps"), [(4, 1500), (64, 100)])
def test_chains_that_agree_are_rarely_said_to_disagree(chains, steps):
    """R-hat of slow stationary chains is above 1.01 in many runs, by chance; the rule allows for that."""
    rng, runs = np.random.default_rng(1), 100
    rows = [describe(autoregressive(rng, chains, steps, 0.9), Draws(), 0.9) for _ in range(runs)]
    assert sum(row.r_hat > 1.01 for row in rows) > 5 * runs / 100
    assert sum(disagree(row, chains) for row in rows) <= 1
    # One chain in four, or one group in eight, is elsewhere by 0.7 standard deviations: found.
    moved = autoregressive(rng, chains, 20 * steps, 0.9)
    moved[:: 4 if chains == 4 else 8] += 0.7
    assert disagree(describe(moved, Draws(), 0.9), chains)


def test_a_few_short_chains_that_never_moved_are_no_fault(chains):
    def with_still(number, still, start):
        draws = np.random.default_rng(1).standard_normal((number, 30))
        draws[:still] = draws[:still, :1]
        return replace(chains, draws={"mu": draws}, settings={**chains.settings, "start": start}, distances=None)

    assert not with_still(1000, 20, "rejection").stuck and not with_still(1000, 20, "dict").stuck
    assert not with_still(1000, 400, "rejection").stuck and with_still(1000, 400, "dict").stuck
    assert with_still(4, 1, "rejection").stuck and not with_still(4, 0, "rejection").stuck
    told = "400 of 1000 chains never moved"
    assert told in str(with_still(1000, 400, "dict").summary())
    assert told not in str(with_still(1000, 400, "rejection").summary())


@pytest.mark.parametrize(("effective", "level"), [(60.0, "green"), (9.0, "amber"), (3.0, "red")])
def test_few_effective_draws_of_an_estimate_are_a_statement_unless_they_are_very_few(accepted, effective, level):
    post = replace(accepted, effective=effective, notes=(f"{FEW} {effective:.0f}: ...",))
    verdict = judge(post)
    assert levels(post)["Effective draws"] == level == verdict.level
    assert "Note" not in [one.name for one in verdict.findings] and (level == "green") == ("budget" not in str(verdict))


@pytest.mark.parametrize(("effective", "level"), [(26.0, "green"), (24.0, "amber"), (9.0, "red")])
def test_effective_draws_of_a_learnt_likelihood_are_known_to_a_factor(accepted, effective, level):
    post = replace(
        accepted, effective=effective, settings={**accepted.settings, "calibration": {"number": 0, "cover_90": {}}}
    )
    assert levels(post)["Effective draws"] == level


@pytest.mark.parametrize(
    ("effective", "enough", "too_few"),
    [
        (10.0, "a first look", "a mean with its interval"),
        (99.0, "a mean with its interval", "a mean to a tenth of a standard deviation"),
        (100.0, "a mean to a tenth of a standard deviation", "the ends of intervals"),
    ],
)
def test_a_green_verdict_says_what_the_effective_draws_are_enough_for(accepted, effective, enough, too_few):
    found = next(one for one in judge(replace(accepted, effective=effective)).findings if one.name == "Effective draws")
    assert found.level == "green" and found.text.endswith(f"; enough for {enough}, too few for {too_few}.")
    # Where a warning of a learnt likelihood ends, a mean can be reported.
    assert (FEW_EFFECTIVE / KNOWN_SHARE, "a mean with its interval") in USES


# Plots


def test_every_plot_is_a_figure_of_its_own(accepted, chains, large):
    from matplotlib.figure import Figure

    single = od.pseudo_marginal(chains.model, od.uniform(1.0), draws=400, chains=8, seed=1)
    advice = od.advise(chains.model, od.uniform(1.0), budget=40_000, seed=1)
    figures = [
        plots.marginals(accepted), accepted.plot(), accepted.at(0.3).plot("pairs"), chains.plot("traces", chains=2),
        accepted.plot("predictive", n=30), chains.plot("pairs", parameters=["nu", "mu"]), plots.efficiency(advice),
        plots.efficiency(od.certificate(single)), accepted.plot(parameters="mu"),
    ]  # fmt: skip
    assert all(isinstance(one, Figure) for one in figures)
    assert len(set(map(id, figures))) == len(figures)


def test_plots_leave_nothing_behind():
    code = (
        "import sys, numpy as np, onedraw as od\nfrom scipy import stats\n"
        "od.plots.marginals\nassert 'matplotlib' not in sys.modules\n"
        "model = od.Model(od.Prior(a=stats.norm(), b=stats.norm()), lambda rng, a, b: rng.normal([a, b]), [1.0, 0.0])\n"
        "post = od.pseudo_marginal(model, od.uniform(1.0), draws=50, chains=4, seed=1)\n"
        "for what in ('marginals', 'pairs', 'traces', 'predictive'):\n    post.plot(what)\n"
        "import matplotlib\n"
        "assert matplotlib.rcParams['font.size'] == 10.0\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_marginals_show_the_weighted_draws(accepted):
    post = accepted.at(0.4)
    edges = np.linspace(-2, 3, 11)
    shown = binning.density_of(post.draws["mu"], post.weights, edges)
    for low, high, density in zip(edges, edges[1:], shown, strict=False):
        inside = (post.draws["mu"] >= low) & (post.draws["mu"] < high)
        assert density * (high - low) == pytest.approx(post.weights[inside].sum())
    one = binning.marginals_of(post)["mu"]
    drawn = plots.marginals(post, ["mu"]).axes[0].patches[0]
    assert np.array_equal(drawn.get_data().values, one.density)
    assert not np.allclose(one.density, binning.density_of(accepted.draws["mu"], None, one.edges))
    # The prior's curve is the prior: a normal, within four errors of a share in 50,000.
    centre = 0.5 * (one.edges[1:] + one.edges[:-1])
    width = one.edges[1] - one.edges[0]
    share = one.prior * width
    exact = stats.norm.pdf(centre) * width
    assert np.all(np.abs(share - exact) < 4 * np.sqrt(exact / binning.PRIOR_DRAWS) + 0.02 * exact)


def test_pairs_are_weighted(chains):
    post = chains.at(0.25)
    mu, nu = (post.draws[name].reshape(-1) for name in ("mu", "nu"))
    weights = post.weights.reshape(-1)
    cov = np.cov(mu, nu, aweights=weights)
    shown = plots.pairs(post).axes[1].texts[0].get_text()
    assert float(shown) == pytest.approx(cov[0, 1] / math.sqrt(cov[0, 0] * cov[1, 1]), abs=0.005)
    assert shown != plots.pairs(chains).axes[1].texts[0].get_text()


def test_whole_numbers_have_a_bin_each():
    edges = binning.edges_of(np.array([0, 3, 5]))
    assert np.array_equal(edges, np.arange(-1.5, 7.0))
    assert np.array_equal(binning.density_of(np.array([0, 3, 3, 5]), None, edges), [0, 0.25, 0, 0, 0.5, 0, 0.25, 0])


def test_stalls_are_counted(chains):
    draws = {"mu": np.array([[1.0, 1.0, 1.0, 2.0, 2.0], [1.0, 2.0, 2.0, 3.0, 3.0]])}
    post = replace(chains, draws=draws, distances=None)
    assert chain_plots._stalls(post).tolist() == [[0, 1, 2, 0, 1], [0, 0, 1, 0, 1]]
    assert chain_plots._stalls(post).max() == post.longest_stall
    figure = plots.traces(post)
    assert figure.axes[-1].lines[0].get_ydata().tolist() == [0, 1, 2, 0, 1]


def test_no_stall_is_lost_in_a_long_trace(large):
    shown = plots.traces(large, ["alpha"]).axes[-1].lines
    assert max(line.get_ydata().max() for line in shown) == large.longest_stall


def test_the_path_of_a_sequential_run(accepted):
    stages = [SimpleNamespace(eps=eps, acceptance_rate=rate, simulations=100) for eps, rate in
              ((math.inf, 1.0), (2.0, 0.5), (1.0, 0.2))]  # fmt: skip
    post = SimpleNamespace(path=stages, settings={"algorithm": "smc"})
    assert plots.path_of(post) == ([200, 300], [2.0, 1.0], [0.5, 0.2])
    assert len(plots.path(post).axes) == 2
    chosen = SimpleNamespace(path=(), settings={"algorithm": "infer", "path": [[100, 2.0], [1000, 0.5]]})
    assert plots.path(chosen).axes[0].lines[0].get_xydata().tolist() == [[100, 2.0], [1000, 0.5]]
    with pytest.raises(ValueError, match="needs a sequential run"):
        plots.path(accepted)


def test_efficiency_shows_the_certificate(model):
    post = od.pseudo_marginal(model, od.uniform(1.0), draws=2000, chains=8, seed=1)
    found = od.certificate(post)
    line = plots.efficiency(found, most=16).axes[0].lines[0]
    for count, bound in line.get_xydata():
        assert bound == found.gain(int(count))


def test_lines_differ_in_grey_or_style():
    greys = []
    for colour, line in panels.LINES[:4]:
        grey = {"black": 0.0}.get(colour)
        greys.append((luminance(colour) if grey is None else grey, str(line)))
    assert all(abs(a - b) > 0.1 or s != t for (a, s), (b, t) in itertools.combinations(greys, 2))


def test_mistakes_are_named(accepted, model):
    with pytest.raises(ValueError, match="parameters must be among mu, nu, got"):
        plots.marginals(accepted, ["xi"])
    with pytest.raises(ValueError, match="what must be one of 'marginals'"):
        accepted.plot("trace")
    with pytest.raises(ValueError, match="traces are of chains"):
        accepted.plot("traces")
    with pytest.raises(ValueError, match="nothing was accepted"):
        od.rejection(model, od.uniform(1e-9), budget=10, seed=1).plot()
    with pytest.raises(ValueError, match="found must be the result of od"):
        plots.efficiency(3)


def test_names_of_any_kind_can_be_drawn(accepted, chains):
    long = {"x" * 200: accepted.draws["mu"], "a\n\x00b": accepted.draws["nu"]}
    for post, what in (
        (hostile(accepted), "marginals"), (hostile(accepted), "pairs"), (hostile(chains), "traces"),
        (replace(accepted, draws=long, model=None), "pairs"),
    ):  # fmt: skip
        image = pages.image_of(post.plot(what))
        text = base64.b64decode(image.split(",")[1]).decode()
        assert "<script" not in text and "onerror=" not in re.sub(r"<!--.*?-->", "", text)


def test_json_for_the_page_closes_no_element(accepted, unrendered):
    content = page.content_of(replace(accepted, model=None), 0)
    data = str(content["data"])
    assert not set("<>&") & set(data) and len(json.loads(data)["eps"]) == len(content["positions"])
    wild = page._data(tolerances.positions_of(accepted, {}), [{"paths": HOSTILE, "priors": [], "bars": []}])
    assert not set("<>&") & set(wild) and json.loads(wild)["paths"] == [list(HOSTILE)]


def test_a_file_that_is_no_run_is_refused(tmp_path):
    (tmp_path / "x.db").write_text("no")
    with pytest.raises(StoreError):
        page.source_of(tmp_path / "x.db")


def test_the_page_of_infer_has_no_raw_records_no_zero_counts_and_no_empty_section(tmp_path, quick, unrendered):
    model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    post = od.infer(model, budget=60, seed=1)
    assert isinstance(post.settings["calibration"], dict) and post.cost.setups == 0
    page = post.report(tmp_path / "page.html", predictive=0).read_text()
    settings = page.split("<h2>Settings</h2>")[1].split("</dl>")[0]
    assert "<dt>budget</dt><dd>60</dd>" in settings and not set(settings) & set("{[")
    assert "setups" not in page.split("<h2>Cost</h2>")[1].split("</table>")[0]
    assert "Would more pseudo-samples have helped" not in page
