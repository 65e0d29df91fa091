"""Tests of strategies.wireless."""
