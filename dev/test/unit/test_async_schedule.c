/*
test_async_schedule.c: is the schedule of messages between sites right, and is every command line without a meaning
refused?

    sends, merges, flies       against another form of the rule, for all H and P up to 16, all delays
                               and a walk with a list of the sums in flight: every sum is merged once, before the next
                               one of its fragment or with it
    settings                   the plan and the defaults of each mode; wrong command lines and the options they name
    async_schedule_fragment    every tensor of every published model is in one fragment, the same on every mesh; buckets
                               are not divided
    async_schedule_traffic     against a walk that adds up operation by operation
    async_schedule_draw, async_schedule_text    letter by letter; a plan's text changes with each of its fields

One process. --short: fewer meshes.
*/
#pragma GCC diagnostic ignored "-Wunused-function" // of what the settings need this file uses a part
#include "../../../trainer/settings.h"

#include "../../../kernels/async_dp.h"
#include "test.h"
#include <setjmp.h>

// ---- The rule, in another form ----------------------------------------------------------------------------------

// The step of the first round in which fragment f of P is sent: 1 to H.
static int64_t first_sending(int64_t H, int P, int f) { return (f + 1) * H / P; }

static bool is_sent(int64_t H, int P, int f, int64_t t) {
    for (int64_t sent = first_sending(H, P, f); sent <= t; sent += H) {
        if (sent == t) return true;
    }
    return false;
}

static AsyncConfig plan_of(int64_t H, int P, int64_t delay) {
    AsyncConfig r = {};
    r.mode = DP_DILOCO;
    r.sites = 2;
    r.period = H;
    r.fragments = P;
    r.delay = delay;
    r.bits = 32;
    return r;
}

// Walks through four periods with the sums in flight: in each step first the sum sent `delay` steps before is merged,
// then one is sent. True if each sum is merged once, at most one of a fragment is in flight, and no two fragments share
// a step.
static bool walk_is_right(int64_t H, int P, int64_t delay) {
    int64_t in_flight[64] = {0}; // the step of the sending, 0: nothing
    for (int64_t t = 1; t <= 4 * H; t++) {
        int sent = 0;
        for (int f = 0; f < P; f++) {
            if (in_flight[f] && in_flight[f] + delay == t) in_flight[f] = 0;
            if (in_flight[f] && in_flight[f] + delay < t) return false; // never merged
            if (!is_sent(H, P, f, t)) continue;
            sent++;
            if (in_flight[f]) return false;
            in_flight[f] = delay > 0 ? t : 0;
        }
        if (sent > 1) return false;
    }
    return true;
}

// The last step whose work has been merged by the end of step `last`, for the fragment that is behind most: by walking.
// Eager merging has a site's own part at once.
static int64_t walk_learned(const AsyncConfig* r, int64_t last) {
    int64_t learned = last;
    for (int f = 0; f < r->fragments; f++) {
        int64_t mine = 0;
        for (int64_t t = 1; t <= last; t++) {
            if (is_sent(r->period, r->fragments, f, t) && (r->eager || t + r->delay <= last)) mine = t;
        }
        if (mine < learned) learned = mine;
    }
    return learned;
}

static void test_learned(void) {
    int64_t wrong = 0, asked = 0;
    for (int64_t H = 1; H <= 9; H++) {
        for (int P = 1; P <= H; P++) {
            for (int64_t delay = 0; delay <= H + 1; delay++) { // H + 1: eager
                AsyncConfig r = plan_of(H, P, min_i64(delay, H));
                r.eager = delay > H;
                for (int64_t last = 1; last <= 4 * H; last++, asked++)
                    wrong += async_schedule_learned(&r, last) != walk_learned(&r, last);
            }
        }
    }
    check(wrong == 0, "what the common point has learned: %lld cases, %lld wrong", (long long)asked, (long long)wrong);
    Error error;
    const AsyncConfig r = plan_of(8, 3, 0);
    check(async_schedule_fit(&r, 3, &error) && !async_schedule_fit(&r, 2, &error) && strstr(error.text, "--fragments"),
          "three fragments of three blocks, not of two: %s", error.text);
}

