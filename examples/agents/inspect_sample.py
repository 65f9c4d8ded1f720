"""One sample of a task of inspect: a program in an environment of its own, which knows nothing of Lightning Core."""

import json
import os
import sys
from pathlib import Path

import inspect_ai
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, system_message

SAMPLES = [Sample(id=a, input=f"What is {a} times 7?", target=str(a * 7)) for a in range(2, 10)]

[log] = inspect_ai.eval(
    # Your task, or one by its name, as in "inspect_evals/gsm8k".
    inspect_ai.Task(dataset=SAMPLES, solver=[system_message(os.environ["AGL_PROMPT"]), generate()], scorer=includes()),
    sample_id=json.load(sys.stdin)["id"],
    model=f"openai/{os.environ['AGL_MODEL']}",  # it reads OPENAI_BASE_URL and its key
    model_args={"responses_api": False},  # else each process first has the model say "hello, world"
    log_dir=str(Path(os.environ["AGL_TASK_FILE"]).parent),  # removed at the attempt's end
    display="none",
    **json.loads(os.environ["AGL_SAMPLING_PARAMETERS"]),
)
if log.status != "success" or log.results is None:
    sys.exit(f"inspect: {log.status}: {log.error and log.error.message}")
print(log.results.scores[0].metrics["accuracy"].value)  # the last line that a program prints is its reward
