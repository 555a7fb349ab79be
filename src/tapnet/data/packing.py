"""Prepare a dataset: recognize what is at a path, decode every image once, and write the packed dataset."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from tapnet import __version__
from tapnet.data.catalog import DATASETS
from tapnet.data.dataset import Dataset
from tapnet.data.packed import (
    IMAGES,
    MANIFEST,
    ROWS,
    Manifest,
    Packed,
    check_replaceable,
    is_packed,
    open_packed,
    sha256_of,
)
from tapnet.data.preprocessing import LoadedImage, Pixels, Preprocessing, quiet_decoders, with_image
from tapnet.data.source import Raw, Source, Unreadable, abbreviate, normalize_name
from tapnet.data.staging import DONE, RESIZED, TODO, Staging, clear_full_disk_errors, locked
from tapnet.errors import UserError

BATCH, PIECE = 64, 16  # images in memory at once; images per task of a thread
BATCH_BYTES = 16_000_000
WORKERS = 4
Bad = dict[int, str]  # row: why it cannot be read


@dataclass(frozen=True)
class PackOptions:
    """How a dataset is packed; None means the dataset's own default."""

    name: str | None = None
    size: int | None = None
    channels: int | None = None
    filter: str | None = None
    fit: str = "squash"
    ink: str | None = None
    seed: int = 0
    skip_bad: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class Callbacks:
    """Called on progress: `log` with sentences, `progress` with the number of images done and their total."""

    log: Callable[[str], None] = lambda _: None
    progress: Callable[[int, int], None] = lambda _done, _all: None


def prepare(dataset: Dataset, path: Path, root: Path, options: PackOptions, callbacks: Callbacks) -> Packed:
    """Pack the dataset at `path` and return it; raise UserError if it exists already, unless `options.overwrite`."""
    name = name_for(dataset, root, options)
    preprocessing = preprocessing_for(dataset, options)
    source = dataset.recognize(path, callbacks.log)  # before anything is written
    with locked(root, name):
        shape = (len(source), *preprocessing.shape)
        versions = np.fromiter(map(source.version, _keys(source)), dtype=np.uint64, count=len(source))
        with clear_full_disk_errors(root, int(np.prod(shape, dtype=np.int64))):
            place = Staging(root / f".{name}.partial", _plan(source, path, preprocessing), shape, versions)
            try:
                bad = _pack(source, place, preprocessing, callbacks)
                if bad and not options.skip_bad:
                    raise UserError(_unreadable_message(source, bad), parameter="skip_bad")
                manifest = _manifest(name, dataset, source, preprocessing, options.seed, place, bad)
                place.add(ROWS, (f"{normalize_name(key)}\n" for key in _keys(source)))
                place.add(MANIFEST, [manifest.to_json()])
            finally:
                place.close()
            place.publish(root / name)
    packed = open_packed(root / name)
    packed.record_verified()
    return packed


def name_for(dataset: Dataset, root: Path, options: PackOptions) -> str:
    """Return the name of the packed dataset; raise if it is not valid or already taken."""
    name = dataset.name if options.name is None else options.name
    if not re.fullmatch(r"[^\W_][\w.-]*", name):
        raise UserError(f"Expected a name of letters, digits, dots and dashes, got {name!r}.")
    if name in DATASETS and name != dataset.name:
        raise UserError(f"The name {name} belongs to another dataset: give your {dataset.name} a name of its own.")
    if is_packed(root / name) and not options.overwrite:
        raise UserError(f"{name} is prepared already in {root / name}: use it, or overwrite it.", parameter="overwrite")
    check_replaceable(root / name)
    return name


