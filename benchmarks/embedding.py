"""Embedding a split, gathering and conversion included, beside a bare loop over tensors that are there already."""

from __future__ import annotations

import numpy as np
import torch
from pairs import Row, compared

from tapnet.backbones import make_backbone
from tapnet.data import load_dataset
from tapnet.data.batches import to_float_tensor
from tapnet.evaluation.embedding import embed, fused
from tapnet.methods import PrototypicalNetwork

BATCH = 256


@torch.inference_mode()
def rows(pairs: int = 5) -> list[Row]:
    images = load_dataset("quickdraw", "test")
    method = PrototypicalNetwork(make_backbone("conv4", images.image_shape)).eval()
    network, plain = fused(method), method
    resident = to_float_tensor(images.gather(np.arange(len(images))), torch.device("cpu")).split(BATCH)
    bare, whole, ratio = compared(
        lambda: [network.embed(part) for part in resident],
        lambda: embed(method, images),
        pairs,
        (len(images), len(images)),
    )
    unfused, folded, gain = compared(
        lambda: [plain.embed(part) for part in resident], lambda: [network.embed(part) for part in resident], pairs
    )
    return [
        Row("embedding: bare loop / a split of drawings, Conv4", ratio, "at least 0.9", bare, whole),
        Row("embedding: batch norm apart / folded in, Conv4", gain, "kept if above 1", unfused, folded),
    ]
