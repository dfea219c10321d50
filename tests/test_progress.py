"""Progress: who sees what, when, and that short runs leave no trace in a log."""

import io
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from scipy import stats

import onedraw as od
from onedraw.run import progress
from onedraw.run.progress import Progress, Tick

MODEL = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)


class Clock:
    """A clock that the test sets."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress.time, "perf_counter", clock.perf_counter)
    return clock


class Terminal(io.StringIO):
    def isatty(self):
        return True


def outside_pytest(monkeypatch, stderr):
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)
    monkeypatch.setattr(sys, "stderr", stderr)


def test_a_log_gets_a_line_every_30_seconds(monkeypatch, clock):
    log = io.StringIO()
    outside_pytest(monkeypatch, log)
    with Progress(None, "rejection", 1000, "draws") as bar:
        for second in range(1, 101):
            clock.now += 1
            bar.update(5 * second, "0.01 accepted", 50 * second)
    lines = log.getvalue().splitlines()
    assert lines == [
        f"rejection: {5 * s} of 1,000 ({s // 2} %) draws, 50 simulations/s, {left} left, 0.01 accepted"
        for s, left in ((30, "2:50"), (60, "2:20"), (90, "1:50"))
    ]


def test_a_short_run_leaves_no_line(monkeypatch, clock):
    log = io.StringIO()
    outside_pytest(monkeypatch, log)
    with Progress(True, "rejection", 1000, "draws") as bar:
        for _ in range(29):
            clock.now += 1
            bar.update(1)
    assert log.getvalue() == ""


def test_a_terminal_gets_a_bar_after_a_second(monkeypatch):
    terminal = Terminal()
    outside_pytest(monkeypatch, terminal)
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    with Progress(None, "smc", 100, "simulations") as bar:
        bar.update(10, "[bold]eps = 0.5[/bold]")
        bar.update(50, "[bold]eps = 0.5[/bold]")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    # A note is text: what looks like markup stays.
    assert "50/100 simulations" in shown and "[bold]eps = 0.5[/bold]" in shown and "left" in shown
    quick = Terminal()
    monkeypatch.setattr(sys, "stderr", quick)
    monkeypatch.setattr(progress, "QUIET_SECONDS", 60.0)
    with Progress(None, "smc", 100) as bar:
        bar.update(10)
    assert quick.getvalue() == ""


def test_a_notebook_gets_one_output_that_replaces_itself(monkeypatch, clock):
    written, shown = io.StringIO(), []

    class Handle:
        def update(self, output, raw):
            assert raw
            shown.append(output)

    def display(output, raw, display_id):
        assert raw and display_id is True and not shown
        shown.append(output)
        return Handle()

    outside_pytest(monkeypatch, written)
    monkeypatch.setattr(progress, "_in_notebook", lambda: True)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    with Progress(None, "<rejection>", 8, "draws") as bar:
        for second in range(1, 5):
            clock.now += 1
            bar.update(second)
    assert written.getvalue() == ""
    assert shown[-2]["text/plain"] == "<rejection>: 4 of 8 (50 %) draws, 1 draws/s, 0:04 left"
    assert '<progress value="4" max="8"' in shown[-2]["text/html"] and "&lt;rejection&gt;" in shown[-2]["text/html"]
    # Nothing is left when it is done.
    assert shown[-1] == {"text/plain": "", "text/html": ""} and len(shown) == 5


def test_a_function_is_called_at_once_at_the_end_and_not_too_often(clock):
    seen = []
    with Progress(seen.append, "rejection", 100, "draws") as bar:
        for done in range(1, 101):
            clock.now += 0.03
            bar.update(done, "note")
    assert [tick.done for tick in seen] == [1, *range(5, 101, 4), *([] if (100 - 5) % 4 == 0 else [100])]
    assert seen[-1].total == 100 and seen[-1].note == "note" and seen[-1].left == 0
    assert seen[-1].speed == pytest.approx(1 / 0.03)


def test_speed_of_a_run_that_goes_on_counts_this_session(clock):
    seen = []
    with Progress(seen.append, "rejection", 2000, "draws") as bar:
        bar.update(1000)
        clock.now += 10.0
        bar.update(1100)
    assert seen[0].speed is None and seen[0].left is None
    assert seen[-1].speed == pytest.approx(10.0) and seen[-1].left == pytest.approx(90.0)


def test_samplers_call_a_function():
    seen = []
    post = od.rejection(MODEL, od.uniform(0.5), draws=200, seed=1, progress=seen.append)
    assert post.shape == (1, 200)
    assert all(isinstance(tick, Tick) for tick in seen)
    assert seen[-1][:4] == ("rejection", 200, 200, "draws") and "accepted" in seen[-1].note
    labels = []
    od.pseudo_marginal(
        MODEL, od.uniform(0.5), draws=50, chains=4, seed=1, progress=lambda tick: labels.append(tick.label)
    )
    assert list(dict.fromkeys(labels)) == ["starting points", "pseudo_marginal"]


def test_the_same_bytes_whoever_looks():
    quiet = od.rejection(MODEL, od.uniform(0.5), draws=100, seed=1)
    seen = od.rejection(MODEL, od.uniform(0.5), draws=100, seed=1, progress=lambda tick: None)
    assert quiet.draws["theta"].tobytes() == seen.draws["theta"].tobytes()


def test_an_error_of_the_function_reaches_its_author():
    def wrong(tick):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        od.rejection(MODEL, od.uniform(0.5), draws=100, seed=1, progress=wrong)


@pytest.mark.parametrize("wrong", ["yes", 3, int, Progress, lambda: None, lambda done, total: None])
def test_wrong_values_are_refused(wrong):
    with pytest.raises(ValueError, match="progress must be True, False or None, or a function"):
        Progress(wrong, "", None)


def test_silent_under_pytest_and_in_a_log_of_a_short_run(monkeypatch):
    assert "PYTEST_CURRENT_TEST" in os.environ
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    with Progress(None, "rejection", 10) as bar:
        bar.update(5)
    assert terminal.getvalue() == ""
    code = (
        "import onedraw as od\nfrom scipy import stats\n"
        "model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta), observed=2.0)\n"
        "od.rejection(model, od.uniform(0.5), draws=20, seed=1)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == run.stderr == ""
