"""Embedding a split, gathering and conversion included, beside a bare loop over tensors that are there already."""

from __future__ import annotations

import numpy as np
import torch
from pairs import Row, compared

from tapnet.backbones import make_backbone
from tapnet.data import load_dataset
from tapnet.evaluation.embedding import embed, fused
from tapnet.hardware import to_float_tensor

BATCH = 256


@torch.inference_mode()
def rows(pairs: int = 5) -> list[Row]:
    images = load_dataset("quickdraw", "test")
    plain = make_backbone("conv4", images.image_shape).eval()
    plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as the folded one
    folded = fused(plain)
    resident = to_float_tensor(images.gather(np.arange(len(images))), torch.device("cpu")).split(BATCH)
    bare, whole, ratio = compared(
        lambda: [folded(part) for part in resident],
        lambda: embed(plain, images),
        pairs,
        (len(images), len(images)),
    )
    apart, together, gain = compared(
        lambda: [plain(part) for part in resident], lambda: [folded(part) for part in resident], pairs
    )
    return [
        Row("embedding: bare loop / a split of drawings, Conv4", ratio, "at least 0.9", bare, whole),
        Row("embedding: batch norm apart / folded in, Conv4", gain, "kept if above 1", apart, together),
    ]
