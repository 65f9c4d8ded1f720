import pytest
from question_agent import grade, last_option


@pytest.mark.parametrize(
    ("reply", "option"),
    [
        ("(B)", "(B)"),
        ("(0) At the start: Alice has (A). So the answer is (C).", "(C)"),
        ("Since (3, -6) is not (0, 0), we are not where we started. So the answer is No.", "No"),
        ("Nobody knows.", None),
        ("", None),
    ],
)
def test_the_last_option_of_a_reply_is_its_answer(reply: str, option: str | None) -> None:
    assert last_option(reply) == option


@pytest.mark.parametrize(
    ("reply", "reward", "remark"),
    [
        ("(B)", 1.0, "The answer is right."),
        ("(A)", 0.0, "The last option that the reply names is (A); right is (B)."),
        ("I do not know.", 0.0, "The reply names no option, such as (A) or Yes."),
    ],
)
def test_only_the_right_option_is_rewarded(reply: str, reward: float, remark: str) -> None:
    assert grade(reply, "(B)") == (reward, remark)
