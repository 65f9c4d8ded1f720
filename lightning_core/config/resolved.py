"""A job as a config file that says everything: what was set, and the defaults of what was not."""

from typing import Any

import yaml

from lightning_core.config.components import GIVEN
from lightning_core.config.job import Job
from lightning_core.config.model import COMPONENTS, DATASETS, Config
from lightning_core.config.yaml_text import tell_numbers
from lightning_core.logs.secrets import without_secrets


def resolved_config(job: Job) -> str:
    """Return the config of a job as YAML, after comments: the size of each dataset, and what its algorithm plans.

    It can be used as a config file in the same folder, where it means the same job. Only secrets are not in it: in
    their place stands `***`. Options that a config file cannot say, such as a client that a program makes, are left
    out.

    Raises:
        ConfigError: When the algorithm cannot use what the config gives it.
        AlgorithmError: When the algorithm knows already that something is missing.
    """
    values = resolved_values(job)
    sizes = {key: getattr(job, key) for key in DATASETS}
    comments = [f"# {key}: {len(dataset):,} samples\n" for key, dataset in sizes.items() if dataset is not None]
    if (plan := job.plan()) is not None:
        comments += [f"# {line}\n" for line in str(plan).splitlines()]
    return "".join(comments) + yaml.dump(
        values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH, default_flow_style=False
    )


def resolved_values(job: Job) -> dict[str, Any]:
    """Return the config of a job by key, as values of YAML: what was set, and defaults. `***` stands for secrets.

    The store is left out where none was set: a run then has its store in its folder.
    """
    keys = [key for key in Config.model_fields if key != "store" or key in job.config.model_fields_set]
    return {key: _resolved(job, key) for key in keys}


def _resolved(job: Job, key: str) -> Any:
    value = getattr(job.config, key)
    if key in COMPONENTS:
        value = _component(job, key, value)
    elif key == "n_runners":
        value = getattr(job.trainer.strategy, "n_runners", value)
    elif key in DATASETS:
        return value  # a task may well have a field named `key`, and a run that is resumed needs it
    return without_secrets(key, value)


def _component(job: Job, key: str, spec: str | dict[str, Any]) -> dict[str, Any]:
    given = {"name": spec} if isinstance(spec, str) else spec
    defaults = {name: value for name, value in job.options[key].defaults() if name not in GIVEN.get(key, ())}
    return {"name": given["name"]} | defaults | given


class _Dumper(yaml.SafeDumper):
    """Writes a text of several lines as such, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)
tell_numbers(_Dumper)

_WIDTH = 120
