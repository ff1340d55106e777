/*
rendezvous.h: how processes find each other without MPI. torchrun, or srun --mpi=none, or a loop in a shell starts the
same program several times and gives each its rank in the environment:

    torchrun    RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    srun        SLURM_PROCID, SLURM_LOCALID, SLURM_STEP_NUM_TASKS and, exported by the job's script, MASTER_ADDR;
                MASTER_PORT or 29500

Rank 0 listens on MASTER_ADDR and that port; all others connect, with retries, as they may start earlier. Each brings
some bytes, and all get the bytes of all ranks: so every rank learns the hosts, the GPUs and NCCL's id.

A rank authenticates itself by a secret that all ranks have in THREEFOLD_SECRET, a random text of 16 characters or more,
which is never sent:

    rank -> 0   rank, size, number of bytes, a random number      the hello
    0 -> rank   a random number, HMAC "challenge"                 the rank leaves if this is wrong
    rank -> 0   HMAC "proof" of its bytes, its bytes              rank 0 drops the connection if this is wrong
    0 -> rank   HMAC "yes" of all ranks' bytes, those bytes       or HMAC "no" of a text, why there is no run

Each HMAC-SHA256 (sha256.h) includes the hello, both random numbers and its word, so that none can be used twice, by the
other side, or for other bytes. Strangers can neither join, nor impersonate rank 0, nor change the exchanged bytes; all
they can do is connect. Without a secret rank 0 listens on 127.0.0.1 only and the others look for it there; other users
of the same machine are not kept out then.

Nothing is encrypted: an eavesdropper on the network sees the bytes that are exchanged here, and those that NCCL or MPI
send later, on connections of their own without this secret. A weak secret can be found by trying, from one
conversation. And an attacker who can change packets in flight can cut connections at any time.

The connections stay open while the program runs, for a few words of one byte each:

    'm'  this rank waits for all, to end together. From rank 0: all have arrived
    'u'  the same, after wrong arguments
    'd'  this rank dies, and has reported why

A connection that breaks without a word is a process that was killed. NCCL itself may never notice such an end, and
ranks would wait on their GPUs for ever. No rank breaks it before all have met.

torchrun keeps its own store on MASTER_PORT if TORCHELASTIC_USE_AGENT_STORE=True; the rendezvous is then on the next
port.
*/
#pragma once

#include "../util/base.h"
#include "../util/sha256.h"
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#ifndef RENDEZVOUS_SECONDS
#define RENDEZVOUS_SECONDS 120 // ranks wait this long for each other to be started
#endif
enum {
    RENDEZVOUS_PORT = 29500, // if srun's environment has none
    RENDEZVOUS_SECRET = 16,  // minimum characters of a secret
    RENDEZVOUS_GUESTS = 256, // connections to rank 0 whose rank is not known yet
    RENDEZVOUS_ANSWER = 5,   // seconds that either side waits for an immediate answer
    RENDEZVOUS_GRACE = 1,    // seconds in which ranks that arrive after a failure still learn of it
    RENDEZVOUS_NAMED = 8,    // dropped connections that the message lists
    RENDEZVOUS_MOST = 4096   // maximum bytes that a rank brings
};

typedef struct {
    int rank, size; // 1: no other rank was started
    int local;      // this rank's number on its machine
    char host[256]; // of rank 0; without a secret 127.0.0.1
    int port;
    const char* secret; // "": there is none
    bool narrowed;      // MASTER_ADDR is not host, and rank 0 does not listen on it
    char* came;         // (size) rank 0: 'm' or 'u' of each rank that waits; the others: came[0], of rank 0
    int* peer;          // (size) rank 0: the connection to each rank, -1: there is none; the others: peer[0], to rank 0
    int lost;           // the rank that has died, -1: none
    bool told;          // the lost rank has reported why itself
} Rendezvous;

// ---- This rank, from the environment ----------------------------------------------------------------------------

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

// Whether an address is one of the loopback addresses.
static inline bool rendezvous_is_loopback(const char* host) {
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
}

