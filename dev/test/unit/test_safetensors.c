/*
test_safetensors.c: checkpoint/safetensors.h against files written out by hand, a wrong header for each of its checks,
all 65,536 values of the 16-bit formats against their definition, and a disk that fails.
*/
#include "../../../util/base.h"

// The system calls of the writer go through these, so that a test can let them fail.
typedef struct {
    ssize_t most;                                   // bytes a pwrite takes; 0: all
    bool nothing;                                   // a pwrite takes none
    int interrupts;                                 // this number of calls of any kind fails with EINTR first
    int fallocate_errno, pwrite_errno, fsync_errno; // then they fail with this
    int64_t pwrites;
} Faults;
static Faults faults;

static bool fault(int code) {
    if (faults.interrupts > 0) {
        code = EINTR;
        faults.interrupts--;
    }
    errno = code;
    return code != 0;
}

static int test_fallocate(int fd, int mode, off_t offset, off_t bytes) {
    return fault(faults.fallocate_errno) ? -1 : fallocate(fd, mode, offset, bytes);
}

static ssize_t test_pwrite(int fd, const void* data, size_t bytes, off_t offset) {
    faults.pwrites++;
    if (fault(faults.pwrite_errno)) return -1;
    if (faults.nothing) return 0;
    return pwrite(fd, data, faults.most && (size_t)faults.most < bytes ? (size_t)faults.most : bytes, offset);
}

static int test_fsync(int fd) { return faults.fsync_errno ? (errno = faults.fsync_errno, -1) : fsync(fd); }

#define fallocate test_fallocate
#define pwrite test_pwrite
#define fsync test_fsync
#include "../../../checkpoint/safetensors.h"
#undef fallocate
#undef pwrite
#undef fsync
#include "find_tensor.h"
#include "test.h"
#include <sys/wait.h>

// ---- Files to read ----------------------------------------------------------------------------------------------

// A file: the length of the header, the header, and `data_bytes` bytes 0, 1, 2, ...
static size_t make_file(unsigned char* file, const char* header, size_t header_bytes, size_t data_bytes) {
    for (int i = 0; i < 8; i++) file[i] = (unsigned char)(header_bytes >> 8 * i);
    memcpy(file + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++) file[8 + header_bytes + i] = (unsigned char)i;
    return 8 + header_bytes + data_bytes;
}

static const char* write_file(const char* name, const char* header, size_t data_bytes) {
    unsigned char file[8192];
    return write_bytes(name, file, make_file(file, header, strlen(header), data_bytes));
}

static SafeTensor tensor_of(const char* name, SafeDtype dtype, int ndim, int64_t a, int64_t b, int64_t c) {
    const SafeTensor tensor = {name, dtype, ndim, {a, b, c}, 0, 0, 0};
    return tensor;
}

// ---- 16-bit floating point --------------------------------------------------------------------------------------

