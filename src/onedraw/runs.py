"""Runs in files: read one, go on with one, look at its failures, use its simulations again.

A file holds numbers and text and no functions. So `open` needs nothing else, and what runs the user's code again
(`resume`, `replay`) is given the model again and compares it with the fingerprint in the file.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.numba import Compiled
from onedraw.engines.streams import Phase, Rng
from onedraw.engines.threads import one_blas_thread
from onedraw.model.distance import Euclidean, Mahalanobis, Scaled
from onedraw.model.kernels import Kernel
from onedraw.model.layout import Layout
from onedraw.model.model import Model
from onedraw.model.prior import named_columns
from onedraw.model.simulator import Batched, Failure, JaxSimulator, Simulated, Staged, summarise_observed
from onedraw.results.posterior import Posterior, Status
from onedraw.run import chains, rounds
from onedraw.run.fingerprint import fingerprint
from onedraw.run.options import IDENTITY, check_model
from onedraw.run.pilot import ready
from onedraw.run.progress import Show
from onedraw.run.record import Record, StoreError
from onedraw.run.saving import Continue, changed_parts, forced_notes
from onedraw.run.specification import KERNELS, OWN, in_time, kernel_of, model_parts, proposal_of
from onedraw.run.store import Store
from onedraw.samplers import rejection
from onedraw.samplers.importance import importance
from onedraw.samplers.infer import infer
from onedraw.samplers.infer import posterior_of as posterior_of_infer
from onedraw.samplers.pseudo_marginal import pseudo_marginal
from onedraw.samplers.r_hit import r_hit
from onedraw.samplers.smc import smc
from onedraw.samplers.wilkinson import wilkinson
from onedraw.tuning.fit_summary import Fitted

SAMPLERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "rejection": (rejection.rejection, ("pseudo_samples", "keep_distances", "keep")),
    "pseudo_marginal": (pseudo_marginal, ("pseudo_samples", "early", "keep_distances", "chains", "thin", "layout")),
    "wilkinson": (wilkinson, ("early", "chains", "thin")),
    "r_hit": (r_hit, ("hits", "max_draws", "chains", "thin")),
    "smc": (smc, ("particles", "eps", "pseudo_samples", "least_acceptance")),
    "importance": (importance, ("eps", "ess", "pseudo_samples", "defensive", "keep_rows")),
    "infer": (infer, ("coverage",)),
}
"""Each sampler with the arguments that a file gives back to it."""

SEQUENTIAL = ("smc", "importance")
"""Samplers that choose their own tolerance: they take a kernel without one, and no draws."""

File = str | os.PathLike[str]


class Columns(NamedTuple):
    """What a file knows of a prior: the parameters' names, and which are whole numbers."""

    names: tuple[str, ...]
    discrete: tuple[bool, ...]

    def columns(self, theta: Array) -> dict[str, Array]:
        """As `Prior.columns`."""
        return named_columns(self.names, self.discrete, theta)


def open(path: File) -> Posterior:
    """The Posterior of a run's file, finished or not, without its model.

    The run may still be going on in another process. `model` of the Posterior is None, so it cannot `predict`.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = f"{folder.name}/run.db"
    >>> post = od.rejection(model, od.uniform(0.5), draws=50, seed=1, store=file)
    >>> od.open(file).shape
    (1, 50)
    >>> folder.cleanup()
    """
    with Store(path) as store:
        store.count()
        written = _specification(store)
        with _Form(path):
            read = {
                "rejection": _read_rejection,
                "infer": _read_infer,
                **dict.fromkeys(SEQUENTIAL, _read_sequential),
            }.get(written["algorithm"], _read_chains)
            # The end first: a run that goes on meanwhile is then shown as unfinished, never as more than it is.
            return read(store, written, store.last())


class _Form:
    """Turns the errors of a file that holds the wrong things into one that says so."""

    def __init__(self, path: File) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, KeyError | TypeError | IndexError | AttributeError) or (
            isinstance(error, ValueError) and not isinstance(error, StoreError)
        ):
            raise StoreError(f"{self.path} does not hold what a run of onedraw holds ({error!r})") from error


