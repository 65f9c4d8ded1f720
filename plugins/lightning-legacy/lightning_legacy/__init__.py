"""What agentlightning 0.3 named or shaped otherwise: module paths, helpers, and subclasses with its methods only."""
