"""verl without an accelerator: whoever trains on GPUs can skip this folder.

A platform, training engines and workers, a way for weights, and the options that belong to them. `hf`, which generates,
is beside it: GPUs can use it, too.
"""
