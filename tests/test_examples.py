"""The examples run at a small budget, and say what an exact computation says."""

import importlib.util
import itertools
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, linalg, special, stats

import onedraw as od
from onedraw.engines.streams import Rng
from onedraw.estimators.protocol import evaluate
from onedraw.results.monte_carlo_error import variances

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def chain_error(values):
    """The standard error of the mean of chains (chains, draws)."""
    return math.sqrt(variances(values).v_chain.value / values.size)


def test_examples_run_as_programs(tmp_path):
    """One of them: the others have the same last lines, and are run below without a new Python."""
    call = [sys.executable, EXAMPLES / "boarding_school.py", tmp_path / "figure.png", "--quick"]
    said = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    assert "others and stayed in bed for" in said.splitlines()[-1]
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_every_example_is_in_the_table():
    table = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f"]({path.name})" in table
        assert "--quick" in path.read_text() or path.stem in ("quickstart", "random_effects")


@pytest.fixture(scope="module")
def clinics():
    return load("random_effects")


def test_importance_sampling_is_unbiased(clinics):
    """Against quadrature, at parameters in the middle and at the edge of the posterior, for few and many draws."""
    for draws, mu, tau in ((1, 0.5, 0.4), (6, 0.5, 0.8), (6, -0.3, 1.5), (20, 1.0, 0.3)):
        theta = np.tile([mu, tau], (10_000, 1))
        log_estimate = evaluate(clinics.importance_sampling(draws), Rng(1, 1), theta, None).log_estimate
        ratio = np.exp(log_estimate - clinics.exact_log_likelihood(mu, tau))
        error = ratio.std(ddof=1) / np.sqrt(ratio.size)
        assert error < 0.02
        assert abs(ratio.mean() - 1) < 4 * error


def test_random_effects_have_the_exact_posterior(clinics, tmp_path, capsys):
    post = clinics.main(tmp_path / "figure.png", budget=800_000)
    said = capsys.readouterr().out.strip().splitlines()[-1]
    assert said.startswith("Clinics differ: their log odds spread by")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert 800_000 - 64 * 72 < post.cost.simulations <= 800_000
    mu, tau, density = clinics.exact_posterior()
    exact = {
        "mu": integrate.trapezoid(integrate.trapezoid(density, tau, axis=1) * mu, mu),
        "tau": integrate.trapezoid(integrate.trapezoid(density, mu, axis=0) * tau, tau),
    }
    for name, values in clinics.after_burn_in(post).items():
        found = variances(values)
        error = math.sqrt(found.v_chain.value / values.size)
        assert error < 0.1 * math.sqrt(found.v.value)
        assert abs(values.mean() - exact[name]) < 4 * error


@pytest.mark.slow
def test_advice_takes_a_function_from_draws_to_estimators(clinics):
    found = od.advise(estimator=clinics.importance_sampling, start={"mu": 0.5, "tau": 0.8}, budget=4_000_000, seed=1)
    assert found.cost.simulations <= 4_000_000
    # The product of twelve averages is accurate already with a few draws each.
    assert max(choice.most for choice in found.rules) <= 8
    assert found.particles is not None and found.particles <= 8


@pytest.fixture(scope="module")
def coalescent():
    return load("coalescent")


def test_the_number_of_sites_has_its_known_law(coalescent, monkeypatch):
    """Tavare's sum (1984), whose terms are too large for 63 sequences, and the mean age of a tree of six."""
    monkeypatch.setattr(coalescent, "LINEAGES", np.arange(2, 7))
    theta = np.array([0.5, 4.0])
    chance, age = np.array([coalescent.exact_likelihood(theta, sites) for sites in range(120)]).transpose(1, 0, 2)
    k = np.arange(1, 6)[:, None]
    signs = (-1.0) ** (k - 1) * special.comb(4, k - 1)
    for sites in (0, 3, 20):
        known = 5 / theta * (signs * (theta / (theta + k)) ** (sites + 1)).sum(axis=0)
        np.testing.assert_allclose(chance[sites], known, rtol=1e-9)
    np.testing.assert_allclose(age.sum(axis=0), 2 * (1 - 1 / 6), rtol=1e-7)


