"""How often each warning about a posterior is given although nothing is wrong, and how often if something is.

python -m benchmarks alarms, or python -m benchmarks alarms --share 0.2 --jobs 16 for a fifth of the runs. `--out` gets
a line of JSON for each run as it ends; a second call with the same file continues.

Runs are well specified: the data come from the model at a draw from the prior, each run from another. A warning is a
finding of a verdict that is amber or red, or a note that begins with "warning". A false-alarm rate is at most 5 %, up
to two standard errors of its measurement. Each warning has a case in which it should be given; its power is the share
of such runs in which it was.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats

import onedraw as od
from benchmarks.coverage import MODELS
from benchmarks.processes import Line, collected, recorded
from benchmarks.timing import report
from onedraw.report import binning, tolerances
from onedraw.report.verdict import judge
from onedraw.results.diagnostics import FEW, MISFIT, NARROW, too_narrow
from onedraw.results.posterior import Posterior

MOST_FALSE, LEAST_POWER = 0.05, 0.8
N = 50
NOTES = {
    MISFIT + " (prior": "note: misfit, from the prior",
    MISFIT + ":": "note: misfit, at posterior draws",
    NARROW: "note: intervals too narrow",
    FEW: "note: few effective draws",
    "warning: ": "note: hardly any simulations",
}
"""Warnings in the notes of `od.infer` by how they begin."""


class Case(NamedTuple):
    """Runs of one kind."""

    runs: int
    run: Callable[[int], Posterior]
    """By the number of the run."""
    predictive: int = 100
    """Simulations at posterior draws for the verdict."""


def given(post: Posterior, predictive: int = 100) -> set[str]:
    """The warnings about a posterior, by name."""
    try:
        positions = tolerances.positions_of(post, binning.marginals_of(post))
    except ValueError:
        positions = []
    misfit = post.misfit(predictive, prior=0) if predictive and post.model is not None else None
    found = {one.name for one in judge(post, positions, misfit).findings if one.level != "green"}
    for note in post.notes:
        name = next((name for begins, name in NOTES.items() if note.startswith(begins)), None)
        found |= {name} - {None}
    return found - {"Note"}


# Well-specified runs


@od.batched
def sample(rng, mu, sigma):
    """50 normals."""
    return mu[:, None] + sigma[:, None] * rng.standard_normal((len(mu), N))


@od.batched
def described(data):
    """Mean, median and log standard deviation."""
    return np.column_stack([data.mean(axis=1), np.median(data, axis=1), np.log(data.std(axis=1))])


PRIOR = od.Prior(mu=stats.norm(0, 3), sigma=stats.uniform(0.1, 4))


def normal(seed: int, **more) -> od.Model:
    """A model of 50 normals with data from its prior."""
    rng = np.random.default_rng([seed, 7])
    return od.Model(PRIOR, sample, sample(rng, **PRIOR.columns(PRIOR.sample(rng, 1)))[0], summary=described, **more)


def of_coverage(name: str, seed: int) -> od.Model:
    """A model of the benchmark `coverage` with data from its prior."""
    prior, simulate = MODELS[name]
    rng = np.random.default_rng([seed, len(name)])
    return od.Model(prior, simulate, simulate(rng, **prior.columns(prior.sample(rng, 1)))[0])


def euclid(simulated, observed):
    """A distance that infer takes for the user's own."""
    return float(np.sqrt(np.square(simulated - observed).sum()))


@od.batched
def pair(rng, a, b):
    """Two numbers, each its parameter and noise."""
    return np.column_stack([rng.normal(a, 1.0), rng.normal(b, 0.5)])


def toy(seed: int) -> od.Model:
    """A model of two numbers with data from its prior."""
    prior = od.Prior(a=stats.norm(0, 1), b=stats.norm(0, 1))
    rng = np.random.default_rng([seed, 8])
    return od.Model(prior, pair, pair(rng, **prior.columns(prior.sample(rng, 1)))[0])


