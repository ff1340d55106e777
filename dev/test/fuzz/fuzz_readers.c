/*
fuzz_readers.c: no bytes in a file that the trainer or the planner reads may crash it; and what they accept is used: a
cluster is priced, a network gets every all-reduce, options are written and read again.

    ./fuzz_readers SECONDS SEED      damages files of its own; reproducible but for the number of them
    ./fuzz_readers READER FILE       runs one file, which a crash has left in /dev/shm (or build)/fuzz_readers.XXXXXX

Files of tokens, of tensors, of a vocabulary and of multiple choice have fuzzers of their own.
*/
#define TRAIN_GPT_NO_MAIN
#pragma GCC diagnostic ignored "-Wunused-function" // of the trainer's functions this file uses few
#include "../../../train_gpt.cu"

#include "../../../planner/search.h"
#include "fuzz.h"

enum { MOST_BYTES = 1 << 15, MOST_SEEDS = 4, PATH_BYTES = 300, CONFIG_BYTES = 103 };

static char folder[64]; // of the files

static const char* path_of(const char* name) {
    static char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

// ----------------------------------------------------------------------------------------------------------------
// The readers: each reads the file at path, in which is text, and uses what it has read. False: refused, with a reason.

static ModelConfig small_model(void) { return model_gpt2(4, 64, 4, 64, 256); }

static bool read_cluster(const char* path, const char* text, size_t size, Error* error) {
    (void)text, (void)size;
    Cluster cluster;
    if (!cluster_open(&cluster, path, error)) return false;
    const Cluster* c = &cluster;
    Question q = {};
    q.model = small_model();
    q.T = 64;
    q.batch = 8;
    q.ranks = 4;
    q.cluster = c;
    q.rows = 1;
    q.software = software_find(c->cores ? "threefold-cpu" : "threefold");
    q.any_memory = true;
    q.B = 1;
    q.schedule = ONE_F_ONE_B;
    q.zero = ANY;
    q.recompute = ANY;
    q.sequence_parallel = 0;
    Answer answer;
    Error why;
    if (search(&answer, &q, &why)) {
        for (int i = 0; i < answer.n; i++) REQUIRE(answer.row[i].cost.seconds > 0);
        answer_free(&answer);
    } else {
        REQUIRE(why.text[0]);
    }
    return true;
}

static bool read_network(const char* path, const char* text, size_t size, Error* error) {
    (void)text, (void)size;
    Network net;
    if (!network_build(&net, path, error)) return false;
    for (int a = 0; a < ALGORITHMS && net.ranks <= 8 && net.vertices <= 32 && net.links <= 100; a++) {
        for (int kind = 0; kind < PLAN_KINDS; kind++) {
            Plan plan;
            Error why;
            if (!collective_build(&plan, algorithms[a].name, (PlanKind)kind, &net, &why)) {
                REQUIRE(why.text[0]);
                continue;
            }
            REQUIRE(plan_check(&plan, &net, &why));
            Routes routes = network_routes(&net);
            REQUIRE(plan_cost(&plan, &net, &routes, 1e6) >= 0);
            routes_free(&routes);
            plan_free(&plan);
        }
    }
    network_free(&net);
    return true;
}

static bool read_checkpoint(const char* path, const char* text, size_t size, Error* error) {
    (void)path, (void)text, (void)size;
    CheckpointList list, again;
    Error why;
    if (truncate(path_of("config.json"), CONFIG_BYTES) != 0) die("cannot cut %s", path_of("config.json"));
    if (!checkpoint_load_list(&list, folder, error)) return false;
    REQUIRE(list.state.step >= 0 && list.state.sequences >= 0);
    uint64_t sums[CHECKPOINT_TENSOR_FILES + 1] = {0};
    REQUIRE(checkpoint_add_up(sums, &list, folder, 0, 1, &why) || why.text[0]);
    if (!checkpoint_write_list(path_of("trainer.json"), &list, &why)) return true;
    REQUIRE(checkpoint_load_list(&again, folder, &why));
    REQUIRE(again.files == list.files && memcmp(again.file, list.file, sizeof list.file) == 0);
    REQUIRE(strcmp(again.state.async_plan, list.state.async_plan) == 0);
    REQUIRE(again.state.data_checksum == list.state.data_checksum && again.state.held_out == list.state.held_out);
    return true;
}

static bool read_config_json(const char* path, const char* text, size_t size, Error* error) {
    (void)text, (void)size;
    ModelConfig m, back;
    const CaatConfig ordinary = {0, 0, false};
    Error why;
    char first[CONFIG_TEXT], second[CONFIG_TEXT];
    REQUIRE(checkpoint_check_caat(folder, &ordinary, &why) || why.text[0]);
    if (!config_read(&m, path, error)) return false;
    config_write(first, &m, "");
    put_file(path, first, strlen(first));
    REQUIRE(config_read(&back, path, &why));
    config_write(second, &back, "");
    REQUIRE(strcmp(first, second) == 0);
    return true;
}

// What stays of a log is a part of it, from its beginning, of whole lines; and all of that when it is opened again.
static bool read_log(const char* path, const char* text, size_t size, Error* error) {
    MappedFile file;
    size_t kept = size;
    for (int time = 0; time < 2; time++) {
        Log log = {};
        log_open(&log, folder, true, 3);
        log_close(&log);
        if (!file_map(&file, path, error)) die("%s", error->text);
        REQUIRE(time == 0 ? file.size <= kept : file.size == kept);
        kept = file.size;
        REQUIRE(kept == 0 || (file.data[kept - 1] == '\n' && memcmp(text, file.data, kept) == 0));
        file_unmap(&file);
    }
    return kept > 0 || fail(error, "%s: nothing of it", path);
}

static char* text_of_options(const Option* table, int n) {
    char* text;
    size_t size;
    FILE* out = open_memstream(&text, &size);
    if (!out) die("out of memory");
    options_write(table, n, out);
    if (fclose(out) != 0) die("out of memory");
    return text;
}

static bool read_options(const char* path, const char* text, size_t size, Error* error) {
    static Settings settings, settings_back;
    static Option table[MAX_OPTIONS], table_back[MAX_OPTIONS];
    if (memchr(text, 0, size)) return fail(error, "%s: a zero byte", path);
    char* copy = (char*)checked_calloc(size + 1, 1, "options");
    memcpy(copy, text, size);
    settings = settings_back = settings_default();
    const int n = settings_table(table, &settings);
    settings_table(table_back, &settings_back);
    const bool ok = options_read(table, n, copy, path, error);
    Error why;
    if (ok && options_check_file(table, n, &why)) {
        char *first = text_of_options(table, n), *words = strdup(first);
        REQUIRE(words && options_read(table_back, n, words, "back", &why));
        char* second = text_of_options(table_back, n);
        REQUIRE(strcmp(first, second) == 0);
        free(first), free(second), free(words);
    }
    free(copy);
    return ok;
}

// ---- What is damaged --------------------------------------------------------------------------------------------

typedef struct {
    const char *name, *file;
    bool (*read)(const char* path, const char* text, size_t size, Error* error);
    int seeds;
    char* seed[MOST_SEEDS];
    size_t bytes[MOST_SEEDS];
    int64_t inputs, accepted;
} Reader;

static Reader readers[] = {{"cluster", "cluster.txt", read_cluster, 0, {NULL}, {0}, 0, 0},
                           {"network", "network.txt", read_network, 0, {NULL}, {0}, 0, 0},
                           {"checkpoint", "trainer.json", read_checkpoint, 0, {NULL}, {0}, 0, 0},
                           {"config", "config.json", read_config_json, 0, {NULL}, {0}, 0, 0},
                           {"log", "log.jsonl", read_log, 0, {NULL}, {0}, 0, 0},
                           {"options", "options.txt", read_options, 0, {NULL}, {0}, 0, 0}};
enum { READERS = sizeof readers / sizeof readers[0] };

static Reader* reader_of(const char* name) {
    for (int i = 0; i < READERS; i++) {
        if (strcmp(readers[i].name, name) == 0) return &readers[i];
    }
    return NULL;
}

static void add_seed(const char* name, const void* text, size_t bytes) {
    Reader* r = reader_of(name);
    if (bytes > MOST_BYTES / 2) die("the %s to be damaged has %zu bytes", name, bytes);
    r->seed[r->seeds] = (char*)checked_malloc(bytes, "a seed");
    memcpy(r->seed[r->seeds], text, bytes);
    r->bytes[r->seeds++] = bytes;
}

static void add_text(const char* name, const char* text) { add_seed(name, text, strlen(text)); }

static void add_file(const char* name, const char* path) {
    MappedFile file;
    Error error;
    if (!file_map(&file, path, &error)) die("%s", error.text);
    add_seed(name, file.data, file.size);
    file_unmap(&file);
}

// trainer.json, beside files of the sizes that it says.
static void add_checkpoint(void) {
    CheckpointList list = {};
    Error error;
    list.state.step = 3;
    list.state.sequences = 48;
    list.state.seed = 42;
    list.state.global_batch = 16;
    list.state.seq = 64;
    list.state.data_tokens = 1000;
    list.state.val_loss = 3.25;
    list.state.data_checksum = 12345;
    list.state.held_out = 20;
    for (int i = 0; i < CHECKPOINT_TENSOR_FILES + 1; i++) {
        CheckpointFile* f = &list.file[list.files++];
        snprintf(f->name, sizeof f->name, "%s", checkpoint_files[i]);
        f->bytes = strcmp(f->name, "config.json") == 0 ? CONFIG_BYTES : 100 + i;
        f->checksum = 0x1234567890abcdefull;
        put_file(path_of(f->name),
                 "{\"checksum\":\"1234567890abcdef\"}................................................."
                 "................................",
                 (size_t)f->bytes);
    }
    if (!checkpoint_write_list(path_of("trainer.json"), &list, &error)) die("%s", error.text);
    add_file("checkpoint", path_of("trainer.json"));
}

static void add_configs(void) {
    const ModelConfig small = small_model();
    ModelConfig llama = model_llama(4, 64, 4, 2, 172, 64, 256);
    llama.rope_theta = 5e5;
    llama.rope_scaling.factor = 8;
    llama.rope_scaling.low = 1;
    llama.rope_scaling.high = 4;
    llama.rope_scaling.original = 8192;
    char text[CONFIG_TEXT];
    config_write(text, &small, ",\n  \"caat\": \"--caat-fraction 0.5 --caat-ranks 2\"");
    add_text("config", text);
    config_write(text, &llama, "");
    add_text("config", text);
}

static void add_options(void) {
    Settings settings = settings_default();
    Option table[MAX_OPTIONS];
    const int n = settings_table(table, &settings);
    settings.out = settings.data = settings.generate = "some text";
    char* text = text_of_options(table, n); // what is set stands there behind a #
    for (char* c = text; *c; c++) {
        if (strncmp(c, "\n# --", 5) == 0 && (c - text) % 3) c[1] = ' ';
    }
    add_text("options", text);
    add_text("options", "# a comment\n--steps 100\n--lr=1e-3\n\n  --data\ta b*.txt  \n--resume\n--arch llama\n");
    free(text);
}

static void add_seeds(void) {
    add_file("cluster", "planner/clusters/dgx-a100.txt");
    add_text("cluster", "base dgx-h100\nfabric torus:4x8\nsites 2\nsite_rate 10 GB/s\nsite_delay 65 ms\n");
    add_text("cluster", "cores 2\npeak 0.05 TFLOP/s\nmemory 16 GB\nhbm 9 GB/s\nnvlink 2 GB/s\nnvlink_step 20 us\n");
    add_text("network",
             "ranks 4\nlink 0 1 16GB/s 150ns\nlink 1 2\nlink 2 3 200Mbit/s 20us\nlink 3 0\nlink 0 3 1GB/s\n");
    add_text("network", "ranks 3 # three\nswitches 2\nlink 0 3\nlink 1 3\nlink 2 4\nlink 3 4 1GB/s 1us\n");
    add_checkpoint();
    add_configs();
    add_text("log",
             "{\"step\":1,\"loss\":5.5,\"grad_norm\":1.25}\n{\"step\":2,\"loss\":null,\"skipped\":true,\"lr\":1e-3}\n"
             "{\"step\":3,\"loss\":4.75,\"grad_norm\":2}\n{\"step\":4,\"loss\":4.5}\n");
    add_text("log", "{\"step\":4,\"loss\":4.5}\n");
    add_options();
}

// ---- The damage -------------------------------------------------------------------------------------------------

typedef struct {
    char s[MOST_BYTES];
    size_t n;
} Damaged;

static void replace(Damaged* in, size_t at, size_t removed, const char* text, size_t n) {
    if (removed > in->n - at) removed = in->n - at;
    if (in->n - removed + n > MOST_BYTES) return;
    memmove(in->s + at + n, in->s + at + removed, in->n - at - removed);
    memcpy(in->s + at, text, n);
    in->n += n - removed;
}

// The line or the word around some place; where it begins, and its bytes.
static size_t find_part(const Damaged* in, const char* ends, size_t* bytes) {
    size_t from = draw((size_t)in->n), to = from;
    while (from > 0 && !memchr(ends, in->s[from - 1], strlen(ends))) from--;
    while (to < in->n && !memchr(ends, in->s[to], strlen(ends))) to++;
    *bytes = to - from;
    return from;
}

static void damage(Damaged* in, const Reader* r) {
    static const char* const numbers[] = {"0",          "-1",         "1",       "2",     "3",   "7",
                                          "1e308",      "1e-308",     "1e400",   "nan",   "inf", "0x10",
                                          "2147483647", "2147483648", "1e18",    "0.5",   "-0",  "9223372036854775807",
                                          "4294967296", "999999999",  "1000000", "0.001", "64",  "9223372036854775808"};
    static const char signs[] = " \t\n#=-+.,:\"{}[]\\/xe%0";
    static const int32_t words[] = {0, 1, -1, 2, 3, 5, 64, INT32_MAX, INT32_MIN, 1 << 30};
    char part[4096];
    size_t bytes, other = draw((size_t)in->n), at = draw((size_t)in->n);
    const int from = (int)draw((size_t)r->seeds);
    switch (draw(12)) {
    case 0: in->s[at] = (char)(in->s[at] ^ 1 << draw(8)); break;
    case 1: in->s[at] = draw(3) ? signs[draw(sizeof signs - 1)] : (char)draw(256); break;
    case 2: replace(in, at, 1 + draw(8), "", 0); break;
    case 3:
        bytes = min_i64((int64_t)(in->n - other), 1 + draw(draw(2) ? 16 : 200));
        memcpy(part, in->s + other, bytes);
        replace(in, at, draw(2) ? bytes : 0, part, bytes);
        break;
    case 4: // no line, or twice
        at = find_part(in, "\n", &bytes);
        bytes = min_i64((int64_t)bytes + 1, sizeof part);
        if (bytes > in->n - at) break;
        memcpy(part, in->s + at, bytes);
        replace(in, at, draw(2) ? bytes : 0, part, draw(2) ? bytes : 0);
        break;
    case 5: // a line of another file
        while (other > 0 && in->s[other - 1] != '\n') other--;
        at = draw((size_t)r->bytes[from]);
        while (at > 0 && r->seed[from][at - 1] != '\n') at--;
        for (bytes = 0; at + bytes < r->bytes[from] && r->seed[from][at + bytes] != '\n';) bytes++;
        replace(in, other, 0, r->seed[from] + at, min_i64((int64_t)bytes + 1, (int64_t)(r->bytes[from] - at)));
        break;
    case 6: // a word becomes another
        other = find_part(in, " \t\n\":,{}=", &bytes);
        bytes = min_i64((int64_t)bytes, sizeof part);
        memcpy(part, in->s + other, bytes);
        other = bytes;
        at = find_part(in, " \t\n\":,{}=", &bytes);
        replace(in, at, bytes, part, other);
        break;
    case 7:
        if (draw(4) == 0) in->n = at + 1;
        break;
    case 8:
        if (at + 4 <= in->n) memcpy(in->s + at / 4 * 4, &words[draw(10)], 4);
        break;
    default: // a number becomes another
        while (at < in->n && (in->s[at] < '0' || in->s[at] > '9')) at++;
        for (bytes = 0; at + bytes < in->n && strchr("0123456789.e+-", in->s[at + bytes]) && in->s[at + bytes];)
            bytes++;
        other = draw(sizeof numbers / sizeof *numbers);
        if (at < in->n) replace(in, at, bytes, numbers[other], strlen(numbers[other]));
    }
    if (in->n == 0) in->s[in->n++] = '\n';
}

// Most of the time trainer.json has the checksum of what it says now.
static void seal(Damaged* in) {
    const size_t key = sizeof checkpoint_last_key - 1;
    char hex[17];
    for (size_t at = draw(8) ? in->n : 0; at-- > 0;) {
        if (at + key + 20 > in->n || memcmp(in->s + at, checkpoint_last_key, key) != 0) continue;
        checkpoint_hex(hex, checksum_of(in->s, (int64_t)(at + key), 0));
        memcpy(in->s + at + key, hex, 16);
        return;
    }
}

static bool run_input(Reader* r, const Damaged* in, Error* error) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s", path_of(r->file));
    put_file(path, in->s, in->n);
    error->text[0] = 0;
    alarm(60); // none of them takes a second
    const bool ok = r->read(path, in->s, in->n, error);
    alarm(0);
    REQUIRE(ok || error->text[0]);
    for (const char* c = error->text; *c; c++) REQUIRE(ok || ((unsigned char)*c >= ' ' && *c != 127));
    return ok;
}

