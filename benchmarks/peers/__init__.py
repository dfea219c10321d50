"""Drivers of other packages' sequential samplers, each a script for that package's own interpreter.

A driver reads eps, y_obs, samples and seed from its arguments and prints one JSON object: theta, weights, simulations
and seconds. `found` runs them: with this interpreter where it has the package, or with the one in the folder that
the environment variable ONEDRAW_PEERS names, as in $ONEDRAW_PEERS/pyabc/bin/python.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def found(package: str, eps: float, y_obs: float, samples: int, seed: int) -> dict[str, Any] | str:
    """What a package's sampler gives, or why it could not be run."""
    return driven(package, f"{package}_smc.py", [str(eps), str(y_obs), str(samples), str(seed)])


def driven(package: str, script: str, arguments: list[str]) -> dict[str, Any] | str:
    """What a script for a package's interpreter prints, or why it could not be run."""
    python = sys.executable if importlib.util.find_spec(package) else None
    folder = os.environ.get("ONEDRAW_PEERS")
    if python is None and folder is not None and (Path(folder) / package / "bin" / "python").exists():
        python = str(Path(folder) / package / "bin" / "python")
    if python is None:
        return f"{package} is not installed here, and ONEDRAW_PEERS names no folder with {package}/bin/python"
    done = subprocess.run([python, str(HERE / script), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"{package} failed: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.returncode}"
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result
