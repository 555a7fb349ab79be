"""Rapid Adaptation with Conditionally Shifted Neurons: adaCNN with Conv4, adaResNet with ResNet-12-small.

Tsendsuren Munkhdalai, Xingdi Yuan, Soroush Mehri, Adam Trischler. ICML 2018.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tapnet.backbones import Backbone
from tapnet.errors import UserError
from tapnet.methods.base import FixedWayMethod, FunctionHead, perceptron, with_tensors

MEMORY_WIDTH = 32  # of the hidden layers that map feedback to a shift; the paper has 20 to 40
FIRST_VALUE = 0.5  # that of every shift at the start: above 0, where its ReLU has a gradient


class ShiftedNeurons(FixedWayMethod):
    r"""A network whose neurons are shifted by values that a memory of the support set holds for the query.

    The support set first passes through the network without shifts. Direct feedback: a neuron with pre-activation a
    gets $\sigma'(a)\,\delta_i$ from image i, where $\delta_i$ = softmax - one-hot is the gradient of the loss with
    respect to the logits. A perceptron shared by the neurons of a layer maps this to a value; the value of output k is
    computed from $\delta_{ik}$. A query mixes these values into $\beta$ by the softmax of `scale` times the cosines of
    its key with those of the support images: neurons become $\sigma(a) + \sigma(\beta)$, logits $a + \beta$.

    `blocks` are the blocks of the backbone whose outputs are shifted. Keys come from a copy of the backbone, or without
    `key_network` from the backbone itself. `hidden` are the sizes of layers between the backbone and the logits. In
    eval mode an output without a class gets no feedback.

    After a shift, batch normalization sees different inputs than in the pass without shifts, so each pass has its own
    running statistics; if they shared them, test accuracy would be far below training accuracy.
    """

    task_features = True
    batched = False

    def __init__(
        self,
        backbone: Backbone,
        way: int,
        blocks: Sequence[int] = (2, 3),
        hidden: Sequence[int] = (),
        key_network: bool = True,
        scale: float = 10.0,
    ) -> None:
        super().__init__(backbone, way)
        stages = getattr(backbone, "blocks", None)
        if not isinstance(stages, nn.Sequential) or backbone.four_rotations:
            raise UserError("ShiftedNeurons needs conv4, resnet12 or resnet12-small, without four_rotations.")
        if any(not 0 <= block < len(stages) for block in blocks):
            raise UserError(f"`blocks` are from 0 to {len(stages) - 1}, got {list(blocks)}.")
        self.blocks, self.scale = tuple(blocks), scale
        self.classifier = perceptron(backbone.dim, *hidden, way)
        self.memories = nn.ModuleList(_memory(way) for _ in blocks)
        self.output_memory = _memory(1)
        self.key_network = copy.deepcopy(backbone) if key_network else None
        after_shift = tuple(f"blocks.{block}." for block in range(min(blocks, default=len(stages)) + 1, len(stages)))
        for name, buffer in backbone.named_buffers():
            if name.startswith(after_shift):
                self.register_buffer(_shifted(name), buffer.clone())

    def adapt(self, support: Tensor, labels: Tensor, way: int) -> FunctionHead:
        self.check_episode(support, labels, way)
        values, output_values = self.memorize(support, labels, way)
        keys = self.keys(support)

        def logits(query: Tensor) -> Tensor:
            attention = (self.scale * self.keys(query) @ keys.mT).softmax(dim=-1)  # (query, support)
            shifts = {block: F.relu(torch.tensordot(attention, value, dims=1)) for block, value in values.items()}
            return (self.run(query, shifts) + attention @ output_values)[:, :way]

        return FunctionHead(logits, self.keys)

    def memorize(self, support: Tensor, labels: Tensor, way: int) -> tuple[dict[int, Tensor], Tensor]:
        """Return a value per image and neuron: of the blocks (n, channels, height, width), of the outputs (n, way)."""
        activations: dict[int, Tensor] = {}
        logits = self.run(support, {}, activations)
        feedback = F.pad(direct_feedback(logits[:, :way], labels), (0, self.way - way))
        memories = zip(self.blocks, self.memories, strict=True)
        values = {block: self.values(memory, activations[block], feedback) for block, memory in memories}
        return values, self.output_memory(feedback.unsqueeze(-1)).squeeze(-1)

    def values(self, memory: nn.Module, activations: Tensor, feedback: Tensor) -> Tensor:
        """Return the value of every neuron for every image, shaped as the activations.

        The derivative of ReLU is 0 or 1, so an image has two values: one for active neurons, one for the others.
        """
        active = memory(feedback).view(-1, 1, 1, 1)
        inactive = memory(torch.zeros_like(feedback[:1])).view(-1, 1, 1, 1)
        return torch.where(activations > 0, active, inactive)

    def run(self, images: Tensor, shifts: dict[int, Tensor], activations: dict[int, Tensor] | None = None) -> Tensor:
        """Return logits (n, outputs) with shifts in some blocks; fill `activations` with the outputs of all blocks."""
        own, names = dict(self.named_buffers()), [name for name, _ in self.backbone.named_buffers()]
        statistics = {name: own[_shifted(name)] for name in names if _shifted(name) in own}
        maps = images
        for block, stage in enumerate(self.backbone.get_submodule("blocks").children()):
            after_shift = any(shifted < block for shifted in shifts)
            maps = (with_tensors(stage, statistics, f"blocks.{block}.") if after_shift else stage)(maps)
            if activations is not None:
                activations[block] = maps
            if block in shifts:
                maps = maps + shifts[block]
        return self.classifier(self.backbone.pool(maps))

    def keys(self, images: Tensor) -> Tensor:
        """Return keys (n, key dim) of length one; they do not depend on the task."""
        network = self.key_network or self.backbone
        return F.normalize(network(images), dim=-1)


def _shifted(name: str) -> str:
    return f"shifted_{name.replace('.', '_')}"


def _memory(inputs: int) -> nn.Sequential:
    """Return a network that maps feedback to a value."""
    layers = perceptron(inputs, MEMORY_WIDTH, MEMORY_WIDTH, 1)
    nn.init.constant_(layers.get_parameter("4.bias"), FIRST_VALUE)
    return layers


def direct_feedback(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the gradient of the cross-entropy of each image with respect to its logits: softmax - one-hot."""
    return logits.softmax(dim=-1) - F.one_hot(labels, logits.shape[-1]).to(logits.dtype)
