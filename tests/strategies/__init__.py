"""Unit tests of the ``strategies`` package, one module (or closely related group) a file."""

from hypothesis import settings

drawn = settings(deadline=None, derandomize=True, database=None, max_examples=80)
"""Settings of all drawn tests: the same examples in every run, and no clock."""
