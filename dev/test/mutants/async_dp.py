"""Faults of asynchronous data parallelism: a wrong step of the schedule, a wrong sign, factor or buffer of an outer
step, a missing wait, a value that is not saved or saved for the wrong site, a wrong group or part.

Tests: "rounds": test_async_schedule. "kernels": test_kernels_update. "sites N TEXT": the cases of test_async_dp with
TEXT in their command line, on N ranks. "checkpoint": test_checkpoint. "health N TEXT": cases of test_health. "replicas
TEXT": the cases of check_replicas.py with TEXT in their name."""
import mutate

ROUNDS, SITES, TRAINER = "methods/async_schedule.h", "methods/async_dp.h", "train_gpt.cu"
SAVE = "checkpoint/save.h"
FORMAT = "kernels/outer_format.h"
SETTINGS, KERNELS, CHECKPOINT = "trainer/method_settings.h", "kernels/async_dp.h", "checkpoint/checkpoint.h"

S3GD = "sites 2 --dp-mode dc-s3gd --clip 0.5"
S3GD_NOW = "sites 2 --dp-mode dc-s3gd --outer-delay 0"
S3GD_SITES = "sites 4 --dp-mode dc-s3gd --sites 2"
DELAYED = "sites 2 --dp-mode delayed --dc-lambda 0.3 --arch llama"
DELAYED_ZERO = "sites 2 --dp-mode delayed --dc-lambda 0.2 --zero 1"
DELAYED_SITES = "sites 4 --dp-mode delayed --sites 2 --dc-lambda 0.2"
STREAMING = "sites 2 --dp-mode diloco --local-steps 4 --fragments 2 --outer-delay 1"
EAGER = "sites 2 --dp-mode diloco --local-steps 2 --eager"
EAGER_BITS = "sites 2 --dp-mode diloco --local-steps 2 --eager --outer-bits 8"
BITS = "sites 2 --dp-mode diloco --local-steps 2 --outer-bits 8 --outer-delay 1"
BITS_SITES = "sites 4 --dp-mode diloco --local-steps 2 --outer-delay 1 --outer-bits 4 --sites 2"
TOP_K = "sites 2 --dp-mode diloco --local-steps 2 --outer-delay 1 --outer-top-k 200 --outer-bits 2"
EAGER_SITES = "sites 4 --dp-mode diloco --local-steps 3 --fragments 2 --eager --outer-bits 8 --sites 2"
SYNC_SITES = "sites 4 --dp-mode sync --sites 2"

