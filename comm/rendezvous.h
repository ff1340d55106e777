/*
rendezvous.h: how processes find each other where no MPI has started them. torchrun, or srun --mpi=none, or a loop in a
shell starts the same program several times and says in the environment who is who:

    torchrun    RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    srun        SLURM_PROCID, SLURM_LOCALID, SLURM_STEP_NUM_TASKS and, exported by the job's script, MASTER_ADDR;
                MASTER_PORT or 29500

Rank 0 listens on that port of its machine; all others connect, with retries, as they may be there first. Each brings
some bytes of its own, and all get those of all ranks: so everybody learns the hosts, the GPUs and what NCCL needs to
begin.

The connections stay open while the program runs, for a few words of one byte each:

    'm'  I wait for all, to end together. From rank 0: all have come
    'u'  the same, after wrong arguments
    'd'  I die, and have said why

A connection that breaks without a word is a process that has been killed. NCCL itself may never notice such an end, and
ranks would wait on their GPUs for ever. Nobody breaks it before all have met.

torchrun keeps a store of its own on MASTER_PORT where it says TORCHELASTIC_USE_AGENT_STORE=True; the rendezvous is on
the next port then.
*/
#ifndef RENDEZVOUS_H
#define RENDEZVOUS_H

#include "../base.h"
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#ifndef RENDEZVOUS_SECONDS
#define RENDEZVOUS_SECONDS 120 // so long ranks wait for each other to be started
#endif
enum { RENDEZVOUS_PORT = 29500 }; // where srun's environment names none

typedef struct {
    int rank, size; // 1: nobody else was started
    int local;      // this rank's number among those of its machine
    char host[256]; // of rank 0
    int port;
    char* came; // (size) rank 0: 'm' or 'u' of each rank that waits; the others: came[0], of rank 0
    int* peer;  // (size) rank 0: the connection to each rank, -1: there is none; the others: peer[0], to rank 0
    int lost;   // the rank that has died, -1: none
    bool told;  // it has said why itself
} Rendezvous;

// ----------------------------------------------------------------------------------------------------------------
// Who am I?

// A whole number from the environment.
static inline bool rendezvous_number(int* value, const char* name, int least, Error* error) {
    const char* text = getenv(name);
    char* end = NULL;
    errno = 0;
    const long number = text ? strtol(text, &end, 10) : 0;
    if (!text || end == text || *end || errno || number < least || number > INT32_MAX)
        return fail(error, "%s is \"%s\", not a number from %d on; torchrun and srun set it", name, text ? text : "",
                    least);
    *value = (int)number;
    return true;
}

// Reads the environment. size is 1 where nobody has started several processes, or has not said where they meet.
static inline bool rendezvous_read(Rendezvous* r, Error* error) {
    memset(r, 0, sizeof *r);
    r->size = 1;
    r->lost = -1;
    const bool torchrun = getenv("RANK") && getenv("WORLD_SIZE");
    const char *master = getenv("MASTER_ADDR"), *store = getenv("TORCHELASTIC_USE_AGENT_STORE");
    if (!torchrun && !(getenv("SLURM_PROCID") && getenv("SLURM_STEP_NUM_TASKS") && master)) return true;
    const char *rank = torchrun ? "RANK" : "SLURM_PROCID", *size = torchrun ? "WORLD_SIZE" : "SLURM_STEP_NUM_TASKS";
    if (!rendezvous_number(&r->size, size, 1, error) || !rendezvous_number(&r->rank, rank, 0, error)) return false;
    if (r->rank >= r->size)
        return fail(error, "%s is %d and %s is %d: ranks count from 0 to %d", rank, r->rank, size, r->size,
                    r->size - 1);
    if (r->size == 1) return true;
    if (!rendezvous_number(&r->local, torchrun ? "LOCAL_RANK" : "SLURM_LOCALID", 0, error)) return false;
    if (!master || !*master)
        return fail(error, "%s and %s are set, MASTER_ADDR is not: it names the machine of rank 0", rank, size);
    snprintf(r->host, sizeof r->host, "%s", master);
    r->port = RENDEZVOUS_PORT;
    if ((torchrun || getenv("MASTER_PORT")) && !rendezvous_number(&r->port, "MASTER_PORT", 1, error)) return false;
    if (torchrun && store && strcasecmp(store, "true") == 0) r->port++;
    if (r->port > 65535) return fail(error, "MASTER_PORT %d: ports end at 65535", r->port);
    return true;
}

// ----------------------------------------------------------------------------------------------------------------
// Connections

