"""The JAX engine against published numbers, SciPy, the NumPy engine and exact answers.

Compiling is what takes the time here, so models share their prior and simulator (programs are kept by these) and runs
share their number of chains. Seeds are fixed; a correct engine passes each check with probability above 0.9999.
"""

import itertools
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy import stats

import onedraw as od
from onedraw import paper
from onedraw.cost import Cost
from onedraw.engines import jax as device
from onedraw.engines import jax_keys as device_keys
from onedraw.engines import jax_streams as device_streams
from onedraw.engines.arrays import DeviceParts
from onedraw.engines.jax_streams import DeviceRng
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.estimators.abc_average import AbcAverage
from onedraw.estimators.protocol import Evaluation
from onedraw.model.distance import Mahalanobis
from onedraw.paper import finite_chains as grid_chains
from onedraw.paper.study import quadrature as study
from onedraw.paper.study.settings import Toy
from onedraw.proposals.protocol import Proposed
from onedraw.proposals.resolve import resolve
from onedraw.run import prior_draws
from onedraw.run import starts as start
from onedraw.run.blocks import Block
from onedraw.run.options import placed
from onedraw.run.starts import next_block
from onedraw.samplers import pseudo_marginal, r_hit, wilkinson
from tests.deadlines import LONG, up_after
from tests.reference import Y_OBS, Exact, hit
from tests.reference import toy as numpy_toy
from tests.test_particle_filter import DATA, A, check_unbiased, exact_posterior, joint_normal, linear

UNIFORM, GAUSSIAN = od.uniform(0.6), od.gaussian(0.5)
PRECISIONS = ("float32", "float64")
PRIOR = od.Prior(theta=stats.norm(0, 1))


def simulate(key, theta):
    return theta + jax.random.normal(key)


def toy(y_obs=Y_OBS, function=simulate, **more):
    return od.Model(PRIOR, od.jax_simulator(function), observed=y_obs, **more)


def average(model, kernel=UNIFORM, pseudo_samples=1, engine="jax:float64", **more):
    """The ABC average on the engine."""
    return placed(AbcAverage(model, kernel, pseudo_samples, **more), engine)


# Random streams


def test_threefry_gives_the_published_numbers():
    """The known answers of Threefry-2x32 with 20 rounds, published with Random123."""
    known = [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ]
    for key, counter, expected in known:
        found = device_keys.threefry(tuple(map(jnp.uint32, key)), *map(jnp.uint32, counter))
        assert tuple(map(int, found)) == expected


def test_threefry_is_the_hash_of_jax():
    words = np.random.default_rng(1).integers(0, 2**32, (4, 1000), dtype=np.uint32)
    key = jnp.asarray(words[0, :2])
    x, y = device_keys.threefry((key[0], key[1]), jnp.asarray(words[2]), jnp.asarray(words[3]))
    expected = np.asarray(threefry_2x32(key, jnp.asarray(words[2:].reshape(-1)))).reshape(2, -1)
    assert (np.stack([x, y]) == expected).all()


def rng_of(seed=1, phase=4, first=0, step=0, precision="float64"):
    name = device_streams.StreamName.of(Rng(seed, phase, first, step))
    return device_streams.DeviceRng.of(name, np.dtype(precision))


NAMES = [
    {}, {"seed": 2}, {"seed": 1 + 2**32}, {"seed": 1 + 2**63}, {"phase": 5}, {"first": 1}, {"first": 2**32},
    {"first": 2**32 + 1}, {"step": 1}, {"step": 2}, {"purpose": 4}, {"chunk": 1}, {"chunk": 2}, {"sample": 1},
    {"sample": 2}, {"step": 1, "sample": 1}, {"first": 1, "step": 1}, {"purpose": 4, "step": 1},
]  # fmt: skip


@pytest.mark.parametrize("kind", [device_keys.key_of, device_keys.threefry_key], ids=lambda kind: kind.__name__)
def test_every_name_has_a_stream_of_its_own(kind):
    def bits(purpose=3, chunk=0, sample=0, **name):
        return np.asarray(jax.random.bits(kind(rng_of(**name).named(purpose, chunk), sample), (200,)))

    every = np.stack([bits(**name) for name in NAMES])
    # Not a number of one in any other: of 3600 words of 32 bits, 0.0015 pairs agree by chance.
    assert len(np.unique(every)) == every.size
    assert (bits(step=1) == every[NAMES.index({"step": 1})]).all()


def test_split_and_folded_keys_have_streams_of_their_own():
    key = device_keys.key_of((jnp.uint32(3), jnp.uint32(4)), 5)
    keys = [*jax.random.split(key, 4), jax.random.fold_in(key, 7), *jax.random.split(jax.random.split(key)[1])]
    every = np.stack([jax.random.bits(one, (200,)) for one in keys])
    assert len(np.unique(every)) == every.size
    with jax.enable_x64(True):
        wide = np.asarray(jax.random.bits(key, (200,), jnp.uint64))
    assert len(np.unique(np.concatenate([wide >> 32, wide & 0xFFFFFFFF]))) == 400


def test_a_step_beyond_the_words_of_a_key_is_refused():
    with pytest.raises(ValueError, match=r"step = 4294967296 is beyond the 2\*\*32"):
        device_streams.StreamName.of(Rng(1, 4, 0, 2**32))


def test_no_two_simulations_share_their_numbers():
    """Rows, pseudo-samples, steps and blocks: a key without one of them would repeat a number."""
    estimator = average(od.Model(PRIOR, od.jax_simulator(noise), 0.0), pseudo_samples=3)
    theta = np.zeros((100, 1))
    found = [estimator.evaluate(Rng(1, 4, *place), theta, None).distances for place in [(0, 0), (0, 1), (100, 0)]]
    assert len(np.unique(found)) == 900
    model, again = estimator.model, Rng(1, 4)
    rows = [model.simulate_rows(again, theta, None, 2, *place).rows for place in [(0, 0), (2, 0), (0, 1)]]
    assert len(np.unique(np.abs(rows))) == 600


def noise(key, theta):
    return jax.random.normal(key)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_exponentials_count_every_bit(precision, monkeypatch):
    """Small u, which decide rare acceptances, are not rounded to multiples of 2**-23 (whose largest log is 15.9)."""
    width = int(precision[-2:])
    asked = [0, 1, 2, 5, 2**9 + 1, 2 ** (width - 1)]
    stream = rng_of(precision=precision).bulk(Purpose.ACCEPT)
    with device.Engine(precision).active():
        whole = jnp.asarray(np.array(asked, dtype=f"uint{width}"))
        monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype: whole)
        found = np.asarray(stream.standard_exponential(len(asked)))
    assert found.dtype == precision
    assert found == pytest.approx(width * np.log(2) - np.log(np.array(asked) + 0.5), rel=1e-6)
    assert found[0] > 16.7


@pytest.mark.parametrize("precision", PRECISIONS)
def test_draws_of_a_stream(precision):
    """The methods of a NumPy Generator that users' proposals and filters may call."""

    def every():
        stream = rng_of(seed=5, precision=precision).bulk(Purpose.MOVE)
        low = jnp.zeros(20_000)
        return {
            "norm": stream.standard_normal(20_000),
            "uniform": stream.random((20_000,)),
            "expon": stream.standard_exponential(20_000),
            "shifted": (stream.normal(2.0, 3.0, 20_000) - 2.0) / 3.0,
            "by parameter": stream.normal(low, 1.0),
            "between": (stream.uniform(-1.0, low + 1.0) + 1.0) / 2.0,
            "scaled": stream.exponential(low + 2.0) / 2.0,
        }

    with device.Engine(precision).active():
        drawn = {name: np.asarray(values) for name, values in jax.jit(every)().items()}
    laws = {"shifted": "norm", "by parameter": "norm", "between": "uniform", "scaled": "expon"}
    for name, values in drawn.items():
        assert values.dtype == precision and values.shape == (20_000,)
        assert stats.kstest(values.astype(float), laws.get(name, name)).pvalue > 1e-4, name
    # Calls of one stream have keys of their own.
    assert abs(np.corrcoef(drawn["norm"], drawn["shifted"])[0, 1]) < 4 / np.sqrt(20_000)


# Priors

FAMILIES = {
    "norm": stats.norm(1, 2),
    "uniform": stats.uniform(-1, 3),
    "expon": stats.expon(0.5, 2),
    "gamma": stats.gamma(2.5, 1, 0.7),
    "gamma of 1": stats.gamma(1.0),
    "beta": stats.beta(2, 3, -1, 2),
    "lognorm": stats.lognorm(0.6, 0.25, 1.5),
    "t": stats.t(4, 1, 2),
    "randint": stats.randint(-2, 5),
    "poisson": stats.poisson(3.5, loc=1),
}
ONES = {name: od.Prior(x=law) for name, law in FAMILIES.items()}


@pytest.mark.parametrize(("precision", "error"), [("float64", 1e-12), ("float32", 2e-5)])
def test_log_densities_are_those_of_numpy(precision, error):
    x = np.concatenate([np.linspace(-6, 9, 301), np.arange(-6.0, 9), [0.25, 0.5, -1.0, 2.0]])
    with device.Engine(precision).active():
        there = jnp.asarray(x[:, None], precision)
        found = jax.jit(lambda theta: {name: prior.logpdf(theta) for name, prior in ONES.items()})(there)
        found = {name: np.asarray(values, dtype=float) for name, values in found.items()}
    x = x.astype(precision).astype(float)
    for name, prior in ONES.items():
        expected = prior.logpdf(x[:, None])
        law = FAMILIES[name]
        direct = law.logpmf(x) if prior.discrete[0] else law.logpdf(x)
        assert expected == pytest.approx(direct, rel=1e-9), name
        assert (np.isneginf(found[name]) == np.isneginf(expected)).all(), name
        inside = np.isfinite(expected)
        assert inside.any() and (name in ("norm", "t") or not inside.all())
        assert found[name][inside] == pytest.approx(expected[inside], rel=error, abs=error), name


