/*
test_async_schedule.c: is the schedule of messages between sites right, and is every command line without a meaning
refused?

    sends, merges, learned    against a walk through the steps, for all H up to 16
    settings                  the plan and the defaults of each mode; wrong command lines and the options they name
    async_schedule_traffic    against a walk that adds up operation by operation
    async_schedule_text       a plan's text changes with each of its fields

One process. --short: fewer meshes.
*/
#pragma GCC diagnostic ignored "-Wunused-function" // of what the settings need this file uses a part
#include "../../../trainer/derived.h"

#include "../../../kernels/async_dp.h"
#include "test.h"
#include <setjmp.h>

static AsyncConfig plan_of(DpMode mode, int64_t H) {
    AsyncConfig r = {};
    r.mode = mode;
    r.sites = 2;
    r.period = H;
    return r;
}

// Walks through four periods of each plan, with the step that the sum in flight was sent in.
static void test_rule(void) {
    int64_t wrong_sends = 0, wrong_merges = 0, wrong_learned = 0, asked = 0;
    for (int64_t H = 0; H <= 16; H++) { // 0: dc-s3gd
        const AsyncConfig r = H ? plan_of(DP_DILOCO, H) : plan_of(DP_DC_S3GD, 1);
        int64_t next = r.period, in_flight = 0, learned = 0;
        for (int64_t t = -2; t <= 4 * r.period + 4; t++, asked++) {
            const bool late = H == 0 && in_flight > 0, sends = t == next;
            wrong_merges += async_schedule_sends(&r, t - async_schedule_delay(&r)) != (late || (H > 0 && sends));
            wrong_sends += async_schedule_sends(&r, t) != sends;
            if (sends) next += r.period;
            if (sends) in_flight = learned = t;
            wrong_learned += t >= 0 && async_schedule_learned(&r, t) != learned;
        }
    }
    check(wrong_sends == 0, "what is sent when: %lld steps of all plans up to 16, %lld wrong", (long long)asked,
          (long long)wrong_sends);
    check(wrong_merges == 0, "what is merged when: %lld wrong", (long long)wrong_merges);
    check(wrong_learned == 0, "what the common point has learned: %lld wrong", (long long)wrong_learned);
}

// ---- Command lines ----------------------------------------------------------------------------------------------

static jmp_buf back;
static void jump_back(int status) { longjmp(back, status); }

typedef struct {
    int status; // 0: accepted
    char text[2048];
    Settings settings;
    ParallelConfig parallel;
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
    read->parallel = settings_parallel(o, 0, ranks);
    if (!settings_async(&read->config, o, read->parallel.mesh.sites, &error)) die_usage("%s", error.text);
}

// The same where it may be refused: what is said goes to text.
static void try_settings(Read* read, const char* line, int ranks) {
    memset(read, 0, sizeof *read);
    const Quiet quiet = quiet_begin(true);
    process.stop = jump_back;
    const int status = setjmp(back);
    if (status == 0) read_settings(read, line, ranks);
    process.stop = NULL;
    read->status = status;
    quiet_end(&quiet, read->text, sizeof read->text);
    read->text[strcspn(read->text, "\n")] = 0;
}

