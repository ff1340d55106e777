/*
util/heartbeat.h: heartbeats of all ranks of a machine in one shared table, in which trainer/watchdog.h finds the rank
that a run waits for.

Each rank has a slot (row), which only its main thread writes:

    place    the phase of the run; in a schedule also the action: kind, chunk, micro-batch
    step     the current one
    wait     the operation, the group and the other rank that it waits for; 0: it waits for no rank, it computes
    moved    a counter of actions and operations; `carried`: of the rank's communication threads

A call is a few relaxed atomic stores into a cache line of the rank, no lock and no system call; with row = NULL it
does nothing. A slot has numbers only: the functions in HeartbeatNames turn them into names.

The table is a memfd_create without a name in a file system, so a job that is killed leaves nothing in /dev/shm. The
first rank of the machine makes it, and broadcasts its process and file number; the others open it as
/proc/PROCESS/fd/NUMBER. A rank that cannot (ranks in containers of their own) has a table of its own.

The number of a process may be reused after its end. So a slot also has the start time of the process, field 22 of
/proc/PROCESS/stat (proc(5)), whose field 3 is its state: running (R, S, D), stopped (T, t) or dead (Z, X).
*/
#pragma once

#include "base.h"

typedef enum {
    PHASE_STARTING,
    PHASE_LOADING,
    PHASE_TRAINING,
    PHASE_VALIDATING,
    PHASE_EVALUATING,
    PHASE_REPORTING,
    PHASE_SAVING,
    PHASE_SAMPLING,
    PHASE_ENDING,
    PHASES // the number of phases
} HeartbeatPhase;

static inline const char* heartbeat_phase_name(HeartbeatPhase phase) {
    static const char* const names[] = {"starting",  "loading the weights", "training", "validating", "evaluating",
                                        "reporting", "saving a checkpoint", "sampling", "ending"};
    return (unsigned)phase < PHASES ? names[phase] : "unknown phase";
}

// Names of the numbers in the slots.
typedef struct {
    const char* (*action)(int kind);
    const char* (*operation)(int kind);
} HeartbeatNames;

enum { PHASE_GROUPS = 8, PHASE_NAME = 16 };

// A group of the rank. Its members are written once, before `groups` counts it.
typedef struct {
    char name[PHASE_NAME];
    int32_t size, first; // index of its first member in the slot's list
} HeartbeatGroup;

typedef struct {
    int32_t rank, process;
    uint64_t born; // start time of the process; 0: not known
    int32_t ended; // it has finished, and may exit
    int32_t groups;
    HeartbeatGroup group[PHASE_GROUPS];
    __attribute__((aligned(64))) uint64_t moved;
    uint64_t place, wait;
    int64_t step;
    __attribute__((aligned(64))) uint64_t carried;
} HeartbeatRow;

typedef struct {
    uint64_t nonce;
    int32_t rows, members; // ranks of the machine; room for members of groups, in each slot
    int32_t speaker;       // 1 + the slot of the rank that reports for all; 0: none
} HeartbeatTable;

// ---- Writing: the rank's main thread. row may be NULL. ----------------------------------------------------------

