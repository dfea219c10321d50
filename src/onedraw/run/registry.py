"""The samplers, by name. A decorator on the public function is all that files, resuming and the command line need."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

from onedraw.arguments import a_function
from onedraw.model.model import Model
from onedraw.run.options import Options
from onedraw.run.recorded import Recorded, recorded_result
from onedraw.run.result import Result

Function = TypeVar("Function", bound=Callable[..., Any])


class Entry(NamedTuple):
    """A registered sampler."""

    function: Callable[..., Any]
    shown: Callable[[Recorded], Result]
    """The result so far of a run that a file holds."""
    kept: Callable[[Recorded, Model], Any] | None = None
    """What the Posterior keeps of its simulations, if that takes the model."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of its arguments, run options included."""
        return tuple(inspect.signature(self.function).parameters)

    @property
    def chooses_tolerance(self) -> bool:
        """Whether it finds a tolerance by itself if the kernel has none."""
        kernel = inspect.signature(self.function).parameters.get("kernel")
        return kernel is not None and kernel.default is None and "estimator" not in self.parameters


SAMPLERS: dict[str, Entry] = {}


def sampler(
    shown: Callable[[Recorded], Result] = recorded_result,
    kept: Callable[[Recorded, Model], Any] | None = None,
) -> Callable[[Function], Function]:
    """Register a sampler under its function's name.

    `shown` makes the result so far from a file, for samplers whose recorded segments are their draws; by default it is
    the last result that the run has recorded. `kept` makes from the file, with the model, what `post.observed` needs.
    The function's signature then names all run options (docs/extending.md).

    >>> import inspect
    >>> @sampler()
    ... def barker(model, kernel, *, draws=None, **options):
    ...     "Draws by Barker's rule."
    >>> list(inspect.signature(SAMPLERS.pop("barker").function).parameters)[:5]
    ['model', 'kernel', 'draws', 'seed', 'on_error']
    """

    a_function("shown", shown, "shown(recorded) -> Result")
    if kept is not None:
        a_function("kept", kept, "kept(recorded, model)")

    def register(function: Function) -> Function:
        signature = inspect.signature(function)
        given = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        options = [
            inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=_default(one), annotation=one.type)
            for one in fields(Options)
        ]
        function.__signature__ = signature.replace(parameters=[*given, *options])  # type: ignore[attr-defined]
        SAMPLERS[function.__name__] = Entry(function, shown, kept)
        return function

    return register


def _default(option: Any) -> Any:
    return None if option.name == "seed" else option.default
