"""The supplement's Table 5: the number of parameters of each method, published and in our networks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from tapnet.backbones import make_backbone
from tapnet.methods import METHODS, Method

IMAGE_SHAPE = (3, 84, 84)  # miniImageNet's
Modules = tuple[str, ...]  # names of modules


@dataclass(frozen=True)
class ParameterCount:
    """A row of the supplement's Table 5, and the network of ours to compare.

    `layers` and `parts` are its modules for the columns of further layers and further parts, with one number for each
    group of modules. `note` says where ours differs.
    """

    name: str
    published: tuple[str, str, str]  # feature extractor, further layers, further parts
    method: str
    backbone: str
    options: dict[str, Any] = field(default_factory=dict)
    layers: tuple[Modules, ...] = ()
    parts: tuple[Modules, ...] = ()
    note: str = ""


PARAMETERS: tuple[ParameterCount, ...] = (
    ParameterCount("Matching Networks", ("112k", "-", "-"), "matching", "conv4"),
    ParameterCount("Prototypical Networks", ("112k", "-", "-"), "protonet", "conv4"),
    ParameterCount(
        *("MAML", ("112k", "-", "12k (FC layer)"), "maml", "conv4", {"way": 5}),
        parts=(("classifier",),),
        note="its authors have 32 filters on miniImageNet, 28,512 convolution weights and 4,000 of the FC layer",
    ),
    ParameterCount(
        *("TapNet (Conv4)", ("112k", "-", "46k (Φ)"), "tapnet", "conv4", {"num_references": 20}),
        parts=(("references",),),
    ),
    ParameterCount(
        *("Relation Nets", ("112k", "111k", "4k (FC layer)"), "relation", "conv4"),
        layers=(("relation.first", "relation.rest.3"),),
        parts=(("relation.rest.8", "relation.rest.10"),),
        note="our Conv4 gives maps of 6×6, which end as 2×2 before the FC layers; theirs of 19×19 end as 3×3",
    ),
    ParameterCount(
        *("Transductive Propagation Nets", ("112k", "37k (graph construction)", "-"), "tpn", "conv4"),
        layers=(("length_scale.layers.0", "length_scale.layers.4"),),
        parts=(("length_scale.layers.9", "length_scale.layers.11"),),
        note="the FC layers of the graph construction, 4→8→1, are not in the published count",
    ),
    ParameterCount(
        "SNAIL (ResNet-12-small)",
        ("2.2M", "1.3M + α (attention, TC)", "-"),
        *("snail", "resnet12-small", {"way": 5, "shot": 5, "embedding": (2048, 384)}),
        layers=(("embedding",), ("layers",)),
        parts=(("classifier",),),
        note="α is not published; ours is the second number, for 5-way 5-shot. The output layer is not counted there",
    ),
    ParameterCount(
        *("adaResNet", ("2.2M", "0.3M", "-"), "shifted-neurons", "resnet12-small"),
        {"way": 5, "hidden": (512, 384), "key_network": False},
        layers=(("classifier.0", "classifier.2"),),
        parts=(("classifier.4", "memories", "output_memory"),),
        note="0.3M fits layers of 512 and 384 units, which is assumed; output layer and memory are not counted there",
    ),
    ParameterCount(
        *("TapNet (ResNet-12-small)", ("2.2M", "-", "5k (Φ)"), "tapnet", "resnet12-small", {"num_references": 20}),
        parts=(("references",),),
    ),
    ParameterCount(
        *("TADAM-α", ("9.4M", "-", "-"), "tadam-alpha", "resnet12"),
        note="its authors' code has 1×1 shortcuts, 7,989,120 weights; our ResNet-12 has 3×3 ones",
    ),
    ParameterCount(
        *("TADAM-TC", ("9.4M", "-", "1.2M (FC layer)"), "tadam-tc", "resnet12"),
        parts=(("task_embedding.gammas", "task_embedding.betas"),),
        note="1.2M is one predictor per block; the authors' code, as ours, has two for each of 12 convolutions",
    ),
    ParameterCount(
        *("TapNet (ResNet-12)", ("9.4M", "-", "10k (Φ)"), "tapnet", "resnet12", {"num_references": 20}),
        parts=(("references",),),
    ),
)


def outline(row: ParameterCount) -> Method:
    """Return the network of a row on PyTorch's meta device: shapes without values."""
    with torch.device("meta"):
        return METHODS[row.method](make_backbone(row.backbone, IMAGE_SHAPE), **row.options)


def count_parameters(row: ParameterCount) -> tuple[str, str, str, str]:
    """Return our numbers for the columns of a row, and the number of all parameters besides those of the backbone.

    Counted as published: the weights of convolutions, of linear layers and the references, not biases and batch
    normalization. The last number has everything.
    """
    network = outline(row)
    convolutions = sum(weight.numel() for weight in network.backbone.parameters() if weight.dim() == 4)
    added = {name: each for name, each in network.named_parameters() if not name.startswith("backbone.")}

    def count(modules: Modules) -> int:
        prefixes = tuple(f"{module}." for module in modules)
        return sum(each.numel() for name, each in added.items() if each.dim() > 1 and f"{name}.".startswith(prefixes))

    def weights(groups: tuple[Modules, ...]) -> str:
        return " + ".join(f"{count(modules):,}" for modules in groups) or "-"

    everything = sum(each.numel() for each in added.values())
    return f"{convolutions:,}", weights(row.layers), weights(row.parts), f"{everything:,}"
