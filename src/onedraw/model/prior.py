"""Priors: named SciPy distributions, joint priors, and constraints, sampled and evaluated in batches.

Theta travels through the library as an array (n, dim) of floats, a column for each number in the order of `labels`; a
vector parameter has as many columns as entries. Columns are contiguous. Discrete parameters hold whole numbers there
and become integers when they reach a user.
"""

import inspect
import keyword
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import a_function, names_in, shown
from onedraw.engines.arrays import Array, Formula, namespace, special
from onedraw.failures import FAULTS, in_words, told
from onedraw.model.hierarchy import Conditional, Vector, entries, parents_of, returned
from onedraw.model.layout import Layout, numbers, read_only

Draw = Callable[[np.random.Generator, int], Array]
LogDensity = Callable[[Array], Array]

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
TAKEN = ("rng", "self")
"""Names that simulators, which may be methods, have for other arguments."""
PROBES = 61
"""Prior draws at which functions of a hierarchical prior are tried."""
COLUMNS_AT_ONCE = 8
"""Columns of a vector that are copied together."""
PATIENCE = 1_000_000
"""Prior draws that may miss a constraint in a row before sampling gives up."""


class Marginal(NamedTuple):
    """One parameter: `draw(rng, n) -> (n,)` and `log_density((n,)) -> (n,)`."""

    draw: Draw
    log_density: LogDensity
    discrete: bool
    trusted: bool = True
    """Whether finite draws and numbers that are not NaN are certain, as they are for the formulas of this file."""
    formula: Formula | None = None
    """For compiled loops, with the numbers (loc, scale, log of the scale, shape, second shape, constant)."""
    of_number: Callable[[float], float] | None = None
    """The log density of a plain number, if it takes arithmetic alone: the same to the last bit as in an array."""


