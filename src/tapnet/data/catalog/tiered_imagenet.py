"""tieredImageNet: 608 classes of ImageNet, split by 34 categories."""

from tapnet.data.dataset import Dataset, listed_splits
from tapnet.data.readers import Format
from tapnet.data.readers.folders_by_class import folders_by_class
from tapnet.data.readers.labeled_arrays import labeled_arrays

TIERED_IMAGENET = Dataset(
    name="tiered-imagenet",
    summary="tieredImageNet: 608 classes of ImageNet, 779,165 images",
    row_shape=(84, 84, 3),
    origin="https://github.com/renmengye/few-shot-ssl-public links it; made from ImageNet (non-commercial research).",
    splits=listed_splits("tiered-imagenet"),
    images=779_165,
    formats=(
        Format(
            "train_labels.pkl with train_images_png.pkl or the authors' train_images.npz (and val, test)",
            labeled_arrays,
        ),
        Format(
            "folders of images named by class id (n01530575), in any nesting; ILSVRC2012_img_train.tar or its folders",
            folders_by_class,
        ),
    ),
    filter="bicubic",
    published_filter="84×84 by OpenCV's cubic filter, which does not smooth when it shrinks; bicubic here does",
)
