/* Payload dtypes: numbers to the bytes in which they travel, and back, one pass each.
 *
 * yoked.train.sync.codecs says what the bytes are, and has the same arithmetic in PyTorch. Only
 * IEEE additions and multiplications are used, in one order, so that unlike CPUs make the same
 * bytes of the same numbers. A payload may begin at any address.
 *
 * An encoder takes values[i] + lost[i] and leaves in lost[i] what did not get through; lost may
 * be null. Where what gets through is not finite, lost becomes 0: a step that is skipped for it
 * must not spoil the next. Encoders and decoders work on blocks [first, last) of `count` numbers.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define INFINITE 0x7f800000u
#define SMALLEST_SCALE 1.17549435e-38f /* 2^-126; its reciprocal is finite */
#define INT8_BLOCK 256
#define INT4_BLOCK 64

/* Adding this rounds |x| < 2^22 to the nearest integer, ties to even, on any CPU: the integer is
 * then in the low bits. */
#define ROUNDER 12582912.0f

typedef uint16_t u16_anywhere __attribute__((aligned(1), may_alias));
typedef float f32_anywhere __attribute__((aligned(1), may_alias));

INLINE uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

INLINE float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

INLINE float from_bf16(uint16_t x) { return from_bits((uint32_t)x << 16); }

/* Round to nearest, ties to even. All NaN become one: CPUs differ in the NaN they make. */
INLINE uint16_t to_bf16(float x) {
    const uint32_t bits = bits_of(x), rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    return (bits & 0x7fffffffu) > INFINITE ? 0x7fc0u : (uint16_t)(rounded >> 16);
}

/* --- float32 as it is */

void yoked_encode_fp32(const float *values, float *lost, uint8_t *out, int64_t first,
                       int64_t last, int64_t count) {
    (void)count;
    if (!lost) {
        memcpy(out + 4 * first, values + first, 4 * (size_t)(last - first));
        return;
    }
    f32_anywhere *to = (f32_anywhere *)out;
    _Pragma("omp simd") for (int64_t i = first; i < last; i++) {
        to[i] = values[i] + lost[i];
        lost[i] = 0.0f;
    }
}

void yoked_decode_fp32(const uint8_t *in, float *out, int64_t first, int64_t last, int64_t count,
                       int64_t add) {
    (void)count;
    if (!add) {
        memcpy(out + first, in + 4 * first, 4 * (size_t)(last - first));
        return;
    }
    const f32_anywhere *from = (const f32_anywhere *)in;
    _Pragma("omp simd") for (int64_t i = first; i < last; i++) out[i] += from[i];
}

/* --- bf16 */

void yoked_encode_bf16(const float *values, float *lost, uint8_t *out, int64_t first,
                       int64_t last, int64_t count) {
    (void)count;
    u16_anywhere *to = (u16_anywhere *)out;
    if (!lost) {
        _Pragma("omp simd") for (int64_t i = first; i < last; i++) to[i] = to_bf16(values[i]);
        return;
    }
    _Pragma("omp simd") for (int64_t i = first; i < last; i++) {
        const float x = values[i] + lost[i];
        const uint16_t sent = to_bf16(x);
        const float rest = x - from_bf16(sent);
        to[i] = sent;
        lost[i] = (sent & 0x7f80u) == 0x7f80u ? 0.0f : rest;
    }
}

void yoked_decode_bf16(const uint8_t *in, float *out, int64_t first, int64_t last, int64_t count,
                       int64_t add) {
    (void)count;
    const u16_anywhere *from = (const u16_anywhere *)in;
    if (add) {
        _Pragma("omp simd") for (int64_t i = first; i < last; i++) out[i] += from_bf16(from[i]);
    } else {
        _Pragma("omp simd") for (int64_t i = first; i < last; i++) out[i] = from_bf16(from[i]);
    }
}

/* --- blocks with a scale */

/* x = values + lost; returns the bits of the largest |x|, NaN above all. */
INLINE uint32_t load_block(const float *values, const float *lost, float *x, int64_t count) {
    int32_t largest = 0;
    if (lost) {
        _Pragma("omp simd reduction(max : largest)") for (int64_t i = 0; i < count; i++) {
            x[i] = values[i] + lost[i];
            const int32_t size = (int32_t)(bits_of(x[i]) & 0x7fffffffu);
            largest = size > largest ? size : largest;
        }
    } else {
        _Pragma("omp simd reduction(max : largest)") for (int64_t i = 0; i < count; i++) {
            x[i] = values[i];
            const int32_t size = (int32_t)(bits_of(x[i]) & 0x7fffffffu);
            largest = size > largest ? size : largest;
        }
    }
    return (uint32_t)largest;
}

INLINE float at_least_smallest(float scale) {
    return scale < SMALLEST_SCALE ? SMALLEST_SCALE : scale;
}

/* 256 numbers are integers from -127 to 127 times a float32 scale. All scales come first. */
INLINE void encode_int8_block(const float *values, float *lost, uint8_t *scale_out, int8_t *out,
                              int64_t count) {
    float x[INT8_BLOCK];
    const uint32_t largest = load_block(values, lost, x, count);
    if (largest >= INFINITE) {
        const uint32_t nan = 0x7fc00000u;
        memcpy(scale_out, &nan, 4);
        memset(out, 0, (size_t)count);
        if (lost) memset(lost, 0, 4 * (size_t)count);
        return;
    }
    const float scale = at_least_smallest(from_bits(largest) * (1.0f / 127.0f));
    const float inverse = 1.0f / scale;
    memcpy(scale_out, &scale, 4);
    if (lost) {
        _Pragma("omp simd") for (int64_t i = 0; i < count; i++) {
            const float rounded = x[i] * inverse + ROUNDER;
            out[i] = (int8_t)bits_of(rounded);
            lost[i] = x[i] - (rounded - ROUNDER) * scale;
        }
    } else {
        _Pragma("omp simd") for (int64_t i = 0; i < count; i++)
            out[i] = (int8_t)bits_of(x[i] * inverse + ROUNDER);
    }
}

