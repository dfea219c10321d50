"""A run in a process of its own, to be killed: python -m tests.stored_run SAMPLER FILE OUTPUT PAUSE COMMIT."""

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time

from scipy import stats

import onedraw as od
from onedraw.engine import store as store_module

PRIOR = od.Prior(a=stats.norm(0, 2), b=stats.uniform(0, 3), k=stats.poisson(2))
KERNEL = od.uniform(2.0)
CHAINS = {"draws": 150, "chains": 6, "seed": 5, "thin": 2}
RUNS = {
    "rejection": (od.rejection, {"draws": 900, "seed": 5, "keep": "all"}),
    "pseudo_marginal": (od.pseudo_marginal, {**CHAINS, "pseudo_samples": 2, "keep_distances": True}),
    "wilkinson": (od.wilkinson, {**CHAINS, "budget": 100_000}),
    "r_hit": (od.r_hit, {**CHAINS, "hits": 2, "draws": 60}),
}


class Test:
    """What a test does to the simulator; no part of the model's identity, since it is reached through a class."""

    pause = 0.0
    """Seconds that a simulation sleeps."""
    calls = 0
    stop_at = 0
    """The call at which a simulation is interrupted."""


def simulate(rng, a, b, k):
    Test.calls += 1
    if Test.calls == Test.stop_at:
        raise KeyboardInterrupt
    if Test.pause:
        time.sleep(Test.pause)
    if a > 4.0:
        raise RuntimeError("beyond the model")
    return rng.normal(a, 1.0 + b, size=2) + k


model = od.Model(PRIOR, simulate, [2.0, 4.0], distance=od.scaled(pilot=80))


def run(name, store=None, **more):
    sampler, arguments = RUNS[name]
    arguments = {**arguments, **more}
    if store is None:
        arguments.pop("keep", None)
    return sampler(model, KERNEL, **arguments, store=store)


def told(post):
    """Everything that a resumed run promises to have in common with one that was not interrupted."""
    draws = {name: values.tobytes().hex() for name, values in post.draws.items()}
    distances = None if post.distances is None else post.distances.tobytes().hex()
    failures = [list(one) for one in post.failures]
    cost = list(post.cost._replace(seconds=0.0, surplus=0))
    rates = [repr(post.acceptance_rate), repr(post.acceptance_rate_se)]
    rest = [str(post.summary()), list(post.status), dict(post.settings)]
    return json.loads(json.dumps([draws, distances, cost, rates, failures, rest]))


def die_in_commit(number):
    """End this process by SIGKILL a moment after the `number`-th commit has begun."""
    whole, begun = store_module._transaction, []

    @contextlib.contextmanager
    def deadly(connection):
        with whole(connection):
            yield
            begun.append(1)
            if len(begun) == number:
                late = random.random() * 0.004
                threading.Timer(late, os.kill, (os.getpid(), signal.SIGKILL)).start()

    store_module._transaction = deadly


if __name__ == "__main__":
    name, store, output, pause, commit = sys.argv[1:6]
    Test.pause = float(pause)
    if int(commit):
        die_in_commit(int(commit))
    print("running", flush=True)
    result = run(name, store, segment=0.03)
    with open(output, "w") as file:
        json.dump([told(result), result.status.reason, result.cost.seconds], file)
