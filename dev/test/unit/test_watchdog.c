/*
test_watchdog.c: util/heartbeat.h and trainer/watchdog.h. What a row says; the judgement on random tables, against a
second one that is written down as trainer/watchdog.h's comment has it; and whole jobs of processes without MPI, of
which one is stopped, computes for ever, is killed, or is only slow. With several ranks: the table that they share, and
their groups in it.

    ranks: 1 3

With one of these words as argument it is a job that hangs, to be looked at from outside, with a watchdog of one second:
    spin        the last rank computes for ever in its third step, the others wait for it
    stop        the same, the last rank stops itself
    crossed     two ranks wait for each other's message
    slow        nothing is wrong: each step takes longer than the limit, but moves on
*/
#define WATCH_START 2.3
#define WATCH_ELSEWHERE 0.5
#define WATCH_LAST_WORDS 2
#include "../../../trainer/watchdog.h"
#include "test.h"
#include <sys/wait.h>

static uint64_t drawn = 0;
static int draw(int n) { return (int)(philox(17, 4, drawn++).word[0] % (uint32_t)n); }

// ---- What a row says --------------------------------------------------------------------------------------------

static void check_text(void) {
    static HeartbeatRow row;
    static const int32_t ranks[] = {2, 5, 7};
    strcpy(row.of_group[1].text, " in group \"g\" of ranks 2, 5, 7");
    row.of_group[1].ranks = ranks;
    const struct {
        HeartbeatPhase phase;
        int action, chunk, microbatch, operation, group, peer;
        const char* text;
    } cases[] = {
        {PHASE_LOADING, -1, -1, -1, -1, -1, -1, "loading the weights"},
        {PHASE_TRAINING, -1, -1, -1, COMM_ON_DEVICE, -1, -1, "step 17, training: the device"},
        {PHASE_SAVING, -1, -1, -1, COMM_BARRIER, 1, -1,
         "step 17, saving a checkpoint: barrier in group \"g\" of ranks 2, 5, 7"},
        {PHASE_TRAINING, BACKWARD, 300, 70000, COMM_RECEIVE, 1, 2,
         "step 17, backward 70000 of chunk 300: receive in group \"g\" of ranks 2, 5, 7, with rank 7"},
        {PHASE_TRAINING, NORM, -1, -1, COMM_SEND, -1, 1, "step 17, norm: send"},
        {PHASE_VALIDATING, FORWARD, 0, 0, -1, -1, -1, "step 17, forward 0 of chunk 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256] = "", cut[12] = "";
        heartbeat_phase(&row, cases[i].phase, 17);
        if (cases[i].action >= 0) heartbeat_action(&row, cases[i].action, cases[i].chunk, cases[i].microbatch);
        heartbeat_resume(&row);
        if (cases[i].operation >= 0) heartbeat_wait(&row, cases[i].operation, cases[i].group, cases[i].peer);
        watchdog_add_place(text, sizeof text, &row);
        watchdog_add_place(cut, sizeof cut, &row);
        check(strcmp(text, cases[i].text) == 0 && strncmp(text, cut, 11) == 0, "%s: %s", cases[i].text, text);
    }
    const uint64_t before = row.moved;
    heartbeat_wait(&row, COMM_BARRIER, 1, -1);
    bool ok = row.moved == before;
    heartbeat_resume(&row), heartbeat_move(&row), heartbeat_phase(&row, PHASE_TRAINING, 1);
    heartbeat_action(&row, 1, 1, 1);
    ok = ok && row.moved == before + 4;
    heartbeat_phase(NULL, PHASE_TRAINING, 1), heartbeat_action(NULL, 0, 0, 0), heartbeat_wait(NULL, 0, 0, 0);
    heartbeat_resume(NULL), heartbeat_move(NULL);
    check(ok && sizeof row % 64 == 0, "phases, actions, ends of waits and messages move, the start of a wait does not");
}

// ---- The judgement ----------------------------------------------------------------------------------------------

// As the comment in trainer/watchdog.h has it, of ranks that run: the row to blame; -1: none. blame: the WatchState.
static int expected_worst(const HeartbeatRow* rows, const double* silent, int n) {
    int worst = -1, ended = 0, late = 0, later = 0, blame[5];
    for (int i = 0; i < n; i++) {
        const double limit = rows[i].phase <= PHASE_LOADING ? 2.3 : 2;
        blame[i] = rows[i].operation >= 0 ? WATCH_WAITS : WATCH_COMPUTES;
        ended += rows[i].phase == PHASE_ENDING;
        late += silent[i] >= limit;
        later += silent[i] >= limit + 0.5;
        if (rows[i].phase == PHASE_ENDING) continue;
        const bool as_bad = worst >= 0 && blame[i] == blame[worst];
        if (worst < 0 || blame[i] < blame[worst] || (as_bad && silent[i] > silent[worst])) worst = i;
    }
    if (ended == n || late < n || (blame[worst] == WATCH_WAITS && later < n)) return -1;
    return worst;
}

static void check_judgement(void) {
    int wrong = 0, alarms = 0;
    for (int trial = 0; trial < 20000; trial++) {
        HeartbeatRow* rows = watchdog_map(-1, 5);
        WatchView view[5] = {};
        double silent[5];
        Watchdog w = {rows, 1 + draw(5), 0, 2, view, {0, 0}, 0};
        for (int i = 0; i < w.n; i++) {
            rows[i].process = (int32_t)getpid();
            rows[i].operation = draw(3) - 1;
            heartbeat_phase(&rows[i], (HeartbeatPhase)draw(PHASE_ENDING + 1), 1);
            view[i].moved = rows[i].moved - (draw(12) == 0);
            view[i].silent = draw(200) / 100.0 + 0.001 * i;
            silent[i] = view[i].moved == rows[i].moved ? view[i].silent + 1.25 : 0;
        }
        const int found = watchdog_look(&w, 1.25);
        wrong += found != expected_worst(rows, silent, w.n);
        alarms += found >= 0;
        munmap(rows, 5 * sizeof *rows);
    }
    check(wrong == 0 && alarms > 1000 && alarms < 19000,
          "20000 random tables are judged as the rules say (%d wrong, %d alarms)", wrong, alarms);
}

// ---- Whole jobs: processes that watch each other ----------------------------------------------------------------

static void nap(double seconds) {
    const double end = seconds_now() + seconds;
    for (double left = seconds; left > 0; left = end - seconds_now()) usleep((useconds_t)(1e6 * fmin(left, 0.02)) + 1);
}

enum { JOB = 3 };
typedef enum { IDLE, STOPS, SPINS, KILLED, CROSSED, SLOW, LATE, PAUSED, GOES, HANGS_AT_END, CARRIED } Fate;

// Seconds. On a busy machine a process may have no core for a while, and nothing may be said of that.
static double limit_for(Fate fate) {
    const bool quiet = fate == SLOW || fate == LATE || fate == CARRIED || fate == PAUSED || fate == GOES;
    return quiet ? 2.5 : 0.6;
}

static void watch_spin(void) {
    for (volatile unsigned i = 0;; i++) continue; // unsigned: it may wrap, which a fast core brings it to
}

static void hang(int status) {
    (void)status;
    for (;;) pause();
}

// Rank i of a job whose last rank has a fate.
static void job_rank(HeartbeatRow* rows, int i, Fate fate, int ready, int go) {
    static const int32_t all[] = {0, 1, 2};
    Watchdog w;
    char byte = 1;
    process.name = "job";
    if (fate == HANGS_AT_END) process.stop = hang;
    HeartbeatRow* row = &rows[i];
    row->of_group[0].ranks = all;
    if (write(ready, &byte, 1) != 1 || read(go, &byte, 1) != 1) _exit(9); // all sit
    watchdog_begin(&w, rows, JOB, i, i, limit_for(fate));
    heartbeat_phase(row, PHASE_TRAINING, 8);
    heartbeat_action(row, BACKWARD, 0, 3);
    const bool last = i == JOB - 1;
    if (fate == CROSSED) heartbeat_wait(row, COMM_RECEIVE, 0, (i + 1) % JOB);
    if (!last && fate != CROSSED) heartbeat_wait(row, COMM_BARRIER, 0, -1);
    for (int k = 0; k < 200; k++) { // four seconds
        nap(0.02);
        if (last && fate == SPINS) watch_spin();
        if (fate == SLOW && k % 10 == 0) heartbeat_move(row); // every 0.2 s
        if (last && fate == LATE) heartbeat_move(row);        // while the others wait for it, all the time
        if (last && fate == CARRIED) heartbeat_move(row);
        if (fate == PAUSED && k < 5) heartbeat_move(row), k = k == 4 ? 196 : k;
        if (last && k == 3 && fate == STOPS) raise(SIGSTOP);
        if (last && k == 3 && fate == KILLED) raise(SIGKILL);
        if (last && k == 3 && fate == GOES) break;
        if (fate == GOES) heartbeat_move(row);
    }
    heartbeat_phase(row, PHASE_ENDING, 8);
    if (fate == GOES && !last) nap(3); // longer than the limit after the end of the other
    _exit(0);
}

// Runs a job; returns the report, and how many ranks have ended with status 1. Kills what is left after ten seconds.
static int job(Fate fate, char* said, size_t size, int* ones, double* seconds) {
    int out[2], ready[2], go[2], left = JOB, lines = 0, status;
    size_t n = 0;
    pid_t ranks[JOB];
    HeartbeatRow* rows = watchdog_map(-1, JOB);
    if (pipe(out) || pipe(ready) || pipe(go)) die("no memory or pipe for a job");
    fflush(stdout);
    for (int i = 0; i < JOB; i++) {
        ranks[i] = fork();
        if (ranks[i] == 0) {
            dup2(out[1], STDERR_FILENO);
            close(out[0]), close(out[1]);
            job_rank(rows, i, fate, ready[1], go[0]);
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
            *ones += WIFEXITED(status) ? WEXITSTATUS(status) == EXIT_RUN : WTERMSIG(status) == SIGALRM;
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
    close(out[0]), close(ready[0]), close(ready[1]), close(go[0]), close(go[1]);
    munmap(rows, JOB * sizeof *rows);
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
                    strstr(said, quiet ? "" : "at step 8, backward 3 of chunk 0") &&
                    strstr(said, quiet ? "" : "\n  rank ");
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
                        {GOES, "a rank comes to its end before the others, and has no process", "", "", 9},
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

// ---- With MPI ---------------------------------------------------------------------------------------------------

static Comm world;

static void check_same_launch(void) {
    Watchdog w;
    watchdog_open(&w, &world, 0);
    check(watchdog_row(&w) == NULL && world.row == NULL, "a limit of 0: no thread watches");
    watchdog_close(&w);
    const int64_t before = world.size_bytes;
    watchdog_open(&w, &world, 1000);
    Comm pairs = comm_split(&world, world.rank / 2, -world.rank, "pairs", COMM_WIDE); // the other way round
    watchdog_group(&w, &pairs);
    bool ok = w.n == world.size && w.self == world.rank && world.size_bytes == before;
    const int mate = world.rank % 2 ? world.rank - 1 : world.rank + 1;
    if (pairs.size == 2) heartbeat_wait(pairs.row, COMM_SEND, pairs.row_group, 0); // the larger one
    world.row = NULL;                                                              // a barrier is a wait
    comm_barrier(&world);
    for (int i = 0; i < w.n; i++) {
        char text[256] = "", expected[256] = "starting";
        const int other = i % 2 ? i - 1 : i + 1, larger = i > other ? i : other, smaller = i > other ? other : i;
        if (larger < world.size)
            snprintf(expected, sizeof expected, "starting: send in group \"pairs\" of ranks %d, %d, with rank %d",
                     larger, smaller, larger);
        watchdog_add_place(text, sizeof text, &w.rows[i]);
        ok = ok && w.rows[i].rank == i && strcmp(text, expected) == 0;
    }
    int32_t everywhere = ok && (pairs.size == 2) == (mate < world.size);
    comm_all_reduce(&world, &everywhere, 1, COMM_INT32, COMM_MIN);
    check(everywhere, "%d ranks see each other, and who is in whose groups", world.size);
    world.row = watchdog_row(&w);
    const uint64_t count = world.row->moved;
    comm_barrier(&world);
    check(world.size == 1 || (world.row->moved > count && world.row->operation < 0),
          "an operation moves its rank's row");
    comm_free(&pairs);
    world.row = NULL;
    comm_barrier(&world);
    watchdog_close(&w);
}

static void hang_job(const char* how) {
    Watchdog w;
    const bool last = world.rank == world.size - 1;
    watchdog_open(&w, &world, 1);
    for (int step = 1; step <= 4; step++) {
        heartbeat_phase(watchdog_row(&w), PHASE_TRAINING, step);
        heartbeat_action(watchdog_row(&w), FORWARD, 0, 6);
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
    heartbeat_phase(watchdog_row(&w), PHASE_ENDING, 4);
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
        check_text();
        check_judgement();
        check_jobs();
    }
    check_same_launch();
    comm_close(&world);
    return test_end();
}
