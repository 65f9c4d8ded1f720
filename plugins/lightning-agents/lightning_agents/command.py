"""An agent that is a program, in any language."""

import asyncio
import errno
import json
import logging
import os
import re
import shlex
import shutil
import signal
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from lightning_http.post import as_json
from lightning_http.programs import Program

from lightning_agents.briefing import NO_KEY, WANTED, Briefing, check_reward, reward_of_text
from lightning_core.agent.base import LitAgent
from lightning_core.emitter import emit_exception, get_active_sink
from lightning_core.errors import Fault, InvalidAgent, InvalidResult, InvalidTask, ProgramFailed
from lightning_core.secrets import hide_in_text
from lightning_core.texts import cut
from lightning_core.types import NamedResources, Rollout

logger = logging.getLogger(__name__)

KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
"""The variables of this process that every program gets, where they are set: what many do not start without."""

MODEL_VARIABLES = (
    *("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
    *("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY"),
)
"""Where clients of models look for what they need: a URL and a key of each API."""

TASK_FILE = "AGL_TASK_FILE"
REWARD_FILE = "AGL_REWARD_FILE"
PROMPT_FILE = "AGL_PROMPT_FILE"

MAX_OUTPUT_BYTES = 1024 * 1024
"""How much of the end of what a program prints, and of its errors, is kept."""

_MAX_BYTES = 128 * 1024
"""How long a variable may be on Linux, with its name, an equals sign and the null character that ends it."""


def kept_variables(passed: Iterable[str]) -> dict[str, str]:
    """Return what a program gets of this process's environment.

    Args:
        passed: The names of further variables.
    """
    return {name: os.environ[name] for name in (*KEPT, *passed) if name in os.environ}


def briefing_variables(briefing: Briefing, prompt: str | None, folder: Path) -> dict[str, str]:
    """Return what a program is told of its attempt. What there is not has no variable, nor what is too long for one.

    Args:
        briefing: What there is to know.
        prompt: The prompt, filled in.
        folder: Where the attempt's files are.
    """
    variables = {
        TASK_FILE: str(folder / "task.json"),
        REWARD_FILE: str(folder / "reward.json"),
        "AGL_ROLLOUT_ID": briefing.rollout_id,
        "AGL_ATTEMPT_ID": briefing.attempt_id,
    }
    if briefing.mode is not None:
        variables["AGL_MODE"] = briefing.mode
    if briefing.llm is not None:
        base, key = briefing.llm.endpoint.rstrip("/"), briefing.key
        root = base.removesuffix("/v1")
        variables |= {
            # The clients of Anthropic and Google add /v1 or /v1beta themselves.
            **dict(zip(MODEL_VARIABLES, (base, key, root, key, root, key), strict=True)),
            "AGL_MODEL": briefing.llm.model,
            "AGL_SAMPLING_PARAMETERS": json.dumps(briefing.llm.sampling_parameters),
        }
    if briefing.report_url is not None:
        variables |= {"AGL_REPORT_URL": briefing.report_url, "AGL_REPORT_KEY": briefing.key}
    if prompt is not None:
        variables[PROMPT_FILE] = str(folder / "prompt.txt")
    template = None if briefing.prompt_template is None else briefing.prompt_template.template
    texts = {"AGL_PROMPT_TEMPLATE": template, "AGL_PROMPT": prompt}
    return variables | {name: text for name, text in texts.items() if text is not None and _is_short(f"{name}={text}")}


def mapped_variables(task: Any, fields: Mapping[str, str]) -> dict[str, str]:
    """Return variables with fields of the task: a text as it is, anything else as JSON.

    Args:
        task: The task.
        fields: The name of each variable -> the field, with dots between the parts of a nested one.

    Raises:
        InvalidTask: When the task does not have a field.
    """
    return {name: _text(_field(task, path, name)) for name, path in fields.items()}


def _is_short(variable: str) -> bool:
    return len(variable.encode("utf-8", "surrogatepass")) < _MAX_BYTES


def _field(task: Any, path: str, variable: str) -> Any:
    value = task
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            has = ", ".join(map(str, value)) if isinstance(value, Mapping) else f"it is of type {type(value).__name__}"
            raise InvalidTask(
                f"the task has no field {path!r} for the variable {variable}: there is no {part!r} (there: {has})"
            )
        value = value[part]
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else as_json(value).decode()


OUT_OF_REACH = 75
"""The exit status by which a program says that what it needs is out of reach: `EX_TEMPFAIL` of sysexits."""

_REWARDS = ("output", "file", "report", "grader")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MESSAGE_CHARACTERS = 1_000
_NOTE_CHARACTERS = 8_000
_MAX_REWARD_BYTES = 64 * 1024


class CommandAgent(LitAgent[Any]):
    """Runs a program for each rollout.

    The program gets the task as JSON on its standard input and in the file `AGL_TASK_FILE`, the model in
    `OPENAI_BASE_URL` and `OPENAI_API_KEY` (and the others of `MODEL_VARIABLES`), and more in further variables; see the
    guide. Of the environment of this process it gets what `KEPT` names, and what `pass_variables` does.

    An exit status other than 0 fails the attempt, with the end of stderr; 75 is a fault. At its timeout, or when the
    attempt is stopped, the program and all that it has started are ended; see `Program` for what is promised.

    Args:
        command: The program and its arguments. No shell is involved: for one, write `["sh", "-c", "..."]`.
        folder: Where it runs, and where a relative path of the program is looked for; None for the current one.
        task_variables: Variables with fields of the task: the variable's name -> the field, `question` or `meta.id`.
        pass_variables: Names of variables of this process that the program gets, too.
        reward: Where the reward is: `output`, the last line that it prints; `file`, the file `AGL_REWARD_FILE`;
            `report`, it is reported to `AGL_REPORT_URL`, if there is any; `grader`, a grader scores what it prints.

    Raises:
        InvalidAgent: When there is no such program, or an option has a value that it does not take.
    """

    runs_elsewhere = True

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: str | os.PathLike[str] | None = None,
        task_variables: Mapping[str, str] | None = None,
        pass_variables: Sequence[str] = (),
        reward: Literal["output", "file", "report", "grader"] = "output",
    ) -> None:
        self.command = _checked_command(command)
        self.folder = os.path.abspath(os.getcwd() if folder is None else folder)
        self.task_variables = dict(task_variables or {})
        self.pass_variables = _checked_names(pass_variables)
        self.reward = reward
        if os.name != "posix":
            raise InvalidAgent("a CommandAgent needs process groups, which this system does not have")
        check_reward(reward, _REWARDS)
        for name, field in self.task_variables.items():
            if not _VARIABLE.fullmatch(name) or not field:
                raise InvalidAgent(
                    f"task_variables has {name!r}: {field!r}; it leads from names of variables to fields of the task, "
                    "as in {'QUESTION': 'question'}"
                )
            if name.startswith("AGL_") or name in MODEL_VARIABLES:
                raise InvalidAgent(f"task_variables has {name}, which has another meaning for programs; rename it")
        _require_program(self.command[0], self.folder, kept_variables(self.pass_variables))

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return cut(shlex.join(self.command), 80)

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> Any:
        """Run the program, and return its reward, or for a grader what it printed.

        Raises:
            ProgramFailed: When it ends with an exit status other than 0.
            InvalidResult: When there is no reward where it should be.
            InvalidTask: When the task cannot be given to it.
            Fault: When it cannot be started, or says by exit status 75 that what it needs is out of reach.
        """
        briefing = Briefing.of(task, resources, rollout)
        task_json, prompt = briefing.task_json(), briefing.prompt()
        environment = {**kept_variables(self.pass_variables), **mapped_variables(task, self.task_variables)}
        try:
            with tempfile.TemporaryDirectory(prefix="agl-attempt-", ignore_cleanup_errors=True) as folder:
                environment |= briefing_variables(briefing, prompt, Path(folder))
                _write(environment[TASK_FILE], task_json)
                if prompt is not None:
                    _write(environment[PROMPT_FILE], prompt.encode("utf-8", "replace"))
                output = await self._run(environment, briefing)
                return self._result(output, Path(environment[REWARD_FILE]), briefing)
        except OSError as exc:
            if exc.errno == errno.E2BIG:
                largest = max(environment, key=lambda name: len(environment[name]))
                raise InvalidTask(
                    f"the variables of the program {self.name} are too large for this system; the largest is "
                    f"{largest}, with {len(environment[largest])} characters. The whole task is in the file {TASK_FILE}"
                ) from exc
            raise Fault(f"the program {self.name} cannot be started in {self.folder}: {exc}") from exc

    async def _run(self, environment: dict[str, str], briefing: Briefing) -> str:
        """Run the program to its end, and return what it printed."""
        async with Program(
            self.command,
            environment=environment,
            folder=self.folder,
            stdin=Path(environment[TASK_FILE]),
            max_output_bytes=MAX_OUTPUT_BYTES,
        ) as program:
            try:
                status = await program.wait()
            except asyncio.CancelledError:
                await program.stop()
                self._record_stop(program, briefing)
                raise
        if status == 0:
            return program.stdout.text()
        if status == OUT_OF_REACH:
            line = _last_line(self._without_secrets(program.stderr.text(), briefing))
            raise Fault(f"the program {self.name} says that what it needs is out of reach: {line or 'exit status 75'}")
        raise self._failed(program, briefing, how=_in_words(status))

    def _result(self, output: str, reward_file: Path, briefing: Briefing) -> Any:
        if self.reward == "grader":
            return output
        if self.reward == "report":
            return None
        if self.reward == "output":
            line = _last_line(output)
            if not line:
                raise InvalidResult(
                    f"the program {self.name} printed nothing, and its last line is to be its reward: {WANTED}; "
                    f"or choose another reward: {', '.join(_REWARDS[1:])}"
                )
            return reward_of_text(
                self._without_secrets(line, briefing), f"the last line that the program {self.name} printed"
            )
        if not reward_file.is_file():  # to read a pipe without a writer would wait
            raise InvalidResult(f"the program {self.name} has left no file {REWARD_FILE}; it has {WANTED}")
        with reward_file.open("rb") as file:
            text = file.read(_MAX_REWARD_BYTES).decode("utf-8", "replace")
        return reward_of_text(
            self._without_secrets(text, briefing), f"what the program {self.name} has left in {REWARD_FILE}"
        )

    def _failed(self, program: Program, briefing: Briefing, *, how: str) -> ProgramFailed:
        """Say how it ended: the end of stderr in the message, more of both in notes, which a span shows, too."""
        stdout, stderr = (self._without_secrets(tail.text(), briefing) for tail in (program.stdout, program.stderr))
        end = stderr.strip()[-_MESSAGE_CHARACTERS:]
        failed = ProgramFailed(
            f"the program {self.name} {how}" + (f"; its stderr ends with: {end}" if end else "; it wrote no stderr"),
            exit_status=program.exit_status,
        )
        for name, text in (("stdout", stdout), ("stderr", stderr)):
            if text.strip():
                failed.add_note(f"--- the end of its {name} ---\n{text.rstrip()[-_NOTE_CHARACTERS:]}")
        return failed

    def _record_stop(self, program: Program, briefing: Briefing) -> None:
        failed = self._failed(program, briefing, how="was stopped before its end")
        failed.exit_status = None
        logger.info(
            "lightning.program_stopped rollout_id=%s attempt_id=%s: %s",
            briefing.rollout_id,
            briefing.attempt_id,
            failed,
        )
        if get_active_sink() is not None:
            emit_exception(failed)

    def _without_secrets(self, text: str, briefing: Briefing) -> str:
        """Return what a program printed without the keys that it was given."""
        for secret in (briefing.key, *(os.environ.get(name, "") for name in self.pass_variables)):
            if len(secret) >= 8 and secret != NO_KEY:
                text = text.replace(secret, "***")
        return hide_in_text(text)


