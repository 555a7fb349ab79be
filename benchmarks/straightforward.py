"""The training step beside the straightforward one: float32, default layout, full SVD, no gradient through M."""

from __future__ import annotations

from collections.abc import Callable

import torch
from pairs import Row, Work, compared
from torch import Tensor
from torch.nn import functional as F
from training_step import QUERY, SHOT, WAY, steps

from tapnet.backbones import make_backbone
from tapnet.data.batches import class_labels
from tapnet.functional import class_prototypes, projection_errors
from tapnet.hardware import resolve_precision
from tapnet.methods import TapNet


def rows(backbone: str, shape: tuple[int, int, int], target: str, pairs: int = 3) -> list[Row]:
    return [_row(backbone, shape, precision, target, pairs) for precision in ("float32", "bf16")]


def _row(backbone: str, shape: tuple[int, int, int], precision: str, target: str, pairs: int) -> Row:
    name = f"step: float32 NCHW full SVD / ours in {precision}, {backbone} {'×'.join(map(str, shape))}"
    if precision == "bf16" and resolve_precision("auto", torch.device("cpu")) != "bf16":
        command = f"python benchmarks/run.py --only straightforward-{backbone}-{shape[1]}"
        return Row(name, None, target, note=f"not run (no bf16 instructions on this CPU): {command}")
    _, ours = steps(shape, backbone, precision)
    slow, fast, ratio = compared(_backward(straightforward(shape, backbone)), _backward(ours), pairs)
    asked = target if precision == "bf16" else ""
    return Row(name, ratio, asked, slow, fast, f"{1000 * slow:.0f} ms against {1000 * fast:.0f} ms")


def straightforward(shape: tuple[int, int, int], backbone: str) -> Callable[[], Tensor]:
    """Forward and loss as one would write them first."""
    torch.manual_seed(0)
    method = TapNet(make_backbone(backbone, shape), num_references=WAY).train()
    images = torch.rand(WAY * (SHOT + QUERY), *shape)
    support_labels, query_labels = class_labels(WAY, SHOT), class_labels(WAY, QUERY)

    def loss() -> Tensor:
        support, query = method.embed(images).split([WAY * SHOT, WAY * QUERY])
        prototypes = class_prototypes(support, support_labels, WAY)
        errors = projection_errors(method.references, prototypes).detach()
        basis = torch.linalg.svd(errors, full_matrices=True).Vh[WAY:].mT
        return F.cross_entropy(-torch.cdist(query @ basis, method.references @ basis).square(), query_labels)

    return loss


def _backward(loss: Callable[[], Tensor]) -> Work:
    return lambda: loss().backward()
