// Compiled with the flags of one instruction set (see setup.py).
#define DDA_ISA avx512
#define DDA_VECTOR_BYTES 64
#include "device/cpu_ops_table.h"
