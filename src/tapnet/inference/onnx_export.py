"""A fitted task as one ONNX file: pixels in, probabilities out, any number of images at a time."""

from __future__ import annotations

import json
import logging
import threading
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tapnet.errors import UserError
from tapnet.inference.networks import EmbeddingModel
from tapnet.inference.onnx_predictor import METADATA
from tapnet.inference.task import Task
from tapnet.inference.task_predictor import TaskPredictor
from tapnet.paths import write_atomically

OPSET = 18
_one_at_a_time = threading.Lock()  # the exporter silences warnings, which is not safe between threads


class ExportedTask(nn.Module):
    """Everything between the pixels and the probabilities: scaling to [0, 1], backbone, head, temperature."""

    def __init__(self, task: Task, network: EmbeddingModel) -> None:
        super().__init__()
        head = task.head.linear()
        if head is None:
            raise UserError(
                f"A task fitted by {task.method} has no linear head, so it cannot be exported: fit it by centroid or "
                "logistic."
            )
        self.backbone, self.normalize = network.method.backbone, head.normalize
        self.register_buffer("weight", (head.weight.double() / task.temperature).float())
        self.register_buffer("bias", (head.bias.double() / task.temperature).float())

    def forward(self, images: Tensor) -> Tensor:
        """Probabilities (n, way) of uint8 images (n, height, width, channels)."""
        features = self.backbone(images.permute(0, 3, 1, 2).float() / 255)
        if self.normalize:
            features = F.normalize(features, dim=1)
        return F.linear(features, self.weight, self.bias).softmax(dim=1)  # type: ignore[arg-type]


def export(task: Task, path: str | Path, network: str | None = None) -> None:
    """Write a task as an ONNX file, whole or not at all; its metadata hold the class names and the preprocessing.

    `network` is the path to the task's checkpoint, if it moved. Raise UserError if the task's method cannot be
    exported, or if its network is missing.
    """
    predictor = TaskPredictor.open(task, network)
    with _one_at_a_time:
        content = _exported(predictor.task, predictor.network)
    write_atomically(Path(path), content)


def _exported(task: Task, network: EmbeddingModel) -> bytes:
    model = _model(ExportedTask(task, network).eval(), network)
    described = {
        "classes": task.classes,
        "preprocessing": network.image_preprocessing.as_dict(),
        "network": task.network,
        "network_sha256": task.network_sha256,
        "method": task.method,
    }
    entry = model.metadata_props.add()
    entry.key, entry.value = METADATA, json.dumps(described, sort_keys=True, ensure_ascii=False)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _model(module: nn.Module, network: EmbeddingModel) -> Any:
    try:
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise UserError(f"Exporting needs {error.name}: pip install 'tapnet[onnx]'.") from None
    images = torch.zeros(2, *network.image_preprocessing.shape, dtype=torch.uint8)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # what it says of packages that we do not use
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's, about itself
        program = torch.onnx.export(
            module,
            (images,),
            input_names=["images"],
            output_names=["probabilities"],
            dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
            external_data=False,
        )
    return program.model_proto  # type: ignore[union-attr]
