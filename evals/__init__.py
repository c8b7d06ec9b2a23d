"""Measuring an endpoint. Runs on the rig as `python -m evals`.

Imports `rigs.errors`, `rigs.serving` and `rigs.facts` only.
"""
