"""What inference engines say about themselves: `/metrics` and `/v1/models`, one file for each engine's vocabulary."""
