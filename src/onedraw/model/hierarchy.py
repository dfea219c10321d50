"""Vector parameters, and parameters whose distribution is a function of earlier ones."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import optional_whole_number, shown
from onedraw.engines.arrays import Array
from onedraw.failures import FAULTS, told

FORM = (
    "it takes earlier parameters by name, as arrays of one row per draw, (n, 1) for a number and (n, size) for a "
    "vector, and returns a frozen SciPy distribution or od.vector(...)"
)


class Vector(NamedTuple):
    """The distribution of a vector parameter; made by `vector`."""

    distribution: Any
    size: int | None


def vector(distribution: Any, size: int | None = None) -> Vector:
    """The prior of a parameter that is a vector with independent entries.

    Parameters
    ----------
    distribution
        A frozen SciPy distribution: one for all entries, or one with an array of arguments, one for each entry.
    size
        The number of entries. It may be left out if the distribution has an array of arguments.

    A simulator receives the parameter as an array of this length, a batched one as (n, size). Draws have the shape
    (chains, draws, size), and single entries are called `beta[0]`, `beta[1]`, ... in summaries, tables and plots.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> prior = od.Prior(beta=od.vector(stats.norm(0, 1), 8), rate=od.vector(stats.gamma([1.0, 2.0, 3.0])))
    >>> prior
    Prior(beta[8], rate[3])
    >>> prior.dim, prior.labels[7:10]
    (11, ('beta[7]', 'rate[0]', 'rate[1]'))
    """
    if isinstance(distribution, Vector) or not is_distribution(distribution):
        raise ValueError(
            f"od.vector takes a frozen SciPy distribution, as in od.vector(stats.norm(0, 1), 8), got "
            f"{shown(distribution)}"
        )
    return Vector(distribution, optional_whole_number("size", size, "the number of entries of a vector"))


def is_distribution(value: Any) -> bool:
    """Whether a value is a frozen distribution, or has the methods of one."""
    own = hasattr(value, "rvs") and (hasattr(value, "logpdf") or hasattr(value, "logpmf"))
    # stats.norm without arguments has them, too, and can be called.
    return own and not callable(value)


def arguments_shape(distribution: Any) -> tuple[int, ...]:
    """The shape to which a distribution's arguments broadcast: () if all of them are numbers."""
    given = (*getattr(distribution, "args", ()), *getattr(distribution, "kwds", {}).values())
    return np.broadcast_shapes(*(np.shape(one) for one in given))


def entries(name: str, given: Vector) -> list[Any]:
    """The distributions of a vector's entries, one for each."""
    try:
        shape = arguments_shape(given.distribution)
    except ValueError as error:
        raise ValueError(f"prior {name!r}: the arguments of its distribution do not fit together ({error})") from None
    if not hasattr(given.distribution, "args"):
        raise ValueError(
            f"prior {name!r} is od.vector of {type(given.distribution).__name__}: its entries are independent, so give "
            "the distribution of one entry, as stats.norm(0, 1); for a multivariate one use od.Prior.joint"
        )
    if len(shape) > 1:
        raise ValueError(
            f"prior {name!r}: the arguments of its distribution have shape {shape}: a vector has one axis, so give "
            "arrays of one axis, or several vectors"
        )
    size = _size(name, given.size, shape)
    if not shape:
        return [given.distribution] * size
    frozen = given.distribution
    args = [np.broadcast_to(one, size).tolist() for one in frozen.args]
    kwds = {key: np.broadcast_to(one, size).tolist() for key, one in frozen.kwds.items()}
    return [frozen.dist(*(a[i] for a in args), **{key: v[i] for key, v in kwds.items()}) for i in range(size)]


def _size(name: str, size: int | None, shape: tuple[int, ...]) -> int:
    """The number of entries, from what was asked for and from the last axis of the arguments."""
    found = shape[-1] if shape else 1
    if size is None:
        if not shape or found == 0:
            raise ValueError(f"prior {name!r}: how long is the vector? Give its size, as in od.vector(distribution, 8)")
        return found
    if found not in (1, size):
        raise ValueError(
            f"prior {name!r}: a vector of {size} entries has a distribution with {found} values of its arguments: give "
            "one for each entry, or one for all"
        )
    return size


def parents_of(name: str, function: Callable[..., Any], before: tuple[str, ...], after: tuple[str, ...]) -> list[str]:
    """The earlier parameters that the prior of `name` is a function of."""
    try:
        taken = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise ValueError(
            f"prior {name!r} is {shown(function)}, whose arguments are not known: write a lambda"
        ) from None
    for one in taken:
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
            raise ValueError(f"prior {name!r} takes {one}: name the earlier parameters that it depends on")
        if one.name == name or (one.name in after and one.default is one.empty):
            which = "which is the parameter itself" if one.name == name else "which is defined after it"
            raise ValueError(f"prior {name!r} is a function of {one.name!r}, {which}: put the parameters in order")
        if one.name not in before and one.default is one.empty:
            there = f"before it there are {', '.join(before)}" if before else "no parameter is defined before it"
            raise ValueError(f"prior {name!r} is a function of {one.name!r}, which is not a parameter: {there}")
    return [one.name for one in taken if one.name in before]


