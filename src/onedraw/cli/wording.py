"""Messages of the library in the words of the command line: `--budget` for `budget=`, `--out` for `store=`."""

import re

ARGUMENTS = (
    "budget", "draws", "eps", "algorithm", "chains", "thin", "pseudo_samples", "hits", "particles", "coverage", "keep",
    "bank", "seed", "on_error", "timeout", "engine", "workers", "max_seconds", "segment", "processors",
    "max_pseudo_samples",
)  # fmt: skip
"""Arguments that are options of the same name."""
OTHERS = {"store": "out", "executor": "dask", "force": "force"}
FROM_THE_FILE = ("kernel", "proposal", "start")
"""Arguments that the command line takes from the model file."""
_NAMES = "|".join((*ARGUMENTS, *OTHERS))
_CALL = re.compile(r"\bod\.resume(?:\((?:'[^']*', model|\.\.\.(?:, (?P<force>force=True))?)\))?")
_PART = re.compile(rf"\b(?P<name>{'|'.join(FROM_THE_FILE)})=(?=$|[\s,;:.)])")
_ARGUMENT = re.compile(
    rf"(?<![\w.'-])(?P<name>{_NAMES})(?:=(?P<given>'[^']*'|\"[^\"]*\"|[\w.]*\w)?| = (?P<value>[\w.,]*\w))"
)
_FIRST = re.compile(rf"^(?P<name>{_NAMES})(?= must\b)")
_LONG = re.compile(rf"(?<![\w.'-])(?:{'|'.join(name for name in ARGUMENTS if '_' in name)})\b")


def in_options(message: str) -> str:
    """A message that names arguments of Python's functions, with the options of the command line instead.

    >>> in_options("Give the same settings, or store= another name")
    'Give the same settings, or --out another name'
    >>> in_options("or another file; od.resume(..., force=True) continues all the same")
    'or another file; onedraw resume --force continues all the same'
    >>> in_options("engine='jax' needs a simulator made by od.jax_simulator: leave engine= out")
    '--engine jax needs a simulator made by od.jax_simulator: leave --engine out'
    >>> in_options("budget = 12 does not cover one proposal of pseudo_samples = 30 simulations")
    '--budget 12 does not cover one proposal of --pseudo-samples 30 simulations'
    >>> in_options("eps = 0.01 was not reached: the run ended at eps = 0.4216")
    '--eps 0.01 was not reached: the run ended at eps = 0.4216'
    >>> in_options("stopped by max_seconds: give it again, as kernel=")
    'stopped by --max-seconds: give it again, as kernel in the model file'
    >>> in_options("timeout must be positive, got 0: it is the number of seconds that one simulation may take")
    '--timeout must be positive, got 0: it is the number of seconds that one simulation may take'
    """
    message = _CALL.sub(lambda found: "onedraw resume" + (" --force" if found["force"] else ""), message)
    message = _PART.sub(lambda found: f"{found['name']} in the model file", message)
    message = _FIRST.sub(lambda found: _dashed(OTHERS.get(found["name"], found["name"])), message)
    message = _ARGUMENT.sub(_option, message)
    return _LONG.sub(lambda found: _dashed(found[0]), message)


def _option(found: re.Match[str]) -> str:
    # Inside a sentence this is the tolerance that a run has reached; one that was asked for begins its message.
    if found["name"] == "eps" and found["value"] and found.start() > 0:
        return found[0]
    value = (found["given"] or found["value"] or "").strip("'\"")
    return _dashed(OTHERS.get(found["name"], found["name"])) + (f" {value}" if value and value != "True" else "")


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-')}"
