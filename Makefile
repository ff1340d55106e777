# make              build ./train_gpt for this machine
# make test         run all tests; the last line is "N passed, N failed"
# make equivalence  every layout against one process: the whole product of them, where make test takes a few
# make bench        measure: matrix products, kernels, training step, meshes, schedules; beside peers where there are any
# make pictures     draw the pipeline schedules: dev/draw/*.svg
# make help         this list, and what was found
#
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
found_nvcc := $(if $(shell command -v nvcc),found; this version has the CPU kernels only,not found; this version has the CPU kernels only)
found_nccl := $(if $(wildcard /usr/include/nccl.h /usr/local/cuda/include/nccl.h),found; not used by the CPU kernels,not found; not used by the CPU kernels)

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
NCCL        $(found_nccl)
endef

# --------------------------------------------------------------------------------------------------------------------
# The programs

FAST := -O3 $(ARCH_FLAG) -fno-math-errno -fno-trapping-math
SANITIZED := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all $(ARCH_FLAG)
ifeq ($(DEBUG),1)
FAST := $(SANITIZED)
endif
COMPILE = $(CC) -std=gnu11 -Wall -Wextra $(BLAS_FLAGS) $(MPI_FLAGS) $(OPENMP) -MMD -MP $(CFLAGS)
LIBS := $(BLAS_LIBS) $(MPI_LIBS) -lm -ldl

TESTS := $(patsubst dev/test/%.c,%,$(wildcard dev/test/test_*.c)) test_gpt
FUZZERS := $(patsubst dev/test/%.c,%,$(wildcard dev/test/fuzz_*.c))
BENCHES := $(patsubst dev/bench/%.c,%,$(wildcard dev/bench/bench_*.c))

all: report train_gpt

report:
	$(info $(report))
	@:

# Changes when the flags do, so that everything is compiled again.
$(BUILD)/flags: always
	@mkdir -p $(BUILD)/sanitized
	@echo '$(COMPILE) $(FAST) $(SANITIZED) $(LIBS)' | cmp -s - $@ || echo '$(COMPILE) $(FAST) $(SANITIZED) $(LIBS)' > $@

train_gpt: train_gpt.cu $(BUILD)/flags
	$(COMPILE) $(FAST) -MF $(BUILD)/train_gpt.d -MT $@ -x c $< -o $@ $(LIBS)

$(BUILD)/sanitized/train_gpt: train_gpt.cu $(BUILD)/flags
	$(COMPILE) $(SANITIZED) -x c $< -o $@ $(LIBS)

vpath %.c dev/test dev/bench dev/draw
$(BUILD)/%: %.c $(BUILD)/flags
	$(COMPILE) $(FAST) $< -o $@ $(LIBS)

$(BUILD)/sanitized/%: %.c $(BUILD)/flags
	$(COMPILE) $(SANITIZED) $< -o $@ $(LIBS)

build_tests: train_gpt $(TESTS:%=$(BUILD)/%) $(TESTS:%=$(BUILD)/sanitized/%) $(FUZZERS:%=$(BUILD)/sanitized/%) $(BUILD)/sanitized/train_gpt

test: report build_tests
	@CC="$(CC)" BUILD="$(BUILD)" TESTS="$(TESTS)" FUZZERS="$(FUZZERS)" MPIRUN="$(MPIRUN)" MPI_FLAGS="$(MPI_FLAGS)" dev/test/run.sh

equivalence: report $(BUILD)/test_equivalence
	@BUILD="$(BUILD)" MPIRUN="$(MPIRUN)" dev/test/equivalence.sh

pictures: $(BUILD)/draw_schedule
	@dev/draw/pictures.sh $(BUILD)/draw_schedule

build_benches: train_gpt $(BENCHES:%=$(BUILD)/%) $(BUILD)/draw_schedule

bench: report build_benches
	@BUILD="$(BUILD)" dev/bench/run.sh

help: report
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile

clean:
	rm -rf $(BUILD) train_gpt

always:
.PHONY: always all report test equivalence bench pictures help clean build_tests build_benches
-include $(BUILD)/*.d $(BUILD)/sanitized/*.d
