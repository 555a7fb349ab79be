"""Images per CPU second of `tapnet predict`: `python tools/measure_speed.py FOLDER --json FILE`.

FOLDER holds one folder of photographs per class, of which the first two of each of two classes are fitted and all are
predicted, by each network in turn, decoding included. Beside it the bare network, to which images come decoded. CPU
seconds do not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from tapnet.hardware import describe
from tapnet.inference import class_folders, fit, load_network
from tapnet.inference.images import Example, read_images
from tapnet.inference.task_predictor import TaskPredictor

NETWORKS = ("photos", "photos-fast", "efficientnet-lite0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=256, help="how many (default: 256)")
    parser.add_argument("--threads", type=int, default=1, help="of the network (default: 1)")
    parser.add_argument("--json", type=Path, required=True, help="the file to write")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    classes = class_folders(args.folder).classes
    files = [path for paths in classes.values() for path in paths][: args.images]
    few = {name: paths[:2] for name, paths in list(classes.items())[:2]}
    rows = []
    for name in NETWORKS:
        network, predictor = load_network(name), TaskPredictor.open(fit(few, name))
        start = time.process_time()
        predictor.predict(files)
        whole = time.process_time() - start
        read = read_images(files, network.image_preprocessing)
        pixels = [example.pixels for _, example in read if isinstance(example, Example)]
        start = time.process_time()
        network.embed(pixels)
        bare = time.process_time() - start
        rates = {"predict": len(files) / whole, "network_only": len(pixels) / bare}
        rows.append({"network": name, "precision": network.precision} | rates)
        print(rows[-1])
    command = f"python tools/measure_speed.py FOLDER --images {args.images} --threads {args.threads}"
    hardware = describe(torch.device("cpu"), "auto")
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({"command": command, "hardware": hardware, "rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