// The run's secret, and the address that it lets rank 0 listen on.
static inline bool rendezvous_read_secret(Rendezvous* r, const char* master, bool torchrun, Error* error) {
    const char *secret = getenv("THREEFOLD_SECRET"), *here = getenv("LOCAL_WORLD_SIZE");
    const char* nodes = getenv("SLURM_STEP_NUM_NODES");
    r->secret = secret ? secret : "";
    if (*r->secret && strlen(r->secret) < RENDEZVOUS_SECRET)
        return fail(error,
                    "THREEFOLD_SECRET has less than %d characters: set it to a random text, as of openssl rand -hex 16",
                    RENDEZVOUS_SECRET);
    if (!*r->secret && (torchrun ? here && atoi(here) < r->size : nodes && atoi(nodes) > 1))
        return fail(error,
                    "the ranks are on several machines and THREEFOLD_SECRET is not set: set it to the same random "
                    "text of %d characters or more for all ranks (docs/usage.md)",
                    RENDEZVOUS_SECRET);
    snprintf(r->host, sizeof r->host, "%s", *r->secret ? master : "127.0.0.1");
    r->narrowed = !*r->secret && !rendezvous_is_loopback(master);
    return true;
}

// Reads the environment. size is 1 if it has no ranks of several processes, or not the address where they meet.
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
    if (!rendezvous_read_secret(r, master, torchrun, error)) return false;
    r->port = RENDEZVOUS_PORT;
    if ((torchrun || getenv("MASTER_PORT")) && !rendezvous_number(&r->port, "MASTER_PORT", 1, error)) return false;
    if (torchrun && store && strcasecmp(store, "true") == 0) r->port++;
    if (r->port > 65535) return fail(error, "MASTER_PORT %d: ports end at 65535", r->port);
    return true;
}

// ---- Connections ------------------------------------------------------------------------------------------------

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

// Sends small messages without delay; notices a machine that has lost its power within some minutes.
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

// The addresses of a host (NULL: all of this machine) with a port; NULL: *reason says why there are none.
static inline struct addrinfo* rendezvous_resolve(const char* host, int port, const char** reason) {
    struct addrinfo wanted, *found = NULL;
    char number[16];
    memset(&wanted, 0, sizeof wanted);
    wanted.ai_socktype = SOCK_STREAM;
    wanted.ai_flags = AI_PASSIVE; // counts where there is no host
    snprintf(number, sizeof number, "%d", port);
    const int code = getaddrinfo(host, number, &wanted, &found);
    *reason = code != 0 ? gai_strerror(code) : "it has no address";
    return code == 0 ? found : NULL;
}

// A socket that listens on one address; for the IPv6 wildcard also on IPv4. -1: errno says why not.
static inline int rendezvous_listen_on(const struct addrinfo* at) {
    const int on = 1, off = 0;
    const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); // a run that has just ended does not keep the port
    if (at->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, 1024) == 0) return fd;
    const int reason = errno;
    close(fd);
    errno = reason;
    return -1;
}

static inline bool rendezvous_at_loopback(const struct addrinfo* at) {
    if (at->ai_family == AF_INET)
        return ntohl(((const struct sockaddr_in*)(const void*)at->ai_addr)->sin_addr.s_addr) >> 24 == 127;
    return at->ai_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6*)(const void*)at->ai_addr)->sin6_addr);
}

// Rank 0 listens on MASTER_ADDR. That may be an address by which only others know this machine (a container's host), or
// one that only this machine resolves to itself (127.0.1.1 in /etc/hosts): then on all. -1: *reason says why not.
static inline int rendezvous_listen(const Rendezvous* r, const char** reason) {
    int fd = -1;
    bool ours = false; // it is an address of this machine, but not available
    struct addrinfo* found = rendezvous_resolve(r->host, r->port, reason);
    for (const struct addrinfo* at = found; at && fd < 0 && !ours; at = at->ai_next) {
        if (rendezvous_at_loopback(at) && !rendezvous_is_loopback(r->host)) continue;
        fd = rendezvous_listen_on(at);
        if (fd < 0) *reason = strerror(errno);
        ours = fd < 0 && errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT;
    }
    if (found) freeaddrinfo(found);
    if (fd >= 0 || ours || !*r->secret) return fd;
    found = rendezvous_resolve(NULL, r->port, reason);
    for (int six = 1; six >= 0 && fd < 0; six--) { // IPv6 first, which takes both
        for (const struct addrinfo* at = found; at && fd < 0; at = at->ai_next) {
            if ((at->ai_family == AF_INET6) != (six == 1)) continue;
            fd = rendezvous_listen_on(at);
            if (fd < 0) *reason = strerror(errno);
        }
    }
    if (found) freeaddrinfo(found);
    if (fd >= 0)
        fprintf(stderr,
                "%s: rank 0: MASTER_ADDR %s is no address of this machine's network: listening on all addresses\n",
                process.name, r->host);
    return fd;
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
    struct addrinfo* found = rendezvous_resolve(r->host, r->port, reason);
    int fd = -1;
    for (const struct addrinfo* at = found; at && fd < 0; at = at->ai_next) {
        fd = rendezvous_connect_to(at);
        if (fd < 0) *reason = strerror(errno);
    }
    if (found) freeaddrinfo(found);
    return fd;
}

