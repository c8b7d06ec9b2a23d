"""The prompts we send: our own text."""
