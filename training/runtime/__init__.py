"""The runtime: processes, how JAX starts and compiles, and what fails."""
