"""The shape of one data set or summary, and its two forms: the user's value and a flat row of floats."""

import itertools
import math
import operator
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from onedraw.engines.arrays import Array, namespace

FLOAT = np.dtype(np.float64)


class WrongForm(ValueError):
    """Data or summaries that do not have the form of the observed ones."""


class Layout(NamedTuple):
    """Arrays by key (or one array without a key) laid end to end in a row.

    >>> layout = Layout.of({"x": np.zeros(2), "n": 3})
    >>> layout.labels("y")
    ["y['x'][0]", "y['x'][1]", "y['n']"]
    >>> layout.flatten({"n": 5, "x": [1, 2]})
    array([1., 2., 5.])
    """

    keys: tuple[str | int, ...] | None
    shapes: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(value: Any) -> "Layout":
        """The layout of a user's value; WrongForm if it is not made of numbers."""
        if isinstance(value, Mapping):
            return Layout(tuple(map(key_of, value)), tuple(numbers(part).shape for part in value.values()))
        return Layout(None, (numbers(value).shape,))

    @property
    def size(self) -> int:
        """Length of the flat row."""
        return _slices(self.shapes)[-1].stop if self.shapes else 0

    def slices(self) -> list[slice]:
        """The columns of the flat row that each array takes.

        >>> Layout(("a", "b"), ((), (3,))).slices()
        [slice(0, 1, None), slice(1, 4, None)]
        """
        return list(_slices(self.shapes))

    def labels(self, word: str = "") -> list[str]:
        """A name for each column of the flat row, for error messages."""
        return self._labels([word] if self.keys is None else [f"{word}[{key!r}]" for key in self.keys])

    def titles(self, word: str) -> list[str]:
        """A name for each column of the flat row, for tables and plots: the user's own if there are keys.

        >>> Layout.of({"mean": 1.0, "bins": np.zeros(2)}).titles("summary")
        ['mean', 'bins[0]', 'bins[1]']
        """
        return self._labels([word] if self.keys is None else [str(key) for key in self.keys])

    def _labels(self, names: list[str]) -> list[str]:
        return [
            name + "".join(f"[{i}]" for i in index)
            for name, shape in zip(names, self.shapes, strict=True)
            for index in np.ndindex(*shape)
        ]

    def flatten(self, value: Any) -> Array:
        """One value as a row (size,); WrongForm that names both shapes if they differ."""
        if self.keys is None:
            array = numbers(value)
            if array.shape != self.shapes[0] and not (array.size == 1 and self.shapes[0] in ((), (1,))):
                raise WrongForm(f"has shape {array.shape}, but the observed data give {self.shapes[0]}")
            return array.reshape(-1)
        return self.flatten_batch({key: numbers(part)[None] for key, part in self._parts(value)}, 1)[0]

    def flatten_batch(self, values: Any, n: int) -> Array:
        """n values stacked along a first axis as rows (n, size)."""
        if self.keys is None:
            return _stacked(values, n, self.shapes[0], "")
        columns = [
            _stacked(part, n, shape, f"[{key!r}]")
            for (key, part), shape in zip(self._parts(values), self.shapes, strict=True)
        ]
        return np.concatenate(columns, axis=1)

    def restore(self, rows: Array) -> Any:
        """The user's form of rows (..., size): arrays of shape (..., *shape), by key if there are keys."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        parts = [
            part.reshape(rows.shape[:-1] + shape)
            for part, shape in zip(namespace(rows).split(rows, ends, axis=-1), self.shapes, strict=True)
        ]
        return parts[0] if self.keys is None else dict(zip(self.keys, parts, strict=True))

    def _parts(self, value: Any) -> list[tuple[str | int, Any]]:
        assert self.keys is not None
        if not isinstance(value, Mapping) or set(value) != set(self.keys):
            got = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
            raise WrongForm(f"has keys {got}, but the observed data have {sorted(map(str, self.keys))}")
        return [(key, value[key]) for key in self.keys]


@cache
def _slices(shapes: tuple[tuple[int, ...], ...]) -> tuple[slice, ...]:
    ends = itertools.accumulate(map(math.prod, shapes), initial=0)
    return tuple(slice(*both) for both in itertools.pairwise(ends))


def numbers(value: Any) -> Array:
    """`value` as an array of floats; WrongForm if that is impossible."""
    if type(value) is np.ndarray and value.dtype is FLOAT:
        return value
    if isinstance(value, np.ma.MaskedArray):
        refuse_masked(value)
    if value is None:
        raise WrongForm("is None: a return statement may be missing")
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind not in "fiubO":
        raise WrongForm(f"is not an array of numbers (its type is {dtype})")
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise WrongForm(f"is not an array of numbers ({error})") from error


def read_only(array: Array) -> Array:
    """A view through which a user's function cannot write to the array."""
    view = array.view()
    view.flags.writeable = False
    return view


def refuse_masked(value: Any) -> None:
    """WrongForm if values are masked: an array of floats has no place for that."""
    hidden = int(np.sum(np.ma.getmaskarray(value))) if isinstance(value, np.ma.MaskedArray) else 0
    if hidden:
        raise WrongForm(
            f"is a masked array with {hidden} masked of {np.size(value)} values, which would be read as data: give a "
            "summary of the values that are there, or fill them"
        )


def key_of(key: Any) -> str | int:
    """A key of a data set: text or a whole number."""
    if isinstance(key, str):
        return str(key)
    if isinstance(key, bool) or not hasattr(key, "__index__"):
        raise ValueError(f"has the key {key!r} of type {type(key).__name__}: keys must be text or whole numbers")
    return operator.index(key)


def _stacked(values: Any, n: int, shape: tuple[int, ...], key: str) -> Array:
    array = numbers(values)
    if array.shape == (n, *shape) or (array.size == n and array.shape in ((n,), (n, 1)) and shape in ((), (1,))):
        return array.reshape(n, -1)
    raise WrongForm(f"{key} has shape {array.shape} for {n} rows: expected {(n, *shape)}, one row for each")
