import subprocess
import sys

import pytest
import torch

from tapnet import hardware


@pytest.mark.parametrize(("has_gpu", "device"), [(True, "cuda"), (False, "cpu")])
def test_auto_takes_a_gpu_when_there_is_one_and_else_the_cpu(monkeypatch, has_gpu, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert hardware.resolve_device("auto") == torch.device(device)


@pytest.mark.parametrize(
    ("capabilities", "precision"),
    [({"avx512_bf16": True}, "bf16"), ({"amx_bf16": True}, "bf16"), ({"avx2": True}, "float32"), ({}, "float32")],
)
def test_auto_precision_is_bf16_where_the_cpu_multiplies_in_it(monkeypatch, capabilities, precision):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert hardware.resolve_precision("auto", torch.device("cpu")) == precision


def test_a_device_that_is_not_there_is_refused_with_those_that_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="which has: cpu"):
        hardware.resolve_device("cuda")


def test_the_description_names_device_and_precision():
    description = hardware.describe(torch.device("cpu"), "float32")
    assert description["device"] == "cpu"
    assert description["precision"] == "float32"
    assert description["device_name"]


def test_the_library_behind_bf16_says_nothing():
    code = "import torch; from tapnet.hardware import launched\nwith launched(torch.device('cpu'), 'bf16'): pass"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""
