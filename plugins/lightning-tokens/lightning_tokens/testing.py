"""A model that is made in a second, for tests and for a first run without a network."""

import os
from collections.abc import Iterable
from pathlib import Path

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
