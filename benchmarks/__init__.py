"""Speed as ratios within one run: machines differ and are noisy, ratios hold. Run with `make bench`."""
