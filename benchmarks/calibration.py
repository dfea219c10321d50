"""Whether stated Monte Carlo errors hold: every sampler on five problems whose posteriors are known exactly.

python -m benchmarks calibration, or python -m benchmarks calibration --runs 20 --only smc "two modes" --jobs 16.

A run states an estimate and its error, and z = (estimate - exact value)/error. Over many runs, errors are right if the
root mean square of z is 1 and 95 % of |z| are below 1.96. Four estimates are looked at: mean, standard deviation, the
quantile of 90 % and a probability. `od.infer` is judged by the posterior itself, and the others by the posterior at
their tolerance. `--out` gets a line of JSON for each run as it ends; a second call with the same file continues.
"""

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

import onedraw as od
from benchmarks.processes import Line, collected, recorded
from benchmarks.timing import report
from onedraw.model.kernels import Kernel

RUNS = 200
LOW_RMS, HIGH_RMS = 0.9, 1.1
LOW_COVERED, HIGH_COVERED = 0.92, 0.975
UPPER = 0.9
"""The probability of the quantile."""
CELLS = {1: 6000, 2: 240}
"""Cells of a grid along each parameter, by their number."""
NODES, RADII, ANGLES = 96, 20, 24
"""Of the quadrature over simulated data around the observed ones: along a line, and in a plane."""
FAR = 7.0
"""Where a kernel without bounds ends, in tolerances."""


class Problem(NamedTuple):
    """A model whose posterior is known at every tolerance."""

    prior: od.Prior
    simulate: Callable[..., Any]
    observed: list[float]
    log_density: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """Of data y (s,) at parameters (n, d); of one count, its log probability."""
    ends: list[tuple[float, float]]
    """Of the grid, which holds all of the posterior."""
    eps: float
    wide: float
    """A larger tolerance, from which `at` goes down to eps."""
    above: float
    """The probability that is estimated is that of the first parameter above this value."""
    counts: bool = False

    @property
    def model(self) -> od.Model:
        return od.Model(self.prior, self.simulate, np.array(self.observed))


@od.batched
def one_count(rng, rate):
    """A Poisson count."""
    return rng.poisson(rate).astype(float)


@od.batched
def beside_an_edge(rng, a, b):
    """Two parameters, each with noise."""
    return np.column_stack([a, b]) + rng.standard_normal((len(a), 2))


@od.batched
def squared(rng, theta):
    """A square, which hides the sign, with noise."""
    return theta**2 + 0.5 * rng.standard_normal(len(theta))


@od.batched
def waiting(rng, rate):
    """The sum of three waiting times."""
    return rng.gamma(3.0, 1.0, len(rate)) / rate


@od.batched
def tilted(rng, a, b):
    """A sum and a difference with noise."""
    return np.column_stack([a + b, 0.5 * (a - b)]) + 0.6 * rng.standard_normal((len(a), 2))


def _normal(y: np.ndarray, mean: np.ndarray, sd: float) -> np.ndarray:
    """Log density of independent normals, up to a constant."""
    return -0.5 * np.sum(((y - mean) / sd) ** 2, axis=-1)


PROBLEMS = {
    "counts": Problem(
        od.Prior(rate=stats.gamma(2, scale=5)), one_count, [4.0],
        lambda theta, y: stats.poisson.logpmf(y[0], theta[:, 0]), [(0.0, 40.0)], 0.5, 3.5, 6.0, counts=True,
    ),
    "corner": Problem(
        od.Prior(a=stats.uniform(0, 3), b=stats.uniform(0, 3)), beside_an_edge, [-0.7, 3.6],
        lambda theta, y: _normal(y, theta, 1.0), [(0.0, 3.0), (0.0, 3.0)], 0.7, 1.5, 1.0,
    ),
    "two modes": Problem(
        od.Prior(theta=stats.norm(0.3, 1.5)), squared, [2.5],
        lambda theta, y: _normal(y, theta**2, 0.5), [(-5.0, 5.0)], 0.3, 1.0, 1.5,
    ),
    "skewed": Problem(
        od.Prior(rate=stats.lognorm(1.2)), waiting, [0.8],
        lambda theta, y: stats.gamma.logpdf(y[0] * theta[:, 0], 3.0) + np.log(theta[:, 0]), [(0.0, 40.0)],
        0.1, 0.4, 4.0,
    ),
    "plane": Problem(
        od.Prior(a=stats.norm(0, 1), b=stats.norm(0, 1)), tilted, [1.2, 0.4],
        lambda theta, y: _normal(y, np.column_stack([theta.sum(axis=1), 0.5 * (theta[:, 0] - theta[:, 1])]), 0.6),
        [(-6.0, 6.0), (-6.0, 6.0)], 0.4, 1.0, 1.0,
    ),
}  # fmt: skip
"""The models by name."""


# Exact answers


class Answers(NamedTuple):
    """What is estimated, exactly, of the first parameter."""

    mean: float
    sd: float
    upper: float
    above: float


