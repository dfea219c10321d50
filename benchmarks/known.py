"""Ten models whose posteriors are known, by which `od.infer` is judged: what `benchmarks/budgets.py` runs.

Each model is batched and fast. Its summaries are the data themselves, or sufficient for them, or order statistics, so
that their likelihood is known. The posterior given the observed summaries then follows in closed form, by quadrature,
or by importance sampling with the exact likelihood. Means and standard deviations are in known.json, with the standard
errors of those that were sampled. `python -m benchmarks.known` computes the file again.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import special, stats

import onedraw as od
from benchmarks.simulators import AVERAGES, NOISE, OBSERVED, PRIORS, SIMULATORS, STEPS, normal_form

FILE = Path(__file__).resolve().parent / "known.json"
DRAWS, ROUNDS = 400_000, 6
"""Draws of the importance sampler in its last round, which counts; the rounds before it have an eighth of them."""


class Problem(NamedTuple):
    """A model with a known posterior."""

    prior: od.Prior
    simulate: Callable[..., Any]
    """`simulate(rng, **columns) -> rows`."""
    observed: list[float]
    log_likelihood: Callable[..., Any]
    """`log_likelihood(theta (n, d), rows (n, s) or (1, s)) -> (n,)`, up to a function of the rows."""
    solve: Callable[[], Any] | None
    """Posterior means and standard deviations; None if they are sampled."""

    @property
    def model(self) -> od.Model:
        return od.Model(self.prior, od.batched(self.simulate), np.array(self.observed))


class Moments(NamedTuple):
    """Posterior means and standard deviations, each with the standard error of its computation."""

    mean: np.ndarray
    sd: np.ndarray
    mean_error: np.ndarray
    sd_error: np.ndarray


@cache
def moments(name: str) -> Moments:
    """The known posterior of a model, from the file."""
    return Moments(*(np.array(json.loads(FILE.read_text())[name][field]) for field in Moments._fields))


def log_posterior(problem: Problem, theta: np.ndarray) -> np.ndarray:
    """Log density of the posterior, up to a constant; -inf outside the prior."""
    value = problem.prior.logpdf(theta)
    inside = np.isfinite(value)
    value[inside] += problem.log_likelihood(theta[inside], np.array([problem.observed]))
    return value


def on_grid(problem: Problem, *axes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Posterior means and standard deviations by sums over a grid; an axis must hold all of the posterior."""
    theta = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    value = log_posterior(problem, theta)
    weight = np.exp(value - value.max())
    weight /= weight.sum()
    mean = weight @ theta
    return mean, np.sqrt(weight @ (theta - mean) ** 2)


