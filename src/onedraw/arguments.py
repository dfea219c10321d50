"""Checks that every public function shares, so that one mistake gives one message everywhere."""

import math
import operator
from typing import Any

import numpy as np

MAX_SEED = 2**63 - 1


def whole_number(name: str, value: Any, meaning: str, least: int = 1) -> int:
    """`value` as an int of at least `least`, or a ValueError that says what the argument is for.

    >>> whole_number("draws", 10, "the number of posterior draws")
    10
    >>> whole_number("draws", 0, "the number of posterior draws")
    Traceback (most recent call last):
    ...
    ValueError: draws must be a whole number of at least 1, got 0: it is the number of posterior draws
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}: it is {meaning}")
    return number


def optional_whole_number(name: str, value: Any, meaning: str) -> int | None:
    """As `whole_number`, with None let through."""
    return None if value is None else whole_number(name, value, meaning)


def positive(name: str, value: Any, meaning: str) -> float:
    """`value` as a finite float above zero.

    >>> positive("eps", -0.1, "the largest distance still accepted")
    Traceback (most recent call last):
    ...
    ValueError: eps must be positive, got -0.1: it is the largest distance still accepted
    """
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError(f"{name} must be positive, got {value!r}: it is {meaning}")
    return number


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
        raise ValueError(f"seed must be a whole number from 0 to {MAX_SEED}, a SeedSequence or None, got {seed!r}")
    return number


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """`value` if it is one of the words allowed."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return str(value)
