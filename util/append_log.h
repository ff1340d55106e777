/*
util/append_log.h: lines that are appended to a file whose disk may be full, or away for a while. A line is in the file
as a whole or it is not there, no line is lost, and nobody has to stop for it:

    a line         goes to memory first, then, with all that wait there, to the file, in one write at the place where they belong
    that fails     what a part of the write has left is cut off, the lines go on waiting, and are tried again with the next one
    away           the file is not the one under its name any more: its folder was moved, or the disk unmounted. A write to it
                   would succeed, and nobody would ever see it; so lines wait until the file is back, or one that is as long

A process that is killed in a write that fails may leave a part of a line at the end. Who opens the file says how much
of it is to be kept.
*/
#ifndef APPEND_LOG_H
#define APPEND_LOG_H

#include "base.h"

enum { LINES_MOST = 1 << 26 }; // bytes that wait; a year of a line a second would not fit, a week does

typedef struct {
    char path[4096];
    int fd;
    int64_t at; // the file's bytes up to here are lines that were written
    char* waiting;
    size_t used, room;
    int64_t lines, lost; // that wait; for which there was no memory
} AppendLog;

// Opens or creates the file, of which the first `keep` bytes are kept.
static inline bool append_log_open(AppendLog* l, const char* path, int64_t keep, Error* error) {
    memset(l, 0, sizeof *l);
    snprintf(l->path, sizeof l->path, "%s", path);
    l->at = keep;
    l->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (l->fd < 0) return fail(error, "%s: cannot write: %s; choose another --out", path, strerror(errno));
    return ftruncate(l->fd, (off_t)keep) == 0 || fail(error, "%s: cannot shorten: %s", path, strerror(errno));
}

static inline void append_log_add(AppendLog* l, const char* line, size_t size) {
    if (l->used + size > LINES_MOST) {
        l->lost++;
        return;
    }
    if (l->used + size > l->room) {
        l->room = 2 * (l->used + size);
        l->waiting = (char*)realloc(l->waiting, l->room);
        if (!l->waiting) die("out of memory: %.1f MB for lines of %s", (double)l->room / 1e6, l->path);
    }
    memcpy(l->waiting + l->used, line, size);
    l->used += size, l->lines++;
}

// Whether the file under the name is the open one; or one that holds what was written, which is opened then: a
// network's disk that was mounted again.
static inline bool append_log_find(AppendLog* l, Error* error) {
    struct stat named, mine;
    if (stat(l->path, &named) != 0)
        return fail(error, "%s: %s; was its folder moved, or the disk unmounted?", l->path, strerror(errno));
    if (fstat(l->fd, &mine) == 0 && mine.st_ino == named.st_ino && mine.st_dev == named.st_dev) return true;
    if (!S_ISREG(named.st_mode) || (int64_t)named.st_size < l->at)
        return fail(error, "%s: is another file than before; was another disk mounted there?", l->path);
    const int fd = open(l->path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return fail(error, "%s: cannot write: %s", l->path, strerror(errno));
    close(l->fd);
    l->fd = fd;
    return true;
}

// Writes what waits. After a failure it waits on.
static inline bool append_log_write(AppendLog* l, Error* error) {
    size_t done = 0;
    if (l->used == 0) return true;
    if (!append_log_find(l, error)) return false;
    while (done < l->used) {
        const ssize_t n = pwrite(l->fd, l->waiting + done, l->used - done, (off_t)(l->at + (int64_t)done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        done += (size_t)n;
    }
    if (done < l->used) {
        fail(error, "%s: cannot write: %s", l->path, strerror(errno));
        if (ftruncate(l->fd, (off_t)l->at) != 0) return false; // the next write goes to the same place
        return false;
    }
    l->at += (int64_t)l->used;
    l->used = 0;
    l->lines = 0;
    return true;
}

// The file stays as it is; what waits is forgotten.
static inline void append_log_close(AppendLog* l) {
    if (l->fd >= 0) close(l->fd);
    free(l->waiting);
    memset(l, 0, sizeof *l);
    l->fd = -1;
}

#endif
