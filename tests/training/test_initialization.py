import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

from tapnet.checkpoint import Checkpoint, Header, Lineage, read_checkpoint
from tapnet.cli import main
from tapnet.evaluation.candidates import Candidate, EvaluationData
from tapnet.paths import BEST, LAST, find_checkpoint
from tapnet.recipe import changed, load_recipe, recipe_from
from tapnet.training import RunFolder, train
from tapnet.training.initialization import load_initial_weights

pytestmark = pytest.mark.usefixtures("short_evaluation")

SHAPE = (1, 28, 28)
RECIPE = recipe_from(
    {
        "name": "small",
        "data": {"name": "quickdraw"},
        "backbone": {"name": "conv4", "options": {"widths": [4, 4, 4, 4]}},
        "method": {"name": "tapnet", "options": {"num_references": 6}},
        "training": {"way": 6, "shot": 1, "query": 2, "episodes": 2, "learning_rate": 1e-9},
        "validation": {"way": 5, "shot": 1, "query": 5, "episodes": 20, "every": 2},
    },
    "test",
)


def trained(recipe=RECIPE):
    """A checkpoint whose weights nothing else has."""
    method = recipe.build(SHAPE)
    weights = {name: torch.rand_like(t) if t.is_floating_point() else t for name, t in method.state_dict().items()}
    return Checkpoint(Header(dataclasses.replace(recipe, name="older"), SHAPE, episode=7), weights)


def initialized_from(checkpoint, folder, *changes):
    checkpoint.write(folder / "older.safetensors")
    return changed(RECIPE, [f"training.init_from={folder / 'older.safetensors'}", *changes])


def test_a_module_without_any_weight_taken_is_named_as_a_whole():
    method = changed(RECIPE, ["method={name: tadam-tc}"]).build(SHAPE)
    assert load_initial_weights(method, trained()).describe()[1:] == [
        "fresh: scale, task_embedding",
        "left out: references",
    ]


def test_all_weights_are_taken_where_they_fit():
    method, checkpoint = RECIPE.build(SHAPE), trained()
    assert load_initial_weights(method, checkpoint).describe() == ["initialized from older after 7 episodes"]
    for name, tensor in method.state_dict().items():
        torch.testing.assert_close(tensor, checkpoint.weights[name], rtol=0, atol=0)


def test_references_of_another_number_stay_fresh():
    method = changed(RECIPE, ["method.options.num_references=8", "training.way=8"]).build(SHAPE)
    before, checkpoint = method.references.detach().clone(), trained()
    assert load_initial_weights(method, checkpoint).describe()[1:] == ["fresh: references"]
    torch.testing.assert_close(method.references.detach(), before)
    name = "backbone.blocks.0.0.weight"
    torch.testing.assert_close(method.state_dict()[name], checkpoint.weights[name])


def test_a_network_that_sees_four_rotations_is_initialized_from_one_that_sees_one():
    backbone = 'backbone={"name": "resnet12", "options": {"widths": [2, 2, 2, 8], "four_rotations": %s}}'
    older = trained(changed(RECIPE, [backbone % "false"]))
    method = changed(RECIPE, [backbone % "true"]).build(SHAPE)
    assert load_initial_weights(method, older).fresh == ("references",)
    name = "backbone.blocks.0.layers.0.weight"
    torch.testing.assert_close(method.state_dict()[name], older.weights[name])


def narrow_and_wide(name, *changes, options=""):
    backbone = 'backbone={"name": "%s", "options": {"widths": %s%s}}'
    narrow = changed(RECIPE, [backbone % (name, [4, 4, 4, 8], options), "training.augmentation=dihedral", *changes])
    return trained(narrow), changed(RECIPE, [backbone % (name, [8, 8, 8, 16], "")]).build(SHAPE)


