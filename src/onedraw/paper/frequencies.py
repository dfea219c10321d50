"""The samplers that users run, on a model with five parameter values and four outcomes, against exact matrices.

What `verify` proves is about finite chains as the theory writes them. Here the public functions themselves are run on
every kind of simulator, with every kind of proposal and estimator, and what they do is counted: from which state they
went to which. Given the states that were left, the counts are independent multinomials with the rows of the exact
transition matrix (finite_chains.py), so that Pearson's statistic is compared with a chi-squared law. Weighted draws
are compared with the exact posterior in units of their Monte Carlo error. The kernels are written out here and are not
asked of the package.
"""

from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

import onedraw as od
from onedraw.engines.arrays import Array
from onedraw.estimators.abc_average import abc_average
from onedraw.estimators.handicapped import handicapped
from onedraw.paper import finite_chains as exact
from onedraw.results.posterior import Posterior

LEVEL = 1e-6
"""The probability with which a check fails by chance alone."""
FEWEST_EXPECTED = 5.0
"""Cells of a chi-squared statistic with fewer expected counts are put together."""
POINTS = np.arange(5)
DISTANCES = np.array([0.0, 0.6, 1.2, 3.0])
OUTCOMES = np.array(
    [[0.05, 0.10, 0.15, 0.70], [0.20, 0.10, 0.30, 0.40], [0.10, 0.50, 0.20, 0.20], [0.45, 0.05, 0.25, 0.25],
     [0.15, 0.15, 0.10, 0.60]]
)  # fmt: skip
"""Probabilities of the distances at each parameter value."""
EDGES = np.cumsum(OUTCOMES, axis=1)
JUMPS = np.array(
    [[0.10, 0.40, 0.20, 0.10, 0.20], [0.15, 0.05, 0.50, 0.20, 0.10], [0.30, 0.20, 0.10, 0.30, 0.10],
     [0.10, 0.10, 0.35, 0.05, 0.40], [0.25, 0.05, 0.15, 0.35, 0.20]]
)  # fmt: skip
"""A proposal without symmetry."""
JUMP_EDGES = np.cumsum(JUMPS, axis=1)
PRIOR = stats.binom(4, 0.45)
HOLD, ALPHA, EPS, SMALLER = 0.3, 0.4, 1.5, 0.8
PROFILES: dict[str, Callable[[Array], Array]] = {
    "uniform": lambda scaled: (scaled < 1).astype(float),
    "epanechnikov": lambda scaled: np.maximum(1 - scaled**2, 0),
}
KERNELS = {"uniform": od.uniform, "epanechnikov": od.epanechnikov}


# --- the model, on every engine -----------------------------------------------------------------------------


def _plain(rng: np.random.Generator, theta: int) -> float:
    return float(DISTANCES[np.searchsorted(EDGES[theta], rng.random())])


def _batch(rng: np.random.Generator, theta: Array) -> Array:
    return DISTANCES[(rng.random(theta.size)[:, None] >= EDGES[theta, :-1]).sum(axis=1)]


def _prepare(theta: int) -> Array:
    return EDGES[theta]


def _draw(rng: np.random.Generator, edges: Array, m: int) -> Array:
    return DISTANCES[np.searchsorted(edges, rng.random(m))]


def _loop(rng: np.random.Generator, theta: int) -> float:
    u, k = rng.random(), 0
    while k < 3 and u >= EDGES[int(theta), k]:
        k += 1
    return float(DISTANCES[k])


def _traced(key: Any, theta: Any) -> Any:
    import jax

    edges, distances = jax.numpy.asarray(EDGES), jax.numpy.asarray(DISTANCES)
    return distances[(jax.random.uniform(key) >= edges[theta, :-1]).sum()]


