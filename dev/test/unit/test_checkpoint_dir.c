/*
test_checkpoint_dir.c: reading checkpoints (checkpoint/checkpoint_dir.h) and the folder of a run
(checkpoint/checkpoint_dir.h). A file that is not what was written is refused with its name: other models, changed
values and names, 500 flipped bits and cut files. Of a run's folder, what is pruned, cleaned, linked and locked.
*/
#include "checkpoint_fixture.h"

// ---- Files that are not what was written ------------------------------------------------------------------------

// Exchanges n bytes of a file at `place` with those at `bytes`.
static void patch(const char* path, int64_t place, void* bytes, size_t n) {
    char before[8];
    const int fd = open(path, O_RDWR);
    if (fd < 0 || pread(fd, before, n, (off_t)place) != (ssize_t)n || pwrite(fd, bytes, n, (off_t)place) != (ssize_t)n)
        die("%s: cannot patch", path);
    memcpy(bytes, before, n);
    close(fd);
}

static bool reads(const char* path, const ModelConfig* m, Error* error) {
    error->text[0] = 0;
    return read_all(path, m, &one_rank, error);
}

static void test_other_models(const char* path) {
    Error error;
    ModelConfig other = gpt2_tied;
    other.F = 44;
    check(!reads(path, &other, &error) && strstr(error.text, "h.0.mlp.c_fc.weight"), "other sizes: %s", error.text);
    other = gpt2_tied;
    other.V = 22;
    check(!reads(path, &other, &error) && strstr(error.text, "wte.weight"), "another vocabulary: %s", error.text);
    for (int L = 4; L <= 6; L += 2) {
        other = gpt2_tied;
        other.L = L;
        check(!reads(path, &other, &error) && strstr(error.text, "64 tensors"), "%d layers: %s", L, error.text);
    }
    check(!reads(path, &llama_tied, &error) && strstr(error.text, path), "another architecture: %s", error.text);
}

// A name, or a value, of the files is changed, and changed back.
static void test_patched(const char* path) {
    static const struct {
        int file;
        const char* tensor;
        uint32_t bits; // for element 17
        const char* message;
    } values[] = {{0, "transformer.h.4.mlp.c_proj.bias", 0x7fc00000, "is nan"},
                  {0, "transformer.wte.weight", 0xff800000, "is -inf"},
                  {1, "exp_avg.transformer.wpe.weight", 0x7f800000, "is inf"},
                  {1, "exp_avg_sq.transformer.h.2.attn.c_attn.weight", 0xffc00000, "nan; weights must be finite"}};
    Error error;
    char file[128], expected[128], letter = 'L';
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        SafeTensors st;
        snprintf(file, sizeof file, "%s/%s", path, checkpoint_files[values[i].file]);
        if (!safetensors_open(&st, file, &error)) die("%s", error.text);
        const int64_t place = safetensors_find(&st, values[i].tensor)->offset + 4 * 17;
        safetensors_close(&st);
        uint32_t bits = values[i].bits;
        patch(file, place, &bits, sizeof bits);
        snprintf(expected, sizeof expected, "element 17 of %s is ", values[i].tensor);
        check(!reads(path, &gpt2_tied, &error) && strstr(error.text, file) && strstr(error.text, expected) &&
                  strstr(error.text, values[i].message),
              "not a finite number: %s", error.text);
        patch(file, place, &bits, sizeof bits);
    }
    MappedFile header;
    snprintf(file, sizeof file, "%s/model.safetensors", path);
    if (!file_map(&header, file, &error)) die("%s", error.text);
    const void* name = memmem(header.data, header.size, "ln_f.bias", 9);
    const int64_t place = name ? (const unsigned char*)name - header.data : 0;
    file_unmap(&header);
    patch(file, place, &letter, 1);
    check(!reads(path, &gpt2_tied, &error) && strstr(error.text, file) &&
              strstr(error.text, "transformer.ln_f.bias is missing"),
          "another name: %s", error.text);
    patch(file, place, &letter, 1);
}

