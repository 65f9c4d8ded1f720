"""The environment of a program that is an agent: what it is told, what it is let have, and nothing else."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lightning_core.agent.briefing import Briefing, as_json
from lightning_core.errors import InvalidTask

KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
"""The variables of this process that every program gets, where they are set: what many do not start without."""

MODEL_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")
"""Where clients of models look for what they need."""

TASK_FILE = "AGL_TASK_FILE"
REWARD_FILE = "AGL_REWARD_FILE"
PROMPT_FILE = "AGL_PROMPT_FILE"

_MAX_BYTES = 128 * 1024
"""How long a variable may be on Linux, with its name, an equals sign and the null character that ends it."""


def kept_variables(passed: Iterable[str]) -> dict[str, str]:
    """Return what a program gets of this process's environment.

    Args:
        passed: The names of further variables.
    """
    return {name: os.environ[name] for name in (*KEPT, *passed) if name in os.environ}


def told_variables(briefing: Briefing, prompt: str | None, folder: Path) -> dict[str, str]:
    """Return what a program is told of its attempt. What there is not has no variable, nor what is too long for one.

    Args:
        briefing: What there is to know.
        prompt: The prompt, filled in.
        folder: Where the attempt's files are.
    """
    told = {
        TASK_FILE: str(folder / "task.json"),
        REWARD_FILE: str(folder / "reward.json"),
        "AGL_ROLLOUT_ID": briefing.rollout_id,
        "AGL_ATTEMPT_ID": briefing.attempt_id,
    }
    if briefing.mode is not None:
        told["AGL_MODE"] = briefing.mode
    if briefing.llm is not None:
        base = briefing.llm.endpoint.rstrip("/")
        told |= {
            # Anthropic's clients add /v1 themselves.
            **dict(zip(MODEL_VARIABLES, (base, briefing.key, base.removesuffix("/v1"), briefing.key), strict=True)),
            "AGL_MODEL": briefing.llm.model,
            "AGL_SAMPLING_PARAMETERS": json.dumps(briefing.llm.sampling_parameters),
        }
    if briefing.report_url is not None:
        told |= {"AGL_REPORT_URL": briefing.report_url, "AGL_REPORT_KEY": briefing.key}
    texts = {}
    if briefing.prompt_template is not None:
        texts["AGL_PROMPT_TEMPLATE"] = briefing.prompt_template.template
    if prompt is not None:
        told[PROMPT_FILE] = str(folder / "prompt.txt")
        texts["AGL_PROMPT"] = prompt
    return told | {name: text for name, text in texts.items() if _is_short(f"{name}={text}")}


def mapped_variables(task: Any, fields: Mapping[str, str]) -> dict[str, str]:
    """Return variables with fields of the task: a text as it is, anything else as JSON.

    Args:
        task: The task.
        fields: The name of each variable -> the field, with dots between the parts of a nested one.

    Raises:
        InvalidTask: When the task does not have a field.
    """
    return {name: _text(_field(task, path, name)) for name, path in fields.items()}


def check_variables(environment: Mapping[str, str]) -> None:
    """Refuse variables that no program can be given.

    Raises:
        InvalidTask: When one has a null character, or half of a surrogate pair.
    """
    for name, value in environment.items():
        try:
            is_good = b"\0" not in os.fsencode(value)
        except UnicodeEncodeError:
            is_good = False
        if not is_good:
            raise InvalidTask(f"the variable {name} has a character that no variable can have; see {TASK_FILE} instead")


def _is_short(variable: str) -> bool:
    return len(variable.encode("utf-8", "surrogatepass")) < _MAX_BYTES


def _field(task: Any, path: str, variable: str) -> Any:
    found = task
    for part in path.split("."):
        if not isinstance(found, Mapping) or part not in found:
            has = ", ".join(map(str, found)) if isinstance(found, Mapping) else f"it is a {type(found).__name__}"
            raise InvalidTask(
                f"the task has no field {path!r} for the variable {variable}: there is no {part!r} (there: {has})"
            )
        found = found[part]
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else as_json(value).decode()
