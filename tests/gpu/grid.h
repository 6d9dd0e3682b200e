/* What the source of a CUDA kernel needs to be compiled for a CPU, where a grid is a loop. */
#include <string.h>

#define __global__
#define __device__
struct index { unsigned x; };
static thread_local struct index blockIdx, threadIdx, blockDim = {256};

static inline float __uint_as_float(unsigned bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
static inline unsigned __float_as_uint(float f) {
    unsigned bits;
    memcpy(&bits, &f, 4);
    return bits;
}
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }

#define RUN(NAME, TYPE)                                                                         \
    extern "C" void run_##NAME(TYPE *p, const float *g, TYPE *m, TYPE *v, const int *slot,      \
                               const float *c, int rows, int width, int has_slots) {            \
        long long threads = ((long long)rows * width + 255) / 256 * 256;                        \
        for (long long i = 0; i < threads; i++) {                                               \
            blockIdx.x = i / 256;                                                               \
            threadIdx.x = i % 256;                                                              \
            NAME(p, g, m, v, slot, c, rows, width, has_slots);                                  \
        }                                                                                       \
    }
