/*
draw_schedule.c: pipeline schedules as SVG pictures, from the tables that the trainer executes.

    draw_schedule --schedule zb-v --pp 4 --vpp 2 --microbatches 8 --out zb-v.svg
    draw_schedule --trace trace.json --out run.svg

The first draws the timeline of the tables at given costs. The second draws one step of a run beside the prediction of
the tables at the measured costs, on one time scale, and prints the numbers.
*/
#include "../../util/options.h"
#include "../../parallel/schedule_check.h"
#include "trace_run.h"
#include "schedule_svg.h"

typedef struct {
    const char *trace, *out;
    int kind;
    int64_t p, v, m, step;
    double forward, input, weight, transfer;
    bool help;
} DrawOptions;

static inline DrawOptions draw_options_default(void) {
    DrawOptions o = {};
    o.kind = ONE_F_ONE_B;
    o.p = 4;
    o.m = 8;
    o.step = -1;
    o.forward = o.input = o.weight = 1;
    return o;
}

// ---- From tables to pictures ------------------------------------------------------------------------------------

static inline int most_slots(const Schedule* stages, int p) {
    int most = 0;
    for (int r = 0; r < p; r++) most = (int)max_i64(most, stages[r].slots);
    return most;
}

static inline SvgPicture predicted_picture(const PipelineConfig* plan, const DrawOptions* o) {
    char title[128], caption[320], backward[64], transfer[64] = "";
    Schedule* stages = schedules_build(plan);
    Costs costs = costs_equal(plan->p * plan->v, o->forward, o->input, o->weight, o->transfer);
    Timeline t = schedule_times(stages, plan->p, &costs, false);
    if (schedule_splits_backward(plan->kind))
        snprintf(backward, sizeof backward, "%g + %g", o->input, o->weight);
    else
        snprintf(backward, sizeof backward, "%g", o->input + o->weight);
    if (o->transfer > 0) snprintf(transfer, sizeof transfer, ", message %g", o->transfer);
    plan_title(title, sizeof title, plan);
    snprintf(caption, sizeof caption,
             "bubble %.4g %%: idle / computing time; step %.6g, forward pass%s %g, backward pass %s%s; "
             "activations of %g micro-batches",
             100 * timeline_bubble(stages, &t), t.length, plan->v > 1 ? " of a chunk" : "", o->forward, backward,
             transfer, (double)most_slots(stages, plan->p) / plan->v);
    SvgPicture picture = svg_picture(title, "time", t.length, plan->v);
    draw_panel(&picture, "", caption, stages, &t, 1);
    timeline_free(&t);
    costs_free(&costs);
    schedules_free(stages, plan->p);
    return picture;
}

static inline int draw_predicted(const DrawOptions* o, Error* error) {
    const int usual = schedule_usual_chunks((ScheduleKind)o->kind);
    const PipelineConfig plan = {(ScheduleKind)o->kind, (int)o->p, o->v ? (int)o->v : usual, (int)o->m, false, false};
    if (!pipeline_config_check(&plan, RECOMPUTE_NONE, error)) return EXIT_ARGUMENTS;
    if (!o->out) return fail(error, "--out FILE.svg is missing: where the picture goes"), EXIT_ARGUMENTS;
    SvgPicture picture = predicted_picture(&plan, o);
    const bool ok = write_picture(svg_write, &picture, o->out, error);
    svg_picture_free(&picture);
    return ok ? 0 : EXIT_RUN;
}

// ---- What is printed and drawn ----------------------------------------------------------------------------------

static inline void print_cost(FILE* out, double seconds) {
    if (seconds > 0)
        fprintf(out, " %12.3f", 1e3 * seconds);
    else
        fprintf(out, " %12s", "-");
}

// A line for each schedule that could have run instead.
static inline void print_others(FILE* out, const MeasuredRun* x, const Prices* prices) {
    fprintf(out, "\nother schedules at the mean times of all stages\n");
    for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
        PipelineConfig plan = x->stages[0].config;
        Error error;
        plan.kind = (ScheduleKind)kind;
        plan.v = schedules[kind].grouped ? (int)max_i64(2, plan.v) : schedule_usual_chunks(plan.kind);
        if (plan.p == 1 || !pipeline_config_check(&plan, RECOMPUTE_NONE, &error)) continue;
        Schedule* stages = schedules_build(&plan);
        Timeline t = predicted_with(x, prices, stages);
        fprintf(out, "as %-12s step %10.3f   bubble %7.2f %%\n", schedule_name(plan.kind), 1e3 * t.length,
                100 * timeline_bubble(stages, &t));
        timeline_free(&t);
        schedules_free(stages, plan.p);
    }
    fprintf(out, "\n");
}

