"""Runs in files: read one, continue one, look at its failures, use its simulations again.

A file holds numbers and text and no functions. So `load` needs nothing else, and what runs the user's code again
(`resume`, `replay`) is given the model again and compares it with the fingerprint in the file.
"""

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypedDict, Unpack

import numpy as np

from onedraw.arguments import shown, true_or_false, whole_number
from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.numba import Compiled
from onedraw.engines.streams import Phase, Rng
from onedraw.engines.threads import one_blas_thread
from onedraw.failures import Failure
from onedraw.model.distance import Euclidean, Mahalanobis, Scaled
from onedraw.model.kernels import Kernel
from onedraw.model.layout import Layout
from onedraw.model.model import Model
from onedraw.model.pair import run_again
from onedraw.model.simulator import Batched, JaxSimulator, Staged, summarise_observed
from onedraw.results.learned_summary import Fitted
from onedraw.results.posterior import Posterior, Status
from onedraw.run.earlier import ArrayBank, bank_from_arrays
from onedraw.run.fingerprint import fingerprint
from onedraw.run.options import check_model
from onedraw.run.pilot import with_learned
from onedraw.run.plan import Gathered, Outcome
from onedraw.run.prior_draws import choose
from onedraw.run.progress import Show
from onedraw.run.record import Record, StoreError
from onedraw.run.recorded import Recorded
from onedraw.run.registry import SAMPLERS, Entry
from onedraw.run.result import posterior, status_of
from onedraw.run.saving import Continue, changed_parts, forced_notes, same_python, versions
from onedraw.run.specification import OWN, kernel_of, model_parts, proposal_of
from onedraw.run.store import Store, mend
from onedraw.samplers import importance, infer, pseudo_marginal, r_hit, rejection, smc, wilkinson

BUILT_IN = (importance, infer, pseudo_marginal, r_hit, rejection, smc, wilkinson)
"""Modules whose samplers a file may name: importing them registers them."""
MEASUREMENTS = ("advise", "calibrate", "compare", "fit_summary", "tolerance_for")
"""Functions that keep their simulations in files of their own."""
File = str | os.PathLike[str]


def samplers() -> dict[str, Entry]:
    """All samplers by name: the built-in ones, and those that a user has registered."""
    return SAMPLERS


def load(path: File, model: Model | Fitted | None = None) -> Posterior:
    """The Posterior of a run's file, finished or not.

    The run may still be in progress in another process: the draws so far are returned. A file holds no functions: with
    `model`, which must be that of the run, the Posterior can also `predict`, show the prior, `adjust`, and find
    the posterior of other data (`observed`).

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = f"{folder.name}/run.db"
    >>> post = od.rejection(model, od.uniform(0.5), draws=50, seed=1, store=file)
    >>> od.load(file).shape
    (1, 50)
    >>> od.load(file, model).predict(20, seed=1).shape
    (20,)
    >>> folder.cleanup()
    """
    model = model.model if isinstance(model, Fitted) else model
    if model is not None:
        check_model(model)
    return _loaded(path, model)


def load_bank(path: File, model: Model) -> Posterior | ArrayBank:
    """The simulations in a run's file as a bank for `od.infer(model, bank=)`; its data and its prior may differ.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> from onedraw.runs import load_bank
    >>> def model_of(data):
    ...     return od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=data)
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = f"{folder.name}/run.db"
    >>> post = od.infer(model_of(2.0), budget=100, seed=1, store=file)
    >>> other = model_of(1.0)
    >>> od.infer(other, budget=60, seed=2, bank=load_bank(file, other)).cost.reused
    100
    >>> folder.cleanup()
    """
    post = _loaded(path, model, apart=("prior", "observed", "model.distance"))
    with Store(path) as store:
        same = store.meta("specification")["parts"].get("prior") == fingerprint(model.prior)
    if post.kept is None or same:
        return post
    # Proposals of a run with another prior are not used.
    return bank_from_arrays(*post.simulations)