@pytest.mark.parametrize(
    ("name", "options"), [("conv4", ""), ("resnet12-small", ""), ("resnet12-small", ', "four_rotations": true')]
)
def test_a_network_twice_as_wide_begins_as_the_network_beside_its_transposed_copy(name, options):
    older, method = narrow_and_wide(name, options=options)
    assert load_initial_weights(method, older).describe()[1:] == ["widened by transposed copies", "fresh: references"]
    images = torch.rand(3, *SHAPE)
    narrow, wide = older.method().eval().backbone, method.eval().backbone
    upright, transposed = wide.maps(images).chunk(2, dim=1)
    torch.testing.assert_close(upright, narrow.blocks(images))
    torch.testing.assert_close(transposed.mT, narrow.blocks(images.mT))


def with_branches(width, branches, *changes):
    options = {"widths": [width, width, width, 2 * width], "branches": branches, "flatten": True}
    backbone = json.dumps({"name": "resnet12-small", "options": options})
    return changed(RECIPE, [f"backbone={backbone}", *changes])


def test_networks_become_the_branches_of_one():
    first, second = trained(with_branches(4, 1)), trained(with_branches(4, 1))
    method = with_branches(8, 2).build(SHAPE)
    assert load_initial_weights(method, first, second).describe() == [
        "initialized from 2 networks of older after 7 episodes",
        "fresh: references",
    ]
    images = torch.rand(3, *SHAPE)
    each = [network.method().eval().backbone(images) for network in (first, second)]
    torch.testing.assert_close(method.eval().backbone(images), torch.cat(each, dim=1))


def test_twice_as_many_branches_as_networks_begin_as_these_and_their_transposed_copies():
    networks = [trained(with_branches(4, 1, "training.augmentation=dihedral")) for _ in range(2)]
    method = with_branches(16, 4).build(SHAPE)
    assert load_initial_weights(method, *networks).describe()[1:] == [
        "widened by transposed copies",
        "fresh: references",
    ]
    images = torch.rand(3, *SHAPE)
    maps = [network.method().eval().backbone.maps(images) for network in networks]
    mirrored = [network.method().eval().backbone.maps(images.mT).mT for network in networks]
    torch.testing.assert_close(method.eval().backbone.maps(images), torch.cat([*maps, *mirrored], dim=1))


@pytest.mark.parametrize("count", [2, 3, 5])
def test_another_number_of_networks_than_branches_is_refused(count):
    networks = [trained(with_branches(4, 1)) for _ in range(count)]
    with pytest.raises(ValueError, match=f"Expected 8 networks, one for each of the `branches` .*, got {count}"):
        load_initial_weights(with_branches(32, 8).build(SHAPE), *networks)


def test_networks_that_do_not_know_mirrored_images_have_no_copies():
    networks = [trained(with_branches(4, 1)) for _ in range(2)]
    with pytest.raises(ValueError, match=r"older have another backbone .* if trained with `augmentation: dihedral`"):
        load_initial_weights(with_branches(16, 4).build(SHAPE), *networks)


@pytest.mark.parametrize("change", ["backbone.options.widths=[4, 4, 4, 4]", "backbone.name=resnet12"])
def test_networks_of_different_kinds_do_not_become_branches(change):
    odd = trained(with_branches(4, 1, change))
    odd = dataclasses.replace(
        odd, header=dataclasses.replace(odd.header, recipe=changed(odd.header.recipe, ["name=odd"]))
    )
    with pytest.raises(
        ValueError, match="Network 2 of the list, odd, has another backbone than the first, older: choose"
    ):
        load_initial_weights(with_branches(8, 2).build(SHAPE), trained(with_branches(4, 1)), odd)


def test_a_run_starts_from_several_networks_and_remembers_all(tmp_path):
    names = [str(tmp_path / f"{number}.safetensors") for number in range(2)]
    networks = [trained(with_branches(4, 1)) for _ in names]
    for network, name in zip(networks, names, strict=True):
        network.write(Path(name))
    recipe = with_branches(8, 2, f"training.init_from=[{', '.join(names)}]")
    train(recipe, tmp_path / "run", device="cpu")
    checkpoint = read_checkpoint(tmp_path / "run")
    filters = "backbone.blocks.0.layers.0.weight"
    for network, branch in zip(networks, checkpoint.weights[filters].chunk(2), strict=True):
        torch.testing.assert_close(branch, network.weights[filters], atol=1e-6, rtol=0)
    assert [(network.name, network.episodes) for network in checkpoint.header.lineage.networks()] == 2 * [("older", 7)]


