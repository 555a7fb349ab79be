"""The datasets by name. To add one: its Dataset in the list here, its class lists in `splits/`, a test.

Quick, Draw! is inside the package, so that everything works before any download.
"""

from __future__ import annotations

import hashlib
import lzma
import re
from dataclasses import replace
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from tapnet import __version__
from tapnet.data.dataset import Dataset, listed_splits
from tapnet.data.packed import Manifest, Packed
from tapnet.data.preprocessing import Preprocessing
from tapnet.data.readers import Source
from tapnet.data.readers.arrays import class_npz
from tapnet.data.readers.folders import class_tree, csv_lists, csv_table, folders_by_class
from tapnet.data.readers.pickles import cache_pickles, cifar_python, labeled_pickles
from tapnet.text import abbreviate

OMNIGLOT_HOME = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"
ILSVRC_NAME = re.compile(r"n\d{8}_(\d+)\.jpe?g", re.IGNORECASE)
PER_CLASS = 100
SHA256 = "eecfdcd62679875bc0be776fef543a452649be11351101b25aeffa4712da17ef"  # printed by tools/build_quickdraw.py


class QuickDraw(Dataset):
    """The bundled drawings, which need no preparation; `root` is ignored."""

    def open(self, root: Path | None = None) -> Packed:  # noqa: ARG002
        manifest = Manifest(
            name=self.name,
            dataset=self.name,
            source="the file in the package",
            preprocessing=Preprocessing(*self.row_shape, ink=self.ink, centred=True, full_contrast=True),
            resized=0,
            classes=dict.fromkeys(sorted(set().union(*self.splits.values())), PER_CLASS),
            splits=self.splits,
            left_out={},
            notes=(),
            sha256=SHA256,
            tapnet=__version__,
        )
        return Bundled(Path(str(files("tapnet.data.catalog") / "files")), manifest)


class Bundled(Packed):
    """The drawings in the compressed file of the package instead of a folder."""

    @cached_property
    def pixels(self) -> NDArray[np.uint8]:
        return bundled_drawings()

    def digest(self) -> str:
        return hashlib.sha256(_compressed()).hexdigest()

    def row_names(self) -> list[str]:
        return [f"{name} {number}" for name, count in self.manifest.classes.items() for number in range(count)]


@cache
def bundled_drawings() -> NDArray[np.uint8]:
    """Return all drawings, (34500, 28, 28, 1), bright ink on black, classes in sorted order."""
    pairs = np.frombuffer(lzma.decompress(_compressed()), dtype=np.uint8)
    levels = np.stack([pairs >> 4, pairs & 15], axis=1)
    pixels = (levels * np.uint8(17)).reshape(-1, 28, 28, 1)
    pixels.setflags(write=False)
    return pixels


def _compressed() -> bytes:
    return (files("tapnet.data.catalog") / "files" / "quickdraw.xz").read_bytes()


def published_images(source: Source) -> Source:
    """Return complete ILSVRC classes with their 600 images of miniImageNet only, which numbers the files of a class."""
    classes, incomplete = dict(source.classes), []
    for label, names in source.classes.items():
        numbers = [int(match[1]) for name in names if (match := ILSVRC_NAME.fullmatch(PurePosixPath(name).name))]
        published = mini_imagenet_numbers().get(label)
        if published is None or len(numbers) < len(names):
            continue
        if len(names) < max(published):
            incomplete.append(label)
            continue
        ordered = [name for _, name in sorted(zip(numbers, names, strict=True))]
        classes[label] = [ordered[number - 1] for number in published]
    note = f"Incomplete ILSVRC classes, all of whose images were taken: {abbreviate(incomplete)}."
    return replace(source, classes=classes, notes=[*source.notes, note] if incomplete else source.notes)


@cache
def mini_imagenet_numbers() -> dict[str, list[int]]:
    """Return for each class of miniImageNet the numbers of its 600 images among those of ILSVRC."""
    lines = (files("tapnet.data.catalog") / "splits" / "mini-imagenet" / "images.txt").read_text().splitlines()
    return {line.split()[0]: [int(number) for number in line.split()[1:]] for line in lines}


