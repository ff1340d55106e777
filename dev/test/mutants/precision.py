"""Faults of bf16 on the processor, seen by test_precision.sh: what make chooses and says, masters in checkpoints and
exports, the rounding of weights in resumed runs and on meshes. The arithmetic's faults are in kernels.py, matmul.py."""
MAKE, CHOICE, UPDATE = "Makefile", "dev/dev.mk", "parallel/optimizer.h"
SAVE, LOAD = "checkpoint/save.h", "trainer/checkpointing.h"

FAULTS = [
    ("make: another precision builds nothing", MAKE, "$(BUILD)/flags $(BUILD)/precision $(BUILD)/version\n\t",
     "$(BUILD)/flags $(BUILD)/version\n\t"),
    ("make: any precision", CHOICE, "$(call one_of,PRECISION,bf16 fp32)\n", ""),
    ("make: AVX-512 BF16 is said where AMX is", CHOICE, "else head -n 1;", "else tail -n 1;"),
    ("make: bf16 is the default everywhere", CHOICE, "$(bf16_unit),bf16,fp32)))", "$(bf16_unit),bf16,bf16)))"),
    ("--version says nothing of the precision", "trainer/setup.h",
     '"train_gpt %s, %s", process', '"train_gpt %s%.0s", process'),
    ("a checkpoint has the rounded weights' bytes", SAVE, "HAS_MASTER_WEIGHTS ? stage->master : (float*)stage->params;",
     "(float*)stage->params;"),
    ("a file's weights leave the masters as they were", SAVE,
     "    if (stage->master) set_values(stage, b, masters, whole);\n", ""),
    ("with ZeRO masters are read as if they were whole", SAVE, "{stage->master, stage->layout.mesh.zero > 0}",
     "{stage->master, false}"),
    ("a resumed run has weights rounded to nearest", UPDATE, 
     "if (step == 0 || !HAS_MASTER_WEIGHTS) return;", "return;"),
    ("a resumed run rounds as the step after", UPDATE, "values + range.at, range.n, step, rounding_key",
     "values + range.at, range.n, step + 1, rounding_key"),
    ("a resumed run gathers no weights of other ranks", UPDATE,
     "    if (!stage->layout.mesh.zero) return;\n    for (int chunk = -1", "    return;\n    for (int chunk = -1"),
    ("the key of a rounding depends on the stage", UPDATE, "return (uint64_t)seed ^ hash_string(slice->tensor.name);",
     "return (uint64_t)seed ^ hash_string(slice->tensor.name) ^ (uint64_t)slice->offset;"),
    ("initial weights are rounded, and the masters with them", LOAD,
     "        set_bucket_weights(stage, b, weights + stage->layout.bucket[b].offset);\n",
     "        set_bucket_weights(stage, b, weights + stage->layout.bucket[b].offset);\n"
     "    for (int64_t i = 0; stage->master && i < stage->layout.elements; i++)\n"
     "        stage->master[i] = to_float(stage->params[i]);\n"),
    ("without training an export has no masters", "trainer/trainer_init.h", "values.masters &= trains || o->export_to;",
     "values.masters &= trains;"),
    ("the planner prices bf16 as float32", "planner/step_setup.h",
     "0,  2, 4, 6, 12, 1},\n};", "0,  4, 4, 6, 12, 1},\n};"),
    ("the planner forgets masters", "planner/search.h", "software->value_bytes < (int)sizeof(float), 2}", "false, 2}"),
]
TESTS = {file: "test_precision" for _, file, _, _ in FAULTS}
SECONDS = 400


def run(_test, _planted):
    fast = "FAST=-O0 $(ARCH_FLAG) -fno-math-errno"
    build = ["make", "BUILD=build", "DEVICE=cpu", fast, "plan", "build/bf16/train_gpt"]
    return build, ["dev/test/system/test_precision.sh"]
