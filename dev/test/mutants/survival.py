"""Faults of saving and resuming: a wrong order, a missing flush, wait, comparison or removal, a wrong place of a word,
a snapshot of the wrong moment, a message that is not heeded. Tests: test_trainer, test_checkpoint,
test_checkpoint_dir, parts of torture.py --short."""
VERIFY, PRETRAINED = "checkpoint/checkpoint_dir.h", "checkpoint/pretrained.h"
FOLDER, TELL, CHECKPOINT, SAVE, SUM, TENSORS, TRAINER = (
    "checkpoint/checkpoint_dir.h", "trainer/logger.h", "checkpoint/checkpoint.h", "checkpoint/save.h",
    "util/base.h", "checkpoint/safetensors.h", "train_gpt.cu")
PROGRAMS = {"model": "build/test_trainer", "checkpoint": "build/test_checkpoint",
            "verify": "build/test_checkpoint_dir"}

# What is wrong; the test that has to see it; file, exact text, replacement.
FAULTS = [
    # The order of things
    ("the folder is renamed before it is flushed", "checkpoint", CHECKPOINT,
     "folder_sync(temporary, error) && checkpoint_rename(temporary, folder, old, error);",
     "checkpoint_rename(temporary, folder, old, error) &&\n         folder_sync(folder, error);"),
    ("the folder is not flushed", "checkpoint", CHECKPOINT, "folder_sync(temporary, error) &&", ""),
    ("the new name is not flushed", "checkpoint", CHECKPOINT, "ok = folder_sync(out, error); //", "//"),
    ("ranks do not flush what they wrote", "checkpoint", TENSORS,
     "const int failed = fsync(file->fd) == 0 ? 0 : errno;", "const int failed = 0;"),
    ("text files are not flushed", "checkpoint", CHECKPOINT,
     "const int written = taken && fflush(out) == 0 && fsync(fileno(out)) == 0",
     "const int written = taken && fflush(out) == 0"),
    ("an old checkpoint is removed before the new one has its name", "checkpoint", CHECKPOINT,
     "    if (rename(temporary, folder) == 0) return true; // the name was free",
     "    checkpoint_remove(folder);\n    if (rename(temporary, folder) == 0) return true;"),
    # Sums
    ("words count from the start of each piece", "checkpoint", CHECKPOINT,
     "checksum_of(writer->buffer, bytes, writer->start / 4)", "checksum_of(writer->buffer, bytes, 0)"),
    ("the head is not in the sum", "checkpoint", CHECKPOINT,
     "sum->checksum[i] + checksum_of(layouts.file[i].header, layouts.file[i].header_bytes, 0);", "sum->checksum[i];"),
    ("the place of a word does not matter", "kills", SUM, "uint64_t z = i * 0x9E3779B97F4A7C15ull + word;",
     "(void)i;\n    uint64_t z = word;"),
    ("the last bytes of a file are not in the sum", "kills", SUM, "return bytes % 4 ? sum +",
     "return bytes % 4 && 0 ? sum +"),
    ("a part of the words is in no sum", "verify", VERIFY, "part = (words + ranks - 1) / ranks;",
     "part = words / ranks;"),
    ("a rank counts buckets that are another's", "kills", SAVE, "if (site < 0) return b % mesh->d == mesh->data;",
     "if (site < 0) return mesh->d == mesh->d;"),
    # What is compared
    ("sums are not compared", "verify", VERIFY, "if (sums[i] != file->checksum)", "if (0)"),
    ("trainer.json's own sum is not compared", "verify", VERIFY, "memcmp(file.data + covered, hex, 16) == 0)", "true)"),
    ("sizes are not compared", "broken", VERIFY, "&& (int64_t)st.st_size == file->bytes)", ")"),
    ("the step of a folder is not compared", "verify", VERIFY, "return list->state.step == step ||", "return true ||"),
    ("how much was written is not compared", "checkpoint", CHECKPOINT,
     "bool ok = sum->elements == values ||", "bool ok = true ||"),
    ("a checkpoint that is not sound is taken", "broken", "trainer/checkpointing.h",
     "return files_are_sound(t, ok, &list, folder, error);",
     "return files_are_sound(t, ok, &list, folder, error) || true;"),
    ("where none is sound a new run begins", "broken", "trainer/checkpointing.h", "    if (!found && n > 0) {",
     "    if (0) {"),
    # What stays, what goes
    ("the best is removed", "verify", FOLDER, "if (steps[i] == best) continue;", ""),
    ("links are followed where something is removed", "verify", CHECKPOINT, "O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC",
     "O_DIRECTORY | O_CLOEXEC"),
    ("one less is kept", "verify", FOLDER, "i = keep ? first + keep :", "i = keep ? first + keep - 1 :"),
    ("later checkpoints count", "verify", FOLDER, "while (first < n && steps[first] > last) first++;", "(void)last;"),
    ("without a link nothing is removed", "verify", FOLDER, "    bool ok = true;\n    for (int64_t i = keep",
     "    bool ok = linked;\n    for (int64_t i = keep"),
    ("one is removed under its name", "verify", FOLDER,
     "        if (rename(path, old) != 0) ok = fail(reason",
     "        checkpoint_remove(path);\n        if (0) ok = fail(reason"),
    ("a .tmp of a killed run is written into", "checkpoint", CHECKPOINT,
     "    checkpoint_remove(temporary); // left by a run that was killed while it saved\n", ""),
    ("what killed runs have left stays", "broken", "trainer/checkpointing.h",
     "if (is_main(t) && settings_is_training(&t->settings)) checkpoint_clean(out);", ""),
    ("an old one that has lost its name is removed", "verify", FOLDER,
     "if (old && access(name, F_OK) != 0 &&", "if (0 && access(name, F_OK) != 0 &&"),
    ("a failed save is not cleared away", "disks", SAVE,
     "    if (!ok && saver->rank == 0) checkpoint_abandon(saver->out, state->step);\n", ""),
    ("a run that was killed at its end keeps too many", "kills", "trainer/checkpointing.h",
     "if (is_main(t) && !checkpoint_prune(o->out, o->keep_last, t->step, &error))", "if (0)"),
    # Ranks and threads
    ("a rank that cannot write says nothing", "disks", SAVE,
     "    if (!ok) say_not_saved(saver->rank, state->step, &error);\n    comm_all", "    comm_all"),
    ("a rank writes into files that it could not open", "calls", SAVE, "bool ok = joined;", "bool ok = true;"),
    # Disks
    ("the run ends well without its last checkpoint", "disks", TRAINER, "if (!log_close(&t->log) || t->unsaved)",
     "if (!log_close(&t->log))"),
    ("a save that failed once is held against the run", "disks", "trainer/checkpointing.h",
     "t->unsaved = !stage_save(&t->saver, &t->world, &state);",
     "t->unsaved = !stage_save(&t->saver, &t->world, &state) || t->unsaved;"),
    ("a limit on files ends the run", "disks", "trainer/trainer_init.h", "    signal(SIGXFSZ, SIG_IGN);", "    //"),
    ("missing lines of the log are reported with every step", "disks", TELL, "if (why && !log->waits) {", "if (why) {"),
    ("what waits is written again", "kills", TELL, "    rewind(log->lines);\n", ""),
    ("what the disk did not take is lost", "disks", TELL,
     "return n < 0 ? errno : ENOSPC;", "return rewind(log->lines), ENOSPC;"),
    ("a resumed run keeps later lines", "kills", TELL, "&logged) == 1 && logged <= step)", "&logged) == 1)"),
    # What a resumed run has in common with what it was
    ("another field of the model is let through", "verify", "model.h", "a->eps == b->eps &&", "true &&"),
    # Taking up
    ("the position in the data is lost", "kills", "trainer/checkpointing.h",
     "t->step = state.step;\n    t->sequences = state.sequences;", "t->step = state.step;"),
    ("second moments are not restored", "kills", SAVE, "if (ok && (what > 0 || local)) set_values(",
     "if (ok && (what == 1 || local)) set_values("),
]

FAST, SECONDS = "-O1", 240
ENV = {"TORTURE_PATIENCE": "15"}


def run(test, _planted):
    if test in PROGRAMS:
        return PROGRAMS[test], [PROGRAMS[test], "--short"]
    return "train_gpt", ["python3", "dev/test/system/torture.py", "--short", "--seed", "1", "--only", test]