def _specification(store: Store) -> dict[str, Any]:
    written = store.meta("specification")
    if not isinstance(written, dict) or written.get("algorithm") not in SAMPLERS:
        raise StoreError(f"{store.path} holds no run that this onedraw knows")
    return written


def _ending(last: Record | None, made: str) -> tuple[Status, list[str] | None, float]:
    """How the run ended, its notes, and how long it took, as the last record has it."""
    seconds = 0.0 if last is None else float(last.scalars["seconds"])
    if last is not None and last.name == "finished":
        status = Status(str(last.scalars["reason"]), str(last.scalars["message"]))
        return status, list(last.scalars["notes"]), seconds
    return Status("unfinished", f"not finished: {made} so far; od.resume goes on"), None, seconds


def _pilot_cost(store: Store) -> Cost:
    learnt = store.last("pilot") or store.last("pilot.segment")
    if learnt is None:
        return Cost()
    if learnt.name == "pilot":
        return Cost(*learnt.scalars["cost"])
    return Cost(learnt.scalars["done"], learnt.scalars["setups"], 0, learnt.scalars["failed"])


def _columns(written: Mapping[str, Any]) -> Columns:
    return Columns(tuple(written["arguments"]["parameters"]), tuple(written["facts"]["discrete"]))


def _read_rejection(store: Store, written: Mapping[str, Any], last: Record | None) -> Posterior:
    arguments, columns = written["arguments"], _columns(written)
    basket = rejection.Basket(0)
    basket.load(store.records("run.segment"))
    found = basket.collected(arguments["draws"], len(columns.names), "", 0.0)
    known = store.last("ready")
    status, _, seconds = _ending(last, f"{len(found.theta):,} draws")
    cost = _pilot_cost(store).plus(found.cost)._replace(seconds=seconds)
    named = {**arguments, "kernel": written["facts"]["kernel"]}
    distance = written["facts"]["distance"] if known is None else known.scalars["distance"]
    notes = forced_notes(store.meta("sessions"))
    return rejection.posterior_of(found, columns, named, cost, status, kernel_of(arguments), distance, None, notes)


def _read_chains(store: Store, written: Mapping[str, Any], last: Record | None) -> Posterior:
    arguments, facts, columns = written["arguments"], written["facts"], _columns(written)
    rounds = chains.Rounds([], [], [], [], _pilot_cost(store), [])
    start, known = store.last("start"), store.last("ready")
    if start is not None:
        rounds.cost = rounds.cost.plus(Cost(*start.scalars["cost"]))
        rounds.failures = [Failure(**one) for one in start.scalars["failures"]]
    else:
        basket = rejection.Basket(0)
        basket.load(store.records("start.segment"))
        rounds.cost = rounds.cost.plus(basket.collected(None, len(columns.names), "", 0.0).cost)
        rounds.failures = basket.failures
    chains.load_rounds(rounds, store.records("run.segment"))
    has_kernel = "kernel" in arguments
    made = f"{arguments['chains']} x {sum(map(len, rounds.theta)):,} draws"
    status, notes, seconds = _ending(last, made)
    if notes is None:
        notes = [] if known is None else list(known.scalars["notes"])
    rounds.cost = rounds.cost._replace(seconds=seconds)
    settings = {
        "algorithm": written["algorithm"],
        "kernel": facts["kernel"] if has_kernel else None,
        "eps": arguments.get("eps"),
        **{name: arguments[name] for name in facts["settings"]},
        **{name: arguments[name] for name in ("draws", "chains", "budget", "thin")},
        "proposal": None if known is None else known.scalars["proposal"],
        "start": facts["start"],
        "on_error": arguments["on_error"],
    }
    return chains.posterior_of(
        rounds, columns, has_kernel and arguments.get("keep_distances", True), settings, arguments["seed"], status,
        None, kernel_of(arguments), [*notes, *forced_notes(store.meta("sessions"))],
    )  # fmt: skip


