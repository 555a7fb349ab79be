import shutil

import numpy as np
import pytest
import torch

from tapnet.errors import UserError
from tapnet.inference.classifier import TapNetClassifier
from tapnet.inference.networks import load_network


@pytest.fixture(scope="module")
def tiny_vit(tmp_path_factory):
    """A vision transformer of 16 features for 32×32 images, written to disk as Hugging Face does."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("hf") / "tiny-vit"
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.ViTConfig(image_size=32, patch_size=8, **sizes)
    transformers.ViTModel(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.5, 0.5]}')
    return folder


def test_hugging_face_model_is_read_from_a_folder_with_its_own_normalization(tiny_vit):
    network = load_network(f"hf:{tiny_vit}")
    assert network.method.feature_shape == (16,)
    assert network.preprocessing.shape == (32, 32, 3)
    torch.testing.assert_close(network.method.backbone.mean.flatten(), torch.tensor([0.1, 0.2, 0.3]))


def test_hugging_face_model_classifies_by_logistic_regression_and_names_the_methods_without_references(tiny_vit):
    images = np.repeat(np.array([[255, 0, 0], [0, 0, 255]], np.uint8), 40 * 40, 0).reshape(2, 40, 40, 3)
    fitted = TapNetClassifier(network=f"hf:{tiny_vit}").fit(images, ["red", "blue"])
    assert fitted.task_.method == "logistic"
    assert list(fitted.predict(images)) == ["red", "blue"]
    with pytest.raises(UserError, match="can be fitted by centroid, protonet, logistic, got 'tapnet'"):
        TapNetClassifier(f"hf:{tiny_vit}", "tapnet").fit(images, ["red", "blue"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is damaged"),
        ('{"image_mean": [0.5]}', "three numbers as image_mean"),
        ('{"image_std": [0.5, "a", 0.5]}', "three numbers as image_std"),
    ],
)
def test_hugging_face_model_with_strange_preprocessing_is_refused(tiny_vit, tmp_path, content, words):
    folder = shutil.copytree(tiny_vit, tmp_path / "strange")
    (folder / "preprocessor_config.json").write_text(content)
    with pytest.raises(UserError, match=words):
        load_network(f"hf:{folder}")


def test_hugging_face_model_that_is_pickled_or_has_code_of_its_own_is_refused(tiny_vit, tmp_path):
    folder = shutil.copytree(tiny_vit, tmp_path / "pickled")
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="safetensors"):
        load_network(f"hf:{folder}")
    config = '{"model_type": "mine", "auto_map": {"AutoModel": "code.M", "AutoConfig": "code.C"}}'
    (folder / "config.json").write_text(config)
    (folder / "code.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ValueError, match=r"cannot be loaded|code"):
        load_network(f"hf:{folder}")
