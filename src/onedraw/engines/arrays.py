"""The one array type that signatures name, what lets the same code run on NumPy and on JAX, and what classes declare of
themselves for compiled programs.

Shapes are given in the docstrings.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
NO_DISTANCES = np.empty((0, 0))
"""Stands for distances that are not kept."""


class DeviceParts(NamedTuple):
    """What a class declares of itself as `device_parts`, so that its objects can be given to compiled programs.

    Attributes that are named in neither tuple do not exist on the device.
    """

    numbers: tuple[str, ...] = ()
    """Attributes that may change from call to call: numbers, arrays, or objects that declare parts of their own."""
    fixed: tuple[str, ...] = ()
    """Attributes that are part of the program, which is compiled again if they change."""


class Formula(NamedTuple):
    """What a class declares as `formula`, if compiled loops can do what its objects do."""

    name: str
    """The name of the formula in the loops, such as "euclidean" or "random_walk"."""
    array: Array | None = None
    """Its numbers: what a distance has learnt (k, s), the root of a walk's covariance, the constants of a marginal."""
    parts: tuple["Formula", ...] = ()
    """The formulas that it is made of."""


def declared(thing: Any) -> Formula | None:
    """The formula that the class of an object declares itself: a subclass may compute something else."""
    return thing.formula if "formula" in vars(type(thing)) else None


def namespace(array: Any) -> Any:
    """The module that works on an array: `numpy`, or `jax.numpy`.

    >>> namespace(np.zeros(2)).__name__
    'numpy'
    """
    return array.__array_namespace__()


def special(array: Any) -> Any:
    """The special functions that work on an array: `scipy.special`, or JAX's."""
    if isinstance(array, np.ndarray):
        import scipy.special

        return scipy.special
    import jax.scipy.special

    return jax.scipy.special
