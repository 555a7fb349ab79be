"""Images in folders, lists, Parquet files and, by a server that speaks S3, in buckets, as chunks."""

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tapnet.errors import UserError
from tapnet.inference.folders import Skipped
from tapnet.jobs import sources
from tapnet.jobs.batch import plan_batch
from tapnet.jobs.sources import StorageUnavailableError, StoredImage, read_chunks

BUCKET = "s3://photos"


@pytest.fixture(autouse=True)
def _in_the_folder_of_the_drawings(drawing_folders, monkeypatch):
    monkeypatch.chdir(drawing_folders)


@pytest.fixture
def names():
    return sorted(str(path) for path in Path("new").rglob("*.png"))


@pytest.fixture
def expected(names):
    return [Path(name).read_bytes() for name in names]


def files(*sources, **options):
    return [file for chunk in read_chunks(sources, **options) for file in chunk.files]


def contents(*sources, **options):
    images = (image for chunk in read_chunks(sources, **options) for image in chunk.images())
    return [image.read_bytes() for image in images]


def write_table(path, columns, **options):
    pq.write_table(pa.table(columns), path, **options)
    return path


def test_a_folder_is_every_image_below_it_in_chunks_of_a_bounded_size(names, expected, tmp_path, monkeypatch):
    chunks = [*read_chunks(["new"], size=3)]
    assert [len(chunk) for chunk in chunks] == [3, 3, 2]
    assert [file for chunk in chunks for file in chunk.files] == names
    chunks = pickle.loads(pickle.dumps(chunks))
    monkeypatch.chdir(tmp_path)  # a worker has another working folder
    assert [image.read_bytes() for chunk in chunks for image in chunk.images()] == expected


def test_a_list_file_names_images_relative_to_itself(names, expected, tmp_path, monkeypatch):
    first = Path(names[0]).resolve()
    (tmp_path / "near.png").write_bytes(expected[1])
    (tmp_path / "list.txt").write_text(f"# two images\n{first}\n\nnear.png\nnear.png\n")
    assert files(tmp_path / "list.txt") == [str(first), "near.png", "near.png"]
    assert contents(tmp_path / "list.txt") == [expected[0], expected[1], expected[1]]
    monkeypatch.setattr(sources, "LARGEST_FILE", 9)
    with pytest.raises(OSError, match="more than 9 bytes"):
        StoredImage("near.png", str(tmp_path / "near.png")).read_bytes()


def test_a_parquet_file_with_paths_names_images_relative_to_itself(names, expected, drawing_folders):
    table = write_table(drawing_folders / "paths.parquet", {"label": ["a"] * 8, "path": names})
    assert files(table) == names
    assert contents(table) == expected


@pytest.mark.parametrize("row_group_size", [1, 3, 100])
def test_a_parquet_file_with_bytes_is_read_row_by_row_whatever_its_row_groups(tmp_path, row_group_size, expected):
    table = write_table(tmp_path / "bytes.parquet", {"image": expected}, row_group_size=row_group_size)
    assert files(table, size=2) == [f"{table}#{row}" for row in range(8)]
    assert contents(table, size=2) == expected
    structs = [{"bytes": content, "path": None} for content in expected]  # as Hugging Face writes images
    assert contents(write_table(table, {"image": structs, "label": range(8)}), size=2) == expected


def test_a_folder_of_parquet_files_is_all_of_them(tmp_path, expected, monkeypatch):
    (tmp_path / "tables").mkdir()
    for number, content in enumerate(expected):
        write_table(tmp_path / "tables" / f"{number}.parquet", {"image": [content]})
    monkeypatch.chdir(tmp_path)
    assert contents("tables") == contents("./tables/") == expected


def test_a_column_can_be_named(tmp_path):
    table = write_table(tmp_path / "two.parquet", {"thumbnail": [b"small"], "photo": [b"large"]})
    assert contents(table) == [b"small"]
    assert contents(table, column="photo") == [b"large"]


def test_a_chunk_without_some_images_reads_the_others(tmp_path, expected):
    (chunk,) = read_chunks([write_table(tmp_path / "bytes.parquet", {"image": expected})])
    left = chunk.without({chunk.files[0], chunk.files[5]})
    assert [image.read_bytes() for image in left.images()] == [expected[row] for row in (1, 2, 3, 4, 6, 7)]


def test_a_row_without_an_image_says_so(tmp_path):
    table = write_table(tmp_path / "bytes.parquet", {"image": pa.array([None, b"x"], pa.binary())})
    (chunk,) = read_chunks([table])
    missing, there = chunk.images()
    with pytest.raises(OSError, match="no image in this row"):
        missing.read_bytes()
    assert there.read_bytes() == b"x"


