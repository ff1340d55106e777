/*
fuzz_safetensors.c: no bytes may crash util/json.h and checkpoint/safetensors.h, keep them busy, or make them take much
memory; and what they accept is what it says: the nodes of a JSON text are its tree, and the tensors of a file cover its
data byte by byte. (What is written is read again: test_json.c, test_safetensors.c.)

The first byte of an input chooses what the others are: a JSON text, a safetensors file, or the index of a model that
has two shards.
*/
#include "../unit/find_tensor.h"
#include "fuzz.h"

enum { MAX_INPUT = 4096 };
typedef enum { INPUT_JSON, INPUT_FILE, INPUT_INDEX, INPUT_KINDS } InputKind;

// The largest block that was asked for since it was last set to 0. AddressSanitizer calls the hook; without it, 0.
static size_t largest_block = 0;
void __sanitizer_malloc_hook(const volatile void* block, size_t size) {
    (void)block;
    if (size > largest_block) largest_block = size;
}

// 40 bytes a node, and a node for every two bytes of text at most (and 128 for brackets that are never closed), in an
// array that doubles: 40 times the input. A tensor is 112 bytes and at least 5 bytes of text, which is less.
static bool memory_is_bounded(size_t input_bytes) {
    return largest_block <= 40 * (input_bytes + JSON_MAX_DEPTH) + 4096;
}

// ---- JSON -------------------------------------------------------------------------------------------------------

// The array of nodes is the tree in the order of the text: counts, distances and names agree. Returns the nodes of this
// subtree.
static uint32_t check_node(const Json* json, const JsonNode* node) {
    REQUIRE(node >= json->nodes && node < json->nodes + json->count && node->line >= 1 && node->column >= 1);
    if (node->type != JSON_ARRAY && node->type != JSON_OBJECT) return 1;
    uint32_t nodes = 1, count = 0;
    for (const JsonNode* n = json_first(node); n; n = json_next(n), count++) {
        REQUIRE(n == node + nodes && !n->name == (node->type == JSON_ARRAY));
        nodes += check_node(json, n);
    }
    REQUIRE(count == node->count);
    return nodes;
}

static bool fuzz_json(const unsigned char* text, size_t size) {
    Json json;
    Error error = {""};
    const bool ok = json_parse(&json, "f", text, size, &error);
    REQUIRE(memory_is_bounded(size));
    if (ok) {
        REQUIRE(check_node(&json, json.nodes) == json.count);
        json_free(&json);
    } else {
        REQUIRE(strncmp(error.text, "f:", 2) == 0 && !json.nodes && !json.strings);
    }
    return ok;
}

// ---- One file ---------------------------------------------------------------------------------------------------

// Every byte of the data belongs to exactly one tensor.
static void check_cover(const SafeTensors* st, size_t size) {
    unsigned char* owners = (unsigned char*)checked_calloc(size, 1, "a map");
    uint64_t header_bytes;
    memcpy(&header_bytes, st->data, sizeof header_bytes);
    for (int64_t i = 0; i < st->count; i++) {
        const SafeTensor* t = &st->tensors[i];
        int64_t elements = 1;
        REQUIRE(t->ndim >= 0 && t->ndim <= SAFE_MAX_DIMS && t->dtype < SAFE_DTYPES);
        for (int d = 0; d < t->ndim; d++) elements *= t->shape[d];
        REQUIRE(t->elements == elements && 8 * t->bytes == elements * safe_dtypes[t->dtype].bits);
        REQUIRE(t->offset >= 0 && t->bytes >= 0 && (size_t)(t->offset + t->bytes) <= size);
        for (int64_t b = 0; b < t->bytes; b++) owners[t->offset + b]++;
        REQUIRE(strcmp(safetensors_find(st, t->name)->name, t->name) == 0);
    }
    for (size_t b = 0; b < size; b++) REQUIRE(owners[b] == (b >= 8 + header_bytes));
    free(owners);
}

