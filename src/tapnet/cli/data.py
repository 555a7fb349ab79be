"""`tapnet data ACTION`: list, prepare, check, download and show datasets."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from tapnet.cli import options
from tapnet.cli.output import ERRORS, OUT, progress
from tapnet.errors import UserError
from tapnet.paths import data_root
from tapnet.text import pluralize

if TYPE_CHECKING:
    from PIL.Image import Image

    from tapnet.data import Dataset
    from tapnet.data.inspection import Finding
    from tapnet.data.packing import PackOptions

_EXAMPLES = """examples:
  tapnet data list
  tapnet data download omniglot
  tapnet data prepare mini-imagenet --from ~/Downloads/miniImageNet
  tapnet data prepare folder --from ~/photos --name birds --size 84
  tapnet data check mini-imagenet
  tapnet data show omniglot --split test --out grid.png

Prepared datasets are kept in --root, else in $TAPNET_DATA, else in ~/.cache/tapnet.
"""


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, run, words in (
        ("list", _list, "every dataset, whether it is prepared here, and how to prepare it"),
        ("prepare", _prepare, "pack a dataset from the files that you have"),
        ("check", _check, "counts, splits, duplicates, checksum; what differs from the published set"),
        ("download", _download, "fetch a dataset from its public home and prepare it"),
        ("show", _show, "draw a contact sheet, and an episode as a model sees it"),
    ):
        action = actions.add_parser(name, help=words)
        action.set_defaults(run=run)
        if name != "list":
            action.add_argument("name", metavar="NAME", help="a dataset, as `tapnet data list` names it")
        options.add_shared(action, "--root")
    add = actions.choices["prepare"].add_argument
    add("--from", dest="path", required=True, metavar="PATH", help="folder, archive or file to read")
    for name in ("prepare", "download"):
        add = actions.choices[name].add_argument
        add("--name", dest="own_name", metavar="NAME", help="keep it under another name")
        add("--size", type=int, help="side of the packed images in pixels (default: as published; folder 84)")
        add("--channels", type=int, choices=(1, 3), help="1 gray, 3 color (default: as published)")
        add("--filter", help="how to resize: lanczos, bicubic, bilinear, box, hamming, nearest")
        add("--fit", default="squash", help="squash (default) or crop images of other proportions")
        add("--ink", choices=("bright", "dark"), help="drawings: bright ink on black (default), or as drawn")
        add("--seed", type=int, default=0, help="folder: the seed that splits the classes (default: 0)")
        add("--skip-bad", action="store_true", help="skip images that cannot be read")
        add("--overwrite", action="store_true", help="replace the set of that name")
    show, words = actions.choices["show"], "the sheet; the episode is saved beside it"
    show.add_argument("--out", required=True, type=options.output_file(".png"), metavar="PNG", help=words)
    for flag, default, words in (
        ("--classes", 12, "classes on the sheet"),
        ("--images", 10, "images per class on the sheet"),
        ("--episode", 0, "which episode of the seed"),
    ):
        show.add_argument(flag, type=int, default=default, help=f"{words} (default: {default})")
    options.add_shared(show, "--split", "--rotations", "--seed")
    options.add_shared(show, "--shot", default=1, help="labeled images per class of the episode (default: 1)")
    options.add_shared(show, "--way", default=None, help="classes of the episode (default: 5, or as many as there are)")
    options.add_shared(show, "--query", default=None, help="further images (default: 5, or as many as there are)")


def run_data(args: argparse.Namespace) -> None:
    args.run(args)


def _list(args: argparse.Namespace) -> None:
    from tapnet.data import DATASETS, own_sets
    from tapnet.data.packed import is_packed

    root = data_root(args.root)
    if root.exists() and not root.is_dir():
        raise UserError(f"Expected a folder of prepared datasets, and {root} is a file: choose another.", "root")
    OUT.print(f"Prepared datasets are kept in {root}")
    for name in [*DATASETS, *own_sets(root)]:
        dataset, todo = DATASETS.get(name), f"tapnet data show {name} --out {name}.png"
        if dataset is None or (dataset.formats and is_packed(root / name)):
            state, summary = _describe(root / name, dataset)
        else:
            images = "any number" if dataset.images is None else f"{dataset.images:,} images"
            where, summary = "not ready" if dataset.formats else "bundled", dataset.summary
            state = f"{images} of {_size(dataset.row_shape)}, {where}"
            if dataset.formats:
                download = f"tapnet data download {name}   or   " if dataset.downloads else ""
                todo = f"{download}tapnet data prepare {name} --from PATH"
        OUT.print(Text.assemble("\n", (name, "bold"), f": {state}\n  {summary}\n  {todo}"))


def _describe(folder: Path, dataset: Dataset | None) -> tuple[str, str]:
    """Return the state of a prepared dataset, and what it is: its number of classes and source."""
    from tapnet.data.packed import open_packed

    summary = f"{dataset.summary}; " if dataset else ""
    try:
        packed = open_packed(folder)
    except UserError as error:
        return "cannot be used", f"{summary}{error}"
    manifest = packed.manifest
    images, published = manifest.rows - len(manifest.left_out), dataset and dataset.images
    part = "" if published in (None, images) else f" (published: {published:,})"
    state = f"{pluralize(images, 'image')} of {_size(manifest.preprocessing.shape)}{part}, ready in {folder}"
    return state, f"{summary}{pluralize(len(packed.rows_by_class), 'class')}, prepared from {manifest.source}"


def _size(shape: tuple[int, int, int]) -> str:
    return "×".join(map(str, shape))


def _prepare(args: argparse.Namespace) -> None:
    _pack(args, _preparable(args.name), Path(args.path).expanduser())


def _preparable(name: str) -> Dataset:
    from tapnet.data import DATASETS

    choices = [choice for choice, dataset in DATASETS.items() if dataset.formats]
    if name not in choices:
        bundled = " (bundled: it needs nothing)" if name in DATASETS else ""
        raise UserError(f"Datasets to prepare are {', '.join(choices)}, got {name!r}{bundled}.")
    return DATASETS[name]


def _pack_options(args: argparse.Namespace) -> PackOptions:
    from tapnet.data.packing import PackOptions

    fields = "size", "channels", "filter", "fit", "ink", "seed", "skip_bad", "overwrite"
    return PackOptions(args.own_name, **{name: getattr(args, name) for name in fields})


def _pack(args: argparse.Namespace, dataset: Dataset, path: Path) -> None:
    from tapnet.data.inspection import differences, summarize
    from tapnet.data.packing import prepare

    try:
        with progress("packing") as advance:
            packed = prepare(dataset, path, data_root(args.root), _pack_options(args), print, advance)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("Stopped; the same command resumes from here.") from None
    manifest = packed.manifest
    _print_findings([*summarize(packed), *differences(dataset, packed)], f"{manifest.name} is ready: {packed.folder}")
    sizes = {} if dataset.splits else manifest.splits  # of a published set, what is missing has been said
    if few := [f"{name} has {pluralize(len(split), 'class')}" for name, split in sizes.items() if len(split) < 2]:
        ERRORS.print(
            f"{', '.join(few)}: an episode needs at least 2. To train, validate and evaluate on it, add classes, or "
            "divide them into the folders train/, val/ and test/ yourself."
        )


def _print_findings(findings: Sequence[Finding], title: str) -> None:
    marks = {True: ("✓", "green"), False: ("!", "yellow"), None: (" ", "")}
    OUT.print(title)
    for finding in findings:
        OUT.print(Text.assemble(marks[finding.good], f" {finding.subject:<26} {finding.words}"))


def _check(args: argparse.Namespace) -> None:
    from tapnet.data import DATASETS, open_dataset
    from tapnet.data.inspection import check

    packed = open_dataset(args.name, args.root)
    with progress("comparing images") as advance:
        findings = check(DATASETS[packed.manifest.dataset], packed, advance)
    _print_findings(findings, f"{args.name} in {packed.folder}")


def _download(args: argparse.Namespace) -> None:
    from tapnet.data import DATASETS
    from tapnet.data.dataset import download
    from tapnet.data.packing import name_for

    dataset, root = _preparable(args.name), data_root(args.root)
    if not dataset.downloads:
        downloadable = [name for name, other in DATASETS.items() if other.downloads]
        formats = "\n".join(f"  • {form}" for form in dataset.formats)
        OUT.print(f"{dataset.origin}\nFormats that can be read:\n{formats}")
        raise UserError(
            f"{args.name} cannot be downloaded from here: get it from where it is kept, then run "
            f"`tapnet data prepare {args.name} --from PATH`. Sets that can be downloaded: {', '.join(downloadable)}."
        )
    name_for(dataset, root, _pack_options(args))  # what cannot be prepared is not downloaded
    folder = root / "downloads" / args.name
    with progress("downloading") as advance:
        for url, md5 in dataset.downloads.items():
            print(f"Fetching {url}")
            download(url, md5, folder, advance)
    _pack(args, dataset, folder)


def _show(args: argparse.Namespace) -> None:
    from tapnet.data import load_dataset
    from tapnet.data.inspection import contact_sheet, episode_sheet, fitting_sampler

    for option in ("classes", "images"):
        if getattr(args, option) < 1:
            raise UserError(f"--{option} needs at least 1, got {getattr(args, option)}.")
    images = load_dataset(args.name, args.split, args.root, args.rotations)
    sampler = fitting_sampler(images, args.way, args.shot, args.query, args.seed)
    sheet = contact_sheet(images, args.classes, args.images)
    episode = None if sampler is None else episode_sheet(images, sampler, args.episode)
    _save(sheet, args.out, f"{args.split} classes of {args.name}")
    if episode is None:
        OUT.print("No episode: it needs 2 classes with 2 images each.")
    else:
        _save(episode, args.out.with_stem(f"{args.out.stem}-episode"), "an episode as a model sees it")


def _save(sheet: Image, path: Path, words: str) -> None:
    from PIL.PngImagePlugin import PngInfo

    mark = PngInfo()
    mark.add_text("Software", "tapnet")  # by which --out knows that it may be replaced
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path, pnginfo=mark)
    OUT.print(f"{path}: {words}")
