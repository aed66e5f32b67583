// Kernels side by side: small ones that do not depend on one another, in one launch.
//
// Geometry: grid z counts the kernels. Grid x and y are as large as the largest of theirs. Blocks beyond the grid of a kernel
// do nothing where it does not stride by the grid; one that does takes all blocks along x.
// Bytes, operations, and what is read and written: those of the kernels, none of which writes what another touches.
#include "common.cuh"

GLOBAL(BOUNDS) ENTRY(const Params p) {
    switch (blockIdx.z) {
#include "expression.cuh"
    }
}
