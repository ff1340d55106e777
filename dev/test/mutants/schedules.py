"""Faults of pipeline schedules: how many forward passes come first, when a slot is free, which receives are posted.
Test: test_schedule. (The proof's own faults: plans.py; those of executing a table: collectives.py.)"""
SCHEDULE = "parallel/schedule.h"
TESTS = {SCHEDULE: "test_schedule"}

# What is wrong; file, exact text, replacement.
FAULTS = [
    ("1f1b: one more forward before the first backward", SCHEDULE, "warm = schedule->config.p - schedule->stage - 1;",
     "warm = schedule->config.p - schedule->stage;"),
    ("interleaved: the warm-up of 1F1B in every group", SCHEDULE,
     "min_i64(2 * (p - schedule->stage - 1) + (v - 1) * p,", "min_i64(p - schedule->stage - 1 + (v - 1) * p,"),
    ("zb-h1: a slot too many", SCHEDULE, "if (n - weights == p)", "if (n - weights == p + 1)"),
    ("slots: free after the input gradient", SCHEDULE,
     "if (action_adds_weight_gradients(action->kind)) unused[n++] = *slot;",
     "if (action_makes_input_gradient(action->kind)) unused[n++] = *slot;"),
    ("receives: one too far ahead", SCHEDULE, "if (++ahead < PIPELINE_BUFFERS_PER_DIRECTION) continue;",
     "if (ahead++ < PIPELINE_BUFFERS_PER_DIRECTION) continue;"),
]
