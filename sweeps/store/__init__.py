"""The stored state of a sweep directory: sweep.json, runs, jobs, leases and status. No JAX."""
