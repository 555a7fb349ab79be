"""Datasets made from ImageNet: miniImageNet, tieredImageNet, and the part of Tiny ImageNet that is in the latter."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath

from tapnet.data.dataset import Dataset, Format, listed_splits
from tapnet.data.readers.arrays import class_npz
from tapnet.data.readers.folders import folders_by_class
from tapnet.data.readers.pickles import cache_pickles, labeled_pickles
from tapnet.data.readers.tables import csv_lists
from tapnet.data.source import Source, abbreviate

ILSVRC_NAME = re.compile(r"n\d{8}_(\d+)\.jpe?g", re.IGNORECASE)


def published_images(source: Source) -> Source:
    """Return complete ILSVRC classes with their 600 images of miniImageNet only, which numbers the files of a class."""
    classes, incomplete = {}, []
    for name, keys in source.classes.items():
        numbers = [ILSVRC_NAME.fullmatch(PurePosixPath(key).name) for key in keys]
        if not all(numbers) or name not in _published():
            classes[name] = keys
            continue
        ordered = [
            key for _, key in sorted((int(match[1]), key) for match, key in zip(numbers, keys, strict=True) if match)
        ]
        if len(ordered) < max(_published()[name]):
            incomplete.append(name)
            classes[name] = keys
        else:
            classes[name] = [ordered[number - 1] for number in _published()[name]]
    notes = list(source.notes)
    if incomplete:
        notes.append(f"Incomplete ILSVRC classes, all of whose images were taken: {abbreviate(incomplete)}.")
    return replace(source, classes=classes, notes=notes)


@cache
def _published() -> dict[str, list[int]]:
    lines = (files("tapnet.data.catalog") / "splits" / "mini-imagenet" / "images.txt").read_text().splitlines()
    return {line.split()[0]: [int(number) for number in line.split()[1:]] for line in lines}


MINI_IMAGENET = Dataset(
    name="mini-imagenet",
    summary="miniImageNet: 100 classes of ImageNet, 600 images each",
    row_shape=(84, 84, 3),
    origin="Made from ImageNet (https://image-net.org, sign-in, non-commercial research); copies circulate.",
    splits=listed_splits("mini-imagenet"),
    images=60_000,
    images_per_class=600,
    formats=(
        Format("train.csv, val.csv and test.csv with a folder of images", csv_lists),
        Format(
            "folders of images named by class id (n01532829), in any nesting, also split or zipped; "
            "ILSVRC2012_img_train.tar or its folders",
            folders_by_class,
        ),
        Format("train.npz, val.npz and test.npz of the TapNet authors", class_npz),
        Format("mini-imagenet-cache-train.pkl, -val.pkl and -test.pkl", cache_pickles),
    ),
    published_filter="84×84, the filter differs between the circulating forms",
    refine=published_images,
)

TIERED_IMAGENET = Dataset(
    name="tiered-imagenet",
    summary="tieredImageNet: 608 classes of ImageNet, 779,165 images",
    row_shape=(84, 84, 3),
    origin="https://github.com/renmengye/few-shot-ssl-public links it; made from ImageNet (non-commercial research).",
    splits=listed_splits("tiered-imagenet"),
    images=779_165,
    formats=(
        Format(
            "train_labels.pkl with train_images_png.pkl or the authors' train_images.npz (and val, test)",
            labeled_pickles,
        ),
        Format(
            "folders of images named by class id (n01530575), in any nesting; ILSVRC2012_img_train.tar or its folders",
            folders_by_class,
        ),
    ),
    filter="bicubic",
    published_filter="84×84 by OpenCV's cubic filter, which does not smooth when it shrinks; bicubic here does",
)

TINY_IMAGENET_TIERED = Dataset(
    name="tiny-imagenet-tiered",
    summary="Tiny ImageNet, the 123 classes that tieredImageNet has too; NOT tieredImageNet",
    row_shape=(64, 64, 3),
    origin="tiny-imagenet-200.zip of Stanford's course CS231n; made from ImageNet (non-commercial research).",
    splits=listed_splits("tiny-imagenet-tiered"),
    images=61_500,
    images_per_class=500,
    formats=(Format("tiny-imagenet-200.zip or its folders (train/n01443537/images/*.JPEG)", folders_by_class),),
    published_filter="64×64 as handed out: nothing is resized",
)
