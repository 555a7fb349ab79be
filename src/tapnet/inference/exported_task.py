"""A fitted task as one ONNX file: pixels in, probabilities out, any number of images at a time.

It is predicted by ONNX Runtime, NumPy and Pillow; only `export` imports PyTorch.
"""

from __future__ import annotations

import json
import logging
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tapnet.data.preprocessing import Preprocessing
from tapnet.errors import NotFoundError, UserError
from tapnet.inference.predictor import LOSE, Answers, Predictor, Reject, TaskPredictor
from tapnet.paths import write_atomically
from tapnet.text import install_hint

if TYPE_CHECKING:
    from torch import Tensor

    from tapnet.inference.task import Task

METADATA = "tapnet"  # the one key of ours in a model's metadata: JSON with classes and preprocessing
OPSET = 18
_one_at_a_time = threading.Lock()  # the exporter silences warnings, which is not safe between threads


class OnnxPredictor(Predictor):
    """An ONNX file written by `tapnet export`, whole in itself: one that points at further files is refused."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise NotFoundError(f"There is no file {path}: make one with `tapnet export TASK --onnx {path}`.")
        try:
            import onnx
            import onnxruntime
        except ModuleNotFoundError as error:
            raise UserError(f"ONNX files need {error.name}: {install_hint('onnx')}.") from None
        content = path.read_bytes()
        try:
            model = onnx.load_model_from_string(content)
        except Exception as error:  # protobuf's own, which differ between its versions
            raise UserError(f"{path} is damaged or not an ONNX file ({error}).") from None
        for message in _messages(model):  # external data may name any file of this machine
            if isinstance(message, onnx.TensorProto) and message.data_location == onnx.TensorProto.EXTERNAL:
                raise UserError(f"{path} keeps weights in another file, which is refused: export it as one file.")
        described = {entry.key: entry.value for entry in model.metadata_props}.get(METADATA)
        if described is None:
            raise UserError(f"{path} was not written by `tapnet export`: its metadata name no classes.")
        try:
            self.metadata: dict[str, Any] = json.loads(described)
            self.classes = tuple(map(str, self.metadata["classes"]))
            self.preprocessing = Preprocessing.from_dict(self.metadata["preprocessing"])
            self._session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime's own, or a header that was changed
            raise UserError(f"{path} cannot be used ({' '.join(str(error).split())}): export it again.") from None

    def answers(
        self,
        pixels: Sequence[NDArray[np.uint8]],
        reject: Reject = 0.0,
        lose: float = LOSE,  # noqa: ARG002
    ) -> Answers:
        rows: NDArray[np.floating] = self._session.run(["probabilities"], {"images": np.stack(pixels)})[0]
        return rows, rows.max(axis=1) < float(reject)


def _messages(message: Any) -> Iterator[Any]:
    """Yield a protobuf message and everything inside it."""
    yield message
    for _, value in message.ListFields():
        for part in value if hasattr(value, "__getitem__") else [value]:
            if hasattr(part, "ListFields"):
                yield from _messages(part)


def export(task: Task, path: str | Path, network: str | None = None) -> None:
    """Write a task as an ONNX file, whole or not at all; its metadata hold the class names and the preprocessing.

    `network` is the path to the task's checkpoint, if it moved. Raise UserError if the task's head is not linear.
    """
    predictor = TaskPredictor.open(task, network)
    with _one_at_a_time:
        model = _onnx_model(predictor)
    described = {name: getattr(task, name) for name in ("classes", "network", "network_sha256", "method")}
    described["preprocessing"] = predictor.preprocessing.as_dict()
    entry = model.metadata_props.add()
    entry.key, entry.value = METADATA, json.dumps(described, sort_keys=True, ensure_ascii=False)
    write_atomically(Path(path), model.SerializeToString(deterministic=True))


def _onnx_model(predictor: TaskPredictor) -> Any:
    import torch
    from torch.nn import functional as F

    class ExportedTask(torch.nn.Module):
        """Everything between pixels and probabilities: scaling to [0, 1], backbone, head, temperature."""

        def __init__(self) -> None:
            super().__init__()
            head, temperature = predictor.head.linear(), predictor.task.temperature
            if head is None:
                raise UserError(
                    f"A task fitted by {predictor.task.method} has no linear head, so it cannot be exported: fit it by "
                    "centroid or logistic."
                )
            self.backbone, self.normalize = predictor.network.method.backbone, head.normalize
            self.register_buffer("weight", (head.weight / temperature).float())
            self.register_buffer("bias", (head.bias / temperature).float())

        def forward(self, images: Tensor) -> Tensor:
            """Return probabilities (n, way) of uint8 images (n, height, width, channels)."""
            features = self.backbone(images.permute(0, 3, 1, 2).float() / 255)
            if self.normalize:
                features = F.normalize(features, dim=1)
            return F.linear(features, self.weight, self.bias).softmax(dim=1)  # type: ignore[arg-type]

    module = ExportedTask().eval()
    try:
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise UserError(f"Exporting needs {error.name}: {install_hint('onnx')}.") from None
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # what it says of packages that we do not use
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's, about itself
        program = torch.onnx.export(
            module,
            (torch.zeros(2, *predictor.preprocessing.shape, dtype=torch.uint8),),
            input_names=["images"],
            output_names=["probabilities"],
            dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
            external_data=False,
        )
    return program.model_proto  # type: ignore[union-attr]
