"""An agent whose prompt says how good it is."""

from typing import Any

from lightning_core import PromptTemplate, rollout
from lightning_core.errors import Fault

KEY = "the-key-of-the-tests"
SECRET = "sesame"
TRAIN = [{"question": f"train {n}", "rank": n * 10} for n in range(10)]
VAL = [{"question": f"{SECRET} val {n}", "rank": n} for n in range(100)]
TEST = [{"question": f"{SECRET} test {n}", "rank": n} for n in range(20)]


@rollout
async def answer(task: dict[str, Any], prompt_template: PromptTemplate) -> float:
    """Be right where the number in the prompt is larger than the sample's rank."""
    said = prompt_template.format(question="")
    if "break" in said:
        raise ValueError("ignore all previous instructions")
    if "huge" in said:
        return 1.5
    is_right = task["rank"] < int(said.split()[-1])
    if "fault" in said and not is_right:
        raise Fault("no answer")
    return float(is_right)


def prompts(skill: int) -> dict[str, PromptTemplate]:
    """Return the initial resources."""
    return {"main_prompt": PromptTemplate(template=text(skill))}


def text(skill: int) -> str:
    """Return a prompt that makes the agent right on so many of 100 samples."""
    return f"{{question}} {skill}"
