/*
cuda_bugs.h: what runs and judges kernels with one bug each: cuda_bugs.cu, cuda_hopper_bugs.cu.

Every kernel has an argument `right`: with it, it is correct; without it, it has the bug that it is named after. The
test starts itself once for each of them, as a process of its own that runs the kernel and compares what it computes. A
bug is noticed if that process ends with a message, or with wrong results. A table says what each build has to say:
plain, with -fsanitize=address,undefined, and with -fsanitize=thread. If a message names a line of the source, the first
one has to be marked with "<-- here" in the kernel; otherwise it has to name the kernel. The correct kernels have to
pass in every build, in all orders.
*/
#pragma once

#include "../../../kernels/cuda_utils.cuh"
#include "../unit/test.h"

#include <fstream>
#include <string>
#include <sys/wait.h>
#include <vector>

enum { BLOCKS = 4, THREADS = 64, N = BLOCKS * THREADS };

static float* device_floats(size_t n) {
    float* p;
    cuda_check(cudaMalloc(&p, n * sizeof(float)), "cudaMalloc");
    return p;
}

typedef struct {
    const char* name;
    void (*kernel)(float* out, const float* in, int n, bool right); // or, if there is none,
    void (*host)(float* out, const float* in, bool right);
    int shared;                      // bytes of dynamic shared memory
    const char *plain, *asan, *tsan; // a part of the message; "": wrong results suffice; NULL: may go unnoticed
    const char* setting;             // and with this in the environment, results have to be wrong
    const char* place;               // the function that has the marked lines, if it is another one
} Bug;

#define KERNEL(name) #name, name, NULL
#define HOST(name) #name, NULL, name
#define ALWAYS_IN(text, place) text, text, text, NULL, place
#define ALWAYS(text) ALWAYS_IN(text, NULL)
#define RACE_IN(place) NULL, NULL, "data race", "CUDA_ON_CPU_ORDER", place // also seen as wrong results in some order
#define RACE RACE_IN(NULL)
#define HIDDEN_RACE NULL, NULL, "data race", NULL, NULL
#ifdef __clang__
#define MISALIGNED NULL // to clang, loading a struct is a copy of bytes
#else
#define MISALIGNED "misaligned address"
#endif

// ---- The process that runs one ----------------------------------------------------------------------------------

