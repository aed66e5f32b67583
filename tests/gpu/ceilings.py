"""Prints the operations a second of the library's products in f32 and in bf16, with a comma between them, where torch and
a GPU are there; else nothing."""

import time

try:
    import torch
except ImportError:
    raise SystemExit(0)

if not torch.cuda.is_available():
    raise SystemExit(0)

SIZE, RUNS = 8192, 10
torch.backends.cuda.matmul.allow_tf32 = False


def rate(dtype):
    a = torch.randn(SIZE, SIZE, device="cuda", dtype=dtype)
    b = torch.randn(SIZE, SIZE, device="cuda", dtype=dtype)
    times = []
    for _ in range(RUNS + 2):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        torch.matmul(a, b)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return 2 * SIZE**3 / sorted(times[2:])[RUNS // 2]


print(f"{rate(torch.float32)},{rate(torch.bfloat16)}")
