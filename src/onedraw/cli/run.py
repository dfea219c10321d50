"""Commands that simulate: `onedraw run` and `onedraw resume`."""

import inspect
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from onedraw.cli.export import write_page
from onedraw.cli.models import named, split
from onedraw.cli.options import (
    COUNT,
    bank_option,
    budget_option,
    how_to_run,
    used_and_kept,
    what_to_run,
    where_to_work,
)
from onedraw.cli.replacing import make_way, replace_if_empty
from onedraw.cli.text import as_json, concerns, described, fitted, opened, takes, text
from onedraw.cli.wording import in_options
from onedraw.model.kernels import Kernel
from onedraw.results.plain import printable

EXIT = {"interrupted": 130, "terminated": 143}
"""Exit statuses of runs that a signal stopped, as shells have them."""
NO_DRAWS = 3
"""The exit status of a run that has ended without a draw."""


@click.command(short_help="Run the model in a Python file, and save the run.")
@click.argument("model", metavar="MODELFILE[:NAME]")
@budget_option
@click.option("--out", type=click.Path(dir_okay=False), help="The run's file.  [default: MODELFILE with .db]")
@click.option("--overwrite", is_flag=True, help="Replace the run that the file holds.")
@what_to_run
@used_and_kept
@how_to_run
@where_to_work
@click.option("--report", "report_wanted", is_flag=True, help="Write the report too, beside the run's file.")
def run(
    model: str,
    out: str | None,
    overwrite: bool,
    dask: str | None,
    json_wanted: bool,
    report_wanted: bool,
    bank: tuple[str, ...],
    **options: Any,
) -> None:
    """Run the model that MODELFILE defines (`model`, or NAME), and save the run in a file.

    Start with `onedraw run MODELFILE --budget 1000`: it chooses tolerance and method for the budget. The same
    command, given again, continues where the file ends. A file that holds another run is replaced if that run has no
    draws or only failed simulations; otherwise --overwrite is needed. A `kernel` or `proposal` in MODELFILE is used
    if the algorithm takes one and the options do not say otherwise, and `checks` are used by --report. The exit
    status is 0 if the run is complete, 3 if it has no draws, 130 after Ctrl-C, 143 after SIGTERM, and 1 after an
    error.
    """
    from onedraw.model.first_simulation import listening
    from onedraw.results.misfit import checks_of
    from onedraw.run.record import OtherRun

    value, module, sampler, given = asked_for(model, **options)
    if report_wanted:
        checks_of(value, getattr(module, "checks", None))
    given |= banks(bank, value, sampler)
    if dask and "executor" not in inspect.signature(sampler).parameters:
        raise click.UsageError(f"--dask is not for {sampler.__name__}")
    file = out or f"{split(model)[0].stem}.db"
    given["store"] = file
    if any(Path(one).resolve() == Path(file).resolve() for one in bank):
        raise click.UsageError(f"--bank {file} is the file that this run is kept in: give --out another name")
    make_way(file, overwrite)
    heard = _first_told(given.get("budget"), json_wanted, learns=sampler.__name__ == "infer")
    with plain_warnings(), cluster(dask) as there, listening(heard):
        try:
            post = sampler(value, **given, **there)
        except OtherRun as error:
            replace_if_empty(file, error)
            post = sampler(value, **given, **there)
    wanted = report_wanted and post.status.complete and math.prod(post.shape)
    finish(post, file, model, json_wanted, write_page(file, module, value) if wanted else None)


def banks(files: tuple[str, ...], model: Any, sampler: Callable[..., Any]) -> dict[str, Any]:
    """The argument `bank` of a run that is given these files."""
    from onedraw import runs
    from onedraw.run.record import StoreError

    if not files:
        return {}
    if "bank" not in inspect.signature(sampler).parameters:
        raise click.UsageError(f"--bank is not for {sampler.__name__}")
    try:
        return {"bank": [runs.load_bank(file, model) for file in files]}
    except StoreError as error:
        raise click.ClickException(f"--bank: {in_options(str(error))}") from error


