/*
fail_calls.c: a library for LD_PRELOAD under which system calls of a run fail, for torture.py. Counted are open, fopen,
opendir, mkdir, rename, fallocate, ftruncate, pwrite and fsync of files with FAIL_UNDER in their path, on rank
FAIL_RANK. Number FAIL_AT of them fails (from 1 on; 0: none); with FAIL_ALL all later ones, too, as on a disk that is
gone. How many there were goes to the file FAIL_COUNT at the end of the process; not if it is killed.

Calls that remove what is there are left alone: no program can clean up on such a disk.
*/
#ifndef _GNU_SOURCE // as C++ it is
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
#include <unistd.h>

static int calls = 0;

static bool fails(const char* path) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *under = getenv("FAIL_UNDER");
    if (!rank) rank = getenv("PMI_RANK");
    if (!under || !strstr(path, under) || atoi(rank ? rank : "0") != atoi(getenv("FAIL_RANK"))) return false;
    const int call = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST), at = atoi(getenv("FAIL_AT"));
    if (at == 0 || call < at || (call > at && !getenv("FAIL_ALL"))) return false;
    errno = EIO;
    return true;
}

static bool fails_fd(int fd) {
    char link[64], path[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return readlink(link, path, sizeof path - 1) > 0 && fails(path);
}

__attribute__((destructor)) static void count(void) {
    FILE* out = calls ? fopen(getenv("FAIL_COUNT"), "w") : NULL;
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
