"""``discriminant`` without any public data: the whitener is released too (our deviation).

Without public images the clients' features are neither centred nor whitened. Of the unit vectors of
a DINOv2 on CIFAR-10 three quarters of the squared norm are the common mean, the rest lies mostly in
a few directions, and what tells clusters apart is small and elsewhere: noise of the same size in
all directions hides it. So images are brought to the norm sqrt(m) in a public random projection to
m numbers (``PublicStatistics.whitened``), and a third release comes between the two of
``discriminant``::

    1  classes    -> M_c, their noisy means shrunk towards the mean of all by their known noise
                  (positive-part James-Stein), and the scale k = E[|x_j - M[y_j]|^2 / m]^-1/2: it
                  follows from M, since |x_j|^2 = m. So no norm is spent on what is taken out
    2  whitening  r_j = k (x_j - M[y_j]), as ``scatter`` -> T = k c W^-1/2, W widened as there,
                  c such that the y of r_j = T (x_j - M[y_j]) have mean square m
    3  scatter    as in ``discriminant``, with these r_j

Sensitivities are those of ``discriminant``: a contribution's norm is cut to 1 whatever T is.
Everything after a release is post-processing.
"""

import numpy as np
from numpy.typing import NDArray

from strategies.clustering.discriminant import (
    SMALLEST_CLASS,
    read_class_sums,
    read_scatter,
)
from strategies.clustering.frame import Frame
from strategies.clustering.secure_kmeans import RADIUS

PHASES = ("classes", "whitening", "scatter")
SMALLEST_REST = 0.05
"""Share of the squared norm that class means leave, at least; below it is noise that says so."""
SMALLEST_SQUARE = 0.1
"""Mean square of a whitened number, at least; without noise and widening it is about 1."""


def read_classes(total: NDArray[np.floating], noise_std: float, dimensions: int) -> Frame:
    """Class means and the scale k, from a (noisy) sum of ``discriminant.class_sums``.

    With a noisy mean N = M + e of a class with share p, the noise's variance v on each number and
    N' = mean of all + f (N - mean of all): E|x - N'|^2 = m - 2 E[M N'] + |N'|^2, and M N' is N N'
    less the (f + (1 - f) p) m v that e shares with both (to first order: f depends on e a little).
    """
    m = dimensions
    sums, counts = read_class_sums(total, m)
    counts = np.maximum(counts, 1e-12)
    shares = counts / counts.sum()
    noisy = RADIUS * np.sqrt(m) * sums / counts[:, None]
    variances = (RADIUS * np.sqrt(m) * noise_std / counts) ** 2
    common = shares @ noisy
    away = np.sum((noisy - common) ** 2, axis=1)
    factors = np.maximum(0.0, 1.0 - m * variances / np.maximum(away, 1e-12))
    factors[shares < SMALLEST_CLASS] = 0.0
    means = common + factors[:, None] * (noisy - common)
    shared = factors + (1 - factors) * shares
    squares = np.sum(means**2 - 2 * noisy * means, axis=1) / m + 2 * shared * variances
    rest = 1.0 + float(shares @ squares)
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
