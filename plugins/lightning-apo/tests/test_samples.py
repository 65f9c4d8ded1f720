import pytest
from lightning_apo.samples import deal, seed_of


def test_no_sample_is_dealt_twice_before_all_were_dealt_once() -> None:
    hands = [deal(12, 4, hand, seed=1) for hand in range(3)]
    assert sorted(sample for hand in hands for sample in hand) == list(range(12))


@pytest.mark.parametrize("hand", range(7))
def test_a_hand_has_no_sample_twice_also_where_the_deck_starts_over(hand: int) -> None:
    assert len(set(deal(10, 4, hand, seed=1))) == 4


def test_a_hand_that_is_larger_than_the_deck_is_the_whole_deck() -> None:
    assert sorted(deal(3, 16, 5, seed=1)) == [0, 1, 2]


def test_another_seed_shuffles_otherwise() -> None:
    assert deal(50, 50, 0, seed=1) != deal(50, 50, 0, seed=2)


def test_a_seed_depends_on_every_part_of_its_key_and_on_nothing_else() -> None:
    assert seed_of("critique", 0, 1, "a prompt", 2) == 1305845722
    keys = [("a", 1, 2), ("a", 12), ("a", "1", 2), ("b", 1, 2), ("a", 2, 1)]
    assert len({seed_of(*key) for key in keys}) == len(keys)
