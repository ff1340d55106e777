# Targets for developers; `make help` lists those for users.
#
# make build/test_x          one test program; make build/sanitized/test_x: with AddressSanitizer and UBSan
#                            make build/bf16/test_x, build/sanitized/bf16/test_x: the same in bf16
# make mutate FILE=comm.h    changes of a file that no test notices (SAMPLE=100 of them, by SEED; TESTS="test_comm")
# make equivalence           every mesh and setting beside one process, which make test samples; PRECISION=bf16: in bf16
# make torture               200 killed runs, 500 damaged checkpoints, full disks (15 minutes; KILLS= BROKEN= MINUTES=)
# make kernel_tests          more tests of the CUDA kernels on the emulator
# make check_transformers    weights and models exchanged with Hugging Face (pip install torch transformers; a minute)
# make check_precision DATA=text.txt  loss curves of bf16 beside float32 (5 minutes; DEVICE=emulated: 7)
# make compare_tokenizers VOCAB="tokenizer.json ..."  16 MB of texts beside tiktoken and tokenizers (pip install them)
# make assembly              registers, stack, memory accesses of the CUDA kernels (KERNEL=word)
# make assembly_check        what their machine code has to be like for three GPUs
# make planner              this machine's rates, and predicted step times beside measured ones (8 minutes)
# make pictures              draw the pictures of docs/images that come from tables (pip install matplotlib)
# make book                  the programs that the commands of the docs use, in float32
# make docs-check            run the docs' commands that are marked, and compare what they print (FILES=)
# make ladder                build the rungs of docs/ladder/, run them, compare their losses (a minute)
# make kernel_ladder         the kernels of docs/ladder/kernels/ on the emulator, each beside float64 (a minute)
# make exercise N=7          a planted fault to find (docs/exercises.md); make exercise_check: verifies all (N="7 8")

# ---- PRECISION. The tests' own numbers, and whatever else developers make, are in float32.
# bf16_unit: what multiplies bf16 faster than float32: AMX; AVX-512 BF16, but not on Intel's processors (matmul.h).
bf16_unit := $(if $(filter cpu,$(DEVICE)),$(shell echo | $(CC) $(ARCH_FLAG) -dM -E - 2>/dev/null | \
    sed -n 's/^#define __AMX_BF16__ .*/AMX/p; s/^#define __AVX512BF16__ .*/AVX-512 BF16/p' | sort | \
    if [ $(ARCH) = native ] && grep -qs GenuineIntel /proc/cpuinfo; then grep AMX; else head -n 1; fi))
tests_goals = quick test test-full build_tests
fp32_goals = $(tests_goals) book docs-check ladder exercise equivalence mutate torture bench build_benches planner \
    pictures check_% kernel_tests
PRECISION ?= $(if $(filter-out cpu,$(DEVICE)),bf16,$(if $(filter $(fp32_goals),$(MAKECMDGOALS)),fp32,$(if \
    $(bf16_unit),bf16,fp32)))
$(if $(and $(filter $(tests_goals),$(MAKECMDGOALS)),$(filter cpubf16,$(DEVICE)$(PRECISION))),$(error the tests choose \
    the precision of every program themselves: drop PRECISION=bf16))
$(call one_of,PRECISION,bf16 fp32)
bf16_how = $(if $(bf16_unit),by $(bf16_unit),by conversion to float32$(comma) unless it has AMX or AVX-512 BF16)
fp32_how = $(if $(bf16_unit),(PRECISION=bf16: $(bf16_how)))
cpu_how = $(if $(filter cpu,$(DEVICE)),$(if $(filter bf16,$(PRECISION)),$(bf16_how),$(fp32_how)))
# Assemblers of before 2020 do not know AMX.
amx_asm := 'int main(void) { __asm__ volatile("tilerelease"); return 0; }'
knows_amx := $(shell echo $(amx_asm) | $(CC) -mamx-tile -x c - -o /dev/null 2>/dev/null && echo yes)
IN_BF16 := -DPRECISION_BF16 $(if $(knows_amx),,-DNO_AMX) \
    $(if $(bf16_unit)$(filter-out cpu,$(DEVICE)),,-DATTENTION_FLOATS)