static void test_rule(void) {
    int64_t wrong_sends = 0, wrong_merges = 0, wrong_flies = 0, wrong_rounds = 0, wrong_walks = 0, asked = 0;
    for (int64_t H = 1; H <= 16; H++) {
        for (int P = 1; P <= H; P++) {
            for (int64_t delay = 0; delay <= H; delay++) {
                const AsyncConfig r = plan_of(H, P, delay);
                wrong_walks += !walk_is_right(H, P, delay);
                for (int f = 0; f < P; f++) {
                    bool flies = false;
                    int64_t last = 0, in_round = 0;
                    for (int64_t t = -2; t <= 4 * H; t++, asked++) {
                        const bool sent = is_sent(H, P, f, t), merged = t - delay > 0 && is_sent(H, P, f, t - delay);
                        if (merged && delay > 0) flies = false;
                        if (sent) flies = delay > 0;
                        if (sent) last = t;
                        wrong_sends += async_schedule_sends(&r, f, t) != sent;
                        wrong_merges += async_schedule_merges(&r, f, t) != merged;
                        wrong_flies += async_schedule_flies(&r, f, t) != flies;
                        in_round = t > 0 ? in_round + sent : 0;
                        if (t <= 0 || t % H != 0) continue;
                        wrong_rounds += in_round != 1;
                        in_round = 0;
                    }
                    wrong_rounds += last <= 3 * H;
                }
            }
        }
    }
    check(wrong_sends == 0, "what is sent when: %lld steps of all plans up to 16, %lld wrong", (long long)asked,
          (long long)wrong_sends);
    check(wrong_merges == 0, "what is merged when: %lld wrong", (long long)wrong_merges);
    check(wrong_walks == 0, "every sum is merged once, at most one of a fragment in flight: %lld wrong",
          (long long)wrong_walks);
    check(wrong_flies == 0, "what is in flight: %lld wrong", (long long)wrong_flies);
    check(wrong_rounds == 0, "every fragment is sent once a round: %lld wrong", (long long)wrong_rounds);
}

// ---- Command lines ----------------------------------------------------------------------------------------------

static jmp_buf back;
static void jump_back(int status) { longjmp(back, status); }

typedef struct {
    int status; // 0: accepted
    char text[2048];
    Settings settings;
    Mesh mesh;
    AsyncConfig config;
} Read;