class Prior:
    """The prior of named parameters.

    Each keyword is a parameter with its distribution:

    - a frozen SciPy distribution, for a number;
    - `od.vector(distribution, size)`, for a vector;
    - a function of earlier parameters that returns one of these, for a hierarchical prior. It names the parameters that
      it depends on, and is called for n draws at once: a number arrives as an array (n, 1), a vector as (n, size).

    `where` is a constraint, a function of the parameters that it names, as arrays (n,), vectors as (n, size). The prior
    is then the product of these distributions restricted to where it holds. (Its density is not divided by the
    probability of that region, a constant that no sampler needs.)

    >>> from scipy import stats
    >>> prior = Prior(a=stats.norm(0, 1), b=stats.uniform(0, 2), where=lambda a, b: a < b)
    >>> prior.names
    ('a', 'b')
    >>> prior.logpdf(np.array([[0.0, 1.0], [1.5, 1.0]])).round(3)
    array([-1.612,   -inf])
    >>> import onedraw as od
    >>> Prior(mu=stats.norm(0, 5), tau=stats.halfnorm(0, 5), group=lambda mu, tau: od.vector(stats.norm(mu, tau), 8))
    Prior(mu, tau, group[8])
    """

    def __init__(self, /, *unnamed: Any, where: Callable[..., Any] | None = None, **marginals: Any) -> None:
        if unnamed:
            raise ValueError(
                "each distribution needs the name of its parameter, as in od.Prior(theta=stats.norm(0, 1)), got "
                f"{shown(unnamed[0])} without a name"
            )
        names = _checked_names(tuple(marginals))
        given = dict(zip(names, marginals.values(), strict=True))
        made = _ancestral(given) if any(map(_is_function, given.values())) else _independent(given)
        self._set(names, *made, where)

    @classmethod
    def joint(
        cls,
        names: Sequence[str],
        sample: Draw,
        logpdf: LogDensity,
        *,
        discrete: Sequence[str] = (),
        where: Callable[..., Any] | None = None,
    ) -> "Prior":
        """A prior given by two functions on batches: `sample(rng, n) -> (n, dim)`, `logpdf((n, dim)) -> (n,)`.

        `discrete` names the parameters that are whole numbers.

        >>> flat = Prior.joint(["x", "y"], sample=lambda rng, n: rng.random((n, 2)),
        ...                    logpdf=lambda t: np.where(((t >= 0) & (t <= 1)).all(axis=1), 0.0, -np.inf))
        >>> flat.logpdf(np.array([[0.5, 2.0]]))
        array([-inf])
        """
        names, discrete = names_in("names", names), names_in("discrete", discrete)
        unknown = [name for name in discrete if name not in names]
        if unknown:
            raise ValueError(f"discrete names {unknown[0]!r}, which is not a parameter; there are {list(names)}")
        a_function("sample", sample, "sample(rng, n) -> (n, dim)")
        a_function("logpdf", logpdf, "logpdf(theta) -> (n,), with theta (n, dim)")
        dim = len(names)

        def draw(rng: np.random.Generator, n: int) -> Array:
            theta = _returned(f"the prior's sample(rng, {n})", sample, rng, n)
            if theta.shape != (n, dim):
                raise ValueError(
                    f"the prior's sample(rng, {n}) returned shape {theta.shape}: expected ({n}, {dim}), a row for "
                    "each draw and a column for each of names"
                )
            return np.asfortranarray(theta)

        def log_density(theta: Array) -> Array:
            values = _returned("the prior's logpdf", logpdf, read_only(theta))
            if values.shape != (len(theta),):
                raise ValueError(
                    f"the prior's logpdf returned shape {values.shape} for {len(theta)} rows: expected ({len(theta)},)"
                )
            return values

        prior = cls.__new__(cls)
        formulas = Formulas(draw, log_density, lambda theta, column: log_density(theta), _not_known, False)
        shapes = tuple(() for _ in names)
        prior._set(_checked_names(tuple(names)), shapes, [name in discrete for name in names], formulas, where)
        prior.normalised = False
        return prior

    def _set(
        self,
        names: tuple[str, ...],
        shapes: tuple[tuple[int, ...], ...],
        discrete: list[bool],
        formulas: "Formulas",
        where: Callable[..., Any] | None,
    ) -> None:
        if where is not None and not callable(where):
            raise ValueError(f"where must be a function of the parameters, got {where!r}")
        self.names = names
        """The parameters."""
        self.layout = Layout(names, shapes)
        """Their shapes: () for a number."""
        self.labels = tuple(self.layout.titles(""))
        """A name for each column: `beta[0]`, `beta[1]`, ... for a vector."""
        self.dim = self.layout.size
        """The number of columns."""
        self.discrete = np.array(discrete)
        self.discrete.flags.writeable = False
        self._whole = discrete
        self.where = where
        self._where_names = () if where is None else parameters_of("where=", where, names)
        self.normalised = True
        """Whether the density, without `where`, is known to integrate to one."""
        self._draw, self._log_density, self.own_log_density, self.range_of, self._trusted, self._columns, *_ = formulas
        self.logpdf_of_number = formulas.of_number if where is None else None
        """The log density of the only parameter as a function of a plain number; None if it takes arrays."""
        self.draw_number = formulas.draw_number if where is None else None
        """A draw of the only parameter as a plain number, the same as in an array; None if it comes in one."""
        # A prior that cannot be sampled or evaluated is found out here, before a simulation is spent on it.
        theta = self.sample(np.random.Generator(np.random.SFC64(0)), 64)
        if not self._trusted:
            self._refuse_own_randomness(theta)
        log_density_there = self.logpdf(theta)
        if np.isneginf(log_density_there).any():
            row = int(np.argmin(log_density_there))
            raise ValueError(
                f"the prior's density is zero at a draw of its own, {in_words(self.named(theta[row]))}: sample and "
                "logpdf do not belong together"
            )

    def _refuse_own_randomness(self, theta: Array) -> None:
        """A ValueError if draws do not come from the generator that is given: runs could not be repeated."""
        again, other = (self.sample(np.random.Generator(np.random.SFC64(seed)), len(theta)) for seed in (0, 1))
        if not np.array_equal(again, theta):
            raise ValueError(
                "the prior draws other parameters from a generator in the same state: sample(rng, n) must take all its "
                "random numbers from the rng that it is given, or runs cannot be repeated"
            )
        if np.array_equal(other, theta) and (theta != theta[0]).any():
            raise ValueError(
                "the prior draws the same parameters whatever generator it is given: sample(rng, n) must take its "
                "random numbers from that rng"
            )

    @property
    def on_device(self) -> bool:
        """Whether its formulas run on JAX: those of this file, if densities are bounded."""
        return self._trusted

    @property
    def formula(self) -> Formula | None:
        """For compiled loops: the formulas of its columns, if they are independent of each other and all have one."""
        if self.where is not None or not self._trusted or not self._columns:
            return None
        return Formula("independent", parts=self._columns)

    def sample(self, rng: np.random.Generator, n: int) -> Array:
        """n draws, (n, dim)."""
        if self.where is None:
            return self._checked(self._draw(rng, n))
        if hasattr(rng, "until"):
            drawn: Array = rng.until(lambda stream: self._draw(stream, n), self._allowed)
            return drawn
        kept: list[Array] = []
        missing, tried = n, 0
        while missing > 0:
            theta = self._checked(self._draw(rng, max(missing, 64)))
            theta = theta[self._allowed(theta)][:missing]
            kept.append(theta)
            missing -= len(theta)
            tried = 0 if len(theta) else tried + max(missing, 64)
            if tried > PATIENCE:
                raise ValueError(
                    f"where= was false at {tried:,} prior draws in a row: give a prior that lies in the region, by "
                    "narrower marginals or od.Prior.joint"
                )
        return np.asfortranarray(np.concatenate(kept)) if kept else np.empty((0, self.dim), order="F")

    def logpdf(self, theta: Array) -> Array:
        """Log density of each row of theta (n, dim) -> (n,); -inf outside the support."""
        log_density = self._log_density(theta)
        if self.where is not None:
            log_density = namespace(theta).where(self._allowed(theta), log_density, -np.inf)
        if not self._trusted and not (log_density < np.inf).all():
            row = int(np.argmax(~(log_density < np.inf)))
            raise ValueError(
                f"the prior's log density is {log_density[row]} at {in_words(self.named(theta[row]))}: it must be a "
                "number or -inf"
            )
        return log_density

    def columns(self, theta: Array) -> dict[str, Array]:
        """Theta (..., dim) by parameter, as read-only arrays with its shape behind, integers if it is discrete."""
        return columns_by_name(self.layout, self._whole, theta)

    def rows(self, theta: Array) -> list[dict[str, Any]]:
        """Rows of theta as a simulator gets them: plain numbers by parameter, read-only arrays for vectors."""
        if any(self.layout.shapes):
            columns = {
                name: values if values.ndim > 1 else values.tolist() for name, values in self.columns(theta).items()
            }
            return [{name: values[i] for name, values in columns.items()} for i in range(len(theta))]
        if self.dim == 1 and not self._whole[0]:
            name = self.names[0]
            return [{name: value} for value in theta[:, 0].tolist()]
        rows: list[list[Any]] = theta.tolist()
        if any(self._whole):
            rows = [[int(v) if w else v for v, w in zip(row, self._whole, strict=True)] for row in rows]
        return [dict(zip(self.names, row, strict=True)) for row in rows]

    def named(self, row: Array) -> dict[str, Any]:
        """One row of theta as a dict of plain numbers, and lists of them for vectors."""
        plain = [int(v) if w and math.isfinite(v) else float(v) for v, w in zip(row, self._whole, strict=True)]
        parts = zip(self.names, self.layout.shapes, self.layout.slices(), strict=True)
        return {name: plain[part] if shape else plain[part.start] for name, shape, part in parts}

    def flat(self, given: Mapping[str, Any]) -> Array:
        """One value of each parameter by name as a row (dim,)."""
        return self.layout.flatten(given)

    def _allowed(self, theta: Array) -> Array:
        assert self.where is not None
        try:
            columns = self.columns(theta)
            allowed = namespace(theta).asarray(self.where(**{name: columns[name] for name in self._where_names}))
        except FAULTS as error:
            if namespace(theta) is not np:
                # A device says itself what is not code for it.
                raise
            raise ValueError(
                f"where= failed on arrays of parameters ({told(error)}): it takes them by name, and is written with "
                "&, | and ~ instead of and, or, not"
            ) from error
        if allowed.dtype != bool or allowed.shape != (len(theta),):
            raise ValueError(
                f"where= returned {allowed.dtype} of shape {allowed.shape} for {len(theta)} rows: it must compare "
                "arrays and give one truth value a row, as in lambda a, b: a < b"
            )
        return allowed

    def _checked(self, theta: Array) -> Array:
        if not self._trusted and not np.isfinite(theta).all():
            row, column = np.argwhere(~np.isfinite(theta))[0]
            raise ValueError(
                f"the prior drew {theta[row, column]} for {self.labels[column]!r}: draws must be finite; check the "
                "distribution's parameters"
            )
        if not self._trusted and any(self._whole):
            fractions = self.discrete & (theta != np.rint(theta))
            if fractions.any():
                row, column = np.argwhere(fractions)[0]
                raise ValueError(
                    f"the prior drew {theta[row, column]} for {self.labels[column]!r}, which is said to be a whole "
                    "number: round it in sample, or leave it out of discrete="
                )
        return theta

    def __repr__(self) -> str:
        parts = zip(self.names, self.layout.shapes, strict=True)
        return f"Prior({', '.join(name + ''.join(f'[{size}]' for size in shape) for name, shape in parts)})"


