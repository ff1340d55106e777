/*
mfu.cuh: the peak FLOP/s of a GPU, by the name that its driver reports: the reference for a training run's utilisation
(MFU).

bf16 builds    products of 16-bit numbers by the tensor cores, added up in float32, dense: data sheets of recent
                     GPUs print twice that, for sparse matrices (half zeros). GeForce cards sum in float32 at half the
                     rate of fp16; the float32 rate counts here.
fp32 builds          float32 multiply-adds by the CUDA cores: no TF32, see matmul.cuh.

Peaks hold at the clock that the data sheet assumes. Real products reach 80 to 87 % of them where power is the limit. A
wrong peak is worse than none: whole names are compared, so that a laptop's GPU, a slice of a GPU (MIG) or a variant
made for one country is not taken for the card it resembles; an unknown name gives 0, and only TFLOP/s are printed.
*/
#pragma once

#include "device.h"

typedef struct {
    const char* name;  // a * at the end stands for anything
    double bf16, fp32; // TFLOP/s
} GpuPeak;

// The first match counts.
static const GpuPeak GPU_PEAKS[] = {
    // NVIDIA, "H100 Tensor Core GPU Architecture" (2022); data sheets of H100, H200 and GH200
    {"NVIDIA H100 80GB HBM3", 989.4, 66.9}, // SXM5, 700 W
    {"NVIDIA H100 PCIe", 756.0, 51.2},
    {"NVIDIA H100 NVL", 835.5, 60.0},
    {"NVIDIA H200", 989.4, 66.9}, // SXM
    {"NVIDIA H200 NVL", 835.5, 60.0},
    {"NVIDIA GH200 480GB", 989.4, 66.9},
    {"NVIDIA GH200 144G HBM3e", 989.4, 66.9},
    // "HGX B200" and "GB200 NVL72" data sheets, for one GPU
    {"NVIDIA B200", 2250.0, 75.0},
    {"NVIDIA GB200", 2500.0, 80.0},
    // "A100 Tensor Core GPU Architecture" (2020): the same for SXM and PCIe, 40 and 80 GB
    {"NVIDIA A100-*", 312.0, 19.5},
    {"NVIDIA A100 80GB PCIe", 312.0, 19.5},
    // data sheets of L4 and L40S; "Ada GPU Architecture" (2022), "RTX Blackwell GPU Architecture" (2025), "Ampere GA102
    // GPU Architecture" (2020)
    {"NVIDIA L4", 121.0, 30.3},
    {"NVIDIA L40S", 362.1, 91.6},
    {"NVIDIA GeForce RTX 5090", 209.5, 104.8},
    {"NVIDIA GeForce RTX 4090", 165.2, 82.6},
    {"NVIDIA GeForce RTX 3090", 71.0, 35.6},
};

static inline bool gpu_name_fits(const char* name, const char* pattern) {
    const size_t n = strlen(pattern), fixed = pattern[n - 1] == '*' ? n - 1 : n;
    return strncmp(name, pattern, fixed) == 0 && (fixed < n || name[n] == '\0') && strstr(name, "MIG") == NULL;
}

// FLOP/s of this build's floatX; 0 if the GPU is not known, or does not support the type.
static inline double gpu_peak_flops(const char* name) {
    for (size_t i = 0; i < sizeof GPU_PEAKS / sizeof *GPU_PEAKS; i++) {
        const GpuPeak* p = &GPU_PEAKS[i];
        if (!gpu_name_fits(name, p->name)) continue;
#if defined(PRECISION_FP32)
        return 1e12 * p->fp32;
#else
        return 1e12 * p->bf16;
#endif
    }
    return 0;
}

// A rank's part of the peak of its GPU, which `sharing` ranks have; 0 if that is not known.
static inline double device_peak_flops(int cores_here, int sharing) {
    char name[256];
    (void)cores_here;
    device_name(name, sizeof name);
    return gpu_peak_flops(name) / sharing;
}

// "peak 989 TFLOP/s by its data sheet", of all ranks together; written to text.
static inline const char* device_peak_text(char* text, size_t size, double flops) {
    snprintf(text, size, "peak %.0f TFLOP/s by its data sheet", flops / 1e12);
    return text;
}