// All its elements, in two pieces, and one more.
static void check_reading(const SafeTensors* st, const SafeTensor* t) {
    Error error = {""};
    const int64_t half = t->elements / 3;
    float* values = (float*)checked_malloc((size_t)(t->bytes ? t->elements : 0) * sizeof *values, "values");
    const bool readable = t->dtype == SAFE_F32 || t->dtype == SAFE_F16 || t->dtype == SAFE_BF16;
    REQUIRE(safetensors_read_f32(values, st, t, 0, half, &error) == readable);
    REQUIRE(safetensors_read_f32(values + half, st, t, half, t->elements - half, &error) == readable);
    REQUIRE(!safetensors_read_f32(values, st, t, half, t->elements - half + 1, &error) && *error.text);
    free(values);
}

static bool fuzz_file(const unsigned char* data, size_t size) {
    SafeTensors st;
    Error error = {""};
    const bool ok = safetensors_parse(&st, "f", data, size, &error);
    REQUIRE(memory_is_bounded(size));
    if (!ok) {
        REQUIRE(strncmp(error.text, "f:", 2) == 0 && !st.tensors && !st.header.nodes);
        return false;
    }
    check_cover(&st, size);
    for (int64_t i = 0; i < st.count; i++) check_reading(&st, &st.tensors[i]);
    safetensors_close(&st);
    return true;
}

// ---- The index of two shards, which have the tensors a, b and c, d ----------------------------------------------

static void make_shard(const char* path, const char* first, const char* second) {
    SafeTensor tensors[2];
    SafeTensorsLayout plan;
    SafeTensorsFile file;
    Error error;
    memset(tensors, 0, sizeof tensors);
    tensors[0].name = first;
    tensors[1].name = second;
    if (!safetensors_layout(&plan, tensors, 2, NULL, 0, &error) || !safetensors_create(&file, path, &plan, &error) ||
        !safetensors_finish(&file, &error))
        die("%s", error.text);
    safetensors_layout_free(&plan);
}

static bool fuzz_index(const unsigned char* data, size_t size) {
    if (access(path_of("1"), F_OK) != 0) {
        make_shard(path_of("1"), "a", "b");
        make_shard(path_of("2"), "c", "d");
    }
    write_bytes(path_of("model.safetensors.index.json"), data, size);
    SafeTensorsModel model;
    Error error = {""};
    largest_block = 0;
    const bool ok = safetensors_model_open(&model, own_folder, &error);
    REQUIRE(memory_is_bounded(size));
    if (!ok) {
        REQUIRE(*error.text && !model.files && !model.entries && !model.path);
        return false;
    }
    REQUIRE(model.file_count >= 1 && model.file_count <= 2 && model.tensors == 2 * model.file_count);
    for (int64_t i = 0; i < model.tensors; i++) {
        const SafeTensors* file;
        const char* name = safetensors_model_name(&model, i);
        const SafeTensor* t = safetensors_model_find(&model, name, &file);
        REQUIRE(t && safetensors_find(file, name) == t &&
                (i == 0 || strcmp(safetensors_model_name(&model, i - 1), name) < 0));
    }
    safetensors_model_close(&model);
    return true;
}

// ----------------------------------------------------------------------------------------------------------------

// One input. True if it was accepted.
static bool fuzz_one(const unsigned char* data, size_t size) {
    if (size < 1 || size > MAX_INPUT) return false;
    unsigned char* rest = exact_copy(data + 1, size - 1);
    largest_block = 0;
    bool ok = false;
    switch (data[0] % INPUT_KINDS) {
    case INPUT_JSON: ok = fuzz_json(rest, size - 1); break;
    case INPUT_FILE: ok = fuzz_file(rest, size - 1); break;
    case INPUT_INDEX: ok = fuzz_index(rest, size - 1); break;
    }
    free(rest);
    return ok;
}

// ---- Inputs: right ones, most of them then changed in a few places ----------------------------------------------

static const char* const texts[] = {
    "\"\\ud83d\\ude00\"", "[4e-324]", "{\"a\":9223372036854775808}",
    "{\"a/0\": [null, true, false, 0, -0, [], {}, [1e5, -1.25E-3, [1e308, [4e-324]]]],\n\t\"a/1\" :"
    "{\"\": -9223372036854775808, \"1\": {\"2\": {\"3\": {\"4\": 0}}}, \"1\": \"\"}, \"x\": [[{\"y\": [{}, \"z\"]}]],"
    "\"\\ud83d\\ude00\" : [\"\\u0000\", \"\xE2\x82\xAC\xC3\xA9\", \"\\\"\\\\\\n\"]}"};

