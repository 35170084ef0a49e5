"""What a model is made of, without JAX: every parameter, and the FLOPs and cache of every registered choice.

The modules are built from these declarations, and counts, weight decay, casting, sharding and head surgery read them.
"""
