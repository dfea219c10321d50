"""Commands that read a run's file or folder, also during the run: `onedraw show` and `onedraw watch`."""

import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from onedraw.cli.options import json_option
from onedraw.cli.text import as_json, described, opened, text
from onedraw.cli.wording import in_options
from onedraw.results.plain import printable

EVERY = 2.0
SHOWN = 20
"""Shards that are shown one by one."""
STANDS = 5
"""The exit status if a job array stands still."""


@click.command(short_help="Show a run: its settings, progress and results.")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--failures", is_flag=True, help="Show the failed simulations that the file keeps, with tracebacks.")
@json_option
def show(file: str, failures: bool, json_wanted: bool) -> None:
    """Show the settings, progress and results of the run in FILE."""
    post = opened(file)
    click.echo(as_json(described(post, failures)) if json_wanted else text(post, failures))


class Look(NamedTuple):
    """One look at a run's file."""

    post: Any
    writer: str | None
    """The process that is writing the file."""
    age: float
    """Seconds since it was last written."""
    changed: float
    """When it was, by the file system's clock."""


@click.command(short_help="Watch the progress of a run from another terminal.")
@click.argument("file", type=click.Path(), metavar="FILE|FOLDER")
@click.option(
    "--every", type=click.FloatRange(min=0.1), default=EVERY, show_default=True, help="Seconds between updates."
)
@click.option("--once", is_flag=True, help="Show it once and exit.")
@click.option("--json", "json_wanted", is_flag=True, help="Print one line of JSON per update.")
def watch(file: str, every: float, once: bool, json_wanted: bool) -> None:
    """Watch the progress of the run in FILE from another terminal, until it ends.

    It shows what the run has saved, by default every 30 seconds (--segment). For the FOLDER of a job array (`onedraw
    plan`), it shows each shard: done, running, or stale if its process has died. With --once, the exit status is then
    0 if the run is complete or jobs are working on it, and 5 if none is.
    """
    if Path(file).is_dir():
        watch_shards(file, every, once, json_wanted)
        return
    seen = looks(file, every)
    if json_wanted or once or not sys.stdout.isatty():
        for look, before in seen:
            click.echo(as_json(_described(look, before), None) if json_wanted else _panel(look, before))
            if once:
                return
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    try:
        with Live(console=Console(), auto_refresh=False, transient=False) as live:
            for look, before in seen:
                live.update(Text(_panel(look, before)), refresh=True)
    except KeyboardInterrupt:
        click.echo("The run continues.", err=True)


def watch_shards(folder: str, every: float, once: bool, json_wanted: bool) -> None:
    """Watch the shards of a job array until its run is complete."""
    from onedraw.run.record import StoreError
    from onedraw.run.shard_progress import look_at

    while True:
        try:
            state = look_at(Path(folder))
        except StoreError as error:
            raise click.ClickException(in_options(str(error))) from error
        click.echo(as_json(_described_shards(state), None) if json_wanted else _shards_panel(state))
        if once or state.complete:
            sys.exit(0 if state.moves else STANDS)
        time.sleep(every)


def _described_shards(state: Any) -> dict[str, Any]:
    from onedraw.run.shard_progress import STATES

    return {
        **state._asdict(),
        "shards": [one._asdict() for one in state.shards],
        "counts": {name: state.count(name) for name in STATES},
        "simulations_per_second": state.pace,
        "seconds_left": state.seconds_left,
    }


def _shards_panel(state: Any) -> str:
    from onedraw.run.progress import clock, number
    from onedraw.run.shard_progress import STATES

    now = "complete" if state.complete else "between two rounds" if state.round is None else f"round {state.round}"
    lines = [f"{state.algorithm} in {state.folder}, {now}{'' if state.moves else ', standing still'}"]
    if state.shards:
        counts = ", ".join(f"{state.count(name):,} {name}" for name in STATES if state.count(name))
        lines.append(f"{len(state.shards):,} shards: {counts}")
        done = sum(one.done / one.of for one in state.shards) / len(state.shards)
        left = "" if state.seconds_left is None else f", about {clock(state.seconds_left)} left"
        lines.append(f"[{'#' * round(30 * done)}{'.' * (30 - round(30 * done))}] {100 * done:.0f} % of the round{left}")
    of = f" of at most {state.budget:,}" if state.budget else ""
    pace = f", {number(state.pace)} simulations/s" if state.pace else ""
    unused = f", {state.unused:,} not used" if state.unused else ""
    lines.append(f"{state.simulations:,} simulations{of}, {state.failed:,} failed{unused}{pace}")
    lines += [_shard_line(one) for one in sorted(state.shards, key=_urgency) if _urgency(one) < 3][:SHOWN]
    if state.shards and state.count("done") == len(state.shards):
        lines.append(f"All shards are done. Next: onedraw step {state.folder}")
    return printable("\n".join(lines))


