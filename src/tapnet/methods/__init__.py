"""Few-shot methods. To add one: a file here, a line in `METHODS`, a test file."""

from __future__ import annotations

from tapnet.methods.base import EpisodeLoss, Head, LinearHead, Method, PrototypeMethod
from tapnet.methods.centroid import CosineCentroid
from tapnet.methods.classifier import ClassifierBaseline
from tapnet.methods.logistic import LogisticRegression
from tapnet.methods.maml import MAML, Reptile
from tapnet.methods.matching import MatchingNetwork
from tapnet.methods.protonet import PrototypicalNetwork
from tapnet.methods.relation import RelationNetwork
from tapnet.methods.shifted_neurons import ShiftedNeurons
from tapnet.methods.snail import SNAIL
from tapnet.methods.tadam import TadamAlpha, TadamTC
from tapnet.methods.tapnet import TapNet, TapNetVariant
from tapnet.methods.tpn import TransductivePropagation

METHODS: dict[str, type[Method]] = {
    "tapnet": TapNet,
    "tapnet-variant": TapNetVariant,
    "protonet": PrototypicalNetwork,
    "matching": MatchingNetwork,
    "relation": RelationNetwork,
    "tpn": TransductivePropagation,
    "tadam-alpha": TadamAlpha,
    "tadam-tc": TadamTC,
    "maml": MAML,
    "reptile": Reptile,
    "snail": SNAIL,
    "shifted-neurons": ShiftedNeurons,
    "classifier": ClassifierBaseline,
    "centroid": CosineCentroid,
    "logistic": LogisticRegression,
}

PARAMETER_FREE = ("protonet", "centroid", "logistic")  # only their backbone has parameters, so they fit any backbone


def method_name(method: Method) -> str:
    """Return the name of a method in METHODS."""
    return next(name for name, kind in METHODS.items() if type(method) is kind)


__all__ = ["METHODS", "PARAMETER_FREE", "EpisodeLoss", "Head", "LinearHead", "Method", "PrototypeMethod", "method_name"]
__all__ += ["MAML", "SNAIL", "ClassifierBaseline", "CosineCentroid", "LogisticRegression", "MatchingNetwork"]
__all__ += ["PrototypicalNetwork", "RelationNetwork", "Reptile", "ShiftedNeurons", "TadamAlpha", "TadamTC", "TapNet"]
__all__ += ["TapNetVariant", "TransductivePropagation"]
