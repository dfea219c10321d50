"""Time limits that pass at a known place, and waiting for what will be so, whatever the speed of the machine."""

import time
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


def wait_until(condition, seconds=40.0):
    """Until something is so, which is an error if it is not so in all that time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited for {seconds:g} s"
        time.sleep(0.02)
