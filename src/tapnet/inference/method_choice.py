"""The method of a task where none is named: a rule that was fixed on validation classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tapnet.inference.networks import EmbeddingModel
from tapnet.methods import PARAMETER_FREE

AUTO = "auto"  # the name of the rule, for `fit`
REFERENCE_SHOTS = 2  # how many examples a reference counts for
LOGISTIC = "logistic"


class MethodChoice(NamedTuple):
    """A method with its options, and why it was chosen."""

    name: str
    options: Mapping[str, Any]
    reason: str


def choose_method(model: EmbeddingModel) -> MethodChoice:
    """Return the method for a task over this network; on validation classes it won at 1 to 10 examples per class.

    A network with references takes TapNet, each reference counting for two examples, and one that has none logistic
    regression. Any other method that a network was trained for stays. docs/own-images.md has the accuracies behind
    this rule.
    """
    own = model.default_method
    if "reference_shots" in model.method.adapt_options:
        options = {"reference_shots": REFERENCE_SHOTS}
        return MethodChoice(own, options, "the best on validation classes for networks with references")
    if own not in PARAMETER_FREE:
        return MethodChoice(own, {}, "the method that the network was trained for")
    if model.preprocessing is None:
        return MethodChoice(own, {}, "the method for feature vectors")
    return MethodChoice(LOGISTIC, {}, "the best on validation classes for networks without references")


def resolve_method(
    model: EmbeddingModel, method: str | None, options: Mapping[str, Any] | None
) -> tuple[str, Mapping[str, Any]]:
    """Return the method named and its options; without a name, the network's own if there are options, else by rule."""
    options = {key: value for key, value in (options or {}).items() if value is not None}
    if method not in (None, AUTO):
        return method, options
    return (model.default_method, options) if options else choose_method(model)[:2]
