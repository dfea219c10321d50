"""What the commands print of a run, for people and for programs."""

import math
import shutil
import sys
import textwrap
from typing import Any

import click

from onedraw.cli.models import without_ours
from onedraw.cli.wording import in_options
from onedraw.failures import in_words
from onedraw.results.plain import as_json as as_json
from onedraw.results.plain import printable, stated


def opened(file: str) -> Any:
    """The Posterior in a file."""
    import onedraw as od

    try:
        return od.load(file)
    except od.StoreError as error:
        raise click.ClickException(in_options(str(error))) from error


def duration(seconds: float) -> str:
    """A time in the unit that suits it.

    >>> [duration(seconds) for seconds in (2.1e-5, 0.0123, 2.04, 59.9, 3725)]
    ['21 µs', '12 ms', '2.0 s', '60 s', '1:02:05 h']
    """
    from onedraw.run.progress import clock

    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (60.0, 1.0, "s")):
        if seconds < limit:
            value = seconds * factor
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{clock(seconds)} {'h' if 3600 <= round(seconds) < 86_400 else 'min' if seconds < 3600 else ''}".strip()


def takes(seconds: float, budget: int | None, workers: int = 1) -> str:
    """How long one simulation takes, and all of a budget.

    >>> takes(2.0, 1000), takes(2.0, 1000, 4)[28:]
    ('One simulation takes 2.0 s: 1,000 take about 33:20 min on one core.', '1,000 take about 8:20 min with 4 workers.')
    """
    one = f"One simulation takes {duration(seconds)}"
    if not budget:
        return f"{one}."
    place = "on one core" if workers == 1 else f"with {workers:,} workers"
    return f"{one}: {budget:,} take about {duration(seconds * max(1, budget / workers))} {place}."


def concerns(first: Any) -> list[str]:
    """Warnings about the first simulation of a run.

    >>> from onedraw.model.first_simulation import FirstSimulation
    >>> failed = FirstSimulation({"mu": 1.23456, "beta": [1.0, 2.5]}, 0.1, 1, True, None, "ValueError: no")
    >>> concerns(failed)
    ['warning: the first simulation failed, at mu = 1.235, beta = [1, 2.5]: ValueError: no']
    """
    found = []
    if first.failed:
        found.append(f"warning: the first simulation failed, at {in_words(first.theta)}: {first.failed}")
    if first.same is False:
        found.append(
            "warning: the same random stream gave different data. The simulator takes random numbers from a source "
            "other than rng, so a run cannot be repeated or resumed with the same result: draw every number from rng"
        )
    return found


def text(post: Any, failures: bool = False) -> str:
    """A run in lines."""
    given = {key: value for key, value in post.settings.items() if key != "algorithm"}
    settings = ", ".join(f"{key} = {value}" for key, value in stated(given).items())
    cost = ", ".join(
        f"{value:,.1f} s" if name == "seconds" else f"{value:,} {name}"
        for name, value in post.cost._asdict().items()
        if value or name == "simulations"
    )
    lines = [
        f"{post.settings['algorithm']}: {in_options(post.status.message)}",
        f"settings: {settings}, seed = {post.seed}",
        f"cost: {cost}",
    ]
    if not math.isnan(post.acceptance_rate):
        lines.append(f"acceptance rate: {post.acceptance_rate:.4g} ± {post.acceptance_rate_se:.2g}")
    if math.prod(post.shape):
        lines += ["", str(post.summary())]
    else:
        lines += map(in_options, post.notes)
    if failures:
        lines.append(f"\n{len(post.failures)} of {post.cost.failed:,} failures are kept")
        for number, one in enumerate(post.failures):
            where = f"chain {one.chain}, step {one.step}, pseudo-sample {one.pseudo_sample}"
            lines += [f"\n[{number}] {one}", f"    {where}; repeat it with od.replay(..., failure={number}, model=...)"]
            lines += [f"    {line}" for line in without_ours(one.traceback).splitlines()]
    return fitted(printable("\n".join(lines)))


def fitted(text: str) -> str:
    """Long sentences broken between words where a terminal shows them; tables, logs and pipes as they are."""
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    wrapper = textwrap.TextWrapper(width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(line if "  " in line else wrapper.fill(line) for line in text.split("\n"))


def described(post: Any, failures: bool = False) -> dict[str, Any]:
    """The same as a value for `as_json`."""
    names = ("settings", "seed", "cost", "shape", "acceptance_rate", "acceptance_rate_se", "notes")
    found: dict[str, Any] = {
        "algorithm": post.settings["algorithm"],
        "status": {**post.status._asdict(), "complete": post.status.complete},
        **{name: getattr(post, name) for name in names},
    }
    if math.prod(post.shape):
        found["summary"] = post.summary().rows
    if failures:
        found["failures"] = post.failures
    return found
