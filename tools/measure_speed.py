"""Images per CPU second of `tapnet predict`: `python tools/measure_speed.py FOLDER --json FILE`.

FOLDER holds one folder of photographs per class, of which the first five of each of five classes are fitted and all
are predicted, by each network in turn, decoding included. Beside it the two parts: reading alone, and the bare network,
to which images come decoded: the least CPU seconds of three passes each.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tapnet.data.preprocessing import Preprocessing, Unreadable
from tapnet.hardware import describe
from tapnet.inference import class_folders, fit, load_network
from tapnet.inference.images import Example, ImageInput, read_images
from tapnet.inference.predictor import TaskPredictor

NETWORKS = ("photos", "photos-fast")


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
    few = {name: paths[:5] for name, paths in list(classes.items())[:5]}
    rows = []
    for name in NETWORKS:
        network, predictor = load_network(name), TaskPredictor.open(fit(few, name))
        predictor.predict(files)  # the first pass maps memory that the others find
        whole, _ = timed(predictor.predict, files)
        reading, read = timed(read_all, files, network.image_preprocessing)
        pixels = [example.pixels for _, example in read if isinstance(example, Example)]
        bare, _ = timed(network.embed, pixels)
        seconds = {"predict": whole, "reading_only": reading, "network_only": bare}
        rates = {part: len(files) / value for part, value in seconds.items()}
        rows.append({"network": name, "precision": network.precision} | rates)
        print(rows[-1])
    command = f"python tools/measure_speed.py FOLDER --images {args.images} --threads {args.threads}"
    hardware = describe(torch.device("cpu"), "auto")
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({"command": command, "hardware": hardware, "rows": rows}, indent=1) + "\n", "utf-8")


def read_all(files: list[Path], preprocessing: Preprocessing) -> list[tuple[ImageInput, Example | Unreadable]]:
    return list(read_images(files, preprocessing))


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Return the least CPU seconds of a piece of work, done three times, and what it returns."""
    seconds = []
    for _ in range(3):
        start = time.process_time()
        found = work(*arguments)
        seconds.append(time.process_time() - start)
    return min(seconds), found


if __name__ == "__main__":
    main()
