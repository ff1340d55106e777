"""Exercises: pipeline schedules and their messages, collectives, CAAT-Net, asynchronous data parallelism, checkpoints,
the planner, generation, token files. The fields are explained in exercise.py."""
MODEL = ("--data dev/test/reference/tokenizer_words.txt --layers 4 --hidden 32 --heads 2 --seq 32 --global-batch 8 "
         "--micro-batch 2 --warmup 0 --log-every 1 --eval-every 0")
STEPS = "| grep '^step' | cut -d '|' -f 1-3"  # the lines of the steps, without speeds
ONE = f"./train_gpt {MODEL}"
TWO, FOUR = (f"scripts/mpirun.sh -np {n} ./train_gpt {MODEL}" for n in (2, 4))
SAVED = "--steps 6 --out build/out"  # and a run that goes on from step 3 of it:
RESUMED = f"{SAVED} --resume {STEPS}"
WRITE = "./train_gpt --out build/out --resume --temperature 0 --generate"


def resumes(start):
    """A run of six steps, and one that is resumed after the third: to show, and to compare."""
    whole = f"rm -rf build/out; {start} {SAVED} --save-every 3 {STEPS}"
    again = f"rm -rf build/out/step_00000006; {start} {RESUMED}"
    return [whole, again], [f"{whole} > build/whole; {again} > build/again; tail -n 3 build/whole | diff - build/again"]


def equals(t, p, d, what):
    """A mesh against one rank."""
    return (f"scripts/mpirun.sh -np {t * p * d} build/test_equivalence --mesh {t} {p} {d} --only "
            f"'t={t} p={p} d={d} {what}'")


RESUMED_ONE, RESUMED_DILOCO = resumes(ONE), resumes(f"{TWO} --dp 2 --dp-mode diloco --local-steps 2")

