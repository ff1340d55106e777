/*
comm/cpu_affinity.h: the ranks that share a machine, and the assignment of its cores. A core is a logical CPU of the
system's scheduler.

Several ranks on one machine that all compute with all of its cores slow each other down several times. So the cores
that the ranks of a machine may use together are cut into one part for each of them, and each is bound to its part and
computes with as many threads. Parts are contiguous in an order by socket and physical core: a rank has the hardware
threads of its cores, and its cores and its GPU, which are numbered by socket as a rule, share a socket. Nothing changes
if the launcher has given every rank its own cores, or the user has set the number of threads.

    comm_share_cores    all ranks call it, once, before the first parallel region
    cores_contended     how many threads of other programs are in the way of this machine's ranks
*/
#pragma once

#include "../comm.h"
#include <limits.h>
#ifdef __linux__
#include <sched.h>
#endif

typedef struct {
    int machines;              // the job has these
    int ranks_here, rank_here; // the job's ranks on this machine; this one's place among them
    int cores_here;            // that they may use together
    int threads;               // that this rank should compute with: for omp_set_num_threads
} RankPlacement;

// Whether Open MPI has bound this process to a core or socket although the user did not ask for it: by default it binds
// each rank to one core if there are two ranks or fewer. mpirun passes its options on in these variables.
static inline bool cores_bound_by_default(void) {
    static const char* const asked[] = {"OMPI_MCA_hwloc_base_binding_policy", // --bind-to
                                        "OMPI_MCA_hwloc_base_bind_to_core",   // --bind-to-core
                                        "OMPI_MCA_hwloc_base_cpu_set",        // --cpu-set
                                        "OMPI_MCA_hwloc_base_cpu_list",       // --cpu-list
                                        "OMPI_MCA_rmaps_base_cpus_per_rank",  // --cpus-per-rank
                                        "OMPI_MCA_rmaps_rank_file_path",      // --rankfile
                                        "OMPI_MCA_orte_rankfile",             // --rankfile
                                        NULL};
    const char* map = getenv("OMPI_MCA_rmaps_base_mapping_policy"); // --map-by socket:PE=4
    return getenv("OMPI_MCA_orte_bound_at_launch") && !comm_any_set(asked) &&
           !(map && (strstr(map, "PE=") || strstr(map, "pe=")));
}

// Whether the user has set the number of threads, or their places.
static inline bool threads_are_settled(void) {
    static const char* const names[] = {"OMP_NUM_THREADS",   "OMP_PROC_BIND", "OMP_PLACES",
                                        "GOMP_CPU_AFFINITY", "KMP_AFFINITY",  NULL};
    return comm_any_set(names);
}

// Part [first, return value) of n cores for rank_here of ranks_here: sizes differ by one at most.
static inline int cores_part(int n, int rank_here, int ranks_here, int* first) {
    *first = (int)((int64_t)n * rank_here / ranks_here);
    return (int)((int64_t)n * (rank_here + 1) / ranks_here);
}

enum { MAX_CORES = 1024 }; // CPU_SETSIZE; on a larger machine no rank is tied to cores

#ifdef __linux__
// holders[core] = 1 for every core that this process may use; all 0 if the system does not report it.
static inline void cores_own(int32_t holders[MAX_CORES]) {
    cpu_set_t set;
    CPU_ZERO(&set);
    const bool known = sched_getaffinity(0, sizeof set, &set) == 0;
    for (int core = 0; core < MAX_CORES; core++) holders[core] = known && CPU_ISSET(core, &set);
}

// Binds the process, and its future threads, to n cores. If the system refuses, the run is only slower.
static inline void cores_tie(const int* cores, int n) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < n; i++) CPU_SET(cores[i], &set);
    sched_setaffinity(0, sizeof set, &set);
}

// Binds to all cores: the system keeps to the cores that the container or the batch system has given to the job.
static inline void cores_untie(void) {
    cpu_set_t set;
    memset(&set, 0xff, sizeof set);
    sched_setaffinity(0, sizeof set, &set);
}
#else
static inline void cores_own(int32_t holders[MAX_CORES]) { memset(holders, 0, MAX_CORES * sizeof *holders); }
static inline void cores_tie(const int* cores, int n) { (void)cores, (void)n; }
static inline void cores_untie(void) {}
#endif

