"""A stand-in for the model that improves prompts: a critic that reads the runs, and an editor that reads the critique.

The critic knows neither the task, nor the right answers, nor which edits help. It looks at what replies that earned
nothing have in common, as far as a few rules see it, and says which topics of advice the prompt lacks, the most
important first. The editor draws one piece of advice on that one from the pool. Whether it helps is for the rewards to
say.
"""

import re
from statistics import median
from typing import NamedTuple

from general_edits import EDITS, EDITS_BY_TOPIC
from local_endpoint import ChatRequest
from prompt_editor import CRITIQUE, TEMPLATE, PromptEditor

RUN = re.compile(r"^=== Run \d+ ===$(.*?)(?=^=== )", re.MULTILINE | re.DOTALL)
REPLY = re.compile(r"^Reply: (.*?)(?=^Message \d+:$|^Reward: |^Failed: )", re.MULTILINE | re.DOTALL)
REWARD = re.compile(r"^Reward: (\S+)$", re.MULTILINE)
TOPIC = re.compile(r"should say more about: (.*?)\.$", re.MULTILINE)
NAMES_NO_OPTION = "names no option"

BARE_WORDS = 5
"""A reply that is no longer than this is an answer and nothing else."""
LONG_WORDS = 150
"""A reply that is longer than this loses its thread."""


class Run(NamedTuple):
    """What the critic reads of one run."""

    reply: str
    reward: float | None
    """None when the run failed."""
    text: str

    @property
    def words(self) -> int:
        """How long the reply is."""
        return len(self.reply.split())


class ReadingCritic:
    """Criticises and edits prompts, from nothing but what stands in the requests.

    The same request gives the same reply; another seed draws other advice.

    Args:
        reads: False for a critic that says nothing, so that the editor draws from the whole pool. Shows what the
            reading is worth.
    """

    def __init__(self, *, reads: bool = True) -> None:
        self._reads = reads

    def reply(self, request: ChatRequest) -> str | None:
        """Return the critique or the new template that is asked for, or None when neither is."""
        template, critique = TEMPLATE.search(request.prompt), CRITIQUE.search(request.prompt)
        if template is None:
            return None
        if critique is None:
            return criticise(request.prompt) if self._reads else "- Nothing in particular."
        edits = advice_on(critique[1])
        return PromptEditor(edits, max_edits=1).reply(request)


def criticise(request: str) -> str:
    """Say what the prompt lacks, judged by the runs in a request."""
    runs = [_read(text) for text in RUN.findall(request)]
    bad = [run for run in runs if not run.reward]
    good = [run for run in runs if run.reward]
    if not bad:
        return "- Nothing went wrong in these runs."
    points = []
    if any(NAMES_NO_OPTION in run.text for run in bad):
        points.append("- Some replies have no recognisable answer. The prompt should say more about: form.")
    if median(run.words for run in bad) <= BARE_WORDS:
        points.append(
            "- The replies that went wrong are an answer and nothing else, so nothing tells how it came about. "
            "The prompt should say more about: how to go about it."
        )
    if median(run.words for run in bad) > LONG_WORDS:
        points.append("- The replies that went wrong lose their thread. The prompt should say more about: brevity.")
    if good and 0.5 <= median(run.words for run in bad) / median(run.words for run in good) <= 2:
        points.append("- Wrong replies look just like right ones. The prompt should say more about: care.")
    return "\n".join(points) or "- It is not clear why runs went wrong."


def advice_on(critique: str) -> tuple[str, ...]:
    """Return the edits on the topic that a critique asks for first; all of them where it asks for none."""
    topic = TOPIC.search(critique)
    return EDITS_BY_TOPIC[topic[1]] if topic else EDITS


def _read(text: str) -> Run:
    reply, reward = REPLY.search(text), REWARD.search(text)
    return Run(reply[1].strip() if reply else "", float(reward[1]) if reward else None, text)
