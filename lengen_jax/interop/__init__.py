"""Encodings inside other people's models, and other people's weights in ours.

Encodings go into T5X, Flaxformer and NNX. `weights` writes and reads files of
safetensors, `llama` reads checkpoints of Llama. Each module here is imported by
name, because each needs its own framework's conventions:
`from lengen_jax.interop import t5x`.
"""
