"""Any folder of images: the user's own classes."""

from tapnet.data.dataset import Dataset
from tapnet.data.readers import Format
from tapnet.data.readers.class_tree import class_tree
from tapnet.data.readers.csv_table import csv_table

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
