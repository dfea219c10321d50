"""`python -m onedraw` is the command line."""

from onedraw.cli.main import main

main(prog_name="onedraw")
