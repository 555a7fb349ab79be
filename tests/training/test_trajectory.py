import pytest
import torch

from tapnet.training.trajectory import TRAJECTORY, Trajectory, read_trajectory


def test_snapshots_come_back_as_they_were(tmp_path):
    trajectory = Trajectory()
    references = torch.randn(3, 4)
    trajectory.add(0, {"references": references})
    references += 1  # a snapshot does not follow
    trajectory.add(10, {"references": references})
    trajectory.write(tmp_path)
    again = read_trajectory(tmp_path)
    assert again.episodes == [0, 10]
    torch.testing.assert_close(again.tensors["references"][1], references, rtol=0, atol=0)
    torch.testing.assert_close(again.tensors["references"][0], references - 1)


def test_what_came_after_an_episode_is_forgotten():
    trajectory = Trajectory([0, 10, 20], {"references": [torch.zeros(2, 3)] * 3})
    trajectory.cut_after(10)
    assert trajectory.episodes == [0, 10]
    assert len(trajectory.tensors["references"]) == 2


def test_a_method_without_snapshots_leaves_no_file(tmp_path):
    Trajectory().write(tmp_path)
    assert not (tmp_path / TRAJECTORY).exists()
    assert read_trajectory(tmp_path).episodes == []


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / TRAJECTORY).write_bytes(b"rubbish")
    with pytest.raises(ValueError, match=r"references\.safetensors is damaged .* delete it"):
        read_trajectory(tmp_path)
