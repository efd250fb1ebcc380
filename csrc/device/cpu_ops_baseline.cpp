// Compiled with the flags of one instruction set (see setup.py).
#define DDA_ISA baseline
#define DDA_VECTOR_BYTES 16
#include "device/cpu_ops_table.h"
