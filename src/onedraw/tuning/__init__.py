"""What to decide before a run, measured: the tolerance, the summaries, the number of pseudo-samples or particles."""
