"""Evaluations of quality: loss and retrieval, at any length."""
