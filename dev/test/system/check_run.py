#!/usr/bin/env python3
"""check_run.py WHAT ARGUMENT...: looks at the log, output, trace or weights of a run; exit status 0 if they are as they
have to be. WHAT is a function below."""
import json, os, re, sys

from checks import read_log, read_safetensors

NORM = float(os.environ.get('NORM', 1))  # gradient norms may be apart that many times what losses may
VALUE = int(os.environ.get('VALUE_BYTES', 4))  # bytes of a parameter or an activation

def same(a, b, bound, first=0):
    """Loss, validation loss and norm / NORM of every step after `first`: largest relative difference."""
    a, b = ([x for x in read_log(f) if x['step'] > int(first)] for f in (a, b))
    assert a and [x['step'] for x in a] == [x['step'] for x in b], 'other steps'
    worst = 0
    for x, y in zip(a, b):
        assert (x['val_loss'] is None) == (y['val_loss'] is None)
        for key in ('loss', 'val_loss', 'grad_norm'):
            if x[key] is None: continue
            apart = abs(x[key] - y[key]) / abs(x[key])
            worst = max(worst, apart / NORM if key == 'grad_norm' else apart)
    assert worst <= float(bound), f'{worst:.1e}'
    print(f'{worst:.1e}, bound {float(bound):.0e}')

def skipped(folder):
    """Lines are JSON, whatever the losses are."""
    lines = read_log(folder)
    for x in lines:
        assert ('skipped' in x) == (x['loss'] is None or x['grad_norm'] is None), x
    print(f'{len(lines)} lines, {sum("skipped" in x for x in lines)} skipped')

def keys(folder):
    expected = 'step loss val_loss grad_norm lr tokens step_ms tokens_per_s mfu comm_bytes bubble peak_mem_bytes'
    lines = read_log(folder)
    for x in lines:
        assert ' '.join(x) == expected, list(x)
        assert list(x['comm_bytes']) == ['tp', 'pp', 'dp'], x['comm_bytes']
        assert x['tokens'] == 8 * 32 and x['peak_mem_bytes'] > 1e6 and x['step_ms'] > 0
        assert x['comm_bytes'] == lines[0]['comm_bytes'], 'a step sends what the one before has sent'
    print(f'{len(lines)} lines')

def traffic(out, folder, t, p, d, options):
    """The bytes of log.jsonl, the table at the end and its formulas agree; and with the papers' formulas, here."""
    t, p, d, text = int(t), int(p), int(d), open(out).read()
    rows = re.findall(r'^  (?:         +together|pipeline .*|data .*?) +([\d.]+) +([\d.]+)$', text, re.M)
    groups = [name for name, n in (('tp', t), ('pp', p), ('dp', d)) if n > 1]
    assert len(rows) == len(groups), rows
    counted = read_log(folder)[-1]['comm_bytes']
    for (a, b), name in zip(rows, groups):
        assert a == b, f'{name}: {a} MB counted, {b} by formula'
        assert abs(float(a) * 1e6 - counted[name]) <= 501, (name, a, counted)
    tokens, C, L, V, T = 8 * 32, 32, 4, 256, 32
    tied = 2 * 4 * V * C * d if p > 1 else 0 # all-reduce over two stages, on each of their ranks 2 (2-1)/2
    if 'zero' in options and p > 1: tied //= d
    parts = t if t > 1 and 'no-scatter-gather' not in options or 'sequence' in options else 1
    boundary = VALUE * tokens * C * 2 * (p - 1) * t // parts # forth and back
    assert abs(counted['pp'] - (boundary + tied)) <= 0.02 * tied, ('pp', counted['pp'], boundary, tied)
    layers = VALUE * 8 * tokens * C * (t - 1) * L # 8 b s h (t-1)/t on each of t ranks
    halves = (10, 13) if 'sequence' in options else (8, 10) # gatherings and scatterings; a sum is two
    layers = layers * halves['full' in options] // 8
    assert layers <= counted['tp'] <= 1.25 * layers, ('tp', counted['tp'], layers)
    parameters = L * (12 * C * C + 13 * C) + V * C + T * C + 2 * C + (V * C if p > 1 else 0) # a tied head: twice
    sums = 8 // d if 'zero 2' in options else 1 # of gradients, in float32: with ZeRO 2 of each micro-batch
    gathered = VALUE if 'zero' in options else 4 # parameters
    data = (4 * sums + gathered) * (d - 1) * parameters # over all shares of the model, which are t p
    assert data <= counted['dp'] <= 1.25 * data, ('dp', counted['dp'], data)
    print(counted)

