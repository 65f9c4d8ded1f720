from pathlib import Path

import pytest
from lightning_verl.config import load_settings
from lightning_verl.config.settings import packaged_defaults
from lightning_verl.config.without_effect import _HARMLESS, _WITHOUT_EFFECT
from omegaconf import OmegaConf

from lightning_core.errors import ConfigError


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"actor_rollout_ref": {"rollot": {"n": 4}}},
            "unknown key 'actor_rollout_ref.rollot'. Did you mean 'actor_rollout_ref.rollout'?",
        ),
        (
            ["data.image_base_dir=/images"],
            "data.image_base_dir has no effect: the agent reads its images itself; give it whole paths",
        ),
        ({"n": 4}, "unknown key 'n'. Did you mean 'actor_rollout_ref.rollout.n'?"),
        (["data.train_batch_sise=3"], "unknown key 'data.train_batch_sise'. Did you mean 'data.train_batch_size'?"),
        (
            {"agentlightning": {"levl": "x"}},
            "unknown key 'agentlightning.levl'. Did you mean 'agentlightning.trace_aggregator.level'?",
        ),
        ({"agentlightning": {"xyz": 1}}, "unknown key 'agentlightning.xyz'; there are: device, backend"),
        ({"xyz": 1}, "A key that verl does not list is written with a plus, as '+xyz'"),
        ({"actor_rollout_ref.rollout.n": "four"}, "actor_rollout_ref.rollout.n is 'four'; it has to be a whole number"),
        ({"actor_rollout_ref.rollout.n": 2.5}, "actor_rollout_ref.rollout.n is 2.5; it has to be a whole number"),
        ({"actor_rollout_ref.rollout.n": None}, "actor_rollout_ref.rollout.n is None; it has to be a whole number"),
        ({"data.gen_batch_size": "x"}, "data.gen_batch_size is 'x'; it has to be a whole number"),
        (
            {"actor_rollout_ref.actor.optim.lr": "fast"},
            "actor_rollout_ref.actor.optim.lr is 'fast'; it has to be a number",
        ),
        ({"trainer.val_before_train": "yes"}, "trainer.val_before_train is 'yes'; it has to be true or false"),
        ({"trainer.project_name": 3}, "trainer.project_name is 3; it has to be a text"),
        ({"trainer": 3}, "trainer is 3; it has to be a mapping"),
        ({"algorithm": {"gamma": {"a": 1}}}, "algorithm.gamma is a mapping; it has to be a number"),
        ({"trainer": {"logger": {"console": True}}}, "trainer.logger is a mapping; it has to be a list"),
        ({"agentlightning": 3}, "agentlightning is 3; it has to be a mapping"),
        (
            {"agentlightning.credit": "all"},
            "agentlightning.credit is 'all'; it has to be 'final', 'per_call' or 'discounted'",
        ),
        (
            {"agentlightning.on_failure": True},
            "agentlightning.on_failure is True; it has to be 'drop' or a finite number",
        ),
        (
            {"agentlightning.reward_weights": {"a": "b"}},
            "agentlightning.reward_weights.a is 'b'; it has to be a number",
        ),
        (
            {"agentlightning.on_failure": "zero"},
            "agentlightning.on_failure is 'zero'; it has to be 'drop' or a finite number",
        ),
        (
            {"agentlightning.on_failure": float("nan")},
            "it has to be 'drop' or a finite number",
        ),
        ({"agentlightning.call_discount": 2}, "agentlightning.call_discount is 2; it has to be 1 or less"),
        ({"agentlightning.trace_aggregator.trajectory_max_prompt_length": 0}, "it has to be 1 or more"),
        ({"model_engine": "deepspeed"}, "model_engine is 'deepspeed'; verl has: "),
        ({"trainer.logger": "${nowhere}", "algorithm.gamma": "${nowhere}"}, None),
        ({"data.max_prompt_length": "${nowhere}"}, "nowhere"),
    ],
)
def test_a_wrong_key_or_value_says_what_would_be_right(config, message):
    if message is None:
        load_settings(config)  # what nobody asks for is left to verl
        return
    with pytest.raises(ConfigError) as caught:
        load_settings(config)
    assert message in str(caught.value)


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(ConfigError) as caught:
        load_settings({"data": {"train_batch_size": "x", "shufle": True}, "agentlightning": {"credit": "all"}})
    assert str(caught.value).splitlines() == [
        "the configuration of verl is wrong:",
        "  agentlightning.credit is 'all'; it has to be 'final', 'per_call' or 'discounted'",
        "  data.train_batch_size is 'x'; it has to be a whole number",
        "  unknown key 'data.shufle'. Did you mean 'data.shuffle'?",
    ]


