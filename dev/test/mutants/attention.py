"""Faults of the processor's attention in bf16: operands, roundings, scales, tiles. Test: test_attention.
(Decoding: generate.py.)"""
ATTENTION, PRODUCT, WORDS = "kernels/attention.h", "kernels/attention_product.h", "kernels/matmul_bf16.h"

FAULTS = [
    # what is wrong, test, file, text, replacement; the test's name: FLAGS
    ("a word is added even first", "BF16", PRODUCT,
     "    sum += (AttVector)(x & 0xffff0000u) * (AttVector)(y & 0xffff0000u);\n"
     "    sum += (AttVector)(x << 16) * (AttVector)(y << 16);\n",
     "    sum += (AttVector)(x << 16) * (AttVector)(y << 16);\n"
     "    sum += (AttVector)(x & 0xffff0000u) * (AttVector)(y & 0xffff0000u);\n"),
    ("the high half keeps the low one's bits", "BF16", PRODUCT, "(AttVector)(y & 0xffff0000u)", "(AttVector)y"),
    ("the diagonal: columns begin within a tile", "BF16", PRODUCT, "ATT_STEP = TILE_DEPTH",
     "ATT_STEP = TILE_DEPTH / 2"),
    ("vectors: terms begin after the diagonal", "BF16", PRODUCT,
     "const int begin = part == UPPER_FACTOR ? i / ATT_PACK : 0;",
     "const int begin = part == UPPER_FACTOR ? (i + ATT_ROWS) / ATT_PACK : 0;"),
    ("vectors: terms end before the diagonal", "BF16", PRODUCT, "(i + ATT_ROWS) / ATT_PACK : K;", "i / ATT_PACK : K;"),
    ("tiles: terms begin after the diagonal", "BF16", WORDS, "x->upper_factor ? i / 2 : 0,",
     "x->upper_factor ? (i + SIDE) / 2 : 0,"),
    ("tiles: terms end before the diagonal", "BF16", WORDS, "(i + SIDE) / 2 : x->K;", "i / 2 : x->K;"),
    ("tiles: below the diagonal, too", "BF16", WORDS, "int j = x->upper_result ? i : 0;", "int j = 0;"),
    ("tiles: the left one twice", "BF16", WORDS, "{left, left + TILE_WORDS, ", "{left, left, "),
    ("tiles: the upper one twice", "BF16", WORDS, "*below = above + TILE_ROWS * a_row;", "*below = above;"),
    ("tiles: the next step is the next row", "BF16", WORDS, "TILE_ROWS * x->ldb * WORD};", "x->ldb * WORD};"),
    ("tiles: always added", "BF16", WORDS, "c = {x->add ? tile : zeros, tile,", "c = {tile, tile,"),
    ("tiles: columns of A are read as rows", "BF16", WORDS, "by_rows ? x->a : a_rows) + i", "x->a) + i"),
    ("transpose: every other square", "BF16", PRODUCT, "j < columns; j += 4", "j < columns; j += 8"),
    ("the last number of an odd head", "BF16", ATTENTION, "IN_WORDS ? s.width / ATT_PACK :",
     "IN_WORDS ? HS / ATT_PACK :"),
    ("scores are not scaled", "BF16", ATTENTION, "IN_BF16 ? s->scale : 1.0f;", "1.0f;"),
    ("the factor of former sums is not scaled", "BF16", ATTENTION, "fast_exp(scale * (factor[i] - max[i]))",
     "fast_exp(factor[i] - max[i])"),
    ("the largest score in lse is not scaled", "BF16", ATTENTION, "score_scale(s) * q->max[t]", "q->max[t]"),
    ("scores are not scaled in the backward pass", "BF16", ATTENTION, "fast_exp(scale * p[i] - lse[i])",
     "fast_exp(p[i] - lse[i])"),
    ("dk is not scaled", "BF16", ATTENTION, "j, f->dk + at, s, score_scale(s));", "j, f->dk + at, s, 1.0f);"),
    ("l is of the rounded P", "BF16", ATTENTION, "            sum[i] += p;",
     "            sum[i] += to_float(to_floatX(p));"),
    ("dS is of D alone", "BF16", ATTENTION, "ds[i] = p[i] * (ds[i] - dot[i]);", "ds[i] = p[i] * -dot[i];"),
    ("P and dS are cut, not rounded", "BF16", ATTENTION, "rows[i] = att_number(sums[i]);",
     "rows[i] = att_number(float_of_bits(bits_of_float(sums[i]) & 0xffff0000));"),
    ("on the diagonal: only what is seen is rounded", "BF16", ATTENTION,
     "diagonal ? column_begin(j) : 0; i < ATT_BLOCK; i++) rows[i]", "diagonal ? j : 0; i < ATT_BLOCK; i++) rows[i]"),
    ("a row is joined with itself", "BF16", ATTENTION, "m->rows + t * width, width, width);",
     "m->rows + t * width, 0, width);"),
    ("words beyond HS keep what was there", "BF16", ATTENTION,
     "        for (int d = s->HS; d < width; d++) to[d] = att_number(0.0f);\n", ""),
    ("the words of P are not made", "BF16", ATTENTION, "    pair_rows(&f->p.m, ATT_BLOCK);\n", ""),
    ("the words of dS are not made", "BF16", ATTENTION, "    pair_rows(&f->ds.m, n);\n", ""),
    ("the words of K are the first block's", "BF16", ATTENTION,
     "const AttMatrix k = {f->k.rows + at, f->k.pairs + at / ATT_PACK};\n    block_product",
     "const AttMatrix k = {f->k.rows + at, f->k.pairs};\n    block_product"),
    ("floats are added in the order of memory", "FLOATS", PRODUCT, "ATT_TURN = IN_BF16 ? 2 : 1", "ATT_TURN = 1"),
    ("the last float of an odd head", "FLOATS", ATTENTION, ": (int)round_up((size_t)HS, ATT_TURN);",
     ": HS / ATT_TURN * ATT_TURN;"),
    ("floats of P are not rounded", "FLOATS", PRODUCT, "return to_float(to_floatX(x)); }", "return x; }"),
    ("words by FMA: even first", "WORDS", PRODUCT,
     "    sum += (AttVector)(x & 0xffff0000u) * (AttVector)(y & 0xffff0000u);\n"
     "    sum += (AttVector)(x << 16) * (AttVector)(y << 16);\n",
     "    sum += (AttVector)(x << 16) * (AttVector)(y << 16);\n"
     "    sum += (AttVector)(x & 0xffff0000u) * (AttVector)(y & 0xffff0000u);\n"),
    ("transposed blocks lose a column", "FP32", PRODUCT, "j < columns; j += 4", "j + 4 <= columns; j += 4"),
]


# Words, by the processor's instructions where it has them; floats, as on a processor without; and words there.
FLAGS = {"BF16": ["-march=native", "-DPRECISION_BF16", "-DATTENTION_WORDS"], "FP32": ["-march=native"],
         "FLOATS": ["-march=x86-64-v3", "-DPRECISION_BF16"],
         "WORDS": ["-march=x86-64-v3", "-DPRECISION_BF16", "-DATTENTION_WORDS"]}


def run(test, _planted=True):
    flags = ["-std=gnu11", "-w", "-O2", *FLAGS[test], "-fno-math-errno", "-fno-trapping-math", "-fopenmp"]
    program = f"build/test_attention_{test}"
    return ["gcc", *flags, "dev/test/unit/test_attention.c", "-o", program, "-lm"], [program]
