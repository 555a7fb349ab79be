import re
from dataclasses import asdict

import pytest

from tapnet.checkpoint import Ancestor
from tapnet.paper.parameters import PARAMETERS, count_parameters
from tapnet.paper.published import ACCURACIES, HYPERPARAMETERS
from tapnet.paper.tables import TABLES, filled_table, saved_after
from tapnet.recipe import Data, bundled_recipes, load_recipe


def result(recipe, accuracy, changes=(), **task):
    evaluation = {"accuracy": accuracy, "ci95": 0.001, "split": "test", "dataset": "omniglot", "classes": 423}
    protocol = {"way": 20, "shot": 1, "query": 5, "episodes": 10_000}
    return {
        "recipe": load_recipe(recipe, changes).as_dict(),
        "evaluation": evaluation | protocol | task,
        "trained": {"episodes": 100_000, "hardware": {"device_name": "some CPU"}, "lineage": {}},
    }


@pytest.mark.parametrize("name", ACCURACIES)
def test_every_tapnet_cell_has_a_recipe_that_exists(name):
    names = {path.stem for path in bundled_recipes()}
    cells = [cell for row, cells in ACCURACIES[name].rows if row.startswith("TapNet") for cell in cells]
    assert cells
    assert {cell.recipe for cell in cells} <= names


@pytest.mark.parametrize("name", ACCURACIES)
def test_every_row_has_one_cell_a_column(name):
    assert {len(cells) for _, cells in ACCURACIES[name].rows} == {len(ACCURACIES[name].columns)}


@pytest.mark.parametrize("name", ACCURACIES)
def test_every_recipe_of_our_own_exists(name):
    assert set(ACCURACIES[name].own_recipes) <= {path.stem for path in bundled_recipes()}


def ours(name, results, row="TapNet, ours"):
    return next(cells for method, *cells in filled_table(name, results).rows if method == row)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_can_be_printed_without_any_result(name):
    filled = filled_table(name, [])
    assert {len(row) for row in filled.rows} == {len(filled.headings)}
    assert filled.runs == []


def test_without_results_our_cells_are_not_run_and_the_commands_stand_below():
    assert ours("main-tiered", []) == ["not run", "not run"]
    assert filled_table("main-tiered", []).commands[0] == (
        "tapnet train tiered-imagenet-1shot && tapnet evaluate runs/tiered-imagenet-1shot --way 5 --shot 1 --query 15 "
        "--episodes 30000 --record results"
    )


def test_a_recipe_of_several_tasks_is_trained_once():
    commands = filled_table("main-omniglot-mini", []).commands
    (command,) = [command for command in commands if command.startswith("tapnet train omniglot-cpu ")]
    assert command.count("tapnet train") == 1
    assert command.count("tapnet evaluate runs/omniglot-cpu") == 2


def test_a_result_fills_its_cell_and_no_other():
    results = [result("omniglot-1shot", 0.9712)]
    assert ours("main-omniglot-mini", results) == ["97.12 ± 0.10", "not run", "not run", "not run"]
    assert filled_table("main-omniglot-mini", results).runs == [
        "omniglot-1shot: tapnet with resnet12, seed 0, kept after 100,000 of 100,000 training episodes, some CPU; "
        "20-way 1-shot"
    ]


def test_several_seeds_are_averaged_and_counted():
    results = [result("omniglot-1shot", 0.97), result("omniglot-1shot", 0.98, ["seed=1"])]
    assert ours("main-omniglot-mini", results)[0] == "97.50 (2 seeds: 97.00 to 98.00)"


def test_a_recipe_of_our_own_has_its_own_row():
    results = [result("omniglot-cpu", 0.97), result("omniglot-cpu", 0.99, shot=5)]
    assert ours("main-omniglot-mini", results, "omniglot-cpu, ours") == ["97.00 ± 0.10", "99.00 ± 0.10", "—", "—"]
    (line,) = filled_table("main-omniglot-mini", results).runs
    assert line.startswith("omniglot-cpu: tapnet with resnet12-small, seed 0, kept after ")
    assert line.endswith("; 20-way 1-shot and 20-way 5-shot")


def test_a_run_that_is_not_finished_says_so():
    unfinished = result("omniglot-1shot", 0.97)
    unfinished["trained"]["state"] = "interrupted"
    (line,) = filled_table("main-omniglot-mini", [unfinished]).runs
    assert "(the run is not finished)" in line


def ablation(split="test", **row):
    rows = [{"variant": "farthest", "accuracy": 0.9, "ci95": 0.01, "training_episodes": None} | row]
    task = {"way": 20, "shot": 1, "dataset": "omniglot", "split": split}
    recipe = load_recipe("omniglot-1shot").as_dict()
    return {"name": "selection", "recipe": recipe, "task": task, "rows": rows, "command": "tapnet ablate selection"}


