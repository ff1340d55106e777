# Targets for developers; `make help` lists those for users.
#
# make build/test_x          one test program; make build/sanitized/test_x: with AddressSanitizer and UBSan
# make mutate SUITE=health   plant each fault of dev/test/mutants/health.py: its test has to fail (SUITE=all; ONLY=word)
# make equivalence           every mesh and setting beside one process, which make test samples; then SUITE=collectives
#                            PRECISION=bf16: in bf16, without that suite
# make torture               200 killed runs, 500 damaged checkpoints, full disks (15 minutes; KILLS= BROKEN= MINUTES=)
# make kernel_tests          more tests of the CUDA kernels on the emulator
# make check_transformers    weights and models exchanged with Hugging Face (pip install torch transformers; a minute)
# make check_precision DATA=text.txt  loss curves of bf16 beside float32 (5 minutes); DEVICE=emulated: and of fp16 (10)
# make compare_tokenizers VOCAB="tokenizer.json ..."  16 MB of texts beside tiktoken and tokenizers (pip install them)
# make assembly              registers, occupancy, memory accesses, instructions of the CUDA kernels (KERNEL=word)
# make assembly_check        what their machine code has to be like for three GPUs, and faults planted in it
# make planner DATA=text.txt predicted step times beside measured ones (15 minutes; ROUNDS=)
# make network               all-reduces between network namespaces beside the simulator's times (root; 20 minutes)
# make pictures              draw the schedules and collectives of docs/images
# make build/roofline        the least time of a training step on a GPU: build/roofline --model gpt2-124M

