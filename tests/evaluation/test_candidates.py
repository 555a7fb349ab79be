import pytest

from tapnet.errors import UserError
from tapnet.evaluation.candidates import Candidate, EvaluationData


def test_candidate_is_a_checkpoint_with_the_test_classes_of_its_dataset():
    found = Candidate.open("drawings", EvaluationData())
    assert (found.evaluator.images.name, found.evaluator.images.split) == ("quickdraw", "test")
    assert found.overlap.trained_on == found.overlap.validated_on == 0


def test_candidate_on_its_validation_classes_says_that_they_chose_it():
    assert Candidate.open("drawings", EvaluationData(split="val")).overlap.validated_on == 45


def test_candidate_refuses_images_of_another_size(blobs, monkeypatch):
    monkeypatch.setattr(EvaluationData, "load", lambda *_: blobs)
    with pytest.raises(UserError, match=r"takes images of 28×28 with 1 channel, those of blobs are 8×8"):
        Candidate.open("drawings", EvaluationData())