def asked_for(
    model: str, eps: float | None, kernel: str | None, algorithm: str | None, **options: Any
) -> tuple[Any, Any, Callable[..., Any], dict[str, Any]]:
    """The model, its file as a module, the sampler and its arguments that the options of a command ask for."""
    import onedraw as od
    from onedraw import runs

    value, module = named(model, od.Model)
    own = getattr(module, "kernel", None)
    own = own if isinstance(own, Kernel) and eps is None and kernel is None else None
    algorithm = algorithm or ("rejection" if eps is not None or own is not None else "infer")
    if algorithm not in runs.samplers():
        raise click.UsageError(f"there is no algorithm {algorithm!r}: there are {', '.join(runs.samplers())}")
    sampler = runs.samplers()[algorithm].function
    takes = inspect.signature(sampler).parameters
    given = {key: one for key, one in options.items() if one is not None}
    given |= _kernel(od, algorithm, takes, eps, kernel, own)
    if "proposal" in takes and hasattr(module, "proposal"):
        given["proposal"] = module.proposal
    for key in given:
        if key not in takes:
            raise click.UsageError(f"--{key.replace('_', '-')} is not for {algorithm}")
    if not {"draws", "budget"} & given.keys():
        ends = "--budget or --draws: one of them" if "draws" in takes else "--budget: it"
        raise click.UsageError(f"give {ends} must end the run")
    return value, module, sampler, given


def _kernel(
    od: Any, algorithm: str, takes: Mapping[str, Any], eps: float | None, kernel: str | None, own: Any
) -> dict[str, Any]:
    """The kernel, with the tolerance that was asked for."""
    from onedraw import runs

    if "kernel" not in takes:
        return {key: value for key, value in {"eps": eps, "kernel": kernel}.items() if value is not None}
    if own is not None:
        return {"kernel": own}
    if eps is None and not runs.samplers()[algorithm].chooses_tolerance:
        raise click.UsageError(f"{algorithm} needs --eps: the largest distance from the data that is still accepted")
    return {"kernel": getattr(od, kernel or "uniform")(eps)}


@click.command(short_help="Continue a run where its file ends.")
@click.argument("file", type=click.Path(dir_okay=False))
@click.argument("model", metavar="MODELFILE[:NAME]")
@click.option("--force", is_flag=True, help="Continue although the model has changed; the file records this.")
@click.option("--draws", type=COUNT, help="A larger number of draws than before.")
@click.option("--budget", type=COUNT, help="A larger number of simulations than before.")
@bank_option
@where_to_work
def resume(file: str, model: str, dask: str | None, json_wanted: bool, bank: tuple[str, ...], **options: Any) -> None:
    """Continue the run in FILE, with the model (or estimator) called NAME, by default `model`, in MODELFILE.

    A `kernel`, `proposal` or `start` in MODELFILE is used if the run had one of your own. The exit status is 0 if the
    run is complete, 3 if it has no draws, 130 after Ctrl-C, 143 after SIGTERM, and 1 after an error.
    """
    import onedraw as od
    from onedraw import runs
    from onedraw.run.record import OtherRun

    value, module = named(model)
    given: dict[str, Any] = {"model": value} if isinstance(value, od.Model) else {"estimator": value}
    given |= {key: one for key, one in options.items() if one is not None}
    given |= banks(bank, value, od.resume)
    try:
        own = runs.own_parts(file, bool(options.get("force")))
        given |= {part: getattr(module, part) for part in own if hasattr(module, part)}
        with plain_warnings(), cluster(dask) as there:
            post = od.resume(file, **given, **there)
    except OtherRun as error:
        raise click.ClickException(
            f"{error.what}. Give the model and the settings that the run was made with; --force continues it although "
            "the model has changed"
        ) from error
    except od.StoreError as error:
        raise click.ClickException(in_options(str(error))) from error
    finish(post, file, model, json_wanted)


