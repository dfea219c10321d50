"""Priors: named SciPy distributions, joint priors, and constraints, sampled and evaluated in batches.

Theta travels through the library as an array (n, dim) of floats, one column a parameter in the order of `names`;
columns are contiguous. Discrete parameters hold whole numbers there and become integers when they reach a user.
"""

import inspect
import keyword
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import a_function, names_in
from onedraw.engines.arrays import Array, namespace, special
from onedraw.failures import FAULTS, told
from onedraw.model.layout import numbers, read_only

Draw = Callable[[np.random.Generator, int], Array]
LogDensity = Callable[[Array], Array]

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
TAKEN = ("rng", "self")
"""Names that simulators, which may be methods, have for other arguments."""
PATIENCE = 1_000_000
"""Prior draws that may miss a constraint in a row before sampling gives up."""


class Marginal(NamedTuple):
    """One parameter: `draw(rng, n) -> (n,)` and `log_density((n,)) -> (n,)`."""

    draw: Draw
    log_density: LogDensity
    discrete: bool
    trusted: bool = True
    """Whether finite draws and numbers that are not NaN are certain, as they are for the formulas of this file."""


class Prior:
    """The prior of named parameters.

    Each keyword is a parameter with its frozen SciPy distribution; `where` is a constraint, a function of the
    parameters that it names, as arrays. The prior is then the product of the marginals restricted to where it holds
    (its density is not divided by the share that is left, a constant that no sampler needs).

    >>> from scipy import stats
    >>> prior = Prior(a=stats.norm(0, 1), b=stats.uniform(0, 2), where=lambda a, b: a < b)
    >>> prior.names
    ('a', 'b')
    >>> prior.logpdf(np.array([[0.0, 1.0], [1.5, 1.0]])).round(3)
    array([-1.612,   -inf])
    """

    def __init__(self, /, *, where: Callable[..., Any] | None = None, **marginals: Any) -> None:
        parts = [_marginal(name, distribution) for name, distribution in marginals.items()]

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

        trusted = all(part.trusted for part in parts)
        self._set(tuple(marginals), draw, log_density, [part.discrete for part in parts], where, trusted)

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
                    f"the prior's sample(rng, {n}) returned shape {theta.shape}: expected ({n}, {dim}), one row a draw"
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
        prior._set(tuple(names), draw, log_density, [name in discrete for name in names], where)
        prior.normalised = False
        return prior

    def _set(
        self,
        names: tuple[str, ...],
        draw: Draw,
        log_density: LogDensity,
        discrete: list[bool],
        where: Callable[..., Any] | None,
        trusted: bool = False,
    ) -> None:
        if not names:
            raise ValueError(
                "a prior needs at least one parameter, as in od.Prior(mu=stats.norm(0, 1)): no names given"
            )
        for name in names:
            if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name) or name in TAKEN:
                raise ValueError(
                    f"{name!r} cannot be a parameter's name: names must be Python names other than 'rng' and "
                    "'self', since simulators receive parameters by name"
                )
        names = tuple(map(_as_python_reads, names))
        if len(set(names)) < len(names):
            raise ValueError(f"parameter names must differ, got {list(names)}")
        if where is not None and not callable(where):
            raise ValueError(f"where must be a function of the parameters, got {where!r}")
        self.names = names
        self.dim = len(names)
        self.discrete = np.array(discrete)
        self.discrete.flags.writeable = False
        self._whole = discrete
        self.where = where
        self._where_names = _arguments(where, names)
        self.normalised = True
        """Whether the density, without `where`, is known to integrate to one."""
        self._draw, self._log_density, self._trusted = draw, log_density, trusted
        # A prior that cannot be sampled or evaluated is found out here, before a simulation is spent on it.
        theta = self.sample(np.random.Generator(np.random.SFC64(0)), 64)
        if not trusted:
            self._refuse_own_randomness(theta)
        log_density_there = self.logpdf(theta)
        if np.isneginf(log_density_there).any():
            row = int(np.argmin(log_density_there))
            raise ValueError(
                f"the prior's density is zero at a draw of its own, {self.named(theta[row])}: sample and logpdf "
                "do not belong together"
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
                f"the prior's log density is {log_density[row]} at {self.named(theta[row])}: it must be a number "
                "or -inf"
            )
        return log_density

    def columns(self, theta: Array) -> dict[str, Array]:
        """Theta as named, read-only columns, whole numbers for discrete parameters."""
        return named_columns(self.names, self._whole, theta)

    def rows(self, theta: Array) -> list[list[Any]]:
        """Theta as lists of plain numbers, whole ones for discrete parameters."""
        rows: list[list[Any]] = theta.tolist()
        if any(self._whole):
            rows = [[int(v) if w else v for v, w in zip(row, self._whole, strict=True)] for row in rows]
        return rows

    def named(self, row: Array) -> dict[str, float | int]:
        """One row of theta as a dict of plain numbers."""
        return {
            name: int(value) if whole and math.isfinite(value) else float(value)
            for name, value, whole in zip(self.names, row, self.discrete, strict=True)
        }

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
                f"the prior drew {theta[row, column]} for {self.names[column]!r}: draws must be finite; check the "
                "distribution's parameters"
            )
        if not self._trusted and any(self._whole):
            fractions = self.discrete & (theta != np.rint(theta))
            if fractions.any():
                row, column = np.argwhere(fractions)[0]
                raise ValueError(
                    f"the prior drew {theta[row, column]} for {self.names[column]!r}, which is said to be a whole "
                    "number: round it in sample, or leave it out of discrete="
                )
        return theta

    def __repr__(self) -> str:
        return f"Prior({', '.join(self.names)})"


