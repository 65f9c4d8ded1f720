"""A model is evaluated while vLLM serves it; a small program stands for vLLM."""

import shlex
import sys
from pathlib import Path
from typing import Any

import openai
import pytest
from lightning_evals.evaluation import EvaluateModel
from lightning_proxy import LLMProxy

from lightning_core import LLM, Trainer, rollout
from lightning_core.errors import InvalidInput

SERVER = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = {"role": "assistant", "content": f"I am {asked['model']}, {length}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        answer = {"id": "1", "object": "chat.completion", "created": 0, "model": asked["model"], "usage": usage}
        body = json.dumps({**answer, "choices": [choice]})
        self.send_response(200)
        self.send_header("content-type", "application/json"); self.send_header("content-length", str(len(body)))
        self.end_headers(); self.wfile.write(body.encode())
    def log_message(self, *a): pass
length = sys.argv[sys.argv.index("--max-model-len") + 1]
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
ELSEWHERE = [
    {"model_name": "policy", "litellm_params": {"model": "hosted_vllm/old", "api_base": "http://127.0.0.1:9/v1"}}
]


JUDGE = [{"model_name": "judge", "litellm_params": {"model": "hosted_vllm/judge", "api_base": "http://127.0.0.1:9/v1"}}]
UNSEEN = LLM(endpoint="http://127.0.0.1:9/v1", model="m")


@rollout
async def who(task: str, llm: LLM) -> float:
    raise AssertionError("nothing is run")


async def test_the_served_model_takes_one_place_and_leaves_it_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nexec {shlex.quote(sys.executable)} {tmp_path}/server.py "$@"\n')
    python.chmod(0o700)
    proxy = LLMProxy(model_list=[*ELSEWHERE, *JUDGE])
    algorithm = EvaluateModel(
        model="trained", replaces="policy", python=str(python), arguments=["--max-model-len", "99"], max_samples=1
    )
    during = []

    @rollout
    async def agent(task: str, llm: LLM) -> float:
        during.append([(each["model_name"], each["litellm_params"]["model"]) for each in proxy.model_list])
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", max_retries=0) as client:
            answer = await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": task}])
        return float(answer.choices[0].message.content == "I am trained, 99")

    before = proxy.model_list
    result = await Trainer(algorithm=algorithm, llm_proxy=proxy).fit_async(agent, ["Who?"])
    assert result.metrics["test_reward"] == 1.0
    assert during == [[("judge", "hosted_vllm/judge"), ("policy", "hosted_vllm/trained")]]
    assert proxy.model_list == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "give llm_proxy a model_list"),
        ({"llm_proxy": {"model_list": [*ELSEWHERE, *JUDGE]}}, "the place of one of policy, judge; say which with --as"),
        (
            {"llm_proxy": {"model_list": ELSEWHERE}, "initial_resources": {"main_llm": UNSEEN}},
            "the calls of 'main_llm' do not go through the proxy",
        ),
    ],
)
async def test_what_would_measure_another_model_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        await Trainer(algorithm=EvaluateModel(model="trained"), **options).fit_async(who, ["Who?"])
