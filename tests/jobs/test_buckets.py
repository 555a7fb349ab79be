"""Images and part files in a bucket, by a server that speaks S3."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tapnet.errors import NotFoundError, UserError
from tapnet.inference.folders import Skipped
from tapnet.jobs import storage
from tapnet.jobs.batch import plan_batch
from tapnet.jobs.sources import read_chunks

pytestmark = pytest.mark.usefixtures("bucket")


@pytest.fixture
def names(bucket):
    return sorted(f"s3://photos/{path.relative_to(bucket)}" for path in (bucket / "new").rglob("*.png"))


def contents(*sources):
    return [image.read_bytes() for chunk in read_chunks(sources) for image in chunk.images()]


def expected(bucket, names):
    return [(bucket / name.removeprefix("s3://photos/")).read_bytes() for name in names]


def test_a_folder_of_a_bucket_is_every_image_below_it(bucket, names):
    (chunk,) = read_chunks(["s3://photos/new"])
    assert list(chunk.files) == names
    assert contents("s3://photos/new") == expected(bucket, names)


def test_what_is_no_image_is_left_out_by_its_address(bucket):
    (bucket / "mixed").mkdir()
    (bucket / "mixed" / "notes.md").write_text("x")
    skipped = Skipped()
    assert list(read_chunks(["s3://photos/mixed"], skipped=skipped)) == []
    assert skipped.lines() == ["Left out 1, no image by its ending: s3://photos/mixed/notes.md"]


def test_a_list_on_this_machine_may_name_images_in_a_bucket(bucket, names, tmp_path):
    (tmp_path / "list.txt").write_text("\n".join(names))
    assert contents(tmp_path / "list.txt") == expected(bucket, names)


def test_a_list_in_a_bucket_names_images_beside_it(bucket, names):
    (bucket / "list.txt").write_text("\n".join(name.removeprefix("s3://photos/") for name in names))
    assert contents("s3://photos/list.txt") == expected(bucket, names)


def test_a_parquet_file_in_a_bucket_is_read(bucket, names):
    (bucket / "tables").mkdir(exist_ok=True)
    pq.write_table(pa.table({"image": expected(bucket, names)}), bucket / "tables" / "images.parquet")
    assert contents("s3://photos/tables/images.parquet") == expected(bucket, names)
    assert contents("s3://photos/tables") == expected(bucket, names)


@pytest.mark.parametrize("source", ["s3://photos/nothing", "s3://nowhere/new", "s3://photos/nothing.parquet"])
def test_what_is_not_in_a_bucket_is_refused(source):
    with pytest.raises(NotFoundError, match=f"There is no file or folder {source}"):
        contents(source)


def test_an_object_that_is_gone_is_a_reason():
    image = storage.StoredImage("gone", "s3://photos/gone.png")
    with pytest.raises(FileNotFoundError, match=r"gone\.png"):
        image.read_bytes()


def test_a_server_that_does_not_answer_is_no_reason_of_an_image(monkeypatch):
    class Silent:
        def open_input_stream(self, path):
            raise OSError(f"When reading '{path}': AWS Error NETWORK_CONNECTION during HeadObject operation")

    monkeypatch.setattr(storage, "_filesystem", lambda _: Silent())
    with pytest.raises(storage.StorageUnavailableError, match="cannot be read now"):
        storage.StoredImage("a", "s3://photos/a.png").read_bytes()


def test_a_bucket_for_predictions_that_is_not_there_is_refused(names, drawing_task):
    with pytest.raises(UserError, match=r"s3://nowhere/out\.parquet cannot be listed: .* bucket does not exist"):
        plan_batch(drawing_task, names, "s3://nowhere/out.parquet")


def test_predictions_are_written_to_a_bucket_and_continued_there(bucket, names, drawing_task):
    out = "s3://photos/out.parquet"
    list(plan_batch(drawing_task, names[:3], out).run())
    again = plan_batch(drawing_task, ["s3://photos/new"], out)
    assert (again.remaining, again.total) == (5, 8)
    list(again.run())
    table = pq.read_table(bucket / "out.parquet")
    assert sorted(table.column("file").to_pylist()) == names
    assert None not in table.column("class").to_pylist()
