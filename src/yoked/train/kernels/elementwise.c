/* Elementwise passes that PyTorch would make one by one over data that no longer fits a cache.
 *
 * Compiled once per host type by yoked.train.kernels with -ffp-contract=off: the optimizer's
 * arithmetic is IEEE add, multiply, divide and square root in a fixed order, so that unlike
 * CPUs compute the same bits. Fused multiply-add appears only where it is written.
 *
 * Every function takes the addresses of whole tensors, then the rows [start, stop) that it is to
 * work on (elements, where there are no rows), then numbers: as `_FUNCTIONS` in __init__.py says.
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

/* tanh(y) for |y| <= 1.4 to 1e-8 (and its slope, 1 - tanh^2): y times a polynomial in y^2 (Chebyshev fit of tanh(y) / y). */
static inline float tanh_small(float y, float *slope) {
    float z = y * y;
    float p = -1.061404467e-05f;
    p = multiply_add(p, z, 1.294519412e-04f);
    p = multiply_add(p, z, -7.459859896e-04f);
    p = multiply_add(p, z, 2.815166903e-03f);
    p = multiply_add(p, z, -8.289698689e-03f);
    p = multiply_add(p, z, 2.159882326e-02f);
    p = multiply_add(p, z, -5.389267223e-02f);
    p = multiply_add(p, z, 1.333224081e-01f);
    p = multiply_add(p, z, -3.333327128e-01f);
    p = multiply_add(p, z, 9.999999941e-01f);
    float t = y * p;
    *slope = 1.0f - t * t;
    return t;
}

/* tanh(y) for any y: 1 - 2 / (exp(2y) + 1); its slope so that large |y| lose no digits. */
static inline float tanh_any(float y, float *slope) {
    float x = 2.0f * y;
    x = x > 80.0f ? 80.0f : x;
    x = x < -80.0f ? -80.0f : x;
    float inverse = 1.0f / (exp_f32(x) + 1.0f);
    *slope = 4.0f * (inverse - inverse * inverse);
    return 1.0f - 2.0f * inverse;
}

/* One block of logits: row sums of exp(15 tanh(x/15)), the raw logit of each row's target where
 * it lies in this block, and, if asked for, the unnormalised gradient exp(15t) * (1 - t^2),
 * t = tanh(x/15). No running maximum is needed: the softcap bounds the exponent by 15.
 * A piece of a row whose logits are all below 21 takes the polynomial, which needs no division. */
#define PIECE 256
#define SIZE_BELOW 21.0f

/* Bits that are ordered like |x|, with NaN above all. */
static inline uint32_t size_f32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits & 0x7fffffffu;
}

static inline bf16 size_bf16(bf16 x) { return x & 0x7fffu; }

#define SOFTCAP_PIECE(NAME, TYPE, LOAD, STORE, TANH)                                            \
    static inline float NAME(const TYPE *in, TYPE *out, int64_t count) {                        \
        float sum = 0.0f;                                                                       \
        if (out) {                                                                              \
            _Pragma("omp simd reduction(+ : sum)") for (int64_t c = 0; c < count; c++) {        \
                float slope;                                                                    \
                float e = exp_f32(15.0f * TANH(LOAD(in[c]) * (1.0f / 15.0f), &slope));          \
                sum += e;                                                                       \
                out[c] = STORE(e * slope);                                                      \
            }                                                                                   \
        } else {                                                                                \
            _Pragma("omp simd reduction(+ : sum)") for (int64_t c = 0; c < count; c++) {        \
                float slope;                                                                    \
                sum += exp_f32(15.0f * TANH(LOAD(in[c]) * (1.0f / 15.0f), &slope));             \
            }                                                                                   \
        }                                                                                       \
        return sum;                                                                             \
    }

