"""Reports from run records."""
