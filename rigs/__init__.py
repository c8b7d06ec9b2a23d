"""What a machine is and how a model is served on it. Imports nothing of ours."""
