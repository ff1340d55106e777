/*
cublasLt.h: a model of the part of NVIDIA's cuBLASLt that kernels/matmul.cuh uses, for tests without a GPU:
-DUSE_CUBLASLT -Idev/test/fake, with dev/emulator/cuda_emulator.h. Names and numbers are those of the real header; what
the calls do is taken from its comments and from the documentation of CUDA 13.0 ("Using the cuBLASLt API"), as literally
as possible, and knows nothing of matmul.cuh:

    D = epilogue(alpha op(A) op(B) + beta C), all matrices column by column, sums in float32

It is stricter than the library, which may let pass what the documentation forbids: every attribute has one size;
descriptors, layouts and algorithms have to fit each other; C may be D only with the same layout; D overlaps no operand;
the workspace is as large as the algorithm wants, and is overwritten; pointers are device memory that goes as far as the
layouts say, and are aligned as those were that the heuristic saw; AUX has a leading dimension that is a multiple of 8.
Known from use: a bias has to be at a multiple of 16 bytes (PyTorch, pull request 194497).

Time is make-believe: products take what fake_cublaslt.milliseconds says, all else takes none, and events show that. On
zeros the order of the algorithms can be another than on numbers, as on a GPU, whose clock depends on power.
*/
#pragma once
#include "../../../kernels/cuda_utils.cuh"
#include <map>
#include <string>

// ---- What library_types.h, cublas_api.h and cublasLt.h declare --------------------------------------------------

enum cudaDataType { CUDA_R_32F = 0, CUDA_R_16BF = 14 };
enum cublasStatus_t {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_NOT_SUPPORTED = 15
};
enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68 };
enum cublasLtReductionScheme_t {
    CUBLASLT_REDUCTION_SCHEME_NONE = 0,
    CUBLASLT_REDUCTION_SCHEME_INPLACE = 1,
    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2,
    CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE = 4,
    CUBLASLT_REDUCTION_SCHEME_MASK = 7
};
enum cublasLtEpilogue_t {
    CUBLASLT_EPILOGUE_DEFAULT = 1,
    CUBLASLT_EPILOGUE_BIAS = 4,
    CUBLASLT_EPILOGUE_GELU_AUX = 32 | 128,
    CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 32 | 128 | 4,
    CUBLASLT_EPILOGUE_DGELU = 64 | 128
};
enum cublasLtMatmulDescAttributes_t {
    CUBLASLT_MATMUL_DESC_TRANSA = 3,                // int32_t
    CUBLASLT_MATMUL_DESC_TRANSB = 4,                // int32_t
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7,              // uint32_t
    CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,          // void*
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER = 11, // void*
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD = 12,      // int64_t
    CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET = 15       // int32_t
};
enum cublasLtMatmulPreferenceAttributes_t {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,   // uint64_t
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3, // uint32_t, as all below
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8
};

struct FakeLayout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t ld;
};
struct FakeOperation {
    int32_t op_a, op_b;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t aux_ld;
    int32_t sms; // multiprocessors; 0: all
};
struct FakePreference {
    uint64_t workspace;
    uint32_t reduction, align[4]; // of A, B, C, D
};
typedef struct FakeHandle* cublasLtHandle_t;
typedef FakeLayout* cublasLtMatrixLayout_t;
typedef FakeOperation* cublasLtMatmulDesc_t;
typedef FakePreference* cublasLtMatmulPreference_t;
struct cublasLtMatmulAlgo_t {
    uint64_t data[8];
};
struct cublasLtMatmulHeuristicResult_t {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
};

// ---- The algorithms ---------------------------------------------------------------------------------------------

