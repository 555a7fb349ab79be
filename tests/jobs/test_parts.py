"""Part files: every image is a row, what is missing is predicted, and nothing of another job is mixed in."""

import hashlib
import os
import shutil
from pathlib import Path

import pyarrow
import pyarrow.parquet as pq
import pytest

from tapnet.cli import main
from tapnet.errors import UserError
from tapnet.inference import open_predictor
from tapnet.jobs.batch import PredictorFiles, plan_batch
from tapnet.paths import find_checkpoint


@pytest.fixture(autouse=True)
def photos(drawing_folders, tmp_path, monkeypatch):
    """A folder with eight drawings and a file that only looks like one."""
    shutil.copytree(drawing_folders / "new", tmp_path / "photos")
    (tmp_path / "photos" / "broken.png").write_bytes(b"no image")
    monkeypatch.chdir(tmp_path)
    return Path("photos")


def rows():
    return {row["file"]: row for row in pq.read_table("out.parquet").to_pylist()}


def plan(task, source="photos", **options):
    return plan_batch(task, [source], "out.parquet", **options)


def test_every_image_is_a_row_with_the_class_of_the_predictor_or_with_a_reason(photos, drawing_task):
    list(plan(drawing_task, top=2, reject=0.9).run())
    assert set(rows()) == {str(path) for path in photos.rglob("*.png")}
    assert {row["task"] for row in rows().values()} == {hashlib.sha256(drawing_task.read_bytes()).hexdigest()}
    broken = rows()["photos/broken.png"]
    assert (broken["class"], broken["reason"]) == (None, "not an image of a known format")
    images = [str(path) for path in photos.rglob("*/*.png")]
    for expected in open_predictor(drawing_task).predict(images, top=2, reject=0.9):
        row = rows()[expected.image]
        assert (row["class"], row["best_guess"], row["sha256"]) == (expected.label, expected.best, expected.sha256)
        assert [entry["class"] for entry in row["top"]] == [name for name, _ in expected.ranked]
        assert row["probability"] == pytest.approx(expected.probability, abs=1e-6)


def test_a_second_call_predicts_what_is_new_and_nothing_else(photos, drawing_task):
    list(plan(drawing_task).run())
    again = plan(drawing_task)
    assert (again.remaining, again.total, list(again.run())) == (0, 9, [])
    shutil.copy(next(photos.rglob("*/*.png")), photos / "0.png")
    again = plan(drawing_task)
    assert [chunk.files for chunk in again.missing] == [("photos/0.png",)]
    list(again.run())
    assert len(pq.read_table("out.parquet")) == len(rows()) == 10


def test_a_part_that_is_lost_is_predicted_again_and_one_that_is_predicted_twice_is_one(drawing_task):
    job = plan(drawing_task, chunk_size=2)
    list(job.run()), list(job.run())
    before, parts = rows(), sorted(Path("out.parquet").iterdir())
    parts[2].unlink()
    list(plan(drawing_task, chunk_size=2).run())
    assert sorted(Path("out.parquet").iterdir()) == parts
    assert rows() == before
    assert len(pq.read_table("out.parquet")) == 9


def test_an_image_that_is_named_twice_is_one_row(photos, drawing_task):
    image = str(next(photos.rglob("*/*.png")))
    Path("list.txt").write_text("\n".join([image, image, "photos/broken.png", image]))
    job = plan(drawing_task, "list.txt", chunk_size=2)
    assert (job.remaining, job.total) == (2, 2)
    list(job.run())
    assert pq.read_table("out.parquet").column("file").to_pylist() == [image, "photos/broken.png"]


def test_different_images_of_one_name_are_refused(photos, drawing_task):
    for folder, image in zip(("one", "two"), photos.rglob("*/*.png"), strict=False):
        Path(folder).mkdir()
        shutil.copy(image, Path(folder, "a.png"))
        Path(folder, "list.txt").write_text("a.png\n")
    with pytest.raises(UserError, match=r"would both be called a\.png"):
        plan_batch(drawing_task, ["one/list.txt", "two/list.txt"], "out.parquet")
    Path("two/list.txt").write_text(str(Path("one/a.png").resolve()))
    assert plan_batch(drawing_task, ["one/list.txt", "two/list.txt", "one/list.txt"], "out.parquet").total == 2


def test_a_name_that_is_no_text_is_predicted_once(photos, drawing_task):
    shutil.copy(next(photos.rglob("*/*.png")), os.fsencode(photos) + b"/caf\xe9.png")
    list(plan(drawing_task).run())
    assert rows()["photos/caf\\udce9.png"]["class"]
    assert plan(drawing_task).remaining == 0


def test_unreadable_images_are_tried_again_when_asked(photos, drawing_task):
    list(plan(drawing_task).run())
    shutil.copy(next(photos.rglob("*/*.png")), photos / "broken.png")
    assert plan(drawing_task).remaining == 0
    list(plan(drawing_task, retry_unreadable=True).run())
    assert rows()["photos/broken.png"]["class"]
    assert len(pq.read_table("out.parquet")) == 9


def test_a_checkpoint_of_ones_own_travels_with_the_task(drawing_folders):
    shutil.copy(find_checkpoint("drawings"), "mine.safetensors")
    assert main(["fit", str(drawing_folders / "fit"), "--network", "mine.safetensors", "--out", "mine.task"]) == 0
    files = PredictorFiles.read("mine.task")
    Path("mine.safetensors").unlink()
    assert files.open().classes


def test_what_another_job_left_in_the_folder_is_refused(drawing_task, drawing_folders):
    list(plan(drawing_task).run())
    shutil.copy(drawing_task, "other.task")
    assert main(["remove", "other.task", min(path.name for path in (drawing_folders / "fit").iterdir())]) == 0
    for change, task, options in (
        ("top 1, now 2", drawing_task, {"top": 2}),
        ("reject 0.0, now 0.5", drawing_task, {"reject": 0.5}),
        ("task .*, now .*", "other.task", {}),
    ):
        with pytest.raises(UserError, match=rf"holds predictions of another job \({change}\)"):
            plan(task, **options)
    (part,) = Path("out.parquet").iterdir()
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(UserError, match=f"{part.name} is damaged .* remove it"):
        plan(drawing_task)
    pq.write_table(pyarrow.table({"file": ["a"]}), part)
    with pytest.raises(UserError, match="was not written by"):
        plan(drawing_task)


def test_a_source_without_images_and_a_folder_that_cannot_be_written_are_refused(drawing_task):
    Path("empty").mkdir()
    with pytest.raises(UserError, match="There is no image in"):
        plan(drawing_task, "empty")
    assert not Path("out.parquet").exists()
    parts = plan(drawing_task).run()
    shutil.rmtree("out.parquet")
    with pytest.raises(UserError, match=r"out\.parquet is not there on .*: give a folder that all machines share"):
        next(parts)
    Path("out.parquet").write_text("x")
    with pytest.raises(UserError, match="is a file, expected a folder of part files"):
        plan(drawing_task).run()