def _read_sequential(store: Store, written: Mapping[str, Any], last: Record | None) -> Posterior:
    arguments, facts, columns = written["arguments"], written["facts"], _columns(written)
    record = store.last("result")
    if record is None:
        cost = rounds.cost_of_segments(store.records("run.segment"), _pilot_cost(store))
        distance = {"distance": facts["distance"]}
        found = rounds.nothing_found(len(columns.names), arguments["pseudo_samples"], cost, distance)
    else:
        found = rounds.Found.load(record)
    status, _, seconds = _ending(last, f"{np.count_nonzero(found.weight):,} draws")
    family = KERNELS.get(str(arguments["kernel"]))
    return rounds.sequential_posterior(
        written["algorithm"], found, columns, {**arguments}, found.cost._replace(seconds=seconds), status,
        None if family is None else family(1.0), facts["kernel"], None, forced_notes(store.meta("sessions")),
    )  # fmt: skip


def _read_infer(store: Store, written: Mapping[str, Any], last: Record | None) -> Posterior:
    arguments = written["arguments"]
    record, finished = store.last("infer.interim"), store.last("infer.finished")
    if finished is not None and finished.scalars["asked"] == [
        arguments[name] for name in ("budget", "draws", "coverage")
    ]:
        record = finished
    status, _, seconds = _ending(last, "0 draws" if record is None else f"{len(record.arrays['theta']):,} draws")
    scalars: Mapping[str, Any] = {"notes": [], "settings": {}, "effective": np.nan, "rate": np.nan, "failures": []}
    segments = [*store.records("infer.segment"), *store.records("infer.check")]
    spent = [
        sum(int(one.scalars[name]) for one in segments) for name in ("simulations", "setups", "failed", "proposals")
    ]
    cost = Cost(spent[0], spent[1], spent[3] - spent[0], spent[2], spent[3])
    if record is not None:
        scalars = record.scalars
        cost = Cost(*scalars["cost"]) if status.reason != "unfinished" else cost
    return posterior_of_infer(
        scalars, {} if record is None else record.arrays, _columns(written), cost._replace(seconds=seconds), status,
        written["arguments"]["seed"], None,
        (*in_time(written["arguments"]), *forced_notes(store.meta("sessions"))),
    )  # fmt: skip


