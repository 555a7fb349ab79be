import json

import pytest
import torch
from safetensors.torch import save_file

from tapnet.backbones import Conv4
from tapnet.data.batches import episode_images
from tapnet.evaluation.plotting import save
from tapnet.methods import PrototypicalNetwork
from tapnet.paper.figures import (
    _spaces,
    dimension_figure,
    episode_composition_figure,
    learning_curve,
    projection_figure,
    reference_distance,
    reference_trajectories,
)
from tapnet.training.run_folder import EPISODES, SNAPSHOTS

POINT = {"loss": 1.0, "training_accuracy": 0.5, "validation_ci95": 0.01, "learning_rate": 1e-3}


def write_curve(folder, distances):
    diagnostics = [{} if distance is None else {"reference_distance": distance} for distance in distances]
    points = [
        POINT | {"episode": 10 * (i + 1), "validation_accuracy": 0.5 + i / 10, "diagnostics": values}
        for i, values in enumerate(diagnostics)
    ]
    (folder / "curve.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))


def titles(figure):
    return [axis.get_title() for axis in figure.axes if axis.get_title()]


def test_learning_curve_with_references_has_two_panels(tmp_path):
    write_curve(tmp_path, [1.0, 1.1, 1.2])
    assert titles(learning_curve(tmp_path)) == [
        "Accuracy on classes not trained on",
        "Smallest distance between normalized references",
    ]


def test_learning_curve_without_references_has_one_panel(tmp_path):
    write_curve(tmp_path, [None, None])
    assert titles(learning_curve(tmp_path)) == ["Accuracy on classes not trained on"]


def test_reference_distance_marks_the_best_on_validation_classes(tmp_path):
    write_curve(tmp_path, [1.0, 1.1, 1.2])
    (axis,) = reference_distance(tmp_path).axes
    line, dot = axis.lines
    assert list(line.get_ydata()) == [1.0, 1.1, 1.2]
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (30, 1.2)


def test_trajectories_show_all_references_and_four_with_stamps(tmp_path):
    snapshots = {EPISODES: torch.arange(0, 50, 10), "references": torch.randn(5, 6, 12).cumsum(dim=0)}
    save_file(snapshots, tmp_path / SNAPSHOTS)
    figure = reference_trajectories(tmp_path)
    assert titles(figure) == ["All 6 references", "4 of them, with training episodes"]
    stamps = [text.get_text() for text in figure.axes[1].texts]
    assert stamps == ["0", "20", "40"] * 4


@pytest.mark.parametrize(
    ("draw", "distances", "words"),
    [
        (learning_curve, [], "no point on its learning curve yet"),
        (reference_distance, [None], "has no references: expected the folder of a TapNet run"),
        (reference_trajectories, [], "holds 0 snapshots of references, three are needed"),
    ],
)
def test_figure_of_a_run_that_has_too_little_for_it_is_refused(tmp_path, draw, distances, words):
    write_curve(tmp_path, distances)
    with pytest.raises(ValueError, match=words):
        draw(tmp_path)


def test_projection_shows_every_query_and_reference_in_both_spaces(small_tapnet, blobs):
    figure = projection_figure(small_tapnet, blobs, way=4, shot=2, query=6)
    for axis in figure.axes:
        assert len(axis.artists) == 4 * 6
        assert [text.get_text() for text in axis.texts] == ["φ"] * 4
    assert titles(figure) == ["Embedding space", "Projection space"]


def test_projection_of_three_classes_is_a_plane_in_which_the_nearest_reference_is_the_prediction(small_tapnet, blobs):
    episode = episode_images(blobs, blobs.episodes(3, 2, 6)[0])
    _, _, plane = _spaces(small_tapnet, episode)
    nearest = torch.cdist(torch.from_numpy(plane[:-3]), torch.from_numpy(plane[-3:])).argmin(dim=1)
    support, query = episode.images.split(episode.sizes)
    logits = small_tapnet(support, episode.support_labels, query)
    assert torch.equal(nearest, logits.argmax(dim=1))


def test_projection_of_three_classes_shades_where_each_reference_is_the_closest(small_tapnet, blobs):
    embedded, inside = projection_figure(small_tapnet, blobs, way=3, shot=2, query=6).axes
    assert inside.get_aspect() == 1
    assert len(inside.collections) == len(embedded.collections) - 4 + 3  # no legend entries, but three regions


def test_projection_needs_tapnet(blobs):
    with pytest.raises(ValueError, match="Only TapNet has a projection to draw, this is PrototypicalNetwork"):
        projection_figure(PrototypicalNetwork(Conv4((1, 8, 8))), blobs)


def test_figure_is_written_in_both_kinds_and_leaves_nothing_else(tmp_path, small_tapnet, blobs):
    figure = projection_figure(small_tapnet, blobs, shot=2, query=6)
    for kind in ("png", "svg"):
        save(figure, tmp_path / f"f.{kind}")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "f.svg").read_text().count("<svg") == 1
    assert {file.name for file in tmp_path.iterdir()} == {"f.png", "f.svg"}


def ablation(name, rows):
    task = {"way": 5, "shot": 1, "dataset": "quickdraw", "split": "test"}
    return {"name": name, "recipe": {"name": "quickdraw"}, "task": task, "rows": rows}


def test_dimension_shows_the_curve_its_interval_and_the_band():
    rows = [
        {"accuracy": 0.1 * d, "ci95": 0.01, "lowest": 0.09 * d, "highest": 0.11 * d, "references_first": 0.5}
        for d in range(1, 6)
    ]
    (axis,) = dimension_figure(ablation("dimension", rows)).axes
    assert list(axis.lines[0].get_xdata()) == [1, 2, 3, 4, 5]
    assert axis.lines[0].get_ydata() == pytest.approx([10, 20, 30, 40, 50])
    labels = [text.get_text() for text in axis.get_legend().get_texts()]
    assert labels == [
        "20 random rotations",
        "95% over episodes",
        "quickdraw, Householder",
        "the references' directions first",
    ]


def test_episode_composition_shows_ours_by_ways_and_the_published_beside_it():
    rows = [
        {"variant": f"{way}-way {query}-query", "accuracy": way / 100, "ci95": 0.01, "training_episodes": 50}
        for way, query in ((20, 8), (5, 44), (10, 20))
    ]
    ours, published = episode_composition_figure(ablation("episode-composition", rows)).axes
    assert list(ours.lines[0].get_xdata()) == [5, 10, 20]
    assert [text.get_text() for text in ours.texts] == ["44-query", "20-query", "8-query"]
    assert list(published.lines[0].get_ydata()) == [74.19, 75.73, 75.40, 75.86, 75.86, 75.09]
