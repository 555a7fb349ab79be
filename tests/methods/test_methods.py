"""The contract of all methods, and what the base class does for them."""

import pytest
import torch
from torch.nn import functional as F

import tapnet
from tapnet.backbones import Conv4, PrecomputedFeatures, build
from tapnet.data.batches import EpisodeImages
from tapnet.methods import METHODS, PrototypicalNetwork
from tapnet.methods.base import FixedWayMethod
from tapnet.testing import WAY, check_method

CASES = {name: (name, {}) for name in METHODS if name != "classifier"} | {
    "matching with full context": ("matching", {"full_context": True}),
    "maml of first order": ("maml", {"first_order": True}),
    "maml with batch statistics": ("maml", {"batch_statistics": True}),
    "classifier": ("classifier", {"num_classes": 20}),
    "tadam-tc with auxiliary classes": ("tadam-tc", {"num_classes": 20}),
}
SEQUENCE = {"check_order_of_support", "check_order_of_classes"}  # for those that read the support set as one
EXPECTED_FAILURES = dict.fromkeys(("snail", "matching with full context"), SEQUENCE) | {
    case: {"check_order_of_classes"} for case in CASES if case.startswith(("maml", "reptile", "shifted-neurons"))
}
ONE_SHOT, PAIR = torch.arange(WAY), torch.arange(2)


@pytest.mark.parametrize("case", CASES)
def test_methods_keep_the_contract(case):
    name, options = CASES[case]
    check_method(METHODS[name], EXPECTED_FAILURES.get(case, ()), **options)


def make(name, **options):
    torch.manual_seed(0)
    needed = {option: WAY for option in [METHODS[name].way_option] if option}
    return build(name, METHODS[name], Conv4((1, 8, 8), widths=(16, 16, 16, 16)), needed | options).eval()


class Forgetful(PrototypicalNetwork):
    """Shifts its logits with every episode."""

    episodes = 0

    def adapt_to(self, prototypes):
        self.episodes += 1
        return super().adapt_to(prototypes + self.episodes)


class Crowded(PrototypicalNetwork):
    """Compares each query with the mean of all, without saying that it is transductive."""

    def logits(self, support, labels, query, way):
        return super().logits(support, labels, query - query.mean(dim=-2, keepdim=True), way)


@pytest.mark.parametrize("kind", [Forgetful, Crowded])
def test_a_method_that_breaks_its_promises_is_caught(kind):
    with pytest.raises(AssertionError):
        check_method(kind)


def test_a_failure_that_was_expected_and_is_none_is_caught():
    with pytest.raises(AssertionError, match="check_order_of_support was expected to fail, and passes"):
        check_method(PrototypicalNetwork, expected_failures=["check_order_of_support"])


def images(count, seed=1):
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


BYTES = torch.full((WAY, 1, 8, 8), 200, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("support", "labels", "query", "words"),
    [
        (images(WAY), ONE_SHOT.tolist(), images(2), "Labels need to be a tensor of int64, got list"),
        (images(WAY), ONE_SHOT.numpy(), images(2), "got ndarray"),
        (images(WAY), ONE_SHOT.float(), images(2), "got float32"),
        (images(WAY), torch.eye(WAY).long(), images(2), r"got labels of shape \(8, 8\); of one-hot labels pass"),
        (BYTES, ONE_SHOT, images(2), "floats in .0, 1., got uint8"),
        (images(WAY), ONE_SHOT, BYTES, "got uint8"),
        (images(WAY), ONE_SHOT, torch.rand(2, 1, 8, 9), r"got \(1, 8, 8\) and \(1, 8, 9\)"),
        (images(WAY).numpy(), ONE_SHOT, images(2), "got ndarray"),
        (BYTES.float(), ONE_SHOT, images(2), "values in .0, 1., got up to 200: divide them by 255"),
        (images(WAY).double(), ONE_SHOT, images(2).double(), r"computes in float32, got float64: convert one of them"),
    ],
)
def test_images_and_labels_of_the_wrong_kind_are_refused(support, labels, query, words):
    with pytest.raises(ValueError, match=words):
        make("protonet")(support, labels, query)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("tapnet", {"num_references": 16}, "from 2 to 15, fewer than its backbone has features, got 16"),
        ("tapnet", {"selection": "nearest"}, "closest, optimal"),
        ("tapnet", {"projection_dim": 9}, "from 1 to dim - num_references = 8, got 9"),
        ("tapnet", {"projection_dim": 3, "differentiable": True}, "leave out `projection_dim`"),
        ("tapnet", {"reference_shots": -1}, "0 or more"),
        ("tapnet", {"basis": "svd"}, "householder, references, got 'svd'"),
        ("tapnet", {"temperature": float("nan")}, "`temperature` needs to be a finite number above 0, got nan"),
        ("tapnet", {"initial_norm": 0.0}, "`initial_norm` needs to be a finite number above 0, got 0"),
        ("tapnet-variant", {"projection_references": "new"}, "modified, original, got 'new'"),
        ("tapnet-variant", {"classification_references": "new"}, "original, modified, got 'new'"),
        ("tapnet-variant", {"distance": "manhattan"}, "squared, euclidean, inner, cosine, got 'manhattan'"),
        ("tapnet-variant", {"reference_bias": True, "distance": "inner"}, "squared distances only"),
        ("tapnet-variant", {"colour": 1}, "has no option colour; it has num_references, .*, reference_bias"),
        ("protonet", {"temperature": float("inf")}, "above 0, got inf"),
        ("matching", {"scale": 0}, "above 0, got 0"),
        ("matching", {"steps": 0}, "at least 1, got 0"),
        ("relation", {"reduce": "max"}, "one of sum, mean, got 'max'"),
        ("relation", {"padding": 0}, "Maps of 1×1 are too small for a relation module with padding 0"),
        ("tpn", {"neighbors": 1}, "at least 2, got 1"),
        ("tpn", {"alpha": 1.0}, "between 0 and 1, got 1.0"),
        ("tadam-alpha", {"scale": 0}, "above 0, got 0"),
        ("maml", {"way": 1}, "`way` to be at least 2, got 1"),
        ("maml", {"rate": -1.0}, "need to be at least 0"),
        ("reptile", {"batch": 1}, "`batch` to be at least 2, got 1"),
        ("snail", {"shot": 0}, "of at least 1"),
        ("shifted-neurons", {"blocks": [4]}, "`blocks` are from 0 to 3"),
        ("classifier", {"label_smoothing": 1.0}, "at least 0 and below 1, got 1.0"),
    ],
)
def test_options_out_of_range_are_refused(name, options, words):
    with pytest.raises(ValueError, match=words):
        make(name, **options)


