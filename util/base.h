/*
util/base.h: the base of every other file. Nothing here depends on GPT, MPI or CUDA.

    errors      die() ends the program with one line: the error, the place, the rank, the remedy.
                A function that reads untrusted input (files, text) returns false and fills an Error instead, so that
                its caller, or a fuzzer, decides.
    memory      checked allocation.
    bits        of float32, bfloat16 and float16 numbers.
    random      counter-based: a number is a pure function of (seed, stream, index). No state, no order: any rank can
                make any slice of any tensor, and every mesh starts from the same weights.
    files       memory-mapped reading; threads; time.

C11, in the common subset with C++ (casts on every allocation, no designated initialisers), like all files but kernels.
*/
#pragma once

#ifndef _GNU_SOURCE
#define _GNU_SOURCE // mmap, clock_gettime, pwrite
#endif

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#ifdef __cplusplus
#define RESTRICT __restrict__
#else
#define RESTRICT restrict
#endif

// HOST_DEVICE: CUDA kernels may call the function too. UNROLL: how often a loop is unrolled (not in nvcc's host code).
#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#define UNROLL(n)
#else
#define HOST_DEVICE
#define UNROLL(n) UNROLL_PRAGMA(GCC unroll n)
#define UNROLL_PRAGMA(text) _Pragma(#text)
#endif

// ---- Errors -----------------------------------------------------------------------------------------------------

enum { EXIT_RUN = 1, EXIT_ARGUMENTS = 2 }; // exit status: the run failed; the arguments were wrong

// The process in error lines: its name; its rank (-1: alone, no rank is printed); how it ends (NULL: by exit; ranks
// that work together end together, see comm.h); the length of the unfinished line on stdout; the version of the
// program, if the build set one.
typedef struct {
    const char* name;
    int rank;
    void (*stop)(int status);
    int within_line;
    const char* version;
} Process;
static Process process = {"threefold", -1, NULL, 0, "unknown"};

// Ends the line that the next step would overwrite (print_step in trainer/logger.h), where other output follows it.
static inline void end_line(void) {
    if (process.within_line) putchar('\n');
    process.within_line = 0;
    fflush(stdout);
}

// A message quotes untrusted files: control characters of one byte and of two (U+0080 to U+009F), which a terminal
// would obey, become '?'.
static inline void hide_controls(char* text) {
    for (unsigned char* c = (unsigned char*)text; *c; c++) {
        if (c[0] == 0xC2 && c[1] >= 0x80 && c[1] < 0xA0)
            c[0] = c[1] = '?';
        else if (*c < ' ' || *c == 127)
            *c = '?';
    }
}

// The columns of the terminal on stdout; INT32_MAX where it is none, or has no known width.
static inline int terminal_columns(void) {
    struct winsize window;
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
    return known ? window.ws_col : INT32_MAX;
}

// Prints a line on stdout, which the format does not end. What it quotes, names of files and values of options, cannot
// command a terminal. Where a terminal is too narrow, the line is broken at blanks, and goes on under its first word
// behind the label (10 columns).
__attribute__((format(printf, 1, 2))) static inline void print_line(const char* format, ...) {
    enum { LABEL = 10 };
    char text[3 * 4096], *line = text;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    hide_controls(text);
    const int columns = terminal_columns();
    int label = LABEL, room = columns > LABEL ? columns : LABEL; // the first line's
    while ((int)strlen(line) > room) {
        int end = room;
        while (end > label && line[end] != ' ') end--;
        if (end == label) end = room + (int)strcspn(line + room, " "); // a word that fits in no line
        if (!line[end]) break;
        printf("%.*s\n%*s", end, line, LABEL, "");
        line += end + 1;
        label = 0;
        room = columns > LABEL ? columns - LABEL : 1;
    }
    printf("%s\n", line);
}

