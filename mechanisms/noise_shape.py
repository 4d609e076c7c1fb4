"""DP-Hero's noise shape (Zheng et al.): the noise's scale along each eigenvector of W W^T."""

import math
from collections.abc import Sequence


def scales(eigenvalues: Sequence[float]) -> list[float]:
    """``v_i = e_i sqrt(k) / |e|`` for the eigenvalues e (``[k]``, of ``W W^T``) of one layer; the
    mean of v_i^2 is 1.

    Raises:
        ValueError: an eigenvalue is negative or not finite, or none is above 0.
    """
    if not all(0.0 <= value < math.inf for value in eigenvalues) or not any(eigenvalues):
        raise ValueError(
            f"eigenvalues = {list(eigenvalues)} must be finite, at least 0 and not all 0; W W^T "
            "has no others"
        )
    largest = max(eigenvalues)
    norm = math.sqrt(sum((value / largest) ** 2 for value in eigenvalues))
    return [value / largest * math.sqrt(len(eigenvalues)) / norm for value in eigenvalues]
