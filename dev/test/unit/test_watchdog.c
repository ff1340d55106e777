/*
test_watchdog.c: util/heartbeat.h and trainer/watchdog.h. What a row says, against a text made here; the judgement on
random tables, against a second one that is written down as trainer/watchdog.h's comment has it; processes that run, are
stopped, killed, or have another's number; and whole jobs of processes without MPI, of which one is stopped, computes
for ever, is killed, or is only slow. With several ranks: the table that they share, and their groups in it.

    ranks: 1 3

With one of these words as argument it is a job that hangs, to be looked at from outside, with a watchdog of one second:
    spin        the last rank computes for ever in its third step, the others wait for it
    stop        the same, the last rank stops itself
    crossed     two ranks wait for each other's message
    slow        nothing is wrong: each step takes longer than the limit, but moves on
*/
#define WATCH_GRACE 0.5
#define WATCH_ELSEWHERE 0.5
#define WATCH_OTHERS 1.0
#define WATCH_LAST_WORDS 0.5
#define WATCH_START 2.3
#include "../../../trainer/watchdog.h"
#include "test.h"
#include <poll.h>
#include <sys/wait.h>

static const char* test_action(int kind) {
    static const char* const names[] = {"forward", "backward", "norm"};
    return names[kind];
}
static const char* test_operation(int kind) { return comm_kind_name((CommKind)kind); }
static const HeartbeatNames names = {test_action, test_operation};

static uint64_t drawn = 0;
static int draw(int n) { return (int)(philox(17, 4, drawn++).word[0] % (uint32_t)n); }

static HeartbeatTable* table_new(int rows, int members) {
    HeartbeatPlace place;
    HeartbeatTable* table = heartbeat_make(&place, rows, members, false);
    if (!table) die("no memory for a table");
    return table;
}

// ---- What a row says --------------------------------------------------------------------------------------------

static void check_place(void) {
    HeartbeatTable* table = table_new(1, 1);
    HeartbeatRow* row = heartbeat_row(table, 0);
    bool ok = true;
    for (int i = 0; i < 20000; i++) {
        const int phase = draw(PHASES), action = draw(4) - 1, chunk = action < 0 ? -1 : draw(1001) - 1;
        const int drawn_microbatch = draw(4) ? draw(9) - 1 : draw(1 << 30);
        const int microbatch = action < 0 ? -1 : drawn_microbatch;
        const long long step = draw(2) ? draw(100) : (long long)draw(1 << 30) << 20;
        char expected[256] = "", text[256], part[64];
        heartbeat_phase(row, (HeartbeatPhase)phase, step);
        if (action >= 0) heartbeat_action(row, action, chunk, microbatch);
        if (phase > 1) sprintf(expected, "step %lld", step);
        if (phase != 2)
            sprintf(expected + strlen(expected), "%s%s", phase > 1 ? ", " : "",
                    heartbeat_phase_name((HeartbeatPhase)phase));
        if (action >= 0) sprintf(expected + strlen(expected), ", %s", test_action(action));
        sprintf(part, " %d", microbatch);
        if (microbatch >= 0) strcat(expected, part);
        sprintf(part, " of chunk %d", chunk);
        if (chunk >= 0) strcat(expected, part);
        text[0] = 0;
        heartbeat_add_place(text, sizeof text, row, names);
        if (strcmp(text, expected) != 0 && ok) printf("      \"%s\", expected \"%s\"\n", text, expected);
        ok = ok && strcmp(text, expected) == 0;
        text[0] = 0;
        heartbeat_add_place(text, 12, row, names); // a short one is cut
        ok = ok && strlen(text) <= 11 && strncmp(text, expected, strlen(text)) == 0;
    }
    check(ok, "20000 places: step, phase, action, chunk and micro-batch come back");
    heartbeat_unmap(table);
}