@pytest.mark.parametrize("value", ["5", "['']", "[drawings, 3]"])
def test_init_from_is_a_name_or_a_list_of_names(value):
    with pytest.raises(ValueError, match=r"`training\.init_from(\.\d)?`: .*, got"):
        changed(RECIPE, [f"training.init_from={value}"])


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("runs/quickdraw-seed3", "`tapnet train quickdraw --set seed=3 --out runs/quickdraw-seed3` trains it."),
        ("my runs/quickdraw-seed3", "`tapnet train quickdraw --set seed=3 --out 'my runs/quickdraw-seed3'` trains it."),
        ("runs/quickdraw-seedling", ""),
        ("runs/quickdraw-seed3.safetensors", ""),
    ],
)
def test_a_missing_seed_of_a_recipe_is_named_with_its_command(path, hint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="There is no checkpoint") as error:
        train(changed(RECIPE, [f"training.init_from=[{path}]"]), tmp_path / "run", device="cpu")
    assert str(error.value).endswith(hint)
    assert ("tapnet train" in str(error.value)) is bool(hint)


def test_a_network_that_does_not_know_mirrored_images_is_not_widened():
    older, method = narrow_and_wide("conv4", "training.augmentation=flip")
    with pytest.raises(ValueError, match="or of half the widths if trained with `augmentation: dihedral`"):
        load_initial_weights(method, older)


@pytest.mark.parametrize(("theirs", "own", "words"), [("false", "true", "fresh"), ("true", "false", "left out")])
def test_the_mean_of_the_features_begins_afresh_or_is_left_out(theirs, own, words):
    older, method = (changed(RECIPE, [f"backbone.options.normalize={value}"]) for value in (theirs, own))
    older, method = trained(older), method.build(SHAPE)
    assert load_initial_weights(method, older).describe()[1] == f"{words}: backbone.normalization.running_mean"
    name = "backbone.blocks.3.0.weight"
    torch.testing.assert_close(method.state_dict()[name], older.weights[name])


def test_weights_in_half_precision_are_widened():
    method, checkpoint = RECIPE.build(SHAPE), trained()
    half = {name: t.half() if t.is_floating_point() else t for name, t in checkpoint.weights.items()}
    load_initial_weights(method, dataclasses.replace(checkpoint, weights=half))
    assert method.references.dtype == torch.float32
    torch.testing.assert_close(method.references.detach(), half["references"].float())


@pytest.mark.parametrize(
    "changes",
    [["backbone.options.widths=[4, 4, 4, 5]"], ["backbone.name=resnet12-small", "backbone.options.flatten=true"]],
)
def test_another_backbone_is_refused_and_nothing_is_taken(changes):
    method = changed(RECIPE, changes).build(SHAPE)
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    with pytest.raises(ValueError, match="older has another backbone than the recipe, backbone"):
        load_initial_weights(method, trained())
    for name, tensor in method.state_dict().items():
        torch.testing.assert_close(tensor, before[name])


def test_a_run_begins_with_the_weights_and_says_so_in_its_checkpoints(tmp_path):
    first = trained()
    train(initialized_from(first, tmp_path), tmp_path / "run", device="cpu")
    for name in (BEST, LAST):
        checkpoint = read_checkpoint(tmp_path / "run" / name)
        assert checkpoint.header.lineage.describe() == ["initialized from older after 7 episodes"]
        for weight in ("references", "backbone.blocks.0.0.weight"):  # at that learning rate they stay where they were
            torch.testing.assert_close(checkpoint.weights[weight], first.weights[weight], atol=1e-6, rtol=0)


def test_an_interrupted_run_remembers_where_it_began(tmp_path):
    def interrupt(_):
        raise KeyboardInterrupt

    recipe = initialized_from(trained(), tmp_path, "validation.every=1")
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "run", device="cpu", watch=interrupt)
    (tmp_path / "older.safetensors").unlink()  # no longer needed
    train(recipe, tmp_path / "run", device="cpu", resume=True)
    assert read_checkpoint(tmp_path / "run" / LAST).header.lineage.parents() == [
        "initialized from older after 7 episodes"
    ]


