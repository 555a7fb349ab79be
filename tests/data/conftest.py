"""What the dataset tests share: where real data lies, files made on the spot, and packing in one line."""

import io
import os
import tarfile
import zipfile
from pathlib import Path

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


class Make:
    """Files in the genuine layouts. An image has one color, whose red value tells it from others."""

    @staticmethod
    def image(value, size=(84, 84)):
        return Image.new("RGB", size, (value, 255 - value, 128))

    @staticmethod
    def encoded(image, form="PNG", **options):
        stream = io.BytesIO()
        image.save(stream, form, **options)
        return stream.getvalue()

    @classmethod
    def png(cls, value, size=(84, 84)):
        return cls.encoded(cls.image(value, size))

    @staticmethod
    def file(path, content):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    @classmethod
    def tree(cls, folder, files):
        for name, content in files.items():
            cls.file(folder / name, content)
        return folder

    @staticmethod
    def zip(path, files):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return path

    @staticmethod
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
    return Make


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
