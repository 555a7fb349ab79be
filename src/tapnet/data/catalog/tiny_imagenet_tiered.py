"""Tiny ImageNet restricted to the classes of tieredImageNet: an available substitute, not tieredImageNet."""

from tapnet.data.dataset import Dataset, listed_splits
from tapnet.data.readers import Format
from tapnet.data.readers.folders_by_class import folders_by_class

TINY_IMAGENET_TIERED = Dataset(
    name="tiny-imagenet-tiered",
    summary="Tiny ImageNet, the 123 classes that tieredImageNet has too; NOT tieredImageNet",
    row_shape=(64, 64, 3),
    origin="tiny-imagenet-200.zip of Stanford's course CS231n; made from ImageNet (non-commercial research).",
    splits=listed_splits("tiny-imagenet-tiered"),
    images=61_500,
    images_per_class=500,
    formats=(Format("tiny-imagenet-200.zip or its folders (train/n01443537/images/*.JPEG)", folders_by_class),),
    published_filter="64×64 as handed out: nothing is resized",
)