static void check_count(void) {
    HeartbeatTable* table = table_new(2, 8);
    HeartbeatRow *row = heartbeat_row(table, 0), *other = heartbeat_row(table, 1);
    uint64_t last = heartbeat_count(row);
    bool moves = true;
    for (int i = 0; i < 5; i++) {
        if (i == 0) heartbeat_phase(row, PHASE_TRAINING, 1);
        if (i == 1) heartbeat_action(row, 0, 0, 0);
        if (i == 2) heartbeat_resume(row);
        if (i == 3) heartbeat_move(row);
        if (i == 4) heartbeat_background(row);
        moves = moves && heartbeat_count(row) == last + 1;
        last++;
    }
    heartbeat_wait(row, COMM_BARRIER, -1, -1);
    moves = moves && heartbeat_count(row) == last;
    check(moves, "phases, actions, ends of waits and messages carried count one each, the start of a wait none");
    check(heartbeat_count(other) == 0 && other->place == 0, "in its own row only");
    heartbeat_phase(NULL, PHASE_TRAINING, 1), heartbeat_action(NULL, 0, 0, 0), heartbeat_wait(NULL, 0, 0, 0);
    heartbeat_resume(NULL), heartbeat_move(NULL), heartbeat_background(NULL);
    check((uintptr_t)row % 64 == 0 && (uintptr_t)other % 64 == 0 && sizeof(HeartbeatRow) % 64 == 0 &&
              offsetof(HeartbeatRow, moved) % 64 == 0 && offsetof(HeartbeatRow, carried) % 64 == 0,
          "rows, and what two threads write, have cache lines of their own");
    heartbeat_unmap(table);
}

static void check_wait_text(void) {
    const int32_t four[] = {2, 5, 7, 40}, ten[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, more[] = {1};
    HeartbeatTable* table = table_new(2, 15);
    const int a = heartbeat_add_group(table, 1, "tensor", four, 4),
              b = heartbeat_add_group(table, 1, "a name of more than 15", ten, 10);
    check(a == 0 && b == 1 && heartbeat_add_group(table, 1, "x", four, 2) == -1,
          "a group for which there is no room is dropped");
    check(heartbeat_add_group(table, 1, "last", more, 1) == 2, "what has room is not");
    for (int i = 3; i < 12; i++) heartbeat_add_group(table, 1, "empty", more, 0);
    check(heartbeat_row(table, 1)->groups == PHASE_GROUPS, "no more groups than there is room for");
    const struct {
        int operation, group, peer;
        const char* text;
    } cases[] = {
        {COMM_RECEIVE, a, 2, "receive in group \"tensor\" with rank 7"},
        {COMM_SEND, a, 0, "send in group \"tensor\" with rank 2"},
        {COMM_SEND, a, 4, "send"},
        {COMM_BARRIER, a, -1, "barrier in group \"tensor\" of ranks 2, 5, 7, 40"},
        {COMM_ALL_REDUCE, b, -1, "all-reduce in group \"a name of more \" of ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"},
        {COMM_ON_DEVICE, -1, -1, "the device"},
        {COMM_BARRIER, 9, -1, "barrier"}};
    bool ok = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256] = "", cut[16] = "";
        HeartbeatRow* row = heartbeat_row(table, 1);
        heartbeat_wait(row, cases[i].operation, cases[i].group, cases[i].peer);
        heartbeat_add_wait(text, sizeof text, table, 1, heartbeat_waits(row), names);
        if (strcmp(text, cases[i].text) != 0) printf("      \"%s\", expected \"%s\"\n", text, cases[i].text);
        ok = ok && strcmp(text, cases[i].text) == 0 && heartbeat_waits(row) != 0;
        heartbeat_add_wait(cut, sizeof cut, table, 1, heartbeat_waits(row), names);
        ok = ok && strncmp(cut, text, strlen(cut)) == 0;
        heartbeat_resume(row);
        ok = ok && heartbeat_waits(row) == 0;
    }
    check(ok, "waits name operation, group, and ranks of the world");
    heartbeat_unmap(table);
}

