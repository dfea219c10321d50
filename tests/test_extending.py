"""What docs/extending.md promises: a sampler, a kernel and a distance from outside do what those of the package do."""

import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw import runs
from tests.deadlines import wait_until
from tests.marks import long_in_slow_tests
from tests.outside import City, barker, log_cosine
from tests.test_contract import bytes_of

ROOT = Path(__file__).parent.parent
KERNEL = od.kernel(log_cosine, 1.5, support=1.0)
PRIOR = od.Prior(theta=stats.norm(0, 1))


def plain(rng, theta):
    return theta + rng.standard_normal(2)


def batched(rng, theta):
    return theta[:, None] + rng.standard_normal((theta.size, 2))


@cache
def toy(kind="plain"):
    """Two normal observations with mean theta; one object per kind, so that it is compiled once."""
    if kind == "jax":
        import jax

        simulate = od.jax_simulator(lambda key, theta: theta + jax.random.normal(key, (2,)))
    else:
        simulate = {"plain": plain, "batched": od.batched(batched)}[kind]
    return od.Model(PRIOR, simulate, observed=[1.0, 2.0], distance=City())


def test_it_is_written_in_sixty_lines():
    assert len((ROOT / "tests" / "outside.py").read_text().splitlines()) <= 60


def exact_moments(spread, kernel=KERNEL):
    """Mean and standard deviation of theta under pi_K, by quadrature over theta and both observations."""
    theta = np.linspace(-4, 6, 201)
    away = np.linspace(-6, 6, 601)
    distance = np.abs(away[:, None]) / spread[0] + np.abs(away[None, :]) / spread[1]
    weight = np.exp(kernel.log_weight(distance))
    one, two = (stats.norm.pdf(seen + away[None, :], theta[:, None]) for seen in (1.0, 2.0))
    density = stats.norm.pdf(theta) * np.einsum("ti,ij,tj->t", one, weight, two)
    density /= density.sum()
    mean = float(density @ theta)
    return mean, float(np.sqrt(density @ (theta - mean) ** 2))


@pytest.mark.parametrize("kind", long_in_slow_tests(["plain", "batched", "jax"], "jax"))
def test_it_is_exact_on_every_engine(kind):
    post = barker(toy(kind), KERNEL, chains=64, draws=60 if kind == "plain" else 400, seed=1)
    mean, sd = exact_moments(np.asarray(post.model.distance.spread))
    row = post.summary()["theta"]
    assert abs(row.mean - mean) < 4 * row.mcse < 0.4
    assert row.sd == pytest.approx(sd, rel=0.15)


def test_barker_is_never_ahead_of_metropolis_and_hastings():
    """Peskun's order: it accepts less often, here between a half and all of the time."""
    ours, theirs = (run(toy("batched"), KERNEL, chains=256, draws=200, seed=1) for run in (barker, od.pseudo_marginal))
    assert 0.5 * theirs.acceptance_rate < ours.acceptance_rate < 0.95 * theirs.acceptance_rate


@pytest.mark.parametrize("kind", long_in_slow_tests(["plain", "batched", "jax"], "jax"))
def test_same_seed_same_bytes_and_a_budget_never_passed(kind):
    first, again = (barker(toy(kind), KERNEL, chains=8, budget=2_000, seed=3) for _ in range(2))
    assert bytes_of(first) == bytes_of(again)
    assert 2_000 - 8 <= first.cost.simulations <= 2_000


def test_two_workers_give_the_same_bytes():
    alone, together = (barker(toy(), KERNEL, chains=4, draws=30, seed=3, workers=number) for number in (1, 2))
    assert bytes_of(alone)[0] == bytes_of(together)[0]


MODEL_FILE = """
import sys, time
sys.path.insert(0, {root!r})
from scipy import stats
import onedraw as od
from tests.outside import City, barker, log_cosine

def simulate(rng, theta):
    time.sleep({pause})
    return theta + rng.standard_normal(2)

kernel = od.kernel(log_cosine, 1.5, support=1.0)
model = od.Model(od.Prior(theta=stats.norm(0, 1)), simulate, observed=[1.0, 2.0], distance=City())
"""
RUN = [
    "run",
    "model.py",
    "--algorithm",
    "barker",
    "--chains",
    "4",
    "--draws",
    "120",
    "--seed",
    "3",
    "--segment",
    "0.01",
]


def onedraw(folder, *arguments, **more):
    command = [sys.executable, "-m", "onedraw", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, **more)


def has_draws(path):
    try:
        return od.load(path).shape[1] > 0
    except od.StoreError:
        return False


@pytest.mark.slow
def test_a_run_of_the_command_line_that_is_killed_ends_as_if_nothing_had_happened(tmp_path):
    (tmp_path / "model.py").write_text(MODEL_FILE.format(root=str(ROOT), pause=0.003))
    with subprocess.Popen([sys.executable, "-m", "onedraw", *RUN], cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: has_draws(tmp_path / "model.db"), 100)
        process.kill()
    half = od.load(tmp_path / "model.db")
    assert not half.status.complete and half.shape[1] > 0
    again = onedraw(tmp_path, *RUN)
    assert again.returncode == 0, again.stderr
    whole = od.load(tmp_path / "model.db")
    straight = barker(toy(), KERNEL, chains=4, draws=120, seed=3)
    assert whole.status.complete and whole.settings["algorithm"] == "barker"
    assert bytes_of(whole)[0] == bytes_of(straight)[0]
    shown = onedraw(tmp_path, "show", "model.db")
    assert shown.returncode == 1 and "barker" in shown.stderr  # without the model file nothing knows the sampler


def test_resume_finds_it_by_name(tmp_path):
    path = tmp_path / "run.db"
    model = toy()
    barker(model, KERNEL, chains=4, draws=20, seed=3, store=path)
    more = od.resume(path, model, kernel=KERNEL, draws=40)
    assert "barker" in runs.samplers()
    assert bytes_of(more)[0] == bytes_of(barker(model, KERNEL, chains=4, draws=40, seed=3))[0]
