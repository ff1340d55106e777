"""Faults of asynchronous data parallelism: a wrong step of the schedule, a wrong sign, factor or buffer of an outer
step, a missing wait, a value that is not saved or saved for the wrong site, a wrong group or part.

Tests: "rounds": test_async_schedule. "kernels": test_kernels_update. "sites N TEXT": the cases of test_async_dp with
TEXT in their command line, on N ranks. "checkpoint": test_checkpoint. "health N TEXT": cases of test_health. "replicas
TEXT": the cases of check_replicas.py with TEXT in their name."""
import mutate

ROUNDS, SITES, TRAINER = "methods/async_schedule.h", "methods/async_dp.h", "train_gpt.cu"
SAVE = "checkpoint/save.h"
SETTINGS, KERNELS, CHECKPOINT = "trainer/settings.h", "kernels/async_dp.h", "checkpoint/checkpoint.h"

S3GD = "sites 2 --dp-mode dc-s3gd --clip 0.5"
S3GD_SITES = "sites 4 --dp-mode dc-s3gd --sites 2"
DILOCO = "sites 2 --dp-mode diloco --local-steps 2"
SYNC_SITES = "sites 4 --dp-mode sync --sites 2"

# What is wrong; the test that has to see it; file, exact text, replacement.
FAULTS = [
    # The plan
    ("plan: what was sent in step 0 is merged", "rounds", ROUNDS, "return t > 0 && t % config->period",
     "return t % config->period"),
    ("plan: merged a step late", "rounds", ROUNDS,
     "return config->mode == DP_DC_S3GD; }", "return 2 * (config->mode == DP_DC_S3GD); }"),
    ("plan: traffic forgets that sums go to all members", "rounds", ROUNDS, "{(k - 1) / k * bytes, 2 *", "{0, 2 *"),
    ("settings: no compensation where dc-s3gd says nothing", "rounds", SETTINGS, "given_or(o->dc_lambda, 0.2)",
     "given_or(o->dc_lambda, 0)"),
    ("settings: a run in which nothing is merged is accepted", "rounds", SETTINGS,
     "if (r.mode != DP_DILOCO || o->steps >= r.period) return true;", "if (r.period > 0) return true;"),
    ("plan: local steps count as learned", "rounds", ROUNDS, "return last - last % config->period;", "return last;"),
    ("settings: ZeRO with sites is accepted", "rounds", "parallel.h", "if (mesh->zero && (mesh->sites > 1 || !sync))",
     "if (mesh->zero && !sync)"),
    ("settings: an option of another mode is accepted", "rounds", SETTINGS,
     "options[i].given && options[i].mode != (DpMode)o->dp_mode", "0 && options[i].mode != (DpMode)o->dp_mode"),
    # dc-s3gd
    ("dc-s3gd: c takes in the sum of the changes, not the mean", S3GD, SITES,
     "add_scaled(async->global_params + at, async->sum + at, 1.0f / (float)async->config.sites, n);",
     "add_scaled(async->global_params + at, async->sum + at, 1.0f, n);"),
    ("dc-s3gd: one site adds its change to c", "sites 1 --dp-mode dc-s3gd", SITES, "if (async->config.sites == 1) //",
     "if (async->config.sites == 0) //"),
    ("dc-s3gd: the step is taken from the own weights", S3GD, SITES,
     "device_copy(local, global, (size_t)range.n", "device_copy(local, local, (size_t)range.n"),
    ("dc-s3gd: D has the wrong sign", "replicas dc-s3gd 2 llama clip", SITES,
     "range.at, global, local, lambda, range.n", "range.at, local, global, lambda, range.n"),
    ("dc-s3gd: the change is the way from the weights to c", S3GD, SITES,
     "async_dp_send(stage, b, async->local_params, async->global_params);",
     "async_dp_send(stage, b, async->global_params, async->local_params);"),
    ("dc-s3gd: the members' parts of the sum are not gathered", S3GD_SITES, SITES,
     "if (mesh_site_size(&layout->mesh) > 1)\n        comm_all_gather", "if (0)\n        comm_all_gather"),
    ("compensation: one lambda is as long as the correction", S3GD, ROUNDS, "sqrt(squares) / sqrt(corrections)",
     "sqrt(squares)"),
    ("compensation: every member of a site counts in the norms", "replicas dc-s3gd 4 sites 2 clip",
     "parallel/optimizer.h", " && (mesh->zero || mesh_rank_in_site(mesh) == 0);", ";"),
    ("sites: changes are summed over the wrong parts", S3GD_SITES, "parallel.h",
     "mesh_rank_in_site(&layout->mesh) * bucket_site_shard_size(layout, bucket);",
     "mesh_site(&layout->mesh) * bucket_site_shard_size(layout, bucket);"),
    ("sites: the inter-site group joins the members of a site", SYNC_SITES, "parallel/process_groups.h",
     "g->inter_site = comm_split(world, stage + stages * place, mesh_site(mesh), \"inter_site\");",
     "g->inter_site = comm_split(world, stage + stages * mesh_site(mesh), place, \"inter_site\");"),
    ("sites: bytes are those of one site", "sites 4 --dp-mode dc-s3gd --pp 2", TRAINER,
     "const double sites = scope == SCOPE_WORLD ? 1 : t->stage.layout.mesh.sites;", "const double sites = 1;"),
    # diloco
    ("diloco: the sum is an outer gradient, not the mean", "replicas diloco 2 no end", SITES,
     "async->sum + at, 1.0f / (float)config->sites,\n", "async->sum + at, 1.0f,\n"),
    ("diloco: momentum without Nesterov's look ahead", "replicas diloco 2 no end", KERNELS,
     "base[i] -= rounded_product(lr, D + rounded_product(momentum, v, zero), zero);",
     "base[i] -= rounded_product(lr, v, zero);"),
    ("diloco: sites go on from their own weights", "replicas diloco 2 no end", SITES,
     "device_copy(async->local_params + at, async->global_params + at, (size_t)n",
     "device_copy(NULL, NULL, 0 * (size_t)n"),
    # The common point, checkpoints
    ("a validation leaves the common point behind", DILOCO, SITES,
     "if (!HAS_MASTER_WEIGHTS) device_copy(stage->async->local_params, stage->grads.all, bytes);\n", "(void)bytes;\n"),
    ("validation at the own weights", DILOCO, SITES,
     "if (!HAS_MASTER_WEIGHTS) device_copy(async->local_params, async->global_params, bytes);\n", ""),
    ("saving does not wait", S3GD, "trainer/checkpointing.h", "    if (stage->async) async_dp_drain(stage);\n", ""),
    ("checkpoint: no velocity", DILOCO, SITES, '{"velocity", async->velocity}', '{"velocity", NULL}'),
    ("checkpoint: every site reads the first one's", S3GD, SAVE,
     "const int copy = local ? mesh_site(&layout->mesh) : 0;\n    float* whole",
     "const int copy = 0;\n    float* whole"),
    ("checkpoint: second moments are the first ones", S3GD, SITES,
     '{"exp_avg_sq", stage->moment2}', '{"exp_avg_sq", stage->moment1}'),
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