// ---- The judgement ----------------------------------------------------------------------------------------------

typedef struct {
    bool ended, gone, stopped, waits, starts;
    double silent, missing;
    int for_whom[4], n; // ranks of the world
} Case;

// As the comment in trainer/watchdog.h has it: the kinds of all rows, and who may end the job.
static double limit_of(const Case* c) { return c->starts ? 2.3 : 2; }

static int expected_state(const Case* c) {
    if (c->ended) return WATCH_MOVES;
    if (c->gone) return WATCH_GONE;
    if (c->silent < limit_of(c) / 2) return WATCH_MOVES;
    if (c->stopped) return WATCH_STOPPED;
    return c->waits ? WATCH_WAITS : WATCH_COMPUTES;
}

// Whose rank is `rank`: row i has rank 3 i + 1.
static int row_of(int rank, int rows) { return rank % 3 == 1 && rank / 3 < rows ? rank / 3 : -1; }

static int expected_worst(const Case* c, int rows) {
    int worst = -1;
    double score = 0;
    bool alarm = false;
    for (int i = 0; i < rows; i++) {
        const int state = expected_state(&c[i]);
        const double limit = limit_of(&c[i]);
        bool late = false, far = c[i].n == 0;
        if (state == WATCH_MOVES) continue;
        for (int k = 0; k < c[i].n; k++) {
            const int row = row_of(c[i].for_whom[k], rows);
            far = far || row < 0;
            late = late || (row >= 0 && row != i && !c[row].ended && c[row].silent < limit_of(&c[row]));
        }
        if (state == WATCH_WAITS && late) continue;
        if (state == WATCH_GONE)
            alarm = alarm || c[i].missing >= WATCH_GRACE;
        else
            alarm = alarm || c[i].silent >= limit + (state == WATCH_WAITS && far ? WATCH_ELSEWHERE : 0);
        const double points = c[i].silent - 100 * state;
        if (worst >= 0 && points <= score) continue;
        worst = i;
        score = points;
    }
    return alarm ? worst : -1;
}

// Draws the case of slot i, writes it into the table, and sets the view.
static void draw_case(Watchdog* w, int i, Case* x) {
    HeartbeatRow* row = heartbeat_row(w->table, i);
    WatchView* view = &w->view[i];
    const int rows = w->table->rows;
    x->ended = draw(10) == 0;
    x->gone = draw(12) == 0;
    x->stopped = draw(8) == 0;
    x->waits = draw(3) > 0;
    x->silent = draw(4) ? draw(28) / 10.0 + 0.001 * i : 0;
    x->missing = x->gone ? draw(10) / 10.0 : 0;
    row->rank = 3 * i + 1;
    x->starts = draw(5) == 0;
    heartbeat_phase(row, x->starts ? (HeartbeatPhase)draw(2) : (HeartbeatPhase)(2 + draw(PHASES - 2)), 1);
    if (x->waits) {
        int32_t ranks[4];
        const int n = 1 + draw(3);
        for (int k = 0; k < n; k++) ranks[k] = draw(4) ? 3 * draw(rows) + 1 : draw(20);
        const int group = heartbeat_add_group(w->table, i, "g", ranks, n), how = draw(3),
                  peer = how == 1 ? draw(n) : -1;
        heartbeat_wait(row, COMM_RECEIVE, how == 2 ? -1 : group, peer);
        const int awaited[] = {n, 1, 0};
        x->n = awaited[how];
        for (int k = 0; k < x->n; k++) x->for_whom[k] = ranks[how == 1 ? peer : k];
    }
    watchdog_look_at(w, i, 0);
    view->ended = x->ended;
    view->silent = x->silent;
    view->missing = x->missing;
    view->wait = heartbeat_waits(row);
    view->process = x->stopped ? PROCESS_STOPPED : PROCESS_RUNS;
    if (x->gone) view->process = PROCESS_GONE;
}