// Reads a command line as the trainer does, up to the plan, on one of `ranks` ranks.
static void read_settings(Read* read, const char* line, int ranks) {
    static char words[1024];
    char* argv[64] = {(char*)"train_gpt"};
    int argc = 1;
    snprintf(words, sizeof words, "%s", line);
    for (char* word = strtok(words, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    Settings* o = &read->settings;
    *o = settings_default();
    Option table[MAX_OPTIONS];
    const int n = settings_table(table, o);
    Error error;
    if (!options_parse(table, n, argc, argv, &error)) die_usage("%s", error.text);
    check_settings(o);
    settings_schedule(o, option_given(table, n, "schedule"));
    read->mesh = settings_mesh(o, 0, ranks);
    read->config = settings_async(o, &read->mesh);
}

// The same where it may be refused: what is said goes to text.
static void try_settings(Read* read, const char* line, int ranks) {
    static FILE* said = NULL;
    memset(read, 0, sizeof *read);
    if (!said) said = tmpfile();
    fflush(stderr);
    const int stderr_was = dup(2);
    if (!said || stderr_was < 0 || ftruncate(fileno(said), 0) != 0 || lseek(fileno(said), 0, SEEK_SET) != 0) {
        printf("FAIL  no temporary file\n");
        exit(1);
    }
    dup2(fileno(said), 2);
    process.stop = jump_back;
    const int status = setjmp(back);
    if (status == 0) read_settings(read, line, ranks);
    process.stop = NULL;
    read->status = status;
    fflush(stderr);
    dup2(stderr_was, 2);
    close(stderr_was);
    const ssize_t bytes = pread(fileno(said), read->text, sizeof read->text - 1, 0);
    read->text[bytes > 0 ? bytes : 0] = 0;
    read->text[strcspn(read->text, "\n")] = 0;
}

// Every option with every mode: those that a mode does not have are refused, by the option's name and the mode's.
static void test_options_of_modes(void) {
    static const struct {
        const char* option;
        bool has[DP_DILOCO + 1]; // by mode
    } options[] = {
        {"--outer-delay 1", {false, true, true, true}},   {"--dc-lambda 0", {false, true, true, false}},
        {"--local-steps 8", {false, false, false, true}}, {"--fragments 1", {false, false, false, true}},
        {"--outer-lr 0.5", {false, false, false, true}},  {"--outer-momentum 0", {false, false, false, true}},
        {"--outer-alpha 0", {false, false, false, true}}, {"--eager", {false, false, false, true}},
        {"--outer-bits 2", {false, false, false, true}},  {"--outer-top-k 32", {false, false, false, true}},
    };
    Read read;
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        for (int mode = DP_SYNC; mode <= DP_DILOCO; mode++) {
            char line[128], name[32];
            snprintf(line, sizeof line, "--dp-mode %s %s", dp_mode_names[mode], options[i].option);
            snprintf(name, sizeof name, "%.*s", (int)strcspn(options[i].option, " "), options[i].option);
            try_settings(&read, line, 2);
            const bool refused =
                read.status == EXIT_ARGUMENTS && strstr(read.text, name) && strstr(read.text, dp_mode_names[mode]);
            check(options[i].has[mode] ? read.status == 0 : refused, "%s -> %s", line,
                  read.status ? read.text : "accepted");
        }
    }
}

// A line, the ranks that it is for, and the option that the message names.
static const struct {
    const char* line;
    int ranks;
    const char* names;
} refusals[] = {
    // values that do not fit
    {"--dp-mode delayed --outer-delay 2", 2, "--outer-delay 2"},
    {"--dp-mode dc-s3gd --outer-delay 7", 2, "--outer-delay 7"},
    {"--dp-mode diloco --local-steps 8 --outer-delay 9", 2, "--outer-delay 9"},
    {"--dp-mode diloco --local-steps 8 --outer-delay 8 --outer-alpha 0.5", 2, "--outer-alpha"},
    {"--dp-mode diloco --local-steps 8 --fragments 9", 2, "--fragments 9"},
    {"--dp-mode diloco --eager --outer-delay 0", 2, "--outer-delay"},
    {"--dp-mode diloco --eager --outer-alpha 0", 2, "--outer-alpha"},
    {"--dp-mode diloco --outer-bits 16", 2, "--outer-bits"},
    {"--dp-mode diloco --outer-top-k 0", 2, "--outer-top-k"},
    {"--dp-mode diloco --outer-top-k 4097", 2, "--outer-top-k"},
    {"--dp-mode diloco --eager --outer-top-k 64", 2, "--outer-top-k"},
    {"--dp-mode diloco --eager --outer-bits 2 --outer-error-decay 0.9", 2, "--outer-error-decay"},
    {"--dp-mode diloco --outer-error-decay 0.9", 2, "--outer-error-decay"},
    {"--dp-mode dc-s3gd --outer-error-decay 0.9", 2, "--outer-error-decay"},
    {"--dp-mode diloco --outer-top-k 64 --zero 1", 2, "--zero 1"},
    // sites
    {"--sites 3", 4, "--sites 3"},
    {"--dp-mode diloco --sites 4 --tp 2", 4, "--sites 4"},
    {"--dp-mode delayed --sites 4 --pp 2", 4, "--sites 4"},
    // ZeRO
    {"--dp-mode dc-s3gd --zero 1", 2, "--zero 1"},
    {"--dp-mode diloco --zero 2", 2, "--zero 2"},
    {"--dp-mode delayed --zero 2", 2, "--zero 2"},
    {"--dp-mode delayed --zero 1 --sites 2", 4, "--zero 1"},
    {"--dp-mode delayed --zero 1 --sites 1", 2, "--sites 1"},
    {"--zero 1 --sites 2", 4, "--sites 2"},
    {"--zero 2 --sites 4", 4, "--zero 2"},
    // without effect
    {"--dp-mode delayed --outer-delay 0 --dc-lambda 1 --sites 1", 4, "--dc-lambda 1"},
    {"--dp-mode dc-s3gd --outer-delay 0 --dc-lambda 0.2", 4, "--dc-lambda 0.2"},
    {"--optimizer sgd --beta2 0.9", 4, "--beta2"},
    {"--optimizer sgd --eps 1e-3", 4, "--eps"},
    {"--optimizer sgd --muon-momentum 0.9", 4, "--muon-momentum"},
    {"--dp-mode delayed --zero 1 --optimizer muon", 2, "--zero"},
    {"--dp-mode diloco --steps 31", 4, "--steps 31"},
    {"--dp-mode diloco --steps 32 --outer-delay 1", 4, "--steps 32"},
    {"--dp-mode diloco --steps 31 --eager", 4, "--steps 31"},
};

static void test_refusals(void) {
    Read read;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        try_settings(&read, refusals[i].line, refusals[i].ranks);
        check(read.status == EXIT_ARGUMENTS && strstr(read.text, refusals[i].names), "%s -> %s", refusals[i].line,
              read.status ? read.text : "accepted");
    }
}

