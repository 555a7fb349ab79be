"""Predicting a folder of photographs beside its bare network, and fitting 20 classes of 5 beside their embedding."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pairs import Row, compared, seconds
from PIL import Image

from tapnet.inference import compare_methods, fit_task, load_network
from tapnet.inference.images import Example, read_images
from tapnet.inference.networks import EmbeddingModel
from tapnet.inference.predictor import TaskPredictor
from tapnet.inference.task import Examples

NETWORKS = {"photos": "at least 0.85", "photos-fast": ""}
IMAGES, WAY, SHOT = 96, 20, 5
SIZE = (500, 375)  # of the photographs, as in CUB
TELEPHONE_IMAGES, TELEPHONE_SIZE = 32, (4000, 3000)  # of a telephone's camera, 12 megapixels


def rows(pairs: int = 3) -> list[Row]:
    """Seconds per image of the bare network / of `predict`; and seconds of a fit that finds its images embedded."""
    with tempfile.TemporaryDirectory() as folder:
        files = photographs(Path(folder), IMAGES, SIZE)
        large = photographs(Path(folder), TELEPHONE_IMAGES, TELEPHONE_SIZE)
        predicted = [_predict_row(network, asked, files, pairs, "photographs") for network, asked in NETWORKS.items()]
        predicted += [_predict_row(network, "", large, pairs, "telephone photographs") for network in NETWORKS]
    model = load_network(default := next(iter(NETWORKS)))
    classes, examples = embedded(model)
    task = fit_task(classes, examples, model)
    fitting = seconds(lambda: fit_task(classes, examples, model)) + seconds(lambda: compare_methods(task))
    embedding = predicted[0].first * WAY * SHOT
    note = f"{fitting:.2f} s, asked 1 s at most; embedding {embedding:.2f} s by {default}"
    name = f"fit {WAY} × {SHOT}, methods compared / their embedding"
    return [*predicted, Row(name, fitting / embedding, "", fitting, embedding, note)]


def _predict_row(network: str, asked: str, files: list[Path], pairs: int, content: str) -> Row:
    model = load_network(network)
    read = read_images(files, model.image_preprocessing)
    pixels = [example.pixels for _, example in read if isinstance(example, Example)]
    predictor = TaskPredictor(fit_task(*embedded(model), model), model)
    bare, whole, ratio = compared(
        lambda: model.embed(pixels), lambda: predictor.predict(files), pairs, (len(files), len(files))
    )
    return Row(f"predict: the network {network} alone / a folder of {content}", ratio, asked, bare, whole)


def photographs(folder: Path, count: int, size: tuple[int, int]) -> list[Path]:
    """Return JPEG files of smooth noise: as large as photographs, and as slow to decode.

    Large ones have grain as well, with which 12 megapixels take 4 MB.
    """
    generator, files = np.random.default_rng(0), []
    grain = Image.effect_noise(size, 10)
    for number in range(count):
        coarse = Image.fromarray(generator.integers(0, 256, (40, 50, 3), dtype=np.uint8))
        photograph = coarse.resize(size, Image.Resampling.BICUBIC)
        if size == TELEPHONE_SIZE:
            photograph = Image.blend(photograph, Image.merge("RGB", (grain, grain, grain)), 0.5)
        files.append(folder / f"{size[0]}-{number}.jpg")
        photograph.save(files[-1], quality=90)
    return files


def embedded(model: EmbeddingModel) -> tuple[list[str], Examples]:
    """Return the names of 20 classes and 5 examples of each, as the network would have embedded them."""
    generator, labels = np.random.default_rng(0), np.repeat(np.arange(WAY), SHOT)
    (dim,) = model.method.feature_shape
    centers, noise = generator.standard_normal((WAY, dim)), generator.standard_normal((len(labels), dim))
    features: NDArray[np.float32] = (centers[labels] + noise).astype(np.float32)
    hashes = tuple(str(number) for number in range(len(labels)))
    return [f"class {number:02d}" for number in range(WAY)], Examples(features, labels, hashes, (b"",) * len(labels))