# ---- GPUs: nvcc. compute_90a has wgmma and runs on compute capability 9.0 only. native: the GPU that the driver finds.
cuda_version := $(if $(NVCC),$(shell $(NVCC) --version | sed -n 's/.*release \([0-9]*\).*/\1/p'))
known_archs := $(if $(NVCC),$(shell $(NVCC) --list-gpu-arch 2>/dev/null))
nvcc_archs := $(patsubst compute_%,%,$(filter compute_80 compute_90 compute_100,$(or $(known_archs),compute_80)))
precision_flag = -DUSE_CUDA -DPRECISION_$(if $(filter bf16,$(1)),BF16,$(if $(filter fp16,$(1)),FP16,FP32))
native_arch = $(sort $(subst .,,$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null)))
gpu_archs := $(patsubst 90,90a,$(patsubst native,$(or $(native_arch),native),$(GPU_ARCH)))
gencode = $(if $(filter native,$(1)),-arch=native,$(foreach a,$(1),-gencode=arch=compute_$(a),code=sm_$(a)))
NVCC_ARCH := $(call gencode,$(gpu_archs))
NVCC_HOST := -Wall,-Wextra$(comma)$(or $(OPENMP),-Wno-unknown-pragmas)
# cuBLASLt and NCCL: of the CUDA Toolkit, of the system, or of the wheels that pip has installed for python3, where a
# library has no name without a version. The loader finds them by the paths that the program carries.
cuda_home := $(if $(NVCC),$(patsubst %/bin/nvcc,%,$(realpath $(shell command -v $(NVCC)))))
wheels := $(if $(NVCC),$(shell python3 -c 'import nvidia; print(*nvidia.__path__)' 2>/dev/null))
wheel_places := $(foreach w,$(wheels),$(w)/cu$(cuda_version) $(w)/cublas $(w)/nccl)
system_places := /usr /usr/local
cuda_places := $(if $(NVCC),$(cuda_home) $(system_places) $(wheel_places))
library_in = $(firstword $(wildcard $(foreach l,lib64 lib lib/*-linux-gnu targets/*/lib,$(1)/$(l)/$(2))))
library = $(firstword $(foreach p,$(cuda_places),$(if $(wildcard $(p)/include/$(1)),$(call library_in,$(p),$(2)))))
cublaslt := $(call library,cublasLt.h,libcublasLt.so.$(cuda_version))
nccl := $(call library,nccl.h,libnccl.so.2)
$(if $(filter cuda,$(DEVICE)$(cublaslt)),$(error DEVICE=cuda needs cublasLt.h and libcublasLt.so.$(cuda_version), \
    and none of $(cuda_places) has both: install CUDA $(cuda_version)'s libcublas-dev or the wheel \
    nvidia-cublas, or take DEVICE=cpu))
CUDA_INCLUDES := $(foreach l,$(filter $(wheels:%=%/%),$(cublaslt) $(nccl)),-isystem $(dir $(l))../include)
NCCL_FLAGS := $(if $(nccl),-DUSE_NCCL)
CUDA_LIBS := $(foreach l,$(cublaslt) $(nccl),-L$(dir $(l)) -l:$(notdir $(l)) -Xlinker -rpath -Xlinker $(dir $(l)))
NVCC_COMPILE = $(NVCC) -std=c++17 -O3 $(NVCC_FLAGS) $(NVCC_ARCH) -Xcompiler $(NVCC_HOST) $(MPI_FLAGS) $(METHODS_FLAG) \
    $(CUDA_INCLUDES) $(NCCL_FLAGS) $(precision_flag) -x cu
NVCC_LIBS = $(filter-out -Wl% -pthread,$(MPI_LIBS)) $(CUDA_LIBS) -lm

# The emulator: the same sources as C++, kernels on the processor. $(1): the precision. Kernels compare CUDA's unsigned
# threadIdx with ints. AddressSanitizer has -O0: gcc optimises what it adds for three times as long as the tests run.
# ThreadSanitizer watches the threads of CUDA, without OpenMP's.
CXX := $(if $(findstring clang,$(CC)),clang++,g++)
EMULATE = $(CXX) -std=gnu++17 -Wall -Wextra -Wno-unknown-pragmas -Wno-sign-compare \
    $(if $(findstring clang,$(CXX)),,-Wno-maybe-uninitialized) $(MPI_FLAGS) $(METHODS_FLAG) $(precision_flag) \
    $(OPENMP) -pthread -MMD -MP -x c++
EMULATED_FAST := -O2 $(ARCH_FLAG)
EMULATED_LIBS := $(MPI_LIBS) -lm -ldl
ASAN := -O0 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all $(ARCH_FLAG)
TSAN := -O1 -g1 -fsanitize=thread $(ARCH_FLAG)
DEV_FLAGS := $(EMULATED_FAST) $(ASAN) $(TSAN)
build_cuda = $(call NVCC_COMPILE,$(PRECISION)) $(VERSION_FLAG) -MMD -MP -MF $(BUILD)/$(1).d -MT $(1) $(1).cu \
    -o $(1) $(NVCC_LIBS)
build_emulated = $(call EMULATE,$(PRECISION)) $(EMULATED_FAST) $(VERSION_FLAG) -MF $(BUILD)/$(1).d -MT $(1) \
    $(1).cu -o $(1) $(EMULATED_LIBS)

# $(BUILD)/KIND/PRECISION/PROGRAM; KIND: emulated, asan, tsan, or cuda (by nvcc). O: flags with another optimisation
# for a program whose compilation takes longer than its run, or the other way round.
without_bf16 = $(patsubst bf16/%,%,$(patsubst sanitized/bf16/%,sanitized/%,$(1)))
own_O = $(strip $(foreach o,O0 O1 O2,$(if $(filter $(call without_bf16,$(@:$(BUILD)/%=%)),$($(o)_PROGRAMS)),-$(o))))
O = $(subst $(1),$(or $(own_O),$(1)),$(2))
define build_gpu
@mkdir -p $(@D)
$(1) -MF $@.d -MT $@ $< -o $@
endef
emulated = $(call build_gpu,$(call EMULATE,$(1)) $(2) $(call O,-O2,$(EMULATED_FAST))) $(EMULATED_LIBS)
define gpu_rules
$(BUILD)/emulated/$(1)/%: %.cu $(BUILD)/flags
	$$(call emulated,$(1))
$(BUILD)/emulated/$(1)/%: %.c $(BUILD)/flags
	$$(call emulated,$(1))
$(BUILD)/emulated/$(1)/compare: test_gpt.c $(BUILD)/flags
	$$(call emulated,$(1))
$(BUILD)/emulated/$(1)/cuda_matmul_fake: cuda_matmul.cu $(BUILD)/flags
	$$(call emulated,$(1),-DUSE_CUBLASLT -Idev/test/fake)
$(BUILD)/emulated/$(1)/train_gpt_nccl: train_gpt.cu $(BUILD)/flags
	$$(call emulated,$(1),-DUSE_NCCL -Idev/test/fake)
$(BUILD)/asan/$(1)/%: %.cu $(BUILD)/flags
	$$(call build_gpu,$$(call EMULATE,$(1)) $$(ASAN)) $$(EMULATED_LIBS)
$(BUILD)/asan/$(1)/cuda_matmul_fake: cuda_matmul.cu $(BUILD)/flags
	$$(call build_gpu,$$(call EMULATE,$(1)) -DUSE_CUBLASLT -Idev/test/fake $$(ASAN)) $$(EMULATED_LIBS)
$(BUILD)/tsan/$(1)/%: %.cu $(BUILD)/flags
	$$(call build_gpu,$$(filter-out -fopenmp,$$(call EMULATE,$(1))) $$(TSAN)) $$(EMULATED_LIBS)
$(BUILD)/cuda/$(1)/%: %.cu $(BUILD)/flags
	$$(call build_gpu,$$(call NVCC_COMPILE,$(1)) -MMD -MP) $$(NVCC_LIBS)
$(BUILD)/cuda/$(1)/%: %.c $(BUILD)/flags
	$$(call build_gpu,$$(call NVCC_COMPILE,$(1)) -MMD -MP) $$(NVCC_LIBS)
$(BUILD)/assembly/$(1)/sm_%.cubin: train_gpt.cu $(BUILD)/flags
	@mkdir -p $$(@D)
	$(NVCC) -std=c++17 -O3 $(NVCC_FLAGS) $(CUDA_INCLUDES) -gencode=arch=compute_$$*,code=sm_$$* $(precision_flag) \
	    -x cu -cubin -MMD -MP -MF $$@.d -MT $$@ $$< -o $$@
endef
$(foreach p,bf16 fp16 fp32,$(eval $(call gpu_rules,$(p))))
assembly_of = $(foreach a,80 90a 100,$(BUILD)/assembly/$(1)/sm_$(a).cubin)

# ---- programs of the processor
vpath %.c dev/test/unit dev/test/fuzz dev/bench dev/plot planner dev/data
vpath %.cu dev/test/cuda dev/bench
$(BUILD)/%: %.c $(BUILD)/flags
	$(COMPILE) $(call O,-O3,$(FAST)) $< -o $@ $(LIBS)
$(BUILD)/sanitized/%: %.c $(BUILD)/flags
	$(COMPILE) $(call O,-O1,$(SANITIZED)) $< -o $@ $(LIBS)
$(BUILD)/sanitized/train_gpt: train_gpt.cu $(BUILD)/flags
	$(COMPILE) $(call O,-O1,$(SANITIZED)) -x c $< -o $@ $(LIBS)
# In bf16: $(BUILD)/bf16/PROGRAM and $(BUILD)/sanitized/bf16/PROGRAM.
in_bf16 = @mkdir -p $(@D); $(COMPILE) -DPRECISION_BF16 $(1) -MF $@.d -MT $@ -x c $< -o $@ $(LIBS)
$(BUILD)/bf16/%: %.c $(BUILD)/flags
	$(call in_bf16,$(call O,-O3,$(FAST)))
$(BUILD)/bf16/train_gpt: train_gpt.cu $(BUILD)/flags
	$(call in_bf16,$(FAST))
$(BUILD)/sanitized/bf16/%: %.c $(BUILD)/flags
	$(call in_bf16,$(call O,-O1,$(SANITIZED)))
$(BUILD)/sanitized/bf16/train_gpt: train_gpt.cu $(BUILD)/flags
	$(call in_bf16,$(call O,-O1,$(SANITIZED)))
# The whole model's tests for the device. The CPU's is $(BUILD)/test_gpt, too.
test_gpt: $(BUILD)/$(if $(filter cpu,$(DEVICE)),$(if $(filter bf16,$(PRECISION)),bf16/),$(DEVICE)/$(PRECISION)/)test_gpt \
    $(BUILD)/precision
	cp $< $@

precisions = bf16 fp16 fp32
O0_PROGRAMS := $(addprefix sanitized/,train_gpt plan fuzz_readers $(addprefix test_,async_dp async_schedule comm \
    comm_planned comm_progress_thread evaluate health layout planner_measured planner_search safetensors trace)) \
    emulated/bf16/compare $(precisions:%=emulated/%/launches)
O1_PROGRAMS := $(addprefix test_,async_dp equivalence evaluate health planner_measured planner_search trainer) \
    $(precisions:%=emulated/%/test_gpt) emulated/bf16/test_trainer emulated/fp16/train_gpt
O2_PROGRAMS := $(addprefix sanitized/,test_matmul test_kernels test_kernels_bits test_kernels_update test_attention)

# ---- tests
TESTS := $(patsubst dev/test/unit/%.c,%,$(wildcard dev/test/unit/test_*.c)) test_gpt
FUZZERS := $(patsubst dev/test/fuzz/%.c,%,$(wildcard dev/test/fuzz/fuzz_*.c))
BENCHES := $(patsubst dev/bench/%.c,%,$(wildcard dev/bench/bench_*.c))
CUDA_TESTS := $(patsubst dev/test/cuda/%.cu,%,$(wildcard dev/test/cuda/cuda_*.cu))
KERNEL_TESTS := $(filter-out cuda_emulator cuda_bugs cuda_hopper cuda_hopper_bugs cuda_comm,$(CUDA_TESTS))
# make test: programs with vector code as users build them, all others with sanitizers; the CUDA kernels in one
# precision with a sanitizer, and the model. make test-full: every program in both builds, precision and sanitizer.
VECTOR_TESTS := $(addprefix test_,attention caat equivalence fast_math gpt kernels kernels_bits kernels_update matmul \
    trainer)
# In bf16: what computes with floatX; make test has the quick ones of them.
BF16_TESTS := $(addprefix test_,attention caat gpt kernels kernels_bits kernels_update matmul trainer)
BF16_MORE := $(addprefix test_,equivalence evaluate health)
PLAIN_test := $(VECTOR_TESTS) $(BF16_TESTS:%=bf16/%)
SANITIZED_test := $(filter-out $(VECTOR_TESTS),$(TESTS))
PLAIN_full := $(TESTS) $(addprefix bf16/,$(BF16_TESTS) $(BF16_MORE))
SANITIZED_full := $(PLAIN_full)
CHANGED := $(if $(filter quick,$(MAKECMDGOALS)),$(shell dev/test/changed.py $(TESTS)))
PLAIN_quick := $(filter $(VECTOR_TESTS),$(CHANGED)) $(addprefix bf16/,$(filter $(BF16_TESTS),$(CHANGED)))
SANITIZED_quick := $(filter-out $(VECTOR_TESTS),$(CHANGED))
ifneq ($(shell command -v $(CXX)),)
GPU_test := $(KERNEL_TESTS:%=asan/bf16/%) emulated/bf16/compare
GPU_full := $(foreach p,$(precisions),$(KERNEL_TESTS:%=emulated/$(p)/%)) emulated/bf16/cuda_matmul_fake \
    $(foreach s,asan tsan,$(KERNEL_TESTS:%=$(s)/bf16/%)) $(foreach s,emulated asan tsan,$(s)/bf16/cuda_hopper) \
    emulated/bf16/preflight_tma \
    $(foreach s,emulated asan,$(s)/bf16/cuda_emulator $(s)/bf16/cuda_bugs $(s)/bf16/cuda_hopper_bugs)
GPU_TESTS_MORE := tsan/bf16/cuda_emulator tsan/bf16/cuda_bugs tsan/bf16/cuda_hopper_bugs asan/bf16/cuda_matmul_fake \
    $(foreach p,fp16 fp32,emulated/$(p)/cuda_matmul_fake) $(foreach s,asan tsan,$(s)/fp32/cuda_attention) \
    $(foreach p,$(precisions),emulated/$(p)/test_gpt) $(foreach p,bf16 fp16,emulated/$(p)/test_health) \
    emulated/bf16/test_evaluate emulated/bf16/test_trainer emulated/bf16/bench_gpu
GPU_TRAINERS := $(foreach p,$(precisions),emulated/$(p)/train_gpt) emulated/bf16/train_gpt_nccl emulated/bf16/compare \
    asan/bf16/train_gpt
endif
WITHOUT_METHODS := $(if $(wildcard methods/none.h),without_methods/train_gpt without_methods/test_gpt)
built_quick := train_gpt $(addprefix $(BUILD)/,$(PLAIN_quick) $(SANITIZED_quick:%=sanitized/%))
built_test := train_gpt plan $(addprefix $(BUILD)/,encode_file bf16/test_gpt bf16/train_gpt $(PLAIN_test) $(GPU_test) \
    $(addprefix sanitized/, $(SANITIZED_test) $(FUZZERS) $(DATA_TOOLS) plan train_gpt) $(WITHOUT_METHODS))
built_full := $(built_test) \
    $(addprefix $(BUILD)/,roofline $(PLAIN_full) $(SANITIZED_full:%=sanitized/%) sanitized/bf16/train_gpt $(GPU_full) \
    $(GPU_TRAINERS))
build_tests: $(built_test)
# The plain trainer, which has to build and to train without methods/.
$(BUILD)/without_methods/%: %.cu $(BUILD)/flags
	@mkdir -p $(@D)
	$(COMPILE) -DMETHODS_NO $(subst -O3,-O1,$(FAST)) -MF $@.d -MT $@ -x c $< -o $@ $(LIBS)
$(BUILD)/without_methods/%: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(COMPILE) -DMETHODS_NO $(subst -O3,-O1,$(FAST)) -MF $@.d -MT $@ $< -o $@ $(LIBS)

define run_tier
@CC="$(CC)" BUILD="$(BUILD)" TIER="$(1)" PLAIN="$(PLAIN_$(1))" SANITIZED="$(SANITIZED_$(1))" FUZZERS="$(FUZZERS)" \
    MPIRUN="$(MPIRUN)" MPI_FLAGS="$(MPI_FLAGS)" GPU_TESTS="$(GPU_$(1))" NVCC="$(NVCC)" dev/test/run.sh
endef
quick: report $(built_quick)
	$(call run_tier,quick)
test: report $(built_test)
	$(call run_tier,test)
test-full: report $(built_full)
	@! dev/test/system/check_transformers.py --installed || $(MAKE) -s --no-print-directory $(BUILD)/logits
	$(call run_tier,full)

SUITE ?= all
mutate:
	@python3 dev/test/mutants/mutate.py $(SUITE) $(if $(ONLY),--only "$(ONLY)")

# The device's step beside the same one on the CPU, in bf16 where the device's is. Without a device: the CPU's beside
# PyTorch's.
ifeq ($(DEVICE),cpu)
compare: report test_gpt
	@echo "DEVICE=cpu is compared with PyTorch's float64. A GPU: DEVICE=cuda; without one: DEVICE=emulated"
	@./test_gpt --compare dev/test/reference/gpt2_tied.safetensors dev/test/reference/llama_grouped.safetensors
else
compared := $(or $(MODEL),$(if $(filter cuda,$(DEVICE)),gpt2-124M llama-130M,gpt2 llama))
written_by := $(BUILD)/$(if $(filter bf16,$(PRECISION)),bf16/)test_gpt
compare: report test_gpt $(written_by)
	@mkdir -p $(BUILD)/compare; trap 'rm -r $(BUILD)/compare' EXIT; \
	for model in $(compared); do $(written_by) --write $(BUILD)/compare/$$model $$model || exit; done; \
	./test_gpt --compare $(addprefix $(BUILD)/compare/,$(compared))
endif

equivalence: report $(BUILD)/$(if $(filter bf16,$(PRECISION)),bf16/)test_equivalence
	@BUILD="$(BUILD)" MPIRUN="$(MPIRUN)" PRECISION="$(PRECISION)" dev/test/system/equivalence.sh

kernel_tests: $(GPU_TESTS_MORE:%=$(BUILD)/%)
	@mkdir -p $(BUILD)/log; for test in $(GPU_TESTS_MORE); do \
	    case $$test in asan/*|tsan/*) short=--short ;; */bench_gpu) short=--tiny ;; *) short= ;; esac; \
	    ASAN_OPTIONS=detect_leaks=0 $(BUILD)/$$test $$short >$(BUILD)/log/more 2>&1 && ok=ok || ok=FAIL; \
	    echo "$$ok    $$test: $$(tail -n 1 $(BUILD)/log/more)"; [ $$ok = ok ] || exit 1; done

