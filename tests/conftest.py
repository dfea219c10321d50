"""What holds for all tests, however they are started."""

import os
import shutil
import signal
from importlib import metadata
from pathlib import Path

import cloudpickle
import pytest

import tests
from onedraw.proposals import mixture
from onedraw.results import learnt_likelihood, trial
from onedraw.run import estimate, pool
from onedraw.surrogate import residuals, validation

# A program that a script starts in the background ignores Ctrl-C, one that nohup starts ignores SIGHUP, and so does all
# that they start; some tests send them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# Workers that one test has started serve those after it, however long that takes.
pool.IDLE_SECONDS = 1200

MEMORY = Path("/dev/shm")
"""A folder in memory, on Linux."""


def pytest_configure(config):
    """What all processes of these tests share, and what these wait for least."""
    # Workers and children get functions of the tests as they are, and need not import all that the tests import.
    cloudpickle.register_pickle_by_value(tests)
    if hasattr(config, "workerinput"):
        return
    cache = getattr(config, "cache", None)
    if cache is not None:
        # What JAX compiles is kept for the next time, too.
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache.mkdir("jax"))
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
    if config.option.markexpr == "not slow":
        # Programs of these tests are small and run once: to optimise them would take longer than to run them. The slow
        # tests compile as users do.
        os.environ.setdefault("XLA_FLAGS", " ".join(quick_to_compile()))
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2**30:
        # Runs wait until the disk has every record, and the tests write thousands.
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def quick_to_compile():
    """What makes XLA compile for a CPU in half of the time."""
    yield "--xla_backend_optimization_level=0"
    # A flag that XLA does not know ends the process, and this one is for those who work on XLA.
    if metadata.version("jaxlib").startswith("0.10."):
        yield "--xla_cpu_use_fusion_emitters=false"


@pytest.fixture
def by_name(monkeypatch):
    """Functions of the tests go to workers by their names, as those of an installed package do."""
    monkeypatch.setattr(cloudpickle.cloudpickle, "_PICKLE_BY_VALUE_MODULES", set())


def hurry(patch):
    """Fewer pseudo-observations and draws inside of `od.infer`."""
    patch.setattr(trial, "ROUNDS", ((2, 2), (12, 2)))
    patch.setattr(trial, "BRIEF_ROUNDS", ((2, 2), (6, 2)))
    patch.setattr(learnt_likelihood, "FREE", 500)
    patch.setattr(learnt_likelihood, "FREE_BRIEFLY", 300)
    patch.setattr(learnt_likelihood, "GROUPS", 4)
    patch.setattr(learnt_likelihood, "MORE_GROUPS", 4)
    patch.setattr(validation, "FOLDS", ((0, 1),))
    patch.setattr(mixture, "BRIDGE_DRAWS", 2**11)
    patch.setattr(estimate, "PARTICLES", 300)
    patch.setattr(residuals, "ROUNDS", 10)


@pytest.fixture
def unrendered(monkeypatch):
    """Figures of pages are drawn and not written, if a test is about words: that takes a quarter of a second each."""
    for page in ("page", "calibration", "comparison"):
        monkeypatch.setattr(f"onedraw.report.{page}.image_of", lambda figure: "data:image/svg+xml;base64,")


@pytest.fixture(scope="module")
def brief():
    """`od.infer` in a hurry in all tests of a module, and in what they share."""
    with pytest.MonkeyPatch.context() as patch:
        hurry(patch)
        yield


@pytest.fixture(params=["quick", pytest.param("in full", marks=pytest.mark.slow)])
def paced(request, monkeypatch):
    """`od.infer` in a hurry, and with the slow tests as users have it."""
    if request.param == "quick":
        hurry(monkeypatch)


@pytest.fixture
def quick(monkeypatch):
    """`od.infer` in a hurry, if accuracy is not what a test is about."""
    hurry(monkeypatch)
