#include "engine/gpu_call.h"

#include <algorithm>

#include "core/collective.h"
#include "engine/describe.h"
#include "engine/validate.h"

namespace dda {
namespace {

// Sums and products of bools are what or and and are.
ReduceOp op_for(const Call& call) {
  if (call.dtype != DType::kBool) return call.reduce;
  switch (call.reduce) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
      return ReduceOp::kBor;
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
      return ReduceOp::kBand;
    default:
      return call.reduce;
  }
}

void place(Parts& parts, GpuPart& at, bool* listed, bool* counted, const void* base,
           const void* const* pointers, const int64_t* counts, int size) {
  parts.base = static_cast<unsigned char*>(const_cast<void*>(base));
  *listed = pointers != nullptr;
  *counted = counts != nullptr;
  uint64_t offset = 0;
  for (int p = 0; p < size; ++p) {
    if (pointers != nullptr) {
      at.pointer[p] = static_cast<unsigned char*>(const_cast<void*>(pointers[p]));
    }
    if (counts == nullptr) continue;
    at.count[p] = counts[p];
    at.offset[p] = offset;
    offset += static_cast<uint64_t>(counts[p]) * parts.element;
  }
}

}  // namespace

bool has_splits(const Call& call) {
  return call.collective == Collective::kAllToAll && call.in_counts != nullptr;
}

uint64_t sign_for_gpu(const Call& call, int size) {
  if (!has_splits(call)) return sign(call, size).word;
  Call uneven;
  uneven.collective = call.collective;
  uneven.dtype = call.dtype;
  return Signature::of(uneven, 0, 1).word;
}

GpuCall write_down(const Call& call, const GpuPlan& plan, const GpuLayout& layout) {
  GpuCall c;
  c.layout = layout;
  c.collective = call.collective;
  c.op = op_for(call);
  c.algorithm = plan.algorithm;
  c.uneven = has_splits(call);
  Task& t = c.task;
  t.element = t.in.element = t.out.element = size_of(call.dtype);
  t.chunk = plan.chunk;
  t.chunks = plan.chunks;
  t.blocks = plan.blocks;
  t.root = call.root;
  t.in.count = t.out.count = c.uneven ? longest_part(call, layout.size) : call.count;
  t.in.whole = is_input_whole(call.collective);
  t.out.whole = is_output_whole(call.collective);
  place(t.in, c.in, &c.in_listed, &c.in_counted, call.in, call.in_parts,
        t.in.whole ? nullptr : call.in_counts, layout.size);
  place(t.out, c.out, &c.out_listed, &c.out_counted, call.out, call.out_parts,
        t.out.whole ? nullptr : call.out_counts, layout.size);
  c.factor = call.factor;
  c.budget_ns = static_cast<uint64_t>(std::max<int64_t>(call.timeout.count(), 0)) * 1'000'000;
  return c;
}

}  // namespace dda
