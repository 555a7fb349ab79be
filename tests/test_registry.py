import numpy as np
import pytest

from tapnet.errors import UserError
from tapnet.registry import build


class Part:
    def __init__(self, first: str, count: int = 1, exact: bool = False, rate: float = 0.5) -> None:
        self.values = first, count, exact, rate


@pytest.mark.parametrize("count", [3, np.int64(3)])
def test_build_takes_whole_numbers_of_any_type(count):
    assert build("Part", Part, "a", {"count": count}).values == ("a", 3, False, 0.5)


@pytest.mark.parametrize("count", [True, 3.0, "3", None])
def test_build_names_an_option_that_is_no_whole_number(count):
    with pytest.raises(UserError, match=r"^Part: `count` is a whole number, got "):
        build("Part", Part, "a", {"count": count})


def test_build_names_an_option_that_is_neither_true_nor_false():
    with pytest.raises(UserError, match=r"^Part: `exact` is true or false, got 1"):
        build("Part", Part, "a", {"exact": 1})
