"""CIFAR-FS: the 100 classes of CIFAR-100, 600 images each, in the split of Bertinetto et al."""

from tapnet.data.dataset import Dataset, listed_splits
from tapnet.data.readers import Format
from tapnet.data.readers.cifar_python import cifar_python
from tapnet.data.readers.folders_by_class import folders_by_class

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
