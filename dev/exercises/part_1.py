"""Exercises: kernels and the model's mathematics, optimizer, precision, tensor and sequence parallelism, data
parallelism and ZeRO. The fields are explained in exercise.py."""
MODEL = ("--data dev/test/reference/tokenizer_words.txt --layers 2 --hidden 32 --heads 2 --seq 32 --global-batch 8 "
         "--micro-batch 4 --warmup 0 --log-every 1 --eval-every 0")
STEPS = "| grep '^step' | cut -d '|' -f 1-3"  # without speeds


def train(options="", steps=3):
    return f"./train_gpt {MODEL} --steps {steps} {options} {STEPS}"


def train2(options, steps=3):
    return "scripts/mpirun.sh -np 2 " + train(options, steps)


def mesh(sizes, case):
    """A case of test_equivalence, which compares a mesh with one process."""
    return f"scripts/mpirun.sh -np 2 build/test_equivalence --mesh {sizes} --only '{case}'"


TENSOR = mesh("2 1 1", "t=2 p=1 d=1 gpt2 tied zero 0 B=")
SEQUENCE = mesh("2 1 1", "t=2 p=1 d=1 gpt2 tied sequence zero 0 B=")
DATA = mesh("1 1 2", "t=1 p=1 d=2 gpt2 tied zero 0 B=")
ZERO1 = mesh("1 1 2", "t=1 p=1 d=2 gpt2 zero 1 B=")
ZERO2 = mesh("1 1 2", "t=1 p=1 d=2 gpt2 tied zero 2 B=")

