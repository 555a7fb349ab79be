"""Omniglot: 1,623 handwritten characters of 50 alphabets, 20 drawings each."""

from tapnet.data.dataset import Dataset, listed_splits
from tapnet.data.readers import Format
from tapnet.data.readers.folders_by_class import folders_by_class

OMNIGLOT = Dataset(
    name="omniglot",
    summary="1,623 handwritten characters, 20 drawings each",
    row_shape=(28, 28, 1),
    origin="https://github.com/brendenlake/omniglot (MIT licence); `tapnet data download omniglot` fetches it.",
    splits=listed_splits("omniglot", "background", "evaluation"),
    images=32_460,
    images_per_class=20,
    formats=(
        Format(
            "the folder that holds images_background.zip and images_evaluation.zip, or the folders extracted from them "
            "(ALPHABET/characterNN/*.png)",
            folders_by_class,
        ),
    ),
    published_filter="28×28 is usual, the filter is not; most codes use Lanczos or bilinear",
    ink="bright",
    rotations={"train": 4, "trainval": 4, "background": 4},
)