// One thing is wrong with a copy of a checkpoint: it is neither sound nor read. The message names the file.
static void test_broken(void) {
    static const struct {
        const char *command, *part;
        bool reads; // the values can be read: only the checksums tell
    } cases[] = {{"truncate -s -4 model.safetensors", "model.safetensors", false},
                 {"truncate -s -4 optimizer.safetensors", "optimizer.safetensors", false},
                 {"rm optimizer.safetensors", "optimizer.safetensors", false},
                 {"rm model.safetensors", "model.safetensors", false},
                 {"rm config.json", "config.json", false},
                 {"rm trainer.json", "trainer.json", false},
                 {"truncate -s 20 trainer.json", "trainer.json", false},
                 {"sed -i s/global_batch/batch/ trainer.json", "trainer.json", false},
                 {"sed -i 's/: 7/: -7/' trainer.json", "trainer.json", false},
                 {"rm trainer.json && mkfifo trainer.json", "trainer.json", false},
                 {"rm model.safetensors && mkdir model.safetensors", "is not there", false},
                 {"mv optimizer.safetensors model.safetensors", "", false},
                 {"cp ../another/step_00000001/trainer.json .", "config.json", true},
                 {"cp ../another/step_00000001/config.json .", "config.json", true}};
    static const char path[] = "broken/step_00000001";
    Error error = {""};
    ModelConfig other = gpt2_tied;
    other.eps = 2e-5; // as large, but another model
    make_run("broken", 1, 1);
    new_folder("another");
    if (!save("another", 1, &other, &one_rank, 1, &error)) die("%s", error.text);
    const int before = open_files();
    test_other_models(path);
    test_patched(path);
    check(is_sound(path, &error) && reads(path, &gpt2_tied, &error), "and the right one is read %s", error.text);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        run_command("cp -r %s copy && cd copy && %s", path, cases[i].command);
        const bool sound = is_sound("copy", &error);
        check(!sound && strstr(error.text, "copy/") && strstr(error.text, cases[i].part) &&
                  reads("copy", &gpt2_tied, &error) == cases[i].reads,
              "%s: %s", cases[i].command, error.text);
        run_command("rm -r copy");
    }
    check(open_files() == before, "no file is left open");
}

// A byte of a file becomes another one.
static void damage(const char* path, int64_t place, int bit) {
    unsigned char byte;
    const int fd = open(path, O_RDWR);
    if (fd < 0 || pread(fd, &byte, 1, (off_t)place) != 1) die("%s: cannot read", path);
    byte ^= (unsigned char)(1 << bit);
    if (pwrite(fd, &byte, 1, (off_t)place) != 1 || close(fd) != 0) die("%s: cannot patch", path);
}

static uint64_t random_below(uint64_t* state, uint64_t n) { return philox(11, 0, (*state)++).word[0] % n; }

// Bits flipped and pieces cut off, 500 times: each is refused with the name of the file. Ranks that add up their parts
// find the same as one process alone.
static void test_unsound(void) {
    static const char* names[] = {"model.safetensors", "optimizer.safetensors", "config.json", "trainer.json"};
    const Sizes z = {2, 2, 1};
    Error error = {""};
    char path[128];
    uint64_t r = 0;
    int refused = 0, tried = 0;
    new_folder("unsound");
    if (!save("unsound", 1, &gpt2_tied, &z, 1, &error)) die("%s", error.text);
    check(is_sound("unsound/step_00000001", &error), "as it was written %s", error.text);
    for (int i = 0; i < 500; i++) { // 400 flipped bits, in every file, there and back; 100 files that are cut off
        const bool cut = i >= 400;
        const char *name = names[i % 4], *folder = cut ? "copy" : "unsound/step_00000001";
        if (cut) run_command("cp -r unsound/step_00000001 copy");
        snprintf(path, sizeof path, "%s/%s", folder, name);
        const int64_t place = (int64_t)random_below(&r, (uint64_t)file_bytes(path));
        const int bit = (int)random_below(&r, 8);
        if (!cut) damage(path, place, bit);
        if (cut && truncate(path, (off_t)place) != 0) die("%s: cannot cut", path);
        tried++;
        error.text[0] = 0;
        if (!is_sound(folder, &error) && strstr(error.text, name))
            refused++;
        else
            check(false, "%s: %s at byte %lld: %s", name, cut ? "cut" : "flipped", (long long)place, error.text);
        if (cut)
            run_command("rm -rf copy");
        else
            damage(path, place, bit);
    }
    check(refused == tried, "%d flipped bits and cut files: %d refused with the name of the file", tried, refused);
    CheckpointList list;
    bool ok = checkpoint_load_list(&list, "unsound/step_00000001", &error);
    for (int ranks = 1; ranks <= 7 && ok; ranks++) {
        uint64_t sums[CHECKPOINT_TENSOR_FILES + 1] = {0};
        for (int rank = 0; rank < ranks && ok; rank++)
            ok = checkpoint_add_up(sums, &list, "unsound/step_00000001", rank, ranks, &error);
        ok = ok && checkpoint_compare(sums, &list, "unsound/step_00000001", &error);
    }
    check(ok, "1 to 7 ranks that add up a part each agree %s", error.text);
}

