/*
test_checkpoint.c: writing checkpoints (checkpoint/checkpoint.h) and starting from their weights
(checkpoint/pretrained.h). Files that any mesh has written, in any order of its ranks, hold the formula of
checkpoint_fixture.h and are the same bytes; any other mesh reads its slices of them. A save that is stopped or fails,
at every single call that changes the disk, leaves what was there before.
*/
#include "checkpoint_fixture.h"

// ---- Meshes -----------------------------------------------------------------------------------------------------

typedef struct {
    const ModelConfig* model;
    Sizes meshes[10]; // up to the first with t = 0
} Case;

static const Case cases[] = {
    {&gpt2_tied,
     {{1, 1, 1},
      {2, 1, 1},
      {4, 1, 3}, // vocabulary 21 on 4 ranks: 6 6 6 3
      {1, 2, 1},
      {2, 3, 2}, // stages 2 2 1
      {1, 5, 3},
      {4, 2, 1},
      {2, 3, 1},
      {1, 2, 3}}},
    {&gpt2_untied, {{1, 1, 1}, {3, 1, 2}, {6, 2, 1}, {2, 3, 3}, {3, 2, 1}}},
    {&llama_untied,
     {{1, 1, 1},
      {2, 2, 1},
      {4, 1, 1}, // each key/value head on 2 ranks
      {8, 1, 2}, // and on 4; vocabulary 23 on 8 ranks: 3 3 3 3 3 3 3 2
      {8, 4, 1},
      {4, 3, 2}}},
    {&llama_tied, {{1, 1, 1}, {3, 2, 1}, {6, 3, 1}, {1, 4, 3}, {6, 1, 2}}},
};
enum { CASES = sizeof cases / sizeof *cases };

static void test_meshes(const Case* c) {
    const ModelConfig* m = c->model;
    char out[32], path[10][64], found[64];
    Error error;
    int n = 0;
    for (; n < 10 && c->meshes[n].t; n++) {
        const Sizes* z = &c->meshes[n];
        snprintf(out, sizeof out, "mesh_%d", n);
        snprintf(path[n], sizeof path[n], "mesh_%d/step_00000012", n);
        new_folder(out);
        error.text[0] = 0;
        const bool ok = save(out, 12, m, z, (uint64_t)n, &error) && checkpoint_newest(found, sizeof found, out) &&
                        strcmp(found, path[n]) == 0 && file_holds(path[n], "model.safetensors", m, 0, 1, &error) &&
                        file_holds(path[n], "optimizer.safetensors", m, 1, 2, &error);
        check(ok, "%s, written on t=%d p=%d d=%d: every value stands in its place %s", m->name, z->t, z->p, z->d,
              error.text);
        if (!ok) return;
    }
    for (int i = 1; i < n; i++) {
        bool same = true;
        for (size_t k = 0; k < sizeof checkpoint_files / sizeof checkpoint_files[0]; k++)
            same = same && (k == 2 || same_files(path[0], path[i], checkpoint_files[k])); // 2: there are no sites
        check(same, "%s: all four files are the bytes that the first mesh wrote", path[i]);
    }
    for (int i = 0; i < n; i++) { // each mesh reads what the next one wrote; these are the same bytes
        const Sizes* z = &c->meshes[i];
        error.text[0] = 0;
        check(read_all(path[(i + 1) % n], m, z, &error), "%s, read on t=%d p=%d d=%d: bit for bit, padding is zero %s",
              m->name, z->t, z->p, z->d, error.text);
    }
    run_command("rm -r mesh_*");
}

// What sites have is found by names that say whose copy of what it is: no two values may share or change theirs.
static void test_names_of_sites(void) {
    const CheckpointSites sites = {3, 2, {"base", "momentum", "error"}, 2};
    char name[128], expected[128];
    bool ok = checkpoint_values(&sites) == CHECKPOINT_VALUES + 6;
    for (int kind = 0; kind < sites.kinds; kind++)
        for (int copy = 0; copy < sites.copies; copy++) {
            const int value = checkpoint_value_of_site(&sites, kind, copy);
            checkpoint_name(name, sizeof name, &sites, value, "lm_head.weight");
            snprintf(expected, sizeof expected, "site.%d.%s.lm_head.weight", copy, sites.kind[kind]);
            ok = ok && strcmp(name, expected) == 0 && checkpoint_file_of(2, value) == 2;
        }
    check(ok, "what sites have is named site.COPY.KIND.TENSOR");
}

