"""vLLM as a server of its own: started, ready, and stopped for sure."""
