import numpy as np
import pytest
import torch
from torch import nn

from tapnet.backbones import Backbone
from tapnet.inference import background
from tapnet.inference.background import read_background, write_background


class Metric(Backbone):
    """Pools maps by their mean and maps the result by a matrix that turns it around."""

    def __init__(self):
        super().__init__()
        self.image_shape, self.dim = (3, 8, 8), 4
        self.metric = nn.Linear(4, 4, bias=False)
        nn.init.eye_(self.metric.weight)

    def pool(self, maps):
        return self.metric(maps.mean(dim=(2, 3)))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "FOLDER", tmp_path)
    return tmp_path


def test_background_goes_through_the_metric_of_the_network(folder):
    roots = np.array([[1.0, 0, 0, 0], [0, 2, 2, 0]])
    write_background(folder / "net.safetensors", roots, "abc", "two classes")
    backbone = Metric()
    with torch.no_grad():
        backbone.metric.weight.copy_(torch.eye(4).flip(0))
    found = read_background("net", "abc", backbone)
    np.testing.assert_allclose(found, [[0, 0, 0, 1], [0, 0.5**0.5, 0.5**0.5, 0]], atol=1e-6)


def test_background_of_another_network_is_not_taken(folder):
    write_background(folder / "net.safetensors", np.ones((2, 4)), "abc", "two classes")
    assert read_background("net", "def", Metric()) is None


@pytest.mark.usefixtures("folder")
def test_network_without_background_has_none():
    assert read_background("net", "abc", Metric()) is None
