/*
fail_calls.c: a library for LD_PRELOAD under which one system call of a run fails: for torture.py, which tries them one
after another.

    FAIL_UNDER=TEXT     counted are calls that concern a file with TEXT in its path: open, fopen, mkdir, rename,
                        fallocate, ftruncate, pwrite, fsync, opendir
    FAIL_RANK=R         on this rank; 0 where there is one
    FAIL_AT=N           number N of them fails, from 1 on; 0: none
    FAIL_ALL=1          and all later ones, as on a disk that is gone
    FAIL_COUNT=FILE     the process's number of calls goes there at its end; nothing is written if it is killed

Calls that remove what is there are left alone: no program can clean up on such a disk.
*/
#undef _GNU_SOURCE // g++ defines it
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int calls = 0;

static bool is_rank(void) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *wanted = getenv("FAIL_RANK");
    if (!rank) rank = getenv("PMI_RANK");
    return atoi(rank ? rank : "0") == atoi(wanted ? wanted : "0");
}

static bool fails(const char* path) {
    const char *under = getenv("FAIL_UNDER"), *at = getenv("FAIL_AT");
    if (!under || !at || !strstr(path, under) || !is_rank()) return false;
    const int call = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST), number = atoi(at);
    if (number == 0 || call < number || (call > number && !getenv("FAIL_ALL"))) return false;
    errno = EIO;
    return true;
}

static bool fails_fd(int fd) {
    char link[64], path[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const int before = errno;
    if (readlink(link, path, sizeof path - 1) < 0) errno = before;
    return fails(path);
}

__attribute__((destructor)) static void count(void) {
    const char* path = getenv("FAIL_COUNT");
    if (!path || !is_rank() || calls == 0) return;
    FILE* out = fopen(path, "w");
    if (!out) return;
    fprintf(out, "%d\n", calls);
    fclose(out);
}

// The function of this name in the library behind this one.
#define NEXT(type, name, parameters) ((type(*) parameters)dlsym(RTLD_NEXT, #name))
#define STAND_IN(type, failure, condition, name, parameters, arguments)                                                \
    type name parameters { return condition ? failure : NEXT(type, name, parameters) arguments; }

STAND_IN(FILE*, NULL, fails(path), fopen, (const char* path, const char* mode), (path, mode))
STAND_IN(DIR*, NULL, fails(path), opendir, (const char* path), (path))
STAND_IN(int, -1, fails(path), mkdir, (const char* path, mode_t mode), (path, mode))
STAND_IN(int, -1, fails(from), rename, (const char* from, const char* to), (from, to))
STAND_IN(int, -1, fails_fd(fd), fallocate, (int fd, int mode, off_t at, off_t bytes), (fd, mode, at, bytes))
STAND_IN(int, -1, fails_fd(fd), ftruncate, (int fd, off_t bytes), (fd, bytes))
STAND_IN(ssize_t, -1, fails_fd(fd), pwrite, (int fd, const void* data, size_t bytes, off_t at), (fd, data, bytes, at))
STAND_IN(int, -1, fails_fd(fd), fsync, (int fd), (fd))

int open(const char* path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    const bool to_remove = (flags & O_DIRECTORY) && (flags & O_NOFOLLOW); // a folder whose files are about to go
    return !to_remove && fails(path) ? -1 : NEXT(int, open, (const char*, int, ...))(path, flags, mode);
}
