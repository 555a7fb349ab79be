"""Calibration error of tasks over features without a calibrated network, as those of Hugging Face models:

    python tools/measure_temperature.py cub flowers cifar --root DATA --json results/own-images/temperature.json

The features are the plain ones of a network for photographs, given as vectors; 5-way tasks of test classes. In percent,
with a temperature of 1 and with that of `tapnet.inference.model_selection`; "shifted" adds 1.5 times the mean direction
of all features, so that all cosines are large, as in many transformers.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from photo_features import network_features
from scipy.special import softmax
from torch.nn import functional as F

from tapnet.data import load_dataset
from tapnet.data.episodes import EpisodeSampler, EpisodeSpec
from tapnet.evaluation.calibration import calibration_error
from tapnet.inference import fit_task, load_network
from tapnet.inference.networks import vector_model
from tapnet.inference.predictor import TaskPredictor
from tapnet.inference.task import Examples
from tapnet.training.outcome import provenance

WAY, SHOTS, QUERY, EPISODES, SEED = 5, (1, 2, 5), 15, 100, 3
METHODS, SHIFTS = ("centroid", "logistic"), {"plain": 0.0, "shifted": 1.5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--network", default="photos-fast")
    parser.add_argument("--root")
    parser.add_argument("--json", type=Path, required=True, help="the file to write")
    args = parser.parse_args()
    network, rows = load_network(args.network), []
    for name in args.datasets:
        images = load_dataset(name, "test", args.root)
        features = network_features(network.method.backbone, images, network.precision)
        plain = F.normalize(features[:, : network.method.backbone.pooled_dim], dim=1)
        for kind, shift in SHIFTS.items():
            vectors = (plain + shift * F.normalize(plain.mean(dim=0), dim=0)).numpy()
            for method in METHODS:
                for shot in SHOTS:
                    before, after = errors(vectors, images.labels, method, shot)
                    rows.append({"dataset": name, "features": kind, "method": method, "shot": shot})
                    rows[-1] |= {"error_before": before, "error_after": after}
                    print(rows[-1])
    command = f"python tools/measure_temperature.py {' '.join(args.datasets)} --network {args.network}"
    content = {"command": command, "episodes": EPISODES, "commit": provenance().get("commit"), "rows": rows}
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def errors(vectors: NDArray[np.float32], labels: NDArray[np.int64], method: str, shot: int) -> tuple[float, float]:
    """Return the expected calibration error with a temperature of 1 and with that of the task."""
    sampler, model = (
        EpisodeSampler(labels, EpisodeSpec(WAY, shot, QUERY, EPISODES, SEED)),
        vector_model(len(vectors[0])),
    )
    answers, found = np.repeat(np.arange(WAY), QUERY), []
    for index in range(EPISODES):
        episode = sampler[index]
        rows, queries = episode.support.reshape(-1), episode.query.reshape(-1)
        examples = Examples(
            vectors[rows], np.repeat(np.arange(WAY), shot), tuple(map(str, rows)), tuple(b"" for _ in rows)
        )
        task = fit_task([str(k) for k in range(WAY)], examples, model, method)
        logits = model.logits(TaskPredictor(task, model).head, vectors[queries])
        found.append([softmax(logits / each, axis=1) for each in (1.0, task.temperature)])
    right = np.concatenate([before.argmax(axis=1) == answers for before, _ in found])
    sure = [np.concatenate([pair[k].max(axis=1) for pair in found]) for k in (0, 1)]
    return calibration_error(sure[0], right), calibration_error(sure[1], right)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
