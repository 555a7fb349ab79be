import numpy as np
import pytest

from tapnet.backbones import build
from tapnet.errors import UserError
from tapnet.methods import METHODS
from tapnet.recipe import bundled_recipes, load_recipe

MINIMAL = """
name: small
data: {name: quickdraw}
backbone: {name: conv4}
method: {name: tapnet, options: {num_references: 5}}
training: {way: 5, shot: 1, query: 2, episodes: 10}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(MINIMAL)
    return str(path)


def test_a_recipe_that_extends_another_has_its_keys_but_those_that_it_names(file, tmp_path):
    wide = tmp_path / "wide.yaml"
    wide.write_text("extends: small.yaml\nname: wide\ntraining: {episodes: 20}\nmethod: {options: {projection_dim: 9}}")
    far = tmp_path / "far.yaml"
    far.write_text("extends: wide.yaml\nname: far\nmethod: {name: protonet}")
    base, wide, far = map(load_recipe, (file, str(wide), str(far)))
    assert (wide.training.episodes, wide.training.way) == (20, base.training.way)
    assert wide.method.options == base.method.options | {"projection_dim": 9}
    assert (far.training, far.method.options) == (wide.training, {})


@pytest.mark.parametrize(
    ("base", "words"),
    [("wide.yaml", "extends itself: wide → wide"), ("nobody", "no recipe file 'nobody'"), ("[3]", "is the name of")],
)
def test_a_recipe_cannot_extend_itself_or_what_does_not_exist(tmp_path, base, words):
    (tmp_path / "wide.yaml").write_text(f"extends: {base}")
    with pytest.raises(ValueError, match=words):
        load_recipe(str(tmp_path / "wide.yaml"))


@pytest.mark.parametrize("path", bundled_recipes(), ids=lambda path: path.stem)
def test_every_bundled_recipe_loads_and_builds(path):
    recipe = load_recipe(path.stem)
    assert recipe.name == path.stem
    assert recipe.build_on_meta((3, 84, 84)).backbone.dim > recipe.training.way


def test_changes_reach_nested_keys(file):
    recipe = load_recipe(file, ["training.learning_rate=1e-4", "backbone.options.widths=[8, 8, 8, 8]", "seed=3"])
    assert recipe.training.learning_rate == 1e-4
    assert recipe.backbone.options == {"widths": [8, 8, 8, 8]}
    assert recipe.seed == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("training.episods=3", "`training.episods` is not a key"),
        ("training.episodes=0", "`training.episodes`.*greater than or equal to 1, got 0"),
        ("training.episodes=many", "`training.episodes`.*valid integer.*got 'many'"),
        ("training.weight_decay=-1", "`training.weight_decay`"),
        ("training.learning_rate=.nan", "`training.learning_rate`.*finite"),
        ("method.name=tapnett", "method is one of tapnet, .*protonet.*, got 'tapnett'"),
        ("backbone.name=vgg", "backbone is one of conv4, resnet12, resnet12-small, .*got 'vgg'"),
        ("training.augmentation=cutout", "augmentation is one of none, rotate, dihedral, .*crop, got 'cutout'"),
        ("training=5", "`training`"),
        ("episodes", "written key=value"),
        ("name=../mine", "has no slashes, got '../mine'"),
        ("name=''", "has no slashes, got ''"),
        ("name.x=1", "`name` of the recipe is a value"),
        ("method.options=null", r"`method\.options`"),
        ("training.augmentation=window", "window is for the method classifier, got"),
    ],
)
def test_a_wrong_key_or_value_is_named(file, change, words):
    with pytest.raises(ValueError, match=words):
        load_recipe(file, [change])


@pytest.mark.parametrize(
    ("text", "words"),
    [("name: x\n", "`data` is missing; `backbone` is missing")]
    + [(text, r"r\.yaml") for text in ("- 1\n- 2\n", "", "a: [1")],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path, text, words):
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(ValueError, match=words):
        load_recipe(str(tmp_path / "r.yaml"))


def test_an_unknown_recipe_suggests_the_nearest_bundled_one():
    with pytest.raises(FileNotFoundError, match=r"did you mean quickdraw.*`tapnet recipes` lists"):
        load_recipe("quickdrawn")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("method.options.color=red", "'tapnet' has no option color; it has num_references, projection_dim, "),
        ("method.options={}", "'tapnet' needs the option num_references"),
    ],
)
def test_options_that_a_method_does_not_take_or_lacks_are_named(file, change, words):
    with pytest.raises(ValueError, match=words):
        load_recipe(file, [change]).build((1, 28, 28))


def test_data_of_a_recipe_come_with_its_options():
    assert load_recipe("quickdraw", ["data.options.rotations=4"]).data.images("test").rotations == 4


def test_the_folder_of_a_run_is_no_recipe_but_holds_one(tmp_path):
    (tmp_path / "recipe.yaml").write_text("name: mine", encoding="utf-8")
    with pytest.raises(OSError, match=r"is the folder of a run: `tapnet train --resume .*recipe is .*recipe\.yaml"):
        load_recipe(str(tmp_path))


def test_another_method_takes_the_place_of_the_recipes_with_the_options_that_are_set(file):
    assert load_recipe(file, method="matching").method.options == {}
    recipe = load_recipe(file, ["method.options.scale=3.0", "training.query=4"], method="matching")
    assert (recipe.name, recipe.method.name, recipe.method.options) == ("small-matching", "matching", {"scale": 3.0})
    assert recipe.training.query == 4


@pytest.mark.parametrize(
    ("method", "changes", "options"),
    [
        ("tapnet", [], {"num_references": 5}),
        ("tapnet", ["training.way=30"], {"num_references": 30}),
        (None, ["training.way=30"], {"num_references": 30}),
        ("maml", ["training.way=7"], {"way": 7}),
        ("matching", ["training.way=7"], {}),
        (None, ["method={name: snail, options: {way: 9}}", "training.way=9"], {"way": 9}),
    ],
)
def test_number_of_classes_of_a_method_follows_that_of_training(file, method, changes, options):
    assert load_recipe(file, changes, method).method.options == options


def test_number_of_classes_that_is_named_is_not_changed(file):
    with pytest.raises(ValueError, match=r"need to be equal, and validation.way no larger, got 8, 6 and 5"):
        load_recipe(file, ["training.way=8", "method.options.num_references=6"])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_builds_by_any_recipe(method):
    recipe = load_recipe("omniglot-60way", method=method)
    assert type(recipe.build((1, 28, 28))) is METHODS[method]


def test_number_of_training_classes_is_filled_in_where_a_method_asks_for_it_and_a_recipe_does_not_give_it(file):
    recipe = load_recipe(file, method="tadam-tc")
    given = load_recipe(file, ["method.options.num_classes=null"], method="tadam-tc")
    assert recipe.with_num_classes(40).method.options == {"num_classes": 40}
    assert given.with_num_classes(40).method.options == {"num_classes": None}
    assert load_recipe(file).with_num_classes(40) == load_recipe(file)


@pytest.mark.parametrize("change", ["divisions=4", "teachers=[drawings]"])
def test_divisions_and_teachers_need_the_loss_that_every_method_has(change):
    load_recipe("quickdraw", [f"training.{change}"])
    with pytest.raises(UserError, match=r"relation has a loss of its own, which needs training\.\w+=(1|\[\])\.$"):
        load_recipe("omniglot-relation-cpu", [f"training.{change}"])


class Part:
    def __init__(self, first: str, count: int = 1, exact: bool = False, rate: float = 0.5) -> None:
        self.values = first, count, exact, rate


@pytest.mark.parametrize("count", [3, np.int64(3)])
def test_build_takes_whole_numbers_of_any_type(count):
    assert build("Part", Part, "a", {"count": count}).values == ("a", 3, False, 0.5)


@pytest.mark.parametrize(
    ("option", "words"),
    [({"count": count}, "`count` is a whole number, got ") for count in (True, 3.0, "3", None)]
    + [({"exact": 1}, "`exact` is true or false, got 1")],
)
def test_build_names_an_option_of_another_kind(option, words):
    with pytest.raises(UserError, match=f"^Part: {words}"):
        build("Part", Part, "a", option)