launches := $(BUILD)/emulated/$(PRECISION)/launches
ifeq ($(NVCC),)
assembly assembly_check:
	@echo "make $@ needs nvcc, of the CUDA Toolkit; a GPU it does not need" >&2; exit 1
else
assembly: $(call assembly_of,$(PRECISION)) $(launches)
	@dev/bench/assembly.py --launches $(launches) $(if $(KERNEL),--all --only "$(KERNEL)") $(call assembly_of,$(PRECISION))
assembly_check: $(call assembly_of,bf16) $(BUILD)/emulated/bf16/launches
	@dev/test/system/check_assembly.py --faults --launches $(BUILD)/emulated/bf16/launches $(call assembly_of,bf16)
endif

compare_tokenizers: $(BUILD)/encode_file
	@python3 dev/test/system/compare_tokenizers.py $(BUILD)/encode_file $(VOCAB)
check_transformers: train_gpt $(BUILD)/logits
	@BUILD="$(BUILD)" dev/test/system/check_transformers.py
torture: report train_gpt
	@MPIRUN="$(MPIRUN)" python3 dev/test/system/torture.py \
	    $(KILLS:%=--kills %) $(BROKEN:%=--broken %) $(MINUTES:%=--minutes %) $(SEED:%=--seed %)
gpu_check:
	@dev/test/gpu_check.sh
