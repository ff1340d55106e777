/*
draw_async.c: one replica's steps and its messages to the others, in four modes of asynchronous data parallelism, as an
SVG timeline on stdout. The table is methods/async_schedule.h's: in which step a fragment is sent, and in which one it
is merged. A step takes 1, a message of the whole model takes 1, too; a replica's messages follow each other.
*/
#include "../../methods/async_schedule.h"
#include "svg_timeline.h"

static const double LENGTH = 24; // of the axis

static AsyncConfig async_config(DpMode mode, int64_t period, int64_t delay, int fragments) {
    AsyncConfig config = {};
    config.mode = mode;
    config.period = period;
    config.delay = delay;
    config.fragments = fragments;
    return config;
}

// Sends the fragments of step t, which ends at `now`; arrives (fragments): when their sums will be there.
static void send_step(SvgPanel* panel, const AsyncConfig* config, int64_t t, double now, double* arrives) {
    const double seconds = 1.0 / config->fragments;
    for (int f = 0; f < config->fragments; f++) {
        if (!async_schedule_sends(config, f, t)) continue;
        const SvgBox box = {1, now, now + seconds, SVG_REDUCE, 0, -1};
        arrives[f] = now + seconds;
        if (box.end <= LENGTH) svg_add_box(panel, box);
        now += seconds;
    }
}

static double wait_merged(const AsyncConfig* config, int64_t t, double now, const double* arrives) {
    for (int f = 0; f < config->fragments; f++) {
        if (async_schedule_merges(config, f, t)) now = fmax(now, arrives[f]);
    }
    return now;
}

static void draw_mode(SvgPicture* picture, const char* name, AsyncConfig config) {
    double now = 0, arrives[2] = {0, 0};
    int64_t t = 0;
    SvgPanel* panel = svg_add_panel(picture, "", "", 2);
    snprintf(panel->labels[0].text, sizeof panel->labels[0].text, "computing");
    snprintf(panel->labels[1].text, sizeof panel->labels[1].text, "messages");
    while (now + 1 <= LENGTH) {
        const SvgBox forward = {0, now, now + 1.0 / 3, SVG_FORWARD, 0, -1};
        const SvgBox backward = {0, now + 1.0 / 3, now + 1, SVG_BACKWARD, 0, (int)++t};
        svg_add_box(panel, forward);
        svg_add_box(panel, backward);
        now += 1;
        if (config.delay > 0) now = wait_merged(&config, t, now, arrives);
        send_step(panel, &config, t, now, arrives);
        if (config.delay == 0) now = wait_merged(&config, t, now, arrives);
    }
    snprintf(panel->title, sizeof panel->title, "%s: %lld steps", name, (long long)t);
}

int main(void) {
    SvgPicture picture = svg_picture("One replica in four modes, on a network that takes as long as a step",
                                     "time (steps of computing)", LENGTH, 1);
    draw_mode(&picture, "sync", async_config(DP_SYNC, 1, 0, 1));
    draw_mode(&picture, "delayed and dc-s3gd, used one step later", async_config(DP_DC_S3GD, 1, 1, 1));
    draw_mode(&picture, "diloco, every 8 steps", async_config(DP_DILOCO, 8, 0, 1));
    draw_mode(&picture, "streaming diloco, 2 fragments, each every 8 steps and merged 2 steps later",
              async_config(DP_DILOCO, 8, 2, 2));
    const bool ok = svg_write(stdout, &picture);
    svg_picture_free(&picture);
    return ok && fflush(stdout) == 0 ? 0 : EXIT_RUN;
}
