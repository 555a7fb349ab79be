import os

from tapnet.evaluation.embedding import cached_features


def test_cache_deletes_what_a_killed_process_left_half_written(blobs, small_tapnet, tmp_path):
    old, new = tmp_path / ".a.safetensors.01234567", tmp_path / ".b.safetensors.89abcdef"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    cached_features(small_tapnet.backbone, blobs, "float32", tmp_path)
    assert not old.exists()
    assert new.exists(), "another process may be writing it"