def _first_told(budget: int | None, json_wanted: bool, learns: bool) -> Callable[[Any], None]:
    """What is said of the first simulation of a run; `learns` if it then fits the posterior to its simulations."""
    more = " Learning the posterior from them takes seconds to minutes more." if learns else ""

    def tell(first: Any) -> None:
        # Not click.echo: a bar that is being shown makes room for what is printed.
        for line in [*concerns(first), *([] if json_wanted else [takes(first.seconds, budget, first.workers) + more])]:
            print(printable(line), file=sys.stderr, flush=True)

    return tell


def finish(post: Any, file: str, model: str, json_wanted: bool, page: Any = None, again: str | None = None) -> None:
    """Say how a run ended, and end with its status; `page` is its report, if any, and `again` what continues it."""
    report = {} if page is None else {"report": str(page.path), "verdict": page.verdict.level}
    click.echo(as_json({**described(post), "file": file, **report}) if json_wanted else text(post))
    kept = opened(file)
    if kept.cost.simulations < post.cost.simulations or kept.shape != post.shape:
        raise click.ClickException(
            f"{file} does not hold the end of this run ({kept.cost.simulations:,} of {post.cost.simulations:,} "
            "simulations): make room and give the same command again, which computes what is missing"
        )
    empty = math.prod(post.shape) == 0
    if not post.status.complete:
        last = f"The run so far is saved in {file}. To continue: {again or f'onedraw resume {file} {model}'}"
    elif empty:
        last = f"No draws. {remedy(post)}"
    elif page is not None:
        last = f"The run is saved in {file}. {page.verdict.headline} Open {page.path}"
    else:
        last = f"The run is saved in {file}. Next: onedraw report {file} -o {Path(file).stem}.html --model {model}"
    if empty or not json_wanted:
        click.echo(f"\n{fitted(printable(last))}", err=True)
    sys.exit(EXIT.get(post.status.reason, NO_DRAWS if empty else 0))


def remedy(post: Any) -> str:
    """What to change about a run that has ended without a draw."""
    eps, spent = post.settings.get("eps"), post.cost.simulations
    if eps is None:
        return "Give a larger --budget."
    return (
        f"None of {spent:,} simulations came within the tolerance, eps = {eps:.4g}, of the data. Leave out --eps and "
        "--algorithm to have the tolerance chosen for the budget, or give a larger --eps."
    )


@contextmanager
def cluster(address: str | None) -> Iterator[dict[str, Any]]:
    """The argument `executor` for a Dask cluster; none without an address."""
    if address is None:
        yield {}
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise click.ClickException("--dask needs Dask: pip install 'onedraw[dask]'") from error
    try:
        client = Client(address, timeout="10s")
    except (OSError, ValueError, TimeoutError) as error:
        raise click.ClickException(
            f"no Dask scheduler answers at {address!r}: {error or type(error).__name__}"
        ) from error
    with client:
        yield {"executor": client}


def file_beside(page: Path, store: str | None) -> Path:
    """The file of a run whose results are a page."""
    file = Path(store) if store else page.with_suffix(".db")
    if file == page:
        raise click.UsageError(f"the page and the file would both be {page}: give -o a name that ends with .html")
    return file


@contextmanager
def interruptible(file: Path) -> Iterator[None]:
    """A run in here that is interrupted says how it is continued."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        click.echo(f"\nThe run so far is saved in {file}. To continue, give the same command again", err=True)
        sys.exit(EXIT.get(str(stopped), 130))


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Warnings as one line each, without the line of our code that gave them."""

    def show(message: Any, category: Any, filename: Any, lineno: Any, file: Any = None, line: Any = None) -> None:
        # Not click.echo: a bar that is being shown makes room for what is printed.
        print(printable(f"warning: {message}"), file=sys.stderr, flush=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
