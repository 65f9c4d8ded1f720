from train import arguments, options_to_resume


def test_a_run_is_gone_on_with_by_the_options_that_it_had() -> None:
    for options in ([], ["--steps=12", "--teaching-steps=3", "--seed=4", "--coin", "--runs-dir=a folder"]):
        given = arguments(options)
        resumed = arguments(options_to_resume(given, "run-1"))
        assert vars(resumed) == {**vars(given), "resume": "run-1"}
