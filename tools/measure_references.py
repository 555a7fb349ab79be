r"""TapNet's own head over a learned metric, with references trained there, beside the other methods:

    python tools/measure_references.py photos --train grocery cub flowers --validation grocery:test --root DATA \
        --json results/own-images/references-photos.json

The references are trained by TapNet's loss over the frozen features of training classes, each episode within one set;
the rate and the temperature are chosen on validation classes, from which nothing else was learned. On other episodes of
these the paper's head stands beside TapNet with references that count for some images; counting for none (0) leaves the
class means inside the same projection.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure_methods import WAY, Methods, measure, summary
from numpy.typing import NDArray
from photo_features import set_features
from torch import Tensor
from torch.nn import functional as F

from tapnet.backbones import PrecomputedFeatures
from tapnet.data.batches import class_labels
from tapnet.data.episodes import EpisodeSampler, EpisodeSpec
from tapnet.inference import load_network
from tapnet.methods import METHODS, Method
from tapnet.training.outcome import provenance

REFERENCES, SHOT, QUERY = 20, 5, 6  # of training episodes
STEPS, RATES, TEMPERATURES = 300, (0.0003, 0.001, 0.003), (1.0, 3.0)  # the squared length of the features is 100
REFERENCE_SHOTS = (0, 2)
SHOTS, MEASURED_QUERY = (1, 2, 5, 10), 15
Sets = dict[str, tuple[Tensor, NDArray[np.int64]]]  # features and labels by name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network")
    parser.add_argument(
        "--train", nargs="+", required=True, metavar="SET[:SPLIT]", help="the split is train by default"
    )
    parser.add_argument("--validation", nargs="+", required=True, metavar="SET:SPLIT")
    parser.add_argument("--images", type=int, default=12, help="of each training class (default: 12)")
    parser.add_argument("--episodes", type=int, default=300, help="of each validation set (default: 300)")
    parser.add_argument("--root")
    parser.add_argument("--json", type=Path, required=True, help="the file to write")
    args = parser.parse_args()
    network = load_network(args.network)

    def embedded(arguments: list[str], split: str, images: int | None) -> Sets:
        named = [each if ":" in each else f"{each}:{split}" for each in arguments]
        return {each: set_features(network, each, args.root, images)[:2] for each in named}

    training = embedded(args.train, "train", args.images)
    validation = embedded(args.validation, "val", None)
    tried = []
    for rate, temperature in product(RATES, TEMPERATURES):
        method, loss = trained(training, rate, temperature)
        found = [
            measure({"tapnet": (method, slice(None))}, *each, spec(shot, 50, 1))
            for each in validation.values()
            for shot in (1, 5)
        ]
        accuracy = float(np.mean([each["tapnet"].mean() for each in found]))
        tried.append(({"rate": rate, "temperature": temperature, "loss": loss, "accuracy": accuracy}, method))
        print(tried[-1][0], flush=True)
    settings, method = max(tried, key=lambda each: each[0]["accuracy"])
    rows = measured(compared_methods(method), validation, args.episodes)
    sets = f"--train {' '.join(args.train)} --validation {' '.join(args.validation)}"
    content = {
        "command": f"python tools/measure_references.py {Path(args.network).name} {sets}",
        "network_sha256": network.sha256,
        "images": args.images,
        "references": REFERENCES,
        "steps": STEPS,
        "tried": [each for each, _ in tried],
        "chosen": settings,
        "query": MEASURED_QUERY,
        "episodes_of_each_set": args.episodes,
        "commit": provenance().get("commit"),
        "rows": rows,
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def spec(shot: int, episodes: int, seed: int) -> EpisodeSpec:
    return EpisodeSpec(WAY, shot, MEASURED_QUERY, episodes, seed)


def trained(sets: Sets, rate: float, temperature: float) -> tuple[Method, float]:
    """Return TapNet with references trained over features, and the mean loss of the last 100 steps."""
    torch.manual_seed(0)
    dim = next(iter(sets.values()))[0].shape[1]
    method = METHODS["tapnet"](
        PrecomputedFeatures(dim), num_references=REFERENCES, temperature=temperature, initial_norm=10.0
    ).train()
    optimizer = torch.optim.Adam(method.parameters(), lr=rate)
    steps = EpisodeSpec(REFERENCES, SHOT, QUERY, STEPS, 0)
    samplers = [(features, EpisodeSampler(labels, steps)) for features, labels in sets.values()]
    support_labels, answers = class_labels(REFERENCES, SHOT), class_labels(REFERENCES, QUERY)
    losses = []
    for step in range(STEPS):
        features, sampler = samplers[step % len(samplers)]
        support, query = features[sampler[step].indices].split([len(support_labels), len(answers)])
        loss = F.cross_entropy(method.logits(support, support_labels, query, REFERENCES), answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return method.eval(), float(np.mean(losses[-100:]))


def compared_methods(method: Method) -> Methods:
    """Return the default, the other methods without parameters and TapNet in its forms."""
    optimal = method.with_options(selection="optimal")
    methods = {name: METHODS[name](method.backbone).eval() for name in ("logistic", "centroid")}
    methods["tapnet"] = optimal
    for shots in REFERENCE_SHOTS:
        methods[f"tapnet, reference_shots={shots}"] = optimal.with_options(reference_shots=shots)
    return {name: (each, slice(None)) for name, each in methods.items()}


def measured(methods: Methods, sets: Sets, episodes: int) -> list[dict[str, Any]]:
    """Return the accuracies over the episodes of all sets together, and the differences from the paper's head."""
    rows = []
    for shot in SHOTS:
        parts = [measure(methods, *each, spec(shot, episodes, 0)) for each in sets.values()]
        found = {name: np.concatenate([part[name] for part in parts]) for name in ("tapnet", *methods)}
        accuracies = summary(found)
        rows.append({"way": WAY, "shot": shot, "methods": accuracies["methods"]})
        rows[-1]["tapnet_minus"] = accuracies["default_minus"]
        print(f"{shot}-shot", {name: f"{100 * values.mean():.2f}" for name, values in found.items()}, flush=True)
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
