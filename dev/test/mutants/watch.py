"""Faults of runs that survive: the heartbeat and the watchdog (test_watchdog), the rendezvous (test_rendezvous), the
supervisor (test_stop.sh, without MPI)."""
import mutate

WHERE, WATCH, SUPERVISE = "util/heartbeat.h", "trainer/watchdog.h", "scripts/supervise.sh"
MEET, HASH = "comm/rendezvous.h", "util/sha256.h"

FAULTS = [
    # What rows say
    ("where: an end of a wait moves nothing", WHERE, "    __atomic_store_n(&row->wait, 0, __ATOMIC_RELAXED);\n    heartbeat_move(row);",
     "    __atomic_store_n(&row->wait, 0, __ATOMIC_RELAXED);"),
    ("where: the begin of a wait moves", WHERE, "    __atomic_store_n(&row->wait, wait, __ATOMIC_RELAXED);",
     "    __atomic_store_n(&row->wait, wait, __ATOMIC_RELAXED);\n    heartbeat_move(row);"),
    ("where: an action moves nothing", WHERE, "heartbeat_place(phase, action, chunk, microbatch), __ATOMIC_RELAXED);\n    heartbeat_move(row);",
     "heartbeat_place(phase, action, chunk, microbatch), __ATOMIC_RELAXED);"),
    ("where: an action forgets the phase", WHERE, "heartbeat_place(phase, action, chunk, microbatch), __ATOMIC", "heartbeat_place(2, action, chunk, microbatch), __ATOMIC"),
    ("where: chunks of 8 bits", WHERE, "(uint64_t)(uint16_t)(chunk + 1) << 32", "(uint64_t)(uint8_t)(chunk + 1) << 32"),
    ("where: micro-batches of 16 bits", WHERE, "(uint64_t)(uint32_t)(microbatch + 1)", "(uint64_t)(uint16_t)(microbatch + 1)"),
    ("where: the carriers' counter is left out", WHERE,
     "__atomic_load_n(&row->moved, __ATOMIC_RELAXED) + __atomic_load_n(&row->carried, __ATOMIC_RELAXED)",
     "__atomic_load_n(&row->moved, __ATOMIC_RELAXED)"),
    ("where: the other end is a rank of the group", WHERE, "    *first += peer;\n", ""),
    ("where: a peer outside of the group", WHERE, "    if (peer >= row->group[group].size) return 0;\n", ""),
    ("where: a group that is not there", WHERE, " || group >= __atomic_load_n(&row->groups, __ATOMIC_ACQUIRE)", ""),
    ("where: groups lie one over the other", WHERE, "row->group[n - 1].first + row->group[n - 1].size : 0", "row->group[n - 1].first : 0"),
    ("where: more members than there is room for", WHERE, " || size > table->members - first", ""),
    ("where: more groups than there is room for", WHERE, "if (n == PHASE_GROUPS || ", "if ("),
    ("where: rows share lines", WHERE, "    __attribute__((aligned(64))) uint64_t carried;", "    uint64_t carried;"),
    ("where: members of all rows are one list", WHERE, "+ (int64_t)i * table->members;", "+ 0 * (int64_t)i * table->members;"),
    ("where: eight are shown, and none counted", WHERE, "    if (n > SHOWN) append_text", "    if (n < 0) append_text"),
    # Processes and the table
    ("process: fields are counted from the first parenthesis, by spaces", WHERE, "for (int i = 3; i < 22 && field; i++)", "for (int i = 3; i < 21 && field; i++)"),
    ("process: what is dead and not buried lives", WHERE, "if (state == 'Z' || state == 'X' || state == 'x') return PROCESS_GONE;", ""),
    ("process: stopped is running", WHERE, "state == 'T' || state == 't' ? PROCESS_STOPPED", "state == 't' ? PROCESS_STOPPED"),
    ("process: any process with the number is it", WHERE, "state != PROCESS_GONE && born != row->born ?", "state == PROCESS_GONE ?"),
    ("table: any nonce will do", WHERE, "table->nonce == place->nonce && ", ""),
    ("table: every rank has its own", WHERE, "fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED", "fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_PRIVATE"),
    # The judgement
    ("judge: ranks that come to their end are gone", WATCH, "    if (v->ended) return WATCH_MOVES;\n", ""),
    ("judge: a rank that is gone moves", WATCH, "    if (v->process == PROCESS_GONE) return WATCH_GONE;\n", ""),
    ("judge: stopped only computes", WATCH, "    if (v->process == PROCESS_STOPPED) return WATCH_STOPPED;\n", ""),
    ("judge: waiting is computing", WATCH, "return v->wait ? WATCH_WAITS : WATCH_COMPUTES;", "return WATCH_COMPUTES;"),
    ("judge: blamed in the wrong order", WATCH, "a->state < b->state :", "a->state > b->state :"),
    ("judge: the last one that fell silent is to blame", WATCH, ": a->silent > b->silent;", ": a->silent < b->silent;"),
    ("judge: nobody is only late", WATCH, "v->excused = watchdog_only_late(w, i, &v->far) && v->state == WATCH_WAITS;",
     "v->excused = watchdog_only_late(w, i, &v->far) && 0;"),
    ("judge: late although nobody moves", WATCH, "w->view[row].silent < w->view[row].limit && !", "!"),
    ("judge: a rank excuses itself", WATCH, "row >= 0 && row != i && w->view", "row >= 0 && w->view"),
    ("judge: one that has come to its end excuses", WATCH, " && !w->view[row].ended) late", ") late"),
    ("judge: other machines are not given time", WATCH, "(v->state == WATCH_WAITS && v->far ? WATCH_ELSEWHERE : 0)", "0"),
    ("judge: all are given time", WATCH, "(v->state == WATCH_WAITS && v->far ? WATCH_ELSEWHERE : 0)", "WATCH_ELSEWHERE"),
    ("judge: gone at once", WATCH, "alarm = alarm || v->missing >= WATCH_GRACE;", "alarm = true;"),
    ("judge: no alarm for a rank that is gone", WATCH, "alarm = alarm || v->missing >= WATCH_GRACE;", ";"),
    ("judge: the limit is half as long", WATCH, "alarm = alarm || v->silent >= v->limit +", "alarm = alarm || v->silent >= v->limit / 2 +"),
    ("judge: the time before the first step has the same limit", WATCH, "heartbeat_steps(heartbeat_phase_of(row)) ? w->limit : fmax(w->limit, WATCH_START)", "w->limit"),
    # Looking and speaking
    ("look: the time of a pause counts", WATCH, "fmin(now - last, 2 * watchdog_pause(w))", "now - last"),
    ("look: silence does not end", WATCH, "count == v->count ? v->silent + seconds : 0", "v->silent + seconds"),
    ("look: silence does not add up", WATCH, "count == v->count ? v->silent + seconds : 0", "count == v->count ? seconds : 0"),
    ("look: processes are not looked at", WATCH, "if (w->sees && v->silent > 0 && i != w->self)", "if (0)"),
    ("speak: all speak", WATCH, "    if (__atomic_compare_exchange_n(&w->table->speaker, &nobody, w->self + 1, false, __ATOMIC_SEQ_CST,\n                                    __ATOMIC_SEQ_CST)) {",
     "    nobody = 0;\n    if (nobody == 0) {"),
    ("speak: nobody does", WATCH, "        watchdog_write(text);\n", ""),
    ("speak: the process goes on", WATCH, "        if (worst >= 0) watchdog_alarm(w, worst);\n", ""),
    ("speak: waits for process.stop for ever", WATCH, "    if (pthread_create(&thread, NULL, watchdog_end_job, NULL) == 0) usleep((useconds_t)(WATCH_LAST_WORDS * 1e6));",
     "    (void)thread;\n    watchdog_end_job(NULL);"),
    ("speak: ends well", WATCH, "    _exit(EXIT_RUN);\n}\n\n// Not through", "    _exit(0);\n}\n\n// Not through"),
    ("speak: the one to blame comes twice", WATCH, "        if (i == without) continue;\n", ""),
    ("speak: the others in any order", WATCH, "while (k > 0 && watchdog_before(", "while (k < 0 && watchdog_before("),
    ("end: a rank does not say that it ends", WATCH, "    __atomic_store_n(&row->ended, 1, __ATOMIC_RELAXED);", ""),
    # Strangers at the rendezvous
    ("meet: any proof makes a rank", MEET, "if (sha256_equal(proof, g->rest.proof)) return", "return"),
    ("meet: any rank 0 is believed", MEET, "    if (!sha256_equal(proof, challenge.proof)) return false;\n", ""),
    ("meet: any answer is believed", MEET, "    if (!sha256_equal(proof, answer.proof)) return false;\n", ""),
    ("meet: a proof counts in every conversation", MEET, "    said.talk = *talk;\n", "    (void)talk;\n"),
    ("meet: a proof counts for other bytes", MEET, "    sha256(said.digest, bytes, n);\n", "    (void)bytes, (void)n;\n"),
    ("meet: what does not fit is dropped in silence", MEET, "    door->named++;\n    fprintf(", "    if (0) fprintf("),
    ("meet: strangers are heard for as long as they like", MEET, "        if (!ok || seconds_now() < until) continue;", "        while (door->guest[0].fd >= 0) ok = ok && "
     "rendezvous_turn(r, door, all, n, until, error);\n        if (!ok || seconds_now() < until) continue;"),
    ("meet: a rank that has died is waited for", MEET, "        if (peers[rank].revents == 0) continue;\n", "        if (peers[rank].revents >= 0) continue;\n"),
    ("meet: rank 0 that has died is waited for", MEET, "        if (fd < 0 && met && ", "        if (fd < 0 && !met && "),
    ("meet: listens on all addresses without a secret", MEET, "if (fd >= 0 || ours || !*r->secret) return fd;", "if (fd >= 0 || ours) return fd;"),
    ("meet: several machines without a secret", MEET, "if (!*r->secret && (torchrun", "if (0 && (torchrun"),
    ("meet: a secret of one letter", MEET, "if (*r->secret && strlen(r->secret) < RENDEZVOUS_SECRET)", "if (*r->secret && strlen(r->secret) < 1)"),
    ("hash: a block that is just full", HASH, "used < 56 ?", "used <= 56 ?"),
    ("hash: a key as long as it is", HASH, "if (key_bytes > SHA256_BLOCK)", "if (key_bytes > 1000)"),
    ("hash: half of a digest is compared", HASH, "i < SHA256_BYTES; i++) difference", "i < SHA256_BYTES / 2; i++) difference"),
    # The supervisor
    ("supervise: --resume is left out", SUPERVISE, '    [ -n "$resumes" ] || set -- "$@" --resume\n', ""),
    ("supervise: --resume every time", SUPERVISE, "    resumes=yes\n    sleep", "    sleep"),
    ("supervise: wrong arguments are tried again", SUPERVISE, "case $status in 2 | 126", "case $status in 126"),
    ("supervise: one restart too many", SUPERVISE, "if [ $failures -ge", "if [ $failures -gt"),
    ("supervise: the count does not begin anew", SUPERVISE, "then best=$reached failures=0 wait_for=$pause; fi", "then best=$reached; fi"),
    ("supervise: any checkpoint is a newer one", SUPERVISE, 'if [ "$reached" -gt "$best" ]', 'if [ "$reached" -gt 0 ]'),
    ("supervise: an unfinished one is one", SUPERVISE, "s/.*step_\\([0-9][0-9]*\\)$/\\1/p", "s/.*step_\\([0-9][0-9]*\\).*/\\1/p"),
    ("supervise: names are sorted, not numbers", SUPERVISE, "| sort -n |", "| sort -r |"),
    ("supervise: pauses do not grow", SUPERVISE, "2 * wait_for < 300 ? 2 * wait_for : 300", "wait_for"),
    ("supervise: pauses grow without end", SUPERVISE, "2 * wait_for < 300 ? 2 * wait_for : 300", "2 * wait_for"),
    ("supervise: run again after a signal", SUPERVISE, '    [ -z "$asked" ] || break\n', "    asked=\n"),
    ("supervise: SIGTERM as it is", SUPERVISE, '[ -z "$asked" ] && echo USR1 ||', 'false ||'),
    ("supervise: a second SIGTERM is a SIGUSR1", SUPERVISE, '[ -z "$asked" ] && echo USR1 ||', 'echo USR1 ||'),
    ("supervise: the end of a pause for that of the run", SUPERVISE, '    status=$code reached', '    reached'),
    ("supervise: does not wait again after a signal", SUPERVISE, 'while [ $seen != $signals ]; do', 'while [ $seen = -1 ]; do'),
    ("supervise: COMMAND reads the terminal", SUPERVISE, 'exec "$@") </dev/null &', 'echo && exec "$@") < <(echo x) &'),
    ("supervise: --out=DIR is not seen", SUPERVISE, "    --out=*) out=${out:-${word#*=}} ;;\n", ""),
    ("supervise: success is a failure", SUPERVISE, 'if [ "$status" = 0 ]; then', 'if [ "$status" = 255 ]; then'),
]

TESTS = {WHERE: "test_watchdog", WATCH: "test_watchdog", MEET: "test_rendezvous", HASH: "test_rendezvous", SUPERVISE: "test_stop.sh"}


def run(test, planted):
    if test == "test_stop.sh":  # needs no trainer but its file
        return None, ["env", "MPIRUN=", "sh", "-c", "echo no trainer >train_gpt && exec bash dev/test/system/test_stop.sh"]
    return mutate.unit_test(test, planted)