class Formulas(NamedTuple):
    """How a prior is drawn and evaluated."""

    draw: Draw
    log_density: LogDensity
    own_log_density: Callable[[Array, int], Array]
    """(theta, column) -> (n,): the factor of the density that decides in which range a column lies."""
    range_of: Callable[[Array, int], "Ends | None"]
    """(theta, column) -> the lower and upper ends (n,) of this range at each row; None if only the density tells."""
    trusted: bool
    columns: tuple[Formula, ...] = ()
    """For compiled loops, if all columns have a formula there."""
    of_number: Callable[[float], float] | None = None
    """Of a prior of one number: see `Marginal`."""
    draw_number: Callable[[np.random.Generator], float] | None = None
    """A draw of such a prior as a plain number."""


Ends = tuple[Array, Array]


def _not_known(theta: Array, column: int) -> Ends | None:
    return None


Made = tuple[tuple[tuple[int, ...], ...], list[bool], Formulas]
"""Shapes of the parameters, which columns are whole numbers, and the formulas."""


def _checked_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of parameters as Python reads them."""
    if not names:
        raise ValueError("a prior needs at least one parameter, as in od.Prior(mu=stats.norm(0, 1)): no names given")
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name) or name in TAKEN:
            raise ValueError(
                f"{name!r} cannot be a parameter's name: names must be Python names other than 'rng' and "
                "'self', since simulators receive parameters by name"
            )
    names = tuple(map(_as_python_reads, names))
    if len(set(names)) < len(names):
        raise ValueError(f"parameter names must differ, got {list(names)}")
    return names


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, Vector) and not hasattr(value, "rvs")


def _marginals(name: str, given: Any) -> list[Marginal]:
    """The marginals of a parameter's columns."""
    if not isinstance(given, Vector):
        return [_marginal(name, given)]
    each = entries(name, given)
    if each[0] is each[-1]:
        return [_marginal(name, each[0])] * len(each)
    return [_marginal(f"{name}[{i}]", one) for i, one in enumerate(each)]