def test_rejection_on_a_count_is_exact(coalescent, tmp_path, capsys):
    post, chosen = coalescent.main(tmp_path / "figure.png", budget=200_000)
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert capsys.readouterr().out.strip().splitlines()[-1].startswith("The 26 variable sites put theta between")
    theta, density, age = coalescent.exact_posterior()
    law = integrate.cumulative_simpson(density, x=theta, initial=0)
    draws = post.draws["theta"][0]
    assert draws.size > 2000
    assert stats.kstest(draws, lambda x: np.interp(x, theta, law)).pvalue > 1e-3
    ages = coalescent.age_of(post)
    assert abs(ages.mean() - age) < 4 * ages.std() / math.sqrt(ages.size)
    row = chosen.summary()["theta"]
    assert abs(row.mean - integrate.simpson(theta * density, x=theta)) < 4 * row.mcse


@pytest.fixture(scope="module")
def school():
    return load("boarding_school")


def test_a_small_school_follows_its_exact_chain(school):
    """Six boys, one of them ill, over two days: every path of the chain against 40,000 simulated ones."""
    r0, recovery, boys, step = 3.0, 1.5, 6, 1 / school.STEPS
    law = {(boys - 1, 1): 1.0}
    for _ in range(2 * school.STEPS):
        after = {}
        for (well, ill), chance in law.items():
            catch = stats.binom(well, 1 - math.exp(-r0 / recovery * ill / boys * step))
            recover = stats.binom(ill, 1 - math.exp(-step / recovery))
            for new, gone in itertools.product(range(well + 1), range(ill + 1)):
                to = well - new, ill + new - gone
                after[to] = after.get(to, 0.0) + chance * catch.pmf(new) * recover.pmf(gone)
        law = after
    ones = np.ones(40_000)
    seen, ever = school.epidemic(np.random.default_rng(1), r0 * ones, recovery * ones, boys=boys, first=1, days=3)
    for (well, ill), chance in law.items():
        share = np.mean((seen[:, -1] == ill) & (ever == boys - well))
        assert abs(share - chance) < 4.5 * math.sqrt(chance * (1 - chance) / ones.size) + 1e-12


@pytest.mark.slow
def test_the_school_by_sequential_abc_is_that_by_rejection(school, capsys):
    post, ever = school.main(budget=10_000)
    assert f"outbreaks reach {np.median(ever):.0f} of 763 boys" in capsys.readouterr().out
    assert post.cost.simulations <= 10_000
    known = od.rejection(school.model, od.uniform(post.settings["eps"]), budget=150_000, seed=2)
    assert known.shape[1] > 100
    for name, row in post.summary().rows.items():
        other = known.summary()[name]
        assert abs(row.mean - other.mean) < 4 * math.hypot(row.mcse, other.mcse)
    # An SIR model with such an R0 leaves next to nobody out, whatever the data say of it.
    assert 700 < np.median(ever) <= school.BOYS


@pytest.fixture(scope="module")
def quantiles():
    return load("g_and_k")


def g_and_k(z, a, b, g, k):
    """The usual form, with exponentials."""
    return a + b * (1 + 0.8 * (1 - np.exp(-g * z)) / (1 + np.exp(-g * z))) * (1 + z**2) ** k * z


def test_octiles_have_the_law_of_order_statistics(quantiles):
    theta = np.array([3.0, 1.0, 2.0, 0.5])
    columns = dict(zip("abgk", np.repeat(theta[:, None], 4000, axis=1), strict=True))
    drawn = quantiles.octiles(quantiles.simulate(np.random.default_rng(1), **columns))
    for place, rank in enumerate(quantiles.RANKS.tolist()):
        for shift in (-0.02, 0.0, 0.02):
            at = rank / (quantiles.OBSERVATIONS + 1) + shift
            chance = stats.beta.cdf(at, rank, quantiles.OBSERVATIONS + 1 - rank)
            share = np.mean(drawn[:, place] < g_and_k(stats.norm.ppf(at), *theta))
            assert abs(share - chance) < 4.5 * math.sqrt(chance * (1 - chance) / len(drawn))


