from pathlib import Path

import pytest
from lightning_verl.config import load_settings

from lightning_core.errors import ConfigError


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"actor_rollout_ref": {"rollot": {"n": 4}}},
            "unknown key 'actor_rollout_ref.rollot'. Did you mean 'rollout'?",
        ),
        (["data.train_batch_sise=3"], "unknown key 'data.train_batch_sise'. Did you mean 'train_batch_size'?"),
        ({"xyz": 1}, ". A key that verl does not list is written with a plus, as '+xyz'"),
        ({"agentlightning": {"devic": "cpu"}}, "agentlightning has no option 'devic'; it takes: device, trace"),
        ({"agentlightning.trace_aggregator.levl": "x"}, "trace_aggregator.levl"),
        ({"actor_rollout_ref.rollout.n": "four"}, "actor_rollout_ref.rollout.n is 'four'; it has to be a whole number"),
        ({"trainer.val_before_train": "no"}, "trainer.val_before_train is 'no'; it has to be true or false"),
        ({"trainer": 3}, "trainer is 3; it has to be a mapping"),
        ({"actor_rollout_ref.rollout.n": True}, "rollout.n is True; it has to be a whole number"),
        ({"data.train_batch_size": None}, "data.train_batch_size is None; it has to be a whole number"),
        ({"actor_rollout_ref.actor.ppo_mini_batch_size": 0}, "ppo_mini_batch_size is 0; it has to be more than 0"),
        (
            {"actor_rollout_ref.model.lora_rank": None},
            "model.lora_rank is None; it has to be a whole number",
        ),
        ({"actor_rollout_ref.rollout.temperature": None}, "rollout.temperature is None; it has to be a number"),
        ({"actor_rollout_ref.actor.optim.lr": float("nan")}, "optim.lr is nan; it has to be 0 or more"),
        ({"actor_rollout_ref.actor.checkpoint.save_contents": None}, "save_contents is None; it has to be a list"),
        (
            {"actor_rollout_ref.actor.checkpoint.save_contents": {"model": 1}},
            "save_contents.model is 1: actor_rollout_ref.actor.checkpoint.save_contents has to be a list",
        ),
        ({"actor_rollout_ref.model.override_config": "x"}, "override_config is 'x'; it has to be a mapping"),
        ({"actor_rollout_ref.actor.strategy": "megatron"}, "Another engine is chosen by model_engine"),
        ({"agentlightning": 3}, "agentlightning is 3; it has to be a mapping"),
        ({"agentlightning.credit": "all"}, "it has to be 'final', 'per_call' or 'discounted'"),
        ({"agentlightning.on_failure": float("nan")}, "it has to be 'drop' or a finite number"),
        ({"agentlightning.call_discount": 2}, "it has to be 1 or less"),
        ({"model_engine": "deepspeed"}, "model_engine is 'deepspeed'; verl has: "),
        ({"data.max_prompt_length": "${nowhere}"}, "nowhere"),
    ],
)
def test_a_wrong_key_or_value_says_what_would_be_right(config, message):
    with pytest.raises(ConfigError) as caught:
        load_settings(config)
    assert message in str(caught.value)


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


