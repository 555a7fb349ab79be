"""The package runs where modules of POSIX systems are absent."""

import subprocess
import sys
import textwrap


def test_every_module_imports_and_a_set_is_packed_without_posix_modules(tmp_path):
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
        from tapnet.data.packing import Callbacks, PackOptions, prepare
        folder = Path({str(tmp_path)!r})
        (folder / "images" / "cat").mkdir(parents=True)
        Image.new("RGB", (9, 9)).save(folder / "images" / "cat" / "1.png")
        packed = prepare(DATASETS["folder"], folder / "images", folder / "root", PackOptions(size=8), Callbacks())
        print(len(packed.pixels))
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert run.stdout == "1\n", run.stderr
