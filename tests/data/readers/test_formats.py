"""Every public form, written here in its genuine layout, has to come out as the same classes and pixels."""

import pickle
import zipfile

import numpy as np
import pytest

from tapnet.data.catalog import mini_imagenet_numbers
from tapnet.errors import UserError

TRAIN, VAL, TEST = "n01532829", "n01855672", "n01930112"  # one class of each split of miniImageNet
CLASSES = {"train": TRAIN, "val": VAL, "test": TEST}
VALUES = (10, 20, 30)


def plain(value, size=84):
    return np.broadcast_to(np.array([value, 255 - value, 128], dtype=np.uint8), (size, size, 3))


def stacked(values=VALUES):
    return np.stack([plain(value) for value in values])


@pytest.fixture
def whole(reds):
    """Asserts that a packed miniImageNet holds the three classes, in their splits, with their pixels."""

    def check(packed):
        assert {split: packed.manifest.splits[split] for split in CLASSES} == {s: (c,) for s, c in CLASSES.items()}
        assert [reds(packed, name) for name in CLASSES.values()] == [list(VALUES)] * 3
        assert packed.pixels[0, 5, 5].tolist() == [10, 245, 128]

    return check


def test_folders_are_read_at_any_depth_and_follow_the_published_split_and_not_their_own(pack, make, tmp_path, whole):
    files = {f"train/{c}/{v}.jpg": make.png(v) for c in CLASSES.values() for v in VALUES[:2]}
    files |= {f"a/val/{c}/{v}.jpg": make.png(v) for c in CLASSES.values() for v in VALUES[2:]}
    packed = pack("mini-imagenet", make.tree(tmp_path / "mini", files | {"n99999999/1.png": make.png(1)}))
    whole(packed)
    assert "n99999999" in packed.manifest.notes[0]


def test_csv_lists_with_a_folder_of_images_are_read_pointed_at_and_zipped(pack, make, tmp_path, whole):
    files = {f"images/{name}{value:08d}.jpg": make.png(value) for name in CLASSES.values() for value in VALUES}
    for split, name in CLASSES.items():
        rows = [f"{name}{value:08d}.jpg,{name}\n" for value in VALUES]
        files[f"{split}.csv"] = "".join(["filename,label\n", *rows]).encode()
    folder = make.tree(tmp_path / "mini", files)
    whole(pack("mini-imagenet", folder / "train.csv"))
    whole(pack("mini-imagenet", make.zip(tmp_path / "mini.zip", files), name="zipped"))
    (folder / "images" / f"{TRAIN}00000020.jpg").unlink()
    notes = pack("mini-imagenet", folder, name="missing").manifest.notes
    assert f"Skipped 1 image, listed but not found: {TRAIN}00000020.jpg." in notes


@pytest.mark.parametrize("kind", ["float32", "flattened", "compressed"])
def test_authors_npz_is_read_pointed_at_and_archived(pack, make, tmp_path, whole, kind):
    (tmp_path / "npz").mkdir()
    for split, name in CLASSES.items():
        images = stacked()
        images = (images / 255).astype(np.float32) if kind == "float32" else images
        images = images.reshape(len(images), -1) if kind == "flattened" else images
        (np.savez_compressed if kind == "compressed" else np.savez)(tmp_path / "npz" / f"{split}.npz", **{name: images})
    whole(pack("mini-imagenet", tmp_path / "npz" / "train.npz"))
    files = {f"mini-imagenet/{path.name}": path.read_bytes() for path in (tmp_path / "npz").iterdir()}
    whole(pack("mini-imagenet", make.tar(tmp_path / "mini-imagenet.tar.gz", files, "w:gz"), name="archived"))


def test_authors_npz_class_without_a_known_name_is_of_the_split_of_its_file(pack, tmp_path):
    np.savez(tmp_path / "val.npz", robin=stacked())
    assert pack("mini-imagenet", tmp_path).manifest.splits["val"] == ("robin",)
    np.savez(tmp_path / "val.npz", robin=stacked()[:0])
    with pytest.raises(UserError, match="holds no image"):
        pack("mini-imagenet", tmp_path, name="none")


def test_cache_pickles_are_read_and_announce_their_memory(pack, make, tmp_path, whole):
    for protocol, (split, name) in zip((2, 4, 5), CLASSES.items(), strict=True):
        content = {"image_data": stacked(), "class_dict": {name: np.arange(3)}}
        make.file(tmp_path / "p" / f"mini-imagenet-cache-{split}.pkl", pickle.dumps(content, protocol))
    lines = []
    whole(pack("mini-imagenet", tmp_path / "p", log=lines.append))
    assert any("memory" in sentence for sentence in lines)


