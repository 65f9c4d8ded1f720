import pytest
from lightning_tokens.sampling import Sampling


def test_what_nobody_says_is_as_the_model_has_it() -> None:
    assert Sampling.of({}, room=100, default_max_tokens=7) == Sampling(max_tokens=7)
    assert Sampling.of({"temperature": None, "top_k": -1}, room=100, default_max_tokens=7) == Sampling(max_tokens=7)


def test_an_answer_is_no_longer_than_asked_nor_than_fits() -> None:
    assert Sampling.of({"max_tokens": 5}, room=100, default_max_tokens=7).max_tokens == 5
    assert Sampling.of({"max_tokens": 500}, room=100, default_max_tokens=7).max_tokens == 100


def test_what_ends_an_answer_is_one_text_or_several() -> None:
    assert Sampling.of({"stop": "x"}, room=1, default_max_tokens=1).stop == ("x",)
    assert Sampling.of({"stop": ["x", "y"]}, room=1, default_max_tokens=1).stop == ("x", "y")


@pytest.mark.parametrize("given", [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.5}])
def test_numbers_out_of_range_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="temperature is at least 0 and top_p"):
        Sampling.of(given, room=1, default_max_tokens=1)
