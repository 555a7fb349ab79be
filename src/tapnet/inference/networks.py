"""Networks by name: bundled ones, pretrained ones, and checkpoints of one's own, ready to embed and to be fitted."""

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

from tapnet.backbones import PRETRAINED, PrecomputedFeatures, make_backbone
from tapnet.backbones.base import check_features
from tapnet.backbones.hugging_face import image_side
from tapnet.checkpoint import Header, backbone_digest, parse_checkpoint, read_checkpoint
from tapnet.data.preprocessing import Preprocessing
from tapnet.errors import NotFoundError, UserError
from tapnet.evaluation.calibration import Calibration
from tapnet.evaluation.embedding import Embedder
from tapnet.hardware import device_of, resolve_device, resolve_precision, to_float_tensor
from tapnet.inference.images import Example, in_batches
from tapnet.methods import METHODS, PARAMETER_FREE, Head, LinearHead, Method, method_name
from tapnet.paths import bundled_checkpoints, find_checkpoint

HUGGING_FACE = "hf:"
FEATURES = "features"  # stands for a network where features came from elsewhere
NO_IMAGES = "The task was fitted to feature vectors: give such vectors, not images."
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
    precision: str = "float32"  # in which images are embedded, or "bf16"

    @cached_property
    def device(self) -> torch.device:
        """Where the network computes."""
        return device_of(self.method)

    @cached_property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of the features of one image."""
        return self.method.feature_shape

    @property
    def image_preprocessing(self) -> Preprocessing:
        """How images are prepared; raise UserError where features come from elsewhere."""
        if self.preprocessing is None:
            raise UserError(NO_IMAGES)
        return self.preprocessing

    def embedding_as(self, precision: str) -> EmbeddingModel:
        """Return this network with the precision in which the examples of a task were embedded."""
        return self if precision == self.precision else replace(self, precision=precision)

    def embed(self, pixels: Iterable[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Return features (n, *feature_shape) of prepared images (height, width, channels)."""
        parts = [np.zeros((0, *self.feature_shape), np.float32)]
        for batch in in_batches(pixels, self._batch):
            images = np.stack(batch)
            whole = self.method.task_features  # the method embeds images together with the task
            features = to_float_tensor(images, torch.device("cpu")) if whole else self._embedder(images)
            parts.append(check_features(features).cpu().numpy())
        return np.concatenate(parts)

    def embed_examples(
        self, examples: Iterable[Example]
    ) -> tuple[NDArray[np.float32], tuple[str, ...], tuple[bytes, ...]]:
        """Return features, digests and thumbnails of images as they are read, keeping the pixels of a batch only."""
        hashes, thumbnails = list[str](), list[bytes]()

        def pixels() -> Iterator[NDArray[np.uint8]]:
            for example in examples:
                hashes.append(example.sha256)
                thumbnails.append(example.thumbnail)
                yield example.pixels

        return self.embed(pixels()), tuple(hashes), tuple(thumbnails)

    @cached_property
    def _embedder(self) -> Embedder:
        return Embedder(self.method.backbone, self.precision, maps=self.method.feature_maps)

    @cached_property
    def _batch(self) -> int:
        large = self.preprocessing is not None and max(self.preprocessing.shape) > _LARGE_SIDE
        return _LARGE_BATCH if large and self.device.type == "cpu" else _BATCH

    @cached_property
    def default_method(self) -> str:
        return method_name(self.method)

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """The methods to fit with: the network's own, then those without parameters that can take its features."""
        others = () if self.method.task_features or self.method.feature_maps else PARAMETER_FREE
        return tuple(dict.fromkeys((self.default_method, *others)))

    @cached_property
    def _parameter_free(self) -> dict[str, Method]:
        return {name: METHODS[name](self.method.backbone).eval() for name in PARAMETER_FREE}

    def offered_methods(self, way: int) -> tuple[str, ...]:
        """Return the methods that can be fitted to so many classes, the network's own first."""
        limit = self.method.max_way
        return self.methods if limit is None or way <= limit else self.methods[1:]

    def method_named(
        self, name: str | None = None, options: Mapping[str, Any] | None = None, way: int | None = None
    ) -> Method:
        """Return one of `methods`, over the same backbone; `None` is the network's own.

        Options that make the result independent of the order of the classes are set unless given otherwise. Raise
        UserError if there is no such method or option, or if it does not take `way` classes.
        """
        name = name or self.default_method
        if name not in self.methods:
            choices = ", ".join(self.methods)
            raise UserError(f"The network {self.name!r} can be fitted by {choices}, got {name!r}.", parameter="method")
        method = self.method if name == self.default_method else self._parameter_free[name]
        if method.transductive:
            raise UserError(
                f"{name} is transductive: its answer for one image depends on the others, so it cannot be fitted. Use "
                "`tapnet evaluate`, or fit another network."
            )
        method, limit = method.with_options(**method.order_free_options | dict(options or {})), method.max_way
        if way is not None and limit is not None and way > limit:
            limits = {other: read_checkpoint(path).method().max_way for other, path in bundled_checkpoints().items()}
            others = " or ".join(other for other, most in limits.items() if most is None or most >= way)
            hint = f"use the network {others}, or" if others else "no bundled network takes as many; use"
            raise UserError(
                f"{way} classes are more than the {limit} that the network {self.name!r} takes: {hint} the method "
                "centroid, or train with more classes.",
                parameter="method",
            )
        return method

    def adapt(
        self, features: NDArray[np.float32], labels: NDArray[np.int64], method: str, options: Mapping[str, Any]
    ) -> Head:
        """Return the head of one of `methods` for labeled features; labels count the classes from 0."""
        way = int(labels.max()) + 1
        ready = self.method_named(method, options, way)
        support, targets = torch.from_numpy(features).to(self.device), torch.from_numpy(labels).to(self.device)
        with torch.no_grad():
            return ready.adapt(support, targets, way)

    def logits(self, head: Head, features: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the scores (n, way) of features by a head of this network, best by an `exact_head`."""
        queries = torch.from_numpy(features)
        if not isinstance(head, LinearHead) or head.weight.dtype != torch.float64:
            queries = queries.float().to(self.device)
        return head.logits(queries).detach().double().cpu().numpy()


def exact_head(head: Head) -> Head:
    """Return a head as a linear layer in float64, whose scores do not depend on other images, if it is linear."""
    linear = head.linear()
    if linear is None:
        return head
    return LinearHead(linear.weight.cpu().double(), linear.bias.cpu().double(), linear.normalize)


def vector_model(dim: int) -> EmbeddingModel:
    """Return the model for feature vectors of this dimension that come from elsewhere."""
    backbone = PrecomputedFeatures(dim)
    return EmbeddingModel(FEATURES, "0" * 64, None, Calibration(), METHODS["centroid"](backbone).eval())


def load_network(name: str, device: str = "cpu") -> EmbeddingModel:
    """Return the network of that name in eval mode: a bundled one, a checkpoint, the folder of a run or "hf:MODEL".

    Networks are kept in memory, checkpoints by the digest of their content: one that was rewritten is loaded again.
    """
    if name == FEATURES:
        raise UserError(NO_IMAGES)
    if name.startswith(HUGGING_FACE):
        folder = Path(name.removeprefix(HUGGING_FACE))
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        version = repr([(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files])
        return _cached((name, version, device), lambda: _hugging_face(name, device))
    try:
        path = find_checkpoint(name)
    except FileNotFoundError as error:
        raise NotFoundError(str(error), parameter="network") from None
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return _cached((name, digest, device), lambda: _from_checkpoint(name, path, content, digest, device))


_networks: OrderedDict[tuple[str, ...], EmbeddingModel] = OrderedDict()  # those that were used last
_loading = threading.Lock()


def _cached(key: tuple[str, ...], load: Callable[[], EmbeddingModel]) -> EmbeddingModel:
    with _loading:  # once, however many threads ask for it
        if key not in _networks:
            _networks[key] = load()
        _networks.move_to_end(key)
        while len(_networks) > _CACHED:
            _networks.popitem(last=False)
        return _networks[key]


def _from_checkpoint(name: str, path: Path, content: bytes, sha256: str, device: str) -> EmbeddingModel:
    checkpoint = parse_checkpoint(content, path)
    method, header = checkpoint.method().to(resolve_device(device)), checkpoint.header
    precision = resolve_precision("auto" if method.backbone.bf16_maps else "float32", resolve_device(device))
    calibration = Calibration(header.calibration)
    return EmbeddingModel(name, sha256, preprocessing_of(header), calibration, method, precision)


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
    preprocessing = Preprocessing(side, side, 3, fit="crop")
    return EmbeddingModel(HUGGING_FACE + model, backbone_digest(backbone), preprocessing, Calibration(), method)


def preprocessing_of(header: Header) -> Preprocessing:
    """Return how the images that a checkpoint was trained on became pixels, or the usual way if that is not known."""
    channels, height, width = header.image_shape
    if not header.preprocessing:
        fit = "crop" if header.recipe.backbone.name in PRETRAINED else "squash"
        return Preprocessing(height, width, channels, fit=fit)
    recorded = Preprocessing.from_dict(header.preprocessing)
    if recorded.shape != (height, width, channels):
        raise UserError(f"Expected a preprocessing to {(height, width, channels)}, got {recorded.shape}.")
    return recorded