def _independent(given: Mapping[str, Any]) -> Made:
    """A prior whose numbers are independent of each other."""
    parts: list[Marginal] = []
    shapes: list[tuple[int, ...]] = []
    for name, one in given.items():
        some = _marginals(name, one)
        shapes.append((len(some),) if isinstance(one, Vector) else ())
        parts += some

    def draw(rng: np.random.Generator, n: int) -> Array:
        if len(parts) == 1:
            return parts[0].draw(rng, n).astype(float, copy=False)[:, None]
        first = parts[0].draw(rng, n)
        if not isinstance(first, np.ndarray):
            return namespace(first).stack([first, *(part.draw(rng, n) for part in parts[1:])], axis=1)
        theta = np.empty((n, len(parts)), order="F")
        theta[:, 0] = first
        for column in range(1, len(parts)):
            theta[:, column] = parts[column].draw(rng, n)
        return theta

    def log_density(theta: Array) -> Array:
        total = parts[0].log_density(theta[:, 0])
        for column in range(1, len(parts)):
            total = total + parts[column].log_density(theta[:, column])
        return total

    def own(theta: Array, column: int) -> Array:
        return parts[column].log_density(theta[:, column])

    columns = tuple(part.formula for part in parts if part.formula is not None)
    trusted = all(part.trusted for part in parts)
    columns = columns if len(columns) == len(parts) else ()
    of_number = parts[0].of_number if len(parts) == 1 else None
    # NumPy's generators return a number if they are asked for None of them.
    first: Any = parts[0].draw
    draw_number = None if of_number is None else lambda rng: first(rng, None)
    formulas = Formulas(draw, log_density, own, _not_known, trusted, columns, of_number, draw_number)
    return tuple(shapes), [part.discrete for part in parts], formulas