// A value as IEEE 754 defines it, from sign, exponent and mantissa.
static double defined_value(uint32_t bits, int exponent_bits, int mantissa_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1, e = (int)(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const double m = (double)(bits & ((1u << mantissa_bits) - 1)),
                 sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;
    if (e == (1 << exponent_bits) - 1) return m > 0 ? (double)NAN : sign * (double)INFINITY;
    if (e == 0) return sign * ldexp(m, 1 - bias - mantissa_bits);
    return sign * ldexp(1 + m / ldexp(1, mantissa_bits), e - bias);
}

static bool same_value(double a, double b) { return a != a ? b != b : a == b && signbit(a) == signbit(b); }

static void test_float16(void) {
    int wrong[3] = {0, 0, 0};
    for (uint32_t h = 0; h < 65536; h++) {
        const float half = f16_to_f32((uint16_t)h), brain = bf16_to_f32((uint16_t)h);
        wrong[0] += !same_value((double)half, defined_value(h, 5, 10));
        wrong[1] += !same_value((double)brain, defined_value(h, 8, 7));
        // and back: the same bits, but that a signalling NaN (upper bit of the mantissa 0) becomes a quiet one
        wrong[2] += f32_to_bf16(brain) != (brain != brain ? h | 0x40 : h);
    }
    static const char* const what[] = {"F16 to float32", "BF16 to float32", "BF16 to float32 and back"};
    for (int i = 0; i < 3; i++) check(wrong[i] == 0, "%s: %d of 65536 differ", what[i], wrong[i]);

    // Where rounding turns: halfway between neighbours, and one float32 to either side.
    int brain_wrong = 0;
    for (uint32_t h = 0; h < 0x7F80; h++) {
        for (int side = -1; side <= 1; side++) {
            const uint32_t up = side > 0 || (side == 0 && h % 2);
            const float b = float_of_bits((h << 16 | 0x8000) + (uint32_t)side);
            brain_wrong += f32_to_bf16(b) != h + up || f32_to_bf16(-b) != (0x8000 | (h + up));
        }
    }
    check(brain_wrong == 0, "to BF16: %d ties and their neighbours go the wrong way", brain_wrong);
}

// ---- Reading ----------------------------------------------------------------------------------------------------

// Every file that is too short, and one that is too long, is refused. file has a byte of room after size.
static void test_lengths(unsigned char* file, size_t size) {
    SafeTensors st;
    Error error;
    int refused = 0;
    for (size_t n = 0; n < size; n++) {
        unsigned char* part = (unsigned char*)checked_malloc(n, "part of a file");
        memcpy(part, file, n);
        if (safetensors_parse(&st, "part", part, n, &error))
            safetensors_close(&st);
        else
            refused++;
        free(part);
    }
    check(refused == (int)size, "a file that was cut off: %d of %zu lengths refused", refused, size);
    file[size] = 0;
    check(!safetensors_parse(&st, "long", file, size + 1, &error), "a byte too many: %s", error.text);
}

// Ranges of the elements of the tensors of test_read; b: those of tensor "b".
static void test_ranges(const SafeTensors* st, const float* b) {
    const SafeTensor* t = safetensors_find(st, "b");
    Error error;
    float out[8];
    int wrong = 0;
    for (int64_t first = 0; first <= 6; first++)
        for (int64_t count = 0; first + count <= 6; count++) {
            for (int i = 0; i < 8; i++) out[i] = 77;
            wrong += !safetensors_read_f32(out + 1, st, t, first, count, &error) ||
                     memcmp(out + 1, b + first, (size_t)count * 4) != 0 || out[0] != 77 || out[1 + count] != 77;
        }
    check(wrong == 0, "every range of F32: %d wrong", wrong);
    check(safetensors_read_f32(NULL, st, safetensors_find(st, "none"), 0, 0, &error), "no elements");
    const int64_t bad[][2] = {{-1, 1}, {0, 7}, {6, 1}, {7, 0}, {1, -1}, {1, INT64_MAX}, {INT64_MAX, 1}, {INT64_MIN, 1}};
    int refused = 0;
    for (int i = 0; i < 8; i++) refused += !safetensors_read_f32(out, st, t, bad[i][0], bad[i][1], &error);
    check(refused == 8, "ranges outside a tensor: %d of 8 refused; %s", refused, error.text);
}

// A file written out by hand: unaligned data, an order of its own, scalars, nothing, escapes, spaces, fields to come.
static void test_read(void) {
    const char* header =
        "{\"b\": {\"shape\": [2, 3], \"dtype\": \"F32\", \"data_offsets\": [2, 26], \"later\": [1, {}]},\n"
        "\"__metadata__\": {\"format\": \"pt\", \"empty\": \"\"},"
        "\"none\": {\"dtype\": \"F16\", \"shape\": [3, 0], \"data_offsets\": [2, 2]},"
        "\"a\": {\"dtype\": \"BF16\", \"shape\": [], \"data_offsets\": [0, 2]},"
        "\"h\": {\"dtype\": \"F16\", \"shape\": [3, 1], \"data_offsets\": [26, 32]},"
        "\"d\": {\"dtype\": \"F64\", \"shape\": [2], \"data_offsets\": [32, 48]},"
        "\"\\u00e9\\n\": {\"dtype\": \"I64\", \"shape\": [1], \"data_offsets\": [48, 56]},"
        "\"last\": {\"dtype\": \"U8\", \"shape\": [0], \"data_offsets\": [56, 56]}}   ";
    unsigned char file[2048];
    const size_t size = make_file(file, header, strlen(header), 56);
    const float b[6] = {1, -2.5f, 3e38f, 1e-45f, 0, INFINITY};
    const uint16_t a = 0xC040, h[3] = {0x3C00, 0x0001, 0xFC00}; // -3; 1, 2^-24, -infinity
    const double d[2] = {1 / 3.0, 1e300};
    unsigned char* data = file + 8 + strlen(header);
    memcpy(data, &a, 2);
    memcpy(data + 2, b, 24);
    memcpy(data + 26, h, 6);
    memcpy(data + 32, d, 16);
    SafeTensors st;
    Error error = {""};
    if (!check(safetensors_open(&st, write_bytes("hand.safetensors", file, size), &error),
               "a file written by hand is read%s", error.text))
        return;
    int found = 0;
    for (int64_t i = 0; i < st.count; i++) found += safetensors_find(&st, st.tensors[i].name) == &st.tensors[i];
    check(st.count == 7 && found == 7 && !safetensors_find(&st, "") && !safetensors_find(&st, "aa") &&
              !safetensors_find(&st, "zz") && !safetensors_find(&st, "__metadata__") &&
              safetensors_find(&st, "\xC3\xA9\n"),
          "each tensor is found by its decoded name, and nothing else");
    const SafeTensor* t = safetensors_find(&st, "b");
    char text[64];
    check(t->offset % 2 == 1 && t->dtype == SAFE_F32 && t->ndim == 2 && t->elements == 6 && t->bytes == 24 &&
              strcmp(safetensors_shape_text(text, sizeof text, t), "(2, 3)") == 0,
          "b is %s %s", safe_dtypes[t->dtype].name, safetensors_shape_text(text, sizeof text, t));
    test_ranges(&st, b);
    safetensors_close(&st);
    test_lengths(file, size);
}

typedef struct {
    const char* header;
    size_t data_bytes;
    bool right;
} Header;

// A header of one tensor.
#define A(dtype, shape, offsets) "{\"a\":" T(dtype, shape, offsets) "}"
#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const Header headers[] = {
    {"{}", 0, true},
    {"{}   ", 0, true},
    {"{\"__metadata__\":{}}", 0, true},
    {A("F32", "[1]", "[0,4]"), 4, true},
    {A("F32", "[]", "[0,4]"), 4, true},
    {"{\"\":" T("F32", "[]", "[0,4]") "}", 4, true},
    {A("F32", "[0]", "[0,0]"), 0, true},
    {A("F32", "[1,1,1,1,1,1,1,1]", "[0,4]"), 4, true},
    {A("F4", "[2]", "[0,1]"), 1, true},
    {A("F6_E2M3", "[4]", "[0,3]"), 3, true},
    {A("F4", "[4611686018427387904,0]", "[0,0]"), 0, true},
    {"{\"a\":" T("F32", "[0]", "[4,4]") ",\"b\":" T("U8", "[4]", "[0,4]") "}", 4, true},
    {"{\"c\":" T("U8", "[1]", "[3,4]") ",\"b\":" T("U8", "[2]", "[1,3]") ",\"a\":" T("U8", "[1]", "[0,1]") "}", 4,
     true},
    // not such a file, or not JSON
    {"", 0, false},
    {"[]", 0, false},
    {"{", 0, false},
    {"{\"a\":" T("F32", "[1]", "[0,4]") ",}", 4, false},
    {"{\"a\\u0000b\":" T("F32", "[1]", "[0,4]") "}", 4, false},
    {"{\"__metadata__\\u0000\":{}}", 0, false},
    // what a tensor is
    {"{\"a\":1}", 0, false},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, false},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, false},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, false},
    {"{\"a\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, false},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, false},
    {A("f32", "[1]", "[0,4]"), 4, false},
    {A("F32\\u0000", "[1]", "[0,4]"), 4, false},
    {A("F32", "[-1]", "[0,4]"), 4, false},
    {A("F32", "[1.0]", "[0,4]"), 4, false},
    {A("F32", "[18446744073709551617]", "[0,4]"), 4, false},
    {A("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, false},
    {A("F4", "[3]", "[0,2]"), 2, false},
    // sizes whose product is, modulo 2^64 or 2^63, the size of the data
    {A("F32", "[4294967296,4294967296]", "[0,0]"), 0, false},
    {A("F32", "[4611686018427387905]", "[0,4]"), 4, false},
    {A("F32", "[4294967296,4294967296,0]", "[0,0]"), 0, false},
    // where it is
    {A("F32", "[1]", "[0]"), 4, false},
    {A("F32", "[1]", "[0,18446744073709551620]"), 4, false},
    {A("F32", "[1]", "[-4,0]"), 4, false},
    {A("F32", "[1]", "[0,4]"), 3, false},
    {A("F32", "[1]", "[0,3]"), 4, false},
    {A("F32", "[0]", "[0,4]"), 4, false},
    // holes and overlaps
    {A("F32", "[1]", "[4,8]"), 8, false},
    {"{\"a\":" T("U8", "[4]", "[0,4]") ",\"b\":" T("U8", "[3]", "[5,8]") "}", 8, false},
    {A("U8", "[4]", "[0,4]"), 5, false},
    {"{}", 1, false},
    {"{\"a\":" T("U8", "[5]", "[0,5]") ",\"b\":" T("U8", "[4]", "[4,8]") "}", 8, false},
    {"{\"a\":" T("U8", "[8]", "[0,8]") ",\"b\":" T("U8", "[8]", "[0,8]") "}", 8, false},
    {A("U8", "[0]", "[0,0]"), 8, false},
};

static void test_headers(void) {
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        const size_t header_bytes = strlen(headers[i].header), size = 8 + header_bytes + headers[i].data_bytes;
        unsigned char* file = (unsigned char*)checked_malloc(size, "a file");
        make_file(file, headers[i].header, header_bytes, headers[i].data_bytes);
        SafeTensors st;
        Error error = {""};
        const bool ok = safetensors_parse(&st, "header", file, size, &error);
        check(ok == headers[i].right && (ok || (strncmp(error.text, "header:", 7) == 0 && !st.tensors)), "%.110s: %s",
              headers[i].header, error.text);
        if (ok) safetensors_close(&st);
        free(file);
    }
}

// The first 8 bytes, the size of the header, and files that are none.
static void test_not_files(void) {
    SafeTensors st;
    Error error;
    unsigned char file[32] = {0};
    const uint64_t lengths[] = {25, 1ull << 32, 1ull << 62, 1ull << 63, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memcpy(file, &lengths[i], 8);
        check(!safetensors_parse(&st, "length", file, sizeof file, &error), "%s", error.text);
    }
    const size_t large = 8 + SAFE_MAX_HEADER + 1; // a header of 100 MB and one byte, of spaces
    unsigned char* spaces = (unsigned char*)checked_malloc(large, "a large header");
    memset(spaces, ' ', large);
    memcpy(spaces + 8, "{}", 2);
    const uint64_t length = SAFE_MAX_HEADER + 1;
    memcpy(spaces, &length, 8);
    check(!safetensors_parse(&st, "spaces", spaces, large, &error), "%s", error.text);
    free(spaces);
    check(!safetensors_open(&st, "nowhere", &error) && !safetensors_open(&st, own_folder, &error), "%s", error.text);
    check(!safetensors_open(&st, write_bytes("empty", "", 0), &error), "%s", error.text);
}

// ---- Writing ----------------------------------------------------------------------------------------------------

// The bytes of a small plan, all of them.
static void test_plan_bytes(void) {
    SafeTensor tensors[] = {tensor_of("w\"1", SAFE_BF16, 2, 2, 3, 0), tensor_of("x", SAFE_F32, 0, 0, 0, 0),
                            tensor_of("e", SAFE_F4, 1, 2, 0, 0), tensor_of("y", SAFE_F32, 1, 2, 0, 0)};
    const SafeMetadata metadata[] = {{"format", "pt"}, {"k\n", ""}};
    const char* json = "{\"__metadata__\":{\"format\":\"pt\",\"k\\n\":\"\"},"
                       "\"w\\\"1\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[12,24]},"
                       "\"x\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                       "\"e\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[24,25]},"
                       "\"y\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}";
    const size_t bytes = round_up(strlen(json), 8);
    SafeTensorsLayout plan;
    Error error = {""};
    if (!check(safetensors_layout(&plan, tensors, 4, metadata, 2, &error), "a plan is made%s", error.text)) return;
    bool padded = plan.header_bytes == (int64_t)bytes + 8 && memcmp(plan.header + 8, json, strlen(json)) == 0;
    for (size_t i = strlen(json); padded && i < bytes; i++) padded = plan.header[8 + i] == ' ';
    uint64_t length;
    memcpy(&length, plan.header, 8);
    check(padded && length == bytes, "its header is %.*s", (int)bytes, plan.header + 8);
    check(plan.file_bytes == plan.header_bytes + 25, "its file has %lld bytes", (long long)plan.file_bytes);
    const int64_t offsets[] = {12, 0, 24, 4};
    bool placed = true;
    for (int i = 0; i < 4; i++) placed = placed && tensors[i].offset == plan.header_bytes + offsets[i];
    check(placed && tensors[0].elements == 6 && tensors[0].bytes == 12 && tensors[1].elements == 1,
          "the tensors lie where they should");
    safetensors_layout_free(&plan);
    check(safetensors_layout(&plan, NULL, 0, NULL, 0, &error) && plan.file_bytes == 16 &&
              memcmp(plan.header + 8, "{}      ", 8) == 0,
          "a plan of nothing");
    safetensors_layout_free(&plan);
}

static void test_plan_refused(void) {
    enum { MANY = 9 };
    static const char* names[MANY] = {"0", "1", "2", "3", "4", "5", "6", "7", "8"};
    SafeTensor many[MANY], huge = tensor_of("huge", SAFE_F32, 3, 1 << 21, 1 << 21, 1 << 21);
    SafeTensorsLayout plan;
    Error error;
    for (int i = 0; i < MANY; i++) many[i] = tensor_of(names[i], SAFE_U8, 1, (1ll << 60) - 1, 0, 0);
    check(!safetensors_layout(&plan, &huge, 1, NULL, 0, &error) && !plan.header, "%s", error.text);
    check(!safetensors_layout(&plan, many, 8, NULL, 0, &error) && !plan.header, "with a header: %s", error.text);
    check(!safetensors_layout(&plan, many, 9, NULL, 0, &error) && !plan.header, "the data alone: %s", error.text);
}

// The elements of a tensor that are not read as the file's bytes define them.
static int wrong_values(const SafeTensors* st, const SafeTensor* t, const unsigned char* content) {
    const int bits = safe_dtypes[t->dtype].bits, exponent = t->dtype == SAFE_F16 ? 5 : 8;
    const bool readable = t->dtype == SAFE_F32 || t->dtype == SAFE_F16 || t->dtype == SAFE_BF16;
    float* values = (float*)checked_malloc((size_t)t->elements * sizeof(float), "values");
    Error error;
    int wrong =
        (t->offset % (bits / 8) != 0) + (safetensors_read_f32(values, st, t, 0, t->elements, &error) != readable);
    const int64_t n = readable ? t->elements : 0;
    for (int64_t e = 0; e < n; e++) {
        uint64_t word = 0;
        for (int b = bits / 8; b-- > 0;) word = word << 8 | content[t->offset + e * bits / 8 + b];
        const double expected = defined_value((uint32_t)word, exponent, bits - 1 - exponent);
        wrong += !same_value((double)values[e], expected);
    }
    free(values);
    return wrong;
}

// Files of random tensors, each element written by one of four processes; read back, also through a plain read().
static void test_round_trip(uint64_t seed) {
    enum { N = 23, PROCESSES = 4 };
    SafeTensor tensors[N];
    char names[N][32];
    for (int i = 0; i < N; i++) {
        const Random4 r = philox(seed, 1, (uint64_t)i);
        snprintf(names[i], sizeof names[i], "h.%d.%s", i, i % 3 ? "weight" : "\xC3\xA4\"\\");
        tensors[i] = tensor_of(names[i], (SafeDtype)(r.word[0] % SAFE_F6_E2M3), (int)(r.word[1] % 4), r.word[2] % 7,
                               r.word[2] / 7 % 11, r.word[3] % 13);
    }
    SafeTensorsLayout plan;
    SafeTensorsFile file;
    Error error = {""};
    const SafeMetadata metadata = {"format", "pt"};
    const char* path = "round.safetensors";
    if (!safetensors_layout(&plan, tensors, N, &metadata, 1, &error) || !safetensors_create(&file, path, &plan, &error))
        die("%s", error.text);
    // byte b of the file is a function of b
    unsigned char* content = (unsigned char*)checked_malloc((size_t)plan.file_bytes, "a file");
    for (int64_t b = 0; b < plan.file_bytes; b++) content[b] = (unsigned char)(b * 37 + b / 256);
    memcpy(content, plan.header, (size_t)plan.header_bytes);
    fflush(stdout);
    int failed = 0;
    for (int p = 0; p < PROCESSES; p++) {
        const pid_t pid = fork();
        if (pid < 0) die("cannot fork");
        if (pid == 0) { // its share of every tensor, in pieces
            SafeTensorsFile mine;
            bool ok = safetensors_join(&mine, path, &plan, &error);
            for (int i = 0; i < N && ok; i++) {
                const int64_t begin = tensors[i].offset + tensors[i].bytes * p / PROCESSES,
                              end = tensors[i].offset + tensors[i].bytes * (p + 1) / PROCESSES;
                for (int64_t at = begin; at < end && ok; at += 100)
                    ok = safetensors_write_at(&mine, at, content + at, min_i64(100, end - at), &error);
            }
            ok = ok && safetensors_finish(&mine, &error);
            if (!ok) fprintf(stderr, "%s\n", error.text);
            _exit(!ok);
        }
        int status;
        if (waitpid(pid, &status, 0) != pid || status != 0) failed++;
    }
    check(failed == 0 && safetensors_finish(&file, &error), "%d processes write one file, %d fail", PROCESSES, failed);
    MappedFile bytes;
    if (!file_map(&bytes, path, &error)) die("%s", error.text);
    check(bytes.size == (size_t)plan.file_bytes && memcmp(bytes.data, content, bytes.size) == 0,
          "its %zu bytes are those that were written", bytes.size);
    file_unmap(&bytes);

    SafeTensors st;
    if (!safetensors_open(&st, path, &error)) die("%s", error.text);
    int wrong = st.count != N;
    for (int i = 0; i < N; i++) {
        const SafeTensor *t = safetensors_find(&st, names[i]), *u = &tensors[i];
        if (!t || t->dtype != u->dtype || t->ndim != u->ndim ||
            memcmp(t->shape, u->shape, sizeof t->shape[0] * (size_t)u->ndim) != 0 || t->offset != u->offset ||
            t->bytes != u->bytes || t->elements != u->elements) {
            wrong++;
            continue;
        }
        wrong += wrong_values(&st, t, content) + (plan.header_bytes % 8 != 0);
    }
    check(wrong == 0, "seed %llu: %d tensors, %d wrong after reading", (unsigned long long)seed, N, wrong);
    safetensors_close(&st);
    safetensors_layout_free(&plan);
    free(content);
}

static void test_faults(void) {
    SafeTensor t = tensor_of("t", SAFE_U8, 1, 1000, 0, 0);
    SafeTensorsLayout plan;
    SafeTensorsFile file;
    Error error = {""};
    unsigned char data[1000];
    for (int i = 0; i < 1000; i++) data[i] = (unsigned char)(i * 7);
    if (!safetensors_layout(&plan, &t, 1, NULL, 0, &error)) die("%s", error.text);
    const char* path = "faults.safetensors";

    memset(&faults, 0, sizeof faults);
    faults.most = 7;
    faults.interrupts = 3;
    bool ok = safetensors_create(&file, path, &plan, &error);
    faults.interrupts = 3;
    ok = ok && safetensors_write_at(&file, t.offset, data, 1000, &error) && safetensors_finish(&file, &error);
    check(ok && faults.pwrites > 1000 / 7, "writes of 7 bytes and interrupted calls: %lld calls%s",
          (long long)faults.pwrites, error.text);
    SafeTensors st;
    ok = safetensors_open(&st, path, &error);
    check(ok && memcmp(st.data + t.offset, data, 1000) == 0, "and all bytes are there");
    if (ok) safetensors_close(&st);
    unlink(path);

    const int codes[] = {ENOSPC, EDQUOT, EFBIG, EIO, EINVAL};
    int* const failing[] = {&faults.fallocate_errno, &faults.pwrite_errno, &faults.fsync_errno};
    for (int i = 0; i < 15; i++) {
        const int call = i % 3; // the first two are safetensors_create's, the other safetensors_finish's
        memset(&faults, 0, sizeof faults);
        if (call >= 2 && !safetensors_create(&file, path, &plan, &error)) die("%s", error.text);
        *failing[call] = codes[i / 3];
        ok = call < 2 ? safetensors_create(&file, path, &plan, &error) : safetensors_finish(&file, &error);
        check(!ok && strstr(error.text, path) && strstr(error.text, strerror(codes[i / 3])) && file.fd < 0 &&
                  (access(path, F_OK) == 0) == (call >= 2),
              "%s", error.text);
        unlink(path);
    }
    memset(&faults, 0, sizeof faults);
    faults.nothing = true;
    check(!safetensors_create(&file, path, &plan, &error), "a write of nothing does not go on forever: %s", error.text);
    memset(&faults, 0, sizeof faults);
    faults.fallocate_errno = EOPNOTSUPP; // as on many network file systems
    check(safetensors_create(&file, path, &plan, &error) && safetensors_finish(&file, &error),
          "a file system that cannot reserve space");
    struct stat st_file;
    check(stat(path, &st_file) == 0 && st_file.st_size == plan.file_bytes, "the file has its size");
    memset(&faults, 0, sizeof faults);

    if (!safetensors_join(&file, path, &plan, &error)) die("%s", error.text);
    const int64_t bad[][2] = {{-1, 1}, {0, plan.file_bytes + 1}, {plan.file_bytes, 1},
                              {1, -1}, {1, INT64_MAX},           {INT64_MAX, 1}};
    int refused = 0;
    for (int i = 0; i < 6; i++) refused += !safetensors_write_at(&file, bad[i][0], data, bad[i][1], &error);
    check(refused == 6, "places outside the file: %d of 6 refused; %s", refused, error.text);
    if (!safetensors_finish(&file, &error)) die("%s", error.text);
    if (truncate(path, 100) != 0) die("cannot truncate %s", path);
    check(!safetensors_join(&file, path, &plan, &error), "%s", error.text);
    check(!safetensors_join(&file, "nowhere", &plan, &error) && !safetensors_create(&file, "nowhere/x", &plan, &error),
          "%s", error.text);
    safetensors_layout_free(&plan);
}

// More than 4 GB, of which only the last bytes are on the disk: no 32-bit number is on the way.
static void test_large(void) {
    const int64_t n = (1ll << 32) + 12345;
    SafeTensor tensors[] = {tensor_of("first", SAFE_U8, 1, n, 0, 0), tensor_of("wide", SAFE_F16, 2, 3, 1ll << 30, 0),
                            tensor_of("z", SAFE_I8, 1, 77, 0, 0)};
    SafeTensorsLayout plan;
    SafeTensorsFile file;
    Error error = {""};
    const char* path = "large.safetensors";
    memset(&faults, 0, sizeof faults);
    faults.fallocate_errno = EOPNOTSUPP; // a sparse file
    bool ok = safetensors_layout(&plan, tensors, 3, NULL, 0, &error) && safetensors_create(&file, path, &plan, &error);
    const int64_t element = 3 * (1ll << 30) - 1;
    const uint16_t value = 0x4248; // 3.140625
    const int64_t before = faults.pwrites;
    if (ok)
        ok = safetensors_write_at(&file, tensors[1].offset + 2 * element, &value, 2, &error) &&
             safetensors_finish(&file, &error);
    SafeTensors st;
    ok = ok && safetensors_open(&st, path, &error);
    if (!check(ok && faults.pwrites == before + 1, "a file of %lld bytes is written%s", (long long)plan.file_bytes,
               error.text))
        return;
    float out[3];
    const SafeTensor* t = safetensors_find(&st, "wide");
    check(t->elements == element + 1 && safetensors_read_f32(out, &st, t, element - 2, 3, &error) && out[1] == 0 &&
              out[2] == 3.140625f,
          "its element %lld is read", (long long)element);
    safetensors_close(&st);
    safetensors_layout_free(&plan);
    unlink(path);
    memset(&faults, 0, sizeof faults);
}

// ---- Models -----------------------------------------------------------------------------------------------------

static void model_refused(const char* name) {
    SafeTensorsModel model;
    Error error = {""};
    const bool refused = !safetensors_model_open(&model, name, &error);
    check(refused && !model.files && !model.path, "%s: %s", name, error.text);
    if (!refused) safetensors_model_close(&model);
}

// A model that is a file, a folder with one, and one with shards: its tensors a, b, ... in order, each in its file.
static void test_models(void) {
    static const struct {
        const char* path;
        int tensors, files;
        const char* of_b;
    } cases[] = {{"single/model.safetensors", 2, 1, "single/model"},
                 {"single", 2, 1, "single/model"},
                 {"shards", 4, 2, "shards/2"}};
    if (mkdir("single", 0777) != 0 || mkdir("shards", 0777) != 0 || mkdir("bare", 0777) != 0 ||
        mkfifo("pipe", 0666) != 0)
        die("cannot make folders");
    write_file("single/model.safetensors", "{\"b\":" T("BF16", "[2]", "[0,4]") ",\"a\":" T("F32", "[]", "[4,8]") "}",
               8);
    write_file(
        "shards/1.safetensors",
        "{\"c\":" T("U8", "[1]", "[0,1]") ",\"a\":" T("BF16", "[1]", "[1,3]") ",\"d\":" T("U8", "[1]", "[3,4]") "}", 4);
    write_file("shards/2.safetensors", "{\"b\":" T("BF16", "[2]", "[0,4]") "}", 4);
    write_text("shards/model.safetensors.index.json",
               "{\"metadata\":{\"total_size\":9},\"weight_map\":{\"d\":\"1.safetensors\",\"b\":\"2.safetensors\","
               "\"a\":\"1.safetensors\",\"c\":\"1.safetensors\"}}");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        SafeTensorsModel model;
        Error error = {""};
        const SafeTensors* file;
        float value = 0;
        if (!check(safetensors_model_open(&model, cases[i].path, &error), "model %s %s", cases[i].path, error.text))
            continue;
        bool ok = model.tensors == cases[i].tensors && model.file_count == cases[i].files;
        for (int k = 0; k < cases[i].tensors && ok; k++) {
            const char name[2] = {(char)('a' + k), 0};
            const SafeTensor* t = safetensors_model_find(&model, name, &file);
            ok = strcmp(safetensors_model_name(&model, k), name) == 0 && t && safetensors_find(file, name) == t &&
                 (strstr(file->path, cases[i].of_b) != NULL) == (k == 1 || cases[i].files == 1);
            if (ok && k == 1) ok = safetensors_read_f32(&value, file, t, 1, 1, &error);
        }
        check(ok && value == bf16_to_f32(0x0302), "  each tensor is found in its file, and one read");
        check(!safetensors_model_find(&model, "x", &file) && !file, "  one that is not there is not");
        safetensors_model_close(&model);
    }
}

