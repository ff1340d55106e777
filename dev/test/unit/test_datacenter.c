/*
test_datacenter.c: the datacenter planner. The published numbers; shapes and batches beside brute force; the answer of a
search beside that of ./plan's own question; marks that follow values, by changing every input and looking at what
moves; lines that are refused. Scaling laws are in test_datacenter_laws.c.
*/
#include "../../../planner/datacenter_print.h"
#include "test.h"

#define SHIPPED "planner/clusters/next-generation.txt"

static char path[256]; // of a file to be read

// A plan that has to work.
static DatacenterPlan plan_of(const Datacenter* d) {
    static DatacenterPlan p;
    Error error = {""};
    if (!datacenter_plan(&p, d, &error)) check(false, "%s", error.text);
    return p;
}

// ---- The numbers that are known ---------------------------------------------------------------------------------

// Section 5 of the notes on the paper, tests 1 to 5, and the figures of section 2.
static void test_published(void) {
    Datacenter d = datacenter_default();
    DatacenterPlan p = plan_of(&d);
    check(p.affordable.value == 23333 && p.racks.value == 23300,
          "$100B, 70 %%, $3.0M a rack: %.0f racks, reported %.0f", p.affordable.value, p.racks.value);
    check(p.gpus.value == 1677600, "23,300 x 72 = %.0f GPUs", p.gpus.value);
    check(p.working.value == 1491200 && p.mesh_racks.value == 23040 && p.mesh_gpus.value == 1474560,
          "64 of 72 work; racks of a mesh: 2 x 2^8 3^2 5");
    check(fabs(p.power_low.value / 1e9 - 4.16) < 0.005 && fabs(p.power_high.value / 1e9 - 4.71) < 0.005,
          "3.62 GW x 1.15, 1.30 = %.3f, %.3f GW", p.power_low.value / 1e9, p.power_high.value / 1e9);
    check(p.sites.value == 2 && p.sites.mark == ASSUMED && p.power_low.value > p.site_power.value,
          "one site is more than a plant's %.2f GW: 2 sites, by an assumption", p.site_power.value / 1e9);
    check(p.site_gpus.value == 838800 && fabs(p.site_it.value / 1e9 - 1.8) < 0.05 &&
              fabs(p.site_low.value / 1e9 - 2.08) < 0.005 && fabs(p.site_high.value / 1e9 - 2.36) < 0.01,
          "of each: 838,800 GPUs, 1.8 GW, 2.08 to 2.36 GW");
    static const double caps[] = {5e9, 4.5e9, 2.4e9, 2.3e9}, sites[] = {1, 2, 2, 3}; // of 4.71 GW at most
    for (int i = 0; i < 4; i++) {
        d.site_power = fact(caps[i], CONFIRMED);
        p = plan_of(&d);
        check(p.sites.value == sites[i] && p.sites.mark == BACK_COMPUTED, "sites of %.1f GW: %g", caps[i] / 1e9,
              sites[i]);
        check(p.cluster.sites == sites[i] && p.cluster.nodes % p.cluster.sites == 0, "  as many in the cluster");
        d.site_power.value = 0;
        d.plant_power.value = caps[i] / 4;
        d.site_plants.value = 4;
        check(plan_of(&d).sites.value == sites[i], "  of four plants of a fourth: %g", sites[i]);
    }
    d = datacenter_default();
    d.sites.value = 7;
    p = plan_of(&d);
    check(p.mesh_racks.value == 7 * 3240 && p.cluster.nodes == 22680 && p.cluster.sites == 7,
          "7 sites of 3,328 racks: 2^3 3^4 5 of each are in a mesh");
    d = datacenter_default();
    p = plan_of(&d);
    check(fabs(p.model[0].flops.value / 3.0e29 - 1) < 0.05 / 3 &&
              fabs(p.model[1].flops.value / 1.2e30 - 1) < 0.05 / 1.2,
          "20 tokens a parameter: %.2e and %.2e FLOP", p.model[0].flops.value, p.model[1].flops.value);
    check(fabs(p.failure_hours.value - 50700) < 50 && fabs(p.mtbf.value - 109) < 0.5,
          "%.0f GPU-hours a failure, one in %.1f s", p.failure_hours.value, p.mtbf.value);
    check(fabs(p.interval[0].value - 15) < 0.5 && fabs(p.overhead[0].value - 0.14) < 0.005 &&
              fabs(p.overhead[1].value - 0.30) < 0.005,
          "checkpoints of 1 s every %.1f s cost %.3f, of 5 s %.3f", p.interval[0].value, p.overhead[0].value,
          p.overhead[1].value);
}

// The machines as ./plan has them.
static void test_cluster(void) {
    static const double bits[] = {16, 8, 4}, peaks[] = {2.5e15, 5e15, 10e15};
    Datacenter d = datacenter_default();
    for (int i = 0; i < 3; i++) {
        d.precision.value = bits[i];
        const DatacenterPlan p = plan_of(&d);
        const Cluster* c = &p.cluster;
        check(c->device.peak == peaks[i] && p.peak.value == peaks[i], "%g bit: %g PFLOP/s", bits[i], peaks[i] / 1e15);
        check(c->device.memory == 192e9 && c->nvlink == 900e9 && c->nic == 100e9 && c->node_gpus == 64 && c->nics == 64,
              "  192 GB, 900 GB/s in a rack of 64, 800 Gbit/s beyond");
        check(c->site_rate == 30e12 && c->site_delay == 0.0325 && c->nodes == 23040,
              "  8 x 30 Tbit/s between sites, half of 65 ms");
    }
}

