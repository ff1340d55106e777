# make              build ./train_gpt and ./plan for this machine, and build/tokenize, make_vocab and make_choices for its data
# make test         run all tests; the last line is "N passed, N failed"
# make test-full    the same as LONG=1 make test: more meshes and sanitizers, launchers with sshd, Slurm and torchrun where they are
# make compare      a step on the device beside the CPU's: forward, loss, every gradient and update, a row each (MODEL=gpt2-124M)
# make equivalence  every layout against one process: the whole product of them, where make test takes a few
# make kernel_faults  more tests of the CUDA kernels; and faults planted in them, each of which has to be seen
# make assembly     registers, occupancy, memory accesses, instructions of the CUDA kernels, and what they predict (KERNEL=word)
# make assembly_check  what their machine code has to be like, for three GPUs, and faults planted in them, each of which has to be seen
# make bench        measure: matrix products, kernels, training step, meshes, schedules; beside peers where there are any
# make plan_faults  faults planted in the plans of collectives, each of which has to be seen
# make site_faults  faults planted in what sites do that do not wait for each other, each of which has to be seen
# make health_faults     faults planted in what looks after the health of a run, each of which has to be seen (10 minutes)
# make text_faults        faults planted in what draws tokens, and in the cache of a text
# make data_faults        faults planted in the reading of token files, the order of sequences and what keeps documents apart
# make datacenter_faults  faults planted in the datacenter planner, each of which has to be seen
# make tokenizer_faults   faults planted in the tokenizer, each of which has to be seen (5 minutes)
# make compare_tokenizers VOCAB="tokenizer.json ..."  16 MB of texts beside tiktoken and tokenizers (pip install them); minutes
# make watch_faults       faults planted in the watchdog and the supervisor, each of which has to be seen
# make planner_faults     faults planted in the planner, each of which has to be seen (10 minutes)
# make evaluation_faults  faults planted in evaluations, each of which has to be seen
# make check_transformers  weights and models exchanged with Hugging Face's library (pip install torch transformers; a minute)
# make pretrained_faults   faults planted in what reads and writes weights of others, each of which has to be seen (2 minutes)
# make torture      runs that are killed 200 times, 500 damaged checkpoints, disks that are full or gone (15 minutes)
# make survival_faults    faults planted in what saves and takes up runs, each of which has to be seen
# make report_faults      faults planted in the page of a run and in the options, each of which has to be seen (3 minutes)
# make network      all-reduces on a network of namespaces, beside the simulator's times (root, Linux; 20 minutes)
# make planner DATA=text.txt  step times that the planner predicts for this machine, beside measured ones (15 minutes)
# make build/roofline  how fast a training step on a GPU can be at all, operation by operation: build/roofline --model gpt2-124M
# make check_precision DATA=text.txt  training in bf16 and fp16 beside float32, on the emulated GPU: 200 steps (10 minutes)
# make pictures     draw the pipeline schedules and collectives: docs/images/*.svg
# make gpu_check    on a machine with a GPU: every kernel, the trainer and the meshes on it, then measurements
# make install PREFIX=/usr/local  the programs, and what completes their options in bash and fish; DESTDIR= goes before it
# make help         this list, and what was found
#
# make DEVICE=cpu           for the processor's cores    make DEVICE=cuda          for NVIDIA GPUs (chosen where one is found)
# make DEVICE=emulated      the GPU's kernels, on the processor: slow, for tests and debuggers
# make PRECISION=bf16       type of parameters and activations on a GPU: bf16, fp16 or fp32
# make GPU_ARCH="80 90"     GPUs to make code for; native: the one that is here
# make CC=clang             another compiler             make ARCH=x86-64-v3      code for another machine than this one
# make BLAS=openblas        OpenBLAS instead of our own  make DEBUG=1             -O1 -g, AddressSanitizer and UBSan
# make MPICC=mpicc.mpich    another MPI                  make MPI=no              without MPI: one process

