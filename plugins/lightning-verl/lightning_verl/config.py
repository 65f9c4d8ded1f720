"""verl's configuration, and ours in it: read, merged with verl's defaults, checked and completed.

Imports neither verl nor torch. What is refused, and why, is in `rules`.
"""

import copy
import functools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from lightning_tokens.learning.options import OWN_ESTIMATORS, LearningOptions
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import (
    Field,
    FiniteFloat,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)
from yaml import YAMLError

from lightning_core.errors import ConfigError
from lightning_core.registry import check_options, did_you_mean
from lightning_core.registry.options import wanted_of
from lightning_verl.rules import (
    ACTOR,
    MODEL,
    PREFIX,
    ROLLOUT,
    ROLLOUT_LOSS,
    Facts,
    Own,
    TraceAggregator,
    faults_of_conflicts,
    faults_of_data,
    has_lora,
    keys,
    servable_folder,
    unused_options,
)

logger = logging.getLogger(__name__)

Source = Mapping[str, Any] | str | Path | Sequence[str] | None
"""What a configuration can be given as; omegaconf's are mappings, too."""

WORKERS = "lightning_verl.workers"
"""What verl imports wherever it makes a model, as `model.external_lib`."""

_MODELS = (MODEL, "critic.model")
_ENGINES = (f"{ACTOR}.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.fsdp")

_ALWAYS: dict[str, Any] = {
    # The number of rows differs from step to step, so micro-batches are made by tokens
    f"{ACTOR}.use_dynamic_bsz": True,
    # For the difference to what the actor says, and the correction of it
    f"{ROLLOUT}.calculate_log_probs": True,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.tensor_model_parallel_size": 1,  # verl's 2 needs two GPUs
    "reward.num_workers": 0,  # the agent gives the reward
    "critic.model.path": "${actor_rollout_ref.model.path}",
    "critic.model.tokenizer_path": "${actor_rollout_ref.model.tokenizer_path}",
    "critic.model.trust_remote_code": "${actor_rollout_ref.model.trust_remote_code}",
    "trainer.logger": [],
    # What was learned is kept: verl saves the last step, too, where it saves any; the others are saved by time
    "trainer.save_freq": 1_000_000_000,
    "trainer.test_freq": 1_000_000_000,  # verl validates after the last step, too, where it validates after any
    "trainer.default_local_dir": "checkpoints",
    f"{ACTOR}.checkpoint.save_lora_only": True,  # a base that is never trained need not be saved
    f"{ACTOR}.strategy": "fsdp2",
    "critic.strategy": "fsdp2",
    **{f"{engine}.strategy": "fsdp2" for engine in _ENGINES},
}
"""What is set over verl's defaults before a user sets anything."""

_WITHOUT_FLASH_ATTN = {f"{model}.override_config.attn_implementation": "sdpa" for model in _MODELS}
"""What trains with torch's own attention: flash-attn has no wheel for the newest torch."""

_ON_CPU: dict[str, Any] = {
    "trainer.device": "cpu",
    "trainer.n_gpus_per_node": 1,
    # verl counts accelerators only, so some are pretended; a bundle of its pools wants three cores
    "ray_kwargs.ray_init.num_gpus": "${trainer.n_gpus_per_node}",
    "ray_kwargs.ray_init.num_cpus": 16,
    "ray_kwargs.ray_init.include_dashboard": False,
    f"{ROLLOUT}.name": "hf",
    f"{ROLLOUT}.dtype": "float32",
    f"{ACTOR}.use_torch_compile": False,
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    **{f"{model}.enable_gradient_checkpointing": False for model in _MODELS},
    **{f"{engine}.use_torch_compile": False for engine in _ENGINES},
    **{f"{engine}.mixed_precision.param_dtype": "fp32" for engine in _ENGINES},
    **{f"{engine}.dtype": "float32" for engine in _ENGINES},
}
"""Everything that verl needs to train on a processor, and the little that keeps it small."""

_TRAJECTORIES: dict[str, Any] = {f"{PREFIX}.trace_aggregator.level": "trajectory"}

