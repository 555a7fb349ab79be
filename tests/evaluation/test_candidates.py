import json
from dataclasses import replace

import pytest

from tapnet.data import load_dataset
from tapnet.data.packed import Manifest
from tapnet.data.preprocessing import Preprocessing
from tapnet.errors import UserError
from tapnet.evaluation.candidates import Candidate, EvaluationData, class_overlap, pretrained_on, source_dataset
from tapnet.methods import PrototypicalNetwork
from tapnet.recipe import load_recipe


def test_candidate_is_a_checkpoint_with_the_test_classes_of_its_dataset():
    opened = Candidate.open("drawings", EvaluationData())
    assert (opened.evaluator.images.name, opened.evaluator.images.split) == ("quickdraw", "test")
    assert opened.overlap.trained_on == opened.overlap.validated_on == 0
    assert not opened.overlap.notes()


def test_candidate_on_its_validation_classes_says_that_they_chose_it():
    overlap = Candidate.open("drawings", EvaluationData(split="val")).overlap
    assert overlap.validated_on == 45
    assert overlap.notes()[0] == "Its checkpoint was chosen on 45 of these 45 classes."


def test_candidate_refuses_images_of_another_size(blobs, monkeypatch):
    monkeypatch.setattr(EvaluationData, "load", lambda *_: blobs)
    with pytest.raises(UserError, match=r"takes images of 28×28 with 1 channel, those of blobs are 8×8"):
        Candidate.open("drawings", EvaluationData())


def test_validation_classes_of_a_trainval_network_were_trained_on(small_tapnet):
    recipe = load_recipe("quickdraw", ["data.train_split=trainval"])
    overlap = class_overlap(recipe, small_tapnet, load_dataset("quickdraw", "val"))
    assert overlap.trained_on == overlap.classes
    assert "It was trained on" in overlap.notes()[0]


def test_classes_are_compared_by_name_whatever_the_split_is_called(small_tapnet):
    images = replace(load_dataset("quickdraw", "train"), split="mine", fingerprint="other")
    assert class_overlap(load_recipe("quickdraw"), small_tapnet, images).trained_on == len(images.names)


@pytest.fixture
def renamed(tmp_path):
    """A packed miniImageNet under a name of its own; nothing but its manifest is read."""
    manifest = Manifest("mini-160", "mini-imagenet", "", Preprocessing(84, 84, 3), 0, {}, {}, {}, (), "", "0")
    (tmp_path / "mini-160").mkdir()
    (tmp_path / "mini-160" / "manifest.json").write_text(manifest.to_json())
    return tmp_path


def test_pretrained_backbone_overlaps_with_imagenet_under_another_name(renamed, monkeypatch, small_tapnet):
    assert source_dataset("mini-160", renamed) == "mini-imagenet"
    assert not pretrained_on(small_tapnet, "mini-160", renamed)
    monkeypatch.setattr(small_tapnet.backbone, "pretrained", True)
    assert pretrained_on(PrototypicalNetwork(small_tapnet.backbone), "mini-160", renamed)


def test_folder_of_wordnet_ids_is_known_as_imagenet(renamed, monkeypatch, small_tapnet):
    path = renamed / "mini-160" / "manifest.json"
    manifest = json.loads(path.read_text()) | {"dataset": "folder", "classes": {"n01532829": 1, "my cat": 1}}
    path.write_text(json.dumps(manifest))
    monkeypatch.setattr(small_tapnet.backbone, "pretrained", True)
    assert pretrained_on(small_tapnet, "mini-160", renamed)


def test_training_classes_that_are_not_on_this_machine_are_known_by_the_published_list(small_tapnet, renamed):
    recipe = load_recipe("mini-imagenet-5shot", [f"data.root={renamed / 'nowhere'}"])
    images = replace(load_dataset("quickdraw", "val"), name="mini-160", names=("n01532829", "unknown"))
    assert class_overlap(recipe, small_tapnet, images, str(renamed)).trained_on == 1
