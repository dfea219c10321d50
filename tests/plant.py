"""Plants errors in the formulas that matter, one at a time, and expects the tests that should see each one to fail.

The errors are in planted.toml: a file under src/onedraw, a text in it, what is put in its place, and tests. The package
is copied to temporary folders, so that nothing is changed here. `make mutate` runs all of them,
`python -m tests.plant skewness` those with that word in their name or file, `--jobs 4` four at a time. Tests that have
not ended after LIMIT seconds have caught nothing: an error that makes a loop endless needs a test of its own that ends.
"""

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
LIMIT = 600.0
"""Seconds after which the tests of one error are given up."""


class Planted(NamedTuple):
    """One error."""

    name: str
    file: str
    old: str
    new: str
    tests: list[str]


def listed() -> list[Planted]:
    """All errors of the list, each of which must be found in its file exactly once."""
    found = tomllib.loads((ROOT / "tests" / "planted.toml").read_text())
    return [Planted(name, **one) for name, one in found.items()]


def source_of(error: Planted) -> str:
    """The file with the error in it."""
    text = (ROOT / "src" / "onedraw" / error.file).read_text()
    if text.count(error.old) != 1:
        raise ValueError(f"{error.name}: {error.file} has {text.count(error.old)} times {error.old!r}, expected one")
    return text.replace(error.old, error.new)


def verdict(error: Planted, package: Path) -> str:
    """Whether the tests fail with the error in the copied package: caught, MISSED, or ENDLESS."""
    place = package / error.file
    right = place.read_text()
    place.write_text(source_of(error))
    environment = os.environ | {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *error.tests]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return "ENDLESS"
    finally:
        place.write_text(right)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{error.name}: the tests could not be run\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return "caught" if done.returncode == 1 else "MISSED"


class Tried(NamedTuple):
    """An error that was planted."""

    name: str
    verdict: str
    seconds: float


def tried(error: Planted, packages: "queue.Queue[Path]") -> Tried:
    """Plant an error in a copy that no one else uses."""
    package, began = packages.get(), time.monotonic()
    try:
        return Tried(error.name, verdict(error, package), time.monotonic() - began)
    finally:
        packages.put(package)


def plant(errors: Sequence[Planted], jobs: int) -> list[str]:
    """Plant errors, so many at a time, and say of each whether it was caught; the names of those that were missed."""
    packages: queue.Queue[Path] = queue.Queue()
    missed = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        for number in range(jobs):
            package = Path(folder) / str(number) / "src" / "onedraw"
            shutil.copytree(ROOT / "src" / "onedraw", package, ignore=shutil.ignore_patterns("__pycache__"))
            packages.put(package)
        for done in as_completed([pool.submit(tried, error, packages) for error in errors]):
            one = done.result()
            missed += [] if one.verdict == "caught" else [one.name]
            print(f"{one.verdict:7}  {one.seconds:5.1f} s  {one.name}", flush=True)
    return missed


def main(arguments: list[str]) -> int:
    """Plant the errors with these words in their names or files, all without a word; 1 if one was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.plant", description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="of the names of errors, or of their files")
    parser.add_argument("--jobs", type=int, default=1, help="errors planted at a time")
    asked = parser.parse_args(arguments)
    errors = [
        error
        for error in listed()
        if not asked.words or any(word in f"{error.file} {error.name}" for word in asked.words)
    ]
    missed = plant(errors, asked.jobs)
    print(f"{len(errors) - len(missed)} of {len(errors)} planted errors were caught", *missed, sep="\n  ")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