@pytest.mark.parametrize("precision", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_draws_of_every_family(precision):
    n = 20_000
    with device.Engine(precision).active():
        drawn = jax.jit(
            lambda: {
                name: prior.sample(rng_of(seed=k, precision=precision).bulk(Purpose.PRIOR), n)
                for k, (name, prior) in enumerate(ONES.items())
            }
        )()
    for name, prior in ONES.items():
        values, law = np.asarray(drawn[name])[:, 0], FAMILIES[name]
        assert values.dtype == precision
        if not prior.discrete[0]:
            assert stats.kstest(values.astype(float), law.cdf).pvalue > 1e-4, name
            continue
        assert (values == np.floor(values)).all()
        cells = np.arange(law.ppf(0.001), law.ppf(0.999) + 1)
        share = np.append(law.pmf(cells), 1 - law.pmf(cells).sum())
        counts = np.append([(values == cell).sum() for cell in cells], 0)
        counts[-1] = n - counts.sum()
        seen = share > 1e-9
        assert not counts[~seen].any() and stats.chisquare(counts[seen], n * share[seen]).pvalue > 1e-4, name


def test_a_constraint_draws_each_row_again_until_it_holds():
    prior = od.Prior(a=stats.uniform(0, 1), b=stats.uniform(0, 1), where=lambda a, b: a < b * 0.5)
    with device.Engine("float64").active():
        theta = jax.jit(lambda: prior.sample(rng_of(seed=9).bulk(Purpose.PRIOR), 20_000))()
        points = jnp.asarray([[0.1, 0.9], [0.9, 0.1], [0.2, 2.0]])
        assert np.asarray(prior.logpdf(points)).tolist() == [0.0, -np.inf, -np.inf]
    a, b = np.asarray(theta).T
    assert (a < 0.5 * b).all() and len(np.unique(a)) == a.size
    assert stats.kstest(b, lambda x: x**2).pvalue > 1e-4
    assert stats.kstest(a / b * 2, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("engine", ["jax:float32", pytest.param("jax:float64", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_whole_numbers_reach_the_simulator_as_integers(engine):
    def count(key, k, mu, n):
        assert jnp.issubdtype(k.dtype, jnp.integer) and jnp.issubdtype(n.dtype, jnp.integer)
        # A model is traced once for its mistakes, with the precision of the device.
        assert mu.dtype in (engine[4:], "float64" if jax.default_backend() == "cpu" else "float32")
        return k + 10 * n + 0.0 * jax.random.normal(key)

    prior = od.Prior(k=stats.randint(-3, 4), mu=stats.norm(), n=stats.poisson(2))
    model = od.Model(prior, od.jax_simulator(count), observed=11.0)
    post = od.rejection(model, od.uniform(0.5), budget=500, seed=1, engine=engine)
    assert post.draws["k"].dtype == post.draws["n"].dtype == np.int64
    assert len(post.draws["k"]) and (post.draws["k"] + 10 * post.draws["n"] == 11).all()


# The same decisions from the same numbers


class Tape:
    """Recorded numbers in the place of random ones."""

    def __init__(self, normals, uniforms, exponentials, noise):
        self.normals, self.uniforms, self.exponentials, self.noise = normals, uniforms, exponentials, noise

    def bulk(self, purpose, chunk=0):
        return self

    def standard_normal(self, size):
        return self.normals.reshape(size)

    def random(self, size):
        return self.uniforms.reshape(size)

    def standard_exponential(self, size):
        return self.exponentials.reshape(size)


class HereTape(Tape, Rng):
    """The same for the NumPy engine, which knows its streams by their class."""


class TapeEstimator:
    """The ABC average of recorded noise."""

    log_bound = 0.0

    def __init__(self, prior, kernel):
        self.prior, self.kernel = prior, kernel

    def evaluate(self, rng, theta, log_needed):
        distances = abs(theta + rng.noise - Y_OBS)
        return Evaluation(self.kernel.log_average(distances), distances, Cost(distances.size))

    on_device = evaluate


def drift(rng, theta, shift=0.3, sd=0.7):
    step = shift + sd * rng.standard_normal(theta.shape)
    return theta + step, (-2 * shift * step[:, 0]) / sd**2


PROPOSALS = {
    "walk": od.random_walk(0.5),
    "independence": od.independence(),
    "off-centre": od.independence(stats.norm(1.0, 1.3)),
    "lazy": od.lazy(od.random_walk(0.5), hold=0.3),
    "function": drift,
}
CHAINS, STEPS = 50, 30


def tapes(pseudo_samples, seed=1):
    rng = np.random.default_rng(seed)
    for _ in range(STEPS):
        yield (
            rng.standard_normal(CHAINS), rng.random(CHAINS), rng.standard_exponential(CHAINS),
            rng.standard_normal((CHAINS, pseudo_samples)),
        )  # fmt: skip


def same_steps(sampler, there, state, tapes):
    """Steps of a sampler here and by `there(state, tape)` on JAX: equal at each; how many were moves."""
    moves = held = 0
    with device.Engine("float64").active():
        other = jax.tree.map(jnp.asarray, state)
        for numbers in tapes:
            state, info = sampler.step(HereTape(*numbers), state)
            other, accepted, proposals = there(other, tuple(map(jnp.asarray, numbers)))
            assert (np.asarray(accepted) == info.accepted).all()
            assert (np.asarray(proposals) == info.proposals).all()
            for a, b in zip(state, other, strict=True):
                assert isinstance(a, np.ndarray) and not isinstance(b, np.ndarray)
                assert np.asarray(b) == pytest.approx(a, rel=1e-12, abs=1e-12)
            moves += int(info.accepted.sum())
            held += 0 if isinstance(info.proposals, int) else int((~info.proposals).sum())
    return moves, held


DECIDED = {"uniform": od.uniform(1.2), "gaussian": od.gaussian(0.8), "epanechnikov": od.epanechnikov(2.0),
           "laplace": od.laplace(0.7)}  # fmt: skip
DECISIONS = [
    # Every kernel with a walk, every proposal with the uniform kernel; the slow tests have the rest.
    one if "walk" in one or "uniform" in one else pytest.param(*one, marks=pytest.mark.slow)
    for one in itertools.product(DECIDED, ("M=1", "M=4", "wilkinson"), PROPOSALS)
]


@pytest.mark.parametrize(("kernel", "algorithm", "proposal"), DECISIONS)
def test_the_decisions_are_those_of_numpy(kernel, algorithm, proposal):
    kernel = DECIDED[kernel]
    pseudo_samples = 4 if algorithm == "M=4" else 1
    # Independence proposals would be drawn again where a constraint fails; walks are to be rejected there.
    where = None if "ind" in proposal or "off" in proposal else lambda theta: theta > 0.2
    prior = PRIOR if where is None else od.Prior(theta=stats.norm(0, 1), where=where)
    estimator, walk = TapeEstimator(prior, kernel), resolve(PROPOSALS[proposal], prior, lambda: None)
    theta = np.full((CHAINS, 1), 1.5)
    distances = np.full((CHAINS, pseudo_samples), 0.5)
    log_prior = prior.logpdf(theta)
    if algorithm == "wilkinson":
        sampler = wilkinson.Wilkinson(estimator, walk, True)
        state = wilkinson.State(theta, log_prior, distances)
    else:
        sampler = pseudo_marginal.PseudoMarginal(estimator, walk, True, pseudo_samples)
        state = pseudo_marginal.State(theta, log_prior, kernel.log_average(distances), distances)

    def there(state, tape):
        state, info = sampler.step(Tape(*tape), state)
        return state, info.accepted, info.proposals

    moves, held = same_steps(sampler, there, state, tapes(pseudo_samples))
    assert 0.05 * CHAINS * STEPS < moves < 0.9 * CHAINS * STEPS
    assert (held > 0) == (proposal == "lazy")


@pytest.mark.parametrize(
    ("hits", "proposal"),
    [(1, "lazy"), (2, "walk"), (3, "lazy"),
     *(pytest.param(*one, marks=pytest.mark.slow) for one in ((1, "walk"), (2, "lazy"), (3, "walk")))],
)  # fmt: skip
def test_the_decisions_of_races_are_those_of_numpy(hits, proposal, monkeypatch):
    eps, most = 1.5, 400

    def distances(self, theta, runners, number):
        xp = jnp if isinstance(theta, jax.Array) else np
        found = xp.where(runners, abs(theta[:, 0] + self.rng.noise[:, number] - Y_OBS), np.inf)
        spent = r_hit.Spent() if xp is np else self.nothing(theta)
        return found, spent

    monkeypatch.setattr(r_hit.Tries, "distances", distances)
    prior = od.Prior(theta=stats.norm(0, 1), where=lambda theta: theta > 0.2)
    estimator = AbcAverage(numpy_toy(), od.uniform(eps))
    sampler = r_hit.RHit(estimator, resolve(PROPOSALS[proposal], prior, lambda: None), hits, most)
    theta = np.full((CHAINS, 1), 1.5)
    state = r_hit.State(theta, prior.logpdf(theta), np.full((CHAINS, 1), 0.5))

    @jax.jit
    def there(state, tape):
        state, info = sampler.step(Tape(*tape), state)
        return state, info.accepted, info.proposals

    moves, held = same_steps(sampler, there, state, tapes(most + 2))
    assert 0.1 * CHAINS * STEPS < moves < 0.9 * CHAINS * STEPS
    assert (held > 0) == (proposal == "lazy")


# Exactness


def agrees(post, exact):
    draws = post.draws["theta"]
    chains = len(draws)
    assert stats.kstest(draws[:, -1], exact.cdf).pvalue > 1e-4
    means = draws.mean(axis=1)
    assert abs(means.mean() - exact.mean) < 4 * means.std() / np.sqrt(chains)
    spreads = ((draws - exact.mean) ** 2).mean(axis=1)
    assert abs(spreads.mean() - exact.sd**2) < 4 * spreads.std() / np.sqrt(chains)


MANY = {"chains": 4096, "draws": 30, "seed": 21}
WALK, PRIOR_DRAWS = od.random_walk(0.49), od.independence()


def exact_rate_of_walk(chain, eps=0.6):
    grid = np.linspace(-1.8, 5.0, 137)
    problem = grid_chains.discretise(stats.norm.pdf, lambda t: hit(t, od.uniform(eps)), grid, scale=0.7)
    return grid_chains.acceptance_rate(chain(problem))


@pytest.mark.parametrize("kernel", [UNIFORM, GAUSSIAN], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(
    ("engine", "pseudo_samples"), [("jax", 1), pytest.param("jax:float32", 2, marks=pytest.mark.slow)]
)
def test_rejection_is_exact(kernel, engine, pseudo_samples):
    post = od.rejection(toy(), kernel, budget=60_000, pseudo_samples=pseudo_samples, seed=11, engine=engine)
    exact = Exact(kernel)
    proposals = 60_000 // pseudo_samples
    assert post.cost.simulations == proposals * pseudo_samples and post.cost.proposals == proposals
    assert stats.kstest(post.draws["theta"].ravel(), exact.cdf).pvalue > 1e-4
    error = np.sqrt(exact.acceptance * (1 - exact.acceptance) / proposals)
    assert abs(post.acceptance_rate - exact.acceptance) < 4 * error
    nearest = post.distances.reshape(-1, pseudo_samples).min(axis=1)
    assert nearest.max() < 0.6 + 1e-6 or not kernel.indicator


def test_an_estimate_that_u_equals_is_not_accepted():
    """u < estimate / bound, strictly, and never an estimate of zero."""
    log_u, log_estimate = np.array([-1.0, -1.0, -1.0, -0.9]), np.array([-1.0, -0.9, -np.inf, -1.0])
    for xp in (np, jnp):
        found = prior_draws.passes(xp.asarray(log_u), xp.asarray(log_estimate), 0.0)
        assert np.asarray(found).tolist() == [False, True, False, False]
        found = prior_draws.passes(xp.asarray(log_u), xp.asarray(log_estimate) + 0.5, 0.5)
        assert np.asarray(found).tolist() == [False, True, False, False]


@pytest.mark.slow
def test_pseudo_marginal_with_a_walk_and_the_uniform_kernel():
    post = od.pseudo_marginal(toy(), UNIFORM, proposal=WALK, **MANY)
    agrees(post, Exact(UNIFORM))
    expected = exact_rate_of_walk(grid_chains.pseudo_marginal)
    assert abs(post.acceptance_rate - expected) < 4 * post.acceptance_rate_se + 2e-4
    assert post.acceptance_rate_se < 0.01
    assert post.distances.shape == post.draws["theta"].shape and post.distances.max() < 0.6


@pytest.mark.slow
def test_pseudo_marginal_in_single_precision():
    post = od.pseudo_marginal(toy(), UNIFORM, proposal=WALK, engine="jax:float32", **MANY)
    agrees(post, Exact(UNIFORM))
    expected = exact_rate_of_walk(grid_chains.pseudo_marginal)
    assert abs(post.acceptance_rate - expected) < 4 * post.acceptance_rate_se + 2e-4
    draws = post.draws["theta"]
    assert draws.dtype == np.float64 and (draws == draws.astype(np.float32)).all()


@pytest.mark.slow
def test_pseudo_marginal_with_draws_from_the_prior_and_the_gaussian_kernel():
    post = od.pseudo_marginal(toy(), GAUSSIAN, proposal=PRIOR_DRAWS, **MANY)
    agrees(post, Exact(GAUSSIAN))
    expected = study.gaussian_acceptance_rate(Toy(), GAUSSIAN.eps, 1)
    assert abs(post.acceptance_rate - expected.value) < 4 * post.acceptance_rate_se + expected.error


def test_pseudo_marginal_with_four_pseudo_samples_and_the_uniform_kernel():
    post = od.pseudo_marginal(toy(), UNIFORM, pseudo_samples=4, proposal=PRIOR_DRAWS, keep="distances", **MANY)
    agrees(post, Exact(UNIFORM))
    expected = study.uniform_acceptance_rate(Toy(), UNIFORM.eps, 4)
    assert abs(post.acceptance_rate - expected) < 4 * post.acceptance_rate_se
    assert post.distances.shape == (4096, 30, 4) and (post.distances.min(axis=2) < 0.6).all()


@pytest.mark.slow
def test_pseudo_marginal_with_four_pseudo_samples_and_a_walk():
    post = od.pseudo_marginal(toy(), GAUSSIAN, pseudo_samples=4, proposal=WALK, **MANY)
    agrees(post, Exact(GAUSSIAN))
    here = od.pseudo_marginal(numpy_toy(), GAUSSIAN, pseudo_samples=4, proposal=WALK, **MANY)
    error = np.hypot(post.acceptance_rate_se, here.acceptance_rate_se)
    assert abs(post.acceptance_rate - here.acceptance_rate) < 4 * error < 0.02


@pytest.mark.parametrize(
    "kernel", [UNIFORM, pytest.param(GAUSSIAN, marks=pytest.mark.slow)], ids=lambda kernel: kernel.name
)
def test_wilkinson_is_exact(kernel):
    run = partial(od.wilkinson, toy(), kernel, proposal=od.lazy(WALK, hold=0.2))
    post = run(**MANY)
    agrees(post, Exact(kernel))
    if kernel.indicator:
        expected = exact_rate_of_walk(grid_chains.wilkinson)
        assert abs(post.acceptance_rate - expected) < 4 * post.acceptance_rate_se + 2e-4
    # Held chains propose nothing; the simulator runs for all. The start and the first step are those of a shorter run.
    proposals = post.cost.proposals - run(**(MANY | {"draws": 1})).cost.proposals
    steps = 4096 * 29
    assert abs(proposals - 0.8 * steps) < 4 * np.sqrt(0.16 * steps)


@pytest.mark.parametrize("hits", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_r_hit_is_exact(hits):
    kernel = od.uniform(1.2)
    given = {"chains": 1024, "draws": 4, "proposal": WALK, "hits": hits}
    post = od.r_hit(toy(), kernel, seed=23, **given)
    agrees(post, Exact(kernel))
    here = od.r_hit(numpy_toy(), kernel, seed=24, **given)
    error = np.hypot(post.acceptance_rate_se, here.acceptance_rate_se)
    assert abs(post.acceptance_rate - here.acceptance_rate) < 4 * error
    assert post.distances.max() < 1.2


@pytest.mark.parametrize("run", [od.smc, pytest.param(od.importance, marks=pytest.mark.slow)])
def test_runs_that_lower_the_tolerance(run):
    post = run(toy(), kernel=od.uniform(0.3), budget=60_000, seed=3)
    exact = Exact(od.uniform(post.settings["eps"]))
    row = post.summary()["theta"]
    assert abs(row.mean - exact.mean) < 4 * row.mcse < 0.2
    assert row.sd == pytest.approx(exact.sd, abs=0.1)
    assert 50_000 < post.cost.simulations <= 60_000


def test_infer(quick):
    pytest.importorskip("arviz_stats", reason="its intervals")
    post = od.infer(toy(), budget=2000, seed=1)
    row = post.summary()["theta"]
    assert abs(row.mean - 1.0) < 4 * row.mcse < 0.3 and row.sd == pytest.approx(np.sqrt(0.5), abs=0.15)
    assert post.cost.simulations == 2000


def test_a_distance_without_a_number_is_a_failure_of_infer(quick):
    """The simulations that it cannot compare are counted, with theta, as on the other engines."""

    def distance(simulated, observed):
        return jnp.where(simulated > 2.5, jnp.nan, jnp.abs(simulated - observed))

    model = od.Model(PRIOR, toy().simulate, Y_OBS, distance=distance)
    post = od.infer(model, budget=200, seed=1, draws=50)
    assert 0 < post.cost.failed < 100 and post.cost.simulations == 200
    assert "the distance is nan" in post.failures[0].message and np.isfinite(post.failures[0].theta["theta"])
    with pytest.raises(od.SimulationError, match="the distance is nan"):
        od.infer(model, budget=200, seed=1, on_error="raise")


@pytest.mark.slow
def test_tolerance_for():
    found = od.tolerance_for(toy(), 0.2, proposal=PRIOR_DRAWS, budget=400_000, seed=3)
    expected = study.tolerance(0.2, Toy(), 1, "uniform")
    assert abs(found.eps - expected) < 4 * found.std_error < 0.2 * expected
    assert found.cost.simulations <= 400_000


# Same seed, same bytes

FEW = {"chains": 64, "draws": 20, "seed": 7, "proposal": WALK}


def told(post):
    arrays = {name: values.tobytes() for name, values in post.draws.items()}
    distances = None if post.distances is None else post.distances.tobytes()
    cost = post.cost._replace(seconds=0, surplus=0)
    return arrays, distances, cost, repr(post.acceptance_rate), repr(post.acceptance_rate_se)


OWN, OTHER = ("jax:float64", "jax:float32")[:: 1 if jax.default_backend() == "cpu" else -1]
"""The precision that a device has by default, and the other."""


@pytest.fixture(scope="module")
def whole():
    return od.pseudo_marginal(toy(), UNIFORM, **FEW)


def test_the_engine_of_a_jax_simulator_is_jax(whole):
    for engine in ("jax", OWN):
        assert told(od.pseudo_marginal(toy(), UNIFORM, engine=engine, **FEW)) == told(whole)
    assert told(od.pseudo_marginal(toy(), UNIFORM, **(FEW | {"seed": 8})))[0] != told(whole)[0]


def test_runs_in_files_go_on(whole, tmp_path):
    path = tmp_path / "run.db"
    first = od.pseudo_marginal(toy(), UNIFORM, store=path, segment=1e-9, **(FEW | {"draws": 7}))
    assert told(first)[0]["theta"] == np.ascontiguousarray(whole.draws["theta"][:, :7].T).T.tobytes()
    assert told(od.resume(path, toy(), draws=20)) == told(whole) == told(od.load(path))
    with pytest.raises(od.StoreError, match="engine"):
        od.pseudo_marginal(toy(), UNIFORM, store=path, engine=OTHER, **FEW)


def test_the_engine_of_a_run_is_kept(tmp_path):
    path = tmp_path / "own.db"
    given = {"start": {"theta": 0.5}, "chains": 16, "proposal": WALK, "seed": 3}
    estimator = od.unbiased(lambda rng, theta: -rng.standard_exponential(theta.shape[0]), PRIOR)
    od.pseudo_marginal(estimator=estimator, engine="jax:float32", draws=4, store=path, **given)
    more = od.resume(path, estimator=estimator, draws=9)
    whole = od.pseudo_marginal(estimator=estimator, engine="jax:float32", draws=9, **given)
    # The error of the acceptance rate knows that there were two rounds.
    assert told(more)[:4] == told(whole)[:4]


@pytest.mark.parametrize("looks", [0, 1])
def test_a_run_stopped_by_the_clock_goes_on(looks, tmp_path):
    given = FEW | {"draws": 600}
    expected = od.pseudo_marginal(toy(), UNIFORM, **given)
    path = tmp_path / "run.db"
    with up_after(looks):
        stopped = od.pseudo_marginal(toy(), UNIFORM, store=path, max_seconds=LONG, **given)
    # The first look is that of the search for starting points.
    assert stopped.status.reason == "max_seconds" and (stopped.shape[1] > 0) == (looks > 0) and stopped.shape[1] < 600
    assert told(od.resume(path, toy())) == told(expected)


@pytest.mark.parametrize("thin", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_where_legs_are_cut_changes_nothing(thin, monkeypatch):
    """Four chains, whose moves are counted in eight stretches for the error of the acceptance rate."""
    given = {"chains": 4, "draws": 40, "seed": 7, "proposal": WALK, "thin": thin}
    expected = od.pseudo_marginal(toy(), UNIFORM, **given)
    monkeypatch.setattr(device, "LONGEST", 3)
    cut = od.pseudo_marginal(toy(), UNIFORM, **given)
    assert told(cut) == told(expected)
    if thin == 1:
        moved = np.diff(cut.draws["theta"], axis=1) != 0
        # The first step moves away from a start that is not shown.
        first = round(cut.acceptance_rate * 160) - moved.sum()
        assert 0 <= first <= 4
        # Eight stretches of five steps for each of four chains, by hand, but for the first step.
        stretches = np.concatenate([np.full((4, 1), False), moved], axis=1).reshape(4, 8, 5).sum(axis=2)
        residual = stretches - cut.acceptance_rate * 5
        by_hand = np.sqrt((residual**2).sum() * 32 / 31) / 160
        assert cut.acceptance_rate_se == pytest.approx(by_hand, rel=0.15 if first else 1e-9)


@pytest.mark.slow
def test_lazy_and_wilkinson_and_races_by_any_legs(monkeypatch):
    given = FEW | {"draws": 8, "proposal": od.lazy(WALK, hold=0.3)}
    runs = [partial(od.wilkinson, toy(), UNIFORM), partial(od.r_hit, toy(), od.uniform(1.2))]
    expected = [told(run(**given)) for run in runs]
    monkeypatch.setattr(device, "LONGEST", 3)
    assert [told(run(**given)) for run in runs] == expected


def test_rejection_in_a_file_goes_on(tmp_path):
    path = tmp_path / "rejection.db"
    od.rejection(toy(), UNIFORM, draws=100, seed=5, store=path)
    more = od.resume(path, toy(), draws=20_000)
    assert told(more) == told(od.rejection(toy(), UNIFORM, draws=20_000, seed=5))
    with pytest.raises(od.StoreError, match="engine"):
        od.rejection(toy(), UNIFORM, draws=20_000, seed=5, store=path, engine=OTHER)


@pytest.mark.parametrize(
    "run",
    [
        partial(od.smc, kernel=od.uniform(0.6), particles=200),
        partial(od.importance, kernel=od.uniform(0.6), budget=3000),
    ],
)
def test_rounds_give_the_same_bytes(run, tmp_path):
    first, again = run(toy(), seed=3), run(toy(), seed=3, store=tmp_path / "run.db", segment=1e-9)
    assert told(first)[:3] == told(again)[:3]


@pytest.mark.parametrize("precision", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_starts_are_those_of_any_session(precision, tmp_path, monkeypatch):
    """Each block is as long as the ones before it suggest, also where an earlier session drew them."""
    asked = []
    proposals = device.proposals

    def seen(estimator, engine, rng, size, **more):
        asked.append((rng.first, size))
        if stop and len(asked) == 2:
            raise KeyboardInterrupt
        return proposals(estimator, engine, rng, size, **more)

    monkeypatch.setattr(device, "proposals", seen)
    given = {"chains": 200, "draws": 2, "seed": 5, "proposal": WALK, "engine": f"jax:{precision}"}
    narrow, stop = od.uniform(0.01), False
    whole = od.pseudo_marginal(toy(), narrow, **given)
    expected = list(asked)
    first, second = expected[:2]
    assert first == (0, 16 * 200) and second[1] > first[1] and len(expected) < 8
    assert all(b[0] == sum(a) for a, b in pairwise(expected))
    asked.clear()
    stop = True
    stopped = od.pseudo_marginal(toy(), narrow, store=tmp_path / "run.db", segment=1e-9, **given)
    assert stopped.status.reason == "interrupted" and stopped.shape[1] == 0
    stop = False
    asked.clear()
    assert told(od.resume(tmp_path / "run.db", toy())) == told(whole)
    assert asked == expected[1:]


def test_blocks_of_starts_follow_what_was_found():
    block = partial(next_block, 100, 1600, 2**21, None)
    assert block(0, 0) == 1600
    # Nothing found tells little, few hits a little more; a large block is never passed.
    assert block(1600, 0) == 16 * 1600
    assert block(4800, 1) == 64 * 1600
    assert next_block(100, 1600, 4000, None, 1600, 1) == 4000
    # An eighth is missing, and a seventh of that is added; one block at the least where only neighbours are missing.
    assert next_block(8000, 1000, 2**21, None, 24_000, 7000) == 1000
    assert next_block(8000, 1000, 2**21, None, 25_000, 7000) == 4000
    assert block(1600, 100) == 1600
    # A third of what a budget has left is left for steps.
    assert next_block(100, 1600, 2**21, 1600 + 3 * 1600 * 4 // 2, 1600, 1) == 4 * 1600
    assert next_block(100, 1600, 2**21, 1600 + 3 * 1600 * 4 // 2 - 2, 1600, 1) == 1600
    # The sizes are few: each is a program.
    assert {block(1600 * k, k) // 1600 for k in range(1, 100)} == {1, 4, 16, 64}


@pytest.mark.slow
def test_starts_found_in_several_blocks_are_exact():
    """One step leaves the law of the starts as it is."""
    kernel = od.uniform(0.05)
    agrees(od.pseudo_marginal(toy(), kernel, chains=4096, draws=1, seed=11, proposal=PRIOR_DRAWS), Exact(kernel))


def test_the_smallest_of_many():
    """In one program, since compiling takes the time."""
    given = {}
    for n, count in itertools.product((16, 64, 2048), (1, 3, 12, 60)):
        values = np.random.default_rng(n + count).permutation(n).astype(float)
        given[n, count] = np.where(values > n / 2, np.inf, values)
    found = jax.jit(
        lambda: {(n, k): device._smallest(jnp.asarray(each), min(k, n)) for (n, k), each in given.items()}
    )()
    for (n, count), values in given.items():
        assert np.array_equal(values[np.asarray(found[n, count])], np.sort(values)[: min(count, n)]), (n, count)


def test_options_that_a_compiler_does_not_know(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert device._options() == {}
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    # The compiler of a CPU takes those of a GPU, too, and does nothing with them.
    assert device._options() == {"xla_gpu_graph_min_graph_size": 1}

    def refused(*_, compiler_options=None):
        if compiler_options:
            raise jax.errors.JaxRuntimeError("INVALID_ARGUMENT: No such compile option")

    monkeypatch.setattr(jax, "jit", refused)
    assert device._options() == {}


# What it costs


def test_a_budget_is_spent_and_never_passed():
    post = od.pseudo_marginal(toy(), UNIFORM, budget=30_000, chains=64, proposal=WALK, pseudo_samples=4, seed=1)
    assert 30_000 - 4 * 64 < post.cost.simulations <= 30_000
    start = od.pseudo_marginal(toy(), UNIFORM, draws=1, chains=64, proposal=WALK, pseudo_samples=4, seed=1)
    steps = post.shape[1] - 1
    # All rows are simulated.
    assert post.cost.simulations == start.cost.simulations + steps * 64 * 4
    assert post.cost.skipped == 0


@pytest.mark.slow
def test_a_budget_of_races_is_never_passed():
    race = od.r_hit(toy(), od.uniform(1.2), budget=60_000, chains=64, proposal=WALK, seed=1)
    assert race.shape[1] > 0 and race.cost.simulations <= 60_000 and race.cost.simulations % 64 == 0


def test_races_count_every_turn_and_every_limit():
    """Hardly any draw hits here, so that nearly every step of every chain ends at its limit."""
    given = {"chains": 64, "proposal": WALK, "seed": 1, "hits": 2, "max_draws": 4}
    short, long = (od.r_hit(toy(), od.uniform(0.002), draws=draws, **given) for draws in (2, 9))
    # All chains draw in every turn, two to four of which make a step.
    turns, rest = divmod(long.cost.simulations - short.cost.simulations, 64)
    assert 7 * 2 <= turns <= 7 * 4 and rest == 0
    note = next(one for one in long.notes if "reached the limit of draws" in one)
    assert 9 * 64 - 3 <= int(note.split()[0]) <= 9 * 64


def test_a_model_on_an_engine_simulates_with_its_precision():
    engine = device.Engine("float32")
    model = toy().placed(engine)
    assert model.recipe.simulator is model.simulate and model.simulate.engine is engine
    rows = model.simulate_rows(Rng(1, 4), np.linspace(-1, 1, 20)[:, None], np.arange(20)).rows
    assert np.array_equal(rows, rows.astype(np.float32))
    assert toy().simulate.engine is None


def test_the_nearest_rejected_are_proposals_of_the_block():
    """Not those that fill the program up to 64 rows."""
    block = Block(0, 33)
    every, some = (
        prior_draws.PriorDraws(average(toy(), kernel), 5, Phase.START, neighbours=12)(block).arrays
        for kernel in (WIDE, od.uniform(0.7))
    )
    assert len(every["theta"]) == 33 and 0 < len(some["theta"]) < 20
    order = np.argsort(every["distances"][:, 0])
    rejected = [k for k in order if every["theta"][k, 0] not in some["theta"][:, 0]][:12]
    assert np.array_equal(some["near_theta"], every["theta"][rejected])
    assert np.array_equal(some["near_distance"], every["distances"][rejected, 0])


@pytest.mark.slow
def test_rows_that_fill_up_a_program_are_surplus(tmp_path):
    wide = od.uniform(1e9)
    post = od.rejection(toy(), wide, budget=67, pseudo_samples=2, seed=1)
    assert post.cost.proposals == 33 and post.cost.simulations == 66
    assert post.cost.surplus == (64 - 33) * 2
    assert post.shape == (1, 33) and len(np.unique(post.draws["theta"])) == 33
    od.rejection(toy(), UNIFORM, budget=1000, seed=1, keep="all", store=tmp_path / "kept.db")
    again = od.reuse(tmp_path / "kept.db", kernel=od.uniform(0.7))
    assert again.cost.proposals == 1000
    assert told(again)[:2] == told(od.rejection(toy(), od.uniform(0.7), budget=1000, seed=1))[:2]
    found = average(toy()).evaluate(Rng(1, 4), np.zeros((5, 1)), None)
    assert found.cost.simulations == 5 and found.cost.surplus == 11 and found.distances.shape == (5, 1)


def broken_above(key, theta):
    """A simulator that fails for theta > 1.5."""
    return jnp.where(theta > 1.5, jnp.nan, theta + jax.random.normal(key))


MODEL = toy()
BROKEN = toy(function=broken_above)
WIDE = od.uniform(1e9)
CHANCE = stats.norm.sf(1.5)


@pytest.mark.slow
def test_failures_of_rejection_are_counted_and_named():
    proposed = od.rejection(toy(), WIDE, budget=1000, seed=4).draws["theta"].ravel()
    post = od.rejection(BROKEN, WIDE, budget=1000, seed=4)
    bad = np.flatnonzero(proposed > 1.5)
    assert post.cost.failed == bad.size > 0 and post.cost.simulations == 1000
    assert (post.draws["theta"] == proposed[proposed <= 1.5]).all()
    first = post.failures[0]
    assert (first.chain, first.step, first.pseudo_sample) == (bad[0], 0, 0)
    assert first.theta == {"theta": proposed[bad[0]]} and first.message == "the output is not finite"
    with pytest.raises(od.SimulationError, match=f"at theta = {first.theta['theta']:.4g}"):
        od.rejection(BROKEN, WIDE, budget=1000, seed=4, on_error="raise")
    # Rows that fill up a program have not failed: with one proposal all rows beyond it are copies or strangers.
    some = [od.rejection(BROKEN, WIDE, budget=3, seed=k).cost.failed for k in range(40)]
    assert abs(sum(some) - 120 * CHANCE) < 4 * np.sqrt(120 * CHANCE)


@pytest.mark.parametrize("hold", [0.5, pytest.param(0.0, marks=pytest.mark.slow)])
def test_failures_of_chains_are_counted_where_something_was_wanted(hold):
    """With a kernel that lets everything through every proposal is wanted, unless the chain was held."""
    given = {"chains": 64, "draws": 40, "seed": 4, "start": {"theta": 0.0}}
    post = od.pseudo_marginal(BROKEN, WIDE, proposal=od.lazy(PRIOR_DRAWS, hold=hold), **given)
    expected = 64 * 40 * CHANCE * (1 - hold)
    assert abs(post.cost.failed - expected) < 4 * np.sqrt(expected)
    assert post.cost.proposals == pytest.approx(64 * 40 * (1 - hold), rel=0.1)
    first = post.failures[0]
    assert first.theta["theta"] > 1.5 and 0 <= first.chain < 64 and 0 <= first.step < 40 and first.phase == Phase.RUN
    assert f"{post.cost.failed:,} of" in post.notes[-1]
    with pytest.raises(od.SimulationError, match=f"theta = {first.theta['theta']:.4g}"):
        od.pseudo_marginal(BROKEN, WIDE, proposal=od.lazy(PRIOR_DRAWS, hold=hold), on_error="raise", **given)


def broken_at_times(key, theta):
    chance = jax.random.uniform(jax.random.fold_in(key, 1), dtype=theta.dtype)
    return jnp.where(chance < 0.5, jnp.nan, theta + jax.random.normal(key, dtype=theta.dtype))


def named_in_steps(post):
    return [one for one in post.failures if one.phase == Phase.RUN]


@pytest.mark.slow
def test_the_first_failure_of_chains_is_named_whatever_is_kept_and_by_any_legs(monkeypatch):
    """Chains that are held are simulated too, where they are: what fails there is nobody's failure."""
    monkeypatch.setattr(start, "DEVICE_CHAINS_PER_BLOCK", 16)
    given = {"chains": 64, "draws": 12, "seed": 4, "pseudo_samples": 2, "start": {"theta": 0.0}}
    run = partial(od.pseudo_marginal, toy(function=broken_at_times), WIDE, proposal=od.lazy(WALK, hold=0.8), **given)
    first, kept = run(keep="draws"), run(keep="distances")
    assert len(named_in_steps(first)) == 1 and named_in_steps(first) == named_in_steps(kept)
    assert first.cost.failed == kept.cost.failed > 64
    monkeypatch.setattr(device, "LONGEST", 3)
    cut = run(keep="draws")
    assert named_in_steps(cut) == named_in_steps(first) and cut.cost.failed == first.cost.failed


def test_failures_of_handicapped_estimators_stop_a_run_that_asked_for_it():
    strict = paper.handicapped(paper.abc_average(BROKEN, WIDE, on_error="raise"), 0.3)
    with pytest.raises(od.SimulationError, match="the output is not finite"):
        od.pseudo_marginal(estimator=strict, draws=40, chains=64, proposal=PRIOR_DRAWS, seed=1)
    with pytest.raises(od.SimulationError, match="the output is not finite"):
        placed(strict, "jax").evaluate(Rng(1, 4), np.full((16, 1), 1.6), None)


@pytest.mark.slow
def test_failures_of_races_are_named_where_they_were():
    post = od.r_hit(BROKEN, od.uniform(1.0), draws=8, chains=64, proposal=WALK, seed=4)
    assert post.cost.failed > 0
    first = next(one for one in post.failures if one.phase == Phase.RUN)
    assert first.theta["theta"] > 1.5
    with pytest.raises(od.SimulationError, match="the output is not finite"):
        od.r_hit(BROKEN, od.uniform(1.0), draws=8, chains=64, proposal=WALK, seed=4, on_error="raise")


SEEN = []


def look(p):
    SEEN.append(np.asarray(p).ravel())
    return np.ones(np.shape(p), bool)


def only_inside(key, p):
    """A simulator that tells what it was given, and fails outside [0, 1]."""
    looked = jax.pure_callback(look, jax.ShapeDtypeStruct(p.shape, bool), p, vmap_method="expand_dims")
    return jnp.where(looked & (p >= 0) & (p <= 1), p + 0.3 * jax.random.normal(key), jnp.nan)


def two_of_it(key, p):
    return jnp.stack([only_inside(key, p), 0.5 * p])


INSIDE = od.Prior(p=stats.uniform(0, 1))


@pytest.mark.parametrize(
    "run",
    [
        partial(od.pseudo_marginal, proposal=od.random_walk(4.0), draws=6, chains=16),
        partial(od.wilkinson, proposal=od.lazy(od.random_walk(4.0), hold=0.3), draws=6, chains=16),
        partial(od.r_hit, proposal=od.random_walk(4.0), draws=6, chains=16),
        partial(od.r_hit, hits=2, proposal=od.lazy(od.random_walk(4.0)), draws=6, chains=16),
        partial(od.smc, particles=16, kernel=od.uniform(0.3)),
        partial(od.smc, particles=16, kernel=od.uniform(0.5)),
        partial(od.importance, budget=200, kernel=od.uniform(0.3)),
    ],
    ids=["M=1", "wilkinson", "one-hit", "2-hit", "smc", "adaptive", "importance"],
)
@pytest.mark.slow
def test_a_proposal_outside_the_prior_is_not_simulated(run, request):
    if "adaptive" in request.node.name:
        model = od.Model(INSIDE, od.jax_simulator(two_of_it), [0.9, 0.45], distance=od.scaled(pilot=16, adapt=True))
    else:
        model = od.Model(INSIDE, od.jax_simulator(only_inside), 0.9)
        run = run if run.func in (od.smc, od.importance) else partial(run, kernel=od.uniform(0.5))
    post = run(model, seed=1)
    values = np.concatenate(SEEN)
    SEEN.clear()
    assert values.size and values.min() >= 0 and values.max() <= 1
    assert post.cost.failed == 0 and (post.draws["p"] >= 0).all() and (post.draws["p"] <= 1).all()


# Memory


@pytest.mark.parametrize(
    ("pseudo_samples", "kernel"),
    [
        (6, UNIFORM),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((6, GAUSSIAN), (7, UNIFORM), (7, GAUSSIAN))),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_pseudo_samples_drawn_in_groups_are_the_same(pseudo_samples, kernel, monkeypatch):
    theta = np.linspace(0, 3, 16)[:, None]

    def evaluated():
        device._evaluated.clear_cache()
        estimator = average(toy(), kernel, pseudo_samples, keep_rows=True)
        return estimator.evaluate(Rng(1, 4), theta, None)

    monkeypatch.setattr(device, "VALUES", 2**25)
    assert device.groups(pseudo_samples, 16, 1) == pseudo_samples
    expected = evaluated()
    monkeypatch.setattr(device, "VALUES", 16 * 3)
    assert device.groups(pseudo_samples, 16, 1) == (3 if pseudo_samples == 6 else 1)
    found = evaluated()
    assert (found.distances == expected.distances).all() and (found.rows == expected.rows).all()
    assert found.log_estimate == pytest.approx(expected.log_estimate, rel=1e-12, abs=1e-12)
    assert len(np.unique(found.distances)) == 16 * pseudo_samples


# Forms of models

TWO = od.Prior(mu=stats.norm(0, 2), sigma=stats.uniform(0.1, 3))


def normals(key, mu, sigma):
    return mu + sigma * jax.random.normal(key, (5,))


def parts(key, mu, sigma):
    y = normals(key, mu, sigma)
    return {"b": y[0], "a": y[1:]}


RAW = np.array([0.3, -1.0, 2.0, 0.5, 0.0])
WHITEN = np.random.default_rng(1).normal(size=(5, 5))
FORMS = {
    "raw": ({}, lambda y: np.linalg.norm(y - RAW, axis=-1)),
    "dict": (
        {"simulate": parts, "observed": {"a": RAW[1:], "b": RAW[0]}},
        lambda y: np.linalg.norm(y - RAW, axis=-1),
    ),
    "list": (
        {"summary": lambda y: [y.mean(), y.std()]},
        lambda y: np.hypot(y.mean(-1) - RAW.mean(), y.std(-1) - RAW.std()),
    ),
    "batched summary": (
        {"summary": od.batched(lambda y: jnp.stack([y.mean(axis=1), y.max(axis=1)], axis=1))},
        lambda y: np.hypot(y.mean(-1) - RAW.mean(), y.max(-1) - RAW.max()),
    ),
    "summary of a dict": (
        {"simulate": parts, "observed": {"b": RAW[0], "a": RAW[1:]},
         "summary": lambda y: {"m": y["a"].mean(), "first": y["b"]}},
        lambda y: np.hypot(y[..., 1:].mean(-1) - RAW[1:].mean(), y[..., 0] - RAW[0]),
    ),
    "distance": (
        {"distance": lambda y, observed: jnp.abs(y - observed).max()},
        lambda y: np.abs(y - RAW).max(axis=-1),
    ),
    "batched distance": (
        {"distance": od.batched(lambda y, observed: jnp.abs(y - observed).sum(axis=1))},
        lambda y: np.abs(y - RAW).sum(axis=-1),
    ),
    "scaled": (
        {"distance": od.scaled(scale=[1.0, 2.0, 3.0, 4.0, 5.0])},
        lambda y: np.linalg.norm((y - RAW) / np.arange(1, 6), axis=-1),
    ),
    "mahalanobis": (
        {"distance": Mahalanobis(0, WHITEN)},
        lambda y: np.linalg.norm((y - RAW) @ WHITEN.T, axis=-1),
    ),
    "robust": (
        {"distance": od.scaled(scale=[1.0, 2.0, 3.0, 4.0, 5.0], robust=True)},
        lambda y: (np.abs(y - RAW) / np.arange(1, 6)).sum(axis=-1),
    ),
}  # fmt: skip


def formed(simulate=normals, observed=RAW, **more):
    return od.Model(TWO, od.jax_simulator(simulate), observed, **more)


def test_forms_of_models():
    """The raw data are the same for all of them, so the distances can be computed from those here."""
    theta = np.column_stack([np.linspace(-1, 1, 16), np.linspace(0.5, 2, 16)])
    models = {form: formed(**given) for form, (given, _) in FORMS.items()}
    with device.Engine("float64").active():
        found = jax.jit(
            lambda theta: {form: device.draw(model, rng_of(), theta, 0, 2, 2) for form, model in models.items()}
        )(jnp.asarray(theta))
    raw = np.asarray(found["raw"].rows)
    assert raw.shape == (16, 2, 5)
    for form, (_, by_hand) in FORMS.items():
        assert np.asarray(found[form].distances) == pytest.approx(by_hand(raw), rel=1e-12), form


@pytest.mark.slow
def test_a_kernel_of_the_users_own():
    kernel = od.kernel(lambda u: -2.0 * jnp.log1p(u**2), eps=0.4)
    found = average(toy(), kernel, 3).evaluate(Rng(3, 4), np.linspace(0, 3, 16)[:, None], None)
    expected = np.log(np.mean((1 + (found.distances / 0.4) ** 2) ** -2, axis=1))
    assert found.log_estimate == pytest.approx(expected, rel=1e-9)
    post = od.rejection(toy(), kernel, budget=60_000, seed=2)
    assert stats.kstest(post.draws["theta"].ravel(), Exact(kernel).cdf).pvalue > 1e-4


@pytest.mark.parametrize("distance", [od.scaled, pytest.param(od.mahalanobis, marks=pytest.mark.slow)])
def test_distances_that_learn_from_a_pilot(distance):
    post = od.rejection(formed(distance=distance(pilot=400)), od.uniform(2.0), budget=20_000, seed=2)
    assert post.cost.simulations == 20_000 and post.cost.proposals == 19_600
    learnt = post.model.distance
    # Columns have variance 4 + E sigma^2 and covariance 4.
    variance = 4 + 0.75 + 1.6**2
    if distance is od.scaled:
        assert learnt.scale == pytest.approx(np.full(5, np.sqrt(variance)), rel=0.25)
    else:
        covariance = np.linalg.inv(learnt.whiten.T @ learnt.whiten)
        expected = np.full((5, 5), 4.0) + (variance - 4) * np.eye(5)
        assert covariance == pytest.approx(expected, abs=4 * variance * np.sqrt(2 / 400))


def scattered(key, theta, *, scale):
    return theta + scale * jax.random.normal(key)


def test_other_numbers_need_no_other_program():
    """Tolerance, data, covariance of the walk and the constants of a Partial may change."""

    def run(eps, y_obs, scale, cov, draws):
        function = jax.tree_util.Partial(scattered, scale=scale)
        model = od.Model(PRIOR, od.jax_simulator(function), y_obs)
        return od.pseudo_marginal(model, od.uniform(eps), draws=draws, chains=256, proposal=od.random_walk(cov), seed=1)

    programs = device._steps, device._proposals, device._evaluated
    first = run(0.5, 2.0, 1.0, 0.5, 5)
    compiled = [one._cache_size() for one in programs]
    second = run(0.7, 1.0, 0.1, 0.2, 9)
    assert [one._cache_size() for one in programs] == compiled
    # And they were used: with little noise theta is near the data.
    assert second.draws["theta"].std() < 0.6 < first.draws["theta"].std() < 0.9
    assert abs(second.draws["theta"].mean() - 1.0) < 0.3


class Compared:
    """A summary whose instances are equal by value and cannot be hashed."""

    def __init__(self, weights):
        self.weights = weights

    def __eq__(self, other):
        return self.weights == other.weights

    __hash__ = None

    def __call__(self, y):
        return y * self.weights


def test_parts_that_cannot_be_hashed_are_told_apart():
    theta = np.zeros((16, 1))
    found = [
        average(toy(summary=Compared(np.array([factor])))).evaluate(Rng(1, 4), theta, None).distances
        for factor in (1.0, 3.0)
    ]
    assert found[1] == pytest.approx(3 * found[0])


# Classes of the users' own that declare their parts


@dataclass(frozen=True, eq=False)
class Weighted:
    """A distance of whose parts the weight is a number."""

    weight: float
    pilot: int = 0
    device_parts = DeviceParts(numbers=("weight",))

    def learnt(self, rows, labels):
        return self

    def __call__(self, simulated, observed):
        return self.weight * abs(simulated - observed)[:, 0]


@dataclass(frozen=True, eq=False)
class Sticky:
    """A walk that holds each chain back with the same chance."""

    prior: Any
    sd: float
    holds = True
    device_parts = DeviceParts(("sd",), ("prior",))

    def resolved(self, prior, spread):
        return replace(self, prior=prior)

    def propose(self, rng, theta, log_prior):
        there = theta + self.sd * rng.standard_normal(theta.shape)
        log_prior_there = self.prior.logpdf(there)
        held = rng.random(len(theta)) < 0.4
        return Proposed(there, log_prior_there, log_prior_there - log_prior, held)

    def described(self):
        return {"name": "sticky"}


class Forgetful(Sticky):
    holds = False


@dataclass(frozen=True, eq=False)
class NormalLikelihood:
    """An estimator without noise."""

    prior: Any
    mean: float
    engine: Any = None
    log_bound = 0.0
    simulations = 1
    device_parts = DeviceParts(("mean",), ("prior",))

    def on_device(self, rng, theta, log_needed):
        failed = jnp.zeros(len(theta), int)
        return Evaluation(-0.5 * (theta[:, 0] - self.mean) ** 2, None, Cost(len(theta), failed=failed), (None,))

    def log_estimate(self, rng, theta, worth):
        return -0.5 * (theta[:, 0] - self.mean) ** 2, int(worth.sum())


@dataclass(frozen=True, eq=False)
class Twice:
    """A sampler that takes two steps of another one for one of its own."""

    inner: Any
    device_parts = DeviceParts(("inner",))

    @property
    def estimator(self):
        return self.inner.estimator

    @property
    def proposal(self):
        return self.inner.proposal

    def step(self, rng, state):
        state, _ = self.inner.step(rng, state)
        return self.inner.step(DeviceRng((rng.words[0] ^ 1, rng.words[1]), rng.dtype), state)


@pytest.mark.slow
def test_own_classes_need_no_other_program_for_other_numbers():
    def run(weight, sd, mean):
        model = od.Model(PRIOR, od.jax_simulator(lambda_free), 2.0, distance=Weighted(weight))
        given = {"draws": 5, "chains": 64, "proposal": Sticky(None, sd), "seed": 1}
        abc = od.pseudo_marginal(model, od.uniform(0.6), **given)
        own = od.pseudo_marginal(estimator=NormalLikelihood(PRIOR, mean), engine="jax", **given)
        return abc, own

    first = run(1.0, 0.7, 1.0)
    programs = device._steps, device._proposals, device._evaluated
    compiled = [one._cache_size() for one in programs]
    second = run(2.0, 0.5, 2.0)
    assert [one._cache_size() for one in programs] == compiled
    # All rows are simulated, and 40 % of them are not proposals.
    for post in (*first, *second):
        assert 0.3 < (post.cost.simulations - post.cost.proposals) / (5 * 64) < 0.5
    # Twice the distance is half the tolerance.
    assert 0.3 < np.abs(first[0].distances).max() < 0.6 and second[0].distances.max() < 0.6
    assert second[1].draws["theta"].mean() > first[1].draws["theta"].mean()


def lambda_free(key, theta):
    return theta + jax.random.normal(key)


def test_an_own_sampler_takes_its_steps_on_the_device():
    estimator = placed(NormalLikelihood(PRIOR, 1.0), "jax")
    walk = od.random_walk(0.5).resolved(PRIOR, lambda: None)
    inner = pseudo_marginal.PseudoMarginal(estimator, walk, True, 1)
    theta = np.zeros((512, 1))
    state = pseudo_marginal.State(theta, PRIOR.logpdf(theta), np.full(512, -0.5), np.empty((512, 0)))
    given = {"thin": 1, "batches": 1, "stretch": (0, 40), "keep_distances": False, "find_failure": True}
    found = device.advance(Twice(inner), estimator.engine, Rng(1, Phase.RUN), state, 40, **given)
    assert found.theta.shape == (40, 512, 1) and found.proposals.sum() == 40 * 512 and found.failed == 0
    assert found.simulations == 40 * 512 and found.surplus == 0
    assert abs(found.theta[20:].mean() - 0.5) < 0.1


def test_a_proposal_that_holds_chains_says_so():
    given = {"draws": 2, "chains": 16, "start": {"theta": 1.0}, "seed": 1}
    with pytest.raises(ValueError, match="Forgetful must say in an attribute `holds`"):
        od.pseudo_marginal(toy(), UNIFORM, proposal=Forgetful(None, 0.5), **given)


@pytest.mark.slow
def test_functions_that_take_only_keys_of_jax():
    """Poisson counts with a Gamma prior: the posterior is a Gamma distribution."""
    prior = od.Prior(rate=stats.gamma(2, scale=3))
    model = od.Model(prior, od.jax_simulator(lambda key, rate: jax.random.poisson(key, rate)), observed=4)
    assert model.simulate.own_keys and not toy().simulate.own_keys
    post = od.rejection(model, od.uniform(0.5), budget=40_000, seed=1)
    assert stats.kstest(post.draws["rate"].ravel(), stats.gamma(6, scale=1 / (1 / 3 + 1)).cdf).pvalue > 1e-4
    assert abs(post.acceptance_rate - stats.nbinom.pmf(4, 2, 0.25)) < 4 * np.sqrt(0.1 / 40_000)


def test_predictions_and_chains_that_start_from_a_posterior():
    post = od.rejection(MODEL, UNIFORM, draws=2000, seed=1)
    predicted, exact = np.asarray(post.predict(1000, seed=2)).ravel(), Exact(UNIFORM)
    assert abs(predicted.mean() - exact.mean) < 4 * np.sqrt(1 + exact.sd**2) / np.sqrt(1000)
    assert predicted.std() == pytest.approx(np.sqrt(1 + exact.sd**2), rel=0.1)
    more = od.pseudo_marginal(MODEL, od.uniform(0.3), start=post, draws=4, chains=64, proposal=WALK, seed=3)
    assert not any("not draws of the posterior" in note for note in more.notes)
    assert more.distances.max() < 0.3 and more.cost.simulations == 4 * 64


# Other estimators


def test_the_mean_of_the_particle_filter_is_the_likelihood():
    estimator = placed(linear(DATA, 10), "jax")
    found = estimator.evaluate(Rng(1, 1), np.full((8192, 1), A), None)
    check_unbiased(found.log_estimate, joint_normal(12).logpdf(DATA), 0.03)
    assert found.cost.simulations == 8192 * 120
    below = found.log_estimate - joint_normal(12).logpdf(DATA)
    assert below.mean() < -8 * below.std() / np.sqrt(below.size)


def test_the_particle_filter_with_times_that_were_not_observed():
    gaps = DATA.copy()
    gaps[[0, 4, 5, 11]] = np.nan
    seen = ~np.isnan(gaps)
    cov = joint_normal(12).cov[np.ix_(seen, seen)]
    found = placed(linear(gaps, 10), "jax").evaluate(Rng(1, 1), np.full((8192, 1), A), None)
    check_unbiased(found.log_estimate, stats.multivariate_normal(np.zeros(seen.sum()), cov).logpdf(gaps[seen]), 0.03)


@pytest.mark.slow
def test_the_particle_filter_in_chains():
    grid, mass = exact_posterior(DATA)
    start = {"a": np.random.default_rng(4).choice(grid, 2000, p=mass)}
    given = {"draws": 40, "start": start, "proposal": od.random_walk(0.3**2), "seed": 5}
    post = od.pseudo_marginal(estimator=linear(DATA, 8), engine="jax", **given)
    last, cdf = post.draws["a"][:, -1], np.cumsum(mass)
    assert stats.kstest(last, lambda a: np.interp(a, grid, cdf)).pvalue > 1e-4
    here = od.pseudo_marginal(estimator=linear(DATA, 8), **given)
    error = np.hypot(post.acceptance_rate_se, here.acceptance_rate_se)
    assert abs(post.acceptance_rate - here.acceptance_rate) < 4 * error
    means = [run.draws["a"].mean(axis=1) for run in (post, here)]
    error = np.sqrt(sum(one.var() / one.size for one in means))
    assert abs(means[0].mean() - means[1].mean()) < 4 * error
    assert post.cost.simulations == 2000 * 41 * 8 * 12 and post.cost.failed == 0


@pytest.mark.slow
def test_the_particle_filter_counts_weights_that_are_no_numbers():
    def log_observation(y, x, a):
        return jnp.where(x > 2.5, jnp.nan, -0.5 * (y - x) ** 2)

    given = {"draws": 5, "chains": 16, "start": {"a": 0.5}, "proposal": od.random_walk(0.1), "seed": 1}
    broken = linear(DATA, 8, log_observation=log_observation)
    post = od.pseudo_marginal(estimator=broken, engine="jax", **given)
    assert post.cost.failed > 0 and post.failures
    strict = linear(DATA, 8, log_observation=log_observation, on_error="raise")
    with pytest.raises(od.SimulationError, match="the output is not finite"):
        placed(strict, "jax").evaluate(Rng(1, 4), np.full((16, 1), 0.5), None)


def test_an_unbiased_function():
    """A normal likelihood around 1, its estimates spread by a log-normal factor of mean 1."""

    def log_estimate(rng, theta):
        return -0.5 * (theta[:, 0] - 1.0) ** 2 + 0.6 * rng.standard_normal(theta.shape[0]) - 0.18

    posterior = stats.norm(0.5, np.sqrt(0.5))
    start = {"theta": posterior.rvs(4096, random_state=1)}
    post = od.pseudo_marginal(
        estimator=od.unbiased(log_estimate, PRIOR), engine="jax", draws=30, start=start, proposal=WALK, seed=2
    )
    assert stats.kstest(post.draws["theta"][:, -1], posterior.cdf).pvalue > 1e-4
    means = post.draws["theta"][:, 10:].mean(axis=1)
    assert abs(means.mean() - 0.5) < 4 * means.std() / np.sqrt(means.size)
    assert post.cost.simulations == 4096 * 31


@pytest.mark.slow
def test_a_handicapped_estimator():
    estimator = paper.handicapped(paper.abc_average(toy(), UNIFORM, pseudo_samples=2), 0.3)
    post = od.pseudo_marginal(estimator=estimator, engine="jax", proposal=PRIOR_DRAWS, **(MANY | {"chains": 1024}))
    agrees(post, Exact(UNIFORM))
    found = placed(estimator, "jax").evaluate(Rng(1, 4), np.full((4096, 1), 1.5), None).log_estimate
    share = np.exp(found[found > -np.inf])
    tau = hit(1.5, UNIFORM)
    # Two pseudo-samples: one hit or two, over 0.7.
    assert sorted(set(np.round(share, 9))) == pytest.approx([0.5 / 0.7, 1 / 0.7])
    assert abs(share.sum() / 4096 - tau) < 4 * np.exp(found).std() / 64


# What is refused


def np_summary(y):
    return [np.sort(y)[0]]


def test_engines_that_do_not_fit():
    with pytest.raises(ValueError, match=r"engine='jax' needs a simulator made by od.jax_simulator"):
        od.rejection(numpy_toy(), UNIFORM, draws=5, engine="jax")
    with pytest.raises(ValueError, match="engine='numpy' cannot run a simulator made by"):
        od.pseudo_marginal(toy(), UNIFORM, draws=5, engine="numpy")
    for engine in ("torch", "jax:float16", "numpy:float32"):
        with pytest.raises(ValueError, match=f"engine must be .*got '{engine}'"):
            od.pseudo_marginal(toy(), UNIFORM, draws=5, engine=engine)
    with pytest.raises(ValueError, match=r"engine must be .*got 32"):
        od.rejection(toy(), UNIFORM, draws=5, engine=32)
    with pytest.raises(ValueError, match="cannot run an estimator of your own class Own"):
        od.pseudo_marginal(estimator=Own(), draws=5, start={"theta": 0.0}, engine="jax")


class Own:
    prior, log_bound = PRIOR, None

    def log_estimate(self, rng, theta, worth):
        return np.zeros(len(theta)), 0


@pytest.mark.parametrize("prior", [
    od.Prior(theta=stats.cauchy(0, 1)),
    od.Prior(theta=stats.gamma(0.5)),
    od.Prior.joint(["theta"], lambda rng, n: rng.random((n, 1)), lambda t: np.zeros(len(t))),
])  # fmt: skip
def test_priors_without_a_jax_form(prior):
    model = od.Model(prior, od.jax_simulator(simulate), 2.0)
    for run in (od.rejection, od.pseudo_marginal):
        with pytest.raises(ValueError, match="no JAX form of this prior: it takes norm, uniform"):
            run(model, UNIFORM, draws=5)


def test_a_proposal_without_a_jax_form():
    for proposal in (od.independence(stats.cauchy(0, 1)), od.lazy(od.independence(stats.cauchy(0, 1)))):
        with pytest.raises(ValueError, match="no JAX form of the proposal's distribution"):
            od.pseudo_marginal(toy(), UNIFORM, draws=5, chains=16, proposal=proposal, seed=1)


def numpy_inside(key, theta):
    return np.sin(theta) + jax.random.normal(key)


def branching(key, theta):
    return theta if theta > 0 else -theta


@pytest.mark.parametrize("function", [numpy_inside, branching])
def test_simulators_that_are_not_array_code(function):
    with pytest.raises(ValueError, match=r"jax\.numpy"):
        toy(function=function)


def test_simulators_that_fail_are_found_out_when_the_model_is_made():
    with pytest.raises(ValueError, match=r"failed when it was tried: ZeroDivisionError.*simulate\(key, theta\)"):
        toy(function=lambda key, theta: 1 / 0)
    with pytest.raises(ValueError, match="does not fit the prior's parameters"):
        toy(function=lambda key, mu: mu)
    with pytest.raises(ValueError, match=r"takes a function\(key"):
        od.jax_simulator(3)


@pytest.mark.parametrize(
    ("more", "kernel"),
    [
        ({"summary": np_summary}, UNIFORM),
        ({"summary": lambda y: y if y > 0 else -y}, UNIFORM),
        ({"distance": lambda y, observed: np.abs(np.asarray(y) - observed)}, UNIFORM),
        ({}, od.kernel(lambda u: -np.sqrt(np.asarray(u)), 0.5)),
    ],
    ids=["summary", "branch", "distance", "kernel"],
)
def test_parts_that_are_not_array_code(more, kernel):
    function = normals_of_theta if more.get("summary") is np_summary else simulate
    model = toy(np.zeros(3) if function is normals_of_theta else Y_OBS, function, **more)
    with pytest.raises(ValueError, match=r"is not such code.*jax\.numpy"):
        od.rejection(model, kernel, draws=5, seed=1)


def normals_of_theta(key, theta):
    return theta + jax.random.normal(key, (3,))


def test_constraints_and_proposals_that_are_not_array_code():
    prior = od.Prior(theta=stats.norm(), where=lambda theta: np.abs(np.array(theta)) < 1)
    with pytest.raises(ValueError, match=r"where.* is not such code.*jax.numpy"):
        od.rejection(od.Model(prior, od.jax_simulator(simulate), 2.0), UNIFORM, draws=5, seed=1)
    with pytest.raises(ValueError, match=r"the proposal failed|is not such code"):
        od.pseudo_marginal(
            toy(), UNIFORM, draws=5, chains=64, seed=1, proposal=lambda rng, theta: (np.asarray(theta) + 1.0, 0.0)
        )


def test_workers_and_time_limits_are_for_numpy():
    for more in ({"workers": 2}, {"executor": object()}):
        for run in (partial(od.rejection, toy(), UNIFORM, draws=5), partial(od.smc, toy(), budget=1000)):
            with pytest.raises(ValueError, match="workers= and executor= are for the NumPy engine"):
                run(**more)
    with pytest.raises(ValueError, match="timeout = 3 is for plain simulators"):
        od.rejection(toy(), UNIFORM, draws=5, timeout=3)


def test_outputs_of_the_wrong_shape():
    model = toy(np.zeros(3), lambda key, theta: theta + jax.random.normal(key, (4,)))
    for run in (partial(od.rejection, kernel=UNIFORM, draws=5), partial(od.infer, budget=100)):
        with pytest.raises(ValueError, match=r"output has shape \(4,\), but the observed data give \(3,\)"):
            run(model, seed=1)
    with pytest.raises(ValueError, match=r"the estimator returned shape \(\) for 16 rows"):
        od.pseudo_marginal(
            estimator=od.unbiased(lambda rng, theta: theta.sum(), PRIOR), engine="jax", draws=2, chains=16,
            start={"theta": 0.0},
        )  # fmt: skip


def test_learnt_summaries_are_for_numpy():
    with pytest.raises(ValueError, match=r"od\.fit_summary composes NumPy functions.*od\.jax_simulator"):
        od.fit_summary(toy(np.zeros(3), normals_of_theta), budget=100)


def test_without_jax():
    """Importing onedraw needs no JAX; a JAX simulator says what to install."""
    code = (
        "import sys\nsys.modules['jax'] = None\nimport onedraw as od\nfrom scipy import stats\n"
        "simulator = od.jax_simulator(lambda key, theta: theta)\n"
        "try:\n    od.Model(od.Prior(theta=stats.norm()), simulator, 1.0)\n"
        "except ValueError as error:\n    print(error)\n"
        "post = od.rejection(od.Model(od.Prior(theta=stats.norm()), lambda rng, theta: rng.normal(theta), 1.0),\n"
        "                    od.uniform(0.5), draws=3, seed=1)\nprint(post.shape)\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 'od.jax_simulator needs JAX: install it with pip install "onedraw[jax]"' in shown
    assert "(1, 3)" in shown


def test_estimators_without_jax():
    code = (
        "import sys\nsys.modules['jax'] = None\nimport onedraw as od\nfrom scipy import stats\n"
        "own = od.unbiased(lambda rng, theta: -theta[:, 0] ** 2, od.Prior(theta=stats.norm()))\n"
        "try:\n    od.pseudo_marginal(estimator=own, draws=3, start={'theta': 0.0}, engine='jax')\n"
        "except ValueError as error:\n    print(error)\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "needs JAX" in shown


def test_a_run_without_jax_does_not_import_it():
    code = (
        "import sys, onedraw as od\nfrom tests.reference import toy\n"
        "od.pseudo_marginal(toy(), od.uniform(0.6), draws=3, chains=4, seed=1)\nod.jax_simulator(len)\n"
        "print('jax' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "False"


@pytest.mark.slow
def test_what_is_kept_changes_nothing():
    """Without distances hits and failures are one sum on the device, and starts are filled up there: equal numbers."""

    def sometimes(key, theta):
        first, second = jax.random.split(key)
        return jnp.where(jax.random.uniform(first) < 0.1, jnp.nan, theta + jax.random.normal(second))

    model = od.Model(od.Prior(theta=stats.norm(0, 1)), od.jax_simulator(sometimes), observed=2.0)
    runs = [
        od.pseudo_marginal(model, od.uniform(0.8), draws=40, chains=64, pseudo_samples=4, keep=keep, seed=3)
        for keep in ("distances", "draws")
    ]
    assert runs[0].draws["theta"].tobytes() == runs[1].draws["theta"].tobytes()
    assert runs[0].cost._replace(seconds=0) == runs[1].cost._replace(seconds=0)
    # One in ten of those that were wanted.
    assert 0.03 < runs[0].cost.failed / runs[0].cost.simulations < 0.11
    assert runs[1].failures[0].message == "the output is not finite"


def test_a_negative_distance_is_a_failure():
    model = od.Model(
        od.Prior(theta=stats.norm(0, 1)),
        od.jax_simulator(lambda key, theta: theta + jax.random.normal(key)),
        observed=0.0,
        distance=lambda simulated, observed: jnp.where(simulated > observed, simulated - observed, -1.0),
    )
    post = od.rejection(model, od.uniform(5.0), budget=4096, seed=1)
    assert post.distances.min() >= 0 and post.distances.max() < 5.0
    assert abs(post.cost.failed / 4096 - 0.5) < 4 * np.sqrt(0.25 / 4096)


def test_another_device_or_version_is_told(tmp_path, monkeypatch):
    """The bytes of a run on a device depend on both, so a file that goes on elsewhere says so."""
    run = partial(od.pseudo_marginal, toy(), UNIFORM, store=tmp_path / "run.db", **FEW)
    run()
    monkeypatch.setattr(device, "versions", lambda: {"jax": "0.0", "device": "another"})
    with pytest.warns(UserWarning, match="jax .* -> 0.0, device .* -> another"):
        run()


@pytest.mark.slow
def test_a_search_for_the_first_failure_is_surplus():
    """The steps of a leg are drawn again up to the one that failed, and that is counted."""
    model = od.Model(
        od.Prior(theta=stats.norm(0, 1)),
        od.jax_simulator(lambda key, theta: jnp.where(jax.random.uniform(key) < 0.2, jnp.nan, theta)),
        observed=0.0,
    )
    post = od.pseudo_marginal(model, od.uniform(2.0), draws=8, chains=64, start={"theta": 0.1}, seed=1)
    assert post.cost.failed > 0 and post.cost.surplus >= 64
    # A proposal that was wanted, and none that was not.
    assert np.isfinite(post.failures[0].theta["theta"])


def test_programs_for_a_gpu_are_kept_in_the_users_cache_folder(monkeypatch, tmp_path):
    changed = {}
    monkeypatch.setattr(jax.config, "update", changed.__setitem__)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if jax.config.jax_compilation_cache_dir is None:
        monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
        device._keep_programs()
        assert not changed and not list(tmp_path.iterdir())
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        device._keep_programs()
        assert changed["jax_compilation_cache_dir"] == str(tmp_path / "onedraw" / "jax")
        assert (tmp_path / "onedraw" / "jax").is_dir()
        changed.clear()
        # A folder that cannot be made costs the time of the compiler and nothing else.
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        device._keep_programs()
        assert not changed
    given = SimpleNamespace(jax_compilation_cache_dir="mine", update=changed.__setitem__)
    monkeypatch.setattr(device, "jax", SimpleNamespace(default_backend=lambda: "gpu", config=given))
    device._keep_programs()
    assert not changed
