"""Decoding a token at a time: the KV cache, how it stores numbers, prefill and steps."""
