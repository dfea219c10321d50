"""Model files: how a command finds the model that a user's Python file defines, and shows the errors in that file."""

import importlib.util
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

import click

from onedraw.cli.wording import in_options
from onedraw.results.plain import printable

PREFIX = "onedraw_model_"
"""Of the module names of model files, so that they hide no other module."""
FIRST_TRACEBACK = "The first failure's traceback:"
OURS = str(Path(__file__).parent.parent)


def split(file: str) -> tuple[Path, str]:
    """File and name of `model.py:name`; a colon inside the path is left alone.

    >>> split("model.py:other")[1], split("model.py")[1]
    ('other', 'model')
    """
    path, colon, name = file.rpartition(":")
    if colon and path and name.isidentifier():
        return Path(path), name
    return Path(file), "model"


def loaded(path: Path, name: str = "model") -> Any:
    """A file as a module. Its errors keep their own traceback."""
    if not path.is_file():
        raise click.ClickException(
            f"there is no file {str(path)!r}: give a Python file that defines {name} = od.Model(...)"
        )
    module_name = PREFIX + path.stem
    specification = importlib.util.spec_from_file_location(module_name, path)
    if specification is None or specification.loader is None:
        raise click.ClickException(f"{path} is not a Python file: its name must end with .py")
    module = importlib.util.module_from_spec(specification)
    before = set(sys.modules)
    sys.modules[module_name] = module
    # Modules next to the file can be imported, as when it is run by itself; later too, by a simulator.
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # Not from byte code, which Python takes for current if size and second of a change are the same.
    exec(compile(path.read_bytes(), str(module.__file__), "exec"), module.__dict__)
    _send_by_value(module, [sys.modules[one] for one in set(sys.modules) - before], folder)
    return module


def _send_by_value(module: Any, others: list[Any], folder: str) -> None:
    """Workers cannot import a model file or modules next to it: send the functions themselves."""
    import cloudpickle

    installed = tuple({sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")})
    for one in (module, *others):
        file = getattr(one, "__file__", None) or ""
        beside = file.startswith(folder) and not file.startswith((*installed, OURS))
        if one is module or beside:
            cloudpickle.register_pickle_by_value(one)


def named(file: str, kind: type | None = None) -> tuple[Any, Any]:
    """What `model.py` or `model.py:name` names, of this type if one is given, and the file's module."""
    path, name = split(file)
    module = loaded(path, name)
    if not hasattr(module, name):
        from onedraw.model.model import Model

        others = [key for key, value in vars(module).items() if isinstance(value, Model)]
        remedy = f"say {path}:{others[0]}" if others else f"name the model with {path}:name"
        raise click.ClickException(f"{path} does not define {name!r}: {remedy}")
    value = getattr(module, name)
    if kind is not None and not isinstance(value, kind):
        raise click.ClickException(f"{name!r} in {path} is a {type(value).__name__}, not an od.{kind.__name__}")
    return value, module


def users_traceback(error: BaseException) -> str:
    """The traceback of an error from the first line of a model file on, without our own; "" if there is none."""
    files = {getattr(one, "__file__", None) for name, one in list(sys.modules.items()) if name.startswith(PREFIX)}
    found = traceback.TracebackException.from_exception(error)
    seen, mine = found, False
    while True:
        mine = _cut(seen, files) or mine
        below = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
        if below is None:
            break
        seen = below
    if isinstance(error, SyntaxError) and error.filename in files:
        mine = True
    return "".join(found.format()).rstrip() if mine else ""


def _cut(one: traceback.TracebackException, files: set[str | None]) -> bool:
    """Keep what comes after the first line of a user's file, without our lines; whether there was such a line."""
    first = next((i for i, frame in enumerate(one.stack) if frame.filename in files), None)
    kept = [] if first is None else one.stack[first:]
    # "<string>" is the code of a dataclass of ours.
    left = [frame for frame in kept if not frame.filename.startswith((OURS, "<string>"))]
    one.stack = traceback.StackSummary.from_list(left)
    return first is not None


def without_ours(text: str) -> str:
    """A traceback as text, without the lines that are ours."""
    kept, ours = [], False
    for line in text.splitlines():
        if line.startswith('  File "'):
            ours = line.startswith(f'  File "{OURS}')
        elif not line.startswith("    "):
            ours = False
        if not ours:
            kept.append(line)
    if FIRST_TRACEBACK in kept and not any(line.startswith('  File "') for line in kept):
        # None of the lines was the user's: what was raised is in the message already.
        del kept[kept.index(FIRST_TRACEBACK) :]
    return "\n".join(kept).rstrip()


class Group(click.Group):
    """The command line: errors of a user's file come with its traceback, mistakes in settings with one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of their use, not of the alphabet."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was given."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            vars(error)["message"] = printable(error.message)
            raise
        except (click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            shown = users_traceback(error)
            if shown:
                click.echo(printable(shown), err=True)
                ctx.exit(1)
            if isinstance(error, ValueError):
                raise click.ClickException(printable(in_options(without_ours(str(error))))) from error
            if isinstance(error, ImportError | OSError) or type(error).__name__ in ("WorkerError", "SimulationError"):
                raise click.ClickException(printable(without_ours(str(error)))) from error
            raise
