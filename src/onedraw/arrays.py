"""The one array type that signatures name; shapes are given in the docstrings."""

from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