// Tensors larger than the writer's buffer, with rows that do not divide it.
static void test_large(void) {
    ModelConfig m = model_of(ARCH_GPT2, 2, 250, 2, 2, 1000, 24, 4500);
    m.name = "gpt2, 2.7M";
    const Sizes two = {2, 1, 1};
    Error error = {""};
    new_folder("large");
    check(save("large", 1, &m, &one_rank, 1, &error) && read_all("large/step_00000001", &m, &two, &error),
          "%lld parameters, %d in the writer's buffer: bit for bit %s", (long long)model_parameters(&m),
          RUN_WRITER_FLOATS, error.text);
}

// ---- State, config.json, init -----------------------------------------------------------------------------------

static void test_state(void) {
    char path[64], found[64], cut[64];
    Error error = {""};
    new_folder("state");
    check(!checkpoint_newest(found, sizeof found, "state") && !checkpoint_newest(found, sizeof found, "nowhere"),
          "an empty folder, and none, have no newest checkpoint");
    const CheckpointState states[] = {
        {0, 0, 0, 1, 1, 0, "", "adamw", 0, 0, 0},
        {9, 90, 7, 8, 1024, 123, "dc-s3gd of 4 sites", "sgd", (double)NAN, UINT64_MAX - 1, 64},
        {1234567890123, INT64_MAX, 3, 2, 1, INT64_MAX, "", "adamw", 1.0 / 3, 1, 1 << 20}};
    for (size_t i = 0; i < 3; i++) {
        CheckpointState state;
        CheckpointReader r;
        const bool made = save_state("state", &states[i], &llama_tied, &one_rank, 1, &error);
        snprintf(path, sizeof path, "state/step_%08lld", (long long)states[i].step);
        check(made && checkpoint_newest(found, sizeof found, "state") && strcmp(found, path) == 0, "%s is the newest",
              path);
        memset(&state, 0xff, sizeof state);
        const bool opened = made && checkpoint_open(&r, path, &state, NULL, &error);
        const bool same = memcmp(&state, &states[i], offsetof(CheckpointState, val_loss)) == 0;
        check(opened && same && state.data_checksum == states[i].data_checksum &&
                  state.held_out == states[i].held_out &&
                  (isnan(state.val_loss) ? isnan(states[i].val_loss) : state.val_loss == states[i].val_loss),
              "its state comes back %s", error.text);
        if (opened) checkpoint_close(&r);
    }
    run_command("cd state && mkdir step_99999999999999.tmp step_99999999999999.old step_9999999999999x "
                "step_0099999999999999 step_-0000001");
    check(checkpoint_newest(path, sizeof path, "state") && strcmp(path, found) == 0, "names that are none are ignored");
    check(!checkpoint_newest(cut, strlen(found), "state"), "nor is a name for which there is no room");
}

// It also has what makes a CAAT-Net: every number comes back as it was, and other ones are refused.
static void test_config_caat(const ModelConfig* m) {
    static const double shares[] = {0, 1, 0.5, 0.1, 1 / 3.0, 0.7000000000000001};
    Error error = {""};
    bool same = true, refused = true;
    for (int i = 0; i < 18; i++) {
        const CaatConfig written = {i + 1, shares[i % 6], i % 2 == 0};
        CaatConfig other[3] = {written, written, {0, 0, false}};
        const bool made = checkpoint_write_config("config.json", m, &written, "", &error);
        same = same && made && checkpoint_check_caat(".", &written, &error);
        other[0].ranks++;
        other[1].fraction = nextafter(other[1].fraction, 2);
        for (int k = 0; k < 3; k++)
            refused =
                refused && !checkpoint_check_caat(".", &other[k], &error) && strstr(error.text, "--caat-fraction");
    }
    check(same, "%s: config.json has N and P of a CAAT-Net to the bit", m->name);
    check(refused, "and a model with others is refused: %s", error.text);
    const CaatConfig none = {0, 0, false}, some = {2, 0.5, false};
    same = checkpoint_write_config("config.json", m, &none, "", &error) && checkpoint_check_caat(".", &none, &error);
    check(same && !checkpoint_check_caat(".", &some, &error), "an ordinary model is none: %s", error.text);
    check(checkpoint_check_caat("nowhere", &some, &error), "a folder without config.json does not say what it is");
}

