import pytest

from tapnet.text import difference, pluralize, with_interval


@pytest.mark.parametrize(
    ("number", "noun", "words"),
    [
        (0, "class", "0 classes"),
        (1, "class", "1 class"),
        (2, "class", "2 classes"),
        (1, "query", "1 query"),
        (3, "query", "3 queries"),
        (2, "way", "2 ways"),
        (1234, "image", "1,234 images"),
    ],
)
def test_a_number_has_the_right_form_of_its_noun(number, noun, words):
    assert pluralize(number, noun) == words


def test_an_accuracy_stands_with_its_interval_in_percent():
    assert with_interval(0.6833, 0.0009) == "68.33 ± 0.09"


@pytest.mark.parametrize(("value", "text"), [(None, "—"), (0.01234, "+1.23"), (-0.5, "-50.00"), (-0.00001, "+0.00")])
def test_differences_are_signed_percentage_points(value, text):
    assert difference(value) == text
