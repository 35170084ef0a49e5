"""The execution of a sweep: the loop, workers, packs, limits and retries."""