// --init on all ranks of a mesh.
static bool init_all(const char* path, const ModelConfig* m, const Sizes* z, Error* error) {
    bool ok = true;
    for (int rank = 0; rank < z->t * z->p * z->d && ok; rank++) {
        Layout layout = layout_of(m, z, rank);
        float* params = (float*)checked_calloc((size_t)layout.elements, sizeof(float), "test");
        ok = checkpoint_init(path, m, &layout, params, error);
        for (int b = 0; b < layout.buckets && ok; b++) {
            const size_t bytes = (size_t)layout.bucket[b].elements * sizeof(float);
            float* expected = bucket_expected(&layout, m, b, 0, 0);
            ok = memcmp(expected, params + layout.bucket[b].offset, bytes) == 0 || fail(error, "bucket %d differs", b);
            free(expected);
        }
        free(params);
        layout_free(&layout);
    }
    return ok;
}

// Any mesh starts from a checkpoint's weights; another model is refused.
static void test_init(void) {
    static const char* path[CASES] = {"init/step_00000000", "init/step_00000001", "init/step_00000002",
                                      "init/step_00000003"};
    new_folder("init");
    for (int c = 0; c < CASES; c++) {
        const ModelConfig* m = cases[c].model;
        const Sizes* z = &cases[c].meshes[2];
        Error error = {""};
        check(save("init", c, m, &cases[c].meshes[1], 3, &error) && init_all(path[c], m, z, &error),
              "%s: --init on t=%d p=%d d=%d, padding stays zero %s", m->name, z->t, z->p, z->d, error.text);
    }
    ModelConfig fewer = llama_tied;
    fewer.L--;
    Error error = {""};
    const char* last = path[CASES - 1];
    check(!init_all(last, &fewer, &one_rank, &error) && strstr(error.text, last) &&
              strstr(error.text, "model.layers.4."),
          "a layer too many: %s", error.text);
}

// ---- Killed, or with a call that fails --------------------------------------------------------------------------

// How a save of step 2 ended, seen from outside.
typedef enum { ABSENT, OLDER, NEWER, BROKEN, FOUNDS } Found;

static Found find_step(const ModelConfig* m, const Sizes* z) {
    CheckpointReader r;
    CheckpointState state;
    Error error;
    if (access("calls/step_00000002", F_OK) != 0) return ABSENT;
    if (entries("calls/step_00000002") != 4) return BROKEN;
    if (!checkpoint_open(&r, "calls/step_00000002", &state, NULL, &error)) return BROKEN;
    checkpoint_close(&r);
    if (!is_sound("calls/step_00000002", &error)) return BROKEN;
    if (!read_all("calls/step_00000002", m, z, &error)) return BROKEN;
    return state.sequences == 14 ? NEWER : OLDER; // save() writes 7 step
}

// Makes the folder hold nothing but an older run's step 2.
static void make_older(const ModelConfig* m, const Sizes* z) {
    const CheckpointState state = {2, 1000, 42, 8, 16, 3, "", "adamw", 0.5, 0, 0};
    Error error;
    if (entries("calls") == 1 && find_step(m, z) == OLDER) return;
    run_command("rm -rf calls && mkdir calls");
    if (!save_state("calls", &state, m, z, 5, &error)) die("%s", error.text);
}

// Saves in a process of its own, whose call number `at` is its last; false if there is no such call.
static bool save_killed(const ModelConfig* m, const Sizes* z, int at) {
    fflush(stdout);
    const pid_t child = fork();
    if (child < 0) die("cannot fork: %s", strerror(errno));
    if (child == 0) {
        Error error;
        calls.count = 0;
        calls.at = at;
        calls.kill = true;
        _exit(save("calls", 2, m, z, 5, &error) ? 0 : 1);
    }
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) die("the process that saves has crashed");
    return WEXITSTATUS(status) != 0;
}