.DEFAULT_GOAL := all
ifeq ($(origin CC),default)
CC := $(firstword $(foreach c,gcc clang cc,$(if $(shell command -v $(c)),$(c))))
endif
ARCH ?= native
BLAS ?= own
BUILD ?= build
MPI ?= yes
MPICC ?= mpicc
# The launcher that belongs to it, mpirun.mpich for mpicc.mpich; say MPIRUN=... where the names do not follow this.
MPIRUN ?= $(subst mpicc,mpirun,$(MPICC))
NVCC ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
PRECISION ?= bf16

# --------------------------------------------------------------------------------------------------------------------
# What is there, and what that means

works = $(shell echo 'int main(void){return 0;}' | $(CC) -x c $(1) - -o /dev/null 2>/dev/null && echo yes)

ifeq ($(CC),)
$(error no C compiler found: install gcc or clang (scripts/quickstart.sh does))
endif
ifneq ($(call works),yes)
$(error $(CC) cannot compile a program: install a C compiler and the C library's headers (scripts/quickstart.sh does))
endif
found_cc := $(CC): $(shell $(CC) --version | head -n 1)

ARCH_FLAG := $(if $(filter yes,$(call works,-march=$(ARCH))),-march=$(ARCH))
OPENMP := $(if $(filter yes,$(call works,-fopenmp)),-fopenmp)
found_openmp := $(if $(OPENMP),found: all cores are used,NOT found: one core is used (for gcc it is in libgomp, for clang in libomp-dev))

# A GPU: what nvcc and the driver say. The device is the GPU where both are there, unless DEVICE says otherwise.
gpu_name := $(if $(NVCC),$(shell nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1))
# make test tests the CPU's trainer everywhere; a GPU is for make gpu_check.
DEVICE ?= $(if $(filter test build_tests,$(MAKECMDGOALS)),cpu,$(if $(gpu_name),cuda,cpu))
ifeq ($(filter cpu cuda emulated,$(DEVICE)),)
$(error DEVICE=$(DEVICE) is not known: cpu, cuda or emulated)
endif
ifeq ($(filter bf16 fp16 fp32,$(PRECISION)),)
$(error PRECISION=$(PRECISION) is not known: bf16, fp16 or fp32)
endif
ifeq ($(DEVICE)$(NVCC),cuda)
$(error DEVICE=cuda needs nvcc: install the CUDA Toolkit, or put its bin folder on PATH)
endif
GPU_ARCH ?= $(if $(gpu_name),native,80 90 100)
cuda_home := $(patsubst %/bin/nvcc,%,$(NVCC))
nccl_header := $(firstword $(wildcard /usr/include/nccl.h $(cuda_home)/include/nccl.h))
NCCL_FLAGS := $(if $(nccl_header),-DUSE_NCCL)
NCCL_LIBS := $(if $(nccl_header),-lnccl)
found_nvcc := $(if $(NVCC),$(NVCC): release $(shell $(NVCC) --version | sed -n 's/.*release \([0-9.]*\).*/\1/p'),not found)
found_gpu := $(or $(gpu_name),not found)
found_nccl := $(if $(nccl_header),$(nccl_header),not found: GPUs of several ranks exchange through the host)
device_cpu := the processor's cores, fp32
device_cuda := GPUs (sm $(GPU_ARCH)), $(PRECISION)
device_emulated := a GPU emulated on the processor, $(PRECISION)

ifeq ($(BLAS),openblas)
BLAS_FLAGS := -DUSE_OPENBLAS
BLAS_LIBS := -lopenblas
ifneq ($(shell echo 'int main(void){return 0;}' | $(CC) -x c - -o /dev/null -lopenblas 2>/dev/null && echo yes),yes)
$(error BLAS=openblas: the library is not there: install libopenblas-dev, or leave BLAS away)
endif
found_blas := OpenBLAS, as asked for
else ifeq ($(BLAS),own)
found_blas := our own (kernels/matmul.h)
else
$(error BLAS=$(BLAS) is not known: own or openblas)
endif

# MPI: its compiler wrapper prints the command that it would run; the flags in there are what our own compiler needs.
ifeq ($(MPI),yes)
mpi_command := $(shell $(MPICC) -show 2>/dev/null)
MPI_FLAGS := -DUSE_MPI $(filter -I% -D%,$(mpi_command))
MPI_LIBS := $(filter -L% -l% -Wl% -pthread,$(mpi_command))
mpi_works := $(shell echo 'int main(void){return MPI_Init(0,0);}' | \
    $(CC) -include mpi.h $(MPI_FLAGS) -x c - -o /dev/null $(MPI_LIBS) 2>/dev/null && echo yes)
else ifneq ($(MPI),no)
$(error MPI=$(MPI) is not known: yes (where it is found) or no)
endif

ifeq ($(mpi_works),yes)
mpi_name := $(shell echo 'OMPI_MAJOR_VERSION OMPI_MINOR_VERSION OMPI_RELEASE_VERSION MPICH_VERSION' | \
    $(CC) -E -P -include mpi.h $(MPI_FLAGS) -x c - 2>/dev/null | \
    sed -n 's/^\([0-9]*\) \([0-9]*\) \([0-9]*\) MPICH_VERSION/Open MPI \1.\2.\3/p; s/^OMPI_.* "\(.*\)"/MPICH \1/p')
found_mpi := $(or $(mpi_name),$(MPICC)): as many ranks as mpirun starts
else
MPI_FLAGS :=
MPI_LIBS :=
MPIRUN :=
ifeq ($(MPI),no)
found_mpi := left away (MPI=no): one process only
else ifeq ($(mpi_command),)
found_mpi := NOT found: one process only (libopenmpi-dev, or scripts/quickstart.sh)
else
found_mpi := $(MPICC) is there, but $(CC) cannot build a program with its flags: one process only
endif
endif

define report
compiler    $(found_cc) $(ARCH_FLAG)
OpenMP      $(found_openmp)
matrices    $(found_blas)
MPI         $(found_mpi)
nvcc        $(found_nvcc)
GPU         $(found_gpu)
NCCL        $(found_nccl)
built for   $(device_$(DEVICE))
endef

# --------------------------------------------------------------------------------------------------------------------
# The programs

FAST := -O3 $(ARCH_FLAG) -fno-math-errno -fno-trapping-math
SANITIZED := -O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all $(ARCH_FLAG)
ifeq ($(DEBUG),1)
FAST := $(subst -g1,-g,$(SANITIZED))
endif
WARNINGS := -Wall -Wextra
COMPILE = $(CC) -std=gnu11 $(WARNINGS) $(BLAS_FLAGS) $(MPI_FLAGS) $(OPENMP) -MMD -MP $(CFLAGS)
LIBS := $(BLAS_LIBS) $(MPI_LIBS) -lm -ldl

# The same sources as C++, with the CUDA kernels on the processor; and by nvcc. $(1): the precision. CUDA's threadIdx is unsigned,
# and every kernel compares it with an int; gcc takes the address of memory for its contents.
CXX := $(if $(findstring clang,$(CC)),clang++,g++)
precision_flag = -DUSE_CUDA -DPRECISION_$(if $(filter bf16,$(1)),BF16,$(if $(filter fp16,$(1)),FP16,FP32))
EMULATE = $(CXX) -std=gnu++17 $(WARNINGS) -Wno-unknown-pragmas -Wno-sign-compare $(if $(findstring clang,$(CXX)),,-Wno-maybe-uninitialized) $(MPI_FLAGS) $(precision_flag) $(OPENMP) -pthread -MMD -MP -x c++
EMULATED_FAST := -O2 $(ARCH_FLAG)
EMULATED_LIBS := $(MPI_LIBS) -lm -ldl
# Hopper, 90, is 90a: wgmma and its like are in that target only, whose code runs on compute capability 9.0 and nowhere else; any
# other GPU needs its own in the list. native: what the driver says; if it says nothing, nvcc asks it again.
native_arch = $(sort $(subst .,,$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null)))
gpu_archs := $(patsubst 90,90a,$(patsubst native,$(or $(native_arch),native),$(GPU_ARCH)))
gencode = $(if $(filter native,$(1)),-arch=native,$(foreach a,$(1),-gencode=arch=compute_$(a),code=sm_$(a)))
NVCC_ARCH := $(call gencode,$(gpu_archs))
comma := ,
NVCC_HOST := -Wall,-Wextra$(if $(OPENMP),$(comma)-fopenmp,$(comma)-Wno-unknown-pragmas)
NVCC_COMPILE = $(NVCC) -std=c++17 -O3 $(NVCC_FLAGS) $(NVCC_ARCH) -Xcompiler $(NVCC_HOST) $(MPI_FLAGS) $(NCCL_FLAGS) $(precision_flag) -x cu
NVCC_LIBS = $(filter-out -Wl% -pthread,$(MPI_LIBS)) $(NCCL_LIBS) -lcublasLt -lm

