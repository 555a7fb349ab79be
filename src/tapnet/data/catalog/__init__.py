"""The datasets by name. To add one: a file here, a line in `DATASETS`, a test file."""

from __future__ import annotations

from tapnet.data.catalog.cifar_fs import CIFAR_FS
from tapnet.data.catalog.folder import FOLDER
from tapnet.data.catalog.mini_imagenet import MINI_IMAGENET
from tapnet.data.catalog.omniglot import OMNIGLOT
from tapnet.data.catalog.quickdraw import QUICKDRAW
from tapnet.data.catalog.tiered_imagenet import TIERED_IMAGENET
from tapnet.data.catalog.tiny_imagenet_tiered import TINY_IMAGENET_TIERED
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
