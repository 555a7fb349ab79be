import csv
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tapnet import TapNetClassifier
from tapnet.checkpoint import Checkpoint, Header
from tapnet.cli import main
from tapnet.inference import read_task
from tapnet.paths import BEST, bundled_checkpoints, locked
from tapnet.recipe import changed, load_recipe


def run(*arguments):
    """The exit code of a command."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return stop.code


@pytest.fixture
def task_copy(drawing_task, tmp_path):
    return shutil.copy(drawing_task, tmp_path / "copy.task")


def test_fit_twice_gives_the_same_bytes(drawing_folders, drawing_task, tmp_path):
    assert run("fit", drawing_folders / "fit", "--out", tmp_path / "again.task") == 0
    assert (tmp_path / "again.task").read_bytes() == drawing_task.read_bytes()


def test_fit_prints_a_leave_one_out_accuracy(drawing_folders, tmp_path, capsys):
    run("fit", drawing_folders / "fit", "--out", tmp_path / "a.task", "--network", "drawings")
    assert "Leave-one-out accuracy" in capsys.readouterr().out


def test_predict_prints_a_line_per_image(drawing_folders, drawing_task, capsys):
    assert run("predict", drawing_task, drawing_folders / "new") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 8
    assert lines[1].endswith(".png")


def test_predict_json_is_one_object_per_line(drawing_folders, drawing_task, capsys):
    assert run("predict", drawing_task, drawing_folders / "new", "--json", "--top", 3) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 8
    assert all(row["class"] == row["top"][0]["class"] for row in rows)
    assert all(sum(entry["probability"] for entry in row["top"]) <= 1.0001 for row in rows)


def test_predict_csv_has_a_heading_and_a_row_per_image(drawing_folders, drawing_task, tmp_path):
    assert run("predict", drawing_task, drawing_folders / "new", "--csv", "--top", 2, "--out", tmp_path / "a.csv") == 0
    with (tmp_path / "a.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert list(rows[0]) == ["file", "class", "probability", "class_2", "probability_2"]


def test_predict_takes_the_form_from_the_ending_of_the_file(drawing_folders, drawing_task, tmp_path, capsys):
    assert run("predict", drawing_task, drawing_folders / "new", "--out", tmp_path / "a.json") == 0
    assert f"8 images: {tmp_path / 'a.json'}" in capsys.readouterr().err
    assert len(json.loads((tmp_path / "a.json").read_text())) == 8
    assert run("predict", drawing_task, drawing_folders / "new", "--out", tmp_path / "a.jsonl") == 0
    assert len([json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]) == 8
    capsys.readouterr()
    assert run("predict", drawing_task, drawing_folders / "new", "--csv", "--out", tmp_path / "b.json") == 2
    assert "b.json would hold CSV: give it that ending" in capsys.readouterr().err
    assert not (tmp_path / "b.json").exists()


def test_predict_names_and_skips_a_broken_image_and_ends_with_1(drawing_folders, drawing_task, tmp_path, capsys):
    shutil.copytree(drawing_folders / "new", tmp_path / "new")
    (tmp_path / "new" / "broken.jpg").write_bytes(b"nothing")
    assert run("predict", drawing_task, tmp_path / "new", "--csv") == 1
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 1 + 8
    assert "broken.jpg: not an image of a known format" in printed.err
    assert "1 image could not be read" in printed.err


def test_predict_says_unknown_below_the_wanted_confidence(drawing_folders, drawing_task, capsys):
    run("predict", drawing_task, drawing_folders / "new", "--json", "--reject", 1)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["class"] for row in rows} == {"unknown"}
    assert {row["best_guess"] for row in rows} <= set(read_task(drawing_task).classes)


def test_predict_refuses_to_reject_where_a_class_is_called_unknown(drawing_folders, tmp_path, capsys):
    for source, name in zip((drawing_folders / "fit").iterdir(), ("unknown", "known"), strict=False):
        (tmp_path / "in" / name).mkdir(parents=True)
        shutil.copy(next(source.iterdir()), tmp_path / "in" / name)
    assert run("fit", tmp_path / "in", "--out", tmp_path / "a.task") == 0
    assert "No leave-one-out accuracy" in capsys.readouterr().out
    assert run("predict", tmp_path / "a.task", tmp_path / "in", "--reject", 0.5) == 2
    assert "The task has a class 'unknown'" in capsys.readouterr().err


def test_predict_sorts_copies_into_folders_and_none_twice(drawing_folders, drawing_task, tmp_path):
    for _ in range(2):
        assert run("predict", drawing_task, drawing_folders / "new", "--sort-into", tmp_path / "sorted") == 0
    assert len(list((tmp_path / "sorted").glob("*/*.png"))) == 8
    assert {folder.name for folder in (tmp_path / "sorted").iterdir()} <= set(read_task(drawing_task).classes)


def test_add_and_remove_a_class(task_copy, tmp_path, capsys):
    (tmp_path / "square").mkdir()
    square = np.zeros((80, 80), np.uint8)
    square[10:70, 10:14] = square[10:70, 66:70] = square[10:14, 10:70] = square[66:70, 10:70] = 255
    Image.fromarray(square).save(tmp_path / "square" / "1.png")
    assert run("add", task_copy, tmp_path / "square" / "1.png") == 0
    assert "square" in read_task(task_copy).classes
    assert run("predict", task_copy, tmp_path / "square" / "1.png", "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["class"] == "square"
    assert run("remove", task_copy, "square") == 0
    assert "square" not in read_task(task_copy).classes


def test_add_more_examples_of_a_class_by_name(drawing_folders, task_copy):
    name = read_task(task_copy).classes[0]
    assert run("add", task_copy, drawing_folders / "new" / name) == 0
    assert read_task(task_copy).shots() == [5, 3, 3, 3]


def test_remove_one_example_by_its_content(drawing_folders, task_copy):
    name = read_task(task_copy).classes[1]
    assert run("remove", task_copy, drawing_folders / "fit" / name / "0.png") == 0
    assert read_task(task_copy).shots() == [3, 2, 3, 3]


def test_score_prints_accuracy_matrix_and_figure(drawing_folders, drawing_task, tmp_path, capsys):
    assert run("score", drawing_task, drawing_folders / "new", "--out", tmp_path / "confusion.png") == 0
    printed = capsys.readouterr().out
    assert "Accuracy" in printed
    assert "95% interval" in printed
    assert (tmp_path / "confusion.png").stat().st_size > 10_000


def test_score_says_how_many_images_were_examples_of_the_task(drawing_folders, drawing_task, capsys):
    assert run("score", drawing_task, drawing_folders / "fit", "--json") == 0
    printed = capsys.readouterr()
    count = json.loads(printed.out)["images"]
    assert json.loads(printed.out)["fitted"] == count
    assert f"{count} of {count} images were examples of the task" in printed.err


def test_score_json_counts_every_image_once(drawing_folders, drawing_task, capsys):
    assert run("score", drawing_task, drawing_folders / "new", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert np.sum(result["confusion"]) == result["images"] == 8


def folder_of(root, **classes):
    for name, count in classes.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            Image.new("L", (30, 30), 10 * number).save(root / name / f"{number}.png")
    return root


def test_fit_refuses_a_folder_that_cannot_be_learned(tmp_path, capsys):
    cases = {
        "one": (folder_of(tmp_path / "one", robin=2), "holds one class with images, 'robin'"),
        "case": (
            folder_of(tmp_path / "case", robin=1, Robin=1),
            "'Robin' and 'robin' have the same name in other case",
        ),
        "spaces": (
            folder_of(tmp_path / "spaces", **{"robin": 1, " robin": 1}),
            "' robin' and 'robin' have the same name in other case or with other spaces",
        ),
        "empty": (folder_of(tmp_path / "empty", robin=1, wren=0), "a folder without images: "),
        "none": (folder_of(tmp_path / "none"), "There is no folder"),
        "twice": (folder_of(tmp_path / "twice", robin=1, wren=1), "are the same image"),
    }
    for folder, words in cases.values():
        assert run("fit", folder, "--network", "drawings", "--out", tmp_path / "a.task") == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "a.task").exists()


def test_fit_refuses_a_class_whose_images_are_all_broken(tmp_path, capsys):
    folder = folder_of(tmp_path / "in", robin=2)
    (folder / "wren").mkdir()
    (folder / "wren" / "a.png").write_bytes(b"nothing")
    assert run("fit", folder, "--network", "drawings", "--out", tmp_path / "a.task") == 2
    assert "No image of class 'wren' can be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["predict", "nowhere.task", "."], "There is no task file nowhere.task"),
        (["predict", "TASK", "nowhere"], "There is no image or folder nowhere"),
        (
            ["predict", "TASK", ".", "--lose", "5%"],
            "--lose only applies to --reject auto: add that, or leave --lose out.",
        ),
        (["predict", "TASK", ".", "--reject", "0.6", "--lose", "5%"], "--lose only applies to --reject auto"),
        (["score", "TASK", ".", "--lose", "0.1"], "--lose only applies to --reject auto"),
        (["predict", "TASK", ".", "--sort-into", "."], ". is in ., whose images are read: give --sort-into a folder"),
        (["predict", "TASK", ".", "--sort-into", "new/sorted"], "new/sorted is in ., whose images are read"),
        (["predict", "TASK", ".", "--top", "9"], "Expected `top` from 1 to the number of classes, 4, got 9. (--top)"),
        (["predict", "TASK", ".", "--reject", "600"], "a probability from 0 to 1, got 6.0. (--reject)"),
        (["predict", "TASK", ".", "--network", "nowhere"], "There is no checkpoint nowhere"),
        (["remove", "TASK", "nothing"], "neither a class of the task"),
        (["add", "TASK", "empty"], "no image in empty"),
        (["add", "TASK", "empty", "--class", " "], "--class needs the name of a class, got ' '"),
        (["evaluate", "TASK"], "is a fitted task, which `tapnet predict"),
        (["predict", "empty", "."], "empty is a folder, expected a task file"),
        (["predict", "run", "."], "run is a trained network, which `tapnet evaluate run` measures"),
        (["predict", "run/best.safetensors", "."], "is a trained network"),
        (["fit", "a.zip", "--out", "a.task"], "a.zip is a file, expected a folder"),
        (["explain", "a.onnx", "a.png"], "a.onnx is an exported task, which `tapnet predict` takes"),
    ],
)
def test_a_mistake_with_images_ends_in_one_sentence(arguments, words, drawing_task, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "run").mkdir()
    shutil.copy(bundled_checkpoints()["drawings"], tmp_path / "run" / BEST)
    (tmp_path / "a.zip").write_bytes(b"")
    (tmp_path / "a.onnx").write_bytes(b"")
    assert run(*(drawing_task if argument == "TASK" else argument for argument in arguments)) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fit", "in", "--out", "in"], "in is a folder: give the name of a file in it"),
        (["fit", "in", "--out", "a.txt/b.task"], "a.txt is a file, expected a folder"),
        (["predict", "TASK", "in", "--out", "in"], "in is a folder: give the name of a file in it"),
        (["predict", "TASK", "in", "--sort-into", "a.txt"], "a.txt is a file, expected a folder"),
        (["predict", "TASK", "in", "--out", "in/0.png"], "ends in .csv or .json"),
        (["predict", "TASK", "in", "--out", "b.task"], "ends in .csv or .json"),
        (["score", "TASK", "in", "--out", "a.conf"], "ends in .png or .pdf or .svg or .jpg, got a.conf"),
        (["explain", "TASK", "a.txt", "--out", "a.conf"], "ends in .png"),
        (["export", "TASK", "--onnx", "a.task"], "ends in .onnx, got a.task"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_any_work(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "a.txt").write_text("")
    assert run(*arguments) == 2
    assert words in capsys.readouterr().err


def test_no_command_writes_over_what_it_reads(drawing_folders, task_copy, tmp_path, capsys):
    images = sorted((drawing_folders / "new").rglob("*.png"))
    paths, photo = tmp_path / "list.txt", tmp_path / "fit" / "a" / images[0].with_suffix(".png").name
    paths.write_text("\n".join(map(str, images)))
    shutil.copytree(drawing_folders / "fit", tmp_path / "fit")
    photo.parent.mkdir()
    shutil.copy(images[0], photo)
    before = paths.read_bytes(), photo.read_bytes()
    for arguments in (
        ("predict", task_copy, paths, "--out", paths),
        ("fit", tmp_path / "fit", "--out", photo),
        ("score", task_copy, tmp_path / "fit", "--out", photo),
        ("explain", task_copy, photo, "--out", photo),
        ("data", "show", "quickdraw", "--out", photo),
    ):
        assert run(*arguments) == 2
        error = capsys.readouterr().err
        assert "files that this command reads" in error or "not written by tapnet" in error or "ends in .task" in error
    assert (paths.read_bytes(), photo.read_bytes()) == before


def test_predict_of_a_folder_without_images_ends_in_one_sentence(drawing_task, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "notes.txt").touch()
    assert run("predict", drawing_task, tmp_path / "in", "--csv", "--out", tmp_path / "a.csv") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"tapnet predict: There is no image in {tmp_path / 'in'}. Left out 1, not an image")
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "a.csv").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--method", "banana"], "can be fitted by tapnet, protonet, centroid, logistic, got 'banana'. (--method)"),
        (["--selection", "banana"], "is one of closest, optimal, farthest, got 'banana'"),
        (["--method", "maml"], "can be fitted by tapnet, protonet, centroid, logistic, got 'maml'. (--method)"),
        (["--network", "drawings"], "61 classes are more than the 60"),
    ],
)
def test_fit_refuses_its_options_before_any_image_is_read(options, words, tmp_path, monkeypatch, capsys):
    from tapnet.inference import fitting

    for number in range(61):
        (tmp_path / "in" / f"{number}").mkdir(parents=True)
        Image.new("L", (9, 9), number).save(tmp_path / "in" / f"{number}" / "1.png")
    monkeypatch.setattr(fitting, "read_labeled", None)
    assert run("fit", tmp_path / "in", "--network", "drawings", *options, "--out", tmp_path / "a.task") == 2
    assert words in capsys.readouterr().err


def test_one_image_is_not_images(drawing_folders, task_copy, tmp_path, capsys):
    name = read_task(task_copy).classes[0]
    run("add", task_copy, drawing_folders / "new" / name / "3.png")
    assert capsys.readouterr().out.startswith("1 image added to ")
    run("remove", task_copy, drawing_folders / "new" / name / "3.png")
    assert capsys.readouterr().out.startswith("1 image removed, 4 classes left")
    shutil.copytree(drawing_folders / "fit" / name, tmp_path / "in" / name)
    for number in (1, 2):
        (tmp_path / "in" / name / f"{number}.png").unlink()
    run("score", task_copy, tmp_path / "in")
    assert "of 1 image (95%" in capsys.readouterr().out


def test_ctrl_c_leaves_whole_lines_of_what_was_done(drawing_folders, drawing_task, tmp_path, monkeypatch, capsys):
    from tapnet.cli.output import PredictionWriter
    from tapnet.inference import predictor

    monkeypatch.setattr(predictor, "GROUP", 3)
    write = PredictionWriter.write

    def interrupted(self, batch):
        write(self, batch)
        if batch:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(PredictionWriter, "write", interrupted)
    out = tmp_path / "a.csv"
    assert run("predict", drawing_task, drawing_folders / "new", "--csv", "--out", out) == 130
    assert "Stopped after" in capsys.readouterr().err
    with out.open(encoding="utf-8") as file:
        assert [len(row) for row in csv.reader(file)] == [3] * 4
    assert run("predict", drawing_task, drawing_folders / "new", "--out", tmp_path / "a.json") == 130
    assert len(json.loads((tmp_path / "a.json").read_text())) == 3


@pytest.fixture(scope="module")
def exported(drawing_task):
    path = drawing_task.with_suffix(".onnx")
    assert run("export", drawing_task, "--onnx", path) == 0
    return path


def rows_of(capsys, *arguments):
    assert run(*arguments, "--json", "--top", 4) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("network", ["drawings", "characters", "normalized"])
def test_exported_task_gives_the_same_probabilities(network, drawing_folders, tmp_path, capsys):
    if network == "normalized":
        recipe = changed(load_recipe("quickdraw"), ["backbone.options.normalize=true"])
        network = tmp_path / "normalized.safetensors"
        weights = recipe.build((1, 28, 28)).state_dict()
        weights["backbone.normalization.running_mean"].uniform_()
        Checkpoint(Header(recipe, (1, 28, 28), episode=0), weights).write(network)
    task, onnx = tmp_path / "a.task", tmp_path / "a.onnx"
    assert run("fit", drawing_folders / "fit", "--network", network, "--out", task) == 0
    assert run("export", task, "--onnx", onnx) == 0
    capsys.readouterr()
    for ours, theirs in zip(
        rows_of(capsys, "predict", task, drawing_folders / "new"),
        rows_of(capsys, "predict", onnx, drawing_folders / "new"),
        strict=True,
    ):
        expected = {entry["class"]: entry["probability"] for entry in ours["top"]}
        assert {entry["class"]: entry["probability"] for entry in theirs["top"]} == pytest.approx(expected, abs=1e-4)


def test_exported_task_predicts_without_torch(drawing_folders, exported):
    code = (
        "import sys; from tapnet.cli import main\n"
        f"assert main(['predict', {str(exported)!r}, {str(drawing_folders / 'new')!r}]) == 0\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_onnx_file_with_data_elsewhere_is_refused(exported, tmp_path, capsys):
    import onnx

    model = onnx.load(exported)
    onnx.save(model, tmp_path / "a.onnx", save_as_external_data=True, size_threshold=0, location="weights.bin")
    assert run("predict", tmp_path / "a.onnx", tmp_path) == 2
    assert "keeps weights in another file, which is refused" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"nonsense"])
def test_onnx_file_that_is_none_is_refused(content, tmp_path, capsys):
    (tmp_path / "a.onnx").write_bytes(content)
    assert run("predict", tmp_path / "a.onnx", tmp_path) == 2
    assert "a.onnx" in capsys.readouterr().err


def test_evaluate_refuses_classes_that_the_backbone_was_pretrained_on(capsys):
    assert run("evaluate", "efficientnet-lite0", "--dataset", "mini-imagenet") == 2
    assert "and the result says so. (--allow-overlap)" in capsys.readouterr().err


def test_evaluate_takes_a_bundled_network_by_name(capsys):
    assert run("evaluate", "drawings", "--episodes", 20, "--split", "val", "--json") == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["accuracy"] > 0.7


def test_explain_prints_the_answer_and_saves_a_figure(drawing_folders, drawing_task, tmp_path, capsys):
    image = next((drawing_folders / "new").glob("*/*.png"))
    assert run("explain", drawing_task, image, "--out", tmp_path / "why.png") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].partition(",")[0] in read_task(drawing_task).classes
    assert printed[-1] == f"Figure: {tmp_path / 'why.png'}"
    with Image.open(tmp_path / "why.png") as drawn:
        assert drawn.width > 1000


def test_explain_says_why_a_broken_image_cannot_be_shown(drawing_task, tmp_path, capsys):
    (tmp_path / "a.png").write_bytes(b"nothing")
    assert run("explain", drawing_task, tmp_path / "a.png", "--out", tmp_path / "why.png") == 2
    assert "not an image of a known format" in capsys.readouterr().err


def test_fit_chooses_the_network_by_the_images(drawing_folders, tmp_path, capsys):
    for name, color in (("red", (200, 30, 30)), ("green", (30, 200, 30))):
        (tmp_path / "in" / name).mkdir(parents=True)
        Image.new("RGB", (60, 60), color).save(tmp_path / "in" / name / "1.jpg")
    assert run("fit", tmp_path / "in", "--out", tmp_path / "a.task") == 0
    printed = capsys.readouterr().out
    assert "Network photos (2 of 2 images looked at: photographs)" in printed
    assert run("fit", drawing_folders / "fit", "--out", tmp_path / "b.task") == 0
    assert "Network drawings (12 of 12 images looked at: line drawings)" in capsys.readouterr().out


def test_fit_and_predict_take_a_hugging_face_model_by_its_folder(drawing_folders, tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **sizes))
    model.save_pretrained(tmp_path / "vit")
    options = "--network", f"hf:{tmp_path / 'vit'}", "--out", tmp_path / "a.task"
    assert run("fit", drawing_folders / "fit", *options) == 0
    assert "method centroid" in capsys.readouterr().out
    assert run("predict", tmp_path / "a.task", drawing_folders / "new", "--csv", "--out", tmp_path / "a.csv") == 0
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 1 + 8
    shutil.rmtree(tmp_path / "vit")
    capsys.readouterr()
    assert run("predict", tmp_path / "a.task", drawing_folders / "new") == 2
    assert "give the path to its checkpoint. (--network)" in capsys.readouterr().err


def test_fit_of_more_classes_than_references_names_the_networks_that_take_more(tmp_path, capsys):
    for number in range(61):
        (tmp_path / "in" / f"{number}").mkdir(parents=True)
        pixels = np.zeros((30, 30), np.uint8)
        pixels[5 : 10 + number % 15, number % 7 + 5 : 25] = 55 + number
        Image.fromarray(pixels).save(tmp_path / "in" / f"{number}" / "1.png")
    assert run("fit", tmp_path / "in", "--network", "drawings", "--out", tmp_path / "a.task") == 2
    error = capsys.readouterr().err
    assert "61 classes are more than the 60 that the network 'drawings' takes" in error
    assert "efficientnet-lite0" in error
    assert error.rstrip().endswith("(--method)")


@pytest.mark.parametrize("columns", ["20", "300"])
def test_commands_to_copy_stay_on_one_line(columns, drawing_folders, tmp_path):
    out = tmp_path / "a folder with a long name, twice as long as usual" / "a.task"
    code = f"from tapnet.cli import main; main(['fit', {str(drawing_folders / 'fit')!r}, '--out', {str(out)!r}])"
    environment = os.environ | {"COLUMNS": columns}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert f"Try: tapnet predict {out} IMAGES" in done.stdout.splitlines()


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


def test_fit_of_splits_suggests_the_training_one(drawing_folders, tmp_path, capsys):
    shutil.copytree(drawing_folders / "fit", tmp_path / "in" / "train")
    shutil.copytree(drawing_folders / "new", tmp_path / "in" / "test")
    assert run("fit", tmp_path / "in", "--out", tmp_path / "a.task") == 2
    assert f"give {tmp_path / 'in' / 'train'} instead" in capsys.readouterr().err


def test_fit_of_a_folder_above_the_classes_suggests_theirs(drawing_folders, tmp_path, capsys):
    shutil.copytree(drawing_folders / "fit", tmp_path / "in" / "images")
    assert run("fit", tmp_path / "in", "--out", tmp_path / "a.task") == 2
    assert f"If its folders are the classes, give {tmp_path / 'in' / 'images'}." in capsys.readouterr().err


@pytest.mark.parametrize("command", ["predict", "add", "explain", "score"])
def test_an_address_is_to_be_downloaded_first(command, drawing_task, capsys):
    assert run(command, drawing_task, "https://example.org/bird.jpg") == 2
    assert "https://example.org/bird.jpg is an address: download it first" in capsys.readouterr().err


def test_standard_input_is_to_be_saved_first(drawing_task, capsys):
    assert run("predict", drawing_task, "-") == 2
    assert "standard input is not read: save the image as a file first" in capsys.readouterr().err


def test_table_has_the_nearest_class_of_a_rejected_image_in_brackets(drawing_folders, drawing_task, capsys):
    assert run("predict", drawing_task, drawing_folders / "new", "--reject", "1") == 0
    _, *lines = capsys.readouterr().out.splitlines()
    classes = read_task(drawing_task).classes
    assert all(any(line.startswith(f"unknown (nearest: {name})") for name in classes) for line in lines)


def test_rejected_images_keep_their_best_guess_in_a_column(drawing_folders, drawing_task, tmp_path):
    out = tmp_path / "a.csv"
    assert run("predict", drawing_task, drawing_folders / "new", "--reject", 1, "--out", out) == 0
    with out.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["class"] for row in rows} == {"unknown"}
    assert {row["best_guess"] for row in rows} <= set(read_task(drawing_task).classes)


@pytest.mark.parametrize("form", ["a.csv", "a.jsonl", "a.txt"])
def test_newline_in_a_file_name_does_not_split_a_row(form, drawing_folders, drawing_task, tmp_path):
    image = next((drawing_folders / "new").glob("*/*.png"))
    (tmp_path / "in").mkdir()
    shutil.copy(image, tmp_path / "in" / "two\nlines.png")
    assert run("predict", drawing_task, tmp_path / "in", "--out", tmp_path / form) == 0
    assert len((tmp_path / form).read_text().splitlines()) == (1 if form == "a.jsonl" else 2)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such file names")
@pytest.mark.parametrize("form", ["a.csv", "a.jsonl", "a.json", "a.txt"])
def test_bytes_of_a_file_name_that_are_no_text_are_written_escaped(form, drawing_folders, drawing_task, tmp_path):
    image = next((drawing_folders / "new").glob("*/*.png"))
    (tmp_path / "in").mkdir()
    shutil.copy(image, os.fsencode(tmp_path / "in") + b"/\xff\x1b[2J.png")
    assert run("predict", drawing_task, tmp_path / "in", "--out", tmp_path / form) == 0
    written = (tmp_path / form).read_text(encoding="utf-8")
    assert "\\udcff" in written
    assert "\x1b" not in written


def test_of_several_processes_that_add_to_a_task_none_loses_what_another_added(task_copy, drawing_folders):
    code = "import sys; from tapnet.cli import main; sys.exit(main(sys.argv[1:]))"
    images = sorted((drawing_folders / "new").glob("*/*.png"))[:2]
    command = [sys.executable, "-c", code, "add", str(task_copy)]
    processes = [
        subprocess.Popen([*command, str(image), "--class", f"new {number}"]) for number, image in enumerate(images)
    ]
    assert [process.wait() for process in processes] == [0, 0]
    assert {"new 0", "new 1"} <= set(read_task(task_copy).classes)


def test_add_waits_for_another_process_and_then_gives_up(task_copy, drawing_folders, monkeypatch, capsys):
    monkeypatch.setattr("tapnet.cli.fit._LOCK_SECONDS", 0.2)
    with locked(task_copy):
        assert run("add", task_copy, drawing_folders / "new", "--class", "more") == 2
    assert f"Another process is changing {task_copy}: run the same command again" in capsys.readouterr().err


def test_output_that_is_closed_is_no_error():
    command = f"{shlex.quote(sys.executable)} -m tapnet recipes >&-"
    ended = subprocess.run(["/bin/sh", "-c", command], stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_remove_says_when_a_class_is_gone(task_copy, drawing_folders, capsys):
    name = read_task(task_copy).classes[0]
    assert run("remove", task_copy, *(drawing_folders / "fit" / name).iterdir()) == 0
    assert f"The task no longer has the class {name}." in capsys.readouterr().out


def test_score_names_wrong_files_and_accuracy_per_class_and_thresholds(drawing_folders, drawing_task, tmp_path, capsys):
    first, second, *_ = read_task(drawing_task).classes
    shutil.copytree(drawing_folders / "new" / first, tmp_path / "in" / second)  # all of them mistakes, or nearly
    shutil.copytree(drawing_folders / "new" / second, tmp_path / "in" / "stranger")
    assert run("score", drawing_task, tmp_path / "in") == 0
    printed = capsys.readouterr().out
    assert any(line.endswith(f"of 2 images: {second}") for line in printed.splitlines())
    assert str(tmp_path / "in" / second) in printed
    assert "2 images of classes that the task does not have: stranger" in printed
    assert {"--reject", "unknown", "caught"} <= set(printed.replace("│", " ").replace("┃", " ").split())  # any width


def test_info_of_a_network_shows_its_origin_and_dataset(capsys):
    assert run("info", "photos", "--json") == 0
    assert "build_metric" in json.loads(capsys.readouterr().out)["origin"]
    assert run("info", "drawings", "--json") == 0
    assert json.loads(capsys.readouterr().out)["dataset"] == "quickdraw"


def test_score_at_a_narrow_width_keeps_names_whole(drawing_folders, drawing_task, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    assert run("score", drawing_task, drawing_folders / "new") == 0
    printed = capsys.readouterr().out
    assert all(
        any(line.endswith(f": {name}") for line in printed.splitlines()) for name in read_task(drawing_task).classes
    )


@pytest.mark.parametrize("what", ["TASK", "drawings"])
def test_info_tells_what_a_file_holds(what, drawing_task, capsys):
    assert run("info", drawing_task if what == "TASK" else what) == 0
    words = capsys.readouterr().out
    assert "tapnet" in words
    assert ("network" if what == "TASK" else "recipe") in words
    assert run("info", drawing_task if what == "TASK" else what, "--json") == 0
    assert json.loads(capsys.readouterr().out)["method"] == "tapnet"


def test_info_shortens_long_numbers(capsys):
    assert run("info", "drawings") == 0
    printed = capsys.readouterr().out
    assert "accuracy: 0.8146\n" in printed
    assert "centred: True" in printed


def test_a_closed_pipe_ends_quietly(drawing_folders, drawing_task):
    code = (
        "import sys; from tapnet.cli import main\n"
        f"sys.exit(main(['predict', {str(drawing_task)!r}, *[{str(drawing_folders / 'new')!r}] * 40]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait() == 141  # as a process that SIGPIPE ended
    assert process.stderr.read() == b""
    process.stderr.close()


def test_fit_predict_and_train_run_without_the_modules_of_posix(drawing_folders, tmp_path):
    """As on Windows, where neither fcntl nor resource exists."""
    fit = ["fit", str(drawing_folders / "fit"), "--network", "drawings", "--out", str(tmp_path / "a.task")]
    predict = ["predict", str(tmp_path / "a.task"), str(drawing_folders / "new")]
    small = ["training.episodes=2", "validation.episodes=2", "backbone.options.widths=[4, 4, 4, 64]"]
    train = ["train", "quickdraw", "--out", str(tmp_path / "run"), "--no-test", "--set", *small]
    code = (
        "import psutil, sys\n"  # a library chooses its modules by platform itself
        "sys.modules.update(dict.fromkeys(['fcntl', 'resource', 'pwd', 'grp', 'termios']))\n"
        f"from tapnet.cli import main; sys.exit(main({fit!r}) or main({predict!r}) or main({train!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 8


def test_fit_compares_the_methods_and_says_how_to_take_another(drawing_folders, tmp_path, capsys):
    out = tmp_path / "a.task"
    assert run("fit", drawing_folders / "fit", "--network", "drawings", "--out", out) == 0
    printed = capsys.readouterr().out.splitlines()
    start = next(
        number for number, line in enumerate(printed) if line.startswith("Leave-one-out accuracy on 12 images")
    )
    rows = printed[start + 1 : start + 6]
    assert rows[0].endswith("  tapnet with references worth 2 images (this task)")
    assert {row.split()[-1] for row in rows[1:]} == {"tapnet", "protonet", "centroid", "logistic"}


def test_fit_names_the_method_that_it_chose_and_why(drawing_folders, tmp_path, capsys):
    assert run("fit", drawing_folders / "fit", "--network", "drawings", "--out", tmp_path / "a.task") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Method tapnet (the best on validation classes for networks with references)" in printed


def test_fit_by_tapnet_is_the_papers(drawing_folders, tmp_path):
    out = tmp_path / "a.task"
    assert run("fit", drawing_folders / "fit", "--network", "drawings", "--method", "tapnet", "--out", out) == 0
    assert read_task(out).options == {}


@pytest.fixture
def label_files(drawing_folders):
    """CSV and JSON lines files that label fit/ and new/ with paths relative to them."""
    for part in ("fit", "new"):
        rows = [(f"{part}/{path.parent.name}/{path.name}", path.parent.name) for path in _images(drawing_folders, part)]
        with (drawing_folders / f"{part}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("path", "label"), *rows])
        lines = [json.dumps({"file": path, "class": label}) for path, label in rows]
        (drawing_folders / f"{part}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return drawing_folders


def _images(root, part):
    return sorted((root / part).glob("*/*.png"))


def test_fit_by_labels_gives_the_task_of_the_folders(label_files, drawing_task, tmp_path):
    for form in ("csv", "jsonl"):
        out = tmp_path / f"{form}.task"
        assert run("fit", "--labels", label_files / f"fit.{form}", "--network", "drawings", "--out", out) == 0
        assert out.read_bytes() == drawing_task.read_bytes()


def test_add_and_score_take_labels(label_files, task_copy, capsys):
    assert run("score", task_copy, "--labels", label_files / "new.csv", "--json") == 0
    assert json.loads(capsys.readouterr().out)["images"] == 8
    assert run("add", task_copy, "--labels", label_files / "new.jsonl") == 0
    assert len(read_task(task_copy).examples) == 12 + 8


@pytest.mark.parametrize(
    "arguments",
    [("fit", "--out", "a.task"), ("score", "TASK"), ("add", "TASK"), ("score", "TASK", "in", "--labels", "LABELS")],
)
def test_labels_and_folders_are_not_mixed(arguments, label_files, drawing_task, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    places = {"TASK": drawing_task, "LABELS": label_files / "new.csv"}
    assert run(*(places.get(argument, argument) for argument in arguments)) == 2
    assert "--labels FILE, got" in capsys.readouterr().err


def test_wrong_row_of_labels_ends_in_one_sentence_with_its_line(drawing_task, tmp_path, capsys):
    (tmp_path / "labels.csv").write_text("path,label\nnowhere.png,circle\n")
    assert run("score", drawing_task, "--labels", tmp_path / "labels.csv") == 2
    assert f"{tmp_path / 'labels.csv'}, line 2: there is no file nowhere.png" in capsys.readouterr().err


def test_predictions_come_back_as_labels(drawing_folders, task_copy, tmp_path, capsys):
    out = tmp_path / "found" / "new.csv"
    assert run("predict", task_copy, drawing_folders / "new", "--reject", 0.5, "--out", out) == 0
    with out.open(encoding="utf-8") as file:
        named = [row for row in csv.DictReader(file) if row["class"] != "unknown"]
    assert run("add", task_copy, "--labels", out) == 0
    assert len(read_task(task_copy).examples) == 12 + len(named)
    capsys.readouterr()


def test_predict_sorts_the_least_certain_first(drawing_folders, drawing_task, capsys):
    assert run("predict", drawing_task, drawing_folders / "new", "--sort", "confidence", "--json") == 0
    found = [json.loads(line)["probability"] for line in capsys.readouterr().out.splitlines()]
    assert len(found) == 8
    assert found == sorted(found)


@pytest.fixture(scope="module")
def five_shot_task(drawing_folders, tmp_path_factory):
    """A task with five examples of each class: those of fit/ and new/."""
    path = tmp_path_factory.mktemp("five") / "a.task"
    shutil.copy(drawing_folders / "drawings.task", path)
    assert run("add", path, drawing_folders / "new") == 0
    return path


def test_reject_auto_asks_for_two_images_per_class_in_one_sentence(drawing_folders, tmp_path, capsys):
    for folder in (drawing_folders / "fit").iterdir():
        (tmp_path / "one" / folder.name).mkdir(parents=True)
        shutil.copy(min(folder.iterdir()), tmp_path / "one" / folder.name)
    task = tmp_path / "one.task"
    assert run("fit", tmp_path / "one", "--out", task) == 0
    for command in ("predict", "score"):
        assert run(command, task, drawing_folders / "new", "--reject", "auto") == 2
        error = capsys.readouterr().err
        assert "needs 2 different images of every class, got 1" in error
        assert error.rstrip().endswith("(--reject)")


def test_predict_rejects_by_the_examples_and_keeps_the_best_guess(drawing_folders, five_shot_task, capsys):
    counts = []
    for lose in ("1%", "0.9"):
        arguments = "--reject", "auto", "--lose", lose, "--json"
        assert run("predict", five_shot_task, drawing_folders / "new", *arguments) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert {row["best_guess"] for row in rows} <= set(read_task(five_shot_task).classes)
        counts.append(sum(row["class"] == "unknown" for row in rows))
    assert counts[0] < counts[1]


def test_score_says_what_rejecting_by_the_examples_does(drawing_folders, five_shot_task, capsys):
    assert run("score", five_shot_task, drawing_folders / "new", "--reject", "auto", "--json") == 0
    found = json.loads(capsys.readouterr().out)["rejection"]
    assert found["reject"] == "auto"
    assert 0 <= found["correct_rejected"] <= 1
    assert run("score", five_shot_task, drawing_folders / "new", "--reject", "auto") == 0
    assert any(" auto " in line for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("lose", ["100", "0", "100%", "some"])
def test_lose_takes_a_share(lose, drawing_folders, drawing_task, capsys):
    assert run("predict", drawing_task, drawing_folders / "new", "--reject", "auto", "--lose", lose) == 2
    assert "expected a share such as 5% or 0.05" in capsys.readouterr().err


def test_fit_of_heic_photographs_says_what_to_install(tmp_path, monkeypatch, capsys):
    pillow_heif = pytest.importorskip("pillow_heif")
    from tapnet.data import preprocessing

    for name, value in (("a", 40), ("b", 200)):
        (tmp_path / "in" / name).mkdir(parents=True)
        photograph = pillow_heif.from_pillow(Image.new("RGB", (64, 64), (value, 90, 30)))
        photograph.save(tmp_path / "in" / name / "1.heic")
    assert run("fit", tmp_path / "in", "--network", "photos-fast", "--out", tmp_path / "a.task") == 0
    monkeypatch.setattr(preprocessing, "readable_formats", lambda: ("JPEG", "PNG"))
    assert run("fit", tmp_path / "in", "--network", "photos-fast", "--out", tmp_path / "b.task") == 2
    assert "1.heic: HEIF and AVIF images need another package: pip install 'tapnet[heif]'" in capsys.readouterr().err


def test_task_of_feature_vectors_refuses_images_before_anything_is_printed(drawing_folders, tmp_path, capsys):
    TapNetClassifier().fit(np.eye(4), ["a", "a", "b", "b"]).save(tmp_path / "vectors.task")
    assert main(["predict", str(tmp_path / "vectors.task"), str(drawing_folders / "new")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "fitted to feature vectors: give such vectors, not images." in printed.err


def test_sort_into_keeps_images_of_one_name_in_two_lists(drawing_folders, drawing_task, tmp_path):
    images = sorted((drawing_folders / "new").glob("*/*.png"))[:2]
    for folder, image in zip("ab", images, strict=True):
        (tmp_path / folder).mkdir()
        shutil.copy(image, tmp_path / folder / "x.png")
        (tmp_path / folder / "list.txt").write_text("x.png\n")
    lists = [tmp_path / folder / "list.txt" for folder in "ab"]
    assert run("predict", drawing_task, *lists, "--sort-into", tmp_path / "sorted") == 0
    assert {path.read_bytes() for path in (tmp_path / "sorted").glob("*/*")} == {path.read_bytes() for path in images}


def test_folders_inside_that_of_a_class_are_named(drawing_folders, drawing_task, tmp_path, capsys):
    for path in (drawing_folders / "new").glob("*/*.png"):
        (tmp_path / "in" / path.parent.name / path.stem).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / "in" / path.parent.name / path.stem)
    assert run("score", drawing_task, tmp_path / "in") == 0
    first = min((tmp_path / "in").iterdir())
    said = capsys.readouterr().err
    assert f"Images of 8 folders inside that of a class count for it: {first.name}/3, {first.name}/4" in said
    assert f"and 5 more. If these are the classes, give the folder that holds them, such as {first}." in said


def test_info_of_another_file_is_one_sentence(tmp_path, capsys):
    (tmp_path / "junk.task").write_bytes(b"junk " * 100)
    assert run("info", tmp_path / "junk.task") == 2
    said = capsys.readouterr().err
    assert said.endswith("expected a file that `tapnet fit`, `train` or `export` wrote.\n")
    assert "header" not in said


@pytest.mark.parametrize("command", ["predict", "score", "add", "explain", "remove"])
def test_missing_task_file_is_reported_before_pytorch_is_imported(command, tmp_path):
    lines = "import sys", "from tapnet.cli import main", f"main(['{command}', 'nowhere.task', '.'])"
    code = "; ".join((*lines, "print('torch' in sys.modules)"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert "There is no task file nowhere.task" in done.stderr
    assert done.stdout == "False\n"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such file names")
def test_predictions_of_a_file_with_a_line_break_in_its_name_can_be_added(task_copy, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    Image.effect_noise((60, 60), 80).save(tmp_path / "in" / "two\nlines.png")
    assert run("predict", task_copy, tmp_path / "in", "--out", tmp_path / "a.csv") == 0
    assert run("add", task_copy, "--labels", tmp_path / "a.csv") == 0
    assert "1 image added" in capsys.readouterr().out


def colored_photographs(root):
    generator = np.random.default_rng(0)
    for name, color in (("robin", (200, 60, 30)), ("wren", (40, 60, 200))):
        (root / name).mkdir(parents=True)
        for number in range(2):
            pixels = np.clip(generator.normal(color, 40, (40, 50, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).resize((200, 160)).save(root / name / f"{number}.png")
    return root


def test_fit_of_photographs_with_a_network_for_drawings_says_so(tmp_path, capsys):
    folder = colored_photographs(tmp_path / "in")
    assert run("fit", folder, "--network", "drawings", "--out", tmp_path / "a.task") == 0
    assert "These look like photographs, and drawings is a network for drawings" in capsys.readouterr().err


def test_fit_of_drawings_with_a_network_for_drawings_says_nothing(drawing_folders, tmp_path, capsys):
    assert run("fit", drawing_folders / "fit", "--network", "drawings", "--out", tmp_path / "a.task") == 0
    assert "photographs" not in capsys.readouterr().err
