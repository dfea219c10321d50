"""Whether `od.infer` gets better with its budget: errors on ten models with known posteriors, over budgets and seeds.

python -m benchmarks budgets, or python -m benchmarks.budgets --quick --model template toy --out errors.jsonl.

For each model (benchmarks/known.py) and budget: the root mean square, over seeds and parameters, of the error of the
posterior mean (in exact standard deviations) and of the log of the standard deviation; the effective sample size that
the summary states; the share of means within 1.96 stated standard errors of the exact one; seconds of the processor
besides the simulator. A step of the budget at which an error rises is marked by its p-value: the share of all
exchanges of seeds between the two budgets that give at least this rise. What a run said of larger budgets is printed
beside what they gave.
"""

import argparse
import re
import sys
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats

import onedraw as od
from benchmarks.known import PROBLEMS, moments
from benchmarks.processes import Line, collected
from benchmarks.timing import Watched, report

BUDGETS = [300, 1_000, 3_000, 10_000, 30_000, 100_000]
SEEDS = 8
QUICK_BUDGETS, QUICK_SEEDS = [1_000, 10_000], 3
DRAWS = 4_000
LEVEL = 0.01
"""Rises with smaller p-values are marked."""
FEWEST_SEEDS = 5
"""Seeds without which no rise can have so small a p-value."""
MEASURES = {"mean": "posterior means", "sd": "log standard deviations"}


class Score(NamedTuple):
    """One run beside the exact posterior."""

    model: str
    budget: int
    seed: int
    mean: list[float]
    """Error of the mean of each parameter, in exact standard deviations."""
    sd: list[float]
    """Log of the standard deviation of each parameter over the exact one."""
    inside: list[bool]
    """Whether the mean is within 1.96 stated standard errors of the exact one; not if no error is stated."""
    ess: float
    """The least effective sample size that is stated."""
    seconds: float
    notes: list[str]


class Task(NamedTuple):
    """One run."""

    model: str
    budget: int
    seed: int


def scored(task: Task) -> Line:
    """A run of `od.infer` beside the exact posterior: a Score."""
    name, budget, seed = task
    problem, exact = PROBLEMS[name], moments(name)
    watched = Watched(problem.simulate)
    model = od.Model(problem.prior, od.batched(watched), np.array(problem.observed))
    began = time.process_time()
    post = od.infer(model, budget=budget, seed=seed, draws=DRAWS)
    seconds = time.process_time() - began - watched.seconds
    assert post.cost.simulations <= budget
    rows = post.summary().rows.values()
    away = np.array([row.mean for row in rows]) - exact.mean
    spread = np.maximum([row.sd for row in rows], 1e-12)
    return Score(
        name, budget, seed,
        mean=(away / exact.sd).tolist(),
        sd=np.log(spread / exact.sd).tolist(),
        inside=[bool(abs(one) <= 1.96 * row.mcse) for one, row in zip(away, rows, strict=True)],
        ess=float(min(row.ess for row in rows)), seconds=seconds, notes=list(post.notes),
    )._asdict()  # fmt: skip


def squares(scores: list[Score], measure: str) -> np.ndarray:
    """Mean square error over the parameters, of each seed."""
    return np.array([np.mean(np.square(getattr(score, measure))) for score in scores])


def rise(before: np.ndarray, after: np.ndarray) -> float:
    """p-value of a rise in the mean, over all exchanges between two samples of equal size."""
    both, n = np.concatenate([before, after]), len(before)
    sums = both[np.array(list(combinations(range(2 * n), n)))].sum(axis=1)
    return float(np.mean(sums >= after.sum() * (1 - 1e-12)))


# What runs say of larger budgets


class Claim(NamedTuple):
    """What a run said: at this budget, so many effective draws or such a tolerance."""

    quantity: str
    budget: float
    value: float


NUMBER = r"(\d[\d,]*\.?\d*(?:e[+-]?\d+)?)"
TOLERANCE = re.compile(rf"^Tolerance: {NUMBER}")


def number(text: str) -> float:
    return float(text.replace(",", "").rstrip("."))


def claims(note: str, budget: int, ess: float) -> list[Claim]:
    """What a note says of larger budgets; several claims are alternatives."""
    if not re.search(r"ten times the budget", note, re.IGNORECASE):
        pattern = rf"For {NUMBER} effective draws.*?{NUMBER} simulations"
        return [
            Claim("draws", number(needed), number(wanted))
            for wanted, needed in re.findall(pattern, note, re.IGNORECASE)
        ]
    tolerances = [number(after) for _, after in re.findall(rf"tolerance from {NUMBER} to about {NUMBER}", note)]
    draws = [number(one) for one in re.findall(rf"{NUMBER} effective draws", note)]
    draws += [10 * ess] if "ten times the draws" in note else []
    return [
        *(Claim("draws", 10 * budget, value) for value in draws),
        *(Claim("tolerance", 10 * budget, value) for value in tolerances),
    ]


def happened(claim: Claim, scores: dict[int, list[Score]]) -> float | None:
    """What runs with the claim's budget gave, between the budgets tried by a line of logarithms; None beyond them."""
    known = [(budget, value) for budget, runs in sorted(scores.items()) if (value := typical(claim.quantity, runs)) > 0]
    if not known or not known[0][0] <= claim.budget <= known[-1][0]:
        return None
    at, values = np.log(np.array(known)).T
    return float(np.exp(np.interp(np.log(claim.budget), at, values)))


def typical(quantity: str, runs: list[Score]) -> float:
    """Median over seeds of the effective sample size or of the tolerance that runs state; 0 if they state none."""
    if quantity == "draws":
        return float(np.median([run.ess for run in runs]))
    stated = [number(match[1]) for run in runs for note in run.notes if (match := TOLERANCE.match(note))]
    return float(np.median(stated)) if stated else 0.0


