from pathlib import Path

import pytest
from lightning_verl.config import load_settings

from lightning_core.errors import ConfigError

SHORT = {
    "ACTOR": "actor_rollout_ref.actor",
    "MODEL": "actor_rollout_ref.model",
    "ROLLOUT": "actor_rollout_ref.rollout",
    "OURS": "agentlightning",
}


def complaint(config: str) -> str:
    """Load assignments, in which sections may have short names; return what is said of them."""
    for short, section in SHORT.items():
        config = config.replace(short, section)
    with pytest.raises(ConfigError) as caught:
        load_settings(config.split("; "))
    return str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("actor_rollout_ref.rollot.n=4", "unknown key 'actor_rollout_ref.rollot'. Did you mean 'rollout'?"),
        ("data.train_batch_sise=3", "unknown key 'data.train_batch_sise'. Did you mean 'train_batch_size'?"),
        ("xyz=1", ". A key that verl does not list is written with a plus, as '+xyz'"),
        ("OURS.devic=cpu", "agentlightning has no option 'devic'; it takes: device, trace"),
        ("OURS.trace_aggregator.levl=x", "trace_aggregator.levl"),
        ("ROLLOUT.n=four", "actor_rollout_ref.rollout.n is 'four'; it has to be a whole number"),
        ("trainer.val_before_train='no'", "trainer.val_before_train is 'no'; it has to be true or false"),
        ("trainer=3", "trainer is 3; it has to be a mapping"),
        ("ROLLOUT.n=true", "rollout.n is True; it has to be a whole number"),
        ("data.train_batch_size=null", "data.train_batch_size is None; it has to be a whole number"),
        ("ACTOR.ppo_mini_batch_size=0", "ppo_mini_batch_size is 0; it has to be more than 0"),
        ("MODEL.lora_rank=null", "model.lora_rank is None; it has to be a whole number"),
        ("ROLLOUT.temperature=null", "rollout.temperature is None; it has to be a number"),
        ("ACTOR.optim.lr=.nan", "optim.lr is nan; it has to be 0 or more"),
        ("ACTOR.checkpoint.save_contents=null", "save_contents is None; it has to be a list"),
        ("ACTOR.checkpoint.save_contents={model: 1}", "actor.checkpoint.save_contents has to be a list"),
        ("MODEL.override_config=x", "override_config is 'x'; it has to be a mapping"),
        ("ACTOR.strategy=megatron", "strategy is 'megatron': models are trained with FSDP here; set it to fsdp or"),
        ("OURS=3", "agentlightning is 3; it has to be a mapping"),
        ("OURS.credit=all", "it has to be 'final', 'per_call' or 'discounted'"),
        ("OURS.on_failure=.nan", "it has to be 'drop' or a finite number"),
        ("OURS.call_discount=2", "it has to be 1 or less"),
        ("model_engine=megatron", "model_engine is 'megatron': models are trained with FSDP here; leave it out"),
        ("data.max_prompt_length=${nowhere}", "nowhere"),
        ("OURS.overlong_buffer=-1", "overlong_buffer is -1"),
        ("ACTOR.clip_ratio=-0.2", "wrong: actor_rollout_ref.actor.clip_ratio is -0.2; it has to be 0 or more"),
        ("ROLLOUT.temperature=0", "wrong: actor_rollout_ref.rollout.temperature is 0; it has to be more than 0"),
        ("ROLLOUT.top_p=0", "wrong: actor_rollout_ref.rollout.top_p is 0; it has to be more than 0"),
        ("algorithm.gamma=1.5", "wrong: algorithm.gamma is 1.5; it has to be 1 or less"),
    ],
)
def test_a_wrong_key_or_value_says_what_would_be_right(config, message):
    assert message in complaint(config)


def test_all_wrong_keys_are_said_at_once():
    with pytest.raises(ConfigError) as caught:
        load_settings({"data": {"train_batch_size": "x", "shufle": True}})
    assert str(caught.value).splitlines()[1:] == [
        "  data.train_batch_size is 'x'; it has to be a whole number",
        "  unknown key 'data.shufle'. Did you mean 'shuffle'? A key that verl does not list is written with a plus, "
        "as '+data.shufle'",
    ]


