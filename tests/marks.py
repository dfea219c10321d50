"""Which cases of a test are run by `make test`, and which by `make test-slow`."""

import pytest


def long_in_slow_tests(names, *long):
    """The names as parameters of a test; those in `long` take far more time than the others."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in long else name for name in names]
