"""Faults of bf16 on the processor: conversions, stochastic rounding, kernels that round twice or too early, sums of
gradients that are rounded. (Products and attention: matmul.py, attention.py.) Tests: test_NAME in bf16."""
import mutate

FLOATX, BASE, ADAMW, OPTIMIZER = "kernels/floatx.h", "util/base.h", "kernels/adamw.h", "parallel/optimizer.h"
LAYERNORM, RESIDUAL, EMBEDDING = "kernels/layernorm.h", "kernels/residual.h", "kernels/embedding.h"
GELU, SWIGLU, ROPE, LOSS, CAAT = ("kernels/gelu.h", "kernels/swiglu.h", "kernels/rope.h", "kernels/crossentropy.h",
                                  "kernels/caat.h")
VALUES, BITS, UPDATE, TRAINER = "kernels", "kernels_bits", "kernels_update", "trainer"

FAULTS = [
    # what is wrong; test; file, text, replacement
    ("numbers are cut off", VALUES, FLOATX, "{f32_to_bf16(x)}", "{(uint16_t)(bits_of_float(x) >> 16)}"),
    ("ties go away from zero", VALUES, BASE,
     "= bits + 0x7FFF + (bits >> 16 & 1); // a carry", "= bits + 0x8000; // a carry"),
    ("a NaN of few bits becomes infinity", VALUES, BASE, "f != f ? bits | 0x400000 : rounded)",
     "f != f ? bits : rounded)"),
    ("the lower half is read", VALUES, FLOATX, "return bf16_to_f32(x.bits);", "return float_of_bits(x.bits);"),

    # stochastic rounding
    ("always to the lower neighbour", UPDATE, ADAMW, "+ (random & 0xffffu)) >> 16", "+ (random & 0u)) >> 16"),
    ("always to the nearest", UPDATE, ADAMW, "+ (random & 0xffffu)) >> 16", "+ 0x8000u) >> 16"),
    ("15 random bits", UPDATE, ADAMW, "+ (random & 0xffffu)) >> 16", "+ (random & 0x7fffu)) >> 16"),
    ("the largest number becomes infinity", UPDATE, ADAMW, "lifted > largest ? largest : lifted", "lifted"),
    ("signs are lost", UPDATE, ADAMW, "{(uint16_t)(sign | size)}", "{(uint16_t)size}"),
    ("NaN and infinity are lifted", UPDATE, ADAMW, "(bits & exponent) == exponent ? nearest : rounded", "rounded"),
    ("each slice begins with the first word", UPDATE, ADAMW, "skipped = (int)(first % 4)", "skipped = 0"),
    ("lanes have one counter", UPDATE, ADAMW, "lane[i] = (uint64_t)i;", "lane[i] = 0;"),
    ("lanes after the first begin again", UPDATE, ADAMW, "(first + (uint64_t)i) / 4);", "first / 4);"),
    ("places beyond 2^34 repeat", UPDATE, ADAMW, ", c1 = c0 >> 32;", ", c1 = c0 ^ c0;"),
    ("the key's upper half is not used", UPDATE, ADAMW, "k1 = (uint32_t)(key >> 32);", "k1 = 0;"),
    ("nine rounds", UPDATE, ADAMW, "round < 10", "round < 9"),
    ("words in another order", UPDATE, ADAMW, "(c1 & 0xffffu) << 16 | (c2 & 0xffffu) << 32",
     "(c2 & 0xffffu) << 16 | (c1 & 0xffffu) << 32"),
    ("a portable product of 64 bits", UPDATE + "_portable", ADAMW, "(a & 0xffffffffu) * b", "a * b"),
    ("adamw_update: blocks repeat their bits", BITS, ADAMW, "range->first + (uint64_t)begin, ahead",
     "range->first, ahead"),
    ("sgd_update: blocks repeat their bits", BITS, ADAMW, "range->first + (uint64_t)begin, NULL", "range->first, NULL"),
    ("sgd_update: another step's bits", UPDATE, ADAMW, "s->step, range->key, range->first + (uint64_t)begin, NULL",
     "s->step + 1, range->key, range->first + (uint64_t)begin, NULL"),
    ("adamw_round: blocks repeat their bits", UPDATE, ADAMW, "                    first + (uint64_t)begin, NULL);",
     "                    first, NULL);"),
    ("a resumed run rounds as its next step", TRAINER, OPTIMIZER, "values + range.at, range.n, step,",
     "values + range.at, range.n, step + 1,"),

    # rounded twice, or too early
    ("residual: branch and bias are rounded first", VALUES, RESIDUAL,
     "const float add = to_float(branch[at + c]) + to_float(bias[c]);",
     "const float add = to_float(to_floatX(to_float(branch[at + c]) + to_float(bias[c])));"),
    ("layernorm: a rounded mean", VALUES, LAYERNORM, "const float m = row_sum(term_x, row, C) / (float)C;",
     "const float m = to_float(to_floatX(row_sum(term_x, row, C) / (float)C));"),
    ("layernorm: rounded deviations", VALUES, LAYERNORM, "const float d = to_float(row.x[c]) - row.k;",
     "const float d = to_float(to_floatX(to_float(row.x[c]) - row.k));"),
    ("layernorm: a rounded rstd", VALUES, LAYERNORM, "        mean[n] = m;\n        rstd[n] = r;",
     "        mean[n] = m;\n        rstd[n] = to_float(to_floatX(r));"),
    ("layernorm: xhat is rounded first", VALUES, LAYERNORM, "to_floatX((to_float(row.x[c]) - m) * r * to_float(w[c])",
     "to_floatX(to_float(to_floatX((to_float(row.x[c]) - m) * r)) * to_float(w[c])"),
    ("layernorm: g is rounded first", VALUES, LAYERNORM,
     "d[c] = to_floatX(to_float(d[c]) + rstd * (to_float(dout[c]) * to_float(w[c]) - g_mean -",
     "d[c] = to_floatX(to_float(d[c]) + rstd * (to_float(to_floatX(to_float(dout[c]) * to_float(w[c]))) - g_mean -"),
    ("rmsnorm: x * rstd is rounded first", VALUES, LAYERNORM, "to_floatX(to_float(row.x[c]) * r * to_float(w[c]))",
     "to_floatX(to_float(to_floatX(to_float(row.x[c]) * r)) * to_float(w[c]))"),
    ("rmsnorm: squares are rounded", VALUES, LAYERNORM, "return to_float(row.x[c]) * to_float(row.x[c]);",
     "return to_float(to_floatX(to_float(row.x[c]) * to_float(row.x[c])));"),
    ("rmsnorm: g is rounded", VALUES, LAYERNORM, "rstd * (to_float(dout[c]) * to_float(w[c]) - to_float",
     "rstd * (to_float(to_floatX(to_float(dout[c]) * to_float(w[c]))) - to_float"),
    ("gelu: the gate is rounded first", VALUES, GELU, "to_floatX(v / (1.0f + gelu_exp(v)))",
     "to_floatX(v * to_float(to_floatX(1.0f / (1.0f + gelu_exp(v)))))"),
    ("gelu: the slope is rounded first", VALUES, GELU, "to_float(dout[i]) * (s + v * slope * (s * (e * s)))",
     "to_float(dout[i]) * to_float(to_floatX(s + v * slope * (s * (e * s))))"),
    ("swiglu: silu is rounded first", VALUES, SWIGLU, "to_floatX(g / (1.0f + fast_exp(-g)) * to_float(up[f]))",
     "to_floatX(to_float(to_floatX(g / (1.0f + fast_exp(-g)))) * to_float(up[f]))"),
    ("swiglu: silu is rounded first, backward", VALUES, SWIGLU, "to_floatX(df * (g * s))",
     "to_floatX(df * to_float(to_floatX(g * s)))"),
    ("swiglu: dout u is rounded first", VALUES, SWIGLU, "to_floatX(df * to_float(up[f]) * (s",
     "to_floatX(to_float(to_floatX(df * to_float(up[f]))) * (s"),
    ("rope: a product is rounded first", VALUES, ROPE, "to_floatX(x0 * cosine[i] - y0 * s)",
     "to_floatX(to_float(to_floatX(x0 * cosine[i])) - y0 * s)"),
    ("rope: a rounded sine", VALUES, ROPE, "s = direction * sine[i],", "s = to_float(to_floatX(direction * sine[i])),"),
    ("loss: terms of the sum are rounded", VALUES, LOSS, "{ return fast_exp(to_float(row.x[c]) - row.k); }",
     "{ return to_float(to_floatX(fast_exp(to_float(row.x[c]) - row.k))); }"),
    ("loss: the distance to the largest logit is rounded", VALUES, LOSS,
     "fast_exp(to_float(x[begin + v]) - max) * factor",
     "fast_exp(to_float(to_floatX(to_float(x[begin + v]) - max))) * factor"),
    ("loss: the target's gradient is rounded twice", VALUES, LOSS, "gradient[target - begin] -= scale;",
     "gradient[target - begin] = to_float(to_floatX(gradient[target - begin])) - scale;"),
    ("loss: half of the padding", VALUES, LOSS, "(size_t)(stride - n) * sizeof(floatX));", "(size_t)(stride - n));"),
    ("CAAT-Net: sums are rounded at every stream", VALUES, CAAT, "sum[c] += to_float(x[stream * next + c]);",
     "sum[c] = to_float(to_floatX(sum[c] + to_float(x[stream * next + c])));"),
    ("CAAT-Net: private channels are cut off", VALUES, CAAT, "z[c] = to_floatX(factor * to_float(x[c]));",
     "z[c] = to_floatX(float_of_bits(bits_of_float(factor * to_float(x[c])) & 0xffff0000u));"),
    ("CAAT-Net: shared channels are cut off", VALUES, CAAT, "z[row * C + c] = to_floatX(from[c]);",
     "z[row * C + c] = to_floatX(float_of_bits(bits_of_float(from[c]) & 0xfffe0000u));"),
    ("positions are cut off", VALUES, EMBEDDING, "o[c] = to_floatX(to_float(o[c]) + to_float(w[c]));",
     "o[c] = to_floatX(float_of_bits(bits_of_float(to_float(o[c]) + to_float(w[c])) & 0xffff0000u));"),

    # gradients of parameters that are rounded
    ("layernorm: dw is rounded", VALUES, LAYERNORM, "dw[c] += to_float(d[c]) * ((to_float(row[c]) - m) * r);",
     "dw[c] = to_float(to_floatX(dw[c] + to_float(d[c]) * ((to_float(row[c]) - m) * r)));"),
    ("layernorm: db is rounded", VALUES, LAYERNORM, "db[c] += to_float(d[c]);",
     "db[c] = to_float(to_floatX(db[c] + to_float(d[c])));"),
    ("rmsnorm: dw is rounded", VALUES, LAYERNORM, "dw[c] += to_float(d[c]) * (to_float(row[c]) * r);",
     "dw[c] = to_float(to_floatX(dw[c] + to_float(d[c]) * (to_float(row[c]) * r)));"),
    ("embedding: dwte is rounded", VALUES, EMBEDDING, "for (int c = begin; c < end; c++) dw[c] += to_float(d[c]);",
     "for (int c = begin; c < end; c++) dw[c] = to_float(to_floatX(dw[c] + to_float(d[c])));"),
    ("embedding: dwpe is rounded", VALUES, EMBEDDING, "for (int c = 0; c < C; c++) dw[c] += to_float(d[c]);",
     "for (int c = 0; c < C; c++) dw[c] = to_float(to_floatX(dw[c] + to_float(d[c])));"),
]


def run(test, _planted):
    name = test.replace("_portable", "")
    program = f"build/bf16_test_{test}"
    arch = [] if test != name else ["-march=native"]  # neither AVX2 nor AVX-512
    source = f"dev/test/unit/test_{name}.c"
    return [mutate.CC, "-std=gnu11", "-O1", "-w", "-fopenmp", "-DPRECISION_BF16", *arch, source, "-o", program, "-lm",
            "-ldl"], [program]
