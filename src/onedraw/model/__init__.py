"""What is inferred from what: prior, simulator, external programs, data layout, distance and kernel."""
