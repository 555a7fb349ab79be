"""Methods on the same features and the same episodes of test classes:

    python tools/measure_methods.py cub flowers cifar --root DATA --out results/own-images/heads.json

DATA holds the sets that tools/split_photos.py sorts and `tapnet data prepare folder` packs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tapnet.data import load_dataset
from tapnet.data.batches import class_labels
from tapnet.data.episodes import EpisodeSampler, EpisodeSpec
from tapnet.evaluation.embedding import cached_features, default_cache
from tapnet.evaluation.intervals import mean_and_ci95
from tapnet.inference import load_network
from tapnet.methods import PARAMETER_FREE, Method
from tapnet.training.provenance import provenance

TASKS = ((5, 1), (5, 5))
QUERY, EPISODES, SEED = 15, 600, 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--network", default="efficientnet-lite0")
    parser.add_argument("--root")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    network = load_network(args.network)
    methods = {name: network.method_named(name) for name in (network.default_method, *PARAMETER_FREE)}
    rows = []
    for name in args.datasets:
        images = load_dataset(name, "test", args.root)
        features = cached_features(network.method.backbone, images, "float32", default_cache())
        for way, shot in TASKS:
            accuracies = measure(methods, features, images.labels, EpisodeSpec(way, shot, QUERY, EPISODES, SEED))
            cells = {
                method: dict(zip(("accuracy", "ci95"), mean_and_ci95(values), strict=True))
                for method, values in accuracies.items()
            }
            rows.append({"dataset": name, "data_sha256": images.fingerprint, "way": way, "shot": shot, "heads": cells})
            print(name, f"{way}-way {shot}-shot", {key: f"{100 * cell['accuracy']:.2f}" for key, cell in cells.items()})
    content = {
        "command": "python tools/measure_methods.py " + " ".join(args.datasets),
        "network": args.network,
        "query": QUERY,
        "episodes": EPISODES,
        "seed": SEED,
        "split": "test",
        "pretraining_may_overlap": True,
        "commit": provenance().get("commit"),
        "rows": rows,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


@torch.inference_mode()
def measure(
    methods: dict[str, Method], features: torch.Tensor, labels: NDArray[np.int64], spec: EpisodeSpec
) -> dict[str, NDArray[np.float64]]:
    """Return the accuracy of each method on each of the same episodes."""
    sampler = EpisodeSampler(labels, spec)
    support_labels, answers = class_labels(spec.way, spec.shot), class_labels(spec.way, spec.query)
    found: dict[str, list[float]] = {name: [] for name in methods}
    for index in range(spec.episodes):
        support, query = features[sampler[index].indices].split([len(support_labels), len(answers)])
        for name, method in methods.items():
            guesses = method.logits(support, support_labels, query).argmax(dim=1)
            found[name].append((guesses == answers).double().mean().item())
    return {name: np.array(values) for name, values in found.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
