/*
fuzz_evaluate.c: no bytes in a file of multiple choice may crash dataloader/eval_loader.h, or make it hand out a token
that is not there.

    ./fuzz_evaluate SECONDS SEED      damages files of its own; reproducible but for the number of them
    ./fuzz_evaluate FILE              runs one input, which a crash has left behind

An input is T, the vocabulary, and the bytes of a file. What is opened is read row by row: inputs are tokens of the
model, targets -1 or one of them, as many as the completion has, and each input behind the first is the target before it
where that counts.
*/
#include "../../../dataloader/eval_loader.h"
#include "../unit/test.h"
#include <stddef.h>

enum { MOST_BYTES = 1024 + 4096, MOST_T = 40 };

#define REQUIRE(condition)                                                                                             \
    if (!(condition)) {                                                                                                \
        fprintf(stderr, "fuzz_evaluate: line %d: %s\n", __LINE__, #condition);                                         \
        abort();                                                                                                       \
    }

typedef struct {
    size_t size;
    int32_t T, V;
    unsigned char bytes[MOST_BYTES];
} Input;

static uint64_t draws = 0, seed = 0;
static uint32_t draw(uint32_t n) { return philox(seed, 1, draws++).word[0] % n; }

static void check_row(const Evaluation* e, int V, int64_t row) {
    int32_t inputs[MOST_T], targets[MOST_T];
    Error error;
    REQUIRE(evaluation_row(inputs, targets, e, V, row, &error));
    const Example* example = example_of_row(e, row);
    const int64_t c = row - example->first;
    int count = 0;
    REQUIRE(c >= 0 && c < example->completions);
    for (int i = 0; i < e->T; i++) {
        REQUIRE(inputs[i] >= 0 && inputs[i] < V && targets[i] >= -1 && targets[i] < V);
        if (i > 0 && targets[i] >= 0 && targets[i - 1] >= 0) REQUIRE(inputs[i] == targets[i - 1]);
        count += targets[i] >= 0;
    }
    REQUIRE(count == example_completion(example, (int)c)[0]);
}

// Reads a file of these bytes. They lie in memory of their own size, so that a sanitizer sees what is read behind them.
// Returns whether they are a file.
static bool run_input(const Input* in) {
    unsigned char* bytes = (unsigned char*)checked_malloc(in->size, "an input");
    Evaluations list = {NULL, 0};
    Error error;
    Tokenizer none;
    memset(&none, 0, sizeof none), memset(&error, 0, sizeof error);
    memcpy(bytes, in->bytes, in->size);
    Evaluation* e = evaluations_append(&list, "input");
    e->map.data = bytes;
    e->map.size = in->size;
    const bool is = choice_recognise(bytes, in->size) && choice_read(e, &error);
    REQUIRE(is || !choice_recognise(bytes, in->size) || error.text[0]);
    if (is && evaluation_fit(e, in->T, in->V, &none, &error)) {
        for (int64_t row = 0; row < e->rows; row++) {
            check_row(e, in->V, row);
            e->sums[row] = (double)draw(5);
        }
        const Scores s = evaluation_scores(e);
        REQUIRE(s.n == e->examples && s.acc >= 0 && s.acc <= 1 && s.acc_norm >= 0 && s.acc_norm <= 1);
        char text[256];
        evaluation_describe(text, sizeof text, e);
    }
    memset(&e->map, 0, sizeof e->map);
    evaluations_close(&list);
    free(bytes);
    return is;
}

// The input at work, which a crash leaves behind.
static const char* const crash_file = "build/fuzz_evaluate.input";

static void save_input(int file, const Input* in) {
    const size_t size = offsetof(Input, bytes) + in->size;
    if (pwrite(file, in, size, 0) != (ssize_t)size || ftruncate(file, (off_t)size) != 0)
        die("cannot write %s; run from the project's folder", crash_file);
}

static void put16(Input* in, uint32_t number) {
    const uint16_t x = (uint16_t)number;
    if (in->size + 2 > MOST_BYTES) return;
    memcpy(in->bytes + in->size, &x, 2);
    in->size += 2;
}

// A file that is right, unless there was no room for all of it; then some damage.
static void make_input(Input* in) {
    int32_t header[256] = {CHOICE_MAGIC, CHOICE_VERSION, (int32_t)(1 + draw(6))};
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
}

static int run_file(const char* path) {
    static Input in;
    MappedFile file;
    Error error;
    const size_t least = offsetof(Input, bytes);
    if (!file_map(&file, path, &error)) die("%s", error.text);
    if (file.size < least || file.size > sizeof in) die("%s: not an input", path);
    memcpy(&in, file.data, file.size);
    in.size = file.size - least;
    printf("%s\n", run_input(&in) ? "accepted" : "refused");
    file_unmap(&file);
    return 0;
}

int main(int argc, char** argv) {
    static Input in;
    process.name = "fuzz_evaluate";
    if (argc == 2) return run_file(argv[1]);
    if (argc != 3) die_usage("usage: fuzz_evaluate SECONDS SEED, or fuzz_evaluate FILE");
    const double end = seconds_now() + atof(argv[1]);
    int64_t inputs = 0, accepted = 0;
    seed = strtoull(argv[2], NULL, 10);
    const int file = open(crash_file, O_RDWR | O_CREAT | O_TRUNC, 0666);
    if (file < 0) die("cannot write %s; run from the project's folder", crash_file);
    for (; seconds_now() < end; inputs++) {
        make_input(&in);
        save_input(file, &in);
        accepted += run_input(&in);
    }
    if (close(file) != 0 || unlink(crash_file) != 0) die("cannot remove %s", crash_file);
    printf("seed %llu: %lld inputs, %lld of them accepted\n", (unsigned long long)seed, (long long)inputs,
           (long long)accepted);
    check(accepted > inputs / 10 && accepted < inputs, "some inputs are accepted and some refused");
    return test_end();
}
