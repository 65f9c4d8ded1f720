from lightning_apo.inputs import seed_of, shuffled


def test_a_seed_shuffles_in_its_own_way_and_loses_no_sample() -> None:
    orders = [shuffled(50, seed=seed) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == list(range(50))


def test_a_seed_depends_on_every_part_of_its_key_and_on_nothing_else() -> None:
    assert seed_of("critique", 0, 1, "a prompt", 2) == 1305845722
    keys = [("a", 1, 2), ("a", 12), ("a", "1", 2), ("b", 1, 2), ("a", 2, 1)]
    assert len({seed_of(*key) for key in keys}) == len(keys)
