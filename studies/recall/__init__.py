"""Key-value recall by width, pairs and length."""
