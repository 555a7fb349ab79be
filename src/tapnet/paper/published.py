"""The tables of the paper and its supplement as published, and the recipe of each cell that is TapNet's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """The task of a column, by the paper's protocol."""

    heading: str
    dataset: str
    classes: int  # of the test split
    way: int
    shot: int
    query: int
    episodes: int


@dataclass(frozen=True)
class Cell:
    """A published accuracy in percent, and the recipe that reproduces it, if it is TapNet's."""

    published: str
    recipe: str | None = None


@dataclass(frozen=True)
class PaperTable:
    """A table: one task per column, and for each row a name and one cell per column.

    `own_recipes` are the names of our own recipes for smaller machines, each a further row; `notes` are on our results.
    """

    title: str
    columns: tuple[Task, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    own_recipes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _cells(*published: str) -> tuple[Cell, ...]:
    return tuple(map(Cell, published))


def _omniglot(shot: int) -> Task:
    return Task(f"Omniglot {shot}-shot", "omniglot", 423, 20, shot, 5, 10_000)


def _mini_imagenet(shot: int) -> Task:
    return Task(f"miniImageNet {shot}-shot", "mini-imagenet", 20, 5, shot, 15, 30_000)


def _tiered_imagenet(shot: int) -> Task:
    return Task(f"tieredImageNet {shot}-shot", "tiered-imagenet", 160, 5, shot, 15, 30_000)


_CONV4_CPU = (  # our recipes for smaller machines
    "mini-imagenet-conv4-cpu",
    "mini-imagenet-conv4-classifier",
    "mini-imagenet-5shot-conv4-cpu-scaled",
    "mini-imagenet-5shot-conv4-cpu-distilled",
    "mini-imagenet-1shot-conv4-cpu-scaled",
    "mini-imagenet-5shot-conv4-cpu-protonet",
    "mini-imagenet-1shot-conv4-cpu-protonet",
    "mini-imagenet-5shot-conv4-cpu-protonet-normalized",
    "mini-imagenet-1shot-conv4-cpu-protonet-normalized",
)

MAIN_OMNIGLOT_MINI = PaperTable(
    "Table 1: 20-way Omniglot and 5-way miniImageNet, accuracy in %",
    (_omniglot(1), _omniglot(5), _mini_imagenet(1), _mini_imagenet(5)),
    (
        ("Matching Nets", _cells("88.2", "97.0", "43.56 ± 0.84", "55.31 ± 0.73")),
        ("MAML", _cells("95.8", "98.9", "48.70 ± 1.84", "63.15 ± 0.91")),
        ("Prototypical Nets", _cells("96.0", "98.9", "49.42 ± 0.78", "68.20 ± 0.66")),
        ("SNAIL", _cells("97.64", "99.36", "55.71 ± 0.99", "68.88 ± 0.92")),
        ("adaResNet", _cells("96.12", "98.48", "56.88 ± 0.62", "71.94 ± 0.57")),
        ("Transductive Propagation Nets", _cells("—", "—", "55.51 ± 0.86", "69.86 ± 0.65")),
        ("TADAM-α", _cells("—", "—", "56.8 ± 0.3", "75.7 ± 0.2")),
        ("TADAM-TC", _cells("—", "—", "58.5 ± 0.3", "76.7 ± 0.3")),
        (
            "TapNet",
            (
                Cell("98.07", "omniglot-1shot"),
                Cell("99.49", "omniglot-5shot"),
                Cell("61.65 ± 0.15", "mini-imagenet-1shot"),
                Cell("76.36 ± 0.10", "mini-imagenet-5shot"),
            ),
        ),
    ),
    (
        "omniglot-cpu",
        "omniglot-cpu-long",
        "omniglot-cpu-mirrored",
        "omniglot-cpu-four-rotations",
        "omniglot-cpu-wide",
        "omniglot-cpu-wide-mixed",
        "omniglot-cpu-wide-distilled",
        "omniglot-cpu-wide-1200",
        "omniglot-cpu-branches",
        "omniglot-cpu-branches-1200",
        "omniglot-cpu-1200",
    ),
    ("Ours are of the 423 test characters as drawn. RESULTS.md begins with those of their 1692 rotations, too.",),
)

MAIN_TIERED = PaperTable(
    "Table 2: 5-way tieredImageNet, accuracy in %",
    (_tiered_imagenet(1), _tiered_imagenet(5)),
    (
        ("MAML (by Liu et al.)", _cells("51.67 ± 1.81", "70.30 ± 1.75")),
        ("Prototypical Nets (by Liu et al.)", _cells("53.31 ± 0.89", "72.69 ± 0.74")),
        ("Relation Nets (by Liu et al.)", _cells("54.48 ± 0.93", "71.31 ± 0.78")),
        ("Transductive Propagation Nets", _cells("59.91 ± 0.94", "73.30 ± 0.75")),
        ("TapNet", (Cell("63.08 ± 0.15", "tiered-imagenet-1shot"), Cell("80.26 ± 0.12", "tiered-imagenet-5shot"))),
    ),
)

NETWORK_SIZES = PaperTable(
    "Supplement, Table 3: 5-way miniImageNet by the size of the network, accuracy in %",
    (_mini_imagenet(1), _mini_imagenet(5)),
    (
        ("Matching Networks", _cells("43.56 ± 0.84", "55.31 ± 0.73")),
        ("MAML", _cells("48.70 ± 1.84", "63.15 ± 0.91")),
        ("Prototypical Networks", _cells("49.42 ± 0.78", "68.20 ± 0.66")),
        (
            "TapNet (Conv4)",
            (Cell("50.68 ± 0.11", "mini-imagenet-1shot-conv4"), Cell("69.00 ± 0.09", "mini-imagenet-5shot-conv4")),
        ),
        ("Relation Networks", _cells("50.44 ± 0.82", "65.32 ± 0.70")),
        ("Transductive Propagation Nets", _cells("55.51 ± 0.86", "69.86 ± 0.65")),
        ("SNAIL", _cells("55.71 ± 0.99", "68.88 ± 0.92")),
        ("adaResNet", _cells("56.88 ± 0.62", "71.94 ± 0.57")),
        (
            "TapNet (ResNet-12-small)",
            (
                Cell("59.47 ± 0.12", "mini-imagenet-1shot-resnet12-small"),
                Cell("72.79 ± 0.10", "mini-imagenet-5shot-resnet12-small"),
            ),
        ),
        ("TADAM-α", _cells("56.8 ± 0.3", "75.7 ± 0.2")),
        ("TADAM-TC", _cells("58.5 ± 0.3", "76.7 ± 0.3")),
        (
            "TapNet (ResNet-12)",
            (Cell("61.65 ± 0.15", "mini-imagenet-1shot"), Cell("76.36 ± 0.10", "mini-imagenet-5shot")),
        ),
    ),
    _CONV4_CPU,
)

NETWORK_SIZES_TIERED = PaperTable(
    "Supplement, Table 4: 5-way tieredImageNet with Conv4, accuracy in %",
    (_tiered_imagenet(1), _tiered_imagenet(5)),
    (
        ("MAML", _cells("51.67 ± 1.81", "70.30 ± 1.75")),
        ("Prototypical Nets", _cells("53.31 ± 0.89", "72.69 ± 0.74")),
        ("Relation Nets", _cells("54.48 ± 0.93", "71.31 ± 0.78")),
        ("Transductive Propagation Nets", _cells("59.91 ± 0.94", "73.30 ± 0.75")),
        (
            "TapNet (Conv4)",
            (Cell("57.11 ± 0.12", "tiered-imagenet-1shot-conv4"), Cell("73.66 ± 0.09", "tiered-imagenet-5shot-conv4")),
        ),
    ),
)

ACCURACIES: dict[str, PaperTable] = {
    "main-omniglot-mini": MAIN_OMNIGLOT_MINI,
    "main-tiered": MAIN_TIERED,
    "network-sizes": NETWORK_SIZES,
    "network-sizes-tiered": NETWORK_SIZES_TIERED,
}

# Supplement, Table 2: the recipe, N_c, N_q, learning rate, its decay step and ratio, l2 decay rate, dropout
HYPERPARAMETERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("omniglot-1shot", ("60", "15", "1e-3", "40000", "0.5", "-", ".2 .2 .2 .2")),
    ("omniglot-5shot", ("60", "15", "1e-3", "40000", "0.5", "-", ".2 .2 .2 .2")),
    ("mini-imagenet-1shot", ("20", "12", "1e-3", "20000", "0.1", "5e-4", ".2 .2 .2 .2")),
    ("mini-imagenet-5shot", ("20", "8", "1e-3", "40000", "0.1", "5e-4", ".3 .2 .2 .2")),
    ("tiered-imagenet-1shot", ("30", "8", "1e-3", "40000", "0.1", "-", ".2 .2 .2 .2")),
    ("tiered-imagenet-5shot", ("20", "8", "1e-3", "30000", "0.1", "-", ".2 .2 .2 .2")),
)

# Supplement, Table 1: training classes, the best number of queries, accuracy (5-way 5-shot miniImageNet)
EPISODE_COMPOSITION: tuple[tuple[int, int, str], ...] = (
    (5, 40, "74.19"),
    (10, 14, "75.73"),
    (15, 10, "75.40"),
    (20, 8, "75.86"),
    (25, 6, "75.86"),
    (30, 4, "75.09"),
)

# Supplement, section 2.3: setting, ablation and variant of ours, accuracy (5-way 5-shot miniImageNet)
REFERENCES: tuple[tuple[str, str, str, str], ...] = (
    ("modified in the projection (the paper's)", "projection-references", "modified", "76.36"),
    ("original in the projection", "projection-references", "original", "75.53"),
    ("original in classification (the paper's)", "classification-references", "original", "76.36"),
    ("modified in classification", "classification-references", "modified", "74.61"),
    ("closest selected (the paper's)", "selection", "closest", "76.36"),
    ("random selected", "selection", "random", "75.78"),
    ("farthest selected", "selection", "farthest", "75.11"),
    ("initial norm as drawn (the paper's)", "initial-norm", "norm 1", "76.36"),
    ("large initial norm", "initial-norm", "norm 10", "75.78"),
)
