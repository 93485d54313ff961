"""NoPE: no position encoding; order enters through the causal mask alone."""

from lengen_jax.encodings import base


class Nope(base.Encoding):
  """No position encoding.

  Source: Haviv et al. (2022), arXiv:2203.16634; Kazemnejad et al. (2023),
  arXiv:2305.19466.
  """

  formula = 'nothing; order only through the causal mask'
  source = 'arXiv:2203.16634'
  beyond = 'more keys than in training'
  takes_distances = True
