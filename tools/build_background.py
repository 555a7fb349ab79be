r"""Bundle the mean features of public classes with a network for photographs, for `predict --reject auto`:

    python tools/build_background.py photos cub:train,val flowers:train,val cifar:train,val mini:train grocery:train \
        --root DATA

Each argument names a set and its splits, as in tools/build_metric.py, from whose classes the metric of the network was
learned. Test classes stay out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from photo_features import square_roots
from safetensors.numpy import save
from torch import Tensor
from torch.nn import functional as F

from tapnet.backbones.efficientnet_lite import EfficientNetLite
from tapnet.data import ImageSet, load_dataset
from tapnet.functional import class_prototypes
from tapnet.inference import load_network
from tapnet.inference.rejection import BACKGROUND
from tapnet.paths import write_atomically


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", help="photos or photos-fast, or the path to a checkpoint like them")
    parser.add_argument("datasets", nargs="+", metavar="SET:SPLIT[,SPLIT]")
    parser.add_argument("--root", help="folder of the prepared datasets")
    parser.add_argument("--out", type=Path, default=BACKGROUND, help="folder of the file (default: the package's)")
    args = parser.parse_args()
    network, means = load_network(args.network), []
    assert isinstance(network.method.backbone, EfficientNetLite)
    for argument in args.datasets:
        name, _, splits = argument.partition(":")
        for split in (splits or "train").split(","):
            means.append(class_means(network.method.backbone.variant, load_dataset(name, split, args.root)))
            print(f"{name} {split}: {len(means[-1])} classes")
    path = args.out / f"{Path(args.network).stem}.safetensors"
    origin = f"built by tools/build_background.py from {' '.join(args.datasets)}"
    roots = torch.cat(means).numpy()
    scaled = np.rint(255 * roots / roots.max(axis=1, keepdims=True)).astype(np.uint8)
    write_atomically(path, save({"square_roots": scaled}, {"network_sha256": network.sha256, "origin": origin}))
    print(f"{path}: {path.stat().st_size:,} bytes")


def class_means(backbone: str, images: ImageSet) -> Tensor:
    """Return the mean of the square roots (classes, 1280) of the features of every class, each of length 1."""
    roots = F.normalize(square_roots(backbone, images), dim=1)
    return class_prototypes(roots, torch.from_numpy(images.labels), len(images.names))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