def test_refused_weights_leave_no_run(tmp_path):
    other = trained(changed(RECIPE, ["backbone.options.widths=[4, 4, 4, 5]"]))
    with pytest.raises(ValueError, match=r"training\.init_from.*Choose a network of the same kind, widths"):
        train(initialized_from(other, tmp_path), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_what_does_not_come_along_is_named():
    protonet = changed(RECIPE, ["method.name=protonet", "method.options={}"]).build(SHAPE)
    assert load_initial_weights(protonet, trained()).left_out == ("references",)


def test_the_ancestors_of_an_ancestor_are_kept():
    checkpoint = trained()
    oldest = dataclasses.replace(checkpoint.as_ancestors("initialized")[0], name="oldest", digest="0123")
    header = dataclasses.replace(checkpoint.header, lineage=Lineage((oldest,)))
    lineage = load_initial_weights(RECIPE.build(SHAPE), dataclasses.replace(checkpoint, header=header))
    assert [(network.relation, network.name) for network in lineage.ancestors] == [
        ("initialized", "older"),
        ("earlier", "oldest"),
    ]
    assert lineage.describe() == ["initialized from older after 7 episodes"]


def test_over_a_frozen_backbone_nothing_is_taken():
    with pytest.raises(ValueError, match=r"starts from random parameters: leave out training\.init_from"):
        load_recipe("photos", ["training.frozen_backbone=true", "training.init_from=efficientnet-lite0"])


@pytest.mark.parametrize("name", ["drawings", "a: é #1 😀"])
def test_the_command_line_takes_a_bundled_name_or_any_path(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name != "drawings":
        shutil.copy(find_checkpoint("drawings"), name)
    small = ["training.episodes=1", "training.query=1", "validation.episodes=2"]
    assert main(["train", "quickdraw", "--device", "cpu", "--from", name, "--set", *small]) == 0
    assert "initialized from quickdraw-60way after 1,500 episodes" in " ".join(capsys.readouterr().out.split())


def test_a_missing_first_run_is_named_with_its_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = changed(RECIPE, ["training.init_from=runs/quickdraw"])
    with pytest.raises(ValueError, match=r"no checkpoint runs/quickdraw.*`tapnet train quickdraw` trains it\.$"):
        train(recipe, tmp_path / "run", device="cpu")


def test_an_unset_name_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "quickdraw", "--from", ""]) == 2
    assert "training.init_from" in capsys.readouterr().err


def test_a_run_that_resumes_takes_no_other_weights(tmp_path, capsys):
    assert main(["train", "--resume", str(tmp_path), "--from", "drawings"]) == 2
    assert "leave out RECIPE, --out, --from" in capsys.readouterr().err


def test_the_command_line_names_a_missing_checkpoint(tmp_path, capsys):
    assert main(["train", "quickdraw", "--out", str(tmp_path / "run"), "--from", "nowhere"]) != 0
    assert "There is no checkpoint nowhere" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_classes_that_an_ancestor_was_trained_on_are_not_unseen(tmp_path):
    """A grandparent was trained on the test classes, its child and its grandchild on others."""
    train(changed(RECIPE, ["data.train_split=test"]), tmp_path / "first", device="cpu")
    for before, name in (("first", "second"), ("second", "third")):
        train(changed(RECIPE, [f"training.init_from={tmp_path / before}"]), tmp_path / name, device="cpu")
    assert not (tmp_path / "third" / "evaluation.json").exists()
    assert "of a network that it learned from" in RunFolder(tmp_path / "third").metadata()["not_tested"]
    found = Candidate.open(str(tmp_path / "third"), EvaluationData()).overlap
    assert found.trained_on == found.classes


def test_temperatures_are_not_fitted_on_classes_that_an_ancestor_was_trained_on(tmp_path):
    train(changed(RECIPE, ["data.train_split=val"]), tmp_path / "first", device="cpu", test=False)
    train(changed(RECIPE, [f"training.init_from={tmp_path / 'first'}"]), tmp_path / "next", device="cpu", test=False)
    assert not read_checkpoint(tmp_path / "next").header.calibration