PRESETS: dict[str, dict[str, Any]] = {
    "grpo": {**_TRAJECTORIES, "algorithm.adv_estimator": "grpo", f"{ROLLOUT}.n": 4},
    "rloo": {**_TRAJECTORIES, "algorithm.adv_estimator": "rloo", f"{ROLLOUT}.n": 4},
    "ppo": {**_TRAJECTORIES, "algorithm.adv_estimator": "gae", f"{ROLLOUT}.n": 1},
}
"""By name, what is set together, by dotted key."""

_HF = "hf_model"
_SAVED = f"{ACTOR}.checkpoint.save_contents"
_SAVE_FREQ = "trainer.save_freq"
_CHECKPOINT_SECONDS = 600.0
_N_GPUS = "trainer.n_gpus_per_node"
_KEPT = ("trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep")

_Share = Annotated[float, Field(gt=0, le=1)]
_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(keys(ACTOR, "ppo_max_token_len_per_gpu ppo_mini_batch_size"), PositiveInt),
    **dict.fromkeys(keys(ACTOR, "clip_ratio clip_ratio_low clip_ratio_high optim.lr"), NonNegativeFloat),
    f"{ACTOR}.ulysses_sequence_parallel_size": PositiveInt,
    **dict.fromkeys(keys(MODEL, "lora.rank lora_rank"), NonNegativeInt),
    **dict.fromkeys(keys(ROLLOUT, "n val_kwargs.n"), PositiveInt),
    **dict.fromkeys(keys(ROLLOUT, "gpu_memory_utilization top_p val_kwargs.top_p"), _Share),
    f"{ROLLOUT}.temperature": PositiveFloat,  # groups of equal answers teach nothing
    f"{ROLLOUT}.val_kwargs.temperature": NonNegativeFloat,
    f"{ROLLOUT}.top_k": Annotated[int, Field(ge=-1)],
    **dict.fromkeys(keys("algorithm", "gamma lam"), Annotated[float, Field(ge=0, le=1)]),
    **dict.fromkeys(keys("critic", "ppo_max_token_len_per_gpu ppo_mini_batch_size"), PositiveInt),
    **dict.fromkeys(keys("data", "max_prompt_length max_response_length train_batch_size"), PositiveInt),
    **dict.fromkeys(keys("trainer", "n_gpus_per_node nnodes total_epochs total_training_steps"), PositiveInt),
    **dict.fromkeys(keys("trainer", "save_freq test_freq"), Annotated[int, Field(ge=-1)]),
    _SAVED: list[str],
}
"""What a run is reckoned with before verl looks at it, and what verl takes silently beyond its bounds.

Of other numbers, null may say that there is no limit, or that verl's engine is to choose.
"""

