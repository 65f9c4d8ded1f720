"""Our advantages and weights against verl's own functions, where verl is installed."""

import warnings
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, strategies as st
from learning_toys import options
from lightning_tokens.learning.advantages import grpo_advantages, rloo_advantages
from lightning_tokens.learning.mini_batches import make_mini_batches
from lightning_tokens.learning.steps import loss_weights, step_advantages

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what verl imports
    core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")

WIDTH = 6

# Eighths are exact, so that equal rewards are equal in 32 bits, too
rewards = st.integers(-16, 16).map(lambda eighths: eighths / 8)
masks = st.lists(st.integers(0, 1), min_size=WIDTH, max_size=WIDTH).filter(any)
rows = st.lists(st.tuples(st.integers(0, 2), rewards, masks), min_size=1, max_size=9)


def last(mask: list[int]) -> int:
    return max(place for place, kept in enumerate(mask) if kept)


def token_rewards(rows) -> "torch.Tensor":
    scores = torch.zeros(len(rows), WIDTH)
    for number, (_, reward, mask) in enumerate(rows):
        scores[number, last(mask)] = reward
    return scores


def ours(rows, compare) -> list[float]:
    """Return the advantage of each row, by group; of a group of one verl has an opinion of its own."""
    found = [0.0] * len(rows)
    for group in {group for group, _, _ in rows}:
        members = [number for number, row in enumerate(rows) if row[0] == group]
        if len(members) > 1:
            for number, (advantage,) in zip(members, compare([[rows[n][1]] for n in members]), strict=True):
                found[number] = advantage
    return found


def in_groups(rows) -> list[int]:
    groups = [group for group, _, _ in rows]
    return [number for number, group in enumerate(groups) if groups.count(group) > 1]


@pytest.mark.parametrize("norm_by_std", [True, False])
def test_grpo_is_verls(norm_by_std):
    @given(rows)
    def compare(rows):
        mask = torch.tensor([mask for _, _, mask in rows])
        index = np.array([str(group) for group, _, _ in rows], dtype=object)
        theirs, _ = core_algos.compute_grpo_outcome_advantage(
            token_rewards(rows), mask, index, norm_adv_by_std_in_grpo=norm_by_std
        )
        found = ours(rows, lambda groups: grpo_advantages(groups, norm_by_std=norm_by_std))
        for number in in_groups(rows):
            expected = [found[number] * kept for kept in rows[number][2]]
            assert theirs[number].tolist() == pytest.approx(expected, abs=2e-4)

    compare()


@given(rows)
def test_rloo_is_verls(rows):
    mask = torch.tensor([mask for _, _, mask in rows])
    index = np.array([str(group) for group, _, _ in rows], dtype=object)
    theirs, _ = core_algos.compute_rloo_outcome_advantage(token_rewards(rows), mask, index)
    found = ours(rows, rloo_advantages)
    for number in in_groups(rows):
        assert theirs[number].tolist() == pytest.approx([found[number] * kept for kept in rows[number][2]], abs=1e-5)


@given(
    rows.filter(lambda rows: sum(sum(mask) for _, _, mask in rows) > 1),
    st.randoms(use_true_random=False),
    st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    st.sampled_from([0.0, 0.5, 0.95, 1.0]),
)
def test_gae_is_verls(rows, chance, gamma, lam):
    mask = [mask for _, _, mask in rows]
    values = [[chance.randrange(-16, 16) / 8 for _ in range(WIDTH)] for _ in rows]
    theirs, returns = core_algos.compute_gae_advantage_return(
        token_rewards(rows).double(), torch.tensor(values).double(), torch.tensor(mask), gamma, lam
    )
    step = step_advantages(
        keys=[f"u_{number}_0" for number in range(len(rows))],
        masks=mask,
        answers=[[(0, 0, last(kept) + 1, reward, None)] for _, reward, kept in rows],
        options=options(estimator="gae"),
        values=values,
        gamma=gamma,
        lam=lam,
    )
    for number, kept in enumerate(mask):
        for place in range(WIDTH):
            if kept[place]:
                assert step.advantages[number][place] == pytest.approx(theirs[number, place].item(), abs=1e-6)
                assert step.returns[number][place] == pytest.approx(returns[number, place].item(), abs=1e-9)