ifeq ($(DEVICE),cpu)
check_precision: train_gpt $(BUILD)/bf16/train_gpt
	@dev/test/system/check_precision.py --seeds 1,2,3 --steps 300 --types bf16 --build $(BUILD) --fp32 ./train_gpt $(DATA)
else
check_precision: $(foreach p,$(precisions),$(BUILD)/emulated/$(p)/train_gpt)
	@dev/test/system/check_precision.py --build $(BUILD)/emulated $(DATA)
endif

# ---- measurements
build_benches: train_gpt plan $(BENCHES:%=$(BUILD)/%) \
    $(addprefix $(BUILD)/,draw_schedule draw_collective network_links simulate calibrate)
bench: report build_benches
	@BUILD="$(BUILD)" dev/bench/run.sh
network: report build_benches
	@dev/experiments/network.py --plot docs/images/network.svg
planner: report build_benches
	@BUILD="$(BUILD)" dev/bench/planner.py --data $(DATA) --rounds $(or $(ROUNDS),3)
pictures: $(BUILD)/draw_schedule $(BUILD)/draw_collective plan
	@dev/plot/pictures.sh $(BUILD)/draw_schedule $(BUILD)/draw_collective ./plan

.PHONY: assembly assembly_check bench build_benches build_tests check_precision check_transformers compare \
    compare_tokenizers equivalence gpu_check kernel_tests mutate network pictures planner quick test test-full torture