_DATASETS = [
    QuickDraw(
        name="quickdraw",
        summary="Quick, Draw!: 345 classes of drawings",
        row_shape=(28, 28, 1),
        origin="Bundled with this package; Google, CC BY 4.0.",
        splits=listed_splits("quickdraw"),
        images=34_500,
        images_per_class=PER_CLASS,
        ink="bright",
    ),
    Dataset(
        name="omniglot",
        summary="1,623 handwritten characters, 20 drawings each",
        row_shape=(28, 28, 1),
        origin="https://github.com/brendenlake/omniglot (MIT licence); `tapnet data download omniglot` fetches it.",
        splits=listed_splits("omniglot", "background", "evaluation"),
        images=32_460,
        images_per_class=20,
        formats={
            "the folder that holds images_background.zip and images_evaluation.zip, or the folders extracted from them "
            "(ALPHABET/characterNN/*.png)": folders_by_class,
        },
        downloads={
            f"{OMNIGLOT_HOME}/images_background.zip": "68d2efa1b9178cc56df9314c21c6e718",
            f"{OMNIGLOT_HOME}/images_evaluation.zip": "6b91aef0f799c5bb55b94e3f2daec811",
        },
        published_filter="28×28 is usual, the filter is not; most codes use Lanczos or bilinear",
        ink="bright",
        rotations={"train": 4, "trainval": 4, "background": 4},
    ),
    Dataset(
        name="mini-imagenet",
        summary="miniImageNet: 100 classes of ImageNet, 600 images each",
        row_shape=(84, 84, 3),
        origin="Made from ImageNet (https://image-net.org, sign-in, non-commercial research); copies circulate.",
        splits=listed_splits("mini-imagenet"),
        images=60_000,
        images_per_class=600,
        formats={
            "train.csv, val.csv and test.csv with a folder of images": csv_lists,
            "folders of images named by class id (n01532829), in any nesting, also split or zipped; "
            "ILSVRC2012_img_train.tar or its folders": folders_by_class,
            "train.npz, val.npz and test.npz of the TapNet authors": class_npz,
            "mini-imagenet-cache-train.pkl, -val.pkl and -test.pkl": cache_pickles,
        },
        published_filter="84×84, the filter differs between the circulating forms",
        refine=published_images,
    ),
    Dataset(
        name="tiered-imagenet",
        summary="tieredImageNet: 608 classes of ImageNet, 779,165 images",
        row_shape=(84, 84, 3),
        origin="https://github.com/renmengye/few-shot-ssl-public links it; made from ImageNet "
        "(non-commercial research).",
        splits=listed_splits("tiered-imagenet"),
        images=779_165,
        formats={
            "train_labels.pkl with train_images_png.pkl or the authors' train_images.npz (and val, test)": (
                labeled_pickles
            ),
            "folders of images named by class id (n01530575), in any nesting; ILSVRC2012_img_train.tar or its "
            "folders": folders_by_class,
        },
        filter="bicubic",
        published_filter="84×84 by OpenCV's cubic filter, which does not smooth when it shrinks; bicubic here does",
    ),
    Dataset(  # in the split of Bertinetto et al.
        name="cifar-fs",
        summary="CIFAR-FS: the 100 classes of CIFAR-100, 600 images each",
        row_shape=(32, 32, 3),
        origin="https://www.cs.toronto.edu/~kriz/cifar.html (cifar-100-python.tar.gz).",
        splits=listed_splits("cifar-fs"),
        images=60_000,
        images_per_class=600,
        formats={
            "cifar-100-python.tar.gz, or the folder extracted from it": cifar_python,
            "folders of images named by class (apple, aquarium_fish, …), nested or zipped": folders_by_class,
        },
        published_filter="32×32 as photographed by its authors: nothing is resized",
    ),
    Dataset(
        name="tiny-imagenet-tiered",
        summary="Tiny ImageNet, the 123 classes that tieredImageNet has too; NOT tieredImageNet",
        row_shape=(64, 64, 3),
        origin="tiny-imagenet-200.zip of Stanford's course CS231n; made from ImageNet (non-commercial research).",
        splits=listed_splits("tiny-imagenet-tiered"),
        images=61_500,
        images_per_class=500,
        formats={"tiny-imagenet-200.zip or its folders (train/n01443537/images/*.JPEG)": folders_by_class},
        published_filter="64×64 as handed out: nothing is resized",
    ),
    Dataset(
        name="folder",
        summary="your own images, under a name of your own",
        row_shape=(84, 84, 3),
        origin="Your own images.",
        formats={
            "a CSV with the columns path and label (and split)": csv_table,
            "a folder, zip or tar with one folder per class (and train/, val/, test/ above)": class_tree,
        },
    ),
]
DATASETS = {dataset.name: dataset for dataset in _DATASETS}
