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
from tapnet.text import pluralize

if TYPE_CHECKING:
    from PIL.Image import Image

    from tapnet.data import Dataset
    from tapnet.data.checking import Finding
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
    words = "every dataset, whether it is prepared here, and how to prepare it"
    actions.add_parser("list", help=words).set_defaults(run=_list)
    prepare = actions.add_parser("prepare", help="pack a dataset from the files that you have")
    words = "counts, splits, duplicates, checksum; what differs from the published set"
    actions.add_parser("check", help=words).set_defaults(run=_check)
    download = actions.add_parser("download", help="fetch a dataset from its public home and prepare it")
    show = actions.add_parser("show", help="draw a contact sheet, and an episode as a model sees it")
    for name, action in actions.choices.items():
        if name != "list":
            action.add_argument("name", metavar="NAME", help="a dataset, as `tapnet data list` names it")
        action.add_argument("--root", help="folder of the prepared datasets")
    prepare.add_argument("--from", dest="path", required=True, metavar="PATH", help="folder, archive or file to read")
    prepare.set_defaults(run=_prepare)
    download.set_defaults(run=_download)
    for action in (prepare, download):
        _add_pack_options(action)
    _add_show(show)


def _add_pack_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--name", dest="own_name", metavar="NAME", help="keep it under another name")
    add("--size", type=int, help="side of the packed images in pixels (default: as published; folder 84)")
    add("--channels", type=int, choices=(1, 3), help="1 gray, 3 color (default: as published)")
    add("--filter", help="how to resize: lanczos, bicubic, bilinear, box, hamming, nearest")
    add("--fit", default="squash", help="squash (default) or crop images of other proportions")
    add("--ink", choices=("bright", "dark"), help="drawings: bright ink on black (default), or as drawn")
    add("--seed", type=int, default=0, help="folder: the seed that splits the classes (default: 0)")
    add("--skip-bad", action="store_true", help="skip images that cannot be read")
    add("--overwrite", action="store_true", help="replace the set of that name")


def _add_show(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--split", default="test", help="the split to take classes from (default: test)")
    words = "the sheet; the episode is saved beside it"
    add("--out", required=True, type=options.output_file(".png"), metavar="PNG", help=words)
    words = "4: with rotations as classes, 1: without (default: the dataset's own)"
    add("--rotations", type=int, help=words)
    add("--classes", type=int, default=12, help="classes on the sheet (default: 12)")
    add("--images", type=int, default=10, help="images per class on the sheet (default: 10)")
    add("--way", type=int, help="classes of the episode (default: 5, or as many as there are)")
    add("--shot", type=int, default=1, help="labeled images per class (default: 1)")
    add("--query", type=int, help="further images per class (default: 5, or as many as there are)")
    add("--seed", type=int, default=0, help="the seed of the episodes (default: 0)")
    add("--episode", type=int, default=0, help="which episode of the seed (default: 0)")
    parser.set_defaults(run=_show)


def run_data(args: argparse.Namespace) -> None:
    args.run(args)


def _list(args: argparse.Namespace) -> None:
    from tapnet.data import DATASETS, own_sets
    from tapnet.data.packed import is_packed
    from tapnet.paths import data_root

    root = data_root(args.root)
    if root.exists() and not root.is_dir():
        raise UserError(f"Expected a folder of prepared datasets, and {root} is a file: choose another.", "root")
    OUT.print(f"Prepared datasets are kept in {root}")
    for name in [*DATASETS, *own_sets(root)]:
        dataset = DATASETS.get(name)
        ready = f"tapnet data show {name} --out {name}.png"
        if dataset is None:
            _print_entry(name, *_describe(root / name), ready)
        elif dataset.formats and is_packed(root / name):
            state, words = _describe(root / name, dataset.images)
            _print_entry(name, state, f"{dataset.summary}; {words}", ready)
        else:
            images = "any number" if dataset.images is None else f"{dataset.images:,} images"
            where = "not ready" if dataset.formats else "bundled"
            download = f"tapnet data download {name}   or   " if dataset.downloads else ""
            todo = f"{download}tapnet data prepare {name} --from PATH" if dataset.formats else ready
            _print_entry(name, f"{images} of {_size(dataset.row_shape)}, {where}", dataset.summary, todo)


def _print_entry(name: str, state: str, summary: str, command: str) -> None:
    OUT.print(Text.assemble("\n", (name, "bold"), f": {state}\n  {summary}\n  {command}"))


def _describe(folder: Path, published: int | None = None) -> tuple[str, str]:
    """Return the state of a prepared dataset, and its number of classes and source."""
    from tapnet.data.packed import open_packed

    try:
        packed = open_packed(folder)
    except ValueError as error:
        return "cannot be used", str(error)
    manifest = packed.manifest
    images = manifest.rows - len(manifest.left_out)
    part = "" if published in (None, images) else f" (published: {published:,})"
    state = f"{pluralize(images, 'image')} of {_size(manifest.preprocessing.shape)}{part}, ready in {folder}"
    return state, f"{pluralize(len(packed.classes), 'class')}, prepared from {manifest.source}"


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
    from tapnet.data.checking import differences, summarize
    from tapnet.data.packing import Callbacks, prepare
    from tapnet.paths import data_root

    try:
        with progress("packing") as advance:
            packed = prepare(dataset, path, data_root(args.root), _pack_options(args), Callbacks(print, advance))
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
    from tapnet.data.checking import check

    packed = open_dataset(args.name, args.root)
    with progress("comparing images") as advance:
        findings = check(DATASETS[packed.manifest.dataset], packed, advance)
    _print_findings(findings, f"{args.name} in {packed.folder}")


def _download(args: argparse.Namespace) -> None:
    from tapnet.data import DATASETS
    from tapnet.data.downloading import download
    from tapnet.data.packing import name_for
    from tapnet.paths import data_root

    dataset = _preparable(args.name)
    if not dataset.downloads:
        downloadable = [name for name, other in DATASETS.items() if other.downloads]
        formats = "\n".join(f"  • {form.description}" for form in dataset.formats)
        OUT.print(f"{dataset.origin}\nFormats that can be read:\n{formats}")
        raise UserError(
            f"{args.name} cannot be downloaded from here: get it from where it is kept, then run "
            f"`tapnet data prepare {args.name} --from PATH`. Sets that can be downloaded: {', '.join(downloadable)}."
        )
    root = data_root(args.root)
    name_for(dataset, root, _pack_options(args))
    folder = root / "downloads" / args.name
    with progress("downloading") as advance:
        for remote in dataset.downloads:
            print(f"Fetching {remote.url}")
            download(remote, folder, advance)
    _pack(args, dataset, folder)


def _show(args: argparse.Namespace) -> None:
    from tapnet.data import load_dataset
    from tapnet.data.preview import contact_sheet, episode_sheet, fitting_sampler

    for option in ("classes", "images"):
        if getattr(args, option) < 1:
            raise UserError(f"--{option} needs at least 1, got {getattr(args, option)}.")
    images = load_dataset(args.name, args.split, args.root, args.rotations)
    sampler = fitting_sampler(images, args.way, args.shot, args.query, args.seed)
    episode = None if sampler is None else episode_sheet(images, sampler, args.episode)
    _save(contact_sheet(images, args.classes, args.images), args.out, f"{args.split} classes of {args.name}")
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