static bool near(double x, double y, double relative) { return fabs(x / y - 1) <= relative; }

// ---- Shapes and batches -----------------------------------------------------------------------------------------

static bool is_smooth(int x) {
    while (x % 2 == 0) x /= 2;
    while (x % 3 == 0) x /= 3;
    while (x % 5 == 0) x /= 5;
    return x == 1;
}

static void test_shapes(void) {
    int last = 0, wrong = 0;
    for (int x = 1; x <= 30000; x++) {
        if (is_smooth(x)) last = x;
        wrong += smooth_below(x) != last || smooth_below(x + 0.9) != last;
    }
    check(wrong == 0, "2^a 3^b 5^c below 1 to 30,000");
    for (double asked = 1e12; asked < 3e15; asked *= 1.37) {
        Datacenter d = datacenter_default();
        d.models = 1;
        d.model[0].parameters.value = asked;
        d.rack_gpus.value = asked > 1e14 ? 72 : 24;
        const double unit = 128 * (d.rack_gpus.value - 8), most = floor(cbrt(512 * asked / 12) / unit + 0.5);
        double best = 0;
        for (double h = unit; h < 1 << 21; h += unit) { // all widths within a quarter
            if (fabs(h / unit - most) > floor(most / 4)) continue;
            for (int L = 1; 12 * L * h * h <= asked; L++) best = is_smooth(L) ? fmax(best, 12 * L * h * h) : best;
        }
        const ModelPlan m = plan_of(&d).model[0];
        const double h = m.hidden.value, P = 12 * m.layers.value * h * h;
        check(P == best && P <= asked && P > 0.9 * asked && fmod(h, unit) == 0 && m.heads.value == h / 128,
              "%.3g T: %.0f x %.0f, %.3g T, the nearest from below %.3g T", asked / 1e12, m.layers.value, h, P / 1e12,
              best / 1e12);
        const ModelConfig model = model_gpt2((int)m.layers.value, (int)h, (int)m.heads.value, 8192, 131072);
        check(m.parameters.value == (double)model_parameters(&model) && m.tokens.value == 20 * asked,
              "  parameters of the trainer's model; 20 tokens for each one asked for");
    }
    for (double most = 1; most < 1e6; most *= 1.7) {
        Datacenter d = datacenter_default();
        d.batch_tokens.value = most * 8192;
        const DatacenterPlan p = plan_of(&d);
        const int racks = (int)p.mesh_racks.value, batch = (int)p.model[0].batch.value;
        int best = 0;
        for (int i = 1; i <= most * (1 + 1e-12); i++) best = i % racks == 0 || racks % i == 0 ? i : best;
        check(batch == best, "at most %.1f sequences: %d, a whole part or multiple of %d", most, batch, racks);
    }
}

// ---- The search: one planner ------------------------------------------------------------------------------------

// 2 sites of 8 racks of 8 GPUs, a model of 20B.
static Datacenter small_datacenter(void) {
    Datacenter d = datacenter_default();
    d.rack_gpus.value = 8;
    d.spares.value = 0;
    d.budget.value = 3e6 * 16 / 0.7;
    d.sites.value = 2;
    d.sequence.value = 2048;
    d.batch_tokens.value = 2048 * 256;
    d.hbm.value = 80e9;
    d.micro_batch.value = 0;
    d.models = 1;
    d.model[0].parameters.value = 20e9;
    return d;
}

// The question that ./plan makes of the printed cluster and options, without the datacenter's functions.
static Question question_of(const Cluster* cluster, const Methods* methods, const ModelPlan* m, int T, int V,
                            int ranks) {
    Question q = {};
    q.model = model_gpt2((int)m->layers.value, (int)m->hidden.value, (int)m->heads.value, T, V);
    q.T = T;
    q.batch = (int64_t)m->batch.value;
    q.ranks = ranks;
    q.cluster = cluster;
    q.software = software_find("threefold");
    q.methods = methods->list;
    q.methods_count = methods->n;
    q.schedule = q.zero = q.recompute = q.sequence_parallel = ANY;
    q.rows = 10;
    return q;
}

static bool same_choice(const Choice* a, const Choice* b) {
    const Mesh *x = &a->setup.mesh, *y = &b->setup.mesh;
    return x->t == y->t && x->p == y->p && x->d == y->d && x->v == y->v && x->zero == y->zero && x->sites == y->sites &&
           x->recompute == y->recompute && x->sequence_parallel == y->sequence_parallel &&
           a->setup.schedule == b->setup.schedule && a->setup.B == b->setup.B && a->cost.seconds == b->cost.seconds &&
           a->memory.bytes == b->memory.bytes;
}

// Seconds of the best step in a mode.
static double seconds_of_mode(Question q, DpMode mode) {
    Settings usual = settings_default();
    StepMethods methods;
    Answer a;
    Error error;
    usual.dp_mode = (int)mode;
    usual.steps = 1 << 20;
    if (!methods_of(&methods, &usual, &error)) die("%s", error.text);
    q.methods = &methods;
    q.methods_count = 1;
    const double seconds = search(&a, &q, &error) && a.n > 0 ? a.row[0].cost.seconds : NAN;
    answer_free(&a);
    return seconds;
}