def resume(
    path: File,
    model: Model | Fitted | None = None,
    *,
    kernel: Kernel | None = None,
    estimator: Any = None,
    proposal: Any = None,
    start: Any = None,
    draws: int | None = None,
    budget: int | None = None,
    max_seconds: float | None = None,
    workers: int | None = None,
    executor: Any = None,
    segment: float = 30.0,
    progress: Show = None,
    force: bool = False,
) -> Posterior:
    """Go on with a run where its file ends; the result is, byte for byte, that of a run without the break.

    Parameters
    ----------
    path
        The file that the run was given as `store=`.
    model
        The model of the run (or `estimator`, where the run had one). It is compared with the file part by part.
    kernel, proposal, start
        Only where they were a function of your own, or a Posterior to start from: the file cannot hold those.
    draws, budget
        A larger number than the run began with, to go further.
    max_seconds, workers, executor, segment, progress
        For this session, as in every sampler.
    force
        Go on although the model has changed, or behind the last good record of a damaged file. The file and the
        Posterior's notes say so.

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
    with Store(path) as store:
        written = _specification(store)
    with _Form(path):
        arguments, facts = written["arguments"], written["facts"]
        sampler, names = SAMPLERS[written["algorithm"]]
        given = {name: arguments[name] for name in (*names, *IDENTITY)}
        if "engine" in arguments:
            given["engine"] = arguments["engine"]
        sequential = written["algorithm"] in SEQUENTIAL
        if not sequential:
            given["draws"] = arguments["draws"] if draws is None else draws
        elif draws is not None:
            raise StoreError(f"{path} holds a run of {written['algorithm']}, which has no draws=: raise budget")
        given["budget"] = arguments["budget"] if budget is None else budget
        if facts["estimator"]:
            del given["pseudo_samples"], given["keep_distances"]
    if facts["estimator"]:
        if estimator is None or model is not None or kernel is not None:
            raise StoreError(f"{path} was made with an estimator: give it again, as estimator=, and no model or kernel")
        given["estimator"] = estimator
    else:
        if not isinstance(model, Model | Fitted if written["algorithm"] == "infer" else Model):
            raise StoreError(
                f"{path} holds no functions: give the run's model again, as od.resume({str(path)!r}, model)"
            )
        if estimator is not None:
            raise StoreError(f"{path} was made with a model and a kernel, not with an estimator")
        given["model"] = model
    if written["algorithm"] == "infer":
        if kernel is not None or proposal is not None or start is not None:
            raise StoreError(f"{path} holds a run of infer, which has no kernel, no proposal and no start")
    elif not facts["estimator"]:
        named = KERNELS.get(str(arguments["kernel"])) if sequential else kernel_of(arguments)
        given["kernel"] = named if kernel is None else kernel
        if given["kernel"] is None:
            raise StoreError(f"{path} was made with a kernel of your own: give it again, as kernel=")
    if written["algorithm"] not in ("rejection", "infer") and not sequential:
        given["proposal"] = proposal_of(arguments["proposal"], path) if proposal is None else proposal
        given["start"] = arguments["start"] if start is None else start
        if given["start"] == OWN:
            raise StoreError(f"{path} started from a Posterior: give it again, as start=")
    elif proposal is not None or start is not None:
        raise StoreError(f"{path} holds a run of {written['algorithm']}, which has no proposal and no start")
    return sampler(
        **given, store=Continue(path, force), segment=segment, max_seconds=max_seconds, workers=workers,
        executor=executor, progress=progress,
    )  # fmt: skip


def own_parts(path: File) -> list[str]:
    """Which of kernel, proposal and start were the user's own, so that they must be given to go on."""
    with Store(path) as store:
        arguments = _specification(store)["arguments"]
    return [name for name in ("kernel", "proposal", "start") if OWN in str(arguments.get(name))]


