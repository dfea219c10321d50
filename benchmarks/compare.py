"""Are probabilities of models right? Coverage of their intervals, and errors beside pyABC's model selection.

python -m benchmarks compare, or python -m benchmarks.compare --runs 20 --beside 4 for fewer runs.

Each run has another data set, from a model picked at random at a draw from its prior, and an exact answer
(`benchmarks.choices`). Intervals of 90 % should hold the exact probability in 86 to 94 % of 200 runs. pyABC is given
the same budget, which it exceeds by its last population. Errors are those of the probability of the last model, root
mean square.
"""

import argparse
import json
import math
import sys

import numpy as np

import onedraw as od
from benchmarks.choices import PROBLEMS, RARE_AT
from benchmarks.peers import answer
from benchmarks.timing import report
from onedraw.results.comparison import ComparedModel

LOW, HIGH = 0.86, 0.94
BESIDE = ("normal", "regression")
"""Problems that pyABC is given, too."""
DECIDED = 0.02
"""Data sets of a comparison with pyABC have an exact probability at least so far from 0 and 1."""


def data_of(name: str, seed: int):
    """The data of one run; of the problem with a rare model always the same."""
    return np.float64(RARE_AT) if name == "rare" else PROBLEMS[name].data(seed)[0]


def run(name: str, seed: int) -> tuple[ComparedModel, float, float]:
    """What is stated of the last model, its exact probability, and how far the first is off."""
    problem, observed = PROBLEMS[name], data_of(name, seed)
    found = od.compare(problem.models(observed), budget=problem.budget, draws=200, seed=seed, progress=False)
    exact = problem.probability(observed)
    last = list(exact)[-1]
    return found[last], exact[last], found[last].probability - exact[last]


def coverage(name: str, runs: int) -> tuple[float, float]:
    """Share of intervals that hold the exact probability, and its standard error."""
    held = 0
    for seed in range(runs):
        one, exact, _ = run(name, seed)
        held += one.low <= exact <= one.high
    share = held / runs
    return share, math.sqrt(max(share * (1 - share), 0.01) / runs)


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
        _, exact, error = run(name, seed)
        budget = PROBLEMS[name].budget
        peer = answer("pyabc", "models", name, json.dumps(observed.tolist()), budget, seed)
        if isinstance(peer, str):
            return peer
        ours.append(error)
        theirs.append(peer["probability"] - exact)
        spent.append(peer["simulations"] / budget)
    return math.sqrt(np.mean(np.square(ours))), math.sqrt(np.mean(np.square(theirs))), float(np.mean(spent))


def main(runs: int = 200, number: int = 20) -> bool:
    """Both parts; whether what was promised is reached."""
    rows: list[tuple[str, str, str, bool | None]] = []
    for name in PROBLEMS if runs else ():
        share, se = coverage(name, runs)
        good = LOW - 2 * se <= share <= HIGH + 2 * se
        rows.append((f"{name}: 90 % intervals that hold", f"{100 * share:.1f} ± {100 * se:.1f} %", "86 to 94 %", good))
    for name in BESIDE if number else ():
        found = beside(name, number)
        if isinstance(found, str):
            rows.append((f"{name}: {found}", "", "", None))
            continue
        ours, theirs, spent = found
        what = f"{name}: error of the probability, and pyABC's with {spent:.2f} times the simulations"
        rows.append((what, f"{ours:.4f}, {theirs:.4f}", "at most half", ours <= theirs / 2))
    return report(f"Probabilities of models ({runs} runs, {number} data sets beside pyABC)", rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--beside", type=int, default=20)
    given = parser.parse_args()
    sys.exit(0 if main(given.runs, given.beside) else 1)
