"""A stand-in for the model that improves prompts: a critic that sees nothing, and an editor that draws by lot.

It knows neither the task nor which edits help. What helps has to be found by the search, from rewards.
"""

import random
import re
from collections.abc import Sequence
from random import Random

from local_endpoint import ChatRequest

TEMPLATE = re.compile(r"<prompt_template>\n?(.*?)\n?</prompt_template>", re.DOTALL)
INSTRUCTIONS = re.compile(r"the following instructions to perform a task for me:\n```\n(.*?)\n```", re.DOTALL)
"""What `gepa` asks to be rewritten, and `apo` never says."""
CRITIQUE = re.compile(r"<critique>\n?(.*?)\n?</critique>", re.DOTALL)

COMPLAINTS = (
    "The prompt does not say what a good answer looks like.",
    "The prompt leaves open how to get to an answer.",
    "It is not clear who is being addressed, and in what tone.",
    "The prompt does not say which parts of the input matter.",
    "Nothing in the prompt asks for care where a mistake is easy.",
    "The prompt says little about the length and the shape of the reply.",
)


class PromptEditor:
    """Criticises and edits prompts without understanding them.

    The same request gives the same reply; another seed gives another one.
    """

    def __init__(self, edits: Sequence[str], *, max_edits: int) -> None:
        """Take the pool.

        Args:
            edits: Instructions, one line each and without braces. A prompt never gets the same one twice.
            max_edits: A request applies 1 to `max_edits` of them.
        """
        self._edits = tuple(edits)
        self._max_edits = max_edits

    def reply(self, request: ChatRequest) -> str | None:
        """Return the critique or the new template that is asked for, or None when neither is."""
        lot = random.Random(f"{request.seed}\n{request.prompt}")
        if (instructions := INSTRUCTIONS.search(request.prompt)) is not None:
            return f"```\n{self._edit(instructions[1], lot)}\n```"
        template, critique = TEMPLATE.search(request.prompt), CRITIQUE.search(request.prompt)
        if template is None:
            return None
        if critique is None:
            return "\n".join(f"- {complaint}" for complaint in lot.sample(COMPLAINTS, 2))
        return self._edit(template[1], lot)

    def _edit(self, template: str, lot: Random) -> str:
        lines = template.split("\n")
        unused = [edit for edit in self._edits if edit not in lines]
        for edit in lot.sample(unused, min(lot.randint(1, self._max_edits), len(unused))):
            instructions = [number for number, line in enumerate(lines) if line.strip() and "{" not in line]
            if len(instructions) > 1 and lot.random() < 0.25:
                lines[lot.choice(instructions)] = edit
            else:
                lines.insert(instructions[-1] + 1 if instructions else 0, edit)
        return "\n".join(lines)