// What is accepted, and the plan that it means.
static const struct {
    const char* line;
    int ranks;
    AsyncConfig r;
} plans[] = {
    {"", 4, {DP_SYNC, 1, 1, 0, 1, false, 32, 0, 0.7, 0.9, 0, 0, 1}},
    {"--sites 2", 4, {DP_SYNC, 2, 1, 0, 1, false, 32, 0, 0.7, 0.9, 0, 0, 1}},
    {"--dp-mode delayed", 4, {DP_DELAYED, 4, 1, 1, 1, false, 32, 0, 0.7, 0.9, 0, 0, 1}},
    {"--dp-mode delayed --dc-lambda 0.3 --sites 2", 4, {DP_DELAYED, 2, 1, 1, 1, false, 32, 0.3, 0.7, 0.9, 0, 0, 1}},
    {"--dp-mode delayed --outer-delay 0", 4, {DP_SYNC, 4, 1, 0, 1, false, 32, 0, 0.7, 0.9, 0, 0, 1}},
    {"--dp-mode diloco --steps 33 --outer-delay 1", 4, {DP_DILOCO, 4, 32, 1, 1, false, 32, 0, 0.7, 0.9, 0.5, 0, 1}},
    {"--dp-mode dc-s3gd", 4, {DP_DC_S3GD, 4, 1, 1, 1, false, 32, 0.2, 0.7, 0.9, 0, 0, 1}},
    {"--dp-mode dc-s3gd --outer-delay 0 --dc-lambda 0", 4, {DP_DC_S3GD, 4, 1, 0, 1, false, 32, 0, 0.7, 0.9, 0, 0, 1}},
    {"--dp-mode dc-s3gd --sites 1", 4, {DP_DC_S3GD, 1, 1, 1, 1, false, 32, 0.2, 0.7, 0.9, 0, 0, 1}},
    {"--dp-mode diloco", 4, {DP_DILOCO, 4, 32, 0, 1, false, 32, 0, 0.7, 0.9, 0, 0, 1}},
    {"--dp-mode diloco --outer-delay 5 --outer-alpha 0", 4, {DP_DILOCO, 4, 32, 5, 1, false, 32, 0, 0.7, 0.9, 0, 0, 1}},
    {"--dp-mode diloco --outer-delay 32", 4, {DP_DILOCO, 4, 32, 32, 1, false, 32, 0, 0.7, 0.9, 0, 0, 1}},
    {"--dp-mode diloco --outer-alpha 0.25", 4, {DP_DILOCO, 4, 32, 0, 1, false, 32, 0, 0.7, 0.9, 0.25, 0, 1}},
    {"--dp-mode diloco --eager --local-steps 6 --fragments 4 --sites 2",
     4,
     {DP_DILOCO, 2, 6, 6, 4, true, 32, 0, 0.7, 0.9, 0, 0, 1}},
    {"--dp-mode diloco --outer-bits 4 --outer-lr 1 --outer-momentum 0",
     4,
     {DP_DILOCO, 4, 32, 0, 1, false, 4, 0, 1, 0, 0, 0, 1}},
    {"--dp-mode diloco --outer-bits 2 --outer-error-decay 0.5",
     4,
     {DP_DILOCO, 4, 32, 0, 1, false, 2, 0, 0.7, 0.9, 0, 0, 0.5}},
    {"--dp-mode diloco --outer-top-k 64 --outer-bits 2", 4, {DP_DILOCO, 4, 32, 0, 1, false, 2, 0, 1, 0, 0, 64, 0.95}},
    {"--dp-mode diloco --outer-top-k 4096 --outer-lr 0.7 --outer-momentum 0.9 --outer-error-decay 1",
     4,
     {DP_DILOCO, 4, 32, 0, 1, false, 32, 0, 0.7, 0.9, 0, 4096, 1}},
};

