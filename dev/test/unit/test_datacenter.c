/*
test_datacenter.c: the datacenter planner. The published numbers; shapes and batches beside brute force; the answer of a
search beside that of ./plan's own question; files that are refused. Scaling laws are in test_datacenter_laws.c.
*/
#include "../../../planner/datacenter_print.h"
#include "test.h"

static char path[256]; // of a file to be read

// The paper's, as planner/clusters/next-generation.txt has it.
static Datacenter paper_datacenter(void) {
    Datacenter d;
    Error error;
    if (!datacenter_read(&d, write_text(path, ""), &error)) die("%s", error.text);
    return d;
}

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
    Datacenter d = paper_datacenter();
    DatacenterPlan p = plan_of(&d);
    check(p.affordable == 23333 && p.racks == 23300, "$100B, 70 %%, $3.0M a rack: %.0f racks, reported %.0f",
          p.affordable, p.racks);
    check(p.gpus == 1677600, "23,300 x 72 = %.0f GPUs", p.gpus);
    check(p.working == 1491200 && p.mesh_racks == 23040 && p.mesh_gpus == 1474560,
          "64 of 72 work; racks of a mesh: 2 x 2^8 3^2 5");
    check(fabs(p.power_low / 1e9 - 4.16) < 0.005 && fabs(p.power_high / 1e9 - 4.71) < 0.005,
          "3.62 GW x 1.15, 1.30 = %.3f, %.3f GW", p.power_low / 1e9, p.power_high / 1e9);
    check(p.sites == 2 && p.power_low > p.site_power, "one site is more than a plant's %.2f GW: 2 sites",
          p.site_power / 1e9);
    check(p.site_gpus == 838800 && fabs(p.site_it / 1e9 - 1.8) < 0.05 && fabs(p.site_low / 1e9 - 2.08) < 0.005 &&
              fabs(p.site_high / 1e9 - 2.36) < 0.01,
          "of each: 838,800 GPUs, 1.8 GW, 2.08 to 2.36 GW");
    static const double caps[] = {5e9, 4.5e9, 2.4e9, 2.3e9}, sites[] = {1, 2, 2, 3}; // of 4.71 GW at most
    for (int i = 0; i < 4; i++) {
        d.site_power = caps[i];
        p = plan_of(&d);
        check(p.sites == sites[i], "sites of %.1f GW: %g", caps[i] / 1e9, sites[i]);
        check(p.cluster.sites == sites[i] && p.cluster.nodes % p.cluster.sites == 0, "  as many in the cluster");
        d.site_power = 0;
        d.plant_power = caps[i] / 4;
        d.site_plants = 4;
        check(plan_of(&d).sites == sites[i], "  of four plants of a fourth: %g", sites[i]);
    }
    d = paper_datacenter();
    d.sites = 7;
    p = plan_of(&d);
    check(p.mesh_racks == 7 * 3240 && p.cluster.nodes == 22680 && p.cluster.sites == 7,
          "7 sites of 3,328 racks: 2^3 3^4 5 of each are in a mesh");
    d = paper_datacenter();
    p = plan_of(&d);
    check(fabs(p.model[0].flops / 3.0e29 - 1) < 0.05 / 3 && fabs(p.model[1].flops / 1.2e30 - 1) < 0.05 / 1.2,
          "20 tokens a parameter: %.2e and %.2e FLOP", p.model[0].flops, p.model[1].flops);
    check(fabs(p.failure_hours - 50700) < 50 && fabs(p.mtbf - 109) < 0.5, "%.0f GPU-hours a failure, one in %.1f s",
          p.failure_hours, p.mtbf);
    check(fabs(p.interval[0] - 15) < 0.5 && fabs(p.overhead[0] - 0.14) < 0.005 && fabs(p.overhead[1] - 0.30) < 0.005,
          "checkpoints of 1 s every %.1f s cost %.3f, of 5 s %.3f", p.interval[0], p.overhead[0], p.overhead[1]);
}

