"""Evaluations of cost: throughput, memory, and what profiles are read from."""