def test_the_likelihood_of_octiles_is_that_of_uniform_ones_transformed(quantiles):
    """Differences between parameters, so that constants cancel; the slope of the transform by finite differences."""
    x = quantiles.model.observed_row
    gaps = np.diff(quantiles.RANKS, prepend=0, append=quantiles.OBSERVATIONS + 1)
    known, thetas = [], np.array([[3.0, 1.0, 2.0, 0.5], [2.9, 0.9, 1.7, 0.6], [3.2, 1.4, 2.4, 0.2]])
    for theta in thetas:
        z = np.linspace(-6, 6, 240_001)
        u = stats.norm.cdf(np.interp(x + np.array([[-1], [0], [1]]) * 1e-4, g_and_k(z, *theta), z))
        share = np.diff(u[1], prepend=0, append=1)
        known.append(stats.dirichlet.logpdf(share, gaps) + np.log((u[2] - u[0]) / 2e-4).sum())
    found = quantiles.exact_log_likelihood(thetas)
    np.testing.assert_allclose(found - found[0], np.array(known) - known[0], atol=2e-3)


@pytest.mark.slow
def test_infer_comes_near_the_exact_posterior_of_g_and_k(quantiles, tmp_path, capsys, paced):
    post, exact = quantiles.main(tmp_path / "figure.png", budget=1_500)
    assert (
        capsys.readouterr().out.strip().splitlines()[-1].startswith("From 1,500 simulations all four means lie within")
    )
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    for name, values in exact.items():
        row, error = post.summary()[name], chain_error(values)
        assert error < 0.1 * values.std()
        # Half a standard deviation for what regression leaves, which the Monte Carlo error does not know of.
        assert abs(row.mean - values.mean()) < 4 * math.hypot(row.mcse, error) + 0.5 * values.std()


@pytest.fixture(scope="module")
def animals():
    return load("lotka_volterra")


def test_gillespie_follows_the_master_equation(animals, monkeypatch):
    """Three prey and two predators at time 1, against the exponential of the generator on counts below 25."""
    birth, predation, death, most = 0.5, 0.3, 0.8, 25
    generator = np.zeros((most, most, most, most))
    for prey, predators in itertools.product(range(most), repeat=2):
        for (x, y), rate in {
            (prey + 1, predators): birth * prey,
            (prey - 1, predators + 1): predation * prey * predators,
            (prey, predators - 1): death * predators,
        }.items():
            generator[prey, predators, prey, predators] -= rate
            if 0 <= x < most and 0 <= y < most:
                generator[prey, predators, x, y] += rate
    start = np.zeros((most, most))
    start[3, 2] = 1.0
    law = start.ravel()
    matrix = np.eye(most**2) + generator.reshape(most**2, most**2) / 4096
    for _ in range(12):
        matrix = matrix @ matrix
    law = (law @ matrix).reshape(most, most)
    assert law.sum() > 1 - 1e-5
    monkeypatch.setattr(animals, "TIMES", np.array([1.0]))
    rng = np.random.default_rng(1)
    seen = np.array([animals.simulate(rng, birth, predation, death, prey=3, predators=2)[0] for _ in range(8_000)])
    for prey, predators in itertools.product(range(6), repeat=2):
        chance = law[prey, predators]
        share = np.mean((seen == (prey, predators)).all(axis=1))
        assert abs(share - chance) < 4.5 * math.sqrt(chance / len(seen)) + 2e-4