TESTS := $(patsubst dev/test/unit/%.c,%,$(wildcard dev/test/unit/test_*.c)) test_gpt
# Of the whole trainer under the sanitizers, test_async_dp and the meshes' tests are enough; LONG=1: all of it.
SANITIZED_TESTS := $(if $(LONG),$(TESTS),$(filter-out test_equivalence test_gpt,$(TESTS)))
FUZZERS := $(patsubst dev/test/fuzz/%.c,%,$(wildcard dev/test/fuzz/fuzz_*.c))
BENCHES := $(patsubst dev/bench/%.c,%,$(wildcard dev/bench/bench_*.c))

DATA_TOOLS := tokenize make_vocab make_choices

all: report train_gpt plan $(DATA_TOOLS:%=$(BUILD)/%)
	@echo "$(run_line)"

# The line that trains on this machine, as this user: a rank for each GPU; without GPUs two, which share the cores.
gpus = $(or $(shell nvidia-smi -L 2>/dev/null | wc -l),0)
ranks = $(if $(filter cuda,$(DEVICE)),$(firstword $(foreach n,16 8 4 2,$(shell [ $(gpus) -lt $(n) ] || echo $(n))) 1),2)
launcher := $(if $(MPIRUN),$(shell command -v $(MPIRUN)))
launch = $(if $(and $(launcher),$(filter-out 1,$(ranks))),$(if $(filter mpirun,$(MPIRUN)),,MPIRUN=$(MPIRUN) )scripts/mpirun.sh -np $(ranks) ./train_gpt,./train_gpt)
run_line = run: $(launch)$(if $(launcher),, (one process: there is no $(or $(MPIRUN),MPI)))
run_line:
	@echo "$(run_line)"