// A line, the ranks that it is for, and the option that the message names.
static const struct {
    const char* line;
    int ranks;
    const char* names;
} refusals[] = {
    // sites
    {"--sites 3", 4, "--sites 3"},
    {"--dp-mode diloco --sites 4 --tp 2", 4, "--sites 4"},
    {"--dp-mode dc-s3gd --sites 4 --pp 2", 4, "--sites 4"},
    // ZeRO
    {"--dp-mode dc-s3gd --zero 1", 2, "--zero 1"},
    {"--dp-mode dc-s3gd --zero 1 --sites 1", 2, "--dp-mode"},
    {"--dp-mode diloco --zero 2", 2, "--zero 2"},
    {"--zero 1 --sites 2", 4, "--sites"},
    {"--zero 2 --sites 4", 4, "--zero 2"},
    // without effect: options that the mode does not have, and others
    {"--dc-lambda 0", 2, "--dc-lambda"},
    {"--dp-mode diloco --dc-lambda 0", 2, "--dc-lambda"},
    {"--local-steps 8", 2, "--local-steps"},
    {"--dp-mode dc-s3gd --local-steps 8", 2, "--local-steps"},
    {"--outer-lr 0.5", 2, "--outer-lr"},
    {"--dp-mode dc-s3gd --outer-lr 0.5", 2, "--outer-lr"},
    {"--outer-momentum 0", 2, "--outer-momentum"},
    {"--dp-mode dc-s3gd --outer-momentum 0", 2, "--outer-momentum"},
    {"--dp-mode dc-s3gd --on-nan skip", 2, "--on-nan skip"},
    {"--optimizer sgd --beta2 0.9", 4, "--beta2"},
    {"--optimizer sgd --eps 1e-3", 4, "--eps"},
    {"--dp-mode diloco --steps 31", 4, "--steps 31"},
    {"--dp-mode delayed", 2, "--dp-mode"},
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
    {"", 4, {DP_SYNC, 1, 1, 0, 0, 0}},
    {"--sites 2", 4, {DP_SYNC, 2, 1, 0, 0, 0}},
    {"--zero 1", 4, {DP_SYNC, 1, 1, 0, 0, 0}},
    {"--dp-mode dc-s3gd", 4, {DP_DC_S3GD, 4, 1, 0.2, 0, 0}},
    {"--dp-mode dc-s3gd --dc-lambda 0 --sites 2", 4, {DP_DC_S3GD, 2, 1, 0, 0, 0}},
    {"--dp-mode dc-s3gd --sites 1 --tp 2", 4, {DP_DC_S3GD, 1, 1, 0.2, 0, 0}},
    {"--dp-mode diloco", 4, {DP_DILOCO, 4, 32, 0, 0.7, 0.9}},
    {"--dp-mode diloco --local-steps 6 --sites 2 --steps 6", 4, {DP_DILOCO, 2, 6, 0, 0.7, 0.9}},
    {"--dp-mode diloco --outer-lr 1 --outer-momentum 0", 4, {DP_DILOCO, 4, 32, 0, 1, 0}},
    {"--dp-mode diloco --steps 0", 4, {DP_SYNC, 1, 1, 0, 0, 0}},
};

static void test_plans(void) {
    Read read;
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        const AsyncConfig *e = &plans[i].r, *r = &read.config;
        try_settings(&read, plans[i].line, plans[i].ranks);
        check(read.status == 0 && r->mode == e->mode && r->sites == e->sites && read.parallel.mesh.sites == e->sites &&
                  r->period == e->period && r->compensation == e->compensation && r->outer_lr == e->outer_lr &&
                  r->outer_momentum == e->outer_momentum,
              "\"%s\" is %s of %d, every %lld, lambda %g, outer rate %g, momentum %g%s%s", plans[i].line,
              dp_mode_names[r->mode], r->sites, (long long)r->period, r->compensation, r->outer_lr, r->outer_momentum,
              read.status ? ": " : "", read.text);
    }
}

// ---- Traffic ----------------------------------------------------------------------------------------------------

// Bytes that one of s ranks sends so that all have the sum of n numbers, or all of s parts.
static double bytes_all_reduce(int s, double n) { return 2 * n * 4 * (s - 1) / s; }
static double bytes_half(int s, double n) { return n * 4 * (s - 1) / s; }