@pytest.mark.parametrize(
    "options", [{"basis": "reference"}, {"selection": "random"}, {"reference_shots": "a"}, {"projection_dim": 2.5}]
)
def test_options_changed_later_are_checked_too(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        make("tapnet").with_options(**options)


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if issubclass(kind, FixedWayMethod)])
def test_a_network_with_an_output_per_class_takes_at_most_so_many_and_trains_with_all(name):
    method = make(name)
    assert method(images(4), PAIR.repeat(2), images(5, 2)).shape == (5, 2)
    for way, training in ((WAY + 1, False), (2, True), (WAY + 1, True)):
        with pytest.raises(ValueError, match=rf"built for 8-way episodes .* got {way}: build it with way={way}"):
            method.train(training)(images(way), torch.arange(way), images(5))


def test_tapnet_takes_as_many_classes_as_references_in_training_and_at_most_so_many_at_test():
    with pytest.raises(ValueError, match="need 8 classes, one per reference, got 2"):
        make("tapnet").train()(images(2), PAIR, images(5))
    with pytest.raises(ValueError, match="9 classes need 9 references, there are 8"):
        make("tapnet")(images(9), torch.arange(9), images(1))


def test_a_backbone_that_normalizes_finds_its_mean_in_training_or_is_refused():
    backbone = Conv4((1, 8, 8), widths=(16, 16, 16, 16), normalize=True)
    episode = EpisodeImages(images(4 * WAY), WAY, 2, 2, ONE_SHOT)
    PrototypicalNetwork(backbone).train().loss(episode)
    mean = backbone.blocks(episode.images).flatten(1).mean(dim=0)
    torch.testing.assert_close(backbone.normalization.running_mean, 0.1 * mean)
    for name in ("classifier", "relation", "maml"):  # windows, maps, the images themselves
        with pytest.raises(ValueError, match="on normalized features: leave out the backbone's `normalize`"):
            build(name, METHODS[name], backbone, {"way": WAY} if name == "maml" else {})


def test_support_and_query_share_batch_statistics_in_training():
    method, other = make("protonet").train(), make("protonet").train()
    method(images(WAY), ONE_SHOT, images(5, 2))
    other.embed(torch.cat([images(WAY), images(5, 2)]))
    for ours, theirs in zip(method.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


FEATURES = torch.randn(18, 16, generator=torch.Generator().manual_seed(0))
EPISODE = EpisodeImages(FEATURES, way=3, shot=2, query=4, classes=torch.arange(3))


def test_loss_is_the_mean_over_the_divisions_of_the_episode():
    method, episode = PrototypicalNetwork(PrecomputedFeatures(16)), EPISODE.with_divisions(3, torch.Generator())
    logits = [method.logits(s, episode.support_labels, q, episode.way) for s, q in episode.divided(FEATURES)]
    losses = [F.cross_entropy(scores, episode.query_labels) for scores in logits]
    torch.testing.assert_close(method.loss(episode).loss, torch.stack(losses).mean())


def test_loss_takes_the_targets_of_the_episode_in_place_of_labels():
    method, one_hot = PrototypicalNetwork(PrecomputedFeatures(16)), F.one_hot(EPISODE.query_labels, 3).float()
    torch.testing.assert_close(method.loss(EPISODE._replace(targets=one_hot[None])).loss, method.loss(EPISODE).loss)
    uniform, logits = torch.full((1, 12, 3), 1 / 3), method.loss(EPISODE).logits
    expected = -logits.log_softmax(dim=-1).mean()
    torch.testing.assert_close(method.loss(EPISODE._replace(targets=uniform)).loss, expected)


def test_methods_are_exported():
    assert tapnet.TapNet is METHODS["tapnet"]
    assert tapnet.PrototypicalNetwork is METHODS["protonet"]
    assert {kind.__name__ for kind in METHODS.values()} <= {*tapnet.methods.__all__}