report:
	$(info $(report))
	@:

all_flags = $(COMPILE) $(FAST) $(SANITIZED) $(EMULATED_FAST) $(ASAN) $(TSAN) $(LIBS) $(DEVICE) $(PRECISION) $(NVCC_ARCH) $(NCCL_FLAGS)
# Changes when the flags do, so that everything is compiled again.
$(BUILD)/flags: always
	@mkdir -p $(BUILD)/sanitized
	@echo '$(all_flags)' | cmp -s - $@ || echo '$(all_flags)' > $@

# What --version prints. Only the programs that print it are made again when it changes.
version := $(or $(if $(wildcard .git),$(shell git describe --always --dirty --tags 2>/dev/null | tr -cd 'A-Za-z0-9._+-')),unknown)
VERSION_FLAG := -DVERSION='"$(version)"'
$(BUILD)/version: always
	@mkdir -p $(BUILD)
	@echo '$(version)' | cmp -s - $@ || echo '$(version)' > $@

# $(call build_cpu|build_cuda|build_emulated,PROGRAM)
build_cpu = $(COMPILE) $(FAST) $(VERSION_FLAG) -MF $(BUILD)/$(1).d -MT $(1) -x c $(1).cu -o $(1) $(LIBS)
build_cuda = $(call NVCC_COMPILE,$(PRECISION)) $(VERSION_FLAG) -MMD -MP -MF $(BUILD)/$(1).d -MT $(1) $(1).cu -o $(1) $(NVCC_LIBS)
build_emulated = $(call EMULATE,$(PRECISION)) $(EMULATED_FAST) $(VERSION_FLAG) -MF $(BUILD)/$(1).d -MT $(1) $(1).cu -o $(1) $(EMULATED_LIBS)
train_gpt: train_gpt.cu $(BUILD)/flags $(BUILD)/version
	$(call build_$(DEVICE),train_gpt)

