"""The command line. Commands import what they need when they run, so that `onedraw --help` is quick."""

import click

from onedraw import __version__
from onedraw.contrast.commands import contrast
from onedraw.engine.commands import resume, show
from onedraw.study.commands import study
from onedraw.theory.commands import advise, verify


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="onedraw")
def main() -> None:
    """Likelihood-free Bayesian inference that spends every simulation well."""


for command in (study, verify, advise, contrast, show, resume):
    main.add_command(command)