// Prints words in lines of `width` columns: from `column` on, where the line is, then in indented lines.
static inline void print_words(FILE* out, const char* words, int column, int indent, int width) {
    const char* blank = ""; // before a word, except at the beginning of a line
    while (*words) {
        const int n = (int)strcspn(words, " ");
        if (*blank && column + 1 + n > width) {
            column = fprintf(out, "\n%*s", indent, "") - 1;
            blank = "";
        }
        column += fprintf(out, "%s%.*s", blank, n, words);
        blank = " ";
        words += n + strspn(words + n, " ");
    }
    fputc('\n', out);
}

// Prints a line on stderr, behind the program's name, which goes on.
__attribute__((format(printf, 1, 2))) static inline void print_message(const char* format, ...) {
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    hide_controls(text);
    end_line();
    fprintf(stderr, "%s: %s\n", process.name, text);
}

// Prints one line, in one call. All ranks find the same wrong arguments, so rank 0 reports them for all.
__attribute__((format(printf, 2, 0))) static inline void die_v(int status, const char* format, va_list args) {
    char text[2048], rank[32] = "";
    end_line();
    vsnprintf(text, sizeof text, format, args);
    hide_controls(text);
    if (status != EXIT_ARGUMENTS && process.rank >= 0) snprintf(rank, sizeof rank, "rank %d: ", process.rank);
    if (status != EXIT_ARGUMENTS || process.rank <= 0) fprintf(stderr, "%s: %s%s\n", process.name, rank, text);
    if (process.stop) process.stop(status);
    exit(status);
}

// The run cannot continue. The message has the error, the place and the remedy; exit status 1.
__attribute__((noreturn, format(printf, 1, 2))) static inline void die(const char* format, ...) {
    va_list args;
    va_start(args, format);
    die_v(EXIT_RUN, format, args);
    va_end(args);
    abort();
}

// The arguments make no sense; exit status 2. All ranks must call it.
__attribute__((noreturn, format(printf, 1, 2))) static inline void die_usage(const char* format, ...) {
    va_list args;
    va_start(args, format);
    die_v(EXIT_ARGUMENTS, format, args);
    va_end(args);
    abort();
}

// The reason why a function returned false: one line, ready to be shown.
typedef struct {
    char text[1024];
} Error;

// Appends to a text of `size` bytes, truncating.
__attribute__((format(printf, 3, 4))) static inline void append_text(char* text, size_t size, const char* format, ...) {
    const size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, size - used, format, args);
    va_end(args);
}

// The end of a noun with a number before it: "%d step%s", n, plural(n).
static inline const char* plural(int64_t n) { return n == 1 ? "" : "s"; }

// Appends a name to a list "a|b|...", of the values of an option.
static inline void append_choice(char* text, size_t size, const char* name) {
    append_text(text, size, text[0] ? "|%s" : "%s", name);
}

// Fills *error; always returns false, so that callers can write: return fail(error, "...", ...).
__attribute__((format(printf, 2, 3))) static inline bool fail(Error* error, const char* format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    hide_controls(error->text);
    return false;
}

// ---- Memory -----------------------------------------------------------------------------------------------------

