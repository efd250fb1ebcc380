// What a function is compiled for: DDA_DEVICE, the device of the translation unit; DDA_SHARED, host
// and device both. Nothing where there is only a CPU.
#pragma once

#if defined(__CUDACC__) || defined(__HIPCC__)
#define DDA_DEVICE __device__
#define DDA_SHARED __host__ __device__
#else
#define DDA_DEVICE
#define DDA_SHARED
#endif