@pytest.mark.slow
def test_predators_and_prey(animals, tmp_path, capsys, monkeypatch, paced):
    post = animals.main(tmp_path / "figure.png", budget=200)
    assert "true rates lie in their 90 % intervals." in capsys.readouterr().out.strip().splitlines()[-1]
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert post.cost.simulations <= 200
    assert 0 < post.cost.failed < 100
    # Two hundred simulations tell each rate to a factor of three, of a hundred in the prior.
    for name, truth in animals.TRUTH.items():
        assert abs(np.log(post.draws[name]).mean() - math.log(truth)) < math.log(3)
    monkeypatch.setattr(animals, "MOST", 100)
    assert np.isnan(animals.simulate(np.random.default_rng(1), **animals.TRUTH)[-1]).all()


@pytest.fixture(scope="module")
def nile():
    return load("shared_setup")


def test_sums_of_the_noise_spread_like_a_power(nile):
    """What defines fractional Gaussian noise: the variance of the sum over n years is n^(2 hurst)."""
    for hurst in (0.3, 0.5, 0.9):
        matrix = nile.correlation(hurst, 40)
        sums = [matrix[:n, :n].sum() for n in range(1, 41)]
        np.testing.assert_allclose(sums, np.arange(1, 41) ** (2 * hurst), rtol=1e-9)
        root = nile.prepare(hurst)
        drawn = nile.draw(np.random.default_rng(1), root, 20_000).sum(axis=1)
        assert abs(drawn.var() / 100 ** (2 * hurst) - 1) < 4 * math.sqrt(2 / drawn.size)


def test_the_likelihood_of_the_nile_is_that_of_its_contrasts(nile):
    """Of yearly differences, which do not know the mean."""
    grid, density = nile.exact_posterior(points=50)
    log_density = []
    for hurst in grid:
        matrix = np.diff(np.diff(nile.correlation(hurst), axis=0), axis=1)
        change = np.diff(nile.FLOW)
        square = change @ linalg.solve(matrix, change)
        log_density.append(-np.linalg.slogdet(matrix)[1] / 2 - change.size / 2 * math.log(square))
    ratio = np.log(density) - np.array(log_density)
    assert np.ptp(ratio[density > 1e-6]) < 1e-6


@pytest.mark.slow
def test_more_series_a_set_up_leave_the_posterior_as_it_is(nile, tmp_path, capsys):
    posts = nile.main(tmp_path / "figure.png", draws=250, pseudo_samples=(1, 16), advice=0)
    assert capsys.readouterr().out.strip().splitlines()[-1].startswith("The Nile has a long memory")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    one, many = posts[1], posts[16]
    errors = [chain_error(post.draws["hurst"]) for post in (one, many)]
    assert max(errors) < 0.02
    assert abs(one.draws["hurst"].mean() - many.draws["hurst"].mean()) < 4 * math.hypot(*errors)
    # A set-up serves all series at an exponent, and more of them are accepted more often, if not in proportion.
    assert one.cost.setups == one.cost.simulations and many.cost.setups < many.cost.simulations / 10
    assert 2 * one.acceptance_rate < many.acceptance_rate < 16 * one.acceptance_rate


@pytest.fixture(scope="module")
def measles():
    if shutil.which("awk") is None:
        pytest.skip("there is no awk")
    return load("external_program")


def test_the_program_follows_borel_and_tanner(measles, tmp_path):
    simulate, rng, r = measles.command(tmp_path), np.random.default_rng(1), 0.5
    runs = [simulate(rng, r=r) for _ in range(100)]
    totals, spread = (np.array([float(run[key]) for run in runs]) for key in ("cases", "spread"))
    n = measles.CHAINS
    assert abs(totals.mean() - n / (1 - r)) < 4 * math.sqrt(n * r / (1 - r) ** 3 / len(runs))
    several = 1 - math.exp(-r)
    assert abs(spread.mean() - n * several) < 4 * math.sqrt(n * several * (1 - several) / len(runs))
    grid, density = measles.exact_posterior()
    known = stats.gamma(measles.CASES - n + 1, scale=1 / measles.CASES)
    np.testing.assert_allclose(density, known.pdf(grid) / known.cdf(1.2), atol=1e-6 * density.max())
    # Every total allowed, all r below 1 are equally likely: the chances of all totals add up to one.
    grid, density = measles.exact_posterior(eps=20_000, points=120)
    assert np.ptp(density[grid < 0.9]) < 1e-6


