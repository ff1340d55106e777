"""Faults of the CUDA kernels and of device memory between ranks: a missing barrier or wait, an off-by-one, a wrong lane
or index, a forgotten tail.

Tests: "PROGRAM BUILD PRECISION", on the emulator. Builds: plain; quick: -O0; asan: AddressSanitizer and UBSan; tsan:
ThreadSanitizer; fake: with the imitation of cuBLASLt; "nccl 2", "mpi 2": two ranks, by the imitation of NCCL or by
MPI; "nccl 2 1 late": with other words than --short, where all ranks have to end with status 1."""
import os
import subprocess

import mutate

COMMON = "g++ -std=gnu++17 -march=native -w -pthread -DUSE_CUDA -x c++".split()
BUILDS = {
    "plain": ["-O1"],
    "quick": ["-O0"],
    "asan": ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "tsan": ["-O1", "-g", "-fsanitize=thread"],
    "fake": ["-O1", "-DUSE_CUBLASLT", "-Idev/test/fake"],
    "nccl": ["-O1", "-DUSE_NCCL", "-Idev/test/fake", "-DRENDEZVOUS_SECONDS=20"],
    "mpi": ["-O1", "-DUSE_MPI"],
}

ATTENTION, ROWS, UPDATE, MATMUL, COMM = "cuda_attention", "cuda_rows", "cuda_update", "cuda_matmul", "cuda_comm"
HOPPER, HOPPER_BUGS = "cuda_hopper", "cuda_hopper_bugs"
MODEL = "test_gpt"  # the whole model beside PyTorch's numbers, a row for every tensor, as make compare shows them
REFERENCES = [f"dev/test/reference/{name}.safetensors" for name in ("gpt2_tied", "llama_grouped")]

