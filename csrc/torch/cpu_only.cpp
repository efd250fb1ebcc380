// What stands for the GPU in a build without one.

#include "torch/gpu_side.h"

namespace dda {
namespace {

class NoGpu final : public GpuSide {
 public:
  WorkPtr start(c10d::OpType, bool, Batch) override { refuse_all(); }
  WorkPtr message(c10d::OpType, Operation) override { refuse_all(); }
  void execute(const Operation&) override { refuse_all(); }
  void refuse(const std::string&) noexcept override {}
  void warm_up(at::Device) override { refuse_all(); }
  at::Tensor allocate(int64_t, at::Device) override { refuse_all(); }
  void synchronize() override {}
  std::string error() const override { return ""; }
  void set_timeout(milliseconds) override {}
  Explanation explain(Collective, uint64_t) const override { refuse_all(); }
  void abort(const std::string&) noexcept override {}
  void close() noexcept override {}

 private:
  [[noreturn]] static void refuse_all() {
    TORCH_CHECK(false,
                "dda: this build moves tensors on the CPU only; build it where torch and nvcc have "
                "CUDA, or name a backend for that device too, as in \"cpu:dda,cuda:nccl\"");
  }
};

}  // namespace

std::unique_ptr<GpuSide> make_gpu_side(const c10::intrusive_ptr<c10d::Store>&, int, int,
                                       const c10::intrusive_ptr<DdaOptions>&) {
  return std::make_unique<NoGpu>();
}

}  // namespace dda
