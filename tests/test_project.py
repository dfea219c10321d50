"""Promises about the project itself: what importing costs, and that CI runs what the README tells a user to run."""

import json
import os
import re
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

import onedraw as od
from tests import pages, plant

ROOT = Path(__file__).parent.parent
HEAVY = ["scipy", "arviz_stats", "matplotlib", "jax", "dask", "xarray", "pandas", "numba", "rich", "jinja2"]


@pytest.mark.parametrize("module", ["onedraw", "onedraw.cli.main"])
def test_imports_are_light(module):
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_help_and_version():
    command = [sys.executable, "-m", "onedraw"]
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    assert "spends every simulation well" in shown
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
    assert od.__version__ in version


def test_ci_runs_the_commands_of_the_readme():
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    commands = re.findall(r"^(make \w+)", readme, flags=re.MULTILINE)
    assert commands == ["make study", "make test"]
    for command in commands:
        assert f"\n{command}\n" in ci


def test_every_public_name_has_a_docstring():
    missing = [name for name in od.__all__ if not getattr(od, name).__doc__]
    assert missing == []


def test_planted_errors_are_found_in_their_files():
    """`make mutate` needs each text of its list exactly once, and tests that exist."""
    errors = plant.listed()
    assert len(errors) >= 55
    for error in errors:
        assert plant.source_of(error) != (plant.ROOT / "src" / "onedraw" / error.file).read_text()
        assert (plant.ROOT / error.tests[0].partition("::")[0]).exists()


@pytest.mark.slow
def test_from_a_clean_clone_to_a_report_in_three_minutes(tmp_path):
    """The README's commands, installation included. Processor time counts: other tests run at the same time."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    readme = [one.text for one in pages.blocks((ROOT / "README.md").read_text()) if one.language == "sh"]
    (install,) = [text for text in readme if text.startswith("python -m pip install")]
    (commands,) = [text for text in readme if text.startswith("onedraw new")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment["PATH"] = f"{tmp_path / 'env' / 'bin'}{os.pathsep}{environment['PATH']}"
    clone, before, began = tmp_path / "onedraw", resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()

    def run(command, folder):
        done = subprocess.run(
            shlex.split(command, comments=True),
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    run(f"git clone --quiet {ROOT} {clone}", tmp_path)
    run(f"{sys.executable} -m venv {tmp_path / 'env'}", tmp_path)
    run(install, clone)
    for command in commands.strip().splitlines():
        run(command, tmp_path)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    print(f"{seconds:.0f} s of the processor, {time.monotonic() - began:.0f} s on the clock")
    assert seconds < 180
    assert "<html" in (tmp_path / "model.html").read_text()
    # What a plain installation brings, pip and setuptools aside, and what the report adds.
    installed = json.loads(run("python -m pip list --format=json --disable-pip-version-check", tmp_path))
    names = {one["name"] for one in installed} - {"pip", "setuptools", "wheel"}
    print(f"{len(names)} packages: {', '.join(sorted(names))}")
    assert len(names) <= 25
