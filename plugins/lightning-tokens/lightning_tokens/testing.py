"""A model that is made in a second, and what it can be taught: for tests and for a first run without a network."""

import argparse
import json
import os
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from lightning_core.types import LLM

_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_PAD, _START, _END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"


def make_tiny_model(
    folder: str | os.PathLike[str],
    *,
    texts: Iterable[str] = ("say the letter a please system user assistant",),
    vocabulary: int = 300,
    hidden_size: int = 64,
    layers: int = 2,
    context: int = 512,
    seed: int = 0,
) -> Path:
    """Write a Qwen2 with random weights, and a byte-level tokenizer with a chat template.

    It knows nothing. With the defaults it has about 110,000 parameters.

    Args:
        folder: Where to; it is made.
        texts: What the tokenizer learns its merges from.
        vocabulary: The most tokens.
        hidden_size: The width; a multiple of 16.
        layers: The depth.
        context: The longest sequence.
        seed: Of the weights.

    Returns:
        The folder.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
    from transformers.utils import logging

    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[_PAD, _START, _END],
        show_progress=False,
    )
    words.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token=_END, pad_token=_PAD, chat_template=_TEMPLATE)
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(path)
    set_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    had_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # there is one file
    Qwen2ForCausalLM(config).save_pretrained(path)
    if had_bars:
        logging.enable_progress_bar()
    return path


def letter_tasks(begin: int, end: int) -> list[dict[str, int]]:
    """Return tasks for `say_letters`, by their numbers."""
    return [{"number": number} for number in range(begin, end)]


def say_letters(task: Mapping[str, Any], llm: LLM, *, turns: int = 2) -> float:
    """Ask for the letter a, as any program would; return its share of what the model said.

    Args:
        task: One of `letter_tasks`.
        llm: The model.
        turns: How many turns the conversation has.
    """
    messages = [{"role": "user", "content": f"say the letter a please {task['number']}"}]
    said = ""
    for _ in range(turns):
        body = {"model": llm.model, "messages": messages, "max_tokens": 12}
        headers = {"content-type": "application/json", "authorization": f"Bearer {llm.api_key}"}
        request = urllib.request.Request(f"{llm.endpoint}/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=300) as response:
            text = str(json.load(response)["choices"][0]["message"]["content"])
        said += text
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "say the letter a please"}]
    return said.count("a") / max(len(said), 1)


def run_checks(
    program: str, about: str | None, stages_of: Callable[[str], Mapping[str, Callable[[Path], str]]], *, device: str
) -> int:
    """Run what the command line names, a line a stage; return the exit status, 0 where all have passed.

    Args:
        program: How it is called.
        about: What it does, for `--help`.
        stages_of: Returns what there is for a device, by name: each is given a folder, and returns what it has shown,
            or raises.
        device: The default.
    """
    parser = argparse.ArgumentParser(prog=program, description=about)
    parser.add_argument("--device", default=device, help="as torch names it (default: %(default)s)")
    parser.add_argument("--only", help="the stages to run, with commas (default: all)")
    given = parser.parse_args()
    stages = stages_of(given.device)
    names = given.only.split(",") if given.only else list(stages)
    if unknown := sorted(set(names) - stages.keys()):
        parser.error(f"no stage {', '.join(unknown)} here; there are: {', '.join(stages)}")
    failed, root = 0, Path(tempfile.mkdtemp(prefix="check-"))
    for name in names:
        began, folder = time.monotonic(), root / name
        folder.mkdir()
        os.chdir(folder)
        try:
            said = f"ok      {stages[name](folder)}"
        except Exception as exc:
            failed, said = 1, f"FAILED  {type(exc).__name__}: {exc}"
        print(f"{name:12}{time.monotonic() - began:6.0f} s  {said}", flush=True)
    return failed