def _arguments(where: Callable[..., Any] | None, names: tuple[str, ...]) -> tuple[str, ...]:
    """The parameters that a constraint names; all if it does not say."""
    try:
        given = inspect.signature(where).parameters.values() if where is not None else ()
    except (TypeError, ValueError):
        return names
    if any(one.kind is one.VAR_KEYWORD for one in given):
        return names
    unknown = [one.name for one in given if one.name not in names and one.default is one.empty]
    if unknown:
        raise ValueError(
            f"where= takes {unknown[0]!r}, which is not a parameter: there are {', '.join(names)}, and it may take any "
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


def named_columns(names: Sequence[str], whole: Sequence[bool], theta: Array) -> dict[str, Array]:
    """The columns of theta (n, dim) by name, read-only; those that are whole numbers as integers."""
    columns = {}
    for index, name in enumerate(names):
        column = theta[:, index]
        if whole[index]:
            column = column.astype(int)
        if isinstance(column, np.ndarray):
            column.flags.writeable = False
        columns[name] = column
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
    loc: float,
    scale: float,
    draw: Draw,
    log_density: LogDensity,
    low: float = -math.inf,
    high: float = math.inf,
    bounded_density: bool = True,
) -> Marginal:
    """loc + scale·Z with Z's draws and log density given on [low, high]."""
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

    shifted: Draw = draw if standard else lambda rng, n: draw(rng, n) * scale + loc
    return Marginal(shifted, log_density_of, discrete=False, trusted=bounded_density)


def _norm(loc: float, scale: float) -> Marginal:
    return _location_scale(loc, scale, lambda rng, n: rng.standard_normal(n), lambda z: z * z * -0.5 - LOG_SQRT_2PI)


def _uniform(loc: float, scale: float) -> Marginal:
    return _location_scale(loc, scale, lambda rng, n: rng.random(n), lambda z: namespace(z).zeros_like(z), 0.0, 1.0)


def _expon(loc: float, scale: float) -> Marginal:
    return _location_scale(loc, scale, lambda rng, n: rng.standard_exponential(n), operator.neg, 0.0)


def _gamma(a: float, loc: float, scale: float) -> Marginal:
    constant = math.lgamma(a)
    return _location_scale(
        loc,
        scale,
        lambda rng, n: rng.standard_gamma(a, n),
        lambda z: special(z).xlogy(a - 1.0, z) - z - constant,
        0.0,
        bounded_density=a >= 1.0,
    )


def _beta(a: float, b: float, loc: float, scale: float) -> Marginal:
    from scipy.special import betaln

    constant = float(betaln(a, b))
    return _location_scale(
        loc,
        scale,
        lambda rng, n: rng.beta(a, b, n),
        lambda z: special(z).xlogy(a - 1.0, z) + special(z).xlog1py(b - 1.0, -z) - constant,
        0.0,
        1.0,
        bounded_density=min(a, b) >= 1.0,
    )


def _lognorm(s: float, loc: float, scale: float) -> Marginal:
    def log_density(z: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            xp = namespace(z)
            log_z = xp.log(z)
            return xp.where(z > 0, -0.5 * (log_z / s) ** 2 - log_z - LOG_SQRT_2PI - math.log(s), -np.inf)

    def draw(rng: np.random.Generator, n: int) -> Array:
        normal = rng.standard_normal(n)
        return namespace(normal).exp(s * normal)

    return _location_scale(loc, scale, draw, log_density, 0.0)


def _t(df: float, loc: float, scale: float) -> Marginal:
    from scipy.special import gammaln

    constant = float(gammaln((df + 1) / 2) - gammaln(df / 2) - 0.5 * math.log(df * math.pi))
    return _location_scale(
        loc,
        scale,
        lambda rng, n: rng.standard_t(df, n),
        lambda z: constant - (df + 1) / 2 * namespace(z).log1p(z * z / df),
    )


def _randint(low: float, high: float, loc: float) -> Marginal:
    log_mass = -math.log(high - low)

    def log_density(x: Array) -> Array:
        k = x - loc
        xp = namespace(k)
        return xp.where((k >= low) & (k < high) & (k == xp.floor(k)), log_mass, -np.inf)

    return Marginal(lambda rng, n: rng.integers(int(low), int(high), n) + loc, log_density, discrete=True)


def _poisson(mu: float, loc: float) -> Marginal:
    def log_density(x: Array) -> Array:
        xp, functions = namespace(x), special(x)
        possible = (x >= loc) & (x == xp.floor(x))
        k = xp.where(possible, x - loc, 0.0)
        return xp.where(possible, functions.xlogy(k, mu) - functions.gammaln(k + 1.0) - mu, -np.inf)

    return Marginal(lambda rng, n: rng.poisson(mu, n) + loc, log_density, discrete=True)


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
