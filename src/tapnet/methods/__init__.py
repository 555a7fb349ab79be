"""Few-shot methods. To add one: a file here, a line in `METHODS`, a test file."""

from __future__ import annotations

from tapnet.methods.base import EmbeddingMethod, LinearMethod, Method, references_of
from tapnet.methods.protonet import PrototypicalNetwork
from tapnet.methods.tapnet import TapNet

METHODS: dict[str, type[Method]] = {
    "tapnet": TapNet,
    "protonet": PrototypicalNetwork,
}

__all__ = ["METHODS", "EmbeddingMethod", "LinearMethod", "Method", "PrototypicalNetwork", "TapNet", "references_of"]
