"""How every run happens: options, the driver, chains, starts, the worker pool, and the run's file."""