@cache
def models() -> dict[str, od.Model]:
    """The model with each kind of simulator that can run here; made once, so that each is compiled once."""
    simulators = {"plain": _plain, "batched": od.batched(_batch), "staged": od.staged(_prepare, _draw)}
    if find_spec("numba"):
        simulators["compiled"] = od.compiled(_loop)
    found = {name: od.Model(od.Prior(theta=PRIOR), one, observed=0.0) for name, one in simulators.items()}
    if find_spec("jax"):
        found["jax"] = od.Model(od.Prior(theta=stats.randint(0, 5)), od.jax_simulator(_traced), observed=0.0)
    return found


def prior_of(name: str) -> Array:
    """Prior weights of a model; the engine of JAX has its own families."""
    return np.full(5, 0.2) if name == "jax" else np.asarray(PRIOR.pmf(POINTS))


def law_of(kernel: str, eps: float = EPS) -> exact.Law:
    """The law of K at each parameter value; distances with the same K are one outcome."""
    values, which = np.unique(PROFILES[kernel](DISTANCES / eps), return_inverse=True)
    return exact.Law(np.tile(values, (5, 1)), OUTCOMES @ (which[:, None] == np.arange(values.size)))


def jump(rng: Any, theta: Any) -> Any:
    """The proposal JUMPS as a user would write it."""
    here = theta[:, 0].astype(int)
    there = (rng.random(len(here))[:, None] >= JUMP_EDGES[here, :-1]).sum(axis=1)
    return there[:, None], np.log(JUMPS[there, here] / JUMPS[here, there])


def walk_matrix() -> Array:
    """A rounded normal walk of unit variance on six points: the sixth, of prior 0, is everything outside."""
    steps = POINTS - POINTS[:, None]
    inside = stats.norm.cdf(steps + 0.5) - stats.norm.cdf(steps - 0.5)
    matrix = np.zeros((6, 6))
    matrix[:5, :5], matrix[:5, 5], matrix[5, 5] = inside, 1 - inside.sum(axis=1), 1.0
    return matrix


# --- comparisons --------------------------------------------------------------------------------------------


def chi_squared_ratio(counts: Array, probabilities: Array) -> float:
    """Pearson's statistic of rows of counts (n, k) over what it exceeds with probability LEVEL."""
    statistic, freedom = 0.0, 0
    for seen, chances in zip(counts, probabilities, strict=True):
        if seen[chances == 0].any():
            return float("inf")
        expected = seen.sum() * chances
        large = expected >= FEWEST_EXPECTED
        few, rest = seen[~large].sum(), expected[~large].sum()
        seen, expected = seen[large].astype(float), expected[large]
        if expected.size < 2:
            continue
        # What is too rare by itself joins the smallest of the others.
        seen[expected.argmin()] += few
        expected[expected.argmin()] += rest
        statistic += float(((seen - expected) ** 2 / expected).sum())
        freedom += expected.size - 1
    return statistic / float(stats.chi2.isf(LEVEL, freedom))


def states_of(post: Posterior, chain: exact.Chain, law: exact.Law, profile: Callable[[Array], Array]) -> Array:
    """(chains, draws): the number of the state of the exact chain, from theta and the mean of K over the distances."""
    assert post.distances is not None
    scaled = np.atleast_3d(post.distances) / EPS
    code = 1e7 * post.draws["theta"] + np.rint(1e6 * profile(scaled).mean(axis=2))
    known = 1e7 * chain.point + np.rint(1e6 * law.values[chain.point, chain.outcome])
    order = np.argsort(known)
    place = np.minimum(np.searchsorted(known[order], code), known.size - 1)
    return np.where(known[order][place] == code, order[place], -1)


def moves_ratio(states: Array, chain: exact.Chain) -> Iterator[float]:
    """Of the first draws of all chains and of the moves between draws."""
    size = len(chain.stationary)
    if (states < 0).any():
        yield float("inf")
        return
    yield chi_squared_ratio(np.bincount(states[:, 0], minlength=size)[None], chain.stationary[None])
    pairs = states[:, :-1] * size + states[:, 1:]
    yield chi_squared_ratio(np.bincount(pairs.ravel(), minlength=size * size).reshape(size, size), chain.transition)


