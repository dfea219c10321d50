"""onedraw: likelihood-free Bayesian inference that spends every simulation well."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from onedraw.cost import Cost
from onedraw.engines.numba import compiled
from onedraw.estimators.average import Estimator, abc_average, handicapped, unbiased
from onedraw.estimators.particle_filter import particle_filter
from onedraw.model.distance import euclidean, mahalanobis, scaled
from onedraw.model.external import command
from onedraw.model.kernels import Kernel, epanechnikov, gaussian, kernel, laplace, triangular, uniform
from onedraw.model.model import Model
from onedraw.model.prior import Prior
from onedraw.model.simulator import Failure, SimulationError, batched, jax_simulator, staged
from onedraw.proposals.proposals import independence, lazy, random_walk
from onedraw.results.posterior import Posterior, Status
from onedraw.run.pool import WorkerError
from onedraw.run.record import StoreError
from onedraw.samplers.pseudo_marginal import pseudo_marginal
from onedraw.samplers.r_hit import r_hit
from onedraw.samplers.rejection import rejection
from onedraw.samplers.wilkinson import wilkinson

if TYPE_CHECKING:
    from onedraw.report import plots
    from onedraw.results.certificate import Certificate, certificate
    from onedraw.results.efficiency import Efficiency, running_time
    from onedraw.runs import open, replay, resume, reuse
    from onedraw.samplers.importance import importance
    from onedraw.samplers.infer import infer
    from onedraw.samplers.smc import smc
    from onedraw.tuning.advise import Advice, advise
    from onedraw.tuning.fit_summary import Fitted, fit_summary
    from onedraw.tuning.tolerance import Tolerance, tolerance_for

__version__ = "0.1.0"

LATER = {
    "onedraw.report.plots": ("plots",),
    "onedraw.runs": ("open", "replay", "resume", "reuse"),
    "onedraw.tuning.fit_summary": ("Fitted", "fit_summary"),
    "onedraw.samplers.importance": ("importance",),
    "onedraw.samplers.infer": ("infer",),
    "onedraw.samplers.smc": ("smc",),
    "onedraw.tuning.tolerance": ("Tolerance", "tolerance_for"),
    "onedraw.tuning.advise": ("Advice", "advise"),
    "onedraw.results.certificate": ("Certificate", "certificate"),
    "onedraw.results.efficiency": ("Efficiency", "running_time"),
}
"""Names that are imported when they are used, so that `import onedraw` stays quick."""


def __getattr__(name: str) -> Any:
    for module, names in LATER.items():
        if name in names:
            found = import_module(module)
            value = found if name == "plots" else getattr(found, name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'onedraw' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Advice",
    "Certificate",
    "Cost",
    "Efficiency",
    "Estimator",
    "Failure",
    "Fitted",
    "Kernel",
    "Model",
    "Posterior",
    "Prior",
    "SimulationError",
    "Status",
    "StoreError",
    "Tolerance",
    "WorkerError",
    "abc_average",
    "advise",
    "batched",
    "certificate",
    "command",
    "compiled",
    "epanechnikov",
    "euclidean",
    "fit_summary",
    "gaussian",
    "handicapped",
    "importance",
    "independence",
    "infer",
    "jax_simulator",
    "kernel",
    "laplace",
    "lazy",
    "mahalanobis",
    "open",
    "particle_filter",
    "plots",
    "pseudo_marginal",
    "r_hit",
    "random_walk",
    "rejection",
    "replay",
    "resume",
    "reuse",
    "running_time",
    "scaled",
    "smc",
    "staged",
    "tolerance_for",
    "triangular",
    "unbiased",
    "uniform",
    "wilkinson",
]
