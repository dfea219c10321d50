"""The algorithms, one a file."""