def posterior_ratio(post: Posterior, target: Array) -> float:
    """The largest error of the posterior probabilities, in what their Monte Carlo errors exceed with chance LEVEL."""
    found = [post.estimate(lambda theta, at=at: theta == at) for at in POINTS]
    z = [abs(one.value - true) / one.mcse for one, true in zip(found, target, strict=True)]
    return max(z) / float(stats.norm.isf(LEVEL / 2 / len(POINTS)))


def rate_ratio(post: Posterior, rate: float) -> float:
    """The error of the acceptance rate, in the same units."""
    return abs(post.acceptance_rate - rate) / post.acceptance_rate_se / float(stats.norm.isf(LEVEL / 2))


def target_of(prior: Array, law: exact.Law) -> Array:
    """The exact posterior."""
    return prior * law.mean / (prior @ law.mean)


# --- what is run --------------------------------------------------------------------------------------------


Engines = tuple[str, ...]


def of(engines: Engines) -> list[tuple[str, od.Model]]:
    """The models of these engines."""
    return [(name, model) for name, model in models().items() if name in engines]


class Counted(NamedTuple):
    """A function of the package, what is said of it, and the ratios of its statistics to their limits."""

    name: str
    text: str
    ratios: Callable[[int, Engines], Iterator[float]]


CHAINS = {"plain": (120, 30), "staged": (120, 30)}
"""Chains and draws; the simulators that are called one by one have fewer chains."""


AVERAGES = (("uniform", 1), ("epanechnikov", 1), ("uniform", 3), ("epanechnikov", 2))
"""Kernels and pseudo-samples of the pseudo-marginal chains."""


def _layout(engine: str) -> dict[str, Any]:
    chains, draws = CHAINS.get(engine, (10_000, 12))
    return {"chains": chains, "draws": draws}


def _rejection(seed: int, engines: Engines) -> Iterator[float]:
    for engine, model in of(engines):
        for kernel, make in KERNELS.items():
            law, prior = law_of(kernel), prior_of(engine)
            post = od.rejection(model, make(EPS), draws=2_000, pseudo_samples=1 + (kernel == "uniform"), seed=seed)
            counts = np.bincount(post.draws["theta"][0], minlength=5)
            yield chi_squared_ratio(counts[None], target_of(prior, law)[None])
            yield rate_ratio(post, float(prior @ law.mean))


def _pseudo_marginal(seed: int, engines: Engines) -> Iterator[float]:
    for engine, model in of(engines):
        for kernel, m in AVERAGES:
            given: dict[str, Any] = {"proposal": od.independence() if engine == "jax" else jump}
            matrix = np.tile(prior_of(engine), (5, 1)) if engine == "jax" else JUMPS
            problem = exact.Problem(prior_of(engine), matrix, law_of(kernel))
            chain, law = exact.pseudo_marginal(problem, m), exact.average(problem.law, m)
            post = od.pseudo_marginal(
                model, KERNELS[kernel](EPS), pseudo_samples=m, keep="distances", seed=seed, **given, **_layout(engine)
            )
            yield from moves_ratio(states_of(post, chain, law, PROFILES[kernel]), chain)
            yield rate_ratio(post, exact.acceptance_rate(chain))


