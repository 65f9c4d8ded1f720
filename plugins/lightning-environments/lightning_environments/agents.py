"""Agents that environments come with, and libraries that they need."""

import functools
import importlib
import ssl
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lightning_core.agent import rollout
from lightning_core.errors import ConfigError
from lightning_core.types import LLM, PromptTemplate

if TYPE_CHECKING:
    from openai import AsyncOpenAI

# Loading the certificates takes 20 ms, so once for all tasks.
_certificates = functools.cache(ssl.create_default_context)


def client_of(llm: LLM) -> "AsyncOpenAI":
    """Return a client of the run's model."""
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient  # late: it takes a second

    http = DefaultAsyncHttpxClient(verify=_certificates())
    return AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", http_client=http)


@rollout
async def one_call(task: Any, llm: LLM, prompt_template: PromptTemplate) -> str:
    """Ask the run's model once, with the prompt that is tuned, and return what it says.

    The template's placeholders are fields of the task; of a task without fields, `question` is all of it.
    """
    given = task if isinstance(task, Mapping) else {"question": task}
    prompt = prompt_template.format(**{name: given[name] for name in prompt_template.placeholders() & given.keys()})
    async with client_of(llm) as client:
        completion = await client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": prompt}], **llm.sampling_parameters
        )
    return completion.choices[0].message.content or ""


def library(module: str, *, extra: str) -> ModuleType:
    """Import the library of an environment.

    Raises:
        ConfigError: When it is not there, or cannot be imported; says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        raise ConfigError(
            f"environment {extra.replace('-', '_')!r} needs the package {extra}, which cannot be imported ({exc}); "
            f"install it, from a checkout of Lightning Core: pip install './plugins/lightning-environments[{extra}]'"
        ) from exc