def judged(scores: dict[int, list[Score]]) -> Iterator[tuple[Score, str, str, bool]]:
    """Each note about larger budgets, what happened, and whether one of its claims was right within a factor of two."""
    for runs in scores.values():
        for run in runs:
            for note in run.notes:
                pairs = [(claim, happened(claim, scores)) for claim in claims(note, run.budget, run.ess)]
                known = [(claim, value) for claim, value in pairs if value is not None]
                if known:
                    told = ", ".join(
                        f"{claim.quantity} {value:.3g} for {claim.value:.3g} at {claim.budget:,.0f}"
                        for claim, value in known
                    )
                    yield run, note, told, any(0.5 <= value / claim.value <= 2 for claim, value in known)


# The tables


def share(runs: list[Score]) -> float:
    return float(np.mean([one for run in runs for one in run.inside]))


def line(runs: list[Score], marks: str) -> str:
    first = runs[0]
    errors = "".join(f"{np.sqrt(squares(runs, measure).mean()):9.3f}" for measure in MEASURES)
    ess, seconds = typical("draws", runs), np.mean([run.seconds for run in runs])
    return f"{first.model:14}{first.budget:9,}{errors}{ess:9.0f}{100 * share(runs):8.0f} %{seconds:9.1f}{marks}"


def marked(before: list[Score], after: list[Score]) -> dict[str, float]:
    """p-values of the rises of both errors between two budgets."""
    return {measure: rise(squares(before, measure), squares(after, measure)) for measure in MEASURES}


def stated(what: str, runs: list[Score]) -> tuple[str, str, str, bool]:
    """A row that says whether stated errors hold in 90 to 98 % of cases, beyond two errors of the share itself."""
    cover, error = share(runs), np.sqrt(0.95 * 0.05 / len(runs))
    told = f"{100 * cover:.0f} ± {100 * error:.0f} %"
    held = 0.9 - 2 * error <= cover <= 0.98 + 2 * error
    return f"{what}: means within 1.96 stated errors", told, "90 to 98 %", bool(held)


def verdict(scores: dict[str, dict[int, list[Score]]], found: list[float]) -> bool:
    """Whether nothing rose, stated errors hold and forecasts were right."""
    rows: list[tuple[str, str, str, bool | None]] = []
    if found:
        rises, chance = sum(p < LEVEL for p in found), int(stats.binom.ppf(0.95, len(found), LEVEL))
        rows.append(
            (f"rises of an error, p < {LEVEL}, of {len(found)} steps", str(rises), f"{chance}", rises <= chance)
        )
        least = 0.05 / len(found)
        rows.append(("least p-value of a rise", f"{min(found):.2g}", f"above {least:.2g}", min(found) > least))
    for name, by_budget in scores.items():
        rows.append(stated(name, [run for runs in by_budget.values() for run in runs]))
    right = [good for by_budget in scores.values() for *_, good in judged(by_budget)]
    if right:
        rows.append((f"forecasts right within a factor of two, of {len(right)}", f"{100 * np.mean(right):.0f} %",
                     "80 %", bool(np.mean(right) >= 0.8)))  # fmt: skip
    return report("More simulations are not worse, and errors are as stated", rows)


def main(arguments: list[str] | None = None) -> bool:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.budgets", description=__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="+", default=list(PROBLEMS), choices=PROBLEMS)
    parser.add_argument("--budget", nargs="+", type=int)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--quick", action="store_true", help=f"budgets {QUICK_BUDGETS} and {QUICK_SEEDS} seeds")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with runs of its own")
    parser.add_argument("--out", type=Path, help="write a line of JSON for each run to this file")
    given = parser.parse_args([] if arguments is None else arguments)
    budgets = sorted(given.budget or (QUICK_BUDGETS if given.quick else BUDGETS))
    seeds = given.seeds or (QUICK_SEEDS if given.quick else SEEDS)
    print(f"Root mean square errors over {seeds} seeds and all parameters: means in exact sds, and log sds")
    if seeds < FEWEST_SEEDS:
        print(f"Rises are not tested: that needs {FEWEST_SEEDS} seeds.")
    print(f"{'model':14}{'budget':>9}{'mean':>9}{'log sd':>9}{'ess':>9}{'within':>10}{'seconds':>9}", flush=True)
    tasks = [Task(name, budget, seed) for name in given.model for budget in budgets for seed in range(1, seeds + 1)]
    runs = [Score(**one) for one in collected(scored, tasks, given.jobs, given.out)]
    scores: dict[str, dict[int, list[Score]]] = {}
    found: list[float] = []
    for name in given.model:
        mine = scores.setdefault(name, {})
        for before, budget in zip([0, *budgets], budgets, strict=False):
            here = [one for one in runs if (one.model, one.budget) == (name, budget)]
            mine[budget] = sorted(here, key=lambda one: one.seed)
            rises = marked(mine[before], mine[budget]) if before and seeds >= FEWEST_SEEDS else {}
            found += rises.values()
            marks = [f"{MEASURES[m]} RISE (p = {p:.2g})" for m, p in rises.items() if p < LEVEL]
            print(line(mine[budget], "  " + "; ".join(marks) if marks else ""), flush=True)
        for run, note, told, good in judged(mine):
            if run.seed == 1:
                print(f"    {run.budget:,} said: {note}\n      it gave: {told}  {'right' if good else 'WRONG'}")
    return verdict(scores, found)


if __name__ == "__main__":
    raise SystemExit(0 if main(sys.argv[1:]) else 1)