def _checked_command(command: Sequence[str]) -> list[str]:
    if isinstance(command, str) or not command or not command[0].strip():
        raise InvalidAgent(
            f"command is {command!r}; it is a list with a program and its arguments, as in ['python', 'solve.py']; "
            "for a line of the shell ['sh', '-c', '...']"
        )
    return list(command)


def _checked_names(names: Sequence[str]) -> list[str]:
    if isinstance(names, str):
        raise InvalidAgent(f"pass_variables is {names!r}; it is a list of names of variables, as in ['HF_TOKEN']")
    for name in names:
        if name not in os.environ:
            raise InvalidAgent(f"pass_variables names {name}, which is not set here; set it, or leave it out")
    return list(names)


def _require_program(program: str, folder: str, environment: Mapping[str, str]) -> None:
    if not os.path.isdir(folder):
        raise InvalidAgent(f"folder is {folder!r}, and there is none")
    if os.sep in program:
        path = os.path.join(folder, program)
        if shutil.which(path) is None:
            raise InvalidAgent(
                f"there is no program {program!r} in {folder}: make it executable, or name what runs it, as in "
                "['python', ...]"
            )
    elif shutil.which(program, path=environment.get("PATH")) is None:
        raise InvalidAgent(f"there is no program {program!r} on the PATH; for one in the folder write './{program}'")


def _write(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2].strip()


def _in_words(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    return f"was ended by the signal {signal.strsignal(-status) or -status}"