// Writes the cores that some rank may use to `cores`, by socket, physical core and number; returns how many. The system
// describes them in `folder`; where it does not, the socket is 0 and the physical core has the core's number.
static inline int cores_in_order(const char* folder, const int32_t holders[MAX_CORES], int cores[MAX_CORES]) {
    static const char* const names[] = {"physical_package_id", "core_id"};
    int64_t order[MAX_CORES];
    int n = 0;
    for (int core = 0; core < MAX_CORES; core++) {
        if (holders[core] == 0) continue;
        int of[] = {0, core}, at = n++;
        for (int i = 0; i < 2; i++) {
            char path[256];
            snprintf(path, sizeof path, "%s/cpu%d/topology/%s", folder, core, names[i]);
            FILE* f = fopen(path, "r");
            if (f && (fscanf(f, "%d", &of[i]) != 1 || of[i] < 0)) of[i] = 0;
            if (f) fclose(f);
        }
        const int64_t mine = ((int64_t)of[0] * (1 << 20) + of[1]) * MAX_CORES + core;
        for (; at > 0 && order[at - 1] > mine; at--) order[at] = order[at - 1];
        order[at] = mine;
    }
    for (int i = 0; i < n; i++) cores[i] = (int)(order[i] % MAX_CORES);
    return n;
}

// The union of the local ranks' cores is cut into one part for each of them; this rank is bound to its part. Returns
// the size of the part, its number of threads. No rank is bound if the launcher has already given each rank its own
// cores, nor if there are fewer cores than ranks: one thread each, which the system distributes.
static inline int cores_take(const RankPlacement* place, const int* cores, const int32_t holders[MAX_CORES], int own) {
    bool shared = false;
    for (int core = 0; core < MAX_CORES; core++) shared = shared || holders[core] > 1;
    if (!shared && own > 0) return own;
    int first;
    const int end = cores_part(place->cores_here, place->rank_here, place->ranks_here, &first);
    if (place->cores_here < place->ranks_here) return 1;
    if (own > 0) cores_tie(cores + first, end - first);
    return end - first;
}

// All ranks call it, before the first parallel region: existing threads keep their cores.
static inline void comm_share_cores(Comm* world, RankPlacement* place) {
    memset(place, 0, sizeof *place);
    Comm machine = comm_split_machine(world);
    place->ranks_here = machine.size;
    place->rank_here = machine.rank;
    int32_t machines = machine.rank == 0;
    comm_all_reduce(world, &machines, 1, COMM_INT32, COMM_SUM);
    place->machines = machines;

    if (cores_bound_by_default()) cores_untie();
    int32_t holders[MAX_CORES]; // the number of ranks here that may use the core
    int cores[MAX_CORES], own = 0;
    cores_own(holders);
    for (int core = 0; core < MAX_CORES; core++) own += holders[core];
    comm_all_reduce(&machine, holders, MAX_CORES, COMM_INT32, COMM_SUM);
    comm_free(&machine);
    place->cores_here = cores_in_order("/sys/devices/system/cpu", holders, cores);
    if (place->cores_here == 0) place->cores_here = (int)max_i64(1, sysconf(_SC_NPROCESSORS_ONLN));

    const bool launched = comm_is_launched() || world->size > 1;
    place->threads = !launched || threads_are_settled() ? openmp_threads() : cores_take(place, cores, holders, own);
    const double most = container_limit("/sys/fs/cgroup/cpu.max") / place->ranks_here;
    if (!threads_are_settled() && most < place->threads) place->threads = most > 1 ? (int)most : 1;
}

// Threads that run now on this machine, or wait for a core, as Linux counts them; 0: not known.
static inline int threads_running(void) {
    char line[256];
    int n = 0;
    FILE* f = fopen("/proc/stat", "r");
    if (!f) return 0;
    while (fgets(line, sizeof line, f) && sscanf(line, "procs_running %d", &n) != 1) continue;
    fclose(f);
    return n;
}

// The threads of other programs that run here, if together with the ranks' they are more than the cores; else 0. The
// least of five looks, 2 ms apart, while each rank has one thread running at most.
static inline int cores_contended(const RankPlacement* place) {
    int others = INT_MAX;
    for (int i = 0; i < 5; i++) {
        others = (int)min_i64(others, threads_running() - place->ranks_here);
        usleep(2000);
    }
    const int64_t wanted = others + (int64_t)place->threads * place->ranks_here;
    return others > 0 && wanted > sysconf(_SC_NPROCESSORS_ONLN) ? others : 0;
}
