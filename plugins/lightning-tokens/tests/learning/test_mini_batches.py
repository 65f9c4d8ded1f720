from hypothesis import given, strategies as st
from lightning_tokens.learning.mini_batches import make_mini_batches

steps = st.lists(st.integers(1, 6), min_size=1, max_size=20)
"""The number of rows of each rollout."""


def keys_of(rollouts: list[int]) -> list[str]:
    return [f"u_{session}_{index}" for session, n in enumerate(rollouts) for index in range(n)]


def real(keys: list[str], order: list[int], n_real: int, *, n_workers: int, size: int) -> list[list[int]]:
    """Return of each mini-batch how many real rows each worker has."""
    shares = [order[begin : begin + len(keys) // n_workers] for begin in range(0, len(keys), len(keys) // n_workers)]
    each = size // n_workers
    return [
        [sum(row < n_real for row in share[begin : begin + each]) for share in shares]
        for begin in range(0, len(shares[0]), each)
    ]


def test_one_row_too_many_for_a_mini_batch_is_no_step_of_its_own():
    keys = keys_of([1] * 33)
    parts = make_mini_batches(keys, updates=[1], n_workers=1)
    assert [len(part) for part in parts.parts] == [33]
    assert parts.n_rows == 33


def test_rows_and_padding_are_spread_over_steps_and_workers():
    keys = keys_of([1] * 33)
    parts = make_mini_batches(keys, updates=[2], n_workers=2)
    assert (parts.n_rows, parts.rows_for_each(0)) == (36, 18)
    keys += [f"pad_{place}_0" for place in range(3)]
    order = parts.order(keys, [60] * 33 + [128] * 3)
    found = real(keys, order, 33, n_workers=2, size=18)
    assert sorted(map(sum, found)) == [16, 17]
    assert all(abs(first - second) <= 2 for first, second in found)


def test_micro_batches_of_a_fixed_size_divide_what_each_worker_has():
    parts = make_mini_batches(keys_of([1] * 33), updates=[2], n_workers=2, multiple_of=8)
    assert (parts.size, parts.n_rows) == (24, 48)


def test_a_model_with_more_updates_than_rollouts_has_one_for_each_and_the_other_one_its_own():
    parts = make_mini_batches(keys_of([1, 2, 1]), updates=[2, 4], n_workers=1)
    assert parts.updates == (2, 3)
    assert parts.n_rows == 6 * 2


@given(steps, st.lists(st.integers(1, 4), min_size=1, max_size=2), st.integers(1, 3), st.randoms(use_true_random=False))
def test_no_step_of_the_optimiser_is_of_padding_alone(rollouts, updates, n_workers, chance):
    keys = keys_of(rollouts)
    n_real = len(keys)
    chance.shuffle(keys)
    parts = make_mini_batches(keys, updates=updates, n_workers=n_workers)
    keys += [f"pad_{place}_0" for place in range(parts.n_rows - n_real)]
    order = parts.order(keys, [chance.randrange(1, 100) for _ in keys])
    assert sorted(order) == list(range(parts.n_rows))
    for model, asked in enumerate(updates):
        size = parts.rows_for_each(model)
        found = real(keys, order, n_real, n_workers=n_workers, size=size)
        assert len(found) == parts.updates[model] == min(asked, len(rollouts))
        assert all(map(sum, found))
        assert sum(map(sum, found)) == n_real
        each = len(parts.parts) // len(found)
        batches = [parts.parts[begin : begin + each] for begin in range(0, len(parts.parts), each)]
        counts = [len({key.split("_")[1] for part in batch for key in part}) for batch in batches]
        assert sum(counts) == len(rollouts)  # none is in two of them
        assert max(counts) - min(counts) <= 1
    sessions = [{key.split("_")[1] for key in part} for part in parts.parts]
    assert sum(map(len, sessions)) == len(rollouts)  # none is in two of them
    assert max(map(len, sessions)) - min(map(len, sessions)) <= 1


@given(steps, st.integers(1, 4))
def test_workers_of_a_mini_batch_have_about_the_same_to_do(rollouts, n_workers):
    keys = keys_of(rollouts)
    parts = make_mini_batches(keys, updates=[1], n_workers=n_workers)
    keys += [f"pad_{place}_0" for place in range(parts.n_rows - len(keys))]
    costs = [place % 7 + 1 for place in range(len(keys))]
    order = parts.order(keys, costs)
    each = len(keys) // n_workers
    loads = [sum(costs[row] for row in order[begin : begin + each]) for begin in range(0, len(keys), each)]
    assert max(loads) - min(loads) <= max(costs)