# The whole model's tests for the device. The CPU's is $(BUILD)/test_gpt, too.
test_gpt: $(BUILD)/$(if $(filter cpu,$(DEVICE)),test_gpt,$(DEVICE)/$(PRECISION)/test_gpt)
	cp $< $@

# The planner, which needs no device.
plan: planner/plan.c $(BUILD)/flags $(BUILD)/version
	$(COMPILE) $(FAST) $(VERSION_FLAG) -MF $(BUILD)/plan.d -MT plan $< -o $@ $(LIBS)

$(BUILD)/sanitized/train_gpt: train_gpt.cu $(BUILD)/flags
	$(COMPILE) $(SANITIZED) -x c $< -o $@ $(LIBS)

# The GPU's side, in every precision: on the emulator, that under the sanitizers (AddressSanitizer with UBSan; ThreadSanitizer,
# whose threads are those of CUDA, so OpenMP's stay out), and by nvcc. $(BUILD)/WHERE/PRECISION/PROGRAM. -O0: gcc takes three
# times as long to optimise what AddressSanitizer has added as the tests need to run without that.
CUDA_TESTS := $(patsubst dev/test/cuda/%.cu,%,$(wildcard dev/test/cuda/cuda_*.cu))
ASAN := -O0 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all $(ARCH_FLAG)
TSAN := -O1 -g1 -fsanitize=thread $(ARCH_FLAG)
define build_gpu
@mkdir -p $(@D)
$(1) -MF $@.d -MT $@ $< -o $@
endef
define gpu_rules
$(BUILD)/emulated/$(1)/%: %.cu $(BUILD)/flags
	$$(call build_gpu,$$(call EMULATE,$(1)) $$(EMULATED_FAST)) $$(EMULATED_LIBS)
$(BUILD)/emulated/$(1)/%: %.c $(BUILD)/flags
	$$(call build_gpu,$$(call EMULATE,$(1)) $$(EMULATED_FAST)) $$(EMULATED_LIBS)
$(BUILD)/asan/$(1)/%: %.cu $(BUILD)/flags
	$$(call build_gpu,$$(call EMULATE,$(1)) $$(ASAN)) $$(EMULATED_LIBS)
$(BUILD)/tsan/$(1)/%: %.cu $(BUILD)/flags
	$$(call build_gpu,$$(filter-out -fopenmp,$$(call EMULATE,$(1))) $$(TSAN)) $$(EMULATED_LIBS)
$(BUILD)/cuda/$(1)/%: %.cu $(BUILD)/flags
	$$(call build_gpu,$$(call NVCC_COMPILE,$(1)) -MMD -MP) $$(NVCC_LIBS)
$(BUILD)/cuda/$(1)/%: %.c $(BUILD)/flags
	$$(call build_gpu,$$(call NVCC_COMPILE,$(1)) -MMD -MP) $$(NVCC_LIBS)
endef
$(foreach p,bf16 fp16 fp32,$(eval $(call gpu_rules,$(p))))

# cuBLASLt's and NCCL's calls, of which dev/test/fake has imitations on the processor.
define fake_rules
$(BUILD)/emulated/$(1)/cuda_matmul_fake: cuda_matmul.cu $(BUILD)/flags
	$$(call build_gpu,$$(call EMULATE,$(1)) -DFAKE_CUBLASLT $$(EMULATED_FAST)) $$(EMULATED_LIBS)
$(BUILD)/emulated/$(1)/train_gpt_nccl: train_gpt.cu $(BUILD)/flags
	$$(call build_gpu,$$(call EMULATE,$(1)) -DUSE_NCCL -Idev/test/fake $$(EMULATED_FAST)) $$(EMULATED_LIBS)
$(BUILD)/asan/$(1)/cuda_matmul_fake: cuda_matmul.cu $(BUILD)/flags
	$$(call build_gpu,$$(call EMULATE,$(1)) -DFAKE_CUBLASLT $$(ASAN)) $$(EMULATED_LIBS)
endef
$(foreach p,bf16 fp16 fp32,$(eval $(call fake_rules,$(p))))

