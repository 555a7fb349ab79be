import math

import pytest
import torch

from tapnet.training.trajectory import TRAJECTORY, Trajectory, read_trajectory, smallest_reference_distance


def test_snapshots_come_back_as_they_were(tmp_path):
    trajectory = Trajectory()
    references = torch.randn(3, 4)
    trajectory.add(0, references)
    references += 1  # a snapshot does not follow
    trajectory.add(10, references)
    trajectory.write(tmp_path)
    again = read_trajectory(tmp_path)
    assert again.episodes == [0, 10]
    torch.testing.assert_close(again.references[1], references, rtol=0, atol=0)
    torch.testing.assert_close(again.references[0], references - 1)


def test_what_came_after_an_episode_is_forgotten():
    trajectory = Trajectory([0, 10, 20], [torch.zeros(2, 3)] * 3)
    trajectory.cut_after(10)
    assert trajectory.episodes == [0, 10]
    assert len(trajectory.references) == 2


def test_a_method_without_references_leaves_no_file(tmp_path):
    Trajectory().write(tmp_path)
    assert not (tmp_path / TRAJECTORY).exists()
    assert read_trajectory(tmp_path).episodes == []


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / TRAJECTORY).write_bytes(b"rubbish")
    with pytest.raises(ValueError, match=r"references\.safetensors is damaged .* delete it"):
        read_trajectory(tmp_path)


def test_reference_distance_is_the_smallest_between_directions(small_tapnet):
    references = torch.zeros(8, 16)
    references[:, :8] = torch.eye(8) * torch.arange(1.0, 9.0)[:, None]
    small_tapnet.references.data = references
    assert smallest_reference_distance(small_tapnet) == pytest.approx(math.sqrt(2))