static void test_models_refused(void) {
    static const char* const refused[] = {"{\"weight_map\":{\"a\":\"1.safetensors\",\"e\":\"5.safetensors\"}}",
                                          "{\"weight_map\":{\"a\":\"1.safetensors\",\"e\":\"3.safetensors\"}}",
                                          "{\"weight_map\":{}}",
                                          "{\"weight_map\":[]}",
                                          "{}",
                                          "[]",
                                          "",
                                          "{\"weight_map\":{\"a\":1}}",
                                          "{\"weight_map\":{\"a\":\"1.safetensors\\u0000\"}}",
                                          "{\"weight_map\":{\"a\":\"../single/model.safetensors\"}}",
                                          "{\"weight_map\":{\"a\":\"/etc/passwd\"}}",
                                          "{\"weight_map\":{\"a\":\"..\"}}",
                                          "{\"weight_map\":{\"a\":\".\"}}",
                                          "{\"weight_map\":{\"a\":\"\"}}",
                                          "{\"weight_map\":{\"a\":\"model.safetensors.index.json\"}}",
                                          "{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"4.safetensors\"}}"};
    write_bytes("shards/4.safetensors", "12345678", 8);
    write_file("shards/5.safetensors", "{\"a\":" T("U8", "[2]", "[0,2]") "}", 2);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        write_bytes("shards/model.safetensors.index.json", refused[i], strlen(refused[i]));
        model_refused("shards");
    }
    model_refused("bare");
    model_refused("nowhere");
    model_refused("pipe");
}

int main(void) {
    folder_begin("test_safetensors");
    test_float16();
    test_read();
    test_headers();
    test_not_files();
    test_plan_bytes();
    test_plan_refused();
    for (uint64_t seed = 1; seed <= 5; seed++) test_round_trip(seed);
    test_faults();
    test_large();
    test_models();
    test_models_refused();
    return folder_end();
}
