"""Faults of the sampler and of the cache of keys and values. (On meshes: "reading" in collectives.py.)"""
SAMPLING, ATTENTION = "trainer/sampler.h", "kernels/attention.h"
TESTS = {SAMPLING: "test_sampling", ATTENTION: "test_attention"}

# What is wrong; file, exact text, replacement.
FAULTS = [
    ("of equal logits the higher number is likelier", SAMPLING, "return x->token < y->token ? -1 : 1;\n}\nstatic",
     "return x->token > y->token ? -1 : 1;\n}\nstatic"),
    ("greedy: the last of equal ones", SAMPLING, "if (logits[i] > logits[best]) best = i;",
     "if (logits[i] >= logits[best]) best = i;"),
    ("a NaN is a number", SAMPLING, "is_number && logits[best] > -INFINITY ? best : -1",
     "logits[best] > -INFINITY ? best : -1"),
    ("all -inf is a distribution", SAMPLING, "is_number && logits[best] > -INFINITY ? best : -1",
     "is_number ? best : -1"),
    ("top-k keeps one more", SAMPLING, "how->top_k < V ? (int)how->top_k : V;",
     "how->top_k < V ? (int)how->top_k + 1 : V;"),
    ("top-p is of all, not of what top-k leaves", SAMPLING, "for (int i = 0; i < most; i++) sum",
     "for (int i = 0; i < V; i++) sum"),
    ("top-p keeps one more", SAMPLING, "head < how->top_p * sum)) head",
     "head - list[n - 1].weight < how->top_p * sum)) head"),
    ("what stays is in the order of likelihood", SAMPLING,
     "    qsort(list, (size_t)n, sizeof *list, compare_number);\n", ""),
    ("temperature multiplies", SAMPLING, "exp(below / how->temperature)", "exp(below * how->temperature)"),
    ("+inf minus +inf", SAMPLING, "logits[i] == logits[best] ? 0 : (double)", "(double)"),
    ("a sum that only reaches u is enough", SAMPLING, "if (running > u * sum) return",
     "if (running >= u * sum) return"),
    ("u is not of what stays", SAMPLING, "for (int i = 0; i < n; i++) sum", "for (int i = 0; i < V; i++) sum"),
    ("the cache gets keys only", ATTENTION,
     "memcpy(cache + t * stride, qkv + t * row + (int64_t)NH * HS, (size_t)stride * sizeof(floatX));",
     "memcpy(cache + t * stride, qkv + t * row + (int64_t)NH * HS, (size_t)stride / 2 * sizeof(float));"),
    ("the cache gets queries", ATTENTION,
     "memcpy(cache + t * stride, qkv + t * row + (int64_t)NH * HS, (size_t)stride * sizeof(floatX));",
     "memcpy(cache + t * stride, qkv + t * row, (size_t)stride * sizeof(floatX));"),
]
