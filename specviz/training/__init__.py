"""Recipes for the trained parts of a pair: target, draft model, Medusa heads, EAGLE head.

One command each, on CPU or CUDA: `python -m specviz.training --help`.
"""
