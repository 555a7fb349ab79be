import json

import pytest
from PIL import Image

from tapnet.analysis.learning_curve import learning_curve
from tapnet.analysis.projection import projection_figure
from tapnet.backbones import Conv4
from tapnet.methods import PrototypicalNetwork

POINT = {
    "loss": 1.0,
    "training_accuracy": 0.5,
    "validation_ci95": 0.01,
    "learning_rate": 1e-3,
}


def write_curve(folder, distances):
    points = [
        POINT | {"episode": 10 * (i + 1), "validation_accuracy": 0.5 + i / 10, "reference_distance": distance}
        for i, distance in enumerate(distances)
    ]
    (folder / "curve.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))


def size_of(path):
    with Image.open(path) as picture:
        return picture.size


def test_learning_curve_with_references_has_two_panels(tmp_path):
    write_curve(tmp_path, [1.0, 1.1, 1.2])
    width, height = size_of(learning_curve(tmp_path, tmp_path / "two.png"))
    assert width > 2 * height


def test_learning_curve_without_references_has_one_panel(tmp_path):
    write_curve(tmp_path, [None, None])
    width, height = size_of(learning_curve(tmp_path, tmp_path / "one.png"))
    assert width < 2 * height


def test_learning_curve_of_an_empty_run_is_refused(tmp_path):
    write_curve(tmp_path, [])
    with pytest.raises(ValueError, match="no point on its learning curve yet"):
        learning_curve(tmp_path, tmp_path / "none.png")


def test_projection_is_drawn_as_svg_too(tmp_path, small_tapnet, blobs):
    path = projection_figure(small_tapnet, blobs, tmp_path / "p.svg", shot=2, query=6)
    text = path.read_text()
    assert text.count("<svg") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["p.svg"]


def test_projection_needs_tapnet(tmp_path, blobs):
    with pytest.raises(ValueError, match="Only TapNet has a projection to draw, this is PrototypicalNetwork"):
        projection_figure(PrototypicalNetwork(Conv4((1, 8, 8))), blobs, tmp_path / "p.png")
