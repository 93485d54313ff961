"""Text as token ids: corpora and how windows are cut from them."""

from lengen_jax.data.corpus import Corpus
from lengen_jax.data.corpus import load
from lengen_jax.data.windows import EvaluationWindows
from lengen_jax.data.windows import TrainingWindows

__all__ = ['Corpus', 'EvaluationWindows', 'TrainingWindows', 'load']