@od.batched
def one_number(rng, a):
    """A parameter and noise."""
    return rng.normal(a, 1.0)


def single(seed: int) -> od.Model:
    """A model of one number with data from its prior."""
    prior = od.Prior(a=stats.norm(0, 1))
    rng = np.random.default_rng([seed, 10])
    return od.Model(prior, one_number, one_number(rng, **prior.columns(prior.sample(rng, 1)))[0])


@od.batched
def mean(data):
    """The mean of each data set."""
    return data.mean(axis=1)


def centre(seed: int) -> od.Model:
    """A model of 50 normals with known standard deviation, described by their mean, with data from its prior."""
    prior = od.Prior(mu=stats.norm(0, 2))
    rng = np.random.default_rng([seed, 9])
    simulate = od.batched(lambda rng, mu: sample(rng, mu, np.ones(len(mu))))
    return od.Model(prior, simulate, simulate(rng, **prior.columns(prior.sample(rng, 1)))[0], summary=mean)


def chains(draws: int | None, number: int | None, budget: int | None = None) -> Callable[[int], Posterior]:
    """Runs of Algorithm 2 on one number."""
    return lambda k: od.pseudo_marginal(
        single(k), od.uniform(0.3), draws=draws, chains=number, budget=budget, keep="distances", seed=k
    )


def inferred(make: Callable[[int], od.Model], budget: int = 1000) -> Callable[[int], Posterior]:
    """Runs of infer."""
    return lambda k: od.infer(make(k), budget=budget, seed=k, draws=1000)


def accepted(make: Callable[[int], od.Model], eps: float, draws: int) -> Callable[[int], Posterior]:
    """Runs of rejection."""
    return lambda k: od.rejection(make(k), od.uniform(eps), draws=draws, seed=k)


# Tolerances are small beside the posteriors, so that a warning of a too large one would be false.
WELL = {
    "infer, 1,000, normal": Case(50, inferred(normal)),
    "infer, 1,000, waiting times": Case(30, inferred(lambda k: of_coverage("waiting times", k))),
    "infer, 1,000, counts": Case(15, inferred(lambda k: of_coverage("counts", k))),
    "infer, 1,000, own distance": Case(15, inferred(lambda k: normal(k, distance=euclid))),
    "rejection, 1,000 draws, toy": Case(150, accepted(toy, 0.3, 1000)),
    "rejection, 300 draws, 50 normals": Case(150, accepted(centre, 0.04, 300)),
    "chains, 4 x 5,000, one number": Case(40, chains(5000, 4)),
    "chains, 64 x 500, one number": Case(40, chains(500, 64)),
    "chains, budget 100,000, one number": Case(30, chains(None, None, 100_000)),
    "smc, 50,000, toy": Case(50, lambda k: od.smc(toy(k), budget=50_000, seed=k)),
    "importance, 50,000, toy": Case(50, lambda k: od.importance(toy(k), budget=50_000, seed=k)),
}


# Runs with something wrong


def torn(seed: int) -> od.Model:
    """Data with mean 0, median .9 and standard deviation 1: 8.5 standard deviations apart for a normal sample."""
    rng = np.random.default_rng(seed)
    data = np.concatenate([rng.random(22), np.full(N - 22, 0.9)])
    data[:22] -= data.sum() / 22
    return od.Model(PRIOR, sample, rng.permutation(data), summary=described)


def contaminated(seed: int) -> od.Model:
    """Normal data, 8 % of which lie at 7 standard deviations, described by mean and standard deviation."""
    rng = np.random.default_rng(seed)
    data = rng.standard_normal(N)
    data[rng.choice(N, 4, replace=False)] = 7.0 * rng.choice([-1.0, 1.0], 4)
    return od.Model(PRIOR, sample, data, summary=od.batched(lambda y: np.column_stack([y.mean(axis=1), y.std(axis=1)])))


