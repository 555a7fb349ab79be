import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from small_runs import interrupt_after, small_recipe

from tapnet.checkpoint import Checkpoint, Header, Lineage, read_checkpoint
from tapnet.cli import main
from tapnet.evaluation.candidates import Candidate, EvaluationData
from tapnet.paths import BEST, LAST, find_checkpoint
from tapnet.recipe import changed
from tapnet.training import Interrupted, RunFolder, train
from tapnet.training.initialization import load_initial_weights

pytestmark = pytest.mark.usefixtures("short_evaluation")

SHAPE = (1, 28, 28)
RECIPE = changed(
    small_recipe(episodes=2, learning_rate=1e-9, augmentation="none"), ["backbone.options={widths: [4, 4, 4, 4]}"]
)


def trained(recipe=RECIPE, name="older"):
    """A checkpoint whose weights nothing else has."""
    method = recipe.build(SHAPE)
    weights = {name: torch.rand_like(t) if t.is_floating_point() else t for name, t in method.state_dict().items()}
    return Checkpoint(Header(dataclasses.replace(recipe, name=name), SHAPE, episode=7), weights)


def built(*changes):
    return changed(RECIPE, changes).build(SHAPE)


def test_all_weights_are_taken_where_they_fit():
    method, checkpoint = built(), trained()
    assert load_initial_weights(method, checkpoint).describe() == ["initialized from older after 7 episodes"]
    for name, tensor in method.state_dict().items():
        torch.testing.assert_close(tensor, checkpoint.weights[name], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("theirs", "own", "words"),
    [
        ((), ["method={name: tadam-tc}"], ["fresh: scale, task_embedding", "left out: references"]),
        ((), ["method={name: protonet}"], ["left out: references"]),
        ((), ["method.options.num_references=8", "training.way=8"], ["fresh: references"]),
        (["backbone.options.normalize=true"], (), ["left out: backbone.normalization.running_mean"]),
        ((), ["backbone.options.normalize=true"], ["fresh: backbone.normalization.running_mean"]),
    ],
)
def test_what_does_not_come_along_is_named_and_stays_as_it_was(theirs, own, words):
    older, method = trained(changed(RECIPE, theirs)), built(*own)
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    lineage = load_initial_weights(method, older)
    assert lineage.describe()[1:] == words
    for name, tensor in method.state_dict().items():
        is_fresh = name.startswith(lineage.fresh) if lineage.fresh else False
        torch.testing.assert_close(tensor, before[name] if is_fresh else older.weights[name])


def test_network_that_sees_four_rotations_is_initialized_from_one_that_sees_one():
    backbone = 'backbone={"name": "resnet12", "options": {"widths": [2, 2, 2, 8], "four_rotations": %s}}'
    older, method = trained(changed(RECIPE, [backbone % "false"])), built(backbone % "true")
    assert load_initial_weights(method, older).fresh == ("references",)
    name = "backbone.blocks.0.layers.0.weight"
    torch.testing.assert_close(method.state_dict()[name], older.weights[name])


def narrow_and_wide(name, *changes, options=""):
    backbone = 'backbone={"name": "%s", "options": {"widths": %s%s}}'
    narrow = changed(RECIPE, [backbone % (name, [4, 4, 4, 8], options), "training.augmentation=dihedral", *changes])
    return trained(narrow), built(backbone % (name, [8, 8, 8, 16], ""))


@pytest.mark.parametrize(
    ("name", "options"), [("conv4", ""), ("resnet12-small", ""), ("resnet12-small", ', "four_rotations": true')]
)
def test_network_twice_as_wide_begins_as_the_network_beside_its_transposed_copy(name, options):
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
    branches = [network.method().eval().backbone(images) for network in (first, second)]
    torch.testing.assert_close(method.eval().backbone(images), torch.cat(branches, dim=1))


