"""Networks by name: the bundled ones, pretrained ones, and checkpoints of one's own, ready to embed images."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapnet.backbones import PRETRAINED, PrecomputedFeatures, make_backbone
from tapnet.backbones.base import check_features
from tapnet.backbones.hugging_face import image_side
from tapnet.checkpoint import Header, backbone_digest, parse_checkpoint, read_checkpoint, tensors_digest
from tapnet.data.preprocessing import Preprocessing
from tapnet.errors import NotFoundError, UserError
from tapnet.evaluation.calibration import Calibration
from tapnet.evaluation.embedding import Embedder
from tapnet.hardware import device_of, resolve_device, resolve_precision, to_float_tensor
from tapnet.inference.background import read_background
from tapnet.inference.images import Example, in_batches
from tapnet.methods import METHODS, PARAMETER_FREE, Method, method_name
from tapnet.paths import bundled_checkpoints, find_checkpoint

HUGGING_FACE = "hf:"
FEATURES = "features"  # stands for a network where features came from elsewhere
_DRAWINGS: dict[str, dict[str, Any]] = {  # datasets of drawings, for checkpoints that do not record a preprocessing
    "quickdraw": {"ink": "bright", "centred": True, "full_contrast": True},
    "omniglot": {"ink": "bright", "full_contrast": True},
}
_BATCH, _LARGE_BATCH = 64, 16  # images that are embedded at a time; the maps of 64 large ones take a gigabyte
_LARGE_SIDE = 128
_CACHED = 4  # networks kept in memory


@dataclass(frozen=True)
class EmbeddingModel:
    """A network for images: how they are prepared, their features, the method it was trained for, its temperatures."""

    name: str
    sha256: str
    preprocessing: Preprocessing | None  # `None` where features come from elsewhere
    calibration: Calibration
    method: Method = field(repr=False)
    earlier_sha256: str = ""  # by which tasks of earlier versions know a Hugging Face model
    precision: str = "float32"  # in which images are embedded, or "bf16"

    @cached_property
    def _embedder(self) -> Embedder:
        return Embedder(self.method.backbone, self.precision, maps=self.method.feature_maps)

    @cached_property
    def background(self) -> NDArray[np.float32] | None:
        """Directions (classes, dim) of public classes, if the network has them."""
        return read_background(self.name, self.sha256, self.method.backbone)

    @cached_property
    def _parameter_free(self) -> dict[str, Method]:
        return {name: METHODS[name](self.method.backbone).eval() for name in PARAMETER_FREE}

    def embedding_as(self, precision: str) -> EmbeddingModel:
        """Return this network with the precision in which the examples of a task were embedded."""
        return self if precision == self.precision else replace(self, precision=precision)

    def embed(self, pixels: Iterable[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Return features (n, *feature_shape) of prepared images (height, width, channels)."""
        parts = [np.zeros((0, *self.method.feature_shape), np.float32)]
        for images in in_batches(pixels, self._batch):
            parts.append(check_features(self._features(np.stack(images))).cpu().numpy())
        return np.concatenate(parts)

    def embed_examples(
        self, examples: Iterable[Example]
    ) -> tuple[NDArray[np.float32], tuple[str, ...], tuple[bytes, ...]]:
        """Return features, digests and thumbnails of images as they are read, keeping the pixels of a batch only."""
        read: list[tuple[str, bytes]] = []

        def pixels() -> Iterator[NDArray[np.uint8]]:
            for example in examples:
                read.append((example.sha256, example.thumbnail))
                yield example.pixels

        features = self.embed(pixels())
        return features, tuple(digest for digest, _ in read), tuple(thumbnail for _, thumbnail in read)

    @property
    def _batch(self) -> int:
        large = self.preprocessing is not None and max(self.preprocessing.shape) > _LARGE_SIDE
        return _LARGE_BATCH if large and self.device.type == "cpu" else _BATCH

    def _features(self, pixels: NDArray[np.uint8]) -> Tensor:
        return to_float_tensor(pixels, torch.device("cpu")) if self.method.task_features else self._embedder(pixels)

    @property
    def default_method(self) -> str:
        return method_name(self.method)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods to fit with: the network's own, then those without parameters that can take its features."""
        others = () if self.method.task_features or self.method.feature_maps else PARAMETER_FREE
        return tuple(dict.fromkeys((self.default_method, *others)))

    def method_named(self, name: str | None = None, options: Mapping[str, Any] | None = None) -> Method:
        """Return one of `methods`, over the same backbone; `None` is the network's own.

        Options that make the result independent of the order of the classes are set unless given otherwise.
        """
        name = name or self.default_method
        if name not in self.methods:
            choices = ", ".join(self.methods)
            raise UserError(f"The network {self.name!r} can be fitted by {choices}, got {name!r}.", parameter="method")
        own = name == self.default_method
        method = self.method if own else self._parameter_free[name]
        if method.transductive:
            raise UserError(
                f"{name} is transductive: its answer for one image depends on the others, so it cannot be fitted. Use "
                "`tapnet evaluate`, or fit another network."
            )
        return method.with_options(**method.order_free_options | dict(options or {}))

    def offered_methods(self, way: int) -> tuple[str, ...]:
        """Return the methods that can be fitted to so many classes, the network's own first."""
        limit = self.method.max_way
        return self.methods if limit is None or way <= limit else self.methods[1:]

    @property
    def image_preprocessing(self) -> Preprocessing:
        """How images are prepared; raise UserError where features come from elsewhere."""
        if self.preprocessing is None:
            raise UserError("The task was fitted to feature vectors: give such vectors, not images.")
        return self.preprocessing

    @property
    def device(self) -> torch.device:
        """Where the network computes."""
        return device_of(self.method)


