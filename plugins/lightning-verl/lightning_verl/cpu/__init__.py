"""verl without an accelerator: a platform, training engines and workers that run on the machine's processor."""