def _loaded(path: File, model: Model | None, apart: tuple[str, ...] = ()) -> Posterior:
    """The Posterior of a file; its model must be that of the run, `apart` from some parts of it."""
    with Store(path) as store:
        store.count()
        written = _specification(store)
        model = None if model is None else _model_of_run(store, written, model, apart)
        with _read_from(path):
            run = Recorded(store, written)
            entry = SAMPLERS[written["algorithm"]]
            result = entry.shown(run)
            if model is not None and entry.kept is not None:
                result = replace(result, kept=entry.kept(run, model))
            status, (cost, failures) = status_of(replace(result, reason="unfinished"), None), run.spent()
            if run.finished is not None:
                status = Status(str(run.finished.scalars["reason"]), str(run.finished.scalars["message"]))
            arguments = run.arguments
            asked = (run.facts["kernel"], arguments["eps"]) if "kernel" in arguments else None
            return posterior(
                written["algorithm"], arguments, replace(result, model=model), run.columns, kernel_of(arguments), asked,
                cost, failures, status, forced_notes(store.meta("sessions")),
            )  # fmt: skip


def _model_of_run(store: Store, written: Mapping[str, Any], model: Model, apart: tuple[str, ...]) -> Model:
    """The model with the distance that the run has learnt; an error that names what differs if it is another model."""
    if written["facts"].get("estimator"):
        raise StoreError(
            f"{store.path} was made with an estimator of your own, which has no model: load it without one"
        )
    model = model.limited(written["arguments"].get("timeout"))
    now = {"prior": fingerprint(model.prior), **model_parts(model)}
    before = {name: part for name, part in written["parts"].items() if name in now}
    before, now = ({name: part for name, part in parts.items() if name not in apart} for parts in (before, now))
    written_with = (store.meta("sessions") or [{}])[-1].get("versions", {})
    changed = changed_parts(before, now, code=same_python(written_with, versions()))
    if changed:
        raise StoreError(f"{store.path} was made with another model: {'; '.join(changed)}. Give the model of the run")
    learnt = store.last("distance")
    if learnt is None or not isinstance(model.distance, Scaled | Mahalanobis):
        return model
    return model.with_distance(with_learned(model.distance, learnt.arrays))


