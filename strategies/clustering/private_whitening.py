"""``discriminant`` without any public data: the whitener is released too (our deviation).

Without public images the clients' features are neither centred nor whitened. Of the unit vectors of
a DINOv2 on CIFAR-10 three quarters of the squared norm are the common mean, the rest lies mostly in
a few directions, and what tells clusters apart is small and elsewhere: noise of the same size in
all directions hides it. So images are unit vectors in a public random projection to m numbers
(``PublicStatistics.whitened``), and a third release comes between the two of ``discriminant``::

    1  classes    -> M, and from it the scale k = (1 - sum_c p_c |M_c|^2 / m)^-1/2: the residuals
                  of unit vectors have a known mean square once the means are known, so that no
                  norm is spent on what has been taken out
    2  whitening  r_j = k (x_j - M[y_j]), as ``scatter`` -> T = k c W^-1/2, W widened as there,
                  c such that the y of r_j = T (x_j - M[y_j]) have mean square m
    3  scatter    as in ``discriminant``, with these r_j

Sensitivities are those of ``discriminant``: a contribution's norm is cut to 1 whatever T is.
Everything after a release is post-processing.
"""

import numpy as np
from numpy.typing import NDArray

from strategies.clustering.discriminant import Frame, read_class_means, read_scatter
from strategies.clustering.secure_kmeans import RADIUS

PHASES = ("classes", "whitening", "scatter")
SMALLEST_REST = 0.05
"""Share of the squared norm that class means leave, at least; below it is noise that says so."""
SMALLEST_SQUARE = 0.1
"""Mean square of a whitened number, at least; it is 1 or more without noise and widening."""


def read_classes(total: NDArray[np.floating], dimensions: int) -> Frame:
    """Class means and the scale k, from a (noisy) sum of ``discriminant.class_sums``."""
    means = read_class_means(total, dimensions)
    counts = np.maximum(np.asarray(total[means.size :], dtype=np.float64), 0.0)
    shares = counts / max(counts.sum(), 1e-12)
    rest = 1.0 - float(shares @ np.sum(means**2, axis=1)) / dimensions
    return Frame.of_classes(means, max(rest, SMALLEST_REST) ** -0.5)


def read_whitener(
    total: NDArray[np.floating], cohort: float, noise_std: float, before: Frame
) -> Frame:
    """The frame with T; parameters as for ``discriminant.read_frame``."""
    m = before.class_means.shape[1]
    found = read_scatter(total, cohort, noise_std, m)
    square = RADIUS**2 * m * max(float(np.trace(found.total)), SMALLEST_SQUARE * m)
    return Frame.of_classes(
        before.class_means, found.whiten * before.whitener * np.sqrt(m / square)
    )
