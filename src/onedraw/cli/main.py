"""The command line. Commands import what they need when they run, so that `onedraw --help` is quick."""

import click

from onedraw import __version__
from onedraw.cli.advise import advise, verify
from onedraw.cli.calibrate import calibrate
from onedraw.cli.check import check
from onedraw.cli.compare import compare
from onedraw.cli.export import export, new, report
from onedraw.cli.inspect import show, watch
from onedraw.cli.models import Group
from onedraw.cli.run import resume, run
from onedraw.cli.shards import collect, plan, step, work
from onedraw.cli.studies import contrast, study


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="onedraw")
def main() -> None:
    """Likelihood-free Bayesian inference that spends every simulation well.

    Start with `onedraw new model.py`, then `onedraw run model.py --budget 1000`.
    """


COMMANDS = (
    new, check, run, resume, plan, work, step, collect, show, watch, report, export, advise, calibrate, compare, study,
    contrast, verify,
)  # fmt: skip
for command in COMMANDS:
    main.add_command(command)
