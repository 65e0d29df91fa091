"""A federation of real processes: keys, the compose file, and a check of both on this machine."""
