"""A long run under constant accidents: killed workers, killed runs, a full disk, a clock that jumps, a lost scheduler.

After each of them nothing may be left: no worker, no scheduler, no helper of either.

Three minutes; ONEDRAW_SOAK_SECONDS=1200 makes it twenty.
"""

import os
import random
import resource
import signal
import subprocess
import sys
import time

import psutil
import pytest

import onedraw as od

SECONDS = float(os.environ.get("ONEDRAW_SOAK_SECONDS", "180"))
GROWTH = 50e6
"""Bytes by which the memory of a run's process may grow."""
GONE = 5.0
"""Seconds after the end of a session by which all of its processes have ended."""
MARK = "ONEDRAW_SOAK_FOLDER"
"""In the environment of every process of a session."""

PROGRAM = """
import os, subprocess, sys, threading, time
from scipy import stats
import onedraw as od
from onedraw.run import pool

def simulate(rng, theta):
    time.sleep(float(os.environ.get("PAUSE", "0")))
    return rng.normal(theta, 1.0)

def jumping():
    # The clock is set forward a day, and back again, now and then.
    real = time.time
    while True:
        time.time = lambda: real() + 86400
        time.sleep(0.3)
        time.time = real
        time.sleep(0.3)

def started(*words):
    return subprocess.Popen([sys.executable, "-m", *words], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

def cluster(folder):
    from distributed import Client
    place = os.path.join(folder, f"scheduler-{os.getpid()}.json")
    programs = [started("distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", place)]
    programs += [started("distributed.cli.dask_worker", "--scheduler-file", place, "--nthreads", "1", "--no-dashboard",
                         "--no-nanny", "--death-timeout", "20") for _ in range(2)]
    client = Client(scheduler_file=place, timeout=30)
    client.wait_for_workers(2)
    with open(os.path.join(folder, "scheduler"), "w") as file:
        file.write(str(programs[0].pid))
    return client

def main():
    kind, file, folder, budget = sys.argv[1:]
    pool.PATIENCE = 8.0
    if kind == "clock":
        threading.Thread(target=jumping, daemon=True).start()
    more = {"executor": cluster(folder)} if kind.startswith("dask") else {"workers": 4} if kind != "alone" else {}
    model = od.Model(od.Prior(theta=stats.norm(0, 1)), simulate, observed=2.0)
    od.pseudo_marginal(model, od.uniform(1.0), budget=int(budget), chains=16, seed=1, store=file, segment=0.2,
                       max_seconds=None if kind == "alone" else 600, **more)

if __name__ == "__main__":
    main()
"""


def limited():
    """A disk that is full after some bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def session(folder, kind, budget, pause):
    file = folder / ("alone.db" if kind == "alone" else "run.db")
    environment = {**os.environ, "PAUSE": str(pause), MARK: str(folder)}
    return subprocess.Popen(
        [sys.executable, folder / "program.py", kind, file, folder, str(budget)], env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        preexec_fn=limited if kind == "full disk" else None,
    )  # fmt: skip


def workers_of(run):
    try:
        found = psutil.Process(run.pid).children(recursive=True)
        return [one for one in found if "popen_loky" in " ".join(one.cmdline())]
    except psutil.Error:
        return []


def resident(run):
    try:
        return psutil.Process(run.pid).memory_info().rss
    except psutil.Error:
        return 0


def disturbed(run, kind, chance, folder):
    """One session with its accident; how much its memory grew."""
    if kind.startswith("dask"):
        until_saved(run, folder)
    ends, sizes, killed = time.monotonic() + chance.uniform(4, 12), [], 0
    while run.poll() is None and time.monotonic() < ends:
        time.sleep(chance.uniform(0.3, 1.0))
        sizes.append(resident(run))
        # A run gives up if one piece of work loses seven workers in a row, and starting new ones takes seconds.
        if kind == "workers" and killed < 4 and chance.random() < 0.3 and (found := workers_of(run)):
            found[chance.randrange(len(found))].kill()
            killed += 1
    if kind == "dask":
        os.kill(int((folder / "scheduler").read_text()), signal.SIGKILL)
        run.wait(60)
    elif kind in ("killed", "dask killed"):
        run.kill()
    elif run.poll() is None:
        run.send_signal(signal.SIGTERM)
    _, said = run.communicate(timeout=60)
    # What is known of a session that failed: it was killed, its disk was full, or its scheduler was lost.
    # A signal that comes before the run has begun ends the program as usual.
    assert run.returncode in (0, -signal.SIGKILL, -signal.SIGTERM) or kind in ("full disk", "dask"), (kind, said)
    (folder / "scheduler").unlink(missing_ok=True)
    give_up = time.monotonic() + GONE
    while (there := left(folder)) and time.monotonic() < give_up:
        time.sleep(0.1)
    assert not there, (kind, there)
    settled = [size for size in sizes[len(sizes) // 2 :] if size]
    return settled[-1] - settled[0] if settled else 0


def until_saved(run, folder):
    """Wait until a session on Dask has saved something, or has ended: before that its cluster is not known to it."""
    place = folder / "scheduler"
    while run.poll() is None:
        time.sleep(0.2)
        saved = [one.stat().st_mtime for one in folder.glob("run.db")]
        if place.exists() and saved and saved[0] > place.stat().st_mtime:
            return


@pytest.mark.slow
def test_a_run_survives_whatever_happens(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    chance, give_up, grown, kinds = random.Random(1), time.monotonic() + SECONDS, 0, []
    budget = int(60 * SECONDS)
    while time.monotonic() < give_up:
        kind = chance.choice(["workers", "killed", "full disk", "clock", "terminated", "dask", "dask killed"])
        run = session(tmp_path, kind, budget, 0.05)
        grown = max(grown, disturbed(run, kind, chance, tmp_path))
        kinds.append(kind)
    for name in ("alone", "last"):
        _, said = session(tmp_path, name, budget, 0.0).communicate(timeout=600 + SECONDS)
        assert not said or "Error" not in said, said
    alone, post = (od.load(tmp_path / name) for name in ("alone.db", "run.db"))
    assert post.status.complete == alone.status.complete
    assert post.draws["theta"].tobytes() == alone.draws["theta"].tobytes()
    assert post.cost.simulations == alone.cost.simulations and len(post.failures) == 0
    assert grown < GROWTH, kinds


def left(folder):
    """Processes of sessions that are still there, with their commands."""
    return [(one.pid, words) for one in psutil.process_iter() if (words := of_session(one, folder))]


def of_session(process, folder):
    try:
        if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == str(folder):
            return " ".join(process.cmdline())
    except psutil.Error:
        pass
    return ""