static inline size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The unit in which sizes are listed: MB or GB (giga), but TB where the largest reaches one.
typedef struct {
    const char* name;
    double bytes;
} ByteUnit;
static inline ByteUnit byte_unit(double largest, bool giga) {
    static const ByteUnit units[] = {{"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}};
    return units[largest >= 1e12 ? 2 : giga];
}

static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

static inline void* checked_malloc(size_t bytes, const char* what) {
    void* p = malloc(bytes ? bytes : 1);
    if (!p) die("out of memory: %.1f MB for %s", (double)bytes / 1e6, what);
    return p;
}

static inline void* checked_calloc(size_t count, size_t size, const char* what) {
    void* p = calloc(count ? count : 1, size);
    if (!p) die("out of memory: %.1f MB for %s", (double)count * (double)size / 1e6, what);
    return p;
}

static inline void* checked_realloc(void* list, size_t count, size_t size, const char* what) {
    const size_t bytes = count * size;
    void* more = realloc(list, bytes ? bytes : 1);
    if (!more) die("out of memory: %.1f MB for %s", (double)bytes / 1e6, what);
    return more;
}

// Doubles the room of a list that is full, from `least` elements of `size` bytes on, and *capacity.
static inline void* checked_grow(void* list, int* capacity, int least, size_t size, const char* what) {
    if (*capacity > INT32_MAX / 2) die("out of memory: more than %d elements for %s", *capacity, what);
    *capacity = *capacity ? 2 * *capacity : least;
    return checked_realloc(list, (size_t)*capacity, size, what);
}

// Returns the list with room for at least `needed` elements of `size` bytes; *room is what it has now. Dies if memory
// is short, as checked_realloc.
static inline void* checked_reserve(void* list, int64_t* room, int64_t needed, size_t size, const char* what) {
    if (needed <= *room) return list;
    *room = max_i64(1024, 2 * needed);
    return checked_realloc(list, (size_t)*room, size, what);
}

// A copy of the first n characters of a text.
static inline char* checked_strndup(const char* text, size_t n, const char* what) {
    char* copy = strndup(text, n);
    if (!copy) die("out of memory for %s", what);
    return copy;
}

static inline char* checked_strdup(const char* text, const char* what) {
    return checked_strndup(text, strlen(text), what);
}

static inline bool name_ends_with(const char* path, const char* end) {
    const size_t n = strlen(path), k = strlen(end);
    return n >= k && strcmp(path + n - k, end) == 0;
}

// ---- Bits of floating point numbers -----------------------------------------------------------------------------
//              sign, exponent, mantissa    bias    value of a normal number: (-1)^s 2^(e - bias) (1 + m / 2^bits)
//    float32   1, 8, 23                    127
//    bfloat16  1, 8, 7                     127     the upper half of a float32
//    float16   1, 5, 10                    15      below 2^-14 multiples of 2^-24; largest 65504
//
// Conversions to float32 are exact. Conversions from float32 round to nearest, ties to even; too large numbers become
// infinite. A NaN becomes a quiet NaN with its sign and the upper bits of its mantissa.

HOST_DEVICE static inline float float_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

HOST_DEVICE static inline uint32_t bits_of_float(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float bf16_to_f32(uint16_t h) { return float_of_bits((uint32_t)h << 16); }

static inline uint16_t f32_to_bf16(float f) {
    const uint32_t bits = bits_of_float(f);
    const uint32_t rounded = bits + 0x7FFF + (bits >> 16 & 1); // a carry into the exponent is right
    return (uint16_t)((f != f ? bits | 0x400000 : rounded) >> 16);
}

static inline float f16_to_f32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7FFF;
    const uint32_t subnormal = bits_of_float((float)(int32_t)rest * 0x1p-24f);
    const uint32_t normal = (rest << 13) + ((rest < 0x7C00 ? 127 - 15 : 255 - 31) << 23);
    return float_of_bits(sign | (rest < 0x0400 ? subnormal : normal)); // no branches: loops are vectorized
}

// ---- Hashes: 64-bit FNV-1a (Fowler, Noll, Vo) of a sequence of values, each a byte or a whole number ------------

#define FNV_OFFSET_BASIS 14695981039346656037ull

static inline uint64_t hash_value(uint64_t h, uint64_t value) { return (h ^ value) * 1099511628211ull; }

// Adds n bytes to h, the hash of what was before them.
static inline uint64_t hash_append(uint64_t h, const void* bytes, size_t n) {
    for (size_t i = 0; i < n; i++) h = hash_value(h, ((const unsigned char*)bytes)[i]);
    return h;
}

static inline uint64_t hash_bytes(const void* bytes, size_t n) { return hash_append(FNV_OFFSET_BASIS, bytes, n); }

// Turns a tensor's logical name into its random stream.
static inline uint64_t hash_string(const char* s) { return hash_bytes(s, strlen(s)); }

// ----------------------------------------------------------------------------------------------------------------
// Random numbers: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
// Ten rounds of multiply and xor turn (key, counter) into 128 random bits.

typedef struct {
    uint32_t word[4];
} Random4;

HOST_DEVICE static inline Random4 philox(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_low, c1 = (uint32_t)(counter_low >> 32);
    uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);
    UNROLL(10) for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    Random4 r = {{c0, c1, c2, c3}};
    return r;
}

// Uniform in [0, 1): number `index` of stream `stream`. 24 bits, so exact in float32.
static inline float random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    return (float)(philox(seed, stream, index >> 2).word[index & 3] >> 8) * 0x1p-24f;
}

