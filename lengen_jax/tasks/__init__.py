"""Tasks generated on the device: random inputs and their exact answers."""

from lengen_jax import errors, specs
from lengen_jax.tasks import algorithmic, circuits, crasp, groups, synthetic
from lengen_jax.tasks.arithmetic import (
  addition,
  multiplication,
  parity,
  subtraction,
)
from lengen_jax.tasks.base import Task
from lengen_jax.tasks.chomsky import cs, dcf, regular
from lengen_jax.tasks.retrieval import aggregation, mqar, niah, passkey

__all__ = ['TASKS', 'Task', 'create', 'names', 'register']

TASKS: dict[str, dict[str, type[Task]]] = {
  'chomsky': {
    'even_pairs': regular.EvenPairs,
    'modular_arithmetic': regular.ModularArithmetic,
    'parity_check': regular.ParityCheck,
    'cycle_navigation': regular.CycleNavigation,
    'stack_manipulation': dcf.StackManipulation,
    'reverse_string': dcf.ReverseString,
    'modular_arithmetic_brackets': dcf.ModularArithmeticBrackets,
    'solve_equation': dcf.SolveEquation,
    'duplicate_string': cs.DuplicateString,
    'missing_duplicate_string': cs.MissingDuplicateString,
    'odds_first': cs.OddsFirst,
    'binary_addition': cs.BinaryAddition,
    'binary_multiplication': cs.BinaryMultiplication,
    'compute_sqrt': cs.ComputeSqrt,
    'bucket_sort': cs.BucketSort,
  },
  'algorithmic': {
    'copy': algorithmic.Copy,
    'reverse': algorithmic.Reverse,
    'sort': algorithmic.Sort,
    'sum': algorithmic.Sum,
  },
  'arithmetic': {
    'addition': addition.Addition,
    'subtraction': subtraction.Subtraction,
    'multiplication': multiplication.Multiplication,
    'parity': parity.Parity,
  },
  'retrieval': {
    'passkey': passkey.Passkey,
    'niah_single_1': niah.NiahSingle_1,
    'niah_single_2': niah.NiahSingle_2,
    'niah_single_3': niah.NiahSingle_3,
    'niah_multikey_1': niah.NiahMultikey_1,
    'niah_multikey_2': niah.NiahMultikey_2,
    'niah_multikey_3': niah.NiahMultikey_3,
    'niah_multivalue': niah.NiahMultivalue,
    'niah_multiquery': niah.NiahMultiquery,
    'vt': aggregation.Vt,
    'cwe': aggregation.Cwe,
    'fwe': aggregation.Fwe,
    'mqar': mqar.Mqar,
    'forgetting_mqar': mqar.ForgettingMqar,
    'compositional_mqar': mqar.CompositionalMqar,
  },
  'synthetic': {
    'flip_flop': synthetic.FlipFlop,
    'selective_copying': synthetic.SelectiveCopying,
    'induction_heads': synthetic.InductionHeads,
    'associative_recall': synthetic.AssociativeRecall,
    's5': groups.S5,
    'a5': groups.A5,
    'z60': groups.Z60,
    'parity': circuits.Parity,
    'majority': circuits.Majority,
    'vocab_majority': circuits.VocabMajority,
    'cumulative_parity': circuits.CumulativeParity,
    'cumulative_majority': circuits.CumulativeMajority,
  },
  'crasp': {
    'bin_majority': crasp.BinMajority,
    'majority': crasp.Majority,
    'bin_majority_interleave': crasp.BinMajorityInterleave,
    'unique_copy': crasp.UniqueCopy,
    'sort': crasp.Sort,
    'repeat_copy': crasp.RepeatCopy,
    'parity': crasp.Parity,
    'addition': crasp.Addition,
  },
}


def names() -> list[str]:
  """Returns the names of all tasks, `family/name`."""
  return [f'{family}/{name}' for family in TASKS for name in TASKS[family]]


def register(name: str, task: type[Task]) -> None:
  """Registers a Task class as `family/name`, for use in specs.

  Raises:
    errors.SpecError: not a Task class, or the name is taken or malformed.
  """
  family, _, short = name.partition('/')
  if not family.isidentifier():
    raise errors.SpecError(f'task name must be family/name, got {name!r}')
  entries = TASKS.get(family, {})
  specs.register(f'{family} task', entries, short, task, Task)
  TASKS[family] = entries


def create(spec: str) -> Task:
  """Creates a task from `family/name` or `family/name(key=value, ...)`.

  Raises:
    errors.SpecError: unknown name or key, or a value out of range.
  """
  family, slash, entry = str(specs.imported(spec)).strip().partition('/')
  if family not in TASKS or not slash:
    raise errors.SpecError(errors.one_of('task', spec, names()))
  return specs.build(f'{family} task', TASKS[family], entry)
