import copy
import dataclasses
import os

import pytest
import torch

from tapnet.backbones import make_backbone
from tapnet.checkpoint import backbone_digest
from tapnet.evaluation import embedding
from tapnet.evaluation.embedding import cached_features, embed, feature_key, fused
from tapnet.hardware import to_float_tensor


@pytest.mark.parametrize("name", ["conv4", "resnet12", "resnet12-small"])
def test_folding_batch_normalization_changes_no_feature_beyond_rounding(name):
    backbone = make_backbone(name, (1, 16, 16))
    images = torch.rand(20, 1, 16, 16)
    backbone.train()(images)  # statistics of its own
    expected = backbone.eval()(images)
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in fused(backbone).modules())
    torch.testing.assert_close(fused(backbone)(images), expected, rtol=1e-4, atol=1e-5)


def test_embedding_a_split_keeps_the_order_of_its_images(blobs, small_tapnet):
    features = embed(small_tapnet.backbone, blobs)
    single = small_tapnet.embed(to_float_tensor(blobs.pixels[7:8], torch.device("cpu")))
    torch.testing.assert_close(features[7:8], single, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("maps", [False, True])
def test_the_second_time_features_come_from_the_cache(blobs, small_tapnet, tmp_path, monkeypatch, maps):
    first = cached_features(small_tapnet.backbone, blobs, "float32", tmp_path, maps)
    assert first.shape == (120, *(small_tapnet.backbone.map_shape if maps else (16,)))
    monkeypatch.setattr(embedding, "embed", None)  # nothing may be embedded again
    assert torch.equal(cached_features(small_tapnet.backbone, blobs, "float32", tmp_path, maps), first)


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


def test_keys_of_the_cache_differ_by_weights_data_precision_and_maps(blobs, small_tapnet):
    backbone, other = small_tapnet.backbone, copy.deepcopy(small_tapnet.backbone)
    next(other.parameters()).data += 1
    changed = [dataclasses.replace(blobs, fingerprint="1" * 64), dataclasses.replace(blobs, rotations=4)]
    keys = {feature_key(backbone, images, "float32") for images in (blobs, *changed)}
    keys |= {feature_key(backbone, blobs, "bf16"), feature_key(backbone, blobs, "float32", maps=True)}
    assert len(keys | {feature_key(other, blobs, "float32")}) == 6


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("resnet12", (1, 8, 8), [{}, {"flatten": True}, {"four_rotations": True}]),
        ("efficientnet-lite0", (3, 32, 32), [{}, {"power": 0.5}, {"plain_share": 0.3}, {"plain_share": 0.6}]),
    ],
)
def test_options_that_no_weight_shows_have_a_digest_of_their_own(name, shape, options):
    own, digests = {"metric_dim": 8} if shape[0] == 3 else {"widths": [2, 2, 2, 4]}, set()
    for option in options:
        torch.manual_seed(0)
        digests.add(backbone_digest(make_backbone(name, shape, **own, **option)))
    assert len(digests) == len(options)


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
