#include "torch/gpu_work.h"

#include <c10/cuda/CUDAGuard.h>

#include <thread>

#include "torch/errors.h"

namespace dda {

GpuWork::GpuWork(c10d::OpType type, c10::cuda::CUDAStream stream, Mark mark, Tensors results,
                 Tensors kept, std::function<void()> check)
    : Work(-1, type),
      stream_(stream),
      mark_(mark),
      results_(std::move(results)),
      kept_(std::move(kept)),
      check_(std::move(check)) {
  if (mark == Mark::kNow) mark_end();
}

void GpuWork::mark_end() {
  if (mark_ == Mark::kNever || end_) return;
  end_.emplace(c10::kCUDA);
  end_->record(stream_);
}

GpuWork::~GpuWork() {
  try {
    // Nobody has waited: the memory may be used again when the stream has come to this point.
    for (const at::Tensor& tensor : kept_) {
      if (tensor.is_cuda()) tensor.record_stream(stream_);
    }
  } catch (const std::exception&) {
    // The context is gone, and the memory with it.
  }
}

bool GpuWork::isCompleted() {
  mark_end();
  return end_ ? end_->query() : stream_.query();
}

bool GpuWork::isSuccess() const { return !exception(); }

std::exception_ptr GpuWork::exception() const {
  try {
    check_();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

bool GpuWork::wait(std::chrono::milliseconds timeout) {
  check_();
  mark_end();
  if (end_) {
    end_->block(c10::cuda::getCurrentCUDAStream(stream_.device_index()));
    kept_.clear();
  }
  if (timeout == kNoTimeout) return true;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!isCompleted()) {
    check_();
    if (std::chrono::steady_clock::now() > deadline) {
      throw overdue("a call on the GPU", -1, timeout);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  check_();
  return true;
}

FuturePtr GpuWork::getFuture() {
  if (!future_) {
    const c10::cuda::CUDAStreamGuard guard(stream_);
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{stream_.device()});
    future_->markCompleted(c10::IValue(results_));
  }
  return future_;
}

}  // namespace dda
