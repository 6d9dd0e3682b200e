/* Elementwise passes that PyTorch would make one by one over data that no longer fits a cache.
 *
 * Compiled once per host type by yoked.train.kernels with -ffp-contract=off: the optimizer's
 * arithmetic is IEEE add, multiply, divide and square root in a fixed order, so that unlike
 * CPUs compute the same bits. Fused multiply-add appears only where it is written.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bf16;

static inline float from_bf16(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* Round to nearest, ties to even; NaN stays NaN. */
static inline bf16 to_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    return (bits & 0x7fffffffu) > 0x7f800000u ? (bf16)((bits >> 16) | 0x40u) : (bf16)(rounded >> 16);
}

static inline float multiply_add(float a, float b, float c) {
#ifdef __FMA__
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* exp(x) for |x| <= 87, to about one unit in the last place. */
static inline float exp_f32(float x) {
    float n = __builtin_rintf(x * 1.44269504f);
    float r = multiply_add(n, -0.693145752f, x);
    r = multiply_add(n, -1.42860677e-6f, r);
    float p = 1.38888889e-3f;
    p = multiply_add(p, r, 8.33333333e-3f);
    p = multiply_add(p, r, 4.16666667e-2f);
    p = multiply_add(p, r, 1.66666667e-1f);
    p = multiply_add(p, r, 0.5f);
    p = multiply_add(p, r, 1.0f);
    p = multiply_add(p, r, 1.0f);
    int32_t bits = ((int32_t)n + 127) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return p * scale;
}

/* One block of logits: row sums of exp(15 tanh(x/15)), the raw logit of each row's target where
 * it lies in this block, and, if asked for, the unnormalised gradient exp(15t) * (1 - t^2),
 * t = tanh(x/15). No running maximum is needed: the softcap bounds the exponent by 15. */
#define SOFTCAP_BLOCK(NAME, TYPE, LOAD, STORE)                                                  \
    void NAME(const TYPE *logits, TYPE *gradient, float *row_sum, float *target_logit,          \
              const int64_t *target, int64_t first_column, int64_t rows, int64_t columns,       \
              int64_t valid_columns) {                                                          \
        for (int64_t r = 0; r < rows; r++) {                                                    \
            const TYPE *in = logits + r * columns;                                              \
            float sum = 0.0f;                                                                   \
            int64_t y = target[r] - first_column;                                               \
            if (y >= 0 && y < valid_columns) target_logit[r] = LOAD(in[y]);                     \
            if (gradient) {                                                                     \
                TYPE *out = gradient + r * columns;                                             \
                _Pragma("omp simd reduction(+ : sum)") for (int64_t c = 0; c < valid_columns;   \
                                                            c++) {                              \
                    float x = LOAD(in[c]) * (2.0f / 15.0f);                                     \
                    x = x > 80.0f ? 80.0f : x;                                                  \
                    x = x < -80.0f ? -80.0f : x;                                                \
                    float a = exp_f32(x);                                                       \
                    float inverse = 1.0f / (a + 1.0f);                                          \
                    float e = exp_f32(15.0f - 30.0f * inverse);                                 \
                    sum += e;                                                                   \
                    out[c] = STORE(4.0f * e * (inverse - inverse * inverse));                   \
                }                                                                               \
                for (int64_t c = valid_columns; c < columns; c++) out[c] = STORE(0.0f);         \
            } else {                                                                            \
                _Pragma("omp simd reduction(+ : sum)") for (int64_t c = 0; c < valid_columns;   \
                                                            c++) {                              \
                    float x = LOAD(in[c]) * (2.0f / 15.0f);                                     \
                    x = x > 80.0f ? 80.0f : x;                                                  \
                    x = x < -80.0f ? -80.0f : x;                                                \
                    float inverse = 1.0f / (exp_f32(x) + 1.0f);                                 \
                    sum += exp_f32(15.0f - 30.0f * inverse);                                    \
                }                                                                               \
            }                                                                                   \
            row_sum[r] += sum;                                                                  \
        }                                                                                       \
    }

#define KEEP(x) (x)
SOFTCAP_BLOCK(yoked_softcap_block_f32, float, KEEP, KEEP)
SOFTCAP_BLOCK(yoked_softcap_block_bf16, bf16, from_bf16, to_bf16)

/* AdamW, decoupled weight decay applied first, on `count` consecutive elements. */
#define ADAMW(NAME, TYPE, LOAD, STORE)                                                          \
    static inline __attribute__((always_inline)) void NAME(                                     \
        TYPE *p, const float *gradient, TYPE *first, TYPE *second, int64_t count,               \
        const float *c, const int has_gradient) {                                               \
        const float keep = c[0], one_minus_beta1 = c[1], one_minus_beta2 = c[2];                \
        const float bias2 = c[3], eps = c[4], step_size = c[5];                                 \
        _Pragma("omp simd") for (int64_t i = 0; i < count; i++) {                               \
            float g = has_gradient ? gradient[i] : 0.0f;                                        \
            float m = LOAD(first[i]), v = LOAD(second[i]);                                      \
            m = m + one_minus_beta1 * (g - m);                                                  \
            v = v + one_minus_beta2 * (g * g - v);                                              \
            float update = m / (__builtin_sqrtf(v / bias2) + eps);                              \
            p[i] = STORE(LOAD(p[i]) * keep - step_size * update);                               \
            first[i] = STORE(m);                                                                \
            second[i] = STORE(v);                                                               \
        }                                                                                       \
    }                                                                                           \
    /* Rows [start, stop) of a table; slot[row] is the row's place in `gradient`, or -1. */     \
    void yoked_##NAME##_rows(TYPE *p, const float *gradient, TYPE *first, TYPE *second,         \
                             const int32_t *slot, int64_t start, int64_t stop, int64_t width,   \
                             const float *c) {                                                  \
        for (int64_t row = start; row < stop; row++) {                                          \
            const int64_t at = row * width;                                                     \
            const float *g = slot ? (slot[row] < 0 ? 0 : gradient + slot[row] * width)          \
                                  : gradient + at;                                              \
            /* Two loops: one with the choice inside is not vectorised for bf16. */             \
            if (g)                                                                              \
                NAME(p + at, g, first + at, second + at, width, c, 1);                          \
            else                                                                                \
                NAME(p + at, 0, first + at, second + at, width, c, 0);                          \
        }                                                                                       \
    }