bf16_flag = $(if $(filter bf16,$(PRECISION)),$(IN_BF16))

include dev/gpu.mk
include dev/book.mk

# ---- programs of the processor
vpath %.c dev/test/unit dev/test/fuzz dev/bench dev/plot planner dev/data
vpath %.cu dev/test/cuda dev/bench
$(BUILD)/%: %.c $(BUILD)/flags
	$(say)$(COMPILE) $(call O,-O3,$(FAST)) $< -o $@ $(LIBS)
$(BUILD)/sanitized/%: %.c $(BUILD)/flags
	$(say)$(COMPILE) $(call O,-O1,$(SANITIZED)) $< -o $@ $(LIBS)
$(BUILD)/sanitized/train_gpt: train_gpt.cu $(BUILD)/flags
	$(say)$(COMPILE) $(call O,-O1,$(SANITIZED)) -x c $< -o $@ $(LIBS)
# In bf16: $(BUILD)/bf16/PROGRAM and $(BUILD)/sanitized/bf16/PROGRAM.
in_bf16 = $(say)mkdir -p $(@D); $(COMPILE) $(IN_BF16) $(1) -MF $@.d -MT $@ -x c $< -o $@ $(LIBS)
$(BUILD)/bf16/%: %.c $(BUILD)/flags
	$(call in_bf16,$(call O,-O3,$(FAST)))
$(BUILD)/bf16/train_gpt: train_gpt.cu $(BUILD)/flags
	$(call in_bf16,$(FAST))
$(BUILD)/sanitized/bf16/%: %.c $(BUILD)/flags
	$(call in_bf16,$(call O,-O1,$(SANITIZED)))
$(BUILD)/sanitized/bf16/train_gpt: train_gpt.cu $(BUILD)/flags
	$(call in_bf16,$(call O,-O1,$(SANITIZED)))
# The whole model's tests for the device. The CPU's is $(BUILD)/test_gpt, too.
in_folder = $(if $(filter cpu,$(DEVICE)),$(PRECISION:fp32=),$(DEVICE)/$(PRECISION))
test_gpt: $(BUILD)/$(in_folder:%=%/)test_gpt $(BUILD)/precision
	cp $< $@

precisions = bf16 fp32
O0_PROGRAMS := $(addprefix sanitized/,train_gpt plan fuzz_readers $(addprefix test_,async_dp async_schedule canonical \
    checkpoint_dir collective comm comm_planned comm_progress_thread dataloader evaluate health layout network_sim \
    options planner_cluster planner_modes planner_search planner_step pretrained safetensors schedule schedule_check \
    schedule_time text token_files tokenizer topology trace)) emulated/bf16/compare
O1_PROGRAMS := $(addprefix test_,async_dp caat equivalence evaluate health planner_search trainer) bf16/test_caat \
    $(precisions:%=emulated/%/test_gpt) emulated/bf16/test_trainer
O2_PROGRAMS := $(addprefix sanitized/,test_matmul test_kernels test_kernels_bits test_kernels_update test_attention)

# ---- tests
TESTS := $(patsubst dev/test/unit/%.c,%,$(wildcard dev/test/unit/test_*.c)) test_gpt
FUZZERS := $(patsubst dev/test/fuzz/%.c,%,$(wildcard dev/test/fuzz/fuzz_*.c))
BENCHES := $(patsubst dev/bench/%.c,%,$(wildcard dev/bench/bench_*.c))
CUDA_TESTS := $(patsubst dev/test/cuda/%.cu,%,$(wildcard dev/test/cuda/cuda_*.cu))
KERNEL_TESTS := $(filter-out cuda_emulator cuda_bugs cuda_hopper cuda_hopper_bugs cuda_comm,$(CUDA_TESTS))
# make test: what has vector code, or searches long, as users build it, all others with sanitizers; CUDA kernels in one
# precision with a sanitizer, and the model. make test-full: every program in both builds, precision and sanitizer.
VECTOR_TESTS := $(addprefix test_,attention caat equivalence fast_math gpt kernels kernels_bits kernels_update matmul \
    planner_search trainer)
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
    emulated/fp32/cuda_matmul_fake $(foreach s,asan tsan,$(s)/fp32/cuda_attention) \
    $(foreach p,$(precisions),emulated/$(p)/test_gpt) emulated/bf16/test_health \
    emulated/bf16/test_evaluate emulated/bf16/test_trainer emulated/bf16/bench_gpu
