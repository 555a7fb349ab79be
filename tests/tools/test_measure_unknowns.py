import numpy as np
import pytest
from measure_unknowns import detection


def test_detection_by_chance_is_a_half_and_a_perfect_score_loses_nothing():
    generator = np.random.default_rng(0)
    known = generator.random(20_000) < 0.5
    chance, perfect = detection(generator.random(20_000), known), detection(known.astype(float), known)
    assert (perfect.auroc, perfect.knowns_lost_at_80, perfect.knowns_lost_at_95) == (1, 0, 0)
    assert chance.auroc == pytest.approx(0.5, abs=0.02)
    assert chance.knowns_lost_at_80 == pytest.approx(0.8, abs=0.02)


def test_detection_counts_the_pairs_in_order():
    """Of the six pairs (known, unknown) four have the higher score for the known one, and one is a tie."""
    known = np.array([True, True, True, False, False])
    assert detection(np.array([0.9, 0.5, 0.4, 0.5, 0.1]), known).auroc == pytest.approx(4.5 / 6)
