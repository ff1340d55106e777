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

static inline void put_file(const char* path, const void* data, size_t size) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size || close(fd) != 0) die("cannot write %s", path);
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

static inline int fuzz_main(const Fuzzer* fuzzer, const char* name, int argc, char** argv) {
    enum { MOST_KINDS = 8 };
    int64_t inputs[MOST_KINDS] = {0}, accepted[MOST_KINDS] = {0};
    char crash_file[128];
    process.name = name;
    if (argc == 2) {
        MappedFile file;
        Error error;
        if (!file_map(&file, argv[1], &error)) die("%s", error.text);
        printf("%s\n", fuzzer->run(file.data, file.size) ? "accepted" : "refused");
        file_unmap(&file);
        return 0;
    }
    if (argc != 3) die_usage("usage: %s SECONDS SEED, or %s FILE", name, name);
    const double end = seconds_now() + atof(argv[1]);
    fuzz_seed = strtoull(argv[2], NULL, 10);
    snprintf(crash_file, sizeof crash_file, "build/%s.crash", name);
    const int fd = open(crash_file, O_RDWR | O_CREAT | O_TRUNC, 0666);
    if (fd < 0) die("cannot write %s; run from the project's folder", crash_file);
    unsigned char* data = (unsigned char*)checked_malloc(fuzzer->most, "an input");
    for (uint64_t i = 0; seconds_now() < end; i++) {
        size_t size = fuzzer->make(data, i);
        if (i % 8 == 7) size = scramble(data, size);
        const int kind = data[0] % fuzzer->kinds;
        if (pwrite(fd, data, size, 0) != (ssize_t)size || ftruncate(fd, (off_t)size) != 0)
            die("cannot write %s", crash_file);
        accepted[kind] += fuzzer->run(data, size);
        inputs[kind]++;
    }
    free(data);
    if (close(fd) != 0 || unlink(crash_file) != 0) die("cannot remove %s", crash_file);
    for (int k = 0; k < fuzzer->kinds; k++)
        check(accepted[k] > 0 && accepted[k] < inputs[k], "seed %llu: %lld inputs of kind %d, %lld of them accepted",
              (unsigned long long)fuzz_seed, (long long)inputs[k], k, (long long)accepted[k]);
    return test_end();
}

#ifndef LIBFUZZER
#define FUZZ_MAIN(fuzzer, name)                                                                                        \
    int main(int argc, char** argv) { return fuzz_main(&fuzzer, name, argc, argv); }
#else
#ifdef __cplusplus
extern "C"
#endif
    int
    LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
#define FUZZ_MAIN(fuzzer, name)                                                                                        \
    int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {                                                     \
        if (size <= fuzzer.most) fuzzer.run(data, size);                                                               \
        return 0;                                                                                                      \
    }
#endif
