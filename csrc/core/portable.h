// What a function is compiled for: DDA_DEVICE, the device of the translation unit; DDA_SHARED, host
// and device both. Nothing where there is only a CPU. DDA_PARAMETER marks a kernel's parameter that
// stays where the launch has put it, where a compiler has a word for that.
#pragma once

#if defined(__CUDACC__) || defined(__HIPCC__)
#define DDA_DEVICE __device__
#if defined(__CUDACC__) && !defined(__HIPCC__)
#define DDA_PARAMETER __grid_constant__
#else
#define DDA_PARAMETER
#endif
#define DDA_SHARED __host__ __device__
#else
#define DDA_DEVICE
#define DDA_SHARED
#endif
