import numpy as np
import pytest
from scipy import stats

import onedraw as od

BUILT_IN = [od.uniform, od.gaussian, od.epanechnikov, od.triangular, od.laplace]
FORMULAS = {
    "uniform": lambda u: (u < 1) * 1.0,
    "gaussian": lambda u: np.exp(-(u**2) / 2),
    "epanechnikov": lambda u: np.maximum(1 - u**2, 0),
    "triangular": lambda u: np.maximum(1 - u, 0),
    "laplace": lambda u: np.exp(-u),
}


@pytest.mark.parametrize("make", BUILT_IN)
def test_formulas(make):
    kernel = make(0.3)
    distance = np.concatenate([np.linspace(0, 1, 201), [0.3, np.inf, np.nan]])
    expected = np.nan_to_num(FORMULAS[kernel.name](distance / 0.3), nan=0.0)
    assert np.allclose(np.exp(kernel.log_weight(distance)), expected, atol=1e-15)
    assert kernel.log_weight(np.zeros(1))[0] == 0.0


def test_the_uniform_kernel_is_strict():
    assert od.uniform(0.5).log_weight(np.array([0.5, np.nextafter(0.5, 0)])).tolist() == [-np.inf, 0.0]


@pytest.mark.parametrize("make", BUILT_IN)
def test_the_log_of_an_average(make):
    kernel = make(0.7)
    distances = np.random.default_rng(1).exponential(0.5, (50, 6))
    with np.errstate(divide="ignore"):
        expected = np.log(np.exp(kernel.log_weight(distances)).mean(axis=1))
    assert np.allclose(kernel.log_average(distances), expected, rtol=1e-12)


def test_an_average_far_out_does_not_underflow():
    log_average = od.gaussian(0.01).log_average(np.array([[1.0, 2.0]]))
    assert log_average[0] == pytest.approx(-0.5 * 100**2 - np.log(2))


@pytest.mark.parametrize("make", BUILT_IN)
@pytest.mark.parametrize("eps", [0, -0.1, np.nan, np.inf, "small", True])
def test_bad_eps_is_refused(make, eps):
    with pytest.raises(ValueError, match="eps must be positive, got"):
        make(eps)


@pytest.mark.parametrize("make", BUILT_IN)
def test_without_a_tolerance_only_samplers_that_find_one_take_it(make):
    assert make().eps is None and make().with_eps(0.3) == make(0.3)
    model = od.Model(od.Prior(theta=stats.norm(0, 1)), od.batched(lambda rng, theta: rng.normal(theta, 1.0)), 2.0)
    with pytest.raises(ValueError, match=r"has no tolerance: give it one, as in od\."):
        od.rejection(model, make(), draws=5)
    assert od.smc(model, kernel=make(), budget=500, seed=1).settings["eps"] < 5


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (lambda u: 1 - u, "gives log K = 1 at distance/eps = 0"),
        (lambda u: np.where(u > 3, np.nan, -u), "never NaN"),
        (lambda u: 0.0, "must work on arrays"),
        (3.0, "must be a function"),
    ],
)
def test_bad_kernels_are_refused(profile, message):
    with pytest.raises(ValueError, match=message):
        od.kernel(profile, 0.1)


def test_a_kernel_that_passes_one_between_the_grid_points_is_caught_in_use():
    kernel = od.kernel(lambda u: np.where(np.abs(u - 1.2345678) < 1e-9, 0.5, -u), 1.0)
    with pytest.raises(ValueError, match="K at most 1"):
        kernel.log_weight(np.array([1.2345678]))


def test_a_kernel_scaled_too_low_is_pointed_out():
    with pytest.warns(UserWarning, match=r"K = 0\.368, not 1"):
        od.kernel(lambda u: -1.0 - u, 0.1)
