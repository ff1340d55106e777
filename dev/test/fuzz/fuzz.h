/*
fuzz.h: what the fuzzers share. An input is on the disk before it is run, so that whatever ends the program leaves it.

    build/fuzz_NAME SECONDS SEED      inputs of its own; reproducible but for the number of them
    build/fuzz_NAME FILE              runs one input, which a crash has left in build/fuzz_NAME.crash
    clang -g -DLIBFUZZER -fsanitize=fuzzer,address,undefined fuzz_NAME.c      steered by coverage
*/
#pragma once

#include "../unit/test.h"

#define REQUIRE(condition)                                                                                             \
    if (!(condition)) {                                                                                                \
        fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                                \
        abort();                                                                                                       \
    }

static uint64_t fuzz_seed = 0, fuzz_draws = 0;

// A number in [0, n).
static inline uint32_t draw(size_t n) { return philox(fuzz_seed, 9, fuzz_draws++).word[0] % (uint32_t)n; }

// The path of a file in the fuzzer's folder, which goes with its files when the program ends well.
static inline const char* path_of(const char* name) {
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", own_folder, name);
    return path;
}

// A block of exactly these bytes, so that AddressSanitizer sees one too many.
static inline unsigned char* exact_copy(const void* data, size_t size) {
    unsigned char* copy = (unsigned char*)checked_malloc(size, "an input");
    memcpy(copy, data, size);
    return copy;
}

// Replaces bytes of a text by n others, as far as there is room. Returns the new size.
static inline size_t replace(unsigned char* s, size_t size, size_t most, size_t at, size_t removed, const void* others,
                             size_t n) {
    if (removed > size - at) removed = size - at;
    if (size - removed + n > most) return size;
    memmove(s + at + n, s + at + removed, size - at - removed);
    memcpy(s + at, others, n);
    return size - removed + n;
}

// Up to `most` bytes of a text that have none of the ends among them, around some place: where they begin.
static inline size_t part_of(const unsigned char* s, size_t size, const char* ends, size_t most, size_t* bytes) {
    size_t from = draw(size + 1);
    while (from > 0 && !memchr(ends, s[from - 1], strlen(ends))) from--;
    size_t to = from;
    while (to < size && to - from < most && !memchr(ends, s[to], strlen(ends))) to++;
    *bytes = to - from;
    return from;
}

// Damages a text in one place. `other`: a text from which pieces come, perhaps the same one.
static inline size_t damage(unsigned char* s, size_t size, size_t most, const unsigned char* other, size_t other_size) {
    static const char signs[] = " \t\n#=-+.,:\"{}[]\\/xe%0", word_ends[] = " \t\n\":,{}=";
    // clang-format off
    static const char* const pieces[] = {"\\u0000", "\\ud800", "\\udc00", "\xE2", "\x80", "null", "\"dtype\"",
        "\"F64\"", "\"BOOL\"", "\"F4\"", "__metadata__", "\"shape\":[", "\"a\":"};
    static const char* const numbers[] = {"0", "-0", "1", "-1", "2", "3", "4", "7", "8", "64", "0x10", "0.5", "0.001",
        "1e3", "1e18", "1e308", "1e-308", "1e400", "nan", "inf", "1000000", "999999999", "2147483647", "2147483648",
        "4294967296", "4611686018427387904", "9223372036854775807", "9223372036854775808", "18446744073709551615"};
    // clang-format on
    enum { PART = 4000 };
    unsigned char part[PART + 1];
    const char* text = numbers[draw(sizeof numbers / sizeof *numbers)];
    size_t at = draw(size + 1), bytes, n;
    switch (draw(12)) {
    case 0:
        if (at < size) s[at] ^= (unsigned char)(1u << draw(8));
        return size;
    case 1:
        if (at < size) s[at] = (unsigned char)(draw(3) ? signs[draw(sizeof signs - 1)] : (int)draw(256));
        return size;
    case 2: return replace(s, size, most, at, 1 + draw(draw(2) ? 4 : 40), "", 0);
    case 3: // bytes from elsewhere, in addition or instead
        n = draw(other_size + 1);
        bytes = min_i64((int64_t)(other_size - n), 1 + draw(draw(2) ? 16 : 200));
        memcpy(part, other + n, bytes);
        return replace(s, size, most, at, draw(2) ? bytes : 0, part, bytes);
    case 4:
        text = pieces[draw(sizeof pieces / sizeof *pieces)];
        return replace(s, size, most, at, draw(2), text, strlen(text));
    case 5: // a line goes
        at = part_of(s, size, "\n", PART, &bytes);
        return replace(s, size, most, at, bytes + 1, "", 0);
    case 6: // a line comes
        n = part_of(other, other_size, "\n", PART, &bytes);
        memcpy(part, other + n, bytes);
        part[bytes] = '\n';
        at = part_of(s, size, "\n", size, &n);
        return replace(s, size, most, at, 0, part, bytes + 1);
    case 7: // a word becomes another
        at = part_of(other, other_size, word_ends, PART, &n);
        memcpy(part, other + at, n);
        at = part_of(s, size, word_ends, size, &bytes);
        return replace(s, size, most, at, bytes, part, n);
    case 8: return draw(2) ? size : at;
    default: // a number becomes another
        while (at < size && (s[at] < '0' || s[at] > '9')) at++;
        for (bytes = 0; at + bytes < size && s[at + bytes] && strchr("0123456789.e+-", s[at + bytes]);) bytes++;
        return at < size ? replace(s, size, most, at, bytes, text, strlen(text)) : size;
    }
}

