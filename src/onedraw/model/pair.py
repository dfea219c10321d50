"""A simulation in two parts, a cheap one that always runs and an expensive one that runs with a known probability.

`stages` is one simulation that may be stopped half-way; `multifidelity` is a cheap approximate model beside the
expensive one. Which parts of a simulation are run is decided here; how estimates are computed from them is in
`estimators.pairs`.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import a_function, number_or_nan, shown, true_or_false, whole_number
from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.children import Limited
from onedraw.engines.numba import Compiled
from onedraw.engines.streams import Rng
from onedraw.failures import FAULTS, told
from onedraw.model.external import Command
from onedraw.model.layout import Layout, numbers
from onedraw.model.prior import Prior
from onedraw.model.simulator import Batched, JaxSimulator, Recipe, Simulated, Staged, simulate_rows

SECOND = 64
"""Added to the phase that names the streams of a first part, it names those of the second."""
SIGNAL, FAULTY = Layout(None, ((2,),)), 2
"""A signal and whether it can be used: 0 if so, 1 if it is not finite, FAULTY if the user's function has failed."""
PILOT_SHARE, LEAST_PILOT, MOST_PILOT = 20, 100, 1000
"""The pilot's part of a budget, so that a useless first part costs little; fewer simulations teach nothing."""
PILOT_WITHOUT_BUDGET = 400


class ContinuationRule(NamedTuple):
    """A continuation probability that is constant between edges of the signal."""

    edges: Array
    """(k,), increasing."""
    alpha: Array
    """(k + 1,): below the first edge, between edges, from the last edge on."""

    def __call__(self, signal: Array, **_: Any) -> Array:
        return self.alpha[np.searchsorted(self.edges, signal, side="right")]


ALWAYS = ContinuationRule(np.empty(0), np.ones(1))
"""The rule that leaves nothing out."""


@dataclass(frozen=True)
class WholeSimulation:
    """Both parts of a simulation in stages, one after the other."""

    first: Callable[..., Any]
    rest: Callable[..., Any]

    def __call__(self, rng: np.random.Generator, **parameters: Any) -> Any:
        return self.rest(rng, self.first(rng, **parameters), **parameters)


