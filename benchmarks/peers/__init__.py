"""Other packages beside `od.infer`, on models whose posteriors are known: python -m benchmarks peers.

A driver is a script for the interpreter of its package, and prints one JSON object. `answer` runs it: with this
interpreter if it has the package, or with the one in the folder that the environment variable ONEDRAW_PEERS names, as
in $ONEDRAW_PEERS/pyabc/bin/python. Drivers `..._smc.py` are those of `python -m benchmarks sequential`.
"""

import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).parent
MODELS = ("ricker", "twelve")
BUDGETS, SEEDS = (1_000, 10_000), (1, 2, 3)
PACKAGES = {
    "onedraw": "onedraw, infer",
    "pyabc": "pyABC, ABC-SMC",
    "elfi": "ELFI, rejection, adjusted",
    "sbi": "sbi, NPE",
}


def interpreter(package: str) -> str | None:
    """The Python that has a package."""
    if importlib.util.find_spec(package):
        return sys.executable
    path = Path(os.environ.get("ONEDRAW_PEERS", "")) / package / "bin" / "python"
    return str(path) if "ONEDRAW_PEERS" in os.environ and path.exists() else None


def answer(package: str, driver: str, *arguments: Any) -> dict[str, Any] | str:
    """What a package's driver gives, or why it could not be run."""
    python = interpreter(package)
    if python is None:
        return f"{package} is not installed here, and ONEDRAW_PEERS names no folder with {package}/bin/python"
    command = [python, str(HERE / f"{package}_{driver}.py"), *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:  # sbi writes its logs into the working folder
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        return f"{package} failed: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.returncode}"
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def found(package: str, eps: float, y_obs: float, samples: int, seed: int) -> dict[str, Any] | str:
    """What a package's sequential sampler gives, or why it could not be run."""
    return answer(package, "smc", eps, y_obs, samples, seed)


def ours(model: str, budget: int, seed: int) -> dict[str, Any]:
    """What `od.infer` gives, as a driver would print it."""
    import onedraw as od
    from benchmarks.known import PROBLEMS

    began = time.process_time()
    post = od.infer(PROBLEMS[model].model, budget=budget, seed=seed)
    seconds, rows = time.process_time() - began, post.summary().rows.values()
    return {
        "mean": [row.mean for row in rows], "sd": [row.sd for row in rows], "simulations": post.cost.simulations,
        "seconds": seconds, "version": version("onedraw"),
    }  # fmt: skip


class Score(NamedTuple):
    """How far a package is from the exact posterior, over all parameters and seeds."""

    mean: float
    """Root mean square error of means, in exact standard deviations."""
    sd: float
    """Of the logarithm of standard deviations."""
    simulations: float
    seconds: float
    """Of the processor."""
    version: str


def score(model: str, runs: list[dict[str, Any]]) -> Score:
    """The score of several runs, with the median of what they cost."""
    from benchmarks.known import moments

    exact, columns = moments(model), {key: [one[key] for one in runs] for key in runs[0]}
    away = (np.array(columns["mean"]) - exact.mean) / exact.sd
    spread = np.log(np.maximum(columns["sd"], 1e-12) / exact.sd)
    errors = (float(np.sqrt(np.mean(np.square(values)))) for values in (away, spread))
    return Score(*errors, *(float(np.median(columns[key])) for key in ("simulations", "seconds")), runs[0]["version"])


def scored(package: str, model: str, budget: int) -> Score | str:
    """A package's score, or why it could not be run."""
    runs = []
    for seed in SEEDS:
        one = ours(model, budget, seed) if package == "onedraw" else answer(package, "budget", model, budget, seed)
        if isinstance(one, str):
            return one
        runs.append(one)
    return score(model, runs)


def line(label: str, model: str, budget: int, found: Score | str) -> str:
    """One line of the table."""
    if isinstance(found, str):
        return f"  {label}: {found}"
    what = f"{label} ({found.version})".ljust(40)
    spent = f"{found.simulations:8,.0f} {found.seconds:8.1f} s"
    return f"  {what} {model.ljust(9)} {budget:6,}  {found.mean:6.2f} {found.sd:6.2f} {spent}"


def main() -> bool:
    """Print the table. There is no target that could be missed."""
    print("\nRoot mean square errors of posterior means (in standard deviations) and of log standard deviations;")
    print("simulations made, and seconds of one core, most of them the package's own: these simulators cost little")
    for package, label in PACKAGES.items():
        if package != "onedraw" and interpreter(package) is None:
            print(line(label, "", 0, answer(package, "budget")))
            continue
        for model, budget in itertools.product(MODELS, BUDGETS):
            print(line(label, model, budget, scored(package, model, budget)), flush=True)
    return True
