"""RoPE scalings on text and recall."""
