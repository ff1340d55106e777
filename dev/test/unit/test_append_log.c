/*
Tests of util/append_log.h. A limit on the size of files stands for the full disk: a write takes what still fits, as a
disk does. After every call the file has to hold whole lines only, and in the end all of them, in order.
*/
#include "test.h"
#include "../../../util/append_log.h"
#include <signal.h>
#include <sys/resource.h>

static char written[1 << 16]; // what has to be in the file in the end
static int lines_made = 0;

// Adds line number lines_made, of a length that changes, and tries to write.
static bool add(AppendLog* l, Error* error) {
    char line[256];
    const int n = snprintf(line, sizeof line, "line %d %.*s\n", lines_made, lines_made * 7 % 60,
                           "............................................................");
    lines_made++;
    append_log_add(l, line, (size_t)n);
    strcat(written, line);
    return append_log_write(l, error);
}

// Whether a file holds the first `bytes` bytes of all that was written (-1: all).
static bool holds(const char* path, int64_t bytes) {
    MappedFile file;
    Error error;
    if (bytes < 0) bytes = (int64_t)strlen(written);
    if (!file_map(&file, path, &error)) return false;
    const bool same = (int64_t)file.size == bytes && (bytes == 0 || memcmp(file.data, written, (size_t)bytes) == 0);
    file_unmap(&file);
    return same;
}

static void room(rlim_t bytes) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0) die("getrlimit: %s", strerror(errno));
    limit.rlim_cur = bytes;
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) die("setrlimit: %s", strerror(errno));
}

static void begins(AppendLog* l) {
    Error error;
    unlink("a/lines");
    written[0] = 0;
    lines_made = 0;
    if (!append_log_open(l, "a/lines", 0, &error)) die("%s", error.text);
}

// With room for any number of bytes, then with enough.
static void test_full(void) {
    Error error = {""};
    AppendLog l;
    int wrong = 0, refused = 0;
    for (int64_t bytes = 0; bytes < 400; bytes++) {
        begins(&l);
        room((rlim_t)bytes);
        int64_t whole = 0;
        for (int i = 0; i < 8; i++) {
            const bool ok = add(&l, &error);
            const int64_t now = (int64_t)strlen(written);
            if (ok) whole = now;
            refused += !ok;
            wrong += ok != (now <= bytes) || !holds("a/lines", whole) || (!ok && !strstr(error.text, "a/lines")) ||
                     (l.lines == 0) != ok;
        }
        room(RLIM_INFINITY);
        wrong += !add(&l, &error) || !holds("a/lines", -1) || l.lines != 0;
        append_log_close(&l);
    }
    check(wrong == 0 && refused > 500,
          "room for 0 to 400 bytes, then for all: whole lines only, then all; %d refused, %d wrong", refused, wrong);
}

// The folder is moved, another file has its name, the folder comes back.
static void test_away(void) {
    Error error = {""};
    AppendLog l;
    begins(&l);
    add(&l, &error), add(&l, &error);
    const int64_t before = (int64_t)strlen(written);
    if (rename("a", "b") != 0) die("rename");
    check(!add(&l, &error) && strstr(error.text, "a/lines"), "moved away: %s", error.text);
    check(holds("b/lines", before) && l.lines == 1, "nothing is written to the moved file");
    if (mkdir("a", 0777) != 0 || system("echo x >a/lines") != 0) die("mkdir");
    check(!add(&l, &error) && strstr(error.text, "a/lines"), "another file has the name: %s", error.text);
    if (system("grep -qx x a/lines && rm -r a && mkdir -p a/lines") != 0) die("the other file was changed");
    check(!add(&l, &error) && strstr(error.text, "a/lines"), "a folder has the name: %s", error.text);
    if (system("rm -r a") != 0 || rename("b", "a") != 0) die("rename");
    check(l.lines == 3 && add(&l, &error) && holds("a/lines", -1), "back again: no line is lost %s", error.text);
    if (system("cp a/lines a/copy && mv a/copy a/lines") != 0) die("cp"); // as a disk that was mounted again
    check(add(&l, &error) && holds("a/lines", -1), "a copy that holds all that was written %s", error.text);
    append_log_close(&l);
}

static void test_open(void) {
    Error error = {""};
    AppendLog l;
    begins(&l);
    for (int i = 0; i < 4; i++) add(&l, &error);
    append_log_close(&l);
    const char* third = strchr(strchr(written, '\n') + 1, '\n') + 1;
    if (truncate("a/lines", third - written + 5) != 0)
        die("truncate"); // a part of a line, left by a run that was killed
    check(append_log_open(&l, "a/lines", third - written, &error) && holds("a/lines", third - written),
          "what is not kept is gone");
    written[third - written] = 0;
    check(add(&l, &error) && holds("a/lines", -1), "and it goes on there");
    append_log_close(&l);
    check(!append_log_open(&l, "nowhere/lines", 0, &error) && strstr(error.text, "nowhere/lines"), "%s", error.text);
    check(!append_log_open(&l, "a", 0, &error) && strstr(error.text, "a: "), "%s", error.text);
    begins(&l);
    static char long_line[1 << 20];
    memset(long_line, 'x', sizeof long_line);
    if (rename("a", "b") != 0) die("rename");
    for (int i = 0; i < 100; i++) append_log_add(&l, long_line, sizeof long_line);
    check(l.lines == 64 && l.lost == 36 && l.used == LINES_MOST,
          "what has no room in memory is counted: %lld wait, %lld lost", (long long)l.lines, (long long)l.lost);
    append_log_close(&l);
    if (rename("b", "a") != 0) die("rename");
}

int main(void) {
    signal(SIGXFSZ, SIG_IGN);
    folder_begin("test_lines");
    if (mkdir("a", 0777) != 0) die("cannot make a folder");
    test_full();
    test_away();
    test_open();
    return folder_end();
}