static void test_plans(void) {
    Read read;
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        const AsyncConfig *e = &plans[i].r, *r = &read.config;
        try_settings(&read, plans[i].line, plans[i].ranks);
        check(read.status == 0 && r->mode == e->mode && r->sites == e->sites && read.mesh.sites == e->sites &&
                  r->period == e->period && r->delay == e->delay && r->fragments == e->fragments &&
                  r->eager == e->eager && r->bits == e->bits && r->compensation == e->compensation &&
                  r->outer_lr == e->outer_lr && r->outer_momentum == e->outer_momentum && r->mix == e->mix &&
                  r->top_k == e->top_k && r->error_decay == e->error_decay,
              "\"%s\" is %s of %d, every %lld, %lld late, %d fragments, %d bits, lambda %g, mix %g%s%s", plans[i].line,
              dp_mode_names[r->mode], r->sites, (long long)r->period, (long long)r->delay, r->fragments, r->bits,
              r->compensation, r->mix, read.status ? ": " : "", read.text);
    }
}

// ---- Fragments --------------------------------------------------------------------------------------------------

// By the kind of a tensor and the number of its block.
static int fragment_of(const Tensor* tensor, int P) {
    switch (tensor->kind) {
    case WTE:
    case WPE: return 0;
    case FINAL_NORM_W:
    case FINAL_NORM_B:
    case HEAD_W: return P - 1;
    default: return tensor->layer % P;
    }
}

// Tensors in a fragment that is not theirs, in the buckets of all ranks of a mesh.
static int wrong_fragments(const ModelConfig* m, const Mesh* mesh, int P) {
    const AsyncConfig r = plan_of(P, P, 0);
    int wrong = 0;
    for (int rank = 0; rank < mesh_size(mesh); rank++) {
        Layout layout;
        Error error;
        if (!layout_build(&layout, m, mesh_at(mesh, rank), m->T, &error)) die("%s", error.text);
        for (int i = 0; i < layout.n; i++) {
            const Bucket* bucket = &layout.bucket[layout.slices[i].bucket];
            const int of_bucket = async_schedule_fragment(&r, &layout.slices[bucket->first].tensor, m->L);
            wrong += of_bucket != fragment_of(&layout.slices[i].tensor, P) || of_bucket < 0 || of_bucket >= P;
        }
        layout_free(&layout);
    }
    return wrong;
}

