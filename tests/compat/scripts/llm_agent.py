"""An agent that is given a model endpoint, and asks it over HTTP."""

import asyncio
import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import lightning_core as agl


class Model(BaseHTTPRequestHandler):
    """Answers each question with its words in reverse."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        words = request["messages"][-1]["content"].split()
        answer = " ".join(reversed(words))[: request["max_tokens"]]
        body = json.dumps({"choices": [{"message": {"role": "assistant", "content": answer}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args) -> None: ...


@agl.llm_rollout
def ask(task: dict, llm: agl.LLM, rollout: agl.Rollout) -> float:
    payload = {"model": llm.model, "messages": [{"role": "user", "content": task["question"]}]}
    request = urllib.request.Request(
        f"{llm.endpoint}/chat/completions", json.dumps({**payload, **llm.sampling_parameters}).encode()
    )
    with urllib.request.urlopen(request) as response:
        answer = json.load(response)["choices"][0]["message"]["content"]
    agl.emit_object({"answer": answer, "mode": rollout.mode})
    return float(answer == task["answer"])


async def run(endpoint: str) -> list:
    store = agl.InMemoryLightningStore()
    runner = agl.LitAgentRunner(agl.OtelTracer())
    llm = agl.LLM(endpoint=endpoint, model="reverser", sampling_parameters={"max_tokens": 11})
    said = []
    with runner.run_context(agent=ask, store=store):
        for task in ({"question": "one two", "answer": "two one"}, {"question": "up", "answer": "down"}):
            rollout = await runner.step(task, resources={"main_llm": llm}, mode="val")
            spans = await store.query_spans(rollout.rollout_id, "latest")
            objects = [agl.get_object_value(span) for span in spans if span.name == "agentlightning.object"]
            said.append([rollout.status, objects, agl.find_final_reward(spans)])
    return said


def main() -> None:
    server = HTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps(asyncio.run(run(f"http://127.0.0.1:{server.server_port}/v1"))))
    server.shutdown()


if __name__ == "__main__":
    main()