@contextmanager
def _read_from(path: File) -> Iterator[None]:
    """Around what is read from a file: if that holds other things than a run, the error says so."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        raise StoreError(f"{path} does not hold what a run of onedraw holds ({error!r})") from error


def _specification(store: Store) -> dict[str, Any]:
    written = store.meta("specification")
    if not isinstance(written, dict) or not isinstance(written.get("algorithm"), str):
        raise StoreError(f"{store.path} holds no run that this onedraw knows")
    name = written["algorithm"]
    if name in MEASUREMENTS:
        raise StoreError(f"{store.path} holds what od.{name} has measured, and no draws: the same call reads it again")
    if name not in SAMPLERS:
        raise StoreError(
            f"{store.path} holds no run that this onedraw knows: its sampler is {name!r}; import the module that "
            "registers it first"
        )
    return written


class SessionOptions(TypedDict, total=False):
    """Options of one session of a run: see `RunOptions`."""

    max_seconds: float | None
    workers: int | None
    executor: Any
    segment: float
    progress: Show


def resume(
    path: File,
    model: Model | Fitted | None = None,
    *,
    kernel: Kernel | None = None,
    estimator: Any = None,
    proposal: Any = None,
    start: Any = None,
    bank: Any = None,
    draws: int | None = None,
    budget: int | None = None,
    force: bool = False,
    **options: Unpack[SessionOptions],
) -> Posterior:
    """Continue a run where its file ends; the result is identical to that of an uninterrupted run.

    Parameters
    ----------
    path
        The file that the run was given as `store=`.
    model
        The model of the run (or `estimator`, if the run had one). It is compared with the file part by part.
    kernel, proposal, start, bank
        Only if they were your own functions or a Posterior, which the file does not hold.
    draws, budget
        A larger number than before, to extend the run.
    force
        Continue although the model has changed, or after the last good record of a damaged file. The file and the
        notes of the Posterior record this.
    **options
        max_seconds, workers, executor, segment and progress of this session, as in every function that simulates.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = f"{folder.name}/run.db"
    >>> post = od.rejection(model, od.uniform(0.5), draws=50, seed=1, store=file)
    >>> more = od.resume(file, model, draws=80)
    >>> more.shape, bool((more.draws["theta"][:, :50] == post.draws["theta"]).all())
    ((1, 80), True)
    >>> folder.cleanup()
    """
    if true_or_false("force", force):
        _mend(path)
    with Store(path) as store:
        written = _specification(store)
    name, entry = written["algorithm"], SAMPLERS[written["algorithm"]]
    with _read_from(path):
        arguments, own = written["arguments"], bool(written["facts"]["estimator"])
        parts = ("model", "kernel", "estimator", "proposal", "start", "bank")
        hidden = (*parts, "pseudo_samples", "keep") if own else parts
        given = {key: arguments[key] for key in entry.parameters if key in arguments and key not in hidden}
        given |= _parts_of(
            path, name, entry.parameters, arguments, own, model, kernel, estimator, proposal, start, bank
        )
    for key, raised in (("draws", draws), ("budget", budget)):
        if raised is not None and key not in entry.parameters:
            raise StoreError(f"{path} holds a run of {name}, which has no {key}=: raise budget")
        given |= {} if raised is None else {key: raised}
    parts_given = {
        "draws": draws, "budget": budget, "kernel": kernel, "proposal": proposal, "start": start, "bank": bank
    }  # fmt: skip
    asked = {*options, *(key for key, value in parts_given.items() if value is not None)}
    place = Continue(path, force)
    try:
        posterior: Posterior = entry.function(**given, store=place, **options)
    except (ArithmeticError, TypeError, ValueError) as error:
        # An argument that is refused is named first; what was not given comes from the file.
        if isinstance(error, StoreError) or place.reached or str(error).partition(" ")[0] in asked:
            raise
        raise StoreError(f"{path} does not hold what a run of onedraw holds, or not of this model ({error})") from error
    return posterior


def _parts_of(
    path: File, name: str, takes: tuple[str, ...], arguments: Mapping[str, Any], own: bool, model: Any, kernel: Any,
    estimator: Any, proposal: Any, start: Any, bank: Any,
) -> dict[str, Any]:  # fmt: skip
    """What a run needs that is not a plain value: from the file if it can name it, otherwise as given."""
    for part, value in (("kernel", kernel), ("proposal", proposal), ("start", start), ("bank", bank)):
        if value is not None and part not in takes:
            raise StoreError(f"{path} holds a run of {name}, which has no {part}")
    given: dict[str, Any] = {}
    if own:
        if estimator is None or model is not None or kernel is not None:
            raise StoreError(f"{path} was made with an estimator: give it again, as estimator=, and no model or kernel")
        given["estimator"] = estimator
    else:
        if not isinstance(model, Model | Fitted if name == "infer" else Model):
            raise StoreError(
                f"{path} holds no functions: give the run's model again, as od.resume({str(path)!r}, model)"
            )
        if estimator is not None:
            raise StoreError(f"{path} was made with a model and a kernel, not with an estimator")
        given["model"] = model
        if "kernel" in takes:
            given["kernel"] = kernel_of(arguments) if kernel is None else kernel
            if given["kernel"] is None:
                raise StoreError(f"{path} was made with a kernel of your own: give it again, as kernel=")
    if "proposal" in takes:
        given["proposal"] = proposal_of(arguments["proposal"], path) if proposal is None else proposal
    if "start" in takes:
        given["start"] = arguments["start"] if start is None else start
        if isinstance(given["start"], str) and given["start"] == OWN:
            raise StoreError(f"{path} started from a Posterior: give it again, as start=")
    if "bank" in takes:
        given["bank"] = bank
        if arguments.get("bank") and bank is None:
            raise StoreError(f"{path} was given a bank of {arguments['bank']:,} simulations: give it again, as bank=")
    return given


def _mend(path: File) -> None:
    """With force, a file that was cut short is written anew, as far as it is whole: the run computes the rest again."""
    mended = mend(path)
    if mended is not None:
        good, count = mended
        warnings.warn(
            f"{path} was cut short: {count - good} damaged records are removed and computed again", stacklevel=3
        )


def own_parts(path: File, force: bool = False) -> list[str]:
    """Which of kernel, proposal and start were the user's own, so that they must be given to go on."""
    if force:
        _mend(path)
    with Store(path) as store:
        arguments = _specification(store)["arguments"]
    return [name for name in ("kernel", "proposal", "start") if OWN in str(arguments.get(name))]