static void check_judgement(void) {
    int wrong = 0, alarms = 0, states[WATCH_MOVES + 1] = {0};
    for (int trial = 0; trial < 100000; trial++) {
        const int rows = 1 + draw(5);
        HeartbeatTable* table = table_new(rows, 8);
        WatchView view[5];
        Case c[5];
        Watchdog w = {};
        memset(view, 0, sizeof view);
        memset(c, 0, sizeof c);
        w.table = table;
        w.limit = 2;
        w.view = view;
        w.self = 0;
        for (int i = 0; i < rows; i++) draw_case(&w, i, &c[i]);
        const int found = watchdog_judge(&w), expected = expected_worst(c, rows);
        wrong += found != expected;
        alarms += found >= 0;
        for (int i = 0; i < rows; i++) {
            wrong += view[i].state != (WatchState)expected_state(&c[i]);
            states[view[i].state]++;
        }
        if (found >= 0 && trial % 16 == 0) { // every rank is in the report, once, the one to blame first
            static char text[WATCH_REPORT];
            w.names = names;
            watchdog_report(text, &w, found);
            char who[32];
            snprintf(who, sizeof who, "%s: rank %d (", process.name, 3 * found + 1);
            wrong += strncmp(text, who, strlen(who)) != 0;
            for (int i = 0; i < rows; i++) {
                snprintf(who, sizeof who, "  rank %d (", 3 * i + 1);
                const char* at = strstr(text, who);
                wrong += i == found ? at != NULL : !at || strstr(at + 1, who);
            }
        }
        heartbeat_unmap(table);
    }
    bool all = true;
    for (int s = 0; s <= WATCH_MOVES; s++) all = all && states[s] > 1000;
    check(wrong == 0 && all && alarms > 1000 && alarms < 90000,
          "100000 random tables are judged as the rules say (%d wrong, %d alarms)", wrong, alarms);
}

static void check_long_report(void) {
    HeartbeatTable* table = table_new(60, 8);
    WatchView view[60];
    Watchdog w = {};
    static char text[WATCH_REPORT];
    memset(view, 0, sizeof view);
    w.table = table;
    w.limit = 1;
    w.view = view;
    w.names = names;
    for (int i = 0; i < 60; i++) {
        heartbeat_row(table, i)->rank = i;
        view[i].silent = 1 + i / 100.0;
        view[i].limit = 1;
    }
    const int worst = watchdog_judge(&w);
    watchdog_report(text, &w, worst);
    int lines = 0;
    for (size_t i = 0; i < strlen(text); i++) lines += text[i] == '\n';
    const char* second = strchr(text, '\n');
    check(worst == 59 && lines == 18 && second && strncmp(second, "\n  rank 58 (", 12) == 0 &&
              strstr(text, "  rank 43 (") && !strstr(text, "  rank 42 (") && strstr(text, "and 43 ranks more"),
          "of many ranks the 17 that are silent longest are named, and the others counted");
    heartbeat_unmap(table);
}

// ---- Processes, and the shared table ----------------------------------------------------------------------------

static void nap(double seconds) {
    const double end = seconds_now() + seconds;
    for (double left = seconds; left > 0; left = end - seconds_now()) usleep((useconds_t)(1e6 * fmin(left, 0.02)) + 1);
}

static bool becomes(const HeartbeatRow* row, ProcessState state) {
    for (int i = 0; i < 2000 && heartbeat_process(row) != state; i++) usleep(1000);
    return heartbeat_process(row) == state;
}

