"""Token ids of one length."""

from collections.abc import Sequence


def get_left_padded_ids_and_attention_mask(
    ids: Sequence[int], max_length: int, pad_token_id: int
) -> tuple[list[int], list[int]]:
    """Pad at the front, or keep the last `max_length` ids.

    Args:
        ids: Token ids, of any number.
        max_length: How many there will be.
        pad_token_id: What stands where there was none.

    Returns:
        The ids, and 1 for each that was given, 0 for each that was added.
    """
    kept = list(ids[max(len(ids) - max_length, 0) :])
    missing = max_length - len(kept)
    return [pad_token_id] * missing + kept, [0] * missing + [1] * len(kept)


def get_right_padded_ids_and_attention_mask(
    ids: Sequence[int], max_length: int, pad_token_id: int
) -> tuple[list[int], list[int]]:
    """Pad at the end, or keep the first `max_length` ids.

    Args:
        ids: Token ids, of any number.
        max_length: How many there will be.
        pad_token_id: What stands where there was none.

    Returns:
        The ids, and 1 for each that was given, 0 for each that was added.
    """
    kept = list(ids[:max_length])
    missing = max_length - len(kept)
    return kept + [pad_token_id] * missing, [1] * len(kept) + [0] * missing