# The kernels' machine code for GPUs that need not be here; and how they are launched, which takes longer to optimise than to run.
define assembly_rules
$(BUILD)/assembly/$(1)/sm_%.cubin: train_gpt.cu $(BUILD)/flags
	@mkdir -p $$(@D)
	$(NVCC) -std=c++17 -O3 $(NVCC_FLAGS) -gencode=arch=compute_$$*,code=sm_$$* $(precision_flag) -x cu -cubin -MMD -MP -MF $$@.d -MT $$@ $$< -o $$@
$(BUILD)/emulated/$(1)/launches: EMULATED_FAST := -O0
endef
$(foreach p,bf16 fp16 fp32,$(eval $(call assembly_rules,$(p))))
assembly_of = $(foreach a,80 90a 100,$(BUILD)/assembly/$(1)/sm_$(a).cubin)

# What make test runs of this: every kernel in every precision, with sanitizers in one of them; and the whole trainer.
ifneq ($(shell command -v $(CXX)),)
KERNEL_TESTS := $(filter-out cuda_emulator cuda_bugs cuda_hopper cuda_hopper_bugs cuda_comm,$(CUDA_TESTS))
GPU_TESTS := $(foreach p,bf16 fp16 fp32,$(KERNEL_TESTS:%=emulated/$(p)/%)) emulated/bf16/cuda_matmul_fake \
    $(foreach s,asan tsan,$(KERNEL_TESTS:%=$(s)/bf16/%)) $(foreach s,emulated asan,$(s)/bf16/cuda_emulator $(s)/bf16/cuda_bugs $(s)/bf16/cuda_hopper_bugs) \
    $(foreach s,emulated asan tsan,$(s)/bf16/cuda_hopper)
GPU_TESTS_MORE := tsan/bf16/cuda_emulator tsan/bf16/cuda_bugs tsan/bf16/cuda_hopper_bugs $(foreach p,fp16 fp32,emulated/$(p)/cuda_matmul_fake) asan/bf16/cuda_matmul_fake \
    $(foreach s,asan tsan,$(s)/fp32/cuda_attention) $(foreach p,bf16 fp16 fp32,emulated/$(p)/test_gpt) $(foreach p,bf16 fp16,emulated/$(p)/test_health) emulated/bf16/test_evaluate
GPU_TRAINERS := $(foreach p,fp32 fp16,emulated/$(p)/train_gpt) emulated/bf16/train_gpt_nccl emulated/bf16/compare asan/bf16/train_gpt $(if $(LONG),emulated/bf16/train_gpt)
# Takes longer to optimise than to run, but for all of its tests; compare is one of them.
$(foreach p,bf16 fp16 fp32,$(BUILD)/emulated/$(p)/test_gpt): EMULATED_FAST := $(subst -O2,-O1,$(EMULATED_FAST))
$(BUILD)/emulated/bf16/compare: test_gpt.c $(BUILD)/flags
	$(call build_gpu,$(call EMULATE,bf16) $(subst -O2,-O0,$(EMULATED_FAST))) $(EMULATED_LIBS)
$(BUILD)/emulated/fp16/train_gpt: EMULATED_FAST := $(subst -O2,-O1,$(EMULATED_FAST)) # runs little
GPU_TESTS_MORE += emulated/bf16/bench_gpu
endif

vpath %.c dev/test/unit dev/test/fuzz dev/bench dev/plot planner dev/data
vpath %.cu dev/test/cuda dev/bench
$(BUILD)/%: %.c $(BUILD)/flags
	$(COMPILE) $(FAST) $< -o $@ $(LIBS)

$(BUILD)/sanitized/%: %.c $(BUILD)/flags
	$(COMPILE) $(SANITIZED) $< -o $@ $(LIBS)

# What takes longer to optimise than to run; and what takes longer to run than to optimise.
$(addprefix $(BUILD)/sanitized/,train_gpt plan test_async_dp test_health test_evaluate test_planner_measured test_planner_search test_comm_planned test_comm_progress_thread \
    test_comm test_layout test_async_schedule test_safetensors test_trace fuzz_readers): SANITIZED := $(subst -O1,-O0,$(SANITIZED))
$(addprefix $(BUILD)/sanitized/,test_matmul test_kernels test_attention): SANITIZED := $(subst -O1,-O2,$(SANITIZED))
$(addprefix $(BUILD)/,test_async_dp test_health test_evaluate test_planner_measured test_planner_search): FAST := $(subst -O3,-O1,$(FAST))

