"""L2 clipping of client contributions (PINA, arXiv:2604.20596, Eq. 5 and 7).

Deviation from the paper: a zero update stays zero, where Eq. 7 as printed divides by its norm.
"""

import numpy as np
from numpy.typing import NDArray


def clip_l2(updates: NDArray[np.floating], threshold: float) -> NDArray[np.float64]:
    """Scale every row down to an L2 norm of at most ``threshold`` (Eq. 7).

    Parameters
    ----------
    updates : array of shape (..., D)
        Updates, one a row. The norm is taken over the last axis.
    threshold : float
        S > 0, in the units of the update.

    Returns
    -------
    array of shape (..., D), float64
        ``d * min(1, S / |d|)``; rows of zeros stay zero.

    Raises
    ------
    ValueError
        If ``threshold`` is not positive.
    """
    if not threshold > 0:
        raise ValueError(f"threshold = {threshold}: must be > 0")
    rows = np.asarray(updates, dtype=np.float64)
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    clipped: NDArray[np.float64] = rows * (threshold / np.maximum(norms, threshold))
    return clipped


def sketch_threshold(threshold: float, kept: int, width: int) -> float:
    """Clipping threshold of a sketch with few non-zero values, ``sqrt(n / h) * S`` (Eq. 5).

    Parameters
    ----------
    threshold : float
        S, the threshold of stage 2.
    kept : int
        n, the number of non-zero values of the sketch (the paper: 4).
    width : int
        h, the hidden size of the model.

    Raises
    ------
    ValueError
        If ``kept`` is not in [1, width].
    """
    if not 1 <= kept <= width:
        raise ValueError(f"kept = {kept}: must be in [1, {width}]")
    return float(np.sqrt(kept / width) * threshold)
