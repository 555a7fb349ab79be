r"""Rebuild a network for photographs from public sets, from their images to checkpoint, model card and background:

    python tools/rebuild_photo_network.py photos WORK --cub CUB --flowers FLOWERS --cifar CIFAR/train --mini MINI \
        --grocery GROCERY/dataset

WORK is a new folder. It gets the images sorted into splits (`sorted`), packed (`data`), a metric learned from training
and validation classes and one from training classes only, and the result in `network`: photos.safetensors, photos.md
and background/photos.safetensors. What is already there is kept, so an interrupted run can be repeated. `tapnet fit
--network WORK/network/photos.safetensors` takes the result; copied into src/tapnet/checkpoints it is the bundled one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).parent
NETWORKS = {"photos": ("efficientnet-lite2", 260), "photos-fast": ("efficientnet-lite0", 224)}
SETS = ("cub", "flowers", "cifar", "mini", "grocery")
TRAINING = [f"{name}:train" for name in SETS]
ALL = ["cub:train,val", "flowers:train,val", "cifar:train,val", "mini:train", "grocery:train"]
CALIBRATION = ["cub:val", "flowers:val", "cifar:val", "grocery:test"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("work", type=Path)
    for name in SETS:
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--images", type=int, default=40, help="of each class (default: 40)")
    args = parser.parse_args()
    backbone, side = NETWORKS[args.network]
    data, metric, training = args.work / "data", args.work / "metric.safetensors", args.work / "training.safetensors"
    if not (args.work / "sorted").exists():
        places = [text for name in SETS for text in (f"--{name}", getattr(args, name))]
        tool("split_photos", args.work / "sorted", "--halves", "--images", args.images, *places)
    for name in SETS:
        if not (data / name).exists():
            prepare = "data", "prepare", "folder", "--from", args.work / "sorted" / name, "--name", name
            run("-m", "tapnet", *prepare, "--size", side, "--fit", "crop", "--root", data)
    for path, sets in ((metric, ALL), (training, TRAINING)):
        if not path.exists():
            tool("build_metric", backbone, *sets, "--root", data, "--out", path)
    network = args.work / "network"
    network.mkdir(parents=True, exist_ok=True)
    calibration = "--calibration", training, *CALIBRATION
    tool("bundle_metric", args.network, metric, *calibration, "--root", data, "--out", network)
    checkpoint = network / f"{args.network}.safetensors"
    tool("build_background", checkpoint, *ALL, "--root", data, "--out", network / "background")


def tool(name: str, *arguments: object) -> None:
    run(TOOLS / f"{name}.py", *arguments)


def run(*arguments: object) -> None:
    """Run Python with these arguments, after printing them."""
    words = [str(argument) for argument in arguments]
    print("$ python", *words, flush=True)
    subprocess.run([sys.executable, *words], check=True)


if __name__ == "__main__":
    main()
