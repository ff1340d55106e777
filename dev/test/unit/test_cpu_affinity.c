/*
test_cpu_affinity.c: how ranks share the cores of a machine (comm/cpu_affinity.h), and what launchers say of it.

    ranks: 1 2 3 4 5 8
*/
#include "comm_test.h"

static void test_parts(void) {
    bool ok = true;
    for (int n = 1; n <= 70; n++) {
        for (int ranks = 1; ranks <= n; ranks++) {
            int at = 0;
            for (int rank = 0; rank < ranks; rank++) {
                int first;
                const int end = cores_part(n, rank, ranks, &first);
                ok = ok && first == at && end - first >= n / ranks && end - first <= (n + ranks - 1) / ranks;
                at = end;
            }
            ok = ok && at == n;
        }
    }
    check_all(ok, "cores: parts are disjoint, cover all, and differ by one at most (up to 70 cores)");
}

// Which cores a rank gets, told from the masks of all ranks by brute force.
static void test_cores(void) {
    int32_t before[MAX_CORES], after[MAX_CORES], users[MAX_CORES];
    unsetenv("OMP_NUM_THREADS");
    unsetenv("OMP_PROC_BIND");
    unsetenv("OMP_PLACES");
    unsetenv("GOMP_CPU_AFFINITY");
    const int own_before = cores_of_this_process(before);
    const bool widened = cores_bound_by_default();

    RankPlacement place;
    setenv("OMP_NUM_THREADS", "3", 1); // settled by the user: no rank is bound
    if (!widened) {
        comm_share_cores(&world, &place);
        cores_of_this_process(after);
        check_all(memcmp(before, after, sizeof before) == 0 && place.threads == openmp_threads(),
                  "cores: OMP_NUM_THREADS is left as it is");
    }
    unsetenv("OMP_NUM_THREADS");
#ifdef _OPENMP
    if (!comm_is_launched()) omp_set_num_threads(own_before + 1); // OpenMP's own number, whatever it is
#endif
    comm_share_cores(&world, &place);
    const int own = cores_of_this_process(after);
    memcpy(users, after, sizeof users);
    int most = 1, here = world.size, cores = 0;
#ifdef USE_MPI
    if (world.size > 1) MPI_Allreduce(MPI_IN_PLACE, users, MAX_CORES, MPI_INT32_T, MPI_SUM, MPI_COMM_WORLD);
#endif
    for (int i = 0; i < MAX_CORES; i++) {
        most = (int)max_i64(most, users[i]);
        cores += users[i] > 0;
    }
    check_all(place.ranks_here == here && place.rank_here == world.rank && place.machines == 1,
              "place: rank %d of %d, one machine", place.rank_here, place.ranks_here);
    check_all(place.cores_here == cores && cores > 0, "place: %d cores", place.cores_here);
    if (!comm_is_launched())
        check_all(own == own_before && place.threads == openmp_threads(), "one rank, not launched: left as it is");
    else if (cores >= here)
        check_all(most == 1 && own == place.threads, "every rank has cores of its own, and as many threads (%d)", own);
    else
        check_all(place.threads == 1 && own >= 1, "fewer cores than ranks: one thread each");
    check_all(place.threads * here <= (cores > here ? cores : here) || !comm_is_launched(),
              "no core is promised twice");

    // Once each rank has cores of its own it stays so.
    RankPlacement again;
    comm_share_cores(&world, &again);
    check_all(cores_of_this_process(users) == own && memcmp(after, users, sizeof users) == 0 &&
                  again.threads == place.threads && again.cores_here == place.cores_here,
              "sharing again changes nothing");
}

