"""Faults of the heartbeat and the watchdog. Test: test_watchdog, without MPI."""

WHERE, WATCH = "util/heartbeat.h", "trainer/watchdog.h"

FAULTS = [
    # What rows say
    ("where: an end of a wait moves nothing", WHERE,
     "    heartbeat_set(&row->operation, -1);\n    heartbeat_move(row);", "    heartbeat_set(&row->operation, -1);"),
    ("where: the start of a wait moves", WHERE, "    heartbeat_set(&row->operation, operation);",
     "    heartbeat_set(&row->operation, operation);\n    heartbeat_move(row);"),
    ("where: an action moves nothing", WHERE,
     "    heartbeat_set(&row->microbatch, microbatch);\n    heartbeat_move(row);",
     "    heartbeat_set(&row->microbatch, microbatch);"),
    ("where: a phase keeps the action", WHERE, "    heartbeat_action(row, -1, -1, -1);", "    heartbeat_move(row);"),
    ("where: the other end is a rank of the group", WHERE, "row->of_group[group].ranks[peer] : -1", "peer : -1"),
    ("where: the end of a wait is not seen", WHERE, "    heartbeat_set(&row->operation, -1);\n", ""),
    ("where: the group is not said", WATCH, 'group < 0 ? "" : row->of_group[group].text', '""'),
    ("where: a wait is not said", WATCH, "    if (operation < 0) return;\n", "    return;\n"),
    # Processes and the table
    ("process: what is dead and not buried lives", WATCH,
     "    if (state == 'Z' || state == 'X') return WATCH_GONE;\n", ""),
    ("process: stopped is running", WATCH, "    if (state == 'T' || state == 't') return WATCH_STOPPED;\n", ""),
    ("table: every rank has its own", WATCH, "const int flags = MAP_SHARED |", "const int flags = MAP_PRIVATE |"),
    # The judgement
    ("judge: ranks that come to their end are gone", WATCH,
     "    if (heartbeat_get(&row->phase) == PHASE_ENDING) return WATCH_ENDED;\n", ""),
    ("judge: the end of a rank is no move", WATCH, "        late = fmin(late, v",
     "        if (heartbeat_get(&row->phase) != PHASE_ENDING) late = fmin(late, v"),
    ("judge: all have ended: the first is to blame", WATCH, "return state == WATCH_ENDED || (", "return ("),
    ("judge: waiting is computing", WATCH, "< 0 ? WATCH_COMPUTES : WATCH_WAITS;",
     "< 0 ? WATCH_COMPUTES : WATCH_COMPUTES;"),
    ("judge: blamed in the wrong order", WATCH, "if (v->state < x->state ||", "if (v->state > x->state ||"),
    ("judge: the last one that fell silent is to blame", WATCH, "v->silent > x->silent)", "v->silent < x->silent)"),
    ("judge: one silent rank is enough", WATCH, "late = fmin(late, v->silent - limit)",
     "late = late > 1e9 ? v->silent - limit : fmax(late, v->silent - limit)"),
    ("judge: other machines are not given time", WATCH, "(state == WATCH_WAITS && late < WATCH_ELSEWHERE)", "false"),
    ("judge: all are given time", WATCH, "(state == WATCH_WAITS && late < WATCH_ELSEWHERE)", "late < WATCH_ELSEWHERE"),
    ("judge: the limit is half as long", WATCH, "watchdog_steps(row) ? w->limit :",
     "watchdog_steps(row) ? w->limit / 2 :"),
    ("judge: the time before the first step has the same limit", WATCH,
     "watchdog_steps(row) ? w->limit : fmax(w->limit, WATCH_START)", "w->limit"),
    # Looking and speaking
    ("look: the time of a pause counts", WATCH, "fmin(now - last, 2 * pause)", "now - last"),
    ("look: silence does not end", WATCH, "moved == v->moved ? v->silent + seconds : 0", "v->silent + seconds"),
    ("look: silence does not add up", WATCH, "moved == v->moved ? v->silent + seconds : 0",
     "moved == v->moved ? seconds : 0"),
    ("speak: all speak", WATCH, "speaks, 1, __ATOMIC_SEQ_CST) == 0;", "speaks, 1, __ATOMIC_SEQ_CST) >= 0;"),
    ("speak: no rank does", WATCH, "    if (first) watchdog_tell(w, worst, true);\n", ""),
    ("speak: the process goes on", WATCH, "        if (worst >= 0) watchdog_alarm(w, worst);\n", ""),
    ("speak: waits for process.stop for ever", WATCH, "    alarm(WATCH_LAST_WORDS);", ""),
    ("speak: ends well", WATCH, "    if (process.stop) process.stop(EXIT_RUN);\n    _exit(EXIT_RUN);",
     "    if (process.stop) process.stop(EXIT_RUN);\n    _exit(0);"),
    ("speak: the others are left out", WATCH, "if (first && i != worst) watchdog_tell(w, i, false);", "(void)0;"),
]

TESTS = {WHERE: "test_watchdog", WATCH: "test_watchdog"}
