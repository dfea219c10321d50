"""The engine that computes a run's estimates."""

from dataclasses import replace
from typing import Any

from onedraw.estimators.abc_average import AbcAverage
from onedraw.estimators.handicapped import Handicapped
from onedraw.model.prior import FAMILIES
from onedraw.model.simulator import JaxSimulator


def placed(estimator: Any, engine: Any) -> Any:
    """The estimator on the engine that a run asks for, or None for the one that its simulator is for."""
    inner = estimator.estimator if isinstance(estimator, Handicapped) else estimator
    on_jax = isinstance(inner, AbcAverage) and isinstance(inner.model.simulate, JaxSimulator)
    if not isinstance(engine, str | None):
        raise ValueError(
            f"engine must be None, 'numpy', 'numba', 'jax', 'jax:float32' or 'jax:float64', got {engine!r}"
        )
    if engine == "numba" and not (isinstance(inner, AbcAverage) and inner.model.compiled):
        raise ValueError("engine='numba' needs a simulator made by od.compiled(function): leave engine= out")
    if engine in (None, "numpy", "numba"):
        if on_jax and engine == "numpy":
            raise ValueError("engine='numpy' cannot run a simulator made by od.jax_simulator: leave engine= out")
        if not on_jax:
            return estimator
    if isinstance(inner, AbcAverage) and not on_jax:
        raise ValueError(
            f"engine={engine!r} needs a simulator made by od.jax_simulator(function), with function(key, **parameters) "
            "written with jax.numpy: this model's is for NumPy; leave engine= out"
        )
    if not isinstance(inner, AbcAverage) and not hasattr(inner, "on_device"):
        raise ValueError(
            f"engine={engine!r} cannot run an estimator of your own class {type(inner).__name__}: write it as a "
            "function with jax.numpy, od.unbiased(function, prior), or leave engine= out"
        )
    if not estimator.prior.on_device:
        raise ValueError(
            f"engine={engine or 'jax'!r} has no JAX form of this prior: it takes {', '.join(FAMILIES)} with bounded "
            "densities, also as vectors (where= may be used), and no functions of other parameters; draw what depends "
            "on them inside the simulator, or leave engine= out if the simulator is for NumPy"
        )
    try:
        from onedraw.engines.jax import Engine
    except ImportError as error:
        raise ValueError(f'engine={engine!r} needs JAX: install it with pip install "onedraw[jax]"') from error

    chosen = Engine.named(engine or "jax")
    if isinstance(inner, AbcAverage):
        return estimator.with_model(inner.model.placed(chosen))
    if isinstance(estimator, Handicapped):
        return replace(estimator, estimator=replace(inner, engine=chosen))
    return replace(estimator, engine=chosen)
