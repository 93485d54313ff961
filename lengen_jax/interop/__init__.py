"""Encodings inside other models, and other models' weights in this one.

`t5x`, `flaxformer` and `nnx` put encodings into models of these frameworks.
`weights` reads and writes safetensors files, `llama` reads Llama checkpoints.
Each module is imported by name, `from lengen_jax.interop import t5x`, because
each requires a different framework.
"""