# File, exact text, replacement; test, build, precision.
PLANTED = [
    # barriers and waits
    ("kernels/row_sum.cuh",
     "    if (blockDim.x == 32) return;\n    __syncthreads();\n    for (int k = 0; k < K; k++) {",
     "    if (blockDim.x == 32) return;\n    for (int k = 0; k < K; k++) {", ROWS, "tsan", "BF16"),
    ("kernels/row_sum.cuh", "    __syncthreads(); // before the next call writes\n}\ntemplate <class T>",
     "}\ntemplate <class T>",
     ROWS, "tsan", "BF16"),
    ("kernels/row_sum.cuh", "    tile[threadIdx.y][threadIdx.x] = sum;\n    __syncthreads();\n",
     "    tile[threadIdx.y][threadIdx.x] = sum;\n", ROWS, "plain", "BF16"),
    ("kernels/attention.cuh", "        await_tiles(); // k is here, and v is free\n", "", ATTENTION, "tsan", "BF16"),
    ("kernels/attention.cuh", "        await_tiles(); // v is here, and k is free\n", "", ATTENTION, "tsan", "BF16"),
    ("kernels/attention.cuh", "    copy_async_wait<0>();\n    __syncthreads();\n}", "    __syncthreads();\n}",
     ATTENTION, "plain", "BF16"),
    ("kernels/attention.cuh", "    copy_async_wait<0>();\n    __syncthreads();\n}", "    copy_async_wait<0>();\n}",
     ATTENTION, "tsan",
     "BF16"),
    ("kernels/attention.cuh", "    __syncwarp(); // all lanes have read them\n", "", ATTENTION, "tsan", "BF16"),
    ("kernels/matmul.cuh", "    for (int i = 0; i < W; i++) sums[warp][lane * W + i] = sum[i];\n    __syncthreads();\n",
     "    for (int i = 0; i < W; i++) sums[warp][lane * W + i] = sum[i];\n", MATMUL, "tsan", "BF16"),
    # masks, lanes, fragments
    ("kernels/attention_common.cuh", "if (ROWS_ARE_KEYS ? y > x : x > y)", "if (ROWS_ARE_KEYS ? y > x : x >= y)",
     ATTENTION, "plain",
     "BF16"),
    ("kernels/attention_common.cuh", "v += __shfl_xor_sync(0xffffffffu, v, 1);\n    return v + ",
     "v += __shfl_xor_sync(0x0fffffffu, v, 1);\n    return v + ", ATTENTION, "plain", "BF16"),
    ("kernels/attention_common.cuh", "    return v + __shfl_xor_sync(0xffffffffu, v, 2);", "    return v;", ATTENTION,
     "plain", "FP16"),
    ("kernels/attention.cuh", "tile + (row + i) * flash_row<HS> + piece, head",
     "tile + (row + i) * flash_row<HS> + piece + 4, head",
     ATTENTION, "plain", "BF16"),
    ("kernels/row_sum.cuh",
     "for (int i = 16; i > 0; i /= 2) v[k] += __shfl_xor_sync(0xffffffffu, v[k], i);\n        if (blockDim.x",
     "for (int i = 8; i > 0; i /= 2) v[k] += __shfl_xor_sync(0xffffffffu, v[k], i);\n        if (blockDim.x", ROWS,
     "plain",
     "BF16"),
    ("kernels/checksum.cuh", "return data[2 * i] | (uint32_t)data[2 * i + 1] << 16;",
     "return data[2 * i + 1] | (uint32_t)data[2 * i] << 16;",
     UPDATE, "plain", "BF16"),
    ("kernels/checksum.cuh", "if (2 * i + 1 == halves) return data[2 * i];",
     "if (2 * i + 2 == halves) return data[2 * i];", UPDATE, "plain", "BF16"),
    ("kernels/checksum.cuh", "    if (threadIdx.x == 0) atomicAdd(sum, mine);",
     "    if (threadIdx.x == 0) *sum += mine;", UPDATE, "tsan", "BF16"),
    ("kernels/checksum.cuh", "if (2 * i < halves) mine", "if (2 * i <= halves) mine", UPDATE, "asan", "BF16"),
    # tails and bounds
    ("kernels/attention.cuh", "const int from = min(first + (int)row + i, T - 1);",
     "const int from = first + (int)row + i;", ATTENTION,
     "asan", "BF16"),
    ("kernels/attention.cuh", "if (to < T) store(head", "if (to <= T) store(head", ATTENTION, "asan", "BF16"),
    ("kernels/gelu.cuh", "    if (i >= n) return;\n    Packed<floatX, W> v = load<W>(x + i);\n    for",
     "    if (i > n) return;\n    Packed<floatX, W> v = load<W>(x + i);\n    for", ROWS, "asan", "BF16"),
    ("kernels/crossentropy.cuh", "if (begin + k * step + i >= n) v[k][i]", "if (begin + k * step + i > n) v[k][i]",
     UPDATE, "plain", "BF16"),
    ("kernels/crossentropy.cuh", "if (begin + 3 * step + W <= n) return;", "if (begin + 3 * step <= n) return;", UPDATE,
     "plain", "BF16"),
    ("kernels/crossentropy.cuh", "if (c + i >= used) d[i] = (floatX)0.0f;", "", UPDATE, "plain", "BF16"),
    ("kernels/crossentropy.cuh", "if (c + W <= used && (target", "if (c + W <= used || (target", UPDATE, "plain",
     "BF16"),
    ("kernels/crossentropy.cuh", "logit = c + i == target ?", "logit = c + i >= target ?", UPDATE, "plain", "BF16"),
    ("kernels/crossentropy.cuh", "if (begin + k * step < kept) to[", "if (begin + k * step <= kept) to[", UPDATE,
     "asan", "BF16"),
    ("kernels/crossentropy.cuh", "to += 4 * blockDim.x", "to += blockDim.x", UPDATE, "plain", "BF16"),
    ("kernels/crossentropy.cuh", "if (c < stride) store(x + c, logits_gradient(v[k]",
     "if (c <= stride) store(x + c, logits_gradient(v[k]", UPDATE, "asan",
     "BF16"),
    ("kernels/adamw.cuh", "word = place % 4 == k ?", "word = place % 4 >= (unsigned)k + 1 ?", UPDATE, "plain", "BF16"),
    ("kernels/matmul.cuh", "if (column < OC) { // W divides OC", "if (true) {", MATMUL, "asan", "BF16"),
    ("kernels/matmul.cuh", "end = min(begin + rows, (int64_t)N)", "end = begin + rows", MATMUL, "asan", "BF16"),
    ("kernels/row_sum.cuh", "for (int team = 1; team <", "for (int team = 2; team <", ROWS, "plain", "BF16"),
    ("kernels/caat.cuh", "if (i >= (int64_t)N * S) return;", "if (i > (int64_t)N * S) return;", ROWS, "asan", "BF16"),
    ("kernels/caat.cuh", " && (uintptr_t)z % 16 == 0;", ";", ROWS, "asan", "BF16"),
    ("kernels/caat.cuh", " &&\n           S % widest<floatX> == 0;", ";", ROWS, "plain", "BF16"),
    # indices and signs
    ("kernels/embedding.cuh", "rank += range[i] < n;", "rank += range[i] <= n;", ROWS, "plain", "BF16"),
    ("kernels/embedding.cuh", "t += SEGMENT) {", "t += 2 * SEGMENT) {", ROWS, "plain", "FP32"),
    ("kernels/adamw.cuh", "a.beta2 * v + (1.0f - a.beta2) * (g * g)", "a.beta2 * v + (1.0f - a.beta1) * (g * g)",
     UPDATE, "plain",
     "FP32"),
    ("kernels/adamw.cuh", "first / 4 + (uint64_t)group);", "(uint64_t)group);", UPDATE, "plain", "BF16"),
    ("kernels/adamw.cuh", "+ (random & mask)) & ~mask", "+ mask / 2) & ~mask", UPDATE, "plain", "BF16"),
    ("kernels/adamw.cuh", "(!Rule::HAS_V || ((uintptr_t)v - offset) % 16 == 0)", "true", UPDATE, "asan", "BF16"),
    ("kernels/adamw.cuh", "        if (Rule::HAS_V) store(v + i, square);\n", "", UPDATE, "plain", "FP32"),
    ("kernels/sgd.cuh", "s.grad_scale * g + s.weight_decay * p", "s.grad_scale * (g + s.weight_decay * p)", UPDATE,
     "plain", "BF16"),
    ("kernels/async_dp.cuh", "if (i + W <= n) {", "if (i < n) {", UPDATE, "asan", "BF16"),
    ("kernels/async_dp.cuh", "(((uintptr_t)arrays % 16 == 0) && ...)", "(((uintptr_t)arrays % 16 == 0) || ...)", UPDATE,
     "asan", "BF16"),
    ("kernels/async_dp.cuh", "own = share == 0 ? base : mixed;", "own = mixed;", UPDATE, "plain", "BF16"),
    ("kernels/async_dp.cuh", "(*this)(base, velocity, (sum - old) + fresh);",
     "(*this)(base, velocity, sum + (fresh - old));", UPDATE,
     "plain", "BF16"),
    ("kernels/async_dp.cuh", "lr, D + rounded_product(momentum, velocity)", "lr, velocity", UPDATE, "plain", "BF16"),
    ("kernels/async_dp.cuh", "if (i + j < n) sum[j] +=", "if (i + j <= n) sum[j] +=", UPDATE, "asan", "BF16"),
    ("kernels/async_dp.cuh", "for (int l = 8; l > 0; l /= 2)", "for (int l = 16; l > 0; l /= 2)", UPDATE, "plain",
     "BF16"),
    ("kernels/async_dp.cuh", "    if (i / QUANT_BLOCK * QUANT_BLOCK >= n) return;\n", "    if (i >= n) return;\n",
     UPDATE, "plain", "BF16"),
    ("kernels/async_dp.cuh", "? __uint_as_float(top) / (float)largest",
     "? __uint_as_float(top) * (1.0f / (float)largest)", UPDATE,
     "plain", "BF16"),
    ("kernels/async_dp.cuh", "min(max(nearest, -largest), largest)", "nearest", UPDATE, "plain", "BF16"),
    ("kernels/async_dp.cuh", ">> (32 - BITS); // with its sign", "/ (1 << (32 - BITS - 1)) / 2;", UPDATE, "plain",
     "BF16"),
    ("kernels/caat.cuh", "sum[k] + (float)v[k];", "(float)(floatX)(sum[k] + (float)v[k]);", ROWS, "plain", "BF16"),
    ("kernels/caat.cuh", "shared + row % N * S + c", "shared + row * S + c", ROWS, "plain", "BF16"),
    ("kernels/residual.cuh", "fmaxf(largest[i], x[i])", "largest[i] + x[i]", ROWS, "plain", "BF16"),
    # cuBLASLt's arguments
    ("kernels/matmul.cuh", "C, N, OC, w, false, dout, false, dx);", "C, N, OC, w, true, dout, false, dx);", MATMUL,
     "fake", "BF16"),
    ("kernels/matmul.cuh", "aux_ld = s->m", "aux_ld = s->k", MATMUL, "fake", "BF16"),
    ("kernels/matmul.cuh", "trial.d = borrowed = matmul_borrow", "borrowed = matmul_borrow", MATMUL, "fake", "BF16"),
    ("kernels/matmul.cuh", "    if ((uintptr_t)bias % 16 == 0) return bias;", "    return bias;", MATMUL, "fake",
     "BF16"),
    ("kernels/matmul.cuh", "d_is_float ? CUBLASLT_REDUCTION_SCHEME_MASK : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE",
     "CUBLASLT_REDUCTION_SCHEME_MASK", MATMUL, "fake", "BF16"),
    ("kernels/matmul.cuh", "    matmul_set_pointers(plan, p);\n    return cublasLtMatmul", "    return cublasLtMatmul",
     MATMUL, "fake",
     "BF16"),
    ("kernels/matmul.cuh", "fused.shape.epilogue = CUBLASLT_EPILOGUE_BGRADB;",
     "fused.shape.epilogue = CUBLASLT_EPILOGUE_BGRADA;",
     MATMUL, "fake", "BF16"),
    # attention
    ("kernels/attention.cuh", "const int from = min(first + (int)row + i, T - 1);",
     "const int from = min(first + (int)row + i, T);", ATTENTION, "plain", "BF16"),
    ("kernels/attention_common.cuh", "if (ROWS_ARE_KEYS ? y > x : x > y)", "if (ROWS_ARE_KEYS ? y >= x : x > y)",
     ATTENTION, "plain",
     "BF16"),
    ("kernels/attention_common.cuh", "sum[r] *= factor[r];", ";", ATTENTION, "plain", "BF16"),
    ("kernels/attention.cuh", "dot[i / 4][i % 2] +=", "dot[i / 4][i / 2 % 2] +=", ATTENTION, "plain", "BF16"),
    ("kernels/attention.cuh", "t < T ? LOG2_E * lse[head + t] : INFINITY", "t < T ? LOG2_E * lse[head + t] : 0.0f",
     ATTENTION, "plain", "BF16"),
    ("kernels/attention.cuh", "left, makes_dk ? d : q)", "left, makes_dk ? q : d)", ATTENTION, "plain", "FP16"),
    ("kernels/attention.cuh", "before = query;", "before = block.first;", ATTENTION, "plain", "BF16"),
    ("kernels/attention_plain.cuh", "row + r <= other && other < T", "row + r <= other", ATTENTION, "plain", "FP32"),
    ("kernels/attention_plain.cuh", "first[r] <= key + lane && key + lane <= row + r;",
     "first[r] <= key + lane && key + lane < row + r;", ATTENTION,
     "plain", "FP32"),
    ("kernels/attention_plain.cuh", "sum[r] = sum[r] * factor + p[r];", "sum[r] = sum[r] + p[r];", ATTENTION, "plain",
     "FP32"),
    ("kernels/attention_plain.cuh", "    __syncwarp(); // all lanes have finished reading\n", "", ATTENTION, "tsan",
     "FP32"),
    ("kernels/attention.cuh", "j < position ? row + j", "j <= position ? row + j", ATTENTION, "plain", "BF16"),
    ("kernels/attention.cuh", "sum = sum * factor + p;\n        for (int i = 0; i < 8 / W",
     "sum = sum + p;\n        for (int i = 0; i < 8 / W", ATTENTION, "plain", "BF16"),
    ("kernels/attention.cuh", "i < 8 / W && at + i * step < HS; i++) {\n            k[i]",
     "i < 8 / W; i++) {\n            k[i]",
     ATTENTION, "asan", "BF16"),
    ("kernels/attention.cuh", "if (at == 0) {\n        tops[group]", "if (thread == 0) {\n        tops[group]",
     ATTENTION, "plain", "BF16"),
    # attention by wgmma
    ("kernels/attention_hopper.cuh", "        __syncwarp();\n        if (threadIdx.x % 32 == 0) empty",
     "        if (threadIdx.x % 32 == 0) empty",
     ATTENTION, "tsan", "BF16"),
    ("kernels/attention_hopper.cuh", "grid - 1 - i : i", "grid - i : i", ATTENTION, "plain", "BF16"),
    ("kernels/attention_hopper.cuh", "wait(n / SLOTS % 2 ^ 1)", "wait(n / SLOTS % 2)", ATTENTION, "plain", "BF16"),
    ("kernels/attention_hopper.cuh", "full[i].init(full_count), empty[i].init(8);",
     "full[i].init(full_count), empty[i].init(4);", ATTENTION,
     "plain", "BF16"),
    ("kernels/attention_hopper.cuh", "const int kv = s.NH + block.h / (s.NH / s.NKV);",
     "const int kv = s.NH + block.h % s.NKV;", ATTENTION,
     "plain", "BF16"),
    ("kernels/attention_hopper.cuh", "tiles + c * ROWS + r * 64, map", "tiles + c * PART + r * 64, map", ATTENTION,
     "plain", "BF16"),
    ("kernels/attention_hopper.cuh", "    if (thread == 0) tensor_store_wait_read<0>(); // of the former piece\n", "",
     ATTENTION, "plain",
     "BF16"),
    ("kernels/attention_hopper.cuh", "k % 4 * 16 + to_right), a);", "k % 4 * 16), a);", ATTENTION, "plain", "BF16"),
    ("kernels/attention_hopper.cuh", "    shared_fence();\n", "", ATTENTION, "plain", "BF16"),
    ("kernels/attention_hopper.cuh", "k / 4 * A_ROWS * 128 >> 4", "k / 4 * N * 128 >> 4", ATTENTION, "plain", "BF16"),
    ("kernels/attention_hopper.cuh", "wgmma<floatX>(c, l, r, k > 0);", "wgmma<floatX>(c, l, r, true);", ATTENTION,
     "plain", "BF16"),
    ("kernels/attention_hopper.cuh", "        mask_scores<KEYS, false>(by_columns(p), row, block.first);\n", "",
     ATTENTION, "plain", "BF16"),
    ("kernels/attention_hopper.cuh", "            ring.await_tile(n + 1);\n            warpgroup_fence(o, a);",
     "            warpgroup_fence(o, a);",
     ATTENTION, "plain", "BF16"),
    ("kernels/attention_hopper.cuh", "            barrier_arrive(TURN + 1 - part, 256);\n", "", ATTENTION, "plain",
     "BF16"),
    ("kernels/attention_hopper.cuh", "            warpgroup_wait<1>(p);\n            ring.release(n++);",
     "            warpgroup_wait<2>(p);\n            ring.release(n++);", ATTENTION, "plain", "BF16"),
    ("kernels/attention_hopper.cuh", "            scale_rows<HS>(by_columns(o), factor);\n            round",
     "            round", ATTENTION, "plain",
     "FP16"),
    ("kernels/attention_hopper.cuh", "            ring.await_tile(n + 1);\n            warpgroup_wait<1>(dq, a);",
     "            warpgroup_wait<1>(dq, a);", ATTENTION, "plain", "BF16"),
    ("kernels/attention_hopper.cuh", "min(row + r * 8 + (int)threadIdx.x % 32 / 4, T - 1) * stride;",
     "min(row + r + (int)threadIdx.x % 32 / 4 * 2, T - 1) * stride;", ATTENTION, "plain", "BF16"),
    ("kernels/attention_hopper.cuh", "if (key < block.first) ring.release(n - 2);", "ring.release(n);", ATTENTION,
     "plain", "BF16"),
    ("kernels/attention_hopper.cuh", "query + i < s.T ? scale * head[query + i] : 0.0f;", "scale * head[query + i];",
     ATTENTION, "asan", "BF16"),
    ("kernels/attention_hopper.cuh", "warp == 1 ? LOG2_E : 1.0f, s, pieces", "1.0f, s, pieces", ATTENTION, "plain",
     "BF16"),
    ("kernels/attention_hopper.cuh", "if (query < own) {", "if (query <= own) {", ATTENTION, "plain", "BF16"),
    ("kernels/attention_hopper.cuh", "a[i / 8][i % 8 / 2])[i % 2]", "a[i / 8][i % 8 / 2])[0]", ATTENTION, "plain",
     "BF16"),
    ("kernels/attention_hopper.cuh", "full.arrive_expect(sizeof tile);", "full.arrive_expect(sizeof tile.q);",
     ATTENTION, "plain", "BF16"),
    ("kernels/attention_hopper.cuh", "                warpgroup_fence(dk, b);\n", "", ATTENTION, "plain", "BF16"),
    ("kernels/attention_hopper.cuh", "dk[i] *= s.scale * LN_2;", "dk[i] *= s.scale;", ATTENTION, "plain", "FP16"),
    ("kernels/attention_hopper.cuh", "if (DOCUMENTS && block.first < row_last)\n",
     "if (DOCUMENTS && block.first + 64 < row_last)\n", ATTENTION,
     "plain", "BF16"),
    ("kernels/attention_hopper.cuh", "min(block.first + PIECE, s.T) - 1, s.T) : s.T;", "block.first, s.T) : s.T;",
     ATTENTION, "plain", "BF16"),
    ("kernels/attention_hopper.cuh", "row < first_key(positions, query + QUERIES - 1, s.T))",
     "row < first_key(positions, query, s.T))", ATTENTION,
     "plain", "BF16"),
    # documents
    ("kernels/attention_common.cuh", "const int query = min(t, T - 1);", "const int query = t;", ATTENTION, "asan",
     "BF16"),
    ("kernels/attention_common.cuh", "return s.positions ? s.positions + block.row : NULL;", "return s.positions;",
     ATTENTION, "plain", "BF16"),
    ("kernels/attention_common.cuh", "if (first_key(positions, middle, T) <= key)",
     "if (first_key(positions, middle, T) < key)", ATTENTION, "plain", "BF16"),
    ("kernels/attention_common.cuh", "< first_key(positions, ROWS_ARE_KEYS ? x : y, T)) c",
     "<= first_key(positions, ROWS_ARE_KEYS ? x : y, T)) c",
     ATTENTION, "plain", "BF16"),
    ("kernels/attention.cuh", "top[i / 2][i % 2] = -FLT_MAX;", "top[i / 2][i % 2] = -INFINITY;", ATTENTION, "plain",
     "BF16"),
    ("kernels/attention.cuh", "(!DOCUMENTS || key + KEYS > row_first)", "(!DOCUMENTS || key + KEYS > row_last)",
     ATTENTION, "plain", "BF16"),
    ("kernels/attention.cuh", "if (DOCUMENTS && key < row_last) mask_documents<KEYS",
     "if (DOCUMENTS && key < row_first) mask_documents<KEYS",
     ATTENTION, "plain", "BF16"),
    ("kernels/attention.cuh", "first = first_key(positions, block.first, s.T) / KEYS * KEYS;",
     "first = first_key(positions, end - 1, s.T) / KEYS * KEYS;", ATTENTION,
     "plain", "BF16"),
    ("kernels/attention.cuh", "if (DOCUMENTS && key + PART <= row_first) continue;",
     "if (DOCUMENTS && key + PART <= row_last) continue;",
     ATTENTION, "plain", "BF16"),
    ("kernels/attention.cuh", "if (DOCUMENTS && key < row_last) mask_documents<PART",
     "if (DOCUMENTS && key + PART < row_last) mask_documents<PART",
     ATTENTION, "plain", "BF16"),
    ("kernels/attention.cuh", "min(block.first + KEYS, s.T) - 1, s.T) : s.T;", "block.first, s.T) : s.T;", ATTENTION,
     "plain", "BF16"),
    ("kernels/attention.cuh", "row < first_key(positions, before + QUERIES - 1, s.T);",
     "row < first_key(positions, before, s.T);", ATTENTION,
     "plain", "BF16"),
    ("kernels/attention_plain.cuh", "        top[r] = -FLT_MAX; // see softmax_tile",
     "        top[r] = -INFINITY; // see softmax_tile", ATTENTION, "plain", "FP32"),
    ("kernels/attention_plain.cuh", "min(block.first + PLAIN_ROWS, T) - 1, T);", "block.first, T);", ATTENTION, "plain",
     "FP32"),
    ("kernels/attention_plain.cuh", "first[r] = first_key(positions, from + lane, T);",
     "first[r] = first_key(positions, from, T);", ATTENTION, "plain",
     "FP32"),
    ("kernels/embedding.cuh", "positions ? positions[row] : row % T;", "positions ? positions[row % T] : row % T;",
     ROWS, "plain", "BF16"),
    ("kernels/embedding.cuh", "positions + first_row, N, C, 0, T);", "positions, N, C, 0, T);", ROWS, "plain", "BF16"),
    # more shared memory than a block has without asking
    ("kernels/cuda_utils.cuh", "if (l.shared > 32 << 10)", "if (l.shared > 48 << 10)", HOPPER, "plain", "BF16"),
    # Hopper's instructions: what both sides share, the product, the emulator's side
    ("kernels/hopper.cuh", "(column / 8 ^ row % 8) * 8", "(column / 8 ^ row / 8 % 8) * 8", HOPPER, "plain", "BF16"),
    ("kernels/hopper.cuh", "major == K_MAJOR ? 32 : 2048", "major == K_MAJOR ? 32 : 1024", HOPPER, "plain", "BF16"),
    ("dev/emulator/hopper_emulator.h", "*first = std::max(0, -column);", "*first = 0;", HOPPER, "asan", "BF16"),
    ("dev/emulator/hopper_emulator.h", "std::min<int64_t>(64, map.columns - column)", "64", HOPPER, "plain", "BF16"),
    ("dev/emulator/hopper_emulator.h", "(uint32_t)(c / 8) * leading", "(uint32_t)(c / 8) * stride", HOPPER, "plain",
     "BF16"),
    ("dev/emulator/hopper_emulator.h", "while ((p.phase & 1) == (unsigned)parity)",
     "while ((p.phase & 1) != (unsigned)parity)", HOPPER, "plain",
     "BF16"),
    ("dev/emulator/hopper_emulator.h", "    else if (waits)\n", "    else\n", HOPPER, "plain", "BF16"),
    ("dev/emulator/hopper_emulator.h", "CUDA_ON_CPU_TSAN(__tsan_release(&p.order[p.phase & 1]);)", "", HOPPER, "tsan",
     "BF16"),
    ("dev/emulator/hopper_products.h", "            __tsan_release(&g.order[g.groups % 8]);\n", "", HOPPER_BUGS, "tsan",
     "BF16"),
    ("dev/emulator/hopper_products.h", "w.lane[tile * 8 + row].out + 2 * column", "w.lane[tile * 8 + column].out + 2 *"
                                                                                  " row",
     HOPPER, "plain", "BF16"),
    ("dev/emulator/hopper_emulator.h", "(unsigned)(&b - h.barriers.data()), at});",
     "(unsigned)(&b - h.barriers.data()), at});\n    h.go_on();",
     HOPPER_BUGS, "plain", "BF16"),
    ("dev/emulator/hopper_products.h", "memcpy(p.d[t] + i, &register_poison, 4);", "", HOPPER_BUGS, "plain", "BF16"),
    ("dev/emulator/hopper_products.h", "(int64_t)g.groups - g.keep", "(int64_t)g.groups", HOPPER_BUGS, "plain", "BF16"),
    ("dev/emulator/hopper_products.h", "if (!g.fenced) fail(", "if (0) fail(", HOPPER_BUGS, "plain", "BF16"),
    ("dev/emulator/hopper_emulator.h", "if (!s.read && memcmp(", "if (0 && memcmp(", HOPPER_BUGS, "plain", "BF16"),
    ("dev/emulator/hopper_emulator.h", "if (h.writer[i / 2] == self->rank ||", "if (h.writer[i / 2] != no_thread ||",
     HOPPER_BUGS, "plain", "BF16"),
    # device memory between ranks
    ("comm/comm_nccl.h", 'cuda_check(cudaStreamWaitEvent(0, done, 0), "waiting for an operation");', "", COMM, "nccl 2",
     "BF16"),
    ("comm/comm_nccl.h", "cudaEventRecord(done, g->stream)", "cudaEventRecord(done, 0)", COMM, "nccl 2", "BF16"),
    ("comm/comm_nccl.h", " && l->direction == direction", "", COMM, "nccl 2", "BF16"),
    ("comm/comm_nccl.h", "            nccl_lane_connect(lane.group, lane.from == g->rank, token);\n", "", COMM,
     "nccl 2", "BF16"),
    ("comm/comm_nccl.h", "size % 2 && a == size - 1 ? 2 : a % 2", "a % 2", COMM, "nccl 3", "BF16"),
    ("comm/comm_nccl.h", '    setenv("NCCL_RUNTIME_CONNECT", "0", 0);\n', "", COMM, "nccl 2", "BF16"),
    ("comm/comm_nccl.h", "    if (ctas > 0) config.maxCTAs = ctas;\n", "", COMM, "nccl 2", "BF16"),
    ("comm/comm_nccl.h", "    ncclGroupStart();\n", "", COMM, "nccl 3 0 unsent", "BF16"),
    ("comm/comm_gpu.h", "    _exit(status);\n", "    nccl_abort_all(&job->open);\n    exit(status);\n", COMM,
     "nccl 3 1 busy", "BF16"),
    ("dev/test/cuda/comm_modes.h", "    _exit(EXIT_TIME_OUT);\n", "    _exit(EXIT_RUN);\n", COMM,
     "nccl 2 124 --seconds 1 stuck", "BF16"),
    ("comm/comm_gpu.h", "const int peer = g == r->comm->nccl ? r->peer : 1 - g->rank;", "const int peer = r->peer;",
     COMM, "nccl 3",
     "BF16"),
    ("comm/comm_gpu.h", "COMM_ALL_GATHER ? (size_t)r->comm->rank * comm_in_bytes(r) : 0;", "COMM_ALL_GATHER ? 0 : 0;",
     COMM, "mpi 2",
     "BF16"),
    ("comm.h", "    if (r->staged) comm_deliver(r);\n", "", COMM, "mpi 2", "BF16"),
    ("comm/comm_mpi.h", "f32_to_bf16(bf16_to_f32(in[i]) + bf16_to_f32(sum[i]))",
     "(uint16_t)(bits_of_float(bf16_to_f32(in[i]) + bf16_to_f32(sum[i])) >> 16)", COMM, "mpi 2", "BF16"),
    # the whole model: what make compare shows
    ("kernels/gelu.cuh", "1.0f + 3.0f * GELU_CUBIC", "1.0f + 2.99f * GELU_CUBIC", MODEL, "quick", "FP32"),
    ("kernels/adamw.cuh", "p = a.decay * p - a.step_size", "p = p - a.step_size", MODEL, "quick", "FP32"),
    ("gpt.h", "rmsnorm_backward(dx, dw, dout, x, weight(stage, layer, w), rstd, R, C);",
     "rmsnorm_backward(dx, dw, dout, x, weight(stage, layer, w), rstd, R - 1, C);", MODEL, "quick", "FP32"),
]

