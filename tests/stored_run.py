"""Runs of every sampler on a model with failures, and processes of their own in which they can be killed."""

import contextlib
import json
import os
import random
import signal
import threading
import time
import traceback
import warnings
from functools import partial

from scipy import stats

import onedraw as od
from onedraw.run import store as store_module

PRIOR = od.Prior(a=stats.norm(0, 2), b=stats.uniform(0, 3), k=stats.poisson(2))
KERNEL = od.uniform(2.0)
CHAINS = {"draws": 100, "chains": 6, "seed": 5, "thin": 2}
RUNS = {
    "rejection": (od.rejection, {"draws": 900, "seed": 5, "keep": "all"}),
    "pseudo_marginal": (od.pseudo_marginal, {**CHAINS, "pseudo_samples": 2, "keep": "distances"}),
    "wilkinson": (od.wilkinson, {**CHAINS, "budget": 100_000}),
    "r_hit": (od.r_hit, {**CHAINS, "hits": 2, "draws": 60}),
    "smc": (od.smc, {"budget": 2000, "pseudo_samples": 2, "seed": 5}),
    "importance": (od.importance, {"budget": 2000, "seed": 5, "keep": "all"}),
}
SEQUENTIAL = ("smc", "importance")
"""They choose their own tolerance and take no draws."""


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
    if store is None and name == "rejection":
        del arguments["keep"]
    if name in SEQUENTIAL:
        return sampler(model, kernel=od.uniform(), **arguments, store=store)
    return sampler(model, KERNEL, **arguments, store=store)


def infer(path, **more):
    return od.infer(model, budget=300, draws=50, seed=5, store=path, **more)


MEASUREMENTS = {
    "advise": lambda path, **more: od.advise(
        model, KERNEL, budget=1500, seed=5, max_pseudo_samples=2, store=path, **more
    ),
    "tolerance_for": lambda path, **more: od.tolerance_for(
        model, 0.3, budget=2000, chains=4, seed=5, store=path, **more
    ),
    "fit_summary": lambda path, **more: od.fit_summary(model, budget=200, seed=5, store=path, **more),
    "calibrate": lambda path, **more: od.calibrate(
        model,
        od.rejection,
        budget=100,
        data_sets=20,
        shared=True,
        seed=5,
        arguments={"kernel": KERNEL},
        store=path,
        **more,
    ),
}
"""Functions that keep what they measure in files of their own, by name."""
FILES = {**{name: partial(run, name) for name in RUNS}, "infer": infer, **MEASUREMENTS}
"""What makes a file of each kind."""


def uses(name, path):
    """Everything that can be done with a file, by name."""
    again = {"load": lambda: str(od.load(path).summary())}
    if name in MEASUREMENTS:
        return {**again, "again": lambda: MEASUREMENTS[name](path, max_seconds=1.0)}
    again |= {
        "resume": lambda: od.resume(path, model, max_seconds=0.1),
        "replay": lambda: replayed(path),
    }
    if name == "infer":
        again["raise"] = lambda: od.resume(path, model, budget=400, max_seconds=1.0)
    if name == "rejection":
        again |= {
            "reuse": lambda: od.reuse(path, kernel=od.uniform(1.0)),
            "reuse with a model": lambda: od.reuse(path, kernel=od.uniform(1.0), model=model),
            "reuse with data": lambda: od.reuse(path, kernel=od.uniform(1.0), observed=[1.0, 2.0]),
        }
    return again


def replayed(path):
    """The first failure again, which raises what the simulator raised."""
    try:
        od.replay(path, model=model)
    except RuntimeError as error:
        if str(error) != "beyond the model":
            raise


def told(post):
    """Everything that a resumed run promises to have in common with one that was not interrupted."""
    draws = {name: values.tobytes().hex() for name, values in post.draws.items()}
    distances = None if post.distances is None else post.distances.tobytes().hex()
    failures = [list(one) for one in post.failures]
    cost = list(post.cost._replace(seconds=0.0, surplus=0))
    rates = [repr(post.acceptance_rate), repr(post.acceptance_rate_se), repr(post.path)]
    rates += [None if some is None else some.tobytes().hex() for some in (post.weights, post.groups)]
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


class Child:
    """A fork of this process, which has everything imported, at work."""

    def __init__(self, work):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the threads of BLAS are at rest
            self.pid = os.fork()
        self.code = None
        if self.pid == 0:
            code = 1
            try:
                work()
                code = 0
            except SystemExit as error:
                code = error.code
            except KeyboardInterrupt:
                code = 130
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)

    def send(self, number):
        os.kill(self.pid, number)

    def poll(self):
        """Its exit status, negative for the signal that ended it, or None while it works."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def wait(self, seconds=300.0):
        until = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > until:
                self.send(signal.SIGKILL)
                raise TimeoutError(f"the child worked for more than {seconds} s")
            time.sleep(0.002)
        return self.code


def in_child(name, store, output=None, pause=0.0004, commit=0):
    """A run in a child; its result goes to `output`."""

    def work():
        Test.pause = pause
        if commit:
            die_in_commit(commit)
        post = run(name, store, segment=0.03)
        if output is not None:
            output.write_text(json.dumps([told(post), post.status.reason]))

    return Child(work)


def wait_for_writer(store):
    """Until a run holds the file, and with it takes signals."""
    lock = store.with_name(store.name + ".lock")
    until = time.monotonic() + 30
    while not (lock.exists() and store.exists() and store.stat().st_size) and time.monotonic() < until:
        time.sleep(0.005)
