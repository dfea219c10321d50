"""Commands on runs' files: `onedraw show` and `onedraw resume`."""

import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any

import click

EXIT = {"interrupted": 130, "terminated": 143}
"""Exit statuses of runs that a signal stopped, as shells have them."""


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--failures", is_flag=True, help="Show the failed simulations that the file keeps, with tracebacks.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def show(file: str, failures: bool, as_json: bool) -> None:
    """Say what the run in FILE is, how far it is, and what its draws say."""
    import onedraw as od

    try:
        post = od.open(file)
    except od.StoreError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(_described(post, failures), indent=2) if as_json else _text(post, failures))


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.argument("model", metavar="MODELFILE[:NAME]")
@click.option("--force", is_flag=True, help="Go on although the model has changed; the file says so.")
@click.option("--draws", type=int, default=None, help="A larger number of draws than the run began with.")
@click.option("--budget", type=int, default=None, help="A larger number of simulations than the run began with.")
@click.option("--max-seconds", type=float, default=None, help="Stop after this time.")
def resume(
    file: str, model: str, force: bool, draws: int | None, budget: int | None, max_seconds: float | None
) -> None:
    """Go on with the run in FILE, with the model (or estimator) called NAME, by default `model`, in MODELFILE.

    A `kernel`, `proposal` or `start` in MODELFILE is used where the run had one of your own. The exit status is 0
    where the run came to its end, 130 after Ctrl-C, 143 after SIGTERM, and 1 after an error.
    """
    import onedraw as od

    path, name = _split(model)
    module = _loaded(path)
    if not hasattr(module, name):
        raise click.ClickException(f"{path} has no {name!r}: say which name with {path}:NAME")
    value = getattr(module, name)
    given: dict[str, Any] = {"model": value} if isinstance(value, od.Model) else {"estimator": value}
    try:
        own = od.runs.own_parts(file)
        given |= {part: getattr(module, part) for part in own if hasattr(module, part)}
        post = od.resume(file, **given, draws=draws, budget=budget, max_seconds=max_seconds, force=force)
    except od.StoreError as error:
        raise click.ClickException(str(error)) from error
    click.echo(_text(post, False))
    sys.exit(EXIT.get(post.status.reason, 0))


def _split(model: str) -> tuple[Path, str]:
    """MODELFILE and NAME; a colon inside the path (C:\\...) is left alone."""
    path, colon, name = model.rpartition(":")
    if colon and name.isidentifier():
        return Path(path), name
    return Path(model), "model"


def _loaded(path: Path) -> Any:
    """The module in a file, under a name that hides no other module."""
    if not path.is_file():
        raise click.ClickException(f"{path} does not exist: give the Python file in which the model is made")
    name = f"onedraw_model_{path.stem}"
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise click.ClickException(f"{path} is not a Python file: its name must end with .py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    specification.loader.exec_module(module)
    return module


def _text(post: Any, failures: bool) -> str:
    settings = {key: value for key, value in post.settings.items() if value is not None and key != "algorithm"}
    cost = ", ".join(
        f"{value:,.1f} s" if name == "seconds" else f"{value:,} {name}" for name, value in post.cost._asdict().items()
    )
    lines = [
        f"{post.settings['algorithm']}: {post.status.message}",
        "settings: " + ", ".join(f"{key} = {value}" for key, value in settings.items()) + f", seed = {post.seed}",
        f"cost: {cost}",
        f"acceptance rate: {post.acceptance_rate:.4g} ± {post.acceptance_rate_se:.2g}",
    ]
    if math.prod(post.shape):
        lines += ["", str(post.summary())]
    if failures:
        lines.append(f"\n{len(post.failures)} of {post.cost.failed:,} failures are kept")
        for number, one in enumerate(post.failures):
            where = f"chain {one.chain}, step {one.step}, pseudo-sample {one.pseudo_sample}"
            lines += [f"\n[{number}] {one}", f"    {where}; again with od.replay(..., failure={number}, model=...)"]
            lines += [f"    {line}" for line in one.traceback.splitlines()]
    return "\n".join(lines)


def _described(post: Any, failures: bool) -> dict[str, Any]:
    """The same as `_text`, for programs."""
    described: dict[str, Any] = {
        "algorithm": post.settings["algorithm"],
        "status": {"reason": post.status.reason, "message": post.status.message},
        "settings": dict(post.settings),
        "seed": post.seed,
        "cost": post.cost._asdict(),
        "shape": list(post.shape),
        "acceptance_rate": _number(post.acceptance_rate),
        "acceptance_rate_se": _number(post.acceptance_rate_se),
        "notes": list(post.notes),
    }
    if math.prod(post.shape):
        rows = post.summary().rows
        described["summary"] = {
            name: {key: _number(value) for key, value in row._asdict().items()} for name, row in rows.items()
        }
    if failures:
        described["failures"] = [one._asdict() for one in post.failures]
    return described


def _number(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, tuple | list):
        return [_number(one) for one in value]
    return None if value is None or not math.isfinite(value) else float(value)
