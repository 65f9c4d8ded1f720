"""verl's prints stay out of a run's standard output."""

import logging
import os
import sys
import threading
import warnings

import pytest
from lightning_verl.quiet import quiet_thread


def test_only_the_one_thread_is_silenced(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    is_inside, may_end = threading.Event(), threading.Event()

    def work() -> None:
        with quiet_thread():
            print("of verl", 1)
            is_inside.set()
            may_end.wait(20)
        print("after")

    with caplog.at_level(logging.DEBUG, logger="lightning_verl.quiet"):
        thread = threading.Thread(target=work)
        thread.start()
        is_inside.wait(20)
        print("of the run")
        may_end.set()
        thread.join()
    assert capsys.readouterr().out == "of the run\nafter\n"
    assert caplog.messages == ["lightning_verl.printed of verl 1"]


def test_nothing_of_it_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_LOGGING_LEVEL", "INFO")
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    variables, filters, output = dict(os.environ), list(warnings.filters), sys.stdout
    with quiet_thread():
        assert os.environ["TQDM_DISABLE"] == "1"
        assert os.environ["VERL_LOGGING_LEVEL"] == "INFO"
        assert list(warnings.filters) != filters
        warnings.filterwarnings("ignore", message="of somebody else")
    theirs, *others = warnings.filters
    assert theirs[1] is not None
    assert others == filters
    assert (dict(os.environ), sys.stdout) == (variables, output)