build_tests: train_gpt $(BUILD)/roofline $(BUILD)/sanitized/plan $(DATA_TOOLS:%=$(BUILD)/sanitized/%) $(BUILD)/encode_file $(TESTS:%=$(BUILD)/%) $(SANITIZED_TESTS:%=$(BUILD)/sanitized/%) $(FUZZERS:%=$(BUILD)/sanitized/%) $(BUILD)/sanitized/train_gpt \
    $(GPU_TESTS:%=$(BUILD)/%) $(GPU_TRAINERS:%=$(BUILD)/%)

# Beside Hugging Face's library only where it is.
test: report build_tests
	@! dev/test/system/check_transformers.py --installed || $(MAKE) -s --no-print-directory $(BUILD)/logits
	@CC="$(CC)" BUILD="$(BUILD)" TESTS="$(TESTS)" SANITIZED_TESTS="$(SANITIZED_TESTS)" FUZZERS="$(FUZZERS)" MPIRUN="$(MPIRUN)" MPI_FLAGS="$(MPI_FLAGS)" \
	    GPU_TESTS="$(GPU_TESTS)" NVCC="$(NVCC)" dev/test/run.sh

# The device's step beside the same one on the CPU. Without a device: the CPU's beside PyTorch's.
ifeq ($(DEVICE),cpu)
compare: report test_gpt
	@echo "DEVICE=cpu is the reference itself: here it is beside PyTorch's float64. A GPU: DEVICE=cuda; without one: DEVICE=emulated"
	@./test_gpt --compare dev/test/reference/gpt2_tied.safetensors dev/test/reference/llama_grouped.safetensors
else
compared := $(or $(MODEL),$(if $(filter cuda,$(DEVICE)),gpt2-124M llama-130M,gpt2 llama))
compare: report test_gpt $(BUILD)/test_gpt
	@mkdir -p $(BUILD)/compare; trap 'rm -r $(BUILD)/compare' EXIT; \
	for model in $(compared); do $(BUILD)/test_gpt --write $(BUILD)/compare/$$model $$model || exit; done; \
	./test_gpt --compare $(addprefix $(BUILD)/compare/,$(compared))
endif

test-full:
	@LONG=1 $(MAKE) --no-print-directory test

equivalence: report $(BUILD)/test_equivalence
	@BUILD="$(BUILD)" MPIRUN="$(MPIRUN)" dev/test/system/equivalence.sh

# What make test leaves out of the CUDA kernels' tests for want of time; then the planted faults.
kernel_faults: $(GPU_TESTS_MORE:%=$(BUILD)/%)
	@mkdir -p $(BUILD)/log; for test in $(GPU_TESTS_MORE); do \
	    case $$test in asan/*|tsan/*) short=--short ;; */bench_gpu) short=--tiny ;; *) short= ;; esac; \
	    ASAN_OPTIONS=detect_leaks=0 $(BUILD)/$$test $$short >$(BUILD)/log/more 2>&1 && ok=ok || ok=FAIL; \
	    echo "$$ok    $$test: $$(tail -n 1 $(BUILD)/log/more)"; [ $$ok = ok ] || exit 1; done
	@python3 dev/test/mutants/kernels.py

ifeq ($(NVCC),)
assembly assembly_check:
	@echo "make $@ needs nvcc, of the CUDA Toolkit; a GPU it does not need" >&2; exit 1
else
# KERNEL=: those with this word in their names
assembly: $(call assembly_of,$(PRECISION)) $(BUILD)/emulated/$(PRECISION)/launches
	@dev/bench/assembly.py --launches $(BUILD)/emulated/$(PRECISION)/launches $(if $(KERNEL),--all --only "$(KERNEL)") $(call assembly_of,$(PRECISION))

assembly_check: $(call assembly_of,bf16) $(BUILD)/emulated/bf16/launches
	@dev/test/system/check_assembly.py --faults --launches $(BUILD)/emulated/bf16/launches $(call assembly_of,bf16)
endif

plan_faults:
	@python3 dev/test/mutants/plans.py

