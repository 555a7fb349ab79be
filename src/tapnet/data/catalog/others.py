"""CIFAR-FS, and any folder of images: the user's own classes."""

from __future__ import annotations

from tapnet.data.dataset import Dataset, Format, listed_splits
from tapnet.data.readers.folders import class_tree, folders_by_class
from tapnet.data.readers.pickles import cifar_python
from tapnet.data.readers.tables import csv_table

# In the split of Bertinetto et al.
CIFAR_FS = Dataset(
    name="cifar-fs",
    summary="CIFAR-FS: the 100 classes of CIFAR-100, 600 images each",
    row_shape=(32, 32, 3),
    origin="https://www.cs.toronto.edu/~kriz/cifar.html (cifar-100-python.tar.gz).",
    splits=listed_splits("cifar-fs"),
    images=60_000,
    images_per_class=600,
    formats=(
        Format("cifar-100-python.tar.gz, or the folder extracted from it", cifar_python),
        Format("folders of images named by class (apple, aquarium_fish, …), nested or zipped", folders_by_class),
    ),
    published_filter="32×32 as photographed by its authors: nothing is resized",
)

FOLDER = Dataset(
    name="folder",
    summary="your own images, under a name of your own",
    row_shape=(84, 84, 3),
    origin="Your own images.",
    formats=(
        Format("a CSV with the columns path and label (and split)", csv_table),
        Format("a folder, zip or tar with one folder per class (and train/, val/, test/ above)", class_tree),
    ),
)
