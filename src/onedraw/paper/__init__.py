"""What only researchers need: exact finite chains, the checks of the theorems, the paper's study and its contrast.

>>> from onedraw import paper
>>> problem = paper.Problem(prior=[0.5, 0.5], proposal=[[0.5, 0.5], [0.5, 0.5]], law=paper.bernoulli([0.2, 0.4]))
>>> round(paper.integrated_autocorrelation([0.0, 1.0], paper.finite_chains.pseudo_marginal(problem)), 3)
5.667
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onedraw.estimators.abc_average import abc_average
    from onedraw.estimators.handicapped import handicapped
    from onedraw.paper import finite_chains
    from onedraw.paper.finite_chains import (
        Chain,
        Law,
        Problem,
        asymptotic_variance,
        bernoulli,
        discretise,
        integrated_autocorrelation,
        variance_form,
    )
    from onedraw.paper.verification import Verification, rerun, verify
    from onedraw.results.efficiency import running_time

__all__ = [
    "Chain",
    "Law",
    "Problem",
    "Verification",
    "abc_average",
    "asymptotic_variance",
    "bernoulli",
    "discretise",
    "finite_chains",
    "handicapped",
    "integrated_autocorrelation",
    "rerun",
    "running_time",
    "variance_form",
    "verify",
]

ELSEWHERE = {
    "abc_average": "onedraw.estimators.abc_average",
    "handicapped": "onedraw.estimators.handicapped",
    "running_time": "onedraw.results.efficiency",
    "Verification": "onedraw.paper.verification",
    "rerun": "onedraw.paper.verification",
    "verify": "onedraw.paper.verification",
}
"""Where names that are not in finite_chains are defined; all are imported when they are used."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'onedraw.paper' has no attribute {name!r}")
    found = import_module(ELSEWHERE.get(name, "onedraw.paper.finite_chains"))
    value = found if name == "finite_chains" else getattr(found, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
