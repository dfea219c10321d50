"""Fingerprints of functions and data, to see on resume whether they are still the same.

Seen are: a function's bytecode with its constants and names, its defaults, the values in its closure, the values of
the globals it reads (numbers, text, arrays, containers of them, and functions, followed within the user's code); arrays
by their bytes; SciPy's frozen distributions by name and arguments; objects by their class's functions and their
attributes; partial functions, bound methods and marked simulators by what they wrap.

Not seen are: the inside of compiled code and of installed packages, what a module does beyond the functions named,
files that are read, and state that a function reaches by other ways. Comments, line numbers and docstrings do not
count.
"""

import functools
import hashlib
import sys
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

OURS = ("onedraw", "numpy", "scipy")
"""Packages whose versions are recorded with a run."""
HAS_DOCSTRING = 0x4000000
"""A flag of code objects from Python 3.13 on."""


def fingerprint(value: Any) -> dict[str, str]:
    """Digests of what makes up a value: of a function its code, closure and globals one by one, else one.

    >>> def times(rate):
    ...     return lambda x: rate * x
    >>> sorted(fingerprint(times(2.0)))
    ['closure rate', 'code']
    >>> before, after = fingerprint(times(2.0)), fingerprint(times(3.0))
    >>> [name for name in before if before[name] != after[name]]
    ['closure rate']
    """
    function = value
    while not isinstance(function, types.FunctionType) and callable(getattr(function, "function", None)):
        function = function.function
    if isinstance(function, types.FunctionType):
        wrapped = "" if function is value else type(value).__name__
        return {name: _digest((wrapped, part)) for name, part in _function_parts(function).items()}
    return {"value": _digest(value)}


def _digest(value: Any) -> str:
    hashed = hashlib.blake2b(digest_size=12)
    _feed(hashed, value, {})
    return hashed.hexdigest()


def _function_parts(function: types.FunctionType) -> dict[str, Any]:
    """Code, defaults, closure and globals of a function, by name."""
    parts: dict[str, Any] = {"code": function.__code__}
    if function.__defaults__ or function.__kwdefaults__:
        parts["defaults"] = (function.__defaults__, function.__kwdefaults__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            parts[f"closure {name}"] = cell.cell_contents
        except ValueError:
            parts[f"closure {name}"] = None
    if not _foreign(function.__module__):
        for name in sorted(_names(function.__code__)):
            if name in function.__globals__:
                parts[f"global {name}"] = function.__globals__[name]
    return parts


def _names(code: types.CodeType) -> set[str]:
    """The globals that code reads: not all its names, since an attribute may be called like a global."""
    import dis

    names = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


@functools.lru_cache(maxsize=1024)
def _foreign(module: str | None) -> bool:
    """Whether a module was installed and not written by the user: its functions are named, not read."""
    name = module or ""
    if name == "__main__":
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    if name.split(".")[0] in OURS or file is None:
        return True
    import sysconfig

    places = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return file.startswith(tuple(f"{place}/" for place in places))


def _feed(hashed: Any, value: Any, seen: dict[int, tuple[int, Any]]) -> None:
    """Add a value to the hash. `seen` numbers what was met before (and keeps it alive, so that ids stay its own)."""

    def text(*words: Any) -> None:
        hashed.update(("\x1f".join(map(str, words)) + "\x1e").encode())

    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic):
        text(type(value).__name__, repr(value.item() if isinstance(value, np.generic) else value))
        return
    if id(value) in seen:
        text("again", seen[id(value)][0])
        return
    seen[id(value)] = (len(seen), value)

    def inside(*values: Any) -> None:
        for one in values:
            _feed(hashed, one, seen)

    if isinstance(value, np.ndarray):
        text("array", value.dtype.str, value.shape)
        if value.dtype.hasobject:
            inside(*value.ravel().tolist())
        else:
            hashed.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, types.CodeType):
        import dis

        # Instruction by instruction with what each refers to: places in tables shift with a docstring.
        text("code", value.co_varnames, value.co_argcount, value.co_kwonlyargcount, value.co_flags & ~HAS_DOCSTRING)
        for one in dis.get_instructions(value):
            text(one.opname)
            inside(one.argval)
    elif isinstance(value, list | tuple):
        text(type(value).__name__, len(value))
        inside(*value)
    elif isinstance(value, Mapping):
        text("mapping", len(value))
        for key in value:
            inside(key, value[key])
    elif isinstance(value, set | frozenset):
        text("set", *sorted(_digest(one) for one in value))
    elif isinstance(value, types.FunctionType):
        text("function")
        parts = _function_parts(value)
        if _foreign(value.__module__):
            text(value.__module__, value.__qualname__)
            del parts["code"]
        inside(parts)
    elif isinstance(value, types.MethodType):
        inside(value.__func__, value.__self__)
    elif isinstance(value, functools.partial):
        text("partial")
        inside(value.func, value.args, value.keywords)
    elif isinstance(value, types.ModuleType):
        text("module", value.__name__)
    elif isinstance(value, type):
        text("class", value.__qualname__)
        if not _foreign(value.__module__):
            inside(*(one for _, one in sorted(vars(value).items()) if isinstance(one, types.FunctionType)))
    elif hasattr(value, "dist") and hasattr(value, "args") and hasattr(value, "kwds"):
        text("distribution", getattr(value.dist, "name", type(value.dist).__name__))
        inside(value.args, value.kwds)
    elif isinstance(getattr(value, "py_func", None), types.FunctionType):
        inside(value.py_func)
    elif is_dataclass(value):
        kept = [field.name for field in fields(value) if field.metadata.get("fingerprint", True)]
        inside(type(value), {name: getattr(value, name) for name in kept})
    else:
        inside(type(value))
        text(getattr(value, "__module__", ""), getattr(value, "__qualname__", ""))
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            inside({key: one for key, one in attributes.items() if not key.startswith("__")})