// ln u for 0 < u <= 1: u = 2^k m, m in [1/sqrt 2, sqrt 2), ln m from the series of atanh. Relative error below 1e-6.
static inline float log_of_uniform(float u) {
    const uint32_t root_half = 0x3f3504f3u, shifted = bits_of_float(u) - root_half;
    const int32_t k = (int32_t)shifted >> 23;
    const float m = float_of_bits((shifted & 0x7fffffu) + root_half);
    const float z = (m - 1) / (m + 1), z2 = z * z;
    return (float)k * 0.693147181f +
           2 * z * (1 + z2 * (1 / 3.0f + z2 * (1 / 5.0f + z2 * (1 / 7.0f + z2 * (1 / 9.0f)))));
}

// Four standard normal numbers, 4 block .. 4 block + 3 of stream `stream`, from one call of Philox: Box and Muller turn
// two uniform words into radius sqrt(-2 ln u) and angle 2 pi v, whose sine and cosine are Taylor series on an eighth of
// the circle. There is no branch or call, so that loops over blocks are vectorized.
static inline void random_normal4(float out[4], uint64_t seed, uint64_t stream, uint64_t block) {
    const Random4 r = philox(seed, stream, block);
    UNROLL(2) for (int i = 0; i < 4; i += 2) {
        const float radius = sqrtf(-2 * log_of_uniform(((float)(r.word[i] >> 8) + 0.5f) * 0x1p-24f));
        const uint32_t turned = r.word[i + 1] + 0x20000000u, quarter = turned >> 30;
        const float a = (float)((int32_t)(turned << 2 >> 2) - 0x20000000) * (6.28318531f * 0x1p-32f), a2 = a * a;
        const float sine = a * (1 - a2 * (1 / 6.0f - a2 * (1 / 120.0f - a2 * (1 / 5040.0f))));
        const float cosine = 1 - a2 * (0.5f - a2 * (1 / 24.0f - a2 * (1 / 720.0f - a2 * (1 / 40320.0f))));
        const float x = (quarter & 1) ? -sine : cosine, y = (quarter & 1) ? cosine : sine;
        out[i] = (quarter & 2) ? -radius * x : radius * x;
        out[i + 1] = (quarter & 2) ? -radius * y : radius * y;
    }
}

// Normal numbers [first, first + n) of a stream.
static inline void random_normals(float* out, int64_t n, uint64_t seed, uint64_t stream, uint64_t first) {
    enum { BATCH = 64 }; // blocks, so that the inner loop is long enough for vectors
    float four[BATCH][4];
    const uint64_t end = first + (uint64_t)n;
    for (uint64_t block = first / 4; 4 * block < end; block += BATCH) {
#pragma omp simd
        for (uint64_t i = 0; i < BATCH; i++) random_normal4(four[i], seed, stream, block + i);
        const uint64_t from = 4 * block > first ? 4 * block : first;
        const uint64_t to = 4 * (block + BATCH) < end ? 4 * (block + BATCH) : end;
        memcpy(out + (from - first), &four[0][0] + (from - 4 * block), (to - from) * sizeof(float));
    }
}