struct FakeAlgorithm {
    uint64_t workspace;
    uint32_t reduction;
    bool packed; // reads and writes 16 bytes at a time: addresses and leading dimensions are multiples of that
    bool broken; // the state of the heuristic's result is not success
};
enum { FAKE_BROKEN, FAKE_LARGE, FAKE_OUTPUT, FAKE_INPLACE, FAKE_PACKED, FAKE_SPLIT, FAKE_SLOW, FAKE_SLOWEST };
enum { FAKE_ALGORITHMS = 8 };
// In the order of the time that the heuristic expects. Some must not be used: the first; and, unless the preference
// rules them out, that which needs more than 32 MB, and those with partial sums in the type of D, if that has 16 bits.
static const FakeAlgorithm FAKE_ALGORITHM[FAKE_ALGORITHMS] = {
    {0, CUBLASLT_REDUCTION_SCHEME_NONE, false, true},
    {(32 << 20) + 256, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, true, false},
    {1 << 20, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, false, false},
    {1 << 10, CUBLASLT_REDUCTION_SCHEME_INPLACE, false, false},
    {0, CUBLASLT_REDUCTION_SCHEME_NONE, true, false},
    {32 << 10, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, true, false},
    {0, CUBLASLT_REDUCTION_SCHEME_NONE, false, false},
    {1 << 10, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, false, false},
};

// What tests set and read.
struct FakeState {
    double milliseconds[FAKE_ALGORITHMS]; // that a product takes
    double epilogue_milliseconds;         // that it takes longer with an epilogue other than BIAS
    int copies;                           // of each algorithm that the heuristic offers, besides the first
    double copy_milliseconds;             // that each takes longer than the one before it
    double zeros_milliseconds;            // if not 0: a product that reads a matrix of zeros takes this minus its time
    bool no_epilogues;                    // the heuristic knows no epilogue other than BIAS
    bool no_algorithms;                   // the heuristic knows nothing
    bool no_products;                     // and what it knows fails
    int handles, heuristics, products;    // calls
    int algorithm;                        // of the last product
    uint32_t epilogue;
    int multiprocessors; // that the last product was told to use; 0: all
    double clock;        // milliseconds since the start
};
inline FakeState fake_cublaslt = {};

inline std::map<cudaEvent_t, double> fake_moments; // what the clock said when an event was recorded
inline cudaError_t fake_elapsed(float* milliseconds, cudaEvent_t from, cudaEvent_t to, cudaError_t status) {
    *milliseconds = (float)(fake_moments[to] - fake_moments[from]);
    return status;
}
// Inside, the same names are those of the emulator's functions.
#define cudaEventRecord(event, stream) (fake_moments[event] = fake_cublaslt.clock, cudaEventRecord(event, stream))
#define cudaEventElapsedTime(ms, from, to) fake_elapsed(ms, from, to, cudaEventElapsedTime(ms, from, to))

inline uint64_t fake_problem(const FakeOperation* o, const FakeLayout* a, const FakeLayout* b, const FakeLayout* d) {
    std::string text;
    for (const uint64_t x : {(uint64_t)o->op_a, (uint64_t)o->op_b, (uint64_t)o->epilogue, (uint64_t)o->aux_ld})
        text += std::to_string(x) + " ";
    for (const FakeLayout* l : {a, b, d})
        for (const uint64_t x : {(uint64_t)l->type, l->rows, l->columns, (uint64_t)l->ld})
            text += std::to_string(x) + " ";
    return std::hash<std::string>()(text);
}

inline uint64_t fake_size(cudaDataType t) { return t == CUDA_R_32F ? 4 : 2; }
inline uint64_t fake_bytes(const FakeLayout* l) {
    return ((l->columns - 1) * (uint64_t)l->ld + l->rows) * fake_size(l->type);
}
inline uint64_t fake_alignment(const void* p) { // of NULL: as good as can be
    const uint64_t lowest = (uintptr_t)p & -(uintptr_t)p;
    return lowest == 0 || lowest > 256 ? 256 : lowest;
}
inline bool fake_has_bias(uint32_t e) { return e & 4; }
inline bool fake_has_aux(uint32_t e) { return e & 128; }
inline bool fake_is_plain(uint32_t e) { return e == CUBLASLT_EPILOGUE_DEFAULT || e == CUBLASLT_EPILOGUE_BIAS; }

