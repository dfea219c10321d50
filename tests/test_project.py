"""Promises about the project itself: what importing costs, and that CI runs what the README tells a user to run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import onedraw as od
from tests import plant

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
