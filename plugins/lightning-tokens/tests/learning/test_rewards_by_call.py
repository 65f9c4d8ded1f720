"""The numbers of docs/verl.md about rewards by call: from what the agent emits to what each token does in the loss."""

import warnings
from pathlib import Path

import pytest
from learning_toys import judged, options, plain
from lightning_tokens.learning.groups import learn_from_group
from lightning_tokens.learning.steps import step_advantages

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what verl imports
    core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")

REWARDS = [(1.0, 3.0), (0.0, 0.0)]
"""Of each call of two rollouts of one task."""

TURN = [1, 1]
BETWEEN = [0]
"""What stands between two answers: the user's next words."""


def table() -> dict[str, list[float]]:
    """Return the table of the page: by credit, the advantage of each call."""
    page = (Path(__file__).parents[4] / "docs" / "verl.md").read_text(encoding="utf-8")
    lines = page.partition("| `credit` | X, call 1 |")[2].splitlines()[2:5]
    cells = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]
    return {name: [float(number) for number in numbers] for name, *numbers in cells}


@pytest.mark.parametrize("credit", ["final", "per_call", "discounted"])
def test_rewards_by_call_reach_each_token_of_the_loss_as_the_page_says(credit: str) -> None:
    told = options(credit=credit, norm_by_std=False)
    rows = learn_from_group([judged(*each, told=told) for each in REWARDS], options=told).rows
    assert [row.mask for row in rows] == [TURN + BETWEEN + TURN] * 2, "a row for each rollout"
    step = step_advantages(
        keys=[f"u_{row.session}_{row.index}" for row in rows],
        masks=[row.mask for row in rows],
        answers=[row.packed() for row in rows],
        options=told,
    )
    log_prob = torch.zeros(2, 5, requires_grad=True)
    loss, _ = core_algos.get_policy_loss_fn("vanilla")(
        old_log_prob=torch.zeros(2, 5),
        log_prob=log_prob,
        advantages=torch.tensor(plain(step.advantages)),
        response_mask=torch.tensor([row.mask for row in rows]),
        loss_agg_mode="seq-mean-token-mean",
        config=core_algos.ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True),
        rollout_is_weights=torch.tensor(step.weights).unsqueeze(-1).expand(2, 5),
    )
    loss.backward()
    # Each rollout is one of two, and each token one of four: what is left of the gradient is minus the advantage
    of_tokens = (-2 * 4 * log_prob.grad).tolist()
    x_first, x_second, y_first, y_second = table()[credit]
    assert of_tokens == [
        pytest.approx([x_first, x_first, 0, x_second, x_second]),
        pytest.approx([y_first, y_first, 0, y_second, y_second]),
    ]