static void remove_folder(void) {
    for (int i = 0; i < READERS; i++) unlink(path_of(readers[i].file));
    for (int i = 0; i < CHECKPOINT_TENSOR_FILES + 1; i++) unlink(path_of(checkpoint_files[i]));
    if (rmdir(folder) != 0) die("cannot remove %s: %s", folder, strerror(errno));
}

int main(int argc, char** argv) {
    static Damaged in;
    process.name = "fuzz_readers";
    if (argc != 3) die_usage("usage: fuzz_readers SECONDS SEED, or fuzz_readers READER FILE");
    const char* memory =
        access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "build"; // on a disk, files take longer than reading them
    snprintf(folder, sizeof folder, "%s/fuzz_readers.XXXXXX", memory);
    if (!mkdtemp(folder)) die("cannot make %s; run from the project's folder", folder);
    add_seeds();
    Error error;
    Reader* one = reader_of(argv[1]);
    if (one) {
        MappedFile file;
        if (!file_map(&file, argv[2], &error)) die("%s", error.text);
        if (file.size > MOST_BYTES) die("%s: has more than %d bytes", argv[2], MOST_BYTES);
        memcpy(in.s, file.data, in.n = file.size);
        printf("%s\n", run_input(one, &in, &error) ? "accepted" : error.text);
        file_unmap(&file);
        remove_folder();
        return 0;
    }
    const double end = seconds_now() + atof(argv[1]);
    fuzz_seed = strtoull(argv[2], NULL, 10);
    for (int64_t i = 0; seconds_now() < end; i++) {
        Reader* r = &readers[i % READERS];
        const int which = (int)draw((size_t)r->seeds);
        memcpy(in.s, r->seed[which], in.n = r->bytes[which]);
        for (uint32_t k = i < READERS ? 0 : draw(5); k > 0; k--) damage(&in, r);
        if (strcmp(r->name, "checkpoint") == 0) seal(&in);
        r->accepted += run_input(r, &in, &error);
        r->inputs++;
    }
    for (int i = 0; i < READERS; i++) {
        const Reader* r = &readers[i];
        check(r->accepted > 0 && r->accepted < r->inputs, "seed %llu: %lld files of %s, of which %lld were accepted",
              (unsigned long long)fuzz_seed, (long long)r->inputs, r->name, (long long)r->accepted);
        for (int k = 0; k < r->seeds; k++) free(r->seed[k]);
    }
    remove_folder();
    return test_end();
}
