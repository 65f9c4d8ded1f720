from typing import Any

import pytest
from lightning_apo import APO


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("beam_width", 0, "beam_width is 0; it has to be an integer of at least 1"),
        ("branch_factor", 1.5, "branch_factor is 1.5; it has to be an integer"),
        ("beam_rounds", "3", "beam_rounds is '3'; it has to be an integer"),
        ("gradient_batch_size", True, "gradient_batch_size is True"),
        ("val_batch_size", -1, "val_batch_size is -1"),
        ("diversity_temperature", -0.1, "diversity_temperature is -0.1; it has to be a number of at least 0"),
        ("diversity_temperature", float("nan"), "diversity_temperature is nan"),
        ("rollout_batch_timeout", 0, "rollout_batch_timeout is 0; it has to be more than 0 seconds"),
        ("gradient_model", "", "gradient_model is ''; it has to be the name of a model"),
        ("apply_edit_model", None, "apply_edit_model is None"),
        ("run_initial_validation", "no", "run_initial_validation is 'no'; it has to be true or false"),
        ("seed", 0.5, "seed is 0.5; it has to be an integer"),
    ],
)
def test_an_option_with_an_impossible_value_is_named(option: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        APO(**{option: value})
