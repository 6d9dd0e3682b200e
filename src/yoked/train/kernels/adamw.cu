/* AdamW in one pass on a CUDA device, a thread a number: the operations of elementwise.c in their
 * order, each rounded by itself, so that a GPU's ranks and a CPU's compute the same bits.
 *
 * Compiled by NVRTC at first use (yoked.train.kernels.cuda); tests compile it for the CPU, where a
 * grid is a loop.
 */
typedef unsigned short bf16;

__device__ static inline float from_bf16(bf16 x) { return __uint_as_float((unsigned)x << 16); }

/* Round to nearest, ties to even; NaN stays NaN. */
__device__ static inline bf16 to_bf16(float f) {
    unsigned bits = __float_as_uint(f);
    unsigned rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    return (bits & 0x7fffffffu) > 0x7f800000u ? (bf16)((bits >> 16) | 0x40u) : (bf16)(rounded >> 16);
}

#define KEEP(x) (x)

/* With slots, slot[row] is the row's place in `gradient`, or -1 for a gradient of zero. */
#define ADAMW(NAME, TYPE, LOAD, STORE)                                                          \
    extern "C" __global__ void NAME(TYPE *p, const float *gradient, TYPE *first, TYPE *second,  \
                                    const int *slot, const float *c, int rows, int width,       \
                                    int has_slots) {                                            \
        long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;                         \
        if (i >= (long long)rows * width) return;                                               \
        long long row = i / width;                                                              \
        long long place = has_slots ? slot[row] : row;                                          \
        float g = place < 0 ? 0.0f : gradient[place * width + i % width];                       \
        float m = LOAD(first[i]), v = LOAD(second[i]);                                          \
        m = __fadd_rn(m, __fmul_rn(c[1], __fsub_rn(g, m)));                                     \
        v = __fadd_rn(v, __fmul_rn(c[2], __fsub_rn(__fmul_rn(g, g), v)));                       \
        float update = __fdiv_rn(m, __fadd_rn(__fsqrt_rn(__fdiv_rn(v, c[3])), c[4]));           \
        p[i] = STORE(__fsub_rn(__fmul_rn(LOAD(p[i]), c[0]), __fmul_rn(c[5], update)));          \
        first[i] = STORE(m);                                                                    \
        second[i] = STORE(v);                                                                   \
    }

ADAMW(yoked_adamw_f32, float, KEEP, KEEP)
ADAMW(yoked_adamw_bf16, bf16, from_bf16, to_bf16)
