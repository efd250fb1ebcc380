// Compiled with the flags of one instruction set (see setup.py).
#define DDA_ISA avx2
#define DDA_VECTOR_BYTES 32
#include "device/cpu_ops_table.h"
