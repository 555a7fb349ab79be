"""What the dataset tests share: where real data lies, files made on the spot, and packing in one line."""

import io
import os
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from tapnet.data import DATASETS
from tapnet.data.packing import PackOptions, prepare

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def shared():
    """The folder of real datasets beside the checkout; on CI it has to be there."""
    if not SHARED.is_dir():
        message = f"the real datasets are not beside the checkout ({SHARED})"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    return SHARED


def image(value, size=(84, 84)):
    """An image of one color, whose red value tells it from others."""
    return Image.new("RGB", size, (value, 255 - value, 128))


def encoded(image, form="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def png(value, size=(84, 84)):
    return encoded(image(value, size))


def file(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def tree(folder, files):
    for name, content in files.items():
        file(folder / name, content)
    return folder


def zipped(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def tar(path, files, mode="w"):
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture(scope="session")
def make():
    """Files in the genuine layouts."""
    return SimpleNamespace(image=image, encoded=encoded, png=png, file=file, tree=tree, zip=zipped, tar=tar)


@pytest.fixture
def pack(tmp_path):
    """`pack(dataset, path, **options)` prepares a dataset in a root of its own and gives what was packed."""

    def run(dataset, path, /, root=None, log=lambda _: None, progress=lambda _done, _all: None, **options):
        return prepare(DATASETS[dataset], path, root or tmp_path / "root", PackOptions(**options), log, progress)

    return run


@pytest.fixture(scope="session")
def reds():
    """The red value of each packed image of a class."""

    def values(packed, name):
        return [int(packed.pixels[row, 0, 0, 0]) for row in packed.rows_by_class[name]]

    return values
