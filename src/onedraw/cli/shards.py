"""Commands for the queue of a cluster: `onedraw plan`, `work`, `step` and `collect`."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from onedraw.cli.export import refuse_own
from onedraw.cli.inspect import STANDS
from onedraw.cli.models import split
from onedraw.cli.options import (
    COUNT,
    POSITIVE,
    added,
    budget_option,
    how_to_run,
    json_option,
    max_seconds_option,
    progress_option,
    used_and_kept,
    what_to_run,
)
from onedraw.cli.run import EXIT, asked_for, banks, finish, plain_warnings
from onedraw.cli.text import as_json, concerns, described, opened, takes, text
from onedraw.cli.wording import in_options
from onedraw.results.plain import printable

WAITS = 4
"""The exit status of a run that waits for shards; STANDS if none was worked on since the last step."""
FIRST_SIMULATIONS, FIRST_SECONDS = 20, 10.0
"""Simulations at most, and seconds, of the first look at a model."""
LIMITS = ("budget", "draws")

folder_argument = click.argument("folder", type=click.Path(file_okay=False))
wait_option = click.option(
    "--wait", type=POSITIVE, help="Seconds to wait for others while nothing happens.  [default: none]"
)
session_options = added((wait_option, max_seconds_option, progress_option))


@click.command(short_help="Plan a run for a cluster's queue: the first round of shards.")
@click.argument("model", metavar="MODELFILE[:NAME]")
@click.option("--shards", type=COUNT, required=True, help="Jobs of the array: the parts that a round is cut into.")
@click.option("--out", type=click.Path(file_okay=False), help="The folder of the run.  [default: MODELFILE-run]")
@budget_option
@what_to_run
@used_and_kept
@how_to_run
@json_option
def plan(model: str, shards: int, out: str | None, bank: tuple[str, ...], json_wanted: bool, **options: Any) -> None:
    """Plan a run of the model that MODELFILE defines (`model`, or NAME) as a job array. No broker is needed.

    A few simulations check the model and are not kept. The first round is written to the folder. Then run `onedraw
    work FOLDER --shard N` for each shard, N from 1 to the number of shards, and `onedraw step FOLDER` to write the
    next round, until the run is complete. The same command with a larger --budget or --draws continues a run. The
    exit status is 0 if shards are ready to be worked on or the run is complete.
    """
    from onedraw.arguments import seed_or_fresh
    from onedraw.run.job_array import job_array
    from onedraw.run.record import OtherRun
    from onedraw.run.shard_files import PLAN, make_folder, write_json
    from onedraw.tuning.first_look import first_look

    value, _, _, _ = asked_for(model, **options)
    path, name = split(model)
    folder = Path(out or f"{path.stem}-run")
    before = _planned(folder) if (folder / PLAN).exists() else None
    if options["seed"] is None:
        # Of a folder whose plan was lost, that of its run.
        options["seed"] = job_array(folder, shards).seed(None) if before is None else before["options"]["seed"]
        options["seed"] = seed_or_fresh(options["seed"])
    now = {
        "model": f"{path.resolve()}:{name}", "shards": shards, "bank": [str(Path(one).resolve()) for one in bank],
        "options": options,
    }  # fmt: skip
    if before is None:
        with plain_warnings():
            look = first_look(value, FIRST_SIMULATIONS, options["seed"], options["timeout"], FIRST_SECONDS)
        said = [] if json_wanted else [takes(look.seconds, options["budget"], shards)]
        for line in [*concerns(look.first), *said]:
            click.echo(printable(line), err=True)
    else:
        _check_plan(folder, before, now)
    make_folder(folder)
    write_json(folder / PLAN, now)
    try:
        _step(str(folder), json_wanted, whole=False)
    except SystemExit as ended:
        sys.exit(0 if ended.code in (WAITS, STANDS) else ended.code)
    except (click.ClickException, ValueError) as error:
        if isinstance(error, ValueError) or isinstance(error.__cause__, OtherRun):
            # A plan that is refused does not stay.
            if before is None:
                (folder / PLAN).unlink(missing_ok=True)
            else:
                write_json(folder / PLAN, before)
        raise


@click.command(short_help="Simulate one shard of a planned run, in one job of an array.")
@folder_argument
@click.option("--shard", type=COUNT, help="The number of the shard.  [default: any that is free]")
@session_options
@click.option("--workers", type=COUNT, help="Simulate in N processes on this host.")
@click.option("--segment", type=POSITIVE, default=60.0, show_default=True, help="Seconds between saves.")
def work(folder: str, shard: int | None, **options: Any) -> None:
    """Simulate one shard of the current round of the run in FOLDER, in one job of an array.

    It may be killed and started again at any time, on any host that can see the folder, and continues where it
    stopped. With --wait it continues with later rounds. The exit status is 0 if the shard is done or has nothing to
    do, 4 if --max-seconds ended it, 130 after Ctrl-C, 143 after SIGTERM, and 1 after an error.
    """
    from onedraw.run.shard_work import work as worked

    def tell(line: str) -> None:
        print(printable(line), file=sys.stderr, flush=True)

    with plain_warnings():
        reason = worked(folder, shard, tell=tell, **options)
    if reason == "left":
        tell("other jobs are working on the remaining shards")
    sys.exit(EXIT.get(reason, WAITS if reason == "max_seconds" else 0))


@click.command(short_help="Collect the finished shards and write the next round.")
@folder_argument
@session_options
@json_option
def step(folder: str, json_wanted: bool, **options: Any) -> None:
    """Collect the finished shards of the run in FOLDER and write the next round.

    The exit status is 0 if the run is complete, 3 if it has no draws, 4 if it waits for shards, 5 if it waits for
    shards and no job has worked on one since the last step, 130 after Ctrl-C, 143 after SIGTERM, and 1 after an
    error. Run it in one process at a time.
    """
    _step(folder, json_wanted, whole=False, **options)


@click.command(short_help="Collect the finished shards and show the result so far.")
@folder_argument
@click.option("-o", "--out", type=click.Path(dir_okay=False), help="Copy the run's file, FOLDER/run.db, to here.")
@session_options
@json_option
def collect(folder: str, out: str | None, json_wanted: bool, **options: Any) -> None:
    """Collect the finished shards of the run in FOLDER and show the result, even if the run is not complete.

    The run is in FOLDER/run.db, for every other command and for od.load. The exit status is that of `onedraw step`.
    """
    try:
        _step(folder, json_wanted, whole=True, **options)
    except SystemExit:
        if out is not None:
            _copy(str(Path(folder) / "run.db"), Path(out))
        raise


def _copy(file: str, out: Path) -> None:
    """A copy of a run's file, under its name when it is whole."""
    from onedraw.report.pages import replacing
    from onedraw.run.record import StoreError
    from onedraw.run.store import Store

    real = out.resolve()
    refuse_own(file, real)
    if real.exists() and not real.is_file():
        raise click.ClickException(f"{out} is no plain file: give another name with -o")
    try:
        with replacing(real) as fresh, Store(file) as run:
            run.copy(fresh)
    except (OSError, StoreError) as error:
        raise click.ClickException(
            f"{out} could not be written ({error}): make room, or give another name. The run itself is in {file}"
        ) from error


