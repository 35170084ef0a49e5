"""Positional schemes past the training length."""
