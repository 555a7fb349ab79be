"""What a few-shot method is. The rest of the package knows methods only through this contract."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from tapnet.backbones import Backbone
from tapnet.functional import check_labels

_BRIGHTEST = 10.0  # more than any usual normalisation gives, and less than white as a byte


class Method(nn.Module):
    """Maps (support images, support labels, query images) to logits (query, way) and keeps nothing of the episode.

    In eval mode a query's logits do not depend on the other queries, unless the method is declared transductive.
    """

    transductive: ClassVar[bool] = False
    follows_class_order: ClassVar[bool] = True  # another order of the classes permutes the logits and no more
    backbone: Backbone

    def forward(self, support_images: Tensor, support_labels: Tensor, query_images: Tensor) -> Tensor:
        raise NotImplementedError


class EmbeddingMethod(Method):
    """A method whose features do not depend on the task, so that each image of a split is embedded once."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def embed(self, images: Tensor) -> Tensor:
        """Features (n, dim) of float images (n, channels, height, width) in [0, 1]."""
        features: Tensor = self.backbone(check_images(images))
        return features

    def logits(self, support_features: Tensor, support_labels: Tensor, query_features: Tensor) -> Tensor:
        """(..., query, way) from (..., n, dim), (..., n) and (..., query, dim)."""
        raise NotImplementedError

    def forward(self, support_images: Tensor, support_labels: Tensor, query_images: Tensor) -> Tensor:
        """Support and query pass the network as one batch, as the authors train: they share batch statistics."""
        check_labels(support_labels)
        support_images, query_images = _floats(support_images), _floats(query_images)
        if support_images.shape[1:] != query_images.shape[1:]:
            raise ValueError(
                "Support and query images need the same channels, height and width, got "
                f"{tuple(support_images.shape[1:])} and {tuple(query_images.shape[1:])}."
            )
        features = self.embed(torch.cat([support_images, query_images]))
        support, query = features.split([len(support_images), len(query_images)])
        return self.logits(support, support_labels, query)


class LinearMethod(EmbeddingMethod):
    """A method that is a linear layer as soon as the class averages of an episode are known."""

    def head(self, prototypes: Tensor) -> tuple[Tensor, Tensor]:
        """Weight (..., way, dim) and bias (..., way): on a query's features they have the softmax of `logits`."""
        raise NotImplementedError


def references_of(method: Method) -> Tensor | None:
    """The learned references (ways, dim); `None` when the method has none."""
    return getattr(method, "references", None)


def way_of(labels: Tensor) -> int:
    """The number of classes of an episode with labels 0 to way - 1."""
    return int(check_labels(labels).max()) + 1


def check_images(images: Tensor) -> Tensor:
    """The images, or a sentence that says what they need to be; those normalised by mean and deviation pass, too."""
    if not torch.compiler.is_compiling() and _floats(images).numel() and (most := images.detach().amax()) > _BRIGHTEST:
        raise ValueError(f"Images need values in [0, 1], got up to {most:g}: divide them by 255.")
    return images


def _floats(images: Tensor) -> Tensor:
    if not isinstance(images, Tensor) or not images.is_floating_point():
        kind = str(images.dtype).removeprefix("torch.") if isinstance(images, Tensor) else type(images).__name__
        raise ValueError(f"Images need to be a tensor of floats in [0, 1], got {kind}: uint8 becomes that by / 255.")
    return images
