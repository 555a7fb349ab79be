import numpy as np
import pytest
from measure_unknowns import detection


def test_detection_of_a_perfect_score_loses_nothing():
    known = np.repeat([True, False], 50)
    found = detection(known.astype(float), known)
    assert (found.auroc, found.knowns_lost_at_80, found.knowns_lost_at_95) == (1, 0, 0)


def test_detection_by_chance_is_a_half():
    generator = np.random.default_rng(0)
    found = detection(generator.random(20_000), generator.random(20_000) < 0.5)
    assert found.auroc == pytest.approx(0.5, abs=0.02)
    assert found.knowns_lost_at_80 == pytest.approx(0.8, abs=0.02)


def test_detection_counts_the_pairs_in_order():
    """Of the six pairs (known, unknown) four have the higher score for the known one, and one is a tie."""
    known = np.array([True, True, True, False, False])
    assert detection(np.array([0.9, 0.5, 0.4, 0.5, 0.1]), known).auroc == pytest.approx(4.5 / 6)