static void check_processes(void) {
    HeartbeatPlace place;
    HeartbeatTable* table = heartbeat_make(&place, 3, 4, true);
    if (!table || place.file < 0) {
        printf("left out: no memory can be shared here\n");
        return;
    }
    heartbeat_claim(table, 0, 7);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        HeartbeatTable* mine = heartbeat_open(&place);
        const int32_t ranks[] = {7, 9};
        if (!mine) _exit(3);
        heartbeat_claim(mine, 1, 9);
        heartbeat_add_group(mine, 1, "both", ranks, 2);
        heartbeat_phase(heartbeat_row(mine, 1), PHASE_TRAINING, 5);
        heartbeat_wait(heartbeat_row(mine, 1), COMM_RECEIVE, 0, 0);
        for (;;) pause();
    }
    HeartbeatRow* row = heartbeat_row(table, 1);
    for (int i = 0; i < 2000 && heartbeat_waits(row) == 0; i++) usleep(1000);
    char text[160] = "";
    heartbeat_add_wait(text, sizeof text, table, 1, heartbeat_waits(row), names);
    check(strcmp(text, "receive in group \"both\" with rank 7") == 0 && heartbeat_find(table, 9) == 1 &&
              heartbeat_find(table, 8) == -1,
          "what another process writes is read here: %s", text);
    check(becomes(row, PROCESS_RUNS), "a process that runs");
    kill(child, SIGSTOP);
    check(becomes(row, PROCESS_STOPPED), "a process that is stopped");
    kill(child, SIGCONT);
    check(becomes(row, PROCESS_RUNS), "and goes on");
    row->born++;
    check(heartbeat_process(row) == PROCESS_GONE, "one that has its number, but began at another time");
    row->born--;
    kill(child, SIGKILL);
    check(becomes(row, PROCESS_GONE), "a process that was killed, before its parent has noticed");
    waitpid(child, NULL, 0);
    check(heartbeat_process(row) == PROCESS_GONE, "and after");

    HeartbeatPlace other = place;
    other.nonce++;
    bool refused = heartbeat_open(&other) == NULL;
    other = place, other.rows++;
    refused = refused && heartbeat_open(&other) == NULL;
    other = place;
    other.file = 9999;
    refused = refused && heartbeat_open(&other) == NULL;
    other = place;
    other.file = -1;
    refused = refused && heartbeat_open(&other) == NULL;
    other = place;
    other.process = 0;
    check(refused && heartbeat_open(&other) == NULL, "a table of another job, of another size, or none is not opened");
    heartbeat_unmap(table);
    close(place.file);
    check(heartbeat_open(&place) == NULL, "nothing is left of it when its makers have let go");
}

// ---- Whole jobs: processes that watch each other ----------------------------------------------------------------

enum { JOB = 3 };
typedef enum { IDLE, STOPS, SPINS, KILLED, CROSSED, SLOW, LATE, PAUSED, GOES, HANGS_AT_END, CARRIED } Fate;

static bool is_quiet(Fate fate) {
    return fate == SLOW || fate == LATE || fate == CARRIED || fate == PAUSED || fate == GOES;
}

// Seconds. On a busy machine a process may have no core for a while, and nothing may be said of that.
static double limit_for(Fate fate) { return is_quiet(fate) ? 2.5 : 0.6; }

static void watch_spin(void) {
    for (volatile unsigned i = 0;; i++) continue; // unsigned: it may wrap, which a fast core brings it to
}

static void hang(int status) {
    (void)status;
    for (;;) pause();
}