void yoked_encode_int8(const float *values, float *lost, uint8_t *out, int64_t first,
                       int64_t last, int64_t count) {
    const int64_t blocks = (count + INT8_BLOCK - 1) / INT8_BLOCK;
    for (int64_t block = first; block < last; block++) {
        const int64_t at = block * INT8_BLOCK;
        int8_t *to = (int8_t *)out + 4 * blocks + at;
        float *rest = lost ? lost + at : 0;
        if (count - at >= INT8_BLOCK)
            encode_int8_block(values + at, rest, out + 4 * block, to, INT8_BLOCK);
        else
            encode_int8_block(values + at, rest, out + 4 * block, to, count - at);
    }
}

void yoked_decode_int8(const uint8_t *in, float *out, int64_t first, int64_t last, int64_t count,
                       int64_t add) {
    const int64_t blocks = (count + INT8_BLOCK - 1) / INT8_BLOCK;
    for (int64_t block = first; block < last; block++) {
        const int64_t at = block * INT8_BLOCK;
        const int64_t n = count - at < INT8_BLOCK ? count - at : INT8_BLOCK;
        const int8_t *from = (const int8_t *)in + 4 * blocks + at;
        float scale;
        memcpy(&scale, in + 4 * block, 4);
        if (add) {
            _Pragma("omp simd") for (int64_t i = 0; i < n; i++)
                out[at + i] += (float)from[i] * scale;
        } else {
            _Pragma("omp simd") for (int64_t i = 0; i < n; i++)
                out[at + i] = (float)from[i] * scale;
        }
    }
}

/* 64 numbers are integers from -7 to 7 times a bf16 scale. Byte j of a block holds numbers j and
 * j + 32, the first in its low half, each plus 8. The last block is filled up with zeros. */
#define HALF (INT4_BLOCK / 2)

INLINE void encode_int4_block(const float *values, float *lost, u16_anywhere *scale_out,
                              uint8_t *out) {
    float x[INT4_BLOCK];
    const uint32_t largest = load_block(values, lost, x, INT4_BLOCK);
    if (largest >= INFINITE) {
        *scale_out = 0x7fc0u;
        memset(out, 0x88, HALF);
        if (lost) memset(lost, 0, 4 * INT4_BLOCK);
        return;
    }
    *scale_out = to_bf16(at_least_smallest(from_bits(largest) * (1.0f / 7.0f)));
    const float scale = from_bf16(*scale_out), inverse = 1.0f / scale;
    _Pragma("omp simd") for (int j = 0; j < HALF; j++) {
        const float low = x[j] * inverse + ROUNDER, high = x[j + HALF] * inverse + ROUNDER;
        out[j] = (uint8_t)(((bits_of(low) + 8u) & 15u) | (((bits_of(high) + 8u) & 15u) << 4));
        if (lost) {
            lost[j] = x[j] - (low - ROUNDER) * scale;
            lost[j + HALF] = x[j + HALF] - (high - ROUNDER) * scale;
        }
    }
}

void yoked_encode_int4(const float *values, float *lost, uint8_t *out, int64_t first,
                       int64_t last, int64_t count) {
    const int64_t blocks = (count + INT4_BLOCK - 1) / INT4_BLOCK;
    u16_anywhere *scales = (u16_anywhere *)out;
    for (int64_t block = first; block < last; block++) {
        const int64_t at = block * INT4_BLOCK, n = count - at;
        uint8_t *to = out + 2 * blocks + block * HALF;
        if (n >= INT4_BLOCK) {
            if (lost)
                encode_int4_block(values + at, lost + at, scales + block, to);
            else
                encode_int4_block(values + at, 0, scales + block, to);
            continue;
        }
        float tail[INT4_BLOCK] = {0}, rest[INT4_BLOCK] = {0};
        memcpy(tail, values + at, 4 * (size_t)n);
        if (lost) memcpy(rest, lost + at, 4 * (size_t)n);
        encode_int4_block(tail, rest, scales + block, to);
        if (lost) memcpy(lost + at, rest, 4 * (size_t)n);
    }
}

INLINE void decode_int4_block(const uint8_t *in, float scale, float *out, int add) {
    _Pragma("omp simd") for (int j = 0; j < HALF; j++) {
        const float low = (float)((int)(in[j] & 15u) - 8) * scale;
        const float high = (float)((int)(in[j] >> 4) - 8) * scale;
        out[j] = add ? out[j] + low : low;
        out[j + HALF] = add ? out[j + HALF] + high : high;
    }
}

void yoked_decode_int4(const uint8_t *in, float *out, int64_t first, int64_t last, int64_t count,
                       int64_t add) {
    const int64_t blocks = (count + INT4_BLOCK - 1) / INT4_BLOCK;
    const u16_anywhere *scales = (const u16_anywhere *)in;
    for (int64_t block = first; block < last; block++) {
        const int64_t at = block * INT4_BLOCK, n = count - at;
        const uint8_t *from = in + 2 * blocks + block * HALF;
        const float scale = from_bf16(scales[block]);
        if (n >= INT4_BLOCK) {
            if (add)
                decode_int4_block(from, scale, out + at, 1);
            else
                decode_int4_block(from, scale, out + at, 0);
            continue;
        }
        float tail[INT4_BLOCK] = {0};
        if (add) memcpy(tail, out + at, 4 * (size_t)n);
        decode_int4_block(from, scale, tail, add != 0);
        memcpy(out + at, tail, 4 * (size_t)n);
    }
}
