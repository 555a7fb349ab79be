r"""Sort public sets of photographs into train/, val/ and test/ folders for `tapnet data prepare folder`.

    python tools/split_photos.py OUT --cub CUB --flowers FLOWERS --cifar CIFAR/train [--mini MINI] \
        [--grocery GROCERY/dataset] [--textures DTD] [--clothing CLOTHING/train] [--cars CARS] [--trash TRASH] \
        [--halves]

Each is a folder in which every class has a folder of images, at any depth (halves such as train/ and test/ are joined).
The first 40 images of each class, or --images of them, are linked in the order of their paths. CUB and Flowers: every
second class in order trains, of the others every second validates; with --halves the first half of the classes trains
and validates (three to two) and the second half tests. CIFAR-FS and miniImageNet: the published class lists. Grocery
Store: every second class trains, the others test. Textures, clothing, cars and trash: all classes test. OUT/photos
joins the training and the validation classes of CUB and Flowers, on which the references of the recipe `photos` are
trained and chosen.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tapnet.data.dataset import listed_splits

IMAGES_PER_CLASS = 40
ONLY_TEST = ("textures", "clothing", "cars", "trash")
OPTIONAL = ("mini", "grocery", *ONLY_TEST)
PUBLISHED = {"cifar": "cifar-fs", "mini": "mini-imagenet"}


def classes_below(root: Path) -> dict[str, list[Path]]:
    """The image files of every class, sorted by class and path."""
    found: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*")):
        if path.suffix.lower() in (".jpg", ".png"):
            found.setdefault(path.parent.name, []).append(path)
    numbers = all(name.isdigit() for name in found)
    order = sorted(found, key=lambda name: (int(name) if numbers else 0, name))
    return {f"{int(name):03d}" if numbers else name: found[name] for name in order}


def grocery_classes(root: Path) -> dict[str, list[Path]]:
    """The photographs of every class, without the icons that the set has beside them."""
    found: dict[str, list[Path]] = {}
    for half in ("train", "val", "test"):
        for name, files in classes_below(root / half).items():
            found.setdefault(name, []).extend(files)
    return dict(sorted(found.items()))


def alternating(index: int) -> str:
    return "train" if index % 2 == 0 else ("val" if index % 4 == 1 else "test")


def halves(index: int, count: int) -> str:
    if index >= count // 2:
        return "test"
    return "train" if index < round(0.6 * (count // 2)) else "val"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    for name in ("cub", "flowers", "cifar", *OPTIONAL):
        parser.add_argument(f"--{name}", type=Path, required=name not in OPTIONAL)
    parser.add_argument("--halves", action="store_true")
    parser.add_argument("--images", type=int, default=IMAGES_PER_CLASS, help="of each class (default: 40)")
    args = parser.parse_args()
    for part in ("cub", "flowers", "cifar", *OPTIONAL):
        root = getattr(args, part)
        if root is None:
            continue
        classes = grocery_classes(root) if part == "grocery" else classes_below(root)
        published = published_splits(part) if part in PUBLISHED else {}
        for index, (name, files) in enumerate(classes.items()):
            if part in ONLY_TEST:
                split = "test"
            elif part == "grocery":
                split = "train" if index % 2 == 0 else "test"
            elif published:
                split = published[name]
            else:
                split = halves(index, len(classes)) if args.halves else alternating(index)
            link(files[: args.images], args.out / part / split / name)
            if part in ("cub", "flowers") and split != "test":
                link(files[: args.images], args.out / "photos" / split / f"{part}-{name}")


def published_splits(part: str) -> dict[str, str]:
    """The split of every class by name."""
    splits = listed_splits(PUBLISHED[part])
    return {name: split for split, names in splits.items() if split != "trainval" for name in names}


def link(files: list[Path], folder: Path) -> None:
    folder.mkdir(parents=True)
    for number, file in enumerate(files):
        (folder / f"{number:04d}-{file.name}").hardlink_to(file)


if __name__ == "__main__":
    main()
