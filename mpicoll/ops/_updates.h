/* How gradients change weights, in one pass and without temporaries.

   Element by element, each operation rounded once and in the order of the NumPy statements in
   mpicoll/train/optimizers.py: the results have the same bits, whatever the instruction set. Built
   with -fno-math-errno, or roots would be taken one by one. */

#ifndef MPICOLL_UPDATES_H
#define MPICOLL_UPDATES_H

#include <math.h>
#include <stddef.h>

#include "_kernels.h"

/* velocity is NULL where there is no momentum. */
#define UPDATE_SGD(TARGET, name, T) \
    TARGET static void name(T *restrict w, const T *restrict g, T *restrict velocity, ptrdiff_t n, \
                            T lr, T momentum, T decay, int nesterov) \
    { \
        if (velocity == NULL) { \
            for (ptrdiff_t i = 0; i < n; i++) \
                w[i] -= (decay != 0 ? g[i] + decay * w[i] : g[i]) * lr; \
            return; \
        } \
        for (ptrdiff_t i = 0; i < n; i++) { \
            const T slope = decay != 0 ? g[i] + decay * w[i] : g[i]; \
            const T v = velocity[i] * momentum + slope; \
            velocity[i] = v; \
            w[i] -= (nesterov ? slope + momentum * v : v) * lr; \
        } \
    }

/* keep: factor of the weights (decoupled decay); rest: what beta leaves; correction: divides the
   mean of squares; rate: learning rate, corrected for the mean of slopes. */
#define UPDATE_ADAM(TARGET, name, T, ROOT) \
    TARGET static void name(T *restrict w, const T *restrict g, T *restrict mean, \
                            T *restrict square, ptrdiff_t n, T keep, T decay, T beta1, T rest1, \
                            T beta2, T rest2, T correction, T epsilon, T rate) \
    { \
        for (ptrdiff_t i = 0; i < n; i++) { \
            const T slope = decay != 0 ? g[i] + decay * w[i] : g[i]; \
            const T m = mean[i] * beta1 + rest1 * slope; \
            const T s = square[i] * beta2 + slope * slope * rest2; \
            mean[i] = m; \
            square[i] = s; \
            w[i] = w[i] * keep - m / (ROOT(s / correction) + epsilon) * rate; \
        } \
    }

#define UPDATES(TARGET, level) \
    UPDATE_SGD(TARGET, sgd_f32_##level, float) \
    UPDATE_SGD(TARGET, sgd_f64_##level, double) \
    UPDATE_ADAM(TARGET, adam_f32_##level, float, sqrtf) \
    UPDATE_ADAM(TARGET, adam_f64_##level, double, sqrt)

UPDATES(, baseline)
/* By number of the level; what computes little gains nothing from wider vectors than AVX2's. */
#if defined(__x86_64__)
UPDATES(__attribute__((target("avx2"))), avx2)
#define AT_LEVEL(level, name) (level > 0 ? name##_avx2 : name##_baseline)
#else
#define AT_LEVEL(level, name) name##_baseline
#endif

static void update_sgd_f32(int level, float *w, const float *g, float *velocity, ptrdiff_t n,
                           float lr, float momentum, float decay, int nesterov)
{
    AT_LEVEL(level, sgd_f32)(w, g, velocity, n, lr, momentum, decay, nesterov);
}

static void update_sgd_f64(int level, double *w, const double *g, double *velocity, ptrdiff_t n,
                           double lr, double momentum, double decay, int nesterov)
{
    AT_LEVEL(level, sgd_f64)(w, g, velocity, n, lr, momentum, decay, nesterov);
}

static void update_adam_f32(int level, float *w, const float *g, float *mean, float *square,
                            ptrdiff_t n, float keep, float decay, float beta1, float rest1,
                            float beta2, float rest2, float correction, float epsilon, float rate)
{
    AT_LEVEL(level, adam_f32)(w, g, mean, square, n, keep, decay, beta1, rest1, beta2, rest2,
                              correction, epsilon, rate);
}

static void update_adam_f64(int level, double *w, const double *g, double *mean, double *square,
                            ptrdiff_t n, double keep, double decay, double beta1, double rest1,
                            double beta2, double rest2, double correction, double epsilon,
                            double rate)
{
    AT_LEVEL(level, adam_f64)(w, g, mean, square, n, keep, decay, beta1, rest1, beta2, rest2,
                              correction, epsilon, rate);
}

#endif