@dataclass(frozen=True, eq=False)
class Pair:
    """A simulator in two parts; made by `stages` and `multifidelity`."""

    first: Any
    """The part that always runs: the first stage, or the cheap model."""
    second: Any
    """The part that may be left out: the rest, or the expensive model."""
    signed: bool
    """Whether the first part gives data too, so that estimates may be negative."""
    signal: Callable[..., Any] | None
    continuation: Any
    """A probability, a function, a ContinuationRule, or None if it is to be learnt."""
    price: tuple[float, float] | None
    floor: float
    pilot: int | None
    """Simulations from which the probability is learnt; None if that follows from the budget."""
    common: bool = False

    @property
    def learns(self) -> bool:
        """Whether the continuation probability is still to be learnt."""
        return self.continuation is None

    @property
    def expensive_alone(self) -> bool:
        """Whether the expensive model always runs beside the cheap one, which then tells nothing and is left out."""
        rule = self.continuation
        if not self.signed or self.learns:
            return False
        return bool((rule.alpha == 1).all()) if isinstance(rule, ContinuationRule) else not callable(rule) and rule == 1

    @property
    def whole(self) -> Any:
        """The expensive simulator, all of it."""
        if self.signed:
            return self.second
        if isinstance(self.first, Batched):
            return Batched(WholeSimulation(self.first.function, self.second.function))
        return WholeSimulation(self.first, self.second)

    def __call__(self, rng: np.random.Generator, **parameters: Any) -> Any:
        return self.whole(rng, **parameters)

    @property
    def worst(self) -> float:
        """What a simulation costs at most, in the unit of the budget."""
        if self.price is None:
            return 1.0
        return self.price[1] if self.expensive_alone else sum(self.price)

    def units(self, cost: Cost) -> float:
        """What was spent, in the unit of the budget."""
        if self.price is None:
            return cost.simulations
        return self.price[1] * cost.expensive + (0.0 if self.expensive_alone else self.price[0] * cost.simulations)

    def for_budget(self, budget: float | None) -> "Pair":
        """With the size of its pilot: the user's, or a share of the budget.

        If that is too small to learn from, no simulation is left out.
        """
        if self.pilot is not None:
            return self
        if budget is None:
            return replace(self, pilot=PILOT_WITHOUT_BUDGET)
        share = int(budget / PILOT_SHARE // self.worst)
        if share < LEAST_PILOT and self.learns:
            return replace(self, pilot=0, continuation=ALWAYS)
        return replace(self, pilot=min(share, MOST_PILOT))

    def limited(self, timeout: float) -> "Pair":
        """With each part given up after so many seconds."""
        parts = (one.function if isinstance(one, Limited) else one for one in (self.first, self.second))
        first, second = (
            replace(one, timeout=timeout) if isinstance(one, Command) else Limited(one, timeout) for one in parts
        )
        return replace(self, first=first, second=second)

    def with_rule(self, rule: ContinuationRule) -> "Pair":
        """With a continuation probability that was learnt."""
        return replace(self, continuation=rule)

    def probability(self, signal: Array, parameters: dict[str, Array]) -> Array:
        """The continuation probabilities (n,) for signals (n,), never below the floor."""
        if not callable(self.continuation):
            return np.full(len(signal), max(float(self.continuation), self.floor))
        try:
            alpha = np.broadcast_to(numbers(self.continuation(signal, **parameters)), signal.shape)
        except FAULTS as error:
            names = ", ".join(("signal", *parameters))
            raise ValueError(
                f"the continuation probability failed for {len(signal)} signals ({told(error)}): it is called as "
                f"continuation({names}) with arrays of that length"
            ) from error
        wrong = ~((alpha >= 0) & (alpha <= 1))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(
                f"the continuation probability is {alpha[row]} at signal = {signal[row]:.6g}: it must lie between 0 "
                "and 1"
            )
        return np.maximum(alpha, self.floor)


class FirstPart(NamedTuple):
    """First parts at n rows of theta, and how to run the second parts of some of them."""

    found: Simulated
    """The cheap model's summaries (n, 1, s), zeros if it is not needed; or the signals (n, 1, 1) of the first stage:
    inf if they are not finite, and NaN if the stage has failed."""
    second: Callable[[Array], Simulated]
    """Summaries (k, 1, s) of the expensive simulations at rows (k,) of these."""
    later: Rng
    """The streams of the second parts."""


def first_part(
    pair: Pair, recipe: Recipe, rng: Rng, theta: Array, index: Array | None, chunk: int, on_error: str
) -> FirstPart:
    """Run the first parts; the other arguments are those of `simulate_rows`."""
    places = np.arange(len(theta)) if index is None else index
    later = rng if pair.common else Rng(rng.seed, rng.phase + SECOND, rng.first, rng.step)
    states = States(pair, rng)
    made = recipe._replace(simulator=pair.first)
    expensive = recipe._replace(simulator=pair.second)
    if not pair.signed:
        made = recipe._replace(simulator=states.first(), summary=None, layout=SIGNAL, raw=None)

    def second(some: Array) -> Simulated:
        simulator = expensive if pair.signed else expensive._replace(simulator=states.rest(some))
        return simulate_rows(simulator, later, theta[some], places[some], 1, 0, chunk, on_error)

    if pair.expensive_alone:
        return FirstPart(Simulated(np.zeros((len(theta), 1, 1)), Cost(len(theta)), ignored_rng=True), second, later)
    found = simulate_rows(made, rng, theta, index, 1, 0, chunk, on_error)
    if not pair.signed:
        found = found._replace(rows=usable(found.rows, states))
    return FirstPart(found, second, later)


def usable(rows: Array, states: "States") -> Array:
    """Signals (n, 1, 1) with which a simulation can be stopped, from SIGNAL rows; a ValueError if one has failed."""
    values, state = rows[:, :, :1], rows[:, :, 1:]
    if (state == FAULTY).any():
        raise ValueError(f"signal(state) must give one number: {states.fault or 'it failed in a process of its own'}")
    return np.where(state == 1, np.inf, values)


class States:
    """What first stages have left behind, for the stages after them."""

    def __init__(self, pair: Pair, rng: Rng) -> None:
        self.pair, self.rng = pair, rng
        self.kept: Any = {}
        self.fault = ""

    def signals(self, state: Any, shape: tuple[int, ...]) -> Array:
        """The signals (n, 2) of states, or that of one (2,), in the form of SIGNAL.

        What the user's function raises is no failed simulation: that would leave out what belongs to the posterior.
        """
        try:
            found = numbers((self.pair.signal or (lambda state: 0.0))(state))
            if found.shape not in ((), shape):
                raise ValueError(f"the signal has shape {found.shape}")
            value = np.broadcast_to(found, shape)
        except FAULTS as error:
            self.fault = told(error)
            return np.full((*shape, 2), float(FAULTY))
        finite = np.isfinite(value)
        return np.stack([np.where(finite, value, 0.0), ~finite], axis=-1)

    def first(self) -> Any:
        """A simulator that gives signals and keeps the states."""
        run = self.pair.first

        def one(rng: np.random.Generator, **parameters: Any) -> Any:
            place = _number(rng)
            state = self.kept[place] = run(rng, **parameters)
            return self.signals(state, ())

        def batch(rng: np.random.Generator, **parameters: Any) -> Any:
            self.kept = np.asarray(run.function(rng, **parameters))
            n = len(next(iter(parameters.values())))
            if self.kept.shape[:1] != (n,):
                raise ValueError(f"first returned states of shape {self.kept.shape} for {n} rows: give one row each")
            return self.signals(self.kept, (n,))

        return Batched(batch) if isinstance(run, Batched) else one

    def rest(self, some: Array) -> Any:
        """A simulator that takes the simulations up at the states of rows (k,)."""
        run = self.pair.second

        def one(rng: np.random.Generator, **parameters: Any) -> Any:
            place = _number(rng)
            if place not in self.kept:
                # The first part ran in a process of its own, which has kept the state.
                again = Rng(self.rng.seed, self.rng.phase, place, self.rng.step)
                self.kept[place] = self.pair.first(again.single(0), **parameters)
            return run(rng, self.kept[place], **parameters)

        def batch(rng: np.random.Generator, **parameters: Any) -> Any:
            return run.function(rng, self.kept[some], **parameters)

        return Batched(batch) if isinstance(run, Batched) else one


class RunAgain(NamedTuple):
    """What a part of a simulation gives when it is run again."""

    value: Any
    data: bool
    """Whether it is data, not the state after a first stage."""


def run_again(pair: Pair, rng: Rng, parameters: dict[str, Any], good: Callable[[Any], bool]) -> RunAgain:
    """The part of a simulation that has failed, with the streams of its failure: the phase says which part it was.

    With common random numbers it does not: then it is the expensive one if the data of the cheap one are `good`.
    """
    ended = rng.phase >= SECOND
    began, later = (Rng(rng.seed, rng.phase % SECOND + more, rng.first, rng.step) for more in (0, SECOND))
    if not pair.signed:
        state = pair.first(began.single(0), **parameters)
        return RunAgain(pair.second(later.single(0), state, **parameters) if ended else state, ended)
    if not ended:
        value = pair.first(began.single(0), **parameters)
        if not pair.common or not good(value):
            return RunAgain(value, True)
    return RunAgain(pair.second((began if pair.common else later).single(0), **parameters), True)


def _number(rng: np.random.Generator) -> int:
    """The number of the chain or proposal whose stream a generator is at."""
    state: Any = rng.bit_generator.state
    return int(state["state"]["counter"][3])


def stages(
    first: Callable[..., Any],
    rest: Callable[..., Any],
    *,
    signal: Callable[[Any], float] | None = None,
    continuation: float | Callable[..., Any] | None = None,
    price: tuple[float, float] | None = None,
    floor: float = 0.05,
    pilot: int | None = None,
) -> Pair:
    """A simulator that can be stopped half-way, so that a simulation that will not match the data need not be finished.

    After the first stage the simulation continues with probability alpha, and then has weight 1/alpha.
    The posterior is exactly that of the whole simulation, for every alpha (docs/theory.md). It works with
    `od.rejection` and `od.importance`, whose draws have weights then, `od.smc` and `od.pseudo_marginal`.

    Parameters
    ----------
    first
        `first(rng, **parameters) -> state`, anything from which the rest can continue. If both functions are marked
        `@od.batched`, states are an array with one row per parameter value.
    rest
        `rest(rng, state, **parameters) -> data`.
    signal
        A function of the state that returns the number on which alpha depends, for example the distance of the
        unfinished simulation from the data. A simulation whose signal is not finite is always finished.
    continuation
        alpha: a number, or a function `continuation(signal, **parameters)` of arrays that gives probabilities. By
        default it is learnt from a pilot.
    price
        What the two stages cost, in any unit, as (1, 20) or seconds. `budget` is then in this unit. It is needed if
        alpha is learnt.
    floor
        The smallest alpha: no weight exceeds 1/floor.
    pilot
        Simulations from the prior, kept out of the posterior, from which alpha is learnt before the run. By default a
        twentieth of the budget and at most 1000; if that is less than 100, nothing is learnt and alpha is 1. Without a
        budget it is 400.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> pair = od.stages(lambda rng, rate: rng.poisson(rate, 5), lambda rng, state, rate: rng.poisson(rate, 95).sum()
    ...                  + state.sum(), signal=lambda state: abs(state.mean() - 4.0), continuation=0.5)
    >>> model = od.Model(od.Prior(rate=stats.uniform(0, 10)), pair, observed=400)
    >>> post = od.rejection(model, od.uniform(10.0), budget=2000, seed=1)
    >>> post.cost.simulations, 900 < post.cost.expensive < 1100
    (2000, True)
    """
    _check_kinds({"first": first, "rest": rest}, "stages")
    if signal is None and (continuation is None or callable(continuation)):
        raise ValueError(
            "give signal=, a function of the state after the first stage that gives one number: alpha depends on it; "
            "or say continuation=0.5"
        )
    if signal is not None:
        a_function("signal", signal, "signal(state)")
    return Pair(first, rest, False, signal, *_checked(continuation, price, floor, pilot))


def multifidelity(
    cheap: Callable[..., Any],
    expensive: Callable[..., Any],
    *,
    continuation: float | Callable[..., Any] | None = None,
    price: tuple[float, float] | None = None,
    floor: float = 0.05,
    pilot: int | None = None,
    common: bool = False,
) -> Pair:
    """A simulator with a cheap approximation, which decides whether the expensive simulation is run.

    With K the kernel, the estimate is K(cheap), and with probability alpha it is corrected by
    (K(expensive) - K(cheap))/alpha. The posterior is exactly that of the expensive model, however poor the cheap one is
    (docs/theory.md). Estimates and weights may be negative, so it works only with `od.rejection` and `od.importance`.
    If alpha is 1 throughout, the cheap model tells nothing and is not run.

    Parameters
    ----------
    cheap, expensive
        Two simulators of the same data: functions `(rng, **parameters)`, or two that are marked `@od.batched`.
    continuation
        alpha: a number, or a function `continuation(signal, **parameters)` of arrays that gives probabilities; signal
        is the distance of the cheap simulation from the data. By default it is learnt from a pilot.
    price
        What a cheap and an expensive simulation cost, in any unit, as (1, 50) or seconds. `budget` is then in this
        unit. It is needed if alpha is learnt.
    floor
        The least alpha.
    pilot
        Pairs of simulations from the prior, kept out of the posterior, from which alpha is learnt before the run. By
        default a twentieth of the budget and at most 1000; if that is less than 100, nothing is learnt and alpha is 1.
        Without a budget it is 400.
    common
        Whether both simulations receive the same random numbers. If similar numbers give similar data, the two agree
        more often, and the expensive one is needed less often.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> pair = od.multifidelity(lambda rng, theta: round(rng.normal(theta), 1), lambda rng, theta: rng.normal(theta),
    ...                         common=True, price=(1, 10))
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), pair, observed=2.0)
    >>> post = od.rejection(model, od.uniform(0.5), budget=40_000, seed=1)
    >>> post.cost.expensive < 0.5 * post.cost.simulations
    True
    >>> abs(post.summary()["theta"].mean - 1.0) < 0.2
    True
    """
    _check_kinds({"cheap": cheap, "expensive": expensive}, "multifidelity")
    if true_or_false("common", common) and isinstance(cheap, Batched | Compiled):
        raise ValueError(
            "common=True is for plain simulators, which have a random stream for each simulation: a batched or "
            "compiled one has a stream for many, and only some of them continue"
        )
    return Pair(cheap, expensive, True, None, *_checked(continuation, price, floor, pilot), common)


def _check_kinds(parts: dict[str, Any], maker: str) -> None:
    """A ValueError unless both parts are functions of one kind."""
    for name, part in parts.items():
        a_function(name, part, f"{name}(rng, **parameters)" if name != "rest" else "rest(rng, state, **parameters)")
        if isinstance(part, Staged | JaxSimulator) or (maker == "stages" and isinstance(part, Command | Compiled)):
            raise ValueError(f"od.{maker} takes plain functions or batched ones, and {name} is {part!r}")
    (one, first), (other, second) = parts.items()
    if isinstance(first, Batched) != isinstance(second, Batched) or isinstance(first, Compiled) != isinstance(
        second, Compiled
    ):
        raise ValueError(f"{one} and {other} must be of one kind: mark both @od.batched, or none")


def _checked(continuation: Any, price: Any, floor: Any, pilot: Any) -> tuple[Any, Any, float, int | None]:
    """What both kinds of pairs take, checked."""
    if continuation is not None and not callable(continuation) and not 0 < number_or_nan(continuation) <= 1:
        raise ValueError(
            f"continuation must be a probability above 0, a function of the signal, or None, got {shown(continuation)}"
        )
    if not 0 < number_or_nan(floor) <= 1:
        raise ValueError(f"floor must lie above 0 and not above 1, got {shown(floor)}: it is the least probability")
    if price is not None:
        try:
            cheap, expensive = (number_or_nan(one) for one in price)
        except (TypeError, ValueError):
            cheap = expensive = float("nan")
        if not (0 < cheap < float("inf") and 0 < expensive < float("inf")):
            raise ValueError(
                f"price must be two positive numbers, the costs of the cheap and the expensive part, got {shown(price)}"
            )
        price = (cheap, expensive)
    elif continuation is None:
        raise ValueError(
            "give price=(cheap, expensive), what the two parts cost, in seconds or any unit: the best continuation "
            "probability depends on it; or give continuation="
        )
    if pilot is not None:
        pilot = whole_number("pilot", pilot, "the number of simulations from which alpha is learnt", least=50)
    return continuation, price, float(floor), pilot


def check_pair(pair: Pair, prior: Prior) -> None:
    """A ValueError if the functions of a pair do not fit the prior's parameters."""
    forms = {"cheap": (pair.first, 1), "expensive": (pair.second, 1)}
    if not pair.signed:
        forms = {"first": (pair.first, 1), "rest": (pair.second, 2)}
    if callable(pair.continuation) and not isinstance(pair.continuation, ContinuationRule):
        forms["continuation"] = (pair.continuation, 1)
    for name, (function, before) in forms.items():
        if isinstance(function, Command):
            continue
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            continue
        try:
            signature.bind(*[None] * before, **dict.fromkeys(prior.names))
        except TypeError as error:
            leading = {"rest": "rng, state", "continuation": "signal"}.get(name, "rng")
            raise ValueError(
                f"{name}{signature} does not fit the prior's parameters ({error}): it is called as "
                f"{name}({', '.join((leading, *prior.names))})"
            ) from None
