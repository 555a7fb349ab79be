import pytest

from tapnet.origin import direct_origin, earlier_networks, learned_from

DISTILLED = (
    "distilled from one after 50 episodes (digest 01; itself begun with x after 3 episodes (digest 02)); distilled "
    "from two after 1 episode; initialized from three after 7,000 episodes; digest 03; fresh: references; itself "
    "distilled from four after 80 episodes (digest 04)"
)
SEEDS = (
    "initialized from branch after 9 episodes (digest 01; itself initialized from x after 3 episodes); initialized "
    "from branch after 9 episodes (digest 02; itself initialized from x after 3 episodes); widened by their transposed "
    "copies; fresh: references"
)


def test_direct_origin_leaves_out_digests_and_earlier_networks():
    assert direct_origin(DISTILLED) == [
        "distilled from one after 50 episodes",
        "distilled from two after 1 episode",
        "initialized from three after 7,000 episodes",
        "fresh: references",
    ]


def test_direct_origin_counts_networks_of_a_recipe():
    first, *rest = direct_origin(SEEDS)
    assert first == "initialized from 2 networks of branch after 9 episodes"
    assert rest == ["widened by their transposed copies", "fresh: references"]


def test_learned_from_names_networks_only():
    assert learned_from(DISTILLED) == direct_origin(DISTILLED)[:3]


@pytest.mark.parametrize("origin", ["", "Chainer npz save/TapNet, sha-256 0f"])
def test_an_origin_without_networks_names_none(origin):
    assert direct_origin(origin) == [origin] * bool(origin)
    assert not learned_from(origin)
    assert not earlier_networks(origin)


def test_earlier_networks_include_those_that_networks_learned_from():
    assert earlier_networks(DISTILLED) == [("one", 50), ("x", 3), ("two", 1), ("three", 7000), ("four", 80)]


def test_earlier_networks_have_each_network_once():
    assert earlier_networks(SEEDS) == [("branch", 9), ("x", 3), ("branch", 9)]
