"""Evaluations of cost: throughput, memory, and the parts of profiles."""