FAULTS = []
for file, text, replacement, program, build, precision in PLANTED:
    what = f"{file}: {' '.join(text.split())[:60]} -> {' '.join(replacement.split())[:60] or 'nothing'}"
    FAULTS.append((what, f"{program} {build} {precision.lower()}", file, text, replacement))

SECONDS = 240
ENV = dict(ASAN_OPTIONS="detect_leaks=0", TSAN_OPTIONS="halt_on_error=1", CUDA_ON_CPU_THREADS="2", OMP_NUM_THREADS="1",
           FAKE_NCCL_DIR=".",
           FAKE_NCCL_SECONDS="10", NCCL_MULTI_RANK_GPU_ENABLE="1")
# NCCL's ranks: PROGRAM N STATUS WORDS... The first rank that ends with another status ends the others.
NCCL_RANKS = """
export WORLD_SIZE=$2 MASTER_ADDR=localhost MASTER_PORT=$((20000 + $$ % 30000))
pids=""
trap 'kill -9 $pids 2>/dev/null' EXIT
for rank in $(seq 0 $(($2 - 1))); do RANK=$rank LOCAL_RANK=$rank "$1" "${@:4}" & pids="$pids $!"; done
for pid in $pids; do
    wait $pid
    [ $? = "$3" ] || exit 1
done
"""