static void test_search(void) {
    Cluster cluster;
    static DatacenterPlan p;
    Methods methods;
    Settings usual = settings_default();
    Option table[MAX_OPTIONS];
    Error error = {""};
    Answer a;
    int other = 0; // modes with another step
    for (int sites = 1; sites <= 4; sites *= 2) {
        Datacenter d = small_datacenter();
        d.sites.value = sites;
        p = plan_of(&d);
        if (!check(datacenter_search(&p, &d, &error), "%d sites: searched %s", sites, error.text)) continue;
        FILE* out = fopen(path, "w");
        datacenter_print_cluster(&p.cluster, "", out);
        fclose(out);
        if (!check(cluster_open(&cluster, path, &error), "  its cluster is read %s", error.text)) continue;
        const int n = settings_table(table, &usual);
        check(methods_read(&methods, &usual, table, n, NULL, &error), "  ./plan's methods %s", error.text);
        const ModelPlan* m = &p.model[0];
        const Question q = question_of(&cluster, &methods, m, 2048, 131072, 128);
        check(search(&a, &q, &error) && a.n > 0, "  ./plan answers %s", error.text);
        const StepSetup* s = &p.best[0].setup;
        check(a.n > 0 && same_choice(&a.row[0], &p.best[0]), "  the same: (%d, %d, %d), %s, %.4f s", s->mesh.t,
              s->mesh.p, s->mesh.d, schedule_name(s->schedule), p.best[0].cost.seconds);
        check(m->tensor.value * m->pipeline.value * m->data.value == 128 && s->mesh.sites == sites &&
                  m->micro_batches.value * m->data.value * s->B == m->batch.value && m->memory.value <= m->room.value,
              "  all GPUs, whole micro-batches, memory within its limit");
        check(m->step.value == p.best[0].cost.seconds &&
                  near(m->rate.value, m->batch.value * 2048 / m->step.value, 1e-12) &&
                  near(m->days[LAW_RATIO].value, 20 * 20e9 / m->rate.value / 86400, 1e-9) &&
                  near(m->ratio_in_time.value, m->rate.value * 1000 * 86400 / 20e9, 1e-12) &&
                  near(m->peak_needed.value, 5e15 * m->days[LAW_RATIO].value / 1000, 1e-9) &&
                  near(m->mfu_needed.value, m->mfu.value * m->days[LAW_RATIO].value / 1000, 1e-9),
              "  time follows from the step");
        const double bytes = 2.0 * (sites - 1) / sites * 4 * m->parameters.value;
        check(sites == 1 ? m->wan_bytes.value == 0 : near(m->wan_bytes.value, bytes, 0.02),
              "  sends %.4g GB to other sites, 2 (S - 1)/S 4 P = %.4g GB", m->wan_bytes.value / 1e9, bytes / 1e9);
        check((sites > 1) == isfinite(m->mode_step[DP_SYNC].value) &&
                  (sites == 1 || m->mode_step[DP_SYNC].value == m->step.value),
              "  and waits for that, if there are several");
        const int modes = sites > 1 ? DP_MODES : 0;
        for (int k = 0; k < modes; k++) {
            const double seconds = m->mode_step[k].value, asked = seconds_of_mode(q, (DpMode)k);
            other += seconds != m->step.value;
            check(seconds == asked, "  %s: %.4f s, by ./plan %.4f s", dp_mode_names[k], seconds, asked);
        }
        int weak = 0;
        for (size_t at = offsetof(ModelPlan, tensor); at < offsetof(ModelPlan, days_limit); at += sizeof(Fact))
            weak += fact_in(m, at).mark != ASSUMED;
        static const int sizes[] = {0, 6, 5, 0, 4}; // without ZeRO, as on several sites, the larger ones fit no mesh
        check(weak == 0 && p.sizes == sizes[sites], "  what is simulated is assumed; %d sizes", p.sizes);
        answer_free(&a);
        free(methods.list);
    }
    check(other == 4, "%d modes besides sync have another step", other);
    Datacenter d = small_datacenter();
    d.model[0].parameters.value = 5e12;
    p = plan_of(&d);
    const bool searched = datacenter_search(&p, &d, &error);
    check(searched && p.best[0].cost.seconds == 0 && p.model[0].memory.value > 80e9 &&
              isinf(p.model[0].days[0].value) && p.model[0].mfu.value == 0,
          "a model without room: no time, %.3g GB", p.model[0].memory.value / 1e9);
}

