"""The paper's tables and those of its rivals, filled with recorded results."""

import re
from dataclasses import asdict

import pytest

from tapnet.checkpoint import Ancestor
from tapnet.errors import UserError
from tapnet.methods import METHODS
from tapnet.paper.figures import rivals_figure
from tapnet.paper.published import ACCURACIES, CELLS, HYPERPARAMETERS, PARAMETERS, RIVALS
from tapnet.paper.tables import TABLES, count_parameters, filled_table, saved_after
from tapnet.recipe import Data, bundled_recipes, load_recipe


def result(recipe, accuracy, changes=(), **task):
    evaluation = {"accuracy": accuracy, "ci95": 0.001, "split": "test", "dataset": "omniglot", "classes": 423}
    protocol = {"way": 20, "shot": 1, "query": 5, "episodes": 10_000, "transductive": False}
    return {
        "recipe": load_recipe(recipe, changes).as_dict(),
        "evaluation": evaluation | protocol | task,
        "trained": {"episodes": 1000, "hardware": {"device_name": "some CPU"}, "lineage": {}, "seconds": 600.0},
    }


def cells(name, results, row="TapNet, ours"):
    return next(cells for method, *cells in filled_table(name, results).rows if method == row)


def command(name, start, results=()):
    lines = filled_table(name, list(results)).commands
    (line,) = [line for line in lines if line.startswith(f"tapnet train {start} ")]
    return line


def test_recipes_of_cells_are_bundled_ones_in_every_column():
    names = {path.stem for path in bundled_recipes()}
    assert {recipe for cell in CELLS for recipe in (cell.recipe, *cell.ours)} <= names
    for table in (*ACCURACIES.values(), *RIVALS.values()):
        assert {recipe for row in table.rows.values() for recipe in row.recipes if recipe} <= names
        assert {*table.own_recipes} <= names
        rows = [part for row in table.rows.values() for part in (row.published, row.recipes) if part]
        assert {len(part) for part in rows} == {len(table.columns)}


@pytest.mark.parametrize("name", TABLES)
def test_table_can_be_printed_without_any_result(name):
    filled = filled_table(name, [])
    assert {len(row) for row in filled.rows} == {len(filled.headings)}
    assert filled.runs == []


def test_table_without_results_has_the_commands():
    assert cells("main-tiered", []) == ["not run", "not run"]
    assert filled_table("main-tiered", []).commands[0] == (
        "tapnet train tiered-imagenet-1shot && tapnet evaluate runs/tiered-imagenet-1shot --way 5 --shot 1 --query 15 "
        "--episodes 30000 --record results"
    )


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("omniglot-cpu", "omniglot-cpu && tapnet evaluate runs/omniglot-cpu --way 20 --shot 1,5 --query 5"),
        ("omniglot-cpu-branches-1200", "runs/omniglot-cpu-branches-1200 --rotations 1 --way 20"),
        ("omniglot-cpu-long", "runs/omniglot-cpu-long --way 20"),
        (
            "omniglot-cpu-branches",
            f"  # initialized from {', '.join(f'runs/omniglot-cpu-branch-seed{seed}' for seed in range(4))}",
        ),
        ("omniglot-cpu-wide-distilled", "  # initialized from runs/omniglot-cpu-wide-mixed, distilled from characters"),
    ],
)
def test_command_trains_once_tests_the_tables_classes_and_names_other_networks(recipe, words):
    assert words in command("main-omniglot-mini", recipe)


def test_result_fills_its_cell_and_no_other():
    results = [result("omniglot-1shot", 0.9712)]
    assert cells("main-omniglot-mini", results) == ["97.12 ± 0.10", "not run", "not run", "not run"]
    assert filled_table("main-omniglot-mini", results).runs == [
        "omniglot-1shot: tapnet with resnet12, seed 0, kept after 1,000 of 100,000 training episodes, some CPU; "
        "20-way 1-shot"
    ]


def test_several_seeds_are_averaged_and_counted():
    results = [result("omniglot-1shot", 0.97), result("omniglot-1shot", 0.98, ["seed=1"])]
    assert cells("main-omniglot-mini", results)[0] == "97.50 (2 seeds: 97.00 to 98.00)"


def test_recipe_of_our_own_has_its_own_row():
    results = [result("omniglot-cpu", 0.97), result("omniglot-cpu", 0.99, shot=5)]
    assert cells("main-omniglot-mini", results, "omniglot-cpu, ours") == ["97.00 ± 0.10", "99.00 ± 0.10", "—", "—"]
    (line,) = filled_table("main-omniglot-mini", results).runs
    assert line.endswith("; 20-way 1-shot and 20-way 5-shot")