def test_references_shows_each_network_that_was_varied_on_test_classes():
    filled = filled_table("references", [ablation(), ablation("val", accuracy=0.5)])
    networks = "published, 5-way 5-shot miniImageNet", "omniglot-1shot, 20-way 1-shot on omniglot (test)"
    assert filled.headings == ("references", *networks)
    assert ("farthest selected", "75.11", "90.00 ± 1.00") in filled.rows
    assert ("random selected", "75.78", "not run") in filled.rows


def test_references_gives_the_command_for_the_papers_network_until_that_was_run():
    command = "tapnet ablate selection --checkpoint runs/mini-imagenet-5shot --episodes 30000 --record results"
    assert command in filled_table("references", [ablation()]).commands


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
def test_a_changed_recipe_or_another_task_fills_nothing(changes, task):
    assert ours("main-omniglot-mini", [result("omniglot-1shot", 0.97, changes, **task)])[0] == "not run"


def test_our_recipes_have_the_published_settings():
    rows = filled_table("hyperparameters", []).rows
    assert len(rows) == len(HYPERPARAMETERS)
    assert {row[-1] for row in rows} == {"same"}


OTHER_SIZES = {"Relation Nets", "TADAM-TC"}  # of their further parts; the notes under the table say why


def as_published(count, published):
    """Whether a number rounds to the published one, such as 112k or 9.4M."""
    number, unit = re.match(r"([\d.]+)([kM])", published).groups()
    digits = len(number.partition(".")[2])
    return round(int(count.replace(",", "")) / {"k": 1e3, "M": 1e6}[unit], digits) == float(number)


@pytest.mark.parametrize("row", PARAMETERS, ids=lambda row: row.name)
def test_our_networks_have_the_published_sizes(row):
    *ours, _ = count_parameters(row)
    for column, (count, published) in enumerate(zip(ours, row.published, strict=True)):
        if published != "-" and (row.name not in OTHER_SIZES or column < 2):
            assert as_published(count.split(" + ")[0], published)


def test_parameters_are_those_worked_out_by_hand():
    rows = {row[0]: row[1:] for row in filled_table("parameters", []).rows}
    assert rows["TapNet (Conv4), ours"] == ("112,320", "-", f"{20 * 2304:,}", f"{20 * 2304:,}")
    assert rows["MAML, ours"] == ("112,320", "-", f"{5 * 2304:,}", f"{5 * 2304 + 5:,}")
    assert rows["Relation Nets, ours"][1] == f"{128 * 64 * 9 + 64 * 64 * 9:,}"
    assert rows["Transductive Propagation Nets, ours"][1] == f"{64 * 64 * 9 + 64 * 9:,}"
    assert rows["SNAIL (ResNet-12-small), ours"][1].startswith(f"{256 * 2048 + 2048 * 384:,} + ")
    assert rows["adaResNet, ours"][1] == f"{256 * 512 + 512 * 384:,}"


@pytest.mark.parametrize("name", sorted(OTHER_SIZES))
def test_a_size_that_is_not_the_published_one_has_a_note(name):
    assert any(note.startswith(f"{name}: ") for note in filled_table("parameters", []).notes)


def test_an_unknown_table_lists_those_there_are():
    with pytest.raises(ValueError, match="main-omniglot-mini, main-tiered"):
        filled_table("table-1", [])


def test_a_result_names_the_networks_that_it_learned_from_but_not_theirs():
    networks = [("distilled", "one", 50), ("distilled", "two", 60), ("initialized", "three", 70), ("earlier", "x", 3)]
    ancestors = [
        asdict(Ancestor(relation, name, episodes, name, Data("omniglot"), "val"))
        for relation, name, episodes in networks
    ]
    trained = {"episodes": 9, "state": "finished", "lineage": {"ancestors": ancestors}}
    kept_after = saved_after({"trained": trained, "recipe": {"training": {"episodes": 9}}})
    assert kept_after == (
        "9 of 9 training episodes (distilled from one after 50 episodes; distilled from two after 60 episodes; "
        "initialized from three after 70 episodes)"
    )


@pytest.mark.parametrize(("recipe", "rotated"), [("omniglot-cpu-branches-1200", True), ("omniglot-cpu-long", False)])
def test_the_command_of_a_recipe_tests_on_the_classes_of_the_table(recipe, rotated):
    commands = filled_table("main-omniglot-mini", []).commands
    (command,) = [command for command in commands if command.startswith(f"tapnet train {recipe} ")]
    assert (f"runs/{recipe} --rotations 1 --way 20" in command) is rotated


def test_the_command_of_a_recipe_names_every_network_that_it_starts_from():
    commands = filled_table("main-omniglot-mini", []).commands
    (command,) = [command for command in commands if command.startswith("tapnet train omniglot-cpu-branches ")]
    seeds = ", ".join(f"runs/omniglot-cpu-branch-seed{seed}" for seed in range(4))
    assert command.endswith(f"  # initialized from {seeds}")


def test_the_command_of_a_recipe_names_its_teachers():
    commands = filled_table("main-omniglot-mini", []).commands
    (command,) = [command for command in commands if command.startswith("tapnet train omniglot-cpu-wide-distilled ")]
    assert command.endswith("  # initialized from runs/omniglot-cpu-wide-mixed, distilled from characters")
