/* Calls every compiled pass on numbers that are the same on each CPU, and writes what came out:
 * a line `NAME f|b|u BYTES`, then the bytes, where f are float32, b bfloat16 and u payloads. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 7
#define WIDTH 96
#define COUNT (ROWS * WIDTH)

typedef uint16_t bf16;
static uint32_t state = 2463534242u;

/* Marsaglia's xorshift, 2003: the same on every CPU. */
static float draw(float scale) {
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    return scale * ((float)(int32_t)state / 2147483648.0f);
}

static void say(const char *name, char kind, const void *data, size_t bytes) {
    printf("%s %c %zu\n", name, kind, bytes);
    fwrite(data, 1, bytes, stdout);
}

#define LOAD_f32(x) (x)
#define LOAD_bf16(x) cut(x)
/* The upper half of a float32 is a bfloat16. */
static bf16 cut(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (bf16)(bits >> 16);
}

#define DECLARE(T, S)                                                                             \
    void yoked_softcap_block_##S(const T *, T *, float *, float *, const int64_t *, int64_t,      \
                                 int64_t, int64_t, int64_t, int64_t);                             \
    void yoked_adamw_##S##_rows(T *, const float *, T *, T *, const int32_t *, const float *,     \
                                int64_t, int64_t, int64_t);                                       \
    void yoked_adamw_##S##_idle_rows(T *, const float *, T *, T *, const int64_t *,               \
                                     const int32_t *, const float *, int64_t, int64_t, int64_t,   \
                                     int64_t, int64_t);                                           \
    void yoked_relu_square_##S(const T *, T *, int64_t, int64_t);                                 \
    void yoked_relu_square_backward_##S(const T *, const T *, T *, int64_t, int64_t);             \
    void yoked_rms_norm_##S(const T *, T *, int64_t, int64_t, int64_t, float);                    \
    void yoked_rms_norm_backward_##S(const T *, const T *, T *, int64_t, int64_t, int64_t, float);\
    void yoked_rotate_norm_##S(const T *, const T *, const T *, T *, const int64_t *, int64_t,    \
                               int64_t, float, float);                                            \
    void yoked_rotate_norm_backward_##S(const T *, const T *, const T *, const T *, T *,          \
                                        const int64_t *, int64_t, int64_t, float, float);         \
    void yoked_mix_##S(const T *, const T *, T *, int64_t, int64_t, float, float);                \
    void yoked_mix_backward_##S(const T *, const T *, const T *, T *, T *, float *, int64_t,      \
                                int64_t, int64_t, float, float);
DECLARE(float, f32)
DECLARE(bf16, bf16)