def nodes(problem: Problem, kernel: Kernel | None) -> tuple[np.ndarray, np.ndarray]:
    """Data around the observed ones (q, s), and what each weighs in the mean of K."""
    observed = np.array(problem.observed)
    if kernel is None:
        return observed[None], np.ones(1)
    reach = kernel.eps * min(kernel.support, FAR)
    if problem.counts:
        y = np.arange(max(0.0, math.ceil(observed[0] - reach)), observed[0] + reach)[:, None]
        return y, np.exp(kernel.log_weight(np.abs(y[:, 0] - observed[0])))
    at, weight = np.polynomial.legendre.leggauss(NODES if observed.size == 1 else RADII)
    if observed.size == 1:
        return observed + reach * at[:, None], weight * np.exp(kernel.log_weight(np.abs(reach * at)))
    radius, angle = reach * (at + 1) / 2, 2 * np.pi * np.arange(ANGLES) / ANGLES
    circle = np.column_stack([np.cos(angle), np.sin(angle)])
    weight = weight * radius * np.exp(kernel.log_weight(radius))
    return observed + np.concatenate([one * circle for one in radius]), np.repeat(weight, ANGLES)


def _summed(problem: Problem, kernel: Kernel | None, axes: list[np.ndarray]) -> np.ndarray:
    """The posterior's mass in each cell, of which `axes` has the middles, summed over all parameters but the first."""
    theta = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    likelihood = np.zeros(len(theta))
    for y, weight in zip(*nodes(problem, kernel), strict=True):
        likelihood += weight * np.exp(problem.log_density(theta, y))
    mass = likelihood * np.exp(problem.prior.logpdf(np.asfortranarray(theta)))
    by_first = mass.reshape(axes[0].size, -1).sum(axis=1)
    return by_first / by_first.sum()


@cache
def answers(name: str, kernel: Kernel | None) -> Answers:
    """By sums over the cells of a fine grid; None for the posterior itself."""
    problem = PROBLEMS[name]
    cells = CELLS[len(problem.ends)]
    edges = [np.linspace(low, high, cells + 1) for low, high in problem.ends]
    axes = [(one[1:] + one[:-1]) / 2 for one in edges]
    mass, first = _summed(problem, kernel, axes), axes[0]
    mean = float(mass @ first)
    below = np.append(0.0, np.cumsum(mass))
    upper = float(np.interp(UPPER, below, edges[0]))
    return Answers(
        mean, math.sqrt(mass @ (first - mean) ** 2), upper, 1 - float(np.interp(problem.above, edges[0], below))
    )


# Samplers


class Case(NamedTuple):
    """A sampler as it is used."""

    run: Callable[..., od.Posterior]
    """Of a model, a kernel, further arguments and a seed."""
    arguments: dict[str, Any]
    kernel: Callable[[float], Kernel] | None = od.uniform
    """None if the draws stand for the posterior itself."""
    wide: bool = False
    """Whether the run is at the larger tolerance, and its draws are weighted by `at`."""

    def target(self, problem: Problem) -> Kernel | None:
        """The kernel of the posterior that the draws stand for."""
        return None if self.kernel is None else self.kernel(problem.eps)

    def posterior(self, problem: Problem, seed: int) -> od.Posterior:
        """One run."""
        arguments = {**self.arguments, "seed": seed, "progress": False}
        if self.kernel is not None:
            arguments["kernel"] = self.kernel(problem.wide if self.wide else problem.eps)
        post = self.run(problem.model, **arguments)
        return post.at(problem.eps) if self.wide else post


def chains(run: Callable[..., od.Posterior], number: int, draws: int, kernel: Any = od.uniform, **more: Any) -> Case:
    """Chains that start from draws of the posterior."""
    return Case(run, {"chains": number, "draws": draws, **more}, kernel)


def lowered(case: Case) -> Case:
    """At the larger tolerance, and weighted by `at`."""
    return case._replace(wide=True)


SHAPES = [(4, 3000), (64, 200), (1024, 20), (512, 10), (1024, 5), (16_384, 3)]
KEPT = {"keep": "distances"}
CASES = {
    "rejection, 300 draws": Case(od.rejection, {"draws": 300}),
    **{f"chains, {number:,} x {draws:,}": chains(od.pseudo_marginal, number, draws) for number, draws in SHAPES},
    "wilkinson, 4 x 3,000": chains(od.wilkinson, 4, 3000, od.gaussian),
    "wilkinson, 512 x 10": chains(od.wilkinson, 512, 10, od.gaussian),
    "one-hit, 4 x 400": chains(od.r_hit, 4, 400),
    "one-hit, 128 x 5": chains(od.r_hit, 128, 5),
    "three-hit, 128 x 5": chains(od.r_hit, 128, 5, hits=3),
    "smc, 500 particles": Case(od.smc, {"particles": 500}),
    "importance, 10,000": Case(od.importance, {"budget": 10_000}),
    "infer, 1,000": Case(od.infer, {"budget": 1_000}, None),
    "rejection at": lowered(Case(od.rejection, {"draws": 2000, **KEPT})),
    "chains at, 4 x 5,000": lowered(chains(od.pseudo_marginal, 4, 5000, **KEPT)),
    "chains at, 512 x 10": lowered(chains(od.pseudo_marginal, 512, 10, od.gaussian, **KEPT)),
    "smc at": lowered(Case(od.smc, {"particles": 1000}, od.gaussian)),
}
"""The samplers by name; `at` thins with a uniform kernel and weights with a Gaussian one."""


