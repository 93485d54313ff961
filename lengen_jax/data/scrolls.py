"""The seven tasks of SCROLLS: questions about long documents, and summaries.

Shaham et al., 2022 (https://arxiv.org/abs/2201.03533). The benchmark
provides complete model inputs: question or hypothesis, then document.
"""

from collections.abc import Mapping
from typing import Any

from lengen_jax.data import prompts


def _rows(record: Mapping[str, Any]) -> list[prompts.Row]:
  # Test outputs are None in the raw files, '' in TensorFlow Datasets.
  return [prompts.Row(record['id'], record['input'], record['output'] or '')]


def _task(name: str, target_length: int, num_train: int) -> prompts.PromptTask:
  return prompts.PromptTask(
    name=f'scrolls/{name}',
    dataset=f'scrolls/{name}:1.0.0',
    fields=('id', 'input', 'output'),
    rows=_rows,
    target_length=target_length,
    num_train=num_train,
    folder=name,
  )


# Tasks by short name. The FIRE paper does not state the answer lengths; these
# are our choice. Numbers of records:
# https://www.tensorflow.org/datasets/catalog/scrolls. Each answer is a record,
# so that a question may have several records.
TASKS = {
  'contract_nli': _task('contract_nli', 16, 7_191),
  'gov_report': _task('gov_report', 1024, 17_457),
  'narrative_qa': _task('narrative_qa', 128, 55_003),
  'qasper': _task('qasper', 128, 2_567),
  'qmsum': _task('qmsum', 512, 1_257),
  'quality': _task('quality', 128, 2_523),
  'summ_screen_fd': _task('summ_screen_fd', 512, 3_673),
}
