"""The package runs where modules of POSIX systems are absent."""

import subprocess
import sys
import textwrap


def test_everything_imports_and_prepare_train_fit_and_predict_run_without_posix_modules(tmp_path):
    script = f"""
        import builtins, importlib, os, pkgutil
        from pathlib import Path

        def import_without_posix(name, scope=None, *arguments, **options):
            ours = (scope or {{}}).get("__name__", "").startswith("tapnet")  # libraries choose by platform themselves
            if ours and name in ("fcntl", "resource", "grp", "pwd", "termios"):
                raise ModuleNotFoundError(name)
            return real_import(name, scope, *arguments, **options)

        real_import, builtins.__import__ = builtins.__import__, import_without_posix
        for name in ("pwrite", "pread", "posix_fallocate"):
            delattr(os, name)
        import tapnet
        for module in pkgutil.walk_packages(tapnet.__path__, "tapnet."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
        from PIL import Image
        from tapnet.data import DATASETS
        from tapnet.data.packing import PackOptions, prepare
        folder = Path({str(tmp_path)!r})
        for number, name in enumerate(("cat", "cat", "dog", "dog")):
            (folder / "images" / name).mkdir(parents=True, exist_ok=True)
            Image.linear_gradient("L").rotate(40 * number).save(folder / "images" / name / f"{{number}}.png")
        packed = prepare(DATASETS["folder"], folder / "images", folder / "root", PackOptions(size=8))
        assert len(packed.pixels) == 4
        from tapnet.cli import main
        changes = ["training.episodes=1", "training.way=5", "method.options.num_references=5"]
        changes += ["validation.way=5", "validation.episodes=2", "backbone.options.widths=[4, 4, 4, 4]"]
        short = [part for change in changes for part in ("--set", change)]
        assert main(["train", "quickdraw", *short, "--no-test", "--device", "cpu", "--out", str(folder / "run")]) == 0
        task = str(folder / "pets.task")
        assert main(["fit", str(folder / "images"), "--network", "drawings", "--out", task]) == 0
        assert main(["predict", task, str(folder / "images")]) == 0
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
