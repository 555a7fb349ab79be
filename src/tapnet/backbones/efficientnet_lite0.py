"""EfficientNet-Lite0 by the module name of earlier versions; `tapnet.backbones.efficientnet_lite` has the family."""

from __future__ import annotations

from tapnet.backbones.efficientnet_lite import LITE0, EfficientNetLite0

__all__ = ["WHEEL", "EfficientNetLite0"]

WHEEL = LITE0.wheel