def mpi_flags():
    """What mpicc adds to a compiler's line: (flags, libraries)."""
    words = subprocess.run([os.environ.get("MPICC", "mpicc"), "-show"], capture_output=True, text=True).stdout.split()
    return [w for w in words if w[:2] in ("-I", "-D")], [w for w in words if w[:2] in ("-L", "-l")]


def run(test, _planted):
    name, build, *n, precision = test.split()
    program = "build/" + test.replace(" ", "_")
    flags, libraries = mpi_flags() if build == "mpi" else ([], [])
    source = "test_gpt.c" if name == MODEL else f"dev/test/cuda/{name}.cu"
    compile_line = [*COMMON, *BUILDS[build], *flags, f"-DPRECISION_{precision.upper()}", source, "-x", "none", "-o",
                    program, *libraries,
                    "-lm", "-ldl"]
    if build == "nccl":
        ended = n[1:] or ["0", "--short"]
        limit = [] if "--short" in ended else ["env", "FAKE_NCCL_SECONDS=2"]
        return compile_line, [*limit, "bash", "-c", NCCL_RANKS, "nccl", program, n[0], *ended]
    words = ["--compare", *REFERENCES] if name == MODEL else []
    short = [] if build in ("plain", "quick", "fake") else ["--short"]
    return compile_line, [*mutate.ranks(*n or [1]), program, *words, *short]
