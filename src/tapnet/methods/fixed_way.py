"""Methods with one output per class: the number of classes is part of the network."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from tapnet.backbones import Backbone
from tapnet.errors import UserError
from tapnet.functional import check_one_label_each
from tapnet.methods.base import Method


class FixedWayMethod(Method):
    """A method whose network has `way` outputs; output k is trained to be class k of every episode.

    Training episodes have exactly `way` classes. In eval mode an episode may have fewer: the outputs without a class
    are left out of the logits.
    """

    way_option = "way"
    follows_class_order = False

    def __init__(self, backbone: Backbone, way: int) -> None:
        super().__init__(backbone)
        if way < 2:
            raise UserError(f"{type(self).__name__} needs `way` to be at least 2, got {way}.")
        self.way = way

    @property
    def max_way(self) -> int:
        return self.way

    def check_episode(self, support: Tensor, labels: Tensor, way: int) -> None:
        """Raise UserError if the network was not built for so many classes, or an image lacks a label."""
        check_one_label_each(support, labels)
        if way > self.way or (self.training and way < self.way):
            limit = "exactly" if self.training else "at most"
            raise UserError(
                f"{type(self).__name__} was built for {self.way}-way episodes and takes {limit} {self.way} classes, "
                f"got {way}: build it with way={way}."
            )


def perceptron(*sizes: int) -> nn.Sequential:
    """Return linear layers between these sizes with a ReLU after each except the last."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
