"""The endpoint that stands in for a model when there is no key for a real one."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what the examples share

import simulated_model
from local_endpoint import ChatRequest, LocalEndpoint, ToolCall
from prompt_editor import PromptEditor
from prompt_edits import EDITS

NOTICE = (
    "SIMULATED model: OPENAI_API_KEY is not set, so a local simulation answers. For a real model set OPENAI_API_KEY "
    "(and OPENAI_BASE_URL for a provider other than OpenAI)."
)

editor = PromptEditor(EDITS, max_edits=2)


def answer(request: ChatRequest) -> str | list[ToolCall]:
    """Answer as the model that the agent calls, or as the one that improves its prompt."""
    return editor.reply(request) or simulated_model.answer(request)


simulated_endpoint = LocalEndpoint(answer, notice=NOTICE)
"""Serves the simulated model during a run, unless there is a key for a real one."""
