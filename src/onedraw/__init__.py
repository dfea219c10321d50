"""onedraw: likelihood-free Bayesian inference that spends every simulation well."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from onedraw.command import command
from onedraw.compiled import compiled
from onedraw.cost import Cost
from onedraw.distance import euclidean, mahalanobis, scaled
from onedraw.engine.crew import WorkerError
from onedraw.engine.record import StoreError
from onedraw.estimator import Estimator, abc_average, handicapped, unbiased
from onedraw.kernels import Kernel, epanechnikov, gaussian, kernel, laplace, triangular, uniform
from onedraw.model import Model
from onedraw.particle_filter import particle_filter
from onedraw.posterior import Posterior, Status
from onedraw.prior import Prior
from onedraw.proposal import independence, lazy, random_walk
from onedraw.samplers.pseudo_marginal import pseudo_marginal
from onedraw.samplers.r_hit import r_hit
from onedraw.samplers.rejection import rejection
from onedraw.samplers.wilkinson import wilkinson
from onedraw.simulator import Failure, SimulationError, batched, jax_simulator, staged

if TYPE_CHECKING:
    from onedraw.report import plots
    from onedraw.runs import open, replay, resume, reuse
    from onedraw.samplers.fit_summary import Fitted, fit_summary
    from onedraw.samplers.importance import importance
    from onedraw.samplers.infer import infer
    from onedraw.samplers.smc import smc
    from onedraw.samplers.tolerance import Tolerance, tolerance_for
    from onedraw.theory.advise import Advice, advise
    from onedraw.theory.bounds import Certificate, certificate
    from onedraw.theory.efficiency import Efficiency, running_time

__version__ = "0.1.0"

LATER = {
    "onedraw.report.plots": ("plots",),
    "onedraw.runs": ("open", "replay", "resume", "reuse"),
    "onedraw.samplers.fit_summary": ("Fitted", "fit_summary"),
    "onedraw.samplers.importance": ("importance",),
    "onedraw.samplers.infer": ("infer",),
    "onedraw.samplers.smc": ("smc",),
    "onedraw.samplers.tolerance": ("Tolerance", "tolerance_for"),
    "onedraw.theory.advise": ("Advice", "advise"),
    "onedraw.theory.bounds": ("Certificate", "certificate"),
    "onedraw.theory.efficiency": ("Efficiency", "running_time"),
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
