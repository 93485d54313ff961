"""Reads Llama checkpoints; the former name of `lengen_jax.interop.hf`."""

from lengen_jax.interop.hf.checkpoint import load

__all__ = ['load']
