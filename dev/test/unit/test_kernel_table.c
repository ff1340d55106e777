/*
Every kernel has a test of its values, one of its bits, and one of its CUDA twin. The table of kernels is the folder: a
function that kernels/NAME.h and kernels/NAME.cuh both have is a kernel. Its tests are found by its name in their text;
the tests that iterate the tables of activations and optimizers stand for all of their rows.
*/
#include "test.h"
#include <ctype.h>
#include <dirent.h>

enum { VALUES, BITS, TWIN, COLUMNS };
static const char* const columns[COLUMNS] = {"values", "bits", "CUDA twin"};
static char text[COLUMNS][4 << 20];  // of all tests of a column
static char table[COLUMNS][1 << 16]; // that a column's tests iterate

// What needs no test of a column, and why.
static const struct {
    const char* name;
    int column;
} needless[] = {{"rope_rotate", VALUES},
                {"rope_rotate", BITS}, // rope_forward and rope_backward are it
                {"rope_rotate", TWIN},
                {"linear_gelu_forward", VALUES}, // the bits of two steps
                {"linear_gelu_backward_input", VALUES},
                {"caat_pack_floats", TWIN}, // caat_pack and caat_unpack of float32 are it
                {"caat_unpack_floats", TWIN},
                {"checksum_add", BITS}, // integers, whose values are tested exactly
                {"losses_add", BITS}};  // one after the other, tested exactly

static void append(char* to, size_t size, const char* path) {
    FILE* file = fopen(path, "r");
    if (!file) die("cannot open %s", path);
    const size_t used = strlen(to), n = fread(to + used, 1, size - used - 1, file);
    to[used + n] = 0;
    if (used + n + 1 == size) die("%s: too long", path);
    fclose(file);
}

// Whether `in` has the word `name`, followed by one of `after`.
static bool has_word(const char* in, const char* name, const char* after) {
    const size_t n = strlen(name);
    for (const char* at = strstr(in, name); at; at = strstr(at + 1, name)) {
        const char before = at == in ? ' ' : at[-1];
        if (before != '_' && !isalnum((unsigned char)before) && at[n] && strchr(after, at[n])) return true;
    }
    return false;
}

static bool is_tested(const char* name, int column) {
    for (size_t i = 0; i < sizeof needless / sizeof needless[0]; i++) {
        if (needless[i].column == column && strcmp(needless[i].name, name) == 0) return true;
    }
    if (has_word(text[column], name, "(")) return true;
    return has_word(table[column], name, "(,}");
}

static void read_tests(const char* folder) {
    DIR* entries = opendir(folder);
    if (!entries) die("cannot open %s", folder);
    for (const struct dirent* entry = readdir(entries); entry; entry = readdir(entries)) {
        char path[512];
        const char* name = entry->d_name;
        snprintf(path, sizeof path, "%s/%.200s", folder, name);
        if (strstr(name, "_table.c")) continue;
        if (strstr(name, ".cu")) append(text[TWIN], sizeof text[TWIN], path);
        if (strstr(name, ".c") && strncmp(name, "test_", 5) == 0 && !strstr(name, "_bits"))
            append(text[VALUES], sizeof text[VALUES], path);
    }
    closedir(entries);
}

// The kernels of kernels/NAME.h, whose text is `cpu`; `gpu` is that of its twin. Returns how many.
static int test_pair(const char* pair, const char* cpu, const char* gpu) {
    static const char begin[] = "\nstatic inline void ";
    int kernels = 0;
    for (const char* at = strstr(cpu, begin); at; at = strstr(at + 1, begin)) {
        char name[128], twin[160];
        const char *end = at + strcspn(at, "("), *first = end;
        while (first[-1] == '_' || isalnum((unsigned char)first[-1])) first--;
        snprintf(name, sizeof name, "%.*s", (int)(end - first), first);
        snprintf(twin, sizeof twin, "%s%s(", begin, name);
        if (!strstr(gpu, twin)) continue;
        kernels++;
        for (int column = 0; column < COLUMNS; column++)
            check(is_tested(name, column), "%s of %s: there is a test of its %s", name, pair, columns[column]);
    }
    return kernels;
}

int main(void) {
    static char cpu[1 << 18], gpu[1 << 18];
    int kernels = 0;
    read_tests("dev/test/unit");
    read_tests("dev/test/cuda");
    append(text[BITS], sizeof text[BITS], "dev/test/unit/test_kernels_bits.c");
    append(text[BITS], sizeof text[BITS], "dev/test/unit/test_attention.c");
    append(text[BITS], sizeof text[BITS], "dev/test/unit/test_matmul.c");
    append(table[BITS], sizeof table[BITS], "kernels/activations.h");
    append(table[BITS], sizeof table[BITS], "kernels/optimizers.h");
    append(table[TWIN], sizeof table[TWIN], "kernels/activations.h");
    append(table[TWIN], sizeof table[TWIN], "kernels/optimizers.h");
    DIR* entries = opendir("kernels");
    if (!entries) die("there is no folder kernels here");
    for (const struct dirent* entry = readdir(entries); entry; entry = readdir(entries)) {
        char path[512];
        const size_t n = strlen(entry->d_name);
        if (n < 3 || strcmp(entry->d_name + n - 2, ".h") != 0) continue;
        cpu[0] = gpu[0] = 0;
        snprintf(path, sizeof path, "kernels/%.*s.cuh", (int)(n - 2), entry->d_name);
        if (access(path, R_OK) != 0) continue;
        append(gpu, sizeof gpu, path);
        snprintf(path, sizeof path, "kernels/%s", entry->d_name);
        append(cpu, sizeof cpu, path);
        kernels += test_pair(path, cpu, gpu);
    }
    closedir(entries);
    check(kernels > 50, "%d kernels", kernels);
    return test_end();
}
