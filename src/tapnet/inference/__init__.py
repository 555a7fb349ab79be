"""From labeled images to a task, and from a task to answers: the layer under command line, classifier and server.

It speaks in images (paths, bytes of files, PIL images, arrays) and raises `tapnet.errors.UserError` for what the user
can fix. Tasks are values and predictors keep no state, so threads may share both::

    from tapnet.inference import class_folders, fit, open_predictor, write_task

    task = fit({"robin": [Path("a.jpg"), jpeg_bytes], "wren": [array, pil_image]})
    task = fit(class_folders("my_classes").classes)         # one folder of images per class
    task = fit(read_labels("labels.csv").classes)           # paths and classes
    task = add(task, {"blackbird": images})                 # another task; so does remove(task, classes=["wren"])
    write_task(task, Path("birds.task"))

    predictor = open_predictor("birds.task")                # or birds.onnx, which does not need PyTorch
    for prediction in predictor.predict(images, top=3, reject="auto"):      # or below a probability: reject=0.6
        prediction.label, prediction.best, prediction.probability, prediction.ranked

    score(predictor, {"robin": images, "owl": others})      # accuracy, mistakes, what rejecting costs and catches
    explain(task, image).figure(Path("why.png"))
    export(task, Path("birds.onnx"))
    describe("birds.task")                                  # what a task, checkpoint or ONNX file holds

Names are imported on first use: predicting with an ONNX file never loads PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tapnet.inference.confusion import confusion_figure
    from tapnet.inference.content import NetworkChoice, choose_network
    from tapnet.inference.description import describe
    from tapnet.inference.explanation import Explanation, explain
    from tapnet.inference.fitting import (
        add,
        compare_methods,
        estimate_accuracy,
        fit,
        propose_method,
        propose_network,
        remove,
    )
    from tapnet.inference.folders import LabeledFolder, Skipped, class_folders, find_images
    from tapnet.inference.images import ImageInput
    from tapnet.inference.labels import read_labels
    from tapnet.inference.leave_one_out import LeaveOneOut
    from tapnet.inference.method_choice import MethodChoice
    from tapnet.inference.networks import load_network
    from tapnet.inference.onnx_export import export
    from tapnet.inference.planes import TaskPlanes, task_planes
    from tapnet.inference.predictor import UNKNOWN, Prediction, Predictor, open_predictor
    from tapnet.inference.scoring import Score, score
    from tapnet.inference.task import Task
    from tapnet.inference.task_file import read_task, write_task

_NAMES = {
    "confusion": ("confusion_figure",),
    "content": ("NetworkChoice", "choose_network"),
    "description": ("describe",),
    "explanation": ("Explanation", "explain"),
    "fitting": ("add", "compare_methods", "estimate_accuracy", "fit", "propose_method", "propose_network", "remove"),
    "folders": ("LabeledFolder", "Skipped", "class_folders", "find_images"),
    "images": ("ImageInput",),
    "labels": ("read_labels",),
    "leave_one_out": ("LeaveOneOut",),
    "method_choice": ("MethodChoice",),
    "networks": ("load_network",),
    "onnx_export": ("export",),
    "planes": ("TaskPlanes", "task_planes"),
    "predictor": ("UNKNOWN", "Prediction", "Predictor", "open_predictor"),
    "scoring": ("Score", "score"),
    "task": ("Task",),
    "task_file": ("read_task", "write_task"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "UNKNOWN",
    "Explanation",
    "ImageInput",
    "LabeledFolder",
    "LeaveOneOut",
    "MethodChoice",
    "NetworkChoice",
    "Prediction",
    "Predictor",
    "Score",
    "Skipped",
    "Task",
    "TaskPlanes",
    "add",
    "choose_network",
    "class_folders",
    "compare_methods",
    "confusion_figure",
    "describe",
    "estimate_accuracy",
    "explain",
    "export",
    "find_images",
    "fit",
    "load_network",
    "open_predictor",
    "propose_method",
    "propose_network",
    "read_labels",
    "read_task",
    "remove",
    "score",
    "task_planes",
    "write_task",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"tapnet.inference.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'tapnet.inference' has no attribute {name!r}")
