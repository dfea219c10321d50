"""onedraw: likelihood-free Bayesian inference that spends every simulation well."""

from onedraw.cost import Cost
from onedraw.distance import euclidean, mahalanobis, scaled
from onedraw.estimator import Estimator, abc_average, handicapped, unbiased
from onedraw.kernels import Kernel, epanechnikov, gaussian, kernel, laplace, triangular, uniform
from onedraw.model import Model
from onedraw.posterior import Posterior, Status
from onedraw.prior import Prior
from onedraw.samplers.rejection import rejection
from onedraw.simulator import Failure, SimulationError, batched, staged

__version__ = "0.1.0"

__all__ = [
    "Cost",
    "Estimator",
    "Failure",
    "Kernel",
    "Model",
    "Posterior",
    "Prior",
    "SimulationError",
    "Status",
    "abc_average",
    "batched",
    "epanechnikov",
    "euclidean",
    "gaussian",
    "handicapped",
    "kernel",
    "laplace",
    "mahalanobis",
    "rejection",
    "scaled",
    "staged",
    "triangular",
    "unbiased",
    "uniform",
]
