"""What a search works with."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from lightning_apo.candidate import Candidate
from lightning_apo.chat import Answer
from lightning_apo.critic import Critic
from lightning_apo.editor import Editor
from lightning_apo.messages import ShownPrompt
from lightning_apo.options import Options
from lightning_apo.saved import SavedSearch
from lightning_apo.trials import Trials
from lightning_core.adapter import TraceToMessages
from lightning_core.types import Dataset, PromptTemplate, TaskInput

COUNTED = (
    "rejected",
    "duplicates",
    "lost_branches",
    "lost_rounds",
    "critic_calls",
    "editor_calls",
    "own_input_tokens",
    "own_output_tokens",
)


@dataclass(slots=True)
class Tools:
    """All that a search and its rounds share."""

    options: Options
    prompts: Mapping[str, PromptTemplate]
    """The first prompts by name, those that are tuned."""
    trials: Trials
    critic: Critic
    editor: Editor
    adapter: TraceToMessages
    saved: SavedSearch
    train: Dataset[TaskInput]
    val: Dataset[TaskInput]
    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(COUNTED, 0)))
    rejections: Counter[str] = field(default_factory=Counter)
    """Why edits were rejected -> how many."""

    def spent_on(self, answer: Answer) -> str:
        """Count what an answer has used, and return its text."""
        self.counts["own_input_tokens"] += answer.input_tokens
        self.counts["own_output_tokens"] += answer.output_tokens
        return answer.text

    def prompt(self, name: str, candidate: Candidate) -> PromptTemplate:
        """Return one of a candidate's prompts."""
        return self.prompts[name].model_copy(update={"template": candidate.texts[name]})

    def shown(self, name: str, candidate: Candidate) -> ShownPrompt:
        """Return one of a candidate's prompts as models are shown it."""
        return ShownPrompt.of(name, self.prompt(name, candidate))
