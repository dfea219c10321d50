"""Checks that every public function shares, so that one mistake gives one message everywhere."""

import math
import operator
import os
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

Kind = TypeVar("Kind")
MAX_SEED = 2**63 - 1
MOST = 2**63 - 1
"""The largest count: what a file and an array's index can hold."""
MOST_AT_ONCE = 2**31 - 1
"""The most chains, particles or pseudo-samples, which are held in memory side by side."""
QUOTES = "'\""
LONGEST = 1e9
"""Seconds, some 30 years: operating systems do not wait longer."""


def whole_number(name: str, value: Any, meaning: str, least: int = 1, most: int = MOST) -> int:
    """`value` as an int from `least` to `most`, or a ValueError that says what the argument is for.

    >>> whole_number("draws", 10, "the number of posterior draws")
    10
    >>> whole_number("draws", 0, "the number of posterior draws")
    Traceback (most recent call last):
    ...
    ValueError: draws must be a whole number of at least 1, got 0: it is the number of posterior draws
    >>> whole_number("draws", 1e4, "the number of posterior draws")
    Traceback (most recent call last):
    ...
    ValueError: draws must be a whole number of at least 1, got 10000.0 (write 10_000): it is the number of posterior \
draws
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least:
        # 1e4 is a float in Python: the digits that were meant.
        meant = isinstance(value, float) and value.is_integer() and value >= least
        digits = f" (write {int(value):_})" if meant else ""
        raise ValueError(
            f"{name} must be a whole number of at least {least}, got {shown(value)}{digits}: it is {meaning}"
        )
    if number > most:
        raise ValueError(f"{name} must be at most {most:,}, got {shown(value)}: it is {meaning}")
    return number


def optional_whole_number(name: str, value: Any, meaning: str, most: int = MOST) -> int | None:
    """As `whole_number`, with None let through."""
    return None if value is None else whole_number(name, value, meaning, most=most)


def checked_pseudo_samples(value: Any) -> int:
    """M, the `pseudo_samples` of a call."""
    meaning = "the number M of pseudo-samples at one theta"
    return whole_number("pseudo_samples", value, meaning, most=MOST_AT_ONCE)


def positive(name: str, value: Any, meaning: str, most: float = math.inf) -> float:
    """`value` as a finite float above zero, at most `most`; text is not a number.

    >>> positive("eps", -0.1, "the largest distance still accepted")
    Traceback (most recent call last):
    ...
    ValueError: eps must be positive, got -0.1: it is the largest distance still accepted
    """
    number = number_or_nan(value)
    if not 0 < number < math.inf:
        raise ValueError(f"{name} must be positive, got {shown(value)}: it is {meaning}")
    if number > most:
        raise ValueError(f"{name} must be at most {most:g}, got {shown(value)}: it is {meaning}")
    return number


def share(name: str, value: Any, meaning: str) -> float:
    """`value` as a float above zero and below one.

    >>> share("least_acceptance", 1e9, "the acceptance rate at which the run ends")
    Traceback (most recent call last):
    ...
    ValueError: least_acceptance must lie between 0 and 1, got 1000000000.0: it is the acceptance rate at which the \
run ends
    """
    number = number_or_nan(value)
    if not 0 < number < 1:
        raise ValueError(f"{name} must lie between 0 and 1, got {shown(value)}: it is {meaning}")
    return number


def true_or_false(name: str, value: Any) -> bool:
    """`value` as a bool; NumPy's are taken too."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, got {shown(value)}")
    return bool(value)


def a_function(name: str, value: Any, form: str) -> Any:
    """`value` if it can be called; `form` says how it will be.

    >>> a_function("logpdf", 3, "logpdf(theta)")
    Traceback (most recent call last):
    ...
    ValueError: logpdf must be a function, called as logpdf(theta), got 3
    """
    if not callable(value):
        raise ValueError(f"{name} must be a function, called as {form}, got {shown(value)}")
    return value