def trace(path, t, p, d, m, steps):
    """One process a rank; every stage has a span of each pass over each micro-batch, in its order; and waits."""
    t, p, d, m, steps = int(t), int(p), int(d), int(m), int(steps)
    events = json.load(open(path))['traceEvents']
    names = {e['pid']: e['args']['name'] for e in events if e['name'] == 'process_name'}
    assert sorted(names) == list(range(t * p * d)), names
    tracks = {(e['pid'], e['tid']): e['args']['name'] for e in events if e['name'] == 'thread_name'}
    spans = [e for e in events if e['ph'] == 'X']
    assert all(e['dur'] >= 0 for e in spans)
    for rank in names:
        stage = rank // (t * d)
        assert names[rank] == f'rank {rank}: t {rank % t} p {stage} d {rank // t % d}', names[rank]
        mine = sorted((e for e in spans if e['pid'] == rank), key=lambda e: e['ts'])
        compute = [e for e in mine if tracks[rank, e['tid']] == 'compute']
        for what in ('forward', 'backward'):
            found = [e['name'] for e in compute if e['name'].startswith(what)]
            assert found == [f'{what} {k}' for k in range(m)] * steps, (rank, found)
        assert sum(e['name'] == 'update' for e in compute) == steps
        tied = p > 1 and stage in (0, p - 1)
        ends = ['reduce', 'tie', 'norm', 'update', 'update tied'] if tied else ['reduce', 'norm', 'update']
        assert [e['name'] for e in compute][-len(ends):] == ends, (rank, [e['name'] for e in compute])
        assert [e['name'] for e in mine if tracks[rank, e['tid']] == 'step'] == [f'step {k + 1}' for k in range(steps)]
        passes = [e['name'][0] for e in compute if e['name'].split()[0] in ('forward', 'backward')]
        assert passes.index('b') == min(m, p - stage), (rank, passes) # of 1F1B
        for a, b in zip(compute, compute[1:]): assert a['ts'] + a['dur'] <= b['ts'] + 0.002, 'two at once'
        assert any(tracks[rank, e['tid']] == 'wait' for e in mine), f'rank {rank} never waits'
        sends = [e for e in mine if e['name'].startswith('send') and tracks[rank, e['tid']] != 'wait'] # named so too
        assert len(sends) == m * steps * ((stage > 0) + (stage < p - 1)), (rank, len(sends))
    begins = [tuple(e['ts'] for e in spans if e['pid'] == rank) for rank in names]
    assert len(set(begins)) == len(names), 'two ranks have the same spans'
    print(f'{len(spans)} spans')

def chunks(path, p, v, m, steps, halves):
    """Every stage has spans of both passes of every micro-batch through each of its chunks, in order."""
    p, v, m, steps = int(p), int(v), int(m), int(steps)
    file = json.load(open(path))
    events, about = file['traceEvents'], file['otherData']
    assert (about['p'], about['v'], about['m']) == (p, v, m), about
    for rank in range(p):
        spans = sorted((e for e in events if e['ph'] == 'X' and e['pid'] == rank), key=lambda e: e['ts'])
        for chunk in range(v):
            prefix = f'chunk {chunk} ' if v > 1 else ''
            mine = [e['name'][len(prefix):] for e in spans if e['name'].startswith(prefix)]
            for what in ['forward', *(['backward'] if halves == 'whole' else
                                      ['backward input half', 'backward weight half'])]:
                found = [n for n in mine if n.rsplit(' ', 1)[0] == what]
                assert found == [f'{what} {k}' for k in range(m)] * steps, (rank, chunk, found)
            assert mine.count('reduce') == steps and mine.count('update') == steps, mine
    print(f'{p} stages of {v} chunks')

def plan(out, t, p, d, L, C, V, T, zero):
    """The sum of the ranks' "params": every tensor as often as it is held, VALUE bytes each. Moments: two of each, and
    of 16 bits a float32 copy, in d parts with ZeRO. Gradients: 4 bytes for each of the parameters (ZeRO 2, which has
    two buckets and shares, is not looked at)."""
    t, p, d, L, C, V, T, zero = map(int, (t, p, d, L, C, V, T, zero))
    row = re.compile(r'^  (\d+)' + r' +(\d+)' * 3 + r' +(\d+)\.\.(\d+)' + r' +([\d.]+)' * 3, re.M)
    rows = row.findall(open(out).read())
    assert [int(r[0]) for r in rows] == list(range(t * p * d)), rows
    assert all(int(r[1]) + t * (int(r[3]) + d * int(r[2])) == int(r[0]) for r in rows), 'coordinates'
    assert sorted({(int(r[5]) + 1 - int(r[4])) for r in rows}) == [L // p], 'layers'
    cut, whole = 12 * C * C + 7 * C, 6 * C # of a block: matrices, biases of qkv and fc; norms, biases of projections
    held = d * (L * (cut + t * whole) + (2 if p > 1 else 1) * V * C + t * T * C + t * 2 * C)
    found = sum(float(r[6]) for r in rows)
    assert abs(found - VALUE * held / 1e6) <= len(rows) * 0.06, (found, VALUE * held / 1e6) # each is rounded to 0.1
    for r in rows:
        params, grads, moments = map(float, r[6:9]) # rounded to 0.1
        floats, half, kept = 4 / VALUE * params, 0.05 * 4 / VALUE, 2 if VALUE == 4 else 3
        assert abs(moments - kept * floats / (d if zero else 1)) < 0.06 + kept * half, r
        assert abs(grads - floats - (floats / d if zero else 0)) < 0.06 + 1.5 * half, r
    print(f'{found:.1f} MB, {VALUE * held / 1e6:.1f} expected')

def weights(a, b, bound):
    """Two model.safetensors: the same header, every number equal to bound x the largest of its tensor."""
    a, b = map(read_safetensors, (a, b))
    headers = [[(name, dtype, shape) for name, (dtype, shape, _) in x.items()] for x in (a, b)]
    assert headers[0] == headers[1], 'other headers'
    worst = 0
    for name in a:
        u, v = (x[name][2].cast('f') for x in (a, b))
        worst = max(worst, max(abs(i - j) for i, j in zip(u, v)) / max(map(abs, u)))
    assert worst <= float(bound), f'{worst:.1e}'
    print(f'{worst:.1e}, bound {float(bound):.0e}')

globals()[sys.argv[1]](*sys.argv[2:])
