"""Values as text for programs and people: JSON without NaN, and numbers with six digits."""

import json
import math
from collections.abc import Mapping
from typing import Any

CONTROL = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for code in (*range(32), *range(127, 160), 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in "\n\t"
}
"""Characters that a terminal obeys instead of showing them, and those that turn the direction of text."""


def printable(text: Any) -> str:
    r"""Text that is safe in a terminal: control characters are shown as escapes, lines and tabs stay.

    >>> print(printable("a\x1b[2Jb"))
    a\x1b[2Jb
    """
    return str(text).translate(CONTROL)


def plain(value: Any) -> Any:
    """A value as JSON has it: records as objects, NaN and infinity as null, no arrays and no functions.

    >>> plain({"a": (1, math.inf), 2: None})
    {'a': [1, None], '2': None}
    """
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    elif hasattr(value, "__dataclass_fields__"):
        parts = {name: getattr(value, name) for name in value.__dataclass_fields__}
        value = {name: part for name, part in parts.items() if not callable(part)}
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def as_json(value: Any, indent: int | None = 2) -> str:
    """JSON text of anything that `plain` takes."""
    return json.dumps(plain(value), indent=indent, allow_nan=False)


def stated(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings that fit in a line each, as text; records such as those of a calibration are told elsewhere in words.

    >>> stated({"eps": 0.123456789, "scale": [1.0, 2.5], "engine": None, "misfit": {"p": 0.2}, "path": [(1, 2)]})
    {'eps': '0.123457', 'scale': '1, 2.5'}
    """

    def text(value: Any) -> str:
        return f"{value:.6g}" if isinstance(value, float) else str(value)

    found = {}
    for name, value in settings.items():
        several = list(value) if isinstance(value, list | tuple) else [value]
        if value is not None and not any(isinstance(one, dict | list | tuple) for one in several):
            found[str(name)] = ", ".join(map(text, several))
    return found


def six_digits(value: Any) -> Any:
    """The same value with its floats rounded to six significant digits.

    >>> six_digits({"eps": [0.123456789, 1]})
    {'eps': [0.123457, 1]}
    """
    if isinstance(value, dict):
        return {str(name): six_digits(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [six_digits(part) for part in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