// Adds up what one rank sends in the steps first + 1 to last, operation by operation.
static SiteTraffic walk_traffic(const AsyncConfig* r, const Layout* layout, int64_t first, int64_t last) {
    const int S = r->sites, k = layout->parallel.mesh.d / S;
    SiteTraffic sum = {0, 0};
    for (int64_t t = first + 1; t <= last; t++) {
        for (int b = 0; b < layout->buckets; b++) {
            const double n = (double)layout->bucket[b].elements;
            sum.intra_site += bytes_all_reduce(k, n); // gradients, of all modes: in one piece, or in halves
            if (r->mode == DP_DILOCO && t % r->period) continue;
            sum.inter_site += bytes_all_reduce(S, n / k);
            if (r->mode != DP_SYNC) sum.intra_site += bytes_half(k, n);
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
        {"--dp-mode dc-s3gd", 3},
        {"--dp-mode dc-s3gd --sites 2", 6},
        {"--dp-mode diloco --local-steps 5", 4},
        {"--dp-mode diloco --local-steps 3 --sites 2 --tp 2 --pp 2", 16},
    };
    static const int64_t spans[][2] = {{0, 1}, {0, 7}, {1, 2}, {3, 16}, {5, 5}};
    const ModelConfig models[2] = {model_of(ARCH_GPT2, 5, 12, 2, 2, 40, 11, 97),
                                   model_of(ARCH_LLAMA, 4, 24, 4, 2, 56, 9, 53)};
    Read read;
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        double worst = 0, most = 0;
        try_settings(&read, runs[i].line, runs[i].ranks);
        for (int model = 0; model < 2 && read.status == 0; model++) {
            for (int rank = 0; rank < runs[i].ranks; rank += few ? 3 : 1) {
                Layout layout;
                Error error;
                if (!layout_build(&layout, &models[model], parallel_at(&read.parallel, rank), models[model].T, &error))
                    die("%s", error.text);
                for (size_t j = 0; j < sizeof spans / sizeof spans[0]; j++) {
                    const int64_t first = spans[j][0], last = spans[j][1];
                    const SiteTraffic x = async_schedule_traffic(&read.config, &layout, first, last);
                    const SiteTraffic y = walk_traffic(&read.config, &layout, first, last);
                    worst = fmax(worst, fmax(fabs(x.intra_site - y.intra_site), fabs(x.inter_site - y.inter_site)));
                    most = fmax(most, fmax(y.intra_site, y.inter_site));
                }
                layout_free(&layout);
            }
        }
        check(read.status == 0 && most > 0 && worst <= 1e-9 * most,
              "traffic of \"%s\" on %d: up to %.0f bytes, error %.1e", runs[i].line, runs[i].ranks, most, worst);
    }
}

// A resumed run compares plans by their text: every field of a plan changes it.
static void test_texts(void) {
    enum { TEXTS = 8 };
    AsyncConfig r[TEXTS];
    char text[TEXTS][256];
    int same = 0;
    for (int i = 0; i < TEXTS; i++) {
        r[i] = plan_of(i < 3 ? DP_DC_S3GD : DP_DILOCO, i < 3 ? 1 : 8);
        r[i].outer_lr = 0.7;
        r[i].outer_momentum = 0.9;
    }
    r[1].sites = r[4].sites = 1;
    r[2].compensation = 0.2;
    r[5].period = 10;
    r[6].outer_lr = 0.5;
    r[7].outer_momentum = 0;
    for (int i = 0; i < TEXTS; i++) {
        async_schedule_text(text[i], sizeof text[i], &r[i]);
        for (int j = 0; j < i; j++) same += strcmp(text[i], text[j]) == 0;
    }
    check(same == 0, "texts of plans that differ in one field: %d pairs are the same", same);
    r[0].mode = DP_SYNC;
    async_schedule_text(text[0], sizeof text[0], &r[0]);
    check(text[0][0] == 0, "synchronous training has no text");
}

int main(int argc, char** argv) {
    const bool few = argc > 1 && strcmp(argv[1], "--short") == 0;
    process.name = "test_async_schedule";
    test_rule();
    test_refusals();
    test_plans();
    test_traffic(few);
    test_texts();
    return test_end();
}
