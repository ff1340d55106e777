"""Faults of the sampler and of the cache of keys and values. (On meshes: "reading" in collectives.py.)"""
SAMPLING, ATTENTION = "trainer/sampler.h", "kernels/attention.h"
TESTS = {SAMPLING: "test_sampling", ATTENTION: "test_attention"}

# What is wrong; file, exact text, replacement.
FAULTS = [
    ("of equal logits the higher number is likelier", SAMPLING, "(logits[a] == logits[b] && a < b)", "(logits[a] == logits[b] && a > b)"),
    ("greedy: the last of equal ones", SAMPLING, "if (logits[i] > logits[best]) best = i;", "if (logits[i] >= logits[best]) best = i;"),
    ("a NaN is a number", SAMPLING, "is_number && logits[best] > -INFINITY ? best : -1", "logits[best] > -INFINITY ? best : -1"),
    ("all -inf is a distribution", SAMPLING, "is_number && logits[best] > -INFINITY ? best : -1", "is_number ? best : -1"),
    ("the heap looks at one child", SAMPLING, "if (child + 1 < n && more_likely", "if (0 && child + 1 < n && more_likely"),
    ("the heap is not built to its root", SAMPLING, "for (int i = V / 2 - 1; i >= 0; i--) heap_sink", "for (int i = V / 2 - 1; i > 0; i--) heap_sink"),
    ("what was taken off sinks again", SAMPLING, "heap_sink(heap, n - 1, 0, logits);", "heap_sink(heap, n, 0, logits);"),
    ("top-k keeps one more", SAMPLING, "for (int n = V; n > V - most; n--) sum", "for (int n = V; n > 0 && n > V - most - 1; n--) sum"),
    ("top-k alone keeps one less", SAMPLING, "if (how->top_p >= 1) return m->heap[V - most];", "if (how->top_p >= 1) return m->heap[min_i64(V - 1, V - most + 1)];"),
    ("top-p is of all, not of what top-k leaves", SAMPLING, "    if (most == V) {\n        for", "    if (most == V || how->top_p < 1) {\n        for"),
    ("top-p keeps one more", SAMPLING, "head < how->top_p * sum); taken++", "head - m->weight[token] < how->top_p * sum); taken++"),
    ("top-p 0 keeps none that weighs", SAMPLING, "if (!all && i != last && !more_likely", "if (!all && !more_likely"),
    ("temperature multiplies", SAMPLING, "- largest) / how->temperature);", "- largest) * how->temperature);"),
    ("+inf minus +inf", SAMPLING, "logits[i] == logits[best] ? 1 : exp(", "exp("),
    ("a sum that only reaches u is enough", SAMPLING, "if (running > u * sum) return i;", "if (running >= u * sum) return i;"),
    ("u is not of what stays", SAMPLING, "        sum += m->weight[i];\n    }\n    for", "        sum += m->weight[i] > 0 ? 1 : 0;\n    }\n    for"),
    ("the cache gets keys only", ATTENTION, "memcpy(cache + t * stride, qkv + t * row + (int64_t)NH * HS, (size_t)stride * sizeof(float));",
     "memcpy(cache + t * stride, qkv + t * row + (int64_t)NH * HS, (size_t)stride / 2 * sizeof(float));"),
    ("the cache gets queries", ATTENTION, "memcpy(cache + t * stride, qkv + t * row + (int64_t)NH * HS, (size_t)stride * sizeof(float));",
     "memcpy(cache + t * stride, qkv + t * row, (size_t)stride * sizeof(float));"),
]