static void test_fragments(bool few) {
    static const int meshes[][4] = {{1, 1, 1, 1}, {1, 2, 1, 1}, {2, 1, 2, 1}, {1, 2, 2, 2}, {2, 2, 1, 1}};
    static const int fragments[] = {1, 2, 3, 5, 16};
    int count, wrong = 0, walks = 0;
    const ModelConfig* presets = model_presets(&count);
    for (int i = 0; i < count; i++) {
        for (size_t j = 0; j < (few ? 2 : sizeof meshes / sizeof meshes[0]); j++) {
            Mesh mesh = mesh_of_rank(0, meshes[j][0], meshes[j][1], meshes[j][2]);
            Error error;
            mesh.v = meshes[j][3];
            if (!mesh_check(&mesh, &presets[i], presets[i].T, &error)) continue;
            for (size_t k = 0; k < sizeof fragments / sizeof fragments[0]; k++, walks++)
                wrong += wrong_fragments(&presets[i], &mesh, fragments[k]);
        }
    }
    check(wrong == 0 && walks > 4 * count,
          "%d models, %d choices of mesh and fragments: %d tensors in a wrong fragment", count, walks, wrong);
}

// ---- Traffic ----------------------------------------------------------------------------------------------------

// Bytes that one of s ranks sends so that all have the sum of n numbers, or a part each, or all of s parts.
static double bytes_all_reduce(int s, double n) { return 2 * n * 4 * (s - 1) / s; }
static double bytes_half(int s, double n, double element) { return n * element * (s - 1) / s; }

// Bytes of a rank's part of a bucket, element by element: a new block or chunk at every slice, and after 64 or 4096
// numbers; nothing of the padding. A chunk has a scale and fields of an index and a number: top_k / 4096
// of its size, rounded up.
static double bytes_of_part(const AsyncConfig* r, const Layout* layout, int b, int k) {
    const Bucket* bucket = &layout->bucket[b];
    const int64_t part = bucket->elements / k, begin = bucket->offset + layout->mesh.data % k * part;
    const int64_t full = r->top_k ? 4096 : 64;
    double bytes = 0;
    for (int64_t at = begin, used = 0; at < begin + part; at++) {
        bool last = at + 1 == begin + part;
        for (int i = bucket->first; i < bucket->first + bucket->slices; i++) {
            const Slice* slice = &layout->slices[i];
            last |= slice->offset == at + 1;
            used += at >= slice->offset && at < slice->offset + slice->rows_used * slice->cols;
        }
        if (used == 0 || (!last && used < full)) continue;
        const double sent = ceil((double)used * r->top_k / 4096);
        if (r->top_k && r->bits == 32) bytes += 4 * sent + 4 * ceil(sent * 12 / 32);
        if (r->top_k && r->bits < 32) bytes += 4 + 4 * ceil(sent * (12 + r->bits) / 32);
        if (!r->top_k) bytes += 4 + 64 * r->bits / 8.0;
        used = 0;
    }
    return bytes;
}

// Adds up what one rank sends in the steps first + 1 to last, operation by operation.
static SiteTraffic walk_traffic(const AsyncConfig* r, const Layout* layout, double element, int64_t first,
                                int64_t last) {
    const int S = r->sites, k = layout->mesh.d / S, P = r->fragments;
    SiteTraffic sum = {0, 0};
    for (int64_t t = first + 1; t <= last; t++) {
        for (int b = 0; b < layout->buckets; b++) {
            const double n = (double)layout->bucket[b].elements, part = n / k;
            sum.intra_site += bytes_all_reduce(k, n); // gradients, of all modes: in one piece, or in halves
            if (r->mode == DP_SYNC || r->mode == DP_DELAYED) {
                if (!layout->mesh.zero) sum.inter_site += bytes_all_reduce(S, part);
                if (layout->mesh.zero) sum.inter_site += bytes_half(S, n, 4);
                if (layout->mesh.zero && !(r->mode == DP_DELAYED && t == 1))
                    sum.inter_site += bytes_half(S, n, element);
                continue;
            }
            const int f = fragment_of(&layout->slices[layout->bucket[b].first].tensor, P);
            if (!is_sent(r->period, P, f, t)) continue;
            const bool all = r->bits == 32 && r->top_k == 0;
            sum.inter_site += all ? bytes_all_reduce(S, part) : (S - 1) * bytes_of_part(r, layout, b, k);
            sum.intra_site += bytes_half(k, n, 4);
            if (r->eager && r->bits < 32) sum.intra_site += bytes_half(k, n, 4); // what was sent, as it was rounded
        }
    }
    return sum;
}

