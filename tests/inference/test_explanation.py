import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from tapnet.evaluation.calibration import Calibration
from tapnet.inference.networks import Foundation
from tapnet.inference.task import Examples, Settings, fit_task
from tapnet.paper import explanation
from tapnet.plotting import COLOURS


@pytest.fixture
def figure(monkeypatch):
    """The figure of a task with eight classes of two examples."""
    monkeypatch.setattr(explanation, "save", lambda figure, _: figure)
    features = np.random.default_rng(0).normal(size=(16, 20)).astype(np.float32)
    labels = np.repeat(np.arange(8), 2)
    examples = Examples(features, labels, tuple(map(str, range(16))), (b"",) * 16)
    foundation = Foundation("a network", "0" * 64, None, Calibration())
    task = fit_task(list("abcdefgh"), examples, foundation, Settings("centroid"))
    return explanation.explanation_figure(task, Image.new("RGB", (9, 9)), features[:1], "why.png")


def test_explanation_gives_every_class_one_colour_throughout(figure):
    _, bars, *nearest, plane = figure.get_axes()
    in_bars = {
        label.get_text(): to_hex(bar.get_facecolor())
        for label, bar in zip(bars.get_yticklabels(), bars.patches, strict=True)
    }
    handles, names = plane.get_legend_handles_labels()
    in_plane = {name: to_hex(handle.get_facecolor()[0]) for name, handle in zip(names, handles, strict=True)}
    assert in_plane.pop("your picture") == to_hex("black")
    assert in_bars == in_plane
    assert set(in_bars.values()) == {colour.lower() for colour in COLOURS[: explanation.SHOWN]}
    for axis in nearest:
        name = axis.get_title().partition("\n")[0]
        assert to_hex(axis.spines["left"].get_edgecolor()) == in_bars.get(name, explanation.OTHER)
