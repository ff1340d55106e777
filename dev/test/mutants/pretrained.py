"""Faults of importing and exporting weights. PURE: seen by test_pretrained.c; ON_MESHES: by the trainer's conversions
on meshes, test_pretrained.py."""
import mutate

CONFIG, ROPE = "checkpoint/hf_config.h", "util/rope_table.h"
VERIFY, PRETRAINED = "checkpoint/checkpoint_dir.h", "checkpoint/pretrained.h"
CHECKPOINT, EXPORT, HUB = "checkpoint/checkpoint.h", "checkpoint/export.h", "checkpoint/export.h"
SETTINGS, SETUP = "trainer/settings.h", "trainer/setup.h"
TRAIN = "train_gpt.cu"

# What is wrong; file, exact text, replacement.
PURE = [
    ("config: Llama is tied where nothing is said", CONFIG,
     "config_bool(&model->tied, reader, \"tie_word_embeddings\", false)",
     "config_bool(&model->tied, reader, \"tie_word_embeddings\", true)"),
    ("config: GPT-2 is untied where nothing is said", CONFIG,
     "config_bool(&model->tied, reader, \"tie_word_embeddings\", true)",
     "config_bool(&model->tied, reader, \"tie_word_embeddings\", false)"),
    ("config: Llama's eps is GPT-2's", CONFIG, '"rms_norm_eps", 1e-6', '"rms_norm_eps", 1e-5'),
    ("config: null is a value", CONFIG, "return node && node->type != JSON_NULL ? node : NULL;", "return node;"),
    ("config: one key/value head where nothing is said", CONFIG, "\"num_key_value_heads\", 1 << 16, model->NH)",
     '"num_key_value_heads", 1 << 16, 1)'),
    ("config: the mlp's width is not read", CONFIG, "config_int(&model->F, reader, \"n_inner\", 1 << 22, 4 * model->C)",
     "(model->F = 4 * model->C)"),
    ("config: biases are let through", CONFIG, "!config_switch(reader, \"attention_bias\", false) ||", ""),
    ("config: switches may stand anywhere", CONFIG, "return value == ours ||", "return true ||"),
    ("config: the beginning of a name is enough", CONFIG, 'snprintf(word, sizeof word, " %s ", value);',
     'snprintf(word, sizeof word, " %s", value);'),
    ("config: heads of any size", CONFIG, "HS * (int64_t)model->NH == model->C", "true"),
    ("config: windows are let through", CONFIG, "!config_absent(reader, \"sliding_window\") ||", ""),
    ("config: few bits are let through", CONFIG, "config_absent(&reader, \"quantization_config\") &&", ""),
    ("config: rope_parameters are not looked at", CONFIG, "config_get(reader, \"rope_parameters\")",
     "config_get(reader, \"rope_parameter\")"),
    ("config: theta stands outside of rope_parameters", CONFIG, "both ? &inner : reader", "reader"),
    ("config: unknown scalings are Llama's", CONFIG, 'if (strcmp(kind, "llama3") != 0)', "if (false)"),
    ("config: the old name of the type is not known", CONFIG, '? "rope_type" : "type"', '? "rope_type" : "rope_type"'),
    ("config: low and high in any order", CONFIG, "return scaling->low < scaling->high ||", "return true ||"),
    ("config: numbers may be negative", CONFIG, "return *out > 0 ||", "return true ||"),
    ("config: scalings are not written", CONFIG, "    if (r->factor > 0)\n", "    if (false)\n"),
    ("config: eps is written with six digits", CONFIG, "digits <= 17", "digits <= 6"),
    ("config: mistral is a llama", CONFIG, 'kind) != 0) arch++;',
     'kind) != 0 && (arch != ARCH_LLAMA || strcmp(kind, "mistral") != 0)) arch++;'),
    ("ends: the first of several", CONFIG, "one = list ? json_next(one) : NULL", "one = NULL"),
    ("rope: low and high change places", ROPE, "(turns - r->low) / (r->high - r->low)",
     "(turns - r->high) / (r->low - r->high)"),
    ("rope: between the two there is nothing", ROPE, "return keep * frequency",
     "return (keep < 1 ? 0 : 1) * frequency"),
    ("rope: turns are radians", ROPE, "r->original * frequency / (2 * 3.14159265358979323846)",
     "r->original * frequency"),
    ("rope: the table is not scaled", ROPE, "frequency = scaling ? rope_scaled(plain, scaling) : plain;",
     "frequency = plain;"),
]