static void test_traffic(bool few) {
    static const struct {
        const char* line;
        int ranks;
    } runs[] = {
        {"", 4},
        {"--sites 2", 4},
        {"--sites 4", 4},
        {"--sites 4 --pp 2", 8},
        {"--dp-mode delayed", 4},
        {"--dp-mode delayed --sites 2 --tp 2", 8},
        {"--dp-mode delayed --zero 1", 4},
        {"--dp-mode delayed --outer-delay 0 --zero 1", 2},
        {"--dp-mode dc-s3gd", 3},
        {"--dp-mode dc-s3gd --sites 2", 6},
        {"--dp-mode diloco --local-steps 5", 4},
        {"--dp-mode diloco --local-steps 5 --fragments 3 --outer-delay 2", 4},
        {"--dp-mode diloco --local-steps 4 --fragments 4 --eager --sites 2", 6},
        {"--dp-mode diloco --local-steps 6 --fragments 2 --eager --outer-bits 8 --sites 3", 6},
        {"--dp-mode diloco --local-steps 3 --outer-bits 4", 5},
        {"--dp-mode diloco --local-steps 3 --outer-bits 8 --sites 2 --tp 2 --pp 2", 16},
        {"--dp-mode diloco --local-steps 3 --outer-bits 2", 4},
        {"--dp-mode diloco --local-steps 3 --outer-top-k 100", 4},
        {"--dp-mode diloco --local-steps 4 --fragments 2 --outer-delay 1 --outer-top-k 32 --outer-bits 2", 5},
        {"--dp-mode diloco --local-steps 3 --outer-top-k 1000 --outer-bits 4 --sites 2 --tp 2 --pp 2", 16},
    };
    static const int64_t spans[][2] = {{0, 1}, {0, 7}, {1, 2}, {3, 16}, {5, 5}};
    const ModelConfig models[2] = {model_of(ARCH_GPT2, 5, 12, 2, 2, 40, 11, 97), model_llama(4, 24, 4, 2, 56, 9, 53)};
    Read read;
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        double worst = 0, most = 0;
        try_settings(&read, runs[i].line, runs[i].ranks);
        for (int model = 0; model < 2 && read.status == 0; model++) {
            for (int rank = 0; rank < runs[i].ranks; rank += few ? 3 : 1) {
                Layout layout;
                Error error;
                if (!layout_build(&layout, &models[model], mesh_at(&read.mesh, rank), models[model].T, &error))
                    die("%s", error.text);
                for (int element = 2; element <= 4; element += 2) {
                    for (size_t j = 0; j < sizeof spans / sizeof spans[0]; j++) {
                        const int64_t first = spans[j][0], last = spans[j][1];
                        const SiteTraffic x = async_schedule_traffic(&read.config, &layout, models[model].L,
                                                                     (size_t)element, first, last);
                        const SiteTraffic y = walk_traffic(&read.config, &layout, element, first, last);
                        worst = fmax(worst, fmax(fabs(x.intra_site - y.intra_site), fabs(x.inter_site - y.inter_site)));
                        most = fmax(most, fmax(y.intra_site, y.inter_site));
                    }
                }
                layout_free(&layout);
            }
        }
        check(read.status == 0 && most > 0 && worst <= 1e-9 * most,
              "traffic of \"%s\" on %d: up to %.0f bytes, error %.1e", runs[i].line, runs[i].ranks, most, worst);
    }
}

