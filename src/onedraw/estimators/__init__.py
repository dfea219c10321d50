"""Unbiased estimates of the likelihood part of the target."""
