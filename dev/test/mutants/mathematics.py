"""Faults of the mathematics in float32: gradients of kernels, the optimizer, recomputation. Tests: unit tests, and
test_gpt, the whole model beside PyTorch's numbers. Exercises are made of them (dev/exercises)."""
import mutate

NORM, LOSS, EMBEDDING = "kernels/layernorm.h", "kernels/crossentropy.h", "kernels/embedding.h"
KERNELS, UPDATE, MODEL, SELECTIVE = "test_kernels", "test_kernels_update", "test_gpt", "test_equivalence"

FAULTS = [
    ("layernorm: the mean of g xhat is that of g (x - mean)", KERNELS, NORM,
     "row_sum(term_product_deviation, row, C) * rstd / (float)C;",
     "row_sum(term_product_deviation, row, C) / (float)C;"),
    ("layernorm: the variance is E[x^2] - mean^2", KERNELS, NORM,
     "        row.k = m;\n"
     "        const float r = 1.0f / sqrtf(row_sum(term_squared_deviation, row, C) / (float)C + eps);",
     "        const float r = 1.0f / sqrtf(row_sum(term_squared_deviation, row, C) / (float)C - m * m + eps);"),
    ("embedding: the last occurrence of a token replaces the others", KERNELS, EMBEDDING,
     "for (int c = begin; c < end; c++) dw[c] += to_float(d[c]);",
     "for (int c = begin; c < end; c++) dw[c] = to_float(d[c]);"),
    ("rope: gradients are rotated forward", MODEL, "kernels/rope.h", "rope_rotate(dqkv, cos_sin, -1.0f,",
     "rope_rotate(dqkv, cos_sin, 1.0f,"),
    ("cross-entropy: targets beyond the first block have no term of their own", KERNELS, LOSS,
     "if (target >= begin && target < begin + count) gradient[target - begin] -= scale;",
     "if (begin == 0 && target >= 0 && target < count) gradient[target] -= scale;"),
    ("adamw: the second moment is not corrected", UPDATE, "kernels/adamw.h",
     "const float v_correction = (float)(1.0 / sqrt(1.0 - pow(beta2, (double)s->step)));",
     "const float v_correction = 1.0f;"),
    ("adamw: vectors decay", MODEL, "parallel/optimizer.h", "range.decays = !slice->tensor.vector;",
     "range.decays = true;"),
    ("block: attention's sum is not announced", MODEL, "gpt.h",
     "    announce_sum(pass, y->middle, residual_stream(acts, layer), layer, ATTN_PROJ_B);\n", ""),
    ("block: attention's branch gets the mlp's bias", MODEL, "gpt.h", "layer, ATTN_PROJ_B);", "layer, MLP_PROJ_B);"),
    ("block: the activation's gradient is left out", MODEL, "gpt.h", "pass, d->dfc, y->fc, d->dout",
     "pass, d->dfc, NULL, d->dout"),
    ("norms: the backward pass of the other one", MODEL, "kernels/norms.h",
     "rmsnorm_residual_rows, rmsnorm_rows_backward}", "rmsnorm_residual_rows, layernorm_rows_backward}"),
    ("a mean in place of a median", "test_draw", "util/median.h", "return 0.5 * (x[(n - 1) / 2] + x[n / 2]);",
     "double sum = 0; for (int i = 0; i < n; i++) sum += x[i] / n; return sum;"),
    ("selective recomputation: the mlp's norm is not recomputed", SELECTIVE, "gpt.h",
     "    await_sum_and_norm(pass, layer, NORM2_W);\n    activations[", "    activations["),
]


def run(test, planted):
    if test == SELECTIVE:
        only = ["--mesh", "1", "1", "1", "--only", "t=1 p=1 d=1 llama tied zero 0 selective"]
        return f"build/{test}", [f"build/{test}", *only]
    if test != MODEL:
        return mutate.unit_test(test, planted)
    program = "build/test_gpt"
    return [mutate.CC, "-std=gnu11", "-O1", "-w", "test_gpt.c", "-o", program, "-lm", "-ldl"], [program]
