"""Every method of the paper's tables on Omniglot and miniImageNet: published accuracies, ours, and the cost of ours."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tapnet.backbones import ImageShape
from tapnet.evaluation.comparison import extra_parameters
from tapnet.recipe import load_recipe, recipe_from
from tapnet.text import with_interval

COSTS = ("extra parameters", "episodes", "minutes", "transductive")


@dataclass(frozen=True)
class Rival:
    """A method, its published accuracies on the tasks of its table, and our recipes.

    For a task, the first recipe with a result counts: the others are for tasks that its network was not trained for.
    """

    name: str
    recipes: tuple[str, ...]
    published: tuple[str, ...] = ()


@dataclass(frozen=True)
class RivalTable:
    """Methods compared on the test classes of one dataset; a task is a pair of way and shot."""

    title: str
    tasks: tuple[tuple[int, int], ...]
    protocol: dict[str, Any]  # what an evaluation must have, besides way and shot
    episodes: int
    image_shape: ImageShape
    rivals: tuple[Rival, ...]
    notes: tuple[str, ...]

    @property
    def headings(self) -> tuple[str, ...]:
        return ("method", *(f"{way}-way {shot}-shot" for way, shot in self.tasks), *COSTS)


_PARAMETERS = (
    "Extra parameters are those besides the backbone's; while it is trained, TADAM-TC also has a linear layer over the "
    "training classes."
)
_MINUTES = (
    "Minutes are those of training on one core that other work shared, a dash if not recorded: they do not rank the "
    "methods' speed."
)

_ON_OMNIGLOT = (
    Rival("TapNet", ("omniglot-60way-gradient",), ("—", "—", "98.07", "99.49")),
    Rival("Prototypical Networks", ("omniglot-60way-protonet",), ("98.8", "99.7", "96.0", "98.9")),
    Rival("Matching Networks", ("omniglot-matching-cpu",), ("98.1", "98.9", "93.8", "98.5")),
    Rival("TADAM-α", ("omniglot-tadam-alpha-cpu",)),
    Rival("TADAM-TC", ("omniglot-tadam-tc-cpu",)),
    Rival("Relation Networks", ("omniglot-relation-cpu",), ("99.6 ± 0.2", "99.8 ± 0.1", "97.6 ± 0.2", "99.1 ± 0.1")),
    Rival("Transductive Propagation", ("omniglot-tpn-cpu",)),
    Rival(
        "MAML",
        ("omniglot-maml-cpu", "omniglot-maml-20way-cpu"),
        ("98.7 ± 0.4", "99.9 ± 0.1", "95.8 ± 0.3", "98.9 ± 0.2"),
    ),
    Rival("Reptile", ("omniglot-reptile-cpu",), ("97.68", "99.48", "89.43", "97.12")),
    Rival(
        "SNAIL",
        ("omniglot-snail-cpu", "omniglot-snail-20way-cpu"),
        ("99.07 ± 0.16", "99.78 ± 0.09", "97.64 ± 0.30", "99.36 ± 0.18"),
    ),
    Rival(
        "adaCNN",
        ("omniglot-shifted-neurons-cpu", "omniglot-shifted-neurons-20way-cpu"),
        ("98.42", "99.37", "96.12", "98.43"),
    ),
)

OMNIGLOT = RivalTable(
    "Every method on Omniglot, 423 unseen characters, accuracy in % (ours: short runs on a CPU)",
    ((5, 1), (5, 5), (20, 1), (20, 5)),
    {"dataset": "omniglot", "split": "test", "classes": 423, "query": 5},
    2000,
    (1, 28, 28),
    _ON_OMNIGLOT,
    (
        _PARAMETERS,
        _MINUTES,
        "MAML, Reptile, TADAM-TC and SNAIL are initialized from the network of TADAM-α, whose episodes and minutes "
        "come on top.",
        "MAML, Reptile, SNAIL and adaCNN have networks for one number of classes: one run for 5 and, except for "
        "Reptile, another for 20. That of adaCNN for 20 starts from the one for 5, whose episodes come on top.",
        "Published accuracies are those of each method's own publication; the paper's Table 1 has 88.2 and 97.0 for "
        "Matching Networks and 98.48 for adaResNet (20-way). Those of Reptile are its transductive ones.",
    ),
)

_ON_MINI_IMAGENET = (
    Rival(
        "TapNet",
        ("mini-imagenet-1shot-conv4-cpu-scaled", "mini-imagenet-5shot-conv4-cpu-scaled"),
        ("50.68 ± 0.11", "69.00 ± 0.09"),
    ),
    Rival(
        "Prototypical Networks",
        ("mini-imagenet-1shot-conv4-cpu-protonet", "mini-imagenet-5shot-conv4-cpu-protonet"),
        ("49.42 ± 0.78", "68.20 ± 0.66"),
    ),
    Rival(
        "Prototypical Networks, normalized features",
        ("mini-imagenet-1shot-conv4-cpu-protonet-normalized", "mini-imagenet-5shot-conv4-cpu-protonet-normalized"),
    ),
    Rival("Matching Networks", ("mini-imagenet-matching-cpu",), ("43.56 ± 0.84", "55.31 ± 0.73")),
    Rival("TADAM-α (published: ResNet-12)", ("mini-imagenet-tadam-alpha-cpu",), ("56.8 ± 0.3", "75.7 ± 0.2")),
    Rival("TADAM-TC (published: ResNet-12)", ("mini-imagenet-tadam-tc-cpu",), ("58.5 ± 0.3", "76.7 ± 0.3")),
    Rival("Relation Networks", ("mini-imagenet-relation-cpu",), ("50.44 ± 0.82", "65.32 ± 0.70")),
    Rival("Transductive Propagation", ("mini-imagenet-tpn-cpu",), ("55.51 ± 0.86", "69.86 ± 0.65")),
    Rival("MAML", ("mini-imagenet-maml-cpu",), ("48.70 ± 1.84", "63.11 ± 0.92")),
    Rival("SNAIL (published: a ResNet)", ("mini-imagenet-snail-cpu",), ("55.71 ± 0.99", "68.88 ± 0.92")),
    Rival("adaCNN (published: adaResNet)", ("mini-imagenet-shifted-neurons-cpu",), ("56.88 ± 0.62", "71.94 ± 0.57")),
)

MINI_IMAGENET = RivalTable(
    "Methods on miniImageNet with Conv4, accuracy in % (ours: short runs on a CPU, from one classifier)",
    ((5, 1), (5, 5)),
    {"dataset": "mini-imagenet", "split": "test", "classes": 20, "query": 15},
    600,
    (3, 84, 84),
    _ON_MINI_IMAGENET,
    (
        _PARAMETERS,
        _MINUTES,
        "All of ours start from `mini-imagenet-conv4-classifier`, whose 3,600 steps and 62 minutes come on top, and "
        "are trained with 5 shots; TapNet and Prototypical Networks then also with one. TADAM-TC starts from TADAM-α, "
        "and Prototypical Networks with normalized features from those without: their episodes come on top, too. "
        "TapNet, Prototypical and Matching Networks and TADAM-α divide each episode into support and query four times "
        "(eight with one shot), the others once.",
        "MAML: 63.11 is its publication's; the paper's tables have 63.15, that of its first-order variant.",
    ),
)

RIVAL_TABLES = {"rivals": OMNIGLOT, "rivals-mini-imagenet": MINI_IMAGENET}


def best_known(
    table: RivalTable, rival: Rival, way: int, shot: int, results: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """Return our result for a method and a task: that with the most episodes of the first recipe that has one."""
    wanted = table.protocol | {"way": way, "shot": shot}
    for recipe in rival.recipes:
        found = [
            result
            for result in results
            if result["recipe"]["name"] == recipe and wanted.items() <= result.get("evaluation", {}).items()
        ]
        if found:
            return max(found, key=lambda result: int(result["evaluation"]["episodes"]))
    return None


def accuracy_cell(table: RivalTable, rival: Rival, way: int, shot: int, results: list[dict[str, Any]]) -> str:
    """Return our accuracy for a task with its interval over episodes, or why there is none."""
    found = best_known(table, rival, way, shot, results)
    if found:
        return with_interval(found["evaluation"]["accuracy"], found["evaluation"]["ci95"])
    most = max(_most_classes(recipe, table.image_shape) for recipe in rival.recipes)
    return "not run" if way <= most else f"{most}-way only"


def _most_classes(recipe: str, image_shape: ImageShape) -> float:
    limit = load_recipe(recipe).build_on_meta(image_shape).max_way
    return math.inf if limit is None else limit


def costs(table: RivalTable, rival: Rival, results: list[dict[str, Any]]) -> tuple[str, str, str, str]:
    """Return the cells of the costs of our runs, side by side; without any, the parameters of the recipe alone."""
    found = [found for task in table.tasks if (found := best_known(table, rival, *task, results))]
    by_recipe: dict[str, dict[str, Any]] = {}
    for result in found:
        by_recipe.setdefault(result["recipe"]["name"], result)
    runs = list(by_recipe.values())
    recipes = [recipe_from(run["recipe"], "its recipe") for run in runs] or [load_recipe(rival.recipes[0])]
    parameters = [f"{extra_parameters(recipe.build_on_meta(table.image_shape)):,}" for recipe in recipes]
    episodes = [f"{run['trained']['episodes']:,}" for run in runs]
    seconds = [run["trained"].get("seconds") for run in runs]
    minutes = [f"{each / 60:.0f}" if each else "—" for each in seconds]
    transductive = ["yes" if run["evaluation"].get("transductive") else "no" for run in runs]
    return _cell(dict.fromkeys(parameters)), _cell(episodes), _cell(minutes), _cell(dict.fromkeys(transductive))


def _cell(values: Iterable[str]) -> str:
    return " / ".join(values) or "—"