def test_twice_as_many_branches_as_networks_begin_as_these_and_their_transposed_copies():
    networks = [trained(with_branches(4, 1, "training.augmentation=dihedral")) for _ in range(2)]
    method = with_branches(16, 4).build(SHAPE)
    assert load_initial_weights(method, *networks).widened
    images = torch.rand(3, *SHAPE)
    maps = [network.method().eval().backbone.maps(images) for network in networks]
    mirrored = [network.method().eval().backbone.maps(images.mT).mT for network in networks]
    torch.testing.assert_close(method.eval().backbone.maps(images), torch.cat([*maps, *mirrored], dim=1))


def test_network_that_does_not_know_mirrored_images_has_no_copies():
    older, method = narrow_and_wide("conv4", "training.augmentation=flip")
    with pytest.raises(ValueError, match=r"has another .* or of half the widths if trained with `augmentation: dihed"):
        load_initial_weights(method, older)
    networks = [trained(with_branches(4, 1)) for _ in range(2)]
    with pytest.raises(ValueError, match=r"older have another backbone .* if trained with `augmentation: dihedral`"):
        load_initial_weights(with_branches(16, 4).build(SHAPE), *networks)


def test_networks_that_do_not_make_the_branches_are_refused():
    networks = [trained(with_branches(4, 1)) for _ in range(3)]
    with pytest.raises(ValueError, match=r"Expected 8 networks, one for each of the `branches` .*, got 3"):
        load_initial_weights(with_branches(32, 8).build(SHAPE), *networks)
    other = trained(with_branches(4, 1, "backbone.name=resnet12"), "odd")
    with pytest.raises(ValueError, match="Network 2 of the list, odd, has another backbone than the first, older: ch"):
        load_initial_weights(with_branches(8, 2).build(SHAPE), networks[0], other)


def test_weights_in_half_precision_are_widened():
    method, checkpoint = built(), trained()
    half = {name: t.half() if t.is_floating_point() else t for name, t in checkpoint.weights.items()}
    load_initial_weights(method, dataclasses.replace(checkpoint, weights=half))
    assert method.references.dtype == torch.float32
    torch.testing.assert_close(method.references.detach(), half["references"].float())


@pytest.mark.parametrize(
    "changes",
    [["backbone.options.widths=[4, 4, 4, 5]"], ["backbone.name=resnet12-small", "backbone.options.flatten=true"]],
)
def test_another_backbone_is_refused_and_nothing_is_taken(changes):
    method = built(*changes)
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    with pytest.raises(ValueError, match="older has another backbone than the recipe, backbone"):
        load_initial_weights(method, trained())
    for name, tensor in method.state_dict().items():
        torch.testing.assert_close(tensor, before[name])


def test_ancestors_of_an_ancestor_are_kept():
    checkpoint = trained()
    oldest = dataclasses.replace(checkpoint.as_ancestors("initialized")[0], name="oldest", digest="0123")
    header = dataclasses.replace(checkpoint.header, lineage=Lineage((oldest,)))
    lineage = load_initial_weights(built(), dataclasses.replace(checkpoint, header=header))
    relations = [(network.relation, network.name) for network in lineage.ancestors]
    assert relations == [("initialized", "older"), ("earlier", "oldest")]
    assert lineage.describe() == ["initialized from older after 7 episodes"]


def test_run_starts_from_several_networks_and_its_checkpoints_say_so(tmp_path):
    """At that learning rate the weights stay where they were."""
    paths = [tmp_path / f"{number}.safetensors" for number in range(2)]
    networks = [trained(with_branches(4, 1)) for _ in paths]
    for network, path in zip(networks, paths, strict=True):
        network.write(path)
    names = ", ".join(map(str, paths))
    train(with_branches(8, 2, f"training.init_from=[{names}]"), tmp_path / "run", device="cpu")
    filters = "backbone.blocks.0.layers.0.weight"
    for name in (BEST, LAST):
        checkpoint = read_checkpoint(tmp_path / "run" / name)
        branches = checkpoint.weights[filters].chunk(2)
        for network, branch in zip(networks, branches, strict=True):
            torch.testing.assert_close(branch, network.weights[filters], atol=1e-6, rtol=0)
        lineage = checkpoint.header.lineage.networks()
        assert [(network.name, network.episodes) for network in lineage] == 2 * [("older", 7)]