// The machines as ./plan has them.
static void test_cluster(void) {
    static const int bits[] = {16, 8, 4};
    static const double peaks[] = {2.5e15, 5e15, 10e15};
    Datacenter d = paper_datacenter();
    for (int i = 0; i < 3; i++) {
        d.precision = bits[i];
        const DatacenterPlan p = plan_of(&d);
        const Cluster* c = &p.cluster;
        check(c->device.peak == peaks[i] && p.peak == peaks[i], "%d bit: %g PFLOP/s", bits[i], peaks[i] / 1e15);
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
        Datacenter d = paper_datacenter();
        d.models = (Numbers){1, {asked}};
        d.rack_gpus = asked > 1e14 ? 72 : 24;
        const double unit = 128 * (d.rack_gpus - 8), most = floor(cbrt(512 * asked / 12) / unit + 0.5);
        double best = 0;
        for (double h = unit; h < 1 << 21; h += unit) { // all widths within a quarter
            if (fabs(h / unit - most) > floor(most / 4)) continue;
            for (int L = 1; 12 * L * h * h <= asked; L++) best = is_smooth(L) ? fmax(best, 12 * L * h * h) : best;
        }
        const ModelPlan m = plan_of(&d).model[0];
        const double h = m.hidden, P = 12 * m.layers * h * h;
        check(P == best && P <= asked && P > 0.9 * asked && fmod(h, unit) == 0 && m.heads == h / 128,
              "%.3g T: %.0f x %.0f, %.3g T, the nearest from below %.3g T", asked / 1e12, m.layers, h, P / 1e12,
              best / 1e12);
        const ModelConfig model = model_gpt2((int)m.layers, (int)h, (int)m.heads, 8192, 131072);
        check(m.parameters == (double)model_parameters(&model) && m.tokens == 20 * asked,
              "  parameters of the trainer's model; 20 tokens for each one asked for");
    }
    for (double most = 1; most < 1e6; most *= 1.7) {
        Datacenter d = paper_datacenter();
        d.batch_tokens = most * 8192;
        const DatacenterPlan p = plan_of(&d);
        const int racks = (int)p.mesh_racks, batch = (int)p.model[0].batch;
        int best = 0;
        for (int i = 1; i <= most * (1 + 1e-12); i++) best = i % racks == 0 || racks % i == 0 ? i : best;
        check(batch == best, "at most %.1f sequences: %d, a whole part or multiple of %d", most, batch, racks);
    }
}

// ---- The search: one planner ------------------------------------------------------------------------------------

// 2 sites of 8 racks of 8 GPUs, a model of 20B.
static Datacenter small_datacenter(void) {
    Datacenter d = paper_datacenter();
    d.rack_gpus = 8;
    d.spares = 0;
    d.budget = 3e6 * 16 / 0.7;
    d.sites = 2;
    d.sequence = 2048;
    d.batch_tokens = 2048 * 256;
    d.hbm = 80e9;
    d.micro_batch = 0;
    d.models = (Numbers){1, {20e9}};
    return d;
}

// The question that ./plan makes of the printed cluster and options, without the datacenter's functions.
static Question question_of(const Cluster* cluster, const Methods* methods, const ModelPlan* m, int T, int V,
                            int ranks) {
    Question q = {};
    q.model = model_gpt2((int)m->layers, (int)m->hidden, (int)m->heads, T, V);
    q.T = T;
    q.batch = (int64_t)m->batch;
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
        d.sites = sites;
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
        check(m->tensor * m->pipeline * m->data == 128 && s->mesh.sites == sites &&
                  m->micro_batches * m->data * s->B == m->batch && m->memory <= m->room,
              "  all GPUs, whole micro-batches, memory within its limit");
        check(m->step == p.best[0].cost.seconds && near(m->rate, m->batch * 2048 / m->step, 1e-12) &&
                  near(m->days[LAW_RATIO], 20 * 20e9 / m->rate / 86400, 1e-9) &&
                  near(m->ratio_in_time, m->rate * 1000 * 86400 / 20e9, 1e-12) &&
                  near(m->peak_needed, 5e15 * m->days[LAW_RATIO] / 1000, 1e-9) &&
                  near(m->mfu_needed, m->mfu * m->days[LAW_RATIO] / 1000, 1e-9),
              "  time follows from the step");
        const double bytes = 2.0 * (sites - 1) / sites * 4 * m->parameters;
        check(sites == 1 ? m->wan_bytes == 0 : near(m->wan_bytes, bytes, 0.02),
              "  sends %.4g GB to other sites, 2 (S - 1)/S 4 P = %.4g GB", m->wan_bytes / 1e9, bytes / 1e9);
        check((sites > 1) == isfinite(m->mode_step[DP_SYNC]) && (sites == 1 || m->mode_step[DP_SYNC] == m->step),
              "  and waits for that, if there are several");
        const int modes = sites > 1 ? DP_MODES : 0;
        for (int k = 0; k < modes; k++) {
            const double seconds = m->mode_step[k], asked = seconds_of_mode(q, (DpMode)k);
            other += seconds != m->step;
            check(seconds == asked, "  %s: %.4f s, by ./plan %.4f s", dp_mode_names[k], seconds, asked);
        }
        static const int sizes[] = {0, 6, 5, 0, 4}; // without ZeRO, as on several sites, the larger ones fit no mesh
        check(p.sizes == sizes[sites], "  %d sizes have a mesh", p.sizes);
        answer_free(&a);
        free(methods.list);
    }
    check(other == 4, "%d modes besides sync have another step", other);
    Datacenter d = small_datacenter();
    d.models.x[0] = 5e12;
    p = plan_of(&d);
    const bool searched = datacenter_search(&p, &d, &error);
    check(searched && p.best[0].cost.seconds == 0 && p.model[0].memory > 80e9 && isinf(p.model[0].days[0]) &&
              p.model[0].mfu == 0,
          "a model without room: no time, %.3g GB", p.model[0].memory / 1e9);
}

