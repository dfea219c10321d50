"""Proposals of chains, and weighted draws."""
