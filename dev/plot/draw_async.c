/*
draw_async.c: one replica's steps and its messages to the others, in the modes of asynchronous data parallelism, as an
SVG timeline on stdout. methods/async_schedule.h says in which steps messages are sent, and in which ones they are
merged. A step takes 1, a message of the whole model takes 1, too.
*/
#include "../../methods/async_schedule.h"
#include "svg_timeline.h"

static const double LENGTH = 24; // of the axis

static void draw_mode(SvgPicture* picture, const char* name, DpMode mode, int64_t period) {
    AsyncConfig config = {};
    double now = 0, arrives = 0;
    int64_t t = 0;
    SvgPanel* panel = svg_add_panel(picture, "", "", 2);
    config.mode = mode;
    config.period = period;
    snprintf(panel->labels[0].text, sizeof panel->labels[0].text, "computing");
    snprintf(panel->labels[1].text, sizeof panel->labels[1].text, "messages");
    while (now + 1 <= LENGTH) {
        const SvgBox forward = {0, now, now + 1.0 / 3, SVG_FORWARD, 0, -1};
        const SvgBox backward = {0, now + 1.0 / 3, now + 1, SVG_BACKWARD, 0, (int)++t};
        const bool merges = async_schedule_sends(&config, t - async_schedule_delay(&config)),
                   late = async_schedule_delay(&config) > 0;
        svg_add_box(panel, forward);
        svg_add_box(panel, backward);
        now += 1;
        if (merges && late) now = fmax(now, arrives);
        if (async_schedule_sends(&config, t)) {
            const SvgBox message = {1, now, now + 1, SVG_REDUCE, 0, -1};
            arrives = now + 1;
            if (arrives <= LENGTH) svg_add_box(panel, message);
        }
        if (merges && !late) now = arrives;
    }
    snprintf(panel->title, sizeof panel->title, "%s: %lld steps", name, (long long)t);
}

int main(void) {
    SvgPicture picture = svg_picture("One replica in three modes, on a network that takes as long as a step",
                                     "time (steps of computing)", LENGTH, 1);
    draw_mode(&picture, "sync", DP_SYNC, 1);
    draw_mode(&picture, "dc-s3gd, used one step later", DP_DC_S3GD, 1);
    draw_mode(&picture, "diloco, every 8 steps", DP_DILOCO, 8);
    const bool ok = svg_write(stdout, &picture);
    svg_picture_free(&picture);
    return ok && fflush(stdout) == 0 ? 0 : EXIT_RUN;
}
