"""The particle filter against the package `particles` on one model, in one run.

That package asks for NumPy below 2 and so cannot live beside onedraw: give an interpreter that has it in the
environment variable PARTICLES_PYTHON, as in

    python3 -m venv /somewhere && /somewhere/bin/pip install particles==0.4
    PARTICLES_PYTHON=/somewhere/bin/python python -m benchmarks particle_filter

Both filters work on the same data, a linear Gaussian model of 100 observations, resample systematically at every time
and use one core; they take turns, and the best time of each counts.
"""

import json
import os
import subprocess
import sys

import numpy as np
from scipy import stats

import onedraw as od
from benchmarks.timing import best_times, report
from onedraw.engines.streams import Rng

CHAINS, PARTICLES, TIMES = 64, 100, 100
TURNS = 4
LEAST = 5.0

PEER = """
import json, sys, time
import numpy as np, particles
from particles import distributions as dists, state_space_models as ssm

class Linear(ssm.StateSpaceModel):
    def PX0(self): return dists.Normal(0.0, 1.0)
    def PX(self, t, xp): return dists.Normal(self.a * xp, 1.0)
    def PY(self, t, xp, x): return dists.Normal(x, 1.0)

given = json.loads(sys.argv[1])
data, N = np.array(given["data"]), given["particles"]
np.random.seed(1)

def once():
    run = particles.SMC(fk=ssm.Bootstrap(ssm=Linear(a=0.8), data=data), N=N, resampling="systematic", ESSrmin=1.0)
    run.run()
    return run.logLt

once()
best, logs = 1e9, []
for _ in range(given["rounds"]):
    began = time.perf_counter()
    logs += [once() for _ in range(given["filters"])]
    best = min(best, (time.perf_counter() - began) / given["filters"])
from importlib.metadata import version
print(json.dumps({"seconds": best, "logs": logs, "version": version("particles"), "numpy": np.__version__}))
"""


def model(data):
    return od.particle_filter(
        od.Prior(a=stats.uniform(0, 1)),
        initial=lambda rng, shape, a: rng.standard_normal(shape),
        transition=lambda rng, x, a: a * x + rng.standard_normal(x.shape),
        log_observation=lambda y, x, a: -0.5 * (y - x) ** 2 - 0.5 * np.log(2 * np.pi),
        data=data,
        particles=PARTICLES,
    )


def peer(data):
    """Seconds of one filter of the package and its log estimates; None with a word where it cannot be had."""
    interpreter = os.environ.get("PARTICLES_PYTHON", sys.executable)
    given = {"data": list(data), "particles": PARTICLES, "rounds": 2, "filters": 32}
    settings = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    done = subprocess.run(
        [interpreter, "-c", PEER, json.dumps(given)], capture_output=True, text=True, env={**os.environ, **settings}
    )
    if done.returncode:
        print(f"\nno comparison with `particles`: {interpreter} says {done.stderr.strip().splitlines()[-1]}")
        print("set PARTICLES_PYTHON to an interpreter that has it (see benchmarks/particle_filter.py)")
        return None
    return json.loads(done.stdout)


def main() -> bool:
    rng = np.random.default_rng(1)
    x, data = rng.standard_normal(), []
    for _ in range(TIMES):
        data.append(x + rng.standard_normal())
        x = 0.8 * x + rng.standard_normal()
    estimator, theta = model(data), np.full((CHAINS, 1), 0.8)
    ours, theirs, logs = float("inf"), float("inf"), []
    found = None
    step = iter(range(10**9))
    for _ in range(TURNS):
        jobs = {"ours": lambda: logs.append(estimator.evaluate(Rng(1, 1, step=next(step)), theta, None).log_estimate)}
        ours = min(ours, best_times(jobs, rounds=5)["ours"])
        found = peer(data)
        if found is None:
            break
        theirs = min(theirs, found["seconds"])
    speed = CHAINS * PARTICLES * TIMES / ours
    rows: list[tuple[str, str, str, bool | None]] = [
        ("particles moved a second", f"{speed / 1e6:.1f} million", "", None)
    ]
    if found is not None:
        ratio = speed / (PARTICLES * TIMES / theirs)
        mine, yours = np.concatenate(logs), np.array(found["logs"])
        gap = abs(mine.mean() - yours.mean()) / np.hypot(mine.std() / mine.size**0.5, yours.std() / yours.size**0.5)
        rows += [
            (f"`particles` {found['version']}", f"{PARTICLES * TIMES / theirs / 1e6:.2f} million", "", None),
            ("ratio", f"{ratio:.1f}", f"at least {LEAST:g}", ratio >= LEAST),
            ("mean log estimates differ by", f"{gap:.1f} se", "below 4 se", bool(gap < 4)),
        ]
    return report(f"Particle filter, {CHAINS} chains x {PARTICLES} particles x {TIMES} times", rows)
