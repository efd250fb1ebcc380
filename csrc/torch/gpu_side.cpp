#include "torch/gpu_side.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "engine/gpu_group.h"
#include "torch/errors.h"
#include "torch/gpu_work.h"
#include "torch/store_bootstrap.h"

namespace dda {
namespace {

using c10::cuda::CUDAStream;

const at::Tensor& first_tensor(const Operation& op) {
  TORCH_CHECK(!op.in.empty() || !op.out.empty(), "dda: a call on GPUs without tensors");
  return op.in.empty() ? op.out[0] : op.in[0];
}

class Gpu final : public GpuSide {
 public:
  Gpu(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
      c10::intrusive_ptr<DdaOptions> options)
      : store_(c10::make_intrusive<c10d::PrefixStore>("gpu", store)), options_(std::move(options)) {
    wanted_.rank = rank;
    wanted_.size = size;
    wanted_.calls_before = options_->calls_before;
  }
  ~Gpu() override { close(); }

  WorkPtr start(c10d::OpType type, bool is_async, Batch batch) override {
    TORCH_CHECK(!batch.empty(), "dda: a call without tensors");
    const at::Device device = first_tensor(batch.front()).device();
    GpuGroup& group = group_on(device);
    const c10::cuda::CUDAGuard guard(device);
    if (is_async) return start_on(side_, type, GpuWork::Mark::kNow, group, batch);
    const CUDAStream stream = c10::cuda::getCurrentCUDAStream(device.index());
    for (const Operation& op : batch) run(group, op, stream);
    return c10::make_intrusive<GpuWork>(type, stream, GpuWork::Mark::kNever, results_of(batch),
                                        Tensors(), check());
  }

  WorkPtr message(c10d::OpType type, Operation op) override {
    const at::Device device = first_tensor(op).device();
    TORCH_CHECK(group_ != nullptr || wanted_.size == 2,
                "dda: before the first message between GPUs all ranks of a group must have made a "
                "call that all make; call dda.warmup(group, device) on every rank");
    GpuGroup& group = group_on(device);
    const c10::cuda::CUDAGuard guard(device);
    Channel& channel = channels_[{type, op.call.root}];
    // Who waits for the last message does not wait for this one.
    if (const auto last = channel.last ? channel.last->lock() : nullptr) last->mark_end();
    Batch batch;
    batch.push_back(std::move(op));
    auto work = start_on(channel.stream, type, GpuWork::Mark::kLater, group, batch);
    channel.last.emplace(work);
    return work;
  }

  void execute(const Operation& op) override {
    const at::Device device = first_tensor(op).device();
    GpuGroup& group = group_on(device);
    const c10::cuda::OptionalCUDAGuard guard(device);
    run(group, op, c10::cuda::getCurrentCUDAStream(device.index()));
  }

  void refuse(const std::string& why) noexcept override {
    try {
      // Whoever refuses the first call must still be there for the peers, who make the group.
      if (group_ == nullptr) group_on(at::Device(at::kCUDA, c10::cuda::current_device()));
      group_->refuse(why);
    } catch (const std::exception&) {
      // There is no group: the peers have failed likewise.
    }
  }

  void warm_up(at::Device device) override { group_on(device); }

  at::Tensor allocate(int64_t bytes, at::Device device) override {
    GpuGroup& group = group_on(device);
    TORCH_CHECK(!is_capturing(),
                "dda.empty: it waits for the GPU, which cannot be captured; make "
                "symmetric tensors before the graph");
    StoreBootstrap bootstrap(store_);
    std::shared_ptr<GpuTensor> memory =
        raising([&] { return group.allocate(bootstrap, std::max<int64_t>(bytes, 1)); });
    return at::from_blob(
        memory->data(), {bytes}, [memory](void*) {}, at::TensorOptions(at::kByte).device(device));
  }

  void synchronize() override {
    if (group_ == nullptr) return;
    const auto stream =
        c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(group_->device()));
    if (is_capturing()) return;
    stream.synchronize();
    raising([&] {
      if (!group_->error().empty()) throw Error(Error::Kind::kAborted, group_->error());
    });
  }

