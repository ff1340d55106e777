/*
util/async_stdout.h: what a run prints goes on as fast as somebody reads it, and training does not wait for that. A
pager that waits for a key, or a terminal that Ctrl-S has stopped, takes no more after some kilobytes: print() would
stand still there, and with it all ranks.

    printing_begin    stdout goes through memory. What its reader does not take at once waits there, up to PRINTING_MOST bytes; what comes
                      beyond that is lost, which is said. Checkpoints and log.jsonl are not concerned
    printing_end      waits until all was read, or nobody reads any more, or a signal comes: when the run is over

A file never waits, so that nothing is changed there. The descriptor is opened anew, since O_NONBLOCK on the one that
was inherited would be everybody's who has it. Where that cannot be (a socket, another user's terminal) writing waits as
usual, and the row of the watchdog (trainer/watchdog.h) says what for.
*/
#ifndef ASYNC_STDOUT_H
#define ASYNC_STDOUT_H

#include "heartbeat.h"
#include <poll.h>

enum { PRINTING_MOST = 1 << 20 };

static struct {
    int fd;     // -1: stdout is as it was
    bool waits; // writing to it does
    char* text; // that is not taken yet, `used` bytes
    size_t used;
    bool lost; // what came since does not fit
    HeartbeatRow* row;
} printing = {-1, false, NULL, 0, false, NULL};

// One write, while the watchdog sees what is waited for.
static inline ssize_t printing_wait(const char* text, size_t n) {
    HeartbeatRow* row = printing.row;
    const uint64_t place = row ? __atomic_load_n(&row->place, __ATOMIC_RELAXED) : 0;
    if (row) heartbeat_phase(row, PHASE_PRINTING, __atomic_load_n(&row->step, __ATOMIC_RELAXED));
    const ssize_t done = write(printing.fd, text, n);
    if (row) __atomic_store_n(&row->place, place, __ATOMIC_RELAXED);
    heartbeat_move(row);
    return done;
}

// Passes on what is taken now. Where nobody reads any more nothing waits.
static inline void printing_send(void) {
    size_t done = 0;
    while (done < printing.used) {
        const char* text = printing.text + done;
        const size_t n = printing.used - done;
        const ssize_t taken = printing.waits ? printing_wait(text, n) : write(printing.fd, text, n);
        if (taken < 0 && errno == EINTR) continue;
        if (taken < 0 && errno == EAGAIN) break;
        if (taken <= 0) printing.used = done = 0; // no reader
        if (taken > 0) done += (size_t)taken;
    }
    printing.used -= done;
    memmove(printing.text, printing.text + done, printing.used);
}

static inline void printing_add(const char* text, size_t n) {
    memcpy(printing.text + printing.used, text, n);
    printing.used += n;
}

// What stdout has for us: all of it, always.
static inline ssize_t printing_take(void* unused, const char* text, size_t n) {
    static const char gap[] = "\n... more was printed than anybody read: it is in log.jsonl, if there is --out ...\n";
    (void)unused;
    printing_send();
    const size_t room = PRINTING_MOST - printing.used, needed = n + (printing.lost ? sizeof gap - 1 : 0);
    printing.lost = needed > room;
    if (printing.lost) return (ssize_t)n;
    if (needed > n) printing_add(gap, sizeof gap - 1);
    printing_add(text, n);
    printing_send();
    return (ssize_t)n;
}

// row: of the watchdog, or NULL.
static inline void printing_begin(HeartbeatRow* row) {
    struct stat st;
    if (fstat(STDOUT_FILENO, &st) != 0 || S_ISREG(st.st_mode)) return;
#ifdef __GLIBC__ // others have no stdout that can be set
    cookie_io_functions_t calls;
    memset(&calls, 0, sizeof calls);
    calls.write = printing_take;
    FILE* through = fopencookie(NULL, "w", calls);
    if (!through) return; // no memory: as it was
    setvbuf(through, NULL, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF, BUFSIZ);
    printing.fd = open("/proc/self/fd/1", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    printing.waits = printing.fd < 0;
    if (printing.waits) printing.fd = STDOUT_FILENO;
    printing.text = (char*)checked_malloc(PRINTING_MOST, "what is printed");
    printing.row = row;
    fflush(stdout);
    stdout = through;
#else
    (void)row;
#endif
}

// The last that a run does.
static inline void printing_end(void) {
    struct pollfd ready = {printing.fd, POLLOUT, 0};
    fflush(stdout);
    if (printing.fd < 0) return;
    printing.row = NULL;
    for (printing_send(); printing.used && poll(&ready, 1, -1) >= 0;) printing_send();
}

#endif
