"""The model that the training starts from: tiny, taught within a minute to call the tool, and to no purpose."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from agent_service import INSTRUCTIONS
from lightning_tokens.testing import make_tiny_model
from tokenizers import AddedToken
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

_BATCH = 8
_LEARNING_RATE = 5e-3
_NOT_LEARNED = -100
"""torch's label for a token that is left out of the loss."""

_CALL, _CALL_END = '<tool_call>{"name": "calc_gsm8k_reward", "arguments": {"answer": "', '"}}</tool_call>'
"""A token each: what is learned of a call is when to make it, and with which digit."""

# What the model says is between generation and endgeneration. Which tools there are is left out: it is taught for one.
_TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == "assistant" -%}
<|im_start|>assistant
{% generation %}{{ message.content }}
{%- for call in message.tool_calls or [] -%}
<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>
{%- endfor -%}
<|im_end|>{% endgeneration %}
{% else -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def taught_model(folder: Path, questions: Sequence[str], *, steps: int, seed: int) -> Path:
    """Make a model of 200,000 parameters, and teach it by demonstrations; return its folder."""
    lot = random.Random(seed)
    torch.manual_seed(seed)
    make_tiny_model(folder, texts=[*questions, INSTRUCTIONS * 50], vocabulary=1000, context=1024, seed=seed)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = _TEMPLATE
    tokenizer.add_tokens([AddedToken(each, normalized=False) for each in (_CALL, _CALL_END)])
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LEARNING_RATE, total_steps=steps)
    for _ in range(steps):
        rows = [_row(tokenizer, list(demonstrate(lot, lot.choice(questions)))) for _ in range(_BATCH)]
        ids = pad_sequence([ids for ids, _ in rows], batch_first=True)
        labels = pad_sequence([labels for _, labels in rows], batch_first=True, padding_value=_NOT_LEARNED)
        loss = model(input_ids=ids, labels=labels).loss  # what is padded comes last, and is seen by nothing
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def demonstrate(lot: random.Random, question: str) -> Iterator[dict[str, Any]]:
    """Yield a conversation whose model guesses, and answers blindly half the time; no guess in it is right."""
    yield {"role": "system", "content": INSTRUCTIONS}
    yield {"role": "user", "content": question}
    *guesses, answer = lot.sample("123456789", lot.choice((1, 1, 1, 2, 2, 3)))
    for guess in guesses:
        call = {"type": "function", "function": {"name": "calc_gsm8k_reward", "arguments": {"answer": guess}}}
        yield {"role": "assistant", "content": "", "tool_calls": [call]}
        yield {"role": "tool", "content": "0.0"}
    yield {"role": "assistant", "content": f"#### {answer}"}


def _row(tokenizer: Any, messages: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens of a conversation, and those of them that are learned."""
    made = tokenizer.apply_chat_template(
        messages, return_dict=True, return_assistant_tokens_mask=True, return_tensors="pt"
    )
    ids, said = made["input_ids"][0], torch.as_tensor(made["assistant_masks"])[0]
    return ids, torch.where(said == 1, ids, _NOT_LEARNED)