// The formula's blocks are those that kernels/async_dp.h makes.
static void test_compressed_bytes(void) {
    int64_t wrong = 0;
    for (int64_t n = 1; n < 1000; n++) {
        for (int bits = 2; bits <= 8; bits *= 2) {
            AsyncConfig r = plan_of(1, 1, 0);
            Slice slices[2]; // of n / 3 elements and the rest
            Bucket bucket = {0, n, 0, 2, 0};
            Layout layout = {};
            memset(slices, 0, sizeof slices);
            layout.mesh = mesh_of_rank(0, 1, 1, 1);
            layout.slices = slices;
            layout.bucket = &bucket;
            layout.n = 2;
            layout.buckets = 1;
            slices[1].offset = n / 3;
            slices[0].cols = slices[1].cols = 1;
            slices[0].rows_used = n / 3;
            slices[1].rows_used = n - n / 3;
            r.bits = bits;
            wrong +=
                compressed_bytes(&r, &layout, 0) != (double)(quant_bytes(n / 3, bits) + quant_bytes(n - n / 3, bits));
        }
    }
    check(wrong == 0, "bytes of numbers with few bits are those of the kernel: %lld wrong", (long long)wrong);
}

// ---- The picture ------------------------------------------------------------------------------------------------

static void check_drawing(const char* what, const AsyncConfig* r, const char* expected) {
    char text[4096] = "";
    FILE* out = tmpfile();
    async_schedule_draw(r, out);
    rewind(out);
    text[fread(text, 1, sizeof text - 1, out)] = 0;
    fclose(out);
    check(strcmp(text, expected) == 0, "drawing of %s%s%s", what, strcmp(text, expected) ? ":\n" : "",
          strcmp(text, expected) ? text : "");
}

static void test_drawings(void) {
    AsyncConfig r = plan_of(8, 2, 4);
    check_drawing("the picture in methods/async_schedule.h", &r,
                  "outer     ...s---m...s---m  s sends, m merges\n"
                  "          .......s---m...s\n");
    r = plan_of(4, 2, 4);
    r.eager = true;
    check_drawing("four steps, eager", &r,
                  "outer     .s---x--  s sends, m merges, x both\n"
                  "          ...s---x\n");
    r = plan_of(50, 1, 0);
    check_drawing("a long period: 64 steps around its end", &r,
                  "outer     ...............................x................................  steps 19 to 82:  s "
                  "sends, m merges, x "
                  "both\n");
}

// A resumed run compares plans by their text: every field of a plan changes it.
static void test_texts(void) {
    enum { TEXTS = 15 };
    AsyncConfig r[TEXTS];
    char text[TEXTS][512];
    int same = 0;
    for (int i = 0; i < TEXTS; i++) {
        r[i] = plan_of(8, 2, 4);
        r[i].outer_lr = 0.7;
        r[i].outer_momentum = 0.9;
        r[i].error_decay = 1;
    }
    r[1].mode = DP_DC_S3GD;
    r[2].sites = 1;
    r[3].period = 10;
    r[4].fragments = 1;
    r[5].delay = 3;
    r[6].eager = true;
    r[7].bits = 8;
    r[8].compensation = 0.2;
    r[9].outer_lr = 0.5;
    r[10].outer_momentum = 0;
    r[11].mix = 0.5;
    r[12].top_k = 64;
    r[13] = r[12];
    r[13].error_decay = 0.9;
    r[14] = r[7];
    r[14].error_decay = 0.9;
    for (int i = 0; i < TEXTS; i++) {
        async_schedule_text(text[i], sizeof text[i], &r[i]);
        for (int j = 0; j < i; j++) same += strcmp(text[i], text[j]) == 0;
    }
    check(same == 0, "texts of plans that differ in one field: %d pairs are the same", same);
}

int main(int argc, char** argv) {
    const bool few = argc > 1 && strcmp(argv[1], "--short") == 0;
    process.name = "test_async_schedule";
    test_rule();
    test_learned();
    test_options_of_modes();
    test_refusals();
    test_plans();
    test_fragments(few);
    test_traffic(few);
    test_compressed_bytes();
    test_drawings();
    test_texts();
    return test_end();
}