def _planned(folder: Path) -> dict[str, Any]:
    """The plan in a folder; an error if there is none or it cannot be used."""
    from onedraw.run.record import StoreError
    from onedraw.run.shard_files import PLAN, REMEDIES, read_json

    try:
        known = read_json(folder / PLAN)
    except StoreError as error:
        raise click.ClickException(str(error)) from error
    if known is None:
        raise click.ClickException(f"{folder} holds no plan: onedraw plan makes one")
    wrong = _not_of_a_plan(known)
    if wrong is not None:
        raise click.ClickException(f"{folder / PLAN} is not a plan of this onedraw ({wrong}): {REMEDIES[PLAN]}")
    return dict(known)


def _not_of_a_plan(known: Any) -> str | None:
    """The first value that `onedraw plan` would not have made of its words; None if there is none."""
    options = known.get("options") if isinstance(known, dict) else None
    if not isinstance(options, dict):
        return "no options"
    taken = {one.name: one for one in plan.params if one.name not in ("out", "json_wanted")}
    given, context = {**known, **options}, click.Context(plan)
    for name in dict.fromkeys((*taken, *(one for one in given if one != "options"))):
        try:
            value, option = given[name], taken[name]
            made = value if value is None and not option.required else option.type_cast_value(context, value)
        except (KeyError, ValueError, TypeError, OverflowError, click.ClickException):
            return str(name)
        # A list of files is a tuple there.
        if json.dumps(made) != json.dumps(value):
            return str(name)
    return None


def _check_plan(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """An error if a folder has another plan; limits and the number of shards may be others.

    So may the place of the model file: whether it is the same model is known when the run is opened.
    """
    old, new = ({**one["options"], "bank": one["bank"]} for one in (before, now))
    for name in (*old, *(one for one in new if one not in old)):
        if name not in LIMITS and old.get(name) != new.get(name):
            raise click.ClickException(
                f"{folder} holds the plan of another run (--{name.replace('_', '-')}: {old.get(name)} -> "
                f"{new.get(name)}): give --out another name"
            )


def _step(folder: str, json_wanted: bool, *, whole: bool, wait: float | None = None, **session: Any) -> None:
    """Follow the plan as far as shards are done, and end with its status."""
    import onedraw as od
    from onedraw.run.record import OtherRun
    from onedraw.run.shard_files import PLAN

    planned = _planned(Path(folder))
    path, _ = split(planned["model"])
    if not path.is_file():
        raise click.ClickException(
            f"the model file {path} of {Path(folder) / PLAN} is not there: put it back, or give its new place to "
            f"onedraw plan, with the same options and --out {folder}"
        )
    value, _, sampler, given = asked_for(planned["model"], **planned["options"])
    given |= banks(tuple(planned["bank"]), value, sampler)
    given |= {key: one for key, one in session.items() if one is not None}
    given["executor"] = od.job_array(folder, planned["shards"], wait)
    try:
        with plain_warnings():
            post = sampler(value, **given)
    except OtherRun as error:
        raise click.ClickException(
            f"{error.what}. Use the model file as it was, or plan the run again in another folder"
        ) from error
    except od.StoreError as error:
        raise click.ClickException(in_options(str(error))) from error
    except od.ShardsMissing as missing:
        _tell_missing(folder, missing, json_wanted, whole)
    else:
        finish(post, str(Path(folder) / "run.db"), planned["model"], json_wanted, again=f"onedraw step {folder}")


def _tell_missing(folder: str, missing: Any, json_wanted: bool, whole: bool) -> None:
    post = opened(str(Path(folder) / "run.db")) if whole else None
    if json_wanted:
        found = {"waits": True, "round": missing.round, "missing": list(missing.shards), "moved": missing.moved}
        click.echo(as_json({**({} if post is None else described(post)), **found}))
    else:
        click.echo(printable(("" if post is None else f"{text(post)}\n\n") + f"{missing}"))
    if not missing.moved:
        again = f"onedraw work {folder} --shard N"
        click.echo(f"No job has worked on a shard since the last step. To work on one: {again}", err=True)
    sys.exit(WAITS if missing.moved else STANDS)