#define SOFTCAP_BLOCK(NAME, TYPE, BITS, SIZE, LOAD, STORE)                                                  \
    SOFTCAP_PIECE(NAME##_small, TYPE, LOAD, STORE, tanh_small)                                  \
    SOFTCAP_PIECE(NAME##_any, TYPE, LOAD, STORE, tanh_any)                                      \
    void NAME(const TYPE *logits, TYPE *gradient, float *row_sum, float *target_logit,          \
              const int64_t *target, int64_t start, int64_t stop, int64_t columns,              \
              int64_t first_column, int64_t valid_columns) {                                    \
        for (int64_t r = start; r < stop; r++) {                                                \
            const TYPE *in = logits + r * columns;                                              \
            TYPE *out = gradient ? gradient + r * columns : 0;                                  \
            float sum = 0.0f;                                                                   \
            int64_t y = target[r] - first_column;                                               \
            if (y >= 0 && y < valid_columns) target_logit[r] = LOAD(in[y]);                     \
            for (int64_t at = 0; at < valid_columns; at += PIECE) {                             \
                int64_t count = valid_columns - at < PIECE ? valid_columns - at : PIECE;        \
                BITS largest = 0;                                                               \
                _Pragma("omp simd reduction(max : largest)") for (int64_t c = 0; c < count;     \
                                                                  c++) {                        \
                    BITS size = SIZE(in[at + c]);                                               \
                    largest = size > largest ? size : largest;                                  \
                }                                                                               \
                TYPE *to = out ? out + at : 0;                                                  \
                sum += largest < SIZE(STORE(SIZE_BELOW)) ? NAME##_small(in + at, to, count)                       \
                                       : NAME##_any(in + at, to, count);                        \
            }                                                                                   \
            if (out)                                                                            \
                for (int64_t c = valid_columns; c < columns; c++) out[c] = STORE(0.0f);         \
            row_sum[r] += sum;                                                                  \
        }                                                                                       \
    }

#define KEEP(x) (x)
SOFTCAP_BLOCK(yoked_softcap_block_f32, float, uint32_t, size_f32, KEEP, KEEP)
SOFTCAP_BLOCK(yoked_softcap_block_bf16, bf16, bf16, size_bf16, from_bf16, to_bf16)

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
    /* Rows [start, stop) of a table; slot[row] is the row's place in `gradient`, or -1 for a   \
     * gradient of zero. */                                                                     \
    void yoked_##NAME##_rows(TYPE *p, const float *gradient, TYPE *first, TYPE *second,         \
                             const int32_t *slot, const float *c, int64_t start, int64_t stop,  \
                             int64_t width) {                                                   \
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

/* The same for some rows of a table that are steps behind: those steps, whose gradient was zero, one
 * after the other; with `gradient`, whose row i is that of rows[i], the newest step has it.
 * behind[row]: steps; ring: what each of the last `length` steps multiplied with. Between two steps
 * numbers are rounded to the table's type, as if they had been stored.
 *
 * A weight stands still once its momentum moves it by less than a quarter of the distance to the
 * next float: only its decay goes on, and the root and the divisions need not be computed. Without
 * gradients a momentum falls faster than the root of its second moment, so from then on it stays so.
 * `most` bounds what can grow: the step size, and the correction of the second moment. A momentum
 * that is so small that rounding keeps it from falling moves no weight of STILL_ABOVE. */
enum { IDLE_BLOCK = 64 };
#define STILL_BELOW 0x1p-26f
#define STILL_ABOVE 1e-18f
#define ADAMW_IDLE(NAME, TYPE, LOAD, STORE)                                                     \
    static inline __attribute__((always_inline)) void NAME##_idle(                              \
        TYPE *p, TYPE *first, TYPE *second, int64_t count, const float *ring, int64_t begin,    \
        int64_t steps, int64_t length, const float *grows) {                                    \
        float w[IDLE_BLOCK], m[IDLE_BLOCK], v[IDLE_BLOCK];                                      \
        int moves = 1;                                                                          \
        _Pragma("omp simd") for (int64_t i = 0; i < count; i++)                                 \
            w[i] = LOAD(p[i]), m[i] = LOAD(first[i]), v[i] = LOAD(second[i]);                   \
        for (int64_t s = 0, at = begin; s < steps; s++, at = at + 1 < length ? at + 1 : 0) {    \
            const float *c = ring + at * 6;                                                     \
            const float keep = c[0], one_minus_beta1 = c[1], one_minus_beta2 = c[2];            \
            const float bias2 = c[3], eps = c[4], step_size = c[5];                             \
            if (!moves) {                                                                       \
                _Pragma("omp simd") for (int64_t i = 0; i < count; i++) {                       \
                    w[i] = LOAD(STORE(w[i] * keep));                                            \
                    m[i] = LOAD(STORE(m[i] + one_minus_beta1 * (0.0f - m[i])));                 \
                    v[i] = LOAD(STORE(v[i] + one_minus_beta2 * (0.0f - v[i])));                 \
                }                                                                               \
                continue;                                                                       \
            }                                                                                   \
            const float most = grows[at];                                                       \
            moves = 0;                                                                          \
            _Pragma("omp simd reduction(| : moves)") for (int64_t i = 0; i < count; i++) {      \
                float a = m[i] + one_minus_beta1 * (0.0f - m[i]);                               \
                float b = v[i] + one_minus_beta2 * (0.0f - v[i]);                               \
                float update = a / (__builtin_sqrtf(b / bias2) + eps), kept = w[i] * keep;      \
                float size = __builtin_fabsf(kept);                                             \
                moves |= !(__builtin_fabsf(update) * most < size * STILL_BELOW) |               \
                         !(size > STILL_ABOVE);                                                 \
                w[i] = LOAD(STORE(kept - step_size * update));                                  \
                m[i] = LOAD(STORE(a));                                                          \
                v[i] = LOAD(STORE(b));                                                          \
            }                                                                                   \
        }                                                                                       \
        _Pragma("omp simd") for (int64_t i = 0; i < count; i++)                                 \
            p[i] = STORE(w[i]), first[i] = STORE(m[i]), second[i] = STORE(v[i]);                \
    }                                                                                           \
    void yoked_##NAME##_idle_rows(TYPE *p, const float *gradient, TYPE *first, TYPE *second,    \
                                  const int64_t *rows, const int32_t *behind,                   \
                                  const float *ring, int64_t start, int64_t stop,               \
                                  int64_t width, int64_t newest, int64_t length) {              \
        float most_step = 0.0f;                                                                 \
        for (int64_t s = 0; s < length; s++)                                                    \
            most_step = ring[s * 6 + 5] > most_step ? ring[s * 6 + 5] : most_step;              \
        float grows[length];                                                                    \
        for (int64_t s = 0; s < length; s++)                                                    \
            grows[s] = most_step * __builtin_sqrtf(ring[newest * 6 + 3] / ring[s * 6 + 3]);     \
        for (int64_t i = start; i < stop; i++) {                                                \
            const int64_t at = rows[i] * width, steps = behind[rows[i]] - (gradient != 0);      \
            const int64_t first_step = newest + 1 - behind[rows[i]];                            \
            const int64_t begin = first_step < 0 ? first_step + length : first_step;            \
            for (int64_t c = 0; steps > 0 && c < width; c += IDLE_BLOCK) {                      \
                if (width - c >= IDLE_BLOCK)                                                    \
                    NAME##_idle(p + at + c, first + at + c, second + at + c, IDLE_BLOCK, ring,  \
                                begin, steps, length, grows);                                   \
                else                                                                            \
                    NAME##_idle(p + at + c, first + at + c, second + at + c, width - c, ring,   \
                                begin, steps, length, grows);                                   \
            }                                                                                   \
            if (gradient)                                                                       \
                NAME(p + at, gradient + i * width, first + at, second + at, width,              \
                     ring + newest * 6, 1);                                                     \
        }                                                                                       \
    }

