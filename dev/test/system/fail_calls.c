/*
fail_calls.c: a library for LD_PRELOAD under which one system call of a run fails: for torture.py, which tries them one
after another.

    FAIL_UNDER=TEXT     counted are calls that concern a file with TEXT in its path: open, fopen, mkdir, rename,
                        renameat2, fallocate, ftruncate, pwrite, fsync, opendir
    FAIL_RANK=R         on this rank; 0 where there is one
    FAIL_AT=N           number N of them fails, from 1 on; 0: none
    FAIL_ALL=1          and all later ones, as on a disk that is gone
    FAIL_PAGES=N        and the machine has N pages of memory, of 4 KB
    FAIL_COUNT=FILE     the process's number of calls goes there at its end; nothing is written if it is killed

Calls that remove what is there are left alone: no program can clean up on such a disk.
*/
#ifndef _GNU_SOURCE // g++ defines it
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

// The function of this name behind the one here.
#define NEXT(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

static mode_t mode_of(int flags, va_list args) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0; }

// A folder whose files are about to be removed.
static bool opens_to_remove(int flags) { return (flags & O_DIRECTORY) && (flags & O_NOFOLLOW); }

int open(const char* path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    const mode_t mode = mode_of(flags, args);
    va_end(args);
    return !opens_to_remove(flags) && fails(path) ? -1 : NEXT(int, "open", const char*, int, ...)(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    const mode_t mode = mode_of(flags, args);
    va_end(args);
    return !opens_to_remove(flags) && fails(path) ? -1 : NEXT(int, "open64", const char*, int, ...)(path, flags, mode);
}

FILE* fopen(const char* path, const char* mode) {
    return fails(path) ? NULL : NEXT(FILE*, "fopen", const char*, const char*)(path, mode);
}

FILE* fopen64(const char* path, const char* mode) {
    return fails(path) ? NULL : NEXT(FILE*, "fopen64", const char*, const char*)(path, mode);
}

DIR* opendir(const char* path) { return fails(path) ? NULL : NEXT(DIR*, "opendir", const char*)(path); }

int mkdir(const char* path, mode_t mode) {
    return fails(path) ? -1 : NEXT(int, "mkdir", const char*, mode_t)(path, mode);
}

int rename(const char* from, const char* to) {
    return fails(from) ? -1 : NEXT(int, "rename", const char*, const char*)(from, to);
}

int renameat2(int a, const char* from, int b, const char* to, unsigned flags) {
    return fails(from) ? -1
                       : NEXT(int, "renameat2", int, const char*, int, const char*, unsigned)(a, from, b, to, flags);
}

int fallocate(int fd, int mode, off_t at, off_t bytes) {
    return fails_fd(fd) ? -1 : NEXT(int, "fallocate", int, int, off_t, off_t)(fd, mode, at, bytes);
}

int ftruncate(int fd, off_t bytes) { return fails_fd(fd) ? -1 : NEXT(int, "ftruncate", int, off_t)(fd, bytes); }

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t at) {
    return fails_fd(fd) ? -1 : NEXT(ssize_t, "pwrite", int, const void*, size_t, off_t)(fd, data, bytes, at);
}

long sysconf(int name) {
    const char* pages = getenv("FAIL_PAGES");
    return name == _SC_PHYS_PAGES && pages ? atol(pages) : NEXT(long, "sysconf", int)(name);
}

int fsync(int fd) { return fails_fd(fd) ? -1 : NEXT(int, "fsync", int)(fd); }
