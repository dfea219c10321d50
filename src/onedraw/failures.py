"""Failed simulations: what is kept of them, and what a run says of them."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

FAILURES_KEPT = 20
"""Failures that a run describes; the others are only counted."""
ALL_FAILED = 100
"""Simulations that may all fail before a run stops."""


FAULTS = (Exception, SystemExit)
"""What the user's code may raise and a run counts as a failure: `sys.exit` too. Ctrl-C is none."""


def told(error: BaseException) -> str:
    """What was raised, in words, whatever the exception does when it is asked.

    >>> told(ValueError("too large"))
    'ValueError: too large'
    """
    try:
        text = str(error)
    except FAULTS as another:
        text = f"(its text cannot be read: {type(another).__name__})"
    return f"{type(error).__name__}: {text}"


class SimulationError(RuntimeError):
    """A simulation failed and the run could not go on; the message names theta and the stream.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> def simulate(rng, theta):
    ...     if theta < -1:
    ...         raise RuntimeError("the population died out")
    ...     return rng.normal(theta, 1.0)
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), simulate, observed=2.0)
    >>> od.rejection(model, od.uniform(0.5), budget=200, seed=1, on_error="raise")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    onedraw.failures.SimulationError: ...
    """


class NoAnswer(ValueError):
    """What was simulated gives no answer to the question asked; the message says what to change."""


class Failure(NamedTuple):
    """One failed simulation: where it was, and what went wrong.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> def simulate(rng, theta):
    ...     if theta < -1:
    ...         raise RuntimeError("the population died out")
    ...     return rng.normal(theta, 1.0)
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), simulate, observed=2.0)
    >>> post = od.rejection(model, od.uniform(0.5), budget=200, seed=1)
    >>> post.failures[0].message
    'RuntimeError: the population died out'
    >>> post.failures[0].theta["theta"] < -1
    True
    """

    theta: dict[str, Any]
    """The parameters: a number each, or a list of numbers for a vector."""
    seed: int
    phase: int
    chain: int
    """Index of the chain, or of the proposal in rejection."""
    step: int
    pseudo_sample: int
    message: str
    traceback: str

    @property
    def place(self) -> str:
        """The parameters in words."""
        return in_words(self.theta)

    def __str__(self) -> str:
        return f"at {self.place}: {self.message}"


def in_words(theta: Mapping[str, Any]) -> str:
    """Values of parameters in few digits, whole numbers in all of them, those of a vector in brackets.

    >>> in_words({"mu": 1.23456, "beta": [1.0, 2.5], "size": 123456})
    'mu = 1.235, beta = [1, 2.5], size = 123456'
    """

    def text(value: Any) -> str:
        if isinstance(value, list):
            return f"[{', '.join(map(text, value))}]"
        return str(value) if isinstance(value, int) else f"{value:.4g}"

    return ", ".join(f"{name} = {text(value)}" for name, value in theta.items())


def first_failures(*several: Iterable[Failure]) -> tuple[Failure, ...]:
    """The failures that a run describes: the first FAILURES_KEPT of several parts, in their order.

    >>> first_failures([], ())
    ()
    """
    return tuple(failure for some in several for failure in some)[:FAILURES_KEPT]


def refuse_if_all_failed(simulations: int, failed: int, failures: Sequence[Failure], last: bool) -> None:
    """Stop a run in which every simulation so far has failed, with the traceback of the first."""
    if failed == simulations > 0 and (simulations >= ALL_FAILED or last):
        first = failures[0]
        text = f"\nThe first failure's traceback:\n{first.traceback}" if first.traceback else ""
        raise SimulationError(f"all of the first {simulations} simulations failed. The first failed {first}.{text}")


def warn_ignored_rng() -> None:
    """Say that a simulator does not use the generator it is given."""
    warnings.warn(
        "the simulator drew nothing from the rng it was given. A deterministic simulator is fine; one that draws "
        "from numpy.random or another source of its own makes runs that cannot be repeated or resumed",
        stacklevel=4,
    )