ADAMW_IDLE(adamw_f32, float, KEEP, KEEP)
ADAMW_IDLE(adamw_bf16, bf16, from_bf16, to_bf16)

/* relu(x)^2 and its gradient, one pass each; NaN stays NaN, as in PyTorch. */
#define RELU_SQUARE(NAME, TYPE, LOAD, STORE)                                                    \
    void yoked_relu_square_##NAME(const TYPE *x, TYPE *y, int64_t start, int64_t stop) {        \
        _Pragma("omp simd") for (int64_t i = start; i < stop; i++) {                            \
            float a = LOAD(x[i]);                                                               \
            a = a < 0.0f ? 0.0f : a;                                                            \
            y[i] = STORE(a * a);                                                                \
        }                                                                                       \
    }                                                                                           \
    void yoked_relu_square_backward_##NAME(const TYPE *x, const TYPE *dy, TYPE *dx,             \
                                           int64_t start, int64_t stop) {                       \
        _Pragma("omp simd") for (int64_t i = start; i < stop; i++) {                            \
            float a = LOAD(x[i]);                                                               \
            a = a < 0.0f ? 0.0f : a;                                                            \
            dx[i] = STORE(2.0f * a * LOAD(dy[i]));                                              \
        }                                                                                       \
    }

RELU_SQUARE(f32, float, KEEP, KEEP)
RELU_SQUARE(bf16, bf16, from_bf16, to_bf16)

/* RMS norm of rows: y = x / sqrt(mean(x^2) + eps). With s = 1 / sqrt(mean(x^2) + eps), its
 * gradient is s * (dy - x * s^2 * mean(dy * x)). Sums are float32 in either type. */
