"""t-SNE to a plane, always the same for the same points."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float32]


def tsne(points: Points) -> Points:
    """Return positions (n, 2) of points (n, dim)."""
    from sklearn.manifold import TSNE

    perplexity = min(20.0, (len(points) - 1) / 3)
    method = "exact" if len(points) < 500 else "barnes_hut"
    placed: Points = TSNE(perplexity=perplexity, init="pca", method=method, random_state=0).fit_transform(points)
    return placed