// Rank i of a job whose last rank has a fate.
static void job_rank(HeartbeatPlace place, int i, Fate fate, int ready, int go) {
    const int32_t all[] = {0, 1, 2};
    HeartbeatTable* table = heartbeat_open(&place);
    Watchdog w;
    char byte = 1;
    if (!table) _exit(9);
    process.name = "job";
    if (fate == HANGS_AT_END) process.stop = hang;
    HeartbeatRow* row = heartbeat_claim(table, i, i);
    const int group = heartbeat_add_group(table, i, "all", all, JOB);
    if (write(ready, &byte, 1) != 1 || read(go, &byte, 1) != 1) _exit(9); // all sit
    watchdog_begin(&w, table, i, limit_for(fate), names);
    heartbeat_phase(row, PHASE_TRAINING, 8);
    heartbeat_action(row, 1, 0, 3);
    const bool last = i == JOB - 1;
    if (fate == CROSSED) heartbeat_wait(row, COMM_RECEIVE, group, (i + 1) % JOB);
    if (!last && fate != CROSSED) heartbeat_wait(row, COMM_BARRIER, group, -1);
    for (int k = 0; k < 200; k++) { // four seconds
        nap(0.02);
        if (last && fate == SPINS) watch_spin();
        if (fate == SLOW && k % 10 == 0) heartbeat_move(row); // every 0.2 s
        if (last && fate == LATE) heartbeat_move(row);        // while the others wait for it, all the time
        if (last && fate == CARRIED) heartbeat_background(row);
        if (fate == PAUSED && k < 5) heartbeat_move(row), k = k == 4 ? 196 : k;
        if (last && k == 3 && fate == STOPS) raise(SIGSTOP);
        if (last && k == 3 && fate == KILLED) raise(SIGKILL);
        if (last && k == 3 && fate == GOES) break;
        if (fate == GOES) heartbeat_move(row);
    }
    watchdog_ending(&w);
    if (fate == GOES && !last) nap(1); // longer than GRACE after the end of the other
    watchdog_close(&w);
    _exit(0);
}

// Runs a job; returns the report, and how many ranks have ended with status 1. Kills what is left after ten seconds.
static int job(Fate fate, char* said, size_t size, int* ones, double* seconds) {
    HeartbeatPlace place;
    int out[2], ready[2], go[2], left = JOB, lines = 0, status;
    size_t n = 0;
    pid_t ranks[JOB];
    HeartbeatTable* table = heartbeat_make(&place, JOB, 8, true);
    if (!table || pipe(out) || pipe(ready) || pipe(go)) die("no memory or pipe for a job");
    fflush(stdout);
    for (int i = 0; i < JOB; i++) {
        ranks[i] = fork();
        if (ranks[i] == 0) {
            dup2(out[1], STDERR_FILENO);
            close(out[0]), close(out[1]);
            job_rank(place, i, fate, ready[1], go[0]);
        }
    }
    close(out[1]);
    char bytes[JOB] = "";
    for (int i = 0; i < JOB; i++) {
        if (read(ready[0], bytes, 1) != 1) die("a job does not begin");
    }
    if (write(go[1], bytes, JOB) != JOB) die("a job does not begin");
    const double started = seconds_now();
    if (fate == PAUSED) { // the whole job, for longer than the limit
        nap(0.15);
        for (int i = 0; i < JOB; i++) kill(ranks[i], SIGSTOP);
        nap(3.5);
        for (int i = 0; i < JOB; i++) kill(ranks[i], SIGCONT);
    }
    *ones = 0;
    bool killed = false;
    while (left > 0) {
        const pid_t done = waitpid(-1, &status, WNOHANG);
        if (done > 0) {
            left--;
            *ones += WIFEXITED(status) && WEXITSTATUS(status) == EXIT_RUN;
            *seconds = seconds_now() - started;
            for (int i = 0; i < JOB; i++) { // as a launcher does
                if (!killed && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_RUN && fate == STOPS)
                    kill(ranks[i], SIGKILL);
            }
            continue;
        }
        if (seconds_now() - started > 10 && !killed) {
            for (int i = 0; i < JOB; i++) kill(ranks[i], SIGKILL);
            killed = true;
        }
        usleep(10000);
    }
    ssize_t got;
    while (n + 1 < size && (got = read(out[0], said + n, size - 1 - n)) > 0) n += (size_t)got;
    said[n] = 0;
    for (size_t i = 0; i < n; i++) lines += strncmp(said + i, "job: rank ", 10) == 0;
    close(out[0]), close(ready[0]), close(ready[1]), close(go[0]), close(go[1]), close(place.file);
    heartbeat_unmap(table);
    return killed ? -1 : lines;
}