static inline void heartbeat_move(HeartbeatRow* row) {
    if (row) __atomic_store_n(&row->moved, __atomic_load_n(&row->moved, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

// heartbeat_move for another thread of the rank.
static inline void heartbeat_background(HeartbeatRow* row) {
    if (row) __atomic_fetch_add(&row->carried, 1, __ATOMIC_RELAXED);
}

// A place is 8 bits of the phase, 8 of 1 + the action (0: none), 16 of 1 + the chunk, 32 of 1 + the micro-batch.
static inline uint64_t heartbeat_place(int phase, int action, int chunk, int microbatch) {
    return (uint64_t)phase << 56 | (uint64_t)(uint8_t)(action + 1) << 48 | (uint64_t)(uint16_t)(chunk + 1) << 32 |
           (uint64_t)(uint32_t)(microbatch + 1);
}

static inline void heartbeat_phase(HeartbeatRow* row, HeartbeatPhase phase, int64_t step) {
    if (!row) return;
    __atomic_store_n(&row->place, heartbeat_place((int)phase, -1, -1, -1), __ATOMIC_RELAXED);
    __atomic_store_n(&row->step, step, __ATOMIC_RELAXED);
    heartbeat_move(row);
}

// An action of the schedule, in the current phase.
static inline void heartbeat_action(HeartbeatRow* row, int action, int chunk, int microbatch) {
    if (!row) return;
    const int phase = (int)(__atomic_load_n(&row->place, __ATOMIC_RELAXED) >> 56);
    __atomic_store_n(&row->place, heartbeat_place(phase, action, chunk, microbatch), __ATOMIC_RELAXED);
    heartbeat_move(row);
}

// A wait is 8 bits of 1 + the operation, 8 of 1 + the group (0: none of the slot's), 32 of 1 + the awaited rank in the
// group (0: all).
static inline void heartbeat_wait(HeartbeatRow* row, int operation, int group, int peer) {
    if (!row) return;
    const uint64_t wait = (uint64_t)(uint8_t)(operation + 1) << 56 | (uint64_t)(uint8_t)(group + 1) << 48 |
                          (uint64_t)(uint32_t)(peer + 1);
    __atomic_store_n(&row->wait, wait, __ATOMIC_RELAXED);
}

// The wait is over.
static inline void heartbeat_resume(HeartbeatRow* row) {
    if (!row) return;
    __atomic_store_n(&row->wait, 0, __ATOMIC_RELAXED);
    heartbeat_move(row);
}

// ---- Reading ----------------------------------------------------------------------------------------------------

static inline HeartbeatRow* heartbeat_row(const HeartbeatTable* table, int i) {
    return (HeartbeatRow*)((char*)(uintptr_t)table + 64 * ((sizeof *table + 63) / 64)) + i;
}

// The members of a slot's groups, as ranks of the world, one group after the other.
static inline int32_t* heartbeat_members(const HeartbeatTable* table, int i) {
    return (int32_t*)heartbeat_row(table, table->rows) + (int64_t)i * table->members;
}

static inline size_t heartbeat_bytes(int rows, int members) {
    return 64 + (size_t)rows * (sizeof(HeartbeatRow) + (size_t)members * sizeof(int32_t));
}

static inline uint64_t heartbeat_count(const HeartbeatRow* row) {
    return __atomic_load_n(&row->moved, __ATOMIC_RELAXED) + __atomic_load_n(&row->carried, __ATOMIC_RELAXED);
}

static inline HeartbeatPhase heartbeat_phase_of(const HeartbeatRow* row) {
    return (HeartbeatPhase)(__atomic_load_n(&row->place, __ATOMIC_RELAXED) >> 56);
}

// Whether the steps have begun in this phase.
static inline bool heartbeat_steps(HeartbeatPhase phase) { return phase > PHASE_LOADING; }

static inline uint64_t heartbeat_waits(const HeartbeatRow* row) {
    return __atomic_load_n(&row->wait, __ATOMIC_RELAXED);
}

// The slot of a rank of the world; -1: it is not on this machine.
static inline int heartbeat_find(const HeartbeatTable* table, int rank) {
    for (int i = 0; i < table->rows; i++) {
        if (heartbeat_row(table, i)->rank == rank) return i;
    }
    return -1;
}

// The awaited ranks of the world: of a message the peer, of a collective all of the group. Returns how many, with
// *first in the slot's list (which has the rank itself, too); 0: not known.
static inline int heartbeat_awaited(const HeartbeatTable* table, int i, uint64_t wait, const int32_t** first) {
    const HeartbeatRow* row = heartbeat_row(table, i);
    const int group = (int)(wait >> 48 & 0xff) - 1, peer = (int)((int64_t)(wait & 0xffffffff) - 1);
    if (wait == 0 || group < 0 || group >= __atomic_load_n(&row->groups, __ATOMIC_ACQUIRE)) return 0;
    *first = heartbeat_members(table, i) + row->group[group].first;
    if (peer < 0) return row->group[group].size;
    if (peer >= row->group[group].size) return 0;
    *first += peer;
    return 1;
}

// Appends "step 17, backward 3 of chunk 1".
static inline void heartbeat_add_place(char* text, size_t size, const HeartbeatRow* row, HeartbeatNames names) {
    const uint64_t place = __atomic_load_n(&row->place, __ATOMIC_RELAXED);
    const HeartbeatPhase phase = (HeartbeatPhase)(place >> 56);
    const bool steps = heartbeat_steps(phase), trains = phase == PHASE_TRAINING;
    const int action = (int)(place >> 48 & 0xff) - 1, chunk = (int)(place >> 32 & 0xffff) - 1;
    const int64_t microbatch = (int64_t)(place & 0xffffffff) - 1;
    if (steps) append_text(text, size, "step %lld", (long long)__atomic_load_n(&row->step, __ATOMIC_RELAXED));
    if (!trains) append_text(text, size, "%s%s", steps ? ", " : "", heartbeat_phase_name(phase));
    if (action >= 0) append_text(text, size, ", %s", names.action(action));
    if (microbatch >= 0) append_text(text, size, " %lld", (long long)microbatch);
    if (chunk >= 0) append_text(text, size, " of chunk %d", chunk);
}

// Appends "receive in group "pipeline" with rank 3", or "all-reduce in group "data" of ranks 0, 2, 4 and 5 more": ranks
// of the world.
static inline void heartbeat_add_wait(char* text, size_t size, const HeartbeatTable* table, int i, uint64_t wait,
                                      HeartbeatNames names) {
    enum { SHOWN = 8 };
    const HeartbeatRow* row = heartbeat_row(table, i);
    const int32_t* ranks = NULL;
    const int n = heartbeat_awaited(table, i, wait, &ranks), group = (int)(wait >> 48 & 0xff) - 1;
    const bool peer = (wait & 0xffffffff) != 0;
    append_text(text, size, "%s", names.operation((int)(wait >> 56) - 1));
    if (n > 0) append_text(text, size, " in group \"%s\" %s", row->group[group].name, peer ? "with rank" : "of ranks");
    for (int k = 0; k < n && k < SHOWN; k++) append_text(text, size, "%s %d", k > 0 ? "," : "", (int)ranks[k]);
    if (n > SHOWN) append_text(text, size, " and %d more", n - SHOWN);
}

// ---- Processes --------------------------------------------------------------------------------------------------

typedef enum { PROCESS_RUNS, PROCESS_STOPPED, PROCESS_GONE } ProcessState;

// The state of a process, and its start time (0: not known). A name may have spaces and parentheses, so fields are
// counted after the last ')'.
static inline ProcessState process_look(int process, uint64_t* born) {
    char path[64], text[1024];
    *born = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return PROCESS_GONE;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return PROCESS_GONE; // it has ended meanwhile
    text[n] = 0;
    const char* field = strrchr(text, ')');
    if (!field || !field[1]) return PROCESS_GONE;
    field += 2; // the third
    const char state = *field;
    for (int i = 3; i < 22 && field; i++) {
        field = strchr(field, ' ');
        if (field) field++;
    }
    if (field) *born = strtoull(field, NULL, 10);
    if (state == 'Z' || state == 'X' || state == 'x') return PROCESS_GONE;
    return state == 'T' || state == 't' ? PROCESS_STOPPED : PROCESS_RUNS;
}

// The state of a slot's process; another process that reuses its number does not count.
static inline ProcessState heartbeat_process(const HeartbeatRow* row) {
    uint64_t born;
    const ProcessState state = process_look(row->process, &born);
    return state != PROCESS_GONE && born != row->born ? PROCESS_GONE : state;
}

// ---- Making and opening tables ----------------------------------------------------------------------------------

// The place where other processes find a table.
typedef struct {
    int32_t process, file; // -1: nowhere
    uint64_t nonce;
    int32_t rows, members;
} HeartbeatPlace;

static inline HeartbeatTable* heartbeat_map(int fd, size_t bytes) {
    void* p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? NULL : (HeartbeatTable*)p;
}

static inline void heartbeat_unmap(HeartbeatTable* table) {
    if (table) munmap(table, heartbeat_bytes(table->rows, table->members));
}

// Makes a zeroed table of `rows` slots, each with room for `members` members of its groups. If shared is wanted and
// possible, *place is its place (the caller closes the file); else it is this process's own. NULL: there is no memory.
static inline HeartbeatTable* heartbeat_make(HeartbeatPlace* place, int rows, int members, bool shared) {
    const size_t bytes = heartbeat_bytes(rows, members);
    HeartbeatPlace made = {(int32_t)getpid(), -1, 0, rows, members};
    HeartbeatTable* table = NULL;
#ifdef MFD_CLOEXEC
    if (shared) made.file = memfd_create("threefold-heartbeat", MFD_CLOEXEC);
#else
    (void)shared;
#endif
    if (made.file >= 0 && ftruncate(made.file, (off_t)bytes) == 0) table = heartbeat_map(made.file, bytes);
    if (!table) {
        if (made.file >= 0) close(made.file);
        made.file = -1;
        table = heartbeat_map(-1, bytes);
    }
    if (!table) return NULL;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    made.nonce = philox((uint64_t)now.tv_nsec, (uint64_t)now.tv_sec, (uint64_t)made.process).word[0] | 1;
    table->nonce = made.nonce;
    table->rows = rows;
    table->members = members;
    *place = made;
    return table;
}

// Opens the table of another process; NULL: it cannot.
static inline HeartbeatTable* heartbeat_open(const HeartbeatPlace* place) {
    char path[64];
    struct stat st;
    const size_t bytes = heartbeat_bytes(place->rows, place->members);
    if (place->file < 0) return NULL;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", place->process, place->file);
    const int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return NULL;
    const bool fits = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (size_t)st.st_size == bytes;
    HeartbeatTable* table = fits ? heartbeat_map(fd, bytes) : NULL;
    close(fd);
    if (!table || (table->nonce == place->nonce && table->rows == place->rows && table->members == place->members))
        return table;
    munmap(table, bytes); // of a process with this number in another container
    return NULL;
}

// Assigns slot i to this process, rank `rank` of the world.
static inline HeartbeatRow* heartbeat_claim(HeartbeatTable* table, int i, int rank) {
    HeartbeatRow* row = heartbeat_row(table, i);
    row->rank = rank;
    row->process = (int32_t)getpid();
    process_look(row->process, &row->born);
    return row;
}

// Adds a group of these ranks of the world (size) to slot i. Returns its number for heartbeat_wait; -1: no room.
static inline int heartbeat_add_group(HeartbeatTable* table, int i, const char* name, const int32_t* ranks, int size) {
    HeartbeatRow* row = heartbeat_row(table, i);
    const int n = row->groups, first = n > 0 ? row->group[n - 1].first + row->group[n - 1].size : 0;
    if (n == PHASE_GROUPS || size > table->members - first) return -1;
    HeartbeatGroup* group = &row->group[n];
    snprintf(group->name, sizeof group->name, "%s", name);
    group->size = size;
    group->first = first;
    memcpy(heartbeat_members(table, i) + first, ranks, (size_t)size * sizeof *ranks);
    __atomic_store_n(&row->groups, n + 1, __ATOMIC_RELEASE);
    return n;
}
