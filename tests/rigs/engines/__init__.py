"""Engines: one test file each, found by its name."""
