"""Encodings inside other people's models: T5X, Flaxformer and NNX.

Each module here is imported by name, because each needs its own framework's
conventions: `from lengen_jax.interop import t5x`.
"""
