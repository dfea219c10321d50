"""Time limits that pass at a known place, whatever the speed of the machine."""

from contextlib import contextmanager
from unittest.mock import patch

from onedraw.run.blocks import Deadline

LONG = 1000.0
"""Seconds: a limit that no test reaches, for runs that are stopped by `up_after`."""


@contextmanager
def up_after(looks):
    """Time limits of this thread's runs pass when they are looked at for the time after `looks`."""
    seen = []

    def passed(deadline):
        if deadline.max_seconds is None:
            return False
        seen.append(1)
        return len(seen) > looks

    with patch.object(Deadline, "passed", passed):
        yield seen