def replay(path: File, failure: int = 0, *, model: Model) -> Any:
    """Repeat one failed simulation with its own random stream, and let it raise its exception.

    `failure` counts the failures that the file keeps (`od.load(path).failures`). If nothing is raised, the
    output of the simulator is returned (it was not finite, for example). Use it in a debugger.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> def simulate(rng, theta):
    ...     if theta < -1:
    ...         raise RuntimeError("the population died out")
    ...     return rng.normal(theta, 1.0)
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), simulate, observed=2.0)
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = f"{folder.name}/run.db"
    >>> post = od.rejection(model, od.uniform(0.5), budget=200, seed=1, store=file)
    >>> od.replay(file, failure=0, model=model)
    Traceback (most recent call last):
    ...
    RuntimeError: the population died out
    >>> folder.cleanup()
    """
    check_model(model)
    failure = whole_number("failure", failure, "which of the failures that the file keeps", least=0)
    post = load(path)
    if failure >= len(post.failures):
        raise ValueError(f"failure = {failure}: {path} keeps {len(post.failures)} failures, counted from 0")
    one = post.failures[failure]
    if set(one.theta) != set(model.prior.names):
        raise ValueError(f"the failure was at {one.theta}, the model has {list(model.prior.names)}")
    simulate = model.recipe.simulator
    if isinstance(simulate, Batched | Compiled):
        kind = "batched" if isinstance(simulate, Batched) else "compiled"
        raise ValueError(
            f"a {kind} simulator draws a whole block from one stream, so one row cannot be run again alone: call it "
            f"yourself at {one.theta}"
        )
    if isinstance(simulate, JaxSimulator):
        raise ValueError(
            "the keys of a JAX simulator are named by its program, so one simulation cannot be run again alone: call "
            f"it yourself at {one.theta}"
        )
    rng = Rng(one.seed, one.phase, one.chain, one.step)
    theta = model.prior.rows(model.prior.flat(one.theta)[None])[0]

    def flat(value: Any) -> Array:
        return model.recipe.layout.flatten(summarise_observed(model.summary, value))

    with one_blas_thread():
        if isinstance(simulate, Staged):
            # All draws at one theta come from one stream, named by the first of them.
            together = _drawn_together(post, one)
            first = 0 if together > 1 else one.pseudo_sample
            value = simulate.draw(rng.single(0, first), simulate.prepare(**theta), together)
            layout = model.recipe.layout
            if model.summary is None:
                layout.flatten_batch(value, together)
            return value
        if model.pair is not None and (one.phase, one.step) != (Phase.PILOT, 0):
            value, data = run_again(model.pair, rng, theta, lambda one: bool(np.isfinite(flat(one)).all()))
            if not data:
                return value
        else:
            # Pilots of distances run whole simulations, of two parts too.
            value = simulate(rng.single(0, one.pseudo_sample), **theta)
        flat(value)
        return value


def _drawn_together(post: Posterior, one: Failure) -> int:
    count = int(post.settings.get("pseudo_samples", 1))
    return {Phase.PILOT: 1, Phase.START: 1, Phase.FILL: count - 1}.get(Phase(one.phase), count)


def reuse(
    path: File,
    *,
    kernel: Kernel,
    observed: Any = None,
    model: Model | None = None,
) -> Posterior:
    """A rejection posterior from the simulations that a run kept, without new ones.

    The run must be one of `od.rejection(..., keep="all")`: its simulations are at draws from the prior, whatever the
    kernel, distance and data. The result is that of `od.rejection` with the same seed and as many proposals.

    Parameters
    ----------
    kernel
        The kernel, and with it the tolerance: larger or smaller than the run's.
    observed
        Other data to compare the simulations with.
    model
        Needed if the run had your own summary or distance and something other than the kernel changes. Its
        prior, simulator and summary must be those of the run; its distance and data may differ.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = f"{folder.name}/run.db"
    >>> post = od.rejection(model, od.uniform(0.5), budget=2_000, seed=1, store=file, keep="all")
    >>> od.reuse(file, kernel=od.uniform(1.0)).shape[1] > post.shape[1]
    True
    >>> folder.cleanup()
    """
    if not isinstance(kernel, Kernel):
        raise ValueError(f"kernel must be a kernel such as od.uniform(0.1), got {shown(kernel)}")
    if model is not None:
        check_model(model)
        model = model if observed is None else replace(model, observed=observed)
    with Store(path) as store:
        written = _specification(store)
        if written["algorithm"] != "rejection":
            raise StoreError(
                f"{path} holds a run of {written['algorithm']}, whose simulations are not at draws from the prior: "
                "only those of od.rejection(..., keep='all') can be used again"
            )
        if written["arguments"].get("keep") != "all":
            raise StoreError(f"{path} kept no simulations that were rejected: run od.rejection(..., keep='all')")
        with _read_from(path):
            distances_of = _distances(store, written, observed, model)
            return _accepted_again(store, written, kernel, distances_of, model)


