"""Generation with Hugging Face's `generate`, in the place of vLLM: slow, and runs wherever torch does."""

NAME = "hf"
"""What it is called: `actor_rollout_ref.rollout.name`."""