@pytest.mark.parametrize(
    ("changes", "task"),
    [
        (["training.episodes=10"], {}),
        ([], {"way": 5}),
        ([], {"split": "val"}),
        ([], {"classes": 1692}),
        ([], {"episodes": 100}),
    ],
)
def test_changed_recipe_or_another_task_fills_nothing(changes, task):
    assert cells("main-omniglot-mini", [result("omniglot-1shot", 0.97, changes, **task)])[0] == "not run"


def test_run_says_what_it_learned_from_and_that_it_is_not_finished():
    networks = [("distilled", "one", 50), ("distilled", "two", 60), ("initialized", "three", 70), ("earlier", "x", 3)]
    ancestors = [
        asdict(Ancestor(relation, name, episodes, name, Data("omniglot"), "val"))
        for relation, name, episodes in networks
    ]
    trained = {"episodes": 9, "state": "interrupted", "lineage": {"ancestors": ancestors}}
    assert saved_after({"trained": trained, "recipe": {"training": {"episodes": 10}}}) == (
        "9 of 10 training episodes (the run is not finished; distilled from one after 50 episodes; distilled from two "
        "after 60 episodes; initialized from three after 70 episodes)"
    )


def ablation(name, variant, accuracy, **task):
    return {
        "name": name,
        "recipe": load_recipe("mini-imagenet-5shot-conv4").as_dict(),
        "task": {"way": 5, "shot": 5, "dataset": "mini-imagenet", "split": "test"} | task,
        "rows": [{"variant": variant, "accuracy": accuracy, "ci95": 0.01, "training_episodes": None}],
    }


def test_ablations_stand_beside_the_published_ones_if_they_are_on_the_same_classes():
    others = [
        ablation("selection", "farthest", 0.5, split="val"),
        ablation("selection", "farthest", 0.4, dataset="cub"),
    ]
    filled = filled_table("references", [ablation("selection", "farthest", 0.9), *others])
    network = "mini-imagenet-5shot-conv4, seed 0, 5-way 5-shot on mini-imagenet (test)"
    assert filled.headings == ("setting", "published, 5-way 5-shot miniImageNet", network)
    assert ("farthest selected", "75.11", "90.00 ± 1.00") in filled.rows
    assert ("random selected", "75.78", "not run") in filled.rows
    papers = "tapnet ablate selection --checkpoint runs/mini-imagenet-5shot --episodes 30000 --record results"
    assert papers in filled.commands
    filled = filled_table("episode-composition", [ablation("episode-composition", "5-way 47-query", 0.7)])
    assert filled.rows[0] == ("5-way 40-query", "74.19", "70.00 ± 1.00")


def test_our_recipes_have_the_published_settings():
    rows = filled_table("hyperparameters", []).rows
    assert len(rows) == len(HYPERPARAMETERS)
    assert {row[-1] for row in rows} == {"same"}


OTHER_SIZES = {"Relation Nets", "TADAM-TC"}  # of their further parts; the notes under the table say why


def rounds_to(count, published):
    """Whether a number rounds to the published one, such as 112k or 9.4M."""
    number, unit = re.match(r"([\d.]+)([kM])", published).groups()
    digits = len(number.partition(".")[2])
    return round(int(count.replace(",", "")) / {"k": 1e3, "M": 1e6}[unit], digits) == float(number)


@pytest.mark.parametrize("name", PARAMETERS)
def test_network_has_the_published_size_or_a_note(name):
    *ours, _ = count_parameters(PARAMETERS[name])
    assert name not in OTHER_SIZES or PARAMETERS[name].note
    for column, (count, published) in enumerate(zip(ours, PARAMETERS[name].published, strict=True)):
        if published != "-" and (name not in OTHER_SIZES or column < 2):
            assert rounds_to(count.split(" + ")[0], published)


def test_parameters_are_those_worked_out_by_hand():
    rows = {row[0]: row[1:] for row in filled_table("parameters", []).rows}
    assert rows["TapNet (Conv4), ours"] == ("112,320", "-", f"{20 * 2304:,}", f"{20 * 2304:,}")
    assert rows["MAML, ours"] == ("112,320", "-", f"{5 * 2304:,}", f"{5 * 2304 + 5:,}")
    assert rows["Relation Nets, ours"][1] == f"{128 * 64 * 9 + 64 * 64 * 9:,}"
    assert rows["Transductive Propagation Nets, ours"][1] == f"{64 * 64 * 9 + 64 * 9:,}"
    assert rows["SNAIL (ResNet-12-small), ours"][1].startswith(f"{256 * 2048 + 2048 * 384:,} + ")
    assert rows["adaResNet, ours"][1] == f"{256 * 512 + 512 * 384:,}"


