# make            build ./train_gpt, ./plan and the build/tokenize for this machine
# make train_gpt  the trainer alone
# make quick      tests of what differs from origin/main, and one mesh (a minute)
# make test       the tests to run before a commit (8 minutes on two cores); the last line is "N passed, N failed"
# make test-full  all tests: more meshes, sanitizers, compilers, precisions, launchers (an hour)
# make compare    one step on the device beside the CPU's, a row for every tensor (MODEL=gpt2-124M)
# make gpu_check  on a machine with a GPU: every kernel, the trainer and meshes on it, then measurements
# make bench      measure matrix products, kernels, training steps, meshes and schedules
# make install    the programs, and the files of ./plan, to PREFIX=/usr/local (DESTDIR= goes before it)
# make clean      remove what was built
# make help       this list, and what was found; make help-dev: what developers use (dev/dev.mk)
#
# make DEVICE=cpu         the processor's cores       DEVICE=cuda       NVIDIA GPUs (the default where one is found)
#                         DEVICE=emulated   the GPU's kernels on the processor: slow, for tests and debuggers
# make PRECISION=bf16     parameters and activations: bf16 or fp32. The default is bf16 on GPUs, and
#                         on processors that multiply it faster (AMX, AVX-512 BF16: "built for" below), elsewhere fp32
# make GPU_ARCH="80 90"   GPUs to make code for; native: the one of this machine
# make CC=clang           another compiler            ARCH=x86-64-v3    code for another processor than this one
# make V=1                print the commands          DEBUG=1           -O1 -g, AddressSanitizer and UBSan
# make MPICC=mpicc.mpich  another MPI                 MPI=no            without MPI: one process

.DEFAULT_GOAL := all
ifeq ($(origin CC),default)
CC := $(firstword $(foreach c,gcc clang cc,$(if $(shell command -v $(c)),$(c))))
endif
ARCH ?= native
BUILD ?= build
MPI ?= yes
MPICC ?= mpicc
# The launcher of that MPI: mpirun.mpich for mpicc.mpich. Set MPIRUN where the names do not follow this.
MPIRUN ?= $(subst mpicc,mpirun,$(MPICC))
NVCC ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
comma := ,

# ---- what this machine has
one_of = $(if $(filter $(2),$($(1))),,$(error $(1)=$($(1)) is not known: $(2)))
works = $(shell echo 'int main(void){return 0;}' | $(CC) -x c $(1) - -o /dev/null $(2) 2>/dev/null && echo yes)
$(if $(call works),,$(error $(or $(CC),CC=) does not work: install gcc or clang (scripts/quickstart.sh)))
ARCH_FLAG := $(if $(call works,-march=$(ARCH)),-march=$(ARCH))
OPENMP := $(if $(call works,-fopenmp),-fopenmp)

