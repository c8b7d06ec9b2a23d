"""Renting rigs and giving them back: every decision about money. Imports `rigs`."""
