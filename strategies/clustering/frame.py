"""What turns a client's whitened images into its embedding, for ``discriminant`` and its relatives.

With x_j the whitened feature of image j, y_j its class, M the class means and T a whitener, every
image gives r_j = T (x_j - M[y_j]), the client y = clip(sqrt(n) mean_j r_j, R) / R, and its
embedding is (A y - centre) / radius. A frame is public: it follows from releases.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FRAME = "frame-"


@dataclasses.dataclass(frozen=True)
class Frame:
    """What turns a client's images into its embedding.

    Attributes
    ----------
    class_means : (classes, m)
        M, in the units of whitened features.
    axes : (r, m), centre : (r,), radius : float
        The embedding is ``(axes y - centre) / radius``, cut to the unit ball. Before the scatter
        is released there are no axes (r = 0).
    whitener : symmetric (m, m), or one number
        T. Once there are axes it is in them, and 1: no whole matrix is sent with every round. So
        an embedding is cut in itself alone, not also (as in ``scatter``) where y is whitened.
    """

    class_means: NDArray[np.float64]
    axes: NDArray[np.float64]
    centre: NDArray[np.float64]
    radius: float
    whitener: NDArray[np.float64]

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """As named arrays, for messages."""
        return {key: np.asarray(value) for key, value in vars(self).items()}

    def state(self) -> dict[str, NDArray[np.generic]]:
        """As named arrays among others, for checkpoints."""
        return {f"{_FRAME}{key}": values for key, values in self.arrays().items()}

    @staticmethod
    def in_state(state: Mapping[str, NDArray[Any]]) -> "Frame | None":
        """Inverse of ``state``; None if a checkpoint has no frame."""
        own = {k.removeprefix(_FRAME): v for k, v in state.items() if k.startswith(_FRAME)}
        return Frame.of(own) if own else None

    @staticmethod
    def of(arrays: Mapping[str, NDArray[Any]]) -> "Frame":
        """Inverse of ``arrays``."""
        own = {key: np.asarray(value, dtype=np.float64) for key, value in arrays.items()}
        return Frame(
            own["class_means"], own["axes"], own["centre"], float(own["radius"]), own["whitener"]
        )

    @staticmethod
    def of_classes(class_means: NDArray[np.float64], whitener: Any = 1.0) -> "Frame":
        """Before the scatter is released: class means and whitener alone."""
        none = np.zeros((0, class_means.shape[1]))
        return Frame(class_means, none, np.zeros(0), 1.0, np.asarray(whitener, dtype=np.float64))

    def residuals(
        self, features: NDArray[np.floating], labels: NDArray[np.integer]
    ) -> NDArray[np.float64]:
        """r (n, m) of a client's images.

        Raises
        ------
        ValueError
            If a label is none of the classes.
        """
        if len(labels) and not (labels.min() >= 0 and labels.max() < len(self.class_means)):
            raise ValueError(f"labels must be 0 to {len(self.class_means) - 1}")
        return self.whiten(np.asarray(features - self.class_means[labels], dtype=np.float64))

    def whiten(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """T applied to every row of (n, m)."""
        whitened = rows @ self.whitener if self.whitener.ndim else rows * self.whitener
        return np.asarray(whitened, dtype=np.float64)
