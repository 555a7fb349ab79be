"""Telling unknown classes apart, on test classes: `python tools/measure_unknowns.py drawings --out FILE`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from photo_features import first_images, network_features
from scipy.special import softmax
from sklearn.metrics import roc_auc_score

from tapnet.checkpoint import read_header
from tapnet.cli.options import numbers
from tapnet.data import load_dataset
from tapnet.data.batches import class_labels
from tapnet.data.episodes import EpisodeSampler, EpisodeSpec
from tapnet.evaluation.calibration import Calibration, calibration_error
from tapnet.functional import class_prototypes
from tapnet.inference import load_network
from tapnet.inference.rejection import Directions, KnownClassScores, class_centers, read_background
from tapnet.inference.task import Examples
from tapnet.methods import Method, method_name
from tapnet.paths import find_checkpoint
from tapnet.training.outcome import provenance

WAY, QUERY = 5, 5


@dataclass(frozen=True)
class Detection:
    """A score that is high for known images: the area under its ROC curve, and what catching unknowns costs."""

    auroc: float  # over the images of all episodes
    auroc_by_task: float  # the mean over episodes: a task has a threshold of its own
    knowns_lost_at_80: float  # share of known images rejected when 80% of the unknown are
    knowns_lost_at_95: float
    caught_at_5: float  # share of unknown images rejected when 5% of the known are
    caught_at_20: float


@dataclass(frozen=True)
class Unknowns:
    """What was measured over episodes; half of the queries are of classes that the task does not know."""

    way: int
    shot: int
    episodes: int
    accuracy: float  # on known images
    calibration_error_before: float  # expected calibration error, temperature 1
    calibration_error_after: float
    by_probability: Detection
    by_distance: Detection
    by_known_score: Detection  # what `reject="auto"` goes by, unless the examples of a task prefer another score


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network")
    parser.add_argument("--dataset", help="default: that of the network's recipe")
    parser.add_argument("--shots", type=numbers, default=(1, 5, 10), help="separated by commas (default: 1,5,10)")
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--images", type=int, help="of each class, the first ones (default: all)")
    parser.add_argument("--root")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    network = load_network(args.network)
    dataset = args.dataset or read_header(find_checkpoint(args.network)).recipe.data.name
    images = first_images(load_dataset(dataset, "test", args.root), args.images)
    features = network_features(network.method.backbone, images, network.precision).numpy()
    method = network.method_named()
    rows = []
    for shot in args.shots:
        found = measure_unknowns(
            method, features, images.labels, network.calibration, WAY, shot, args.episodes, read_background(network)
        )
        rows.append(asdict(found))
    options = f"--dataset {images.name}" + (f" --images {args.images}" if args.images else "")
    content = {
        "command": f"python tools/measure_unknowns.py {args.network} {options}",
        "network": args.network,
        "dataset": images.name,
        "split": "test",
        "data_sha256": images.fingerprint,
        "commit": provenance().get("commit"),
        "rows": rows,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(rows, indent=1))


def measure_unknowns(
    method: Method,
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    calibration: Calibration,
    way: int,
    shot: int,
    episodes: int,
    background: Directions | None,
) -> Unknowns:
    """Return what was measured over episodes of twice as many classes, of which the first half are known.

    `background` are directions of classes that are in no episode, as `read_background` returns.
    """
    sampler = EpisodeSampler(labels, EpisodeSpec(2 * way, shot, QUERY, episodes))
    temperature = calibration.temperature(method_name(method), [shot] * way)
    scores, distances, known_by = [], [], []
    for index in range(episodes):
        episode = sampler[index]
        support = torch.from_numpy(features[episode.support[:way].reshape(-1)])
        head = method.adapt(support, class_labels(way, shot), way)
        queries = torch.from_numpy(features[episode.query.reshape(-1)])
        scores.append((head.linear() or head).logits(queries).detach().double().numpy())
        centers = class_prototypes(support, class_labels(way, shot), way) if head.centers is None else head.centers
        inside, marks = head.project(queries), head.project(centers)
        examples = Examples(support.numpy(), class_labels(way, shot).numpy(), (), ())
        known = KnownClassScores(class_centers(examples), background)
        known_by.append(next(iter(known(queries.numpy(), scores[-1]).values())))
        distances.append(torch.cdist(inside, marks).square().amin(dim=1).detach().double().numpy())
    logits = np.stack(scores)  # (episodes, 2 · way · QUERY, way)
    known = np.tile(np.repeat([True, False], way * QUERY), episodes)
    answers = np.tile(np.repeat(np.arange(way), QUERY), episodes)
    flat = logits.reshape(-1, way)
    sure = softmax(flat / temperature, axis=1).max(axis=1)
    right = flat[known].argmax(axis=1) == answers
    return Unknowns(
        way=way,
        shot=shot,
        episodes=episodes,
        accuracy=float(right.mean()),
        calibration_error_before=calibration_error(softmax(flat[known], axis=1).max(axis=1), right),
        calibration_error_after=calibration_error(sure[known], right),
        by_probability=detection(sure, known, episodes),
        by_distance=detection(-np.concatenate(distances), known, episodes),
        by_known_score=detection(np.concatenate(known_by), known, episodes),
    )


def detection(score: NDArray[np.float64], known: NDArray[np.bool_], episodes: int = 1) -> Detection:
    """Return how well a score of each image, episode after episode, tells known classes from others."""
    lost = [float((score[known] < np.quantile(score[~known], share)).mean()) for share in (0.8, 0.95)]
    caught = [float((score[~known] < np.quantile(score[known], share)).mean()) for share in (0.05, 0.2)]
    parts = zip(np.split(known, episodes), np.split(score, episodes), strict=True)
    by_task = float(np.mean([roc_auc_score(*part) for part in parts]))
    return Detection(float(roc_auc_score(known, score)), by_task, *lost, *caught)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
