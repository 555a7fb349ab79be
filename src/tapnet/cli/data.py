"""`tapnet data ACTION`: list, prepare, check, download and show datasets."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from tapnet.cli.output import ERRORS, OUT, progress
from tapnet.errors import UserError
from tapnet.text import pluralize

if TYPE_CHECKING:
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
    listing = actions.add_parser("list", help="every dataset, whether it is prepared here, and how to prepare it")
    prepare = actions.add_parser("prepare", help="pack a dataset from the files that you have")
    check = actions.add_parser(
        "check", help="counts, splits, duplicates, checksum; what differs from the published set"
    )
    download = actions.add_parser("download", help="fetch a dataset from its public home and prepare it")
    show = actions.add_parser("show", help="draw a contact sheet, and an episode as a model sees it")
    for action in (prepare, check, download, show):
        action.add_argument("name", metavar="NAME", help="a dataset, as `tapnet data list` names it")
    for action in (listing, prepare, check, download, show):
        action.add_argument("--root", help="folder of the prepared datasets")
    prepare.add_argument("--from", dest="path", required=True, metavar="PATH", help="folder, archive or file to read")
    for action in (prepare, download):
        _add_pack_options(action)
    _add_show(show)


def _add_pack_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", dest="own_name", metavar="NAME", help="keep it under another name")
    parser.add_argument(
        "--size", type=int, help="side of the packed images in pixels (default: as published; folder 84)"
    )
    parser.add_argument("--channels", type=int, choices=(1, 3), help="1 gray, 3 color (default: as published)")
    parser.add_argument("--filter", help="how to resize: lanczos, bicubic, bilinear, box, hamming, nearest")
    parser.add_argument("--fit", default="squash", help="squash (default) or crop images of other proportions")
    parser.add_argument(
        "--ink", choices=("bright", "dark"), help="drawings: bright ink on black (default), or as drawn"
    )
    parser.add_argument("--seed", type=int, default=0, help="folder: the seed that splits the classes (default: 0)")
    parser.add_argument("--skip-bad", action="store_true", help="skip images that cannot be read")
    parser.add_argument("--overwrite", action="store_true", help="replace the set of that name")


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--split", default="test", help="the split to take classes from (default: test)")
    parser.add_argument(
        "--out", required=True, type=Path, metavar="PNG", help="the sheet; the episode is saved beside it"
    )
    parser.add_argument(
        "--rotations", type=int, help="4: with rotations as classes, 1: without (default: the dataset's own)"
    )
    parser.add_argument("--classes", type=int, default=12, help="classes on the sheet (default: 12)")
    parser.add_argument("--images", type=int, default=10, help="images per class on the sheet (default: 10)")
    parser.add_argument("--way", type=int, help="classes of the episode (default: 5, or as many as there are)")
    parser.add_argument("--shot", type=int, default=1, help="labeled images per class (default: 1)")
    parser.add_argument("--query", type=int, help="further images per class (default: 5, or as many as there are)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the episodes (default: 0)")
    parser.add_argument("--episode", type=int, default=0, help="which episode of the seed (default: 0)")


def run_data(args: argparse.Namespace) -> None:
    ACTIONS[args.action](args)


def _list(args: argparse.Namespace) -> None:
    from tapnet.data import DATASETS, own_sets
    from tapnet.data.packed import is_packed
    from tapnet.paths import data_root

    root = data_root(args.root)
    if root.exists() and not root.is_dir():
        raise UserError(f"Expected a folder of prepared datasets, and {root} is a file: choose another.", "root")
    OUT.print(f"Prepared datasets are kept in {root}")
    for name, dataset in DATASETS.items():
        if dataset.formats and is_packed(root / name):
            state, words = _prepared(root / name, dataset.images)
            _entry(name, state, f"{dataset.summary}; {words}", _command(name, True))
            continue
        images = "any number" if dataset.images is None else f"{dataset.images:,} images"
        where = "not ready" if dataset.formats else "bundled"
        _entry(
            name,
            f"{images} of {_size(dataset.row_shape)}, {where}",
            dataset.summary,
            _command(name, not dataset.formats),
        )
    for name in own_sets(root):
        _entry(name, *_prepared(root / name), _command(name, True))


def _entry(name: str, state: str, summary: str, command: str) -> None:
    OUT.print(Text.assemble("\n", (name, "bold"), f": {state}\n  {summary}\n  {command}"))


def _prepared(folder: Path, published: int | None = None) -> tuple[str, str]:
    """Return the state of a prepared dataset, and its number of classes and source."""
    from tapnet.data.packed import open_packed

    try:
        packed = open_packed(folder)
    except ValueError as error:
        return "cannot be used", str(error)
    kept = packed.manifest
    images = kept.rows - len(kept.left_out)
    part = "" if published in (None, images) else f" (published: {published:,})"
    state = f"{pluralize(images, 'image')} of {_size(kept.preprocessing.shape)}{part}, ready in {folder}"
    return state, f"{pluralize(len(packed.classes), 'class')}, prepared from {kept.source}"


def _size(shape: tuple[int, int, int]) -> str:
    return "×".join(map(str, shape))


def _command(name: str, ready: bool) -> str:
    from tapnet.data import DATASETS

    if ready:
        return f"tapnet data show {name} --out {name}.png"
    download = f"tapnet data download {name}   or   " if name in DATASETS and DATASETS[name].downloads else ""
    return f"{download}tapnet data prepare {name} --from PATH"


def _pack(args: argparse.Namespace, dataset: Dataset, path: Path) -> None:
    from tapnet.data.checking import differences, summarize
    from tapnet.data.packing import Callbacks, prepare
    from tapnet.paths import data_root

    try:
        with progress("packing") as advance:
            packed = prepare(dataset, path, data_root(args.root), _pack_options(args), Callbacks(print, advance))
    except KeyboardInterrupt:
        raise KeyboardInterrupt("Stopped; the same command resumes from here.") from None
    _print_findings(
        [*summarize(packed), *differences(dataset, packed)], f"{packed.manifest.name} is ready: {packed.folder}"
    )
    if not dataset.splits:  # of a published set, what is missing has been said
        _warn_of_few_classes(packed.manifest.splits)


def _warn_of_few_classes(splits: Mapping[str, Sequence[str]]) -> None:
    """Say which splits have too few classes for an episode."""
    few = [f"{split} has {pluralize(len(classes), 'class')}" for split, classes in splits.items() if len(classes) < 2]
    if few:
        ERRORS.print(
            f"{', '.join(few)}: an episode needs at least 2. To train, validate and evaluate on it, add classes, or "
            "divide them into the folders train/, val/ and test/ yourself."
        )


def _pack_options(args: argparse.Namespace) -> PackOptions:
    from tapnet.data.packing import PackOptions

    fields = "size", "channels", "filter", "fit", "ink", "seed", "skip_bad", "overwrite"
    return PackOptions(args.own_name, **{name: getattr(args, name) for name in fields})


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
    if args.out.is_dir() or args.out.suffix.lower() != ".png":
        got = "which is a folder" if args.out.is_dir() else "which does not"
        raise UserError(f"--out needs the name of a file that ends in .png, got {args.out}, {got}.")
    images = load_dataset(args.name, args.split, args.root, args.rotations)
    sampler = fitting_sampler(images, args.way, args.shot, args.query, args.seed)
    sheet = args.out
    episode = sheet.with_name(f"{sheet.stem}-episode.png")
    drawn = None if sampler is None else episode_sheet(images, sampler, args.episode)
    sheet.parent.mkdir(parents=True, exist_ok=True)
    contact_sheet(images, args.classes, args.images).save(sheet)
    OUT.print(f"{sheet}: {args.split} classes of {args.name}")
    if drawn is None:
        OUT.print("No episode: it needs 2 classes with 2 images each.")
    else:
        drawn.save(episode)
        OUT.print(f"{episode}: an episode as a model sees it")


def _preparable(name: str) -> Dataset:
    from tapnet.data import DATASETS

    choices = [choice for choice, dataset in DATASETS.items() if dataset.formats]
    if name not in choices:
        bundled = " (bundled: it needs nothing)" if name in DATASETS else ""
        raise UserError(f"Datasets to prepare are {', '.join(choices)}, got {name!r}{bundled}.")
    return DATASETS[name]


def _print_findings(findings: list[Finding], title: str) -> None:
    marks = {True: ("✓", "green"), False: ("!", "yellow"), None: (" ", "")}
    OUT.print(title)
    for finding in findings:
        OUT.print(Text.assemble(marks[finding.good], f" {finding.subject:<26} {finding.words}"))


ACTIONS: dict[str, Callable[[argparse.Namespace], None]] = {
    "list": _list,
    "prepare": lambda args: _pack(args, _preparable(args.name), Path(args.path).expanduser()),
    "check": _check,
    "download": _download,
    "show": _show,
}
