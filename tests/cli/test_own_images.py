"""Commands on a user's own images: fit, predict, add, remove, score, explain, info and export."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tapnet.checkpoint import Checkpoint, Header
from tapnet.cli import main
from tapnet.inference import read_task
from tapnet.paths import locked
from tapnet.recipe import changed, load_recipe


def run(*arguments):
    """The exit code of a command."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return stop.code


def in_process(code, *arguments, **options):
    """Run Python in a process of its own."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def rows_of(capsys, *arguments):
    """The rows that a command prints as JSON."""
    capsys.readouterr()
    assert run(*arguments, "--json") == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def table_of(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def folder_of(root, **classes):
    """A folder of this many different images per class."""
    for name, count in classes.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            Image.new("L", (30, 30), 10 * number).save(root / name / f"{number}.png")
    return root


@pytest.fixture
def new(drawing_folders):
    return drawing_folders / "new"


@pytest.fixture
def task_copy(drawing_task, tmp_path):
    return shutil.copy(drawing_task, tmp_path / "copy.task")


@pytest.fixture(scope="module")
def five_shot_task(drawing_folders, drawing_task, tmp_path_factory):
    """A task with five examples of each class: those of fit/ and new/."""
    path = shutil.copy(drawing_task, tmp_path_factory.mktemp("five") / "a.task")
    assert run("add", path, drawing_folders / "new") == 0
    return path


@pytest.fixture(scope="module")
def exported(drawing_task):
    path = drawing_task.with_suffix(".onnx")
    assert run("export", drawing_task, "--onnx", path) == 0
    return path


def test_fit_says_what_it_chose_and_how_good_every_method_is(drawing_folders, drawing_task, tmp_path, capsys):
    assert run("fit", drawing_folders / "fit", "--out", tmp_path / "a.task") == 0
    printed = capsys.readouterr()
    assert "Network drawings (12 of 12 images looked at: line drawings)" in printed.out
    assert "Method tapnet (the best on validation classes for networks with references)" in printed.out
    lines = printed.out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("Leave-one-out accuracy on 12 images"))
    assert lines[start + 1].endswith("  tapnet with references worth 2 images (this task)")
    others = {line.split()[-1] for line in lines[start + 2 : start + 6]}
    assert others == {"tapnet", "protonet", "centroid", "logistic"}
    assert lines[-1] == f"Try: tapnet predict {tmp_path / 'a.task'} IMAGES"
    assert printed.err == ""
    assert (tmp_path / "a.task").read_bytes() == drawing_task.read_bytes()  # the same images, the same bytes


def test_fit_by_tapnet_is_the_papers(drawing_folders, tmp_path):
    out = tmp_path / "a.task"
    assert run("fit", drawing_folders / "fit", "--network", "drawings", "--method", "tapnet", "--out", out) == 0
    assert read_task(out).options == {}


def test_fit_of_photographs_takes_a_network_for_them_or_warns(tmp_path, capsys):
    generator = np.random.default_rng(0)
    for name, color in (("robin", (200, 60, 30)), ("wren", (40, 60, 200))):
        (tmp_path / "in" / name).mkdir(parents=True)
        pixels = np.clip(generator.normal(color, 40, (40, 50, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).resize((200, 160)).save(tmp_path / "in" / name / "1.jpg")
    assert run("fit", tmp_path / "in", "--out", tmp_path / "a.task") == 0
    assert "Network photos (2 of 2 images looked at: photographs)" in capsys.readouterr().out
    assert run("fit", tmp_path / "in", "--network", "drawings", "--out", tmp_path / "b.task") == 0
    assert "These look like photographs, and drawings is a network for drawings" in capsys.readouterr().err


def test_fit_and_predict_take_a_hugging_face_model_by_its_folder(drawing_folders, new, tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **sizes))
    model.save_pretrained(tmp_path / "vit")
    options = "--network", f"hf:{tmp_path / 'vit'}", "--out", tmp_path / "a.task"
    assert run("fit", drawing_folders / "fit", *options) == 0
    assert "method centroid" in capsys.readouterr().out
    assert len(rows_of(capsys, "predict", tmp_path / "a.task", new)) == 8
    shutil.rmtree(tmp_path / "vit")
    assert run("predict", tmp_path / "a.task", new) == 2
    assert "give the path to its checkpoint. (--network)" in capsys.readouterr().err


def test_fit_refuses_a_folder_that_cannot_be_learned(drawing_folders, tmp_path, capsys):
    (folder_of(tmp_path / "broken", robin=2, wren=0) / "wren" / "a.png").write_bytes(b"nothing")
    for part in ("fit", "new"):
        shutil.copytree(drawing_folders / part, tmp_path / "splits" / {"fit": "train", "new": "test"}[part])
    shutil.copytree(drawing_folders / "fit", tmp_path / "above" / "images")
    for folder, words in (
        (folder_of(tmp_path / "one", robin=2), "holds one class with images, 'robin'"),
        (folder_of(tmp_path / "spaces", **{"robin": 1, " robin": 1}), "or with other spaces"),
        (folder_of(tmp_path / "empty", robin=1, wren=0), "a folder without images: "),
        (tmp_path / "none", "There is no folder"),
        (folder_of(tmp_path / "twice", robin=1, wren=1), "are the same image"),
        (tmp_path / "broken", "No image of class 'wren' can be read"),
        (tmp_path / "splits", f"give {tmp_path / 'splits' / 'train'} instead"),
        (tmp_path / "above", f"If its folders are the classes, give {tmp_path / 'above' / 'images'}."),
    ):
        assert run("fit", folder, "--network", "drawings", "--out", tmp_path / "a.task") == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "a.task").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--method", "maml"], "can be fitted by tapnet, protonet, centroid, logistic, got 'maml'. (--method)"),
        (["--selection", "banana"], "is one of closest, optimal, farthest, got 'banana'"),
        ([], "61 classes are more than the 60 that the network 'drawings' takes: use the network "),
    ],
)
def test_fit_refuses_its_options_before_any_image_is_read(options, words, tmp_path, monkeypatch, capsys):
    from tapnet.inference import fitting

    folder = folder_of(tmp_path / "in", **{str(number): 1 for number in range(61)})
    monkeypatch.setattr(fitting, "read_labeled", None)
    assert run("fit", folder, "--network", "drawings", *options, "--out", tmp_path / "a.task") == 2
    error = capsys.readouterr().err
    assert words in error
    assert options or error.rstrip().endswith("(--method)")


def test_fit_names_what_it_left_out(drawing_folders, tmp_path, capsys):
    shutil.copytree(drawing_folders / "fit", tmp_path / "in")
    (tmp_path / "in" / "nothing").mkdir()
    (tmp_path / "in" / "notes.txt").write_text("")
    (next((tmp_path / "in").glob("*/0.png")).parent / "gone.jpg").symlink_to("nowhere.jpg")
    assert run("fit", tmp_path / "in", "--network", "drawings", "--out", tmp_path / "a.task") == 0
    error = capsys.readouterr().err
    assert f"Left out 1, a folder without images: {tmp_path / 'in' / 'nothing'}" in error
    assert "Left out 1, a link to nothing: " in error
    assert "Left out 1, not in the folder of a class: " in error


def test_predict_writes_a_table_csv_and_json(new, drawing_task, tmp_path, capsys):
    def predict(out, *options):
        assert run("predict", drawing_task, new, "--out", tmp_path / out, *options) == 0
        return (tmp_path / out).read_text(encoding="utf-8")

    assert run("predict", drawing_task, new) == 0
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 1 + 8
    assert printed == predict("a.txt")
    rows = [json.loads(line) for line in predict("a.jsonl", "--top", 3).splitlines()]
    assert rows == json.loads(predict("a.json", "--top", 3))
    assert all(row["class"] == row["top"][0]["class"] for row in rows)
    assert all(sum(entry["probability"] for entry in row["top"]) <= 1.0001 for row in rows)
    predict("a.csv", "--top", 2)
    assert f"8 images: {tmp_path / 'a.csv'}" in capsys.readouterr().err
    assert list(table_of(tmp_path / "a.csv")[0]) == ["file", "class", "probability", "class_2", "probability_2"]
    assert [row["class"] for row in table_of(tmp_path / "a.csv")] == [row["class"] for row in rows]
    assert run("predict", drawing_task, new, "--csv", "--out", tmp_path / "b.json") == 2
    assert "b.json would hold CSV: give it that ending" in capsys.readouterr().err
    assert not (tmp_path / "b.json").exists()


def test_predict_names_and_skips_a_broken_image_and_ends_with_1(new, drawing_task, tmp_path, capsys):
    shutil.copytree(new, tmp_path / "new")
    (tmp_path / "new" / "broken.jpg").write_bytes(b"nothing")
    assert run("predict", drawing_task, tmp_path / "new", "--csv") == 1
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 1 + 8
    assert "broken.jpg: not an image of a known format" in printed.err
    assert "1 image could not be read" in printed.err


@pytest.mark.parametrize("reject", ["1", "100%", "auto"])
def test_rejected_images_are_unknown_and_keep_their_best_guess(reject, new, five_shot_task, tmp_path, capsys):
    classes, lose = read_task(five_shot_task).classes, ["--lose", "90"] if reject == "auto" else []
    options = "--reject", reject, *lose
    assert run("predict", five_shot_task, new, *options, "--out", tmp_path / "a.csv") == 0
    rows = table_of(tmp_path / "a.csv")
    assert {tuple(row) for row in rows} == {("file", "class", "best_guess", "probability")}  # no cell without a heading
    assert {row["best_guess"] for row in rows} <= set(classes)
    unknown = sum(row["class"] == "unknown" for row in rows)
    assert unknown == 8 or (reject == "auto" and unknown > 0)
    assert run("predict", five_shot_task, new, *options) == 0
    printed = capsys.readouterr().out
    assert sum(printed.count(f"unknown (nearest: {name})") for name in classes) == unknown


def test_reject_auto_loses_more_when_it_may(new, five_shot_task, capsys):
    counts = []
    for lose in ("1%", "0.9"):
        rows = rows_of(capsys, "predict", five_shot_task, new, "--reject", "auto", "--lose", lose)
        counts.append(sum(row["class"] == "unknown" for row in rows))
    assert counts[0] < counts[1]
    (result,) = rows_of(capsys, "score", five_shot_task, new, "--reject", "auto")
    assert result["rejection"]["reject"] == "auto"
    assert 0 <= result["rejection"]["correct_rejected"] <= 1


def test_rejection_that_is_not_possible_is_refused(drawing_folders, new, tmp_path, capsys):
    for (number, folder), name in zip(enumerate((drawing_folders / "fit").iterdir()), ("unknown", "b"), strict=False):
        (tmp_path / "in" / name).mkdir(parents=True)
        shutil.copy(min(folder.iterdir()), tmp_path / "in" / name / f"{number}.png")
    assert run("fit", tmp_path / "in", "--out", tmp_path / "a.task") == 0
    assert "No leave-one-out accuracy" in capsys.readouterr().out
    for command in ("predict", "score"):
        assert run(command, tmp_path / "a.task", new, "--reject", "0.5") == 2
        assert "The task has a class 'unknown'" in capsys.readouterr().err
        assert run(command, tmp_path / "a.task", new, "--reject", "auto") == 2
        assert "needs 2 different images of every class, got 1" in capsys.readouterr().err


def test_predict_sorts_the_least_certain_first(new, drawing_task, capsys):
    rows = rows_of(capsys, "predict", drawing_task, new, "--sort", "confidence")
    probabilities = [row["probability"] for row in rows]
    assert (len(rows), probabilities) == (8, sorted(probabilities))


def test_sort_into_copies_every_image_once_even_of_one_name(new, drawing_task, tmp_path):
    for _ in range(2):
        assert run("predict", drawing_task, new, "--sort-into", tmp_path / "sorted") == 0
    assert len(list((tmp_path / "sorted").glob("*/*.png"))) == 8
    assert {folder.name for folder in (tmp_path / "sorted").iterdir()} <= set(read_task(drawing_task).classes)
    images = sorted(new.glob("*/*.png"))[:2]
    for folder, image in zip("ab", images, strict=True):
        (tmp_path / folder).mkdir()
        shutil.copy(image, tmp_path / folder / "x.png")
        (tmp_path / folder / "list.txt").write_text("x.png\n")
    lists = [tmp_path / folder / "list.txt" for folder in "ab"]
    assert run("predict", drawing_task, *lists, "--sort-into", tmp_path / "two") == 0
    assert {path.read_bytes() for path in (tmp_path / "two").glob("*/*")} == {path.read_bytes() for path in images}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such file names")
@pytest.mark.parametrize("form", ["a.csv", "a.jsonl", "a.json", "a.txt"])
def test_names_that_are_no_text_or_have_line_breaks_do_not_split_a_row(form, new, drawing_task, task_copy, tmp_path):
    (tmp_path / "in").mkdir()
    first, second, *_ = sorted(new.glob("*/*.png"))
    shutil.copy(first, os.fsencode(tmp_path / "in") + b"/\xff\x1b[2J.png")
    shutil.copy(second, tmp_path / "in" / "two\nlines.png")
    assert run("predict", drawing_task, tmp_path / "in", "--out", tmp_path / form) == 0
    written = (tmp_path / form).read_text(encoding="utf-8")
    assert len(written.splitlines()) == {"a.jsonl": 2, "a.json": 4}.get(form, 3)
    assert "\\udcff" in written
    assert "\x1b" not in written
    if form == "a.csv":
        assert run("add", task_copy, "--labels", tmp_path / form) == 0  # predictions come back as labels
        assert len(read_task(task_copy).examples) == 12 + 2


def test_ctrl_c_leaves_whole_lines_of_what_was_done(new, drawing_task, tmp_path, monkeypatch, capsys):
    from tapnet.cli.output import PredictionWriter
    from tapnet.inference import predictor

    monkeypatch.setattr(predictor, "GROUP", 3)
    write = PredictionWriter.write

    def interrupted(self, batch):
        write(self, batch)
        if batch:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(PredictionWriter, "write", interrupted)
    assert run("predict", drawing_task, new, "--out", tmp_path / "a.csv") == 130
    assert "Stopped after" in capsys.readouterr().err
    assert [len(row) for row in table_of(tmp_path / "a.csv")] == [3] * 3
    assert run("predict", drawing_task, new, "--out", tmp_path / "a.json") == 130
    assert len(json.loads((tmp_path / "a.json").read_text())) == 3


def test_a_closed_pipe_ends_quietly(new, drawing_task):
    code = "import sys; from tapnet.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "predict", str(drawing_task), *[str(new)] * 40]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait() == 141  # as a process that SIGPIPE ended
    assert process.stderr.read() == b""
    process.stderr.close()


def test_fit_predict_and_train_run_without_the_modules_of_posix(drawing_folders, new, tmp_path):
    """As on Windows, where neither fcntl nor resource exists; commands to copy are on one line at any width."""
    out = tmp_path / "a folder with a long name, twice as long as usual" / "a.task"
    fit = ["fit", str(drawing_folders / "fit"), "--network", "drawings", "--out", str(out)]
    small = ["training.episodes=2", "validation.episodes=2", "backbone.options.widths=[4, 4, 4, 64]"]
    train = ["train", "quickdraw", "--out", str(tmp_path / "run"), "--no-test", "--set", *small]
    code = (
        "import psutil, sys\n"  # a library chooses its modules by platform itself
        "sys.modules.update(dict.fromkeys(['fcntl', 'resource', 'pwd', 'grp', 'termios']))\n"
        f"from tapnet.cli import main\n"
        f"sys.exit(main({fit!r}) or main({['predict', str(out), str(new)]!r}) or main({train!r}))"
    )
    done = in_process(code, env=os.environ | {"COLUMNS": "20"})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert f"Try: tapnet predict {out} IMAGES" in lines
    assert any(line.startswith("quickdraw: tapnet with conv4 on quickdraw, ") for line in lines)


def test_add_and_remove_change_classes_and_examples(new, drawing_folders, task_copy, tmp_path, capsys):
    (tmp_path / "square").mkdir()
    square = np.zeros((80, 80), np.uint8)
    square[10:70, 10:14] = square[10:70, 66:70] = square[10:14, 10:70] = square[66:70, 10:70] = 255
    Image.fromarray(square).save(tmp_path / "square" / "1.png")
    first, second, *_ = read_task(task_copy).classes
    assert run("add", task_copy, tmp_path / "square" / "1.png") == 0
    assert capsys.readouterr().out == f"1 image added to {task_copy}; new class: square\n"
    (row,) = rows_of(capsys, "predict", task_copy, tmp_path / "square" / "1.png")
    assert row["class"] == "square"
    assert run("remove", task_copy, "square") == 0
    assert capsys.readouterr().out.startswith("1 image removed, 4 classes left")
    assert run("add", task_copy, new / first) == 0
    assert run("remove", task_copy, drawing_folders / "fit" / second / "0.png") == 0
    assert read_task(task_copy).shots() == [5, 2, 3, 3]
    assert run("remove", task_copy, *(drawing_folders / "fit" / second).glob("[12].png")) == 0
    assert f"The task no longer has the class {second}." in capsys.readouterr().out
    assert run("remove", task_copy, first[:-1]) == 2
    assert f"(did you mean {first}?)" in capsys.readouterr().err


def test_of_several_processes_that_add_to_a_task_none_loses_what_another_added(task_copy, new, monkeypatch, capsys):
    code = "import sys; from tapnet.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "add", str(task_copy)]
    images = enumerate(sorted(new.glob("*/*.png"))[:2])
    processes = [subprocess.Popen([*command, str(image), "--class", f"new {number}"]) for number, image in images]
    assert [process.wait() for process in processes] == [0, 0]
    assert {"new 0", "new 1"} <= set(read_task(task_copy).classes)
    monkeypatch.setattr("tapnet.cli.fit._LOCK_SECONDS", 0.2)
    with locked(task_copy):
        assert run("add", task_copy, new, "--class", "more") == 2
    assert f"Another process is changing {task_copy}: run the same command again" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_fit_add_and_score_take_labels(form, drawing_folders, drawing_task, task_copy, tmp_path, capsys):
    for part in ("fit", "new"):
        images = sorted((drawing_folders / part).glob("*/*.png"))
        rows = [(f"{part}/{path.parent.name}/{path.name}", path.parent.name) for path in images]
        with (drawing_folders / f"{part}.{form}").open("w", newline="", encoding="utf-8") as file:
            if form == "csv":
                csv.writer(file).writerows([("path", "label"), *rows])
            else:
                file.write("\n".join(json.dumps({"file": path, "class": label}) for path, label in rows))
    out, labels = tmp_path / "a.task", drawing_folders / f"new.{form}"
    assert run("fit", "--labels", drawing_folders / f"fit.{form}", "--network", "drawings", "--out", out) == 0
    assert out.read_bytes() == drawing_task.read_bytes()
    (result,) = rows_of(capsys, "score", task_copy, "--labels", labels)
    assert result["images"] == 8
    assert run("add", task_copy, "--labels", labels) == 0
    assert len(read_task(task_copy).examples) == 12 + 8


def test_score_counts_every_image_once_and_draws_the_confusion(new, drawing_folders, drawing_task, tmp_path, capsys):
    (result,) = rows_of(capsys, "score", drawing_task, new, "--out", tmp_path / "confusion.png")
    assert np.sum(result["confusion"]) == result["images"] == 8
    assert (tmp_path / "confusion.png").stat().st_size > 10_000
    assert run("score", drawing_task, drawing_folders / "fit", "--json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["fitted"] == json.loads(printed.out)["images"] == 12
    assert "12 of 12 images were examples of the task" in printed.err


def test_score_names_wrong_files_classes_and_thresholds_at_any_width(new, drawing_task, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    first, second, *_ = read_task(drawing_task).classes
    shutil.copytree(new / first, tmp_path / "in" / second)  # all of them mistakes, or nearly
    shutil.copytree(new / second, tmp_path / "in" / "stranger" / "inner")
    assert run("score", drawing_task, tmp_path / "in") == 0
    printed = capsys.readouterr()
    assert "% of 2 images (95% interval " in printed.out
    assert any(line.endswith(f"of 2 images: {second}") for line in printed.out.splitlines())
    assert str(tmp_path / "in" / second) in printed.out
    assert "2 images of classes that the task does not have: stranger" in printed.out
    assert {"--reject", "unknown", "caught"} <= set(printed.out.replace("│", " ").replace("┃", " ").split())
    assert "Images of 1 folder inside that of a class count for it: stranger/inner. If these are" in printed.err


def test_explain_prints_the_answer_and_saves_a_figure(new, drawing_task, tmp_path, capsys):
    assert run("explain", drawing_task, next(new.glob("*/*.png")), "--out", tmp_path / "why.png") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].partition(",")[0] in read_task(drawing_task).classes
    assert printed[-1] == f"Figure: {tmp_path / 'why.png'}"
    with Image.open(tmp_path / "why.png") as drawn:
        assert drawn.width > 1000
    (tmp_path / "a.png").write_bytes(b"nothing")
    assert run("explain", drawing_task, tmp_path / "a.png", "--out", tmp_path / "why.png") == 2
    assert "not an image of a known format" in capsys.readouterr().err


def test_info_tells_what_a_file_holds(drawing_task, capsys):
    for file, words in ((drawing_task, "network"), ("drawings", "accuracy: 0.8146\n")):
        assert run("info", file) == 0
        assert words in capsys.readouterr().out
        assert rows_of(capsys, "info", file)[0]["method"] == "tapnet"
    assert rows_of(capsys, "info", "drawings")[0]["dataset"] == "quickdraw"
    assert "build_metric" in rows_of(capsys, "info", "photos")[0]["origin"]


@pytest.mark.parametrize("network", ["drawings", "characters", "normalized"])
def test_exported_task_gives_the_same_probabilities(network, drawing_folders, new, tmp_path, capsys):
    if network == "normalized":
        recipe = changed(load_recipe("quickdraw"), ["backbone.options.normalize=true"])
        network = tmp_path / "normalized.safetensors"
        weights = recipe.build((1, 28, 28)).state_dict()
        weights["backbone.normalization.running_mean"].uniform_()
        Checkpoint(Header(recipe, (1, 28, 28), episode=0), weights).write(network)
    task, onnx = tmp_path / "a.task", tmp_path / "a.onnx"
    assert run("fit", drawing_folders / "fit", "--network", network, "--out", task) == 0
    assert run("export", task, "--onnx", onnx) == 0
    ours, theirs = (rows_of(capsys, "predict", file, new, "--top", 4) for file in (task, onnx))
    for expected, row in zip(ours, theirs, strict=True):
        probabilities = {entry["class"]: entry["probability"] for entry in expected["top"]}
        assert {entry["class"]: entry["probability"] for entry in row["top"]} == pytest.approx(probabilities, abs=1e-4)


def test_exported_task_predicts_without_torch(new, exported):
    code = "import sys; from tapnet.cli import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    assert in_process(code, "predict", exported, new).stdout.splitlines()[-1] == "False"


def test_onnx_file_that_is_not_one_whole_model_is_refused(exported, tmp_path, capsys):
    import onnx

    onnx.save(
        onnx.load(exported),
        tmp_path / "apart.onnx",
        save_as_external_data=True,
        size_threshold=0,
        location="weights.bin",
    )
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "nonsense.onnx").write_bytes(b"nonsense")
    for name, words in (("apart", "keeps weights in another file"), ("empty", "empty.onnx"), ("nonsense", "nonsense.")):
        assert run("predict", tmp_path / f"{name}.onnx", tmp_path) == 2
        assert words in capsys.readouterr().err


def test_no_command_writes_over_what_it_reads(drawing_folders, new, task_copy, tmp_path, capsys):
    shutil.copytree(drawing_folders / "fit", tmp_path / "fit")
    paths, photo = tmp_path / "list.txt", next((tmp_path / "fit").glob("*/0.png"))
    paths.write_text("\n".join(map(str, new.rglob("*.png"))))
    before = paths.read_bytes(), photo.read_bytes()
    for arguments, words in (
        (("predict", task_copy, paths, "--out", paths), "files that this command reads"),
        (("fit", tmp_path / "fit", "--out", photo), "ends in .task"),
        (("fit", tmp_path / "fit", "--out", task_copy), "choose another name, or replace it with --force."),
        (("score", task_copy, tmp_path / "fit", "--out", photo), "not written by tapnet"),
        (("explain", task_copy, photo, "--out", photo), "not written by tapnet"),
        (("data", "show", "quickdraw", "--out", photo), "not written by tapnet"),
    ):
        assert run(*arguments) == 2
        assert words in capsys.readouterr().err
    assert (paths.read_bytes(), photo.read_bytes()) == before