@pytest.mark.parametrize(
    "change",
    [
        {"class_dict": [TRAIN]},
        {"class_dict": {TRAIN: 2}},
        {"class_dict": {TRAIN: ["first"]}},
        {"class_dict": {TRAIN: [0, 3]}},
        {"class_dict": {TRAIN: [0, 0]}},
        {"image_data": [1, 2]},
    ],
)
def test_cache_pickle_whose_content_does_not_fit_is_refused(pack, make, tmp_path, change):
    content = {"image_data": stacked(), "class_dict": {TRAIN: [0, 1, 2]}} | change
    make.file(tmp_path / "p" / "mini-imagenet-cache-train.pkl", pickle.dumps(content))
    with pytest.raises(UserError, match=r"mini-imagenet-cache-train\.pkl"):
        pack("mini-imagenet", tmp_path / "p")


def ilsvrc(make, tmp_path, name, images):
    """The tar of a class, with files numbered as ILSVRC numbers them: not without gaps, not padded."""
    files = {f"{name}_{7 * number + 3}.JPEG": make.png(number % 256, (4, 4)) for number in range(images)}
    return {f"{name}.tar": make.tar(tmp_path / f"{name}.inner", files).read_bytes()}


def test_ilsvrc_classes_give_the_600_images_that_were_published_or_all_if_incomplete(pack, make, tmp_path, reds):
    path = make.tar(tmp_path / "ILSVRC2012_img_train.tar", ilsvrc(make, tmp_path, TRAIN, 1300))
    packed = pack("mini-imagenet", path, size=4)
    assert dict(packed.manifest.classes) == {TRAIN: 600}
    assert reds(packed, TRAIN) == [(number - 1) % 256 for number in mini_imagenet_numbers()[TRAIN]]
    files = {f"train/{TRAIN}/{TRAIN}_{number}.JPEG": make.png(1) for number in (5, 40, 300)}
    packed = pack("mini-imagenet", make.tree(tmp_path / "ILSVRC", files), name="incomplete")
    assert packed.manifest.classes[TRAIN] == 3
    assert "Incomplete ILSVRC classes" in packed.manifest.notes[0]


def test_ilsvrc_folder_of_tars_gives_tiered_imagenet_every_image(pack, make, tmp_path):
    packed = pack("tiered-imagenet", make.tree(tmp_path / "train", ilsvrc(make, tmp_path, "n02099267", 30)), size=4)
    assert packed.manifest.classes == {"n02099267": 30}
    assert packed.manifest.splits["val"] == ("n02099267",)


WORDS = {"train": ["house finch", "junco"], "val": ["golden retriever"], "test": ["crane", "crane"]}


def tiered(make, folder, form):
    """`SPLIT_labels.pkl` with numbers and words, and the images beside it."""
    for split, words in WORDS.items():
        labels = np.repeat(np.arange(len(words)), 2).astype(np.int32)
        content = {b"label_specific": labels, b"label_specific_str": words, b"label_general": labels}
        make.file(folder / f"{split}_labels.pkl", pickle.dumps(content, 2))
        values = [10 * (1 + row) for row in range(len(labels))]
        if form == "png":
            encoded = [np.frombuffer(make.png(value), np.uint8).reshape(-1, 1) for value in values]  # as by OpenCV
            make.file(folder / f"{split}_images_png.pkl", pickle.dumps(encoded, 2))
        else:
            np.savez(folder / f"{split}_images.npz", images=stacked(values)[..., ::-1])  # blue first
    return folder


@pytest.mark.parametrize("form", ["png", "npz"])
def test_tiered_label_pickles_are_read_with_their_images_and_words_as_class_ids(pack, make, tmp_path, reds, form):
    folder = tiered(make, tmp_path / "t", form)
    packed = pack("tiered-imagenet", folder)
    assert packed.manifest.splits["train"] == ("house finch", "junco")
    assert packed.manifest.splits["test"] == ("crane #0", "crane #1"), "namesakes stay two classes"
    assert reds(packed, "junco") == [30, 40]
    assert packed.pixels[0, 0, 0, 2] == 128
    make.file(folder / "class_names.txt", b"house finch\njunco\n")
    make.file(folder / "synsets.txt", b"n01532829\nn01534433\n")
    assert pack("tiered-imagenet", folder, name="ids").manifest.splits["train"] == ("n01532829", "n01534433")


@pytest.fixture
def tiered_npz(make, tmp_path):
    return tiered(make, tmp_path / "t", "npz")


def test_tiered_labels_without_images_say_what_is_missing_and_are_not_taken_for_mini_imagenet(pack, tiered_npz):
    with pytest.raises(ValueError, match="is not a known form of mini-imagenet"):
        pack("mini-imagenet", tiered_npz)
    (tiered_npz / "val_images.npz").unlink()
    with pytest.raises(ValueError, match=r"beside val_labels\.pkl, got neither"):
        pack("tiered-imagenet", tiered_npz)


