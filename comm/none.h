/*
comm/none.h: replaces the backends that a build does not have. Without MPI a process is the only rank. Without NCCL the
groups' nccl stays NULL: device memory goes through the host. Without GPUs all memory is the host's.
*/
#pragma once

#include "comm_types.h"

#ifndef USE_MPI
#define comm_mpi_open(world, stop) ((void)(world))
#define comm_mpi_end(world) ((void)(world))
#define comm_mpi_library(name, size) ((void)(name), (void)(size), false)
#define comm_mpi_split(child, parent, color, key) ((void)(color), (void)(key))
#define comm_mpi_split_machine(child, world) ((void)(world))
#define comm_mpi_free(c) ((void)(c))
#define comm_plan_adopt(c, plan) ((void)(plan))
#define comm_free_plans(c) ((void)(c))
#define comm_open_thread(c, urgent) ((void)(c))
#define comm_can_thread(c) ((void)(c), false)
#define comm_free_thread(c) ((void)(c))
#define comm_free_threads(job) ((void)(job))
#endif

#ifndef USE_CUDA
#define comm_is_on_device(request) false
#define comm_stage_to_host(request) ((void)(request))
#define comm_deliver(request) ((void)(request))
#endif

#ifndef USE_NCCL
#define nccl_prepare() ((void)0)
#define comm_nccl_split(child, parent, color) ((void)(child))
#define comm_nccl_open_lanes(c, folded) ((void)(c), (void)(folded))
#define comm_nccl_free(c) ((void)(c))
#define comm_nccl_end(world) ((void)(world))
#define comm_check_errors() ((void)0)
#define comm_wait_for_device(world) device_synchronize()

static inline void comm_nccl_open(Comm* world) {
    if (!DEVICE_IS_HOST)
        snprintf(world->job->device_text, sizeof world->job->device_text, "through host memory (built without NCCL)");
}
#endif