// What says of itself that it is of another step than its folder's.
static void test_says(void) {
    Error error = {""};
    CheckpointList list;
    make_run("says", 1, 1);
    check(checkpoint_load_list(&list, "says/step_00000001", &error) &&
              checkpoint_check_step(&list, "says/step_00000001", 1, &error) &&
              !checkpoint_check_step(&list, "says/step_00000001", 2, &error) &&
              strstr(error.text, "trainer.json: is of step 1"),
          "a folder with another step's name: %s", error.text);
}

// A run is not continued as another model: every field that config.json has and that changes what is computed.
static void test_same_model(void) {
    ModelConfig base = model_of(ARCH_LLAMA, 4, 64, 8, 4, 128, 32, 100), other;
    const RopeScaling scaling = {8, 1, 4, 8192};
    base.rope_scaling = scaling;
    int* const integers[] = {&other.L, &other.C, &other.NH, &other.NKV, &other.F, &other.T, &other.V};
    double* const numbers[] = {&other.eps,
                               &other.rope_theta,
                               &other.rope_scaling.factor,
                               &other.rope_scaling.low,
                               &other.rope_scaling.high,
                               &other.rope_scaling.original};
    int same = !model_same(&base, &base);
    for (int i = 0; i < 7 + 6; i++) {
        other = base;
        if (i < 7)
            *integers[i] *= 2;
        else
            *numbers[i - 7] *= 2;
        same += model_same(&other, &base);
    }
    other = base;
    other.tied = true;
    same += model_same(&other, &base);
    other = base;
    other.arch = ARCH_GPT2;
    check(same + model_same(&other, &base) == 0, "every field of a model counts");
}

// ---- The folder of a run ----------------------------------------------------------------------------------------

// The folder of a run: the newest stay, and the best; what killed runs have left goes, or comes back.
static void test_folder(void) {
    static const double losses[] = {3, 1, 2, (double)NAN, 1.5, 1};
    Error error = {""};
    char target[64] = "";
    int64_t* steps;
    new_folder("run");
    for (int i = 0; i < 6; i++) {
        const CheckpointState state = {i + 1, 1, 2, 3, 4, 5, "", "adamw", losses[i], 0, 0};
        if (!save_state("run", &state, &gpt2_tied, &one_rank, 1, &error)) die("%s", error.text);
        const bool pruned = checkpoint_prune("run", i < 5 ? 2 : 1, i + 1, &error);
        const int n = checkpoint_steps(&steps, "run");
        const int64_t expected[6][3] = {{1}, {2, 1}, {3, 2}, {4, 3, 2}, {5, 4, 2}, {6}};
        const int left[] = {1, 2, 2, 3, 3, 1}, bests[] = {1, 2, 2, 2, 2, 6}, best = bests[i];
        bool ok = pruned && n == left[i];
        for (int k = 0; k < n && ok; k++) ok = steps[k] == expected[i][k];
        const ssize_t length = readlink("run/best", target, sizeof target - 1);
        target[length > 0 ? length : 0] = 0;
        ok = ok && atoi(target + 5) == best;
        check(ok, "losses 3, 1, 2, none, 1.5, 1; after step %d: the last %d and the best, %s %s", i + 1, i < 5 ? 2 : 1,
              target, error.text);
        free(steps);
        steps = NULL;
    }
    for (int step = 8; step <= 9; step++) {
        if (!save("run", step, &gpt2_tied, &one_rank, 1, &error)) die("%s", error.text);
    }
    check(checkpoint_prune("run", 0, 9, &error) && checkpoint_steps(&steps, "run") == 3, "--keep-last 0: all stay");
    free(steps);
    run_command("rm -r run/step_00000008 run/step_00000009");
    touch("run/step_00000006/notes.txt");
    if (!save("run", 7, &gpt2_tied, &one_rank, 1, &error)) die("%s", error.text);
    check(checkpoint_prune("run", 1, 7, &error) && access("run/step_00000006.old/notes.txt", F_OK) == 0,
          "somebody's file stays where a checkpoint goes");
    run_command("rm -rf run/best && touch run/best");
    check(checkpoint_prune("run", 1, 7, &error) && file_bytes("run/best") == 0, "somebody's file called best stays");
    run_command("cd run && rm -r best step_00000006.old && cp -r step_00000007 step_00000008.tmp && "
                "mv step_00000007 step_00000007.old && mkdir step_00000009.old step_x.tmp");
    checkpoint_clean("run");
    check(entries("run") == 2 && access("run/step_x.tmp", F_OK) == 0 && is_sound("run/step_00000007", &error),
          "files of killed runs are removed, and a checkpoint without a name gets it back %s", error.text);
}