def test_a_damaged_row_group_is_a_reason_and_not_the_end(tmp_path, expected):
    table = write_table(tmp_path / "t.parquet", {"image": expected}, row_group_size=4, compression="NONE")
    content = bytearray(table.read_bytes())
    content[4:40] = bytes(36)  # the header of the first page
    table.write_bytes(content)
    (first, second) = read_chunks([table])
    for image in first.images():
        with pytest.raises(OSError, match="the Parquet file"):
            image.read_bytes()
    assert [image.read_bytes() for image in second.images()] == expected[4:]


@pytest.mark.parametrize(
    ("columns", "column", "words"),
    [
        ({"a": ["x"], "b": ["y"]}, None, "Expected a column with paths or the bytes of images in .* got the columns a"),
        ({"a": [1.0]}, "a", "Expected paths or bytes in 'a' in .*a \\(double\\)"),
        ({"path": ["x"]}, "photo", "Expected paths or bytes in 'photo'"),
    ],
)
def test_a_parquet_file_without_such_a_column_is_refused(tmp_path, columns, column, words):
    with pytest.raises(UserError, match=words):
        files(write_table(tmp_path / "t.parquet", columns), column=column)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nowhere", "There is no image or folder nowhere"),
        ("nowhere.txt", "There is no list of images nowhere.txt"),
        ("nowhere.parquet", "There is no file nowhere.parquet"),
        ("drawings.task.parquet", "is not a Parquet file, or damaged"),
        ("https://example.com/a.png", "download it first"),
        ("s3:///a.png", "names no bucket"),
        ("nonsense://a/b", "nonsense:// need another package"),
        (f"{BUCKET}/nothing", f"There is no file or folder {BUCKET}/nothing"),
        (f"{BUCKET}/nothing.parquet", f"There is no file or folder {BUCKET}/nothing.parquet"),
        ("s3://nowhere/new", "s3://nowhere/new cannot be listed: .* bucket does not exist"),
    ],
)
@pytest.mark.usefixtures("bucket")
def test_a_source_that_cannot_be_read_is_refused(source, words):
    Path("drawings.task.parquet").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=words):
        files(source)


def test_images_in_a_bucket_are_those_of_its_folders_lists_and_tables(bucket, names, expected, tmp_path):
    addresses = [f"{BUCKET}/{name}" for name in names]
    assert files(f"{BUCKET}/new") == addresses
    assert contents(f"{BUCKET}/new") == contents(*addresses) == expected
    (tmp_path / "list.txt").write_text("\n".join(addresses))
    assert contents(tmp_path / "list.txt") == expected
    (bucket / "list.txt").write_text("\n".join(names))
    assert contents(f"{BUCKET}/list.txt") == expected
    (bucket / "tables").mkdir()
    write_table(bucket / "tables" / "images.parquet", {"image": expected})
    assert contents(f"{BUCKET}/tables/images.parquet") == contents(f"{BUCKET}/tables") == expected


@pytest.mark.parametrize("is_remote", [False, True])
def test_files_that_are_no_images_are_left_out_by_their_addresses(is_remote, bucket):
    folder = f"{BUCKET}/mixed" if is_remote else str(bucket / "mixed")
    (bucket / "mixed").mkdir(exist_ok=True)
    (bucket / "mixed" / "notes.md").write_text("x")
    skipped = Skipped()
    assert files(folder, skipped=skipped) == []
    assert skipped.lines() == [f"Left out 1, not an image file extension: {folder}/notes.md"]


@pytest.mark.usefixtures("bucket")
def test_a_missing_object_is_the_reason_of_an_image_but_an_outage_is_not(monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"gone\.png"):
        StoredImage("gone", f"{BUCKET}/gone.png").read_bytes()

    class Silent:
        def open_input_stream(self, path):
            raise OSError(f"When reading '{path}': AWS Error NETWORK_CONNECTION during HeadObject operation")

    monkeypatch.setattr(sources, "_filesystem", lambda _: Silent())
    with pytest.raises(StorageUnavailableError, match="cannot be read now"):
        StoredImage("a", f"{BUCKET}/a.png").read_bytes()


def test_predictions_are_written_to_a_bucket_and_continued_there(bucket, names, drawing_task):
    out, addresses = f"{BUCKET}/out.parquet", [f"{BUCKET}/{name}" for name in names]
    with pytest.raises(UserError, match=r"s3://nowhere/out\.parquet cannot be listed: .* bucket does not exist"):
        plan_batch(drawing_task, addresses, "s3://nowhere/out.parquet")
    list(plan_batch(drawing_task, addresses[:3], out).run())
    again = plan_batch(drawing_task, [f"{BUCKET}/new"], out)
    assert (again.remaining, again.total) == (5, 8)
    list(again.run())
    table = pq.read_table(bucket / "out.parquet")
    assert sorted(table.column("file").to_pylist()) == addresses
    assert None not in table.column("class").to_pylist()