// A launcher that ties all ranks to the same core, unasked, as Open MPI would on a machine with one: not for long.
static void test_untie(void) {
    int32_t before[MAX_CORES], all[MAX_CORES];
    int own[MAX_CORES], n = 0;
    cores_of_this_process(before);
    for (int i = 0; i < MAX_CORES; i++) {
        if (before[i]) own[n++] = i;
    }
    cores_untie();
    const int system_cores = cores_of_this_process(all);
    char* policy = getenv("OMPI_MCA_hwloc_base_binding_policy");
    policy = policy ? strdup(policy) : NULL;
    char* bound = getenv("OMPI_MCA_orte_bound_at_launch");
    bound = bound ? strdup(bound) : NULL;
    unsetenv("OMPI_MCA_hwloc_base_binding_policy");
    setenv("OMPI_MCA_orte_bound_at_launch", "1", 1);
    int32_t core = own[0];
    comm_broadcast(&world, &core, 1, COMM_INT32, 0);
    cores_tie(&core, 1);
    RankPlacement place;
    comm_share_cores(&world, &place);
    check_all(place.cores_here == system_cores, "cores: tied to one of %d by default: untied", place.cores_here);

    unsetenv("OMPI_MCA_orte_bound_at_launch"); // somebody wanted it
    cores_tie(&core, 1);
    comm_share_cores(&world, &place);
    check_all(place.cores_here == 1 && cores_of_this_process(all) == 1, "cores: tied to one by the user: left so");
    if (bound) setenv("OMPI_MCA_orte_bound_at_launch", bound, 1);
    if (policy) setenv("OMPI_MCA_hwloc_base_binding_policy", policy, 1);
    free(bound);
    free(policy);
    cores_tie(own, n);
}

// Which masks are cut and which are kept, on a machine that is made up (no rank is bound: own = 0 or a return before).
static void test_take(void) {
    int32_t holders[MAX_CORES] = {0};
    int cores[MAX_CORES];
    for (int i = 0; i < MAX_CORES; i++) cores[i] = i;
    RankPlacement place = {1, 3, 1, 16, 0};
    for (int i = 0; i < 16; i++) holders[i] = 1;
    const bool kept = cores_take(&place, cores, holders, 7) == 7;
    for (int i = 0; i < 16; i++) holders[i] = 3;
    const bool cut = cores_take(&place, cores, holders, 0) == 5; // [5, 10) of 16
    place.ranks_here = 17;
    const bool crowded = cores_take(&place, cores, holders, 16) == 1;
    check_all(kept && cut && crowded, "cores of one's own are kept, shared ones cut, too few left alone");
}

// Two sockets, two physical cores each, of two hardware threads, numbered as many systems do: threads last.
static void test_order(void) {
    static const int sorted[] = {0, 4, 2, 6, 1, 5, 3, 7, 8};
    char folder[64], command[600];
    snprintf(folder, sizeof folder, "/tmp/test_cpu_affinity.%d", (int)getpid());
    snprintf(command, sizeof command,
             "for i in 0 1 2 3 4 5 6 7; do mkdir -p %s/cpu$i/topology && cd %s/cpu$i/topology && "
             "echo $((i %% 2)) >physical_package_id && echo $((i / 2 %% 2)) >core_id; done; cd %s; "
             "echo 150000 100000 >cpu; echo max 100000 >max; echo 1073741824 >memory",
             folder, folder, folder);
    int32_t holders[MAX_CORES] = {1, 2, 1, 1, 1, 1, 1, 1};
    int cores[MAX_CORES];
    bool ok = system(command) == 0 && cores_in_order(folder, holders, cores) == 8 && !memcmp(cores, sorted, 32);
    holders[8] = 1, holders[1] = 0; // nothing is told of core 8: socket 0, physical core 8
    ok = ok && cores_in_order(folder, holders, cores) == 8 && cores[4] == 8 && cores[5] == 5;
    check_all(ok, "cores by socket, physical core, number");
    static const struct {
        const char* name;
        double limit;
    } limits[] = {{"cpu", 1.5}, {"max", INFINITY}, {"memory", 1 << 30}, {"nowhere", INFINITY}};
    for (int i = 0; i < 4; i++) {
        snprintf(command, sizeof command, "%s/%s", folder, limits[i].name);
        ok = ok && container_limit(command) == limits[i].limit;
    }
    snprintf(command, sizeof command, "rm -r %s", folder);
    check_all(system(command) == 0 && ok, "limits of a container");
}