  std::string error() const override { return group_ != nullptr ? group_->error() : ""; }
  void set_timeout(milliseconds timeout) override {
    if (group_ != nullptr) group_->set_timeout(timeout);
  }
  Explanation explain(Collective collective, uint64_t bytes) const override {
    TORCH_CHECK(group_ != nullptr,
                "dda.explain: the group has made no call on a GPU yet; call dda.warmup first");
    return group_->explain(collective, bytes);
  }
  void abort(const std::string& why) noexcept override {
    if (group_ != nullptr) group_->abort(why);
  }
  void close() noexcept override {
    is_closed_ = true;
    if (group_ != nullptr) group_->close();
  }

 private:
  static bool is_capturing() {
    return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  }

  GpuGroup& group_on(at::Device device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (group_ == nullptr) {
      TORCH_CHECK(!is_closed_, "dda: the group was destroyed; make a new one");
      TORCH_CHECK(
          !is_capturing(),
          "dda: the first call of a group on GPUs makes its arenas, which cannot be part of "
          "a graph; call dda.warmup(group, device) on all ranks before the capture");
      wanted_.timeout = options_->timeout;
      StoreBootstrap bootstrap(store_);
      group_ = raising([&] { return GpuGroup::create(bootstrap, wanted_, device.index()); });
    }
    TORCH_CHECK(group_->device() == device.index(),
                "dda: this group works on cuda:", group_->device(), ", and a tensor is on ", device,
                "; a rank of a group uses one GPU");
    return *group_;
  }

  // Enqueues on a stream of this group's own, made when it is first needed.
  c10::intrusive_ptr<GpuWork> start_on(std::optional<CUDAStream>& own, c10d::OpType type,
                                       GpuWork::Mark mark, GpuGroup& group, const Batch& batch) {
    const auto index = static_cast<c10::DeviceIndex>(group.device());
    if (!own) own = c10::cuda::getStreamFromPool(true, index);
    c10::Event begin(c10::kCUDA);
    begin.record(c10::cuda::getCurrentCUDAStream(index));
    begin.block(*own);
    const c10::cuda::CUDAStreamGuard on(*own);
    Tensors kept;
    for (const Operation& op : batch) {
      run(group, op, *own);
      kept.insert(kept.end(), op.in.begin(), op.in.end());
      kept.insert(kept.end(), op.out.begin(), op.out.end());
    }
    return c10::make_intrusive<GpuWork>(type, *own, mark, results_of(batch), std::move(kept),
                                        check());
  }

  static Tensors results_of(const Batch& batch) {
    Tensors results;
    for (const Operation& op : batch) {
      for (const at::Tensor& tensor : op.results()) results.push_back(tensor);
    }
    return results;
  }

  // Throws if the group has failed.
  std::function<void()> check() const {
    return [held = group_] {
      const std::string error = held->error();
      if (!error.empty()) throw RaisedError(Error(Error::Kind::kAborted, error));
    };
  }

  void run(GpuGroup& group, const Operation& op, const CUDAStream& stream) {
    op.perform(
        wanted_.rank,
        [&](const Call& call) { raising([&] { group.launch(call, stream.stream()); }); },
        [&](const std::exception& error) { group.refuse(message_of(error)); });
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<DdaOptions> options_;
  GroupOptions wanted_;
  std::mutex mutex_;  // of the making of the group
  std::shared_ptr<GpuGroup> group_;
  std::optional<CUDAStream> side_;  // of asynchronous calls
  // … and of messages: a stream for each direction to each peer, so that none waits for another.
  struct Channel {
    std::optional<CUDAStream> stream;
    std::optional<c10::weak_intrusive_ptr<GpuWork>> last;
  };
  std::map<std::pair<c10d::OpType, int>, Channel> channels_;
  bool is_closed_ = false;
};

}  // namespace

std::unique_ptr<GpuSide> make_gpu_side(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                       int size, const c10::intrusive_ptr<DdaOptions>& options) {
  return std::make_unique<Gpu>(store, rank, size, options);
}

}  // namespace dda