static void write_random_index(FILE* f) {
    static const char* entries[] = {"\"a\":\"1\"", "\"b\":\"1\"",  "\"b\":\"2\"", "\"c\":\"2\"",
                                    "\"c\":\"1\"", "\"a\":\"..\"", "\"d\":\"3\""};
    fputs(draw(3) ? "{\"weight_map\": {" : "{\"metadata\": {}, \"weight_map\": {", f);
    const uint32_t n = draw(5);
    for (uint32_t i = 0; i < n; i++) fprintf(f, "%s%s", i ? ", " : "", entries[draw(draw(4) ? 4 : 7)]);
    fputs("}}", f);
}

// The header of a file of up to 7 tensors, and how much data it needs.
static void write_random_header(FILE* f, size_t* data_bytes) {
    enum { MOST = 7 };
    static const char* names[MOST] = {"a", "wte.weight", "", "\xC3\xA9", "h.0.\"\n", "b", "x"};
    static const SafeMetadata metadata = {"format", "pt"};
    SafeTensor tensors[MOST];
    memset(tensors, 0, sizeof tensors);
    const uint32_t n = draw(MOST + 1);
    for (uint32_t i = 0; i < n; i++) {
        tensors[i].name = names[i];
        tensors[i].dtype = (SafeDtype)draw(draw(4) ? SAFE_F6_E2M3 : SAFE_DTYPES);
        tensors[i].ndim = (int)draw(4);
        for (int d = 0; d < tensors[i].ndim; d++) tensors[i].shape[d] = draw(6);
        if (safe_dtypes[tensors[i].dtype].bits < 8) tensors[i].shape[tensors[i].ndim++] = 4;
    }
    SafeTensorsLayout plan;
    Error error;
    if (!safetensors_layout(&plan, tensors, n, &metadata, draw(2), &error)) die("%s", error.text);
    fwrite(plan.header + 8, 1, (size_t)plan.header_bytes - 8, f);
    *data_bytes = (size_t)(plan.file_bytes - plan.header_bytes);
    safetensors_layout_free(&plan);
}

// An input: files are what this is about; an index is slow.
static size_t make_input(unsigned char* data, uint64_t i) {
    const uint32_t choice = draw(16);
    const InputKind kind = choice < 6 ? INPUT_JSON : choice < 7 ? INPUT_INDEX : INPUT_FILE;
    (void)i;
    char* text;
    size_t text_bytes, data_bytes = 0;
    FILE* f = open_memstream(&text, &text_bytes);
    if (!f) die("out of memory");
    if (kind == INPUT_JSON)
        fputs(texts[draw(4)], f);
    else if (kind == INPUT_FILE)
        write_random_header(f, &data_bytes);
    else
        write_random_index(f);
    if (fclose(f) != 0) die("out of memory");

    data[0] = (unsigned char)kind;
    unsigned char* at = data + (kind == INPUT_FILE ? 9 : 1);
    const size_t room = MAX_INPUT - (size_t)(at - data);
    size_t n = text_bytes < room ? text_bytes : room;
    memcpy(at, text, n);
    free(text);
    for (uint32_t changes = draw(4); changes > 0; changes--) n = damage(at, n, room, at, n);
    size_t size = (size_t)(at - data) + n;
    if (kind != INPUT_FILE) return size;
    const uint64_t header_bytes = n; // as it is after the changes, most of the time
    memcpy(data + 1, &header_bytes, sizeof header_bytes);
    if (!draw(10)) data[1 + draw(8)] ^= (unsigned char)(1u << draw(8));
    if (!draw(10)) data_bytes += draw(5);
    while (data_bytes-- > 0 && size < MAX_INPUT) data[size++] = (unsigned char)draw(256);
    return size;
}

static const Fuzzer fuzzer = {MAX_INPUT, make_input, fuzz_one, INPUT_KINDS};
FUZZ_MAIN(fuzzer, "fuzz_safetensors")
