"""Every recipe trains for two episodes on a small stand-in of its dataset, and leaves what it asked for."""

import json
from pathlib import Path

import numpy as np
import pytest

from tapnet.checkpoint import load, read_checkpoint
from tapnet.data import DATASETS
from tapnet.data.packed import IMAGES, MANIFEST, Manifest, sha256_of
from tapnet.data.preprocessing import Preprocessing
from tapnet.evaluation.evaluator import Evaluator
from tapnet.paths import LAST, bundled_checkpoints
from tapnet.recipe import bundled_recipes, load_recipe
from tapnet.training import train
from tapnet.training.loop import VALIDATION_SEED

pytestmark = pytest.mark.usefixtures("short_evaluation")

SIZES, EACH, WAY = {"relation": 56}, 7, 20  # Relation Networks pool without padding


def stand_in(name, root, size):
    """A packed dataset of random images with some real class names of each split, smaller than life."""
    dataset, folder = DATASETS[name], root / name
    splits = {split: dataset.splits[split][:most] for split, most in (("train", 40), ("val", WAY), ("test", WAY))}
    classes = {label: EACH for labels in splits.values() for label in labels}
    shape = (size, size, dataset.row_shape[2])
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (EACH * len(classes), *shape), dtype=np.uint8)
    np.save(folder / IMAGES, pixels)
    manifest = Manifest(
        name=name,
        dataset=name,
        source="random",
        preprocessing=Preprocessing(*shape),
        resized=0,
        classes=classes,
        splits=splits,
        left_out={},
        notes=(),
        sha256=sha256_of(folder / IMAGES),
        tapnet="0",
    )
    (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")


def network(name):
    """What a recipe trains and how, without how long and by what episodes."""
    recipe = load_recipe(name)
    training = recipe.as_dict()["training"]
    kept = ("optimizer", "schedule", "augmentation", "meta_batch", "divisions", "ema_decay")
    starts = len(training["init_from"]), len(training["teachers"]), len(training["image_sizes"])
    options = {key: value for key, value in recipe.method.options.items() if key not in ("num_references", "way")}
    return repr(
        (recipe.data.name, recipe.backbone, recipe.method.name, options, [training[key] for key in kept], starts)
    )


LOADED = {path.stem: load_recipe(str(path)) for path in bundled_recipes()}
WHOLE = {network(name): name for name, recipe in LOADED.items() if not recipe.training.frozen_backbone}


def small_run(name, root):
    """The changes by which a recipe trains for two small episodes on a stand-in below `root`."""
    recipe = load_recipe(name)
    return [
        *([f"training.way={WAY}"] if recipe.training.way > WAY else []),
        "training.episodes=2",
        "training.meta_batch=1",
        "training.cycles=1",
        "training.ema_decay=null",
        "training.shot=1",
        "training.query=1",
        "validation.query=2",
        "validation.episodes=4",
        f"data.root={root}",
    ]


@pytest.mark.parametrize("name", WHOLE.values())
def test_recipe_trains_its_backbone_and_keeps_the_network_that_it_validated(name, tmp_path):
    small = small_run(name, tmp_path)
    recipe = load_recipe(name, small)
    if recipe.data.name != "quickdraw":
        stand_in(recipe.data.name, tmp_path, SIZES.get(recipe.method.name, 17))
    networks = recipe.training.init_from
    if networks and networks[0] not in bundled_checkpoints():
        first = Path(networks[0]).name.partition("-seed")[0]
        alone = ["training.init_from=null", "training.teachers=[]"]
        first_recipe = load_recipe(first, [*small_run(first, tmp_path), *alone])
        train(first_recipe, tmp_path / "first", device="cpu", precision="float32", test=False)
        small.append(f"training.init_from={json.dumps([str(tmp_path / 'first')] * len(networks))}")
        small += [f"training.teachers=[{tmp_path / 'first'}]"] if recipe.training.teachers else []
        recipe = load_recipe(name, small)
    train(recipe, tmp_path / "run", device="cpu", precision="float32", test=False)
    moments = read_checkpoint(tmp_path / "run" / LAST).optimizer
    of_backbone = [key for key in moments if key.startswith("backbone.") and key.endswith(("/exp_avg", "_buffer"))]
    assert of_backbone
    assert all(moments[key].any() for key in of_backbone)
    images = recipe.data.images(recipe.validation.split)
    spec = recipe.validation.episode_spec(VALIDATION_SEED)
    accuracy = Evaluator(load(tmp_path / "run"), images).accuracies(spec).mean()
    recorded = read_checkpoint(tmp_path / "run").header.validation["accuracy"]
    assert accuracy == pytest.approx(recorded, abs=0.03)  # one image of a tie may fall to the other side


@pytest.mark.parametrize("path", bundled_recipes(), ids=lambda path: path.stem)
def test_recipe_header_gives_its_command_and_what_to_expect(path):
    header = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    text = "\n".join(header)
    assert f"tapnet train {path.stem}" in text
    for word in ("Command:", "Expected:", "Hardware:"):
        assert word in text