// Sends or receives n bytes within some seconds; false if the other side is gone or too slow.
static inline bool rendezvous_move(int fd, void* bytes, size_t n, bool sends, double until) {
    for (size_t done = 0; done < n;) {
        struct pollfd p = {fd, (short)(sends ? POLLOUT : POLLIN), 0};
        const double left = until - seconds_now();
        if (left <= 0 || poll(&p, 1, (int)(left * 1000) + 1) < 0) return false;
        if (p.revents == 0) continue;
        const ssize_t moved = sends ? send(fd, (char*)bytes + done, n - done, MSG_NOSIGNAL | MSG_DONTWAIT)
                                    : recv(fd, (char*)bytes + done, n - done, MSG_DONTWAIT);
        if (moved == 0 || (moved < 0 && errno != EAGAIN && errno != EINTR)) return false;
        if (moved > 0) done += (size_t)moved;
    }
    return true;
}

// No delay for small messages; a machine that has lost its power is noticed within some minutes.
static inline void rendezvous_tune(int fd) {
    const int on = 1, idle = 60, interval = 20, count = 6;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#ifdef __linux__
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
#else
    (void)idle, (void)interval, (void)count;
#endif
}

// A socket that listens on a port of all of this machine's addresses, of both kinds where there is IPv6; -1: errno
// says.
static inline int rendezvous_listen(int port) {
    const int on = 1, off = 0;
    struct sockaddr_in6 six;
    struct sockaddr_in four;
    memset(&six, 0, sizeof six);
    memset(&four, 0, sizeof four);
    six.sin6_family = AF_INET6, six.sin6_port = htons((uint16_t)port);
    four.sin_family = AF_INET, four.sin_port = htons((uint16_t)port);
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool both = fd >= 0;
    if (!both) fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); // a run that has just ended does not keep the port
    if (both) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    const int bound =
        both ? bind(fd, (struct sockaddr*)&six, sizeof six) : bind(fd, (struct sockaddr*)&four, sizeof four);
    if (bound == 0 && listen(fd, 1024) == 0) return fd;
    const int reason = errno;
    close(fd);
    errno = reason;
    return -1;
}

// Connects to one address within 3 seconds; -1: errno says why not.
static inline int rendezvous_connect_to(const struct addrinfo* at) {
    const int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
    if (fd < 0) return -1;
    int reason = connect(fd, at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (reason == EINPROGRESS) {
        struct pollfd p = {fd, POLLOUT, 0};
        socklen_t size = sizeof reason;
        if (poll(&p, 1, 3000) != 1)
            reason = ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &reason, &size) != 0)
            reason = errno;
    }
    if (reason == 0) return fd;
    close(fd);
    errno = reason;
    return -1;
}

// Connects to rank 0, once; -1: *reason says why not.
static inline int rendezvous_connect(const Rendezvous* r, const char** reason) {
    struct addrinfo wanted, *found = NULL;
    char port[16];
    memset(&wanted, 0, sizeof wanted);
    wanted.ai_socktype = SOCK_STREAM;
    snprintf(port, sizeof port, "%d", r->port);
    const int code = getaddrinfo(r->host, port, &wanted, &found);
    *reason = code != 0 ? gai_strerror(code) : "it has no address";
    int fd = -1;
    for (const struct addrinfo* at = found; at && fd < 0; at = at->ai_next) {
        fd = rendezvous_connect_to(at);
        if (fd < 0) *reason = strerror(errno);
    }
    if (found) freeaddrinfo(found);
    return fd;
}

// ----------------------------------------------------------------------------------------------------------------
// Meeting for the first time

// What every rank says first, and how rank 0 answers: a text of `length` bytes why not, or (ok) everybody's bytes.
typedef struct {
    char program[16];
    int32_t rank, size;
    int64_t bytes; // that it brings; of all ranks alike
} RendezvousHello;

typedef struct {
    char program[16];
    int32_t ok, length;
} RendezvousAnswer;

// A stranger on this port says something else; and so does a connection that has, by chance, met itself.
static const char rendezvous_asks[16] = "threefold asks", rendezvous_says[16] = "threefold says";

