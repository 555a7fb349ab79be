r"""What `predict --reject auto` loses of known images and catches of unknown ones, over many small tasks:

    python tools/measure_rejection.py photos-fast grocery:train,val,test --root DATA \
        --json results/own-images/rejection-photos-fast-grocery.json

Every task has classes and images per class drawn from the set, and as many other classes that it does not know.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from photo_features import set_features

from tapnet.cli.options import share
from tapnet.data.episodes import EpisodeSampler, EpisodeSpec
from tapnet.inference import fit_task, load_network
from tapnet.inference.networks import EmbeddingModel
from tapnet.inference.predictor import AUTO, TaskPredictor
from tapnet.inference.task import Examples
from tapnet.training.outcome import provenance

SIZES = ((3, 2), (3, 5), (5, 2), (5, 3), (5, 4), (5, 5), (5, 10), (10, 3))  # classes, and images of each
QUERY, TASKS, SEED = 10, 60, 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network")
    parser.add_argument("dataset", metavar="SET[:SPLIT,SPLIT]")
    parser.add_argument("--lose", type=share, default=0.05, help="as for `predict` (default: 5%%)")
    parser.add_argument("--tasks", type=int, default=TASKS, help=f"of every size (default: {TASKS})")
    parser.add_argument("--images", type=int, help="of each class, the first ones (default: all)")
    parser.add_argument("--root")
    parser.add_argument("--json", type=Path, required=True, help="the file to write")
    args = parser.parse_args()
    network, rows = load_network(args.network), []
    features, labels, fingerprints = set_features(network, args.dataset, args.root, args.images)
    for way, shot in SIZES:
        if 2 * way > labels.max() + 1:
            continue
        spec = EpisodeSpec(2 * way, shot, QUERY, args.tasks, SEED)
        rows.append(measure(network, features.numpy(), labels, spec, args.lose))
        print(rows[-1], flush=True)
    options = f"{args.dataset} --lose {args.lose:g} --tasks {args.tasks}"
    options += f" --images {args.images}" if args.images else ""
    content = {
        "command": f"python tools/measure_rejection.py {args.network} {options}",
        "network": args.network,
        "network_sha256": network.sha256,
        "precision": network.precision,
        "data_sha256": fingerprints,
        "commit": provenance().get("commit"),
        "rows": rows,
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def measure(
    network: EmbeddingModel, features: NDArray[np.float32], labels: NDArray[np.int64], spec: EpisodeSpec, lose: float
) -> dict[str, float]:
    """Return the shares lost and caught over tasks: the first half of the classes of an episode is known."""
    sampler, way = EpisodeSampler(labels, spec), spec.way // 2
    lost, caught = [], []
    for index in range(spec.episodes):
        episode = sampler[index]
        rows = episode.support[:way].reshape(-1)
        names = tuple(map(str, rows))
        examples = Examples(features[rows], np.repeat(np.arange(way), spec.shot), names, (b"",) * len(rows))
        predictor = TaskPredictor(fit_task([str(k) for k in range(way)], examples, network), network)
        known, unknown = (features[part.reshape(-1)] for part in (episode.query[:way], episode.query[way:]))
        for features_of, shares in ((known, lost), (unknown, caught)):
            shares.append(float(predictor.answer_features(features_of, AUTO, lose)[1].mean()))
    return {
        "way": way,
        "shot": spec.shot,
        "lose": lose,
        "lost": float(np.mean(lost)),
        "lost_sd": float(np.std(lost)),
        "lost_in_one_of_ten": float(np.quantile(lost, 0.9)),
        "a_third_lost": float(np.mean(np.array(lost) >= 1 / 3)),
        "caught": float(np.mean(caught)),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