def _proposals(seed: int, engines: Engines) -> Iterator[float]:
    model, law = models()["batched"], law_of("uniform")
    prior = prior_of("batched")
    given: dict[str, Any] = {"keep": "distances", "seed": seed, **_layout("batched")}
    other = stats.binom(4, 0.7)
    outside = exact.Law(np.vstack([law.values, law.values[:1]]), np.vstack([law.probabilities, law.probabilities[:1]]))
    for proposal, problem, hold in (
        (od.independence(), exact.Problem(prior, np.tile(prior, (5, 1)), law), 0.0),
        (od.independence(other), exact.Problem(prior, np.tile(other.pmf(POINTS), (5, 1)), law), 0.0),
        (od.random_walk(1.0), exact.Problem(np.append(prior, 0.0), walk_matrix(), outside), 0.0),
        (od.lazy(jump, hold=HOLD), exact.Problem(prior, JUMPS, law), HOLD),
    ):
        chain = exact.pseudo_marginal(problem, 1)
        chain = exact.lazy(chain, hold) if hold else chain
        post = od.pseudo_marginal(model, od.uniform(EPS), proposal=proposal, **given)
        yield from moves_ratio(states_of(post, chain, problem.law, PROFILES["uniform"]), chain)


def _on_the_grid(run: Callable[..., Posterior], chain_of: Callable[[exact.Problem], exact.Chain], kernels: Any) -> Any:
    """Samplers whose states are parameters alone."""

    def ratios(seed: int, engines: Engines) -> Iterator[float]:
        for engine, model in of(engines):
            for kernel in kernels:
                proposal = od.independence() if engine == "jax" else jump
                matrix = np.tile(prior_of(engine), (5, 1)) if engine == "jax" else JUMPS
                chain = chain_of(exact.Problem(prior_of(engine), matrix, law_of(kernel)))
                post = run(model, KERNELS[kernel](EPS), proposal=proposal, seed=seed, **_layout(engine))
                yield from moves_ratio(post.draws["theta"].astype(int), chain)

    return ratios


def _r_hit(hits: int) -> Callable[..., Posterior]:
    def run(model: od.Model, kernel: Any, **given: Any) -> Posterior:
        return od.r_hit(model, kernel, hits=hits, **given)

    return run


def _sequential(sampler: Callable[..., Posterior], **given: Any) -> Callable[[int, Engines], Iterator[float]]:
    def ratios(seed: int, engines: Engines) -> Iterator[float]:
        for kernel, make in KERNELS.items():
            post = sampler(models()["batched"], kernel=make(SMALLER), seed=seed, **given)
            eps = float(post.settings["eps"])
            yield posterior_ratio(post, target_of(prior_of("batched"), law_of(kernel, eps)))

    return ratios


def _smaller(seed: int, engines: Engines) -> Iterator[float]:
    prior, target = prior_of("batched"), target_of(prior_of("batched"), law_of("epanechnikov", SMALLER))
    model, kernel = models()["batched"], od.epanechnikov(EPS)
    yield posterior_ratio(od.rejection(model, kernel, draws=8_000, seed=seed).at(SMALLER), target)
    for m in (1, 3):
        post = od.pseudo_marginal(
            model, kernel, pseudo_samples=m, keep="distances", chains=2_000, draws=10, proposal=jump, seed=seed
        )
        yield posterior_ratio(post.at(SMALLER), target)
        yield posterior_ratio(post, target_of(prior, law_of("epanechnikov")))


def _estimators(seed: int, engines: Engines) -> Iterator[float]:
    model, prior, law = models()["batched"], prior_of("batched"), law_of("epanechnikov")
    values = PROFILES["epanechnikov"](DISTANCES / EPS)
    problem = exact.Problem(prior, JUMPS, law)
    given: dict[str, Any] = {"proposal": jump, "seed": seed, **_layout("batched")}

    def log_estimate(rng: np.random.Generator, theta: Array) -> Array:
        at = theta[:, 0].astype(int)
        with np.errstate(divide="ignore"):
            return np.log(values[(rng.random(len(at))[:, None] >= EDGES[at, :-1]).sum(axis=1)])

    own = od.unbiased(log_estimate, od.Prior(theta=PRIOR), log_bound=0.0)
    worse = handicapped(abc_average(model, od.epanechnikov(EPS)), ALPHA)
    handicap = exact.Problem(prior, JUMPS, exact.handicap(law, ALPHA))
    for estimator, chain in ((own, exact.pseudo_marginal(problem)), (worse, exact.pseudo_marginal(handicap))):
        post = od.pseudo_marginal(estimator=estimator, **given)
        yield posterior_ratio(post, target_of(prior, law))
        yield rate_ratio(post, exact.acceptance_rate(chain))