@od.batched
def two_modes(rng, theta):
    """A square, which hides the sign."""
    return theta**2 + 0.3 * rng.standard_normal(len(theta))


@od.batched
def failing(rng, mu, sigma):
    """Fails in a tenth of the calls."""
    data = sample(rng, mu, sigma)
    data[rng.random(len(mu)) < 0.1] = np.nan
    return data


def apart(seed: int) -> Posterior:
    """Chains with steps too small to go from one mode to the other."""
    model = od.Model(od.Prior(theta=stats.norm(0, 3)), two_modes, 9.0)
    start = np.array([[-3.0], [3.0], [3.0], [-3.0]])
    return od.pseudo_marginal(
        model, od.uniform(0.5), draws=2000, chains=4, start=start, proposal=od.random_walk(scale=0.3), seed=seed
    )


def unlucky(seed: int) -> od.Model:
    """Mean and standard deviation of 10,000 numbers under a wide prior."""

    @od.batched
    def simulate(rng, mu, sigma):
        return np.column_stack([rng.normal(mu, sigma / 100), sigma * (1 + 0.01 * rng.standard_normal(len(mu)))])

    return od.Model(od.Prior(mu=stats.norm(0, 1000), sigma=stats.uniform(0.1, 1000)), simulate, [3.0, 1.0])


def crowded(seed: int) -> od.Model:
    """Two summaries that tell of the parameters, and ten that do not."""
    return of_coverage("ten noise summaries", seed)


def broken(seed: int) -> od.Model:
    """A simulator that fails in a tenth of the calls."""
    return od.Model(PRIOR, failing, normal(seed).observed, summary=described)


POWER = {
    "Misfit": [
        ("mean and median 8.5 sd apart, rejection", Case(20, accepted(torn, 1.5, 200), 200)),
        ("8 % outliers at 7 sd that no summary shows, rejection", Case(20, accepted(contaminated, 0.5, 200), 200)),
    ],
    "note: misfit, from the prior": [("mean and median 8.5 sd apart, infer at 1,000", Case(5, inferred(torn), 0))],
    "note: misfit, at posterior draws": [
        ("the same at 1,000, with 20 replicates", Case(5, inferred(torn), 0)),
        ("at 5,000, with 100 replicates", Case(5, inferred(torn, 5000), 0)),
    ],
    "R-hat": [("two modes, chains that stay in one", Case(20, apart, 0))],
    "Effective draws": [("rejection with 30 draws", Case(20, accepted(toy, 0.5, 30), 0))],
    "note: few effective draws": [("infer at 45, twelve summaries", Case(20, inferred(crowded, 45), 0))],
    "note: hardly any simulations": [("infer at 100, 1e-5 of the prior", Case(10, inferred(unlucky, 100), 0))],
    "Failed simulations": [("a tenth fails", Case(20, accepted(broken, 0.5, 300), 0))],
    "Tolerance ε": [("eps five times as wide as the posterior", Case(20, accepted(centre, 0.7, 3000), 0))],
}  # fmt: skip


class Task(NamedTuple):
    """One run: of a well-specified kind if `warning` is empty, otherwise of a case in which it should be given."""

    warning: str
    kind: str
    number: int


def case_of(task: Task) -> Case:
    """Its case."""
    return dict(POWER[task.warning])[task.kind] if task.warning else WELL[task.kind]


def one_run(task: Task) -> Line:
    """Make one run: the warnings that were given."""
    case = case_of(task)
    return {**task._asdict(), "given": sorted(given(case.run(1000 + task.number), case.predictive))}


def selected(share: float, only: list[str] | None) -> list[Task]:
    """All runs, or a share of them, of the kinds and warnings with one of these words in their names."""
    kinds = [("", kind, case) for kind, case in WELL.items()]
    kinds += [(warning, what, case) for warning, cases in POWER.items() for what, case in cases]
    kinds = [one for one in kinds if not only or any(word in f"{one[0]} {one[1]}" for word in only)]
    counted = [(warning, kind, max(2, round(share * case.runs))) for warning, kind, case in kinds]
    return [Task(warning, kind, number) for warning, kind, runs in counted for number in range(runs)]