// ---- Meeting for the first time ---------------------------------------------------------------------------------

enum { RENDEZVOUS_NONCE = 16 };

// The messages of each side. Everything is chars or fills its struct: these are the bytes that are sent.
typedef struct {
    char program[16];
    int32_t rank, size;
    int64_t bytes; // that it brings, the same number on all ranks
    unsigned char nonce[RENDEZVOUS_NONCE];
} RendezvousHello;

typedef struct {
    char program[16];
    unsigned char nonce[RENDEZVOUS_NONCE], proof[SHA256_BYTES];
} RendezvousChallenge;

typedef struct {
    int32_t ok, length;
    unsigned char proof[SHA256_BYTES];
} RendezvousAnswer;

// A stranger on this port sends something else; and so does a connection that has, by chance, met itself.
static const char rendezvous_asks[16] = "threefold asks2", rendezvous_says[16] = "threefold says2";

// The unique part of a conversation: the hello, and rank 0's random number.
typedef struct {
    RendezvousHello hello;
    unsigned char nonce[RENDEZVOUS_NONCE];
} RendezvousTalk;

// The HMAC of one word of a conversation, and of n bytes that are sent with it.
static inline void rendezvous_prove(const Rendezvous* r, unsigned char proof[SHA256_BYTES], const RendezvousTalk* talk,
                                    const char* word, const void* bytes, size_t n) {
    struct {
        RendezvousTalk talk;
        unsigned char digest[SHA256_BYTES];
        char word[16];
    } said;
    memset(&said, 0, sizeof said);
    said.talk = *talk;
    sha256(said.digest, bytes, n);
    snprintf(said.word, sizeof said.word, "%s", word);
    hmac_sha256(proof, r->secret, strlen(r->secret), &said, sizeof said);
}

// Rank 0: a connection whose rank is not known yet.
typedef struct {
    int fd;        // -1: there is none
    double until;  // deadline to prove that it is a rank
    bool proven;   // it has, but does not fit into the run: it gets the reason
    char from[64]; // its address
    size_t got;    // bytes received of the hello, then of the proof
    RendezvousTalk talk;
    struct {
        unsigned char proof[SHA256_BYTES];
        char bytes[RENDEZVOUS_MOST];
    } rest;
} RendezvousGuest;

typedef struct {
    int listener;
    int named;            // dropped connections
    RendezvousTalk* talk; // (size) with each rank
    RendezvousGuest guest[RENDEZVOUS_GUESTS];
    struct pollfd* poll; // (1 + RENDEZVOUS_GUESTS + size)
} RendezvousDoor;

static inline void rendezvous_drop(RendezvousDoor* door, RendezvousGuest* g, const char* why) {
    close(g->fd);
    g->fd = -1;
    if (!why || door->named == RENDEZVOUS_NAMED) return;
    door->named++;
    fprintf(stderr, "%s: rank 0: a connection from %s %s: dropped%s\n", process.name, g->from, why,
            door->named == RENDEZVOUS_NAMED ? "; further ones will not be named" : "");
}

