/*
util/async_stdout.h: non-blocking stdout. A pager that waits for a key, or a terminal stopped by Ctrl-S, takes no more
after some kilobytes: printf() would block there, and with it all ranks.

    printing_begin    from now on stdout goes through memory. Text that its reader does not take at once waits there, up
                      to PRINTING_MOST bytes; more is dropped with a note
    printing_end      at the end of the run: waits until all is read, the reader has closed, or a signal comes

A regular file never waits and is left as it is. The descriptor is reopened, since O_NONBLOCK on the inherited one would
apply to all processes that share it. Where that fails writing blocks as usual, and the heartbeat slot shows that.
*/
#pragma once

#include "heartbeat.h"
#include <poll.h>

enum { PRINTING_MOST = 1 << 20 };

static struct {
    int fd;     // -1: stdout is unchanged
    bool waits; // writing to it blocks
    char* text; // not taken yet, `used` bytes
    size_t used;
    bool lost; // text was dropped since
    HeartbeatRow* row;
} printing = {-1, false, NULL, 0, false, NULL};

// One blocking write, which the heartbeat slot shows as PHASE_PRINTING.
static inline ssize_t printing_wait(const char* text, size_t n) {
    HeartbeatRow* row = printing.row;
    const uint64_t place = row ? __atomic_load_n(&row->place, __ATOMIC_RELAXED) : 0;
    if (row) heartbeat_phase(row, PHASE_PRINTING, __atomic_load_n(&row->step, __ATOMIC_RELAXED));
    const ssize_t done = write(printing.fd, text, n);
    if (row) __atomic_store_n(&row->place, place, __ATOMIC_RELAXED);
    heartbeat_move(row);
    return done;
}

// Writes as much as the reader takes now. If the reader has closed, the text is dropped.
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

// The write function of stdout: always takes all of the text.
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

// Makes stdout non-blocking. row: the heartbeat slot of this rank, or NULL.
static inline void printing_begin(HeartbeatRow* row) {
    struct stat st;
    if (fstat(STDOUT_FILENO, &st) != 0 || S_ISREG(st.st_mode)) return;
#ifdef __GLIBC__ // elsewhere stdout cannot be replaced
    cookie_io_functions_t calls = {};
    calls.write = printing_take;
    FILE* through = fopencookie(NULL, "w", calls);
    if (!through) return; // no memory: stdout is unchanged
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

// Flushes stdout; the last call of a run.
static inline void printing_end(void) {
    struct pollfd ready = {printing.fd, POLLOUT, 0};
    fflush(stdout);
    if (printing.fd < 0) return;
    printing.row = NULL;
    do printing_send();
    while (printing.used && poll(&ready, 1, -1) >= 0);
}