# DEVICE is cuda where nvcc and a GPU are found. The tests are those of the CPU's trainer (a GPU's: make gpu_check).
gpu_name := $(if $(NVCC),$(shell nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1))
DEVICE ?= $(if $(filter quick test% build_tests book docs-check,$(MAKECMDGOALS)),cpu,$(if $(gpu_name),cuda,cpu))
$(call one_of,DEVICE,cpu cuda emulated)$(call one_of,MPI,yes no)
$(if $(filter cuda,$(DEVICE)$(NVCC)),$(error DEVICE=cuda needs nvcc: install the CUDA Toolkit, or add its bin to PATH))
GPU_ARCH ?= $(if $(gpu_name),native,$(nvcc_archs))
gpu_kind = $(if $(filter cuda,$(DEVICE)),GPUs (sm $(GPU_ARCH)),a GPU emulated on the processor)
built_for = $(strip $(if $(filter cpu,$(DEVICE)),the processor's cores,$(gpu_kind))$(comma) $(PRECISION) $(cpu_how))

# mpicc -show prints the command that it would run; the flags of that command are passed to CC.
mpi_command := $(if $(filter yes,$(MPI)),$(shell $(MPICC) -show 2>/dev/null))
MPI_FLAGS := $(if $(filter yes,$(MPI)),-DUSE_MPI $(filter -I% -D%,$(mpi_command)))
MPI_LIBS := $(filter -L% -l% -Wl% -pthread,$(mpi_command))
ifeq ($(if $(mpi_command),$(call works,-include mpi.h $(MPI_FLAGS),$(MPI_LIBS))),yes)
mpi_name := $(shell echo 'OMPI_MAJOR_VERSION OMPI_MINOR_VERSION OMPI_RELEASE_VERSION MPICH_VERSION' | \
    $(CC) -E -P -include mpi.h $(MPI_FLAGS) -x c - 2>/dev/null | \
    sed -n 's/^\([0-9]*\) \([0-9]*\) \([0-9]*\) MPICH_VERSION/Open MPI \1.\2.\3/p; s/^OMPI_.* "\(.*\)"/MPICH \1/p')
found_mpi := $(or $(mpi_name),$(MPICC)): as many ranks as mpirun starts
else
found_mpi := $(if $(mpi_command),$(MPICC) is there$(comma) but $(CC) cannot build with its flags,$(if \
    $(filter no,$(MPI)),dropped (MPI=no),NOT found (libopenmpi-dev, or scripts/quickstart.sh))): one process only
MPI_FLAGS :=
MPI_LIBS :=
MPIRUN :=
endif

define report
compiler    $(CC): $(shell $(CC) --version | head -n 1) $(ARCH_FLAG)
OpenMP      $(if $(OPENMP),all cores are used,NOT found: one core is used (gcc: libgomp; clang: libomp-dev))
MPI         $(found_mpi)
nvcc        $(if $(NVCC),$(NVCC): $(shell $(NVCC) --version | grep -o 'release [0-9.]*'),not found)
GPU         $(or $(gpu_name),not found)
cuBLASLt    $(or $(cublaslt),not found: DEVICE=cuda needs it)
NCCL        $(or $(nccl),not found: GPUs of several ranks exchange through the host)
built for   $(built_for)
endef

# ---- the programs
FAST := -O3 $(ARCH_FLAG) -fno-math-errno -fno-trapping-math
# Without pointer-overflow, a fifth of the time to compile: a pointer that wraps around is seen where it is read.
sanitizers := -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize=pointer-overflow \
    -fno-sanitize-recover=all $(ARCH_FLAG)
SANITIZED := -O1 $(sanitizers)
ifeq ($(DEBUG),1)
FAST := $(subst -g1,-g,$(SANITIZED))
endif
COMPILE = $(CC) -std=gnu11 -Wall -Wextra -Werror=missing-field-initializers $(MPI_FLAGS) $(OPENMP) -MMD -MP $(CFLAGS)
LIBS := $(MPI_LIBS) -lm -ldl

programs := train_gpt plan $(BUILD)/tokenize
all: report $(programs)
	@echo "$(run_line)"

# The command that trains on this machine: a rank for each GPU; without GPUs two ranks, which share the cores.
gpus = $(or $(shell nvidia-smi -L 2>/dev/null | wc -l),0)
ranks = $(if $(filter cuda,$(DEVICE)),$(firstword $(foreach n,16 8 4 2,$(shell [ $(gpus) -lt $(n) ] || echo $(n))) 1),2)
launcher := $(if $(MPIRUN),$(shell command -v $(MPIRUN)))
mpirun_line = $(if $(filter mpirun,$(MPIRUN)),,MPIRUN=$(MPIRUN) )scripts/mpirun.sh -np $(ranks) ./train_gpt
run_line = run: $(if $(and $(launcher),$(filter-out 1,$(ranks))),$(mpirun_line),./train_gpt)$(if \
    $(launcher),, (one process: there is no $(or $(MPIRUN),MPI)))
run_line:
	@echo "$(run_line)"

# Everything is compiled again when the flags change; what has a version, or the precision that make chose, with these.
git_version = $(shell git describe --always --dirty --tags 2>/dev/null | tr -cd 'A-Za-z0-9._+-')
version := $(or $(if $(wildcard .git),$(git_version)),unknown)
VERSION_FLAG := -DVERSION='"$(version)"'
include dev/dev.mk
kept_flags := $(COMPILE) $(FAST) $(SANITIZED) $(DEV_FLAGS) $(LIBS) $(NVCC_ARCH) $(CUDA_LIBS)
kept_precision := $(DEVICE) $(PRECISION)
kept_version := $(version)
$(BUILD)/flags $(BUILD)/precision $(BUILD)/version: always
	@mkdir -p $(BUILD)/sanitized
	@echo '$(kept_$(@F))' | cmp -s - $@ || echo '$(kept_$(@F))' > $@

# What is compiled, in place of the compiler's long line; nothing with -s.
say = $(if $(V)$(findstring s,$(firstword -$(MAKEFLAGS))),,@echo "compile     $@$(more)"; )
train_gpt: more = : half a minute or more; V=1 prints the commands
build_cpu = $(COMPILE) $(FAST) $(bf16_flag) $(VERSION_FLAG) -MF $(BUILD)/$(1).d -MT $(1) -x c $(1).cu -o $(1) $(LIBS)
train_gpt: train_gpt.cu $(BUILD)/flags $(BUILD)/precision $(BUILD)/version
	$(say)$(call build_$(DEVICE),$@)
plan: planner/plan.c $(BUILD)/flags $(BUILD)/version # needs no device
	$(say)$(COMPILE) $(FAST) $(VERSION_FLAG) -MF $(BUILD)/plan.d -MT plan $< -o $@ $(LIBS)

# Also for another user after make (sudo make install): existing programs are copied, and only missing ones are built.
PREFIX ?= /usr/local
prefix = $(DESTDIR)$(PREFIX)
install: $(filter-out $(wildcard $(programs)),$(programs))
	install -d "$(prefix)/bin" "$(prefix)/share/threefold/clusters"
	install $(programs) "$(prefix)/bin"
	install -m 644 planner/*.tsv "$(prefix)/share/threefold"
	install -m 644 planner/clusters/*.txt "$(prefix)/share/threefold/clusters"
clean:
	rm -rf $(BUILD) train_gpt test_gpt plan
help help-dev: report
	@sed -n '/^#/!q;s/^# \{0,1\}//p' $(if $(filter %-dev,$@),dev/dev.mk,Makefile)
report:
	$(info $(report))@:
always:
.PHONY: always all clean help help-dev install report run_line
-include $(wildcard $(BUILD)/*.d $(BUILD)/*/*.d $(BUILD)/*/*/*.d)