// Whether each of these variables alone makes it true, or false.
static bool each_says(const char* const* names, int n, bool (*says)(void), bool expected) {
    bool ok = true;
    for (int i = 0; i < n; i++) {
        setenv(names[i], "2", 1);
        ok = ok && says() == expected;
        unsetenv(names[i]);
    }
    return ok;
}

// The environment that launchers and users set.
static void test_environment(void) {
    enum { LAUNCHERS = 9, ASKED = 11, MAP_BY = 18, SETTINGS = 20, NAMES = 25 };
    static char list[] =
        "OMPI_COMM_WORLD_SIZE PMI_RANK PMI_SIZE PMI_FD PMIX_RANK MPI_LOCALNRANKS PALS_RANKID FLUX_TASK_RANK "
        "MV2_COMM_WORLD_SIZE FLUX_JOB_SIZE SLURM_STEP_NUM_TASKS OMPI_MCA_hwloc_base_binding_policy "
        "OMPI_MCA_hwloc_base_bind_to_core OMPI_MCA_hwloc_base_cpu_set OMPI_MCA_hwloc_base_cpu_list "
        "OMPI_MCA_rmaps_base_cpus_per_rank OMPI_MCA_rmaps_rank_file_path OMPI_MCA_orte_rankfile "
        "OMPI_MCA_rmaps_base_mapping_policy OMPI_MCA_orte_bound_at_launch OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES "
        "GOMP_CPU_AFFINITY KMP_AFFINITY";
    const char* names[NAMES];
    char* saved[NAMES];
    for (int i = 0; i < NAMES; i++) {
        names[i] = strtok(i ? NULL : list, " ");
        saved[i] = getenv(names[i]) ? strdup(getenv(names[i])) : NULL;
        unsetenv(names[i]);
    }
    check_all(!comm_is_launched() && each_says(names, LAUNCHERS, comm_is_launched, true),
              "environment: %d signs of a launcher, each enough", LAUNCHERS);
    bool size = comm_launched_size() == 1;
    setenv("SLURM_STEP_NUM_TASKS", "6", 1);
    size = size && comm_launched_size() == 6 && !comm_is_launched();
    setenv("PMI_SIZE", "4", 1);
    size = size && comm_launched_size() == 4;
    setenv("OMPI_COMM_WORLD_SIZE", "3", 1);
    size = size && comm_launched_size() == 3;
    check_all(size, "environment: the number of processes, by the innermost launcher");

    bool bound = !cores_bound_by_default();
    setenv("OMPI_MCA_orte_bound_at_launch", "1", 1);
    bound =
        bound && cores_bound_by_default() && each_says(names + ASKED, MAP_BY - ASKED, cores_bound_by_default, false);
    bound = bound && each_says(names + MAP_BY, 1, cores_bound_by_default, true);
    setenv(names[MAP_BY], "socket:PE=4", 1);
    bound = bound && !cores_bound_by_default();
    setenv(names[MAP_BY], "slot:pe=2", 1);
    bound = bound && !cores_bound_by_default();
    check_all(bound, "environment: bound by default, or because the user asked");
    check_all(!threads_are_settled() && each_says(names + SETTINGS, NAMES - SETTINGS, threads_are_settled, true),
              "environment: threads settled by the user");
    for (int i = 0; i < NAMES; i++) {
        if (saved[i])
            setenv(names[i], saved[i], 1);
        else
            unsetenv(names[i]);
        free(saved[i]);
    }
}

int main(void) {
    process.name = "test_cpu_affinity";
    comm_open(&world);
    test_parts();
    test_take();
    test_order();
    test_environment();
    test_untie();
    test_cores();
    const bool ok = everywhere(test_count.failed == 0);
    comm_close(&world);
    if (process.rank > 0) return !ok;
    return test_end();
}
