"""Faults of asynchronous data parallelism: a wrong step of the schedule, a wrong sign, factor or buffer of an outer
step, a missing wait, a value that is not saved or saved for the wrong site, a wrong group or part.

Tests: "rounds": test_async_schedule. "sites N TEXT": the cases of test_async_dp with TEXT in their command line, on N
ranks. "checkpoint": test_checkpoint. "health N TEXT": cases of test_health. "replicas TEXT": the cases of
check_replicas.py with TEXT in their name."""
import mutate

ROUNDS, SITES, SAVE, TRAINER = "methods/async_schedule.h", "methods/async_dp.h", "checkpoint/async_save.h", "train_gpt.cu"
SETTINGS, KERNELS, CHECKPOINT = "trainer/settings.h", "kernels/async_dp.h", "checkpoint/checkpoint.h"

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
EAGER_SITES = "sites 4 --dp-mode diloco --local-steps 3 --fragments 2 --eager --outer-bits 8 --sites 2"
SYNC_SITES = "sites 4 --dp-mode sync --sites 2"

# What is wrong; the test that has to see it; file, exact text, replacement.
FAULTS = [
    # The plan
    ("plan: fragments are sent from the first step on", "rounds", ROUNDS, "return (f + 1) * r->period / r->fragments;",
     "return f * r->period / r->fragments + 1;"),
    ("plan: what was sent in step 0 is merged", "rounds", ROUNDS, "return t > 0 && t % r->period", "return t % r->period"),
    ("plan: merged a step late", "rounds", ROUNDS, "return async_schedule_sends(r, f, t - r->delay);",
     "return async_schedule_sends(r, f, t - r->delay - 1);"),
    ("plan: more fragments than steps are accepted", "rounds", ROUNDS, "r->fragments < 1 || r->fragments > r->period ||",
     "r->fragments < 1 ||"),
    ("plan: the head goes with the first fragment", "rounds", ROUNDS, "tensor->layer >= L ? r->fragments - 1", "tensor->layer >= L ? 0"),
    ("plan: traffic forgets that sums go to all members", "rounds", ROUNDS,
     "traffic.near += times * sums * (k - 1) / k", "traffic.near += 0 * times * sums * (k - 1) / k"),
    ("settings: no compensation where dc-s3gd says nothing", "rounds", SETTINGS, "o->dp_mode == DP_DC_S3GD && r.delay > 0 ? 0.2 : 0", "0"),
    ("settings: a compensation where nothing is late is accepted", "rounds", SETTINGS,
     "if (gradient && o->outer_delay == 0 && o->dc_lambda > 0)", "if (0)"),
    ("settings: a run in which nothing is merged is accepted", "rounds", SETTINGS, "if (diloco && async_schedule_learned(&r, o->steps) == 0)",
     "if (0)"),
    ("plan: what is on its way counts as learned", "rounds", ROUNDS, "last - (r->eager ? 0 : r->delay), place", "last, place"),
    ("settings: ZeRO with sites is accepted", "rounds", SETTINGS, "(o->dp_mode != DP_DELAYED || o->zero == 2)", "o->zero == 2"),
    ("settings: --outer-alpha is accepted with --eager", "rounds", SETTINGS, "if (o->eager && (o->outer_delay >= 0 || o->outer_alpha >= 0))",
     "if (o->eager && o->outer_delay >= 0)"),
    # dc-s3gd
    ("dc-s3gd: c takes in the sum of the changes, not the mean", S3GD, SITES,
     "add_scaled(s->base + at, s->sum + at, 1.0f / (float)s->rounds.sites, bucket->elements);",
     "add_scaled(s->base + at, s->sum + at, 1.0f, bucket->elements);"),
    ("dc-s3gd: one site adds its change to c", "sites 1 --dp-mode dc-s3gd", SITES, "if (s->rounds.sites == 1) //",
     "if (s->rounds.sites == 0) //"),
    ("dc-s3gd: the step is taken from the own weights", S3GD, "parallel/optimizer.h",
     "if (stage->rounds.mode == DP_DC_S3GD) device_copy(weights, stage->sites.base + from,", "if (0) device_copy(weights, stage->sites.base + from,"),
    ("dc-s3gd: D has the wrong sign", "replicas dc-s3gd 2 llama clip", "parallel/optimizer.h",
     "way.from = stage->sites.own + from, way.to = stage->sites.base + from;", "way.from = stage->sites.base + from, way.to = stage->sites.own + from;"),
    ("dc-s3gd: the change is the way from the weights to c", S3GD, SITES, "difference(s->sum + at, s->own + at, s->base + at,",
     "difference(s->sum + at, s->base + at, s->own + at,"),
    ("dc-s3gd: without a delay a site keeps its own weights", S3GD_NOW, SITES,
     "mix(s->own + bucket->offset, s->base + bucket->offset, 0,", "mix(s->own + bucket->offset, s->base + bucket->offset, 1,"),
    ("dc-s3gd: the members' parts of the sum are not gathered", S3GD_SITES, SITES,
     "    if (mesh_site_size(&s->layout->mesh) > 1)\n        comm_all_gather(&s->groups->data, s->sum +",
     "    if (0)\n        comm_all_gather(&s->groups->data, s->sum +"),
    ("compensation: one lambda is as long as the correction", S3GD, "parallel/optimizer.h", "sqrt(squares[i]) / sqrt(corrections[i])",
     "sqrt(squares[i])"),
    ("compensation: every member of a site counts in the norms", "replicas dc-s3gd 4 sites 2 clip", "parallel/optimizer.h",
     "(!mesh->zero && mesh_rank_in_site(mesh) > 0) ||", ""),
    # delayed
    ("delayed: the weights before are those of two updates ago", DELAYED, "parallel/optimizer.h",
     "        if (stage->before) device_copy(stage->before + at, weights, (size_t)n * sizeof(float));\n", ""),
    ("delayed: the fresh gradient is used", "replicas delayed 2 lambda clip", "parallel/data.h",
     "return grads->late ? grads->due_all : grads->all;", "return grads->all;"),
    ("delayed: parts are not turned", DELAYED_SITES, "parallel/data.h", "grads->all = grads->due_all, grads->parts = grads->due_parts;",
     "grads->all = grads->due_all;"),
    ("delayed: ZeRO's sums are sent before those of the last step are used", DELAYED_ZERO, TRAINER,
     "if (!defers_inter_site_sync(stage)) start_inter_site_syncs", "start_inter_site_syncs"),
    ("delayed: the step number is that of the step", "replicas delayed 2 lambda clip", "trainer/checkpointing.h",
     "return step - (t->stage.grads.late && step > 0);", "return step;"),
    ("delayed: saving does not turn back", DELAYED, "parallel/optimizer.h",
     "finish_inter_site_sync(grads, stage->groups, &stage->layout, chunk);\n    swap_grad_buffers(grads, &stage->layout);",
     "finish_inter_site_sync(grads, stage->groups, &stage->layout, chunk);"),
    ("delayed: a resumed run waits a step again", DELAYED, "trainer/checkpointing.h",
     "    t->stage.grads.due = true; // what is due in the next step was read", ""),
    ("sites: changes are summed over the wrong parts", S3GD_SITES, "parallel.h",
     "mesh_rank_in_site(&layout->mesh) * bucket_site_shard_size(layout, bucket);", "mesh_site(&layout->mesh) * bucket_site_shard_size(layout, bucket);"),
    ("sites: the far group joins the members of a site", SYNC_SITES, "parallel/process_groups.h",
     "g->far = comm_split(world, stage + stages * place, mesh_site(mesh), \"far\");",
     "g->far = comm_split(world, stage + stages * mesh_site(mesh), place, \"far\");"),
    ("sites: bytes are those of one site", "sites 4 --dp-mode delayed --dc-lambda 0.2 --pp 2", TRAINER,
     "const double sites = meets ? 1 : t->stage.rounds.sites;", "const double sites = 1;"),
    # diloco
    ("diloco: the sum is an outer gradient, not the mean", "replicas diloco 4 streaming 3", SITES,
     "outer_update(s->base + at, s->velocity + at, s->sum + at, 1.0f / (float)r->sites,",
     "outer_update(s->base + at, s->velocity + at, s->sum + at, 1.0f,"),
    ("diloco: momentum without Nesterov's look ahead", "replicas diloco 2 no end", KERNELS,
     "*base -= rounded_product(lr, D + rounded_product(momentum, v, zero), zero);", "*base -= rounded_product(lr, v, zero);"),
    ("diloco: the common point is mixed in with the other share", "replicas diloco 2 mix, no delay", KERNELS,
     "const float rest = 1.0f - share;", "const float rest = share; share = 1.0f - share;"),
    ("eager: what was sent last is not kept", EAGER, SITES, "if (r->eager) device_copy(s->old + at, fresh, bytes);", ""),
    ("eager: what was meant is kept, not what was sent", EAGER_BITS, SITES, "if (r->eager && r->bits < 32) async_dp_keep_sent(s, b);", ""),
    ("eager: members keep their part of what was sent", EAGER_SITES, SITES,
     "    if (mesh_site_size(&s->layout->mesh) > 1)\n        comm_all_gather(&s->groups->data, s->old +",
     "    if (0)\n        comm_all_gather(&s->groups->data, s->old +"),
    ("eager: the common point is that of the first site", EAGER, SITES, "if (!s->rounds.eager || s->rounds.sites == 1) return;", "return;"),
    ("bits: rounding is forgotten", BITS, KERNELS, "residue[i] = x[i] - value[i]; //", "residue[i] = 0; //"),
    ("bits: what comes is added to what was there", BITS, SITES, "    device_zero(s->sum + first, (size_t)(end - first) * sizeof(float));\n", ""),
    ("bits: the first site counts for all", BITS, SITES, "            arrived += quant_bytes(next - at, s->rounds.bits);", "            arrived += i > 0 ? 0 : quant_bytes(next - at, s->rounds.bits);"),
    # The common point, checkpoints
    ("a validation leaves the common point behind", STREAMING, "parallel/optimizer.h",
     "device_copy(stage->sites.own, stage->grads.all, (size_t)stage->layout.elements * sizeof(float));", ";"),
    ("validation at the own weights", STREAMING, "parallel/optimizer.h", "async_dp_common(&stage->sites, HAS_MASTER_WEIGHTS ? stage->grads.all : (float*)stage->params);", ""),
    ("saving does not wait", S3GD, "trainer/checkpointing.h", "    async_dp_drain(stage);\n    if (t->settings.check_replicas_every)", "    if (t->settings.check_replicas_every)"),
    ("checkpoint: no velocity", STREAMING, SAVE, "if (diloco) add_site_values(&state, \"velocity\", sites->velocity, false);", ""),
    ("checkpoint: no sum on its way", STREAMING, SAVE,
     "if (diloco && async->delay > 0) add_site_values(&state, \"sum\", sites->sum, false);", ""),
    ("checkpoint: no residue", BITS, SAVE, "if (async->bits < 32) add_site_values(&state, \"residue\", sites->residue, false);", ""),
    ("checkpoint: members do not tell each other their residue", BITS_SITES, SAVE,
     "b < layout->buckets && stage->sites.residue && mesh_site_size(&layout->mesh) > 1", "b < 0"),
    ("checkpoint: no old", EAGER, SAVE, "if (async->eager) add_site_values(&state, \"old\", sites->old, false);", ""),
    ("checkpoint: no weights before", DELAYED, SAVE, "if (stage->before) add_site_values(&state, \"before\", stage->before, zero);", ""),
    ("checkpoint: every site reads the first one's", S3GD, SAVE,
     "const int copy = local ? mesh_site(&layout->mesh) : 0;\n    float* whole", "const int copy = 0;\n    float* whole"),
    ("checkpoint: second moments are the first ones", S3GD, SAVE,
     "add_site_values(&state, \"exp_avg_sq\", stage->moment2, false);", "add_site_values(&state, \"exp_avg_sq\", stage->moment1, false);"),
    ("checkpoint: copies and kinds change places", "checkpoint", CHECKPOINT, "return 1 + sites->moments + kind * sites->copies + copy;",
     "return 1 + sites->moments + copy * sites->kinds + kind;"),
    ("checkpoint: only the first site writes", S3GD, SAVE, "return site == mesh_site(mesh) &&", "return site == 0 * mesh_site(mesh) &&"),
    ("checkpoint: another plan is taken up", "sites 2 refusals", "trainer/checkpointing.h", "if (strcmp(now.rounds, state.rounds) != 0)", "if (0)"),
]

PROGRAMS = {"rounds": "build/test_async_schedule", "sites": "build/test_async_dp", "replicas": "train_gpt",
            "checkpoint": "build/test_checkpoint", "health": "build/test_health"}


def run(test, _planted):
    kind, *words = test.split()
    program = PROGRAMS[kind]
    if kind == "replicas":
        return program, ["python3", "dev/test/system/check_replicas.py", " ".join(words)]
    if kind in ("sites", "health"):
        return program, [*mutate.ranks(words[0]), program, "--short", "--only", " ".join(words[1:])]
    return program, [program, "--short"]
