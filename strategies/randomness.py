"""Random streams: seeded ones for simulations, the operating system's for everything else.

A seeded stream depends on its seed, purpose and index alone, so a resumed run draws what the
uninterrupted one drew, and every method of a comparison meets the same cohorts and noise.
"""

import secrets
import zlib

import numpy as np


def stream(seed: int | None, purpose: str, *index: int) -> np.random.Generator:
    """A generator for one purpose (and round, client, ...).

    Parameters
    ----------
    seed : int >= 0 or None
        None seeds the generator with 256 bits from the operating system.
    purpose : str
        Name of the stream; different names are independent.
    index : int
        Further coordinates, such as the round and the client.
    """
    if seed is None:
        return np.random.default_rng(secrets.randbits(256))
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *index])


def noise_stream(seed: int | None, purpose: str, *index: int) -> np.random.Generator | None:
    """A seeded generator, or None: privacy noise then comes from the operating system itself."""
    return None if seed is None else stream(seed, purpose, *index)