ADAMW(adamw_f32, float, KEEP, KEEP)
ADAMW(adamw_bf16, bf16, from_bf16, to_bf16)

/* relu(x)^2 and its gradient, one pass each; NaN stays NaN, as in PyTorch. */
#define RELU_SQUARE(NAME, TYPE, LOAD, STORE)                                                    \
    void yoked_relu_square_##NAME(const TYPE *x, TYPE *y, int64_t count) {                      \
        _Pragma("omp simd") for (int64_t i = 0; i < count; i++) {                               \
            float a = LOAD(x[i]);                                                               \
            a = a < 0.0f ? 0.0f : a;                                                            \
            y[i] = STORE(a * a);                                                                \
        }                                                                                       \
    }                                                                                           \
    void yoked_relu_square_backward_##NAME(const TYPE *x, const TYPE *dy, TYPE *dx,             \
                                           int64_t count) {                                     \
        _Pragma("omp simd") for (int64_t i = 0; i < count; i++) {                               \
            float a = LOAD(x[i]);                                                               \
            a = a < 0.0f ? 0.0f : a;                                                            \
            dx[i] = STORE(2.0f * a * LOAD(dy[i]));                                              \
        }                                                                                       \
    }

RELU_SQUARE(f32, float, KEEP, KEEP)
RELU_SQUARE(bf16, bf16, from_bf16, to_bf16)
