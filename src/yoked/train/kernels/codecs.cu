/* Payload dtypes on a CUDA device: the operations of codecs.c in their order, each rounded by
 * itself, so that a GPU's ranks and a CPU's make the same bytes of the same numbers, and the same
 * numbers of the same bytes.
 *
 * Compiled by NVRTC at first use (yoked.train.kernels.cuda); tests compile it for the CPU. `lost`
 * is read and written with feeds_back alone. A payload may begin at any address, and a GPU reads
 * and writes wider types at multiples of their size alone: so it goes byte by byte.
 */
typedef unsigned char byte;
typedef long long wide;

#define INFINITE 0x7f800000u
#define SMALLEST_SCALE 1.17549435e-38f
#define ROUNDER 12582912.0f
#define HERE ((wide)blockIdx.x * blockDim.x + threadIdx.x)

__device__ static inline float from_bf16(unsigned x) { return __uint_as_float(x << 16); }

/* Round to nearest, ties to even; all NaN become one. */
__device__ static inline unsigned to_bf16(float x) {
    unsigned bits = __float_as_uint(x), rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    return (bits & 0x7fffffffu) > INFINITE ? 0x7fc0u : rounded >> 16;
}

__device__ static inline unsigned read16(const byte *from) { return from[0] | from[1] << 8; }

__device__ static inline void write16(byte *to, unsigned x) {
    to[0] = (byte)x;
    to[1] = (byte)(x >> 8);
}

__device__ static inline float number(const float *values, const float *lost, wide i, int count,
                                      int feeds_back) {
    if (i >= count) return 0.0f;
    return feeds_back ? __fadd_rn(values[i], lost[i]) : values[i];
}

/* largest: the bits of a block's largest magnitude, which is finite. */
__device__ static inline float scale_of(unsigned largest, float one_step) {
    float scale = __fmul_rn(__uint_as_float(largest), one_step);
    return scale < SMALLEST_SCALE ? SMALLEST_SCALE : scale;
}

/* The low bits: x in scales, to the nearest integer. rest: what that loses. */
__device__ static inline unsigned quotient(float x, float scale, float *rest) {
    float rounded = __fadd_rn(__fmul_rn(x, __fdiv_rn(1.0f, scale)), ROUNDER);
    *rest = __fsub_rn(x, __fmul_rn(__fsub_rn(rounded, ROUNDER), scale));
    return __float_as_uint(rounded);
}

extern "C" __global__ void yoked_encode_bf16(const float *values, float *lost, byte *out,
                                             int count, int feeds_back) {
    wide i = HERE;
    if (i >= count) return;
    float x = number(values, lost, i, count, feeds_back);
    unsigned sent = to_bf16(x);
    write16(out + 2 * i, sent);
    int finite = (sent & 0x7f80u) != 0x7f80u;
    if (feeds_back) lost[i] = finite ? __fsub_rn(x, from_bf16(sent)) : 0.0f;
}

/* A block of threads is a block of 256 numbers. */
extern "C" __global__ void yoked_encode_int8(const float *values, float *lost, byte *out,
                                             int count, int feeds_back) {
    __shared__ unsigned largest;
    if (threadIdx.x == 0) largest = 0;
    __syncthreads();
    wide i = HERE;
    float x = number(values, lost, i, count, feeds_back), rest = 0.0f;
    atomicMax(&largest, __float_as_uint(x) & 0x7fffffffu); /* as integers, NaN is above all */
    __syncthreads();
    unsigned scale = 0x7fc00000u, sent = 0;
    if (largest < INFINITE) {
        scale = __float_as_uint(scale_of(largest, 1.0f / 127.0f));
        sent = quotient(x, __uint_as_float(scale), &rest);
    }
    if (threadIdx.x < 4) out[4LL * blockIdx.x + threadIdx.x] = (byte)(scale >> 8 * threadIdx.x);
    if (i >= count) return;
    out[((wide)count + 255) / 256 * 4 + i] = (byte)sent;
    if (feeds_back) lost[i] = rest;
}

/* A warp is a block of 64 numbers: lane j has numbers j and j + 32, of byte j. */
extern "C" __global__ void yoked_encode_int4(const float *values, float *lost, byte *out,
                                             int count, int feeds_back) {
    __shared__ unsigned largest[8];
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane == 0) largest[warp] = 0;
    __syncthreads();
    wide blocks = ((wide)count + 63) / 64, block = HERE / 32, i = 64 * block + lane;
    float low = number(values, lost, i, count, feeds_back), rest_low = 0.0f;
    float high = number(values, lost, i + 32, count, feeds_back), rest_high = 0.0f;
    atomicMax(&largest[warp], __float_as_uint(low) & 0x7fffffffu);
    atomicMax(&largest[warp], __float_as_uint(high) & 0x7fffffffu);
    __syncthreads();
    if (block >= blocks) return;
    unsigned scale = 0x7fc0u, sent_low = 0, sent_high = 0;
    if (largest[warp] < INFINITE) {
        scale = to_bf16(scale_of(largest[warp], 1.0f / 7.0f));
        sent_low = quotient(low, from_bf16(scale), &rest_low);
        sent_high = quotient(high, from_bf16(scale), &rest_high);
    }
    if (lane == 0) write16(out + 2 * block, scale);
    out[2 * blocks + HERE] = (byte)(((sent_low + 8u) & 15u) | ((sent_high + 8u) & 15u) << 4);
    if (feeds_back && i < count) lost[i] = rest_low;
    if (feeds_back && i + 32 < count) lost[i + 32] = rest_high;
}

/* A thread a number. */
#define DECODE(NAME, NUMBER)                                                                    \
    extern "C" __global__ void NAME(const byte *in, float *out, int count, int add) {           \
        wide i = HERE;                                                                          \
        if (i >= count) return;                                                                 \
        float x = NUMBER(in, i, count);                                                         \
        out[i] = add ? __fadd_rn(out[i], x) : x;                                                \
    }

__device__ static inline float number_of_bf16(const byte *in, wide i, int count) {
    return from_bf16(read16(in + 2 * i));
}

__device__ static inline float number_of_int8(const byte *in, wide i, int count) {
    const byte *scale = in + i / 256 * 4, *from = in + ((wide)count + 255) / 256 * 4;
    unsigned bits = read16(scale) | read16(scale + 2) << 16;
    return __fmul_rn((float)(signed char)from[i], __uint_as_float(bits));
}

__device__ static inline float number_of_int4(const byte *in, wide i, int count) {
    wide block = i / 64;
    unsigned pair = in[((wide)count + 63) / 64 * 2 + 32 * block + i % 32];
    int sent = (int)(i % 64 < 32 ? pair & 15u : pair >> 4) - 8;
    return __fmul_rn((float)sent, from_bf16(read16(in + 2 * block)));
}

DECODE(yoked_decode_bf16, number_of_bf16)
DECODE(yoked_decode_int8, number_of_int8)
DECODE(yoked_decode_int4, number_of_int4)