_KINDS = ((bool, bool), (int | float, FiniteFloat), (DictConfig, dict))
"""By the kind of verl's default, what another value of the key is."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A whole configuration, checked for itself; `check_settings` checks it against models and data."""

    verl: DictConfig
    """verl's, complete; its references are not resolved yet, and no key can be added by mistake."""
    own: Own
    """What is set under `agentlightning`."""
    learning: LearningOptions
    """How it is learned."""
    checkpoint_seconds: float | None
    """How long after a checkpoint the next one is written; None where `trainer.save_freq` says it in steps."""
    keeps_best: bool = False
    """Whether the best checkpoint and the newest are kept; else as many as verl's keys say."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """What the user and the preset have set of it, by dotted key; the rest follows from that, and from the machine."""

    @property
    def batch_size(self) -> int:
        """How many groups verl learns from at once."""
        return int(self.verl.data.train_batch_size)

    @property
    def weights_folder(self) -> str:
        """Where the weights are in a checkpoint: in a form that vLLM loads, where they are saved so."""
        return servable_folder(self.verl) or "actor"


def load_settings(source: Source = None, *, preset: str | None = None) -> Settings:
    """Merge what is given with verl's packaged defaults, and check it.

    Neither verl nor torch is imported. What the user sets wins over everything; `rules` says what is refused.

    Args:
        source: A mapping as agentlightning 0.3 takes it, the path of a YAML file, or a list of `key.key=value`. A key
            that verl's defaults do not list is written with a `+`, as for Hydra.
        preset: `grpo`, `ppo` or `rloo`: set before what is given.

    Raises:
        ConfigError: Says all that is wrong.
    """
    if preset is not None and preset not in PRESETS:
        raise ConfigError(
            f"there is no preset {preset!r}; there are: {', '.join(PRESETS)}{did_you_mean(preset, PRESETS)}"
        )
    before = {} if preset is None else PRESETS[preset]
    leaves = list(_leaves(_read(source)))
    added = {key.replace("+", "") for key, _ in leaves if "+" in key}
    given = {key.replace("+", ""): value for key, value in leaves}
    options = _read_own(given, {key: value for key, value in before.items() if key.startswith(PREFIX)})
    if given.get("trainer.device") == "cpu":
        options = options.model_copy(update={"device": options.device or "cpu"})
    packaged = _packaged_defaults()
    config = copy.deepcopy(packaged)
    _lay(config, _ALWAYS)
    _lay(config, {f"{model}.external_lib": WORKERS for model in _MODELS})
    _lay(config, {key: value for key, value in before.items() if not key.startswith(PREFIX)})
    _lay(config, _ON_CPU if options.device == "cpu" else {"trainer.device": options.device} if options.device else {})
    if options.device == "cpu" or find_spec("flash_attn") is None:
        _lay(config, _WITHOUT_FLASH_ATTN)
    try:
        _refuse(_set(config, given, added))
        facts = Facts(config, given, options)
        _refuse(faults_of_conflicts(facts, packaged=packaged))
        learning = _learning(facts)
        conflicts = learning.conflicts()
        _refuse(f"{PREFIX}.{name} is {getattr(learning, name)!r}: {why}" for name, why in conflicts)
        if learning.loss == "rollout":
            config.actor_rollout_ref.actor.loss_agg_mode = ROLLOUT_LOSS
        _complete(config, given, row=learning.max_prompt_length + learning.max_response_length)
    except OmegaConfBaseException as exc:
        raise ConfigError(f"the configuration of verl is wrong: {' '.join(str(exc).split())}") from exc
    if unused := unused_options(facts, packaged=packaged):
        logger.warning("lightning_verl.options_without_effect %s; leave them out", ", ".join(unused))
    if config.trainer.save_freq > 0 and servable_folder(config) is None:
        logger.warning(
            "lightning_verl.checkpoints_not_servable vLLM loads nothing that is saved; add hf_model to %s",
            _SAVED,
        )
    return Settings(
        config,
        options,
        learning,
        _CHECKPOINT_SECONDS if given.get(_SAVE_FREQ) is None else None,
        keeps_best=not any(key in given for key in _KEPT),
        given={**before, **given},
    )


def check_settings(settings: Settings, *, n_train: int, n_val: int | None, n_test: int | None = None) -> None:
    """Check what can be known of a run before it starts, and would come out late or not at all.

    Args:
        settings: What `load_settings` gave.
        n_train: How many samples there are to train on.
        n_val: How many there are to validate on; None for no validation.
        n_test: How many held-out ones there are; None for no test.

    Raises:
        ConfigError: Says all that does not fit.
    """
    faults = faults_of_data(settings.verl, settings.learning, n_train=n_train, n_val=n_val, n_test=n_test)
    _refuse(faults, "does not fit")


def _read(source: Source) -> Mapping[str, Any]:
    try:
        match source:
            case None:
                config: Any = {}
            case Mapping():
                config = source
            case str() | Path():
                if Path(source).suffix not in (".yaml", ".yml"):
                    raise ConfigError(f"{source}: a configuration of verl is a file that ends in .yaml or .yml")
                config = OmegaConf.load(source)
            case _ if isinstance(source, Sequence) and all(isinstance(each, str) and "=" in each for each in source):
                config = OmegaConf.from_dotlist(list(source))
            case _:
                raise ConfigError(
                    "a configuration is a mapping, the path of a YAML file or a list of 'key.key=value', not "
                    f"{source!r}"
                )
    except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException) as exc:
        raise ConfigError(f"cannot read the configuration {source}: {exc}") from exc
    read = OmegaConf.to_container(config) if OmegaConf.is_config(config) else config
    if not isinstance(read, Mapping):
        raise ConfigError(f"{source}: a configuration is a mapping of keys to values")
    return read


def _leaves(values: Mapping[str, Any], inside: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{inside}{key}.")
        else:
            yield f"{inside}{key}", OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _read_own(given: dict[str, Any], before: Mapping[str, Any]) -> Own:
    """Take our own keys out of what is given, and check them."""
    inside = [key for key in given if f"{key}.".startswith(f"{PREFIX}.")]
    nested = OmegaConf.create()
    for key, value in {**before, **{key: given.pop(key) for key in inside}}.items():
        OmegaConf.update(nested, key, value, force_add=True)
    read: Any = OmegaConf.to_container(nested)
    values: Any = read.get(PREFIX, {})
    if not isinstance(values, dict):
        raise ConfigError(f"{PREFIX} is {values!r}; it has to be a mapping")
    check_options(PREFIX, values, Own)
    check_options(f"{PREFIX}.trace_aggregator", values.get("trace_aggregator") or {}, TraceAggregator)
    try:
        return Own.model_validate(values)
    except ValidationError as exc:
        raise ConfigError(f"{PREFIX}: {exc}") from exc


def _set(config: DictConfig, given: Mapping[str, Any], added: set[str]) -> Iterator[str]:
    """Set what was given, and give what verl has no key for, or a number, a truth value or a mapping."""
    for name, value in given.items():
        before = OmegaConf.select(config, name, throw_on_resolution_failure=False)
        if wanted := _wanted(name, before, value):
            yield f"{name} is {value!r}; {wanted}"
            continue
        try:
            OmegaConf.update(config, name, value, force_add=name in added or name == "data.image_base_dir")
        except OmegaConfBaseException as exc:
            parent, _, key = str(exc.full_key).rpartition(".")
            beside = OmegaConf.select(config, parent) if parent else config
            yield (
                f"unknown key {exc.full_key!r}{did_you_mean(key, map(str, beside)) or '.'} A key that verl does not "
                f"list is written with a plus, as '+{exc.full_key}'"
            )
        except ValueError:
            yield f"{name} is {value!r}: {name.rpartition('.')[0]} has to be a list"


def _wanted(name: str, before: Any, value: Any) -> str | None:
    """Say what a value has to be that is something else."""
    if (isinstance(value, str) and "${" in value) or name.endswith("_threshold"):  # which may be two, as 0.5_2.0
        return None
    wanted = _TYPES.get(name) or next((wanted for kind, wanted in _KINDS if isinstance(before, kind)), None)
    may_be_null = before is None or before == {} or not (name in _TYPES or isinstance(before, DictConfig))
    if wanted is None or (value is None and may_be_null):
        return None
    try:
        TypeAdapter(wanted).validate_python(value, strict=True)
    except ValidationError as exc:
        return wanted_of(exc.errors())
    return None


def _complete(config: DictConfig, given: Mapping[str, Any], *, row: int) -> None:
    """Set the options that follow from the rest, unless they are set, and write paths out."""
    for section, name in ((config.actor_rollout_ref.model, "path"), (config.trainer, "default_local_dir")):
        section[name] = os.path.expanduser(str(section[name]))  # neither verl nor transformers understands a `~`
    for model in _MODELS:
        if theirs := given.get(f"{model}.external_lib"):
            OmegaConf.update(config, f"{model}.external_lib", [WORKERS, theirs])
    actor, data, trainer = config.actor_rollout_ref.actor, config.data, config.trainer
    if trainer.device != "cpu" and given.get(_N_GPUS) is None:
        trainer.n_gpus_per_node = count_gpus() or trainer.n_gpus_per_node
    if has_lora(config) and config.actor_rollout_ref.rollout.name == "hf":  # our server takes whole weights
        config.actor_rollout_ref.model.lora.merge = True
    if given.get(f"{ACTOR}.ppo_mini_batch_size") is None and data.train_batch_size % actor.ppo_mini_batch_size:
        actor.ppo_mini_batch_size = data.train_batch_size
    for part in ("actor_rollout_ref.actor", "critic"):  # the reference's and the servers' follow the actor's
        if (key := f"{part}.ppo_max_token_len_per_gpu") not in given:
            OmegaConf.update(config, key, max(OmegaConf.select(config, key), row))
    if trainer.device == "cpu" and "ray_kwargs.ray_init.num_cpus" not in given:
        config.ray_kwargs.ray_init.num_cpus += 3 * (trainer.nnodes * trainer.n_gpus_per_node - 1)
    if given.get("trainer.total_epochs") is None and trainer.total_training_steps is not None:
        trainer.total_epochs = trainer.total_training_steps  # each has a step at least
    if given.get(_SAVED) is None and not has_lora(config):
        actor.checkpoint.save_contents = [*actor.checkpoint.save_contents, _HF]


def _lay(config: DictConfig, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        OmegaConf.update(config, key, value, force_add=True)


def _learning(facts: Facts) -> LearningOptions:
    config, options, estimator = facts.config, facts.own, facts.estimator
    rows = options.trace_aggregator
    is_trajectory = rows.level == "trajectory"
    limits: dict[str, Any] = {}
    for side in ("prompt", "response"):  # `data` says how long one call may be, of which a trajectory has some
        limit, of_call = f"trajectory_max_{side}_length", int(config.data[f"max_{side}_length"])
        of_trajectory = getattr(rows, limit)
        if is_trajectory and limit not in rows.model_fields_set:
            of_trajectory = max(of_trajectory, of_call)
        limits[f"max_{side}_length"] = of_trajectory if is_trajectory else of_call
    return LearningOptions(
        **limits,
        level=rows.level,
        credit=options.credit,
        call_discount=options.call_discount,
        reward_weights=options.reward_weights,
        on_failure=options.on_failure,
        mask_truncated=options.mask_truncated,
        overlong_buffer=options.overlong_buffer,
        overlong_penalty=options.overlong_penalty,
        estimator=estimator,
        norm_by_std=bool(config.algorithm.norm_adv_by_std_in_grpo),
        advantage="rollout" if estimator in OWN_ESTIMATORS else "row",
        loss="rollout" if facts.is_loss_by_rollout else "verl",
        needs_logprobs=bool(config.actor_rollout_ref.rollout.calculate_log_probs),
    )


def _refuse(faults: Iterable[str], what: str = "is wrong") -> None:
    found = list(faults)
    before = f"the configuration of verl {what}:"
    if found:
        raise ConfigError(f"{before} {found[0]}" if len(found) == 1 else "\n  ".join([before, *found]))


@functools.cache
def _packaged_defaults() -> DictConfig:
    """Read what verl's trainer is started with when nothing is set."""
    verl = find_spec("verl")
    if verl is None:
        raise ConfigError(
            "verl is not installed; install lightning-verl with its dependencies: pip install lightning-verl"
        )
    read = OmegaConf.load(Path(str(verl.origin)).parent / "trainer" / "config" / "_generated_ppo_trainer.yaml")
    assert isinstance(read, DictConfig)
    read.model_engine = "dp"
    OmegaConf.set_struct(read, True)
    _open(read)
    OmegaConf.set_struct(read.ray_kwargs.ray_init, False)
    return read


def _open(config: DictConfig) -> None:
    """Let mappings that are empty take any key: what is in them goes on to another program."""
    for key in config:
        is_there = not (OmegaConf.is_missing(config, key) or OmegaConf.is_interpolation(config, str(key)))
        if is_there and isinstance(config[key], DictConfig):
            _open(config[key])
    if not config:
        OmegaConf.set_struct(config, False)


def count_gpus(root: Path = Path("/")) -> int:
    """Return how many of NVIDIA's GPUs this process may use; 0 where none can be counted.

    Args:
        root: Where the system is.
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return sum(name.strip() not in ("", "-1") for name in chosen.split(","))
    return sum(1 for _ in root.glob("dev/nvidia[0-9]*"))