class PriorFactor(NamedTuple):
    """One parameter of a hierarchical prior: its columns, and its distribution given the parameters before it."""

    columns: slice
    draw: Callable[[np.random.Generator, Array], Array]
    """(rng, theta) -> (n, width), from the columns before it."""
    log_density: LogDensity
    """theta -> (n,)"""
    range_of: Callable[[Array, int], Ends | None] = _not_known


def _ancestral(given: Mapping[str, Any]) -> Made:
    """A prior whose parameters are drawn in their order, each given those before it."""
    names, factors = tuple(given), list[PriorFactor]()
    shapes: tuple[tuple[int, ...], ...] = ()
    whole: list[bool] = []
    # Draws at which the form of what functions return is found out; as many as no vector has entries.
    rng, theta = np.random.Generator(np.random.SFC64(0)), np.empty((PROBES, 0))
    for place, (name, one) in enumerate(given.items()):
        before = Layout(names[:place], shapes)
        if _is_function(one):
            parents = parents_of(name, one, names[:place], names[place:])
            given_to = partial(_parents, before, list(whole), parents)
            form, _ = returned(name, one, PROBES, given_to(theta))
            factor = _conditional(Conditional(name, one, tuple(parents), form), given_to, before.size)
            shape, discrete = (() if form.size is None else (form.size,)), [form.discrete] * (form.size or 1)
        else:
            marginals = _marginals(name, one)
            factor = _unconditional(marginals, before.size)
            shape, discrete = (len(marginals),) if isinstance(one, Vector) else (), [m.discrete for m in marginals]
        theta = np.concatenate([theta, factor.draw(rng, theta)], axis=1)
        shapes, whole, factors = (*shapes, shape), whole + discrete, [*factors, factor]
    return shapes, whole, _chained(factors, len(whole))


def _chained(factors: list[PriorFactor], dim: int) -> Formulas:
    """Draws one factor after the other, and the sum of their log densities."""

    def draw(rng: np.random.Generator, n: int) -> Array:
        theta = np.empty((n, dim), order="F")
        # A user's function need not know what to make of no rows.
        for factor in factors if n else ():
            theta[:, factor.columns] = factor.draw(rng, theta)
        return theta

    def log_density(theta: Array) -> Array:
        total = np.zeros(len(theta))
        for factor in factors:
            # Where a parent has no density, its children have no distribution.
            inside = np.flatnonzero(total > -np.inf)
            if inside.size == 0:
                break
            if inside.size == len(theta):
                total = total + factor.log_density(theta)
            else:
                total[inside] += factor.log_density(theta[inside])
        return total

    def of(column: int) -> PriorFactor:
        return next(one for one in factors if column < one.columns.stop)

    def own(theta: Array, column: int) -> Array:
        return of(column).log_density(theta)

    return Formulas(draw, log_density, own, lambda theta, column: of(column).range_of(theta, column), False)


