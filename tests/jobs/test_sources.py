import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tapnet.errors import NotFoundError, UserError
from tapnet.inference.folders import Skipped
from tapnet.jobs.sources import read_chunks

IMAGES = Path("new")


@pytest.fixture(autouse=True)
def _in_the_folder_of_the_drawings(drawing_folders, monkeypatch):
    monkeypatch.chdir(drawing_folders)


def files(*sources, **options):
    return [file for chunk in read_chunks(sources, **options) for file in chunk.files]


def contents(*sources, **options):
    images = (image for chunk in read_chunks(sources, **options) for image in chunk.images())
    return [image.read_bytes() for image in images]


def names():
    return sorted(str(path) for path in IMAGES.rglob("*.png"))


def expected():
    return [Path(name).read_bytes() for name in names()]


def write_table(path, columns, **options):
    pq.write_table(pa.table(columns), path, **options)
    return path


def test_a_folder_is_every_image_below_it():
    assert files(IMAGES) == names()
    assert contents(IMAGES) == expected()


def test_chunks_have_a_bounded_size():
    assert [len(chunk) for chunk in read_chunks([IMAGES], size=3)] == [3, 3, 2]


def test_a_list_file_names_images_relative_to_itself(tmp_path):
    first, second = (Path(name).resolve() for name in names()[:2])
    (tmp_path / "near.png").write_bytes(second.read_bytes())
    (tmp_path / "list.txt").write_text(f"# two images\n{first}\n\nnear.png\n")
    assert files(tmp_path / "list.txt") == [str(first), "near.png"]
    assert contents(tmp_path / "list.txt") == expected()[:2]


def test_an_image_of_a_list_that_is_too_large_is_a_reason(tmp_path, monkeypatch):
    (tmp_path / "near.png").write_bytes(b"0123456789")
    (tmp_path / "list.txt").write_text("near.png")
    monkeypatch.setattr("tapnet.jobs.storage.LARGEST_FILE", 9)
    with pytest.raises(OSError, match="more than 9 bytes"):
        contents(tmp_path / "list.txt")


def test_a_parquet_file_with_paths_names_images_relative_to_itself(drawing_folders):
    table = write_table(drawing_folders / "paths.parquet", {"label": ["a"] * 8, "path": names()})
    assert files(table) == names()
    assert contents(table) == expected()


@pytest.mark.parametrize("row_group_size", [1, 3, 100])
def test_a_parquet_file_with_bytes_is_read_row_by_row_whatever_its_row_groups(tmp_path, row_group_size):
    table = write_table(tmp_path / "bytes.parquet", {"image": expected()}, row_group_size=row_group_size)
    assert files(table, size=2) == [f"{table}#{row}" for row in range(8)]
    assert contents(table, size=2) == expected()


def test_a_parquet_file_of_hugging_face_is_read_by_the_bytes_of_its_structs(tmp_path):
    rows = [{"bytes": content, "path": None} for content in expected()]
    assert contents(write_table(tmp_path / "hub.parquet", {"image": rows, "label": range(8)})) == expected()


def test_a_folder_of_parquet_files_is_all_of_them(tmp_path):
    for number, content in enumerate(expected()):
        write_table(tmp_path / f"{number}.parquet", {"image": [content]})
    assert contents(tmp_path) == expected()


def test_a_folder_of_parquet_files_may_be_named_in_any_way(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tables").mkdir()
    write_table("tables/a.parquet", {"image": [b"x"]})
    assert contents("./tables/") == contents("tables") == contents("./tables/a.parquet") == [b"x"]


def test_a_row_without_an_image_says_so(tmp_path):
    table = write_table(tmp_path / "bytes.parquet", {"image": pa.array([None, b"x"], pa.binary())})
    (chunk,) = read_chunks([table])
    missing, there = chunk.images()
    with pytest.raises(OSError, match="no image in this row"):
        missing.read_bytes()
    assert there.read_bytes() == b"x"


def test_a_list_may_name_an_image_twice(tmp_path):
    (tmp_path / "list.txt").write_text("a.png\na.png\n")
    assert files(tmp_path / "list.txt") == ["a.png", "a.png"]


def test_a_chunk_without_some_images_reads_the_others(tmp_path):
    table = write_table(tmp_path / "bytes.parquet", {"image": expected()})
    (chunk,) = read_chunks([table])
    left = chunk.without({chunk.files[0], chunk.files[5]})
    assert [image.read_bytes() for image in left.images()] == [expected()[row] for row in (1, 2, 3, 4, 6, 7)]


def test_a_chunk_travels_to_another_process():
    (chunk,) = read_chunks([IMAGES])
    assert [image.read_bytes() for image in pickle.loads(pickle.dumps(chunk)).images()] == expected()


def test_a_chunk_is_read_from_any_working_folder(tmp_path, monkeypatch):
    (chunk,), there = read_chunks([IMAGES]), expected()
    monkeypatch.chdir(tmp_path)
    assert [image.read_bytes() for image in chunk.images()] == there


def test_a_column_can_be_named(tmp_path):
    table = write_table(tmp_path / "two.parquet", {"thumbnail": [b"small"], "photo": [b"large"]})
    assert contents(table) == [b"small"]
    assert contents(table, column="photo") == [b"large"]


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({"a": ["x"], "b": ["y"]}, {}, "Expected a column with paths or the bytes of images in .* got the columns a"),
        ({"a": [1.0]}, {"column": "a"}, "Expected paths or bytes in 'a' in .*a \\(double\\)"),
        ({"path": ["x"]}, {"column": "photo"}, "Expected paths or bytes in 'photo'"),
    ],
)
def test_a_parquet_file_without_such_a_column_is_refused(tmp_path, columns, options, words):
    with pytest.raises(UserError, match=words):
        files(write_table(tmp_path / "t.parquet", columns), **options)


def test_a_file_that_is_no_parquet_file_is_refused(tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"t\.parquet is not a Parquet file, or damaged"):
        files(tmp_path / "t.parquet")


def test_a_damaged_row_group_is_a_reason_and_not_the_end(tmp_path):
    table = write_table(tmp_path / "t.parquet", {"image": expected()}, row_group_size=4, compression="NONE")
    content = bytearray(table.read_bytes())
    content[4:40] = bytes(36)  # the header of the first page
    table.write_bytes(content)
    (first, second) = read_chunks([table])
    for image in first.images():
        with pytest.raises(OSError, match="the Parquet file"):
            image.read_bytes()
    assert [image.read_bytes() for image in second.images()] == expected()[4:]


@pytest.mark.parametrize("source", ["nowhere", "nowhere.txt", "nowhere.parquet", "nowhere.png"])
def test_a_source_that_does_not_exist_is_refused(source):
    with pytest.raises(NotFoundError, match=f"There is no .*{source}"):
        files(source)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("https://example.com/a.png", "download it first"),
        ("s3:///a.png", "names no bucket"),
        ("nonsense://a/b", "nonsense:// need another package"),
    ],
)
def test_an_address_that_cannot_be_read_is_refused(source, words):
    with pytest.raises(UserError, match=words):
        files(source)


def test_files_that_are_left_out_are_counted(tmp_path):
    (tmp_path / "notes.md").write_text("x")
    skipped = Skipped()
    list(read_chunks([tmp_path], skipped=skipped))
    assert len(skipped) == 1
