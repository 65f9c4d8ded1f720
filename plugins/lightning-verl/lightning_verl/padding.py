"""Token ids and rows of one length, as agentlightning 0.3 hands them to verl."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lightning_tokens.learning.groups import LearnedRow

if TYPE_CHECKING:
    import torch


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
) -> dict[str, "torch.Tensor"]:
    """Pad prompts at the front and responses at the end.

    Args:
        rows: What is trained on.
        max_prompt_length: The length of all prompts.
        max_response_length: The length of all responses.
        pad_token_id: What stands where there is no token.

    Returns:
        By verl's names, int64 `[rows, length]`: `prompts`, `responses`, `input_ids` (both), `attention_mask` and
        `position_ids` (of both), `response_mask`; and float32 `token_level_scores`, which is 0.0 on padding.
    """
    import torch

    def padded(pad: Any, values: Iterable[Any], length: int, token: int = 0) -> list["torch.Tensor"]:
        return [torch.tensor(each) for each in zip(*(pad(ids, length, token) for ids in values), strict=True)]

    left, right = get_left_padded_ids_and_attention_mask, get_right_padded_ids_and_attention_mask
    prompts, before = padded(left, (row.prompt_ids for row in rows), max_prompt_length, pad_token_id)
    responses, after = padded(right, (row.response_ids for row in rows), max_response_length, pad_token_id)
    attention_mask = torch.cat([before, after], dim=1)
    return {
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses], dim=1),
        "attention_mask": attention_mask,
        "position_ids": (attention_mask.cumsum(1) - 1).clamp(min=0),
        "response_mask": padded(right, (row.mask for row in rows), max_response_length)[0],
        "token_level_scores": padded(right, (row.scores for row in rows), max_response_length)[0].float(),
    }