// A run that was resumed from before checkpoints that are not sound: those are later, and do not replace its own.
static void test_prune_later(void) {
    Error error = {""};
    make_run("later", 1, 4);
    damage("later/step_00000004/model.safetensors", 5000, 3);
    check(checkpoint_prune("later", 1, 3, &error) && access("later/step_00000003", F_OK) == 0 &&
              access("later/step_00000004", F_OK) == 0 && access("later/step_00000002", F_OK) != 0,
          "the last that was saved stays, and a later one %s", error.text);
    char target[64] = "";
    check(readlink("later/best", target, sizeof target - 1) > 0 && strcmp(target, "step_00000003") == 0,
          "the best is not one that was not taken: %s", target);
    run_command("mkdir later/best.tmp && touch later/best.tmp/x"); // no link can be made
    if (!save("later", 5, &gpt2_tied, &one_rank, 1, &error)) die("%s", error.text);
    error.text[0] = 0;
    check(!checkpoint_prune("later", 1, 5, &error) && strstr(error.text, "later/best: cannot link") &&
              access("later/step_00000003", F_OK) != 0 && access("later/step_00000005", F_OK) == 0,
          "without a link to the best room is made all the same: %s", error.text);
}

// Killed at each call while old checkpoints are removed: what still has its name is whole.
static void test_prune_killed(void) {
    Error error = {""};
    char path[64];
    int64_t* steps;
    int points = 0, broken = 0;
    bool killed = true;
    for (; killed && points < 100; points++) {
        run_command("rm -rf prune");
        make_run("prune", 1, 3);
        fflush(stdout);
        const pid_t child = fork();
        int status;
        if (child < 0) die("cannot fork: %s", strerror(errno));
        if (child == 0) {
            calls.count = 0;
            calls.at = points;
            calls.kill = true;
            _exit(checkpoint_prune("prune", 1, 3, &error) ? 0 : 1);
        }
        if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) die("the process that removes has crashed");
        killed = WEXITSTATUS(status) == 9;
        const int n = checkpoint_steps(&steps, "prune");
        for (int i = 0; i < n; i++) {
            snprintf(path, sizeof path, "prune/step_%08lld", (long long)steps[i]);
            broken += !is_sound(path, &error);
        }
        free(steps);
    }
    check(points > 8 && !killed && broken == 0,
          "killed at %d calls while two of three are removed: %d halves have a name", points - 1, broken);
}

// Links in the folder of a run, to a checkpoint that is somebody's: only the links go.
static void test_links(void) {
    Error error = {""};
    new_folder("links"), new_folder("theirs");
    if (!save("theirs", 1, &gpt2_tied, &one_rank, 1, &error) || !save("links", 3, &gpt2_tied, &one_rank, 1, &error))
        die("%s", error.text);
    run_command("ln -s ../theirs/step_00000001 links/step_00000001");
    check(checkpoint_prune("links", 1, 3, &error) && access("links/step_00000001", F_OK) != 0 &&
              entries("theirs/step_00000001") == 4,
          "--keep-last removes a link to a checkpoint, and not the checkpoint %s", error.text);
    run_command("for name in step_00000004 step_00000004.tmp step_00000004.old; do ln -s ../theirs/step_00000001 "
                "links/$name; done");
    check(save("links", 4, &gpt2_tied, &one_rank, 1, &error) && entries("theirs/step_00000001") == 4 &&
              entries("links") == 3 && is_sound("links/step_00000004", &error),
          "a save under a name that three links have %s", error.text);
    run_command("ln -s ../theirs/step_00000001 links/step_00000005.tmp; ln -s ../theirs/step_00000001 "
                "links/step_00000004.old");
    checkpoint_clean("links");
    check(entries("links") == 3 && entries("theirs/step_00000001") == 4, "what killed runs have left, as links");
    run_command("echo mine >links/best.tmp");
    checkpoint_prune("links", 2, 4, &error);
    check(file_bytes("links/best.tmp") == 5, "a file called best.tmp stays");
}

int main(void) {
    make_models();
    folder_begin("test_checkpoint_dir");
    test_broken();
    test_unsound();
    test_says();
    test_same_model();
    test_folder();
    test_prune_later();
    test_prune_killed();
    test_links();
    return folder_end();
}
