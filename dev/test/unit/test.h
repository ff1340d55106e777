/*
test.h: what the component tests share. A test program is a main() that calls check() and check_error() and ends with
return test_end(). It prints one line a check, the measured error beside its bound, and last "N passed, N failed".
*/
#pragma once

#include "../../../util/base.h"
#include <time.h>

typedef struct {
    int passed, failed;
} TestCount;
static TestCount test_count = {0, 0};

// Counts and prints one check.
__attribute__((format(printf, 2, 3))) static inline bool check(bool ok, const char* format, ...) {
    if (ok)
        test_count.passed++;
    else
        test_count.failed++;
    printf("%s  ", ok ? "ok  " : "FAIL");
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
    return ok;
}

// A measured error beside the bound it has to stay under (a NaN fails).
static inline bool check_error(const char* what, double error, double bound) {
    return check(error <= bound, "%-64s error %.2e  bound %.2e", what, error, bound);
}

// max |a - b| / max |b|: the error relative to the largest entry of the reference b; NaN counts as infinite.
static inline double relative_error(const float* a, const double* b, int64_t n) {
    double worst = 0, scale = 0;
    for (int64_t i = 0; i < n; i++) {
        double difference = fabs((double)a[i] - b[i]);
        if (!(difference <= worst)) worst = difference == difference ? difference : INFINITY;
        if (fabs(b[i]) > scale) scale = fabs(b[i]);
    }
    return scale > 0 ? worst / scale : worst;
}

// while (attempt()) test(): until none of its checks fails, three times at most. For what depends on when a busy
// machine lets a process run. With several ranks all of them have to count the same checks.
static inline bool attempt(void) {
    static TestCount before;
    static int made = 0;
    if (made > 0 && (made == 3 || test_count.failed == before.failed)) {
        made = 0;
        return false;
    }
    if (made++ == 0) {
        before = test_count;
    } else {
        test_count = before;
        printf("again\n");
    }
    return true;
}

// Makes an empty file NAME.something in $TMPDIR, for the test to write to and to remove at its end; its path.
static inline void make_temporary(char* path, size_t size, const char* name) {
    const char* folder = getenv("TMPDIR");
    snprintf(path, size, "%.200s/%s.XXXXXX", folder ? folder : "/tmp", name);
    const int fd = mkstemp(path);
    if (fd < 0) die("%s: cannot make %s", name, path);
    close(fd);
}

// From the first to the second of these, what is printed goes to a file without a name, and then to text; errors: also
// what goes to stderr.
typedef struct {
    int out, err;
    FILE* said;
} Quiet;

static inline Quiet quiet_begin(bool errors) {
    const Quiet q = {dup(1), dup(2), tmpfile()};
    if (q.out < 0 || q.err < 0 || !q.said) die("cannot make a temporary file");
    fflush(stdout), fflush(stderr);
    dup2(fileno(q.said), 1);
    if (errors) dup2(fileno(q.said), 2);
    return q;
}

static inline void quiet_end(const Quiet* q, char* text, size_t size) {
    fflush(stdout), fflush(stderr);
    dup2(q->out, 1), dup2(q->err, 2);
    close(q->out), close(q->err);
    rewind(q->said);
    text[fread(text, 1, size - 1, q->said)] = 0;
    fclose(q->said);
}

// Writes a file of `size` bytes, or of a text, and returns its path.
static inline const char* write_bytes(const char* path, const void* data, size_t size) {
    FILE* f = fopen(path, "wb");
    if (!f || (size && fwrite(data, 1, size, f) != size) || fclose(f) != 0) die("%s: cannot write", path);
    return path;
}

static inline const char* write_text(const char* path, const char* text) {
    return write_bytes(path, text, strlen(text));
}

// Writes a shard of n tokens below `vocab`; not all are equally frequent.
static inline void write_random_tokens(const char* path, int n, int vocab) {
    const size_t bytes = 1024 + (size_t)n * sizeof(uint16_t);
    const int32_t header[3] = {20240520, 1, n};
    unsigned char* shard = (unsigned char*)checked_calloc(bytes, 1, "random tokens");
    uint16_t* tokens = (uint16_t*)(void*)(shard + 1024);
    memcpy(shard, header, sizeof header);
    for (int i = 0; i < n; i++) {
        const double u = random_uniform(5, 5, (uint64_t)i), w = random_uniform(6, 5, (uint64_t)i / 3);
        tokens[i] = (uint16_t)(u * w * vocab);
    }
    write_bytes(path, shard, bytes);
    free(shard);
}

// The last line, and the exit status.
static inline int test_end(void) {
    printf("%d passed, %d failed\n", test_count.passed, test_count.failed);
    return test_count.failed == 0 && test_count.passed > 0 ? 0 : 1;
}

// Makes a folder NAME_something in $TMPDIR and enters it; the second removes it, and is the exit status.
static char own_folder[512];

static inline void folder_begin(const char* name) {
    const char* tmp = getenv("TMPDIR");
    snprintf(own_folder, sizeof own_folder, "%.400s/%s_XXXXXX", tmp && *tmp ? tmp : "/tmp", name);
    if (!mkdtemp(own_folder) || chmod(own_folder, 0755) != 0 || chdir(own_folder) != 0)
        die("cannot make a folder %s", own_folder);
}

static inline int folder_end(void) {
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", own_folder);
    if (chdir("/") != 0 || system(command) != 0) die("cannot remove %s", own_folder);
    return test_end();
}