// Beyond 2^20 ranks, by the search of ./plan, on a t and p.
static void test_million(void) {
    const Datacenter d = datacenter_default();
    static DatacenterPlan p;
    Error error = {""};
    Answer a;
    p = plan_of(&d);
    Question q = datacenter_question(&d, &p, &p.model[0]);
    q.t = 128;
    q.p = 80;
    const bool found = search(&a, &q, &error) && a.n == 1;
    check(found && q.ranks > 1 << 20 && mesh_size(&a.row[0].setup.mesh) == 1474560 && a.row[0].setup.mesh.d == 144 &&
              a.row[0].memory.bytes < 192e9,
          "1,474,560 GPUs: (128, 80, 144) has room, in %.0f GB", found ? a.row[0].memory.bytes / 1e9 : 0);
    answer_free(&a);
    int list[DIVISORS], wrong = 0, primes[] = {1, 2, 3, 36, 49, 97, 720720, 1474560, 1073741824, 2147483647};
    for (size_t i = 0; i < sizeof primes / sizeof primes[0]; i++) {
        const int n = divisors(primes[i], list);
        int count = 0;
        for (int k = 1; k <= primes[i] && primes[i] < 2000000; k++) count += primes[i] % k == 0;
        if (primes[i] == 1073741824) count = 31;
        if (primes[i] == 2147483647) count = 2;
        wrong += n != count || list[0] != 1 || list[n - 1] != primes[i];
        for (int k = 1; k < n; k++) wrong += list[k] <= list[k - 1] || primes[i] % list[k] != 0;
    }
    check(wrong == 0, "divisors of up to 2^31 - 1, ascending");
}

// ---- Marks ------------------------------------------------------------------------------------------------------

// All facts of a plan lie behind each other, in it and in its models.
static int fact_count(void) { return (int)(offsetof(DatacenterPlan, model) / sizeof(Fact)); }

static void all_confirmed(Datacenter* d) {
    for (int i = 0; i < DATACENTER_INPUTS; i++) fact_at(d, datacenter_inputs[i].at)->mark = CONFIRMED;
    for (int i = 0; i < DATACENTER_STALLS; i++) d->stall[i].mark = CONFIRMED;
    for (int k = 0; k < d->models; k++) {
        for (int i = 0; i < MODEL_INPUTS; i++) fact_at(&d->model[k], model_inputs[i].at)->mark = CONFIRMED;
    }
}

typedef struct {
    int moved, blind, better, changed; // facts that follow the value; of these, with a mark that does not; ...
} Follows;

static void compare_facts(const void* plain, const void* marked, const void* moved, int n, bool move, Follows* f) {
    for (int i = 0; i < n; i++) {
        const Fact a = fact_in(plain, (size_t)i * sizeof(Fact)), b = fact_in(marked, (size_t)i * sizeof(Fact));
        f->better += b.mark < a.mark;
        f->changed += b.value != a.value;
        if (!move || fact_in(moved, (size_t)i * sizeof(Fact)).value == a.value) continue;
        f->moved++;
        f->blind += b.mark != ASSUMED;
    }
}

// Everything whose value an input can change has at best that input's mark. The fact of d at `at` is changed in
// several ways, so that what is rounded moves, too.
static Follows follow(const Datacenter* d, size_t at, bool whole) {
    static const double factors[] = {1.02, 2, 0.5, 0.98, 11, 0.05, 1.3, 1e-9};
    Follows f = {0, 0, 0, 0};
    static DatacenterPlan plain, marked, moved;
    Error error = {""};
    Datacenter changed = *d;
    fact_at(&changed, at)->mark = ASSUMED;
    plain = plan_of(d);
    marked = plan_of(&changed);
    for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++) {
        const double value = fact_in(d, at).value > 0 ? fact_in(d, at).value * factors[i] : factors[i];
        changed = *d;
        fact_at(&changed, at)->value = whole ? fmax(1, floor(value)) : value;
        const bool move = datacenter_plan(&moved, &changed, &error);
        compare_facts(&plain, &marked, &moved, fact_count(), move, &f);
        for (int k = 0; k < d->models; k++)
            compare_facts(&plain.model[k], &marked.model[k], &moved.model[k], (int)(sizeof(ModelPlan) / sizeof(Fact)),
                          move, &f);
    }
    return f;
}

// use() and result() by themselves: the weakest of what was read, back-computed at best, and nothing of it later.
static void test_facts(void) {
    for (int a = 0; a < MARKS; a++) {
        for (int b = 0; b < MARKS; b++) {
            Mark w = BACK_COMPUTED;
            const Fact f = result(&w, use(&w, fact(3, (Mark)a)) - use(&w, fact(2, (Mark)b)));
            const Fact next = result(&w, use(&w, fact(5, CONFIRMED)));
            const Mark weakest = a == ASSUMED || b == ASSUMED ? ASSUMED : BACK_COMPUTED;
            check(f.value == 1 && f.mark == weakest && next.value == 5 && next.mark == BACK_COMPUTED,
                  "from %s and %s: %s", mark_names[a], mark_names[b], mark_names[f.mark]);
        }
        const Fact hit = fact_published(fact(2.04, (Mark)a), 2, 0.05),
                   missed = fact_published(fact(2.06, (Mark)a), 2, 0.05);
        check(hit.mark == (a == ASSUMED ? ASSUMED : CONFIRMED) && missed.mark == (Mark)a && hit.value == 2.04,
              "%s, and published: %s", mark_names[a], mark_names[hit.mark]);
    }
}