// Rank 0: takes the hello of one connection. False, with a reason, if the run cannot go on; a stranger is sent away.
static inline bool rendezvous_admit(Rendezvous* r, int fd, char* all, size_t n, Error* error) {
    RendezvousHello hello;
    const double until = seconds_now() + 5;
    if (!rendezvous_move(fd, &hello, sizeof hello, false, until) ||
        memcmp(hello.program, rendezvous_asks, sizeof hello.program) != 0) {
        close(fd);
        return true;
    }
    rendezvous_tune(fd);
    const bool fits = hello.size == r->size && hello.rank > 0 && hello.rank < r->size && hello.bytes == (int64_t)n;
    if (fits && r->peer[hello.rank] < 0 && rendezvous_move(fd, all + (size_t)hello.rank * n, n, false, until)) {
        r->peer[hello.rank] = fd;
        return true;
    }
    r->peer[0] = fd; // to be told as well
    if (hello.size != r->size)
        return fail(error, "rank %d says that there are %d ranks, rank 0 that there are %d: start all with the same",
                    hello.rank, hello.size, r->size);
    if (hello.bytes != (int64_t)n) return fail(error, "rank %d is another build: copy one to all machines", hello.rank);
    if (!fits || r->peer[hello.rank] >= 0)
        return fail(error, "two processes say that they are rank %d: start each rank once", hello.rank);
    return fail(error, "rank %d has gone while it was starting", hello.rank);
}

static inline int rendezvous_first_missing(const Rendezvous* r) {
    int missing = 1;
    while (missing < r->size && r->peer[missing] >= 0) missing++;
    return missing;
}

// Rank 0: waits for all others.
static inline bool rendezvous_gather(Rendezvous* r, char* all, size_t n, double until, Error* error) {
    const int listener = rendezvous_listen(r->port);
    if (listener < 0)
        return fail(error,
                    "cannot listen on port %d, where the other ranks look for rank 0: %s; is another run there? set "
                    "another MASTER_PORT",
                    r->port, strerror(errno));
    bool ok = true;
    int missing = 1;
    while (ok && (missing = rendezvous_first_missing(r)) < r->size) {
        struct pollfd p = {listener, POLLIN, 0};
        const double left = until - seconds_now();
        if (left <= 0) {
            int there = 1;
            for (int rank = 1; rank < r->size; rank++) there += r->peer[rank] >= 0;
            ok = fail(error,
                      "after %d s %d of %d ranks have come to port %d of rank 0's machine; rank %d has not: is it "
                      "started, with MASTER_ADDR %s?",
                      RENDEZVOUS_SECONDS, there, r->size, r->port, missing, r->host);
        } else if (poll(&p, 1, (int)(left * 1000) + 1) == 1) {
            const int fd = accept(listener, NULL, NULL);
            if (fd >= 0) fcntl(fd, F_SETFD, FD_CLOEXEC);
            if (fd >= 0) ok = rendezvous_admit(r, fd, all, n, error);
        }
    }
    close(listener);
    return ok;
}

// Rank 0: tells all who have come everybody's bytes, or why there is no run.
static inline void rendezvous_answer(const Rendezvous* r, bool ok, char* all, size_t n, Error* error) {
    RendezvousAnswer answer = {"", ok, ok ? 0 : (int32_t)strlen(error->text)};
    memcpy(answer.program, rendezvous_says, sizeof answer.program);
    for (int rank = 0; rank < r->size; rank++) { // 0: one that cannot take part
        const int fd = r->peer[rank];
        const double until = seconds_now() + 5;
        char rest;
        if (fd < 0 || !rendezvous_move(fd, &answer, sizeof answer, true, until)) continue;
        if (ok) {
            rendezvous_move(fd, all, (size_t)r->size * n, true, until);
            continue;
        }
        rendezvous_move(fd, error->text, (size_t)answer.length, true, until);
        shutdown(fd, SHUT_WR); // closed with something unread, a connection may lose what was sent last
        while (rendezvous_move(fd, &rest, 1, false, until)) continue;
    }
}

// The others: one attempt. True if rank 0 has answered; *ok is its answer, and why not is in error.
static inline bool rendezvous_visit(Rendezvous* r, char* all, const char* mine, size_t n, double until, bool* ok,
                                    const char** reason, Error* error) {
    const int fd = rendezvous_connect(r, reason);
    if (fd < 0) return false;
    *reason = "another program is on this port"; // as torchrun's store on MASTER_PORT
    rendezvous_tune(fd);
    RendezvousHello hello = {"", r->rank, r->size, (int64_t)n};
    RendezvousAnswer answer;
    memcpy(hello.program, rendezvous_asks, sizeof hello.program);
    if (!rendezvous_move(fd, &hello, sizeof hello, true, until) ||
        !rendezvous_move(fd, (void*)(uintptr_t)mine, n, true, until) ||
        !rendezvous_move(fd, &answer, sizeof answer, false, until) ||
        memcmp(answer.program, rendezvous_says, sizeof answer.program) != 0) {
        close(fd);
        return false;
    }
    r->peer[0] = fd;
    char text[sizeof error->text] = "";
    const double soon = seconds_now() + 5;
    *ok = answer.ok ? rendezvous_move(fd, all, (size_t)r->size * n, false, soon)
                    : answer.length >= 0 && (size_t)answer.length < sizeof text &&
                          rendezvous_move(fd, text, (size_t)answer.length, false, soon) && false;
    if (!*ok) fail(error, "rank 0 at %.200s:%d says: %.700s", r->host, r->port, *text ? text : "(nothing)");
    return true;
}