def _distances(store: Store, written: Mapping[str, Any], observed: Any, model: Model | None) -> Any:
    """A function from kept rows (n, M, s) to distances (n, M); None where those that are kept count."""
    facts = written["facts"]
    if model is not None:
        prints = {"prior": fingerprint(model.prior), **model_parts(model)}
        same = {name: part for name, part in prints.items() if name not in ("model.distance", "observed")}
        before = {name: part for name, part in written["parts"].items() if name in same}
        changed = changed_parts(before, same)
        if changed:
            raise StoreError(f"{store.path} holds simulations of another model: {'; '.join(changed)}")
        if model.pilot:
            kept = [record.arrays["rows"] for record in store.records("pilot.segment")]
            if not kept:
                raise StoreError(
                    f"{store.path} has no pilot simulations from which {type(model.distance).__name__.lower()} could "
                    "learn, and simulations that are accepted must not be used for it: give od.scaled(scale=[...])"
                )
            rows = np.concatenate(kept)
            rows = rows[~np.isnan(rows[:, 0])]
            model = model.with_distance(model.distance.learnt(rows, model.places()))
        there = model

        def by_model(rows: Array) -> Array:
            return there.distances(rows)

        return by_model
    if observed is None:
        return None
    if facts["summary"] or facts["distance"] == OWN:
        raise StoreError(
            f"{store.path} was made with a summary or distance of your own: give model= to compare with other data"
        )
    layout = Layout(None if facts["keys"] is None else tuple(facts["keys"]), tuple(map(tuple, facts["shapes"])))
    try:
        row = layout.flatten(observed)
    except ValueError as error:
        raise StoreError(f"observed {error}, unlike the data that {store.path} was made with") from error
    blank: Any = {"euclidean": Euclidean(), "scaled": Scaled(0), "mahalanobis": Mahalanobis(0)}[facts["distance"]]
    learnt = store.last("distance")
    if learnt is not None:
        blank = with_learned(blank, learnt.arrays)
    elif facts["distance"] != "euclidean":
        raise StoreError(f"{store.path} does not hold the scale of its distance: give model=")

    def built_in(rows: Array) -> Array:
        n, draws, width = rows.shape
        flat = rows.reshape(n * draws, width)
        failed = np.isnan(flat[:, 0])
        distance = np.full(n * draws, np.inf)
        distance[~failed] = blank(flat[~failed], row)
        return distance.reshape(n, draws)

    return built_in


def _accepted_again(
    store: Store, written: Mapping[str, Any], kernel: Kernel, distances_of: Any, model: Model | None
) -> Posterior:
    run, gathered = Recorded(store, written), Gathered()
    seed = run.arguments["seed"]
    for record in store.records("run.bank"):
        for size, theta, distances in _blocks(record, distances_of):
            chosen = choose(Rng(seed, Phase.RUN, gathered.done), kernel.log_average(distances), 0.0)
            arrays = {"theta": theta[chosen], "distances": distances[chosen]}
            gathered.add(size, Outcome(arrays, Cost(proposals=size)))
    cost, failures = run.spent()
    found = gathered.outcome()
    arguments = {**run.arguments, "draws": None, "budget": None}
    result = rejection.result_of(found, arguments, None, "finished", {"distance": run.facts["distance"]})
    result = replace(result, model=model, made=f"{result.made} from {gathered.done:,} kept proposals")
    note = f"from the {cost.simulations:,} simulations kept in {store.path.name}; none is new"
    return posterior(
        "rejection", arguments, result, run.columns, kernel, (kernel.name, kernel.eps), cost, failures,
        status_of(result, None), (note,),
    )  # fmt: skip


def _blocks(record: Record, distances_of: Any) -> Iterator[tuple[int, Array, Array]]:
    """The blocks of proposals in a record of kept simulations: (size, theta, distances)."""
    arrays = record.arrays
    distances = arrays["distances"] if distances_of is None else distances_of(arrays["rows"].copy())
    top = 0
    for size in arrays["sizes"].tolist():
        rows = slice(top, top + size)
        yield size, arrays["theta"][rows], distances[rows]
        top += size
