r"""Accuracy and confidence of tasks as `fit` makes them, with as many images of every class and with few of some:

    python tools/measure_tasks.py photos birds=BIRDS cars=CARS --cache FEATURES \
        --json results/own-images/tasks-photos.json

BIRDS and CARS are folders with one folder of images per class. Their features are kept in FEATURES/NAME.npz, if this is
given, and taken from there. With `--vectors` they are the plain features of a network for photographs, given as vectors
of no network.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression

from tapnet.evaluation.calibration import calibration_error
from tapnet.inference import class_folders, load_network
from tapnet.inference.images import read_labeled
from tapnet.inference.model_selection import USUAL, choose_temperature, resolve_method
from tapnet.inference.networks import EmbeddingModel, vector_model
from tapnet.inference.task import Examples
from tapnet.training.outcome import provenance

UNEVEN = [[shot] * 4 + [20] * 4 for shot in (1, 2, 3, 5)] + [[1, 1, 2, 3, 5, 10, 30, 40]]
EVEN = ((5, 1), (8, 5), (20, 1), (20, 2), (20, 5), (50, 1), (100, 3), (156, 3), (196, 3))  # classes, images of each
QUERY, SEED = 10, 0
Task = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network")
    parser.add_argument("sets", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--images", type=int, default=52, help="of each class, the first ones (default: 52)")
    parser.add_argument("--tasks", type=int, default=40, help="of each size, fewer of many classes (default: 40)")
    parser.add_argument("--vectors", action="store_true")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--json", type=Path, required=True, help="the file to write")
    args = parser.parse_args()
    network, rows = load_network(args.network), []
    for argument in args.sets:
        name, _, folder = argument.partition("=")
        features, labels = embedded(network, folder, args.images, args.cache and args.cache / f"{name}.npz")
        model = network
        if args.vectors:
            features = features[:, : network.method.backbone.pooled_dim]
            model = vector_model(features.shape[1])
        for counts in [*UNEVEN, *([shot] * way for way, shot in EVEN)]:
            if len(counts) <= (np.bincount(labels) >= max(counts) + QUERY).sum():
                number = max(2, min(args.tasks, 8 * args.tasks // len(counts)))
                rows.append({"dataset": name} | measure(model, features, labels, counts, number))
                print(rows[-1], flush=True)
    names = " ".join(f"{argument.partition('=')[0]}=FOLDER" for argument in args.sets)
    content = {
        "command": f"python tools/measure_tasks.py {args.network} {names}" + " --vectors" * args.vectors,
        "network_sha256": network.sha256,
        "precision": network.precision,
        "commit": provenance().get("commit"),
        "rows": rows,
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def embedded(
    network: EmbeddingModel, folder: str, images: int, cache: Path | None
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return features (n, dim) and labels (n,) of the first images of every class."""
    if cache is None or not cache.exists():
        files = {name: paths[:images] for name, paths in class_folders(folder).classes.items()}
        read = [(name, example) for name, _, example in read_labeled(files, network.image_preprocessing)]
        features = network.embed(example.pixels for _, example in read)
        labels = np.unique([name for name, _ in read], return_inverse=True)[1]
        if cache is None:
            return features, labels
        cache.parent.mkdir(parents=True, exist_ok=True)
        np.savez(cache, features=features, labels=labels)
    with np.load(cache) as content:
        return content["features"], content["labels"]


def tasks(features: NDArray[np.float32], labels: NDArray[np.int64], counts: list[int], number: int) -> Iterator[Task]:
    """Yield examples, so many of each class, and queries, each with their labels."""
    generator = np.random.default_rng(SEED)
    large = np.flatnonzero(np.bincount(labels) >= max(counts) + QUERY)
    of_query = np.repeat(np.arange(len(counts)), QUERY)
    for _ in range(number):
        classes = generator.permutation(large)[: len(counts)]
        drawn = [generator.permutation(np.flatnonzero(labels == k)) for k in classes]
        support = np.concatenate([rows[:count] for rows, count in zip(drawn, counts, strict=True)])
        query = np.concatenate([rows[count:][:QUERY] for rows, count in zip(drawn, counts, strict=True)])
        yield features[support], np.repeat(np.arange(len(counts)), counts), features[query], of_query


def measure(
    model: EmbeddingModel, features: NDArray[np.float32], labels: NDArray[np.int64], counts: list[int], number: int
) -> dict[str, Any]:
    """Return accuracies, also of the classes with at most five images alone, and how far confidence is from accuracy.

    "table" is the temperature of the network's calibration alone, over logistic regression without weights.
    """
    right: dict[str, list[NDArray[np.bool_]]] = {}
    confidence: dict[str, list[NDArray[np.float64]]] = {}
    sure_right: dict[str, list[NDArray[np.bool_]]] = {}
    calibration = model.calibration if model.calibration.tables else USUAL
    name, options = resolve_method(model, None, None)
    for support, answers, query, truth in tasks(features, labels, counts, number):
        examples = Examples(support, answers, tuple(map(str, range(len(answers)))), (b"",) * len(answers))
        logits = model.logits(model.adapt(support, answers, name, options), query)
        scores = {"default": logits, "centroid": model.logits(model.adapt(support, answers, "centroid", {}), query)}
        directions = [10 * part / np.linalg.norm(part, axis=1, keepdims=True) for part in (support, query)]
        for kind, weight in (("logistic, unweighted", None), ("logistic, balanced", "balanced")):
            if len(set(counts)) > 1:
                regression = LogisticRegression(class_weight=weight, max_iter=1000)
                scores[kind] = regression.fit(directions[0], answers).decision_function(directions[1])
        for kind, each in scores.items():
            right.setdefault(kind, []).append(each.argmax(axis=1) == truth)
        plain = scores.get("logistic, unweighted", logits) / calibration.temperature(name, counts)
        scaled = {"default": logits / choose_temperature(examples, model, name, options), "table": plain}
        for kind, each in scaled.items():
            probabilities = softmax(each, axis=1)
            confidence.setdefault(kind, []).append(probabilities.max(axis=1))
            sure_right.setdefault(kind, []).append(probabilities.argmax(axis=1) == truth)
    rare = np.tile(np.repeat(np.array(counts) <= 5, QUERY), number)
    hits = {kind: np.concatenate(parts) for kind, parts in right.items()}
    sure = {kind: np.concatenate(parts) for kind, parts in confidence.items()}
    answered = {kind: np.concatenate(parts) for kind, parts in sure_right.items()}
    return {
        "counts": counts if len(set(counts)) > 1 else f"{len(counts)} × {counts[0]}",
        "tasks": number,
        "accuracy": {kind: float(each.mean()) for kind, each in hits.items()},
        "accuracy_rare": None if rare.all() else {kind: float(each[rare].mean()) for kind, each in hits.items()},
        "confidence": {kind: float(each.mean()) for kind, each in sure.items()},
        "calibration_error": {kind: calibration_error(sure[kind], answered[kind]) for kind in sure},
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
