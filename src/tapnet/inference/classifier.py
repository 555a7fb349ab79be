"""TapNetClassifier: a few labeled images in, a classifier out, by the rules of scikit-learn."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL.Image import Image
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor, tensor

from tapnet.backbones.base import check_features
from tapnet.errors import UserError
from tapnet.inference.content import choose_network
from tapnet.inference.fitting import fit_task, with_examples
from tapnet.inference.images import read_images, readable
from tapnet.inference.networks import FEATURES, EmbeddingModel, load_network, vector_model
from tapnet.inference.predictor import AUTO, TaskPredictor
from tapnet.inference.task import Examples, Task, network_of, read_task, write_task
from tapnet.text import pluralize


class TapNetClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classifies images, or feature vectors, from a few examples per class.

    `X` is a list of images (paths, bytes of image files, PIL images, arrays of uint8 or of floats in [0, 1]), an array
    of images (n, height, width[, channels]), or an array of feature vectors (n, dim). `network_` is the network that
    `fit` took: "features" for vectors of any dimension, which belong to no network unless one is named.

    Parameters
    ----------
    network
        A bundled network ("drawings", "characters", "photos", "photos-fast"), a checkpoint, the folder of a run or
        "hf:MODEL". With "auto" photographs take "photos" (the extra `tapnet[photos]`), line drawings "drawings", and
        feature vectors no network at all.
    method
        "auto" is chosen by the network, as `tapnet.inference.propose_method` does, and is "centroid"
        for feature vectors; else that of the network, such as "tapnet", or one without parameters: "centroid" (the
        nearest mean direction), "logistic" or "protonet". With options of TapNet, "auto" is the network's own.
    selection
        How TapNet's classes take references: "optimal", whatever the order of the classes, or the paper's "closest".
    projection_dim
        Dimension of TapNet's projection; `None` is that of the network, or all there is. At another one the
        temperature is not fitted, only scaled by the dimension.
    device
        "cpu", "cuda", "mps" or "auto".
    basis
        Which directions TapNet's projection keeps at a `projection_dim`: "householder", or "references", with which
        one dimension less than there are classes is enough; `None` is that of the network.
    """

    def __init__(
        self,
        network: str = AUTO,
        method: str = AUTO,
        selection: str = "optimal",
        projection_dim: int | None = None,
        device: str = "cpu",
        basis: str | None = None,
    ) -> None:
        self.network = network
        self.method = method
        self.selection = selection
        self.projection_dim = projection_dim
        self.device = device
        self.basis = basis

    def fit(self, X: Any, y: ArrayLike) -> Self:
        """Learn the classes `y` of the examples `X`; classes may have any number of examples."""
        features, hashes, thumbnails = self._read(X, reset=True, thumbnail=True)
        classes, labels = _classes(y, len(features))
        examples = Examples(features.astype(np.float32), labels, hashes, thumbnails).by_class()
        options: dict[str, Any] = {"projection_dim": self.projection_dim, "basis": self.basis}
        if self.selection != "optimal":  # what every method does that has a choice
            options["selection"] = self.selection
        model = self._model()
        self._keep(
            fit_task([str(name) for name in classes], examples, model, self.method, options, _kind(classes)), model
        )
        self.classes_ = classes  # of the type that was given
        return self

    def add(self, X: Any, y: ArrayLike) -> Self:
        """Learn further examples, of known classes or of new ones; the images of `fit` are not needed again."""
        check_is_fitted(self)
        features, hashes, thumbnails = self._read(X, reset=False, thumbnail=True)
        names, labels = _classes(y, len(features))
        if _kind(names) != self.task_.label_kind:
            raise UserError(f"Expected labels of type {self.task_.label_kind}, as in `fit`, got {_kind(names)}.")
        more, model = Examples(features.astype(np.float32), labels, hashes, thumbnails), self._model()
        return self._keep(with_examples(self.task_, [str(name) for name in names], more, model), model)

    def _keep(self, task: Task, model: EmbeddingModel) -> Self:
        self.task_, self.classes_ = task, np.array(task.labels())
        self.head_ = TaskPredictor(task, model).head
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: all but the head, which follows from the task."""
        return {name: value for name, value in super().__getstate__().items() if name != "head_"}

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Scores (n, classes), or (n,) for two classes: of the second over the first."""
        scores = self._logits(X) / self.task_.temperature
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Calibrated probabilities (n, classes)."""
        logits = self._logits(X)  # which checks that the classifier is fitted
        return self.task_.probabilities(logits)

    def _logits(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        features, model = self._read(X, reset=False)[0], self._model()
        if not hasattr(self, "head_"):
            self._keep(self.task_, model)
        return model.logits(self.head_, features)

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each image."""
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]  # type: ignore[no-any-return]

    def save(self, path: str | Path) -> None:
        """Write the fitted task to a file that `tapnet predict` and `TapNetClassifier.load` read."""
        check_is_fitted(self)
        write_task(self.task_, path)

    @classmethod
    def load(cls, path: str | Path, network: str | None = None, device: str = "cpu") -> Self:
        """Return the classifier in a task file; `network` is the path to the task's checkpoint, if it moved."""
        task = read_task(path)
        model, settings = network_of(task, network, device), {"selection": "optimal", **task.options}
        settings.pop("reference_shots", None)
        loaded = cls(network or task.network, task.method, device=device, **settings)
        loaded.network_, loaded.precision_ = model.name, task.precision
        loaded.n_features_in_ = task.examples.features.shape[1]
        return loaded._keep(task, model)

    def _model(self) -> EmbeddingModel:
        """Return the network, or what stands for it where vectors come from elsewhere."""
        if self.network_ == FEATURES:
            return vector_model(self.n_features_in_)
        network = load_network(self.network_, self.device).embedding_as(self.precision_)
        if math.prod(network.feature_shape) != self.n_features_in_:
            raise UserError(
                f"The network {self.network_!r} has features of shape {network.feature_shape}, got vectors of "
                f'{self.n_features_in_}: give vectors of that network, or network="auto".',
                parameter="network",
            )
        return network

    def _read(
        self, X: Any, reset: bool, thumbnail: bool = False
    ) -> tuple[NDArray[np.floating], tuple[str, ...], tuple[bytes, ...]]:
        """Return features, hashes and thumbnails of images; feature vectors have no thumbnails."""
        _check_unusable(X)
        if reset:
            self.network_, self.precision_ = self.network, "float32"
            if self.network == AUTO:
                self.network_ = choose_network(X).name if are_images(X) else FEATURES
            if self.network_ != FEATURES:
                network = load_network(self.network_, self.device)
                self.precision_ = network.precision
                if are_images(X):
                    self.n_features_in_ = math.prod(network.feature_shape)
        if not are_images(X):
            vectors = validate_data(self, X, reset=reset, dtype=np.float64)
            check_features(tensor(vectors))
            return vectors, tuple(sha256(row.tobytes()).hexdigest() for row in vectors), (b"",) * len(vectors)
        model = self._model()
        read = read_images(X, model.image_preprocessing, thumbnails=thumbnail)
        return model.embed_examples(example for _, example in readable(read, on_unreadable=None))