PROTONET, SNAIL = "omniglot-60way-protonet", ("omniglot-snail-cpu", "omniglot-snail-20way-cpu")


def five_way(recipe, accuracy, changes=(), **task):
    return result(recipe, accuracy, changes, **({"way": 5, "episodes": 2000} | task))


def test_every_method_of_the_paper_is_a_rival():
    trained = {load_recipe(row.recipes[0]).method.name for row in RIVALS["rivals"].rows.values()}
    others = {"tapnet-variant", "centroid", "logistic", "classifier"}  # ours, and those that other fields know
    assert trained == METHODS.keys() - others


def test_rivals_on_mini_imagenet_start_from_the_same_classifier():
    rows = RIVALS["rivals-mini-imagenet"].rows.values()
    recipes = [load_recipe(recipe) for row in rows for recipe in row.recipes]
    while recipes:
        origins = {origin.removeprefix("runs/") for recipe in recipes for origin in recipe.training.init_from}
        assert all(recipe.training.init_from for recipe in recipes)
        assert all(recipe.backbone.name == "conv4" for recipe in recipes)
        recipes = [load_recipe(origin) for origin in origins - {"mini-imagenet-conv4-classifier"}]


def test_result_of_a_rival_stands_under_the_published_row_with_what_it_took():
    results = [five_way(PROTONET, 0.978), five_way(PROTONET, 0.97, episodes=600), five_way(PROTONET, 0.9, query=15)]
    assert cells("rivals", results, "Prototypical Networks")[:4] == ["98.8", "99.7", "96.0", "98.9"]
    ours = cells("rivals", results, "Prototypical Networks, ours")
    assert ours == ["97.80 ± 0.10", "not run", "not run", "not run", "0", "1,000", "10", "no"]


def test_method_without_published_accuracies_has_only_our_row():
    names = [row[0] for row in filled_table("rivals", []).rows]
    assert "TADAM-α" not in names
    assert "TADAM-α, ours" in names


def test_network_for_more_classes_has_a_command_and_costs_of_its_own():
    five, twenty = SNAIL
    results = [five_way(five, 0.93), five_way(five, 0.95, shot=5)]
    assert not any(five in line.split() for line in filled_table("rivals", results).commands)
    assert f"runs/{twenty} --way 20 --shot 1,5 " in command("rivals", twenty, results)
    ours = cells("rivals", [*results, result(twenty, 0.8)], "SNAIL, ours")
    assert ours[2] == "80.00 ± 0.10"
    assert ours[-3:] == ["1,000 / 1,000", "10 / 10", "no"]


def test_extra_parameters_are_those_of_the_network_that_was_measured():
    assert cells("rivals", [])[4] == f"{120 * 256:,}"
    earlier = five_way("omniglot-60way-gradient", 0.97, ["training.way=80", "method.options.num_references=80"])
    assert cells("rivals", [earlier])[4] == f"{80 * 512:,}"
    assert "by an earlier form of the recipe, seed 0" in filled_table("rivals", [earlier]).runs[0]


def test_figure_of_rivals_has_ours_and_the_published_accuracies_in_the_order_of_the_table():
    results = [five_way(PROTONET, 0.978), five_way("omniglot-60way-gradient", 0.976)]
    (axis,) = rivals_figure([*results, five_way("omniglot-tpn-cpu", 0.96, transductive=True)]).axes
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert labels == ["TapNet", "Prototypical Networks", "Transductive Propagation (transductive)"]
    ours, *_, published = axis.get_lines()
    assert ours.get_xdata() == pytest.approx([97.6, 97.8, 96.0])
    assert list(published.get_xdata()) == [98.8]


@pytest.mark.parametrize(
    ("way", "words"), [(7, "5-way 1-shot, 5-way 5-shot.*got 7-way 1-shot"), (5, "tapnet table rivals")]
)
def test_figure_of_rivals_refuses_other_tasks_and_a_folder_without_results(way, words):
    with pytest.raises(UserError, match=words):
        rivals_figure([], way)
