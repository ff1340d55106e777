/*
fuzz_evaluate.c: no bytes in a file of multiple choice may crash dataloader/eval_loader.h, or make it hand out a token
that is not there.

An input is T, the vocabulary, and the bytes of a file. What is opened is read row by row: inputs are tokens of the
model, targets -1 or one of them, as many as the completion has, and each input behind the first is the target before it
where that counts.
*/
#include "../../../dataloader/eval_loader.h"
#include "fuzz.h"
#include <stddef.h>

enum { MOST_BYTES = 1024 + 4096, MOST_T = 40 };

typedef struct {
    size_t size;
    int32_t T, V;
    unsigned char bytes[MOST_BYTES];
} Input;

static void check_row(const Evaluation* e, int V, int64_t row) {
    int32_t inputs[MOST_T], targets[MOST_T];
    evaluation_row(inputs, targets, e, row);
    int count = 0;
    for (int i = 0; i < e->T; i++) {
        REQUIRE(inputs[i] >= 0 && inputs[i] < V && targets[i] >= -1 && targets[i] < V);
        if (i > 0 && targets[i] >= 0 && targets[i - 1] >= 0) REQUIRE(inputs[i] == targets[i - 1]);
        count += targets[i] >= 0;
    }
    REQUIRE(count == e->choice[row].completion[0]);
}

// Reads a file of these bytes. They lie in memory of their own size, so that a sanitizer sees what is read behind them.
// Returns whether they are a file.
static bool run_input(const unsigned char* data, size_t size) {
    static Input input;
    Input* in = &input;
    if (size < offsetof(Input, bytes) || size > sizeof input) return false;
    memcpy(in, data, size);
    if (in->T > MOST_T) return false;
    in->size = size - offsetof(Input, bytes);
    unsigned char* bytes = exact_copy(in->bytes, in->size);
    Evaluation eval = {}, *e = &eval;
    Error error = {""};
    e->path = (char*)"input";
    e->map.data = bytes;
    e->map.size = in->size;
    const bool is = choices_read(e, &error);
    REQUIRE(is || error.text[0]);
    if (is && evaluation_fit(e, in->T, in->V, &error)) {
        for (int64_t row = 0; row < e->rows; row++) {
            check_row(e, in->V, row);
            e->sums[row] = (double)draw(5);
        }
        const double acc = evaluation_score(e, false), acc_norm = evaluation_score(e, true);
        REQUIRE(acc >= 0 && acc <= 1 && acc_norm >= 0 && acc_norm <= 1);
    }
    free(e->choice), free(e->sums);
    free(bytes);
    return is;
}

static void put16(Input* in, uint32_t number) {
    const uint16_t x = (uint16_t)number;
    if (in->size + 2 > MOST_BYTES) return;
    memcpy(in->bytes + in->size, &x, 2);
    in->size += 2;
}

// A file that is right, unless there was no room for all of it; then some damage.
static size_t make_input(unsigned char* data, uint64_t number) {
    static Input input;
    Input* in = &input;
    (void)number;
    int32_t header[256] = {CHOICE_MAGIC, 1, (int32_t)(1 + draw(6))};
    in->T = (int32_t)(1 + draw(MOST_T));
    in->V = (int32_t)(2 + draw(300));
    in->size = sizeof header;
    for (int n = 0; n < header[2]; n++) {
        const size_t begin = in->size;
        const uint32_t completions = 1 + draw(5);
        put16(in, 65535), put16(in, 0), put16(in, (uint32_t)n), put16(in, draw(completions)), put16(in, completions);
        for (uint32_t part = 0; part <= completions; part++) {
            const uint32_t length = 1 + draw(draw(4) ? 12 : 50);
            put16(in, length);
            for (uint32_t i = 0; i < length; i++) put16(in, draw((uint32_t)in->V));
        }
        const uint16_t bytes = (uint16_t)(in->size - begin);
        if (begin + 4 <= MOST_BYTES) memcpy(in->bytes + begin + 2, &bytes, 2);
    }
    memcpy(in->bytes, header, sizeof header);
    for (uint32_t damages = draw(3); damages > 0; damages--) {
        const size_t numbers = (in->size - 1024) / 2;
        const size_t at = draw(8) ? 1024 + 2 * draw((uint32_t)numbers) : 4 * draw(4);
        const uint16_t values[] = {0, 1, 2, 7, 32767, 65534, 65535, (uint16_t)draw(65536), (uint16_t)draw(32)};
        memcpy(in->bytes + at, &values[draw(9)], 2);
        if (draw(6) == 0) in->size = draw((uint32_t)in->size + 1);
        if (in->size < 1026) break;
    }
    memcpy(data, in, offsetof(Input, bytes) + in->size);
    return offsetof(Input, bytes) + in->size;
}

static const Fuzzer fuzzer = {sizeof(Input), make_input, run_input, 1};
FUZZ_MAIN(fuzzer, "fuzz_evaluate")