static inline bool rendezvous_go(Rendezvous* r, char* all, const char* mine, size_t n, double until, Error* error) {
    const char* reason = "";
    bool ok = false;
    while (seconds_now() < until) {
        // Rank 0 gives up at its own time, which began later where it was started later, and says why.
        if (rendezvous_visit(r, all, mine, n, until + RENDEZVOUS_SECONDS, &ok, &reason, error)) return ok;
        usleep(100000);
    }
    return fail(error,
                "cannot reach rank 0 at %s:%d within %d s: %s; is rank 0 started, is MASTER_ADDR its machine, and "
                "MASTER_PORT the same and open?",
                r->host, r->port, RENDEZVOUS_SECONDS, reason);
}

static inline void rendezvous_close(Rendezvous* r) {
    for (int rank = 0; rank < r->size && r->peer; rank++) {
        if (r->peer[rank] >= 0) close(r->peer[rank]);
    }
    free(r->peer), free(r->came);
    r->peer = NULL, r->came = NULL;
}

// All ranks meet. all (size, n) = every rank's mine (n bytes).
static inline bool rendezvous_join(Rendezvous* r, void* all, const void* mine, size_t n, Error* error) {
    const double until = seconds_now() + RENDEZVOUS_SECONDS;
    bool ok;
    r->came = (char*)checked_calloc((size_t)r->size, 1, "the rendezvous");
    r->peer = (int*)checked_malloc((size_t)r->size * sizeof(int), "the rendezvous");
    for (int rank = 0; rank < r->size; rank++) r->peer[rank] = -1;
    if (r->rank == 0) {
        memcpy(all, mine, n);
        ok = rendezvous_gather(r, (char*)all, n, until, error);
        rendezvous_answer(r, ok, (char*)all, n, error);
    } else {
        ok = rendezvous_go(r, (char*)all, (const char*)mine, n, until, error);
    }
    if (!ok) rendezvous_close(r);
    return ok;
}

// ----------------------------------------------------------------------------------------------------------------
// While the program runs

// Says a word to all that one is connected with.
static inline void rendezvous_say(Rendezvous* r, char word) {
    for (int rank = 0; rank < r->size && r->peer; rank++) {
        if (r->peer[rank] >= 0) rendezvous_move(r->peer[rank], &word, 1, true, seconds_now() + 1);
    }
}

// Hears what has been said within some seconds (0: what is there). True: a rank has died, r->lost.
static inline bool rendezvous_hear(Rendezvous* r, double seconds) {
    struct pollfd p[64];
    for (int first = 0; first < r->size && r->peer && r->lost < 0; first += 64) {
        const int n = (int)min_i64(64, r->size - first);
        for (int i = 0; i < n; i++) p[i].fd = r->peer[first + i], p[i].events = POLLIN, p[i].revents = 0;
        if (poll(p, (nfds_t)n, (int)(seconds * 1000)) <= 0) continue;
        for (int i = 0; i < n && r->lost < 0; i++) {
            char word = 0;
            if (p[i].revents == 0) continue;
            const ssize_t got = recv(p[i].fd, &word, 1, MSG_DONTWAIT);
            if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
            if (got == 1 && (word == 'm' || word == 'u')) {
                r->came[first + i] = word;
                continue;
            }
            close(p[i].fd);
            r->peer[first + i] = -1;
            r->told = got == 1 && word == 'd';
            r->lost = first + i;
        }
    }
    return r->lost >= 0;
}

// Waits, for some seconds, until all ranks have come with the same word. Returns whether they have.
static inline bool rendezvous_meet(Rendezvous* r, char word, double seconds) {
    const double until = seconds_now() + seconds;
    if (r->rank > 0) rendezvous_say(r, word);
    while (!rendezvous_hear(r, 0.01) && (r->rank == 0 || r->peer[0] >= 0) && seconds_now() < until) {
        bool all = r->rank == 0 || r->came[0] == word;
        for (int rank = 1; rank < r->size && r->rank == 0; rank++) all = all && r->came[rank] == word;
        if (!all) continue;
        if (r->rank == 0) rendezvous_say(r, word);
        return true;
    }
    return false;
}

#endif
