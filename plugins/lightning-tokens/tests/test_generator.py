"""Generation with transformers, on a tiny model."""

import gc
import json
import shutil
from pathlib import Path

import pytest
import torch
from lightning_tokens.batcher import Sampling
from lightning_tokens.generator import Generator
from lightning_tokens.testing import make_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def generator(model: Path) -> Generator:
    return Generator.load(str(model), seed=1)


def logprobs_of(generator: Generator, prompt: list[int], answer: list[int], temperature: float) -> list[float]:
    """Compute them the long way: one whole sequence, without a batch, a cache or padding."""
    ids = torch.tensor([[*prompt, *answer]])
    with torch.no_grad():
        logits = generator.model(ids).logits[0, len(prompt) - 1 : -1] / temperature
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(answer).unsqueeze(-1)).squeeze(-1).tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_whole_sequence_whatever_stands_beside_it(
    generator: Generator, temperature: float
) -> None:
    prompts = [[5, 6, 7], [9], [11, 12, 13, 14, 15, 16]]
    answers = generator.generate(prompts, Sampling(temperature=temperature, top_p=0.9, max_tokens=12))
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = logprobs_of(generator, prompt, answer.token_ids, temperature)
        assert answer.logprobs == pytest.approx(expected, abs=1e-5)


def test_without_a_temperature_the_likeliest_token_is_taken(generator: Generator) -> None:
    (first,) = generator.generate([[5, 6, 7]], Sampling(temperature=0, max_tokens=8))
    (second,) = generator.generate([[5, 6, 7]], Sampling(temperature=0, max_tokens=8))
    assert first == second
    with torch.no_grad():
        assert first.token_ids[0] == int(generator.model(torch.tensor([[5, 6, 7]])).logits[0, -1].argmax())


def test_what_the_model_s_author_likes_does_not_change_what_is_drawn(model: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(model, tmp_path / "model"))
    file = other / "generation_config.json"
    given = json.loads(file.read_text()) if file.exists() else {}
    liked = {"repetition_penalty": 5.0, "no_repeat_ngram_size": 1, "min_p": 0.003, "max_length": 7, "num_beams": 2}
    file.write_text(json.dumps({**given, "do_sample": True, "top_k": 3, "temperature": 0.2, **liked}))
    drawn = []
    for path in (model, other):
        one = Generator.load(str(path), seed=3)
        one.take(one.model.state_dict(), 1)
        drawn.append(one.generate([[5, 6, 7]] * 8, Sampling(max_tokens=24, ignore_eos=True)))
        drawn.append(one.generate([[5, 6, 7]], Sampling(temperature=0, max_tokens=24)))
    assert drawn[:2] == drawn[2:]
    assert any(len(set(answer.token_ids)) < len(answer.token_ids) for answer in drawn[2]), "tokens may come again"


def test_the_logits_of_one_place_are_kept_and_not_of_all(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are as wide as the vocabulary: of all places they would take more memory than the model."""
    kept: list[int] = []
    forward = generator.model.forward

    def watched(*args: object, **kwargs: object) -> object:
        shape = (2, generator.model.config.vocab_size)
        kept.append(sum(type(each) is torch.Tensor and each.shape == shape for each in gc.get_objects()))
        return forward(*args, **kwargs)

    monkeypatch.setattr(generator.model, "forward", watched)
    generator.generate([[5, 6, 7], [8]], Sampling(max_tokens=16, ignore_eos=True))
    assert len(kept) == 16
    assert max(kept) < 5


def test_an_answer_ends_with_the_token_that_ends_it(generator: Generator) -> None:
    end = generator.tokenizer.eos_token_id
    answers = generator.generate([[5]] * 60, Sampling(max_tokens=40))
    ended = [answer for answer in answers if answer.finish_reason == "stop"]
    assert ended
    for answer in ended:
        assert answer.token_ids.index(end) == len(answer.token_ids) - 1
        assert len(answer.logprobs) == len(answer.token_ids)
    assert all(len(answer.token_ids) == 40 for answer in answers if answer.finish_reason == "length")


def test_an_answer_ends_where_its_stop_is_complete(generator: Generator) -> None:
    (whole,) = generator.generate([[5, 6, 7]], Sampling(temperature=0, max_tokens=12))
    text = generator.tokenizer.decode(whole.token_ids)
    stop = text[len(text) // 2]
    (cut,) = generator.generate([[5, 6, 7]], Sampling(temperature=0, max_tokens=12, stop=(stop,)))
    assert cut.finish_reason == "stop"
    assert stop in generator.tokenizer.decode(cut.token_ids)
    assert stop not in generator.tokenizer.decode(cut.token_ids[:-1])
    assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]


def test_an_answer_ends_with_a_token_that_its_caller_names(generator: Generator) -> None:
    (whole,) = generator.generate([[5, 6, 7]], Sampling(temperature=0, max_tokens=12, ignore_eos=True))
    named = Sampling.of(
        {"temperature": 0, "stop_token_ids": whole.token_ids[4:5], "ignore_eos": True}, room=12, default_max_tokens=12
    )
    (cut,) = generator.generate([[5, 6, 7]], named)
    assert cut.finish_reason == "stop"
    assert cut.token_ids == whole.token_ids[: whole.token_ids.index(whole.token_ids[4]) + 1]


def test_an_abort_ends_a_batch_at_the_next_token(generator: Generator) -> None:
    tokens = iter(range(1000))
    answers = generator.generate([[5], [6]], Sampling(max_tokens=200), is_aborted=lambda _: next(tokens) >= 6)
    assert {answer.finish_reason for answer in answers} <= {"abort", "stop"}
    assert all(len(answer.token_ids) <= 4 for answer in answers)


def test_new_weights_are_taken_whole_or_not_at_all(model: Path, generator: Generator) -> None:
    other = Generator.load(str(model))
    assert other.fingerprint() == generator.fingerprint()
    weights = {name: weight + 0.1 for name, weight in other.model.state_dict().items()}
    other.take(weights)
    assert other.fingerprint() != generator.fingerprint()
    with pytest.raises(RuntimeError, match=r"missing \['lm_head.weight'\], unknown \['else'\]"):
        other.take(
            {**{name: each for name, each in weights.items() if name != "lm_head.weight"}, "else": torch.zeros(1)}
        )


def test_what_is_sampled_depends_on_the_version_and_not_on_what_was_sampled_before(model: Path) -> None:
    one, other = Generator.load(str(model), seed=5), Generator.load(str(model), seed=5)
    weights, sampling = one.model.state_dict(), Sampling(max_tokens=20)
    other.generate([[1], [2]], sampling)  # a run that was killed has sampled less
    drawn = []
    for generator, version in ((one, 3), (other, 3), (other, 4)):
        generator.take(weights, version)
        drawn.append(generator.generate([[5, 6, 7]], sampling)[0].token_ids)
    assert drawn[0] == drawn[1]
    assert drawn[1] != drawn[2]
