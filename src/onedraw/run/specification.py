"""What a run is, for its file: plain arguments, fingerprints of the user's own parts, and the way back.

Built-in kernels and proposals are written as words and numbers and can be made again from the file; a function of
the user's is never stored, only its fingerprint, and must be given again to go on.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from onedraw.engines.children import Limited
from onedraw.estimators.abc_average import AbcAverage
from onedraw.estimators.handicapped import Handicapped
from onedraw.model import kernels
from onedraw.model.kernels import Kernel
from onedraw.model.model import Model
from onedraw.model.pair import ContinuationRule, Pair
from onedraw.model.prior import Prior
from onedraw.proposals.independence import Independence
from onedraw.proposals.lazy import Lazy
from onedraw.proposals.random_walk import RandomWalk
from onedraw.results.posterior import Posterior
from onedraw.run.fingerprint import fingerprint
from onedraw.run.record import StoreError
from onedraw.run.saving import Specification

KERNELS = {
    made.__name__: made
    for made in (kernels.uniform, kernels.gaussian, kernels.epanechnikov, kernels.triangular, kernels.laplace)
}
OWN = "your own"
"""Stands in a file for a part that cannot be made again from it."""


def specify(algorithm: str, estimator: Any, arguments: Mapping[str, Any], **parts: Any) -> Specification:
    """The specification of a run with this estimator; `parts` are the proposal and the start of chains."""
    prior: Prior = estimator.prior
    inner = estimator.estimator if isinstance(estimator, Handicapped) else estimator
    abc = inner if isinstance(inner, AbcAverage) else None
    facts: dict[str, Any] = {**prior_facts(prior), "estimator": abc is not estimator}
    named: dict[str, Any] = {"parameters": list(prior.names)}
    if abc is not None and abc is estimator:
        named |= {"kernel": kernel_name(abc.kernel), "eps": abc.kernel.eps}
        facts["kernel"] = abc.kernel.name
    prints = {"prior": fingerprint(prior)}
    if abc is not None:
        prints |= model_parts(abc.model)
        facts |= model_facts(abc.model)
        if kernel_name(abc.kernel) == OWN:
            prints["kernel"] = fingerprint(abc.kernel.profile)
    if isinstance(estimator, Handicapped):
        prints["estimator"] = fingerprint(estimator.alpha)
    elif abc is None:
        prints["estimator"] = fingerprint(estimator)
    if "proposal" in parts:
        named["proposal"] = proposal_as_json(parts["proposal"])
        if OWN in str(named["proposal"]):
            prints["proposal"] = fingerprint(parts["proposal"])
    if "start" in parts:
        named["start"], prints["start"] = _start(parts["start"])
    return Specification(algorithm, named | dict(arguments), prints, facts)


def specify_model(algorithm: str, model: Model, arguments: Mapping[str, Any], **parts: Any) -> Specification:
    """The specification of a run with this model and no kernel; `parts` are what else its numbers depend on."""
    prints = {"prior": fingerprint(model.prior), **model_parts(model)}
    prints |= {name: fingerprint(part) for name, part in parts.items()}
    facts = {**prior_facts(model.prior), "estimator": False, **model_facts(model)}
    return Specification(algorithm, {"parameters": list(model.prior.names), **arguments}, prints, facts)


def prior_facts(prior: Prior) -> dict[str, Any]:
    """What a reader must know of a prior to give draws their names."""
    shapes = [list(shape) for shape in prior.layout.shapes]
    return {"discrete": [bool(one) for one in prior.discrete], "parameter_shapes": shapes}


def model_parts(model: Model) -> dict[str, dict[str, str]]:
    """Fingerprints of a model's parts, the prior left out."""
    simulate = model.simulate
    if isinstance(simulate, Limited):
        simulate = simulate.function
    if isinstance(simulate, Pair):
        # What was learnt follows from the rest.
        rule = None if isinstance(simulate.continuation, ContinuationRule) else simulate.continuation
        first, second = (one.function if isinstance(one, Limited) else one for one in (simulate.first, simulate.second))
        said = (simulate.signed, simulate.price, simulate.floor, simulate.pilot, simulate.common)
        simulators = {
            "model.simulate (first part)": first, "model.simulate (second part)": second,
            "model.simulate (signal)": simulate.signal, "model.simulate (continuation)": rule,
            "model.simulate (price, floor, pilot, common)": said,
        }  # fmt: skip
    elif hasattr(simulate, "prepare"):
        simulators = {"model.simulate (prepare)": simulate.prepare, "model.simulate (draw)": simulate.draw}
    else:
        simulators = {"model.simulate": simulate}
    every = {**simulators, "model.summary": model.summary, "model.distance": model.distance, "observed": model.observed}
    return {name: fingerprint(part) for name, part in every.items()}


