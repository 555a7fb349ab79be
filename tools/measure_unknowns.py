"""Telling unknown classes apart, on test classes: `python tools/measure_unknowns.py drawings --out FILE`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from photo_features import first_images, network_features

from tapnet.checkpoint import find_checkpoint, read_header
from tapnet.cli.options import numbers
from tapnet.data import load_dataset
from tapnet.inference import load_network
from tapnet.inference.unknowns import measure_unknowns
from tapnet.training.provenance import provenance

WAY = 5


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
            method, features, images.labels, network.calibration, WAY, shot, args.episodes, 0, network.background
        )
        rows.append(found.as_dict())
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


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
