"""Token ids and rows of one length, as agentlightning 0.3 hands them to verl."""

from collections.abc import Sequence

from lightning_tokens.learning.groups import LearnedRow


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


def padded_batch(
    rows: Sequence[LearnedRow], *, max_prompt_length: int, max_response_length: int, pad_token_id: int
) -> dict[str, list[list[float]] | list[list[int]]]:
    """Pad prompts at the front and responses at the end.

    Args:
        rows: What is trained on.
        max_prompt_length: The length of all prompts.
        max_response_length: The length of all responses.
        pad_token_id: What stands where there is no token.

    Returns:
        By verl's names, a list for each row: `prompts`, `responses`, `input_ids` (both), `attention_mask` and
        `position_ids` (of both), `response_mask`, and `token_level_scores`, which is 0.0 on padding.
    """
    batch: dict[str, list[list[int]]] = {}
    scores: list[list[float]] = []
    for row in rows:
        prompt, before = get_left_padded_ids_and_attention_mask(row.prompt_ids, max_prompt_length, pad_token_id)
        response, after = get_right_padded_ids_and_attention_mask(row.response_ids, max_response_length, pad_token_id)
        mask, _ = get_right_padded_ids_and_attention_mask(row.mask, max_response_length, 0)
        for name, values in (
            ("prompts", prompt),
            ("responses", response),
            ("input_ids", prompt + response),
            ("attention_mask", before + after),
            ("position_ids", _positions(before + after)),
            ("response_mask", mask),
        ):
            batch.setdefault(name, []).append(values)
        kept = row.scores[:max_response_length]
        scores.append(kept + [0.0] * (max_response_length - len(kept)))
    return {**batch, "token_level_scores": scores}


def _positions(mask: Sequence[int]) -> list[int]:
    positions, position = [], -1
    for present in mask:
        position += present
        positions.append(max(position, 0))
    return positions