SHORT = {
    "ACTOR": "actor_rollout_ref.actor",
    "MODEL": "actor_rollout_ref.model",
    "OURS": "agentlightning",
}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("algorithm.adv_estimator=opo; OURS.advantage=rollout", "opo takes each row for a sample"),
        ("algorithm.adv_estimator=opo; OURS.mask_truncated=true", "mask_truncated is True: it leaves rows out"),
        (
            "algorithm.adv_estimator=grpo; OURS.advantage=row; OURS.mask_truncated=true",
            "agentlightning.mask_truncated is True: it leaves rows out",
        ),
        ("algorithm.use_kl_in_reward=true; algorithm.adv_estimator=grpo", "actor.use_kl_loss=true instead"),
        (
            "OURS.call_discount=0.5; algorithm.adv_estimator=grpo",
            "agentlightning.call_discount is 0.5: it has an effect with credit=discounted only",
        ),
        (
            "OURS.overlong_buffer=4; OURS.credit=per_call",
            "agentlightning.overlong_buffer is 4: it lowers the reward of a whole rollout; set credit=final",
        ),
        ("OURS.overlong_penalty=2", "overlong_penalty is 2.0: it has an effect with overlong_buffer only"),
        ("OURS.overlong_buffer=-1", "overlong_buffer is -1"),
        (
            "OURS.call_discount=0.5; OURS.credit=discounted; algorithm.adv_estimator=gae",
            "with gae, algorithm.gamma discounts by tokens",
        ),
        (
            "OURS.loss=rollout; ACTOR.loss_agg_mode=token-mean",
            "loss_agg_mode is 'token-mean': agentlightning.loss is 'rollout'",
        ),
        (
            "algorithm.adv_estimator=grpo; OURS.advantage=row; OURS.credit=per_call",
            "verl compares only the last row of each rollout",
        ),
        (
            "ACTOR.policy_loss.loss_mode=bypass_mode",
            "is 'bypass_mode': it needs algorithm.rollout_correction.bypass_mode",
        ),
        (
            "algorithm.rollout_correction.bypass_mode=true; algorithm.rollout_correction.rollout_is=token",
            "rollout_is is 'token': it has no effect with bypass_mode and loss_type=ppo_clip",
        ),
        (
            "algorithm.rollout_correction={bypass_mode: true, rollout_rs: token_k1}; ACTOR.policy_loss.loss_mode=gspo",
            "loss_mode is 'gspo': with it and bypass_mode, algorithm.rollout_correction.rollout_is and rollout_rs",
        ),
        ("ACTOR.policy_loss.loss_mode=geo_mean", "takes a mean of its own over each micro-batch"),
        (
            "trainer.resume_mode=resume_path; trainer.resume_from_path=/ckpt/global_step_3",
            "set actor_rollout_ref.model.path to the folder actor/huggingface of its checkpoint",
        ),
        ("trainer.del_local_ckpt_after_load=true", "what was learned would be gone"),
        (
            "trainer.val_only=true; trainer.val_before_train=false",
            "trainer.val_before_train is False: without it verl trains although trainer.val_only is true",
        ),
        (
            "trainer.save_freq=20; OURS.checkpoint_minutes=5",
            "trainer.save_freq is 20: it says in steps what agentlightning.checkpoint_minutes says",
        ),
        (
            "ACTOR.checkpoint.async_save=true",
            "actor_rollout_ref.actor.checkpoint.async_save is True: no run could go on from",
        ),
        (
            "algorithm.filter_groups={enable: true, metric: acc}",
            "algorithm.filter_groups.metric is 'acc': groups are compared by the rewards that agents give; set it to r",
        ),
        ("distillation.enabled=true", "what the teacher says is collected by verl's own agents"),
        (
            "actor_rollout_ref.rollout.enable_rollout_routing_replay=true",
            "the rollouts do not record which experts have answered",
        ),
        ("data.custom_cls.path=mine.py", "data.custom_cls.path has no effect: samples are those of the dataset"),
        ("reward.custom_reward_function.path=x.py", "has no effect: the agent gives the reward, and"),
        (
            "MODEL.lora_adapter_path=/an/adapter",
            "lora_adapter_path is '/an/adapter': verl reads it with actor_rollout_ref.model.lora_rank only",
        ),
        (
            "MODEL.lora_rank=8; MODEL.lora.merge=false; actor_rollout_ref.rollout.name=hf",
            "lora.merge is False: with separate_async and with rollout.name=hf whole weights are sent",
        ),
        ("algorithm.use_pf_ppo=true", "verl's newer trainer, which runs here, does not look at it"),
        ("algorithm.filter_groups.max_num_gen_batches=3", "set max_inflight_gen_batches beside it"),
        ("actor_rollout_ref.rollout.do_sample=false", "what is learned from is drawn at actor_rollout_ref.rollout."),
        ("trainer.resume_from_path=/ckpt/global_step_3", "resume_from_path has no effect: a run goes on from"),
        ("MODEL.lora.rank=8", "fsdp2 does not read it, and would train the whole model; set"),
        (
            "model_engine=megatron; MODEL.lora_rank=8",
            "megatron does not read it, and would train the whole model; set actor_rollout_ref.model.lora.rank",
        ),
        (
            "ACTOR.checkpoint.save_contents=[hf_model]",
            "is ['hf_model']: no run can go on from that, and no adapter is written; add model, or (without LoRA)",
        ),
        (
            "MODEL.lora_rank=8; trainer.resume_mode=disable; ACTOR.checkpoint.save_contents=[hf_model]",
            "no adapter is written; add model",
        ),
        (
            "OURS.overlong_buffer=256; OURS.trace_aggregator.level=trajectory",
            "overlong_buffer is 256: it counts from the limit of a whole trajectory, and not",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(config, message):
    for short, section in SHORT.items():
        config = config.replace(f"{short}.", f"{section}.")
    with pytest.raises(ConfigError) as caught:
        load_settings(config.split("; "))
    assert message in str(caught.value)


SEPARATE_LORA = ["trainer.v1.trainer_mode=separate_async", "actor_rollout_ref.model.lora_rank=8"]
BACKEND = "actor_rollout_ref.rollout.checkpoint_engine.backend"


def test_servers_apart_from_the_trainer_get_merged_adapters():
    assert load_settings([*SEPARATE_LORA, f"{BACKEND}=nccl"]).verl.actor_rollout_ref.model.lora.merge
    assert not load_settings([SEPARATE_LORA[0], f"{BACKEND}=nccl"]).verl.actor_rollout_ref.model.lora.merge
    assert not load_settings(SEPARATE_LORA[1:]).verl.actor_rollout_ref.model.lora.merge, "vLLM takes adapters"


@pytest.mark.parametrize("assignment", ["actor_rollout_ref.model.lora.merge=false", f"{BACKEND}=delta_sharded"])
def test_servers_apart_from_the_trainer_that_would_never_get_an_adapter_are_refused(assignment):
    with pytest.raises(ConfigError) as caught:
        load_settings([*SEPARATE_LORA, f"{BACKEND}=nccl", assignment])
    assert assignment.partition("=")[0] + " is " in str(caught.value)


@pytest.mark.parametrize(
    ("assignment", "why"),
    [
        ("actor_rollout_ref.rollout.multi_turn.enable=true", "the agent gives the reward, and has tools of its own"),
        ("data.val_max_samples=8", "samples are those of the datasets that the run is given"),
        ("+custom_reward_function.path=x.py", "the agent gives the reward"),
        (
            "data.image_base_dir=/images",
            "the folder of the samples' images in agentlightning 0.3; models are trained on",
        ),
        ("actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent", "the trainer's runners run the agent"),
    ],
)
def test_what_somebody_else_does_here_says_who(assignment, why):
    with pytest.raises(ConfigError) as caught:
        load_settings([assignment])
    key = assignment.partition("=")[0].removeprefix("+")
    assert f"{key} has no effect: " in str(caught.value)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ["agentlightning.device=cpu"],
            "trainer_mode is 'separate_async': its servers are vLLM's or SGLang's, on GPUs",
        ),
    ],
)
def test_generation_on_gpus_of_its_own_says_what_it_lacks_before_ray_starts(more, message):
    with pytest.raises(ConfigError) as caught:
        load_settings([SEPARATE_LORA[0], *more])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("actor_rollout_ref.rollout.temperature=0", "is 0; it has to be more than 0"),
        ("actor_rollout_ref.rollout.gpu_memory_utilization=60", "is 60; it has to be 1 or less"),
        ("actor_rollout_ref.actor.clip_ratio=-0.2", "is -0.2; it has to be 0 or more"),
        ("actor_rollout_ref.rollout.top_p=0", "is 0; it has to be more than 0"),
        ("algorithm.gamma=1.5", "is 1.5; it has to be 1 or less"),
    ],
)
def test_a_number_beyond_its_bounds_is_refused_in_one_line(assignment, message):
    with pytest.raises(ConfigError) as caught:
        load_settings([assignment])
    assert str(caught.value).startswith(f"the configuration of verl is wrong: {assignment.partition('=')[0]} {message}")


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