# The same, by test_pretrained.py.
ON_MESHES = [
    ("export: only the first bucket is written", "checkpoint/save.h",
     "if (ok && writes_bucket(&layout->mesh, b, part.site))", "if (ok && b == 0)"),
    ("export: what others own is written too, from their padding", CHECKPOINT,
     "if (!slice_is_owned(slice, layout)) continue;", ""),
    ("export: the last bucket is not flushed", CHECKPOINT, "const bool ok = run_writer_flush(&runs, error);",
     "const bool ok = true;"),
    ("export: what is there is replaced", EXPORT, "if (lstat(path, &st) == 0 ||", "if ("),
    ("weights: the first part of a name is needed", PRETRAINED,
     "ok = slice_read(params + slice->offset, &file, bare ? name + strlen(prefix) : name",
     "ok = slice_read(params + slice->offset, &file, name"),
    ("shape: contradictions are let through", SETTINGS, "if (sizes[i].given && sizes[i].given != sizes[i].stored)",
     "if (false)"),
    ("shape: another architecture is let through", SETTINGS, "(Arch)s->arch : meant.arch) != stored->arch)",
     "(Arch)s->arch : meant.arch) == (Arch)7)"),
    ("init: checksums of a checkpoint are not asked", "trainer/checkpointing.h", "if (ours && !files_are_sound(",
     "if (false && !files_are_sound("),
    ("init: one rank of several looks at its part", "trainer/checkpointing.h",
     "checkpoint_add_up(sums, list, folder, world->rank, world->size, error);",
     "checkpoint_add_up(sums, list, folder, 0, world->size, error);"),
    ("init: all files of a checkpoint are needed", VERIFY, "list->file[1] = list->file[list->files - 1];", ""),
    ("init: ranks may have other weights", "trainer/checkpointing.h",
     'comm_check_same(&t->world, "the weights of --init", text, "give all ranks the same files");', ""),
    ("init: values are not compared", PRETRAINED,
     "sum += checksum_of(file.entries[i].file->data + tensor->offset, n, i * SAMPLE_BYTES);", "(void)n;"),
    ("init: ranks may have other models", SETUP, 'if (path) comm_check_same(&t->world, "the model of the weights"',
     'if (!path) comm_check_same(&t->world, "the model of the weights"'),
    ("whole: how the source samples is lost", HUB,
     "(!sources->weights[0] || hub_take(hub, sources->weights, \"generation_config.json\", error))", "true"),
    ("whole: any vocabulary is the source's", HUB, "const bool same = strcmp(", "const bool same = true || strcmp("),
    ("whole: the source's vocabulary is not asked", HUB, "const bool same = strcmp(",
     "const bool same = false && strcmp("),
    ("whole: what stands around another vocabulary is taken", HUB,
     "strcmp(name_of_path(of_folder), name_of_path(path)) != 0)", "false)"),
    ("whole: a vocabulary in two files gets a third", HUB, "out = pair ? NULL : hub_write(", "out = hub_write("),
    ("whole: texts end as data do, whatever the source says", SETUP,
     "if (weights[0] && access(config, F_OK) == 0) return", "if (0) return"),
    ("whole: exports say nothing of ends", EXPORT, "caat, files->config, error)", "caat, \"\", error)"),
]

TESTS = {file: "test_pretrained" for file in (CONFIG, ROPE)}
FAULTS = PURE + [(fault[0], "conversions", *fault[1:]) for fault in ON_MESHES]
FAST, SECONDS = "-O1", 300


def run(test, planted):
    if test == "conversions":
        return "train_gpt", ["dev/test/system/test_pretrained.py"]
    return mutate.unit_test(test, planted)
