"""Rescaling the clusters' aggregates: PINA Eq. 8 and 9, their variants, and the noisy count.

Names (``RESCALES``): ``count`` divides each cluster's sum by its noisy count (default, sound,
not in the paper); ``normality`` is Eq. 9 as printed; ``normality-restored`` multiplies it by C,
because the printed weights sum to one and so shrink every update by about C;
``normality-no-threshold`` leaves out the zeroing at 0.99, which also hits real updates;
``none`` divides by the expected cohort only.

Deviation: Eq. 8 is guarded: an aggregate of norm zero neither sets the common norm nor is scaled.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import shapiro

RESCALES = ("count", "normality", "normality-restored", "normality-no-threshold", "none")
NORMALITY_THRESHOLD = 0.99


def equalise_norms(aggregates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale every aggregate (C, D) to the smallest non-zero norm among them (Eq. 8)."""
    norms = np.linalg.norm(aggregates, axis=1)
    if not np.any(norms > 0):
        return aggregates
    smallest = norms[norms > 0].min()
    factors = np.divide(smallest, norms, out=np.ones_like(norms), where=norms > 0)
    scaled: NDArray[np.float64] = aggregates * factors[:, None]
    return scaled


def normality(aggregate: NDArray[np.float64]) -> float:
    """Shapiro-Wilk W of a flattened aggregate; 1 for a constant one.

    SciPy's p-value is not valid beyond 5,000 values; W itself is, and only W is used.
    """
    if np.ptp(aggregate) == 0:
        return 1.0
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*p-value may not be accurate.*")
        return float(shapiro(aggregate.ravel()).statistic)


def scale_by_normality(
    aggregates: NDArray[np.float64], statistics: NDArray[np.float64], variant: str
) -> NDArray[np.float64]:
    """Scale aggregates (C, D) by their Shapiro-Wilk statistics w (C,), Eq. 9 or a variant.

    Raises
    ------
    ValueError
        If ``variant`` is not one of the normality variants.
    """
    if variant not in RESCALES or not variant.startswith("normality"):
        raise ValueError(f"variant = {variant!r}: must be one of {RESCALES[1:4]}")
    weights = statistics / statistics.sum()
    if variant != "normality":
        weights = weights * len(statistics)
    if variant != "normality-no-threshold":
        weights = np.where(statistics < NORMALITY_THRESHOLD, weights, 0.0)
    scaled: NDArray[np.float64] = aggregates * weights[:, None]
    return scaled


def exceeds_noise(aggregate: NDArray[np.float64], noise_std: float) -> bool:
    """Whether the energy of a noisy sum (D,) is more than its noise alone would have.

    Pure noise of standard deviation s has energy ``D s^2`` with standard deviation
    ``sqrt(2 D) s^2``; the test asks for three of them more. Without noise any non-zero sum does.
    """
    size = aggregate.size
    bound = size * noise_std**2 * (1 + 3 * np.sqrt(2 / size))
    return bool(np.sum(aggregate**2) > bound)