// With every input confirmed, what is computed is back-computed; then each input is followed by itself.
static void follow_all(Datacenter d, const char* what, int expected_silent) {
    all_confirmed(&d);
    const DatacenterPlan q = plan_of(&d);
    int weak = 0, silent = 0, ruled = 0; // ruled: batches by rule
    for (int k = 0; k < d.models; k++) ruled += d.model[k].batch.value == 0;
    for (int i = 0; i < fact_count(); i++) weak += fact_in(&q, (size_t)i * sizeof(Fact)).mark == ASSUMED;
    for (int k = 0; k < q.models; k++) {
        for (size_t i = 0; i < sizeof(ModelPlan) / sizeof(Fact); i++)
            weak += fact_in(&q.model[k], i * sizeof(Fact)).mark == ASSUMED;
    }
    check(weak == 6 + ruled && q.model[0].flops.mark == BACK_COMPUTED,
          "%s, all confirmed: what is computed is back-computed, equal parts of sites and what follows are assumed",
          what);
    Follows all = {0, 0, 0, 0};
    const int stalls = DATACENTER_INPUTS, models = stalls + d.stalls;
    for (int i = 0; i < models + d.models * MODEL_INPUTS; i++) {
        const Input* in = i < models ? &stall_input : &model_inputs[(i - models) % MODEL_INPUTS];
        if (i < stalls) in = &datacenter_inputs[i];
        size_t at = in->at;
        if (i >= stalls && i < models) at = offsetof(Datacenter, stall) + (size_t)(i - stalls) * sizeof(Fact);
        if (i >= models) at += offsetof(Datacenter, model) + (size_t)((i - models) / MODEL_INPUTS) * sizeof(ModelWish);
        if (fact_in(&d, at).value == 0 && in->low > 0) continue; // by rule
        const Follows f = follow(&d, at, in->whole);
        if (f.blind)
            check(false, "%s, %s: %d facts move with it, %d of them blindly", what, in->name, f.moved, f.blind);
        silent += f.moved == 0;
        all.moved += f.moved;
        all.blind += f.blind;
        all.better += f.better;
        all.changed += f.changed;
    }
    check(all.blind == 0, "%s: %d facts that move with an input are assumed if it is", what, all.moved);
    check(all.better == 0 && all.changed == 0, "%s: an assumed input makes no mark better, no value another", what);
    if (expected_silent >= 0) check(silent == expected_silent, "%s: %d inputs move nothing", what, silent);
}

static void test_follows(void) {
    Datacenter d = datacenter_default();
    // peaks of other precisions, hbm, links, micro-batch and days, which only the search reads
    follow_all(d, "by rule", 10);
    d.site_power.value = 1e9;
    d.spares.value = 3;
    d.restart.value = 7;
    follow_all(d, "sites by their power", 12);                   // and the plant's two figures
    for (int said = 1; said < 1 << (MODEL_INPUTS - 1); said++) { // every choice of what a file fixes of a model
        const double fixed[] = {240, 8192 * 16, 30000};
        char what[64] = "fixed:";
        d = datacenter_default();
        d.it_power.value = 3e9;
        d.sites.value = 3;
        d.models = 1;
        d.model[0].parameters.value = 60e12;
        for (int i = 1; i < MODEL_INPUTS; i++) {
            if (!(said >> (i - 1) & 1)) continue;
            fact_at(&d.model[0], model_inputs[i].at)->value = fixed[i - 1];
            snprintf(what + strlen(what), sizeof what - strlen(what), " %s", model_inputs[i].name);
        }
        follow_all(d, what, -1);
    }
}

// ---- Print ------------------------------------------------------------------------------------------------------

static char* printed(const Datacenter* d, const DatacenterPlan* p) {
    char* text = NULL;
    size_t size = 0;
    FILE* out = open_memstream(&text, &size);
    if (!out) die("test_datacenter: no memory for a text");
    datacenter_print_inputs(d, out);
    datacenter_print(d, p, out);
    fclose(out);
    return text;
}

// The first line of a text that begins with two spaces and `what`; false: there is none.
static bool find_line(const char* text, const char* what, char* line, size_t size) {
    const size_t n = strlen(what);
    for (const char* at = text; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        if (strncmp(at, "  ", 2) != 0 || strncmp(at + 2, what, n) != 0 || strncmp(at + 2 + n, "  ", 2) != 0) continue;
        snprintf(line, size, "%.*s", (int)strcspn(at, "\n"), at);
        return true;
    }
    return false;
}

static bool printed_has(const char* text, const char* what, const char* values) {
    char line[256] = "";
    return find_line(text, what, line, sizeof line) && strstr(line, values) != NULL;
}

static void test_print(void) {
    // A row is as weak as its weakest column, and as its limit.
    static const struct {
        Mark models[2], supply; // of the parameters, of what a site can supply
        const char *row, *mark;
    } rows[] = {{{CONFIRMED, ASSUMED}, CONFIRMED, "parameters asked for", " assumed "},
                {{ASSUMED, CONFIRMED}, CONFIRMED, "parameters asked for", " assumed "},
                {{CONFIRMED, BACK_COMPUTED}, CONFIRMED, "parameters asked for", " back-computed "},
                {{CONFIRMED, CONFIRMED}, ASSUMED, "one site, most", " assumed "},
                {{CONFIRMED, CONFIRMED}, BACK_COMPUTED, "one site, most", " back-computed "},
                {{CONFIRMED, CONFIRMED}, CONFIRMED, "one site, most", " confirmed "}};
    Datacenter d = datacenter_default();
    all_confirmed(&d);
    d.site_power.value = 2.5e9;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int k = 0; k < 2; k++) d.model[k].parameters.mark = rows[i].models[k];
        d.site_power.mark = rows[i].supply;
        const DatacenterPlan q = plan_of(&d);
        char* text = printed(&d, &q);
        check(printed_has(text, rows[i].row, rows[i].mark) && printed_has(text, "one site, least", "GW: VIOLATED") &&
                  printed_has(text, "  power of each, most", "<= 2.50 GW: kept") && !printed_has(text, "sites", "<="),
              "%s: %s, and where there is no limit, no verdict", rows[i].row, rows[i].mark);
        free(text);
    }
}