@pytest.mark.parametrize("change", [{"label_specific": ["x"]}, {"label_specific": 4}, {"label_specific_str": 4}])
def test_tiered_labels_that_are_none_are_refused(pack, make, tiered_npz, change):
    content = {"label_specific": [0], "label_specific_str": ["crane"]} | change
    make.file(tiered_npz / "val_labels.pkl", pickle.dumps(content, 2))
    with pytest.raises(UserError, match=r"Expected a list .* in val_labels\.pkl"):
        pack("tiered-imagenet", tiered_npz)


CIFAR = ["apple", "baby", "beaver"]  # of train, test and val


def cifar_pickles(folder):
    """`train`, `test` and `meta` as the archive has them: rows of 3072 numbers, plane after plane, byte keys."""
    files = {"meta": {b"fine_label_names": [name.encode() for name in CIFAR]}}
    for part, values in (("train", (10, 20)), ("test", (30,))):
        labels = [label for label in range(3) for _ in values]
        planes = np.stack([plain(value, 32).transpose(2, 0, 1).reshape(-1) for _ in CIFAR for value in values])
        names = [f"{CIFAR[label]}_s_{value:06d}.png".encode() for label in range(3) for value in values]
        files[part] = {b"data": planes, b"fine_labels": labels, b"filenames": names}
    return {f"{folder}/{name}": pickle.dumps(content, 2) for name, content in files.items()}


def test_cifar_python_archive_and_folders_are_read(pack, make, tmp_path, reds):
    files = cifar_pickles("cifar-100-python")
    packed = pack("cifar-fs", make.tar(tmp_path / "cifar-100-python.tar.gz", files, "w:gz"))
    assert [packed.manifest.splits[split] for split in ("train", "val", "test")] == [("apple",), ("beaver",), ("baby",)]
    assert reds(packed, "baby") == [10, 20, 30]
    assert packed.pixels[0, 3, 3].tolist() == [10, 245, 128]
    parts = {"train": (10, 20), "test": (30,)}
    names = {f"{part}/{c}/{c}_s_{v:06d}.png": v for part, values in parts.items() for c in CIFAR for v in values}
    files = {name: make.png(value, (32, 32)) for name, value in names.items()}
    folders = pack("cifar-fs", make.tree(tmp_path / "png", files), name="png")
    assert folders.manifest.sha256 == packed.manifest.sha256


@pytest.mark.parametrize(
    "change",
    [
        {b"fine_labels": [0, 1, 3]},
        {b"fine_labels": ["a", "b", "c"]},
        {b"filenames": [b"one.png"]},
        {b"data": np.zeros((3, 100), np.uint8)},
        {b"data": np.zeros((3, 3072))},
    ],
)
def test_cifar_pickle_whose_content_does_not_fit_is_refused(pack, make, tmp_path, change):
    files = cifar_pickles("c")
    files["c/test"] = pickle.dumps(pickle.loads(files["c/test"]) | change, 2)
    with pytest.raises(UserError, match=r"in test"):
        pack("cifar-fs", make.tree(tmp_path, files) / "c")


def test_tiny_imagenet_keeps_only_the_classes_of_tiered_imagenet(pack, make, tmp_path):
    files = {
        f"tiny-imagenet-200/train/{c}/images/{c}_{v}.JPEG": make.png(v, (64, 64))
        for c in ("n01443537", "n01629819")
        for v in range(3)
    }
    files |= {"tiny-imagenet-200/val/images/val_0.JPEG": make.png(9), "tiny-imagenet-200/wnids.txt": b"n01443537\n"}
    packed = pack("tiny-imagenet-tiered", make.zip(tmp_path / "tiny-imagenet-200.zip", files))
    assert dict(packed.manifest.classes) == {"n01443537": 3}
    assert packed.manifest.preprocessing.shape == (64, 64, 3)


def test_what_is_no_known_form_is_refused_with_the_forms(pack, make, tmp_path):
    path = make.tree(tmp_path / "strange", {"notes/readme.txt": b"words"})
    for name in ("omniglot", "mini-imagenet", "tiered-imagenet", "cifar-fs", "tiny-imagenet-tiered"):
        with pytest.raises(ValueError, match=r"holds notes/readme\.txt\. Expected one of: "):
            pack(name, path)


def test_cifar_folder_train_is_a_class_only_where_images_lie_in_it(pack, make, tmp_path):
    names = ["train/apple/1.png", "train/train/1.png", "train/strange/1.png"]
    packed = pack("cifar-fs", make.tree(tmp_path / "c", {name: make.png(1) for name in names}))
    assert dict(packed.manifest.classes) == {"apple": 1, "train": 1}


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archive_with_the_same_name_twice_gives_one_image(pack, make, tmp_path):
    with zipfile.ZipFile(tmp_path / "twice.zip", "w") as archive:
        for value in (1, 2):
            archive.writestr("cat/1.png", make.png(value))
    assert len(pack("folder", tmp_path / "twice.zip").pixels) == 1
