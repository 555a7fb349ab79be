"""Methods on the same features and the same episodes of test classes:

    python tools/measure_methods.py cub flowers cifar textures:train,val,test --root DATA \
        --json results/own-images/methods-photos.json

DATA holds the sets that tools/split_photos.py sorts and `tapnet data prepare folder` packs; of a set without splits of
its own all classes are taken by naming all three. If the network has a learned metric, logistic regression and the
cosine centroid are measured over its plain features, too; if it has references, TapNet also with references that count
for as many examples as where no method is named.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from photo_features import set_features
from torch import Tensor

from tapnet.cli.options import numbers
from tapnet.data.batches import class_labels
from tapnet.data.episodes import EpisodeSampler, EpisodeSpec
from tapnet.evaluation.evaluator import mean_and_ci95
from tapnet.inference import load_network
from tapnet.inference.model_selection import REFERENCE_SHOTS
from tapnet.inference.networks import EmbeddingModel
from tapnet.methods import METHODS, PARAMETER_FREE, Method
from tapnet.training.outcome import provenance

WAY, SHOTS = 5, (1, 2, 5, 10)
QUERY, EPISODES, SEED = 15, 600, 0
Methods = dict[str, tuple[Method, slice]]  # the method, and which features it sees


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", metavar="SET[:SPLIT,SPLIT]")
    parser.add_argument("--network", default="photos")
    parser.add_argument("--shots", type=numbers, default=SHOTS, help="separated by commas (default: 1,2,5,10)")
    parser.add_argument("--episodes", type=int, default=EPISODES, help="of each number of shots (default: 600)")
    parser.add_argument("--root")
    parser.add_argument("--json", type=Path, required=True, help="the file to write")
    args = parser.parse_args()
    network, rows = load_network(args.network), []
    methods = methods_of(network)
    for argument in args.datasets:
        name = argument.partition(":")[0]
        features, labels, fingerprints = set_features(network, argument, args.root)
        for shot in args.shots:
            spec = EpisodeSpec(WAY, shot, QUERY, args.episodes, SEED)
            found = measure(methods, features, labels, spec)
            rows.append({"dataset": name, "data_sha256": fingerprints, "way": WAY, "shot": shot} | summary(found))
            print(name, f"{shot}-shot", {each: f"{100 * values.mean():.2f}" for each, values in found.items()})
    content = {
        "command": f"python tools/measure_methods.py {' '.join(args.datasets)} --network {Path(args.network).name}",
        "network": Path(args.network).name,
        "network_sha256": network.sha256,
        "precision": network.precision,
        "default": network.default_method,
        "query": QUERY,
        "episodes": args.episodes,
        "seed": SEED,
        "pretraining_may_overlap": True,
        "commit": provenance().get("commit"),
        "rows": rows,
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def methods_of(network: EmbeddingModel) -> Methods:
    """Return the methods of a network, its own first."""
    names = dict.fromkeys((network.default_method, *PARAMETER_FREE))
    methods = {name: (network.method_named(name), slice(None)) for name in names}
    if "reference_shots" in network.method.adapt_options:
        blended = network.method_named(None, {"reference_shots": REFERENCE_SHOTS})
        methods[f"{network.default_method}, reference_shots={REFERENCE_SHOTS}"] = blended, slice(None)
    if getattr(network.method.backbone, "plain_share", 0):  # the plain features stand first
        plain = slice(network.method.backbone.pooled_dim)
        for name in ("logistic", "centroid"):
            methods[f"{name}, plain features"] = METHODS[name](network.method.backbone).eval(), plain
    return methods


@torch.inference_mode()
def measure(
    methods: Methods, features: Tensor, labels: NDArray[np.int64], spec: EpisodeSpec
) -> dict[str, NDArray[np.float64]]:
    """Return the accuracy of each method on each of the same episodes."""
    sampler = EpisodeSampler(labels, spec)
    support_labels, answers = class_labels(spec.way, spec.shot), class_labels(spec.way, spec.query)
    found: dict[str, list[float]] = {name: [] for name in methods}
    for index in range(spec.episodes):
        support, query = features[sampler[index].indices].split([len(support_labels), len(answers)])
        for name, (method, seen) in methods.items():
            guesses = method.logits(support[:, seen], support_labels, query[:, seen], spec.way).argmax(dim=1)
            found[name].append((guesses == answers).double().mean().item())
    return {name: np.array(values) for name, values in found.items()}


def summary(found: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
    """Return accuracies, and by how much the first method is above each other one on the same episodes."""
    first, *others = found
    parts = "accuracy", "ci95"
    return {
        "methods": {name: dict(zip(parts, mean_and_ci95(values), strict=True)) for name, values in found.items()},
        "default_minus": {
            name: dict(zip(("difference", "ci95"), mean_and_ci95(found[first] - found[name]), strict=True))
            for name in others
        },
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