rollouts = st.lists(st.lists(masks, min_size=1, max_size=3), min_size=1, max_size=4)


@given(rollouts, st.randoms(use_true_random=False), st.integers(1, 3), st.integers(1, 3))
def test_verls_loss_is_the_mean_of_rollouts_and_its_other_terms_are_means_of_rows(rollouts, chance, updates, n_workers):
    keys = [f"u_{session}_{index}" for session, rows in enumerate(rollouts) for index in range(len(rows))]
    mask = [row for rows in rollouts for row in rows]
    n_rows = len(mask)
    parts = make_mini_batches(keys, updates=[updates], n_workers=n_workers)
    padding = parts.n_rows - n_rows  # rows without a token
    keys += [f"pad_{place}_0" for place in range(padding)]
    mask += [[0] * WIDTH] * padding
    losses = torch.tensor([[chance.random() for _ in range(WIDTH)] for _ in mask]).double()
    weights = torch.tensor(loss_weights(keys, mask)).double()
    share = parts.rows_for_each(0) // n_workers
    of_worker = np.array(parts.order(keys, [1] * len(keys))).reshape(n_workers, -1)

    def steps(losses):
        """Return the loss of each step of the optimiser: the mean over workers, as they average gradients."""
        for begin in range(0, of_worker.shape[1], share):
            yield (
                sum(
                    core_algos.agg_loss(
                        losses[rows],
                        torch.tensor(mask)[rows],
                        "seq-mean-token-mean",
                        dp_size=n_workers,
                        global_batch_size=n_rows / parts.updates[0],
                    ).item()
                    for rows in of_worker[:, begin : begin + share]
                )
                / n_workers
            )

    policy, others = list(steps(losses * weights.unsqueeze(-1))), list(steps(losses))
    of_rollouts, of_rows, begin = [], [], 0
    for rows in rollouts:
        kept = torch.tensor(rows).bool()
        of_rollouts.append(losses[begin : begin + len(rows)][kept].mean().item())
        of_rows += [row[own].mean().item() for row, own in zip(losses[begin : begin + len(rows)], kept, strict=True)]
        begin += len(rows)
    assert len(policy) == min(updates, len(rollouts))
    assert fmean(policy) == pytest.approx(fmean(of_rollouts), rel=1e-6)
    assert fmean(others) == pytest.approx(fmean(of_rows), rel=1e-6)


MASK = [[1, 1, 0], [1, 0, 0], [1, 1, 1]]


def policy_loss(name: str, *, loss_weights=None) -> float:
    """Return one of verl's policy losses of three rows, with weights or without."""
    chance = torch.Generator().manual_seed(0)
    old, new, advantages = (torch.randn(3, 3, generator=chance) for _ in range(3))
    weights = None if loss_weights is None else torch.tensor(loss_weights).unsqueeze(-1).expand(3, 3)
    torch.manual_seed(0)  # some of them draw tokens
    found, _ = core_algos.get_policy_loss_fn(name)(
        old_log_prob=old,
        log_prob=new,
        advantages=advantages,
        response_mask=torch.tensor(MASK),
        loss_agg_mode="seq-mean-token-mean",
        config=core_algos.ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True),
        rollout_is_weights=weights,
    )
    return float(found)


@pytest.mark.parametrize(
    "name", ["vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "cispo"]
)
def test_verls_policy_losses_are_multiplied_by_the_weights(name):
    plain = policy_loss(name)
    assert plain != 0.0
    assert policy_loss(name, loss_weights=[2.0, 2.0, 2.0]) == pytest.approx(2 * plain, rel=1e-5)
