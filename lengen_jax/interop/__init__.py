"""Encodings inside other models, and other models' weights in this one.

`t5x`, `flaxformer` and `nnx` put encodings into models of these frameworks.
`hf` reads and writes checkpoints of transformers, `weights` files of this
package. `lm_eval` is a backend of the lm-evaluation-harness. Each module is
imported by name, `from lengen_jax.interop import t5x`, because each requires a
different framework.
"""
