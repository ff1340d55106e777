/*
parallel/pipeline.h: the messages between pipeline stages (Narayanan et al. 2021). A stage sends the residual stream (N,
C) of a micro-batch to the next one, which sends its gradient back. The schedule's table (parallel/schedule.h) orders
the messages; a buffer is in flight until the action that needs it waits.

The tensor ranks of a stage hold the same numbers. So each sends 1/t of them and the receivers gather: the
scatter-gather optimization of section 4.1 (--no-scatter-gather: each sends all of them).
*/
#pragma once

#include "schedule.h"
#include "stage.h"

// Fills x (n) from the received message, of n elements or, with scatter-gather, of the 1/t that each tensor rank has
// received. With sequence parallelism both are this rank's n / t.
static inline void boundary_unpack(ProcessGroups* g, const ParallelConfig* parallel, floatX* x, const floatX* message,
                                   int64_t n) {
    const int64_t sent = boundary_elements(parallel, n);
    if (parallel->scatter && !parallel->sequence_parallel && parallel->mesh.t > 1)
        comm_all_gather(&g->tensor, x, message, sent, COMM_FLOATX);
    else
        device_copy(x, message, (size_t)sent * sizeof(floatX));
}

// A tag holds the direction and (k v + receiving chunk) mod 8192: fewer messages are in flight. MPI promises tags up to
// 32767. Only MPI needs it (comm.h): the order of the table already matches sends and receives.
enum { TAG_FORWARD = 0, TAG_BACKWARD = 1 };

static inline int message_tag(const Schedule* schedule, int chunk, int k, int direction) {
    return (k * schedule->config.v + chunk) % 8192 * 2 + direction;
}

// Starts to receive n elements for the action's chunk. Both ends of a boundary number its messages by the chunk that
// receives them. start_send copies a message between two chunks of one rank, into a buffer that is free: its receive
// comes first in the table, or schedule_check refuses it.
static inline void start_receive(Stage* stage, const Schedule* schedule, Action action, int64_t n) {
    const int k = action.microbatch, peer = schedule_peer(schedule, action.kind, action.chunk);
    const bool forward = action.kind == RECEIVE_FORWARD;
    PipelineBuffers* boundary = boundary_of(stage, action.chunk, k);
    CommRequest* request = forward ? &boundary->receive_forward : &boundary->receive_backward;
    if (peer == schedule->stage) return; // start_send copies it
    *request =
        comm_receive_start(&stage->groups->pipeline, forward ? boundary->input : boundary->gradient, n, COMM_FLOATX,
                           peer, message_tag(schedule, action.chunk, k, forward ? TAG_FORWARD : TAG_BACKWARD));
}

// Starts to send n elements: the output of the action's chunk, or the gradient of its input.
static inline void start_send(Stage* stage, const Schedule* schedule, Action action, int64_t n) {
    const int k = action.microbatch, peer = schedule_peer(schedule, action.kind, action.chunk);
    const bool forward = action.kind == SEND_FORWARD;
    PipelineBuffers* boundary = boundary_of(stage, action.chunk, k);
    const floatX* from = boundary->gradient_out;
    if (forward) {
        const Activations* acts = &stage->activations[action.slot];
        from = chunk_output(acts) + boundary_offset(&stage->layout.parallel, (int64_t)acts->N * stage->model.C);
    }
    const int receiver = transfer_other_end(schedule, action.kind, action.chunk) / stage->layout.parallel.mesh.p;
    if (peer == schedule->stage) {
        const PipelineBuffers* to = boundary_of(stage, receiver, k);
        device_copy(forward ? to->input : to->gradient, from, (size_t)n * sizeof(floatX));
        return;
    }
    CommRequest* request = forward ? &stage->send_forward[action.slot] : &boundary->send_backward;
    *request = comm_send_start(&stage->groups->pipeline, from, n, COMM_FLOATX, peer,
                               message_tag(schedule, receiver, k, forward ? TAG_FORWARD : TAG_BACKWARD));
}

// Outside a schedule (generation): sends n elements to the next virtual stage, or receives them from the one before. A
// chunk of the same rank finds them where the other one left them.
static inline void pipeline_hand_over(Stage* stage, const Schedule* schedule, floatX* x, int64_t n, ActionKind kind,
                                      int chunk) {
    Comm* pipeline = &stage->groups->pipeline;
    const int peer = schedule_peer(schedule, kind, chunk);
    if (peer < 0 || peer == pipeline->rank) return;
    CommRequest message = kind == SEND_FORWARD ? comm_send_start(pipeline, x, n, COMM_FLOATX, peer, TAG_FORWARD)
                                               : comm_receive_start(pipeline, x, n, COMM_FLOATX, peer, TAG_FORWARD);
    comm_wait(&message);
}
