"""Earlier simulations, given to `infer` as a bank: what they are, how a run begins with them, and how a file has them.

A learnt likelihood may use any simulations. Everything else needs to know which proposals they came from: this is known
of the simulations of `infer` itself if the prior is the same, and of draws from the prior.
"""

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import numbers, shown, true_or_false
from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.model.coordinates import Support, support_of
from onedraw.model.model import Model
from onedraw.model.prior import Prior
from onedraw.proposals.mixture import Mixture
from onedraw.results.assessment import own_distance
from onedraw.results.posterior import Posterior, SimulatedData
from onedraw.run.bank import Bank
from onedraw.run.blocks import cut
from onedraw.run.fingerprint import fingerprint
from onedraw.run.plan import Outcome, Round
from onedraw.run.recorded import Recorded
from onedraw.run.saving import changed_parts
from onedraw.run.specification import model_parts

FIRST_STAGE, STAGES = 2**21, 2**29
"""Stages after a bank are counted from a number that follows from it, so that no random number is used twice."""
MIXTURE = ("centre", "root", "deviation")
"""What a file holds of a mixture."""
PACKED = ("theta", "rows", "more_theta", "more_rows", "numbers", "components", "centre", "root", "deviation", "ends")
"""Arrays that a file holds of a bank, besides `counts` and `log_constant`."""


class ArrayBank(NamedTuple):
    """Simulations made elsewhere: see `bank_from_arrays`."""

    theta: Array | Mapping[str, Array]
    x: Array
    """(n, s); NaN if a simulation failed."""
    from_prior: bool


def bank_from_arrays(theta: Any, x: Any, *, from_prior: bool = False) -> ArrayBank:
    """Simulations from elsewhere, for `od.infer(..., bank=)`.

    Parameters
    ----------
    theta
        Parameters (n, parameters) in the order of the prior, or a dict with n values for each name.
    x
        What the simulator, or the model's summary if it has one, gave for each of them: n rows. A row with a value that
        is not finite is a failed simulation. Keep these rows: the probability of failure is part of the likelihood.
        Give all simulations, whatever their results: a selection by results (for example those that were accepted)
        would bias the posterior.
    from_prior
        Whether the parameters are independent draws from the model's prior. Otherwise only a learnt likelihood uses
        the simulations.

    >>> import numpy as np
    >>> import onedraw as od
    >>> from scipy import stats
    >>> rng = np.random.default_rng(1)
    >>> theta = rng.normal(0, 1, 2000)
    >>> bank = od.bank_from_arrays({"theta": theta}, rng.normal(theta, 1.0), from_prior=True)
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> post = od.infer(model, budget=100, bank=bank, seed=1)
    >>> bool(abs(post.summary()["theta"].mean - 1.0) < 0.1), post.cost.simulations, post.cost.reused
    (True, 100, 2000)
    """
    rows = _numbers("x", x)
    if not rows.size:
        raise ValueError(f"x must hold a row for each simulation, got an array of shape {np.shape(x)}")
    rows = rows.reshape(len(rows), -1) if rows.ndim else rows[None, None]
    if isinstance(theta, Mapping):
        found: Any = {str(name): np.atleast_1d(_numbers(f"theta[{name!r}]", one)) for name, one in theta.items()}
    else:
        found = np.atleast_1d(_numbers("theta", theta))
    for one in found.values() if isinstance(found, dict) else (found,):
        _check_rows(one, len(rows))
    failed = ~np.all(np.isfinite(rows), axis=1)
    return ArrayBank(found, np.where(failed[:, None], np.nan, rows), true_or_false("from_prior", from_prior))


def _check_rows(theta: Array, number: int) -> None:
    if len(theta) != number:
        raise ValueError(f"theta has {len(theta):,} rows and x has {number:,}: give one of each for every simulation")
    bad = ~np.all(np.isfinite(theta.reshape(number, -1)), axis=1)
    if bad.any():
        raise ValueError(f"theta is not finite in row {int(np.argmax(bad))}: leave such simulations out")


def _numbers(name: str, value: Any) -> Array:
    try:
        return numbers(value, truth_values=True)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} must be an array of numbers, one row for each simulation, got {shown(value)}"
        ) from None


