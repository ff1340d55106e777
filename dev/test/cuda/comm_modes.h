/*
comm_modes.h: what cuda_comm.cu does by one word: it ends the program, and cuda_comm.sh looks at how.

    die, kill     the last rank dies, or is killed, while the others wait for its part of a sum
    usage         all ranks find wrong arguments; lonely: only the last one does
    together      all ranks find the same error
    nolanes       receives posted ahead on one stream: a deadlock with NCCL (the fake one says so)
    swapped       two receives of one lane in the wrong order
    length        a message that is longer than its receiver expects
    mixed         one buffer in host memory, one in device memory
    gone          the last rank is killed while the others are at a barrier
    late          the last rank dies when the others have nothing left to do
    busy          the last rank dies while the others compute, for 4 seconds
    stuck         the last rank does not come to a barrier
    unsent        ends well with two receives in flight that wait for ever
    lanes         opens lanes, and ends well
A rank that ends well says "closed".
*/
#pragma once

#include "../../../comm.h"

#include <signal.h>

enum { EXIT_TIME_OUT = 124 }; // as timeout(1) has it

static char time_out_text[96];
static void time_out(int signal) {
    (void)signal;
    (void)!write(STDERR_FILENO, time_out_text, strlen(time_out_text));
    _exit(EXIT_TIME_OUT);
}

// From the start: also the beginning of MPI and NCCL can hang.
static void limit_time(int seconds) {
    snprintf(time_out_text, sizeof time_out_text, "cuda_comm: rank %s is not done within %d s\n",
             getenv("OMPI_COMM_WORLD_RANK") ? getenv("OMPI_COMM_WORLD_RANK") : "?", seconds);
    signal(SIGALRM, time_out);
    alarm((unsigned)seconds);
}

// x: 4096 bytes of device memory.
static void run_lane_mode(Comm* pair, float* x, const char* mode) {
    const int other = 1 - pair->rank;
    if (strcmp(mode, "nolanes") == 0) {
        for (int i = 0; i < 2; i++) { // once in turn, so that connections are there
            CommRequest r = i == pair->rank ? comm_send_start(pair, x, 8, COMM_FLOAT, other, 0)
                                            : comm_receive_start(pair, x, 8, COMM_FLOAT, other, 0);
            comm_wait(&r);
        }
        CommRequest receive = comm_receive_start(pair, x, 8, COMM_FLOAT, other, 0);
        CommRequest send = comm_send_start(pair, x + 8, 8, COMM_FLOAT, other, 0);
        comm_wait(&send);
        comm_wait(&receive);
    }
    if (strcmp(mode, "swapped") == 0 || strcmp(mode, "length") == 0) {
        comm_open_lanes(pair, false);
        const int swapped = mode[0] == 's', longer = mode[0] == 'l';
        CommRequest r[2];
        for (int i = 0; i < 2; i++) {
            const int which = swapped && pair->rank == 1 ? 1 - i : i, n = which ? 16 + longer * (1 - pair->rank) : 8;
            r[i] = pair->rank == 0 ? comm_send_start(pair, x + 32 * which, n, COMM_FLOAT, 1, 2 * which)
                                   : comm_receive_start(pair, x + 32 * which, n, COMM_FLOAT, 0, 2 * which);
        }
        comm_wait(&r[0]);
        comm_wait(&r[1]);
    }
    if (strcmp(mode, "unsent") == 0) {
        comm_open_lanes(pair, false);
        for (int direction = 0; direction < 2; direction++)
            comm_receive_start(pair, x + 8 * direction, 8, COMM_FLOAT, other, direction);
    }
}

static int run_mode(Comm* world, const char* mode) {
    const int last = world->size - 1;
    float* x = (float*)device_malloc(4096, "test");
    Comm pair = comm_split(world, world->rank > 1, world->rank, "pair", COMM_WIDE);
    const bool member = world->rank <= 1 && world->size > 1;
    if (strcmp(mode, "usage") == 0) die_usage("the test says so");
    if (strcmp(mode, "lonely") == 0 && world->rank == last) die_usage("the test says so");
    if (strcmp(mode, "together") == 0) comm_abort_all(world, EXIT_RUN, "the test says so");
    if (strcmp(mode, "mixed") == 0) comm_all_gather(world, x, world, 1, COMM_FLOAT);
    if (strcmp(mode, "die") == 0 || strcmp(mode, "kill") == 0) {
        comm_all_reduce(world, x, 8, COMM_FLOAT, COMM_SUM);
        comm_synchronize(world);
        if (world->rank == last && mode[0] == 'd') die("the test says so");
        if (world->rank == last) kill(getpid(), SIGKILL);
        CommRequest r = comm_all_reduce_start(world, x, 8, COMM_FLOAT, COMM_SUM);
        comm_wait(&r);
        for (;;) comm_synchronize(world), comm_progress(&r, 1);
    }
    if (strcmp(mode, "gone") == 0) {
        comm_barrier(world);
        if (world->rank == last) usleep(300000), kill(getpid(), SIGKILL);
        comm_barrier(world);
    }
    if (strcmp(mode, "late") == 0 && world->rank == last) usleep(1000000), die("the test says so");
    if (strcmp(mode, "busy") == 0) {
        if (world->rank == last) die("the test says so");
        sleep(4);
    }
    if (strcmp(mode, "stuck") == 0) {
        while (world->rank == last) pause();
        comm_barrier(world);
    }
    if (strcmp(mode, "lanes") == 0) comm_open_lanes(world, false);
    if (member) run_lane_mode(&pair, x, mode);
    if (strcmp(mode, "unsent") == 0) {
        comm_close(world);
        printf("closed\n");
        return 0;
    }
    comm_synchronize(world);
    comm_free(&pair);
    comm_close(world);
    device_free(x, 4096);
    printf("closed\n");
    return 0;
}
