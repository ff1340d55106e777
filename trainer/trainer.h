/*
trainer/trainer.h: the state of a rank of a run, all in one struct, and check_all_ranks, by which an error of one rank
ends all of them.
*/
#pragma once

#include "../comm.h"
#include "../comm/cpu_affinity.h"
#include "../dataloader.h"
#include "../dataloader/eval_loader.h"
#include "../parallel/process_groups.h"
#include "../checkpoint/export.h"
#include "replica_check.h"
#include "../checkpoint/save.h"
#include "../parallel/schedule.h"
#include "derived.h"
#include "../methods/async_dp.h"
#include "../parallel/stage.h"
#include "graceful_stop.h"
#include "../dataloader/tokenizer.h"
#include "../util/trace.h"
#include "watchdog.h"

// Bytes sent in the three groups, by a rank or by all together.
typedef struct {
    double tensor, pipeline, data;
    double inter_site; // the part of data that went to other sites
} Bytes;

// The tokens of all micro-batches of one execution of a schedule: all inputs, then all targets.
typedef struct {
    int32_t *host, *device;
    int64_t tokens; // room for as many inputs, and targets
} TokenBatch;

// OUT/log.jsonl, a JSON object a line. All zero: it was not opened.
typedef struct {
    char path[CHECKPOINT_PATH];
    int fd;
    int64_t at;  // end of the lines that are in the file
    bool waits;  // the last write has failed, which was reported
    FILE* lines; // in memory, to be written next: `text`, of `size` bytes
    char* text;
    size_t size;
} Log;

// A rank of a run. All zero: nothing was opened.
typedef struct {
    Settings settings;
    Option options[MAX_OPTIONS]; // the command line's table, which points into settings
    int option_count;
    Comm world;
    ProcessGroups groups;
    Watchdog watch;
    RankPlacement place;
    int sharing; // ranks that share this rank's device
    Stage stage;
    Scope stats_scope; // the ranks over which a step's loss, norm and bytes are summed
    Schedule schedule;
    Plan data_plans[PLAN_KINDS];       // the data group's sums of gradients and gathers of parameters; n = 0: none
    Plan inter_site_plans[PLAN_KINDS]; // the inter-site group's
    TokenFiles train_files, val_files; // without files: none
    Tokenizer tokenizer;               // has made the tokens in them; vocab 0: not known
    DataLoader train, val;
    uint64_t data_checksum;  // the training data's
    int held_out;            // blocks of it to validate on, at most; 0: none
    Evaluations evaluations; // the files that --evaluate names
    bool evaluated;          // this step has evaluated them
    TokenBatch batch;
    Saver saver;
    Export export_to;                 // --export: where the weights go at the end
    char vocabulary[CHECKPOINT_PATH]; // the file that the tokenizer was read from; "": none
    HubFiles hub_files;               // files written beside the model, on rank 0
    bool unsaved;                     // the last save has failed
    FILE* text;                       // where --generate writes, on rank 0
    Log log;                          // OUT/log.jsonl, on rank 0
    Trace trace;                      // with --trace, which the groups record in
    char* config;                     // the text of a file of options: settings point into it
    int64_t step;                     // updates done
    int64_t sequences;                // consumed: the position in the data
    double loss, grad_norm, val_loss; // the last step's; val_loss is NaN unless the step was validated
    double started, loop_started;     // when the process began, and its first step
    int64_t first_step;               // updates done when this process began
    Bytes first_bytes;                // sent by then
    double peak_flops;                // all ranks together, FLOP/s; 0: not known
    int skipped_in_row;               // steps skipped one after the other up to now (--on-nan skip)
    double bubble; // the last step's time without work / time with work, mean of all ranks; NaN where not measured
    Bytes bytes;   // all ranks together have sent these in the last step
    Stop stop;
    bool stops; // the run ends after the last step that was made, as a signal has asked
} Trainer;

static inline bool is_main(const Trainer* t) { return t->world.rank == 0; }
static inline bool is_last_step(const Trainer* t) { return t->step == t->settings.steps; }
static inline bool is_due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

// Sets the phase that the watchdog reports.
static inline void enter_phase(Trainer* t, HeartbeatPhase phase) {
    heartbeat_phase(watchdog_row(&t->watch), phase, t->step);
}

// The first rank that has failed, whose reason is copied to *error on all ranks; -1: none has.
static inline int first_failing_rank(Trainer* t, bool ok, Error* error) {
    int32_t first = ok ? INT32_MAX : t->world.rank;
    comm_all_reduce(&t->world, &first, 1, COMM_INT32, COMM_MIN);
    if (first == INT32_MAX) return -1;
    if (first == t->world.rank && first > 0) {
        const Error mine = *error;
        snprintf(error->text, sizeof error->text, "rank %d: %.900s", first, mine.text);
    }
    comm_broadcast(&t->world, error->text, sizeof error->text, COMM_BYTE, first);
    return first;
}

// Returns if no rank has failed, status 0; else ends the run on all ranks with the message and the exit status of the
// first that did.
static inline void check_all_ranks_status(Trainer* t, int status, Error* error) {
    const int first = first_failing_rank(t, status == 0, error);
    if (first < 0) return;
    comm_broadcast(&t->world, &status, 1, COMM_INT32, first);
    comm_abort_all(&t->world, status, error->text);
}

static inline void check_all_ranks(Trainer* t, bool ok, Error* error) {
    check_all_ranks_status(t, ok ? 0 : EXIT_RUN, error);
}
