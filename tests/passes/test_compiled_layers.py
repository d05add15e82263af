"""Passes whose decoder layers are compiled: what they compute, what is joined, what cannot be."""
