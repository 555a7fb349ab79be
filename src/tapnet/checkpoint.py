"""Checkpoints: one safetensors file with the weights, and in its header the recipe and the lineage of the network.

Nothing is pickled, so a file from a stranger runs no code. The model is built from the recipe on the meta device and
takes the tensors of the file, so it cannot need more memory than the file. A digest over header and tensors detects
damaged files.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save
from torch import Tensor

from tapnet import __version__
from tapnet.backbones import METRIC, PRETRAINED, Backbone, ImageShape
from tapnet.errors import UserError
from tapnet.methods import Method
from tapnet.paths import find_checkpoint, write_atomically
from tapnet.recipe import Data, Recipe, recipe_from
from tapnet.text import pluralize

FORMAT = 2  # some of its headers have `image_passes`, which nothing reads: keys that are not fields are ignored
HEADER, TASK = "tapnet", "tapnet-task"  # one key of metadata, sorted JSON: safetensors writes several in random order
_OPTIMIZER, _AVERAGE = "optimizer/", "average/"


_Count = Annotated[int, pydantic.Field(ge=0)]


@dataclass(frozen=True)
class RunningSums:
    """Sums over the episodes since the last point of the learning curve."""

    episodes: _Count = 0
    loss: float = 0.0
    hits: float = 0.0


@dataclass(frozen=True)
class Ancestor:
    """A network that another one learned from, and the classes that it has seen."""

    relation: Literal["initialized", "distilled", "earlier"]  # earlier: an ancestor of one of the others
    name: str  # of its recipe
    episodes: _Count  # of training
    digest: str  # sha-256 of its weights; its first 12 digits where only those of its file were kept
    data: Data
    validation_split: str
    pretrained: bool = False  # whether its backbone came with weights trained on ImageNet
    seconds: float | None = None  # of training


@dataclass(frozen=True)
class Lineage:
    """Where the weights of a network come from, besides its own training."""

    ancestors: tuple[Ancestor, ...] = ()
    widened: bool = False  # by transposed copies of the weights of its ancestors
    fresh: tuple[str, ...] = ()  # weights that no ancestor had
    left_out: tuple[str, ...] = ()  # weights of an ancestor that it does not have
    source: str = ""  # of imported weights: the file, or the program that built them

    def parents(self) -> list[str]:
        """Return a description of the networks that this one was initialized or distilled from, one per recipe."""
        direct = (ancestor for ancestor in self.ancestors if ancestor.relation != "earlier")
        counts = Counter((parent.relation, parent.name, parent.episodes) for parent in direct)
        return [
            f"{relation} from {name if count == 1 else f'{count} networks of {name}'} after "
            f"{pluralize(episodes, 'episode')}"
            for (relation, name, episodes), count in counts.items()
        ]

    def describe(self) -> list[str]:
        """Return all but the earlier networks in words."""
        return [
            *([self.source] if self.source else []),
            *self.parents(),
            *(["widened by transposed copies"] if self.widened else []),
            *([f"fresh: {', '.join(self.fresh)}"] if self.fresh else []),
            *([f"left out: {', '.join(self.left_out)}"] if self.left_out else []),
        ]

    def teachers(self) -> list[str]:
        """Return the digests of the networks that this one was distilled from, in their order."""
        return [ancestor.digest for ancestor in self.ancestors if ancestor.relation == "distilled"]

    def networks(self) -> list[Ancestor]:
        """Return every ancestor once, also one that the network was both initialized and distilled from."""
        return list({ancestor.digest: ancestor for ancestor in self.ancestors}.values())


@dataclass(frozen=True)
class Header:
    """The content of a checkpoint besides its tensors."""

    recipe: Recipe
    image_shape: ImageShape
    episode: _Count  # training episodes done
    validation: dict[str, Any] | None = None  # accuracy, its interval and the episode at which it was best
    since_point: RunningSums = RunningSums()
    data: dict[str, str] = field(default_factory=dict)  # split: fingerprint
    hardware: dict[str, Any] = field(default_factory=dict)
    preprocessing: dict[str, Any] = field(default_factory=dict)  # of the training images; empty if unknown
    calibration: dict[str, Any] = field(default_factory=dict)  # head: temperatures by way and shot
    backbone_digest: str = ""  # of a frozen backbone, whose weights are not in the file
    lineage: Lineage = Lineage()
    seconds: float | None = None  # of training; a run leaves it out, since one that was resumed has the same files
    version: str = __version__
    format: int = FORMAT
    digest: str = ""  # sha-256 of all of this and the tensors, computed by `write`


@dataclass(frozen=True)
class Checkpoint:
    """A header with its tensors; `optimizer` and `average` are empty if training cannot resume from it."""

    header: Header
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor] = field(default_factory=dict)
    average: dict[str, Tensor] = field(default_factory=dict)  # of the weights, if the run averages them

    def method(self) -> Method:
        """Return the trained method in eval mode, in float32.

        A pretrained backbone has its own weights, except those of its metric, which are in the checkpoint.
        """
        frozen = self.header.recipe.backbone.name in PRETRAINED
        try:
            method = self.header.recipe.build_on_meta(self.header.image_shape)
        except (RuntimeError, TypeError, OverflowError, ArithmeticError) as error:
            raise UserError(f"The recipe of the checkpoint cannot be built: {error}.") from None
        weights = {
            name: tensor
            for name, tensor in method.state_dict().items()
            if frozen and name.startswith("backbone.") and name != METRIC
        }
        for name, tensor in self.weights.items():
            weights[name] = tensor.float() if tensor.dtype == torch.float16 else tensor
        replace(self, weights=weights).check_weights(method)
        method.load_state_dict(weights, assign=True)
        recorded = self.header.backbone_digest
        if frozen and recorded and recorded != (installed := backbone_digest(method.backbone)):
            raise UserError(
                f"The checkpoint was trained over a pretrained backbone with the digest {recorded[:12]}…, but the one "
                f"installed here has {installed[:12]}…: install the same weights and configuration, or train again."
            )
        return method.eval().requires_grad_(False)

    def as_ancestors(self, relation: Literal["initialized", "distilled"]) -> tuple[Ancestor, ...]:
        """Return the ancestors that a network gets by learning from this one: it, and those that it has."""
        header, recipe = self.header, self.header.recipe
        parent = Ancestor(
            relation,
            recipe.name,
            header.episode,
            tensors_digest(self.weights),
            recipe.data,
            recipe.validation.split,
            recipe.backbone.name in PRETRAINED,
            header.seconds,
        )
        return parent, *(replace(ancestor, relation="earlier") for ancestor in header.lineage.networks())

    def check_weights(self, method: Method) -> None:
        """Raise UserError if weights of the method and the checkpoint differ in name, shape or dtype."""
        expected = {name: (tensor.shape, tensor.dtype) for name, tensor in method.state_dict().items()}
        for weights in (self.weights, self.average) if self.average else (self.weights,):
            stored = {name: (tensor.shape, tensor.dtype) for name, tensor in weights.items()}
            names = sorted(name for name in expected.keys() | stored.keys() if expected.get(name) != stored.get(name))
            if names:
                raise UserError(f"The weights do not fit the recipe of the checkpoint: {', '.join(names[:5])} differ.")

    def write(self, path: Path) -> None:
        """Write the file atomically."""
        named = {"": self.weights, _OPTIMIZER: self.optimizer, _AVERAGE: self.average}
        tensors = {
            prefix + name: tensor.detach().cpu().contiguous()
            for prefix, group in named.items()
            for name, tensor in group.items()
        }
        header = asdict(self.header)
        header["digest"] = content_digest(header, tensors)
        write_atomically(path, save(tensors, {HEADER: json.dumps(header, sort_keys=True)}))


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the sha-256 of named tensors: names, types, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        if tensor.numel():
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def backbone_digest(backbone: Backbone) -> str:
    """Return the sha-256 of the weights and the configuration of a backbone."""
    return content_digest(backbone.configuration(), backbone.state_dict())


def content_digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the sha-256 of a header, without the digest in it, and of named tensors."""
    words = json.dumps({key: value for key, value in header.items() if key != "digest"}, sort_keys=True)
    return hashlib.sha256(words.encode() + tensors_digest(tensors).encode()).hexdigest()


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Return the checkpoint in a file, the best one of a run folder, or a bundled one by name."""
    path = find_checkpoint(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from None
    return parse_checkpoint(content, path)


def parse_checkpoint(content: bytes, path: Path) -> Checkpoint:
    """Return the checkpoint in the content of a file; `path` is what messages call it."""
    try:
        tensors = dict(sorted(load_tensors(content).items()))
        described = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        metadata = described.get("__metadata__") or {}
    except (SafetensorError, AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged or not a safetensors file ({error}): train or download it again.") from None
    values = _header_values(metadata, path)
    header = _header(dict(values), path)
    if header.digest and header.digest != content_digest(values, tensors):
        raise UserError(f"{path} is damaged: its content does not match its digest. Train or download it again.")
    groups: dict[str, dict[str, Tensor]] = {"": {}, _OPTIMIZER: {}, _AVERAGE: {}}
    for name, tensor in tensors.items():
        prefix = next((prefix for prefix in (_OPTIMIZER, _AVERAGE) if name.startswith(prefix)), "")
        groups[prefix][name.removeprefix(prefix)] = tensor
    return Checkpoint(header, *groups.values())


def read_header(path: Path) -> Header:
    """Return the header of a checkpoint without reading its tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is damaged or not a safetensors file ({error}): train or download it again.") from None
    return _header(_header_values(metadata, path), path)


