/*
test_rendezvous.c: comm/rendezvous.h with processes of its own on 127.0.0.0/8: ranks that find each other, with and
without a secret; strangers who connect and say nothing, say something else, claim to be a rank or rank 0, or sit
between two ranks and change bytes; ranks that do not fit, or die while they start; where rank 0 listens. And
util/sha256.h beside published digests.
*/
static int rendezvous_limit = 60; // seconds: against hangs only, but where a test waits for it
#define RENDEZVOUS_SECONDS rendezvous_limit
#include "../../../comm/rendezvous.h"
#include "test.h"
#include <signal.h>
#include <sys/wait.h>

static const char secret[] = "a secret of this test, 4711", other_secret[] = "another secret, 0815 0815";

// ---- SHA-256 and HMAC -------------------------------------------------------------------------------------------

static void hex(char* text, const unsigned char* bytes, int n) {
    for (int i = 0; i < n; i++) sprintf(text + 2 * i, "%02x", bytes[i]);
}

static void check_digest(const char* what, const void* bytes, size_t n, const char* expected) {
    unsigned char digest[SHA256_BYTES];
    char text[65];
    sha256(digest, bytes, n);
    hex(text, digest, SHA256_BYTES);
    check(strcmp(text, expected) == 0, "SHA-256 of %s: %s", what, text);
}

