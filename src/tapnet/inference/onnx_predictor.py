"""Prediction by an exported task: ONNX Runtime, NumPy and Pillow, without PyTorch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapnet.data.preprocessing import Preprocessing
from tapnet.errors import NotFoundError, UserError
from tapnet.inference.predictor import Predictor

METADATA = "tapnet"  # the one key of ours in a model's metadata: JSON with classes and preprocessing


class OnnxPredictor(Predictor):
    """An ONNX file written by `tapnet export`, whole in itself: one that points at further files is refused."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise NotFoundError(f"There is no file {path}: make one with `tapnet export TASK --onnx {path}`.")
        onnx, runtime = _libraries()
        content = path.read_bytes()
        try:
            model = onnx.load_model_from_string(content)
        except Exception as error:  # protobuf's own, which differ between its versions
            raise UserError(f"{path} is damaged or not an ONNX file ({error}).") from None
        _check_external_data(model, onnx, path)
        described = {entry.key: entry.value for entry in model.metadata_props}.get(METADATA)
        if described is None:
            raise UserError(f"{path} was not written by `tapnet export`: its metadata name no classes.")
        try:
            values = json.loads(described)
            self.metadata: dict[str, Any] = values
            self._classes = tuple(map(str, values["classes"]))
            self._preprocessing = Preprocessing.from_dict(values["preprocessing"])
            self._session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime's own, or a header that was changed
            raise UserError(f"{path} cannot be used ({' '.join(str(error).split())}): export it again.") from None

    @property
    def classes(self) -> tuple[str, ...]:
        return self._classes

    @property
    def preprocessing(self) -> Preprocessing:
        return self._preprocessing

    def probabilities(self, pixels: Sequence[NDArray[np.uint8]]) -> NDArray[np.floating]:
        found: NDArray[np.floating] = self._session.run(["probabilities"], {"images": np.stack(pixels)})[0]
        return found


def _libraries() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
    except ModuleNotFoundError as error:
        raise UserError(f"ONNX files need {error.name}: pip install 'tapnet[onnx]'.") from None
    return onnx, onnxruntime


def _check_external_data(model: Any, onnx: Any, path: Path) -> None:
    """External data may name any file of this machine."""
    for message in _messages(model):
        if isinstance(message, onnx.TensorProto) and message.data_location == onnx.TensorProto.EXTERNAL:
            raise UserError(f"{path} keeps weights in another file, which is refused: export it as one file.")


def _messages(message: Any) -> Iterator[Any]:
    """A protobuf message and everything inside it."""
    yield message
    for _, value in message.ListFields():
        for part in value if hasattr(value, "__getitem__") else [value]:
            if hasattr(part, "ListFields"):
                yield from _messages(part)