def test_a_fault_of_a_file_says_on_which_line(tmp_path: Path):
    path = tmp_path / "train.yaml"
    path.write_text(
        "algorithm:\n  adv_estimator: grpo\nactor_rollout_ref.rollout:\n  m: 4\nagentlightning:\n  credit: all\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    assert f"{path}:4: unknown key 'actor_rollout_ref.rollout.m'" in str(caught.value)
    assert f"{path}:6: agentlightning.credit is 'all'" in str(caught.value)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("a: 1\na: 2\n", "train.yaml:2: the key 'a' is there twice, first on line 1"),
        ("- a\n", "train.yaml: a configuration is a mapping of keys to values"),
        (
            "data.seed: 1\ndata: {seed: 2}\nalgorithm.gamma: 1\nalgorithm: 3\n",
            "is set, and something inside of it, too",
        ),
        ("a: [\n", "train.yaml:"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, written, message):
    path = tmp_path / "train.yaml"
    path.write_text(written)
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    assert message in str(caught.value)


def test_a_file_that_is_not_there_and_one_of_another_kind_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        load_settings(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"is a file that ends in \.yaml or \.yml"):
        load_settings("grpo")


def test_what_is_no_configuration_at_all_is_refused():
    with pytest.raises(ConfigError, match=r"a list of 'key\.key=value', not a int"):
        load_settings(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"'data\.seed' is not of the form 'key\.key=value'"):
        load_settings(["data.seed"])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (["algorithm.adv_estimator=remax"], "algorithm.adv_estimator is 'remax', which needs a greedy rollout"),
        (["algorithm.adv_estimator=grppo"], "algorithm.adv_estimator is 'grppo'; there are: grpo, rloo, gae"),
        (["algorithm.adv_estimator=opo", "agentlightning.advantage=rollout"], "set it to row"),
        (["algorithm.use_kl_in_reward=true", "algorithm.adv_estimator=grpo"], "actor.use_kl_loss=true instead"),
        (["agentlightning.call_discount=0.5"], "has an effect with agentlightning.credit=discounted only"),
        (
            ["agentlightning.call_discount=0.5", "agentlightning.credit=discounted", "algorithm.adv_estimator=gae"],
            "with gae, algorithm.gamma discounts by tokens",
        ),
        (
            ["agentlightning.loss=rollout", "actor_rollout_ref.actor.loss_agg_mode=token-mean"],
            "agentlightning.loss is 'rollout', and actor_rollout_ref.actor.loss_agg_mode is 'token-mean'",
        ),
        (
            ["algorithm.adv_estimator=grpo", "agentlightning.advantage=row", "agentlightning.credit=per_call"],
            "verl compares only the last row of each rollout",
        ),
        (
            ["actor_rollout_ref.actor.policy_loss.loss_mode=bypass_mode"],
            "needs algorithm.rollout_correction.bypass_mode",
        ),
        (
            ["algorithm.rollout_correction.bypass_mode=true", "algorithm.rollout_correction.rollout_is=token"],
            "rollout_is has no effect with bypass_mode and loss_type=ppo_clip",
        ),
        (
            [
                "algorithm.rollout_correction={bypass_mode: true, rollout_rs: token_k1}",
                "actor_rollout_ref.actor.policy_loss.loss_mode=gspo",
            ],
            "have no effect with bypass_mode and the policy loss 'gspo'",
        ),
        (["actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean"], "takes a mean of its own over each micro-batch"),
        (
            ["agentlightning.backend=openai", "trainer.v1.trainer_mode=colocate_async"],
            "only agentlightning.backend=tokens goes on with them",
        ),
        (
            ["agentlightning.backend=openai", "data.apply_chat_template_kwargs={enable_thinking: false}"],
            "the agent says it in its calls, as chat_template_kwargs",
        ),
        (
            ["trainer.resume_mode=resume_path", "trainer.resume_from_path=/ckpt/global_step_3"],
            "set actor_rollout_ref.model.path to the folder actor/huggingface of its checkpoint",
        ),
        (["trainer.resume_mode=disabled"], "there are: auto, disable. Did you mean 'disable'?"),
        (["trainer.resume_from_path=/ckpt/global_step_3"], "a run goes on from the newest checkpoint of its own"),
        (["trainer.del_local_ckpt_after_load=true"], "what was learned would be gone"),
        (
            ["trainer.val_only=true", "trainer.val_before_train=false"],
            "trainer.val_only is true, and trainer.val_before_train is false, without which verl trains nevertheless",
        ),
        (
            ["trainer.save_freq=20", "agentlightning.checkpoint_minutes=5"],
            "agentlightning.checkpoint_minutes is 5, and trainer.save_freq is 20, which says it in steps",
        ),
        (["agentlightning.checkpoint_minutes=0"], "agentlightning.checkpoint_minutes is 0; it has to be more than 0"),
        (
            ["actor_rollout_ref.actor.checkpoint.async_save=true"],
            "actor_rollout_ref.actor.checkpoint.async_save is true, and verl does not write down then which checkpoint",
        ),
        (["critic.checkpoint.async_save=true"], "critic.checkpoint.async_save is true"),
        (
            ["algorithm.filter_groups={enable: true, metric: acc}"],
            "algorithm.filter_groups.metric is 'acc', and groups are compared by the rewards that agents give; set it "
            "to reward",
        ),
        (
            ["+actor_rollout_ref.model.override_config.rope_scaling={rope_type: yarn, factor: 4}"],
            "override_config has rope_scaling, which neither verl nor its servers can change; write it into the config",
        ),
        (["distillation.enabled=true"], "what the teacher says is collected by verl's own agents"),
        (
            ["actor_rollout_ref.rollout.enable_rollout_routing_replay=true"],
            "the rollouts do not record which experts have answered",
        ),
        (["data.custom_cls.path=mine.py"], "data.custom_cls.path has no effect: samples are those of the dataset"),
        (["reward.custom_reward_function.path=x.py"], "has no effect: the agent gives the reward; leave it out"),
        (["reward.reward_model.enable=true"], "the agent gives the reward"),
    ],
)
def test_what_contradicts_itself_is_refused(config, message):
    with pytest.raises(ConfigError) as caught:
        load_settings(config)
    assert message in str(caught.value)


