"""Meta-Baseline: Exploring Simple Meta-Learning for Few-Shot Learning.

Yinbo Chen, Zhuang Liu, Huijuan Xu, Trevor Darrell, Xiaolong Wang. ICCV 2021. This is their Classifier-Baseline.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from tapnet.backbones import Backbone
from tapnet.data.batches import EpisodeImages
from tapnet.errors import UserError
from tapnet.functional import class_prototypes, widened
from tapnet.methods.base import EpisodeLoss, FunctionHead, Head, Method, cross_entropy
from tapnet.methods.centroid import cosine_head


class ClassifierBaseline(Method):
    """Trained to classify all training classes; assigns each query to the class with the largest cosine.

    Features are the means of the last maps, in training as at test; a class has the direction of the mean of its
    examples. The classifier is one linear layer, so it also learns from smaller windows of the images (augmentation
    `window`). Other methods can start from its backbone: `tapnet train RECIPE --from RUN`.
    """

    takes_windows = True
    training_only = ("classifier",)

    def __init__(self, backbone: Backbone, num_classes: int | None = None, label_smoothing: float = 0.0) -> None:
        self.feature_maps = backbone.dim != backbone.map_shape[0]  # unless the backbone takes their means itself
        super().__init__(backbone)
        if not 0 <= label_smoothing < 1:
            raise UserError(f"`label_smoothing` needs to be at least 0 and below 1, got {label_smoothing}.")
        self.label_smoothing = label_smoothing
        self.classifier = nn.Linear(backbone.map_shape[0], num_classes) if num_classes else None

    def adapt(self, support: Tensor, labels: Tensor, way: int) -> Head:
        features = averaged(widened(support)) if self.feature_maps else widened(support)
        centroids = class_prototypes(features, labels, way, validate=False)
        head = cosine_head(F.normalize(centroids, dim=-1), centroids)
        return FunctionHead(lambda query: head.logits(averaged(query)), averaged) if self.feature_maps else head

    def loss(self, episode: EpisodeImages) -> EpisodeLoss:
        """Return the cross-entropy of all images of the episode over all training classes."""
        if self.classifier is None:
            raise UserError("Training a classifier needs the option `num_classes`, the number of training classes.")
        scores = self.classifier(averaged(self.backbone.maps(episode.images)))
        labels = F.one_hot(episode.split_labels, scores.shape[-1]).to(scores.dtype)
        targets = labels.lerp(labels.new_tensor(1 / scores.shape[-1]), self.label_smoothing)
        return EpisodeLoss(cross_entropy(scores, targets), scores[episode.sizes[0] :, episode.classes])


def averaged(maps: Tensor) -> Tensor:
    return maps.mean(dim=(-2, -1))
