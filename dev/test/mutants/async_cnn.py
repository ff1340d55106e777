"""Faults of the convolutional network that late replicas train, and of the program that tunes and compares it. Test:
check_async_cnn.py, which needs NumPy (the faults of PY do not)."""
import sys

C, PY = "dev/experiments/async_cnn.c", "dev/experiments/async_cnn.py"

# What is wrong; the test that has to see it; file, exact text, replacement.
FAULTS = [
    ("a tap is left out", "cnn", C, "k < kernel * kernel; k++, patches", "k < kernel * kernel - 1; k++, patches"),
    ("the gradient passes a closed ReLU", "cnn", C, "a->out[l - 1][i] > 0 ? d[i] : 0", "d[i]"),
    ("pictures lose their last rows", "cnn", C, "for (; i < M; i++) multiply_block",
     "for (; i < 0; i++) multiply_block"),
    ("the sum of a batch, not its mean", "cnn", C, "1 / (float)whole, wrong", "1.0f, wrong"),
    ("biases decay", "cnn", C, "t->range[i].decays = i % 2 == 0;", "t->range[i].decays = true;"),
    ("delayed: the fresh gradient is used", "cnn", C, "const int64_t due = step - t->delay, at",
     "const int64_t due = step, at"),
    ("delayed: no distance", "cnn", C, "compensate(t, t->grads + at, t->weights, t->late_weights + at);",
     "compensate(t, t->grads + at, t->weights, t->weights);"),
    ("delayed: the schedule has updates that never come", "cnn", C,
     "t->steps - t->delay * (t->settings.mode == CNN_DELAYED)", "t->steps"),
    ("dc-s3gd: compensated backwards", "cnn", C, "compensate(t, t->grads, t->weights, own);",
     "compensate(t, t->grads, own, t->weights);"),
    ("dc-s3gd: from the local weights", "cnn", C, "        copy(own, t->weights, n);\n", ""),
    ("dc-s3gd: one velocity for all", "cnn", C, "t->local_velocity + r * n", "t->local_velocity"),
    ("dc-s3gd: the sum of the changes", "cnn", C, "t->sum, 1 / (float)t->sites, t->parameters", 
     "t->sum, 1, t->parameters"),
    ("dc-s3gd: one replica compensates its rounding", "cnn", C, "local && t->sites == 1 ?", "0 ?"),
    ("a constant lambda is ignored", "cnn", C, "if (t->settings.lambda > 0) lambda", "if (0) lambda"),
    ("one lambda of all tensors' squares", "cnn", C, "sum_of_squares_range(g + at, n), corrections",
     "sum_of_squares_range(g, t->parameters), corrections"),
    ("every epoch has the same order", "cnn", C, "(uint64_t)(1000 + epoch)", "(uint64_t)1000"),
    ("the sweep ends at its edge", "cnn", PY, "if o.quick or min(errors) < best < max(errors)", "if errors"),
    ("the worst rate", "cnn", PY, "best = min(sorted(errors), key", "best = max(sorted(errors), key"),
    ("the best of rates that have not learned", "cnn", PY, "min(errors[lr], 0.9 * CHANCE)", "errors[lr]"),
    ("no higher rates without momentum", "cnn", PY, "{}, 10 if", "{}, 1 if"),
    ("recorded runs are made again", "cnn", PY, "if key not in o.record.runs:", "if key:"),
    ("better where it is worse", "cnn", PY, "got.sign in holds, f'error", "-got.sign in holds, f'error"),
    ("momentum is compared without a base", "cnn", PY, "[x - y for x, y in", "[x for x, y in"),
]


def run(_test, _planted):
    return ["make", "-s", "build/async_cnn"], [sys.executable, "dev/test/system/check_async_cnn.py"]
