"""Where samplers look next: proposals of chains, and weighted mixtures for independent draws."""