// Beyond 2^20 ranks, by the search of ./plan, on a t and p.
static void test_million(void) {
    const Datacenter d = paper_datacenter();
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

// ---- Files ------------------------------------------------------------------------------------------------------

static void test_file(void) {
    Datacenter d;
    Error error = {""};
    write_text(path, "it_power 3 GW\nprecision 16 bit\nmodels 400 B 20T\nstalls 20 ms\n");
    check(datacenter_read(&d, path, &error) && d.it_power == 3e9 && d.precision == 16 && d.budget == 100e9 &&
              d.models.n == 2 && d.models.x[0] == 400e9 && d.models.x[1] == 20e12 && d.stalls.n == 1 &&
              d.stalls.x[0] == 0.02 && plan_of(&d).it_power == 3e9,
          "a file has what differs from the paper's %s", error.text);
    check(datacenter_set_models(&d, "1T,50T", &error) && d.models.n == 2 && d.models.x[1] == 50e12, "--models %s",
          error.text);
    check(!datacenter_set_models(&d, "many", &error) && strstr(error.text, "many"), "%s", error.text);
}

static void test_refused(void) {
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"budgett 100 B$", ":1: \"budgett\" is not known"},
        {"budget 100 BB$", ":1: budget: \"100 BB$\" is not a number"},
        {"compute_share 0.7", "%"},
        {"rack_gpus 72.5", "\"72.5\" is not a whole number"},
        {"spares 72", "72 spares of 72 GPUs"},
        {"pue_low 1.5", "pue_high 1.3"},
        {"precision 12 bit", "12 bit"},
        {"stalls 1 s 1 s 1 s 1 s 1 s 1 s 1 s 1", "stalls: \"1\" is not a number"},
        {"models 1T 2T 3T 4T 5T 6T 7T 8T 9T", "models: \"9T\" is more"},
        {"models -50T", "out of range"},
        // of files that can be read, but not planned
        {"aspect 1", "more than 10,000 layers"},
        {"models 100000T", "wider than 2^20"},
        {"budget 5 M$\nsites 2", "2 sites, but 1 racks"},
        {"budget 3 M$", "does not buy one rack that works"},
        {"rack_price 1 $\nrack_gpus 100000\nbudget 1e15$", "more than 2^30 GPUs"},
    };
    static DatacenterPlan p;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        Datacenter d;
        Error error;
        const bool ok = datacenter_read(&d, write_text(path, bad[i].text), &error) && datacenter_plan(&p, &d, &error);
        check(!ok && strncmp(error.text, path, strlen(path)) == 0 && strstr(error.text, bad[i].word), "refused: %.110s",
              ok ? bad[i].text : error.text + strlen(path));
    }
}

int main(void) {
    process.name = "test_datacenter";
    make_temporary(path, sizeof path, "test_datacenter");
    test_published();
    test_cluster();
    test_shapes();
    test_search();
    test_million();
    test_file();
    test_refused();
    unlink(path);
    return test_end();
}
