"""The training step beside the straightforward one: float32, default layout, full SVD with a gradient through M off."""

from __future__ import annotations

import torch
from pairs import Row, compared
from torch import Tensor
from torch.nn import functional as F
from training_step import QUERY, SHOT, WAY, steps

from tapnet.backbones import make_backbone
from tapnet.batches import class_labels
from tapnet.functional import class_averages, projection_errors
from tapnet.hardware import resolve_precision
from tapnet.methods import TapNet


def rows(backbone: str, shape: tuple[int, int, int], target: str, pairs: int = 3) -> list[Row]:
    network = f"{backbone} {'×'.join(map(str, shape))}"
    _, ours = steps(shape, backbone, "float32")
    slow, fast, ratio = compared(_backward(straightforward(shape, backbone)), _backward(ours), pairs)
    measured = Row(f"step: float32 NCHW full SVD / ours in float32, {network}", ratio, "", slow, fast)
    if resolve_precision("auto", torch.device("cpu")) != "bf16":
        name = f"step: float32 NCHW full SVD / ours in bf16, {network}"
        return [
            measured,
            Row(name, None, target, note="not run: this CPU has no bf16; make bench-full on one that has"),
        ]
    _, half = steps(shape, backbone, "bf16")
    slow, fast, ratio = compared(_backward(straightforward(shape, backbone)), _backward(half), pairs)
    return [measured, Row(f"step: float32 NCHW full SVD / ours in bf16, {network}", ratio, target, slow, fast)]


def straightforward(shape: tuple[int, int, int], backbone: str):  # noqa: ANN201
    """Forward and loss as one would write them first."""
    torch.manual_seed(0)
    method = TapNet(make_backbone(backbone, shape), ways=WAY).train()
    images = torch.rand(WAY * (SHOT + QUERY), *shape)
    support_labels, query_labels = class_labels(WAY, SHOT), class_labels(WAY, QUERY)

    def loss() -> Tensor:
        support, query = method.embed(images).split([WAY * SHOT, WAY * QUERY])
        prototypes = class_averages(support, support_labels, WAY)
        errors = projection_errors(method.references, prototypes).detach()
        basis = torch.linalg.svd(errors, full_matrices=True).Vh[WAY:].mT
        return F.cross_entropy(-torch.cdist(query @ basis, method.references @ basis).square(), query_labels)

    return loss


def _backward(loss):  # noqa: ANN001, ANN202
    return lambda: loss().backward()