// Accepts a connection; if there is no room for it the oldest one that has proven nothing is dropped.
static inline bool rendezvous_accept(RendezvousDoor* door, Error* error) {
    struct sockaddr_storage from;
    socklen_t size = sizeof from;
    RendezvousGuest *oldest = NULL, *g = NULL;
    for (int i = 0; i < RENDEZVOUS_GUESTS && !g; i++) {
        RendezvousGuest* one = &door->guest[i];
        if (one->fd < 0) g = one;
        if (one->fd >= 0 && !one->proven && (!oldest || one->until < oldest->until)) oldest = one;
    }
    if (!g && !oldest) return true; // all guests are ranks that do not fit: the run is over
    const int fd = accept(door->listener, (struct sockaddr*)&from, &size);
    const bool full = fd < 0 && (errno == EMFILE || errno == ENFILE);
    if (full && !oldest)
        return fail(error, "rank 0 cannot take more connections: %s; raise ulimit -n", strerror(errno));
    if (oldest && (full || (fd >= 0 && !g))) rendezvous_drop(door, oldest, "was the oldest of too many");
    if (fd < 0) return true;
    if (!g) g = oldest;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    memset(g, 0, sizeof *g);
    g->fd = fd;
    g->until = seconds_now() + RENDEZVOUS_ANSWER;
    if (getnameinfo((struct sockaddr*)&from, size, g->from, sizeof g->from, NULL, 0, NI_NUMERICHOST) != 0)
        snprintf(g->from, sizeof g->from, "somewhere");
    return true;
}