def no_bank(prior: Prior, support: Support, width: int) -> Bank:
    """Where a run without a bank begins."""
    return Bank(prior, support, np.empty((0, prior.dim)), np.empty((0, width)))


def starting_bank(given: Any, model: Model, support: Support) -> Bank:
    """Where a run begins that is given this bank or these; a ValueError if they cannot be used."""
    empty = no_bank(model.prior, support, model.observed_row.size)
    if given is None:
        return empty
    several = isinstance(given, Sequence) and not isinstance(given, ArrayBank | str)
    banks = [_bank_of(one, model, empty) for one in (given if several else (given,))]
    if not banks:
        raise ValueError("bank must have one earlier run at least, got none: leave it out")
    bank = reduce(joined_banks, banks)
    if bank.more is not None and own_distance(model) is not None:
        raise ValueError(
            "bank holds simulations whose proposals are not known, which only a learnt likelihood can use, and the "
            "model has a distance of your own, for which none is learnt: leave out the distance or the bank"
        )
    digest = int(fingerprint(packed(bank))["value"], 16)
    return bank._replace(stages=FIRST_STAGE + digest % STAGES)


def _bank_of(given: Any, model: Model, empty: Bank) -> Bank:
    """The bank that one earlier run, or arrays, make for this model."""
    prior = model.prior
    if not isinstance(given, Posterior | ArrayBank):
        raise ValueError(
            "bank must be the Posterior of an earlier run or od.bank_from_arrays(theta, x), or a list of these, got "
            f"{shown(given)}"
        )
    known = known_bank(given, prior) if isinstance(given, Posterior) else None
    if isinstance(given, Posterior):
        _refuse_other_models(given, model)
        theta, rows = all_simulations(given) if known is None else (known.theta, known.rows)
    else:
        theta, rows = columns_of(given.theta, prior), given.x
    if rows.shape[1] != empty.rows.shape[1]:
        raise ValueError(
            f"bank has {rows.shape[1]} summaries per simulation and the model compares {empty.rows.shape[1]}: give "
            "simulations with the summary of this model"
        )
    if known is not None:
        return known.for_other_data()._replace(prior=prior, support=empty.support)
    return _placed(np.ascontiguousarray(theta), np.ascontiguousarray(rows), given, empty)


def joined_banks(one: Bank, other: Bank) -> Bank:
    """The simulations of two banks, each of them once, with the proposals of both.

    Runs with the same seed begin with the same simulations, and a run that was given a bank has those of the bank. If
    two banks have simulations in common, the others of the second one count as those of unknown proposals.
    """
    left = _not_in(one, other)
    if not left.all():
        theta, rows = (array[left] for array in _pairs(other))
        other = other._replace(
            theta=other.theta[:0], rows=other.rows[:0], mixtures=(), of_prior=0, ends=(), reused=len(rows),
            more=SimulatedData(theta, rows) if len(rows) else None,
        )  # fmt: skip
    good, mixtures = int(np.count_nonzero(~np.isnan(one.rows[:, 0]))), (*one.mixtures, *other.mixtures)
    more = [bank.more for bank in (one, other) if bank.more is not None]
    return one._replace(
        theta=np.concatenate([one.theta, other.theta]),
        rows=np.concatenate([one.rows, other.rows]),
        mixtures=mixtures,
        of_prior=one.of_prior + other.of_prior,
        log_constant=one.log_constant if one.mixtures else other.log_constant,
        ends=(*one.ends, *(good + end for end in other.ends)),
        reused=one.reused + other.reused,
        earlier=len(mixtures),
        more=SimulatedData(*map(np.concatenate, zip(*more, strict=True))) if more else None,
    )


def _not_in(one: Bank, other: Bank) -> Array:
    """Which simulations of `other` are not in `one`. Only a parameter that is continuous tells them apart."""
    if np.all(one.prior.discrete):
        return np.ones(other.reused, dtype=bool)
    seen = {row.tobytes() for row in _pairs(one).theta}
    return np.array([row.tobytes() not in seen for row in _pairs(other).theta], dtype=bool)


