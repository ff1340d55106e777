"""Faults of the processor's matrix product in both precisions, and of AMX's tiles in C. Test: test_matmul."""
MATMUL, PAIRS, AMX = "kernels/matmul.h", "kernels/matmul_bf16.h", "kernels/amx.h"

FAULTS = [
    # what is wrong, test, file, text, replacement; a test's name is the macro of the precision, as well
    ("a pair is added even first", "BF16", PAIRS,
     "            panel[i] = word_high(word);\n            panel[width + i] = word_low(word);",
     "            panel[i] = word_low(word);\n            panel[width + i] = word_high(word);"),
    ("the last number of an odd K is not followed by 0", "BF16", MATMUL,
     "number[j] = k < depth ? vector[k * along] : to_floatX(0);",
     "number[j] = vector[(k < depth ? k : k - 1) * along];"),
    ("rows are joined the wrong way", "BF16", MATMUL, "from[i].bits | (uint32_t)from[along + i].bits << 16;",
     "from[along + i].bits | (uint32_t)from[i].bits << 16;"),
    ("blocks of K are rounded in between", "BF16", MATMUL, "if (p->out && k0 + depth == p->K) s.out",
     "if (p->out) s.out"),
    ("later blocks begin with the bias", "BF16", MATMUL, "if (k0 > 0 || p->accumulate)", "if (p->accumulate)"),
    ("sums that are kept have no room", "BF16", MATMUL, "keeps ? MATMUL_KEPT / mc", "keeps ? 2 * MATMUL_KEPT / mc"),
    ("strips share their sums", "BF16", MATMUL, "j < panels; j++, kept += strip)", "j < panels; j++)"),
    ("pairs are cut", "BF16", MATMUL, "const int64_t step = WORD_NUMBERS > 1 ? 32 : 1;", "const int64_t step = 1;"),
    ("rows of A are not turned into tiles", "BF16", MATMUL,
     "if (kernel->layout == MATMUL_TILES && is_a) matmul_turn_tiles(", "if (false) matmul_turn_tiles("),
    ("the second tile of a panel is the first", "BF16", PAIRS, "{data, data + next_tile", "{data, data"),
    ("a tile of sums is stored over another", "BF16", AMX, "3, to1 + W, stride", "3, to1, stride"),
    ("tiles are read in place beyond K", "BF16", MATMUL, "MATMUL_TILES ? 32 : WORD", "MATMUL_FLOATS ? 32 : WORD"),
    ("panels of tiles are not filled up", "BF16", MATMUL, "return (int)div_up(words, 16) * 16;", "return (int)words;"),
    ("AMX: one sum of even and odd", "BF16", AMX,
     "odd[n] = flush_denormal(fmaf(x1, flush_denormal(word_high(y)), odd[n]));",
     "even[n] = flush_denormal(fmaf(x1, flush_denormal(word_high(y)), even[n]));"),
    ("AMX: sums go on from c", "BF16", AMX, "flush_denormal(flush_denormal(before) + sum)",
     "flush_denormal(sum + 0 * before)"),
    ("tiles of A in place are those of the first block of k", "FP32", MATMUL,
     "p->a.data + m0 * p->a.across + k0 * p->a.along);", "p->a.data + m0 * p->a.across);"),
    ("a tile beyond C is read in place", "FP32", MATMUL, "? rows / mr * mr : 0;", "? rows : 0;"),
    ("half a pair is read in place", "BF16", MATMUL, "depth % step == 0 &&", "true &&"),
    ("rows an odd number apart are read in place", "BF16", MATMUL, "a.across % WORD_NUMBERS == 0 &&", "true &&"),
    ("columns of A are read in place", "FP32", MATMUL, "a.along == 1 && a.across %", "a.across %"),
    ("panels of B share memory", "FP32", MATMUL, "pack(kernel, b + j * (int64_t)words * nr,", "pack(kernel, b,"),
    ("threads share memory", "FP32", MATMUL, "(int64_t)openmp_thread() * MATMUL_SLOT", "0 * MATMUL_SLOT"),
    ("packing leaves out rests", "FP32", MATMUL, "if (done_wide == width && done_rows == rows) continue;",
     "if (done_wide == width) continue;"),
    ("a vector of C that is needed is left out", "FP32", MATMUL, "if (columns > 32) matmul_vectors_avx512(3,",
     "if (columns > 33) matmul_vectors_avx512(3,"),
    ("a vector of C is left out", "BF16", PAIRS, "columns > 16 && columns <= 32) matmul_vectors_avx512_bf16",
     "columns > 17 && columns <= 32) matmul_vectors_avx512_bf16"),
    ("half a vector is stored in C", "FP32", MATMUL, "s->columns % kernel->vector == 0", "s->columns % 8 == 0"),
]
SECONDS = 300


def run(test, _planted=True):
    flags = ["-std=gnu11", "-w", "-O2", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp"]
    binary = f"build/test_matmul_{test}"
    return ["gcc", *flags, f"-DPRECISION_{test}", "dev/test/unit/test_matmul.c", "-o", binary, "-lm", "-ldl"], [binary]
