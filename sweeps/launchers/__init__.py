"""Launchers: local processes, Slurm, Ray, and the resources they give a run."""