# What is wrong; the test that has to see it; file, exact text, replacement.
FAULTS = [
    # The plan
    ("plan: fragments are sent from the first step on", "rounds", ROUNDS,
     "return (f + 1) * config->period / config->fragments;",
     "return f * config->period / config->fragments + 1;"),
    ("plan: what was sent in step 0 is merged", "rounds", ROUNDS, "return t > 0 && t % config->period",
     "return t % config->period"),
    ("plan: merged a step late", "rounds", ROUNDS, "return async_schedule_sends(config, f, t - config->delay);",
     "return async_schedule_sends(config, f, t - config->delay - 1);"),
    ("settings: more fragments than steps are accepted", "rounds", SETTINGS, "if (r.fragments > r.period)", "if (0)"),
    ("plan: the head goes with the first fragment", "rounds", ROUNDS, "tensor->layer >= L ? config->fragments - 1",
     "tensor->layer >= L ? 0"),
    ("plan: traffic forgets that sums go to all members", "rounds", ROUNDS,
     "SiteTraffic traffic = {sums * (k - 1) / k * single * n,",
     "SiteTraffic traffic = {0 * sums * (k - 1) / k * single * n,"),
    ("settings: no compensation where dc-s3gd says nothing", "rounds", SETTINGS,
     "o->dp_mode == DP_DC_S3GD && r.delay > 0 ? 0.2 : 0", "0"),
    ("settings: a compensation where nothing is late is accepted", "rounds", SETTINGS,
     "if (gradient && o->outer_delay == 0 && o->dc_lambda > 0)", "if (0)"),
    ("settings: a run in which nothing is merged is accepted", "rounds", SETTINGS,
     "if (diloco && async_schedule_learned(&r, o->steps) == 0)",
     "if (0)"),
    ("plan: what is in flight counts as learned", "rounds", ROUNDS, "last - (config->eager ? 0 : config->delay), place",
     "last, place"),
    ("settings: ZeRO with sites is accepted", "rounds", ROUNDS, "|| (mode == DP_DELAYED && zero == 1)", "|| zero == 1"),
    ("settings: --outer-alpha is accepted with --eager", "rounds", SETTINGS,
     "if (o->eager && (o->outer_delay >= 0 || o->outer_alpha >= 0))",
     "if (o->eager && o->outer_delay >= 0)"),
    # dc-s3gd
    ("dc-s3gd: c takes in the sum of the changes, not the mean", S3GD, SITES,
     "add_scaled(async->global_params + at, async->sum + at, 1.0f / (float)async->config.sites, n);",
     "add_scaled(async->global_params + at, async->sum + at, 1.0f, n);"),
    ("dc-s3gd: one site adds its change to c", "sites 1 --dp-mode dc-s3gd", SITES, "if (async->config.sites == 1) //",
     "if (async->config.sites == 0) //"),
    ("dc-s3gd: the step is taken from the own weights", S3GD, SITES,
     "if (async->config.mode == DP_DC_S3GD) device_copy(weights,", "if (0) device_copy(weights,"),
    ("dc-s3gd: D has the wrong sign", "replicas dc-s3gd 2 llama clip", SITES,
     "delta.from = async->local_params + range.from;\n        delta.to = async->global_params + range.from;",
     "delta.from = async->global_params + range.from;\n        delta.to = async->local_params + range.from;"),
    ("dc-s3gd: the change is the way from the weights to c", S3GD, SITES,
     "async_dp_send_difference(stage, b, async->local_params, async->global_params);",
     "async_dp_send_difference(stage, b, async->global_params, async->local_params);"),
    ("dc-s3gd: without a delay a site keeps its own weights", S3GD_NOW, SITES,
     "mix(async->local_params + bucket->offset, async->global_params + bucket->offset, 0,",
     "mix(async->local_params + bucket->offset, async->global_params + bucket->offset, 1,"),
    ("dc-s3gd: the members' parts of the sum are not gathered", S3GD_SITES, SITES,
     "    async_dp_gather_parts(stage, async->sum, b);\n", ""),
    ("compensation: one lambda is as long as the correction", S3GD, ROUNDS, "sqrt(squares) / sqrt(corrections)",
     "sqrt(squares)"),
    ("compensation: every member of a site counts in the norms", "replicas dc-s3gd 4 sites 2 clip",
     "parallel/optimizer.h",
     " && (mesh->zero || mesh_rank_in_site(mesh) == 0);", ";"),
    # delayed
    ("delayed: the weights before are those of two updates ago", DELAYED, SITES,
     "        if (async->before) device_copy(async->before + range.at, weights, bytes);\n", ""),
    ("delayed: the fresh gradient is used", "replicas delayed 2 lambda clip", SITES,
     "grads->shards ? grads->shards : async->last_all;", "grads->shards ? grads->shards : grads->all;"),
    ("delayed: parts are not turned", DELAYED_SITES, SITES,
     "    grads->bucket = async->last_bucket;\n", ""),
    ("delayed: ZeRO's sums are sent before those of the last step are used", DELAYED_ZERO, SITES,
     "if (!async_dp_sums_after_update(stage)) start_inter_site_syncs", "start_inter_site_syncs"),
    ("delayed: the step number is that of the step", "replicas delayed 2 lambda clip", SITES,
     "return step - (stage->async->config.mode == DP_DELAYED && step > 0);", "return step;"),
    ("delayed: the sums of the step before are finished, and stay those of this one", DELAYED, SITES,
     "        finish_inter_site_syncs(grads, stage->groups, layout, chunk);\n"
     "        async_dp_swap_grads(stage, grads);\n",
     "        finish_inter_site_syncs(grads, stage->groups, layout, chunk);\n"),
    ("delayed: a resumed run waits a step again", DELAYED, SITES, "{ stage->async->has_last = true; }",
     "{ (void)stage; }"),
    ("sites: changes are summed over the wrong parts", S3GD_SITES, "parallel.h",
     "mesh_rank_in_site(&layout->mesh) * bucket_site_shard_size(layout, bucket);",
     "mesh_site(&layout->mesh) * bucket_site_shard_size(layout, bucket);"),
    ("sites: the inter-site group joins the members of a site", SYNC_SITES, "parallel/process_groups.h",
     "g->inter_site = comm_split(world, stage + stages * place, mesh_site(mesh), \"inter_site\");",
     "g->inter_site = comm_split(world, stage + stages * mesh_site(mesh), place, \"inter_site\");"),
    ("sites: bytes are those of one site", "sites 4 --dp-mode delayed --dc-lambda 0.2 --pp 2", TRAINER,
     "const double sites = scope == SCOPE_WORLD ? 1 : t->stage.layout.mesh.sites;", "const double sites = 1;"),
    # diloco
    ("diloco: the sum is an outer gradient, not the mean", "replicas diloco 4 streaming 3", SITES,
     "async->sum + at, 1.0f / (float)config->sites,\n",
     "async->sum + at, 1.0f,\n"),
    ("diloco: momentum without Nesterov's look ahead", "replicas diloco 2 no end", KERNELS,
     "*base -= rounded_product(lr, D + rounded_product(momentum, v, zero), zero);",
     "*base -= rounded_product(lr, v, zero);"),
    ("diloco: the common point is mixed in with the other share", "replicas diloco 2 mix, no delay", KERNELS,
     "const float rest = 1.0f - share;", "const float rest = share; share = 1.0f - share;"),
    ("eager: what was sent last is not kept", EAGER, SITES,
     "if (config->eager) device_copy(async->old + at, fresh, bytes);", ""),
    ("eager: what was meant is kept, not what was sent", EAGER_BITS, SITES,
     "if (config->eager && async_dp_compresses(stage)) async_dp_keep_sent(stage, b);", ""),
    ("eager: members keep their part of what was sent", EAGER_SITES, SITES,
     "    async_dp_gather_parts(stage, async->old, b);\n", ""),
    ("eager: the common point is that of the first site", EAGER, SITES,
     "if (!async->config.eager || async->config.sites == 1) return;", "return;"),
    ("bits: rounding is forgotten", BITS, KERNELS, "residue[i] = x[i] - value[i]; //", "residue[i] = 0; //"),
    ("2 bits: the padding is compressed too", "sites 2 --outer-bits 2 --outer-error-decay", ROUNDS,
     "return max_i64(0, min_i64(next, slice->offset + slice->rows_used * slice->cols) - at);",
     "(void)slice;\n    return next - at;"),
    ("2 bits: the levels are those of a border at 0", "kernels", KERNELS, "is_above = units * (uint64_t)n > all;",
     "is_above = units > 0;"),
    ("8 bits: no sign", "kernels", FORMAT, "((int32_t)code ^ half) - half", "(int32_t)code"),
    ("8 bits: a number above the largest", "kernels", FORMAT, "raised > largest ? largest : raised", "raised"),
    ("2 bits: the border is the lower level", "kernels", FORMAT, "0.5f * low + 0.5f * high", "low"),
    ("2 bits: no sign", "kernels", FORMAT, "| (uint32_t)(x < 0) << 1;", ";"),
    ("2 bits: codes are of a byte's other end", "kernels", KERNELS, "code[j * per_byte + k] << k * bits",
     "code[j * per_byte + k] << (per_byte - 1 - k) * bits"),
    ("decay: the error does not decay", "kernels", KERNELS,
     "x[i] = value[i] + rounded_product(decay, residue[i], zero);\n    const uint32_t head",
     "x[i] = value[i] + residue[i];\n    const uint32_t head"),
    ("decay: what is sent decays", TOP_K, SITES, "const float decay = (float)async->config.error_decay;",
     "const float decay = 1;"),
    ("top-k: the last of equal numbers", "kernels", KERNELS, "const bool tied = size == threshold && ties > 0;",
     "const bool tied = size == threshold && ties > 0 && i != 1;"),
    ("top-k: all that are equal", "kernels", KERNELS, "ties -= tied;\n        if (tied ||", "if (tied ||"),
    ("top-k: one too few of a partial chunk", "kernels", FORMAT, "(n * top_k + SPARSE_CHUNK - 1) / SPARSE_CHUNK",
     "max_i64(n * top_k / SPARSE_CHUNK, 1)"),
    ("top-k: the largest signed numbers", "kernels", KERNELS, "reach += (bits_of_float(x[i]) & 0x7FFFFFFF) >= next;",
     "reach += x[i] > 0 && bits_of_float(x[i]) >= next;"),
    ("top-k: what was not sent is lost", "kernels", KERNELS,
     "    memcpy(residue, x, (size_t)n * sizeof(float));\n", ""),
    ("top-k: a field is read without its second word", "kernels", FORMAT, "if (at % 32 + width > 32) both |=",
     "if (0) both |="),
    ("top-k: the indices are not counted in the formula", "rounds", FORMAT,
     "(count * sparse_width(bits) + 31) / 32", "(count * (bits < 32 ? bits : 0) + 31) / 32"),
    ("top-k: the outer momentum stays", "rounds", SETTINGS, "o->outer_momentum, sparse ? 0 : 0.9);",
     "o->outer_momentum, 0.9);"),
    ("top-k: the error is kept whole", "rounds", SETTINGS, "sparse ? 0.95 : 1);", "1);"),
    ("top-k: eager sites drift apart", "rounds", SETTINGS,
     "if (o->eager && (o->outer_top_k || o->outer_error_decay >= 0))", "if (0)"),
    ("top-k: a plan with another k is the same plan", "rounds", ROUNDS, "if (config->top_k)\n        used",
     "if (0)\n        used"),
    ("bits: what comes is added to what was there", BITS, SITES,
     "    device_zero(async->sum + first, (size_t)(end - first) * sizeof(float));\n", ""),
    ("bits: the first site counts for all", BITS, SITES, "            arrived += packed_bytes(n, bits, top_k);",
     "            arrived += i > 0 ? 0 : packed_bytes(n, bits, top_k);"),
    # The common point, checkpoints
    ("a validation leaves the common point behind", STREAMING, SITES,
     "device_copy(stage->async->local_params, all, (size_t)stage->layout.elements * sizeof(float));", ";"),
    ("validation at the own weights", STREAMING, SITES,
     "    async_dp_common(stage, HAS_MASTER_WEIGHTS ? all : (float*)stage->params);\n", ""),
    ("saving does not wait", S3GD, "trainer/checkpointing.h", "    if (stage->async) async_dp_drain(stage);\n", ""),
    ("checkpoint: no velocity", STREAMING, SITES,
     "if (config->mode == DP_DILOCO) async_dp_keep(stage, \"velocity\", async->velocity, false);", ""),
    ("checkpoint: no sum in flight", STREAMING, SITES,
     "if (config->mode == DP_DILOCO && config->delay > 0) async_dp_keep(stage, \"sum\", async->sum, false);", ""),
    ("checkpoint: no residue", BITS, SITES,
     "if (async_dp_compresses(stage)) async_dp_keep(stage, \"residue\", async->residue, false);", ""),
    ("checkpoint: members do not tell each other their residue", BITS_SITES, SITES,
     "async_dp_gather_parts(stage, stage->async->residue, b);", ";"),
    ("checkpoint: no old", EAGER, SITES,
     "if (config->eager) async_dp_keep(stage, \"old\", async->old, false);", ""),
    ("checkpoint: no weights before", DELAYED, SITES,
     "if (config->compensation > 0) async_dp_keep(stage, \"before\", async->before, zero);", ""),
    ("checkpoint: every site reads the first one's", S3GD, SAVE,
     "const int copy = local ? mesh_site(&layout->mesh) : 0;\n    float* whole",
     "const int copy = 0;\n    float* whole"),
    ("checkpoint: second moments are the first ones", S3GD, SITES,
     "async_dp_keep(stage, \"exp_avg_sq\", stage->moment2, false);",
     "async_dp_keep(stage, \"exp_avg_sq\", stage->moment1, false);"),
    ("checkpoint: copies and kinds change places", "checkpoint", CHECKPOINT,
     "return 1 + sites->moments + kind * sites->copies + copy;",
     "return 1 + sites->moments + copy * sites->kinds + kind;"),
    ("checkpoint: only the first site writes", S3GD, SAVE, "return site == mesh_site(mesh) &&",
     "return site == 0 * mesh_site(mesh) &&"),
    ("checkpoint: another plan is resumed", "sites 2 refusals", "trainer/checkpointing.h",
     "if (strcmp(now->async_plan, then->async_plan) != 0)", "if (0)"),
]

PROGRAMS = {"kernels": "build/test_kernels_update", "rounds": "build/test_async_schedule",
            "sites": "build/test_async_dp", "replicas": "train_gpt", "checkpoint": "build/test_checkpoint",
            "health": "build/test_health"}


def run(test, _planted):
    kind, *words = test.split()
    program = PROGRAMS[kind]
    if kind == "replicas":
        return program, ["python3", "dev/test/system/check_replicas.py", " ".join(words)]
    if kind in ("sites", "health"):
        return program, [*mutate.ranks(words[0]), program, "--short", "--only", " ".join(words[1:])]
    return program, [program, "--short"]