data_faults:
	@python3 dev/test/mutants/data.py
	@python3 dev/test/mutants/documents.py

site_faults:
	@OMPI_MCA_mpi_yield_when_idle=1 python3 dev/test/mutants/async_dp.py

health_faults:
	@OMPI_MCA_mpi_yield_when_idle=1 python3 dev/test/mutants/health.py

datacenter_faults:
	@python3 dev/test/mutants/datacenter.py

tokenizer_faults:
	@python3 dev/test/mutants/tokenizer.py

text_faults:
	@python3 dev/test/mutants/generate.py

compare_tokenizers: $(BUILD)/encode_file
	@python3 dev/test/system/compare_tokenizers.py $(BUILD)/encode_file $(VOCAB)

planner_faults:
	@python3 dev/test/mutants/planner.py

check_transformers: train_gpt $(BUILD)/logits
	@BUILD="$(BUILD)" dev/test/system/check_transformers.py

pretrained_faults:
	@python3 dev/test/mutants/pretrained.py

# KILLS=, BROKEN=, MINUTES=, SEED=: other numbers than torture.py's own.
torture: report train_gpt
	@MPIRUN="$(MPIRUN)" python3 dev/test/system/torture.py $(KILLS:%=--kills %) $(BROKEN:%=--broken %) $(MINUTES:%=--minutes %) $(SEED:%=--seed %)

evaluation_faults:
	@OMPI_MCA_mpi_yield_when_idle=1 python3 dev/test/mutants/evaluate.py

survival_faults:
	@python3 dev/test/mutants/survival.py

watch_faults:
	@python3 dev/test/mutants/watch.py
report_faults:
	@python3 dev/test/mutants/report.py

network: report build_benches
	@dev/experiments/network.py --plot docs/images/network.svg

gpu_check:
	@dev/test/gpu_check.sh

check_precision: $(foreach p,fp32 bf16 fp16,$(BUILD)/emulated/$(p)/train_gpt)
	@dev/test/system/check_precision.py --build $(BUILD)/emulated $(DATA)

planner: report build_benches
	@BUILD="$(BUILD)" dev/bench/planner.py --data $(DATA) --rounds $(or $(ROUNDS),3)

pictures: $(BUILD)/draw_schedule $(BUILD)/draw_collective plan
	@dev/plot/pictures.sh $(BUILD)/draw_schedule $(BUILD)/draw_collective ./plan

build_benches: train_gpt $(BENCHES:%=$(BUILD)/%) $(BUILD)/draw_schedule $(BUILD)/draw_collective \
    $(BUILD)/network_links $(BUILD)/simulate $(BUILD)/calibrate plan

bench: report build_benches
	@BUILD="$(BUILD)" dev/bench/run.sh

help: report
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile

# After make, also as another user (sudo make install): what is there is copied as it is, and only what is missing is made.
PREFIX ?= /usr/local
programs := train_gpt plan $(DATA_TOOLS:%=$(BUILD)/%)
bash_completion = $(DESTDIR)$(PREFIX)/share/bash-completion/completions
fish_completion = $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
install: $(filter-out $(wildcard $(programs)),$(programs))
	install -d "$(DESTDIR)$(PREFIX)/bin" "$(bash_completion)" "$(fish_completion)"
	install $(programs) "$(DESTDIR)$(PREFIX)/bin"
	for name in train_gpt plan; do \
	    ./$$name --completion bash >"$(bash_completion)/$$name" && ./$$name --completion fish >"$(fish_completion)/$$name.fish" || exit 1; \
	done

clean:
	rm -rf $(BUILD) train_gpt test_gpt plan

always:
.PHONY: always all assembly assembly_check compare report test test-full equivalence check_precision check_transformers compare_tokenizers torture network gpu_check bench planner pictures help run_line install clean build_tests build_benches \
    data_faults datacenter_faults evaluation_faults health_faults kernel_faults plan_faults planner_faults pretrained_faults report_faults site_faults survival_faults text_faults tokenizer_faults watch_faults
-include $(BUILD)/*.d $(BUILD)/sanitized/*.d $(wildcard $(BUILD)/*/*/*.d)