def _urgency(one: Any) -> int:
    return {"error": 0, "stale": 1, "running": 2}.get(one.state, 3)


def _shard_line(one: Any) -> str:
    from onedraw.run.progress import clock, number

    failed = f", {one.failed:,} failed" if one.failed else ""
    pace = f", {number(one.pace)}/s" if one.pace else ""
    made = f"{100 * one.done / one.of:.0f} % done, {one.simulations:,} simulations{failed}{pace}"
    if one.state == "error":
        return f"shard {one.shard}: error, {made}: {one.error}"
    who = f"process {one.pid} on {one.host}, last sign of life {clock(one.age)} ago"
    return f"shard {one.shard}: {one.state}, {made}, {who}"


def looks(file: str, every: float) -> Iterator[tuple[Look, Look | None]]:
    """Look at a file every few seconds until it is no longer written: each look, and the last at an earlier state."""
    before, last = None, looked(file)
    yield last, None
    while last.writer is not None:
        time.sleep(every)
        look = looked(file, last)
        before, last = (before if look.changed == last.changed else last), look
        yield last, before


def looked(file: str, last: Look | None = None) -> Look:
    """Look at a file; it is read again only if it has changed."""
    from onedraw.run.store import writer

    who = writer(file)
    try:
        changed = Path(file).stat().st_mtime
    except OSError:
        changed = math.nan
    post = last.post if last is not None and last.changed == changed else opened(file)
    return Look(post, who, max(0.0, time.time() - changed), changed)


def share_done(post: Any) -> float | None:
    """The share of the run that is done: of the draws or of the budget, whichever is larger."""
    settings, cost = post.settings, post.cost
    if post.status.complete:
        return 1.0
    shares = []
    if settings.get("budget"):
        shares.append(cost.simulations / settings["budget"])
    if settings.get("draws") and settings.get("algorithm") != "infer":
        shares.append(post.shape[1] / settings["draws"])
    return min(1.0, max(shares)) if shares else None


def _described(look: Look, before: Look | None) -> dict[str, Any]:
    return {
        **described(look.post),
        "writer": look.writer,
        "saved_seconds_ago": look.age,
        "share_done": share_done(look.post),
        "seconds_left": seconds_left(look, before),
    }


def seconds_left(look: Look, before: Look | None) -> float | None:
    """By the speed between two looks, or else of the whole run."""
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
    now = "running" if look.writer else "finished" if post.status.complete else "stopped"
    message = post.status.message.partition("; od.resume")[0]
    lines = [f"{post.settings['algorithm']}, {now}: {message}"]
    if done is not None:
        filled = round(30 * done)
        left = seconds_left(look, before)
        rest = "" if left is None else f", about {clock(left)} left"
        lines.append(f"[{'#' * filled}{'.' * (30 - filled)}] {100 * done:.0f} %{rest}")
    pace = f", {number(cost.simulations / cost.seconds)} simulations/s" if cost.seconds > 0 else ""
    eps = post.settings.get("eps")
    tolerance = f"; eps = {eps:.4g}" if isinstance(eps, float) else ""
    rate = post.acceptance_rate
    accepted = "" if math.isnan(rate) else f"; {100 * rate:.3g} % accepted"
    lines.append(f"{cost.simulations:,} simulations, {cost.failed:,} failed{pace}{accepted}{tolerance}")
    if math.prod(post.shape):
        lines += ["", str(post.summary())]
    lines.append("")
    if look.writer:
        lines.append(f"written by {look.writer}; last saved {clock(look.age)} ago")
    elif not post.status.complete:
        lines.append("continue it with onedraw resume")
    return printable("\n".join(lines))
