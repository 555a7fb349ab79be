"""A training step beside others on the same images: 20-way 5-shot 8-query, forward, loss and backward.

TapNet beside the bare backbone is what its head costs; beside the straightforward step (float32, default layout, full
SVD, no gradient through M) what was won; a compiled backbone, another layout or optimizer, what was tried.
"""

from __future__ import annotations

from typing import Any

import torch
from pairs import Row, Work, compared
from torch import Tensor, nn
from torch.nn import functional as F

from tapnet.backbones import make_backbone
from tapnet.data.batches import class_labels
from tapnet.functional import class_prototypes, projection_errors
from tapnet.hardware import resolve_precision
from tapnet.methods import TapNet

WAY, SHOT, QUERY = 20, 5, 8
SUPPORT_LABELS, QUERY_LABELS = class_labels(WAY, SHOT), class_labels(WAY, QUERY)
PRECISION = resolve_precision("auto", torch.device("cpu"))
CHANNELS_LAST = torch.channels_last
Shape = tuple[int, int, int]


def head_rows(backbone: str, shape: Shape, pairs: int = 7, rounds: int = 1) -> list[Row]:
    """TapNet beside the bare backbone."""
    whole, bare = Step(backbone, shape, PRECISION).tapnet, Step(backbone, shape, PRECISION).bare
    return [_row(f"TapNet / bare backbone, {PRECISION}", backbone, shape, "at most 1.03", whole, bare, rounds * pairs)]


def compiled_rows(backbone: str, shape: Shape, pairs: int = 7) -> list[Row]:
    """What `torch.compile` makes of the backbone's step; it is compiled before the first pair."""
    compiled, eager = (Step(backbone, shape, PRECISION) for _ in range(2))
    compiled.network = torch.compile(compiled.network)  # type: ignore[assignment]
    name = f"compiled / eager backbone, {PRECISION}"
    return [_row(name, backbone, shape, "below 1, to be of use", compiled.bare, eager.bare, pairs)]


def tried_rows(backbone: str, shape: Shape, pairs: int = 7) -> list[Row]:
    """Layout and optimizer, each without / with, in float32."""
    plain, last = (Step(backbone, shape, "float32", layout).bare for layout in (torch.contiguous_format, CHANNELS_LAST))
    result = [_row("default layout / channels_last", backbone, shape, "kept if above 1", plain, last, pairs)]
    for option in ("foreach", "fused"):
        looped, tried = _adam(backbone, shape, foreach=False), _adam(backbone, shape, **{option: True})
        result.append(_row(f"20 × AdamW in a loop / {option}", backbone, shape, "", looped, tried, pairs))
    return result


def straightforward_rows(backbone: str, shape: Shape, target: str, pairs: int = 3) -> list[Row]:
    """The straightforward step beside ours in float32 and, where the CPU has instructions for it, bf16."""
    result, plain = [], Step(backbone, shape, "float32", torch.contiguous_format)
    for precision in ("float32", "bf16"):
        name, asked = f"float32 NCHW full SVD / ours in {precision}", target if precision == "bf16" else ""
        if precision == "bf16" != PRECISION:
            note = "not run: no bf16 instructions on this CPU"
            result.append(Row(f"step: {name}, {backbone}", None, asked, note=note))
        else:
            ours = Step(backbone, shape, precision).tapnet
            result.append(_row(name, backbone, shape, asked, plain.by_full_svd, ours, pairs))
    return result


def _row(name: str, backbone: str, shape: Shape, target: str, first: Work, second: Work, pairs: int) -> Row:
    a, b, ratio = compared(first, second, pairs)
    note = f"{1000 * a:.0f} ms against {1000 * b:.0f} ms"
    return Row(f"step: {name}, {backbone} {'×'.join(map(str, shape))}", ratio, target, a, b, note)


class Step:
    """Forward, loss and backward of a network and of TapNet over it, on one batch of images."""

    def __init__(
        self, backbone: str, shape: Shape, precision: str, layout: torch.memory_format = CHANNELS_LAST
    ) -> None:
        torch.manual_seed(0)
        self.precision = precision
        self.method = TapNet(make_backbone(backbone, shape), num_references=WAY).train()
        self.method.to(memory_format=layout)  # type: ignore[call-overload]
        self.network: nn.Module = self.method.backbone
        self.images = torch.rand(WAY * (SHOT + QUERY), *shape).to(memory_format=layout)
        self.parts = self.images.split([WAY * SHOT, WAY * QUERY])

    def bare(self) -> None:
        with self._autocast():
            features: Tensor = self.network(torch.cat(self.parts))
        features.float().square().mean().backward()

    def tapnet(self) -> None:
        support, query = self.parts
        with self._autocast():
            logits = self.method(support, SUPPORT_LABELS, query)
        F.cross_entropy(logits, QUERY_LABELS).backward()

    def by_full_svd(self) -> None:
        """Forward and loss as one would write them first."""
        support, query = self.method.embed(self.images).split([WAY * SHOT, WAY * QUERY])
        references = self.method.references
        errors = projection_errors(references, class_prototypes(support, SUPPORT_LABELS, WAY)).detach()
        basis = torch.linalg.svd(errors, full_matrices=True).Vh[WAY:].mT
        F.cross_entropy(-torch.cdist(query @ basis, references @ basis).square(), QUERY_LABELS).backward()

    def _autocast(self) -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bf16")


def _adam(backbone: str, shape: Shape, **options: Any) -> Work:
    method = TapNet(make_backbone(backbone, shape), num_references=WAY)
    for parameter in method.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(method.parameters(), **options)
    return lambda: [optimizer.step() for _ in range(20)]
