"""Turning a report into something to look at; one module is one format."""
