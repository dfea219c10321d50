"""What the commands print of a run, for people and for programs."""

import math
from typing import Any

import click

from onedraw.cli.models import without_ours
from onedraw.cli.wording import in_options
from onedraw.results.plain import as_json as as_json
from onedraw.results.plain import printable, six_digits


def opened(file: str) -> Any:
    """The Posterior in a file."""
    import onedraw as od

    try:
        return od.load(file)
    except od.StoreError as error:
        raise click.ClickException(in_options(str(error))) from error


def text(post: Any, failures: bool = False) -> str:
    """A run in lines."""
    hidden = ("algorithm", "path", "terms", "alternatives", "calibration", "held_out")
    given = {key: value for key, value in post.settings.items() if value is not None and key not in hidden}
    settings = ", ".join(f"{key} = {value}" for key, value in six_digits(given).items())
    cost = ", ".join(
        f"{value:,.1f} s" if name == "seconds" else f"{value:,} {name}" for name, value in post.cost._asdict().items()
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
    return printable("\n".join(lines))


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
