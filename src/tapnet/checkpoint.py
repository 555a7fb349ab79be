"""Checkpoints: one safetensors file with the weights, and in its header the recipe and where they come from.

Nothing is pickled, so a file from a stranger runs no code. The model is laid out from the recipe without memory of its
own and takes the tensors of the file, so a file can make it no larger than itself.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tapnet._version import __version__
from tapnet.backbones import ImageShape
from tapnet.methods import Method
from tapnet.recipe import Recipe, recipe_from

FORMAT = 1
BEST, LAST = "best.safetensors", "last.safetensors"
_HEADER = "tapnet"  # one key with sorted JSON: safetensors writes several in random order
_OPTIMIZER = "optimizer/"


@dataclass(frozen=True)
class Running:
    """Sums over the episodes since the last point of the learning curve."""

    episodes: int = 0
    loss: float = 0.0
    hits: float = 0.0


@dataclass(frozen=True)
class Header:
    """What stands in a checkpoint beside its tensors."""

    recipe: Recipe
    image_shape: ImageShape
    episode: int  # training episodes done
    validation: dict[str, Any] | None = None  # accuracy, its interval and the episode at which it was best
    since_point: Running = Running()
    data: dict[str, str] = field(default_factory=dict)  # split: fingerprint
    hardware: dict[str, Any] = field(default_factory=dict)
    calibration: dict[str, Any] = field(default_factory=dict)  # head: temperatures by way and shot
    version: str = __version__
    format: int = FORMAT


@dataclass(frozen=True)
class Checkpoint:
    """A header with its tensors; `optimizer` is empty in a checkpoint that is only to be used."""

    header: Header
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor] = field(default_factory=dict)

    def method(self) -> Method:
        """The trained method in eval mode."""
        with torch.device("meta"):
            method = self.header.recipe.build(self.header.image_shape)
        expected = {name: tensor.shape for name, tensor in method.state_dict().items()}
        found = {name: tensor.shape for name, tensor in self.weights.items()}
        if expected != found:
            names = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
            raise ValueError(f"The weights do not fit the recipe of the checkpoint: {', '.join(names[:5])} differ.")
        method.load_state_dict(self.weights, assign=True)
        return method.eval().requires_grad_(False)

    def write(self, path: Path) -> None:
        """The file, whole or not at all."""
        tensors = self.weights | {_OPTIMIZER + name: tensor for name, tensor in self.optimizer.items()}
        header = json.dumps(asdict(self.header), sort_keys=True)
        packed = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, {_HEADER: header})
        write_atomically(path, packed)


def write_atomically(path: Path, content: bytes) -> None:
    """The file under a temporary name, flushed, then renamed: readers meet the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_checkpoint(path: str | Path) -> Checkpoint:
    """The checkpoint in a file, or the best one of a run folder."""
    path = Path(path)
    path = path / BEST if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint {path}: give a .safetensors file or the folder of a run.")
    try:
        with safe_open(path, framework="pt") as file:
            header = _header((file.metadata() or {}).get(_HEADER), path)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file ({error}).") from None
    weights = {name: tensor for name, tensor in tensors.items() if not name.startswith(_OPTIMIZER)}
    optimizer = {name.removeprefix(_OPTIMIZER): tensors[name] for name in tensors.keys() - weights.keys()}
    return Checkpoint(header, weights, optimizer)


def _header(text: str | None, path: Path) -> Header:
    if text is None:
        raise ValueError(f"{path} is a safetensors file, but not a tapnet checkpoint: its header has no recipe.")
    try:
        values = json.loads(text)
        if values["format"] != FORMAT:
            raise ValueError(f"{path} has format {values['format']}, this version of tapnet reads {FORMAT}.")
        recipe, shape = recipe_from(values.pop("recipe"), str(path)), values.pop("image_shape")
        channels, height, width = (int(size) for size in shape)
        since = Running(**values.pop("since_point"))
        return Header(recipe=recipe, image_shape=(channels, height, width), since_point=since, **values)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} has a damaged header ({error!r}): train or download it again.") from None


def load(path: str | Path, device: str | torch.device = "cpu") -> Method:
    """The trained method in eval mode, from a checkpoint file or the folder of a run."""
    return read_checkpoint(path).method().to(device)


def optimizer_tensors(method: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as flat tensors, named by parameter."""
    return {
        f"{name}/{key}": value
        for name, parameter in method.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(method: torch.nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """The reverse of `optimizer_tensors`; every tensor gets the place and layout of its parameter."""
    for name, parameter in method.named_parameters():
        for full, value in tensors.items():
            owner, _, key = full.rpartition("/")
            if owner == name:
                like = value if value.dim() == 0 else torch.empty_like(parameter).copy_(value)
                optimizer.state[parameter][key] = like