def test_what_is_no_configuration_is_refused(tmp_path: Path):
    path = tmp_path / "train.yaml"
    for written in ("- a\n", "a: [\n"):
        path.write_text(written)
        with pytest.raises(ConfigError, match=r"train\.yaml"):
            load_settings(path)
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        load_settings(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"is a file that ends in \.yaml or \.yml"):
        load_settings("grpo")
    for source in (3, ["data.seed"]):
        with pytest.raises(ConfigError, match=r"a list of 'key\.key=value', not "):
            load_settings(source)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("algorithm.adv_estimator=opo; OURS.mask_truncated=true", "mask_truncated is True: it leaves rows out"),
        ("algorithm.use_kl_in_reward=true; algorithm.adv_estimator=grpo", "actor.use_kl_loss=true instead"),
        ("OURS.call_discount=0.5; algorithm.adv_estimator=grpo", "it has an effect with credit=discounted only"),
        ("OURS.overlong_buffer=4; OURS.credit=per_call", "it lowers the reward of a whole rollout; set credit=final"),
        ("OURS.overlong_penalty=2", "overlong_penalty is 2.0: it has an effect with overlong_buffer only"),
        (
            "OURS.overlong_buffer=256; OURS.trace_aggregator.level=trajectory",
            "the limit of a whole trajectory, and not",
        ),
        (
            "OURS.call_discount=0.5; OURS.credit=discounted; algorithm.adv_estimator=gae",
            "with gae, algorithm.gamma discounts by tokens",
        ),
        ("ACTOR.policy_loss.loss_mode=bypass_mode", "'bypass_mode': it does without the actor's own probabilities"),
        ("algorithm.rollout_correction.bypass_mode=true", "the loss needs the actor's own probabilities; leave it out"),
        ("ACTOR.policy_loss.loss_mode=geo_mean", "takes a mean of its own over each micro-batch"),
        ("trainer.resume_mode=disable", "set actor_rollout_ref.model.path to the folder actor/huggingface of its che"),
        ("trainer.resume_from_path=/ckpt/global_step_3", "resume_from_path has no effect: a run goes on from"),
        ("trainer.del_local_ckpt_after_load=true", "what was learned would be gone"),
        ("trainer.val_only=true", "trainer.val_only is True: agl eval measures a model; leave it out"),
        ("ACTOR.checkpoint.async_save=true", "actor.checkpoint.async_save is True: no run could go on from"),
        (
            "algorithm.filter_groups={enable: true, metric: acc}",
            "compared by the rewards that agents give; set it to r",
        ),
        ("algorithm.filter_groups.max_num_gen_batches=3", "set max_inflight_gen_batches beside it"),
        ("distillation.enabled=true", "what the teacher says is collected by verl's own agents"),
        ("ROLLOUT.enable_rollout_routing_replay=true", "the rollouts do not record which experts have answered"),
        ("data.custom_cls.path=mine.py", "data.custom_cls.path has no effect: samples are those of the dataset"),
        ("reward.custom_reward_function.path=x.py", "has no effect: the agent gives the reward, and"),
        ("+custom_reward_function.path=x.py", "custom_reward_function.path has no effect: the agent gives the reward"),
        ("ROLLOUT.multi_turn.enable=true", "has no effect: the agent gives the reward, and has tools of its own"),
        ("ROLLOUT.agent.default_agent_loop=tool_agent", "has no effect: the trainer's runners run the agent"),
        ("data.val_max_samples=8", "data.val_max_samples has no effect: samples are those of the datasets"),
        ("algorithm.use_pf_ppo=true", "verl's newer trainer, which runs here, does not look at it"),
        ("ROLLOUT.do_sample=false", "what is learned from is drawn at actor_rollout_ref.rollout."),
        ("MODEL.lora_adapter_path=/an/adapter", "verl reads it with actor_rollout_ref.model.lora_rank only"),
        (
            "MODEL.lora_rank=8; MODEL.lora.merge=false; ROLLOUT.name=hf",
            "lora.merge is False: rollout.name=hf takes whole weights, with the adapter in them; leave it out",
        ),
        ("trainer.v1.trainer_mode=separate_async", "was never tried here; set sync or colocate_async"),
        ("MODEL.lora.rank=8", "fsdp2 does not read it, and would train the whole model; set"),
        (
            "ACTOR.checkpoint.save_contents=[hf_model]",
            "no run can go on from that, and no adapter is written; add model",
        ),
    ],
)
def test_what_contradicts_itself_or_has_no_effect_is_refused(config, message):
    assert message in complaint(config)


def test_greedy_validation_is_no_fault():
    assert load_settings().verl.actor_rollout_ref.rollout.val_kwargs.temperature == 0


def test_groups_may_be_left_out_by_their_rewards():
    assert load_settings(["algorithm.filter_groups.enable=true"]).verl.algorithm.filter_groups.metric == "reward"
    load_settings(["algorithm.filter_groups.metric=acc"])  # nothing is left out


def test_the_form_of_a_models_calls_of_tools_can_be_said():
    config = load_settings(["actor_rollout_ref.rollout.multi_turn.format=qwen3_coder"]).verl
    assert config.actor_rollout_ref.rollout.multi_turn.format == "qwen3_coder"


@pytest.mark.parametrize(
    ("preset", "given", "named"),
    [
        (
            "ppo",
            ["data.train_files=train.parquet", "trainer.balance_batch=false"],
            "data.train_files, trainer.balance_batch",
        ),
        (
            None,
            ["agentlightning.trace_aggregator.trajectory_max_response_length=100"],
            "trajectory_max_response_length",
        ),
        ("grpo", ["agentlightning.trace_aggregator.trajectory_max_response_length=100"], None),
        ("grpo", ["algorithm.gamma=0.9"], "algorithm.gamma"),
        ("ppo", ["algorithm.gamma=0.9"], None),
        (None, ["data.return_raw_chat=true", "data.filter_overlong_prompts=false"], None),
    ],
)
def test_options_that_have_no_effect_and_do_no_harm_are_named(preset, given, named, caplog):
    load_settings(given, preset=preset)
    if named is None:
        assert not caplog.messages
    else:
        assert "options_without_effect" in caplog.text
        assert f"{named}; leave them out" in caplog.text