def names_in(name: str, value: Any) -> list[str]:
    """Several names in a list or another collection; a single text is none.

    >>> names_in("discrete", "k")
    Traceback (most recent call last):
    ...
    ValueError: discrete must be a list of parameters' names, as in ['a', 'b'], got 'k'
    """
    several = isinstance(value, list | tuple | Set | dict) or np.ndim(value) == 1
    if not several or not all(isinstance(one, str) for one in value):
        raise ValueError(f"{name} must be a list of parameters' names, as in ['a', 'b'], got {shown(value)}")
    return [str(one) for one in value]


def file_name(name: str, value: Any) -> Path:
    """The name of a file as a path.

    >>> file_name("path", 3)
    Traceback (most recent call last):
    ...
    ValueError: path must be the name of a file, got 3
    """
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise ValueError(f"{name} must be the name of a file, got {shown(value)}")
    return Path(value)


def entry(known: Mapping[str, Kind], name: Any, word: str) -> Kind:
    """What is known under a name; a KeyError that lists the names if there is no such one.

    >>> entry({"mu": 1.0, "sigma": 2.0}, "simga", "parameter")
    Traceback (most recent call last):
    ...
    KeyError: "there is no parameter 'simga': there are mu, sigma"
    """
    if name not in known:
        raise KeyError(f"there is no {word} {shown(name)}: there are {', '.join(known)}")
    return known[name]


def shown(value: Any) -> str:
    """A value in an error message: its repr, cut where it is long.

    >>> shown(10**30), shown("x" * 500)[-20:]
    ('1000000000000000000000000000000', "xxxxxxxxxxxxxxxx'...")
    """
    try:
        text = repr(value)
    except Exception as error:
        # Digits beyond Python's limit on conversions, or a repr that fails.
        text = f"a {type(value).__name__} ({type(error).__name__} when shown)"
    return text if len(text) <= 200 else f"{text[:160]}{text[0] if text[0] in QUOTES else ''}..."


def number_or_nan(value: Any) -> float:
    """One number as a float, NaN if it is none: text, truth values, arrays of several."""
    if isinstance(value, bool | np.bool_ | str | bytes | bytearray) or np.ndim(value) != 0:
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def numbers(value: Any, truth_values: bool = False) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One number or an array of them as floats; TypeError or ValueError for text, and for truth values unless allowed.

    >>> numbers([1, 2.5])
    array([1. , 2.5])
    >>> numbers(["1", "2"])
    Traceback (most recent call last):
    ...
    TypeError: text is not a number
    """
    given = np.asarray(value)
    kinds = {type(one) for one in given.ravel()} if given.dtype.kind == "O" else {given.dtype.type}
    if isinstance(value, bytearray) or any(issubclass(kind, str | bytes | bytearray) for kind in kinds):
        raise TypeError("text is not a number")
    if not truth_values and any(issubclass(kind, bool | np.bool_) for kind in kinds):
        raise TypeError("True and False are not numbers")
    try:
        return np.array(value, dtype=float)
    except OverflowError as error:
        raise ValueError(str(error)) from None


def seed_or_fresh(seed: Any) -> int:
    """The user's seed, checked; or a fresh one from the operating system, to be recorded with the run.

    >>> seed_or_fresh(7), seed_or_fresh(np.random.SeedSequence(7)) == seed_or_fresh(np.random.SeedSequence(7))
    (7, True)
    >>> seed_or_fresh(True)
    Traceback (most recent call last):
    ...
    ValueError: seed must be a whole number from 0 to 9223372036854775807, a SeedSequence or None, got True
    """
    if seed is None:
        import secrets

        return secrets.randbelow(2**32)
    if isinstance(seed, np.random.SeedSequence):
        high, low = seed.generate_state(2, np.uint32).tolist()
        return (high << 32 | low) & MAX_SEED
    if isinstance(seed, np.random.Generator | np.random.BitGenerator | np.random.RandomState):
        raise ValueError(
            f"seed is a {type(seed).__name__}, whose state changes with every draw, so it does not name a run that can "
            "be repeated or resumed: give a whole number or a numpy.random.SeedSequence"
        )
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if isinstance(seed, bool) or not 0 <= number <= MAX_SEED:
        raise ValueError(f"seed must be a whole number from 0 to {MAX_SEED}, a SeedSequence or None, got {shown(seed)}")
    return number


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """`value` if it is one of the words allowed."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {shown(value)}")
    return str(value)
