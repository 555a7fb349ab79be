"""What a user gets wrong ends in one sentence and exit code 2, before any work."""

import shutil

import pytest
from PIL import Image

from tapnet.cli import main
from tapnet.paths import BEST, bundled_checkpoints
from tapnet.training import Run

ABLATE_WIDE = "ablate distance --recipe quickdraw --way 10 --set training.way=6 method.options.num_references=6"
MISTAKES = [
    ("trian quickdraw", "there is no command trian (did you mean train?)"),
    ("train", "Expected a recipe to start a run"),
    ("train nothing", "no recipe file 'nothing'"),
    ("train quickdraw --set training.episodes=-1", "train: training.episodes=-1: `training.episodes`"),
    ("train quickdraw --set training.epsiodes=9", "not a key of a recipe (did you mean `training.episodes`?)"),
    ("train quickdraw --set trainig.shot=1 seed=3", "trainig.shot=1: `trainig` is not a key"),
    ("train quickdraw --set seed=[1", "seed=[1: the value is not YAML"),
    ("train quickdraw --set data.name=imagenet", "'imagenet'"),
    ("train quickdraw --set data.options.name=x", "the options of a dataset are rotations and one_rotation_per_class"),
    ("train quickdraw --set method.options=3", "method.options"),
    ("train quickdraw --set method.options.projection_dim=abc", "a whole number or None, got 'abc'"),
    ("train quickdraw --from drawings --set training.init_from=characters", "--from and --set training.init_from are"),
    ("train quickdraw --device cuda:9", "is not on this machine"),
    ("train quickdraw --precision int4", "got 'int4'"),
    ("train quickdraw --devices 0", "at least one device"),
    ("train quickdraw --strategy magic", "one of auto, ddp, got 'magic'"),
    ("train quickdraw --set training.meta_batch=7919", "a multiple of training.meta_batch × training.cycles = 7919"),
    ("train quickdraw --from=", "training.init_from"),
    ("train quickdraw --from nowhere", "There is no checkpoint nowhere"),
    ("train --resume nowhere --from drawings", "leave out RECIPE, --out, --from"),
    ("runs empty", "no run in"),
    ("train --resume nowhere", "There is no run in nowhere to resume"),
    ("train quickdraw --resume nowhere", "--resume continues the run in its folder by its recipe: leave out RECIPE"),
    ("evaluate nowhere.safetensors", "no checkpoint nowhere.safetensors"),
    ("evaluate photos", "There is no dataset 'photos' here: choose one of quickdraw, "),
    ("evaluate drawings --split exam", "exam"),
    ("evaluate drawings --episodes 0", "Episodes need episodes >= 1"),
    ("compare one", "at least 2 checkpoints, got 1"),
    ("figure projection nowhere", "There is no checkpoint nowhere"),
    ("figure learning-curve nowhere", "There is nothing at nowhere"),
    ("sweep nowhere.yaml", "There is no file nowhere.yaml"),
    ("sweep mine.yaml --address auto", "add --engine ray"),
    ("sweep mine.yaml --engine ray --workers 0", "at least 1"),
    ("ablate --json", "--json needs the name of an ablation"),
    ("ablate nothing", "An ablation is one of selection"),
    ("ablate selection", "Expected either --checkpoint, to vary a trained network, or --recipe"),
    ("ablate selection --checkpoint drawings --recipe quickdraw", "Expected either --checkpoint"),
    ("ablate selection --recipe quickdraw", "need no training: use --checkpoint"),
    ("ablate distance --checkpoint drawings", "need training: use --recipe"),
    ("ablate selection --checkpoint drawings --out x", "leave them out, or use --recipe"),
    ("ablate gradient --recipe quickdraw --set training.query=99", "101 images per class"),
    ("ablate gradient --recipe quickdraw --set method.options.selection=nothing", "closest, optimal, farthest"),
    (
        ABLATE_WIDE,
        "The variant squared has 6 references, too few for tasks of 10 classes: choose a smaller way. (--way)",
    ),
    ("ablate distance --recipe quickdraw --split tset", "tset"),
    ("ablate distance --recipe quickdraw --shot 99", "99"),
    ("predict nowhere.task .", "There is no task file nowhere.task"),
    ("predict TASK nowhere", "There is no image or folder nowhere"),
    ("predict TASK . --lose 5%", "--lose only applies to --reject auto: add that, or leave --lose out."),
    ("score TASK . --reject 0.6 --lose 5", "--lose only applies to --reject auto"),
    ("predict TASK . --sort-into .", ". is in ., whose images are read: give --sort-into a folder"),
    ("predict TASK . --sort-into new/sorted", "new/sorted is in ., whose images are read"),
    ("predict TASK . --top 9", "Expected `top` from 1 to the number of classes, 4, got 9. (--top)"),
    ("predict TASK . --reject 600", "a probability from 0 to 1, got 6.0. (--reject)"),
    ("predict TASK . --network nowhere", "There is no checkpoint nowhere"),
    ("predict TASK empty --out a.csv", "There is no image in empty. Left out 1, not an image"),
    ("predict TASK . --retry-unreadable", "--retry-unreadable works on Parquet files: add --out NAME.parquet."),
    ("predict TASK . --json --out a.parquet", "cannot be combined with Parquet files: leave them out"),
    ("predict empty .", "empty is a folder, expected a task file"),
    ("predict run .", "run is a trained network, which `tapnet evaluate run` measures"),
    ("predict run/best.safetensors .", "is a trained network"),
    ("remove TASK nothing", "neither a class of the task"),
    ("add TASK empty", "no image in empty"),
    ("add TASK", "--labels FILE, got neither"),
    ("fit --out a.task", "--labels FILE, got neither"),
    ("score TASK . --labels labels.csv", "--labels FILE, got both"),
    ("score TASK --labels labels.csv", "labels.csv, line 2: there is no file nowhere.png"),
    ("fit a.zip --out a.task", "a.zip is a file, expected a folder"),
    ("explain a.onnx a.png", "a.onnx is an exported task, which `tapnet predict` takes"),
    ("evaluate TASK", "is a fitted task, which `tapnet predict"),
    ("info junk.task", "expected a file that `tapnet fit`, `train` or `export` wrote.\n"),
    ("data prepare imagenet --from .", "Datasets to prepare are omniglot"),
    ("data prepare quickdraw --from .", "it needs nothing"),
    ("data prepare folder --from nowhere", "There is nothing at nowhere"),
    ("data prepare omniglot --from empty", "is not a known form of omniglot"),
    ("data prepare folder --from pets --size 0", "1 to 4096 pixels"),
    ("data prepare folder --from pets --filter cubic", "Expected a resize filter (nearest"),
    ("data prepare folder --from pets --fit bend", "squash or crop"),
    ("data prepare folder --from pets --ink dark", "not a set of drawings"),
    ("data prepare folder --from pets --name ../x", "a name of letters"),
    ("data prepare folder --from pets --name omniglot", "a name of its own"),
    ("data check cifar-fs", "is not prepared in"),
    ("data check cars", "There is no dataset 'cars' here: choose one of quickdraw"),
    ("data show quickdraw --split dev --out x.png", "got 'dev'"),
    ("data show quickdraw --way 99 --out x.png", "99-way episodes need 99 classes"),
    ("data show quickdraw --shot 100 --out x.png", "lower `shot` or `query`"),
    ("data show quickdraw --classes 0 --out x.png", "--classes needs at least 1"),
    ("data show quickdraw --episode -1 --out x.png", "numbered from 0"),
    (f"data show quickdraw --episode {2**64} --out x.png", "2**64 - 1"),
    ("data show quickdraw --rotations 3 --out x.png", "`rotations` is 1"),
    ("data list --root /dev/null", "/dev/null is a file"),
]
USAGE = [
    ("evaluate drawings --shoot 3", "unrecognized arguments: --shoot 3"),
    ("fit empty --out empty", "empty is a folder: give the name of a file in it"),
    ("fit empty --out a.zip/b.task", "a.zip is a file, expected a folder"),
    ("predict TASK empty --sort-into a.zip", "a.zip is a file, expected a folder"),
    ("predict TASK empty --out empty/0.png", "ends in .csv or .json"),
    ("score TASK empty --out a.conf", "ends in .png or .pdf or .svg or .jpg, got a.conf"),
    ("export TASK --onnx a.task", "ends in .onnx, got a.task"),
    ("predict TASK https://example.org/bird.jpg", "https://example.org/bird.jpg is an address: download it first"),
    ("score TASK https://example.org/bird", "is an address: download it first"),
    ("predict TASK -", "standard input is not read: save the image as a file first"),
    ("predict TASK empty --reject auto --lose 100", "expected a share such as 5% or 0.05"),
    ("predict TASK empty --reject auto --lose some", "expected a share such as 5% or 0.05, got 'some'"),
    ("predict TASK empty --reject some", "expected a probability such as 0.6 or 60%, or auto, got 'some'"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder: a run, a folder without images, one of pets, and files that are not what they are called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAPNET_DATA", str(tmp_path / "prepared"))
    for place in ("empty", "run", "prepared", "pets/cat"):
        (tmp_path / place).mkdir(parents=True)
    shutil.copy(bundled_checkpoints()["drawings"], tmp_path / "run" / BEST)
    Image.new("RGB", (8, 8)).save(tmp_path / "pets" / "cat" / "1.png")
    for name, content in {"a.zip": "", "a.onnx": "", "junk.task": "junk " * 100, "empty/notes.txt": ""}.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "labels.csv").write_text("path,label\nnowhere.png,circle\n")
    return tmp_path


@pytest.mark.parametrize(("command", "words"), MISTAKES)
def test_a_mistake_ends_in_one_sentence_and_leaves_nothing(command, words, folder, drawing_task, monkeypatch, capsys):
    monkeypatch.setattr(Run, "step", None)  # a step would fail
    before = sorted(folder.rglob("*"))
    assert main([str(drawing_task) if word == "TASK" else word for word in command.split(" ")]) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("command", "words"), USAGE)
def test_a_value_that_cannot_be_parsed_shows_the_usage_of_the_command(command, words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(command.split())
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"usage: tapnet {command.split()[0]}")
    assert words in error
