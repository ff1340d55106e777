/*
step_time.c: what a step of the trainer takes on a cluster, by the planner. It takes the trainer's options, and

    build/step_time --cluster FILE|NAME --gpus N [the trainer's options]

prints one line of JSON: seconds, their parts, and seconds of each kind of action on each stage (--actions). With
--calibrate trace.json, the trace of such a run, it prints lines for the cluster's file by which the prediction would
have been right (calibrate.h).
*/
#include "../../settings.h"
#include "calibrate.h"
#include "memory.h"

static void print_actions(const StepCost* cost) {
    printf("{");
    for (int r = 0; r < cost->p; r++) {
        double sums[ACTION_KINDS] = {0};
        const Schedule* s = &cost->tables[r];
        for (int i = 0; i < s->n; i++)
            sums[s->actions[i].kind] += cost->timeline.end[r][i] - cost->timeline.start[r][i];
        printf("%s\"%d\":{", r ? "," : "", r);
        for (int k = 0, any = 0; k < ACTION_KINDS; k++) {
            if (sums[k] > 0) printf("%s\"%s\":%.6g", any++ ? "," : "", action_name((ActionKind)k), sums[k]);
        }
        printf("}");
    }
    printf("}\n");
}

// Bytes of a text file or of all of a list's: what the kernel may keep of them for a rank.
static double text_bytes(const Settings* o) {
    struct stat st;
    return o->data && stat(o->data, &st) == 0 ? (double)st.st_size : 0;
}

// Peak of the largest rank, as log.jsonl has it after `steps` steps; 0 where nothing is known of processes.
static double peak_of(const StepSetup* s, const Measured* m, const Settings* o) {
    const ProcessSetup setup = {m->resident, text_bytes(o), (double)o->steps * (double)s->batch / s->mesh.d, s->threads,
                                o->sample_every > 0};
    const Pipeline plan = step_pipeline(s);
    ProcessMemory peak;
    Error error;
    if (m->resident <= 0) return 0;
    if (!process_peak(&peak, &s->model, &s->mesh, s->B, s->T, &plan, &setup, &error)) die_usage("%s", error.text);
    return peak.bytes;
}

int main(int argc, char** argv) {
    process.name = "step_time";
    Settings o = settings_default();
    Option table[MAX_OPTIONS + 4];
    const char *cluster_name = NULL, *trace = NULL;
    int64_t gpus = 1;
    bool actions = false;
    int n = settings_table(table, &o);
    table[n++] = option_string("cluster", &cluster_name, "FILE|NAME", "of the machine");
    table[n++] = option_int("gpus", &gpus, 1, 1 << 20, "ranks");
    table[n++] = option_flag("actions", &actions, "seconds of the actions of each stage, too");
    table[n++] = option_string("calibrate", &trace, "FILE", "print corrections by the trace of this run");
    Error error;
    if (!options_parse(table, n, argc, argv, &error)) die_usage("%s", error.text);
    Cluster c;
    Measured m;
    measured_init(&m);
    if (!cluster_name) die_usage("--cluster: which machine?");
    if (!cluster_find(&c, cluster_name) && !measured_read_cluster(&c, &m, cluster_name, &error))
        die_usage("%s", error.text);
    settings_schedule(&o, option_given(table, n, "schedule"));
    const Mesh mesh = settings_mesh(&o, 0, (int)gpus);
    settings_batch(&o);
    const ModelConfig model = settings_model(&o, table, n, 256);
    const int T = o.seq ? (int)o.seq : model.T;
    const Software* software = software_find(c.measured ? "threefold-cpu" : "threefold");
    StepSetup s = step_setup(&model, &mesh, (int)o.micro_batch, T, o.global_batch, software, &c);
    s.clip = o.clip > 0;
    double* speed = (double*)checked_malloc((size_t)(mesh.p + 1) * sizeof(double), "speeds");
    if (c.measured) measured_share_cores(&m, &s.threads, speed, (int)gpus, mesh.p);
    if (c.measured && gpus > 1) s.speed = speed;
    if (!step_check(&s, &error)) die_usage("%s", error.text);
    if (trace) {
        if (!c.measured) die_usage("--calibrate: --cluster %s has no lines of a measured machine", cluster_name);
        if (!calibrate_by_trace(&m, &s, trace, &error)) die("%s", error.text);
        measured_write_corrections(&m, stdout);
        return 0;
    }
    StepCost cost = step_cost_with(&s, true);
    if (actions) print_actions(&cost);
    printf("{\"seconds\":%.6g,\"bytes\":%.0f", cost.seconds, peak_of(&s, &m, &o));
    for (int i = 0; i < STEP_PARTS; i++) printf(",\"%s\":%.6g", step_part_name(i), cost.parts[i]);
    printf("}\n");
    step_cost_free(&cost);
    measured_free(&m);
    free(speed);
    return 0;
}
