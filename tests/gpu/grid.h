/* What the source of CUDA kernels needs to be compiled for a CPU. A grid is a loop over its blocks;
 * where threads of a block wait for each other, each is a thread here too. */
#include <pthread.h>
#include <string.h>
#include <thread>
#include <vector>

#define THREADS 256
#define __global__
#define __device__
#define __shared__ static /* one block runs at a time */
struct index { unsigned x; };
static thread_local struct index blockIdx, threadIdx, blockDim = {THREADS};
static pthread_barrier_t barrier;

static inline void __syncthreads() { pthread_barrier_wait(&barrier); }

static inline void atomicMax(unsigned *to, unsigned x) {
    unsigned before = *(volatile unsigned *)to;
    while (before < x && !__sync_bool_compare_and_swap(to, before, x)) before = *(volatile unsigned *)to;
}

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

template <typename... Args>
static void launch(unsigned blocks, bool together, void (*kernel)(Args...), Args... args) {
    if (!together) {
        for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
            for (threadIdx.x = 0; threadIdx.x < THREADS; threadIdx.x++) kernel(args...);
        return;
    }
    pthread_barrier_init(&barrier, nullptr, THREADS);
    std::vector<std::thread> threads;
    for (unsigned thread = 0; thread < THREADS; thread++)
        threads.emplace_back([=] {
            threadIdx.x = thread;
            for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
                kernel(args...);
                __syncthreads(); /* the next block has the same shared memory */
            }
        });
    for (auto &thread : threads) thread.join();
    pthread_barrier_destroy(&barrier);
}

#define RUN_ADAMW(NAME, TYPE)                                                                   \
    extern "C" void run_##NAME(unsigned blocks, TYPE *p, const float *g, TYPE *m, TYPE *v,      \
                               const int *slot, const float *c, int rows, int width,            \
                               int has_slots) {                                                 \
        launch(blocks, false, NAME, p, g, m, v, slot, c, rows, width, has_slots);               \
    }
#define RUN_ENCODE(NAME, TOGETHER)                                                              \
    extern "C" void run_##NAME(unsigned blocks, const float *values, float *lost,               \
                               unsigned char *out, int count, int feeds_back) {                 \
        launch(blocks, TOGETHER, NAME, values, lost, out, count, feeds_back);                   \
    }
#define RUN_DECODE(NAME)                                                                        \
    extern "C" void run_##NAME(unsigned blocks, const unsigned char *in, float *out, int count, \
                               int add) {                                                       \
        launch(blocks, false, NAME, in, out, count, add);                                       \
    }