static inline void print_measured(FILE* out, const MeasuredRun* x, const Prices* prices, const Summary* run) {
    const PipelineConfig* plan = &x->stages[0].config;
    const ActionKind kinds[] = {FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, REDUCE, UPDATE};
    char title[128];
    plan_title(title, sizeof title, plan);
    fprintf(out, "%s; means of steps %lld to %lld in ms\n\n", title, (long long)x->step[1].number,
            (long long)x->step[x->n - 1].number);
    fprintf(out, "stage chunk      forward     backward   input half  weight half       reduce       update\n");
    for (int r = 0; r < plan->p; r++) {
        for (int c = 0; c < plan->v; c++) {
            const int number = schedule_virtual_stage(&x->stages[r], c);
            fprintf(out, "%5d %5d", r, c);
            for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
                print_cost(out, *cost_of(&prices->costs, kinds[i], number));
            fprintf(out, "\n");
        }
    }
    fprintf(out,
            "\ntransfer %.3f (%d messages that were waited for)   tie %.3f   norm %.3f   outside of the table %.3f\n",
            1e3 * prices->transfer, prices->messages, 1e3 * prices->tie, 1e3 * prices->norm,
            1e3 * (prices->before + prices->after));
    fprintf(out, "step     measured %9.3f   predicted %9.3f   error %+.2f %%   medians\n", 1e3 * run->step,
            1e3 * run->predicted, 100 * (run->predicted / run->step - 1));
    fprintf(out, "bubble   measured %7.2f %%   predicted %7.2f %%   idle / computing time\n", 100 * run->bubble,
            100 * run->predicted_bubble);
    print_others(out, x, prices);
    fprintf(out, "step_ms measured %.6f predicted %.6f bubble measured %.6f predicted %.6f\n", 1e3 * run->step,
            1e3 * run->predicted, run->bubble, run->predicted_bubble);
}

// The times of a step as they are drawn. What a stage waits for at TIE and NORM is idle: the actions begin when the
// last stage has come.
static inline void step_without_meetings(const MeasuredRun* x, MeasuredStep* step) {
    const ActionKind kinds[] = {TIE, NORM};
    for (int i = 0; i < 2; i++) {
        double last = 0;
        for (int r = 0; r < step->times.p; r++) {
            const int at = *action_place(x, r, kinds[i], -1, -1);
            if (at >= 0) last = fmax(last, step->times.start[r][at]);
        }
        for (int r = 0; r < step->times.p; r++) {
            const int at = *action_place(x, r, kinds[i], -1, -1);
            if (at >= 0) step->times.start[r][at] = fmin(last, step->times.end[r][at]);
        }
    }
}

static inline SvgPicture measured_picture(const MeasuredRun* x, MeasuredStep* step, const Timeline* predicted) {
    char title[160], caption[320], plan[128];
    double length = predicted->length;
    plan_title(plan, sizeof plan, &x->stages[0].config);
    snprintf(title, sizeof title, "%s; step %lld", plan, (long long)step->number);
    for (int r = 0; r < step->times.p; r++) length = fmax(length, step->finish[r]);
    SvgPicture picture = svg_picture(title, "time (ms)", 1e3 * length, x->stages[0].config.v);
    snprintf(caption, sizeof caption, "step %.4g ms, bubble %.1f %%: idle / computing time", 1e3 * step->times.length,
             100 * timeline_bubble(x->stages, &step->times));
    step_without_meetings(x, step);
    draw_panel(&picture, "measured", caption, x->stages, &step->times, 1e3);
    for (int r = 0; r < step->times.p; r++) {
        const SvgBox zero = {r, 1e3 * step->zeroed[r], 1e3 * step->until[r], SVG_OTHER, 0, -1};
        svg_add_box(&picture.panel[0], zero);
    }
    snprintf(caption, sizeof caption, "step %.4g ms, bubble %.1f %%", 1e3 * predicted->length,
             100 * timeline_bubble(x->stages, predicted));
    draw_panel(&picture, "predicted by the tables, from the mean times of this step", caption, x->stages, predicted,
               1e3);
    return picture;
}

// Which step was asked for, or is the nearest to the median; -1: it is not there.
static inline int choose_step(const MeasuredRun* x, int64_t number, double median) {
    int best = number < 0 ? 1 : -1;
    for (int i = 0; i < x->n; i++) {
        if (x->step[i].number == number) return i;
        const double off = fabs(x->step[i].times.length - median);
        if (number < 0 && i > 0 && off < fabs(x->step[best].times.length - median)) best = i;
    }
    return best;
}

