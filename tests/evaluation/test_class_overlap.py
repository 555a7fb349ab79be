import json
from dataclasses import replace

import pytest

from tapnet.data import load_dataset
from tapnet.evaluation.class_overlap import class_overlap, pretrained_on, source_dataset
from tapnet.methods import PrototypicalNetwork
from tapnet.recipe import load_recipe


def overlap(split, small_tapnet, *changes):
    images = load_dataset("quickdraw", split)
    return class_overlap(load_recipe("quickdraw", list(changes)), small_tapnet, images)


def test_test_classes_of_a_usual_recipe_are_unseen(small_tapnet):
    found = overlap("test", small_tapnet)
    assert (found.trained_on, found.validated_on) == (0, 0)
    assert not found.notes()


def test_validation_classes_of_a_trainval_network_were_trained_on(small_tapnet):
    found = overlap("val", small_tapnet, "data.train_split=trainval")
    assert found.trained_on == found.classes
    assert "It was trained on" in found.notes()[0]


def test_classes_are_compared_by_name_whatever_the_split_is_called(small_tapnet):
    images = replace(load_dataset("quickdraw", "train"), split="mine", fingerprint="other")
    assert class_overlap(load_recipe("quickdraw"), small_tapnet, images).trained_on == len(images.names)


@pytest.fixture
def renamed(tmp_path):
    """A packed miniImageNet under a name of its own; nothing but its manifest is read."""
    (tmp_path / "mini-160").mkdir()
    facts = {
        "name": "mini-160",
        "dataset": "mini-imagenet",
        "form": "",
        "row_shape": [1, 1, 3],
        "filter": "",
        "fit": "",
    }
    facts |= {
        "fit": "",
        "resized": 0,
        "ink": None,
        "classes": {},
        "splits": {},
        "left_out": {},
        "notes": [],
        "sha256": "",
    }
    (tmp_path / "mini-160" / "manifest.json").write_text(json.dumps(facts | {"tapnet": "0", "format": 1}))
    return tmp_path


def test_dataset_under_another_name_is_known_by_its_manifest(renamed):
    assert source_dataset("mini-160", renamed) == "mini-imagenet"


def test_pretrained_backbone_overlaps_with_imagenet_under_another_name(renamed, monkeypatch, small_tapnet):
    assert not pretrained_on(small_tapnet, "mini-160", renamed)
    monkeypatch.setattr(small_tapnet.backbone, "pretrained", True)
    assert pretrained_on(PrototypicalNetwork(small_tapnet.backbone), "mini-160", renamed)


def test_folder_of_wordnet_ids_is_known_as_imagenet(renamed, monkeypatch, small_tapnet):
    path = renamed / "mini-160" / "manifest.json"
    manifest = json.loads(path.read_text()) | {"dataset": "folder", "classes": {"n01532829": 1, "my cat": 1}}
    path.write_text(json.dumps(manifest))
    monkeypatch.setattr(small_tapnet.backbone, "pretrained", True)
    assert pretrained_on(small_tapnet, "mini-160", renamed)
    images = replace(load_dataset("quickdraw", "val"), name="mini-160", names=("n01532829", "my cat"))
    recipe = load_recipe("mini-imagenet-5shot", [f"data.root={renamed / 'nowhere'}"])
    assert class_overlap(recipe, small_tapnet, images, str(renamed)).trained_on == 1


def test_training_classes_that_are_not_on_this_machine_are_known_by_the_published_list(small_tapnet, tmp_path, renamed):
    recipe = load_recipe("mini-imagenet-5shot", [f"data.root={tmp_path}"])
    images = replace(load_dataset("quickdraw", "val"), name="mini-160", names=("n01532829", "unknown"))
    assert class_overlap(recipe, small_tapnet, images, str(renamed)).trained_on == 1
