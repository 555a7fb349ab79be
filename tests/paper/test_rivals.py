import pytest

from tapnet.errors import UserError
from tapnet.methods import METHODS
from tapnet.paper.rivals import OMNIGLOT, RIVAL_TABLES, Rival, accuracy_cell, best_known, costs
from tapnet.paper.rivals_figure import rivals_figure
from tapnet.paper.tables import filled_table
from tapnet.recipe import bundled_recipes, load_recipe


def result(recipe, accuracy, way=5, shot=1, episodes=2000, **task):
    evaluation = {"accuracy": accuracy, "ci95": 0.001, "split": "test", "dataset": "omniglot", "classes": 423}
    protocol = {"way": way, "shot": shot, "query": 5, "episodes": episodes, "transductive": False}
    return {
        "recipe": load_recipe(recipe).as_dict(),
        "evaluation": evaluation | protocol | task,
        "trained": {"episodes": 1000, "hardware": {"device_name": "some CPU"}, "seconds": 600.0},
    }


TAPNET, PROTONET = OMNIGLOT.rivals[:2]


def test_every_rival_has_a_recipe_that_exists():
    assert {recipe for table in RIVAL_TABLES.values() for rival in table.rivals for recipe in rival.recipes} <= {
        path.stem for path in bundled_recipes()
    }


def test_every_method_of_the_paper_is_a_rival():
    trained = {load_recipe(rival.recipes[0]).method.name for rival in OMNIGLOT.rivals}
    others = {"tapnet-variant", "centroid", "logistic", "classifier"}  # ours, and those that other fields know
    assert trained == METHODS.keys() - others


def test_a_result_stands_under_the_published_row_with_what_it_took():
    rows = {row[0]: row[1:] for row in filled_table("rivals", [result(PROTONET.recipes[0], 0.978)]).rows}
    assert rows[PROTONET.name][:4] == PROTONET.published
    assert rows[f"{PROTONET.name}, ours"] == (
        "97.80 ± 0.10", "not run", "not run", "not run", "0", "1,000", "10", "no",
    )  # fmt: skip


def test_a_method_without_published_accuracies_has_only_our_row():
    names = [row[0] for row in filled_table("rivals", []).rows]
    assert "TADAM-α" not in names
    assert "TADAM-α, ours" in names


def test_the_result_with_the_most_episodes_counts():
    name = TAPNET.recipes[0]
    found = best_known(
        OMNIGLOT, TAPNET, 5, 1, [result(name, 0.97, episodes=600), result(name, 0.98), result(name, 0.9, shot=5)]
    )
    assert found["evaluation"]["accuracy"] == 0.98


@pytest.mark.parametrize("other", [{"split": "val"}, {"classes": 1692}, {"query": 15}, {"dataset": "quickdraw"}])
def test_results_of_another_protocol_are_left_out(other):
    assert best_known(OMNIGLOT, TAPNET, 5, 1, [result(TAPNET.recipes[0], 0.97, **other)]) is None


def test_a_further_recipe_fills_the_tasks_that_the_first_cannot_do():
    rival = Rival("some", ("omniglot-maml-cpu", "omniglot-maml-20way-cpu"))
    results = [
        result("omniglot-maml-cpu", 0.9),
        result("omniglot-maml-20way-cpu", 0.8, way=20),
        result("omniglot-maml-20way-cpu", 0.7),
    ]
    found = [best_known(OMNIGLOT, rival, *task, results) for task in OMNIGLOT.tasks]
    assert [each["evaluation"]["accuracy"] for each in found if each] == [0.9, 0.8]


@pytest.mark.parametrize(("task", "cell"), [((5, 1), "not run"), ((20, 1), "5-way only")])
def test_a_task_with_more_classes_than_the_network_takes_says_so(task, cell):
    assert accuracy_cell(OMNIGLOT, Rival("some", ("omniglot-snail-cpu",)), *task, []) == cell


def test_extra_parameters_are_those_besides_the_backbone():
    assert costs(OMNIGLOT, TAPNET, [])[0] == f"{120 * 256:,}"


def test_extra_parameters_of_a_result_are_those_of_the_network_that_was_measured():
    earlier = result(TAPNET.recipes[0], 0.97)
    changes = ["training.way=80", "method.options.num_references=80"]
    earlier["recipe"] = load_recipe(TAPNET.recipes[0], changes).as_dict()
    assert costs(OMNIGLOT, TAPNET, [earlier])[0] == f"{80 * 512:,}"


def test_what_was_not_run_has_its_command():
    assert filled_table("rivals", []).commands[0] == (
        "tapnet train omniglot-60way-gradient --no-test && tapnet evaluate runs/omniglot-60way-gradient --way 5 "
        "--shot 1,5 --query 5 --episodes 2000 --record results"
    )


def test_a_network_for_more_classes_has_a_command_and_costs_of_its_own():
    rival = next(rival for rival in OMNIGLOT.rivals if rival.name == "SNAIL")
    five, twenty = rival.recipes
    commands = filled_table("rivals", [result(five, 0.93)]).commands
    assert not any(five in command.split() for command in commands)
    assert any(f"runs/{twenty} --way 20 --shot 1,5 " in command for command in commands)
    both = costs(OMNIGLOT, rival, [result(five, 0.93), result(twenty, 0.8, way=20)])
    assert both[1:] == ("1,000 / 1,000", "10 / 10", "no")


def test_every_rival_on_mini_imagenet_starts_from_the_same_classifier():
    recipes = [load_recipe(recipe) for rival in RIVAL_TABLES["rivals-mini-imagenet"].rivals for recipe in rival.recipes]
    while recipes:
        origins = {recipe.training.init_from.removeprefix("runs/") for recipe in recipes}
        recipes = [load_recipe(origin) for origin in origins - {"mini-imagenet-conv4-classifier"}]
        assert all(recipe.backbone.name == "conv4" for recipe in recipes)


RESULTS = [
    result("omniglot-60way-protonet", 0.978),
    result("omniglot-60way-gradient", 0.976),
    result("omniglot-tpn-cpu", 0.96, transductive=True),
]


def axis():
    (found,) = rivals_figure(RESULTS).axes
    return found


def test_every_method_with_a_result_has_a_place_in_the_order_of_the_table():
    labels = [label.get_text() for label in axis().get_yticklabels()]
    assert labels == ["TapNet", "Prototypical Networks", "Transductive Propagation (transductive)"]


def test_points_are_our_accuracies_and_bars_the_published_ones():
    ours, *_, published = axis().get_lines()
    assert ours.get_xdata() == pytest.approx([97.6, 97.8, 96.0])
    assert list(published.get_xdata()) == [98.8]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rivals_figure(RESULTS, 7), "5-way 1-shot, 5-way 5-shot.*got 7-way 1-shot"),
        (lambda: rivals_figure([]), "tapnet table rivals"),
    ],
)
def test_mistakes_of_the_figure_get_a_sentence(call, words):
    with pytest.raises(UserError, match=words):
        call()