def test_interrupted_run_remembers_where_it_began(tmp_path):
    trained().write(tmp_path / "older.safetensors")
    recipe = changed(RECIPE, [f"training.init_from={tmp_path / 'older.safetensors'}"])
    with pytest.raises(Interrupted):
        train(recipe, tmp_path / "run", device="cpu", watch=interrupt_after(0))
    (tmp_path / "older.safetensors").unlink()  # no longer needed
    train(recipe, tmp_path / "run", device="cpu", resume=True)
    lineage = read_checkpoint(tmp_path / "run" / LAST).header.lineage
    assert lineage.parents() == ["initialized from older after 7 episodes"]


@pytest.mark.parametrize("value", ["5", "['']", "[drawings, 3]"])
def test_init_from_is_a_name_or_a_list_of_names(value):
    with pytest.raises(ValueError, match=r"`training\.init_from(\.\d)?`: .*, got"):
        changed(RECIPE, [f"training.init_from={value}"])


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("runs/quickdraw", "`tapnet train quickdraw` trains it."),
        ("my runs/quickdraw-seed3", "`tapnet train quickdraw --set seed=3 --out 'my runs/quickdraw-seed3'` trains it."),
        ("runs/quickdraw-seedling", ""),
        ("runs/quickdraw-seed3.safetensors", ""),
    ],
)
def test_missing_run_of_a_recipe_is_named_with_its_command_and_leaves_no_run(path, hint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"The network of training\.init_from: There is no checkpoint") as error:
        train(changed(RECIPE, [f"training.init_from=[{path}]"]), Path("run"), device="cpu")
    assert str(error.value).endswith(hint)
    assert ("tapnet train" in str(error.value)) is bool(hint)
    assert not Path("run").exists()


@pytest.mark.parametrize("name", ["drawings", "a: é #1 😀"])
def test_command_line_takes_a_bundled_name_or_any_path(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name != "drawings":
        shutil.copy(find_checkpoint("drawings"), name)
    small = ["training.episodes=1", "training.query=1", "validation.episodes=2"]
    assert main(["train", "quickdraw", "--device", "cpu", "--from", name, "--set", *small]) == 0
    assert "initialized from quickdraw-60way after 1,500 episodes" in " ".join(capsys.readouterr().out.split())


def test_classes_that_an_ancestor_was_trained_on_are_not_unseen(tmp_path):
    """A grandparent was trained on the test classes, its child and its grandchild on others."""
    train(changed(RECIPE, ["data.train_split=test"]), tmp_path / "first", device="cpu", test=False)
    for before, name in (("first", "second"), ("second", "third")):
        train(changed(RECIPE, [f"training.init_from={tmp_path / before}"]), tmp_path / name, device="cpu")
    assert not (tmp_path / "third" / "evaluation.json").exists()
    assert "of a network that it learned from" in RunFolder(tmp_path / "third").metadata()["not_tested"]
    overlap = Candidate.open(str(tmp_path / "third"), EvaluationData()).overlap
    assert overlap.trained_on == overlap.classes


def test_temperatures_are_not_fitted_on_classes_that_an_ancestor_was_trained_on(tmp_path):
    train(changed(RECIPE, ["data.train_split=val"]), tmp_path / "first", device="cpu", test=False)
    train(changed(RECIPE, [f"training.init_from={tmp_path / 'first'}"]), tmp_path / "next", device="cpu", test=False)
    assert not read_checkpoint(tmp_path / "next").header.calibration
