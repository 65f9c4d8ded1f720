from lightning_core import rollout

TRAIN = [{"question": f"{n} + {n}", "answer": 2 * n} for n in range(20)]
VAL = [{"question": f"{n} + {n}", "answer": 2 * n} for n in range(100, 200)]
TEST = [{"question": f"{n} + {n}", "answer": 2 * n} for n in range(200, 300)]


@rollout
async def add(task, prompt_template):
    prompt = prompt_template.format(question=task["question"])  # call your model here
    can = task["answer"] % 10 < 8 if "carefully" in prompt else task["answer"] % 10 < 4
    return float(can)
