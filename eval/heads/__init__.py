"""Evaluations of single heads."""