def vector_model(dim: int) -> EmbeddingModel:
    """Return the model for feature vectors of this dimension that come from elsewhere."""
    backbone = PrecomputedFeatures(dim)
    return EmbeddingModel(FEATURES, "0" * 64, None, Calibration(), METHODS["centroid"](backbone).eval())


def load_network(name: str, device: str = "cpu") -> EmbeddingModel:
    """Return the network of that name in eval mode: a bundled one, a checkpoint, the folder of a run or "hf:MODEL".

    Networks are kept in memory, checkpoints by the digest of their content: one that was rewritten is loaded again.
    Raise UserError if there is none of that name.
    """
    if name == FEATURES:
        raise UserError("The task was fitted to feature vectors: give such vectors, not images.")
    if name.startswith(HUGGING_FACE):
        key = name, _folder_version(Path(name.removeprefix(HUGGING_FACE))), device
        return _networks.get(key, lambda: _hugging_face(name, device))
    try:
        path = find_checkpoint(name)
    except FileNotFoundError as error:
        raise NotFoundError(str(error), parameter="network") from None
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return _networks.get((name, digest, device), lambda: _from_checkpoint(name, path, content, digest, device))


def _folder_version(folder: Path) -> str:
    """Return a text that changes when a file of the folder does; empty if there is no such folder."""
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return repr([(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files])


class _NetworkCache:
    """The networks that were used last, each loaded once however many threads ask for it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, ...], EmbeddingModel] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[str, ...], load: Callable[[], EmbeddingModel]) -> EmbeddingModel:
        """Return the network of this key, loaded if it is not kept."""
        with self._lock:
            if key not in self._kept:
                self._kept[key] = load()
            self._kept.move_to_end(key)
            while len(self._kept) > _CACHED:
                self._kept.popitem(last=False)
            return self._kept[key]

    def clear(self) -> None:
        """Forget all networks."""
        with self._lock:
            self._kept.clear()


_networks = _NetworkCache()


def _from_checkpoint(name: str, path: Path, content: bytes, sha256: str, device: str) -> EmbeddingModel:
    checkpoint = parse_checkpoint(content, path)
    method = checkpoint.method().to(resolve_device(device))
    return EmbeddingModel(
        name=name,
        sha256=sha256,
        preprocessing=preprocessing_of(checkpoint.header),
        calibration=Calibration(checkpoint.header.calibration),
        method=method,
        precision=resolve_precision("auto" if method.backbone.bf16_maps else "float32", resolve_device(device)),
    )


def _hugging_face(name: str, device: str) -> EmbeddingModel:
    """Return a pretrained model as it is, for the methods without parameters."""
    model = name.removeprefix(HUGGING_FACE)
    if Path(model).is_dir():  # so that a task finds it from everywhere
        model = str(Path(model).resolve())
    elif Path(model).is_absolute():
        raise NotFoundError(f"There is no folder {model}: expected that of a Hugging Face model.", parameter="network")
    side = image_side(model)
    backbone = make_backbone("hf", (3, side, side), model=model)
    method = METHODS["centroid"](backbone).eval().requires_grad_(False).to(resolve_device(device))
    return EmbeddingModel(
        name=HUGGING_FACE + model,
        sha256=backbone_digest(backbone),
        preprocessing=Preprocessing(side, side, 3, fit="crop"),
        calibration=Calibration(),
        method=method,
        earlier_sha256=tensors_digest(backbone.state_dict()),
    )


def preprocessing_of(header: Header) -> Preprocessing:
    """Return how the images that a checkpoint was trained on became pixels.

    Checkpoints of earlier versions, such as the bundled `drawings`, do not record it: there the dataset's name decides.
    Raise UserError if what is recorded is not of the network's image shape.
    """
    channels, height, width = header.image_shape
    if not header.preprocessing:
        fit = "crop" if header.recipe.backbone.name in PRETRAINED else "squash"
        return Preprocessing(height, width, channels, fit=fit, **_DRAWINGS.get(header.recipe.data.name, {}))
    recorded = Preprocessing.from_dict(header.preprocessing)
    if recorded.shape != (height, width, channels):
        raise UserError(f"Expected a preprocessing to {(height, width, channels)}, got {recorded.shape}.")
    return recorded


def networks_supporting(way: int) -> list[str]:
    """Return the bundled networks whose own method takes so many classes."""
    limits = {name: read_checkpoint(path).method().max_way for name, path in bundled_checkpoints().items()}
    return [name for name, limit in limits.items() if limit is None or limit >= way]
