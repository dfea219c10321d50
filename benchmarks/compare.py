"""Are probabilities of models right? Coverage of their intervals, and errors beside pyABC's model selection.

python -m benchmarks compare, or python -m benchmarks compare --runs 20 --beside 4 for fewer runs. With --out the
repetitions are kept in a file, and the same command continues where it ends.

Each run has another data set, from a model picked at random at a draw from its prior, and an exact answer
(`benchmarks.choices`). Intervals of 90 % should hold the exact probability in 86 to 94 % of 200 runs. pyABC is given
the same budget, which it exceeds by its last population. Errors are those of the probability of the last model, root
mean square.

The two routes that need nothing to be learnt cost little. --local 200 measures their intervals at 200 data sets of each
problem, from simulations at draws from the priors alone.
"""

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import onedraw as od
from benchmarks.choices import PROBLEMS, RARE_AT
from benchmarks.peers import answer
from benchmarks.timing import report
from onedraw.results.model_choice import (
    Pool,
    RouteEstimate,
    accepted,
    exact_matches,
    log_odds,
    probabilities,
    tolerance,
    wide_radius,
    with_tolerance_error,
)
from onedraw.results.model_trial import ACCEPTANCE, CLASSIFIER, ROUTES, classifier_estimate

LOW, HIGH = 0.86, 0.94
BESIDE = ("normal", "regression")
"""Problems that pyABC is given, too."""
DECIDED = 0.02
"""Data sets of a comparison with pyABC have an exact probability at least so far from 0 and 1."""


def data_of(name: str, seed: int):
    """The data of one run; of the problem with a rare model always the same."""
    return np.float64(RARE_AT) if name == "rare" else PROBLEMS[name].data(seed)[0]


class Repetition(NamedTuple):
    """What is stated of the last model of a problem, and what is true."""

    problem: str
    seed: int
    budget: int
    route: str
    exact: float
    """Its probability."""
    probability: float
    low: float
    high: float
    z: float
    """Error of the log odds in stated standard errors; NaN if they are infinite."""
    bounded: bool
    """Whether no simulation of some model came near the data."""
    seconds: float = 0.0
    """Of a processor."""
    tried: dict[str, tuple[float, float, float]] | None = None
    """What each route states, chosen or not: the ends of its interval, and z."""

    @property
    def held(self) -> bool:
        """Whether the interval has the exact probability."""
        return self.low <= self.exact <= self.high


def run(name: str, seed: int, budget: int | None = None) -> Repetition:
    """One comparison."""
    problem, observed = PROBLEMS[name], data_of(name, seed)
    budget = budget or problem.budget
    begin = time.process_time()
    found = od.compare(problem.models(observed), budget=budget, draws=200, seed=seed, progress=False)
    seconds = time.process_time() - begin
    exact = problem.probability(observed)
    last, decided = list(exact)[-1], found.decided
    tried = {
        route: stated(estimate, found.log_prior, decided.bounds, problem.log_odds(observed))
        for route, estimate in zip(ROUTES, decided.estimates, strict=True)
        if estimate is not None
    }
    one, bounded = found[last], not bool(np.isnan(decided.bounds).all())
    return Repetition(
        name, seed, budget, found.route, exact[last], one.probability, one.low, one.high, tried[found.route][2],
        bounded, seconds, tried,
    )  # fmt: skip


def stated(
    estimate: RouteEstimate, log_prior: np.ndarray, bounds: np.ndarray, exact_odds: float
) -> tuple[float, float, float]:
    """The ends of the 90 % interval of the last model, and the error of its log odds in stated ones."""
    last = len(log_prior) - 1
    one, (odds, error) = probabilities(estimate, log_prior, bounds, 0.9)[last], log_odds(estimate, log_prior, last)
    known = error > 0 and math.isfinite(odds)
    return one.low, one.high, (odds - exact_odds) / error if known else math.nan


def repetitions(names: Sequence[str], seeds: range, budget: int | None, out: Path | None) -> list[Repetition]:
    """Of all problems in turn; those that a file holds are not made again, and new ones are added to it."""
    known: dict[tuple[str, int, int], Repetition] = {}
    if out is not None and out.exists():
        every = (Repetition(**json.loads(line)) for line in out.read_text().splitlines())
        known = {(one.problem, one.seed, one.budget): one for one in every}
    found = []
    for seed, name in itertools.product(seeds, names):
        key = name, seed, budget or PROBLEMS[name].budget
        if key not in known:
            known[key] = run(name, seed, budget)
            if out is not None:
                with out.open("a") as file:
                    file.write(json.dumps(known[key]._asdict()) + "\n")
        found.append(known[key])
    return found


def prior_pool(name: str, observed: np.ndarray, number: int, rng: np.random.Generator) -> Pool:
    """As many simulations of each model at draws from its prior, in units of the spread of all."""
    problem, models = PROBLEMS[name], len(PROBLEMS[name].priors)
    parts = [
        np.asarray(problem.simulators[model](rng, **prior.columns(prior.sample(rng, number))), dtype=float)
        for model, prior in problem.priors.items()
    ]
    rows = np.concatenate([part.reshape(number, -1) for part in parts])
    away = (rows - observed) / np.median(np.abs(rows - np.median(rows, axis=0)), axis=0)
    weights, label = np.full(len(rows), 1 / number), np.repeat(np.arange(models), number)
    return Pool(away, np.sqrt(np.square(away).sum(axis=1)), weights, label, np.full(models, float(number)))