EXERCISES = [
    {
        "title": "The lower the temperature, the more random the text",
        "level": 1, "chapter": "docs/usage.md",
        "fault": ("generate", "temperature multiplies"),
        "show": ["build/test_sampling --short | grep FAIL"],
        "symptom": r"FAIL  next to no temperature: the largest two",
        "begin": "The first comment of trainer/sampler.h gives the five steps from logits to a token. Which step has "
                 "the temperature D, and what becomes of its weights as D goes to 0?",
        "hints": ["exp(z / D): with a small D the differences of the logits grow, and the largest token takes all.",
                  "For D = 1 nothing is wrong. Compare the exponent in the code with the comment's for D = 0.5."],
        "check": ["build/test_sampling --short"],
        "solution": "The difference to the largest logit was multiplied by the temperature, not divided by it: the "
                    "distribution of temperature D was that of 1 / D. At D = 1 the two are the same, which is why a "
                    "test at the default would see nothing; near D = 0 all tokens became equally likely.",
    },
    {
        "title": "1F1B keeps five micro-batches on the first of four stages, not four",
        "level": 1, "chapter": "docs/schedules.md", "ranks": 4,
        "fault": ("schedules", "1f1b: one more forward before the first backward"),
        "show": [f"{FOUR} --pp 4 --micro-batch 1 --dry-run | grep -A 6 '^schedule'",
                 f"{TWO} --pp 2 --steps 2 {STEPS}"],
        "symptom": r"inflight +5 4 3 2",
        "begin": "Draw 1F1B for p = 4 on paper, beside the table that --dry-run prints. How many forward passes has "
                 "stage r to do before the first gradient can reach it?",
        "hints": ["The last stage can do its first backward pass right after its first forward pass. Does it?",
                  "Theory in parallel/schedule.h: p - r - 1 forward passes first, on stage r from 0. Find them."],
        "check": ["build/test_schedule"],
        "solution": "The warm-up of stage r was p - r forward passes, and should be p - r - 1. Every stage computed "
                    "one micro-batch more before its first backward pass, so min(p - r + 1, m) were in memory. Every "
                    "micro-batch still met its own activations, so losses and gradients were right: only memory "
                    "shows this fault.",
        "wrong": [("parallel/schedule.h", "warm = schedule->config.p - schedule->stage;",
                   "warm = schedule->config.p - 1;",
                   "stage 0 then has its p micro-batches, but all other stages have as many")],
    },
    {
        "title": "With --pp 2 the first loss is 0.0004 too high, as if a block were missing",
        "level": 1, "chapter": "docs/schedules.md", "ranks": 2,
        "fault": ("collectives", "a stage sends what went into its last block"),
        "show": [f"{ONE} --steps 3 {STEPS}", f"{TWO} --pp 2 --steps 3 {STEPS}"],
        "symptom": r"norm 3\.2[0-5].*step +1/3 \| loss 5\.56\d* \| norm 3\.(2[7-9]|3)",
        "begin": "The first losses differ already, so the forward pass does. parallel/pipeline.h sends from stage to "
                 "stage: what should the message be, and what is it?",
        "hints": ["With four layers, stage 0 has two blocks. Only three of the four have an effect on the loss.",
                  "acts->x[l] is the input of the chunk's block l. Which index has the output of the last one? See "
                  "chunk_output() in parallel/stage.h."],
        "check": [equals(1, 2, 1, "gpt2 tied zero 0 B=")],
        "solution": "The first stage sent acts->x[layers - 1], the input of its last block, where the next stage needs "
                    "that block's output, chunk_output(). The last block of every stage but the last one computed for "
                    "nothing. Shapes agree, so nothing complains, and since a residual block changes its input only a "
                    "little before training, the first loss is wrong by 0.0004 only.",
        "wrong": [("parallel/pipeline.h", "acts->x[acts->chunk->layers - 1]", "acts->x[0]",
                   "the first of the stage's rows looks like its boundary, but it is the input of its first block")],
    },
    {
        "title": "The planner's models reach a quarter less than their published TFLOP/s",
        "level": 1, "chapter": "docs/planner.md",
        "fault": ("planner", "time: three passes in equation 3"),
        "show": ["build/test_planner_step | grep 'table 1, '"],
        "symptom": r"FAIL  table 1, 1\.7B.*-2\d\.\d %",
        "begin": "All rows are too low by about the same factor, and the times are computed elsewhere. "
                 "planner/formulas.h has the FLOPs of a step by equation 3 of Narayanan et al. 2021: derive its "
                 "first number.",
        "hints": ["A layer has 12 h^2 weights, and a matrix product 2 FLOPs a weight and token: 24 h^2 a forward pass.",
                  "The paper recomputes activations in full: how many times the work of a forward pass is a step?"],
        "check": ["build/test_planner_step"],
        "solution": "Equation 3 counts four times the work of a forward pass: forward, its recomputation, and a "
                    "backward pass that costs two; 4 x 24 = 96. The code had 72, three times, which is a step "
                    "without recomputation (model FLOPs). The simulated time was right, so FLOP/s came out a quarter "
                    "too small.",
        "wrong": [("planner/formulas.h", "return 72.0 * batch", "return 84.0 * batch",
                   "recomputation counted as half a pass: the errors are halved, not gone")],
    },
    {
        "title": "The planner believes that an all-reduce is faster than the links it uses",
        "level": 1, "chapter": "docs/planner.md",
        "fault": ("planner", "links: one pass of an all-reduce"),
        "show": ["build/test_planner_cluster | grep 'all-reduce of'"],
        "symptom": r"FAIL  all-reduce of 256 MiB on 8 A100: bus 4\d\d",
        "begin": "An A100 sends at most 300 GB/s over its NVLinks. planner/comm_cost.h: how many times does a byte of "
                 "the vector leave a rank in a ring all-reduce?",
        "hints": ["A ring all-reduce is a reduce-scatter and then an all-gather: 2 (n - 1) / n of the vector are sent.",
                  "Find where the two halves are counted."],
        "check": ["build/test_planner_cluster"],
        "solution": "plan_passes() counted one pass over the vector for every collective. An all-reduce has two, the "
                    "reduce-scatter and the all-gather, each of (n - 1) / n of the vector, so its bytes and its steps "
                    "were half of what they are, and its bus bandwidth twice: 450 GB/s over links of 300.",
        "wrong": [("planner/comm_cost.h", "static inline int plan_passes(PlanKind kind) { return 1; }",
                   "static inline int plan_passes(PlanKind kind) { return 2; }",
                   "the all-reduce is right, but a reduce-scatter or an all-gather alone now has two passes")],
    },
    {
        "title": "Some tokens of an llm.c shard are read as numbers above four billion",
        "level": 1, "chapter": "docs/usage.md",
        "fault": ("data", "types: uint16 has a sign"),
        "show": ["build/test_token_files 2>&1 | tail -n 1"],
        "symptom": r"stream1_\d+: token \d+ is 42949\d+, the model has a vocabulary of 50257",
        "begin": "The tokens of a shard of GPT-2 are integers of two bytes, from 0 to 50256. Write down the two bytes "
                 "of tokens 100 and 50256, and what each pair is as a number with a sign.",
        "hints": ["Tokens up to 32767 are right. The others are 2^32 - 65536 more than they should be.",
                  "Every type of token has one line that makes a number of its bytes: look at token_at()."],
        "check": ["build/test_token_files", "build/test_dataloader"],
        "solution": "The bytes of uint16 were read as int16, so that every token from 32768 on became negative, and "
                    "as a number without sign one above 2^31. Such a token is refused as one that no vocabulary has; "
                    "without that check it would be a row far outside the embedding.",
        "wrong": [("dataloader/token_files.h", "uint32_t token = token_at(data, type, i);",
                   "uint32_t token = (uint16_t)token_at(data, type, i);",
                   "tokens of two bytes are right again, and those of four lose their upper half")],
    },
    {
        "title": "GPipe's first loss is right and its gradient is not; 1F1B's is right",
        "level": 2, "chapter": "docs/schedules.md", "ranks": 2,
        "fault": ("collectives", "gpipe: all micro-batches share one head"),
        "show": [f"{TWO} --pp 2 --schedule 1f1b --steps 3 {STEPS}", f"{TWO} --pp 2 --schedule gpipe --steps 3 {STEPS}"],
        "symptom": r"norm 3\.2.*step +1/3 \| loss 5\.56\d* \| norm (3\.[7-9]|4)",
        "begin": "The same passes in another order give other gradients, so some buffer lives too short. Run GPipe "
                 "with --micro-batch 8, one micro-batch, and compare. What must stay in memory between F and B?",
        "hints": ["In 1F1B the last stage does B k right after F k; in GPipe after the forward passes of all others. "
                  "Whatever the last stage alone keeps has to be there m times.",
                  "Every slot of activations has its own x, qkv, ... How many heads (logits, row_sum) are there, and "
                  "which one does a micro-batch get?", "bind_microbatch() in parallel/stage.h."],
        "check": [equals(1, 2, 1, "gpipe/1 gpt2 tied zero 0 B="), equals(1, 2, 1, "gpt2 tied zero 0 B=")],
        "solution": "All micro-batches had the same head activations. In GPipe the forward pass of micro-batch k + 1 "
                    "overwrote the logits of k before its backward pass, so every backward pass used those of the last "
                    "micro-batch. The losses had been taken before that, hence the first is right. 1F1B has one head "
                    "in flight on the last stage, and does not notice.",
        "wrong": [("parallel/stage.h", "&stage->head[0]", "&stage->head[k % (stage->heads > 1 ? 2 : 1)]",
                   "two heads in turn suffice where messages are double-buffered, but here m are in flight")],
    },
    {
        "title": "With --pp 2 the gradient's norm is too large; the second loss is right",
        "level": 2, "chapter": "docs/schedules.md", "ranks": 2,
        "fault": ("collectives", "gradient's norm: both ends of the pipeline count a tied embedding"),
        "show": [f"{ONE} --steps 3 {STEPS}", f"{TWO} --pp 2 --steps 3 {STEPS}"],
        "symptom": r"norm 3\.2.*step +1/3 \| loss 5\.56\d* \| norm 3\.[4-6]",
        "begin": "AdamW's first step hardly depends on the size of the gradient, which hides a wrong factor of "
                 "clipping for a step. Which parameters are on both stages?",
        "hints": ["3.464^2 - 3.230^2 is the square of something: the norm of the gradient of one tensor.",
                  "A tied embedding is on the first and on the last stage, both with the summed gradient. The norm "
                  "sums squares over all ranks, so one of the two has to keep silent: slice_is_owned() in parallel.h."],
        "check": [equals(1, 2, 1, "gpt2 tied zero 0 B="), "build/test_layout"],
        "solution": "The squares of the tied embedding's gradient were added on the first and on the last stage. The "
                    "norm was too large by that tensor's share, and clipping multiplied all gradients by a factor "
                    "that was too small. AdamW divides by the root of the second moment, so the first update is "
                    "nearly the same, and losses differ only from the third step on.",
    },
    {
        "title": "A resumed run reads the same text again",
        "level": 2, "chapter": "docs/fault_tolerance.md",
        "fault": ("survival", "the position in the data is lost"),
        "show": RESUMED_ONE[0],
        "symptom": r"step +4/6 \| loss (\S+).*step +4/6 \| loss (?!\1)",
        "begin": "Weights and optimizer are those of step 3, yet the loss of step 4 is another one. Compare "
                 "trainer.json of build/out/step_00000003 with what trainer/checkpointing.h takes from it.",
        "hints": ["The loss of step 4 depends on the weights and on the data. Which sequences does a resumed run read?",
                  "Sequences are numbered in the order in which training reads them; the trainer counts those that it "
                  "has read. Which number does it begin with?"],
        "check": RESUMED_ONE[1],
        "solution": "The step was restored, the number of sequences read was not. The run continued with the weights "
                    "of step 3 and the first sequences of all, which it had seen: the loss was lower than it should "
                    "be, and from there on the run was another one.",
        "wrong": [("trainer/checkpointing.h", "    t->step = state.step;\n",
                   "    t->step = state.step;\n    t->sequences = state.step;\n",
                   "the position is counted in sequences, and a step has a global batch of them")],
    },
    {
        "title": "After a resume the first loss is right; after the first update it is not",
        "level": 2, "chapter": "docs/fault_tolerance.md",
        "fault": ("survival", "second moments are not restored"),
        "show": RESUMED_ONE[0],
        "symptom": r"step +4/6 \| loss (\S+).*step +5/6 \| loss (\S+).*step +4/6 \| loss \1.*step +5/6 \| loss (?!\2)",
        "begin": "The loss of step 4 is computed before the first update after the resume, the loss of step 5 after "
                 "it. What does an update use that a forward pass does not?",
        "hints": ["AdamW keeps two numbers a parameter besides the weight. What if one of them is 0 in step 4?",
                  "checkpoint/save.h reads back the values of a bucket; value 0 is the weight. Which of 1 and 2 "
                  "are set?"],
        "check": RESUMED_ONE[1],
        "solution": "Only value 1, the first moment, was put back. The second moment began at 0, while the "
                    "correction for its bias was that of step 4: with equal gradients 0.05 / (1 - 0.95^4) = 0.27 of "
                    "the second moment were there, and the update was about twice too long. The loss of step 4, "
                    "computed before, is right; that of step 5 is not.",
        "wrong": [("checkpoint/save.h", "(what == 1 || local)", "(what == 2 || local)",
                   "now the second moment is restored, and the first is not")],
    },
    {
        "title": "Two micro-batches train; with four, a receive overwrites a buffer in use",
        "level": 2, "chapter": "docs/schedules.md", "ranks": 2,
        "fault": ("schedules", "receives: one too far ahead"),
        "show": [f"{TWO} --pp 2 --micro-batch 4 --steps 2 {STEPS}", f"{TWO} --pp 2 --steps 2 2>&1 | grep rank"],
        "symptom": r"step +2/2.*the schedule is wrong: .*it overwrites a buffer in use",
        "begin": "parallel/schedule_check.h proves every table before a run, and names the action. A chunk has two "
                 "receive buffers a direction, k mod 2. Write down the receives and the uses of stage 0 for m = 4.",
        "hints": ["The first two receives are posted before everything else. When is the buffer of micro-batch 2 free?",
                  "The use of micro-batch k frees buffer k mod 2, which is that of k + 2. The table posts k + 3.",
                  "Count `ahead` in schedule_add_next_receive() by hand: at which j does it stop?"],
        "check": ["build/test_schedule", "build/test_schedule_check"],
        "solution": "After the use of micro-batch k the receive of k + 3 was posted: the counter was compared before "
                    "it was increased. Buffer (k + 3) mod 2 still held k + 1, and the receive of micro-batch 2 was "
                    "posted nowhere. With two micro-batches all receives are among the first two, which other code "
                    "posts.",
        "wrong": [("parallel/schedule.h", "enum { PIPELINE_BUFFERS_PER_DIRECTION = 2 };",
                   "enum { PIPELINE_BUFFERS_PER_DIRECTION = 3 };",
                   "one buffer more moves the fault by a micro-batch, and takes memory")],
    },
    {
        "title": "1F1B is accepted, ZB-H1 refused: a slot holds another micro-batch",
        "level": 2, "chapter": "docs/schedules.md", "ranks": 2,
        "fault": ("schedules", "slots: free after the input gradient"),
        "show": [f"{TWO} --pp 2 --schedule 1f1b --steps 2 {STEPS}",
                 f"{TWO} --pp 2 --schedule zb-h1 --steps 2 2>&1 | grep rank"],
        "symptom": r"step +2/2.*the schedule is wrong: .*its slot holds another micro-batch",
        "begin": "What does ZB-H1 do that 1F1B does not? The Theory of parallel/schedule.h says of each action whether "
                 "the slot is free afterwards.",
        "hints": ["ZB-H1 splits a backward pass. B computes dx = dy W^T, W computes dW = x^T dy: which of the two "
                  "needs the activations x?",
                  "order_assign_slots() gives a slot back. After which action?"],
        "check": ["build/test_schedule", "build/test_schedule_check"],
        "solution": "A slot was given back after the input gradient. The weight gradients, which come later in ZB-H1, "
                    "multiply by the activations in the slot, and another micro-batch's forward pass would have "
                    "overwritten them. In 1F1B one action makes both gradients, and the two moments coincide.",
    },
    {
        "title": "A model that is given its own text does not continue it as it did",
        "level": 2, "chapter": "docs/usage.md",
        "fault": ("collectives", "reading: nothing goes into the cache"),
        "show": ["rm -rf build/out; ./train_gpt --data dev/test/reference/make_reference.py --layers 2 --hidden 64 "
                 "--heads 2 --seq 64 --global-batch 16 --steps 200 --eval-every 0 --out build/out > /dev/null",
                 f"A=$({WRITE} 'with torch.' --max-new-tokens 40 2> /dev/null | tail -n 1); echo \"whole: $A\"; "
                 f"B=$({WRITE} \"${{A:0:31}}\" --max-new-tokens 20 2> /dev/null | tail -n 1); echo \"again: $B\""],
        "symptom": r"whole: ([^\n]*)\nagain: (?!\1\n)",
        "begin": "The second run is given the first 31 characters of the first run's text, at temperature 0. Which "
                 "tokens does a generated token attend to, and who wrote their keys and values? trainer/generate.h.",
        "hints": ["A prompt is read in one forward pass; then one token at a time is decoded, with the keys and values "
                  "of all tokens before it from the cache.",
                  "Decoded tokens put their own keys there. Which pass puts those of the prompt there, and is it "
                  "told to?",
                  "Follow acts->keeps_kv."],
        "check": ["rm -rf build/out; ./train_gpt --data dev/test/reference/make_reference.py --layers 2 --hidden 64 "
                  "--heads 2 --seq 64 --global-batch 16 --steps 200 --eval-every 0 --out build/out > /dev/null; "
                  f"A=$({WRITE} 'with torch.' --max-new-tokens 40 2> /dev/null | tail -n 1); "
                  f"B=$({WRITE} \"${{A:0:31}}\" --max-new-tokens 20 2> /dev/null | tail -n 1); test \"$A\" = \"$B\""],
        "solution": "While the prompt was read, its keys and values were not copied into the cache. A decoded token "
                    "then attended to zeros where the prompt should be, and to the decoded tokens. The same text "
                    "gave another continuation when a part of it was read instead of decoded. Training does not use "
                    "the cache, so its losses are right.",
        "wrong": [("trainer/generate.h", "acts->keeps_kv = false;", "acts->keeps_kv = decode;",
                   "as if decoding had to fill the cache, but a decoded token does that by itself")],
    },
    {
        "title": "MultiTree sends sums up its trees before they have arrived",
        "level": 2, "chapter": "docs/collectives.md",
        "fault": ("plans", "multitree: up in the order of down"),
        "show": ["build/test_collective --short | grep FAIL"],
        "symptom": r"FAIL  MultiTree, row by row.*FAIL  plans: plan_check",
        "begin": "Build by hand the tree of rank 0 on a 2 x 2 torus. In which steps does the all-gather use its "
                 "edges, from the root to the leaves? In which steps does the reduce-scatter have to use them?",
        "hints": ["The reduce-scatter is the all-gather backwards in time: leaves begin, the root ends.",
                  "An edge of step s of n going down is used in step n - 1 - s going up. Look in "
                  "comm/collectives/multitree.h for where the step of an edge becomes that of a transfer."],
        "check": ["build/test_collective --short"],
        "solution": "Transfers up used the steps of those down. The edges at the root, which are the first on the way "
                    "down, were the first on the way up too: a rank sent its sum to its parent before its own children "
                    "had sent theirs. The proof sees that parts are lost.",
    },
    {
        "title": "ZB-H1's first loss is right and its gradient is not; 1F1B's is right",
        "level": 3, "chapter": "docs/schedules.md", "ranks": 2,
        "fault": ("collectives", "zb-h1: all micro-batches between the halves share one place"),
        "show": [f"{TWO} --pp 2 --schedule 1f1b --steps 3 {STEPS}", f"{TWO} --pp 2 --schedule zb-h1 --steps 3 {STEPS}"],
        "symptom": r"norm 3\.2.*step +1/3 \| loss 5\.56\d* \| norm 3\.[3-5]",
        "begin": "Print the table of --dry-run for zb-h1 and p = 2. Between B k and W k of a stage, which other B's "
                 "are there? What does W k need besides the activations of its slot?",
        "hints": ["dW = x^T dy: x is in the slot; dy, the gradients within the block, were computed by B k, and have "
                  "to stay until W k.",
                  "stage->pending is the most micro-batches between the two. How many places for their gradients are "
                  "there, and which of them does micro-batch k get?", "run_backward() in "
                  "train_gpt.cu."],
        "check": [equals(1, 2, 1, "zb-h1/1 gpt2 tied zero 0 B="), equals(1, 2, 1, "gpt2 tied zero 0 B=")],
        "solution": "All micro-batches left the gradients that W needs in the same place. When B k + 1 came before W "
                    "k, the weight gradients of k were made of its own activations and the next micro-batch's "
                    "gradients. The table and its proof were right: the proof knows slots, not this buffer.",
        "wrong": [("train_gpt.cu", "&stage->gradients[action.chunk][0]",
                   "&stage->gradients[action.chunk][action.chunk]",
                   "a place for every chunk, but it is micro-batches that are between the halves")],
    },
    {
        "title": "A tied embedding and head on two stages become different matrices",
        "level": 3, "chapter": "docs/schedules.md", "ranks": 2,
        "fault": ("collectives", "the tied embedding is updated before its two gradients are summed"),
        "show": [f"{ONE} --steps 3 {STEPS}", f"{TWO} --pp 2 --steps 3 {STEPS}",
                 f"{TWO} --pp 2 --steps 3 --check-replicas-every 1 2>&1 | grep -i wte"],
        "symptom": r"norm 3\.2.*step +1/3 \| loss 5\.56\d* \| norm 3\.[01]",
        "begin": "The first loss is right and the norm is not, so a gradient is missing or too much. --check-replicas-"
                 "every 1 says what differs. Which actions follow the last backward pass in the table, and who "
                 "executes them?",
        "hints": ["dL/dwte has two terms: one from the embedding, on the first stage, and one from the head, on the "
                  "last.",
                  "The table has an action TIE for it. parallel/data.h has the all-reduce over the two stages: who "
                  "calls it?"],
        "check": [equals(1, 2, 1, "gpt2 tied zero 0 B="),
                  equals(1, 2, 1, "interleaved/2 gpt2 tied zero 0 B=")],
        "solution": "Nothing was done for the action TIE: the gradients of the tied matrix on the first and on the "
                    "last stage were not summed. Each stage updated its copy with its own term, and the two copies "
                    "were different matrices from the first update on. The norm counted the first stage's term only.",
    },
    {
        "title": "With --tp 2 --pp 2 the first loss is wrong; with either alone it is right",
        "level": 3, "chapter": "docs/schedules.md", "ranks": 4,
        "fault": ("collectives", "boundary: tensor ranks send the wrong parts"),
        "show": [f"{ONE} --steps 2 {STEPS}", f"{FOUR} --tp 2 --pp 2 --steps 2 {STEPS}",
                 f"{TWO} --pp 2 --steps 2 {STEPS}", f"{FOUR} --tp 2 --pp 2 --no-scatter-gather --steps 2 {STEPS}"],
        "symptom": r"step +1/2 \| loss 5\.56.*step +1/2 \| loss 5\.5[0-4]",
        "begin": "The fourth run is right: what does --no-scatter-gather change (Narayanan et al. 2021, section 4.1)? "
                 "Then draw what each of the four ranks sends, to whom, and what it gathers.",
        "hints": ["All tensor ranks of a stage have the same output, so rank i sends part i of t to its peer, and the "
                  "peers gather the parts within their stage.",
                  "The gather puts the part of tensor rank i at place i. Is it part i that it was sent? parallel.h has "
                  "the place of a rank's part in the boundary."],
        "check": [equals(2, 2, 1, "gpt2 tied zero 0 B=")],
        "solution": "Tensor rank i sent part t - 1 - i of the stage's output, and the all-gather on the next stage "
                    "put it at place i: the rows arrived in the wrong order, the second half of the batch's values "
                    "before the first, while targets stayed. With one tensor rank, or with whole messages, there is "
                    "one part only.",
    },
    {
        "title": "CAAT-Net's first loss is right, its gradient norm 2.4 times too large",
        "level": 3, "chapter": "docs/caat.md", "ranks": 2,
        "fault": ("collectives", "CAAT-Net: projections' biases get the gradient of the sums"),
        "show": [f"{TWO} --tp 2 --steps 2 {STEPS}", f"{TWO} --tp 2 --caat-fraction 0.5 --steps 2 {STEPS}"],
        "symptom": r"norm 3\.2.*step +1/2 \| loss 5\.56\d* \| norm [5-9]\.",
        "begin": "Sharing half of the channels hardly changes a model that has learned nothing: 3.19 is the right "
                 "norm. The forward pass is right. Which gradients of a row-parallel layer differ in CAAT-Net "
                 "(methods/caat.h), and where is each of them made?",
        "hints": ["Weights of a row-parallel product see the gradient behind the sum. The bias is added by every rank "
                  "to its own stream.",
                  "methods/caat.h makes the gradient of the projections' biases itself. Does another function make "
                  "it, too?",
                  "row_parallel_backward_weight() in parallel/tensor.h."],
        "check": [equals(2, 1, 1, "gpt2 tied sync 0.5 of 2 runtime zero 0 "), "build/test_caat"],
        "solution": "The ordinary row-parallel backward pass also added the gradient of the summed output to the bias, "
                    "besides the gradient of the streams that CAAT-Net takes: the projections' biases got both. The "
                    "first loss is computed before any gradient, so only the norm and what follows from it are wrong.",
        "wrong": [("parallel/tensor.h", "    local_linear_backward_weight(pass, row_parallel_output_grad(pass, all)",
                   "    if (pass->stage->layout.mesh.tensor > 0) m.bias = NO_TENSOR;\n"
                   "    local_linear_backward_weight(pass, row_parallel_output_grad(pass, all)",
                   "counting once over the ranks looks right, but CAAT-Net has counted already")],
    },
    {
        "title": "DC-S3GD learns faster than synchronous training, as if at twice the rate",
        "level": 3, "chapter": "docs/async_dp.md", "ranks": 2,
        "fault": ("async_dp", "dc-s3gd: c takes in the sum of the changes, not the mean"),
        "show": [f"{TWO} --dp 2 --steps 8 {STEPS}", f"{TWO} --dp 2 --dp-mode dc-s3gd --steps 8 {STEPS}"],
        "symptom": r"step +8/8 \| loss (5\.0|4\.9).*step +8/8 \| loss 4\.[67]",
        "begin": "The first two losses are right; from the third on the weights have moved too far. Trace in "
                 "methods/async_dp.h what a site does with the change that the other one sent, one step late.",
        "hints": ["c is what all sites know in common. In a step it moves by the mean of the sites' changes.",
                  "An all-reduce gives a sum. Where does it become a mean?"],
        "check": ["scripts/mpirun.sh -np 2 build/test_async_dp --short --only '--dp-mode dc-s3gd --clip 0.5'"],
        "solution": "The common parameters c took in the sum of the sites' changes, not their mean: with n sites they "
                    "moved n times as far, which is a learning rate n times as large. So early in training a larger "
                    "rate helps, and the loss looks better, not worse.",
        "wrong": [("methods/async_dp.h",
                   "add_scaled(async->global_params + at, async->sum + at, 1.0f, n);",
                   "add_scaled(async->global_params + at, async->sum + at, 1.0f / (float)(async->config.sites + 1), "
                   "n);",
                   "as if the site's own change were in the sum once more")],
    },
    {
        "title": "A resumed run of DiLoCo goes its own way from its first outer step on",
        "level": 3, "chapter": "docs/async_dp.md", "ranks": 2,
        "fault": ("async_dp", "checkpoint: no velocity"),
        "show": RESUMED_DILOCO[0],
        "symptom": r"step +5/6 \| loss 4\.9.*step +5/6 \| loss 5\.0",
        "begin": "Every second step all sites merge what they have learned, in steps 2, 4 and 6 of this run. The "
                 "resumed run has the losses of the whole one until the first merge after the resume, and others "
                 "after it. Which state does the outer optimizer have besides the global parameters?",
        "hints": ["v = b v + sum / S: after a resume v has to be what it was after step 2.",
                  "methods/async_dp.h lists the values that a checkpoint holds of a site. Compare the list with the "
                  "fields of AsyncDp that live from one step to a later one."],
        "check": RESUMED_DILOCO[1],
        "solution": "The velocity of the outer optimizer was not among the values that a checkpoint holds, so a "
                    "resumed run began with zeros. The outer step after the resume lacked the momentum of those "
                    "before it; every loss before that step was right.",
    },
]
