"""From labeled images to a task, and from a task to answers: the layer under command line, classifier and server.

It speaks in images (paths, bytes of files, PIL images, arrays) and raises `tapnet.errors.UserError` for what the user
can fix. Tasks are values and predictors keep no state, so threads may share both::

    task = fit({"robin": [Path("a.jpg"), jpeg_bytes], "wren": [array, pil_image]})
    task = add(task, {"blackbird": images})                 # another task; so does remove(task, classes=["wren"])
    write_task(task, "birds.task")
    for prediction in open_predictor("birds.task").predict(images, top=3, reject="auto"):
        prediction.label, prediction.best, prediction.probability, prediction.ranked

Names are imported on first use: predicting with an ONNX file never loads PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tapnet.inference.content import choose_network as choose_network
    from tapnet.inference.description import describe as describe
    from tapnet.inference.explanation import Explanation as Explanation
    from tapnet.inference.explanation import explain as explain
    from tapnet.inference.exported_task import export as export
    from tapnet.inference.fitting import add as add
    from tapnet.inference.fitting import compare_methods as compare_methods
    from tapnet.inference.fitting import estimate_accuracy as estimate_accuracy
    from tapnet.inference.fitting import fit as fit
    from tapnet.inference.fitting import fit_task as fit_task
    from tapnet.inference.fitting import network_warning as network_warning
    from tapnet.inference.fitting import propose_method as propose_method
    from tapnet.inference.fitting import propose_network as propose_network
    from tapnet.inference.fitting import remove as remove
    from tapnet.inference.folders import LabeledFolder as LabeledFolder
    from tapnet.inference.folders import Skipped as Skipped
    from tapnet.inference.folders import class_folders as class_folders
    from tapnet.inference.folders import find_images as find_images
    from tapnet.inference.folders import read_labels as read_labels
    from tapnet.inference.images import ImageInput as ImageInput
    from tapnet.inference.model_selection import leave_one_out as leave_one_out
    from tapnet.inference.networks import load_network as load_network
    from tapnet.inference.predictor import UNKNOWN as UNKNOWN
    from tapnet.inference.predictor import Prediction as Prediction
    from tapnet.inference.predictor import Predictor as Predictor
    from tapnet.inference.predictor import check_task_path as check_task_path
    from tapnet.inference.predictor import open_predictor as open_predictor
    from tapnet.inference.scoring import Confusion as Confusion
    from tapnet.inference.scoring import Score as Score
    from tapnet.inference.scoring import confusion_figure as confusion_figure
    from tapnet.inference.scoring import score as score
    from tapnet.inference.task import Task as Task
    from tapnet.inference.task import read_task as read_task
    from tapnet.inference.task import write_task as write_task

_NAMES = {
    "content": "choose_network",
    "description": "describe",
    "explanation": "Explanation explain",
    "exported_task": "export",
    "fitting": "add compare_methods estimate_accuracy fit fit_task network_warning propose_method propose_network "
    "remove",
    "folders": "LabeledFolder Skipped class_folders find_images read_labels",
    "images": "ImageInput",
    "model_selection": "leave_one_out",
    "networks": "load_network",
    "predictor": "UNKNOWN Prediction Predictor check_task_path open_predictor",
    "scoring": "Confusion Score confusion_figure score",
    "task": "Task read_task write_task",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tapnet.inference' has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(f"tapnet.inference.{_HOMES[name]}"), name)
    return globals()[name]
