"""Imports checkpoints of the authors' Chainer code, with the same features and logits.

Their convolutions have biases, which are subtracted from the running mean of the batch normalization that follows. The
bias of their linear layer of references, unless it is zero, becomes the `reference_bias` of a `TapNetVariant`.
"""

from __future__ import annotations

import hashlib
import struct
import zipfile
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapnet.backbones import ImageShape
from tapnet.checkpoint import Checkpoint, Header, Lineage
from tapnet.errors import UserError
from tapnet.recipe import Recipe, recipe_from
from tapnet.text import abbreviate

IMAGE_SIZE = 84  # of the authors' images, which is not in the file
_BLOCKS = range(1, 5)
_LAYERS = {"1": ("layers", 0), "2": ("layers", 3), "3": ("layers", 6), "r": ("shortcut", 0)}  # of a block of ours
_DAMAGED = (ValueError, EOFError, RuntimeError, KeyError, struct.error, zipfile.BadZipFile, zlib.error)
Arrays = dict[str, NDArray[Any]]


def import_chainer(path: Path, recipe: Recipe, image_size: int = IMAGE_SIZE) -> Checkpoint:
    """Return the network in an npz file of Chainer's `save_npz`, with a recipe that fits it.

    `recipe` says how and on which data it was trained; its numbers of references and channels come from the file.
    """
    if recipe.backbone.name != "resnet12":
        raise UserError(
            f"The authors' network is resnet12, and the recipe {recipe.name!r} is for {recipe.backbone.name}: choose "
            "another."
        )
    arrays = _read(path)
    widths = [arrays[f"l_norm{block}_1/gamma"].size for block in _BLOCKS]
    _check(arrays, widths, path)
    shape: ImageShape = (arrays["l_conv1_1/W"].shape[1], image_size, image_size)
    source = f"Chainer npz {path.name}, sha-256 {hashlib.sha256(path.read_bytes()).hexdigest()}"
    header = Header(_fitted(recipe, arrays, widths, path), shape, episode=0, lineage=Lineage(source=source))
    checkpoint = Checkpoint(header, _weights(arrays))
    checkpoint.method()  # raises if it cannot be built
    return checkpoint


def _read(path: Path) -> Arrays:
    """Return the arrays of the file, without unpickling; raise UserError unless they are those of the authors."""
    needed = _shapes(1, [1] * len(_BLOCKS), 1).keys()
    arrays: Arrays = {}
    names, key = set(), ""
    with path.open("rb") as stream:
        if not zipfile.is_zipfile(stream):
            raise UserError(f"{path} is not an npz file, or is cut off: expected a file of Chainer's save_npz.")
        stream.seek(0)
        try:
            with np.load(stream, allow_pickle=False) as file:
                names = set(file.files)
                for key in needed if needed == names else ():
                    arrays[key] = np.asarray(file[key])
        except _DAMAGED as error:
            raise UserError(f"{path} cannot be read ({key}: {error}).") from None
    for problem, keys in (("lacks", needed - names), ("has more than the authors' network:", names - needed)):
        if keys:
            listed = abbreviate(sorted(keys))
            raise UserError(f"{path} {problem} {listed}: expected a file of Chainer's save_npz with the ResNet-12.")
    return arrays


def _shapes(channels: int, widths: list[int], ways: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays of the authors' network, by name."""
    shapes: dict[str, tuple[int, ...]] = {"l_phi/W": (ways, widths[-1]), "l_phi/b": (ways,)}
    for block, (inputs, width) in zip(_BLOCKS, pairwise([channels, *widths]), strict=True):
        for layer in _LAYERS:
            convolution, norm = f"l_conv{block}_{layer}", f"l_norm{block}_{layer}"
            shapes[f"{convolution}/W"] = (width, width if layer in "23" else inputs, 3, 3)
            shapes |= {f"{convolution}/b": (width,), f"{norm}/N": ()}
            shapes |= {f"{norm}/{key}": (width,) for key in ("gamma", "beta", "avg_mean", "avg_var")}
    return shapes


def _check(arrays: Arrays, widths: list[int], path: Path) -> None:
    """Raise UserError with the name of an array that does not fit the others or is not finite."""
    channels = (*arrays["l_conv1_1/W"].shape, 1, 1)[1]
    for key, shape in _shapes(channels, widths, arrays["l_phi/b"].size).items():
        array = arrays[key]
        if array.dtype.kind not in ("iu" if key.endswith("/N") else "f"):
            raise UserError(f"{path}: {key} holds {array.dtype}.")
        if array.shape != shape or 0 in shape:
            raise UserError(f"{path}: {key} needs the shape {shape} to fit the others, got {array.shape}.")
        if not np.isfinite(array).all():
            raise UserError(f"{path}: {key} has a value that is not a finite number.")
        if key.endswith("/avg_var") and array.min() < 0:
            raise UserError(f"{path}: {key} has a negative variance, {array.min():g}.")


def _fitted(recipe: Recipe, arrays: Arrays, widths: list[int], path: Path) -> Recipe:
    """Return the recipe with the network of the file, and with `-chainer` added to its name."""
    values, ways = recipe.as_dict(), len(arrays["l_phi/W"])
    bias = {"reference_bias": True} if arrays["l_phi/b"].any() else {}
    values["name"] += "-chainer"
    values["backbone"]["options"]["widths"] = widths
    values["method"] = {"name": "tapnet-variant" if bias else "tapnet", "options": {"num_references": ways, **bias}}
    values["training"]["way"] = ways
    values["validation"]["way"] = min(ways, recipe.validation.way)
    return recipe_from(values, str(path))


def _weights(arrays: Arrays) -> dict[str, Tensor]:
    weights = {"references": arrays["l_phi/W"]}
    if arrays["l_phi/b"].any():
        weights["reference_bias"] = arrays["l_phi/b"]
    for block in _BLOCKS:
        for layer, (part, index) in _LAYERS.items():
            convolution, norm = f"l_conv{block}_{layer}", f"l_norm{block}_{layer}"
            ours = f"backbone.blocks.{block - 1}.{part}"
            mean = arrays[f"{norm}/avg_mean"].astype(np.float64) - arrays[f"{convolution}/b"]
            weights |= {
                f"{ours}.{index}.weight": arrays[f"{convolution}/W"],
                f"{ours}.{index + 1}.weight": arrays[f"{norm}/gamma"],
                f"{ours}.{index + 1}.bias": arrays[f"{norm}/beta"],
                f"{ours}.{index + 1}.running_mean": mean,
                f"{ours}.{index + 1}.running_var": arrays[f"{norm}/avg_var"],
                f"{ours}.{index + 1}.num_batches_tracked": arrays[f"{norm}/N"],
            }
    kinds = {True: np.int64, False: np.float32}
    return {name: torch.from_numpy(np.array(array, kinds[array.dtype.kind in "iu"])) for name, array in weights.items()}