// Every result has a row, or limits one.
static void test_rows(void) {
    int missing = 0;
    for (size_t at = 0; at < offsetof(DatacenterPlan, stall); at += sizeof(Fact)) {
        int rows_of = 0;
        for (int i = 0; i < DATACENTER_ROWS; i++)
            rows_of += datacenter_rows[i].quantity != HEADING && datacenter_rows[i].at == at;
        missing += rows_of == 0;
    }
    for (size_t at = 0; at < sizeof(ModelPlan); at += sizeof(Fact)) {
        int rows_of = 0;
        for (int i = 0; i < MODEL_ROWS; i++) {
            const Row* row = &model_rows[i];
            if (row->quantity != HEADING) rows_of += row->at == at || (row->limit != NO_LIMIT && row->limit_at == at);
        }
        missing += rows_of == 0;
    }
    check(missing == 0, "%d results without a row", missing);
}

// The largest models, the abstract, and three models in two rows.
static void test_verdict(void) {
    Datacenter d = datacenter_default();
    datacenter_add_model(&d, fact(7e12, CONFIRMED), 0);
    static DatacenterPlan p;
    p = plan_of(&d);
    plan_size(&p, 10e12, 1e7);
    plan_size(&p, 20e12, 5e6);
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < LAWS; k++) p.model[i].days[k] = fact(2000 + i, ASSUMED);
        p.model[i].days_limit = d.days_limit;
        p.model[i].mfu = fact(0.4, ASSUMED);
        p.model[i].ratio = d.tokens_per_parameter;
        p.model[i].ratio_in_time = fact(25 - 10 * i, ASSUMED);
    }
    p.model[2].days[LAW_LLAMA3].value = 1000;
    char *text = printed(&d, &p), line[300];
    const double C = 6e20 * 90 * 86400; // at 6e20 FLOP/s for every size
    double P[3];
    for (int k = 0; k < 3; k++) {
        const double errors[] = {p.law[0].exponent, p.law[0].high, p.law[0].low}, e = errors[k];
        P[k] = C / 6 / (p.law[0].tokens * pow(C / p.law[0].flops, e)) / 1e12;
    }
    snprintf(line, sizeof line, " %.3g (%.3g to %.3g)  ", P[0], P[1], P[2]);
    const char *at = strstr(text, "\n    90"), *first = at ? strstr(at, line) : NULL;
    check(P[1] < P[0] && P[0] < P[2] && first && first - at < 30, "90 d, 20 tokens a parameter:%s", line);
    check(strstr(text, "by each of these laws 50 T takes 2000 days or more, 100 T takes 2001 days or more\n") != NULL,
          "the abstract's models, and only those that no law allows");
    check(strstr(strstr(text, "\nMoney"), " 7 T  ") != NULL, "a third model");
    check(printed_has(text, "tokens a parameter, if both hold", ">= 20: kept, VIOLATED") &&
              !printed_has(text, "memory of a GPU", "<="),
          "at least 20, and a limit of 0 is none");
    int known[2] = {0, 0};
    const char* const marks[] = {"  confirmed      ", "  back-computed  "};
    for (int k = 0; k < 2; k++) {
        for (const char* row = strstr(text, "\nMoney"); row && (row = strstr(row, marks[k])); row++) known[k]++;
    }
    snprintf(line, sizeof line, "\n%d lines are confirmed, %d back-computed, ", known[0], known[1]);
    check(known[0] > 3 && known[1] > 3 && strstr(text, line), "rows by mark: %d, %d", known[0], known[1]);
    const char* stalls[] = {" 1.00 s  assumed        input", " 5.00 s  assumed        input",
                            " 30.0 s  assumed        input"};
    for (int i = 0; i < 3; i++) check(strstr(text, stalls[i]) != NULL, "a stall of%.7s", stalls[i]);
    check(strstr(text, "--gpus 1474560 --global-batch 23040") && strstr(text, "no mesh has room"),
          "the questions, without an answer");
    free(text);
    for (int i = 0; i < 3; i++) p.model[i].asked.mark = ASSUMED;
    text = printed(&d, &p);
    check(!strstr(text, "Contradicts"), "models of one's own contradict nothing");
    free(text);
}

