"""Heads on the same features and the same episodes of test classes:

    python tools/measure_heads.py cub flowers cifar --root DATA --out results/own-images/heads.json

DATA holds the sets that tools/split_photos.py sorts and `tapnet data prepare folder` packs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tapnet.heads import HEADS, HeadOptions, adapt

from tapnet.checkpoint import read_checkpoint
from tapnet.data import load_dataset
from tapnet.data.batches import class_labels
from tapnet.data.episodes import EpisodeSampler, EpisodeSpec
from tapnet.evaluation.embedding import default_cache
from tapnet.evaluation.evaluator import Evaluator, mean_and_ci95
from tapnet.methods import PrototypicalNetwork, TapNet
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
    method = read_checkpoint(args.network).method()
    rows = []
    for name in args.datasets:
        images = load_dataset(name, "test", args.root)
        features = Evaluator(method, images, cache=default_cache()).features
        for way, shot in TASKS:
            accuracies = measure(method, features, images.labels, way, shot)
            cells = {
                head: dict(zip(("accuracy", "ci95"), mean_and_ci95(values), strict=True))
                for head, values in accuracies.items()
            }
            rows.append({"dataset": name, "data_sha256": images.fingerprint, "way": way, "shot": shot, "heads": cells})
            print(
                name, f"{way}-way {shot}-shot", {head: f"{100 * cell['accuracy']:.2f}" for head, cell in cells.items()}
            )
    content = {
        "command": "python tools/measure_heads.py " + " ".join(args.datasets),
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


def measure(
    method: TapNet, features: torch.Tensor, labels: NDArray[np.int64], way: int, shot: int
) -> dict[str, NDArray[np.float64]]:
    """The accuracy of each head on each of the same episodes."""
    sampler = EpisodeSampler(labels, EpisodeSpec(way, shot, QUERY, seed=SEED))
    options, rival = HeadOptions(method.references), PrototypicalNetwork(method.backbone)
    support_labels, answers = class_labels(way, shot), class_labels(way, QUERY)
    found: dict[str, list[float]] = {head: [] for head in (*HEADS, "prototypical")}
    for index in range(EPISODES):
        episode = sampler[index]
        support, query = features[episode.support.reshape(-1)], features[episode.query.reshape(-1)]
        for head in HEADS:
            scores = torch.from_numpy(adapt(head, support, support_labels, way, options).scores(query.numpy()))
            found[head].append((scores.argmax(dim=1) == answers).double().mean().item())
        scores = rival.logits(support, support_labels, query)
        found["prototypical"].append((scores.argmax(dim=1) == answers).double().mean().item())
    return {head: np.array(values) for head, values in found.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
