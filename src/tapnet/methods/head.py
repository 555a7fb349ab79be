"""Heads: classifiers of one episode, which methods make from its support set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F


class Head(ABC):
    """The classifier of one episode, or of a batch of episodes in the leading dimensions of its tensors."""

    @abstractmethod
    def logits(self, query: Tensor) -> Tensor:
        """Return scores (..., query, way) of query features (..., query, *feature_shape)."""

    def linear(self) -> LinearHead | None:
        """Return the linear layer over the features that has the softmax of `logits`, or `None` if there is none."""
        return None

    def project(self, features: Tensor) -> Tensor:
        """Return the features (..., n, dim) in the space in which the head compares them."""
        return features

    @property
    def centers(self) -> Tensor | None:
        """The point that represents each class among the features, (..., way, dim); `None` if there is none."""
        return None


@dataclass(frozen=True)
class LinearHead(Head):
    r"""Scores $w_k \cdot x + b_k$, where x is first scaled to unit length if `normalize`."""

    weight: Tensor  # (..., way, dim)
    bias: Tensor  # (..., way)
    normalize: bool = False
    class_centers: Tensor | None = None  # (..., way, dim)

    def logits(self, query: Tensor) -> Tensor:
        return self.project(query.to(self.weight.dtype)) @ self.weight.mT + self.bias.unsqueeze(-2)

    def linear(self) -> LinearHead:
        return self

    def project(self, features: Tensor) -> Tensor:
        return F.normalize(features, dim=-1) if self.normalize else features

    @property
    def centers(self) -> Tensor | None:
        return self.class_centers