def replay(path: File, failure: int = 0, *, model: Model) -> Any:
    """Run one failed simulation again, with its own random stream, and let its exception through.

    `failure` counts the failures that the file keeps (`od.open(path).failures`). Where nothing is raised, the
    simulator's output is returned, as when it was not finite. Use it under a debugger.

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
    post = open(path)
    if not 0 <= failure < len(post.failures):
        raise ValueError(f"failure = {failure}: {path} keeps {len(post.failures)} failures, counted from 0")
    one = post.failures[failure]
    if set(one.theta) != set(model.prior.names):
        raise ValueError(f"the failure was at {one.theta}, the model has {list(model.prior.names)}")
    simulate = model.simulate
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
    with one_blas_thread():
        if isinstance(simulate, Staged):
            # All draws at one theta come from one stream, named by the first of them.
            together = _drawn_together(post, one)
            first = 0 if together > 1 else one.pseudo_sample
            value = simulate.draw(rng.single(0, first), simulate.prepare(**one.theta), together)
            layout = model.recipe.layout
            if model.summary is None:
                layout.flatten_batch(value, together)
            return value
        value = simulate(rng.single(0, one.pseudo_sample), **one.theta)
        model.recipe.layout.flatten(summarise_observed(model.summary, value))
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
    """A rejection posterior from simulations that a run kept, without a new one.

    The run must be one of `od.rejection(..., keep="all")`: its simulations are at draws from the prior, whatever the
    kernel, distance and data. The result is that of `od.rejection` with the same seed and as many proposals.

    Parameters
    ----------
    kernel
        The kernel, and with it the tolerance: larger or smaller than the run's.
    observed
        Other data to compare the simulations with.
    model
        Needed where there is a summary or distance of your own and something other than the kernel changes. Its
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
        raise ValueError(f"kernel must be a kernel such as od.uniform(0.1), got {kernel!r}")
    with Store(path) as store:
        written = _specification(store)
        if written["algorithm"] != "rejection":
            raise StoreError(
                f"{path} holds a run of {written['algorithm']}, whose simulations are not at draws from the prior: "
                "only those of od.rejection(..., keep='all') can be used again"
            )
        if written["arguments"].get("keep") != "all":
            raise StoreError(f"{path} kept no simulations that were rejected: run od.rejection(..., keep='all')")
        with _Form(path):
            distances_of = _distances(store, written, observed, model)
        return _accepted_again(store, written, kernel, distances_of, model, observed is not None or model is not None)


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
        if observed is not None:
            model = replace(model, observed=observed)
        if model.pilot:
            kept = [record.arrays["rows"] for record in store.records("pilot.segment")]
            if not kept:
                raise StoreError(
                    f"{store.path} has no pilot simulations from which {type(model.distance).__name__.lower()} could "
                    "learn, and simulations that are accepted must not be used for it: give od.scaled(scale=[...])"
                )
            rows = np.concatenate(kept)
            rows = rows[~np.isnan(rows[:, 0])]
            model = model.with_distance(model.distance.learnt(rows, model.labels()))
        there = model

        def by_model(rows: Array) -> Array:
            return there.distances(Simulated(rows, int(np.isnan(rows[:, :, 0]).sum())))

        return by_model
    if observed is None:
        return None
    if facts["summary"] or facts["distance"] == OWN:
        raise StoreError(
            f"{store.path} was made with a summary or distance of your own: give model= to compare with other data"
        )
    layout = Layout(None if facts["keys"] is None else tuple(facts["keys"]), tuple(map(tuple, facts["shapes"])))
    row = layout.flatten(observed)
    blank: Any = {"euclidean": Euclidean(), "scaled": Scaled(0), "mahalanobis": Mahalanobis(0)}[facts["distance"]]
    learnt = store.last("pilot")
    if learnt is not None:
        blank = ready(blank, learnt.arrays)
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
    store: Store, written: Mapping[str, Any], kernel: Kernel, distances_of: Any, model: Model | None, other: bool
) -> Posterior:
    arguments, columns = written["arguments"], _columns(written)
    basket = rejection.Basket(0)
    kept = 0
    for record in store.records("run.bank"):
        for block, theta, distances in _blocks(record, kept, distances_of):
            log_estimate = kernel.log_average(distances)
            rng = Rng(arguments["seed"], Phase.RUN, kept)
            chosen = rejection.choose(rng, log_estimate, 0.0)
            basket.theta.append(theta[chosen])
            basket.log_estimate.append(log_estimate[chosen])
            basket.distances.append(distances[chosen])
            basket.accepted += len(chosen)
            kept += block
    run = rejection.Basket(0)
    run.load(store.records("run.segment"))
    for name in ("simulations", "setups", "failed", "made"):
        setattr(basket, name, getattr(run, name))
    basket.failures = run.failures
    found = basket.collected(None, len(columns.names), "", 0.0)
    cost = _pilot_cost(store).plus(found.cost)
    status = Status("finished", f"finished: {len(found.theta):,} draws from {kept:,} kept proposals")
    named = {
        **arguments, "kernel": kernel.name, "eps": kernel.eps, "draws": None, "budget": None, "keep_distances": True
    }  # fmt: skip
    note = f"from the {found.cost.simulations:,} simulations kept in {store.path.name}; none is new"
    distance = written["facts"]["distance"]
    return rejection.posterior_of(found, columns, named, cost, status, kernel, distance, model, (note,))


def _blocks(record: Record, first: int, distances_of: Any) -> Any:
    """The blocks of proposals in a record of kept simulations: (size, theta, distances)."""
    arrays = record.arrays
    distances = arrays["distances"] if distances_of is None else distances_of(arrays["rows"].copy())
    top = 0
    for size in arrays["sizes"].tolist():
        rows = slice(top, top + size)
        yield size, arrays["theta"][rows], distances[rows]
        top += size