// One of them, in a process of its own: as many run side by side as there are. Succeeds if all is as expected.
typedef struct {
    Fate fate;
    const char *what, *who, *state; // who "": nothing is said
    double most;                    // seconds
} Job;

static int check_job(const Job* j) {
    char said[8192];
    int ones;
    double seconds = 0;
    const bool quiet = !*j->who;
    const int lines = job(j->fate, said, sizeof said, &ones, &seconds);
    const bool ok = lines == !quiet && (quiet ? ones == 0 : ones >= 1) && seconds < j->most &&
                    strncmp(said, j->who, strlen(j->who)) == 0 && strstr(said, j->state) &&
                    strstr(said, quiet ? "" : "at step 8, backward 3 of chunk 0");
    if (!ok) printf("      %s: %d lines, %d ranks with status 1, %.1f s: %s\n", j->what, lines, ones, seconds, said);
    return !ok;
}

static void check_jobs(void) {
    static const char *const last = "job: rank 2 (", *const computes = "waits for no rank and makes no progress";
    const Job jobs[] = {{IDLE, "a rank sleeps, and waits for no rank", last, computes, 9},
                        {STOPS, "a rank is stopped", last, "is stopped, by", 9},
                        {SPINS, "a rank computes for ever", last, computes, 9},
                        {KILLED, "a rank is killed", last, "is gone, without a word", 9},
                        {CROSSED, "ranks wait for each other", "job: rank ", "waits at", 9},
                        {SLOW, "all are slow, but move", "", "", 9},
                        {LATE, "one moves, the others wait for it all the time", "", "", 9},
                        {CARRIED, "the same, of which only a thread carries messages", "", "", 9},
                        {PAUSED, "a whole job is stopped for longer than the limit, and goes on", "", "", 9},
                        {GOES, "a rank comes to its end before the others", "", "", 9},
                        {HANGS_AT_END, "a rank computes for ever, and process.stop hangs", last, computes, 9}};
    enum { N = sizeof jobs / sizeof *jobs };
    pid_t of[N];
    bool failed[N];
    fflush(stdout);
    for (int i = 0; i < N; i++) {
        of[i] = fork();
        if (of[i] == 0) {
            const int status = check_job(&jobs[i]);
            fflush(stdout);
            _exit(status);
        }
    }
    for (int i = 0; i < N; i++) {
        int status = 0;
        waitpid(of[i], &status, 0);
        failed[i] = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    for (int i = 0; i < N; i++) {
        // Limits are seconds of the clock on the wall, and a busy machine can hold a process up for longer than that:
        // what was not as expected is done again, twice at most, alone.
        for (int again = 0; failed[i] && again < 2; again++) failed[i] = check_job(&jobs[i]);
        check(!failed[i], "%s: %s", jobs[i].what, *jobs[i].who ? "an alarm" : "no alarm");
    }
}

// ---- What it costs the main thread ------------------------------------------------------------------------------

static void check_cost(void) {
    enum { N = 100000 };
    HeartbeatTable* table = table_new(1, 1);
    HeartbeatRow* row = heartbeat_row(table, 0);
    double best = INFINITY;
    for (int round = 0; round < 20; round++) {
        const double started = seconds_now();
        for (int i = 0; i < N; i++) {
            heartbeat_action(row, i & 1, 0, i);
            heartbeat_wait(row, COMM_RECEIVE, 0, i & 3);
            heartbeat_resume(row);
        }
        best = fmin(best, (seconds_now() - started) / N);
    }
    // An action of a small model on a CPU takes 100 us.
    check(heartbeat_count(row) >= 20 * N, "an action and a wait cost %.1f ns", 1e9 * best);
    heartbeat_unmap(table);
}

// ---- With MPI ---------------------------------------------------------------------------------------------------

static Comm world;

static void check_same_launch(void) {
    Watchdog w;
    const int64_t before = world.size_bytes;
    watchdog_open(&w, &world, 0, test_action);
    check(watchdog_row(&w) == NULL && world.row == NULL, "a limit of 0: no thread watches");
    watchdog_close(&w);
    watchdog_open(&w, &world, 1000, test_action);
    Comm pairs = comm_split(&world, world.rank / 2, -world.rank, "pairs"); // the other way round
    watchdog_group(&w, &pairs, world.rank);
    comm_barrier(&world);
    bool ok = w.table->rows == world.size && w.sees && w.self == world.rank;
    for (int i = 0; i < w.table->rows && ok; i++) {
        const HeartbeatRow* row = heartbeat_row(w.table, i);
        const int32_t* ranks = NULL;
        const int mate = i % 2 ? i - 1 : i + 1;
        ok = row->rank == i;
        if (world.size == 1) ok = ok && row->groups == 0;
        if (world.size == 1) continue;
        ok = ok && row->groups == 1 + (mate < world.size);
        const uint64_t all = (uint64_t)(COMM_BARRIER + 1) << 56 | (uint64_t)1 << 48;
        ok = ok && heartbeat_awaited(w.table, i, all, &ranks) == world.size && ranks[0] == 0 &&
             ranks[world.size - 1] == world.size - 1;
        const uint64_t first =
            (uint64_t)(COMM_SEND + 1) << 56 | (uint64_t)2 << 48 | 1; // rank 0 of pairs: the larger one
        if (mate < world.size)
            ok = ok && heartbeat_awaited(w.table, i, first, &ranks) == 1 && ranks[0] == (i > mate ? i : mate);
    }
    int32_t everywhere = ok;
    comm_all_reduce(&world, &everywhere, 1, COMM_INT32, COMM_MIN);
    check(everywhere, "%d ranks see each other, and who is in whose groups", world.size);
    world.size_bytes = before;
    const uint64_t count = heartbeat_count(watchdog_row(&w));
    comm_barrier(&world);
    check(world.size == 1 || (heartbeat_count(watchdog_row(&w)) > count && heartbeat_waits(watchdog_row(&w)) == 0),
          "an operation moves its rank's row");
    comm_free(&pairs);
    watchdog_ending(&w);
    comm_barrier(&world);
    watchdog_close(&w);
    world.row = NULL;
}

static void hang_job(const char* how) {
    Watchdog w;
    const bool last = world.rank == world.size - 1;
    watchdog_open(&w, &world, 1, test_action);
    for (int step = 1; step <= 4; step++) {
        heartbeat_phase(watchdog_row(&w), PHASE_TRAINING, step);
        heartbeat_action(watchdog_row(&w), 0, 0, 6);
        if (strcmp(how, "slow") == 0) { // 1.35 s
            for (int i = 0; i < 3; i++) {
                nap(0.45);
                comm_barrier(&world);
            }
        }
        if (step == 3 && last && strcmp(how, "stop") == 0) raise(SIGSTOP);
        if (step == 3 && last && strcmp(how, "spin") == 0) watch_spin();
        if (step == 3 && strcmp(how, "crossed") == 0 && world.rank < 2) {
            float x;
            CommRequest r = comm_receive_start(&world, &x, 1, COMM_FLOAT, 1 - world.rank, 0);
            comm_wait(&r);
        }
        comm_barrier(&world);
    }
    watchdog_ending(&w);
    comm_close(&world);
    watchdog_close(&w);
}

int main(int argc, char** argv) {
    process.name = "test_watchdog";
    comm_open(&world);
    if (argc > 1 && argv[1][0] != '-') {
        hang_job(argv[1]);
        return 0;
    }
    if (world.size == 1) {
        check_place();
        check_count();
        check_wait_text();
        check_judgement();
        check_long_report();
        check_processes();
        check_jobs();
        check_cost();
    }
    check_same_launch();
    comm_close(&world);
    return test_end();
}
