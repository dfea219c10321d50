"""onedraw: likelihood-free Bayesian inference that spends every simulation well."""

from onedraw.cost import Cost
from onedraw.distance import euclidean, mahalanobis, scaled
from onedraw.engine.store import StoreError
from onedraw.estimator import Estimator, abc_average, handicapped, unbiased
from onedraw.fit_summary import Fitted, fit_summary
from onedraw.infer import infer
from onedraw.kernels import Kernel, epanechnikov, gaussian, kernel, laplace, triangular, uniform
from onedraw.model import Model
from onedraw.posterior import Posterior, Status
from onedraw.prior import Prior
from onedraw.proposal import independence, lazy, random_walk
from onedraw.runs import open, replay, resume, reuse
from onedraw.samplers.importance import importance
from onedraw.samplers.pseudo_marginal import pseudo_marginal
from onedraw.samplers.r_hit import r_hit
from onedraw.samplers.rejection import rejection
from onedraw.samplers.smc import smc
from onedraw.samplers.tolerance import Tolerance, tolerance_for
from onedraw.samplers.wilkinson import wilkinson
from onedraw.simulator import Failure, SimulationError, batched, staged
from onedraw.theory.advise import Advice, advise
from onedraw.theory.bounds import Certificate, certificate
from onedraw.theory.efficiency import Efficiency, running_time

__version__ = "0.1.0"

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
    "abc_average",
    "advise",
    "batched",
    "certificate",
    "epanechnikov",
    "euclidean",
    "fit_summary",
    "gaussian",
    "handicapped",
    "importance",
    "independence",
    "infer",
    "kernel",
    "laplace",
    "lazy",
    "mahalanobis",
    "open",
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