// ---- Files, threads and time ------------------------------------------------------------------------------------

// A whole file, mapped read-only. An empty file has data = NULL and size = 0.
typedef struct {
    const unsigned char* data;
    size_t size;
} MappedFile;

static inline bool file_map(MappedFile* file, const char* path, Error* error) {
    memset(file, 0, sizeof *file);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // O_NONBLOCK: a FIFO would wait for its writer
    if (fd < 0) return fail(error, "%s: cannot open: %s", path, strerror(errno));
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return fail(error, "%s: not a regular file", path);
    }
    if (st.st_size > 0) {
        void* p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            close(fd);
            return fail(error, "%s: cannot map %lld bytes: %s", path, (long long)st.st_size, strerror(errno));
        }
        file->data = (const unsigned char*)p;
        file->size = (size_t)st.st_size;
    }
    close(fd);
    return true;
}

static inline void file_unmap(MappedFile* file) {
    if (file->data) munmap((void*)(uintptr_t)file->data, file->size);
    memset(file, 0, sizeof *file);
}

// Opens the standard descriptors that are closed. Else a file that is opened later would get the number of one of them,
// and printed text would go there.
static inline void open_standard_files(void) {
    int fd;
    do fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO) close(fd);
}

// The threads of a parallel region, and the number of the calling one in it.
#ifdef _OPENMP
static inline int openmp_threads(void) { return omp_get_max_threads(); }
static inline int openmp_thread(void) { return omp_get_thread_num(); }
#else
static inline int openmp_threads(void) { return 1; }
static inline int openmp_thread(void) { return 0; }
#endif

// A limit of this container, read from a file of control groups, version 2: its first number, in units of the second
// one where there are two; INFINITY: there is no limit.
static inline double container_limit(const char* path) {
    double limit = INFINITY, unit = 1;
    FILE* f = fopen(path, "r");
    if (f && fscanf(f, "%lf %lf", &limit, &unit) < 1) limit = INFINITY;
    if (f) fclose(f);
    return limit / unit;
}

// Seconds since some fixed moment, never going back.
static inline double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ----------------------------------------------------------------------------------------------------------------
/*
The checksum is a sum over words. Bytes are words of 32 bits (the last one padded with zeros), and each word gives a
number that depends on its place:

    checksum = sum over i of mix(i golden + word[i])      modulo 2^64

mix is a bijection of 64-bit numbers that scatters them (splitmix64: Steele, Lea, Flood 2014, "Fast splittable
pseudorandom number generators", figure 16), golden 2^64 / 1.618..., odd. Hence

    one word that is wrong    always changes the checksum: mix is a bijection
    any other error           stays undetected with probability 2^-64, unless it is deliberate: this is no signature
    order does not matter     so each rank that writes part of a file sums its words, in any order, and the sum over the
                              ranks is the checksum of the file (checkpoint/checkpoint.h); GPU blocks do the same
    a place matters           words that have changed places, or files, are detected

Replicas of a tensor are compared by it, too (trainer/replica_check.h): equal bits, equal checksums.
*/

// The summand of word number i.
HOST_DEVICE static inline uint64_t checksum_of_word(uint64_t i, uint32_t word) {
    uint64_t z = i * 0x9E3779B97F4A7C15ull + word;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

// The sum over `bytes` bytes whose first word is number `first`; data may be unaligned.
static inline uint64_t checksum_of(const void* data, int64_t bytes, int64_t first) {
    const unsigned char* at = (const unsigned char*)data;
    const int64_t words = bytes / 4;
    uint64_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < words; i++) {
        uint32_t word;
        memcpy(&word, at + 4 * i, 4);
        sum += checksum_of_word((uint64_t)(first + i), word);
    }
    uint32_t last = 0;
    memcpy(&last, at + 4 * words, (size_t)(bytes % 4));
    return bytes % 4 ? sum + checksum_of_word((uint64_t)(first + words), last) : sum;
}