def _unconditional(marginals: list[Marginal], first: int) -> PriorFactor:
    def draw(rng: np.random.Generator, theta: Array) -> Array:
        return np.column_stack([one.draw(rng, len(theta)) for one in marginals])

    def log_density(theta: Array) -> Array:
        parts = (one.log_density(theta[:, first + i]) for i, one in enumerate(marginals))
        return sum(parts, np.zeros(len(theta)))

    return PriorFactor(slice(first, first + len(marginals)), draw, log_density)


def _conditional(one: Conditional, parents: Callable[[Array], dict[str, Array]], first: int) -> PriorFactor:
    columns = slice(first, first + one.width)

    def draw(rng: np.random.Generator, theta: Array) -> Array:
        return one.draw(rng, len(theta), parents(theta))

    def log_density(theta: Array) -> Array:
        return one.log_density(theta[:, columns], parents(theta))

    def range_of(theta: Array, column: int) -> Ends | None:
        return one.range_of(column - first, len(theta), parents(theta))

    return PriorFactor(columns, draw, log_density, range_of)


def _parents(before: Layout, whole: list[bool], names: list[str], theta: Array) -> dict[str, Array]:
    """Parents by name with one row per draw: (n, 1) for a number, (n, size) for a vector."""
    columns = columns_by_name(before, whole, theta)
    return {name: columns[name].reshape(len(theta), -1) for name in names}


def parameters_of(word: str, function: Callable[..., Any], names: tuple[str, ...]) -> tuple[str, ...]:
    """The parameters that a user's function takes by name; all if it does not say.

    >>> parameters_of("where=", lambda mu: mu > 0, ("mu", "sigma"))
    ('mu',)
    """
    try:
        given = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return names
    if any(one.kind is one.VAR_KEYWORD for one in given):
        return names
    unknown = [one.name for one in given if one.name not in names and one.default is one.empty]
    if unknown:
        raise ValueError(
            f"{word} takes {unknown[0]!r}, which is not a parameter: there are {', '.join(names)}, and it may take any "
            "of them by name"
        )
    return tuple(name for name in names if name in {one.name for one in given})


def _as_python_reads(name: str) -> str:
    """A name as Python has it in code: the micro sign is the Greek letter, for one.

    >>> _as_python_reads("\u00b5") == "\u03bc"
    True
    """
    if name.isascii():
        return name
    import unicodedata

    return unicodedata.normalize("NFKC", name)


def _in_rows(columns: Array) -> Array:
    """A copy (..., size) in C order, some columns at a time: each lies elsewhere in memory."""
    rows = np.empty(columns.shape, columns.dtype)
    for first in range(0, columns.shape[-1], COLUMNS_AT_ONCE):
        some = slice(first, first + COLUMNS_AT_ONCE)
        rows[..., some] = columns[..., some]
    return rows


def columns_by_name(layout: Layout, whole: Sequence[bool], theta: Array) -> dict[str, Array]:
    """Theta (..., columns) by name, read-only arrays (..., *shape); those that are whole numbers as integers."""
    columns = {}
    for name, shape, part in zip(layout.keys or (), layout.shapes, layout.slices(), strict=True):
        column = theta[..., part] if shape else theta[..., part.start]
        if whole[part.start]:
            column = column.astype(int)
        if isinstance(column, np.ndarray):
            if shape:
                # In one order, whatever that of theta: what is summed along its axes depends on it.
                column = _in_rows(column)
            column.flags.writeable = False
        columns[str(name)] = column
    return columns


def _returned(what: str, function: Callable[..., Any], *given: Any) -> Array:
    """What a user's function returns, as numbers; a ValueError if it raises or gives none."""
    try:
        return numbers(function(*given))
    except FAULTS as error:
        raise ValueError(f"{what} failed ({told(error)})") from error


