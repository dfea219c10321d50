"""onedraw: likelihood-free Bayesian inference that spends every simulation well."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from onedraw.engines.numba import compiled
from onedraw.estimators.own import unbiased
from onedraw.failures import SimulationError
from onedraw.model.distance import euclidean, mahalanobis, scaled
from onedraw.model.external import command
from onedraw.model.hierarchy import vector
from onedraw.model.kernels import epanechnikov, gaussian, kernel, laplace, triangular, uniform
from onedraw.model.model import Model
from onedraw.model.pair import multifidelity, stages
from onedraw.model.prior import Prior
from onedraw.model.simulator import batched, jax_simulator, staged
from onedraw.proposals.independence import independence
from onedraw.proposals.lazy import lazy
from onedraw.proposals.random_walk import random_walk
from onedraw.results.posterior import HIGHER, Posterior
from onedraw.version import __version__ as __version__

if TYPE_CHECKING:
    from onedraw.estimators.particle_filter import particle_filter
    from onedraw.report import plots
    from onedraw.results.certificate import certificate
    from onedraw.run.earlier import bank_from_arrays
    from onedraw.run.job_array import job_array
    from onedraw.run.pool import WorkerError
    from onedraw.run.record import StoreError
    from onedraw.run.shard_files import ShardsMissing
    from onedraw.runs import load, replay, resume, reuse
    from onedraw.samplers.importance import importance
    from onedraw.samplers.infer import infer
    from onedraw.samplers.pseudo_marginal import pseudo_marginal
    from onedraw.samplers.r_hit import r_hit
    from onedraw.samplers.rejection import rejection
    from onedraw.samplers.smc import smc
    from onedraw.samplers.wilkinson import wilkinson
    from onedraw.tuning.advise import advise
    from onedraw.tuning.calibrate import calibrate
    from onedraw.tuning.compare import compare
    from onedraw.tuning.fit_summary import fit_summary
    from onedraw.tuning.tolerance import tolerance_for

LATER = {
    "particle_filter": "onedraw.estimators.particle_filter",
    "plots": "onedraw.report",
    "certificate": "onedraw.results.certificate",
    "bank_from_arrays": "onedraw.run.earlier",
    "job_array": "onedraw.run.job_array",
    "WorkerError": "onedraw.run.pool",
    "StoreError": "onedraw.run.record",
    "ShardsMissing": "onedraw.run.shard_files",
    "load": "onedraw.runs",
    "replay": "onedraw.runs",
    "resume": "onedraw.runs",
    "reuse": "onedraw.runs",
    "importance": "onedraw.samplers.importance",
    "infer": "onedraw.samplers.infer",
    "pseudo_marginal": "onedraw.samplers.pseudo_marginal",
    "r_hit": "onedraw.samplers.r_hit",
    "rejection": "onedraw.samplers.rejection",
    "smc": "onedraw.samplers.smc",
    "wilkinson": "onedraw.samplers.wilkinson",
    "advise": "onedraw.tuning.advise",
    "calibrate": "onedraw.tuning.calibrate",
    "compare": "onedraw.tuning.compare",
    "fit_summary": "onedraw.tuning.fit_summary",
    "tolerance_for": "onedraw.tuning.tolerance",
}
"""Names that are imported when they are used, so that `import onedraw` stays quick."""


def _later(module: str, name: str) -> Callable[..., Any]:
    """A function whose module is imported when it is called."""
    return lambda *given, **named: getattr(import_module(module), name)(*given, **named)


HIGHER["efficiency"] = _later("onedraw.results.efficiency", "efficiency")
HIGHER["adjust"] = _later("onedraw.results.adjustment", "adjusted")
HIGHER["observed"] = _later("onedraw.run.other_data", "observed")
HIGHER["misfit"] = _later("onedraw.results.misfit", "misfit_of")
HIGHER["resample"] = _later("onedraw.results.export", "resampled")
HIGHER["to_dataframe"] = _later("onedraw.results.export", "dataframe")
HIGHER["to_datatree"] = _later("onedraw.results.export", "datatree")
HIGHER["plot"] = _later("onedraw.report.plots", "plot")
HIGHER["calibration"] = _later("onedraw.report.calibration", "write_calibration")
HIGHER["comparison"] = _later("onedraw.report.comparison", "write_comparison")
HIGHER["report"] = _later("onedraw.report.page", "write_report")


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module 'onedraw' has no attribute {name!r}")
    value = import_module("onedraw.report.plots") if name == "plots" else getattr(import_module(LATER[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Model",
    "Posterior",
    "Prior",
    "ShardsMissing",
    "SimulationError",
    "StoreError",
    "WorkerError",
    "advise",
    "bank_from_arrays",
    "batched",
    "calibrate",
    "certificate",
    "command",
    "compare",
    "compiled",
    "epanechnikov",
    "euclidean",
    "fit_summary",
    "gaussian",
    "importance",
    "independence",
    "infer",
    "jax_simulator",
    "job_array",
    "kernel",
    "laplace",
    "lazy",
    "load",
    "mahalanobis",
    "multifidelity",
    "particle_filter",
    "plots",
    "pseudo_marginal",
    "r_hit",
    "random_walk",
    "rejection",
    "replay",
    "resume",
    "reuse",
    "scaled",
    "smc",
    "staged",
    "stages",
    "tolerance_for",
    "triangular",
    "unbiased",
    "uniform",
    "vector",
    "wilkinson",
]
