"""A bare beam search over prompts, for tests that need no framework."""

import random
from collections.abc import Callable

from local_endpoint import ChatMessage, ChatRequest
from prompt_editor import PromptEditor


def beam_search(
    first: str, *, score: Callable[[str], float], editor: PromptEditor, width: int, branch: int, rounds: int, seed: int
) -> str:
    """Return the best prompt after `rounds` rounds: each keeps `width` prompts, and makes `branch` edits of each."""
    lot = random.Random(seed)
    beam = [first]
    for _ in range(rounds):
        parents = (beam * width)[:width]
        children = [edited(parent, editor, seed=lot.getrandbits(31)) for parent in parents for _ in range(branch)]
        beam = sorted(dict.fromkeys(beam + children), key=score, reverse=True)[:width]
    return beam[0]


def edited(template: str, editor: PromptEditor, *, seed: int) -> str:
    """Return the template as the editor changes it."""
    text = f"<prompt_template>\n{template}\n</prompt_template>\n<critique>\n- Too vague.\n</critique>"
    reply = editor.reply(ChatRequest(model="editor", messages=[ChatMessage(role="user", content=text)], seed=seed))
    assert reply is not None
    return reply
