/*
util/append_log.h: appends lines to a file whose disk may be full, or missing for a while (append_log_open .. _close). A
line is in the file as a whole or not at all, no line is lost, and such a disk does not stop the caller:

    a line         goes to memory first, then, with all lines waiting there, to the file, in one pwrite at their offset
    a failure      truncates the partial write; the lines keep waiting, and the next call tries again
    another file   has the name: the folder was moved, or the disk unmounted. A write to the open file would succeed and
                   be lost; so lines wait until the file is back, or one at least as long

A process that is killed during a write may leave a part of a line at the end; append_log_open takes the number of bytes
to keep.
*/
#pragma once

#include "base.h"

enum { LINES_MOST = 1 << 26 }; // bytes that wait: a week of a line a second

typedef struct {
    char path[4096];
    int fd;
    int64_t at; // end of the written lines in the file
    char* waiting;
    size_t used;
    int64_t room;
    int64_t lines, lost; // waiting; dropped for lack of memory
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
    l->waiting = (char*)checked_reserve(l->waiting, &l->room, (int64_t)(l->used + size), 1, l->path);
    memcpy(l->waiting + l->used, line, size);
    l->used += size, l->lines++;
}

// Whether the path is the open file, or a file at least as long (a remounted network disk), which is opened then.
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

// Writes the waiting lines. After a failure they keep waiting.
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
        if (ftruncate(l->fd, (off_t)l->at) != 0) return false; // the next pwrite overwrites it
        return false;
    }
    l->at += (int64_t)l->used;
    l->used = 0;
    l->lines = 0;
    return true;
}

// Closes the file; waiting lines are dropped.
static inline void append_log_close(AppendLog* l) {
    if (l->fd >= 0) close(l->fd);
    free(l->waiting);
    memset(l, 0, sizeof *l);
    l->fd = -1;
}