def _check_unusable(X: Any) -> None:
    """Raise UserError if these are not several images or vectors."""
    if isinstance(X, str | bytes | Path | Image):
        raise UserError(f"Expected a list of images, got one {type(X).__name__}: put it in a list.")
    if isinstance(X, np.ndarray) and X.ndim == 3 and X.shape[2] in (3, 4):
        raise UserError(f"Expected a list of images, got what looks like one, of shape {X.shape}: put it in a list.")
    first = X[0] if isinstance(X, Sequence) and len(X) else X
    if isinstance(first, Tensor) and first.dim() > (2 if first is X else 1):
        raise UserError(
            f"Expected images as arrays (height, width, channels), got a tensor of shape {tuple(first.shape)}: give "
            "tensor.permute(0, 2, 3, 1).numpy() of a batch."
        )
    if first is None:
        raise UserError(f"Expected paths, bytes, PIL images, arrays or feature vectors, got {type(first).__name__}.")
    if (isinstance(X, Sequence) and not len(X)) or (isinstance(X, np.ndarray) and X.shape[:1] == (0,)):
        raise UserError("Expected at least one image or feature vector, got none.")


def _classes(y: ArrayLike, count: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the classes among the labels of so many images, and which each has."""
    if isinstance(y, str):
        raise UserError(f"Expected a list of labels, one per image, got {y!r}.")
    answers = column_or_1d(y, warn=True)
    if answers.dtype == object and any(answer is None for answer in answers):
        raise UserError("Expected a label for every image, got None among them.")
    assert_all_finite(answers, input_name="y")
    with warnings.catch_warnings():  # as many classes as examples are usual here
        warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
        check_classification_targets(answers)
    if len(answers) != count:
        raise UserError(
            f"Expected one label per image, got {pluralize(count, 'image')} and {pluralize(len(answers), 'label')}."
        )
    classes, labels = np.unique(answers, return_inverse=True)
    return classes, labels.astype(np.int64)


def _kind(classes: NDArray[Any]) -> str:
    """Return what labels are, one of `LABEL_KINDS`; whatever is no number is text."""
    kind = np.array(classes.tolist()).dtype.kind  # an array of objects may hold numbers
    return {"i": "int", "u": "int", "f": "float", "b": "bool"}.get(kind, "str")


def are_images(X: Any) -> bool:
    """Return whether these are images, not feature vectors, by the first of them."""
    if isinstance(X, np.ndarray) and X.ndim != 1:
        return X.ndim in (3, 4)
    if not isinstance(X, Sequence | np.ndarray) or isinstance(X, str) or len(X) == 0:
        return False
    return isinstance(X[0], str | bytes | Path | Image) or (isinstance(X[0], np.ndarray) and X[0].ndim in (2, 3))