#define RMS_NORM(NAME, TYPE, LOAD, STORE)                                                       \
    void yoked_rms_norm_##NAME(const TYPE *x, TYPE *y, int64_t start, int64_t stop,             \
                               int64_t width, float eps) {                                      \
        x += start * width;                                                                     \
        y += start * width;                                                                     \
        for (int64_t r = start; r < stop; r++, x += width, y += width) {                        \
            float squares = 0.0f;                                                               \
            _Pragma("omp simd reduction(+ : squares)") for (int64_t c = 0; c < width; c++)      \
                squares += LOAD(x[c]) * LOAD(x[c]);                                             \
            const float s = 1.0f / __builtin_sqrtf(squares / (float)width + eps);               \
            _Pragma("omp simd") for (int64_t c = 0; c < width; c++)                             \
                y[c] = STORE(LOAD(x[c]) * s);                                                   \
        }                                                                                       \
    }                                                                                           \
    void yoked_rms_norm_backward_##NAME(const TYPE *x, const TYPE *dy, TYPE *dx, int64_t start, \
                                        int64_t stop, int64_t width, float eps) {               \
        x += start * width;                                                                     \
        dy += start * width;                                                                    \
        dx += start * width;                                                                    \
        for (int64_t r = start; r < stop; r++, x += width, dy += width, dx += width) {          \
            float squares = 0.0f, dot = 0.0f;                                                   \
            _Pragma("omp simd reduction(+ : squares, dot)") for (int64_t c = 0; c < width;      \
                                                                 c++) {                         \
                squares += LOAD(x[c]) * LOAD(x[c]);                                             \
                dot += LOAD(x[c]) * LOAD(dy[c]);                                                \
            }                                                                                   \
            const float s = 1.0f / __builtin_sqrtf(squares / (float)width + eps);               \
            const float along = s * s * dot / (float)width;                                     \
            _Pragma("omp simd") for (int64_t c = 0; c < width; c++)                             \
                dx[c] = STORE(s * (LOAD(dy[c]) - LOAD(x[c]) * along));                          \
        }                                                                                       \
    }

RMS_NORM(f32, float, KEEP, KEEP)
RMS_NORM(bf16, bf16, from_bf16, to_bf16)

/* Queries or keys: rotate the halves (a, b) of each head by its token's angles to
 * r = (a cos + b sin, b cos - a sin), then RMS norm times `scale`.
 * x is (B, T, H, 2*half) whose tokens lie `x_token` apart; tokens [start, stop) of the B*T.
 * y (and dy) may have any strides over batch, token and head; dx is contiguous. */
