"""What is decided for a task where nobody does: its method, its temperature; and its accuracy by leaving examples out.

One example of every class is left out at a time, so that all classes lose as much, and the head is fitted anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from tapnet.evaluation.calibration import Calibration
from tapnet.inference.networks import EmbeddingModel, exact_head
from tapnet.inference.predictor import AUTO
from tapnet.inference.scoring import Confusion
from tapnet.methods import PARAMETER_FREE

if TYPE_CHECKING:
    from tapnet.inference.task import Examples, Task

LOGISTIC = "logistic"
REFERENCE_SHOTS = 2  # how many examples a reference counts for
ROUNDS, _TEMPERATURE_ROUNDS = 20, 5  # at most, for the accuracy and the temperature
_DEVIATION = 0.3  # of the logarithm of the right temperature from the expected one, on validation classes
_WAYS, _SHOTS = (2, 5, 20), (1, 2, 5, 10)
_TEMPERATURES = {  # usual ones: those of the networks for photographs, rounded
    "logistic": ((0.235, 0.295, 0.457, 0.446), (0.27, 0.316, 0.413, 0.454), (0.34, 0.372, 0.434, 0.513)),
    "centroid": ((0.0425, 0.036, 0.034, 0.0265), (0.0425, 0.034, 0.028, 0.0225), (0.0435, 0.032, 0.0235, 0.022)),
    "protonet": ((8.5, 6.2, 5.53, 4.21), (8.48, 6.02, 4.52, 3.46), (8.68, 5.59, 3.83, 3.37)),
}
_SPREADS = {"centroid": 0.705, "protonet": 70.5}  # of their features, to which these temperatures are proportional
USUAL = Calibration(
    {name: {"ways": _WAYS, "shots": _SHOTS, "temperatures": rows} for name, rows in _TEMPERATURES.items()}
)


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


def leave_one_out(
    task: Task, model: EmbeddingModel, progress: Callable[[int, int], None] | None = None, method: str | None = None
) -> Confusion | None:
    """Return how heads fitted without them classify the examples; `None` where a class has one image only.

    Copies of an image count once. `method` is another one than the task's, with its default options. `progress` is
    called with the number of rounds done and of all rounds.
    """
    name, options = (task.method, task.options) if method is None else (method, {})
    held = held_out_logits(task.examples, model, name, options, ROUNDS, progress)
    if held is None:
        return None
    logits, answers = held
    pairs = zip(answers, logits.argmax(axis=1), strict=True)
    return Confusion.of(task.classes, ((task.classes[truth], task.classes[guess]) for truth, guess in pairs))


def held_out_logits(
    examples: Examples,
    model: EmbeddingModel,
    method: str,
    options: Mapping[str, Any],
    rounds: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.int64]] | None:
    """Return logits (n, way) of examples by heads fitted without them, and their labels.

    `None` if a class has a single distinct image.
    """
    once, ranks = examples.distinct()
    if np.bincount(once.labels, minlength=int(examples.labels.max()) + 1).min() < 2:
        return None
    logits, answers, rounds = [], [], min(int(ranks.max()) + 1, rounds)
    for held in range(rounds):
        rest, left = once.take(ranks != held), once.take(ranks == held)
        head = exact_head(model.adapt(rest.features, rest.labels, method, options))
        logits.append(model.logits(head, left.features))
        answers.append(left.labels)
        if progress:
            progress(held + 1, rounds)
    return np.concatenate(logits), np.concatenate(answers)


def choose_temperature(examples: Examples, model: EmbeddingModel, method: str, options: Mapping[str, Any]) -> float:
    """Return the temperature at which confidence should equal accuracy.

    From the classes alone it is that of the network's calibration for this method, or the usual one if there is none.
    Where every class has two images, examples that are left out, one of every class at a time, correct it. They are
    sorted first, so that a task does not depend on the order in which they came.
    """
    shots, calibration = np.bincount(examples.labels).tolist(), model.calibration
    if method in PARAMETER_FREE and method not in calibration.tables:
        calibration, expected = USUAL, usual_temperature(method, examples.features, examples.labels)
    else:
        expected = calibration.temperature(method, shots) * _dimension_factor(model, options, len(shots))
        if options.get("reference_shots") is not None:
            expected *= _blend_factor(examples, model, method, options)
        if method == model.default_method == LOGISTIC:
            expected *= likeness_factor(examples.features, examples.labels)
    held = held_out_logits(examples.sorted(), model, method, options, _TEMPERATURE_ROUNDS)
    if held is None:
        return expected
    fewer = [max(shot - 1, 1) for shot in shots]  # than a head of all examples has, which needs another temperature
    growth = calibration.temperature(method, shots) / calibration.temperature(method, fewer)
    return growth * corrected_temperature(expected / growth, *held)


def corrected_temperature(expected: float, logits: NDArray[np.float64], answers: NDArray[np.int64]) -> float:
    """Return the most likely temperature after these answers; its logarithm is normal around the expected one before.

    Answers that are all right by far say nothing and leave it; a few hundred others decide.
    """

    def loss(change: float) -> float:
        logs = log_softmax(logits / (expected * np.exp(change)), axis=1)
        return float((change / _DEVIATION) ** 2 / 2 - logs[np.arange(len(answers)), answers].sum())

    return float(expected * np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x))


def likeness_factor(features: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """Return by how much classes that are more alike than usual need another temperature, over photographs.

    A class is as like another as their images are on average, by cosine; what counts is the one most like it. Logistic
    regression tells one image of a class from those of others with the same ease whether they are birds or things.
    """
    points = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    means = np.stack([points[labels == label].mean(axis=0, dtype=np.float64) for label in np.unique(labels)])
    cosines = means @ means.T
    np.fill_diagonal(cosines, -1)
    usual = 0.31 + 0.07 * np.log(min(len(means), 20))  # on validation classes, as is the exponent
    return float(max((1 - cosines.max(axis=1).mean()) / (1 - usual), 0.25) ** (-4 / 3))


def _dimension_factor(model: EmbeddingModel, options: Mapping[str, Any], way: int) -> float:
    """Return how much larger differences of squared distances are than at the projection dimension of the calibration.

    With the directions of the references first, their differences are the same at any dimension that holds these.
    """
    asked, basis = options.get("projection_dim"), options.get("basis") or getattr(model.method, "basis", None)
    if asked is None or basis == "references":
        return 1.0
    full = model.method.backbone.dim - way
    return float(asked / (getattr(model.method, "projection_dim", None) or full))


def _blend_factor(examples: Examples, model: EmbeddingModel, method: str, options: Mapping[str, Any]) -> float:
    """Return how much farther apart logits are than with the references alone, for which networks are calibrated."""

    def scale(options: Mapping[str, Any]) -> float:
        linear = model.adapt(examples.features, examples.labels, method, options).linear()
        assert linear is not None
        return float((linear.weight - linear.weight.mean(dim=-2, keepdim=True)).norm())

    return scale(options) / scale({**options, "reference_shots": None})


def usual_temperature(method: str, features: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """Return the temperature that the networks for photographs have, scaled to the spread of these features.

    The spread is half the mean squared distance between examples of different classes, of unit length for "centroid".
    """
    temperature = USUAL.temperature(method, np.bincount(labels).tolist())
    if method not in _SPREADS:
        return temperature
    points = features.astype(np.float64)
    if method == "centroid":
        points /= np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)
    ratio = spread(points, labels) / _SPREADS[method]
    return temperature * ratio if ratio > 1e-9 else temperature


def spread(points: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Return the mean square of the points less the mean dot product of two of different classes."""
    counts = np.bincount(labels)
    sums = np.zeros((len(counts), points.shape[1]))
    np.add.at(sums, labels, points)
    pairs = len(labels) ** 2 - np.square(counts).sum()
    dots = (np.square(sums.sum(axis=0)).sum() - np.square(sums).sum()) / pairs
    return float(np.square(points).sum(axis=1).mean() - dots)