def preprocessing_for(dataset: Dataset, options: PackOptions) -> Preprocessing:
    """Return the preprocessing of the dataset with the caller's options; raise UserError if they do not suit it."""
    height, width, channels = dataset.row_shape
    if options.size is not None:
        height = width = options.size
    if options.ink is not None and dataset.ink is None:
        raise UserError(f"{dataset.name} is not a set of drawings: leave out the option.", parameter="ink")
    return Preprocessing(
        height,
        width,
        options.channels or channels,
        filter=options.filter or dataset.filter,
        fit=options.fit,
        ink=options.ink or dataset.ink,
    )


def _plan(source: Source, path: Path, preprocessing: Preprocessing) -> str:
    """Return a text that is equal for two preparations if one can resume the other, changed files aside."""
    digest = hashlib.sha256(repr((source.format, preprocessing)).encode())
    for name, keys in source.classes.items():
        digest.update(repr((name, keys)).encode())
    return f"{path.resolve()} {digest.hexdigest()}"


def _pack(source: Source, place: Staging, preprocessing: Preprocessing, callbacks: Callbacks) -> Bad:
    """Decode every image that is not done yet; return the rows that could not be decoded, with the reasons."""
    todo = {key: row for row, key in enumerate(_keys(source)) if place.state[row] == TODO}
    total = len(source)
    done = total - len(todo)
    bad: Bad = {}

    def decode(loaded: LoadedImage) -> tuple[Pixels, int]:
        return preprocessing.apply(loaded), RESIZED if preprocessing.resizes(loaded) else DONE

    def decode_piece(piece: list[tuple[str, Raw]]) -> list[tuple[Pixels, int] | Unreadable]:
        return [with_image(raw, decode, preprocessing.sufficient_side) for _, raw in piece]

    if done:
        callbacks.log(f"Resuming an earlier preparation: {done:,} of {total:,} images are done.")
    try:
        with quiet_decoders(), ThreadPoolExecutor(WORKERS) as pool:
            for batch in _batches(source.read(todo)):
                pieces = [batch[start : start + PIECE] for start in range(0, BATCH, PIECE)]
                images = pool.map(decode_piece, pieces)
                for (key, _), image in zip(batch, chain.from_iterable(images), strict=True):
                    if isinstance(image, Unreadable):
                        bad[todo[key]] = image.reason
                    else:
                        place.write(todo[key], *image)
                done += len(batch)
                callbacks.progress(done, total)
    finally:
        place.save()
    lost = np.flatnonzero(place.state == TODO).tolist()
    return dict.fromkeys(lost, "disappeared while the others were packed") | bad


def _batches(found: Iterable[tuple[str, Raw]]) -> Iterator[list[tuple[str, Raw]]]:
    """Yield batches of up to BATCH images, fewer if they are large."""
    batch: list[tuple[str, Raw]] = []
    size = 0
    for key, raw in found:
        batch.append((key, raw))
        size += len(raw) if isinstance(raw, bytes) else getattr(raw, "nbytes", 0)
        if len(batch) == BATCH or size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _keys(source: Source) -> Iterator[str]:
    return (key for keys in source.classes.values() for key in keys)


def _unreadable_message(source: Source, bad: Bad) -> str:
    keys = list(_keys(source))
    listed = abbreviate([f"{keys[row]} ({reason})" for row, reason in sorted(bad.items())], 10)
    return (
        f"{len(bad):,} of {len(keys):,} images cannot be read: {listed}. What was packed so far is kept: fix "
        "them and run the same command again, or skip them."
    )


def _manifest(
    name: str, dataset: Dataset, source: Source, preprocessing: Preprocessing, seed: int, place: Staging, bad: Bad
) -> Manifest:
    return Manifest(
        name=name,
        dataset=dataset.name,
        source=source.format,
        preprocessing=preprocessing,
        resized=int((place.state == RESIZED).sum()),
        classes={label: len(keys) for label, keys in source.classes.items()},
        splits=dataset.split_classes(source, seed),
        left_out={str(row): reason for row, reason in sorted(bad.items())},
        notes=tuple(source.notes),
        sha256=sha256_of(place.folder / IMAGES),
        tapnet=__version__,
    )
