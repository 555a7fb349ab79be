"""CIFAR-FS: the 100 classes of CIFAR-100, 600 images each, in the split of Bertinetto et al."""

from tapnet.data.dataset import Dataset, listed_splits
from tapnet.data.readers import Form
from tapnet.data.readers.cifar_python import cifar_python
from tapnet.data.readers.class_folders import class_folders

CIFAR_FS = Dataset(
    name="cifar-fs",
    summary="CIFAR-FS: the 100 classes of CIFAR-100, 600 images each",
    row_shape=(32, 32, 3),
    origin="https://www.cs.toronto.edu/~kriz/cifar.html (cifar-100-python.tar.gz).",
    splits=listed_splits("cifar-fs"),
    images=60_000,
    images_per_class=600,
    forms=(
        Form("cifar-100-python.tar.gz, or the folder extracted from it", cifar_python),
        Form("folders of images named by class (apple, aquarium_fish, …), in any nesting, also zipped", class_folders),
    ),
    published_filter="32×32 as photographed by its authors: nothing is resized",
)
