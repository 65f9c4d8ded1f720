"""Generation with Hugging Face's `generate`, in the place of vLLM: slow, and runs wherever torch does."""
