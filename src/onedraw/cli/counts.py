"""Counts on the command line: 10000, 10,000, 10_000 and 1e4 are one number."""

import re
from decimal import Decimal
from typing import Any

import click

PLAIN = re.compile(r"\d+|\d{1,3}(,\d{3})+|\d+(_\d+)+")
"""Digits, in groups or not."""
SCIENTIFIC = re.compile(r"\d+(\.\d*)?[eE]\+?\d{1,2}")


def number_of(text: str) -> int | None:
    """The whole number that a text stands for; None if it is none.

    >>> [number_of(text) for text in ("10000", "10,000", "10_000", "1e4", "2.5e3")]
    [10000, 10000, 10000, 10000, 2500]
    >>> [number_of(text) for text in ("1,5", "1.5", "2.55e1", "-3", "many")]
    [None, None, None, None, None]
    """
    text = text.strip()
    if PLAIN.fullmatch(text):
        return int(text.replace(",", "").replace("_", ""))
    if SCIENTIFIC.fullmatch(text):
        value = Decimal(text)
        return int(value) if value == value.to_integral_value() else None
    return None


class WholeNumber(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A whole number of at least `least`."""

    name = "count"

    def __init__(self, least: int = 1) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number, or click's error."""
        number = value if isinstance(value, int) else number_of(str(value))
        if number is None or number < self.least:
            self.fail(
                f"{value!r} is not a whole number of at least {self.least}: write it as 10000, 10,000 or 1e4",
                param,
                ctx,
            )
        return number
