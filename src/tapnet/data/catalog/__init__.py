"""The datasets by name. To add one: its Dataset in a file here, a line in `DATASETS`, a test."""

from __future__ import annotations

from tapnet.data.catalog.drawings import OMNIGLOT, QUICKDRAW
from tapnet.data.catalog.imagenet import MINI_IMAGENET, TIERED_IMAGENET, TINY_IMAGENET_TIERED
from tapnet.data.catalog.others import CIFAR_FS, FOLDER
from tapnet.data.dataset import Dataset

DATASETS: dict[str, Dataset] = {
    "quickdraw": QUICKDRAW,
    "omniglot": OMNIGLOT,
    "mini-imagenet": MINI_IMAGENET,
    "tiered-imagenet": TIERED_IMAGENET,
    "cifar-fs": CIFAR_FS,
    "tiny-imagenet-tiered": TINY_IMAGENET_TIERED,
    "folder": FOLDER,
}