SEPARATE_LORA = ["trainer.v1.trainer_mode=separate_async", "actor_rollout_ref.model.lora_rank=8"]
BACKEND = "actor_rollout_ref.rollout.checkpoint_engine.backend"


def test_servers_apart_from_the_trainer_get_merged_adapters():
    assert load_settings([*SEPARATE_LORA, f"{BACKEND}=nccl"]).verl.actor_rollout_ref.model.lora.merge
    assert not load_settings(SEPARATE_LORA[:1]).verl.actor_rollout_ref.model.lora.merge
    assert not load_settings(SEPARATE_LORA[1:]).verl.actor_rollout_ref.model.lora.merge, "vLLM takes adapters"


@pytest.mark.parametrize("assignment", ["actor_rollout_ref.model.lora.merge=false", f"{BACKEND}=delta_sharded"])
def test_servers_apart_from_the_trainer_that_would_never_get_an_adapter_are_refused(assignment):
    with pytest.raises(ConfigError) as caught:
        load_settings([*SEPARATE_LORA, assignment])
    assert assignment.partition("=")[0] + " is " in str(caught.value)


@pytest.mark.parametrize(
    ("assignment", "why"),
    [
        ("actor_rollout_ref.rollout.multi_turn.enable=true", "the agent says how many turns it takes"),
        ("data.val_max_samples=8", "the whole validation dataset is run"),
        (
            "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent",
            "the trainer's runners run the agent: n_runners, strategy",
        ),
        ("actor_rollout_ref.rollout.trace.backend=mlflow", "the trainer's tracer records the rollouts"),
        ("actor_rollout_ref.rollout.do_sample=false", "is drawn at actor_rollout_ref.rollout.temperature"),
        ("reward.reward_manager.name=dapo", "the agent gives the reward"),
        ("custom_reward_function.path=x.py", "the agent gives the reward"),
        ("reward_model.enable=true", "the agent gives the reward"),
        ("data.train_files=train.parquet", "samples are those of the datasets that the run is given"),
        ("data.truncation=left", "a row of which one is too long is left out and counted"),
        ("data.prompt_key=question", "the agent makes its prompts of a sample"),
        ("data.tool_config_path=tools.yaml", "the agent has tools of its own"),
        ("data.tokenizer=a/b", "set actor_rollout_ref.model.tokenizer_path"),
        ("skip.rollout_tq.enable=true", "rollouts that have ended are in the store"),
        ("trainer.balance_batch=false", "mini-batches have whole rollouts"),
        ("trainer.use_v1=false", "it is always verl's newer trainer that runs here"),
    ],
)
def test_what_somebody_else_does_here_says_who(assignment, why):
    with pytest.raises(ConfigError) as caught:
        load_settings([assignment])
    key = assignment.partition("=")[0]
    assert f"{key} has no effect: " in str(caught.value)
    assert why in str(caught.value)


