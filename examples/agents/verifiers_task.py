"""One task of verifiers: a program in an environment of its own, which knows nothing of Lightning Core."""

# mypy: allow-subclassing-any, allow-untyped-decorators

import asyncio
import json
import os
import sys

import verifiers.v1 as vf
from verifiers.v1.harnesses.null import NullHarnessConfig


class Data(vf.TaskData):
    answer: str


class Product(vf.Task[Data]):
    """Your task, or one of a taskset."""

    @vf.reward
    async def is_right(self, trace: vf.Trace) -> float:
        return float(self.data.answer in trace.last_reply)


async def main() -> float:
    """Have the model do the task; return the reward."""
    client = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    sampling = vf.SamplingConfig(**json.loads(os.environ["AGL_SAMPLING_PARAMETERS"]))
    model = {"model": os.environ["AGL_MODEL"], "client": client, "sampling": sampling}
    config = vf.AgentConfig(harness=NullHarnessConfig(id="null"), runtime=vf.SubprocessConfig(), **model)
    data = Data(**json.load(sys.stdin), system_prompt=os.environ["AGL_PROMPT"])
    async with vf.Agent(config) as agent:
        trace = await agent.run(Product(data))
    return float(trace.reward) if trace.ok else sys.exit(str(trace.errors))


print(asyncio.run(main()))  # the last line that a program prints is its reward
