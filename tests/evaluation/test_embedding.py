import dataclasses
import os

import numpy as np
import pytest
import torch

from tapnet.backbones import make_backbone
from tapnet.checkpoint import backbone_digest
from tapnet.data import ImageSet
from tapnet.data.batches import to_float_tensor
from tapnet.evaluation import embedding
from tapnet.evaluation.embedding import cached_features, embed, feature_key, fused


@pytest.fixture
def forbidden(monkeypatch):
    """From here on nothing may be embedded."""

    def never(*_):
        raise AssertionError("embedded again")

    return lambda: monkeypatch.setattr(embedding, "embed", never)


@pytest.mark.parametrize("name", ["conv4", "resnet12", "resnet12-small"])
def test_folding_batch_normalization_changes_no_feature_beyond_rounding(name):
    backbone = make_backbone(name, (1, 16, 16))
    images = torch.rand(20, 1, 16, 16)
    backbone.train()(images)  # statistics of its own
    expected = backbone.eval()(images)
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in fused(backbone).modules())
    torch.testing.assert_close(fused(backbone)(images), expected, rtol=1e-4, atol=1e-5)


def test_maps_have_a_key_and_a_shape_of_their_own(blobs, small_tapnet, tmp_path):
    maps = cached_features(small_tapnet.backbone, blobs, "float32", tmp_path, maps=True)
    assert maps.shape == (120, *small_tapnet.backbone.map_shape)
    assert cached_features(small_tapnet.backbone, blobs, "float32", tmp_path).shape == (120, 16)


def test_embedding_a_split_keeps_the_order_of_its_images(blobs, small_tapnet):
    features = embed(small_tapnet.backbone, blobs)
    single = small_tapnet.embed(to_float_tensor(blobs.pixels[7:8], torch.device("cpu")))
    torch.testing.assert_close(features[7:8], single, rtol=1e-4, atol=1e-5)


def test_the_second_time_features_come_from_the_cache(blobs, small_tapnet, tmp_path, forbidden):
    first = cached_features(small_tapnet.backbone, blobs, "float32", tmp_path)
    forbidden()
    assert torch.equal(cached_features(small_tapnet.backbone, blobs, "float32", tmp_path), first)


def test_a_damaged_cache_is_computed_again(blobs, small_tapnet, tmp_path):
    first = cached_features(small_tapnet.backbone, blobs, "float32", tmp_path)
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert torch.equal(cached_features(small_tapnet.backbone, blobs, "float32", tmp_path), first)


def test_a_cache_that_cannot_be_written_costs_no_result(blobs, small_tapnet, tmp_path):
    (tmp_path / "file").write_text("")
    assert cached_features(small_tapnet.backbone, blobs, "float32", tmp_path / "file").shape == (120, 16)


def test_other_weights_data_or_precision_have_another_key(blobs, small_tapnet):
    keys = {feature_key(small_tapnet.backbone, blobs, "float32"), feature_key(small_tapnet.backbone, blobs, "bf16")}
    keys.add(feature_key(small_tapnet.backbone, dataclasses.replace(blobs, fingerprint="1" * 64), "float32"))
    keys.add(feature_key(small_tapnet.backbone, dataclasses.replace(blobs, rotations=4), "float32"))
    next(small_tapnet.backbone.parameters()).data += 1
    keys.add(feature_key(small_tapnet.backbone, blobs, "float32"))
    assert len(keys) == 5


def test_options_of_a_backbone_that_no_weight_shows_have_another_key(blobs):
    keys = set()
    for option in ({}, {"flatten": True}, {"four_rotations": True}):
        torch.manual_seed(0)
        network = make_backbone("resnet12", blobs.image_shape, widths=[2, 2, 2, 4], **option)
        keys.add(feature_key(network, blobs, "float32"))
    assert len(keys) == 3


def test_options_of_pretrained_networks_have_another_key_and_digest():
    images = ImageSet("x", "test", np.zeros((2, 32, 32, 3), np.uint8), np.arange(2), np.arange(2), ("a", "b"), "0" * 64)
    options = [{}, {"power": 0.5}, {"plain_share": 0.3}, {"plain_share": 0.6}]
    networks = [make_backbone("efficientnet-lite0", (3, 32, 32), metric_dim=8, **option) for option in options]
    assert len({feature_key(network, images, "float32") for network in networks}) == 4
    assert len({backbone_digest(network) for network in networks}) == 4


def test_the_cache_forgets_what_was_used_longest_ago(blobs, small_tapnet, tmp_path, monkeypatch):
    monkeypatch.setattr(embedding, "CACHE_BYTES", 10_000)
    cached_features(small_tapnet.backbone, blobs, "float32", tmp_path)
    cached_features(small_tapnet.backbone, blobs, "bf16", tmp_path)
    assert [path.stem for path in tmp_path.iterdir()] == [feature_key(small_tapnet.backbone, blobs, "bf16")]


def test_the_cache_deletes_what_a_killed_process_left_half_written(blobs, small_tapnet, tmp_path):
    old, new = tmp_path / ".a.safetensors.01234567", tmp_path / ".b.safetensors.89abcdef"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    cached_features(small_tapnet.backbone, blobs, "float32", tmp_path)
    assert not old.exists()
    assert new.exists(), "another process may be writing it"