// Prints the table of a run and, where picture is not NULL, puts one of its steps into *picture.
static inline bool draw_run(const RunTrace* run, MeasuredRun* x, int64_t number, SvgPicture* picture, FILE* out,
                            Error* error) {
    if (!measure(x, run, error)) return false;
    const Summary summary = summarize(x);
    const int n = choose_step(x, number, summary.step);
    if (n < 0)
        return fail(error, "%s: --step %lld is not there; it has steps %lld to %lld", run->path, (long long)number,
                    (long long)x->step[0].number, (long long)x->step[x->n - 1].number);
    const Steps all = {1, x->n};
    Prices prices = measured_prices(x, all);
    print_measured(out, x, &prices, &summary);
    costs_free(&prices.costs);
    if (!picture) return true;
    Timeline predicted = predicted_from_itself(x, n);
    *picture = measured_picture(x, &x->step[n], &predicted);
    timeline_free(&predicted);
    return true;
}

// The same from the text of a trace, which errors call `path`. *picture is for svg_picture_free where that went well.
static inline bool draw_trace(const char* path, const void* text, size_t size, int64_t step, SvgPicture* picture,
                              FILE* out, Error* error) {
    RunTrace run;
    if (!run_trace_read(&run, path, text, size, error)) return false;
    Schedule* stages = schedules_build(&run.plan);
    MeasuredRun measured;
    measured_run_begin(&measured, stages);
    const bool ok = draw_run(&run, &measured, step, picture, out, error);
    measured_run_free(&measured);
    schedules_free(stages, run.plan.p);
    run_trace_free(&run);
    return ok;
}

static inline int draw_measured(const DrawOptions* o, FILE* out, Error* error) {
    MappedFile file;
    SvgPicture picture;
    if (!file_map(&file, o->trace, error)) return EXIT_RUN;
    bool ok = draw_trace(o->trace, file.data, file.size, o->step, o->out ? &picture : NULL, out, error);
    file_unmap(&file);
    if (ok && o->out) {
        ok = write_picture(svg_write, &picture, o->out, error);
        svg_picture_free(&picture);
    }
    if (ok && (fflush(out) != 0 || ferror(out))) ok = fail(error, "writing the table failed: %s", strerror(errno));
    return ok ? 0 : EXIT_RUN;
}

// The program: prints to out and returns its exit status, with an error if that is not 0.
static inline int draw_schedule(int argc, char** argv, FILE* out, Error* error) {
    DrawOptions o = draw_options_default();
    Option table[] = {
        option_heading("a schedule at given costs"),
        option_choice("schedule", &o.kind, schedule_choices(), ""),
        option_int("pp", &o.p, 1, 256, "stages"),
        option_int("vpp", &o.v, 1, 32, "chunks of each stage [what the schedule needs]"),
        option_int("microbatches", &o.m, 1, 1024, "in a step"),
        option_float("forward", &o.forward, 1e-6, 1e6, "what a forward pass of a chunk takes"),
        option_float("input", &o.input, 0, 1e6, "what the input half of a backward pass takes"),
        option_float("weight", &o.weight, 0, 1e6, "what the weight half takes"),
        option_float("transfer", &o.transfer, 0, 1e6, "seconds that a message is in flight"),
        option_heading("a run, measured and predicted"),
        option_string("trace", &o.trace, "FILE", "that train_gpt --trace has written"),
        option_int("step", &o.step, 0, 1e15, "which one to draw [the one that is nearest to the median]"),
        option_heading("both"),
        option_string("out", &o.out, "FILE.svg", "the picture"),
        option_flag("help", &o.help, "this list"),
    };
    const int n = (int)(sizeof table / sizeof table[0]);
    if (!options_parse(table, n, argc, argv, error)) return EXIT_ARGUMENTS;
    if (o.help) {
        fprintf(out, "draw_schedule draws pipeline schedules, and runs of them, as SVG.\n");
        options_help(table, n, out);
        return 0;
    }
    for (int i = 0; strcmp(table[i].name, "trace") != 0; i++) { // options of predicted pictures
        if (o.trace && table[i].given)
            return fail(error, "--%s: the trace says that itself", table[i].name), EXIT_ARGUMENTS;
    }
    if (o.step >= 0 && !o.trace) return fail(error, "--step needs --trace FILE"), EXIT_ARGUMENTS;
    return o.trace ? draw_measured(&o, out, error) : draw_predicted(&o, error);
}

#ifndef DRAW_SCHEDULE_NO_MAIN
int main(int argc, char** argv) {
    process.name = "draw_schedule";
    Error error;
    const int status = draw_schedule(argc, argv, stdout, &error);
    if (status == EXIT_ARGUMENTS) die_usage("%s", error.text);
    if (status != 0) die("%s", error.text);
    return 0;
}
#endif
