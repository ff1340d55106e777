# Programs for GPUs, by nvcc, and for the emulated GPU. Included by dev.mk.

# ---- GPUs: nvcc. compute_90a has wgmma and runs on compute capability 9.0 only. native: the GPU that the driver finds.
cuda_version := $(if $(NVCC),$(shell $(NVCC) --version | sed -n 's/.*release \([0-9]*\).*/\1/p'))
known_archs := $(if $(NVCC),$(shell $(NVCC) --list-gpu-arch 2>/dev/null))
nvcc_archs := $(patsubst compute_%,%,$(filter compute_80 compute_90 compute_100,$(or $(known_archs),compute_80)))
precision_flag = -DUSE_CUDA -DPRECISION_$(if $(filter bf16,$(1)),BF16,FP32)
native_arch = $(sort $(subst .,,$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null)))
gpu_archs := $(patsubst 90,90a,$(patsubst native,$(or $(native_arch),native),$(GPU_ARCH)))
# Built for any GPU, a program also carries PTX, which the driver of a later kind compiles as it starts.
ptx = -gencode=arch=compute_80,code=compute_80
gencode = $(if $(filter native,$(1)),-arch=native,$(foreach a,$(1),-gencode=arch=compute_$(a),code=sm_$(a)))
NVCC_ARCH := $(call gencode,$(gpu_archs)) $(if $(filter-out $(GPU_ARCH),$(nvcc_archs)),,$(ptx))
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
NCCL_FLAGS := $(if $(and $(nccl),$(MPI_FLAGS)),-DUSE_NCCL)
CUDA_LIBS := $(foreach l,$(cublaslt) $(nccl),-L$(dir $(l)) -l:$(notdir $(l)) -Xlinker -rpath -Xlinker $(dir $(l)))
NVCC_COMPILE = $(NVCC) -std=c++17 -O3 $(NVCC_FLAGS) $(NVCC_ARCH) -Xcompiler $(NVCC_HOST) $(MPI_FLAGS) \
    $(CUDA_INCLUDES) $(NCCL_FLAGS) $(precision_flag) -x cu
NVCC_LIBS = $(filter-out -Wl% -pthread,$(MPI_LIBS)) $(CUDA_LIBS) -lm

# The emulator: the same sources as C++, kernels on the processor. $(1): the precision. Kernels compare CUDA's unsigned
# threadIdx with ints. AddressSanitizer has -O0: gcc optimises what it adds for three times as long as the tests run.
# ThreadSanitizer watches the threads of CUDA, without OpenMP's.
CXX := $(if $(findstring clang,$(CC)),clang++,g++)
EMULATE = $(CXX) -std=gnu++17 -Wall -Wextra -Wno-unknown-pragmas -Wno-sign-compare \
    $(if $(findstring clang,$(CXX)),,-Wno-maybe-uninitialized) $(MPI_FLAGS) $(precision_flag) \
    $(OPENMP) -pthread -MMD -MP -x c++
EMULATED_FAST := -O2 $(ARCH_FLAG)
EMULATED_LIBS := $(MPI_LIBS) -lm -ldl
ASAN := -O0 $(sanitizers)
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
$(say)$(1) -MF $@.d -MT $@ $< -o $@
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
$(foreach p,bf16 fp32,$(eval $(call gpu_rules,$(p))))
assembly_of = $(foreach a,80 90a 100,$(BUILD)/assembly/$(1)/sm_$(a).cubin)