def sampled(problem: Problem, draws: int, rounds: int, seed: int) -> Moments:
    """Posterior moments by importance sampling: Student's t with 5 degrees of freedom, fitted round by round."""
    rng = np.random.default_rng(seed)
    pool = problem.prior.sample(rng, draws // 8)
    value = log_posterior(problem, pool)
    best = pool[np.argsort(value)[-max(50, draws // 2000) :]]
    mean, covariance = best.mean(axis=0), np.cov(best.T)
    for turn in range(1, rounds + 1):
        number = draws if turn == rounds else draws // 8
        proposal = stats.multivariate_t(mean, 1.2 * covariance, df=5, seed=rng)
        theta = proposal.rvs(number).reshape(number, -1)
        value = log_posterior(problem, theta) - proposal.logpdf(theta)
        weight = np.exp(value - value.max())
        weight /= weight.sum()
        mean = weight @ theta
        covariance = (theta - mean).T @ ((theta - mean) * weight[:, None]) + 1e-12 * np.eye(theta.shape[1])
    away = theta - mean
    sd = np.sqrt(np.diag(covariance))
    mean_error = np.sqrt(weight**2 @ away**2)
    sd_error = np.sqrt(weight**2 @ (away**2 - sd**2) ** 2) / (2 * sd)
    return Moments(mean, sd, mean_error, sd_error)


def shared(name: str) -> tuple[od.Prior, Callable[..., Any], list[float]]:
    """Prior, simulator and data of a model that other packages run as well."""
    marginals = {parameter: getattr(stats, kind)(*rest) for parameter, (kind, *rest) in PRIORS[name].items()}
    return od.Prior(**marginals), SIMULATORS[name], OBSERVED[name]


def _columns(theta: dict[str, np.ndarray]) -> np.ndarray:
    return np.column_stack(list(theta.values()))


# The model that `onedraw new` writes: ten normals, their mean and standard deviation


def _template_likelihood(theta, rows):
    (mu, sigma), (mean, sd) = theta.T, rows.T
    return -10 * np.log(sigma) - 5 * ((mean - mu) ** 2 + sd**2) / sigma**2


def _template_moments():
    return on_grid(PROBLEMS["template"], np.linspace(-20, 24, 1200), np.linspace(0.1, 6.1, 1201)[:-1] + 0.0025)


# SEIR: people who are infectious among 1,000 tested on ten days


def _infectious(contact, latency, recovery, days=100, every=10, step=0.5):
    """Share of infectious people on days 10, 20, ..., by classical Runge-Kutta steps."""
    state = np.stack([np.full(len(contact), 0.999), np.zeros(len(contact)), np.full(len(contact), 0.001)])

    def rate(now):
        infected, ill = contact * now[0] * now[2], now[1] / latency
        return np.stack([-infected, infected - ill, ill - now[2] / recovery])

    shares = []
    for k in range(1, int(days / step) + 1):
        first = rate(state)
        second = rate(state + step / 2 * first)
        third = rate(state + step / 2 * second)
        fourth = rate(state + step * third)
        state = np.clip(state + step / 6 * (first + 2 * (second + third) + fourth), 0.0, 1.0)
        if k % int(every / step) == 0:
            shares.append(state[2])
    return np.clip(np.column_stack(shares), 1e-9, 1 - 1e-9)


def _seir(rng, contact, latency, recovery):
    return rng.binomial(1000, _infectious(contact, latency, recovery)).astype(float)


def _seir_likelihood(theta, rows):
    share = _infectious(*theta.T)
    return (rows * np.log(share) + (1000 - rows) * np.log1p(-share)).sum(axis=1)


# Ricker: 40 steps of a population seen without error, log N' = log N + r (1 - N / K) + sigma e. The regression of the
# growth on N and the first two moments of N are sufficient.


def _ricker_likelihood(theta, rows):
    r, capacity, sigma = theta.T
    intercept, slope, log_rest, log_mean, log_spread = rows.T
    a, b = intercept - r, slope / 100 + r / capacity
    squares = np.exp(2 * log_rest) + (a + b * np.exp(log_mean)) ** 2 + b**2 * np.exp(2 * log_spread)
    return -STEPS * (np.log(sigma) + squares / (2 * sigma**2))


def _ricker_moments():
    axes = np.linspace(0.5, 2.5, 201)[:-1] + 0.005, np.linspace(60, 220, 240), np.linspace(0.1, 1.0, 240)
    return on_grid(PROBLEMS["ricker"], *axes)


# g-and-k: every 50th of 399 sorted values. Uniform order statistics are sums of exponentials over their total.


def _order_statistics(rng, n, shapes):
    parts = rng.gamma(np.array(shapes, dtype=float), size=(n, len(shapes)))
    return np.cumsum(parts[:, :-1], axis=1) / parts.sum(axis=1, keepdims=True)


def _spacings(u, shapes):
    """Log density of uniform order statistics, up to a constant."""
    gaps = np.diff(u, axis=1, prepend=0.0, append=1.0)
    return (special.xlogy(np.array(shapes) - 1.0, np.clip(gaps, 1e-300, None))).sum(axis=1)


EIGHTHS = [50] * 8


def _g_and_k_quantile(z, a, b, g, k):
    return a + b * (1 + 0.8 * np.tanh(g * z / 2)) * (1 + z**2) ** k * z


def _g_and_k(rng, a, b, g, k):
    z = special.ndtri(_order_statistics(rng, len(a), EIGHTHS))
    return _g_and_k_quantile(z, *(one[:, None] for one in (a, b, g, k)))


def _g_and_k_likelihood(theta, rows):
    a, b, g, k = (one[:, None] for one in theta.T)
    low, high = np.full((len(theta), 7), -9.0), np.full((len(theta), 7), 9.0)
    for _ in range(50):
        z = (low + high) / 2
        below = _g_and_k_quantile(z, a, b, g, k) < rows
        low, high = np.where(below, z, low), np.where(below, high, z)
    skew, tail = np.tanh(g * z / 2), (1 + z**2) ** k
    slope = (1 + 0.8 * skew) * tail * (1 + 2 * k * z**2 / (1 + z**2)) + 0.4 * g * (1 - skew**2) * tail * z
    return _spacings(special.ndtr(z), EIGHTHS) - (z**2 / 2 + np.log(b * slope)).sum(axis=1)


# Hierarchical: means of eight groups, each of four values with standard deviation 2, around a common mean

GROUPS = 8
ERROR = 1.0
_SCALE, _MEAN = stats.halfnorm(scale=2.0), stats.norm(0.0, 5.0)


def _groups_prior(rng, n):
    mean, scale = _MEAN.rvs(n, random_state=rng), _SCALE.rvs(n, random_state=rng)
    return np.column_stack([mean, scale, mean[:, None] + scale[:, None] * rng.standard_normal((n, GROUPS))])


def _groups_log_prior(theta):
    mean, scale, groups = theta[:, 0], theta[:, 1], theta[:, 2:]
    positive = np.where(scale > 0, scale, 1.0)
    inner = stats.norm.logpdf(groups, mean[:, None], positive[:, None]).sum(axis=1)
    return np.where(scale > 0, _MEAN.logpdf(mean) + _SCALE.logpdf(positive) + inner, -np.inf)


def _groups(rng, **theta):
    return _columns(theta)[:, 2:] + ERROR * rng.standard_normal((len(theta["mean"]), GROUPS))


def _groups_likelihood(theta, rows):
    return -0.5 * ((rows - theta[:, 2:]) ** 2).sum(axis=1) / ERROR**2


def _groups_moments():
    """Everything is normal given the scale, over which a sum is taken."""
    observed = np.array(PROBLEMS["hierarchical"].observed)
    scale = np.linspace(0.0, 12.0, 24_001)[:-1] + 0.00025
    total = scale**2 + ERROR**2
    precision = 1 / 25 + GROUPS / total
    centre = observed.sum() / total / precision
    log_weight = (
        _SCALE.logpdf(scale)
        - 0.5 * GROUPS * np.log(total)
        - 0.5 * np.log(precision)
        - 0.5 * ((observed**2).sum() / total - precision * centre**2)
    )
    weight = special.softmax(log_weight)
    share = (scale**2 / total)[:, None]
    group = share * observed + (1 - share) * centre[:, None]
    variance = np.repeat(share * ERROR**2 + (1 - share) ** 2 / precision[:, None], GROUPS, axis=1)
    first = np.column_stack([centre, scale, group])
    second = np.column_stack([1 / precision, np.zeros_like(scale), variance]) + first**2
    mean = weight @ first
    return mean, np.sqrt(weight @ second - mean**2)


# Counts: animals that were seen at all, and sightings, in five visits to a closed population

VISITS = 5


def _sightings(rng, animals, chance):
    seen = stats.binom.pmf(np.arange(VISITS + 1), VISITS, chance[:, None])
    seen[:, -1] = 1 - seen[:, :-1].sum(axis=1)
    number = rng.multinomial(np.floor(animals).astype(int), np.clip(seen, 0.0, 1.0))
    return np.column_stack([number[:, 1:].sum(axis=1), number @ np.arange(VISITS + 1)]).astype(float)


def _sightings_likelihood(theta, rows):
    animals, chance = np.floor(theta[:, 0]), theta[:, 1]
    different, total = rows.T
    missed = animals - different
    ways = special.gammaln(animals + 1) - special.gammaln(np.maximum(missed, 0) + 1)
    value = ways + total * np.log(chance) + (VISITS * animals - total) * np.log1p(-chance)
    return np.where(missed >= 0, value, -np.inf)


def _sightings_moments():
    """The chance is summed out by its beta law given the number of animals, which fills whole units evenly."""
    different, total = PROBLEMS["counts"].observed
    number = np.arange(max(100, int(different)), 900)
    alpha, beta = 2 + total, 6 + VISITS * number - total
    weight = special.softmax(
        special.gammaln(number + 1) - special.gammaln(number - different + 1) + special.betaln(alpha, beta)
    )
    chance = alpha / (alpha + beta)
    square = chance * (alpha + 1) / (alpha + beta + 1)
    mean = np.array([weight @ (number + 0.5), weight @ chance])
    second = np.array([weight @ ((number + 0.5) ** 2 + 1 / 12), weight @ square])
    return mean, np.sqrt(second - mean**2)


# Bimodal: a square hides the sign, of which another summary tells a little


def _bimodal(rng, t0, t1):
    noise = 0.5 * rng.standard_normal((len(t0), 2))
    return np.column_stack([t0**2 + 0.5 * t1, t1 - 0.3 * t0]) + noise


def _bimodal_likelihood(theta, rows):
    t0, t1 = theta.T
    return -2 * ((rows[:, 0] - t0**2 - 0.5 * t1) ** 2 + (rows[:, 1] - t1 + 0.3 * t0) ** 2)


def _bimodal_moments():
    return on_grid(PROBLEMS["bimodal"], np.linspace(-3, 3, 1501)[:-1] + 0.002, np.linspace(-5, 5, 1000))


# Twelve parameters, twenty overlapping averages of them; the last six are positive and act by their logarithm


def _twelve_likelihood(theta, rows):
    return -0.5 * ((rows - normal_form(theta) @ AVERAGES.T) ** 2).sum(axis=1) / NOISE**2


def _twelve_moments():
    covariance = np.linalg.inv(np.eye(12) + AVERAGES.T @ AVERAGES / NOISE**2)
    mean = covariance @ AVERAGES.T @ np.array(PROBLEMS["twelve"].observed) / NOISE**2
    variance = np.diag(covariance)
    log_mean, log_variance = mean[6:] / 2, variance[6:] / 4
    positive = np.exp(log_mean + log_variance / 2)
    spread = positive * np.sqrt(np.expm1(log_variance))
    return np.append(mean[:6], positive), np.append(np.sqrt(variance[:6]), spread)


# Heavy tails: values 2, 6, 10, 14 and 18 of 19 sorted Cauchy variables; the outer two have no variance

RANKS = [2, 4, 4, 4, 4, 2]


def _cauchy(rng, centre, scale):
    u = _order_statistics(rng, len(centre), RANKS)
    return centre[:, None] + scale[:, None] * np.tan(np.pi * (u - 0.5))


def _cauchy_likelihood(theta, rows):
    centre, scale = theta[:, :1], theta[:, 1:]
    z = (rows - centre) / scale
    return _spacings(0.5 + np.arctan(z) / np.pi, RANKS) - (np.log1p(z**2) + np.log(scale)).sum(axis=1)


def _cauchy_moments():
    return on_grid(PROBLEMS["heavy tails"], np.linspace(-5, 7, 1200), np.linspace(0.0, 12.0, 1201)[1:])


# The toy: one normal with an unknown mean


def _toy(rng, theta):
    return (theta + rng.standard_normal(len(theta)))[:, None]


def _toy_likelihood(theta, rows):
    return -0.5 * (rows[:, 0] - theta[:, 0]) ** 2


def _toy_moments():
    return np.array([2.0 * 9 / 10]), np.array([np.sqrt(9 / 10)])


PROBLEMS = {
    "template": Problem(*shared("template"), _template_likelihood, _template_moments),
    "seir": Problem(
        od.Prior(contact=stats.lognorm(0.5, scale=0.5), latency=stats.lognorm(0.4, scale=4.0),
                 recovery=stats.lognorm(0.4, scale=6.0)),
        _seir, [5.0, 23.0, 103.0, 200.0, 175.0, 54.0, 23.0, 4.0, 1.0, 2.0], _seir_likelihood, None,
    ),
    "ricker": Problem(*shared("ricker"), _ricker_likelihood, _ricker_moments),
    "g-and-k": Problem(
        od.Prior(a=stats.uniform(0, 10), b=stats.uniform(0, 10), g=stats.uniform(0, 10), k=stats.uniform(0, 10)),
        _g_and_k, [2.368, 2.546, 2.754, 2.985, 3.451, 4.309, 5.823], _g_and_k_likelihood, None,
    ),
    "hierarchical": Problem(
        od.Prior.joint(["mean", "scale", *(f"group{j}" for j in range(GROUPS))], _groups_prior, _groups_log_prior),
        _groups, [0.4, 2.9, 1.1, -1.3, 1.8, 3.6, 0.2, 0.9], _groups_likelihood, _groups_moments,
    ),
    "counts": Problem(
        od.Prior(animals=stats.uniform(100, 800), chance=stats.beta(2, 6)),
        _sightings, [196.0, 241.0], _sightings_likelihood, _sightings_moments,
    ),
    "bimodal": Problem(
        od.Prior(t0=stats.uniform(-3, 6), t1=stats.norm(0, 1)),
        _bimodal, [2.5, 0.4], _bimodal_likelihood, _bimodal_moments,
    ),
    "twelve": Problem(*shared("twelve"), _twelve_likelihood, _twelve_moments),
    "heavy tails": Problem(
        od.Prior(centre=stats.norm(0, 5), scale=stats.lognorm(1.0)),
        _cauchy, [-14.536, -1.785, 1.046, 1.941, 7.138], _cauchy_likelihood, _cauchy_moments,
    ),
    "toy": Problem(od.Prior(theta=stats.norm(0, 3)), _toy, [2.0], _toy_likelihood, _toy_moments),
}  # fmt: skip
"""The models by name."""


def solved(problem: Problem) -> Moments:
    """The posterior's moments as they are written into the file."""
    if problem.solve is None:
        return sampled(problem, DRAWS, ROUNDS, seed=1)
    mean, sd = problem.solve()
    return Moments(mean, sd, np.zeros_like(mean), np.zeros_like(sd))


def main() -> None:
    found = {}
    for name, problem in PROBLEMS.items():
        known = solved(problem)
        found[name] = {field: [float(f"{v:.8g}") for v in getattr(known, field)] for field in Moments._fields}
        print(name, *(f"{mean:.4g} ± {sd:.4g}" for mean, sd in zip(known.mean, known.sd, strict=True)), sep="  ")
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