// Every call of a save that replaces a checkpoint is the last one of the process once, and fails once. No checkpoint is
// ever broken, and the next save succeeds. What fails, but lives, leaves the older checkpoint and nothing else; the one
// exception is the last flush, of the new name.
static void test_every_call(const ModelConfig* m, const Sizes* z) {
    enum { MANY = 1000 }; // calls; a save that never succeeds ends here
    Error error;
    int killed[FOUNDS] = {0, 0, 0, 0}, failed[FOUNDS] = {0, 0, 0, 0}, stuck = 0, unclean = 0, unsaid = 0, at = 0;
    run_command("rm -rf calls && mkdir calls");
    for (make_older(m, z); at < MANY && save_killed(m, z, at); at++) {
        const Found found = find_step(m, z);
        killed[found]++;
        if (found == ABSENT || at % 8 == 0) { // saving each time would take its time
            stuck += !save("calls", 2, m, z, 5, &error) || entries("calls") != 1 || find_step(m, z) != NEWER;
        }
        make_older(m, z);
    }
    check(killed[BROKEN] == 0 && killed[ABSENT] == 1 && killed[OLDER] > 100 && killed[NEWER] > 1 && stuck == 0,
          "%s, killed at each of %d calls: %d times the older one is there, %d times the newer, %d time (between two "
          "renames) none, %d times a broken one; the next save failed %d times",
          m->name, at, killed[OLDER], killed[NEWER], killed[ABSENT], killed[BROKEN], stuck);
    for (at = 0, make_older(m, z); at < MANY; at++, make_older(m, z)) {
        error.text[0] = 0;
        calls.count = 0;
        calls.at = at;
        const bool ok = save("calls", 2, m, z, 5, &error);
        calls.at = -1;
        if (ok && calls.count <= at) break; // there is no such call
        const Found found = find_step(m, z);
        failed[found]++;
        unclean += entries("calls") != 1;
        unsaid += !ok && (!strstr(error.text, "calls") || !strstr(error.text, strerror(EIO)));
    }
    check(failed[OLDER] == at - 1 && failed[NEWER] == 1 && unclean == 0 && unsaid == 0,
          "%s, each of %d calls fails: %d times the older one is there, %d time the newer, %d times something else as "
          "well; %d errors without path and reason",
          m->name, at, failed[OLDER], failed[NEWER], unclean, unsaid);
}

// What is flushed before what: files, then the folder, then it is renamed, then the folder around it.
static void test_order(void) {
    const Sizes z = {2, 1, 1};
    Error error = {""};
    new_folder("order");
    calls.log[0] = 0;
    const bool ok = save("order", 3, &gpt2_tied, &z, 1, &error);
    check(ok && strcmp(calls.log, "model.safetensors optimizer.safetensors model.safetensors optimizer.safetensors "
                                  "config.json trainer.json "
                                  "step_00000003.tmp rename order") == 0,
          "flushed in this order: %s", calls.log);
}

// A folder that is moved aside comes back if its place stays empty. (The new one lies in the old one here, so that it
// goes with it.)
static void test_moved_back(void) {
    Error error = {""};
    run_command("mkdir -p back/old/new && touch back/old/notes back/old/new/notes");
    check(!checkpoint_rename("back/old/new", "back/old", "back/aside", &error) && strstr(error.text, "back/old/new") &&
              access("back/old/notes", F_OK) == 0 && entries("back") == 1,
          "moved aside, and back: %s", error.text);
}

// ---- Refused ----------------------------------------------------------------------------------------------------

// A save of `step` that has to fail and to name the folder, and leaves `left` entries.
static void refuses(const char* what, int64_t step, int left) {
    const Sizes z = {2, 1, 1};
    Error error = {""};
    char name[64];
    snprintf(name, sizeof name, "taken/step_%08lld", (long long)step);
    const bool ok = save("taken", step, &gpt2_tied, &z, 1, &error);
    check(!ok && strstr(error.text, name) && entries("taken") == left, "%s: %s", what, error.text);
}

static void test_taken(void) {
    const Sizes z = {2, 1, 1};
    Error error = {""};
    make_run("taken", 4, 4);
    const bool begun = checkpoint_begin("taken", 4, &gpt2_tied, &checkpoint_of_adamw, &error);
    touch("taken/step_00000004/notes.txt");
    check(begun && publish_empty("taken", 4, &error) && entries("taken/step_00000004") == 4 &&
              entries("taken/step_00000004.old") == 1,
          "put there while it was written: kept %s", error.text);
    refuses("now there is no name for the older one", 4, 2);
    touch("taken/step_00000005");
    refuses("a file", 5, 3);
    const bool started = checkpoint_begin("taken", 6, &gpt2_tied, &checkpoint_of_adamw, &error);
    touch("taken/step_00000006");
    check(started && !publish_empty("taken", 6, &error) && entries("taken") == 4, "a file, in the last moment: %s",
          error.text);
    new_folder("taken/step_00000007.tmp");
    touch("taken/step_00000007.tmp/notes.txt");
    refuses("somebody's file in the .tmp", 7, 5);
    check(!save("nowhere", 8, &gpt2_tied, &z, 1, &error), "no folder: %s", error.text);
}

