"""Checks that the default tests catch a list of bugs.

Each mutation replaces one piece of source text. The script applies it to a copy
of the tree, runs the named tests, and expects a failure:

  python tests/mutations.py            all mutations, about 20 minutes
  python tests/mutations.py fire mask  those whose file or text contains a word
  python tests/mutations.py --list     checks only that every text is found once

The exit status is 1 if a mutation is not caught or its text is not found.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent
# File below lengen_jax, text, replacement, tests that must fail.
MUTATIONS = (
  # Positions.
  (
    'positions/base.py',
    'segment_ids[:, 1:] != segment_ids[:, :-1]',
    'segment_ids[:, 1:] > segment_ids[:, :-1]',
    'positions/base_test.py',
  ),
  (
    'positions/base.py',
    'return index + from_end + 1',
    'return index + from_end',
    'positions/base_test.py',
  ),
  (
    'positions/interpolated.py',
    'jnp.minimum(1.0, train_length / lengths)',
    'train_length / lengths',
    'positions/interpolated_test.py',
  ),
  (
    'positions/randomized.py',
    'value + i, 0, max(size - 1, 0)',
    'value, 0, max(size - 1, 0)',
    'positions/randomized_test.py',
  ),
  (
    'positions/shifted.py',
    "{'start': base.per_segment(start, i)}",
    "{'start': start}",
    'positions/shifted_test.py',
  ),
  (
    'positions/randomized.py',
    "_sorted(draws['uniform'], i, lengths)",
    "jnp.sort(draws['uniform'], axis=1)",
    'positions/randomized_test.py',
  ),
  (
    'positions/abacus.py',
    'jnp.where(first_BxL, column_BxL - 1, -1)',
    'jnp.where(column_BxL < 1, column_BxL - 1, -1)',
    'positions/abacus_test.py',
  ),
  (
    'positions/abacus.py',
    'first_BxL |= base.segment_positions(segment_ids) == 0',
    'pass',
    'positions/abacus_test.py',
  ),
  (
    'positions/coupled.py',
    'return 1 + base.per_segment(below_BxL, i)',
    'return 1 + below_BxL',
    'positions/coupled_test.py',
  ),
  (
    'positions/coupled.py',
    'jax.random.fold_in(rng, row) for row',
    'rng for row',
    'positions/coupled_test.py',
  ),
  (
    'positions/pose.py',
    '(lengths - first + 1) // left',
    '(lengths - first) // left',
    'positions/pose_test.py',
  ),
  (
    'positions/parts.py',
    'rng = jax.random.fold_in(self.checked_key(rng), 1)',
    'rng = self.checked_key(rng)',
    'positions/parts_test.py',
  ),
  (
    'encodings/absolute.py',
    'in zip(self.tables, rows, strict=True)',
    'in zip(self.tables[::-1], rows, strict=True)',
    'encodings/absolute_test.py',
  ),
  (
    'models/cache.py',
    'lengths=self.planned, tokens=tokens)',
    'lengths=self.planned, tokens=self.tokens)',
    'models/assign_test.py',
  ),
  (
    'models/assign.py',
    'equal_rows and not (part.needs_tokens or part.needs_roles)',
    'equal_rows',
    'models/assign_test.py',
  ),
  (
    'models/blocks.py',
    'positions = tokens.at_input(decoding=cache is not None)',
    'positions = tokens.layer(0).positions',
    'models/assign_test.py',
  ),
  (
    'models/layers.py',
    'at = jnp.maximum(index_B - 1, 0)[:, None, None]',
    'at = index_B[:, None, None]',
    'models/cache_test.py',
  ),
  (
    'positions/tokens.py',
    'return jnp.broadcast_to(ends - 1, shape)',
    'return jnp.broadcast_to(ends, shape)',
    'models/layers_test.py attention/scaling_test.py models/encoder_test.py',
  ),
  (
    'positions/contextual/base.py',
    'segment_ids = segment_ids[:, ::-1]',
    'pass',
    'positions/contextual_test.py',
  ),
  (
    'positions/contextual/base.py',
    '(b[0] - back) + (a[1] + b[1])',
    '(b[0] - back)',
    'positions/contextual_test.py',
  ),
  # Encodings.
  (
    'encodings/terms.py',
    'jax.lax.dynamic_slice_in_dim(found, head, 1, axis=1)',
    'jax.lax.dynamic_slice_in_dim(found, 0, 1, axis=1)',
    'encodings/base_test.py',
  ),
  (
    'encodings/pope.py',
    'angles(positions, w_D) - delta',
    'angles(positions, w_D) + delta',
    'encodings/pope_test.py',
  ),
  (
    'encodings/alibi.py',
    '2.0 ** (-8 * np.arange(1, power + 1) / power)',
    '2.0 ** (-8 * np.arange(power) / power)',
    'encodings/alibi_test.py',
  ),
  (
    'encodings/t5.py',
    'bucket += reach >= threshold',
    'bucket += reach > threshold',
    'encodings/t5_test.py',
  ),
  (
    'encodings/t5.py',
    'bucket += buckets * (distances < 0)',
    'bucket += buckets * (distances > 0)',
    'encodings/t5_test.py',
  ),
  (
    'encodings/fire.py',
    "return jnp.log1p(params['c'][0] * x)",
    "return jnp.log1p(params['c'][0]) * x",
    'encodings/fire_test.py',
  ),
  (
    'encodings/fire.py',
    "i = jnp.maximum(i, params['threshold'][0])",
    "i = jnp.minimum(i, params['threshold'][0])",
    'encodings/fire_test.py',
  ),
  (
    'encodings/rotary.py',
    'self.base ** (-2 * k / self.rotary_dim)',
    'self.base ** (-k / self.rotary_dim)',
    'encodings/rotary_test.py',
  ),
  (
    'encodings/rotary.py',
    'return self.plain_frequencies() / self.scale',
    'return self.plain_frequencies() * self.scale',
    'encodings/rotary_test.py',
  ),
  # Attention.
  (
    'attention/visibility.py',
    'terms.append(k_index <= q_index)',
    'terms.append(k_index < q_index)',
    'attention/reference_test.py',
  ),
  (
    'attention/visibility.py',
    'near = q_index - k_index < mask.window',
    'near = q_index - k_index <= mask.window',
    'attention/reference_test.py',
  ),
  (
    'attention/visibility.py',
    'terms.append(q_segment_ids == k_segment_ids)',
    'terms.append(q_segment_ids >= k_segment_ids)',
    'attention/reference_test.py attention/blockwise_test.py',
  ),
  (
    'attention/visibility.py',
    'low = jnp.minimum(high, _block(first - before, block))',
    'low = jnp.minimum(high, _block(first, block))',
    'attention/blockwise_test.py',
  ),
  (
    'attention/encoded.py',
    'encoding.head_dim**-0.5 if scale is None else scale',
    'scale',
    'attention/encoded_test.py',
  ),
  (
    'attention/blockwise.py',
    'dkeys = _add_learned(dkeys, of_keys, j)',
    'dkeys = _add_learned(dkeys, of_keys, i)',
    'attention/blockwise_test.py',
  ),
  (
    'attention/sink_logits.py',
    "return -jnp.einsum('bhq",
    "return jnp.einsum('bhq",
    'attention/blockwise_test.py attention/fused_test.py',
  ),
  (
    'attention/blockwise.py',
    'y = y * rescale[..., None] +',
    'y = y +',
    'attention/blockwise_test.py',
  ),
  (
    'attention/blockwise.py',
    'ds = p * (dp - delta[i][..., None])',
    'ds = p * dp',
    'attention/blockwise_test.py',
  ),
  (
    'attention/blockwise.py',
    'jnp.moveaxis(delta_BxHxNxq, 2, 0) - dlse_NxBxHxq',
    'jnp.moveaxis(delta_BxHxNxq, 2, 0)',
    'encodings/bands_test.py',
  ),
  (
    'attention/bands.py',
    'nearest >= limits[1]',
    'nearest + 3 >= limits[1]',
    'encodings/bands_test.py',
  ),
  (
    'attention/pallas_tpu/kernels.py',
    'dk += dot(ds.astype(q.dtype), own_q, (1, 0))',
    'dk = dot(ds.astype(q.dtype), own_q, (1, 0))',
    'attention/fused_test.py',
  ),
  (
    'attention/pallas_tpu/kernels.py',
    'p.sum[row] = before * factor + added',
    'p.sum[row] = before + added',
    'attention/fused_test.py',
  ),
  (
    'attention/scaling.py',
    '_log(n) / math.log(self.train_length)',
    '_log(n) / math.log2(self.train_length)',
    'attention/scaling_test.py',
  ),
  # Models.
  (
    'models/stacking.py',
    "unrolled[f'layer_{cycle * len(blocks) + j}']",
    "unrolled[f'layer_{cycle + j * len(leaves[0])}']",
    'models/stacking_test.py',
  ),
  (
    'models/blocks.py',
    "norms.create(c, f'{name}_norm')(x) if c.norm_placement == 'post' else x",
    'x',
    'models/encoder_test.py models/transformer_test.py interop/hf_test.py',
  ),
  (
    'models/layers.py',
    'tokens.selected(), None, tokens.index[:, 0]',
    'tokens.selected(), None, tokens.index[:, 0] + 1',
    'models/cache_test.py',
  ),
  (
    'models/objective.py',
    "'weights': chosen.astype(jnp.float32)",
    "'weights': batch['weights']",
    'models/objective_test.py',
  ),
  # Tasks.
  (
    'tasks/chomsky/regular.py',
    'return (x[0] ^ x[n - 1])[None]',
    'return (x[0] ^ x[-1])[None]',
    'tasks/chomsky_test.py',
  ),
  (
    'tasks/retrieval/passkey.py',
    'start = draws.below(once[0], room + 1)',
    'start = draws.below(once[0], room)',
    'tasks/retrieval/passkey_test.py',
  ),
  (
    'tasks/retrieval/mqar.py',
    '.at[x].min(column)[x]',
    '.at[x].max(column)[x]',
    'tasks/retrieval/mqar_test.py',
  ),
  (
    'tasks/retrieval/niah.py',
    'jnp.lexsort((jax.random.bits(order_rng, (count,)), before))',
    'jnp.argsort(before)',
    'tasks/retrieval/niah_test.py',
  ),
  (
    'tasks/retrieval/aggregation.py',
    'jnp.tril(same, -1)',
    'same',
    'tasks/retrieval/aggregation_test.py',
  ),
  (
    'tasks/groups.py',
    'lambda a, b: table[a, b]',
    'lambda a, b: table[b, a]',
    'tasks/synthetic_test.py',
  ),
  (
    'tasks/crasp.py',
    'count += (n % 2 == 0) & (count >= n // 2)',
    'count += 0',
    'tasks/crasp_test.py',
  ),
  (
    'tasks/circuits.py',
    '> jnp.arange(x.shape[0])\n\n\nclass EndCircuit',
    '>= jnp.arange(x.shape[0])\n\n\nclass EndCircuit',
    'tasks/circuits_test.py',
  ),
  (
    'tasks/synthetic.py',
    'slot == n - 1, READ, kind',
    'slot == n, READ, kind',
    'tasks/synthetic_test.py',
  ),
  (
    'models/transduction.py',
    'if tags:',
    'if False:',
    'models/transduction_test.py',
  ),
  # Data.
  (
    'data/windows.py',
    'np.arange(0, len(document) - length, length)',
    'np.arange(0, len(document) - length + 1, length)',
    'data/windows_test.py',
  ),
  (
    'data/windows.py',
    'return range(index * share, (index + 1) * share)',
    'return range(share)',
    'data/windows_test.py',
  ),
  (
    'data/windows.py',
    "'targets': tokens[:, 1:],",
    "'targets': tokens[:, :-1],",
    'data/windows_test.py',
  ),
  (
    'data/windows.py',
    'np.random.Philox([self.seed, epoch])',
    'np.random.Philox([self.seed])',
    'data/windows_test.py',
  ),
  (
    'data/readers.py',
    'first = span.line + 1 if span else 1',
    'first = 1',
    'data/sources_test.py',
  ),
  (
    'data/readers.py',
    'if span and offset >= span.stop',
    'if span and offset > span.stop',
    'data/sources_test.py',
  ),
  (
    'data/encode.py',
    'if some and filled + size > _PIECE_BYTES:',
    'if some and filled > _PIECE_BYTES:',
    'data/encode_test.py',
  ),
  (
    'data/encode.py',
    'repr((self.vocab.fingerprint, self.source, piece, self.skip))',
    'repr((self.source, piece, self.skip))',
    'data/encode_test.py',
  ),
  (
    'data/encode.py',
    'while len(sizes := np.load(file)):',
    'while file.peek(1) and len(sizes := np.load(file)):',
    'data/encode_test.py',
  ),
  (
    'data/encode.py',
    'if (error := self._answers.popleft()) is not None:',
    'if (error := self._answers.popleft()) is None:',
    'data/encode_test.py',
  ),
  (
    'data/encode.py',
    'yield Document(number, len(text), ids.astype(dtype))',
    'yield Document(number, len(text), ids)',
    'data/encode_test.py',
  ),
  (
    'data/mirror.py',
    "name in shards and shards[name]['sha256'] != sha256",
    'False',
    'data/mirror_test.py',
  ),
  (
    'data/prepare.py',
    "counts['piece'], counts['read'] = piece, read",
    "counts['piece'], counts['read'] = piece, 0",
    'data/prepare_test.py',
  ),
  (
    'locks.py',
    'fcntl.LOCK_EX | fcntl.LOCK_NB',
    'fcntl.LOCK_UN',
    'data/encode_test.py',
  ),
  (
    'data/prepare.py',
    'shutil.rmtree(folder / _PIECES, ignore_errors=True)',
    'pass',
    'data/encode_test.py',
  ),
  (
    'data/ruler/base.py',
    'room = setting.length - task.max_new',
    'room = setting.length',
    'data/ruler/ruler_test.py',
  ),
  (
    'data/ruler/base.py',
    'if found <= most:',
    'if found < most:',
    'data/ruler/ruler_test.py',
  ),
  (
    'data/ruler/niah.py',
    'key not in keys and key not in found',
    'key not in found',
    'data/ruler/ruler_test.py',
  ),
  (
    'data/ruler/niah.py',
    'len(parts) * depth // 100',
    '-(-len(parts) * depth // 100)',
    'data/ruler/ruler_test.py',
  ),
  (
    'data/ruler/variable_tracking.py',
    'VAR {before} ',
    'VAR {before}',
    'data/ruler/golden_test.py',
  ),
  (
    'data/ruler/words.py',
    'least = 53',
    'least = 52',
    'data/ruler/ruler_test.py',
  ),
  (
    'data/ruler/words.py',
    'setting.length < 4096',
    'setting.length < 16384',
    'data/ruler/ruler_test.py',
  ),
  # Evaluation.
  (
    'evaluation/length_curve.py',
    'loss = float(total_L.sum() / count_L.sum())',
    'loss = float((total_L / count_L).mean())',
    'evaluation/length_curve_test.py',
  ),
  (
    'evaluation/metrics/lm.py',
    "_per(nats, num_bytes, 'bytes') / math.log(2)",
    "_per(nats, num_bytes, 'bytes') * math.log(2)",
    'evaluation/metrics/lm_test.py',
  ),
  (
    'evaluation/metrics/lm.py',
    "len(text.split()) + text.count('\\n')",
    'len(text.split())',
    'evaluation/metrics/lm_test.py',
  ),
  (
    'evaluation/metrics/scrolls.py',
    'return _geometric_mean(rouge_components(predictions, references))',
    'return float(np.mean([*rouge_components(predictions, references).values()'
    ']))',
    'evaluation/metrics/scrolls_test.py',
  ),
  (
    'evaluation/metrics/ruler.py',
    'prediction).strip()',
    'prediction)',
    'evaluation/metrics/ruler_test.py',
  ),
  (
    'evaluation/metrics/ruler.py',
    'reference.lower() in text',
    'reference in text',
    'evaluation/metrics/ruler_test.py',
  ),
  (
    'evaluation/metrics/ruler.py',
    'average >= threshold',
    'average > threshold',
    'evaluation/metrics/ruler_test.py',
  ),
  # Training.
  (
    'training/ruler.py',
    'groups[ruler.TASKS[name].max_new]',
    'groups[128]',
    'training/ruler_test.py',
  ),
  (
    'training/ruler.py',
    'max(itertools.product(tasks, range(samples)), key=least)',
    'min(itertools.product(tasks, range(samples)), key=least)',
    'training/ruler_test.py',
  ),
  (
    'training/state.py',
    'jnp.where(finite, new, old)',
    'jnp.where(finite, new, new)',
    'training/faults_test.py',
  ),
  (
    'training/optimizer.py',
    "entry.key.startswith('encoding')",
    "entry.key.startswith('no encoding')",
    'training/optimizer_test.py training/state_test.py',
  ),
  (
    'training/checksums.py',
    'jnp.sum(_lowbias(words + _murmur(~index)), dtype=jnp.uint32),',
    'jnp.sum(_lowbias(words), dtype=jnp.uint32),',
    'training/checksums_test.py',
  ),
  (
    'training/workdir.py',
    "mine[_CORPUS] = corpus_info['sha256']",
    "mine[_CORPUS] = ''",
    'training/workdir_test.py training/loop_test.py',
  ),
  (
    'training/files.py',
    'partial.replace(path)',
    'path.write_text(text)',
    'training/workdir_test.py training/faults_test.py',
  ),
  (
    'training/checkpoint_format.py',
    "if str(found['step']) != folder.name:",
    'if False:',
    'training/checkpoint_test.py training/corruption_test.py',
  ),
  (
    'training/faults.py',
    'self._received = True',
    'self._received = False',
    'training/faults_test.py training/loop_test.py',
  ),
  # Interop.
  (
    'interop/hf/layouts.py',
    'matrix.T if self._is_kernel(i) else matrix',
    'matrix if self._is_kernel(i) else matrix',
    'interop/hf_test.py',
  ),
  (
    'interop/hf/names.py',
    "('query', 'q'),",
    "('query', 'k'),",
    'interop/hf_test.py',
  ),
  # Analysis, reproduction, command.
  (
    'reproduce/claims.py',
    'variance = float(difference_W.var(ddof=1)) - noise',
    'variance = float(difference_W.var(ddof=1))',
    'reproduce/run_test.py',
  ),
  (
    'data/windows.py',
    'values.reshape(-1, len(self._windows)).sum(0)',
    'values.reshape(len(self._windows), -1).sum(1)',
    'evaluation/length_curve_test.py',
  ),
  (
    'reproduce/claims.py',
    "outcomes.append('holds' if test.mean > 0 else 'fails')",
    "outcomes.append('holds' if test.mean < 0 else 'fails')",
    'reproduce/run_test.py reproduce/experiments_test.py',
  ),
  (
    'training/runs.py',
    'own or default.positions',
    'own or default.encoding',
    'training/compare_test.py cli_test.py',
  ),
  (
    'specs.py',
    'if keyword.arg in kwargs:',
    'if False:',
    'specs_test.py',
  ),
  (
    'data/vocabulary/base.py',
    'np.repeat((0, 1), (offset, 256))',
    'np.ones(offset + 256, int)',
    'data/vocabulary/base_test.py',
  ),
  (
    'data/vocabulary/tokenizer.py',
    'found[number] = len(piece)',
    'found[number] = len(piece.encode())',
    'data/vocabulary/tokenizer_test.py',
  ),
  (
    'analysis/finding.py',
    "better = min if results['score'] == 'loss' else max",
    'better = max',
    'analysis/finding_test.py analysis/report_test.py',
  ),
)


def source(file):
  return (ROOT / 'lengen_jax' / file).read_text()


def is_caught(file, text, replacement, tests):
  """Returns whether a test fails in a copy of the tree with the mutation."""
  with tempfile.TemporaryDirectory() as folder:
    tracked = subprocess.run(
      ['git', 'ls-files', '-z'], cwd=ROOT, check=True, capture_output=True
    ).stdout.decode()
    for name in tracked.strip('\0').split('\0'):
      if (ROOT / name).is_file():
        copy = pathlib.Path(folder, name)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy)
    mutated = pathlib.Path(folder, 'lengen_jax', file)
    mutated.write_text(source(file).replace(text, replacement))
    done = subprocess.run(
      [
        *(sys.executable, '-m', 'pytest', '-x', '-q'),
        *(f'tests/{test}' for test in tests.split()),
      ],
      cwd=folder,
      env={**os.environ, 'PYTHONPATH': folder},
      capture_output=True,
      check=False,
    )
  # 1: tests ran and failed. 2: a test file could not be imported.
  if done.returncode not in (0, 1):
    print(done.stdout.decode()[-500:], done.stderr.decode()[-500:])
  return done.returncode == 1


def main(words):
  """Returns the exit status."""
  chosen = [
    mutation
    for mutation in MUTATIONS
    if '--list' in words
    or not words
    or any(word in ' '.join(mutation) for word in words)
  ]
  failures = 0
  for file, text, replacement, tests in chosen:
    label = f'{file}: {text[:60]!r}'
    if (count := source(file).count(text)) != 1:
      verdict = f'TEXT FOUND {count} TIMES'
    elif '--list' in words or is_caught(file, text, replacement, tests):
      verdict = 'found' if '--list' in words else 'caught'
    else:
      verdict = 'NOT CAUGHT'
    failures += verdict.isupper() or verdict.startswith('TEXT')
    print(f'{verdict:12} {label}', flush=True)
  print(f'{len(chosen)} mutations, {failures} failures')
  return bool(failures)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
