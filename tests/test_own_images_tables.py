"""The tables of docs/own-images.md and docs/own-images-measured.md have the numbers of results/own-images/."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMES = {
    "cub": "CUB",
    "flowers": "Flowers-102",
    "cifar": "CIFAR-FS",
    "grocery": "Grocery Store",
    "quickdraw": "Quick, Draw!",
}
OVERVIEW = {
    "cub": "birds (CUB)",
    "flowers": "flowers (Flowers-102)",
    "cifar": "things, enlarged from 32×32 (CIFAR-FS)",
    "textures": "textures (DTD)",
    "clothing": "clothing",
    "grocery": "groceries (Grocery Store)",
    "cars": "cars (Stanford Cars)",
    "trash": "waste (TrashNet)",
}


@pytest.fixture(scope="module")
def lines():
    return page("own-images-measured.md")


def page(name):
    return (ROOT / "docs" / name).read_text(encoding="utf-8").splitlines()


def rows(name):
    return json.loads((ROOT / "results" / "own-images" / f"{name}.json").read_text(encoding="utf-8"))["rows"]


def line_of(*cells):
    return f"| {' | '.join(cells)} |"


def accuracy(result):
    return f"{100 * result['accuracy']:.2f} ± {100 * result['ci95']:.2f}"


def paired(result):
    return f"{100 * result['difference']:+.2f} ± {100 * result['ci95']:.2f}".replace("-", "−")


def methods_line(row):
    methods, name = row["methods"], NAMES.get(row["dataset"], row["dataset"])
    columns = "logistic", "centroid", "logistic, plain features", "centroid, plain features"
    above = paired(row["default_minus"]["logistic, plain features"])
    return line_of(name, str(row["shot"]), *(accuracy(methods[column]) for column in columns), above)


def detection_cells(score):
    return [f"{score['auroc']:.3f}", f"{100 * score['caught_at_5']:.0f}%", f"{100 * score['caught_at_20']:.0f}%"]


def unknowns_line(row, network, dataset):
    errors = (f"{100 * row[f'calibration_error_{when}']:.1f}" for when in ("before", "after"))
    scores = detection_cells(row["by_probability"]) + detection_cells(row["by_known_score"])
    return line_of(f"`{network}`, {NAMES[dataset]}", str(row["shot"]), " → ".join(errors), *scores)


def rejection_line(row, network, dataset):
    lost = f"{100 * row['lost']:.1f}% (sd {100 * row['lost_sd']:.1f})"
    shares = (f"{100 * row[name]:.0f}%" for name in ("lost_in_one_of_ten", "caught"))
    return line_of(f"`{network}`, {NAMES[dataset]}", f"{row['way']} × {row['shot']}", lost, *shares)


def percent(*shares):
    return [f"{100 * share:.1f}" for share in shares]


def uneven_line(row):
    names = "default", "centroid", "logistic, balanced", "logistic, unweighted"
    pairs = [" / ".join(percent(row["accuracy_rare"][name], row["accuracy"][name])) for name in names]
    return line_of(row["dataset"], ", ".join(map(str, row["counts"])), *pairs)


def confidence_line(row):
    counts = row["counts"] if isinstance(row["counts"], str) else ", ".join(map(str, row["counts"]))
    errors = " → ".join(percent(*(row["calibration_error"][kind] for kind in ("table", "default"))))
    return line_of(row["dataset"], counts, *percent(row["accuracy"]["default"], row["confidence"]["default"]), errors)


def overview_line(dataset):
    cells = [OVERVIEW[dataset]]
    for network in ("photos", "photos-fast"):
        measured = [row for part in ("methods", "validation", "untouched") for row in rows(f"{part}-{network}")]
        shots = {row["shot"]: row["methods"]["logistic"] for row in measured if row["dataset"] == dataset}
        cells += [f"{100 * shots[shot]['accuracy']:.1f}" for shot in (1, 5)]
    return line_of(*cells)


@pytest.mark.parametrize("dataset", OVERVIEW)
def test_overview_has_the_recorded_accuracies(dataset):
    assert overview_line(dataset) in page("own-images.md")


@pytest.mark.parametrize("network", ["photos", "photos-fast"])
@pytest.mark.parametrize("part", ["methods", "validation", "untouched"])
def test_table_of_methods_has_the_recorded_accuracies(part, network, lines):
    assert not [line for row in rows(f"{part}-{network}") if (line := methods_line(row)) not in lines]


PHOTO_SETS = [(network, dataset) for network in ("photos-fast", "photos") for dataset in ("cub", "flowers", "cifar")]
REJECTED = ("photos-fast", "grocery"), ("photos-fast", "cub"), ("photos-fast", "cifar"), ("photos", "cub")


@pytest.mark.parametrize(("network", "dataset"), [*PHOTO_SETS, ("drawings", "quickdraw")])
def test_table_of_unknown_classes_has_the_recorded_numbers(network, dataset, lines):
    recorded = rows("unknowns-drawings" if network == "drawings" else f"unknowns-{network}-{dataset}")
    assert not [line for row in recorded if (line := unknowns_line(row, network, dataset)) not in lines]


@pytest.mark.parametrize(("network", "dataset"), [*REJECTED, ("drawings", "quickdraw")])
def test_table_of_rejection_has_the_recorded_numbers(network, dataset, lines):
    recorded = rows(f"rejection-{network}-{dataset}")
    assert not [line for row in recorded if (line := rejection_line(row, network, dataset)) not in lines]


def test_table_of_references_has_the_recorded_accuracies(lines):
    names = "logistic", "centroid", "tapnet", "tapnet, reference_shots=2", "tapnet, reference_shots=0"
    for row in rows("references-photos"):
        below = paired(row["tapnet_minus"]["logistic"])
        assert line_of(str(row["shot"]), *(accuracy(row["methods"][name]) for name in names), below) in lines


def test_tables_of_uneven_classes_and_confidence_have_the_recorded_numbers(lines):
    recorded = rows("tasks-photos")
    expected = [uneven_line(row) for row in recorded if row["accuracy_rare"]] + list(map(confidence_line, recorded))
    assert not [line for line in expected if line not in lines]


def test_default_is_the_best_method_on_rare_classes_and_on_all_wherever_it_was_measured():
    for row in [*rows("tasks-photos"), *rows("tasks-photos-validation")]:
        for part in filter(None, (row["accuracy_rare"], row["accuracy_rare"] and row["accuracy"])):
            assert part["default"] == max(part.values())


def test_table_of_speed_has_the_recorded_numbers(lines):
    for row in rows("speed"):
        speeds = f"{row['predict']:.1f}", f"{row['reading_only']:.0f}", f"{row['network_only']:.1f}"
        assert line_of(f"`{row['network']}`", *speeds, f"{row['predict'] / row['network_only']:.2f}") in lines