EXERCISES = [
    {
        "title": "LayerNorm's input gradient is right only in rows whose variance is 1",
        "level": 1, "chapter": "docs/step.md",
        "fault": ("mathematics", "layernorm: the mean of g xhat is that of g (x - mean)"),
        "show": ["build/test_kernels | grep -i layernorm"],
        "symptom": r"FAIL +layernorm_backward: dx",
        "begin": "kernels/layernorm.h derives dx in its first comment. Which of the three terms of the formula "
                 "depend on the variance of the row?",
        "hints": ["dw and db pass, so the normalised value xhat that they use is right. dx needs two means over "
                  "the row.",
                  "In the formula the second mean is of g xhat, and xhat = (x - mean) rstd. Write down the power "
                  "of rstd in each term of dx, and count it in the code.",
                  "Look at g_xhat_mean in layernorm_backward_row()."],
        "check": ["build/test_kernels", "build/test_gpt"],
        "solution": "g_xhat_mean was the mean of g (x - mean), without the factor rstd that makes xhat of x - "
                    "mean. The term xhat mean(g xhat), which takes out the part of the gradient along xhat, was 1 "
                    "/ rstd times too long: right where the row's variance is 1, and wrong everywhere else. The "
                    "forward pass and the gradients of w and b do not use this number, so only dx differs.",
        "wrong": [("kernels/layernorm.h", "- g_mean -\n"
                   "                                                  (to_float(x[c]) - mean) * rstd * g_xhat_mean));",
                   "- g_mean -\n"
                   "                                                  (to_float(x[c]) - mean) * g_xhat_mean));",
                   "a factor rstd is missing, but it is taken away where it was right, as if rstd were counted twice")],
    },
    {
        "title": "With two tensor ranks the loss is smaller by ln 2, with nothing learned",
        "level": 1, "chapter": "docs/tensor.md", "ranks": 2,
        "fault": ("collectives", "cross-entropy: no sum of exp over the vocabulary's parts"),
        "show": [train(), train2("--tp 2")],
        "symptom": r"step +1/3 \| loss 5\.5.*step +1/3 \| loss 4\.8",
        "begin": "Before the first update all 256 bytes are about equally likely, and the loss is about ln 256 = "
                 "5.55. Which vocabulary would have the loss that two ranks print? The first comment of "
                 "kernels/crossentropy.h says which numbers of a row the ranks exchange.",
        "hints": ["4.85 = ln 128: every rank normalises over its own half of the vocabulary.",
                  "loss = log(sum) - (x_target - max). Each of max, sum and x_target belongs to the whole "
                  "vocabulary, so each needs an all-reduce over the tensor ranks, of a maximum or of a sum.",
                  "Count the all-reduces in vocab_parallel_cross_entropy() of parallel/vocab.h."],
        "check": [TENSOR, "build/test_kernels"],
        "solution": "The all-reduce of row_sum and target_logit over the tensor ranks was missing. Each rank took the "
                    "logarithm of the sum of its own 128 exponentials, half of the whole, so the loss of a model that "
                    "knows nothing was ln 128; and only the rank whose part holds the target knew the target's logit.",
        "wrong": [("parallel/vocab.h", "    comm_all_reduce(tensor, h->row_max, N, COMM_FLOAT, COMM_MAX);",
                   "    comm_all_reduce(tensor, h->row_max, N, COMM_FLOAT, COMM_SUM);",
                   "a sum over the ranks is missing, and this is the only all-reduce that stands there")],
    },
    {
        "title": "A frequent token learns no more than one that stands in the text once",
        "level": 1, "chapter": "docs/step.md",
        "fault": ("mathematics", "embedding: the last occurrence of a token replaces the others"),
        "show": ["build/test_kernels | grep embedding"],
        "symptom": r"FAIL +embedding_backward",
        "begin": "The forward pass copies row `token` of the table to every place where the token stands. What is the "
                 "gradient of that row if the token stands in three places? kernels/embedding.h.",
        "hints": ["The row is used three times, and the loss depends on it in three ways: the chain rule adds them.",
                  "Gradients also stay from one micro-batch to the next. So which kinds of assignment may a kernel "
                  "use that writes the gradient of a parameter?",
                  "Look at the innermost loop of embedding_backward()."],
        "check": ["build/test_kernels", "build/test_gpt"],
        "solution": "The rows of dout were assigned to the row of dwte, not added. Of all places of a token only "
                    "the last one counted, and of all micro-batches the last. A table of which every row is read "
                    "at most once, in one micro-batch, would have the right gradient.",
    },
    {
        "title": "Llama\'s gradients differ from PyTorch\'s; its losses and all of GPT-2 agree",
        "level": 1, "chapter": "docs/step.md",
        "fault": ("mathematics", "rope: gradients are rotated forward"),
        "show": ["build/test_gpt | grep -E '^FAIL +gradients|gpt2|llama|passed'"],
        "symptom": r"FAIL +gradients, worst of 21 tensors: model\.layers\.\d\.self_attn\.[qk]_proj",
        "begin": "What does Llama do with queries and keys, and not with values, that GPT-2 does not do? model.h "
                 "and the ten steps of a block in gpt.h list it.",
        "hints": ["The forward pass is right, so the operation is. Its backward pass is the transposed of its matrix.",
                  "A rotation is orthogonal: its transposed is its inverse. By which angle does the gradient turn?",
                  "Compare the last two functions of kernels/rope.h."],
        "check": ["build/test_gpt", "build/test_kernels"],
        "solution": "rope_backward rotated the gradient by +a, as the forward pass rotates the values. The "
                    "Jacobian of a rotation R is R, and the gradient at its input is R^T times the gradient at its "
                    "output, the rotation by -a. The gradients of q and k were turned by 2 a, those of values, "
                    "which are not rotated, remained right in the last block; GPT-2 has no rotation.",
        "wrong": [("gpt.h", "rope_backward(d->dqkv, stage->rope, B, T, NH + NKV, HS, QKV);",
                   "rope_backward(d->dqkv, stage->rope, acts->B, acts->T, NH, HS, QKV);",
                   "q_proj is named as the worst, so only queries are rotated back")],
    },
    {
        "title": "The first 512 tokens are learned, all others only become less likely",
        "level": 1, "chapter": "docs/step.md",
        "fault": ("mathematics", "cross-entropy: targets beyond the first block have no term of their own"),
        "show": ["build/test_kernels | grep crossentropy"],
        "symptom": r"FAIL +crossentropy gradient.*x 50257",
        "begin": "The gradient of a row of logits is p - (v = target). Which of the two terms raises a token's "
                 "logit, and what happens to a token that never gets it? kernels/crossentropy.h.",
        "hints": ["The losses agree, so max, sum and the target's logit are right: the fault is in the gradient.",
                  "The gradient is computed in blocks of logits. In which block is the target, and at which place of "
                  "it?",
                  "Look at the line of row_gradient() that uses target."],
        "check": ["build/test_kernels", "build/test_gpt"],
        "solution": "The term -(v = target) was subtracted in the first block of 512 logits only. In a row whose "
                    "target is beyond, all logits got the gradient p > 0, the target's too, so each step made the "
                    "right answer less likely. A vocabulary of bytes has one block, which is why a run on text "
                    "without a tokenizer does not show the fault.",
        "wrong": [("kernels/crossentropy.h", "if (begin == 0 && target >= 0 && target < count) gradient[target] -= "
                                             "scale;",
                   "if (target >= 0 && target < count) gradient[target] -= scale;",
                   "the condition that singles out the first block is dropped")],
    },
    {
        "title": "AdamW's first update is four times too long, the thousandth is right",
        "level": 1, "chapter": "docs/step.md",
        "fault": ("mathematics", "adamw: the second moment is not corrected"),
        "show": ["build/test_kernels_update | grep adamw"],
        "symptom": r"FAIL +adamw_update: p after ten steps.*ok +adamw_update: m.*ok +adamw_update: v",
        "begin": "m and v are right, the parameters are not. Compute by hand what AdamW does in step 1 with a "
                 "gradient g: both moments began as 0. The formula is in the first comment of kernels/adamw.h.",
        "hints": ["After step 1, m = (1 - beta1) g and v = (1 - beta2) g^2. With beta2 = 0.95, sqrt(v) = 0.22 |g|.",
                  "Both moments are divided by 1 - beta^step, as they began as 0. Without that for v the update is "
                  "1 / 0.22 = 4.5 times too long in step 1; after 100 steps the factor is 1.",
                  "Find in adamw_update() the two numbers that depend on s->step."],
        "check": ["build/test_kernels_update", "build/test_gpt"],
        "solution": "The second moment was not divided by 1 - beta2^step. In the first steps v is too small, as it "
                    "began as 0, and the update is divided by its root. The error is 1 / sqrt(1 - 0.95^step): 4.5 "
                    "in step 1, 1.003 in step 100. A warm-up of the learning rate hides it.",
        "wrong": [("kernels/adamw.h", "const float v_correction = 1.0f;",
                   "const float v_correction = (float)(1.0 / (1.0 - pow(beta2, (double)s->step)));",
                   "v is corrected, but the number multiplies its root")],
    },
    {
        "title": "With two tensor ranks the loss doubles, and the gradient's norm does not",
        "level": 1, "chapter": "docs/tensor.md", "ranks": 2,
        "fault": ("collectives", "loss: every tensor rank counts"),
        "show": [train(), train2("--tp 2")],
        "symptom": r"step +1/3 \| loss 5\.56\d* \| norm 2\.44.*step +1/3 \| loss 11\.12\d* \| norm 2\.44",
        "begin": "The norm agrees, so the gradients do: only the printed number is wrong. After "
                 "vocab_parallel_cross_entropy() each of the tensor ranks has the losses of all tokens. Follow the "
                 "loss from there to the log, in train_gpt.cu.",
        "hints": ["The loss is summed over all ranks of the mesh together with the squares of the gradients.",
                  "A sum over the mesh has to count everything once: which ranks have the loss, and how many of "
                  "them may add it?",
                  "Look at what run_grad_norm() does with the last of its sums."],
        "check": [TENSOR, DATA, "build/test_gpt"],
        "solution": "Every tensor rank of the last stage added the loss to the sum over the mesh, though all t of "
                    "them have the same losses. So the sum was t times too large. The gradients begin from the "
                    "logits, not from this number, and remained right.",
    },
    {
        "title": "Attention's output and dV are right, dQ and dK are wrong",
        "level": 2, "chapter": "docs/gpu_kernels.md",
        "fault": ("attention", "dS is of D alone"),
        "show": ["build/test_attention | cut -c 1-90 | grep -E '  (out|dq|dk|dv) ' | "
                 "grep 'T 64 ' | head -n 8; build/test_attention | tail -n 1"],
        "symptom": r"FAIL +dq.*FAIL +dk.*ok +dv",
        "begin": "The first comment of kernels/attention.h has the backward pass. dV = P^T dO needs P alone, and "
                 "is right. What stands between dP = dO V^T and dQ = dS K?",
        "hints": ["The softmax of a row: dS_ij = P_ij (dP_ij - D_i), where D_i = sum_j P_ij dP_ij.",
                  "P is right (dV is), and D is a sum that does not depend on j. Which of the three factors is missing "
                  "where dS is computed?",
                  "Look at the innermost loop of attention_backward_pair()."],
        "check": ["build/test_attention", "build/test_gpt"],
        "solution": "dS was -P D, without dP. dV does not use dS, and is right; dQ = dS K and dK = dS^T Q both do. "
                    "D only takes out of dP what would change the sum of a row of P, which is always 1; without dP "
                    "there is nothing left that says which key should have had more weight.",
        "wrong": [("kernels/attention.h", "ds[i] = p[i] * -dot[i];", "ds[i] = p[i] * ds[i];",
                   "dP is back, but the softmax of a row is derived as if its elements were independent")],
    },
    {
        "title": "LayerNorm is right around zero, and loses digits where the mean is large",
        "level": 2, "chapter": "docs/precision.md",
        "fault": ("mathematics", "layernorm: the variance is E[x^2] - mean^2"),
        "show": ["build/test_kernels | grep layernorm"],
        "symptom": r"FAIL +layernorm_forward: rstd",
        "begin": "Take a row of 1000 and 1001 in turn: its variance is 0.25. Compute it in float32, which has 24 "
                 "bits, by the two formulas that you know. Which of them does kernels/layernorm.h use?",
        "hints": ["The error is in rstd. Two numbers of about 10^6 whose difference is 0.25 have hardly a digit left.",
                  "E[x^2] - mean^2 equals E[(x - mean)^2] for real numbers, not for float32.",
                  "The helper term_squared_deviation() subtracts row.k: what is row.k when it is called?"],
        "check": ["build/test_kernels", "build/test_gpt"],
        "solution": "The variance was E[x^2] - mean^2. Both terms are about mean^2, with a relative error of 2^-24 "
                    "each, so the difference has an absolute error of about mean^2 2^-24: more than the variance "
                    "where |mean| is 4,000 times the standard deviation, and a few digits lost long before. The "
                    "second pass over the row, of x - mean, subtracts while the numbers are still exact.",
        "wrong": [("kernels/layernorm.h",
                   "1.0f / sqrtf(row_sum(term_squared_deviation, row, C) / (float)C - m * m + eps);",
                   "1.0f / sqrtf(fmaxf(row_sum(term_squared_deviation, row, C) / (float)C - m * m, 0.0f) + eps);",
                   "no more roots of negative numbers, but the digits remain lost")],
    },
    {
        "title": "In bf16 a weight of 1 never moves, however many small updates it gets",
        "level": 2, "chapter": "docs/precision.md",
        "fault": ("bf16", "always to the nearest"),
        "show": ["build/bf16/test_kernels_update"],
        "symptom": r"FAIL +adamw_round: 1 goes up in 0\.0000 of",
        "begin": "bf16 has 8 bits: from 1 to the next number is 1/128. What does 1 + 0.0001 become, and what does "
                 "it become on average if it is rounded up with a probability of 0.0128? docs/precision.md, then "
                 "kernels/adamw.h.",
        "hints": ["The test counts how often a number between two neighbours goes to the upper one. Here: never, "
                  "or always.",
                  "Stochastic rounding adds 16 random bits below those that are kept, and cuts. Which constant "
                  "would make of it rounding to the nearest?",
                  "Look at round_randomly(): does it use its second argument?"],
        "check": ["build/bf16/test_kernels_update", "build/test_kernels_update"],
        "solution": "Weights were rounded to the nearest number of bf16: half of the last bit, 0x8000, was added "
                    "in place of 16 random bits. An update below 1/256 of a weight then vanishes, always, and the "
                    "model that computes with these weights never sees it. Rounded at random, the weight is right "
                    "on average.",
        "wrong": [("kernels/adamw.h", "+ 0x8000u) >> 16", "+ 0xffffu) >> 16",
                   "small updates do move the weight, but every rounding now lengthens it")],
    },
    {
        "title": "With --recompute selective the second loss is wrong; none and full agree",
        "level": 2, "chapter": "docs/memory.md",
        "fault": ("mathematics", "selective recomputation: the mlp's norm is not recomputed"),
        "show": [train("--recompute none"), train("--recompute selective"), train("--recompute full")],
        "symptom": r"step +2/3 (\| loss \S+ \| norm \S+).*step +2/3 (?!\1)\|.*step +2/3 \1",
        "begin": "The forward pass is right: the first loss is. Recomputation restores, in the backward pass, "
                 "activations whose memory other blocks have used since. List what selective recomputation does "
                 "not keep (docs/memory.md), and for each who needs it again. gpt.h.",
        "hints": ["What is not kept shares one buffer over all layers. What stands in it during the backward pass of "
                  "layer 0, if it is not recomputed?",
                  "The gradient of a matrix is dout times the matrix's input. The inputs of Wqkv and of Wfc are norms, "
                  "and that of the mlp's projection is the activation.",
                  "Count what norms_and_act_recompute() computes: three things."],
        "check": ["build/test_equivalence --mesh 1 1 1 --only 't=1 p=1 d=1 llama tied zero 0 selective'",
                  "build/test_equivalence --mesh 1 1 1 --only 't=1 p=1 d=1 gpt2'", "build/test_gpt"],
        "solution": "norm2, the input of the mlp's first matrix, was not recomputed. Its buffer is shared by all "
                    "layers, so at that time it held the norm of the last layer, and the gradient of fc_w of every "
                    "other layer was computed with another layer's input. The other gradients do not use norm2 "
                    "itself, and the forward pass none of it: so the first loss is right, and later ones are only "
                    "a little wrong.",
    },
    {
        "title": "With two tensor ranks the first loss agrees, the first gradient does not",
        "level": 2, "chapter": "docs/tensor.md", "ranks": 2,
        "fault": ("collectives", "no sum of the gradient of the mlp's input"),
        "show": [train(), train2("--tp 2")],
        "symptom": r"step +1/3 \| loss 5\.56\d* \| norm 2\.44.*step +1/3 \| loss 5\.56\d* \| norm 2\.4[0-3]",
        "begin": "A block has two collectives forward (Megatron's g) and two backward (f). Forward all is right. "
                 "Write down where the two backward ones belong (docs/tensor.md), then read parallel/tensor.h.",
        "hints": ["A column-parallel product reads the whole input on every rank. Each rank's dx is a part of a sum.",
                  "Two products of a block are column-parallel, and so is the head. For each of them the gradient "
                  "of its input has to be summed over the tensor ranks.",
                  "Look at the last lines of column_parallel_backward_input()."],
        "check": [TENSOR, SEQUENCE, "build/test_gpt"],
        "solution": "The all-reduce of the gradient of the mlp's input was left out: "
                    "column_parallel_backward_input() returned without it for FC_W. Each rank went on with the "
                    "part of the gradient that came through its own mlp channels, so everything before this mlp "
                    "got half of it. The forward pass does not use it, which is why the first loss agrees.",
    },
    {
        "title": "With sequence parallelism two tensor ranks soon hold different norms",
        "level": 2, "chapter": "docs/sequence.md", "ranks": 2,
        "fault": ("collectives", "sequence parallel: norms' gradients are not summed"),
        "show": [train2("--tp 2"), f"scripts/mpirun.sh -np 2 ./train_gpt {MODEL} --steps 3 --tp 2 --sequence-parallel "
                 "--check-replicas-every 1 2>&1 | grep -E '^step|differ'"],
        "symptom": r"other bits of transformer\.h\.0\.ln_1\.weight.* 9 more tensors differ",
        "begin": "Both ranks hold the whole norm. Which rows of the activations does each of them see with "
                 "sequence parallelism, and which without? The message counts ten tensors: which ten vectors does "
                 "a model of two layers have, besides the biases of the projections?",
        "hints": ["dw of a norm is a sum over rows. A rank with half of the rows has half of the sum.",
                  "parallel.h decides which gradients are summed over the tensor ranks, tensor by tensor. It must not "
                  "sum those of which every rank already has the whole.",
                  "Look at needs_tp_grad_reduce()."],
        "check": [SEQUENCE, TENSOR, "build/test_layout"],
        "solution": "needs_tp_grad_reduce() said of norms that they need no sum over the tensor ranks. Without "
                    "sequence parallelism that is right: every rank normalises all rows. With it each rank has 1/t "
                    "of the rows, and so 1/t of the terms of dw and db; each updated its copy with its own part, "
                    "and the copies parted.",
        "wrong": [("parallel.h", "default: return mesh->caat.ranks > 0;", "default: return true;",
                   "the norms are summed, but also where every rank has the whole gradient")],
    },
    {
        "title": "With two replicas the gradient is right until the second micro-batch",
        "level": 2, "chapter": "docs/data_parallel.md", "ranks": 2,
        "fault": ("collectives", "a bucket is reduced after every micro-batch"),
        "show": [train2("--dp 2"), train2("--dp 2 --micro-batch 2"), train("--micro-batch 2")],
        "symptom": r"step +1/3 \| loss 5\.56\d* \| norm 2\.44.*step +1/3 \| loss 5\.56\d* \| norm (2\.[5-9]|[3-9])",
        "begin": "Gradients are added over the micro-batches in one buffer, and the buffer is summed over the "
                 "replicas in place. Write down what two replicas have in it after the first micro-batch, and "
                 "after the second. parallel/stage.h says when a bucket is complete.",
        "hints": ["With a_r and b_r, the gradients of rank r of the two micro-batches, the result should be "
                  "a_0 + a_1 + b_0 + b_1. What is it if the buffer is summed after each of them?",
                  "2 (a_0 + a_1) + b_0 + b_1: the first micro-batch counts d times. A bucket may be summed once in a "
                  "step: when?",
                  "Look at grad_bucket_ready(): BackwardPass has a field that says whether this is the last "
                  "micro-batch."],
        "check": [DATA, ZERO1, "build/test_gpt"],
        "solution": "Each bucket was summed over the replicas after every micro-batch, not after the last one. The "
                    "second all-reduce summed again what the first had already summed, so the gradient of the "
                    "first micro-batch counted twice with two replicas, and the average gradient was one and a "
                    "half times as long. One replica, or one micro-batch, shows nothing.",
    },
    {
        "title": "Two replicas report a gradient norm sqrt(2) too large; ZeRO's is right",
        "level": 2, "chapter": "docs/data_parallel.md", "ranks": 2,
        "fault": ("collectives", "gradient's norm: every data rank counts"),
        "show": [train(), train2("--dp 2"), train2("--dp 2 --zero 1")],
        "symptom": r"norm 2\.44.*step +1/3 \| loss 5\.56\d* \| norm 3\.45.*step +1/3 \| loss 5\.56\d* \| norm 2\.44",
        "begin": "The norm is the root of a sum over all ranks: sqrt(2) means that every square counts twice. With "
                 "ZeRO each replica has its own shard of the gradient, without it all have the same. "
                 "parallel/optimizer.h.",
        "hints": ["The losses agree as long as clipping (--clip 1) divides all gradients by the same number: AdamW "
                  "does not see the length of a gradient. With --optimizer sgd they would not.",
                  "Which replica should count which part, without ZeRO and with it? One rule has to hold for both.",
                  "Look at counts_slice()."],
        "check": [DATA, ZERO1, ZERO2, "build/test_gpt"],
        "solution": "counts_slice() let every replica add the squares of its gradients. Without ZeRO all replicas "
                    "have the same gradient after the all-reduce, so each square counted d times and the norm was "
                    "sqrt(d) too large; gradients were clipped too early by that factor. With ZeRO the shards are "
                    "disjoint, and all have to count.",
        "wrong": [("parallel/optimizer.h", "return slice_is_owned(slice, &stage->layout);",
                   "return slice_is_owned(slice, &stage->layout) && mesh_rank_in_site(mesh) == 0;",
                   "only the first replica counts: right without ZeRO, and with it most shards are missing")],
    },
    {
        "title": "The validation loss is too good: its sequences are trained on, too",
        "level": 2, "chapter": "docs/usage.md",
        "fault": ("data", "held out: trained on, too"),
        "show": ["build/test_dataloader | grep -v ^ok"],
        "symptom": r"FAIL +held out: .*nothing is trained on",
        "begin": "A text is cut into stretches, of each of which the last twentieth is held out: the first comment of "
                 "dataloader.h. Write down the range of tokens of the two parts of a stretch.",
        "hints": ["The held-out part is where it was; the part for training is too long.",
                  "Each part is a range [begin, end) of the stretch, and the two ranges must not overlap: one ends "
                  "where the other begins.",
                  "Look at `first` and `end` in dataloader_init()."],
        "check": ["build/test_dataloader", "build/test_token_files"],
        "solution": "The range of both parts ended at the end of the stretch, so the part for training contained the "
                    "twentieth that is held out. Nothing fails in a run: the loss of training is right, and the "
                    "validation loss measures text that the model has seen. On a text that cannot be learned, such as "
                    "random bytes, it would fall below ln 256 all the same.",
    },
    {
        "title": "With ZeRO 1 the first loss is right, and hardly anything is learned",
        "level": 3, "chapter": "docs/data_parallel.md", "ranks": 2,
        "fault": ("collectives", "ZeRO-1: a rank gets another rank's share of the sum"),
        "show": [train2("--dp 2"), train2("--dp 2 --zero 1")],
        "symptom": r"step +2/3 \| loss 5\.34.*step +2/3 \| loss (5\.[4-9]|[6-9])",
        "begin": "With ZeRO 1 a rank gets one shard of the summed gradient by a reduce-scatter, updates that shard "
                 "of the parameters, and all ranks gather the shards. Three places have to agree on which rank has "
                 "which shard. Print the first numbers of the shard of each rank after finish_grad_sync(), and of "
                 "the whole sum with --zero 0.",
        "hints": ["Each rank gets a right shard of the sum, but not its own: the parameters of one shard move by the "
                  "gradients of another.",
                  "A reduce-scatter gives shard i to rank i of its group; bucket_shard_begin() takes mesh.data for i. "
                  "When are these two the same number?",
                  "The order of a group is the key of comm_split: look at process_groups_init()."],
        "check": [ZERO1, ZERO2, DATA, "build/test_layout"],
        "solution": "The ranks of the data group stood in the reverse order of their coordinate mesh.data. A "
                    "reduce-scatter distributes by the rank in the group, while the update and the gathering of "
                    "parameters use the coordinate. So each of two ranks updated its parameters with the gradients "
                    "of the other shard, and then gathered them at the wrong place. An all-reduce does not depend "
                    "on the order: without ZeRO nothing shows.",
        "wrong": [("parallel.h",
                   "offset + layout->mesh.data * bucket_shard_size(layout, bucket);",
                   "offset + (layout->mesh.d - 1 - layout->mesh.data) * bucket_shard_size(layout, bucket);",
                   "the update takes the shard that belongs to the gradients, and the gathering still uses mesh.data")],
    },
    {
        "title": "With ZeRO 2 the gradient becomes shorter with every micro-batch",
        "level": 3, "chapter": "docs/data_parallel.md", "ranks": 2,
        "fault": ("collectives", "ZeRO-2: a micro-batch's share replaces those before it"),
        "show": [train2("--dp 2 --micro-batch 2"), train2("--dp 2 --micro-batch 2 --zero 2"),
                 train2("--dp 2 --micro-batch 1 --zero 2")],
        "symptom": r"norm 2\.44.*step +1/3 \| loss 5\.56\d* \| norm 1\.[0-8]",
        "begin": "ZeRO 2 keeps no buffer for all gradients: a bucket's gradients of one micro-batch are summed "
                 "over the replicas into a small buffer that is used again. Where do the sums of all micro-batches "
                 "come together? parallel/data.h.",
        "hints": ["Half of the batch gives a gradient that is about half as long when it is divided by the whole "
                  "batch.",
                  "A shard that has arrived must join those of earlier micro-batches before its buffer is used again.",
                  "Look at grad_bucket_collect(): what does it do with what is already in grads->shards?"],
        "check": [ZERO2, ZERO1, DATA],
        "solution": "The shard of a bucket that had arrived was copied over the earlier ones, not added, so only "
                    "the last micro-batch of a step counted. The gradient is divided by all tokens of the batch, "
                    "so with m micro-batches it was about 1/m as long. With one micro-batch the embedding alone "
                    "would be wrong, which has two gradients in a step when it is tied.",
        "wrong": [("parallel/data.h",
                   "    device_copy(grads->shards + bucket_shard_offset(layout, b), grads->bucket[i].sum,\n"
                   "                (size_t)bucket_shard_size(layout, b) * sizeof(float));",
                   "    accumulate(grads->shards + bucket_shard_offset(layout, b), grads->bucket[i].gradient, "
                   "bucket_shard_size(layout, b));",
                   "it is added, but what this rank sent, not the shard of the sum that has arrived")],
    },
    {
        "title": "The mlp's gradients are summed over the ranks, attention's are not",
        "level": 3, "chapter": "docs/sequence.md", "ranks": 2,
        "fault": ("collectives", "sequence parallel: a block's bucket ends before attention's gradients"),
        "show": [train(), train2("--dp 2"),
                 f"scripts/mpirun.sh -np 2 ./train_gpt {MODEL} --steps 3 --tp 2 --sequence-parallel "
                 "--check-replicas-every 1 2>&1 | grep -E '^step|differ'"],
        "symptom": r"norm 2\.44.*step +1/3 \| loss 5\.56\d* \| norm (?!2\.44).*ln_1\.weight.* 3 more tensors differ",
        "begin": "Two meshes differ from one rank: data parallel (run it twice: is its norm the same?), and tensor "
                 "parallel with sequence parallelism. What do both do with the gradients of a block, and when? The "
                 "message of the third run says which tensors of a block are wrong. Backward, the mlp comes before "
                 "attention.",
        "hints": ["All gradients of a block are in one bucket. When its gradients are complete, the norms' are summed "
                  "over the tensor ranks (sequence parallelism), and the bucket over the replicas.",
                  "A sum that starts too early does not contain what is added later, and each rank then has its own.",
                  "Look at the order in block_backward() of gpt.h."],
        "check": [SEQUENCE, DATA, "build/test_gpt"],
        "solution": "The bucket of a block was said to be complete before attention's backward pass had added its "
                    "gradients. The sums over the replicas, and with sequence parallelism of the norms over the "
                    "tensor ranks, contained the mlp alone; attention's gradients came later, each rank's own. "
                    "Overlapping communication with computation has one rule: nothing may be added to a bucket "
                    "after its sum began.",
    },
    {
        "title": "With a tied embedding two replicas report a norm that grows every step",
        "level": 3, "chapter": "docs/data_parallel.md", "ranks": 2,
        "fault": ("collectives", "a tied embedding's bucket is reduced before its second gradient"),
        "show": [train(), train2("--dp 2")],
        "symptom": r"norm 2\.44.*step +1/3 \| loss 5\.56\d* \| norm (2\.[5-9]|[3-9])",
        "begin": "The matrix of a tied embedding is used twice, by the head and by the embedding, and gets two "
                 "gradients in a backward pass: first and last of all. Which of the two is on time for the sum "
                 "over the replicas? gpt.h, where buckets begin and end.",
        "hints": ["With h_r and e_r, the two gradients of rank r, the result should be h_0 + h_1 + e_0 + e_1. What "
                  "is it if the bucket is summed after h and again after e?",
                  "2 (h_0 + h_1) + e_0 + e_1: the head counts d times. An untied head, however, has a bucket of "
                  "its own, whose only gradient this is.",
                  "Look at what follows WGRAD in head_backward(): for which models may the bucket be reduced "
                  "there?"],
        "check": [DATA, ZERO1, ZERO2, "build/test_gpt"],
        "solution": "The bucket of the tied matrix was reduced after the head's gradient, and once more after the "
                    "embedding's. The second sum contained the first one, so the head's gradient counted d times. "
                    "Where the embedding is split in two gradients, the bucket is complete only after "
                    "vocab_parallel_embedding_backward(); an untied head is complete at once.",
        "wrong": [("gpt.h", "    grad_bucket_ready(part, -1, head);\n", "",
                   "the early sum is removed for all models, so the gradient of an untied head is never summed")],
    },
]