#define ROTATE_NORM(NAME, TYPE, LOAD, STORE)                                                    \
    void yoked_rotate_norm_##NAME(const TYPE *x, const TYPE *cos, const TYPE *sin, TYPE *y,     \
                                  const int64_t *shape, int64_t start, int64_t stop,            \
                                  float eps, float scale) {                                     \
        const int64_t T = shape[0], H = shape[1], half = shape[2], x_token = shape[3];          \
        const int64_t y_batch = shape[4], y_token = shape[5], y_head = shape[6];                \
        for (int64_t token = start; token < stop; token++) {                                    \
            const int64_t t = token % T;                                                        \
            const TYPE *co = cos + t * half, *si = sin + t * half;                              \
            for (int64_t h = 0; h < H; h++) {                                                   \
                const TYPE *a = x + token * x_token + h * 2 * half, *b = a + half;              \
                TYPE *to = y + token / T * y_batch + t * y_token + h * y_head;                  \
                float squares = 0.0f;                                                           \
                _Pragma("omp simd reduction(+ : squares)") for (int64_t d = 0; d < half; d++) { \
                    float first = LOAD(a[d]) * LOAD(co[d]) + LOAD(b[d]) * LOAD(si[d]);          \
                    float second = LOAD(b[d]) * LOAD(co[d]) - LOAD(a[d]) * LOAD(si[d]);         \
                    squares += first * first + second * second;                                 \
                }                                                                               \
                const float s = scale / __builtin_sqrtf(squares / (float)(2 * half) + eps);     \
                _Pragma("omp simd") for (int64_t d = 0; d < half; d++) {                        \
                    float first = LOAD(a[d]) * LOAD(co[d]) + LOAD(b[d]) * LOAD(si[d]);          \
                    float second = LOAD(b[d]) * LOAD(co[d]) - LOAD(a[d]) * LOAD(si[d]);         \
                    to[d] = STORE(first * s);                                                   \
                    to[half + d] = STORE(second * s);                                           \
                }                                                                               \
            }                                                                                   \
        }                                                                                       \
    }                                                                                           \
    void yoked_rotate_norm_backward_##NAME(const TYPE *x, const TYPE *cos, const TYPE *sin,     \
                                           const TYPE *dy, TYPE *dx, const int64_t *shape,      \
                                           int64_t start, int64_t stop, float eps,              \
                                           float scale) {                                       \
        const int64_t T = shape[0], H = shape[1], half = shape[2], x_token = shape[3];          \
        const int64_t y_batch = shape[4], y_token = shape[5], y_head = shape[6];                \
        for (int64_t token = start; token < stop; token++) {                                    \
            const int64_t t = token % T;                                                        \
            const TYPE *co = cos + t * half, *si = sin + t * half;                              \
            for (int64_t h = 0; h < H; h++) {                                                   \
                const TYPE *a = x + token * x_token + h * 2 * half, *b = a + half;              \
                const TYPE *up = dy + token / T * y_batch + t * y_token + h * y_head;           \
                TYPE *da = dx + (token * H + h) * 2 * half, *db = da + half;                    \
                float squares = 0.0f, dot = 0.0f;                                               \
                _Pragma("omp simd reduction(+ : squares, dot)") for (int64_t d = 0; d < half;   \
                                                                     d++) {                     \
                    float first = LOAD(a[d]) * LOAD(co[d]) + LOAD(b[d]) * LOAD(si[d]);          \
                    float second = LOAD(b[d]) * LOAD(co[d]) - LOAD(a[d]) * LOAD(si[d]);         \
                    squares += first * first + second * second;                                 \
                    dot += first * LOAD(up[d]) + second * LOAD(up[half + d]);                   \
                }                                                                               \
                const float s = 1.0f / __builtin_sqrtf(squares / (float)(2 * half) + eps);      \
                const float along = s * s * dot / (float)(2 * half);                            \
                _Pragma("omp simd") for (int64_t d = 0; d < half; d++) {                        \
                    float first = LOAD(a[d]) * LOAD(co[d]) + LOAD(b[d]) * LOAD(si[d]);          \
                    float second = LOAD(b[d]) * LOAD(co[d]) - LOAD(a[d]) * LOAD(si[d]);         \
                    first = scale * s * (LOAD(up[d]) - first * along);                          \
                    second = scale * s * (LOAD(up[half + d]) - second * along);                 \
                    da[d] = STORE(first * LOAD(co[d]) - second * LOAD(si[d]));                  \
                    db[d] = STORE(first * LOAD(si[d]) + second * LOAD(co[d]));                  \
                }                                                                               \
            }                                                                                   \
        }                                                                                       \
    }

ROTATE_NORM(f32, float, KEEP, KEEP)
ROTATE_NORM(bf16, bf16, from_bf16, to_bf16)

/* y = a x + b z, and what its gradient needs: dx = a dy, dz = b dy, and for each row the sums
 * dy.x and dy.z, of which da and db are the totals. */
#define MIX(NAME, TYPE, LOAD, STORE)                                                            \
    void yoked_mix_##NAME(const TYPE *x, const TYPE *z, TYPE *y, int64_t start, int64_t stop,   \
                          float a, float b) {                                                   \
        _Pragma("omp simd") for (int64_t i = start; i < stop; i++)                              \
            y[i] = STORE(a * LOAD(x[i]) + b * LOAD(z[i]));                                      \
    }                                                                                           \
    void yoked_mix_backward_##NAME(const TYPE *x, const TYPE *z, const TYPE *dy, TYPE *dx,      \
                                   TYPE *dz, float *sums, int64_t start, int64_t stop,          \
                                   int64_t width, float a, float b) {                           \
        x += start * width;                                                                     \
        z += start * width;                                                                     \
        dy += start * width;                                                                    \
        dx += start * width;                                                                    \
        dz += start * width;                                                                    \
        for (int64_t r = start; r < stop; r++, x += width, z += width, dy += width,             \
                     dx += width, dz += width) {                                                \
            float with_x = 0.0f, with_z = 0.0f;                                                 \
            _Pragma("omp simd reduction(+ : with_x, with_z)") for (int64_t c = 0; c < width;    \
                                                                   c++) {                       \
                const float up = LOAD(dy[c]);                                                   \
                with_x += up * LOAD(x[c]);                                                      \
                with_z += up * LOAD(z[c]);                                                      \
                dx[c] = STORE(a * up);                                                          \
                dz[c] = STORE(b * up);                                                          \
            }                                                                                   \
            sums[2 * r] = with_x;                                                               \
            sums[2 * r + 1] = with_z;                                                           \
        }                                                                                       \
    }

MIX(f32, float, KEEP, KEEP)
MIX(bf16, bf16, from_bf16, to_bf16)