def test_what_says_nothing_of_what_is_learned_is_told_in_one_line_and_not_refused(caplog):
    load_settings(
        {
            "data": {"filter_overlong_prompts": True, "val_batch_size": 8, "dataloader_num_workers": 4},
            "trainer.log_val_generations": 10,
            "actor_rollout_ref.rollout.agent.num_workers": 4,
        }
    )
    (message,) = caplog.messages
    assert message.startswith("lightning_verl.options_without_effect data.filter_overlong_prompts (prompts are the ")
    for name in ("data.val_batch_size", "data.dataloader_num_workers", "trainer.log_val_generations"):
        assert f", {name} (" in message
    assert ", actor_rollout_ref.rollout.agent.num_workers (the trainer's runners run the agent: " in message


def test_groups_may_be_left_out_by_their_rewards():
    assert load_settings(["algorithm.filter_groups.enable=true"]).verl.algorithm.filter_groups.metric == "reward"
    load_settings(["algorithm.filter_groups.metric=acc"])  # nothing is left out


@pytest.mark.parametrize("key", ["data.image_keys", "data.val_batch_sise", "reward_modl", "image_key"])
def test_an_option_without_effect_is_not_suggested(key):
    with pytest.raises(ConfigError) as caught:
        load_settings({key: "x"})
    assert f"unknown key '{key}'" in str(caught.value)
    assert not any(f"Did you mean '{without}" in str(caught.value) for without in (*_WITHOUT_EFFECT, *_HARMLESS))


def test_what_says_the_same_as_verls_default_is_as_good_as_not_said():
    load_settings(
        {
            "actor_rollout_ref.rollout.multi_turn": {"enable": False, "format": "hermes", "tool_config_path": None},
            "data": {"train_files": "~/data/rlhf/gsm8k/train.parquet", "truncation": "error", "val_batch_size": None},
            "reward.custom_reward_function": {"path": None, "name": "compute_score"},
            "trainer": {"validation_data_dir": "", "log_val_generations": 0, "use_v1": True},
        }
    )


def test_the_form_of_a_models_calls_of_tools_can_be_said():
    config = load_settings(["actor_rollout_ref.rollout.multi_turn.format=qwen3_coder"]).verl
    assert config.actor_rollout_ref.rollout.multi_turn.format == "qwen3_coder"


def test_every_option_that_is_said_to_have_no_effect_is_one_of_verls():
    defaults = packaged_defaults()
    for key in (*_WITHOUT_EFFECT, *_HARMLESS):
        parent, _, last = key.rpartition(".")
        assert last in (OmegaConf.select(defaults, parent) if parent else defaults), key