static void test_texts(void) {
    static const struct {
        double value;
        Quantity quantity;
        const char* text;
    } texts[] = {{1677600, NUMBER, "1,677,600"},
                 {1000, NUMBER, "1,000"},
                 {20.635, NUMBER, "20.64"},
                 {0, NUMBER, "0"},
                 {9.976e14, LARGE, "9.98e14"},
                 {1.2e30, LARGE, "1.20e30"},
                 {0.0925, PERCENT, "9.25 %"},
                 {50e12, PARAMETERS, "50 T"},
                 {3e6, MONEY, "3.00 M$"},
                 {3.62e9, POWER, "3.62 GW"},
                 {-8.2e8, POWER, "-820 MW"},
                 {999.7e6, POWER, "1.00 GW"},
                 {44.4e12, BIT_RATE, "44.4 Tbit/s"},
                 {0.065, SECONDS, "65 ms"},
                 {3840, SECONDS, "3,840 s"},
                 {999.7, SECONDS, "999.7 s"},
                 {0.00017, PERCENT, "0.017 %"},
                 {0, PERCENT, "0 %"},
                 {0, SECONDS, "0.00 s"},
                 {1033.3, DAYS, "1,033 d"},
                 {INFINITY, DAYS, "-"},
                 {NAN, SECONDS, "-"}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char word[64];
        quantity_text(word, sizeof word, texts[i].value, texts[i].quantity);
        check(strcmp(word, texts[i].text) == 0, "%g is printed as %s", texts[i].value, word);
    }
}

// ---- Files ------------------------------------------------------------------------------------------------------

static bool read_text(Datacenter* d, const char* text, size_t n, Error* error) {
    write_bytes(path, text, n);
    error->text[0] = 0;
    return datacenter_read(d, path, error);
}

static void test_shipped(void) {
    Datacenter d, def = datacenter_default();
    Error error = {""};
    if (!check(datacenter_read(&d, SHIPPED, &error), "%s is read %s", SHIPPED, error.text)) return;
    int other = 0;
    for (int i = 0; i < DATACENTER_INPUTS; i++) {
        const size_t at = datacenter_inputs[i].at;
        const Fact a = fact_in(&d, at), b = fact_in(&def, at);
        const bool said =
            strcmp(datacenter_inputs[i].name, "it_power") == 0 || strcmp(datacenter_inputs[i].name, "sites") == 0;
        if (!said && (a.value != b.value || a.mark != b.mark))
            other++, printf("      %s: %.17g, %.17g\n", datacenter_inputs[i].name, a.value, b.value);
    }
    check(other == 0 && d.models == 2 && d.stalls == 3, "its inputs are the defaults, values and marks");
    // All the units; values of lines that say everything
    static const struct {
        const char* line;
        size_t at;
        double value;
        Mark mark;
    } lines[] = {
#define AT(name) offsetof(Datacenter, name)
        {"budget 5000000$", AT(budget), 5e6, ASSUMED},
        {"budget 50 M$ confirmed", AT(budget), 50e6, CONFIRMED},
        {"budget 1.5B$ back-computed", AT(budget), 1.5e9, BACK_COMPUTED},
        {"\tcompute_share 70% # of it", AT(compute_share), 0.7, ASSUMED},
        {"it_power 3.5 MW", AT(it_power), 3.5e6, ASSUMED},
        {"it_power 3.62GW", AT(it_power), 3.62e9, ASSUMED},
        {"peak_fp8 5PFLOP/s", AT(peak_fp8), 5e15, ASSUMED},
        {"precision 16 bit", AT(precision), 16, ASSUMED},
        {"hbm 1.5TB", AT(hbm), 1.5e12, ASSUMED},
        {"site_plants 0.5", AT(site_plants), 0.5, ASSUMED},
        {"scale_up 1.8 TB/s", AT(scale_up), 1.8e12, ASSUMED},
        {"nic 400 Gbit/s", AT(nic), 400e9, ASSUMED},
        {"fibre_pair 30 Tbit/s", AT(fibre_pair), 30e12, ASSUMED},
        {"wan_delay 900 us", AT(wan_delay), 0.0009, ASSUMED},
        {"wan_delay 65 ms", AT(wan_delay), 0.065, ASSUMED},
        {"days_limit 90 d", AT(days_limit), 90, ASSUMED},
        {"restart 0 s", AT(restart), 0, ASSUMED},
        {"model 400 B", AT(model) + offsetof(ModelWish, parameters), 400e9, ASSUMED},
        {"model 20T confirmed", AT(model) + offsetof(ModelWish, parameters), 20e12, CONFIRMED},
        {"stall 20 ms", AT(stall), 0.02, ASSUMED},
        {"model 20T\nlayers 120", AT(model) + offsetof(ModelWish, layers), 120, ASSUMED},
        {"model 1T\nmodel 20T\r\nbatch 999 confirmed", AT(model) + sizeof(ModelWish) + offsetof(ModelWish, batch), 999,
         CONFIRMED},
        {"model 20T\nbatch 1\nmodel 1T\nbatch 2", AT(model) + sizeof(ModelWish) + offsetof(ModelWish, batch), 2,
         ASSUMED},
        {"# nothing\n\n   \n", AT(budget), 100e9, CONFIRMED},
#undef AT
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        const bool ok = read_text(&d, lines[i].line, strlen(lines[i].line), &error);
        const Fact f = ok ? fact_in(&d, lines[i].at) : fact(NAN, ASSUMED);
        check(ok && f.value == lines[i].value && f.mark == lines[i].mark, "\"%.*s\": %.17g, %s %s",
              (int)strcspn(lines[i].line, "\n"), lines[i].line, f.value, mark_names[f.mark], error.text);
    }
}

