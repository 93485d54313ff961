"""Encodings inside other models, and other models' weights in this one.

`t5x`, `flaxformer` and `nnx` put encodings into models of these frameworks.
`hf` reads and writes checkpoints of transformers, `weights` files of this
package. `lm_eval` is a backend of the lm-evaluation-harness. Each module is
imported on first use, because each requires a different framework.
"""

from typing import TYPE_CHECKING

from lengen_jax import submodules

if not TYPE_CHECKING:
  __getattr__ = submodules.lazy(__name__)
