"""Meta-Baseline: Exploring Simple Meta-Learning for Few-Shot Learning.

Yinbo Chen, Zhuang Liu, Huijuan Xu, Trevor Darrell, Xiaolong Wang. ICCV 2021. This is their Classifier-Baseline.
"""

from __future__ import annotations

from torch import nn
from torch.nn import functional as F

from tapnet.backbones import Backbone
from tapnet.data.batches import EpisodeImages
from tapnet.errors import UserError
from tapnet.methods.base import EpisodeLoss, cross_entropy
from tapnet.methods.centroid import CosineCentroid


class ClassifierBaseline(CosineCentroid):
    """Trained to classify all training classes; adapts to a task by the cosine centroids of its support set.

    The classifier is one linear layer over the mean of the last maps, so it also learns from smaller windows of the
    images (augmentation `window`). Other methods can start from its backbone: `tapnet train RECIPE --from RUN`.
    """

    takes_windows = True
    auxiliary_classes = True
    training_only = ("classifier",)

    def __init__(self, backbone: Backbone, num_classes: int | None = None, label_smoothing: float = 0.0) -> None:
        super().__init__(backbone)
        if not 0 <= label_smoothing < 1:
            raise UserError(f"`label_smoothing` needs to be at least 0 and below 1, got {label_smoothing}.")
        self.label_smoothing = label_smoothing
        self.classifier = nn.Linear(backbone.map_shape[0], num_classes) if num_classes else None

    def loss(self, episode: EpisodeImages) -> EpisodeLoss:
        """Return the cross-entropy of all images of the episode over all training classes."""
        if self.classifier is None:
            raise UserError("Training a classifier needs the option `num_classes`, the number of training classes.")
        scores = self.classifier(self.backbone.maps(episode.images).mean(dim=(-2, -1)))
        labels = F.one_hot(episode.split_labels, scores.shape[-1]).float()
        targets = labels.lerp(labels.new_tensor(1 / scores.shape[-1]), self.label_smoothing)
        return EpisodeLoss(cross_entropy(scores, targets), scores[episode.sizes[0] :, episode.classes])
