/*
fuzz_readers.c: no bytes in a file that the trainer or the planner reads may crash it; and what they accept is used: a
cluster is priced, a network gets every all-reduce, a configuration is written and read again.

The first byte of an input chooses the reader; the rest is a right file, damaged in a few places. Files of tokens, of
tensors, of a vocabulary and of multiple choice have fuzzers of their own.
*/
#define TRAIN_GPT_NO_MAIN
#pragma GCC diagnostic ignored "-Wunused-function" // of the trainer's functions this file uses few
#include "../../../train_gpt.cu"

#include "../../../planner/search.h"
#include "fuzz.h"

enum { MOST_BYTES = 1 << 15, MOST_TEXTS = 3, CONFIG_BYTES = 103 };

typedef struct {
    const char *path, *text;
    size_t size;
} File;

// ----------------------------------------------------------------------------------------------------------------
// The readers: each reads the file, and uses what it has read. False: refused, with a reason.

static ModelConfig small_model(void) { return model_of(ARCH_GPT2, 4, 64, 4, 4, 256, 64, 256); }

static bool read_cluster(const File* file, Error* error) {
    Cluster cluster;
    if (!cluster_open(&cluster, file->path, error)) return false;
    Question q = {};
    q.model = small_model();
    q.T = 64;
    q.batch = 8;
    q.ranks = 4;
    q.cluster = &cluster;
    q.rows = 1;
    q.software = software_find(cluster.cores ? "threefold-cpu" : "threefold");
    q.any_memory = true;
    q.B = 1;
    q.schedule = ONE_F_ONE_B;
    q.zero = ANY;
    q.recompute = ANY;
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

static bool read_network(const File* file, Error* error) {
    Network net;
    if (!network_build(&net, file->path, error)) return false;
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

static bool read_checkpoint(const File* file, Error* error) {
    (void)file;
    CheckpointList list, again;
    Error why;
    if (truncate(path_of("config.json"), CONFIG_BYTES) != 0) die("cannot cut %s", path_of("config.json"));
    if (!checkpoint_load_list(&list, own_folder, error)) return false;
    REQUIRE(list.state.step >= 0 && list.state.sequences >= 0);
    uint64_t sums[CHECKPOINT_TENSOR_FILES + 1] = {0};
    REQUIRE(checkpoint_add_up(sums, &list, own_folder, 0, 1, &why) || why.text[0]);
    if (!checkpoint_write_list(path_of("trainer.json"), &list, &why)) return true;
    REQUIRE(checkpoint_load_list(&again, own_folder, &why));
    REQUIRE(again.files == list.files && memcmp(again.file, list.file, sizeof list.file) == 0);
    REQUIRE(strcmp(again.state.async_plan, list.state.async_plan) == 0);
    REQUIRE(again.state.data_checksum == list.state.data_checksum && again.state.held_out == list.state.held_out);
    return true;
}

static bool read_config_json(const File* file, Error* error) {
    ModelConfig m, back;
    const CaatConfig ordinary = {0, 0, false};
    Error why;
    char first[CONFIG_TEXT], second[CONFIG_TEXT];
    REQUIRE(checkpoint_check_caat(own_folder, &ordinary, &why) || why.text[0]);
    if (!config_read(&m, file->path, error)) return false;
    config_write(first, &m, "");
    write_text(file->path, first);
    REQUIRE(config_read(&back, file->path, &why));
    config_write(second, &back, "");
    REQUIRE(strcmp(first, second) == 0);
    return true;
}

// What stays of a log is a part of it, from its beginning, of whole lines; and all of that when it is opened again.
static bool read_log(const File* file, Error* error) {
    MappedFile map;
    size_t kept = file->size;
    for (int time = 0; time < 2; time++) {
        Log log = {};
        log_open(&log, own_folder, true, 3);
        log_close(&log);
        if (!file_map(&map, file->path, error)) die("%s", error->text);
        REQUIRE(time == 0 ? map.size <= kept : map.size == kept);
        kept = map.size;
        REQUIRE(kept == 0 || (map.data[kept - 1] == '\n' && memcmp(file->text, map.data, kept) == 0));
        file_unmap(&map);
    }
    return kept > 0 || fail(error, "%s: nothing of it", file->path);
}

static bool read_options(const File* file, Error* error) {
    static Settings settings;
    static Option table[MAX_OPTIONS];
    if (memchr(file->text, 0, file->size)) return fail(error, "%s: a zero byte", file->path);
    char* copy = (char*)checked_calloc(file->size + 1, 1, "options");
    memcpy(copy, file->text, file->size);
    settings = settings_default();
    const bool ok = options_read(table, settings_table(table, &settings), copy, file->path, error);
    free(copy);
    return ok;
}

// ---- What is damaged --------------------------------------------------------------------------------------------

// Others are added at the start, by the trainer's own functions.
static struct {
    const char* file;
    bool (*read)(const File* file, Error* error);
    const char* text[MOST_TEXTS];
} readers[] = {
    {"cluster.txt",
     read_cluster,
     {"base dgx-h100\nfabric torus:4x8\nsites 2\nsite_rate 10 GB/s\nsite_delay 65 ms\n",
      "cores 2\npeak 0.05 TFLOP/s\nmemory 16 GB\nhbm 9 GB/s\nnvlink 2 GB/s\nnvlink_step 20 us\n", NULL}},
    {"network.txt",
     read_network,
     {"ranks 4\nlink 0 1 16GB/s 150ns\nlink 1 2\nlink 2 3 200Mbit/s 20us\nlink 3 0\nlink 0 3 1GB/s\n",
      "ranks 3 # three\nswitches 2\nlink 0 3\nlink 1 3\nlink 2 4\nlink 3 4 1GB/s 1us\n"}},
    {"trainer.json", read_checkpoint, {NULL}},
    {"config.json", read_config_json, {NULL}},
    {"log.jsonl",
     read_log,
     {"{\"step\":1,\"loss\":5.5,\"grad_norm\":1.25}\n{\"step\":2,\"loss\":null,\"skipped\":true,\"lr\":1e-3}\n"
      "{\"step\":3,\"loss\":4.75,\"grad_norm\":2}\n{\"step\":4,\"loss\":4.5}\n",
      "{\"step\":4,\"loss\":4.5}\n"}},
    {"options.txt",
     read_options,
     {"# a comment\n--steps 100\n--lr=1e-3\n\n  --data\ta b*.txt  \n--resume\n--arch llama\n", NULL}},
};
enum { READERS = sizeof readers / sizeof readers[0] };
enum { CLUSTER, NETWORK, CHECKPOINT, CONFIG, LOG, OPTIONS };

static int texts_of(int reader) {
    int n = 0;
    while (n < MOST_TEXTS && readers[reader].text[n]) n++;
    return n;
}

static void add_text(int reader, const char* text) {
    char* copy = strdup(text);
    if (!copy || strlen(text) > MOST_BYTES / 2) die("%s cannot be damaged", readers[reader].file);
    readers[reader].text[texts_of(reader)] = copy;
}

static void add_file(int reader, const char* path) {
    MappedFile file;
    Error error;
    char text[MOST_BYTES / 2 + 1];
    if (!file_map(&file, path, &error) || file.size >= sizeof text) die("cannot read %s", path);
    memcpy(text, file.data, file.size);
    text[file.size] = 0;
    file_unmap(&file);
    add_text(reader, text);
}

// trainer.json, beside files of the sizes that it says.
static void add_checkpoint(void) {
    CheckpointList list = {};
    Error error;
    char bytes[] = "{\"checksum\":\"1234567890abcdef\"}................................................."
                   "................................";
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
        write_bytes(path_of(f->name), bytes, (size_t)f->bytes);
    }
    if (!checkpoint_write_list(path_of("trainer.json"), &list, &error)) die("%s", error.text);
    add_file(CHECKPOINT, path_of("trainer.json"));
}

static void add_configs(void) {
    const ModelConfig small = small_model();
    ModelConfig llama = model_of(ARCH_LLAMA, 4, 64, 4, 2, 172, 64, 256);
    llama.rope_theta = 5e5;
    llama.rope_scaling.factor = 8;
    llama.rope_scaling.low = 1;
    llama.rope_scaling.high = 4;
    llama.rope_scaling.original = 8192;
    char text[CONFIG_TEXT];
    config_write(text, &small, ",\n  \"caat\": \"--caat-fraction 0.5 --caat-ranks 2\"");
    add_text(CONFIG, text);
    config_write(text, &llama, "");
    add_text(CONFIG, text);
}

static void add_options(void) {
    Settings settings = settings_default();
    Option table[MAX_OPTIONS];
    const int n = settings_table(table, &settings);
    settings.out = settings.data = settings.generate = "some text";
    char* text;
    size_t size;
    FILE* out = open_memstream(&text, &size);
    if (!out) die("out of memory");
    options_write(table, n, out);
    fclose(out);
    for (char* c = text; *c; c++) { // what is set stands there behind a #
        if (strncmp(c, "\n# --", 5) == 0 && (c - text) % 3) c[1] = ' ';
    }
    add_text(OPTIONS, text);
    free(text);
}

// ---- One input --------------------------------------------------------------------------------------------------

static bool fuzz_one(const unsigned char* data, size_t size) {
    if (size < 1) return false;
    const int reader = data[0] % READERS;
    char path[600];
    snprintf(path, sizeof path, "%s", path_of(readers[reader].file));
    write_bytes(path, data + 1, size - 1);
    const File file = {path, (const char*)data + 1, size - 1};
    Error error = {""};
    const bool ok = readers[reader].read(&file, &error);
    REQUIRE(ok || error.text[0]);
    for (const char* c = error.text; *c; c++) REQUIRE(ok || ((unsigned char)*c >= ' ' && *c != 127));
    return ok;
}

// Most of the time trainer.json has the checksum of what it says now.
static void seal(unsigned char* text, size_t size) {
    const size_t key = sizeof checkpoint_last_key - 1;
    char hex[17];
    for (size_t at = draw(8) ? size : 0; at-- > 0;) {
        if (at + key + 20 > size || memcmp(text + at, checkpoint_last_key, key) != 0) continue;
        checkpoint_hex(hex, checksum_of((char*)text, (int64_t)(at + key), 0));
        memcpy(text + at + key, hex, 16);
        return;
    }
}

static size_t make_input(unsigned char* data, uint64_t i) {
    if (!readers[CHECKPOINT].text[0]) {
        add_file(CLUSTER, "planner/clusters/dgx-a100.txt");
        add_checkpoint();
        add_configs();
        add_options();
    }
    const int reader = (int)(i < READERS ? i : draw(READERS)), texts = texts_of(reader);
    const char *text = readers[reader].text[draw((size_t)texts)], *other = readers[reader].text[draw((size_t)texts)];
    size_t size = strlen(text);
    data[0] = (unsigned char)reader;
    memcpy(data + 1, text, size);
    for (uint32_t changes = i < READERS ? 0 : draw(5); changes > 0; changes--) {
        const bool own = draw(2);
        size = damage(data + 1, size, MOST_BYTES, own ? data + 1 : (const unsigned char*)other,
                      own ? size : strlen(other));
    }
    if (reader == CHECKPOINT) seal(data + 1, size);
    return size + 1;
}

static const Fuzzer fuzzer = {MOST_BYTES + 1, make_input, fuzz_one, READERS};
FUZZ_MAIN(fuzzer, "fuzz_readers")