def local_run(name: str, seed: int, number: int = 1000) -> list[Repetition]:
    """What the acceptance ratio and the classifier state of one data set; nothing if a model never came near."""
    problem, observed = PROBLEMS[name], np.atleast_1d(data_of(name, seed))
    pool = prior_pool(name, observed, number, np.random.default_rng([seed, 77]))
    eps, exact, models = tolerance(pool), exact_matches(pool), len(problem.priors)
    true = list(problem.probability(observed).values())[-1]
    if np.bincount(pool.label[pool.distances < eps], minlength=models).min() == 0 or not 0 < true < 1:
        return []
    routes: dict[str, RouteEstimate] = {ACCEPTANCE: accepted(pool, eps)}
    if not exact:
        wide = wide_radius(pool)
        routes[ACCEPTANCE] = with_tolerance_error(routes[ACCEPTANCE], accepted(pool, wide), eps, wide)
        classified = classifier_estimate(pool, wide)
        routes |= {} if classified is None else {CLASSIFIER: classified}
    found, log_prior = [], np.full(models, -math.log(models))
    for route, estimate in routes.items():
        low, high, z = stated(estimate, log_prior, np.full(models, np.nan), problem.log_odds(observed))
        value = probabilities(estimate, log_prior, np.full(models, np.nan), 0.9)[-1].value
        found.append(Repetition(name, seed, number, route, true, value, low, high, z, False))
    return found


def told(some: Sequence[Repetition]) -> tuple[float, float, str]:
    """Share of intervals that hold, its standard error, and what is said of the errors."""
    share = float(np.mean([one.held for one in some]))
    z = np.array([one.z for one in some if not (math.isnan(one.z) or one.bounded)])
    of_z = f"; z: mean {z.mean():+.2f}, rms {math.sqrt(np.mean(np.square(z))):.2f}" if len(z) else ""
    return share, math.sqrt(max(share * (1 - share), 0.01) / len(some)), of_z


def undecided(name: str, number: int) -> list[int]:
    """Seeds of data sets whose exact answer is not nearly certain."""
    found: list[int] = []
    for seed in range(1000):
        exact = list(PROBLEMS[name].probability(data_of(name, seed)).values())[-1]
        if DECIDED < exact < 1 - DECIDED:
            found.append(seed)
        if len(found) == number:
            break
    return found


def beside(name: str, number: int) -> tuple[float, float, float] | str:
    """Root mean square errors of the probability here and with pyABC, and its simulations over ours."""
    ours, theirs, spent = [], [], []
    for seed in undecided(name, number):
        observed = data_of(name, seed)
        one, budget = run(name, seed), PROBLEMS[name].budget
        peer = answer("pyabc", "models", name, json.dumps(observed.tolist()), budget, seed)
        if isinstance(peer, str):
            return peer
        ours.append(one.probability - one.exact)
        theirs.append(peer["probability"] - one.exact)
        spent.append(peer["simulations"] / budget)
    return math.sqrt(np.mean(np.square(ours))), math.sqrt(np.mean(np.square(theirs))), float(np.mean(spent))


def main(options: Sequence[str] = ()) -> bool:
    """Both parts; whether what was promised is reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks compare")
    parser.add_argument("--runs", type=int, default=200, help="data sets of each problem")
    parser.add_argument("--first", type=int, default=0, help="number of the first data set")
    parser.add_argument("--beside", type=int, default=20, help="data sets beside pyABC")
    parser.add_argument("--local", type=int, default=0, help="data sets of each problem for the local routes alone")
    parser.add_argument("--budget", type=int, help="simulations of one comparison, instead of the problem's own")
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--out", type=Path, help="file of repetitions (JSON lines), which is continued")
    given = parser.parse_args(list(options))
    rows: list[tuple[str, str, str, bool | None]] = []
    every = repetitions(given.problems, range(given.first, given.first + given.runs), given.budget, given.out)
    for name in given.problems if given.runs else ():
        some = [one for one in every if one.problem == name]
        routes = sorted({one.route for one in some})
        for route in routes:
            share, se, of_z = told([one for one in some if one.route == route])
            good = LOW - 2 * se <= share <= HIGH + 2 * se if len(routes) == 1 else None
            number = sum(one.route == route for one in some)
            what = f"{name}, {route}: 90 % intervals that hold, of {number}"
            rows.append((what, f"{100 * share:.1f} ± {100 * se:.1f} %{of_z}", "86 to 94 %", good))
    if len(every) > given.runs:
        share, se, of_z = told(every)
        good = LOW - 2 * se <= share <= HIGH + 2 * se
        what = f"all problems: 90 % intervals that hold, of {len(every)}"
        rows.append((what, f"{100 * share:.1f} ± {100 * se:.1f} %{of_z}", "86 to 94 %", good))
    # The data of the problem with a rare model are always the same, and hardly ever near.
    names, seeds = [name for name in given.problems if name != "rare"], range(given.first, given.first + given.local)
    local = [one for name in names for seed in seeds for one in local_run(name, seed)]
    for name, route in dict.fromkeys((one.problem, one.route) for one in local):
        some = [one for one in local if (one.problem, one.route) == (name, route)]
        share, se, of_z = told(some)
        what = f"{name}, {route} from simulations of the priors: 90 % intervals that hold, of {len(some)}"
        rows.append((what, f"{100 * share:.1f} ± {100 * se:.1f} %{of_z}", "86 to 94 %", None))
    for name in BESIDE if given.beside else ():
        found = beside(name, given.beside)
        if isinstance(found, str):
            rows.append((f"{name}: {found}", "", "", None))
            continue
        ours, theirs, spent = found
        what = f"{name}: error of the probability, and pyABC's with {spent:.2f} times the simulations"
        rows.append((what, f"{ours:.4f}, {theirs:.4f}", "at most half", ours <= theirs / 2))
    return report(f"Probabilities of models ({given.runs} runs, {given.beside} data sets beside pyABC)", rows)


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