#define PASSES(T, S, KIND)                                                                        \
    static void passes_##S(void) {                                                                \
        static T x[COUNT], dy[COUNT], y[COUNT], z[COUNT], first[COUNT], second[COUNT], up[COUNT]; \
        static T co[2 * WIDTH], si[2 * WIDTH];                                                    \
        static float gradient[COUNT];                                                             \
        float sums[2 * ROWS] = {0}, row_sum[ROWS] = {0}, target_logit[ROWS] = {0};                \
        for (int i = 0; i < COUNT; i++) {                                                         \
            x[i] = LOAD_##S(draw(3.0f)), dy[i] = LOAD_##S(draw(1.0f));                            \
            z[i] = LOAD_##S(draw(2.0f)), first[i] = LOAD_##S(draw(0.01f));                        \
            second[i] = LOAD_##S(draw(0.5f) + 0.5f), gradient[i] = draw(0.1f);                    \
        }                                                                                         \
        for (int i = 0; i < 2 * WIDTH; i++) co[i] = LOAD_##S(draw(1.0f)), si[i] = LOAD_##S(draw(1.0f)); \
        yoked_relu_square_##S(x, y, 0, COUNT);                                                    \
        say("relu_square_" #S, KIND, y, sizeof y);                                                \
        yoked_relu_square_backward_##S(x, dy, y, 0, COUNT);                                       \
        say("relu_square_backward_" #S, KIND, y, sizeof y);                                       \
        yoked_mix_##S(x, z, y, 0, COUNT, 0.7f, -0.2f);                                            \
        say("mix_" #S, KIND, y, sizeof y);                                                        \
        yoked_mix_backward_##S(x, z, dy, y, up, sums, 0, ROWS, WIDTH, 0.7f, -0.2f);               \
        say("mix_backward_" #S, KIND, y, sizeof y);                                               \
        say("mix_backward_sums_" #S, 'f', sums, sizeof sums);                                     \
        yoked_rms_norm_##S(x, y, 0, ROWS, WIDTH, 1e-6f);                                          \
        say("rms_norm_" #S, KIND, y, sizeof y);                                                   \
        yoked_rms_norm_backward_##S(x, dy, y, 0, ROWS, WIDTH, 1e-6f);                             \
        say("rms_norm_backward_" #S, KIND, y, sizeof y);                                          \
        /* One batch row of ROWS tokens, four heads of 24. */                                     \
        const int64_t shape[7] = {ROWS, 4, 12, WIDTH, COUNT, WIDTH, 24};                          \
        yoked_rotate_norm_##S(x, co, si, y, shape, 0, ROWS, 1e-6f, 1.2f);                         \
        say("rotate_norm_" #S, KIND, y, sizeof y);                                                \
        yoked_rotate_norm_backward_##S(x, co, si, dy, y, shape, 0, ROWS, 1e-6f, 1.2f);            \
        say("rotate_norm_backward_" #S, KIND, y, sizeof y);                                       \
        const int64_t target[ROWS] = {0, 5, 95, 3, 90, 1, 2};                                     \
        yoked_softcap_block_##S(x, y, row_sum, target_logit, target, 0, ROWS, WIDTH, 0, WIDTH - 3);\
        say("softcap_block_" #S, KIND, y, sizeof y);                                              \
        say("softcap_block_sums_" #S, 'f', row_sum, sizeof row_sum);                              \
        const int32_t slot[ROWS] = {3, -1, 0, 1, -1, 2, 4};                                       \
        const float c[6] = {0.999f, 0.1f, 0.05f, 0.14f, 1e-10f, 0.003f};                          \
        yoked_adamw_##S##_rows(x, gradient, first, second, slot, c, 0, ROWS, WIDTH);              \
        say("adamw_" #S, KIND, x, sizeof x);                                                      \
        say("adamw_first_" #S, KIND, first, sizeof first);                                        \
        say("adamw_second_" #S, KIND, second, sizeof second);                                     \
        /* A row that has moved, one whose momentum is nearly gone, and one with a gradient. */   \
        const int64_t idle[2] = {1, 5}, used[1] = {3};                                            \
        const int32_t behind[ROWS] = {0, 3, 0, 2, 0, 3};                                          \
        const float ring[18] = {0.999f, 0.1f, 0.05f, 0.3f, 1e-10f, 0.004f, 0.998f, 0.1f, 0.05f,   \
                                0.1f, 1e-10f, 0.003f, 0.997f, 0.1f, 0.05f, 0.2f, 1e-10f, 0.002f}; \
        for (int i = 5 * WIDTH; i < 6 * WIDTH; i++) memset(first + i, 0, sizeof(T));              \
        yoked_adamw_##S##_idle_rows(x, 0, first, second, idle, behind, ring, 0, 2, WIDTH, 0, 3);  \
        yoked_adamw_##S##_idle_rows(x, gradient, first, second, used, behind, ring, 0, 1, WIDTH,  \
                                    0, 3);                                                        \
        say("adamw_" #S "_idle", KIND, x, sizeof x);                                              \
        say("adamw_" #S "_idle_first", KIND, first, sizeof first);                                \
        say("adamw_" #S "_idle_second", KIND, second, sizeof second);                             \
    }
PASSES(float, f32, 'f')
PASSES(bf16, bf16, 'b')

#define CODEC(NAME, BLOCK)                                                                        \
    void yoked_encode_##NAME(const float *, float *, uint8_t *, int64_t, int64_t, int64_t);       \
    void yoked_decode_##NAME(const uint8_t *, float *, int64_t, int64_t, int64_t, int64_t);       \
    static void codec_##NAME(void) {                                                              \
        static float values[COUNT], lost[COUNT], out[COUNT];                                      \
        static uint8_t payload[8 * COUNT];                                                        \
        for (int i = 0; i < COUNT; i++)                                                           \
            values[i] = draw(i % 13 ? 1.0f : 1e-38f), lost[i] = draw(0.01f), out[i] = draw(1.0f); \
        values[COUNT - 1] = 1.0f / 0.0f; /* a block that is not finite */                         \
        const int64_t last = (COUNT + BLOCK - 1) / BLOCK;                                         \
        yoked_encode_##NAME(values, lost, payload, 0, last, COUNT);                               \
        say("encode_" #NAME, 'u', payload, sizeof payload);                                       \
        say("encode_lost_" #NAME, 'u', lost, sizeof lost);                                        \
        yoked_decode_##NAME(payload, out, 0, last, COUNT, 1);                                     \
        /* CPUs differ in the sign of the NaN that they make. */                                  \
        for (int i = 0; i < COUNT; i++)                                                           \
            if (out[i] != out[i]) out[i] = 0.0f;                                                  \
        say("decode_" #NAME, 'u', out, sizeof out);                                               \
    }
CODEC(fp32, 1)
CODEC(bf16, 1)
CODEC(int8, 256)
CODEC(int4, 64)

int main(void) {
    passes_f32();
    passes_bf16();
    codec_fp32();
    codec_bf16();
    codec_int8();
    codec_int4();
    return 0;
}
