"""One BLAS thread for simulations: a matrix product may differ in its last bits between one thread and two."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

_lock = threading.Lock()
_inside = 0
_limits: Any = None


def _renew_lock() -> None:
    """In a fork: a thread that is not there may have held it."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """BLAS runs with one thread in here; the limit is one for the process, and the last to leave lifts it."""
    global _inside, _limits
    with _lock:
        if _inside == 0:
            _limits = _thread_pools(len(sys.modules)).limit(limits=1)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _limits.restore_original_limits()


@lru_cache(maxsize=1)
def _thread_pools(modules: int) -> Any:
    """The BLAS libraries in this process; looked for again (3 ms) only if modules were imported since."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