static void test_refused(void) {
    static const struct {
        const char* text;
        int line; // that the message names; 0: the plan's, without a line
        const char* word;
    } bad[] = {
        {"budgett 100 B$", 1, "budgett"},
        {"\n\n100 B$", 3, "100"},
        {"budget", 1, "$, M$, B$"},
        {"sites 2 3 4", 1, "sites"},
        {"budget 100 BB$", 1, "\"100 BB$\" is not a number"},
        {"# x\nbudget 1 00 B$", 2, "not a number"},
        {"budget 100 B$ certain", 1, "not a number"},
        {"budget -100 B$", 1, "out of range"},
        {"budget NAN", 1, "not a number"},
        {"budget inf B$", 1, "not a number"},
        {"budget 1e400 B$", 1, "not a number"},
        {"budget 1e-400 B$", 1, "out of range"},
        {"budget 0x10 B$", 1, "not a number"},
        {"budget 1,000 B$", 1, "not a number"},
        {"budget 100 B$\nrack_price 3 M$\nbudget 90 B$", 3, "line 1"},
        {"compute_share 0.7", 1, "%"},
        {"rack_gpus 72.5", 1, "\"72.5\" is not a whole number"},
        {"spares -1", 1, "out of range"},
        {"spares 72", 1, "72 spares"},
        {"spares 8\nrack_gpus 8", 2, "8 spares of 8 GPUs"},
        {"rack_gpus 8\nspares 8", 2, "8 spares of 8 GPUs"},
        {"it_power 3 GW\nrack_power 150 kW", 2, "it_power and rack_power"},
        {"rack_power 150 kW\n\nit_power 3 GW", 3, "it_power and rack_power"},
        {"pue_low 1.5", 1, "pue_high 1.3"},
        {"precision 12 bit", 1, "12 bit"},
        {"wan_delay 65", 1, "us, ms, s"},
        {"stall 1 s\nstall 1 s\nstall 1 s\nstall 1 s\nstall 1 s", 5, "stall: there are 4 already"},
        {"model 1T\nmodel 1T\nmodel 1T\nmodel 1T\nmodel 1T\nmodel 1T\nmodel 1T\nmodel 1T\nmodel 1T", 9,
         "there are 8 already"},
        {"model -50 T", 1, "out of range"},
        {"layers 242", 1, "below a line \"model\""},
        {"budget 1 B$\nbatch 5", 2, "below a line \"model\""},
        {"model 50 T\nlayers 242\nlayers 243", 3, "line 2"},
        {"model 50 T\nlayers 1e6", 2, "out of range, 1 to 10,000"},
        // of files that can be read, but not planned
        {"\nmodel 50 T\nhidden 131073", 2, "hidden is not a multiple of head x GPUs of a rack"},
        {"model 50 T\nhidden 8192", 1, "more than 10,000 layers"},
        {"model 50 T\nmodel 100000 T", 2, "wider than 2^20"},
        {"budget 5 M$\nsites 2", 0, "2 sites, but 1 racks"},
        {"budget 3 M$", 0, "does not buy one rack that works"},
        {"rack_price 1 $\nrack_gpus 100000\nbudget 1e15$", 0, "more than 2^30 GPUs"},
    };
    static DatacenterPlan p;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        Datacenter d;
        Error error;
        char start[288];
        const bool ok = read_text(&d, bad[i].text, strlen(bad[i].text), &error) && datacenter_plan(&p, &d, &error);
        snprintf(start, sizeof start, bad[i].line ? "%s:%d: " : "%s: ", path, bad[i].line);
        check(!ok && strncmp(error.text, start, strlen(start)) == 0 && strstr(error.text, bad[i].word) != NULL &&
                  !strchr(error.text, '\n') && strlen(error.text) < sizeof error.text - 1,
              "refused: %.110s", ok ? bad[i].text : error.text + strlen(path));
    }
}

static void test_unreadable(void) {
    Datacenter d;
    Error error = {""};
    check(!datacenter_read(&d, "/no/such/file", &error) && strstr(error.text, "/no/such/file: cannot open: "), "%s",
          error.text);
    check(!datacenter_read(&d, "dev", &error) && strstr(error.text, "dev: cannot be read: "), "%s", error.text);
    char longest[700];
    memset(longest, ' ', sizeof longest);
    memcpy(longest, "budget", 6);
    check(!read_text(&d, longest, sizeof longest, &error) && strstr(error.text, ":1: longer than 510 characters"),
          "a line of 700 characters");
    check(!read_text(&d, "budget 1\0 B$\nsites 2\n", 21, &error) && strstr(error.text, ":1: "), "a zero byte");
    // The names that a message lists are those that are known
    read_text(&d, "x 1", 3, &error);
    int named = 0;
    for (int i = 0; i < DATACENTER_INPUTS; i++) named += strstr(error.text, datacenter_inputs[i].name) != NULL;
    for (int i = 0; i < MODEL_INPUTS; i++) named += strstr(error.text, model_inputs[i].name) != NULL;
    check(named == DATACENTER_INPUTS + MODEL_INPUTS, "an unknown name: all %d are listed", named);
}

int main(void) {
    process.name = "test_datacenter";
    make_temporary(path, sizeof path, "test_datacenter");
    test_published();
    test_cluster();
    test_shapes();
    test_search();
    test_million();
    test_facts();
    test_follows();
    test_print();
    test_rows();
    test_verdict();
    test_texts();
    test_shipped();
    test_refused();
    test_unreadable();
    unlink(path);
    return test_end();
}
