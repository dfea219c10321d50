"""`python -m onedraw` is the command line."""

from onedraw.cli import main

main(prog_name="onedraw")