GPU_TRAINERS := $(foreach p,$(precisions),emulated/$(p)/train_gpt) emulated/bf16/train_gpt_nccl \
    asan/bf16/train_gpt
endif
built_quick := train_gpt $(addprefix $(BUILD)/,$(PLAIN_quick) $(SANITIZED_quick:%=sanitized/%))
built_test := train_gpt plan $(addprefix $(BUILD)/,encode_file $(BOOK_TOOLS) bf16/test_gpt bf16/train_gpt \
    $(PLAIN_test) $(GPU_test) $(addprefix sanitized/, $(SANITIZED_test) $(FUZZERS) tokenize plan train_gpt))
built_full := $(built_test) \
    $(addprefix $(BUILD)/,$(PLAIN_full) $(SANITIZED_full:%=sanitized/%) \
    sanitized/bf16/train_gpt $(GPU_full) \
    $(GPU_TRAINERS))
build_tests: $(built_test)

define run_tier
@CC="$(CC)" BUILD="$(BUILD)" TIER="$(1)" PLAIN="$(PLAIN_$(1))" SANITIZED="$(SANITIZED_$(1))" FUZZERS="$(FUZZERS)" \
    MPIRUN="$(MPIRUN)" MPICC="$(MPICC)" MPI_FLAGS="$(MPI_FLAGS)" GPU_TESTS="$(GPU_$(1))" NVCC="$(NVCC)" \
    dev/test/run.sh
endef
quick: report $(built_quick)
	$(call run_tier,quick)
test: report $(built_test)
	$(call run_tier,test)
test-full: report $(built_full)
	@! dev/test/system/check_transformers.py --installed || $(MAKE) -s --no-print-directory $(BUILD)/logits
	$(call run_tier,full)

mutate:
	@python3 dev/test/mutants/mutate.py $(FILE) $(SAMPLE:%=--sample %) $(SEED:%=--seed %) --tests "$(TESTS)"

# The device's step beside the same one on the CPU, in bf16 where the device's is. Without a device: the CPU's beside
# PyTorch's.
ifeq ($(DEVICE),cpu)
compare: report test_gpt
	@echo "DEVICE=cpu is compared with PyTorch's float64. A GPU: DEVICE=cuda; without one: DEVICE=emulated"
	@./test_gpt --compare dev/test/reference/gpt2_tied.safetensors dev/test/reference/llama_grouped.safetensors
else
compared := $(or $(MODEL),$(if $(filter cuda,$(DEVICE)),gpt2-124M llama-130M pieces,gpt2 llama))
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

ifeq ($(NVCC),)
assembly assembly_check:
	@echo "make $@ needs nvcc, of the CUDA Toolkit; a GPU it does not need" >&2; exit 1
else
assembly: $(call assembly_of,$(PRECISION))
	@dev/bench/assembly.py --only "$(KERNEL)" $^
assembly_check: $(call assembly_of,bf16)
	@dev/test/system/check_assembly.py $^
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
	@dev/test/system/check_precision.py --seeds 1,2,3 --steps 300 --build $(BUILD) --fp32 ./train_gpt $(DATA)
else
check_precision: $(foreach p,$(precisions),$(BUILD)/emulated/$(p)/train_gpt)
	@dev/test/system/check_precision.py --build $(BUILD)/emulated $(DATA)
endif

# ---- measurements
build_benches: train_gpt plan $(BENCHES:%=$(BUILD)/%) \
    $(addprefix $(BUILD)/bf16/,train_gpt bench_matmul bench_kernels) \
    $(addprefix $(BUILD)/,tables simulate)
bench: report build_benches
	@BUILD="$(BUILD)" dev/bench/run.py
planner: train_gpt plan
	@planner/calibrate.py --out $(BUILD)/machine.txt --check

.PHONY: assembly assembly_check bench build_benches build_tests check_precision check_transformers compare \
    compare_tokenizers equivalence gpu_check kernel_tests mutate planner quick test test-full torture
