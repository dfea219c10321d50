"""What a run's file holds, one entry at a time, and what is said where it cannot be used. The file is in store.py."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.failures import FAILURES_KEPT, Failure

MOST = 2**62
"""No count in a file is larger."""
COUNTED = ("draws", "budget", "chains", "thin", "pseudo_samples", "hits", "max_draws", "particles", "block")
"""Arguments of samplers that are numbers of something, or None."""


class StoreError(ValueError):
    """The file of a run cannot be used as requested; the message says why and what to do.

    >>> import onedraw as od
    >>> od.load("no-such-run.db")
    Traceback (most recent call last):
    ...
    onedraw.run.record.StoreError: no-such-run.db does not exist: there is no run to read
    """


class OtherRun(StoreError):
    """A file that holds another run than the one to be made: another algorithm, other settings or another model."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what, remedy)
        self.what = what

    def __str__(self) -> str:
        return ". ".join(self.args)


class LostFile(StoreError):
    """What lies under the name of a run's file is no longer the file that this run has begun to write."""


class Record(NamedTuple):
    """One entry of a file: plain values and arrays (read-only)."""

    sequence: int
    name: str
    scalars: dict[str, Any]
    arrays: dict[str, Array]
    more: int = 0
    """Rows of the file that it takes besides its own."""


def check_record(record: Record) -> None:
    """A ValueError where a record of a run does not hold what one of its name holds."""
    scalars = record.scalars
    kind = record.name.rpartition(".")[2]
    wanted: dict[str, Callable[[Any], bool]] = {"seconds": is_amount, "round": is_count, "notes": is_texts}
    for name, fits in wanted.items():
        if name in scalars and not fits(scalars[name]):
            raise ValueError(_unfit(f"record {record.sequence}, {record.name!r}", name, scalars[name]))
    if kind == "segment":
        own: dict[str, Callable[[Any], bool]] = {
            "round": is_count, "cost": is_cost, "failures": are_failures,
            **({"steps": is_count, "capped": is_count} if "steps" in scalars else {"size": is_count}),
        }  # fmt: skip
    elif kind == "finished":
        own = {"reason": is_text, "message": is_text, "notes": is_texts, "seconds": is_amount}
    elif kind == "result":
        own = {
            "reason": is_text, "made": is_text, "after": is_text, "notes": is_texts, "settings": is_table,
            "independent": is_flag, "seconds": is_amount,
        }  # fmt: skip
    else:
        own = {}
    for name, fits in own.items():
        if name not in scalars or not fits(scalars[name]):
            raise ValueError(_unfit(f"record {record.sequence}, {record.name!r}", name, scalars.get(name)))


def check_specification(value: Any) -> None:
    """A ValueError where this is not the specification of a run or of a measurement."""
    whole: dict[str, Callable[[Any], bool]] = {
        "algorithm": is_text,
        "arguments": is_table,
        "parts": _is_parts,
        "facts": is_table,
    }
    if not is_table(value):
        raise ValueError(_unfit("the file", "specification", value))
    for name, fits in whole.items():
        if not fits(value.get(name)):
            raise ValueError(_unfit("the specification", name, value.get(name)))
    arguments, facts = value["arguments"], value["facts"]
    wanted: dict[str, Callable[[Any], bool]] = {
        "parameters": lambda one: is_texts(one) and 0 < len(one) == len(set(one)),
        "seed": lambda one: type(one) is int and 0 <= one < 2**63,
        "eps": lambda one: one is None or (is_number(one) and one > 0),
        **dict.fromkeys(COUNTED, lambda one: one is None or (is_count(one) and one > 0)),
    }
    for name, fits in wanted.items():
        if name in arguments and not fits(arguments[name]):
            raise ValueError(_unfit("the specification", name, arguments[name]))
    discrete = facts.get("discrete", [])
    if not isinstance(discrete, list) or not all(map(is_flag, discrete)):
        raise ValueError(_unfit("the specification", "discrete", discrete))
    shapes = facts.get("parameter_shapes", [])
    if not isinstance(shapes, list) or not all(isinstance(one, list) and all(map(is_count, one)) for one in shapes):
        raise ValueError(_unfit("the specification", "parameter_shapes", shapes))
    if len(shapes) != len(arguments.get("parameters", shapes)) and shapes:
        raise ValueError(_unfit("the specification", "parameter_shapes", shapes))
    if "discrete" in facts and len(discrete) != sum(map(math.prod, shapes)):
        raise ValueError(_unfit("the specification", "discrete", discrete))


def check_sessions(value: Any) -> None:
    """A ValueError where this is not the list of a run's sessions."""
    if not isinstance(value, list) or not all(map(is_table, value)):
        raise ValueError(_unfit("the file", "sessions", value))
    wanted: dict[str, Callable[[Any], bool]] = {
        "began": is_text,
        "versions": lambda one: is_table(one) and all(map(is_text, one.values())),
        "limits": lambda one: (
            isinstance(one, list) and len(one) == 2 and all(n is None or (is_count(n) and n > 0) for n in one)
        ),
    }
    for session in value:
        for name, fits in wanted.items():
            if not fits(session.get(name)):
                raise ValueError(_unfit("a session", name, session.get(name)))
        if not is_texts(session.get("forced", [])):
            raise ValueError(_unfit("a session", "forced", session["forced"]))


def _unfit(where: str, name: str, value: Any) -> str:
    text = ascii(value)
    return f"{where}: {name} is {text if len(text) < 80 else text[:77] + '...'}, which no run writes"


def is_text(value: Any) -> bool:
    """Text."""
    return isinstance(value, str)


def is_texts(value: Any) -> bool:
    """A list of texts."""
    return isinstance(value, list) and all(map(is_text, value))


def is_flag(value: Any) -> bool:
    """True or False."""
    return isinstance(value, bool)


def is_table(value: Any) -> bool:
    """A table by name."""
    return isinstance(value, dict)


def is_number(value: Any) -> bool:
    """A number that is neither too large to be one nor NaN."""
    return type(value) in (int, float) and value == value and (isinstance(value, float) or abs(value) < MOST)


def is_amount(value: Any) -> bool:
    """A finite number that is not negative."""
    return is_number(value) and 0 <= value < math.inf


def is_count(value: Any) -> bool:
    """A whole number that is not negative."""
    return type(value) is int and 0 <= value < MOST


def is_cost(value: Any) -> bool:
    """The fields of a Cost."""
    return (
        isinstance(value, list)
        and len(value) == len(Cost._fields)
        and all(map(is_count, value[:-1]))
        and is_amount(value[-1])
    )


def are_failures(value: Any) -> bool:
    """Failures as a segment keeps them."""
    return isinstance(value, list) and len(value) <= FAILURES_KEPT and all(map(_is_failure, value))


def _is_failure(value: Any) -> bool:
    if not is_table(value) or set(value) != set(Failure._fields):
        return False
    theta = value["theta"]
    return (
        is_table(theta)
        and all(map(_is_value, theta.values()))
        and type(value["seed"]) is int
        and all(is_count(value[name]) for name in ("phase", "chain", "step", "pseudo_sample"))
        and is_text(value["message"])
        and is_text(value["traceback"])
    )


def _is_value(value: Any) -> bool:
    """A number, or a list of numbers for a vector."""
    return all(type(one) in (int, float) for one in (value if isinstance(value, list) else [value]))


def _is_parts(value: Any) -> bool:
    return is_table(value) and all(is_table(one) and all(map(is_text, one.values())) for one in value.values())
