//! The kernels of the scenarios.

/// Sum of each row by shuffles and a barrier.
pub(crate) const REDUCTION: &str = r#"
extern "C" __global__ void row_sum(float* out, const float* in, int n) {
    __shared__ float part[32];
    float v = 0.f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) v += in[(long long)blockIdx.x * n + i];
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.f;
        for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
        if (threadIdx.x == 0) out[blockIdx.x] = v;
    }
}
"#;

/// Matrix product by tiles in shared memory; with `NO_BARRIER` one barrier is missing.
pub(crate) const MATMUL: &str = r#"
#define T 16
extern "C" __global__ void matmul(float* c, const float* a, const float* b, int m, int n, int k) {
    __shared__ float as[T][T];
    __shared__ float bs[T][T];
    int row = blockIdx.y * T + threadIdx.y, col = blockIdx.x * T + threadIdx.x;
    float sum = 0.f;
    for (int p = 0; p < k; p += T) {
        as[threadIdx.y][threadIdx.x] =
            row < m && p + threadIdx.x < k ? a[row * k + p + threadIdx.x] : 0.f;
        bs[threadIdx.y][threadIdx.x] =
            col < n && p + threadIdx.y < k ? b[(p + threadIdx.y) * n + col] : 0.f;
        __syncthreads();
        for (int i = 0; i < T; ++i) sum = fmaf(as[threadIdx.y][i], bs[i][threadIdx.x], sum);
#ifndef NO_BARRIER
        __syncthreads();
#endif
    }
    if (row < m && col < n) c[row * n + col] = sum;
}
"#;

/// Softmax of each row with dynamic shared memory.
pub(crate) const SOFTMAX: &str = r#"
extern "C" __global__ void softmax(float* out, const float* in, int n) {
    extern __shared__ float red[];
    const float* x = in + (long long)blockIdx.x * n;
    float m = -__int_as_float(0x7f800000);
    for (int i = threadIdx.x; i < n; i += blockDim.x) m = fmaxf(m, x[i]);
    red[threadIdx.x] = m;
    __syncthreads();
    for (int s = blockDim.x / 2; s; s >>= 1) {
        if (threadIdx.x < s) red[threadIdx.x] = fmaxf(red[threadIdx.x], red[threadIdx.x + s]);
        __syncthreads();
    }
    m = red[0];
    __syncthreads();
    float t = 0.f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) t += expf(x[i] - m);
    red[threadIdx.x] = t;
    __syncthreads();
    for (int s = blockDim.x / 2; s; s >>= 1) {
        if (threadIdx.x < s) red[threadIdx.x] += red[threadIdx.x + s];
        __syncthreads();
    }
    t = red[0];
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        out[(long long)blockIdx.x * n + i] = expf(x[i] - m) / t;
}
"#;

/// One 16x8x16 product in half precision: cp.async, ldmatrix and mma. With `NO_WAIT` the copies
/// are not waited for before the barrier.
pub(crate) const TENSOR: &str = r#"
typedef unsigned int u32;
typedef unsigned short u16;
extern "C" __global__ void tensor(float* d, const u16* a, const u16* b) {
    __shared__ __align__(16) u16 as[16 * 16];
    __shared__ __align__(16) u16 bs[16 * 8];
    u32 sa = (u32)__cvta_generic_to_shared(as), sb = (u32)__cvta_generic_to_shared(bs);
    int lane = threadIdx.x;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(sa + lane * 16), "l"(a + lane * 8) : "memory");
    if (lane < 16)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(sb + lane * 16), "l"(b + lane * 8) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
#ifndef NO_WAIT
    asm volatile("cp.async.wait_group 0;" ::: "memory");
#endif
    __syncthreads();
    u32 fa[4], fb[2];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3])
        : "r"(sa + ((lane & 15) * 16 + (lane >> 4) * 8) * 2));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
        : "=r"(fb[0]), "=r"(fb[1]) : "r"(sb + (lane & 15) * 16));
    float c[4] = {0.f, 0.f, 0.f, 0.f};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
#ifdef NO_WAIT
    __syncthreads();
    asm volatile("cp.async.wait_group 0;" ::: "memory");
#endif
    int g = lane >> 2, t = lane & 3;
    d[g * 8 + 2 * t] = c[0];
    d[g * 8 + 2 * t + 1] = c[1];
    d[(g + 8) * 8 + 2 * t] = c[2];
    d[(g + 8) * 8 + 2 * t + 1] = c[3];
}
"#;

/// Small kernels, most of them wrong.
pub(crate) const SMALL: &str = r#"
extern "C" __global__ void add_one(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += 1.f;
}
extern "C" __global__ void no_guard(float* x) { x[blockIdx.x * blockDim.x + threadIdx.x] = 1.f; }
extern "C" __global__ void racy(float* x) { x[threadIdx.x & ~1] = (float)threadIdx.x; }
extern "C" __global__ void block_racy(float* x, const float* y) {
    if (threadIdx.x == 0) x[0] = y[0] + blockIdx.x;
}
extern "C" __global__ void divergent(float* x) {
    if (threadIdx.x < 16) __syncthreads();
    x[threadIdx.x] = 1.f;
}
extern "C" __global__ void copy(float* out, const float* in, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i];
}
__device__ __noinline__ float helper(float a, int b) { return b > 2 ? a * b : sinf(a); }
__constant__ float table[4] = {1.f, 2.f, 3.f, 4.f};
__device__ int counter;
extern "C" __global__ void functions(float* out, const float* in, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = in[i], r = 0.f;
    float local[8];
    for (int k = 0; k < 8; ++k) local[k] = v * k;
    switch (i % 9) {
        case 0: r = expf(v); break;
        case 1: r = tanhf(v); break;
        case 2: r = erff(v); break;
        case 3: r = powf(fabsf(v), 1.5f); break;
        case 4: r = logf(fabsf(v) + 1.f); break;
        case 5: r = helper(v, i); break;
        case 6: r = table[i & 3] * local[i & 7]; break;
        case 7: r = sqrtf(fabsf(v)) / 3.f; break;
        default: r = (float)(int)rintf(v * 10.f) + cosf(v);
    }
    atomicAdd(&counter, 1);
    out[i] = r;
}
"#;
