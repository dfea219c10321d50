"""Commands that look at a run's file, also while the run goes on: `onedraw show` and `onedraw watch`."""

import math
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import click

from onedraw.cli.text import as_json, described, opened, text

EVERY = 2.0


@click.command(short_help="Say what a run is, how far it is, and what it found.")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--failures", is_flag=True, help="Show the failed simulations that the file keeps, with tracebacks.")
@click.option("--json", "json_wanted", is_flag=True, help="Print one JSON object instead of text.")
def show(file: str, failures: bool, json_wanted: bool) -> None:
    """Say what the run in FILE is, how far it is, and what its draws say."""
    post = opened(file)
    click.echo(as_json(described(post, failures)) if json_wanted else text(post, failures))


class Look(NamedTuple):
    """One look at a run's file."""

    post: Any
    writer: str | None
    """Who writes the file at this moment."""
    age: float
    """Seconds since it was last written."""
    changed: float
    """When it was, by the file system's clock."""


@click.command(short_help="See from another terminal how a run goes.")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option(
    "--every", type=click.FloatRange(min=0.1), default=EVERY, show_default=True, help="Seconds between looks."
)
@click.option("--once", is_flag=True, help="Look once.")
@click.option("--json", "json_wanted", is_flag=True, help="Print one line of JSON for each look.")
def watch(file: str, every: float, once: bool, json_wanted: bool) -> None:
    """See from another terminal how the run in FILE goes, until it ends.

    What is shown is what the run has saved: it saves every 30 seconds unless it was told otherwise (--segment).
    """
    look = looked(file)
    before: Look | None = None
    if json_wanted or once or not sys.stdout.isatty():
        while True:
            click.echo(as_json(_told(look, before), None) if json_wanted else _panel(look, before))
            if once or look.writer is None:
                return
            before, look = look, _next(file, look, every)
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    try:
        with Live(Text(_panel(look, None)), console=Console(), auto_refresh=False, transient=False) as live:
            last = look
            while look.writer is not None:
                look = _next(file, look, every)
                if look.changed != last.changed:
                    before, last = last, look
                live.update(Text(_panel(look, before)), refresh=True)
    except KeyboardInterrupt:
        click.echo("The run goes on.", err=True)


def looked(file: str, last: Look | None = None) -> Look:
    """Look at a file; it is read again only where it has changed."""
    from onedraw.run.store import writer

    who = writer(file)
    try:
        changed = Path(file).stat().st_mtime
    except OSError:
        changed = math.nan
    post = last.post if last is not None and last.changed == changed else opened(file)
    return Look(post, who, max(0.0, time.time() - changed), changed)


def _next(file: str, last: Look, every: float) -> Look:
    time.sleep(every)
    return looked(file, last)


def share_done(post: Any) -> float | None:
    """How much of what was asked for is done: of the draws or of the budget, whichever is further."""
    settings, cost = post.settings, post.cost
    if post.status.complete:
        return 1.0
    shares = []
    if settings.get("budget"):
        shares.append(cost.simulations / settings["budget"])
    if settings.get("draws") and settings.get("algorithm") != "infer":
        shares.append(post.shape[1] / settings["draws"])
    return min(1.0, max(shares)) if shares else None


def _told(look: Look, before: Look | None) -> dict[str, Any]:
    return {
        **described(look.post),
        "writer": look.writer,
        "saved_seconds_ago": look.age,
        "share_done": share_done(look.post),
        "seconds_left": seconds_left(look, before),
    }


def seconds_left(look: Look, before: Look | None) -> float | None:
    """At the speed between two looks, or else of the whole run."""
    done = share_done(look.post)
    if done is None or look.writer is None:
        return None
    seconds = look.post.cost.seconds
    if before is not None and look.post.cost.seconds > before.post.cost.seconds:
        then = share_done(before.post) or 0.0
        if done > then:
            return (1 - done) * (look.post.cost.seconds - before.post.cost.seconds) / (done - then)
    return (1 - done) / done * seconds if done > 0 else None


def _panel(look: Look, before: Look | None) -> str:
    from onedraw.run.progress import clock, number

    post, cost = look.post, look.post.cost
    done = share_done(post)
    now = "going on" if look.writer else ("ended" if post.status.complete else "nobody is working on it")
    message = post.status.message.removesuffix("; od.resume goes on")
    lines = [f"{post.settings['algorithm']}, {now}: {message}"]
    if done is not None:
        filled = round(30 * done)
        left = seconds_left(look, before)
        rest = "" if left is None else f", about {clock(left)} left"
        lines.append(f"[{'#' * filled}{'.' * (30 - filled)}] {100 * done:.0f} %{rest}")
    pace = f", {number(cost.simulations / cost.seconds)} simulations/s" if cost.seconds > 0 else ""
    eps = post.settings.get("eps")
    tolerance = f"; eps = {eps:.4g}" if isinstance(eps, float) else ""
    lines.append(
        f"{cost.simulations:,} simulations, {cost.failed:,} failed{pace}; {100 * post.acceptance_rate:.3g} % accepted"
        f"{tolerance}"
    )
    if math.prod(post.shape):
        lines += ["", str(post.summary())]
    lines.append("")
    if look.writer:
        lines.append(f"written by {look.writer}; last saved {clock(look.age)} ago")
    elif not post.status.complete:
        lines.append("onedraw resume goes on with it")
    return "\n".join(lines)