// A checkpoint with holes: as many values as the model has have to be written, no fewer and no more.
static void test_holes(void) {
    const CheckpointState state = {3, 1, 2, 3, 4, 5, "", "adamw", 0.5, 0, 0};
    new_folder("holes");
    for (int off = -1; off <= 1; off += 2) {
        const CheckpointSum sum = {3 * model_parameters(&gpt2_tied) + off, {0}};
        Error error = {""};
        const bool begun = checkpoint_begin("holes", 3, &gpt2_tied, &checkpoint_of_adamw, &error);
        check(begun && !publish("holes", &state, &gpt2_tied, &sum, &error) && entries("holes") == 0, "%+d value: %s",
              off, error.text);
    }
}

// Values that no run could continue from are not saved.
static void test_not_finite(void) {
    static const uint32_t wrong[] = {0x7f800000, 0xff800000, 0x7fc00000};
    const Sizes z = {2, 1, 1};
    new_folder("infinite");
    for (int i = 0; i < 3; i++) {
        Layout layout = layout_of(&gpt2_tied, &z, 1);
        CheckpointWriter w;
        Error error = {""};
        if (!checkpoint_begin("infinite", 1, &gpt2_tied, &checkpoint_of_adamw, &error) ||
            !checkpoint_join(&w, "infinite/step_00000001.tmp", &gpt2_tied, &checkpoint_of_adamw, &error))
            die("%s", error.text);
        const Slice* s = &layout.slices[layout.bucket[2].first]; // the first that this rank writes
        while (!slice_is_owned(s, &layout)) s++;
        float* values = bucket_expected(&layout, &gpt2_tied, 2, i, 0);
        values[s->offset - layout.bucket[2].offset + 1] = float_of_bits(wrong[i]);
        const bool ok = checkpoint_write_value(&w, &layout, 2, i, values, &error);
        check(!ok && strstr(error.text, s->tensor.name), "not saved: %s", error.text);
        checkpoint_leave(&w, false, &error);
        free(values);
        layout_free(&layout);
        checkpoint_abandon("infinite", 1);
    }
}

// A checkpoint of two moments is not read as one of one moment, which takes no room for a second.
static void test_one_moment(void) {
    const CheckpointSites sgd = {0, 0, {NULL}, 1};
    CheckpointReader reader;
    CheckpointState state = {};
    CheckpointFileLayouts layouts;
    Error error = {""};
    new_folder("moments");
    if (!save("moments", 1, &gpt2_tied, &one_rank, 1, &error)) die("%s", error.text);
    Layout layout = layout_of(&gpt2_tied, &one_rank, 0);
    if (!checkpoint_open(&reader, "moments/step_00000001", &state, &sgd, &error)) die("%s", error.text);
    float* values = (float*)checked_malloc((size_t)largest_bucket(&layout) * sizeof(float), "test");
    const bool read = checkpoint_read_bucket(&reader, &layout, 0, 1, values, &error);
    free(values);
    check(!read, "one moment of two is refused: %s", error.text);
    checkpoint_close(&reader);
    const bool ok = checkpoint_file_layouts(&layouts, &gpt2_tied, &sgd, &error);
    check(ok && layouts.file[1].file_bytes < layouts.file[0].file_bytes * 3 / 2 && checkpoint_values(&sgd) == 2,
          "a second moment that there is not takes no room %s", error.text);
    if (ok) checkpoint_file_layouts_free(&layouts);
    layout_free(&layout);
}

int main(int argc, char** argv) {
    make_models();
    folder_begin("test_checkpoint");
    for (int i = 0; i < CASES; i++) test_meshes(&cases[i]);
    test_large();
    test_names_of_sites();
    test_one_moment();
    test_state();
    test_config_caat(&gpt2_tied);
    test_init();
    const ModelConfig gpt2 = model_of(ARCH_GPT2, 1, 4, 2, 2, 2, 2, 3),
                      llama = model_of(ARCH_LLAMA, 2, 4, 2, 1, 2, 2, 3);
    const Sizes two = {2, 1, 1}, four = {2, 2, 1};
    test_every_call(&gpt2, &two);
    if (argc < 2 || strcmp(argv[1], "--short") != 0) test_every_call(&llama, &four);
    test_order();
    test_moved_back();
    test_taken();
    test_holes();
    test_not_finite();
    return folder_end();
}
