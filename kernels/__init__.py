"""Operators of the models, tensors in and tensors out. Empty on purpose: transformers looks for a package of this name and finds ours."""
