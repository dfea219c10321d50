"""How code runs on this machine: arrays, random streams, compiled loops, device programs, child processes.

Nothing here imports the rest of the package: engines read what objects declare of themselves.
"""
