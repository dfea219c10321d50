"""The one array type that signatures name, and what lets one piece of array code run on NumPy and on JAX.

Shapes are given in the docstrings.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


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
