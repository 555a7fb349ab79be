"""Any vision model from the Hugging Face hub or a local folder, frozen. No remote code, safetensors only."""

from __future__ import annotations

import json
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tapnet.backbones.base import FEATURE_LENGTH, Backbone, ImageShape
from tapnet.errors import UserError
from tapnet.text import one_line

MEAN = STD = (0.5, 0.5, 0.5)  # unless the model's preprocessing says otherwise
_LIBRARY_KEYS = ("transformers_version", "torch_dtype", "dtype", "architectures")


class HuggingFace(Backbone):
    """The pooled output of the model, or its first token, or the average of its maps, scaled to length 10."""

    pretrained = True
    mean: Tensor
    std: Tensor

    def __init__(self, image_shape: ImageShape, model: str) -> None:
        super().__init__()
        if image_shape[0] != 3:
            raise UserError(f"Hugging Face vision models take 3 channels, got images of {image_shape}.")
        self.image_shape = image_shape
        self.network = _load_vision_model(model)
        self.config: dict[str, Any] = self.network.config.to_diff_dict()  # type: ignore[union-attr, operator]
        constants = preprocessor(model)
        for name, default in (("mean", MEAN), ("std", STD)):
            values = constants.get(f"image_{name}") or default
            numbers = values if isinstance(values, list | tuple) else ()
            if len(numbers) != 3 or not all(isinstance(x, int | float) and math.isfinite(x) for x in numbers):
                raise UserError(f"Expected three numbers as image_{name} of the model {model!r}, got {values!r}.")
            self.register_buffer(name, torch.tensor(values).reshape(3, 1, 1), persistent=False)
        with torch.no_grad():
            self.dim = self.eval()(torch.zeros(1, *image_shape)).shape[1]

    def configuration(self) -> dict[str, Any]:
        """Return mean, standard deviation and the model's own configuration where it differs from the defaults."""
        own = {key: value for key, value in self.config.items() if key not in _LIBRARY_KEYS and key[0] != "_"}
        constants = {"mean": self.mean.flatten().tolist(), "std": self.std.flatten().tolist(), "length": FEATURE_LENGTH}
        return super().configuration() | constants | {"config": json.loads(json.dumps(own, default=str))}

    def maps(self, images: Tensor) -> Tensor:
        """Return the last hidden state: (n, channels, height, width), or (n, tokens, dim) of a transformer."""
        return self._output(images).last_hidden_state

    def forward(self, images: Tensor) -> Tensor:
        output = self._output(images)
        vectors, hidden = getattr(output, "pooler_output", None), output.last_hidden_state
        if vectors is None:
            vectors = hidden.mean(dim=(2, 3)) if hidden.dim() == 4 else hidden[:, 0]
        return FEATURE_LENGTH * F.normalize(vectors.flatten(1), dim=1)

    def _output(self, images: Tensor) -> Any:
        return self.network(pixel_values=(images - self.mean) / self.std)


def _load_vision_model(model: str) -> nn.Module:
    """Return the model, or the vision part of a model of images and text such as CLIP."""
    transformers = _transformers()
    try:
        loaded: nn.Module = transformers.AutoModel.from_pretrained(
            model, trust_remote_code=False, use_safetensors=True, attn_implementation="eager"
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"The model {model!r} cannot be loaded; expected a vision model with safetensors weights, without code of "
            f"its own, from the hub or a folder: {one_line(error)}"
        ) from None
    return getattr(loaded, "vision_model", loaded)


def preprocessor(model: str) -> dict[str, Any]:
    """Return the content of the model's preprocessor_config.json; empty if there is none."""
    name = "preprocessor_config.json"
    path = _transformers().utils.cached_file(model, name, _raise_exceptions_for_missing_entries=False)
    try:
        content = {} if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): fetch the model again.") from None
    return content if isinstance(content, dict) else {}


def image_side(model: str) -> int:
    """Return the side of the square images that the model takes, by its preprocessing or configuration, else 224."""
    constants = preprocessor(model)
    for key in ("crop_size", "size"):
        value = constants.get(key)
        side = value.get("height") or value.get("shortest_edge") if isinstance(value, dict) else value
        if side:
            return int(side)
    config = _transformers().AutoConfig.from_pretrained(model, trust_remote_code=False)
    side = getattr(getattr(config, "vision_config", config), "image_size", None)
    return int(side or 224)


def _transformers() -> Any:
    try:
        library: Any = import_module("transformers")
        hub: Any = import_module("huggingface_hub")
    except ModuleNotFoundError:
        raise UserError("Hugging Face models need transformers: pip install 'tapnet[hf]'.") from None
    library.utils.logging.disable_progress_bar()  # loading takes a moment only
    hub.utils.logging.set_verbosity_error()  # without a network it logs its retries; we report the failure
    return library
