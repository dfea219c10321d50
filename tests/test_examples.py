"""The examples run at a small budget, and say what an exact computation says."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate

import onedraw as od
from onedraw.engine.streams import Rng
from onedraw.estimator import evaluate
from onedraw.theory.efficiency import variances

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


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


def test_advice_takes_a_function_from_draws_to_estimators(clinics):
    found = od.advise(estimator=clinics.importance_sampling, start={"mu": 0.5, "tau": 0.8}, budget=4_000_000, seed=1)
    assert found.cost.simulations <= 4_000_000
    # The product of twelve averages is accurate already with a few draws each.
    assert max(choice.most for choice in found.rules) <= 8
    assert found.particles is not None and found.particles <= 8
