"""Telling unknown classes apart, on test classes: `python tools/measure_unknowns.py drawings --out FILE`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from photo_features import network_features

from tapnet.checkpoint import find_checkpoint, read_header
from tapnet.cli.options import numbers
from tapnet.data import load_dataset
from tapnet.data.episodes import EpisodeSampler, EpisodeSpec
from tapnet.inference import load_network
from tapnet.inference.examples import Examples
from tapnet.inference.networks import EmbeddingModel
from tapnet.inference.rejection import FOLDS, fit_rejection
from tapnet.inference.task import fit_task
from tapnet.inference.unknowns import measure_unknowns
from tapnet.training.provenance import provenance

WAY, QUERY, TASKS, LOSE = 5, 15, 30, (0.05,)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network")
    parser.add_argument("--dataset", help="default: that of the network's recipe")
    parser.add_argument("--shots", type=numbers, default=(1, 5, 10), help="separated by commas (default: 1,5,10)")
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--root")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    network = load_network(args.network)
    images = load_dataset(
        args.dataset or read_header(find_checkpoint(args.network)).recipe.data.name, "test", args.root
    )
    features = network_features(network.method.backbone, images, network.precision).numpy()
    method = network.method_named()
    rows = []
    for shot in args.shots:
        found = measure_unknowns(
            method, features, images.labels, network.calibration, WAY, shot, args.episodes, 0, network.background
        )
        rows.append(found.as_dict())
        if shot >= FOLDS:
            rows[-1]["reject_auto"] = [reject_auto(network, features, images.labels, shot, lose) for lose in LOSE]
    content = {
        "command": f"python tools/measure_unknowns.py {args.network} --dataset {images.name}",
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


def reject_auto(
    network: EmbeddingModel, features: NDArray[np.float32], labels: NDArray[np.int64], shot: int, lose: float
) -> dict[str, float]:
    """Return which share of known images `--reject auto` loses and of unknown ones it catches, over tasks."""
    sampler = EpisodeSampler(labels, EpisodeSpec(2 * WAY, shot, QUERY, TASKS, seed=1))
    lost, caught = [], []
    for index in range(TASKS):
        episode = sampler[index]
        rows = episode.support[:WAY].reshape(-1)
        names = tuple(map(str, rows))
        examples = Examples(features[rows], np.repeat(np.arange(WAY), shot), names, (b"",) * len(rows))
        rejection = fit_rejection(fit_task([str(k) for k in range(WAY)], examples, network), network, lose)
        known, unknown = (features[part.reshape(-1)] for part in (episode.query[:WAY], episode.query[WAY:]))
        lost.append(rejection.rejected(known).mean())
        caught.append(rejection.rejected(unknown).mean())
    return {
        "lose": lose,
        "lost": float(np.mean(lost)),
        "lost_sd": float(np.std(lost)),
        "caught": float(np.mean(caught)),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