typedef struct {
    size_t most;                                         // bytes of an input
    size_t (*make)(unsigned char* data, uint64_t i);     // writes input i of this seed; returns its size
    bool (*run)(const unsigned char* data, size_t size); // true: accepted
    int kinds;                                           // of inputs; data[0] % kinds is an input's kind
} Fuzzer;

// Overwrites bytes anywhere, and may cut the end off, as libFuzzer does: of what make writes around the file, too.
static inline size_t scramble(unsigned char* data, size_t size) {
    if (size == 0) return 0;
    for (uint32_t left = 1 + draw(8); left > 0; left--) data[draw(size)] = (unsigned char)draw(256);
    return draw(4) ? size : draw(size + 1);
}

// In memory, where that can be: on a disk, files take longer than reading them.
static inline void fuzz_folder(const char* name) {
    const int project = open(".", O_RDONLY);
    process.name = name;
    if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 0);
    folder_begin(name);
    if (project < 0 || fchdir(project) != 0 || close(project) != 0) die("cannot go back to the project's folder");
}

static inline int fuzz_main(const Fuzzer* fuzzer, const char* name, int argc, char** argv) {
    enum { MOST_KINDS = 8 };
    int64_t inputs[MOST_KINDS] = {0}, accepted[MOST_KINDS] = {0};
    char crash_file[128];
    if (argc != 2 && argc != 3) die_usage("usage: %s SECONDS SEED, or %s FILE", name, name);
    fuzz_folder(name);
    if (argc == 2) {
        MappedFile file;
        Error error;
        if (!file_map(&file, argv[1], &error)) die("%s", error.text);
        check(true, "%s: %s", argv[1], fuzzer->run(file.data, file.size) ? "accepted" : "refused");
        file_unmap(&file);
        return folder_end();
    }
    const double end = seconds_now() + atof(argv[1]);
    fuzz_seed = strtoull(argv[2], NULL, 10);
    snprintf(crash_file, sizeof crash_file, "build/%s.crash", name);
    const int fd = open(crash_file, O_RDWR | O_CREAT | O_TRUNC, 0666), project = open(".", O_RDONLY);
    if (fd < 0) die("cannot write %s; run from the project's folder", crash_file);
    unsigned char* data = (unsigned char*)checked_malloc(fuzzer->most, "an input");
    for (uint64_t i = 0; seconds_now() < end; i++) {
        size_t size = fuzzer->make(data, i);
        if (i % 8 == 7) size = scramble(data, size);
        const int kind = data[0] % fuzzer->kinds;
        if (pwrite(fd, data, size, 0) != (ssize_t)size || ftruncate(fd, (off_t)size) != 0)
            die("cannot write %s", crash_file);
        alarm(60); // none of them takes a second
        accepted[kind] += fuzzer->run(data, size);
        alarm(0);
        inputs[kind]++;
    }
    free(data);
    if (close(fd) != 0 || unlinkat(project, crash_file, 0) != 0) die("cannot remove %s", crash_file);
    for (int k = 0; k < fuzzer->kinds; k++)
        check(accepted[k] > 0 && accepted[k] < inputs[k], "seed %llu: %lld inputs of kind %d, %lld of them accepted",
              (unsigned long long)fuzz_seed, (long long)inputs[k], k, (long long)accepted[k]);
    return folder_end();
}

#ifndef LIBFUZZER
#define FUZZ_MAIN(fuzzer, name)                                                                                        \
    int main(int argc, char** argv) { return fuzz_main(&fuzzer, name, argc, argv); }
#else
#define FUZZ_MAIN(fuzzer, name)                                                                                        \
    int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {                                                     \
        if (!*own_folder) fuzz_folder(name);                                                                           \
        if (size <= fuzzer.most) fuzzer.run(data, size);                                                               \
        return 0;                                                                                                      \
    }
#endif
