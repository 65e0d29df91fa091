"""PINA as a Flower app: models, data and wiring around ``strategies``."""