// Digests of FIPS 180-4's example file (NIST, SHA256.pdf) and of its long messages, also added in unequal parts.
static void check_sha256(void) {
    static char many[1000000];
    unsigned char digest[SHA256_BYTES];
    char text[65];
    check_digest("nothing", "", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check_digest("abc", "abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check_digest("448 bits", "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56,
                 "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    check_digest(
        "896 bits",
        "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrst"
        "nopqrstu",
        112, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    memset(many, 'a', sizeof many);
    check_digest("a million a", many, sizeof many, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    Sha256 hash;
    sha256_begin(&hash);
    for (size_t done = 0, part = 1; done < sizeof many; done += part, part = part % 131 + 1) {
        if (part > sizeof many - done) part = sizeof many - done;
        sha256_add(&hash, many + done, part);
    }
    sha256_end(&hash, digest);
    hex(text, digest, SHA256_BYTES);
    check(strcmp(text, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0") == 0, "... in parts: %s",
          text);
}

static void check_mac(const char* what, const void* key, size_t key_bytes, const void* bytes, size_t n,
                      const char* expected) {
    unsigned char mac[SHA256_BYTES], same[SHA256_BYTES];
    char text[65];
    hmac_sha256(mac, key, key_bytes, bytes, n);
    hex(text, mac, SHA256_BYTES);
    bool ok = strcmp(text, expected) == 0;
    for (int i = 0; i < SHA256_BYTES; i++) {
        memcpy(same, mac, sizeof same);
        ok = ok && sha256_equal(mac, same);
        same[i] ^= 0x10;
        ok = ok && !sha256_equal(mac, same);
    }
    check(ok, "HMAC-SHA256, %s: %s", what, text);
}

// RFC 4231, section 4.
static void check_hmac(void) {
    unsigned char key[131], bytes[50];
    memset(key, 0x0b, 20);
    check_mac("case 1", key, 20, "Hi There", 8, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    check_mac("case 2", "Jefe", 4, "what do ya want for nothing?", 28,
              "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key);
    memset(bytes, 0xdd, sizeof bytes);
    check_mac("case 3", key, 20, bytes, 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    check_mac("case 6", key, 131, "Test Using Larger Than Block-Size Key - Hash Key First", 54,
              "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    check_mac(
        "case 7", key, 131,
        "This is a test using a larger than block-size key and a larger than block-size data. The key needs to be "
        "hashed before being used by the HMAC algorithm.",
        152, "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

// ---- Ranks, which are processes ---------------------------------------------------------------------------------

enum { CARD = 200, MOST_RANKS = 8 };

typedef struct {
    pid_t pid;
    int said; // a connection: its outcome
} Child;

typedef struct {
    int joined; // 1: it has; 0: an error; -1: it has said nothing
    char error[1024];
    char all[MOST_RANKS * CARD];
} Outcome;

static int port; // of the meeting that is tried

// A port that is free at the moment.
static void draw_port(void) {
    struct sockaddr_in at;
    socklen_t size = sizeof at;
    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr*)&at, sizeof at) != 0 || getsockname(fd, (struct sockaddr*)&at, &size) != 0)
        die("no port: %s", strerror(errno));
    close(fd);
    port = ntohs(at.sin_port);
}

static Rendezvous rank_of(int rank, int size, const char* key) {
    Rendezvous r = {};
    r.rank = r.local = rank;
    r.size = size;
    r.lost = -1;
    r.port = port;
    r.secret = key;
    snprintf(r.host, sizeof r.host, "127.0.0.1");
    return r;
}

static void card_of(char card[CARD], int rank) {
    for (int i = 0; i < CARD; i++) card[i] = (char)(17 * rank + i * i);
}

// Starts a process that joins as this rank; with `pause` it waits afterwards until it is killed. What it says on stderr
// goes to the file `words`.
static Child start_rank(Rendezvous r, size_t bytes, const char* words, bool pause_then) {
    int ends[2];
    Child child;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) die("no pair of sockets");
    fflush(stdout);
    child.pid = fork();
    if (child.pid < 0) die("no process");
    child.said = ends[0];
    if (child.pid > 0) {
        close(ends[1]);
        return child;
    }
    alarm(120);
    if (!freopen(words ? words : "/dev/null", "a", stderr)) _exit(3);
    setvbuf(stderr, NULL, _IONBF, 0);
    Outcome outcome = {};
    Error error;
    char card[RENDEZVOUS_MOST];
    memset(card, 7, sizeof card);
    card_of(card, r.rank);
    outcome.joined = rendezvous_join(&r, outcome.all, card, bytes, &error);
    if (!outcome.joined) snprintf(outcome.error, sizeof outcome.error, "%s", error.text);
    if (write(ends[1], &outcome, sizeof outcome) != (ssize_t)sizeof outcome) _exit(3);
    while (pause_then) pause();
    rendezvous_close(&r);
    _exit(0);
}

// What came of a rank, which ends.
static Outcome outcome_of(Child child) {
    Outcome outcome = {};
    if (!rendezvous_move(child.said, &outcome, sizeof outcome, false, seconds_now() + 100)) outcome.joined = -1;
    close(child.said);
    kill(child.pid, SIGKILL);
    waitpid(child.pid, NULL, 0);
    return outcome;
}

static bool is_whole(const Outcome* o, int size) {
    bool ok = o->joined == 1;
    for (int rank = 0; rank < size; rank++) {
        char card[CARD];
        card_of(card, rank);
        ok = ok && memcmp(o->all + rank * CARD, card, CARD) == 0;
    }
    return ok;
}

// Ranks `from` to size - 1 of a run.
static void start_ranks(Child* child, int from, int size, const char* key, const char* words) {
    for (int rank = from; rank < size; rank++)
        child[rank] = start_rank(rank_of(rank, size, key), CARD, rank ? NULL : words, false);
}

static bool all_join(const Child* child, int from, int size) {
    bool ok = true;
    for (int rank = from; rank < size; rank++) {
        const Outcome o = outcome_of(child[rank]);
        if (!is_whole(&o, size)) printf("      rank %d: %d %s\n", rank, o.joined, o.error);
        ok = is_whole(&o, size) && ok;
    }
    return ok;
}

// A connection to the port, as soon as rank 0 listens.
static int knock(void) {
    const char* reason = "";
    const Rendezvous r = rank_of(1, 2, "");
    const double until = seconds_now() + 30;
    int fd = -1;
    while ((fd = rendezvous_connect(&r, &reason)) < 0 && seconds_now() < until) usleep(10000);
    if (fd < 0) die("no rank listens on port %d: %s", port, reason);
    return fd;
}

// Whether a file has a text; it is emptied.
static bool has_words(const char* path, const char* text) {
    static char all[100000];
    FILE* f = fopen(path, "r");
    const size_t n = f ? fread(all, 1, sizeof all - 1, f) : 0;
    if (f) fclose(f);
    all[n] = 0;
    if (truncate(path, 0) != 0) return false;
    return strstr(all, text) != NULL;
}

static void check_meetings(void) {
    Child child[MOST_RANKS];
    for (int size = 2; size <= 6; size += 2) {
        for (int i = 0; i < 2; i++) {
            draw_port();
            start_ranks(child, 0, size, i ? secret : "", NULL);
            check(all_join(child, 0, size), "%d ranks meet, %s a secret", size, i ? "with" : "without");
        }
    }
}

// ---- Strangers --------------------------------------------------------------------------------------------------

static RendezvousHello hello_of(int rank, int size) {
    RendezvousHello hello = {};
    memcpy(hello.program, rendezvous_asks, sizeof hello.program);
    hello.rank = rank;
    hello.size = size;
    hello.bytes = CARD;
    return hello;
}

// Connections that say nothing, a wrong thing, or half of the right one, before rank 1 comes.
static void check_knocks(const char* words) {
    static const int numbers[] = {24, 300};
    const RendezvousHello wrong_size = hello_of(1, 7), wrong_rank = hello_of(-5, 3), right = hello_of(2, 3);
    RendezvousHello wrong_bytes = hello_of(1, 3);
    wrong_bytes.bytes = INT64_MAX;
    char text[200];
    memset(text, 'x', sizeof text);
    struct {
        const char* what;
        const void* bytes;
        size_t n;
        const char* named;
    } knocks[] = {
        {"32 bytes of another program", text, 32, ""},
        {"48 bytes of another program", text, 48, "another program"},
        {"200 bytes of another program", text, 200, "another program"},
        {"a hello of another run", &wrong_size, sizeof wrong_size, "before it has proven"},
        {"a hello of a rank that is none", &wrong_rank, sizeof wrong_rank, "before it has proven"},
        {"a hello with more bytes than memory", &wrong_bytes, sizeof wrong_bytes, "more bytes"},
        {"the hello of rank 2", &right, sizeof right, "before it has proven"},
    };
    for (size_t i = 0; i < sizeof knocks / sizeof *knocks; i++) {
        Child child[3];
        draw_port();
        child[0] = start_rank(rank_of(0, 3, secret), CARD, words, false);
        const int fd = knock();
        bool ok = send(fd, knocks[i].bytes, knocks[i].n, MSG_NOSIGNAL) == (ssize_t)knocks[i].n;
        shutdown(fd, SHUT_WR);
        char rest;
        while (recv(fd, &rest, 1, 0) > 0) continue; // until it is dropped
        close(fd);
        start_ranks(child, 1, 3, secret, NULL);
        ok = all_join(child, 0, 3) && ok;
        check(ok && has_words(words, knocks[i].named), "%s delays no rank, and is named", knocks[i].what);
    }
    for (int i = 0; i < 2; i++) {
        Child child[3];
        int idle[300];
        draw_port();
        child[0] = start_rank(rank_of(0, 3, secret), CARD, words, false);
        for (int k = 0; k < numbers[i]; k++) idle[k] = knock();
        rendezvous_limit = 20; // one after another they would take 5 seconds each
        start_ranks(child, 1, 3, secret, NULL);
        rendezvous_limit = 60;
        check(all_join(child, 0, 3), "%d connections that say nothing delay no rank", numbers[i]);
        for (int k = 0; k < numbers[i]; k++) close(idle[k]);
        has_words(words, "");
    }
}

// A stranger who knows the protocol, and has another secret or none: as a rank, and as rank 0.
static void check_impostors(const char* words) {
    static const char* const keys[] = {"", other_secret};
    for (int i = 0; i < 2; i++) {
        Child child[3];
        draw_port();
        child[0] = start_rank(rank_of(0, 3, secret), CARD, words, false);
        rendezvous_limit = 2;
        Child impostor = start_rank(rank_of(1, 3, keys[i]), CARD, NULL, false);
        rendezvous_limit = 60;
        const Outcome o = outcome_of(impostor);
        char nothing[sizeof o.all] = "";
        check(o.joined == 0 && memcmp(o.all, nothing, sizeof nothing) == 0 && strstr(o.error, "THREEFOLD_SECRET"),
              "a stranger is no rank and gets nothing: %s", o.error);
        check(has_words(words, "THREEFOLD_SECRET"), "... and is named");
        start_ranks(child, 1, 3, secret, NULL);
        check(all_join(child, 0, 3), "... and the ranks meet");

        has_words(words, "");
    }
}

// A stranger in rank 0's place who challenges, with another secret or none, and takes whatever comes.
static void check_false_zero(void) {
    static const char* const keys[] = {"", other_secret};
    for (int i = 0; i < 2; i++) {
        const char* reason = "";
        char more[1000];
        draw_port();
        const Rendezvous self = rank_of(0, 2, keys[i]);
        rendezvous_limit = 2;
        const Child child =
            start_rank(rank_of(1, 2, secret), CARD, NULL, false); // first: it does not inherit the socket
        rendezvous_limit = 60;
        const int listener = rendezvous_listen(&self, &reason);
        RendezvousGuest* g = (RendezvousGuest*)checked_calloc(1, sizeof *g, "a guest");
        struct pollfd p = {listener, POLLIN, 0};
        bool called = false;
        ssize_t got = 0;
        while (poll(&p, 1, called ? 3000 : 30000) == 1) { // the rank tries again and again
            g->fd = accept(listener, NULL, NULL);
            if (rendezvous_move(g->fd, &g->talk.hello, sizeof g->talk.hello, false, seconds_now() + 30) &&
                !rendezvous_challenge(&self, g)) {
                called = true;
                got += max_i64(0, recv(g->fd, more, sizeof more, 0));
            }
            close(g->fd);
        }
        close(listener);
        free(g);
        const Outcome o = outcome_of(child);
        check(called && o.joined == 0 && strstr(o.error, "THREEFOLD_SECRET"), "a false rank 0 is found out: %s",
              o.error);
        check(got == 0, "... and does not get the rank's bytes");
    }
}

// One conversation as rank 1 of two or more, by hand, up to the proof: that of `proof` if it is not NULL. The
// connection.
static int talk_by_hand(int size, const unsigned char* proof, RendezvousChallenge* challenge,
                        unsigned char made[SHA256_BYTES]) {
    const Rendezvous self = rank_of(1, size, secret);
    const double until = seconds_now() + 30;
    RendezvousTalk talk = {};
    char card[CARD];
    card_of(card, 1);
    talk.hello = hello_of(1, size);
    const int fd = knock();
    if (!rendezvous_move(fd, &talk.hello, sizeof talk.hello, true, until) ||
        !rendezvous_move(fd, challenge, sizeof *challenge, false, until))
        die("rank 0 says nothing");
    memcpy(talk.nonce, challenge->nonce, sizeof talk.nonce);
    rendezvous_prove(&self, made, &talk, "proof", card, CARD);
    rendezvous_move(fd, (void*)(uintptr_t)(proof ? proof : made), SHA256_BYTES, true, until);
    rendezvous_move(fd, card, CARD, true, until);
    return fd;
}

// A proof is that of one conversation, and of one side.
static void check_replay(void) {
    Child child[3];
    RendezvousChallenge challenge;
    unsigned char none[SHA256_BYTES] = {0}, first[SHA256_BYTES], made[SHA256_BYTES];
    char rest;
    draw_port();
    child[0] = start_rank(rank_of(0, 3, secret), CARD, NULL, false);
    close(talk_by_hand(3, none, &challenge, first)); // made for this conversation, but not used in it
    bool ok = true;
    for (int i = 0; i < 2; i++) {
        const int fd = talk_by_hand(3, i ? challenge.proof : first, &challenge, made);
        ok = recv(fd, &rest, 1, 0) <= 0 && ok;
        close(fd);
    }
    start_ranks(child, 1, 3, secret, NULL);
    check(all_join(child, 0, 3) && ok,
          "a proof is worth nothing in another conversation, nor to the side that made it");
}

// ---- A stranger in between --------------------------------------------------------------------------------------

// Hands on what two connections say until one ends, but for the byte at `place` of what comes `backwards` or not.
static void relay(int a, int b, bool backwards, long place) {
    long done[2] = {0, 0};
    struct pollfd p[2] = {{a, POLLIN, 0}, {b, POLLIN, 0}};
    for (int turn = 0; turn < 10000 && poll(p, 2, 10000) > 0; turn++) {
        for (int i = 0; i < 2; i++) {
            char bytes[512];
            if (p[i].revents == 0) continue;
            const ssize_t got = recv(p[i].fd, bytes, sizeof bytes, MSG_DONTWAIT);
            if (got <= 0) return;
            const long at = place - done[i];
            if (i == (int)backwards && at >= 0 && at < got) bytes[at] ^= 4;
            done[i] += got;
            if (send(p[1 - i].fd, bytes, (size_t)got, MSG_NOSIGNAL) != got) return;
        }
    }
}

// Rank 1 talks to a process that talks to rank 0, and changes one byte of its first conversation. A rank that joins
// has the right bytes.
static void check_middle(void) {
    static const struct {
        bool backwards;
        long place;
        const char* what;
    } changes[] = {{false, 16, "the rank"},
                   {false, 24, "the number of bytes"},
                   {false, 33, "the rank's number"},
                   {false, 50, "the rank's proof"},
                   {false, 80 + 9, "the rank's bytes"},
                   {true, 20, "rank 0's number"},
                   {true, 40, "rank 0's proof"},
                   {true, 64, "the answer"},
                   {true, 75, "the answer's proof"},
                   {true, 104 + 5, "rank 0's bytes"},
                   {true, 104 + CARD + 5, "its own bytes"}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        Child child[2];
        draw_port();
        child[0] = start_rank(rank_of(0, 2, secret), CARD, NULL, true);
        close(knock()); // it listens
        const int real = port;
        draw_port();
        const Rendezvous between = rank_of(0, 2, secret);
        const char* reason = "";
        child[1] = start_rank(rank_of(1, 2, secret), CARD, NULL, false); // first: it does not inherit the socket
        const int listener = rendezvous_listen(&between, &reason);
        if (listener < 0) die("cannot listen: %s", reason);
        port = real;
        struct pollfd p[2] = {{listener, POLLIN, 0}, {child[1].said, POLLIN, 0}};
        for (int talks = 0; talks < 3 && p[1].revents == 0; talks++) {
            if (poll(p, 2, 30000) <= 0 || p[0].revents == 0) break;
            const int a = accept(listener, NULL, NULL);
            const Rendezvous r = rank_of(1, 2, "");
            const int b = rendezvous_connect(&r, &reason);
            if (b < 0) close(listener);
            if (a >= 0 && b >= 0) relay(a, b, changes[i].backwards, talks == 0 ? changes[i].place : -1);
            if (b >= 0) close(b);
            close(a);
            if (b < 0) break;
        }
        close(listener);
        const Outcome one = outcome_of(child[1]);
        kill(child[0].pid, SIGKILL);
        const Outcome zero = outcome_of(child[0]);
        check((one.joined == 0 || is_whole(&one, 2)) && (zero.joined <= 0 || is_whole(&zero, 2)),
              "a change of %s is not taken: %s", changes[i].what, one.joined == 1 ? "the next try is" : one.error);
    }
}

// ---- Ranks that do not fit, or die ------------------------------------------------------------------------------

// All ranks learn at once why there is no run: rendezvous_limit is not waited for.
static void check_misfits(void) {
    static const struct {
        const char *what, *text;
        int rank, size;
        size_t bytes;
    } cases[] = {{"another number of ranks", "rank 2 says that there are 4 ranks, rank 0 that there are 3", 2, 4, CARD},
                 {"a rank twice", "two processes say that they are rank 1", 1, 3, CARD},
                 {"another build", "rank 2 is another build", 2, 3, CARD + 8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Child child[3];
        draw_port();
        child[0] = start_rank(rank_of(0, 3, secret), CARD, NULL, false);
        child[1] = start_rank(rank_of(1, 3, secret), CARD, NULL, false);
        child[2] = start_rank(rank_of(cases[i].rank, cases[i].size, secret), cases[i].bytes, NULL, false);
        bool ok = true;
        for (int rank = 0; rank < 3; rank++) {
            const Outcome o = outcome_of(child[rank]);
            const bool told = o.joined == 0 && strstr(o.error, cases[i].text);
            if (!told) printf("      process %d: %d %s\n", rank, o.joined, o.error);
            ok = ok && told;
        }
        check(ok, "%s: all learn of it", cases[i].what);
    }
}

// Ranks that end after they have come.
static void check_deaths(void) {
    RendezvousChallenge challenge;
    unsigned char made[SHA256_BYTES];
    draw_port();
    Child child = start_rank(rank_of(0, 3, secret), CARD, NULL, false);
    close(talk_by_hand(3, NULL, &challenge, made));
    Outcome o = outcome_of(child);
    check(o.joined == 0 && strstr(o.error, "rank 1 has gone while it was starting"), "rank 1 dies: %s", o.error);

    const char* reason = "";
    const Rendezvous self = rank_of(0, 3, secret);
    child = start_rank(rank_of(1, 3, secret), CARD, NULL, false); // first: it does not inherit the socket
    const int listener = rendezvous_listen(&self, &reason);
    struct pollfd p = {listener, POLLIN, 0};
    const bool called = poll(&p, 1, 30000) == 1;
    RendezvousGuest* g = (RendezvousGuest*)checked_calloc(1, sizeof *g, "a guest");
    g->fd = accept(listener, NULL, NULL);
    const bool ok = called && rendezvous_move(g->fd, &g->talk.hello, sizeof g->talk.hello, false, seconds_now() + 30) &&
                    rendezvous_challenge(&self, g) == NULL;
    close(listener); // before the rank gets an answer
    close(g->fd);
    free(g);
    o = outcome_of(child);
    check(ok && o.joined == 0 && strstr(o.error, "has gone while it was starting"), "rank 0 dies: %s", o.error);
}

// ---- The environment, and where rank 0 listens ------------------------------------------------------------------

static void set(const char* const* settings) {
    static const char* const all[] = {"RANK",
                                      "WORLD_SIZE",
                                      "LOCAL_RANK",
                                      "LOCAL_WORLD_SIZE",
                                      "MASTER_ADDR",
                                      "MASTER_PORT",
                                      "SLURM_PROCID",
                                      "SLURM_LOCALID",
                                      "SLURM_STEP_NUM_TASKS",
                                      "SLURM_STEP_NUM_NODES",
                                      "THREEFOLD_SECRET",
                                      "TORCHELASTIC_USE_AGENT_STORE"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) unsetenv(all[i]);
    for (; *settings; settings += 2) setenv(settings[0], settings[1], 1);
}

static void check_environment(void) {
#define TORCHRUN "RANK", "1", "WORLD_SIZE", "4", "LOCAL_RANK", "1", "MASTER_PORT", "29501"
#define SRUN "SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "4", "SLURM_LOCALID", "1", "MASTER_ADDR", "node1"
    static const struct {
        const char *set[24], *host, *error;
        bool narrowed;
    } cases[] = {
        {{TORCHRUN, "MASTER_ADDR", "127.0.0.1", NULL}, "127.0.0.1", NULL, false},
        {{TORCHRUN, "MASTER_ADDR", "localhost", "LOCAL_WORLD_SIZE", "4", NULL}, "127.0.0.1", NULL, false},
        {{TORCHRUN, "MASTER_ADDR", "node1", "LOCAL_WORLD_SIZE", "4", NULL}, "127.0.0.1", NULL, true},
        {{TORCHRUN, "MASTER_ADDR", "node1", "LOCAL_WORLD_SIZE", "2", NULL}, "", "THREEFOLD_SECRET is not set", false},
        {{TORCHRUN, "MASTER_ADDR", "node1", "LOCAL_WORLD_SIZE", "2", "THREEFOLD_SECRET", secret, NULL},
         "node1",
         NULL,
         false},
        {{TORCHRUN, "MASTER_ADDR", "node1", "THREEFOLD_SECRET", "fifteen letters", NULL}, "", "less than 16", false},
        {{SRUN, "SLURM_STEP_NUM_NODES", "1", NULL}, "127.0.0.1", NULL, true},
        {{SRUN, "SLURM_STEP_NUM_NODES", "2", NULL}, "", "THREEFOLD_SECRET is not set", false},
        {{SRUN, "SLURM_STEP_NUM_NODES", "2", "THREEFOLD_SECRET", secret, NULL}, "node1", NULL, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Rendezvous r;
        Error error;
        error.text[0] = 0;
        set(cases[i].set);
        const bool ok = rendezvous_read(&r, &error);
        if (cases[i].error)
            check(!ok && strstr(error.text, cases[i].error), "environment %zu: %s", i, error.text);
        else
            check(ok && strcmp(r.host, cases[i].host) == 0 && r.narrowed == cases[i].narrowed && r.size == 4,
                  "environment %zu: rank 0 is looked for on %s %s", i, r.host, error.text);
    }
}

// host: the address on which rank 0 listens, as text; "" if it cannot.
static void listens_at(char text[64], const char* host, const char* key) {
    struct sockaddr_storage at;
    socklen_t size = sizeof at;
    const char* reason = "";
    Rendezvous r = rank_of(0, 2, key);
    snprintf(r.host, sizeof r.host, "%s", host);
    const int fd = rendezvous_listen(&r, &reason);
    text[0] = 0;
    if (fd < 0) return;
    if (getsockname(fd, (struct sockaddr*)&at, &size) == 0)
        getnameinfo((struct sockaddr*)&at, size, text, 64, NULL, 0, NI_NUMERICHOST);
    close(fd);
}

static void check_listening(void) {
    char text[64];
    draw_port();
    listens_at(text, "127.0.0.1", "");
    check(strcmp(text, "127.0.0.1") == 0, "without a secret rank 0 listens on 127.0.0.1: %s", text);
    listens_at(text, "127.0.0.2", secret);
    check(strcmp(text, "127.0.0.2") == 0, "MASTER_ADDR 127.0.0.2: %s", text);
    listens_at(text, "192.0.2.1", "");
    check(text[0] == 0, "an address of another machine, without a secret: it does not listen");
    if (!freopen("/dev/null", "a", stderr)) die("no /dev/null");
    listens_at(text, "192.0.2.1", secret); // TEST-NET-1: no machine's
    check(strcmp(text, "::") == 0 || strcmp(text, "0.0.0.0") == 0, "... with a secret: on all, %s", text);
    char first[64];
    const Rendezvous r = rank_of(0, 2, secret);
    const char* reason = "";
    const int fd = rendezvous_listen(&r, &reason);
    listens_at(first, "127.0.0.1", secret);
    check(fd >= 0 && first[0] == 0, "a port that is taken is not listened on elsewhere");
    close(fd);
}

int main(void) {
    char words[256];
    make_temporary(words, sizeof words, "test_rendezvous");
    signal(SIGPIPE, SIG_IGN);
    check_sha256();
    check_hmac();
    check_environment();
    check_meetings();
    check_knocks(words);
    check_impostors(words);
    check_false_zero();
    check_replay();
    check_middle();
    check_misfits();
    check_deaths();
    check_listening();
    unlink(words);
    return test_end();
}
