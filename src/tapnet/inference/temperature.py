"""The temperature of a task: from the calibration of its network or, where that has none, from its examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapnet.evaluation.calibration import Calibration, fit_temperature
from tapnet.inference.adaptation import adapt, held_out_logits
from tapnet.inference.examples import Examples
from tapnet.inference.networks import EmbeddingModel
from tapnet.inference.usual_temperature import USUAL, usual_temperature
from tapnet.methods import PARAMETER_FREE, Head

_ROUNDS = 5  # of leaving one example of every class out
_USUAL_COUNT = 40  # held-out examples that count as much as the usual temperature


def temperature_of(
    head: Head, examples: Examples, model: EmbeddingModel, method: str, options: Mapping[str, Any]
) -> float:
    """Return the temperature of the network's calibration for this method or, where it has none, of the examples."""
    shots, tables = np.bincount(examples.labels).tolist(), model.calibration
    if method in PARAMETER_FREE and method not in tables.tables:
        usual = usual_temperature(method, examples.features, examples.labels)
        return temperature_of_examples(usual, USUAL, examples, model, method, options)
    calibrated = tables.temperature(method, shots) * _dimension_factor(model, options, len(shots))
    if options.get("reference_shots") is None:
        return calibrated
    usual = calibrated * _blend_factor(head, examples, model, method, options)
    return temperature_of_examples(usual, tables, examples, model, method, options)


def temperature_of_examples(
    usual: float,
    calibration: Calibration,
    examples: Examples,
    model: EmbeddingModel,
    method: str,
    options: Mapping[str, Any],
) -> float:
    """Return a temperature for what the network was not calibrated for: the usual one, and that of its examples.

    The examples are left out one of every class at a time; where a class has one only, the usual one remains. They are
    sorted first, so that a task does not depend on the order in which they came.
    """
    held = held_out_logits(examples.sorted(), model, method, options, _ROUNDS)
    if held is None:
        return usual
    return mixed_temperature(usual, growth_factor(calibration, method, np.bincount(examples.labels).tolist()), *held)


def _dimension_factor(model: EmbeddingModel, options: Mapping[str, Any], way: int) -> float:
    """Return how much larger squared distances are than at the projection dimension of the calibration."""
    asked = options.get("projection_dim")
    if asked is None:
        return 1.0
    full = model.method.backbone.dim - way
    return float(asked / (getattr(model.method, "projection_dim", None) or full))


def _blend_factor(
    head: Head, examples: Examples, model: EmbeddingModel, method: str, options: Mapping[str, Any]
) -> float:
    """Return how much farther apart logits are than with the references alone, for which networks are calibrated."""
    plain = adapt(examples, model, method, {**options, "reference_shots": None})
    blended, alone = (_logit_scale(each) for each in (head, plain))
    return blended / alone


def _logit_scale(head: Head) -> float:
    linear = head.linear()
    assert linear is not None
    return float((linear.weight - linear.weight.mean(dim=-2, keepdim=True)).norm())


def mixed_temperature(usual: float, factor: float, logits: NDArray[np.float64], answers: NDArray[np.int64]) -> float:
    """Return the usual temperature and that of held-out examples, averaged by their number in logarithms.

    `factor` is by how much a head with all examples needs another temperature than one without those held out.
    """
    share = len(answers) / (len(answers) + _USUAL_COUNT)
    held = factor * fit_temperature(logits, answers)
    return float(np.exp(share * np.log(held) + (1 - share) * np.log(usual)))


def growth_factor(calibration: Calibration, method: str, shots: Sequence[int]) -> float:
    """Return by how much a temperature changes from one example less in every class."""
    fewer = [max(shot - 1, 1) for shot in shots]
    return calibration.temperature(method, shots) / calibration.temperature(method, fewer)