// Can there be such a product at all?
inline cublasStatus_t fake_check(const FakeOperation* o, const FakeLayout* a, const FakeLayout* b, const FakeLayout* c,
                                 const FakeLayout* d) {
    if (!o || !a || !b || !c || !d) return CUBLAS_STATUS_INVALID_VALUE;
    for (const FakeLayout* l : {a, b, c, d})
        if (l->rows == 0 || l->columns == 0 || l->ld < (int64_t)l->rows) return CUBLAS_STATUS_INVALID_VALUE;
    const uint64_t m = o->op_a ? a->columns : a->rows, k = o->op_a ? a->rows : a->columns;
    const uint64_t n = o->op_b ? b->rows : b->columns, other_k = o->op_b ? b->columns : b->rows;
    if (k != other_k || d->rows != m || d->columns != n || c->type != d->type || c->rows != m || c->columns != n)
        return CUBLAS_STATUS_INVALID_VALUE;
    // Table 1 of the documentation of cublasLtMatmul()
    if (a->type != b->type || (d->type != a->type && d->type != CUDA_R_32F)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (fake_has_aux(o->epilogue) && (o->aux_ld < (int64_t)m || o->aux_ld % 8)) return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

// ---- Descriptors ------------------------------------------------------------------------------------------------

inline const char* cublasLtGetStatusString(cublasStatus_t s) { return s ? "it is refused, or fails" : "success"; }
inline cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    fake_cublaslt.handles++;
    *handle = (cublasLtHandle_t)&fake_cublaslt;
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                                 uint64_t columns, int64_t ld) {
    *layout = new FakeLayout{type, rows, columns, ld};
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* o, cublasComputeType_t, cudaDataType scale) {
    if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    *o = new FakeOperation{CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, NULL, NULL, 0, 0};
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t fake_set(void* to, size_t size, const void* from, size_t from_size) {
    if (!from || from_size != size) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, from, size);
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t o, cublasLtMatmulDescAttributes_t attribute,
                                                     const void* from, size_t size) {
    if (!o) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return fake_set(&o->op_a, sizeof o->op_a, from, size);
    case CUBLASLT_MATMUL_DESC_TRANSB: return fake_set(&o->op_b, sizeof o->op_b, from, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return fake_set(&o->epilogue, sizeof o->epilogue, from, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return fake_set(&o->bias, sizeof o->bias, from, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return fake_set(&o->aux, sizeof o->aux, from, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return fake_set(&o->aux_ld, sizeof o->aux_ld, from, size);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
        if (*(const int32_t*)from < 1) break; // a negative one is refused, and 0 means all
        return fake_set(&o->sms, sizeof o->sms, from, size);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

inline cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* p) {
    *p = new FakePreference{0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                           cublasLtMatmulPreferenceAttributes_t attribute,
                                                           const void* from, size_t size) {
    if (!p) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return fake_set(&p->workspace, sizeof p->workspace, from, size);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return fake_set(&p->reduction, sizeof p->reduction, from, size);
    default: return fake_set(&p->align[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], 4, from, size);
    }
}

// ---- The heuristic ----------------------------------------------------------------------------------------------

inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t o,
                                                     cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                     cublasLtMatmulPreference_t p, int requested,
                                                     cublasLtMatmulHeuristicResult_t results[], int* returned) {
    if (!handle || requested <= 0 || !p || !results || !returned) return CUBLAS_STATUS_INVALID_VALUE;
    fake_cublaslt.heuristics++;
    *returned = 0;
    if (const cublasStatus_t status = fake_check(o, a, b, c, d)) return status;
    if (fake_cublaslt.no_algorithms || (fake_cublaslt.no_epilogues && !fake_is_plain(o->epilogue)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    const FakeLayout* const layouts[] = {a, b, c, d};
    bool packed = !fake_has_aux(o->epilogue) || (uintptr_t)o->aux % 16 == 0;
    for (int i = 0; i < 4; i++) {
        packed = packed && p->align[i] % 16 == 0 && (uint64_t)layouts[i]->ld * fake_size(layouts[i]->type) % 16 == 0;
        if (p->align[i] < fake_size(layouts[i]->type)) return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    const int each = 1 + fake_cublaslt.copies;
    for (int i = 0; i < FAKE_ALGORITHMS * each && *returned < requested; i++) {
        const FakeAlgorithm* f = &FAKE_ALGORITHM[i / each];
        if ((f->packed && !packed) || f->workspace > p->workspace || (f->reduction & ~p->reduction)) continue;
        cublasLtMatmulHeuristicResult_t* r = &results[(*returned)++];
        memset(r, 0xff, sizeof *r);
        r->state = f->broken ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
        if (f->broken) continue;
        r->workspaceSize = f->workspace;
        r->algo = {{(uint64_t)(i / each), fake_problem(o, a, b, d), fake_alignment(o->bias), fake_alignment(o->aux),
                    (uint64_t)(i % each)}};
    }
    return CUBLAS_STATUS_SUCCESS;
}

// ---- The product ------------------------------------------------------------------------------------------------

inline float fake_load(const void* p, cudaDataType type, int64_t i) {
    return type == CUDA_R_32F ? ((const float*)p)[i] : (float)((const bf16*)p)[i];
}
inline float fake_round(float v, cudaDataType type) { return type == CUDA_R_32F ? v : (float)(bf16)v; }
inline void fake_store(void* p, cudaDataType type, int64_t i, float v) {
    if (type == CUDA_R_32F) ((float*)p)[i] = v;
    if (type == CUDA_R_16BF) ((bf16*)p)[i] = (bf16)v;
}

inline double fake_tanh(double x) { return tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)); }
inline double fake_gelu(double x) { return 0.5 * x * (1 + fake_tanh(x)); }
inline double fake_gelu_slope(double x) {
    const double t = fake_tanh(x);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.79788456080286535588 * (1 + 3 * 0.044715 * x * x);
}

struct FakeProduct {
    FakeOperation o;
    FakeLayout a, b, c, d;
    FakeAlgorithm algorithm;
    float alpha, beta;
    const void *A, *B, *C;
    void *D, *workspace;
};

inline void fake_multiply(const FakeProduct& p) {
    const FakeOperation& o = p.o;
    const int64_t m = (int64_t)p.d.rows, n = (int64_t)p.d.columns;
    const int64_t k = (int64_t)(o.op_a ? p.a.rows : p.a.columns);
    if (p.algorithm.workspace) memset(p.workspace, 0xff, p.algorithm.workspace);
    const int parts = p.algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_NONE ? 1 : 4;
    const cudaDataType partial =
        p.algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE ? CUDA_R_32F : p.d.type;
    // From one number of op(A)'s row, or of op(B)'s column, to the next, and from a row or column to the next.
    const int64_t a_next = o.op_a ? 1 : p.a.ld, a_row = o.op_a ? p.a.ld : 1;
    const int64_t b_next = o.op_b ? p.b.ld : 1, b_column = o.op_b ? 1 : p.b.ld;
    for (int64_t j = 0; j < n; j++) {
        for (int64_t i = 0; i < m; i++) {
            float sum = 0;
            for (int part = 0; part < parts; part++) {
                float s = 0;
                for (int64_t l = k * part / parts; l < k * (part + 1) / parts; l++)
                    s += fake_load(p.A, p.a.type, i * a_row + l * a_next) *
                         fake_load(p.B, p.b.type, j * b_column + l * b_next);
                if (parts > 1) s = fake_round(sum + fake_round(s, partial), partial);
                sum = s;
            }
            float v = p.alpha * sum;
            if (p.beta != 0) v += p.beta * fake_load(p.C, p.c.type, i + j * p.c.ld);
            if (fake_has_bias(o.epilogue)) v += fake_load(o.bias, p.d.type, i);
            if (o.epilogue & 32) {
                fake_store(o.aux, p.d.type, i + j * o.aux_ld, v);
                v = (float)fake_gelu(v);
            }
            if (o.epilogue == CUBLASLT_EPILOGUE_DGELU)
                v *= (float)fake_gelu_slope(fake_load(o.aux, p.d.type, i + j * o.aux_ld));
            fake_store(p.D, p.d.type, i + j * p.d.ld, v);
        }
    }
}

inline bool fake_device(const void* p, uint64_t bytes) { return cuda_on_cpu::memory.has(p, bytes); }
inline bool fake_overlap(const void* p, uint64_t p_bytes, const void* q, uint64_t q_bytes) {
    return (const char*)p < (const char*)q + q_bytes && (const char*)q < (const char*)p + p_bytes;
}

// Whether a matrix that the product reads has nothing but zeros, or NaN.
inline bool fake_reads_zeros(const FakeProduct& p) {
    cudaStreamSynchronize(0);
    const cuda_on_cpu::InUse in_use;
    const auto zeros = [](const void* x, const FakeLayout& l) {
        for (int64_t i = 0; i < (int64_t)(l.rows * l.columns); i++)
            if (fabsf(fake_load(x, l.type, i)) > 0) return false;
        return true;
    };
    return zeros(p.A, p.a) || zeros(p.B, p.b) || (p.beta != 0 && zeros(p.C, p.c)) ||
           (p.o.epilogue == CUBLASLT_EPILOGUE_DGELU && zeros(p.o.aux, p.d));
}

inline cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t o, const void* alpha, const void* A,
                                     cublasLtMatrixLayout_t a, const void* B, cublasLtMatrixLayout_t b,
                                     const void* beta, const void* C, cublasLtMatrixLayout_t c, void* D,
                                     cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algo, void* workspace,
                                     size_t workspace_bytes, cudaStream_t stream) {
    if (const cublasStatus_t status = fake_check(o, a, b, c, d)) return status;
    if (!handle || !alpha || !A || !B || !beta || !C || !D || !algo || algo->data[0] >= FAKE_ALGORITHMS ||
        algo->data[1] != fake_problem(o, a, b, d))
        return CUBLAS_STATUS_INVALID_VALUE;
    const FakeAlgorithm f = FAKE_ALGORITHM[algo->data[0]];
    if (f.workspace > workspace_bytes || (uintptr_t)workspace % 256 || !fake_device(workspace, workspace_bytes))
        return CUBLAS_STATUS_INVALID_VALUE;
    const uint64_t sizes[] = {fake_bytes(a), fake_bytes(b), fake_bytes(c), fake_bytes(d)};
    const void* const matrices[] = {A, B, C, D};
    for (int i = 0; i < 3; i++)
        if (i == 2 && C == D ? c->ld != d->ld : fake_overlap(matrices[i], sizes[i], D, sizes[3]))
            return CUBLAS_STATUS_INVALID_VALUE;
    for (int i = 0; i < 4; i++)
        if (!fake_device(matrices[i], sizes[i])) return CUBLAS_STATUS_EXECUTION_FAILED;
    uintptr_t addresses = (uintptr_t)A | (uintptr_t)B | (uintptr_t)C | (uintptr_t)D;
    if (fake_has_bias(o->epilogue)) {
        if (!fake_device(o->bias, d->rows * fake_size(d->type)) || (uintptr_t)o->bias % 16 ||
            fake_alignment(o->bias) < algo->data[2])
            return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    if (fake_has_aux(o->epilogue)) {
        const FakeLayout aux = {d->type, d->rows, d->columns, o->aux_ld};
        if (!o->aux || fake_overlap(o->aux, fake_bytes(&aux), D, sizes[3])) return CUBLAS_STATUS_INVALID_VALUE;
        if (!fake_device(o->aux, fake_bytes(&aux)) || fake_alignment(o->aux) < algo->data[3])
            return CUBLAS_STATUS_EXECUTION_FAILED;
        addresses |= (uintptr_t)o->aux;
    }
    if (f.packed && addresses % 16) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (fake_cublaslt.no_products) return CUBLAS_STATUS_NOT_SUPPORTED;
    const FakeProduct p = {*o, *a, *b, *c, *d, f, *(const float*)alpha, *(const float*)beta, A, B, C, D, workspace};
    double ms = fake_cublaslt.milliseconds[algo->data[0]];
    if (!fake_is_plain(o->epilogue)) ms += fake_cublaslt.epilogue_milliseconds;
    ms += (double)algo->data[4] * fake_cublaslt.copy_milliseconds;
    if (fake_cublaslt.zeros_milliseconds != 0 && fake_reads_zeros(p)) ms = fake_cublaslt.zeros_milliseconds - ms;
    fake_cublaslt.products++;
    fake_cublaslt.algorithm = (int)algo->data[0];
    fake_cublaslt.epilogue = o->epilogue;
    fake_cublaslt.multiprocessors = o->sms;
    fake_cublaslt.clock += ms;
    cuda_on_cpu::stream_push(stream, [=] {
        fake_multiply(p);
        return true;
    });
    return CUBLAS_STATUS_SUCCESS;
}
