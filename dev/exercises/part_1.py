"""Exercises: kernels and the model's mathematics, optimizer, precision, tensor and sequence parallelism, data
parallelism and ZeRO. The fields are explained in exercise.py."""
MODEL = ("--data dev/test/reference/tokenizer_words.txt --layers 2 --hidden 32 --heads 2 --seq 32 --global-batch 8 "
         "--micro-batch 4 --warmup 0 --log-every 1 --eval-every 0")
STEPS = "| grep '^step' | cut -d '|' -f 1-3"  # the lines of the steps, without speeds
RANKS2 = f"scripts/mpirun.sh -np 2 ./train_gpt {MODEL}"

EXERCISES = [
    {
        "title": "LayerNorm's input gradient is right only in rows whose variance is 1",
        "level": 1, "chapter": "docs/step.md",
        "fault": ("mathematics", "layernorm: the mean of g xhat is that of g (x - mean)"),
        "show": ["build/test_kernels | grep -i layernorm"],
        "symptom": r"FAIL +layernorm_backward: dx",
        "begin": "kernels/layernorm.h derives dx in its first comment. Which of the three terms of the formula depend on "
                 "the variance of the row?",
        "hints": ["dw and db pass, so the normalised value xhat that they use is right. dx needs two means over the row.",
                  "In the formula the second mean is of g xhat, and xhat = (x - mean) rstd. Write down the power of rstd "
                  "in each term of dx, and count it in the code.",
                  "Look at g_xhat_mean in layernorm_backward_row()."],
        "check": ["build/test_kernels", "build/test_gpt"],
        "solution": "g_xhat_mean was the mean of g (x - mean), without the factor rstd that makes xhat of x - mean. The "
                    "term xhat mean(g xhat), which takes out the part of the gradient along xhat, was 1 / rstd times too "
                    "long: right where the row's variance is 1, and wrong everywhere else. The forward pass and the "
                    "gradients of w and b do not use this number, so only dx differs.",
        "wrong": [("kernels/layernorm.h", "- g_mean -\n"
                   "                                                  (to_float(x[c]) - mean) * rstd * g_xhat_mean));",
                   "- g_mean -\n"
                   "                                                  (to_float(x[c]) - mean) * g_xhat_mean));",
                   "a factor rstd is missing, but it is taken away where it was right, as if rstd were counted twice")],
    },
    {
        "title": "With two tensor ranks the loss is smaller by ln 2 = 0.69, though nothing was learned",
        "level": 1, "chapter": "docs/tensor.md", "ranks": 2,
        "fault": ("collectives", "cross-entropy: no sum of exp over the vocabulary's parts"),
        "show": [f"./train_gpt {MODEL} --steps 3 {STEPS}", f"{RANKS2} --tp 2 --steps 3 {STEPS}"],
        "symptom": r"step +1/3 \| loss 5\.5.*step +1/3 \| loss 4\.8",
        "begin": "Before the first update all 256 bytes are about equally likely, and the loss is about ln 256 = 5.55. "
                 "Which vocabulary would have the loss that two ranks print? The first comment of kernels/crossentropy.h "
                 "says which numbers of a row the ranks exchange.",
        "hints": ["4.85 = ln 128: every rank normalises over its own half of the vocabulary.",
                  "loss = log(sum) - (x_target - max). Each of max, sum and x_target belongs to the whole vocabulary, so "
                  "each needs an all-reduce over the tensor ranks, of a maximum or of a sum.",
                  "Count the all-reduces in vocab_parallel_cross_entropy() of parallel/tensor.h."],
        "check": ["scripts/mpirun.sh -np 2 build/test_equivalence --mesh 2 1 1 --only 't=2 p=1 d=1 gpt2 tied zero 0 B='",
                  "build/test_kernels"],
        "solution": "The all-reduce of row_sum and target_logit over the tensor ranks was missing. Each rank took the "
                    "logarithm of the sum of its own 128 exponentials, half of the whole, so the loss of a model that "
                    "knows nothing was ln 128; and only the rank whose part holds the target knew the target's logit.",
        "wrong": [("parallel/tensor.h", "    comm_all_reduce(tensor, h->row_max, N, COMM_FLOAT, COMM_MAX);",
                   "    comm_all_reduce(tensor, h->row_max, N, COMM_FLOAT, COMM_SUM);",
                   "a sum over the ranks is missing, and this is the only all-reduce that stands there")],
    },
]