class Counted(NamedTuple):
    """How many runs were made, and in how many each warning was given."""

    runs: int
    given: dict[str, int]


def counted(lines: list[Line], warning: str, kind: str) -> Counted:
    """The warnings of the runs of one kind."""
    some = [one["given"] for one in lines if (one["warning"], one["kind"]) == (warning, kind)]
    return Counted(len(some), dict(Counter(name for names in some for name in names)))


def narrow_power() -> float:
    """The exact probability that intervals of 75 % are called too narrow, by 100 simulations and two parameters."""
    called = [k for k in range(101) if too_narrow(k / 100, 100, 2)]
    return float(stats.binom.cdf(max(called), 100, 0.75))


def false_alarms(lines: list[Line]) -> dict[str, Counted]:
    """The warnings in well-specified runs, by their kind."""
    found = {kind: counted(lines, "", kind) for kind in WELL}
    return {kind: one for kind, one in found.items() if one.runs}


def powers(lines: list[Line]) -> dict[str, list[tuple[str, float]]]:
    """How often each warning is given if it should be, in each case."""
    power = {"Intervals": [("intervals of 75 %, exact for 100 simulations", narrow_power())]}
    for name, cases in POWER.items():
        for what, _ in cases:
            found = counted(lines, name, what)
            if found.runs:
                share = found.given.get(name, 0) / found.runs
                power.setdefault(name, []).append((f"{what} ({found.runs} runs)", share))
    return power


def concluded(false: dict[str, Counted], power: dict[str, list[tuple[str, float]]]) -> bool:
    """Print the table of the page, and whether each rate is as it should be."""
    rows, lines = [], []
    for name in dict.fromkeys([*power, *(name for one in false.values() for name in one.given)]):
        number, worst = {kind: one.given.get(name, 0) for kind, one in false.items()}, "none"
        if false:
            kind = max(number, key=lambda kind: number[kind] / false[kind].runs)
            runs = false[kind].runs
            rate, allowed = number[kind] / runs, MOST_FALSE + 2 * np.sqrt(MOST_FALSE * (1 - MOST_FALSE) / runs)
            found = f"{100 * rate:.0f} % of {runs}"
            rows.append((f"{name}: false, {kind}", found, "at most 5 %", bool(rate <= allowed)))
            worst = f"{number[kind]} of {runs}, {kind}" if number[kind] else "none"
        cases = power.get(name, [])
        rows += [(f"{name}: {what}", f"{100 * one:.0f} %", "at least 80 %", one >= LEAST_POWER) for what, one in cases]
        everywhere = f"{sum(number.values())} of {sum(one.runs for one in false.values())}"
        found = "; ".join(f"{100 * one:.0f} %, {what}" for what, one in cases) or "–"
        lines.append(f"| {name} | {everywhere} | {worst} | {found} |")
    print("\n| warning | false alarms | most in one kind of runs | found |\n|---|---|---|---|\n" + "\n".join(lines))
    return report("Alarms", rows)


def main(arguments: list[str] | None = None) -> bool:
    """Measure all rates, print them and the table of the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks alarms", description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=1.0, help="of the runs; 2 makes twice as many")
    parser.add_argument("--only", nargs="+", help="words of the names of warnings and kinds of runs")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--out", type=Path, help="write a line of JSON for each run to this file")
    parser.add_argument("--report", action="store_true", help="run nothing, print what the file says")
    asked = parser.parse_args([] if arguments is None else arguments)
    tasks = selected(asked.share, asked.only)
    lines = recorded(asked.out) if asked.report else collected(one_run, tasks, asked.jobs, asked.out)
    false = false_alarms(lines)
    for kind, one in false.items():
        print(f"  {kind}: {one.runs} runs, {one.given or 'no warnings'}")
    return concluded(false, powers(lines))


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