def _pairs(bank: Bank) -> SimulatedData:
    """All simulations of a bank, the failed ones too."""
    parts = [(bank.theta, bank.rows)] if bank.more is None else [(bank.theta, bank.rows), bank.more]
    return SimulatedData(*map(np.concatenate, zip(*parts, strict=True)))


def known_bank(post: Posterior, prior: Prior) -> Bank | None:
    """The bank of a run of infer with the same prior, whose proposals are known; None if it is another run."""
    bank = post.kept
    return bank if isinstance(bank, Bank) and bank.ends and fingerprint(bank.prior) == fingerprint(prior) else None


def _placed(theta: Array, rows: Array, given: Posterior | ArrayBank, empty: Bank) -> Bank:
    """Simulations as those of draws from the prior, or as those of unknown proposals."""
    inside = empty.prior.logpdf(np.asfortranarray(theta)) > -np.inf
    from_prior = isinstance(given, ArrayBank) and given.from_prior
    if from_prior and not inside.all():
        raise ValueError(
            f"theta of row {int(np.argmin(inside))} of the bank lies outside the prior: these are no draws from it; "
            "leave out from_prior=True"
        )
    theta, rows = theta[inside], rows[inside]
    good = int(np.count_nonzero(~np.isnan(rows[:, 0])))
    if not good:
        raise ValueError(f"bank holds no simulation that succeeded inside the prior, of {len(inside):,}")
    if from_prior:
        return empty._replace(theta=theta, rows=rows, of_prior=len(rows), ends=(good,), reused=len(rows))
    return empty._replace(more=SimulatedData(theta, rows), reused=len(rows))


def all_simulations(post: Posterior) -> tuple[Array, Array]:
    """Parameters and summaries of every simulation of a run; a ValueError if it has kept none or chosen some."""
    if post.kept is None and (post.bank is None or post.settings.get("algorithm") == "rejection"):
        raise ValueError(
            "bank must have every simulation of its run, and this one kept none, or only those that were accepted, "
            "which would mislead: od.infer keeps all, od.importance with keep='all', and od.rejection with keep='all' "
            "and a file that od.load reads"
        )
    kept = post.simulations if post.kept is not None else _every(post.bank)
    return kept.theta, kept.x


def _every(bank: Any) -> SimulatedData:
    """Simulations (n, M, s) one by one, the failed ones too."""
    if bank.rows is None:
        raise ValueError("bank must have kept its summaries: run od.importance(..., keep='all')")
    return SimulatedData(np.repeat(bank.theta, bank.rows.shape[1], axis=0), bank.rows.reshape(-1, bank.rows.shape[2]))


def columns_of(theta: Array | Mapping[str, Array], prior: Prior) -> Array:
    """Parameters (n, dim) in the order of the prior."""
    if isinstance(theta, Mapping):
        if set(theta) != set(prior.names):
            raise ValueError(f"bank holds simulations of {list(theta)}, the model has {list(prior.names)}")
        columns = [theta[name].reshape(len(theta[name]), -1) for name in prior.names]
        for name, shape, one in zip(prior.names, prior.layout.shapes, columns, strict=True):
            if one.shape[1] != math.prod(shape):
                form = f"a vector of {shape[0]}, so give (n, {shape[0]})" if shape else "a number, so give (n,)"
                raise ValueError(f"bank has {name} of shape {theta[name].shape}: the model's is {form}")
        return np.concatenate(columns, axis=1)
    theta = theta.reshape(len(theta), -1) if theta.ndim == 1 and prior.dim == 1 else np.atleast_2d(theta)
    if theta.ndim != 2 or theta.shape[1] != prior.dim:
        raise ValueError(
            f"bank has parameters of shape {theta.shape}, the model has {prior.dim} ({', '.join(prior.labels)}): give "
            f"theta as (n, {prior.dim}), or a dict by name"
        )
    return theta


def _refuse_other_models(post: Posterior, model: Model) -> None:
    names = model.prior.labels
    if tuple(post.columns) != names:
        raise ValueError(
            f"bank holds simulations of {list(post.columns)}, the model has {list(names)}: the parameters must be the "
            "same, in the same order"
        )
    if post.model is None:
        return
    before, now = (_simulation_parts(one) for one in (post.model, model))
    changed = changed_parts(before, now)
    if changed:
        raise ValueError(
            f"bank holds simulations of another model: {'; '.join(changed)}. If they are simulations of this one all "
            "the same, give od.bank_from_arrays(*post.simulations)"
        )