@pytest.mark.slow
def test_measles_by_a_program(measles, tmp_path, capsys):
    post, predicted = measles.main(tmp_path / "figure.png", budget=800)
    said = capsys.readouterr().out.strip().splitlines()
    assert said[0].startswith("A program that hangs: all of the first 2 simulations failed.")
    assert "TimedOut: awk not finished after timeout = 0.2 s, and killed" in said[0]
    assert said[-1].startswith("A case infected")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert 0 < post.cost.failed < post.cost.simulations <= 800
    assert "status 3: outbreak out of hand" in post.failures[0].message
    assert post.failures[0].theta["r"] > 0.9
    grid, density = measles.exact_posterior(post.settings["eps"])
    row = post.summary()["r"]
    assert abs(row.mean - np.average(grid, weights=density)) < 4 * row.mcse
    assert np.mean(predicted > measles.SPREAD) > 0.9


def test_both_estimates_of_infer_come_near_the_exact_posterior(tmp_path, capsys, paced):
    doses = load("two_estimates")
    draws = doses.main(tmp_path / "figure.png")
    assert capsys.readouterr().out.startswith("exact: mean 2.57, sd 0.37")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    # A posterior from 100 simulations is uncertain by more than its draws: within two of the exact deviations.
    for values in draws.values():
        assert abs(np.median(values) - 2.52) < 2 * 0.37
    # What the picture shows: the learnt likelihood follows the bend, and is the narrower by far.
    low, high = (np.quantile(draws["learnt likelihood"], p) for p in (0.05, 0.95))
    wide = np.quantile(draws["regression"], 0.95) - np.quantile(draws["regression"], 0.05)
    assert high - low < 0.8 * wide


@pytest.mark.slow
def test_eight_schools_are_pooled_as_they_should_be(tmp_path, capsys, paced):
    post, mean, sd = load("eight_schools").main(tmp_path / "figure.png", budget=1_000)
    assert (
        capsys.readouterr().out.strip().splitlines()[-1].startswith("From 1,000 simulations all ten means lie within")
    )
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert post.draws["effect"].shape == (*post.shape, 8)
    rows = list(post.summary().rows.values())
    # A quarter of a standard deviation for what the surrogate leaves, which the Monte Carlo error does not know of.
    for row, middle, spread in zip(rows, mean, sd, strict=True):
        assert abs(row.mean - middle) < 4 * row.mcse + 0.25 * spread


def test_two_mechanisms_have_the_same_epidemic_without_a_latent_period():
    """An SEIR model whose exposed boys become infectious at once is the SIR model, and both have the same total."""
    school = load("two_mechanisms")
    n = 4000
    one = school.sir(np.random.default_rng(1), np.full(n, 3.0), np.full(n, 2.0))
    quick = np.full(n, 1e-9)
    other = school.seir(np.random.default_rng(2), np.full(n, 3.0), np.full(n, 2.0), quick, np.zeros(n))
    error = np.sqrt((one.var(axis=0) + other.var(axis=0)) / n) + 1e-9
    assert np.all(np.abs(one.mean(axis=0) - other.mean(axis=0)) < 4 * error)
    assert one.shape == (n, 14) and one.max() <= school.BOYS and one.min() >= 0


@pytest.mark.slow
def test_two_mechanisms_are_compared(paced):
    found = load("two_mechanisms").main(budget=400)
    assert set(found.probabilities) == {"SIR", "SEIR"} and found.cost.simulations <= 400
    assert found.posteriors["SEIR"].names == ("r0", "recovery", "latent", "exposed")


def test_the_population_of_the_first_page(tmp_path, capsys, paced):
    example = load("population")
    post = example.main(tmp_path / "figure.png", budget=300)
    assert "growth" in capsys.readouterr().out and (tmp_path / "figure.png").stat().st_size > 10_000
    for name, row in post.summary().rows.items():
        assert abs(row.mean - example.TRUTH[name]) < 3 * row.sd
