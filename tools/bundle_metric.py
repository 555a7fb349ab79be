r"""Bundle a network for photographs with the metric that tools/build_metric.py wrote:

    python tools/bundle_metric.py photos metric.safetensors \
        --calibration training.safetensors cub:val flowers:val cifar:val grocery:test

The temperatures have to come from classes that the metric was not learned from, but the bundled one is learned from
training and validation classes alike. So they are fitted with a second metric, learned from training classes only
(`build_metric.py efficientnet-lite2 cub:train flowers:train cifar:train mini:train grocery:train --out
training.safetensors`), on the classes named after it. The model card is written beside the checkpoint.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from photo_features import network_features
from torch import Tensor

from tapnet.checkpoint import Checkpoint, read_checkpoint
from tapnet.data import load_dataset
from tapnet.evaluation.calibration import calibrate
from tapnet.paths import BUNDLED

GRID = ((2, 5, 20), (1, 2, 5, 10), 30)  # ways, shots, episodes in each set
NETWORKS = {"photos": "EfficientNet-Lite2", "photos-fast": "EfficientNet-Lite0"}
CARD = """# {name}

{network} with ImageNet weights, which stays frozen and comes from the extra `tapnet[photos]`; square crops of
{side}×{side}. Over its 1280 averaged features lies a learned metric, a linear layer (1280×1280, half precision): the
feature of an image is the plain features (weight 0.4 in a dot product) beside those of the metric over their square
roots (weight 0.6), 2560 numbers of length 10. It has no references: tasks are fitted by logistic regression.
{size:,} bytes.

The metric is probabilistic discriminant analysis in closed form, then 240 episodes of training with cosine prototypes
(one seed). Learned from {images}: CUB-200-2011 classes 1 to 100,
Flowers-102 classes 1 to 51, CIFAR-FS training and validation classes, miniImageNet training classes, and every second
class of Grocery Store. Settings were chosen on validation classes of these sets and on the other classes of Grocery
Store, with EfficientNet-Lite0.

Made with: `python tools/build_metric.py` and `python tools/bundle_metric.py {name}`, as docs/own-images.md describes.
(The images of Grocery Store were 40 of each class at even distances, where `tools/split_photos.py` takes the first 40:
a metric built again differs slightly.)

Accuracy beside other methods on the same episodes: docs/own-images.md. What to know of it: the test classes of CUB,
Flowers and CIFAR-FS were scored four times while the metric was developed, so they are not untouched; textures and
clothing, of which nothing was learned or chosen, were scored three times. Where a kind of image is far from all that
the metric was learned from, it may cost up to half a point with one example per class. The backbone has seen ImageNet's
classes, birds and flowers among them, so these are not classes that it never saw; `tapnet evaluate` refuses it on sets
made of ImageNet.

Temperatures are fitted on validation classes of CUB, Flowers and CIFAR-FS and on the other classes of Grocery Store,
with a metric learned without them.

`background/{name}.safetensors` holds the mean features of public classes from which the metric was learned, no test
class among them: `predict --reject auto` compares images with these.

For color photographs of single things.

Licence of the metric: MIT, as the code. The network, in a wheel of its own, is under Apache-2.0; no image is shipped.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=NETWORKS)
    parser.add_argument("metric", type=Path)
    parser.add_argument("--calibration", nargs="+", required=True, metavar="METRIC SET:SPLIT")
    parser.add_argument("--images", default="at most 40 images of each class of", help="how the card counts them")
    parser.add_argument("--root", help="folder of the prepared datasets")
    parser.add_argument(
        "--out", type=Path, default=BUNDLED, help="folder of checkpoint and card (default: the package)"
    )
    args = parser.parse_args()
    path, *datasets = args.calibration
    method, sets = read_checkpoint(path).method(), []
    for each in datasets:
        name, _, split = each.partition(":")
        images = load_dataset(name, split or "val", args.root)
        sets.append((network_features(method.backbone, images, "auto").cpu(), images.labels))
    calibration = temperatures(read_checkpoint(path), sets)
    bundle(args.out / f"{args.name}.safetensors", read_checkpoint(args.metric), calibration, args.images)


def temperatures(checkpoint: Checkpoint, sets: list[tuple[Tensor, NDArray[np.int64]]]) -> dict[str, Any]:
    return calibrate(checkpoint.method(), *sets, grid=GRID)


def bundle(path: Path, checkpoint: Checkpoint, calibration: dict[str, Any], images: str) -> None:
    """Write the checkpoint and its model card."""
    name = path.stem
    replace(checkpoint, header=replace(checkpoint.header, calibration=calibration)).write(path)
    card = CARD.format(
        name=name,
        network=NETWORKS[name],
        side=checkpoint.header.image_shape[1],
        size=path.stat().st_size,
        images=images,
    )
    path.with_suffix(".md").write_text(card, encoding="utf-8")
    print(card)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