def model_facts(model: Model) -> dict[str, Any]:
    """What `od.reuse` and `od.replay` need to know of a model."""
    layout = model.recipe.layout
    return {
        "distance": distance_name(model.distance),
        "summary": model.summary is not None,
        "keys": layout.keys if layout.keys is None else list(layout.keys),
        "shapes": [list(shape) for shape in layout.shapes],
    }


def distance_name(distance: Any) -> str:
    """The name of a built-in distance."""
    name = type(distance).__name__.lower()
    return name if type(distance).__module__ == "onedraw.model.distance" else OWN


def distance_setting(model: Model) -> Any:
    """The distance as a run's settings have it, with what it has learnt."""
    scale = getattr(model.distance, "scale", None)
    name = getattr(model.distance, "__name__", type(model.distance).__name__).lower()
    return name if scale is None else {"name": name, "scale": np.asarray(scale).tolist()}


def kernel_name(kernel: Kernel) -> str:
    """The name of a built-in kernel."""
    made = KERNELS.get(kernel.name)
    return kernel.name if made is not None and made(1.0).profile is kernel.profile else OWN


def kernel_of(arguments: Mapping[str, Any]) -> Kernel | None:
    """The kernel that a file names; None where it was the user's own or there was none."""
    made = KERNELS.get(str(arguments.get("kernel")))
    return None if made is None else made(arguments["eps"])


def proposal_as_json(proposal: Any) -> Any:
    """A proposal as words and numbers; None is the default."""
    if proposal is None:
        return None
    if isinstance(proposal, RandomWalk):
        cov = None if proposal.cov is None else np.asarray(proposal.cov).tolist()
        return {"name": "random_walk", "cov": cov, "scale": proposal.scale}
    if isinstance(proposal, Independence) and proposal.distribution is None:
        return {"name": "independence"}
    if isinstance(proposal, Lazy):
        return {"name": "lazy", "hold": proposal.hold, "proposal": proposal_as_json(proposal.proposal)}
    return OWN


def proposal_of(written: Any, path: Any) -> Any:
    """The proposal that a file names; a StoreError where it was the user's own."""
    if written is None:
        return None
    if isinstance(written, dict) and written.get("name") == "random_walk":
        cov = written["cov"]
        return RandomWalk(None if cov is None else np.array(cov, dtype=float), written["scale"])
    if isinstance(written, dict) and written.get("name") == "independence":
        return Independence(None)
    if isinstance(written, dict) and written.get("name") == "lazy":
        return Lazy(proposal_of(written["proposal"], path), float(written["hold"]))
    raise StoreError(f"{path} was made with a proposal of your own: give it again, as proposal=")


def _start(start: Any) -> tuple[Any, dict[str, str]]:
    """A start as a word or points, and its fingerprint."""
    if isinstance(start, str):
        return start, {}
    if isinstance(start, Posterior):
        return OWN, fingerprint((dict(start.draws), start.weights, start.distances))
    try:
        if isinstance(start, Mapping):
            return {str(name): np.asarray(values, dtype=float).tolist() for name, values in start.items()}, {}
        return np.asarray(start, dtype=float).tolist(), {}
    except (TypeError, ValueError):
        # Not points: the sampler says so in better words.
        return OWN, {}
