"""Whether the data can come from the model: exact ranks, what must be found, what is to blame, what is said first."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.report import page
from onedraw.report.verdict import judge
from onedraw.results.diagnostics import MISFIT, predictive_check, prior_check
from onedraw.results.misfit import Misfit, compare, kept, packed, standard_checks
from tests.marks import long_in_slow_tests

N = 50
PRIOR = od.Prior(mu=stats.norm(0, 5), sigma=stats.uniform(0.1, 8))


@od.batched
def normal(rng, mu, sigma):
    return mu[:, None] + sigma[:, None] * rng.standard_normal((len(mu), N))


def two(data):
    return [data.mean(), np.median(data)]


@od.batched
def moments(data):
    return np.column_stack([data.mean(axis=1), data.std(axis=1)])


@od.batched
def three(data):
    """Mean, median and standard deviation."""
    return np.column_stack([data.mean(axis=1), np.median(data, axis=1), data.std(axis=1)])


def torn():
    """Numbers with mean 0, median .9 and standard deviation 1, in random order."""
    rng = np.random.default_rng(4)
    data = np.concatenate([rng.random(22), np.full(N - 22, 0.9)])
    data[:22] -= data.sum() / 22
    return rng.permutation(data)


def contaminated(seed):
    """Standard normal numbers, 8 % of which lie at 7 standard deviations."""
    rng = np.random.default_rng(seed)
    data = rng.standard_normal(N)
    data[rng.choice(N, 4, replace=False)] = 7.0 * np.array([1, -1, 1, 1])
    return data


def summaries(kind, rng, n):
    """n rows of three kinds: correlated normal, heavy tails, whole numbers with many ties."""
    mean = rng.normal(0, 5, n)
    if kind == "normal":
        return np.column_stack([mean, mean + 0.1 * rng.standard_normal(n), rng.standard_normal(n)])
    if kind == "heavy":
        scale = np.exp(2 * rng.standard_normal(n))
        return np.column_stack([scale * rng.exponential(size=n), scale * rng.standard_cauchy(n)])
    return rng.poisson(np.exp(0.2 * mean)[:, None], (n, 2)).astype(float)


# The p-value


@pytest.mark.parametrize("kind", ["normal", "heavy"])
def test_each_of_the_simulations_taken_as_data_has_a_rank_of_its_own(kind):
    """Exactly: the statistic treats data and simulations alike, so the p-values of all are 1/n, 2/n, ..., 1."""
    rows = summaries(kind, np.random.default_rng(1), 61)
    found = sorted(compare(np.delete(rows, k, axis=0), rows[k]).p for k in range(61))
    assert np.allclose(found, np.arange(1, 62) / 61)


def test_with_ties_the_p_value_is_no_smaller():
    rows = summaries("counts", np.random.default_rng(1), 61)
    found = np.sort([compare(np.delete(rows, k, axis=0), rows[k]).p for k in range(61)])
    assert np.all(found >= np.arange(1, 62) / 61 - 1e-12) and found[0] < 0.05


def uniform(number, n, seed):
    """p-values of data sets from the prior, smoothed within their steps; the KS p-value is exact for them."""
    rng = np.random.default_rng(seed)
    ps = []
    for k in range(number):
        rows = summaries(("normal", "heavy")[k % 2], rng, n + 1)
        ps.append(compare(rows[1:], rows[0]).p - rng.random() / (n + 1))
    return stats.kstest(ps, "uniform").pvalue


def test_the_p_value_is_uniform_if_the_model_is_right():
    assert uniform(100, 60, seed=2) > 0.001


@pytest.mark.slow
def test_the_p_value_is_uniform_over_500_data_sets():
    assert uniform(500, 200, seed=3) > 0.001


def test_the_posterior_predictive_p_value_is_conservative():
    """Data from the prior, replicates at draws of the exact posterior: small p-values are rarer than they say."""
    rng = np.random.default_rng(5)
    ps = []
    for _ in range(200):
        data = rng.normal(rng.normal(0, 5), 1.0, N)
        # The posterior of the mean under a prior N(0, 25).
        variance = 1 / (N + 1 / 25)
        mu = rng.normal(variance * data.sum(), np.sqrt(variance), 60)
        replicates = rng.normal(mu[:, None], 1.0, (60, N))
        rows = np.column_stack([replicates.mean(axis=1), np.median(replicates, axis=1), replicates.std(axis=1)])
        ps.append(compare(rows, np.array([data.mean(), np.median(data), data.std()])).p)
    # Four standard errors of a share of 5 % in 200.
    assert np.mean(np.array(ps) <= 0.05) < 0.05 + 4 * np.sqrt(0.05 * 0.95 / 200)
    assert np.mean(ps) > 0.5


def test_too_few_simulations_say_nothing_and_failed_ones_do_not_count():
    rows = summaries("normal", np.random.default_rng(1), 60)
    assert compare(rows[:19], rows[20]) is None
    failed = np.concatenate([rows, np.full((5, 3), np.nan)])
    assert compare(failed, rows[0]) == compare(rows, rows[0])
    nothing = Misfit(None, None)
    assert nothing.p == 1.0 and str(nothing) == "Nothing was compared: fewer than 20 simulations succeeded."


def test_what_a_model_always_gives_must_be_in_the_data():
    rows = np.column_stack([np.full(60, 3.0), np.random.default_rng(1).standard_normal(60)])
    assert compare(rows, np.array([3.0, 0.0])).p > 0.05
    found = compare(rows, np.array([4.0, 0.0]), ["constant", "other"])
    assert found.p == 1 / 61 and found.blamed[0].label == "constant"


def test_rounding_is_no_misfit():
    """Two summaries that say the same up to rounding."""
    first = np.random.default_rng(1).standard_normal(200)
    rows = np.column_stack([first, 3 * first * (1 + 1e-16)])
    assert compare(rows, np.array([0.2, 0.6 + 1e-12])).p > 0.05
    assert compare(rows, np.array([0.2, 0.7])).p < 0.02


def test_many_summaries_are_compared_without_regressions():
    rows = np.random.default_rng(1).standard_normal((60, 300))
    assert compare(rows, np.zeros(300)).p > 0.05
    away = np.zeros(300)
    away[7] = 9.0
    found = compare(rows, away)
    assert found.p < 0.02 and [one.label for one in found.blamed] == ["summary 8"]


def test_p_values_of_single_summaries_allow_for_their_number():
    """None is below that of the whole, so the chance that any summary is blamed wrongly is at most that of a misfit."""
    rows = np.random.default_rng(7).standard_normal((41, 10))
    found = [compare(np.delete(rows, k, axis=0), rows[k]) for k in range(41)]
    assert all(min(one.p for one in each.departures) >= each.p for each in found)
    assert sum(bool(each.blamed) for each in found) <= 0.05 * 41


def test_departures_are_counted_in_standard_deviations():
    rng = np.random.default_rng(8)
    rows = rng.normal(5.0, 2.0, (1000, 1))
    (one,) = compare(rows, np.array([-3.0])).departures
    # A robust standard deviation of 1,000 normal numbers is known to 4 %.
    assert not one.given_others and one.away == pytest.approx(-4.0, rel=0.15)
    first = rng.standard_normal(1000)
    rows = np.column_stack([first, first + 0.1 * rng.standard_normal(1000)])
    one = compare(rows, np.array([0.0, 0.8])).departures[1]
    assert one.given_others and one.away == pytest.approx(8.0, rel=0.15)


def test_a_prediction_follows_curves_and_changing_scales():
    """What other summaries predict need not be linear, nor of one scale."""
    rng = np.random.default_rng(9)
    first = rng.uniform(-1, 1, 400)
    curved = np.column_stack([first, first**2 + 0.02 * rng.standard_normal(400)])
    one = compare(curved, np.array([0.1, 0.2])).departures[1]
    assert one.given_others and one.p < 0.02 and abs(one.away) > 6
    growing = np.column_stack([first, np.exp(2 * first) * 0.1 * rng.standard_normal(400)])
    one = compare(growing, np.array([-0.9, 0.1])).departures[1]
    assert one.given_others and one.p < 0.02


def test_neither_a_ring_nor_its_summaries_hold_its_centre():
    """Each summary is as it should be, also given the other: only the distance to the neighbours shows it."""
    rng = np.random.default_rng(1)
    angle = rng.uniform(0, 2 * np.pi, 300)
    rows = np.column_stack([np.cos(angle), np.sin(angle)]) + 0.05 * rng.standard_normal((300, 2))
    found = compare(rows, np.zeros(2))
    assert found.p < 0.02 and found.blamed == () and "their combination" in found.words()
    assert compare(rows, np.array([1.0, 0.0])).p > 0.05


# What must be found


@pytest.mark.parametrize("sigma", ["known", "unknown"])
def test_mean_and_median_that_no_normal_sample_has_are_found(sigma):
    if sigma == "known":
        prior = od.Prior(mu=stats.norm(0, 5))
        model = od.Model(prior, lambda rng, mu: rng.normal(mu, 1.0, N), torn(), summary=two)
    else:
        model = od.Model(PRIOR, normal, torn(), summary=three)
    post = od.rejection(model, od.uniform(1.5), draws=200, seed=1)
    found = post.misfit(seed=1)
    assert found.p <= 0.02 and {"summary[0]", "summary[1]"} & {one.label for one in found.posterior.blamed}
    # By the summaries alone, too: 8.5 standard deviations apart.
    alone = compare(found.rows[:, :2], found.observed[:2], ["mean", "median"])
    assert alone.p <= 0.02 and {one.label for one in alone.blamed} == {"mean", "median"}
    assert all(one.given_others and abs(one.away) > 6 for one in alone.blamed) or sigma == "unknown"


def test_outliers_that_mean_and_sd_do_not_show_are_found_in_the_raw_data():
    for seed in range(3):
        model = od.Model(PRIOR, normal, contaminated(seed), summary=moments)
        post = od.rejection(model, od.uniform(0.5), draws=200, seed=1)
        found = post.misfit(prior=0, seed=1)
        assert found.p <= 0.02 and found.posterior.blamed[0].label in ("tails", "maximum", "minimum", "summary[1]")
        assert "tails" in {one.label for one in found.posterior.blamed}
        # The summaries are as they should be.
        assert compare(found.rows[:, :2], found.observed[:2]).p > 0.05


def test_infer_says_that_the_model_cannot_produce_the_data():
    model = od.Model(PRIOR, normal, torn(), summary=three)
    post = od.infer(model, budget=5000, seed=2)
    wrong = [note for note in post.notes if note.startswith(MISFIT)]
    assert len(wrong) == 2 and "prior predictive check, p = 0.0015" in wrong[0] and "summary[0] = " in wrong[0]
    assert "the posterior predictive check failed: 0 of 100 replicates" in wrong[1]
    assert kept(post.settings).p == 1 / 656 == post.misfit(20, prior=0).prior.p


def test_few_replicates_that_do_not_decide_are_no_success():
    """None of 20 is as unusual: by chance once in 21 data sets, unless the data are far beyond them."""
    rows = np.random.default_rng(1).normal(size=(20, 2))
    told = [predictive_check(rows, np.array([place, -place]))[0] for place in (0.1, 3.0, 30.0)]
    assert told[0].startswith("Posterior predictive check passed: ")
    assert told[1].startswith("Posterior predictive check undecided: 0 of 20 replicates")
    assert told[2].startswith(MISFIT) and "the posterior predictive check failed: 0 of 20 replicates" in told[2]


def test_infer_passes_on_a_check_that_does_not_decide(quick):
    """Data a twentieth beyond both ends of what is simulated: none is as unusual, those at an end nearly so.

    It holds unless all of 20 replicates are in the middle (4 in 100,000), or more than half at one end (6 in 10,000).
    """
    steps = od.batched(lambda rng, theta: theta + rng.choice([-1.0, 0.0, 1.0], len(theta), p=[0.2, 0.6, 0.2]))
    post = od.infer(od.Model(od.Prior(theta=stats.uniform(0, 1e-3)), steps, 1.05), budget=1000, seed=1)
    told = "Posterior predictive check undecided: 0 of 20 replicates are at least as unusual as the data; post.misfit()"
    assert len([note for note in post.notes if note.startswith(told)]) == 1
    assert not any("posterior predictive check failed" in note for note in post.notes)


def test_data_from_the_model_pass(quick):
    data = np.random.default_rng(6).normal(1.0, 2.0, N)
    post = od.infer(od.Model(PRIOR, normal, data, summary=moments), budget=1000, seed=1)
    found = post.misfit(seed=1)
    assert found.p > 0.05 and str(found).endswith("No misfit found.") and not any(MISFIT in one for one in post.notes)
    assert found.prior.number == found.posterior.number == 200


# Checks


def test_checks_of_ones_own_are_compared_by_name():
    data = np.sort(np.random.default_rng(1).standard_normal(N))
    post = od.rejection(od.Model(PRIOR, normal, data, summary=moments), od.uniform(1.0), draws=100, seed=1)
    found = post.misfit(60, prior=0, checks={"first half": lambda y: y[: N // 2].mean(), "mean": np.mean}, seed=1)
    # The mean is a summary already.
    labels = ("summary[0]", "summary[1]", "minimum", "maximum", "skewness", "tails", "autocorrelation", "first half")
    assert found.labels == labels and found.rows.shape == (60, 8)
    assert {one.label for one in found.posterior.blamed} & {"autocorrelation", "first half"}
    assert np.array_equal(found.rows[:, :2], post.predict(60, seed=1))


@pytest.mark.parametrize("kind", long_in_slow_tests(["plain", "batched", "staged", "jax", "compiled"], "compiled"))
def test_checks_work_with_every_kind_of_simulator(kind):
    prior, data, options = od.Prior(mu=stats.norm(0, 1)), np.linspace(-1, 1, 10), {"summary": two}
    if kind == "jax":
        jax = pytest.importorskip("jax")
        simulate = od.jax_simulator(lambda key, mu: mu + jax.random.normal(key, (10,)))
        options = {"summary": lambda y: jax.numpy.stack([y.mean(), y.max()])}
    elif kind == "compiled":
        pytest.importorskip("numba")
        simulate = od.compiled(lambda rng, mu: rng.standard_normal(10) + mu)
    elif kind == "batched":
        simulate = od.batched(lambda rng, mu: rng.normal(mu[:, None], 1.0, (len(mu), 10)))
        options = {"summary": od.batched(lambda y: np.column_stack([y.mean(axis=1), np.median(y, axis=1)]))}
    elif kind == "staged":
        simulate = od.staged(lambda mu: mu, lambda rng, mu, m: rng.normal(mu, 1.0, (m, 10)))
    else:
        simulate = lambda rng, mu: rng.normal(mu, 1.0, 10)  # noqa: E731
    post = od.rejection(od.Model(prior, simulate, data, **options), od.uniform(2.0), draws=50, seed=1)
    found = post.misfit(40, seed=1)
    assert found.rows.shape[0] == 40 and np.isfinite(found.rows).all() and 0 < found.p <= 1
    assert np.allclose(found.rows[:, :2], post.predict(40, seed=1), rtol=1e-6)
    again = post.misfit(40, seed=1)
    assert again.rows.tobytes() == found.rows.tobytes() and again.prior == found.prior


def test_data_of_other_forms_have_the_checks_that_fit_them():
    assert standard_checks(3.0) == {} == standard_checks(np.zeros(7)) == standard_checks("text")
    assert list(standard_checks({"a": np.zeros(8), "b": np.zeros((3, 3))})) == [
        "a: minimum", "a: maximum", "a: skewness", "a: tails", "a: autocorrelation",
        "b: minimum", "b: maximum", "b: skewness", "b: tails",
    ]  # fmt: skip
    constant = {name: check(np.ones(8)) for name, check in standard_checks(np.ones(8)).items()}
    assert constant == {"minimum": 1.0, "maximum": 1.0, "skewness": 0.0, "tails": 0.0, "autocorrelation": 0.0}
    observed = {"x": np.linspace(-1, 1, 9), "n": 3.0}
    model = od.Model(
        od.Prior(mu=stats.norm(0, 1)), lambda rng, mu: {"x": rng.normal(mu, 1.0, 9), "n": rng.normal(3.0)}, observed
    )
    found = od.rejection(model, od.uniform(5.0), draws=40, seed=1).misfit(40, prior=0, seed=1)
    assert found.labels[-1] == "x: autocorrelation" and len(found.labels) == 15


@pytest.mark.parametrize(
    ("checks", "told"),
    [
        ([np.max], "checks must be a dict"),
        ({"a": 3}, r"checks\['a'\] must be a function"),
        ({"a": lambda y: y}, r"checks\['a'\] gave (?s:.*) it must give one finite number"),
        ({"a": lambda y: np.nan}, "it must give one finite number"),
        ({"a": lambda y: y.nothing}, r"checks\['a'\] failed on the observed data: AttributeError"),
    ],
)
def test_wrong_checks_are_named(checks, told):
    post = od.rejection(od.Model(PRIOR, normal, np.zeros(N), summary=moments), od.uniform(9.0), draws=20, seed=1)
    with pytest.raises(ValueError, match=told):
        post.misfit(checks=checks)
    with pytest.raises(ValueError, match="n must be a whole number"):
        post.misfit(5)
    with pytest.raises(ValueError, match="misfit needs a model to simulate from"):
        replace(post, model=None).misfit()


# What is said, and what comes first


def test_a_misfit_is_the_headline_and_no_longer_run_is_advised(tmp_path, unrendered):
    model = od.Model(PRIOR, normal, torn(), summary=three)
    post = od.rejection(model, od.uniform(1.5), draws=30, seed=1)
    assert "times as long" in " ".join(judge(post).todo)
    found = post.misfit(seed=1)
    verdict = judge(post, (), found)
    assert verdict.headline == "The model does not reproduce these data: a longer run does not help."
    assert verdict.findings[0].name == "Misfit" and verdict.todo[0].startswith("Check ")
    assert found.worst.blamed[0].label in verdict.todo[0] and "Widen the prior" in verdict.todo[2]
    assert not any("long" in one or "budget" in one for one in verdict.todo)
    text = post.report(tmp_path / "run.html", predictive=100).read_text()
    assert verdict.headline in text and "at posterior draws (p = 0.0099) are at least as unusual" in text
    assert "nan" not in str(verdict).lower()


def test_a_report_has_the_checks_it_is_given(tmp_path, unrendered):
    data = np.random.default_rng(1).normal(1.0, 1.0, N)
    post = od.rejection(od.Model(PRIOR, normal, data, summary=moments), od.uniform(1.0), draws=500, seed=1)
    content = page.content_of(post, 40, checks={"range": np.ptp})
    assert [one.level for one in content["verdict"].findings if one.name == "Misfit"] == ["green"]
    assert "Misfit" not in [one.name for one in page.content_of(post, 0)["verdict"].findings]
    assert "Posterior predictive check" in post.report(tmp_path / "a.html", predictive=40).read_text()


def test_what_a_file_says_of_a_misfit_counts_without_the_model(tmp_path, quick):
    model = od.Model(PRIOR, normal, torn(), summary=three)
    od.infer(model, budget=1000, seed=1, draws=500, store=tmp_path / "run.db")
    verdict = judge(od.load(tmp_path / "run.db"))
    assert verdict.level == "red" and verdict.headline.startswith("The model does not reproduce these data")
    assert "summary[0]" in verdict.todo[0] and "Note" not in [one.name for one in verdict.findings]


def test_the_levels_of_p_values():
    rows = summaries("normal", np.random.default_rng(1), 200)
    post = od.rejection(od.Model(PRIOR, normal, np.zeros(N), summary=moments), od.uniform(9.0), draws=500, seed=1)
    middle = compare(rows, np.median(rows, axis=0))

    def level(prior, posterior):
        return judge(post, (), Misfit(middle._replace(p=prior), middle._replace(p=posterior))).findings[0].level

    # Both p-values count twice.
    assert [level(0.5, 0.01), level(0.0105, 0.5), level(0.025, 0.5), level(0.026, 0.03)] == [
        "red",
        "amber",
        "amber",
        "green",
    ]


def test_notes_name_who_is_to_blame():
    rows = summaries("normal", np.random.default_rng(1), 100)
    (note,) = predictive_check(rows, np.array([0.0, 3.0, 0.0]))
    assert "0 of 100 replicates are at least as unusual as the data; summary " in note and note.startswith(MISFIT)
    assert prior_check(None) == [] == prior_check(compare(rows, np.zeros(3)))
    found = compare(rows, np.array([0.0, 3.0, 0.0]), ["a", "b", "c"])
    (note,) = prior_check(found)
    assert note.startswith(f"{MISFIT} (prior predictive check, p = 0.0099): ") and "standard deviations from" in note
    assert kept({"misfit": packed(found)}).blamed == found.blamed and kept({}) is None


def test_with_few_replicates_the_data_must_be_clearly_beyond_them():
    rng, runs = np.random.default_rng(1), 400
    failed = 0
    for _ in range(runs):
        rows = summaries("normal", rng, 21)
        failed += predictive_check(rows[1:], rows[0])[0].startswith(MISFIT)
    # By rank alone 1 in 21 would fail.
    assert failed / runs < 0.035 + 2 * np.sqrt(0.035 / runs)
    assert predictive_check(rows[1:], np.array([30.0, 30.0, 0.0]))[0].startswith(MISFIT)


def test_no_sentence_says_nan():
    post = od.rejection(od.Model(PRIOR, normal, np.zeros(N), summary=moments), od.uniform(9.0), draws=50, seed=1)
    same = replace(post, draws={name: np.ones((1, 50)) for name in post.names})
    for one in (post, same):
        assert "nan" not in str(judge(one)).lower() and "inf" not in str(judge(one).todo).lower()