def _marginal(name: str, distribution: Any) -> Marginal:
    """A frozen SciPy distribution as a Marginal, by direct formulas if the family is common.

    SciPy's frozen methods check and broadcast their arguments for about 30 µs per call, which in a chain is more than
    a cheap simulation costs.
    """
    family = getattr(getattr(distribution, "dist", None), "name", None)
    if family in FAMILIES:
        shapes = [word.strip() for word in (distribution.dist.shapes or "").split(",") if word.strip()]
        discrete = family in DISCRETE
        slots = [*shapes, "loc"] if discrete else [*shapes, "loc", "scale"]
        given = dict(zip(slots, distribution.args, strict=False)) | dict(distribution.kwds)
        values = {slot: given.get(slot, 1.0 if slot == "scale" else 0.0) for slot in slots}
        for slot, value in values.items():
            if np.ndim(value) != 0 or not np.isfinite(value) or (slot == "scale" and value <= 0):
                raise ValueError(
                    f"prior {name!r}: {family} has {slot} = {value!r}; it must be one finite number"
                    + (" above zero" if slot == "scale" else "")
                    + (f"; od.vector({family}(...)) is a vector" if np.ndim(value) else "")
                )
        if np.isnan(distribution.ppf(0.5)):
            raise ValueError(f"prior {name!r}: {family} does not exist for {values}")
        return FAMILIES[family](**{slot: float(value) for slot, value in values.items()})
    if hasattr(distribution, "rvs") and (hasattr(distribution, "logpdf") or hasattr(distribution, "logpmf")):
        probe = np.shape(distribution.rvs(size=3, random_state=np.random.default_rng(0)))
        if probe != (3,):
            raise ValueError(
                f"prior {name!r} draws arrays of shape {probe[1:]}, but a parameter is one number: give the "
                "parameters of a multivariate prior names with od.Prior.joint"
            )
        if hasattr(distribution, "dist"):
            discrete = hasattr(distribution.dist, "pmf")
            log_density = distribution.logpmf if discrete else distribution.logpdf
            return Marginal(lambda rng, n: distribution.rvs(size=n, random_state=rng), log_density, discrete, False)
    raise ValueError(
        f"prior {name!r} is {distribution!r}: expected a frozen SciPy distribution such as stats.norm(0, 1), or use "
        "od.Prior.joint(names, sample=, logpdf=) for any other"
    )


def _location_scale(
    family: str,
    loc: float,
    scale: float,
    draw: Draw,
    log_density: LogDensity,
    low: float = -math.inf,
    high: float = math.inf,
    bounded_density: bool = True,
    shapes: tuple[float, float] = (0.0, 0.0),
    constant: float = 0.0,
    arithmetic: bool = False,
) -> Marginal:
    """loc + scale·Z with Z's draws and log density given on [low, high].

    Family, shapes and constant name the formula of this density in compiled loops. `arithmetic` is whether the density
    takes no more than that, so that it is that of numbers, too.
    """
    log_scale = math.log(scale)
    bounded = low > -math.inf or high < math.inf
    standard = loc == 0.0 and scale == 1.0

    def log_density_of(x: Array) -> Array:
        z = x if standard else (x - loc) / scale
        if not bounded:
            return log_density(z) if standard else log_density(z) - log_scale
        xp = namespace(z)
        inside = (z >= low) & (z <= high)
        return xp.where(inside, log_density(xp.where(inside, z, 0.5)) - log_scale, -np.inf)

    def of_number(x: float) -> float:
        z = x if standard else (x - loc) / scale
        if bounded and not low <= z <= high:
            return -math.inf
        found: Any = log_density(z)  # type: ignore[arg-type]
        return float(found if standard and not bounded else found - log_scale)

    shifted: Draw = draw if standard else lambda rng, n: draw(rng, n) * scale + loc
    formula = Formula(family, np.array([loc, scale, log_scale, *shapes, constant]))
    return Marginal(
        shifted, log_density_of, discrete=False, trusted=bounded_density, formula=formula,
        of_number=of_number if arithmetic else None,
    )  # fmt: skip


def _norm(loc: float, scale: float) -> Marginal:
    return _location_scale(
        "norm", loc, scale, lambda rng, n: rng.standard_normal(n), lambda z: z * z * -0.5 - LOG_SQRT_2PI,
        arithmetic=True,
    )  # fmt: skip