def _header_values(metadata: Mapping[str, str], path: Path) -> dict[str, Any]:
    if TASK in metadata:
        raise UserError(
            f"{path} is a fitted task, which `tapnet predict {path} IMAGES` and `tapnet score` take; expected a "
            "checkpoint or the folder of a run."
        )
    text = metadata.get(HEADER)
    if text is None:
        raise UserError(f"{path} is a safetensors file, but not a tapnet checkpoint: its header has no recipe.")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} has a damaged header ({error}): train or download it again.") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        version = values.get("format") if isinstance(values, dict) else type(values).__name__
        raise UserError(f"{path} has format {str(version)[:40]}, this version of tapnet reads {FORMAT}.")
    return values


def _header(values: dict[str, Any], path: Path) -> Header:
    recipe = recipe_from(values.pop("recipe", None), str(path))
    try:
        return pydantic.TypeAdapter(Header).validate_python(values | {"recipe": recipe})
    except pydantic.ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        raise UserError(f"{path} has a damaged header (`{key}`: {problem['msg']}): download it again.") from None


def lineage_from(values: Any) -> Lineage:
    """Return the lineage in a nested dictionary, such as a recorded result has."""
    return pydantic.TypeAdapter(Lineage).validate_python(values)


def load(path: str | Path, device: str | torch.device = "cpu") -> Method:
    """Return the trained method in eval mode, from a checkpoint file or the folder of a run."""
    return read_checkpoint(path).method().to(device)