def _simulation_parts(model: Model) -> dict[str, dict[str, str]]:
    every = model_parts(model)
    return {name: part for name, part in every.items() if name not in ("observed", "model.distance")}


# --- in the run's file --------------------------------------------------------------------------------------


def packed(bank: Bank) -> dict[str, Array]:
    """A bank as arrays."""
    mixtures, more = [one for _, one in bank.mixtures], bank.more
    dim, smooth = bank.theta.shape[1], int(np.count_nonzero(~np.asarray(bank.prior.discrete)))
    blank = Mixture(np.empty((0, dim)), np.empty((0, smooth, smooth)), np.empty((0, dim - smooth)), np.empty(0))
    joined = {name: np.concatenate([getattr(one, name) for one in (blank, *mixtures)])
              for name in MIXTURE}  # fmt: skip
    return {
        "theta": bank.theta, "rows": bank.rows,
        "more_theta": bank.theta[:0] if more is None else more.theta,
        "more_rows": bank.rows[:0] if more is None else more.x,
        "numbers": np.array([number for number, _ in bank.mixtures], dtype=np.int64),
        "components": np.array([len(one.centre) for one in mixtures], dtype=np.int64),
        **joined, "ends": np.array(bank.ends, dtype=np.int64),
        "counts": np.array([bank.of_prior, bank.reused, bank.stages]), "log_constant": np.array([bank.log_constant]),
    }  # fmt: skip


def unpacked(arrays: Mapping[str, Array], prior: Prior, support: Support) -> Bank:
    """A bank as it was packed."""
    theta, rows, more_theta, more_rows, numbers, components, centre, root, deviation, ends = (
        arrays[name] for name in PACKED
    )
    cuts, discrete = np.cumsum(components)[:-1], np.asarray(prior.discrete)
    parts = [np.split(one, cuts) for one in (centre, root, deviation)] if len(numbers) else [[], [], []]
    mixtures = tuple((int(n), Mixture(a, b, c, discrete)) for n, a, b, c in zip(numbers, *parts, strict=True))
    of_prior, reused, stages = map(int, arrays["counts"])
    more = SimulatedData(more_theta, more_rows) if len(more_rows) else None
    return Bank(
        prior, support, theta, rows, mixtures, of_prior, float(arrays["log_constant"][0]), stages, tuple(ends.tolist()),
        reused=reused, earlier=len(mixtures), more=more,
    )  # fmt: skip


def as_round(outcome: Outcome, number: int, phase: str) -> Round:
    """Simulations that are made already, as a round of one item, so that the run's file has them."""
    return Round(lambda _: outcome, lambda gathered: cut(number, number, gathered.done), phase=phase, made=True)


def bank_round(bank: Bank) -> Round:
    """The bank of a run for its file."""
    return as_round(Outcome(packed(bank), Cost(reused=bank.reused)), bank.reused, "bank")


def mixture_of(arrays: Mapping[str, Array], prior: Prior) -> Mixture | None:
    """The mixture that a stage was decided to draw from; None if it draws from the prior."""
    if "centre" not in arrays:
        return None
    return Mixture(arrays["centre"], arrays["root"], arrays["deviation"], np.asarray(prior.discrete))


def recorded_bank(run: Recorded, model: Model) -> Bank:
    """The simulations of a run of infer as its file holds them, with the proposals they came from."""
    prior, support, seed = model.prior, support_of(model.prior), run.arguments["seed"]
    bank = no_bank(prior, support, model.observed_row.size)
    for record in run.segments("bank"):
        bank = unpacked(record.arrays, prior, support)
    if any(True for _ in run.segments("pilot")):
        bank = bank.with_stage(run.outcome("pilot"), None, seed)._replace(stages=bank.stages)
    for number, record in enumerate(run.store.records("stage")):
        bank = bank.with_stage(run.outcome("run", number), mixture_of(record.arrays, prior), seed)
    return bank