def _uniform(loc: float, scale: float) -> Marginal:
    return _location_scale(
        "uniform", loc, scale, lambda rng, n: rng.random(n), lambda z: z * 0.0, 0.0, 1.0, arithmetic=True
    )


def _expon(loc: float, scale: float) -> Marginal:
    return _location_scale(
        "expon", loc, scale, lambda rng, n: rng.standard_exponential(n), operator.neg, 0.0, arithmetic=True
    )


def _gamma(a: float, loc: float, scale: float) -> Marginal:
    constant = math.lgamma(a)
    return _location_scale(
        "gamma",
        loc,
        scale,
        lambda rng, n: rng.standard_gamma(a, n),
        lambda z: special(z).xlogy(a - 1.0, z) - z - constant,
        0.0,
        bounded_density=a >= 1.0,
        shapes=(a, 0.0),
        constant=constant,
    )


def _beta(a: float, b: float, loc: float, scale: float) -> Marginal:
    from scipy.special import betaln

    constant = float(betaln(a, b))
    return _location_scale(
        "beta",
        loc,
        scale,
        lambda rng, n: rng.beta(a, b, n),
        lambda z: special(z).xlogy(a - 1.0, z) + special(z).xlog1py(b - 1.0, -z) - constant,
        0.0,
        1.0,
        bounded_density=min(a, b) >= 1.0,
        shapes=(a, b),
        constant=constant,
    )


def _lognorm(s: float, loc: float, scale: float) -> Marginal:
    def log_density(z: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            xp = namespace(z)
            log_z = xp.log(z)
            return xp.where(z > 0, -0.5 * (log_z / s) ** 2 - log_z - LOG_SQRT_2PI - math.log(s), -np.inf)

    def draw(rng: np.random.Generator, n: int) -> Array:
        if isinstance(rng, np.random.Generator):
            # Compiled loops have the same exponential, to the last bit.
            return rng.lognormal(0.0, s, n)
        normal = rng.standard_normal(n)
        return namespace(normal).exp(s * normal)

    return _location_scale("lognorm", loc, scale, draw, log_density, 0.0, shapes=(s, 0.0), constant=math.log(s))


def _t(df: float, loc: float, scale: float) -> Marginal:
    from scipy.special import gammaln

    constant = float(gammaln((df + 1) / 2) - gammaln(df / 2) - 0.5 * math.log(df * math.pi))
    return _location_scale(
        "t",
        loc,
        scale,
        lambda rng, n: rng.standard_t(df, n),
        lambda z: constant - (df + 1) / 2 * namespace(z).log1p(z * z / df),
        shapes=(df, 0.0),
        constant=constant,
    )


def _randint(low: float, high: float, loc: float) -> Marginal:
    log_mass = -math.log(high - low)

    def log_density(x: Array) -> Array:
        k = x - loc
        xp = namespace(k)
        return xp.where((k >= low) & (k < high) & (k == xp.floor(k)), log_mass, -np.inf)

    formula = Formula("randint", np.array([loc, 1.0, 0.0, low, high, log_mass]))
    return Marginal(
        lambda rng, n: rng.integers(int(low), int(high), n) + loc, log_density, discrete=True, formula=formula
    )


def _poisson(mu: float, loc: float) -> Marginal:
    def log_density(x: Array) -> Array:
        xp, functions = namespace(x), special(x)
        possible = (x >= loc) & (x == xp.floor(x))
        k = xp.where(possible, x - loc, 0.0)
        return xp.where(possible, functions.xlogy(k, mu) - functions.gammaln(k + 1.0) - mu, -np.inf)

    formula = Formula("poisson", np.array([loc, 1.0, 0.0, mu, 0.0, 0.0]))
    return Marginal(lambda rng, n: rng.poisson(mu, n) + loc, log_density, discrete=True, formula=formula)


FAMILIES: dict[str, Callable[..., Marginal]] = {
    "norm": _norm,
    "uniform": _uniform,
    "expon": _expon,
    "gamma": _gamma,
    "beta": _beta,
    "lognorm": _lognorm,
    "t": _t,
    "randint": _randint,
    "poisson": _poisson,
}
DISCRETE = {"randint", "poisson"}
