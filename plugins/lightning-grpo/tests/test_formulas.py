"""The loss against verl's and TRL's own functions, where they are installed.

verl 0.9.1 does not work beside TRL 1.16, so that is brought for this file alone:

    pip install --no-deps --target FOLDER trl==1.16.0
    PYTHONPATH=FOLDER .venv-verl/bin/pytest plugins/lightning-grpo/tests/test_formulas.py
"""

import warnings
from collections import defaultdict
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from lightning_grpo.options import Loss
from lightning_grpo.step import clipped_loss, k3, token_weights
from policy_toys import told

WIDTH, LONGEST = 5, 64

logprobs = st.lists(st.floats(-2, 0), min_size=WIDTH, max_size=WIDTH)
masks = st.lists(st.integers(0, 1), min_size=WIDTH, max_size=WIDTH).filter(any)
rows = st.lists(st.tuples(logprobs, logprobs, logprobs, st.floats(-3, 3), masks), min_size=1, max_size=6)
"""Each a rollout: log-probabilities now, when it was sampled and of the reference; its advantage; what is learned."""

CLIP = (0.2, 0.28)


def tensors(rows: list[Any]) -> list[torch.Tensor]:
    now, old, reference, advantages, mask = (
        torch.tensor(each, dtype=torch.float32) for each in zip(*rows, strict=True)
    )
    return [now, old, reference, advantages.unsqueeze(-1).expand(-1, WIDTH), mask]


def ours(rows: list[Any], loss: Loss, kl: float) -> float:
    now, old, reference, advantages, mask = tensors(rows)
    keys = [f"0_{number}_0" for number in range(len(rows))]
    weights = token_weights(keys, mask.tolist(), options=told(loss=loss, max_tokens=LONGEST))
    each = clipped_loss(now, old, advantages, clip=CLIP) + kl * k3(now, reference)
    return float((each * mask * torch.tensor([[weights[key]] for key in keys])).sum())


class VerlConfig(dict[str, Any]):
    """What verl's loss reads of its configuration: without the further limit of negative advantages."""

    clip_ratio, clip_ratio_low, clip_ratio_high = CLIP[0], *CLIP
    global_batch_info: ClassVar[dict[str, Any]] = {"loss_scale_factor": LONGEST}


@pytest.mark.parametrize(
    ("loss", "mode"),
    [("rollout", "seq-mean-token-mean"), ("token", "token-mean"), ("constant", "seq-mean-token-sum-norm")],
)
def test_it_is_verls(loss: Loss, mode: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what verl imports
        core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")

    @given(rows)
    def compare(rows: list[Any]) -> None:
        now, old, reference, advantages, mask = tensors(rows)
        config = VerlConfig(clip_ratio_c=1e9)
        found, _ = core_algos.compute_policy_loss_vanilla(old, now, advantages, mask, mode, config)
        divergence = core_algos.kl_penalty(now, reference, "low_var_kl")
        found = found + 0.1 * core_algos.agg_loss(divergence, mask, mode, **config.global_batch_info)
        assert ours(rows, loss, 0.1) == pytest.approx(float(found), rel=1e-4, abs=1e-5)

    compare()


@pytest.mark.parametrize(("loss", "kind"), [("rollout", "grpo"), ("token", "bnpo"), ("constant", "dr_grpo")])
def test_it_is_trls(loss: Loss, kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        grpo_trainer = pytest.importorskip("trl.trainer.grpo_trainer", reason="TRL is brought by hand, see above")

    @settings(deadline=None)
    @given(rows)
    def compare(rows: list[Any]) -> None:
        now, old, reference, advantages, mask = tensors(rows)
        inputs = {
            "prompt_ids": mask.long(),
            "prompt_mask": mask,
            "completion_ids": mask.long(),
            "completion_mask": mask,
            "advantages": advantages[:, 0],
            "old_per_token_logps": old,
            "ref_per_token_logps": reference,
        }
        assert ours(rows, loss, 0.1) == pytest.approx(_of_trl(grpo_trainer, inputs, now, kind), rel=1e-4, abs=1e-5)

    compare()


def _of_trl(module: Any, inputs: dict[str, Any], now: torch.Tensor, kind: str) -> float:
    alone = SimpleNamespace(gather=lambda each: each, reduce=lambda each, reduction: each, num_processes=1)
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (now, torch.zeros_like(now), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        importance_sampling_level="token",
        beta=0.1,
        loss_type=kind,
        max_completion_length=LONGEST,
        epsilon_low=CLIP[0],
        epsilon_high=CLIP[1],
        current_gradient_accumulation_steps=1,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None),
        model=SimpleNamespace(training=True),
        _entropy_bonus_enabled=False,
        accelerator=alone,
        _metrics={"train": defaultdict(list)},
    )
    return float(module.GRPOTrainer._compute_loss(trainer, None, inputs))


def test_rows_of_one_rollout_share_its_weight_and_padding_has_none() -> None:
    """Worked by hand: two rollouts, the first in two rows with one and three tokens."""
    masks = [[1, 0, 0], [1, 1, 1], [1, 1, 0]]
    expected = {"rollout": [1 / 8, 1 / 8, 1 / 4], "token": [1 / 6] * 3, "constant": [1 / 20] * 3}
    for loss, weights in expected.items():
        found = token_weights(["0_0_0", "0_0_1", "0_1_0"], masks, options=told(loss=loss, max_tokens=10))
        assert list(found.values()) == pytest.approx(weights)


@given(st.floats(-30, 0), st.floats(-30, 0))
def test_the_divergence_is_never_negative_and_has_a_limit(now: float, reference: float) -> None:
    (found,) = k3(torch.tensor([now]), torch.tensor([reference])).tolist()
    assert 0 <= found <= 10
    expected = min(np.exp(reference - now) - (reference - now) - 1, 10.0)
    assert found == pytest.approx(expected, abs=1e-3)