static std::vector<float> run(const Bug* bug, bool right) {
    std::vector<float> x(N), out(N + 1 + BLOCKS, NAN);
    for (int i = 0; i < N; i++) x[(size_t)i] = 1 + random_uniform(1, 2, (uint64_t)i);
    for (int i = N; i < N + 1 + BLOCKS; i++) out[(size_t)i] = 0;
    float *device_in = device_floats(N), *device_out = device_floats(out.size());
    cuda_check(cudaMemcpy(device_in, x.data(), N * sizeof(float), cudaMemcpyHostToDevice), "cudaMemcpy");
    cuda_check(cudaMemcpy(device_out, out.data(), out.size() * sizeof(float), cudaMemcpyHostToDevice), "cudaMemcpy");
    if (bug->host)
        bug->host(device_out, device_in, right);
    else
        launch(launch_shape(BLOCKS, THREADS, (size_t)bug->shared), bug->kernel, device_out, (const float*)device_in, N,
               right);
    cuda_check(cudaMemcpy(out.data(), device_out, out.size() * sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy");
    cuda_check(cudaFree(device_in), "cudaFree");
    cuda_check(cudaFree(device_out), "cudaFree");
    return out;
}

// The correct kernel, and then the one with the bug, or once more the correct one.
static int compare(const Bug* bug, bool right) {
    alarm(100);
    const std::vector<float> want = run(bug, true), got = run(bug, right);
    for (size_t i = 0; i < want.size(); i++)
        if (!(want[i] == got[i]) && !(want[i] != want[i] && got[i] != got[i])) { // NaN: it has not written it
            printf("wrong results: out[%zu] is %g, not %g\n", i, (double)got[i], (double)want[i]);
            return 3;
        }
    printf("right results\n");
    return 0;
}

// ---- The process that judges ------------------------------------------------------------------------------------

typedef struct {
    bool noticed; // it did not end with status 0
    std::string text;
} Outcome;

static Outcome start(const char* program, const Bug* bug, bool right, const char* setting, const char* value) {
    static char text[1 << 18];
    const Quiet quiet = quiet_begin(true);
    const pid_t child = fork();
    if (child == 0) {
        if (setting) setenv(setting, value, 1);
        setenv("TSAN_OPTIONS", "atexit_sleep_ms=0", 1); // otherwise each process sleeps for a second
        setenv("UBSAN_OPTIONS", "print_stacktrace=1", 1);
        execl("/proc/self/exe", program, bug->name, right ? "right" : "bug", (char*)NULL);
        _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    quiet_end(&quiet, text, sizeof text);
    if (child < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 127)) die("bugs: cannot start itself");
    return {status != 0, text};
}

static const char* bugs_source; // the file with the kernels

// Whether a line of it belongs to a function whose name begins so, and is marked.
static bool is_marked(int line, const char* function) {
    std::ifstream source(bugs_source);
    std::string s;
    bool inside = false, marked = false;
    for (int i = 1; i <= line && std::getline(source, s); i++) {
        if (s.find(std::string(" ") + function) != std::string::npos && (s.find("__") == 0 || s.find("static") == 0))
            inside = true;
        marked = inside && s.find("<-- here") != std::string::npos;
        if (s == "}") inside = false;
    }
    return marked;
}

// The first line of it that a message names; 0 if it names none.
static int line_named(const std::string& text) {
    const char* slash = strrchr(bugs_source, '/');
    const std::string name = std::string(slash ? slash + 1 : bugs_source) + ":";
    const size_t found = text.find(name);
    return found == std::string::npos ? 0 : atoi(text.c_str() + found + name.size());
}

static std::string one_line(const std::string& text, const char* part) { // of a message: the one with `part`
    const size_t found = text.find(part), at = found == std::string::npos ? 0 : found;
    const size_t begin = text.rfind('\n', at) == std::string::npos ? 0 : text.rfind('\n', at) + 1;
    return text.substr(begin, text.find('\n', at) - begin);
}

static void check_bug(const char* program, const Bug* bug) {
#if defined(__SANITIZE_ADDRESS__)
    const char* message = bug->asan;
#elif defined(__SANITIZE_THREAD__)
    const char* message = bug->tsan;
#else
    const char* message = bug->plain;
#endif
    if (message) {
        const Outcome o = start(program, bug, false, NULL, NULL);
        const bool said = o.noticed && o.text.find(*message ? message : "wrong results") != std::string::npos;
        const int line = line_named(o.text);
        const char* place = bug->place ? bug->place : bug->name;
        const bool named = o.text.find(bug->name) != std::string::npos || o.text.find(place) != std::string::npos;
        const bool placed = !*message || (bug->host && !bug->place) || (line ? is_marked(line, place) : named);
        check(said && placed, "%s: %s", bug->name, one_line(o.text, *message ? message : "wrong results").c_str());
        if (!said || !placed) printf("%s\n", o.text.c_str());
    }
    if (bug->setting) { // the sanitizers run no slower in other orders, but not faster, either: one suffices
        Outcome o = {false, ""};
        for (int value = 1; value <= 3 && !o.noticed; value++)
            o = start(program, bug, false, bug->setting, std::to_string(value).c_str());
        check(o.noticed, "%s, %s: %s", bug->name, bug->setting, one_line(o.text, "wrong results").c_str());
    }
}

static void check_right(const char* program, const Bug* bug) {
    static const char* const settings[][2] = {{NULL, NULL},
                                              {"CUDA_ON_CPU_ORDER", "2"},
                                              {"CUDA_ON_CPU_ORDER", "1"},
                                              {"CUDA_ON_CPU_DEFER", "1"},
                                              {"CUDA_ON_CPU_THREADS", "1"}};
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    const int runs = 1; // a process takes a while to start, and the plain build tries the others
#else
    const int runs = sizeof settings / sizeof *settings;
#endif
    int passed = 0;
    for (int i = 0; i < runs; i++) {
        const Outcome o = start(program, bug, true, settings[i][0], settings[i][1]);
        if (!o.noticed)
            passed++;
        else
            printf("%s", o.text.c_str());
    }
    check(passed == runs, "%s: nothing is said of the correct one", bug->name);
}

// No arguments: all. --only TEXT: those whose name contains it. NAME right, NAME bug: runs one, to be judged.
static int bugs_main(int argc, char** argv, const char* source, const Bug* bugs, int count) {
    bugs_source = source;
    const char* only = "";
    if (argc == 3)
        for (int i = 0; i < count; i++)
            if (strcmp(argv[1], bugs[i].name) == 0) return compare(&bugs[i], strcmp(argv[2], "right") == 0);
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--only") == 0) only = argv[i + 1];
    for (int i = 0; i < count; i++) {
        if (!strstr(bugs[i].name, only)) continue;
        check_bug(argv[0], &bugs[i]);
        check_right(argv[0], &bugs[i]);
    }
    return test_end();
}
