"""Measuring an endpoint. Runs on the rig as `python -m evals`; imports `rigs.errors`, `rigs.serving`, `rigs.facts` only."""