class Task(NamedTuple):
    """One run."""

    case: str
    problem: str
    seed: int


def one_run(task: Task) -> Line:
    """Run a sampler once: z of each estimate, NaN if it states no error, and why it does not."""
    problem, case = PROBLEMS[task.problem], CASES[task.case]
    true, began = answers(task.problem, case.target(problem)), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        post = case.posterior(problem, task.seed)
    first = post.names[0]
    found = {
        "mean": post.estimate(first),
        "sd": post.estimate(first, of="sd"),
        "upper": post.estimate(first, of=UPPER),
        "above": post.estimate(lambda **columns: columns[first] > problem.above),
    }
    z = {name: (one.value - getattr(true, name)) / one.mcse for name, one in found.items()}
    reasons = {name: one.reason for name, one in found.items() if one.reason}
    return {**task._asdict(), "z": z, "reasons": reasons, "seconds": time.perf_counter() - began}


# Many runs


class Calibrated(NamedTuple):
    """How z is distributed, with the errors of what is said of it."""

    runs: int
    known: int
    """Runs that state an error."""
    rms: float
    rms_error: float
    covered: float
    covered_error: float
    mean: float


def calibrated(z: np.ndarray) -> Calibrated:
    """What the z of some runs say; those without an error are left out."""
    known = z[np.isfinite(z)]
    n = known.size
    if n < 2:
        return Calibrated(z.size, n, *[math.nan] * 5)
    square = known**2
    rms, covered = math.sqrt(square.mean()), float(np.mean(np.abs(known) < stats.norm.ppf(0.975)))
    # Neither error is below what it would be if all were right.
    rms_error = max(float(square.std(ddof=1)) / (2 * rms * math.sqrt(n)), 1 / math.sqrt(2 * n))
    covered_error = math.sqrt(max(covered * (1 - covered), 0.95 * 0.05) / n)
    return Calibrated(z.size, n, rms, rms_error, covered, covered_error, float(known.mean()))


def right(found: Calibrated) -> bool:
    """Whether both figures are where they should be, up to two errors of theirs."""
    rms, covered = 2 * found.rms_error, 2 * found.covered_error
    near = LOW_RMS - rms <= found.rms <= HIGH_RMS + rms
    return bool(near and LOW_COVERED - covered <= found.covered <= HIGH_COVERED + covered)


def selected(only: list[str] | None, runs: int, first: int) -> list[Task]:
    """Runs of the cases and problems with one of these words in their names; seed by seed, so that all advance."""
    pairs = list(product(CASES, PROBLEMS))
    if only:
        by_problem = [word for word in only if any(word in name for name in PROBLEMS)]
        by_case = [word for word in only if word not in by_problem]
        pairs = [
            (case, problem) for case, problem in pairs
            if (not by_case or any(word in case for word in by_case))
            and (not by_problem or any(word in problem for word in by_problem))
        ]  # fmt: skip
    return [Task(case, problem, seed) for seed in range(first, first + runs) for case, problem in pairs]


def concluded(found: list[Line]) -> bool:
    """Print rms z and coverage of each estimate for each sampler and problem."""
    rows: list[tuple[str, str, str, bool | None]] = []
    groups: dict[tuple[str, str], list[Line]] = {}
    for one in found:
        groups.setdefault((one["case"], one["problem"]), []).append(one)
    for case, problem in product(CASES, PROBLEMS):
        some = groups.get((case, problem), [])
        for name in Answers._fields if some else ():
            got = calibrated(np.array([one["z"][name] for one in some]))
            unknown = f" ({got.runs - got.known} unknown)" if got.known < got.runs else ""
            said = (
                f"rms z {got.rms:.2f} ± {got.rms_error:.2f}, bias {got.mean:+.2f}, "
                f"{100 * got.covered:.1f} ± {100 * got.covered_error:.1f} %{unknown}"
            )
            rows.append((f"{case}, {problem}, {name}, {got.runs} runs", said, "0.9–1.1, 92–97.5 %", right(got)))
    return report("Stated Monte Carlo errors", rows)


def main(arguments: list[str] | None = None) -> bool:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS, help="of each sampler on each problem")
    parser.add_argument("--only", nargs="+", help="words of the names of samplers and problems")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--out", type=Path, help="write a line of JSON for each run to this file")
    parser.add_argument("--report", action="store_true", help="run nothing, print what the file says")
    given = parser.parse_args([] if arguments is None else arguments)
    if given.report:
        return concluded(recorded(given.out))
    return concluded(collected(one_run, selected(given.only, given.runs, given.first), given.jobs, given.out))


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
