"""The model that the training starts from: tiny, and taught to speak within a minute or two on a processor."""

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from calculating_agent import MAX_TOKENS, read_expression
from calculator import evaluate
from demonstrations import CHAT_TEMPLATE, demonstrate, in_pieces
from lightning_tokens import parse_hermes
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from word_problems import Pair, Problem

_PAD, _START, _END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_CALL = ("<tool_call>", "</tool_call>")
_NOT_LEARNED = -100
"""torch's label for a token that is left out of the loss."""

_THREADS = 1
"""Of torch: for a model this small, more of them cost more than they bring."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the model is made of."""

    seed: int = 0
    steps: int = 600
    batch: int = 32
    learning_rate: float = 4e-3
    vocabulary: int = 300
    hidden_size: int = 64
    layers: int = 2
    context: int = 256


def taught_model(
    root: Path, recipe: Recipe, *, without: Collection[Pair] = (), progress: Callable[[int], None] = lambda step: None
) -> Path:
    """Return the folder of the model. It is made where it is not there yet.

    Args:
        root: The folder of such models. The name of each says what it was made of.
        recipe: What it is made of.
        without: Pairs of numbers that it must not have seen.
        progress: Is told how many steps are done.
    """
    folder = root / f"taught-{_digest(recipe, without)}"
    if folder.is_dir():
        return folder
    tokenizer, model = _teach(recipe, without, progress)
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
    tokenizer.save_pretrained(unfinished)
    model.save_pretrained(unfinished)
    unfinished.rename(folder)
    return folder


def well_formed_calls(folder: Path, problems: Sequence[Problem], *, seed: int) -> list[bool]:
    """Ask a model problems, and say of each answer whether it is one call of the calculator that works.

    Tokens are drawn at temperature 1, as in training.
    """
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": problem["question"]}], tokenize=False, add_generation_prompt=True
        )
        for problem in problems
    ]
    given = tokenizer(prompts, padding=True, return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        output = model.generate(
            input_ids=given["input_ids"],
            attention_mask=given["attention_mask"],
            do_sample=True,
            temperature=1.0,
            top_k=0,
            max_new_tokens=MAX_TOKENS,
        )
    said = tokenizer.batch_decode(output[:, given["input_ids"].shape[1] :], skip_special_tokens=True)
    return [_is_well_formed(each) for each in said]


def _is_well_formed(said: str) -> bool:
    rest, calls = parse_hermes(said)
    if rest or len(calls) != 1:
        return False
    try:
        evaluate(read_expression(calls[0]["function"]["name"], calls[0]["function"]["arguments"]))
    except ValueError:
        return False
    return True


def _digest(recipe: Recipe, without: Collection[Pair]) -> str:
    """Tell models apart in a few characters, by all that they are made of."""
    sources = [Path(__file__).with_name(name) for name in ("demonstrations.py", "taught_model.py", "word_problems.py")]
    what = json.dumps([asdict(recipe), sorted(without), torch.__version__])
    return hashlib.sha256(what.encode() + b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]


def _teach(recipe: Recipe, without: Collection[Pair], progress: Callable[[int], None]) -> tuple[Any, Any]:
    lot = random.Random(recipe.seed)
    torch.manual_seed(recipe.seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(_THREADS)
    try:
        tokenizer = _make_tokenizer(recipe, lot)
        model = _make_model(recipe, tokenizer)
        optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95))
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, recipe.learning_rate, total_steps=recipe.steps, pct_start=0.1
        )
        for step in range(1, recipe.steps + 1):
            rows = [_row(tokenizer, lot, without) for _ in range(recipe.batch)]
            loss = model(**_padded(rows, tokenizer.pad_token_id)).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            progress(step)
    finally:
        torch.set_num_threads(threads)
    return tokenizer, model.eval()


def _make_tokenizer(recipe: Recipe, lot: random.Random) -> Any:
    """Make a tokenizer of words and single digits: numbers are copied digit by digit."""
    words = Tokenizer(BPE())
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split(Regex(r" ?[^\s\d.?]+|\n|[.?]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    words.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(vocab_size=recipe.vocabulary, special_tokens=[_PAD, _START, _END], show_progress=False)
    texts = ("".join(text for text, _ in in_pieces(demonstrate(lot))) for _ in range(500))
    words.train_from_iterator(texts, trainer)
    words.add_tokens([AddedToken(each, normalized=False) for each in _CALL])
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token=_END, pad_token=_PAD, chat_template=CHAT_TEMPLATE)


def _make_model(recipe: Recipe, tokenizer: Any) -> Any:
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=recipe.hidden_size,
            intermediate_size=2 * recipe.hidden_size,
            num_hidden_layers=recipe.layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=recipe.context,
            tie_word_embeddings=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
    )


def _row(tokenizer: Any, lot: random.Random, without: Collection[Pair]) -> tuple[list[int], list[int]]:
    """Return the tokens of a demonstration, and which of them are learned."""
    ids: list[int] = []
    labels: list[int] = []
    for text, is_said in in_pieces(demonstrate(lot, without=without)):
        tokens = tokenizer.encode(text, add_special_tokens=False)
        ids += tokens
        labels += tokens if is_said else [_NOT_LEARNED] * len(tokens)
    return ids, labels


def _padded(rows: Sequence[tuple[list[int], list[int]]], pad: int) -> dict[str, Any]:
    width = max(len(ids) for ids, _ in rows)

    def filled(values: list[int], filling: int) -> list[int]:
        return values + [filling] * (width - len(values))

    return {
        "input_ids": torch.tensor([filled(ids, pad) for ids, _ in rows]),
        "attention_mask": torch.tensor([filled([1] * len(ids), 0) for ids, _ in rows]),
        "labels": torch.tensor([filled(labels, _NOT_LEARNED) for _, labels in rows]),
    }