SEEN, STAY, RIGHT = np.array([0.0, 1.0, 1.0]), np.array([0.1, 0.3, 0.5, 0.7, 0.9]), 0.8
"""Observations of a hidden state that is 0 or 1, its chance to stay by theta, and that of a right observation."""


def _filter(seed: int, engines: Engines) -> Iterator[float]:
    """The mean of the filter's estimates, and the posterior of a chain that carries them."""
    estimator = od.particle_filter(
        od.Prior(theta=PRIOR),
        initial=lambda rng, shape, theta: (rng.random(shape) < 0.5).astype(float),
        transition=lambda rng, x, theta: np.where(rng.random(x.shape) < STAY[theta.astype(int)], x, 1 - x),
        log_observation=lambda y, x, theta: np.log(np.where(x == y, RIGHT, 1 - RIGHT)),
        data=SEEN, particles=3,
    )  # fmt: skip
    likelihood = np.array([_likelihood(stay) for stay in STAY])
    size = 4_000
    for at in POINTS:
        theta = np.full((size, 1), float(at))
        log_estimate, _ = estimator.log_estimate(np.random.default_rng([seed, int(at)]), theta, np.ones(size, bool))
        ratio = np.exp(log_estimate) / likelihood[at]
        yield abs(ratio.mean() - 1) / (ratio.std() / size**0.5) / float(stats.norm.isf(LEVEL / 2))
    post = od.pseudo_marginal(
        estimator=estimator, start={"theta": 2}, chains=1_000, draws=30, thin=2, proposal=jump, seed=seed
    )
    settled = Posterior(**{**vars(post), "draws": {"theta": post.draws["theta"][:, 10:]}})
    weights = PRIOR.pmf(POINTS) * likelihood
    yield posterior_ratio(settled, weights / weights.sum())


def _likelihood(stay: float) -> float:
    """Of SEEN, by summing over all hidden paths."""
    change = np.array([[stay, 1 - stay], [1 - stay, stay]])
    ahead = np.array([0.5, 0.5])
    for y in SEEN:
        ahead = (ahead * np.where(np.arange(2) == y, RIGHT, 1 - RIGHT)) @ change
    return float(ahead.sum())


# fmt: off
RUNS = (
    Counted("rejection", "od.rejection: draws and acceptance rate, every engine", _rejection),
    Counted("pseudo-marginal", "od.pseudo_marginal: starts and moves, every engine", _pseudo_marginal),
    Counted("proposals", "od.independence, random_walk, lazy: moves", _proposals),
    Counted("wilkinson", "od.wilkinson: starts and moves, every engine",
        _on_the_grid(od.wilkinson, exact.wilkinson, ("uniform", "epanechnikov"))),
    Counted("race", "od.r_hit, one hit: starts and moves, every engine",
        _on_the_grid(_r_hit(1), exact.one_hit, ("uniform",))),
    Counted("three-hit", "od.r_hit, three hits: the same",
        _on_the_grid(_r_hit(3), lambda problem: exact.r_hit(problem, 3), ("uniform",))),
    Counted("smc", "od.smc: the posterior at its tolerance", _sequential(od.smc, particles=20_000)),
    Counted("importance", "od.importance: the posterior at its tolerance", _sequential(od.importance, budget=100_000)),
    Counted("smaller-eps", "post.at(eps): the posterior at a smaller tolerance", _smaller),
    Counted("estimators", "od.unbiased, handicapped: posterior, acceptance rate", _estimators),
    Counted("filter", "od.particle_filter: unbiased, and its posterior", _filter),
)
# fmt: on
"""Everything that is run; the names do not repeat those of the statements."""