// Rank 0 answers a hello. Returns NULL, or why the guest is dropped.
static inline const char* rendezvous_challenge(const Rendezvous* r, RendezvousGuest* g) {
    const RendezvousHello* hello = &g->talk.hello;
    RendezvousChallenge challenge;
    if (memcmp(hello->program, rendezvous_asks, sizeof hello->program) != 0)
        return "is of another program, or of another version of this one";
    if (hello->bytes < 0 || hello->bytes > RENDEZVOUS_MOST) return "brings more bytes than a rank has";
    if (getentropy(g->talk.nonce, sizeof g->talk.nonce) != 0) return "gets no random number";
    memcpy(challenge.program, rendezvous_says, sizeof challenge.program);
    memcpy(challenge.nonce, g->talk.nonce, sizeof challenge.nonce);
    rendezvous_prove(r, challenge.proof, &g->talk, "challenge", "", 0);
    return send(g->fd, &challenge, sizeof challenge, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof challenge
               ? NULL
               : "does not listen";
}

// Rank 0: a guest has proven to be of this run. True: it becomes a peer. Otherwise the run cannot begin.
static inline bool rendezvous_admit(Rendezvous* r, RendezvousDoor* door, RendezvousGuest* g, char* all, size_t n,
                                    Error* error) {
    const RendezvousHello* hello = &g->talk.hello;
    g->proven = true;
    if (hello->size != r->size)
        return fail(error, "rank %d says that there are %d ranks, rank 0 that there are %d: start all with the same",
                    hello->rank, hello->size, r->size);
    if (hello->bytes != (int64_t)n)
        return fail(error, "rank %d is another build: copy one to all machines", hello->rank);
    if (hello->rank <= 0 || hello->rank >= r->size || r->peer[hello->rank] >= 0)
        return fail(error, "two processes say that they are rank %d: start each rank once", hello->rank);
    memcpy(all + (size_t)hello->rank * n, g->rest.bytes, n);
    door->talk[hello->rank] = g->talk;
    rendezvous_tune(g->fd);
    r->peer[hello->rank] = g->fd;
    g->fd = -1;
    return true;
}

// Rank 0 reads from a guest, without waiting. False: the run cannot begin.
static inline bool rendezvous_receive(Rendezvous* r, RendezvousDoor* door, RendezvousGuest* g, char* all, size_t n,
                                      Error* error) {
    const size_t hello = sizeof g->talk.hello;
    const bool first = g->got < hello;
    const size_t wanted = first ? hello : hello + SHA256_BYTES + (size_t)g->talk.hello.bytes;
    char* to = first ? (char*)&g->talk.hello + g->got : (char*)&g->rest + (g->got - hello);
    unsigned char proof[SHA256_BYTES];
    const ssize_t got = recv(g->fd, to, wanted - g->got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) {
        rendezvous_drop(door, g, g->got == 0 ? NULL : "has ended before it has proven that it knows THREEFOLD_SECRET");
        return true;
    }
    g->got += (size_t)got;
    if (g->got < wanted) return true;
    if (first) {
        const char* why = rendezvous_challenge(r, g);
        if (why) rendezvous_drop(door, g, why);
        return true;
    }
    rendezvous_prove(r, proof, &g->talk, "proof", g->rest.bytes, (size_t)g->talk.hello.bytes);
    if (sha256_equal(proof, g->rest.proof)) return rendezvous_admit(r, door, g, all, n, error);
    rendezvous_drop(door, g, "does not know THREEFOLD_SECRET");
    return true;
}

// Rank 0 handles the next event until some time: a connection, a message, the end of a connection. False: the run
// cannot begin.
static inline bool rendezvous_turn(Rendezvous* r, RendezvousDoor* door, char* all, size_t n, double until,
                                   Error* error) {
    const double now = seconds_now();
    struct pollfd *guests = door->poll + 1, *peers = guests + RENDEZVOUS_GUESTS;
    door->poll[0].fd = door->listener;
    for (int i = 0; i < RENDEZVOUS_GUESTS; i++) {
        RendezvousGuest* g = &door->guest[i];
        if (g->fd >= 0 && !g->proven && g->until <= now)
            rendezvous_drop(door, g, "has not proven in time that it knows THREEFOLD_SECRET");
        guests[i].fd = g->proven ? -1 : g->fd;
        if (guests[i].fd >= 0 && g->until < until) until = g->until;
    }
    for (int rank = 0; rank < r->size; rank++) peers[rank].fd = r->peer[rank];
    const int places = 1 + RENDEZVOUS_GUESTS + r->size;
    for (int i = 0; i < places; i++) {
        door->poll[i].events = POLLIN;
        door->poll[i].revents = 0;
    }
    if (poll(door->poll, (nfds_t)places, until > now ? (int)((until - now) * 1000) + 1 : 0) <= 0) return true;
    bool ok = true;
    for (int i = 0; i < RENDEZVOUS_GUESTS && ok; i++) {
        if (guests[i].revents != 0) ok = rendezvous_receive(r, door, &door->guest[i], all, n, error);
    }
    for (int rank = 1; rank < r->size && ok; rank++) { // no rank sends anything before rank 0 does
        if (peers[rank].revents == 0) continue;
        close(r->peer[rank]);
        r->peer[rank] = -1;
        ok = fail(error, "rank %d has gone while it was starting", rank);
    }
    if (ok && door->poll[0].revents != 0) ok = rendezvous_accept(door, error);
    return ok;
}

static inline int rendezvous_first_missing(const Rendezvous* r) {
    int missing = 1;
    while (missing < r->size && r->peer[missing] >= 0) missing++;
    return missing;
}

// Rank 0: waits for all others, and, if the run cannot begin, a moment for ranks that are just arriving.
static inline bool rendezvous_gather(Rendezvous* r, RendezvousDoor* door, char* all, size_t n, double until,
                                     Error* error) {
    const char* reason = "";
    door->listener = rendezvous_listen(r, &reason);
    if (door->listener < 0)
        return fail(error,
                    "cannot listen on %s:%d, where the other ranks look for rank 0: %s; is another run there? set "
                    "another MASTER_PORT",
                    r->host, r->port, reason);
    bool ok = true;
    int missing = 1;
    while (ok && (missing = rendezvous_first_missing(r)) < r->size) {
        ok = rendezvous_turn(r, door, all, n, until, error);
        if (!ok || seconds_now() < until) continue;
        int there = 1;
        for (int rank = 1; rank < r->size; rank++) there += r->peer[rank] >= 0;
        ok = fail(error,
                  "after %d s %d of %d ranks have come to %s:%d, where rank 0 listens; rank %d has not: is it "
                  "started, %s?",
                  RENDEZVOUS_SECONDS, there, r->size, r->host, r->port, missing,
                  *r->secret ? "with the same MASTER_ADDR and THREEFOLD_SECRET"
                             : "on this machine (for several ones set THREEFOLD_SECRET)");
    }
    Error others;
    const double end = seconds_now() + RENDEZVOUS_GRACE;
    while (!ok && seconds_now() < end && rendezvous_first_missing(r) < r->size)
        rendezvous_turn(r, door, all, n, end, &others);
    return ok;
}

// Rank 0: sends a rank the bytes of all ranks, or why there is no run.
static inline void rendezvous_answer(const Rendezvous* r, const RendezvousTalk* talk, int fd, bool ok, const char* text,
                                     size_t length) {
    RendezvousAnswer answer;
    const double until = seconds_now() + RENDEZVOUS_ANSWER;
    char rest;
    answer.ok = ok;
    answer.length = (int32_t)length;
    rendezvous_prove(r, answer.proof, talk, ok ? "yes" : "no", text, length);
    if (!rendezvous_move(fd, &answer, sizeof answer, true, until)) return;
    rendezvous_move(fd, (void*)(uintptr_t)text, length, true, until);
    if (ok) return;
    shutdown(fd, SHUT_WR); // a connection closed with unread input may lose the last message
    while (rendezvous_move(fd, &rest, 1, false, until)) continue;
}

// Rank 0: accepts the others and answers them, also those that do not fit.
static inline bool rendezvous_host(Rendezvous* r, char* all, size_t n, double until, Error* error) {
    RendezvousDoor* door = (RendezvousDoor*)checked_calloc(1, sizeof *door, "the rendezvous");
    door->talk = (RendezvousTalk*)checked_calloc((size_t)r->size, sizeof *door->talk, "the rendezvous");
    door->poll =
        (struct pollfd*)checked_calloc((size_t)(1 + RENDEZVOUS_GUESTS + r->size), sizeof *door->poll, "the rendezvous");
    for (int i = 0; i < RENDEZVOUS_GUESTS; i++) door->guest[i].fd = -1;
    if (r->narrowed)
        fprintf(stderr,
                "%s: rank 0: THREEFOLD_SECRET is not set: listening for this machine's ranks only, on %s and not on "
                "MASTER_ADDR\n",
                process.name, r->host);
    const bool ok = rendezvous_gather(r, door, all, n, until, error);
    const char* text = ok ? all : error->text;
    const size_t length = ok ? (size_t)r->size * n : strlen(text);
    for (int rank = 1; rank < r->size; rank++) {
        if (r->peer[rank] >= 0) rendezvous_answer(r, &door->talk[rank], r->peer[rank], ok, text, length);
    }
    for (int i = 0; i < RENDEZVOUS_GUESTS; i++) {
        RendezvousGuest* g = &door->guest[i];
        if (g->fd >= 0 && g->proven) rendezvous_answer(r, &g->talk, g->fd, false, text, length);
        if (g->fd >= 0) close(g->fd);
    }
    if (door->listener >= 0) close(door->listener);
    free(door->talk);
    free(door->poll);
    free(door);
    return ok;
}

// The others: one conversation. True if rank 0 has answered; *ok is its answer, with the reason in error. *met: rank 0
// has accepted the connection, whatever it answers.
static inline bool rendezvous_converse(Rendezvous* r, int fd, char* all, const char* mine, size_t n, double until,
                                       bool* ok, bool* met, const char** reason, Error* error) {
    RendezvousTalk talk = {};
    RendezvousChallenge challenge;
    RendezvousAnswer answer;
    unsigned char proof[SHA256_BYTES];
    char text[sizeof error->text] = "";
    const double soon = seconds_now() + RENDEZVOUS_ANSWER;
    memcpy(talk.hello.program, rendezvous_asks, sizeof talk.hello.program);
    talk.hello.rank = r->rank;
    talk.hello.size = r->size;
    talk.hello.bytes = (int64_t)n;
    *reason = "the system gives no random number";
    if (getentropy(talk.hello.nonce, sizeof talk.hello.nonce) != 0) return false;
    *reason = "another program is on this port"; // as torchrun's store on MASTER_PORT
    if (!rendezvous_move(fd, &talk.hello, sizeof talk.hello, true, soon) ||
        !rendezvous_move(fd, &challenge, sizeof challenge, false, soon) ||
        memcmp(challenge.program, rendezvous_says, sizeof challenge.program) != 0)
        return false;
    *reason = "what is there does not know this rank's THREEFOLD_SECRET";
    memcpy(talk.nonce, challenge.nonce, sizeof talk.nonce);
    rendezvous_prove(r, proof, &talk, "challenge", "", 0);
    if (!sha256_equal(proof, challenge.proof)) return false;
    *met = true;
    *reason = "rank 0 has gone while it was starting";
    rendezvous_prove(r, proof, &talk, "proof", mine, n);
    if (!rendezvous_move(fd, proof, sizeof proof, true, soon) ||
        !rendezvous_move(fd, (void*)(uintptr_t)mine, n, true, soon) ||
        !rendezvous_move(fd, &answer, sizeof answer, false, until))
        return false;
    const size_t length = (size_t)answer.length;
    char* to = answer.ok ? all : text;
    const bool fits = answer.length >= 0 && (answer.ok ? length == (size_t)r->size * n : length < sizeof text);
    if (!fits || !rendezvous_move(fd, to, length, false, seconds_now() + RENDEZVOUS_ANSWER)) return false;
    rendezvous_prove(r, proof, &talk, answer.ok ? "yes" : "no", to, length);
    if (!sha256_equal(proof, answer.proof)) return false;
    *ok = answer.ok != 0;
    if (!*ok) fail(error, "rank 0 at %.200s:%d says: %.700s", r->host, r->port, text);
    return true;
}

// The others: look for rank 0 until it answers. A rank that has met it once and finds it gone need not wait.
static inline bool rendezvous_visit(Rendezvous* r, char* all, const char* mine, size_t n, double until, Error* error) {
    const char* reason = "";
    bool ok = false, met = false;
    while (seconds_now() < until) {
        const int fd = rendezvous_connect(r, &reason);
        if (fd < 0 && met && strcmp(reason, strerror(ECONNREFUSED)) == 0)
            return fail(error, "rank 0 at %.200s:%d has gone while it was starting", r->host, r->port);
        // Rank 0 gives up at its own deadline, which is later if it was started later, and reports why.
        if (fd >= 0) {
            rendezvous_tune(fd);
            if (rendezvous_converse(r, fd, all, mine, n, until + RENDEZVOUS_SECONDS, &ok, &met, &reason, error)) {
                r->peer[0] = fd;
                return ok;
            }
            close(fd);
        }
        usleep(100000);
    }
    return fail(error, "cannot reach rank 0 at %s:%d within %d s: %s; is rank 0 started, %s?", r->host, r->port,
                RENDEZVOUS_SECONDS, reason,
                *r->secret ? "is MASTER_ADDR its machine, and are MASTER_PORT and THREEFOLD_SECRET the same"
                           : "on this machine (for several ones set THREEFOLD_SECRET), with the same MASTER_PORT");
}

static inline void rendezvous_close(Rendezvous* r) {
    const int peers = r->peer ? r->size : 0;
    for (int rank = 0; rank < peers; rank++) {
        if (r->peer[rank] >= 0) close(r->peer[rank]);
    }
    free(r->peer);
    free(r->came);
    r->peer = NULL;
    r->came = NULL;
}

// All ranks meet. all (size, n) = every rank's mine (n bytes).
static inline bool rendezvous_join(Rendezvous* r, void* all, const void* mine, size_t n, Error* error) {
    const double until = seconds_now() + RENDEZVOUS_SECONDS;
    bool ok;
    if (n > RENDEZVOUS_MOST) return fail(error, "internal error: a rank brings %zu bytes to the rendezvous", n);
    r->came = (char*)checked_calloc((size_t)r->size, 1, "the rendezvous");
    r->peer = (int*)checked_malloc((size_t)r->size * sizeof(int), "the rendezvous");
    for (int rank = 0; rank < r->size; rank++) r->peer[rank] = -1;
    if (r->rank == 0) {
        memcpy(all, mine, n);
        ok = rendezvous_host(r, (char*)all, n, until, error);
    } else {
        ok = rendezvous_visit(r, (char*)all, (const char*)mine, n, until, error);
    }
    if (!ok) rendezvous_close(r);
    return ok;
}

// ---- While the program runs -------------------------------------------------------------------------------------

// Sends a word on all connections.
static inline void rendezvous_say(Rendezvous* r, char word) {
    const int peers = r->peer ? r->size : 0;
    for (int rank = 0; rank < peers; rank++) {
        if (r->peer[rank] >= 0) rendezvous_move(r->peer[rank], &word, 1, true, seconds_now() + 1);
    }
}

// Reads words for some seconds (0: only those already there). True: a rank has died, r->lost.
static inline bool rendezvous_hear(Rendezvous* r, double seconds) {
    struct pollfd p[64];
    for (int first = 0; first < r->size && r->peer && r->lost < 0; first += 64) {
        const int n = (int)min_i64(64, r->size - first);
        for (int i = 0; i < n; i++) {
            p[i].fd = r->peer[first + i];
            p[i].events = POLLIN;
            p[i].revents = 0;
        }
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

// Waits, for some seconds, until all ranks have sent the same word. Returns whether they have.
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
