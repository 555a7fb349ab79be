"""miniImageNet: 100 classes of ImageNet, 600 images each, in the split of Ravi and Larochelle."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath

from tapnet.data.dataset import Dataset, listed_splits
from tapnet.data.readers import Format
from tapnet.data.readers.class_arrays import cache_pickles, class_npz
from tapnet.data.readers.csv_lists import csv_lists
from tapnet.data.readers.folders_by_class import folders_by_class
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