class DistributionForm(NamedTuple):
    """What a function that gives a distribution must return every time."""

    size: int | None
    """None for a number."""
    discrete: bool


@dataclass(frozen=True, eq=False)
class Conditional:
    """A parameter whose distribution is a function of earlier ones, which it receives by name as (n, size)."""

    name: str
    function: Callable[..., Any]
    parents: tuple[str, ...]
    form: DistributionForm

    @property
    def width(self) -> int:
        """The number of columns."""
        return self.form.size or 1

    def draw(self, rng: np.random.Generator, n: int, columns: Mapping[str, Array]) -> Array:
        """Draws (n, width), one for each row of the parents."""
        distribution = self._distribution(n, columns)
        try:
            drawn = np.asarray(distribution.rvs(size=(n, self.width), random_state=rng), dtype=float)
        except FAULTS as error:
            raise ValueError(
                f"prior {self.name!r} cannot be drawn{self._where(distribution, n, columns)} ({told(error)}): its "
                "distribution must exist at all values of the parameters that it depends on"
            ) from error
        if drawn.shape != (n, self.width):
            raise ValueError(f"prior {self.name!r} drew shape {drawn.shape}: expected {(n, self.width)}; {FORM}")
        return drawn

    def log_density(self, values: Array, columns: Mapping[str, Array]) -> Array:
        """Log density (n,) of values (n, width) given the parents; NaN if there is no distribution."""
        n = len(values)
        distribution = self._distribution(n, columns)
        density = distribution.logpmf if self.form.discrete else distribution.logpdf
        with np.errstate(divide="ignore"):
            each = np.broadcast_to(density(values), values.shape)
        # Entry by entry: how NumPy sums along an axis depends on the order in memory.
        return sum(each.T, np.zeros(n))

    def range_of(self, entry: int, n: int, columns: Mapping[str, Array]) -> tuple[Array, Array]:
        """The lower and upper ends (n,) of an entry at each row of the parents; infinite if they are not known."""
        distribution = self._distribution(n, columns)
        low, high = distribution.support() if hasattr(distribution, "support") else (-np.inf, np.inf)
        ends = (np.broadcast_to(np.asarray(one, dtype=float), (n, self.width))[:, entry] for one in (low, high))
        return next(ends), next(ends)

    def _distribution(self, n: int, columns: Mapping[str, Array]) -> Any:
        form, distribution = returned(self.name, self.function, n, {one: columns[one] for one in self.parents})
        if form != self.form:
            raise ValueError(
                f"prior {self.name!r} returned {_in_words(form)} and before that {_in_words(self.form)}: the form must "
                "not depend on the values of other parameters"
            )
        return distribution

    def _where(self, distribution: Any, n: int, columns: Mapping[str, Array]) -> str:
        """The first row of the parents at which there is no distribution, in words."""
        if not self.parents or not hasattr(distribution, "ppf"):
            return ""
        with np.errstate(all="ignore"):
            bad = np.isnan(np.broadcast_to(distribution.ppf(0.5), (n, self.width))).any(axis=1)
        row = int(np.argmax(bad))
        there = ", ".join(f"{one} = {np.squeeze(columns[one][row]).tolist()}" for one in self.parents)
        return f" at {there}" if bad.any() else ""


def returned(
    name: str, function: Callable[..., Any], n: int, columns: Mapping[str, Array]
) -> tuple[DistributionForm, Any]:
    """The form and the distribution that a function gives at n rows of its parents."""
    try:
        value = function(**columns)
    except FAULTS as error:
        there = f"arrays of {', '.join(columns)}" if columns else "no arguments"
        raise ValueError(f"prior {name!r} failed at {there} ({told(error)}): {FORM}") from error
    given = value if isinstance(value, Vector) else Vector(value, None)
    if not is_distribution(given.distribution):
        raise ValueError(f"prior {name!r} returned {shown(value)}: {FORM}")
    try:
        shape = arguments_shape(given.distribution)
    except ValueError as error:
        raise ValueError(
            f"prior {name!r}: the arguments of its distribution do not fit together ({error}): {FORM}"
        ) from None
    # One value of the arguments is one for all entries here, since numbers come as (n, 1).
    own = shape if shape[-1:] > (1,) else ()
    size = _size(name, given.size, own) if isinstance(value, Vector) else None
    wanted = (n, size or 1)
    if len(shape) > 2 or any(one not in (1, two) for one, two in zip(shape[::-1], wanted[::-1], strict=False)):
        remedy = "write od.vector(...) for a vector" if size is None else "keep the axis of rows"
        raise ValueError(
            f"prior {name!r}: the arguments of its distribution have shape {shape} for {n} rows, and {wanted} is "
            f"expected: {remedy}; {FORM}"
        )
    distribution = given.distribution
    return DistributionForm(size, hasattr(getattr(distribution, "dist", distribution), "logpmf")), distribution


def _in_words(form: DistributionForm) -> str:
    kind = "whole numbers" if form.discrete else "numbers"
    return f"one of {kind}" if form.size is None else f"a vector of {form.size} {kind}"
