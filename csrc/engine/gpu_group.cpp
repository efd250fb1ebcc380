#include "engine/gpu_group.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "core/collective.h"
#include "core/env.h"
#include "engine/describe.h"
#include "engine/gpu_call.h"
#include "engine/gpu_watchdog.h"
#include "engine/validate.h"

namespace dda {
namespace {

// How long close() waits for launched calls, and again after it has told them to stop.
constexpr milliseconds kPatience{2000};

bool is_sum(ReduceOp op) {
  return op == ReduceOp::kSum || op == ReduceOp::kAvg || op == ReduceOp::kPremulSum;
}

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

// `id` is 0 where nothing is captured.
GpuGroup::Capture capture_of(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_gpu(cudaStreamIsCapturing(stream_of(stream), &status), "cannot ask about a capture");
  if (status == cudaStreamCaptureStatusNone) return {};
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
#if CUDART_VERSION >= 13000
  const cudaError_t asked =
      cudaStreamGetCaptureInfo(stream_of(stream), &status, &id, &graph, nullptr, nullptr, nullptr);
#else
  const cudaError_t asked =
      cudaStreamGetCaptureInfo_v2(stream_of(stream), &status, &id, &graph, nullptr, nullptr);
#endif
  check_gpu(asked, "cannot ask about a capture");
  return {id, graph};
}

// Programmatic dependent launch: from compute capability 9.0 on.
bool can_launch_early(int device) {
  int major = 0;
  check_gpu(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
            "cannot ask a GPU what it is");
  return major >= 9 && env().early_launch != 0;
}

std::vector<ArenaView> views_of(const std::vector<Neighbour>& neighbours, const Layout& layout) {
  std::vector<ArenaView> views;
  for (const Neighbour& n : neighbours) views.push_back({n.segment.data(), &layout});
  return views;
}

std::vector<std::shared_ptr<const Life>> lives_of(const std::vector<Neighbour>& neighbours) {
  std::vector<std::shared_ptr<const Life>> lives;
  for (const Neighbour& n : neighbours) lives.push_back(n.life);
  return lives;
}

// All that a group of one rank has to do.
void copy_own(const Call& call, uint64_t count, void* stream) {
  const void* const from = call.in_parts != nullptr ? call.in_parts[0] : call.in;
  void* const to = call.out_parts != nullptr ? call.out_parts[0] : call.out;
  if (from == to || from == nullptr || to == nullptr) return;
  check_gpu(cudaMemcpyAsync(to, from, count * size_of(call.dtype), cudaMemcpyDeviceToDevice,
                            stream_of(stream)),
            "cannot copy on the GPU");
}

}  // namespace

GpuGroup::GpuGroup(const GroupOptions& options, int device, const Layout& host_layout,
                   const GpuLayout& layout, std::shared_ptr<GpuArenas> arenas)
    : rank_(options.rank),
      size_(options.size),
      device_(device),
      timeout_(options.timeout),
      made_in_(fork_generation()),
      host_layout_(host_layout),
      layout_(layout),
      arenas_(std::move(arenas)),
      neighbours_(arenas_->neighbours()),
      views_(views_of(*neighbours_, host_layout_)),
      watch_(Watch::Kind::kCalls, rank_, size_, views_.data(), lives_of(*neighbours_)),
      launches_early_(can_launch_early(device)) {
  set_timeout(options.timeout);
  const GpuScope scope(device_);
  cudaEvent_t event = nullptr;
  check_gpu(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cannot make an event");
  order_ = event;
  watch_over(this);
}

GpuGroup::~GpuGroup() { close(); }

void GpuGroup::check_usable(const char* what) const {
  if (fork_generation() == made_in_ && !watch_.is_closed() && !watch_.is_revoked()) return;
  const std::string where = std::string(what) + " (call " + std::to_string(number_ + 1) +
                            ") on rank " + std::to_string(rank_) + ": ";
  if (fork_generation() != made_in_) {
    throw Error(Error::Kind::kInvalid, where +
                                           "this process was forked after the group was made; a "
                                           "child must make a group of its own");
  }
  if (watch_.is_closed()) {
    throw Error(Error::Kind::kAborted, where + "the group was destroyed; make a new one");
  }
  const Failure failure = watch_.failure();
  throw Error(failure.kind,
              where + failure.why +
                  ". The group cannot be used any more; destroy it and make a new one. What calls "
                  "since then have written is not to be used",
              failure.culprit);
}

void GpuGroup::launch(const Call& call, void* stream) {
  const char* const what = name_of(call.collective);
  const std::lock_guard<std::mutex> lock(mutex_);
  check_usable(what);
  if (call.collective >= Collective::kSend) return post(call, stream);
  const std::string problem = find_problem_in(call, size_);
  if (!problem.empty()) {
    log(++number_, Signature::refused().word);
    throw Error(Error::Kind::kInvalid,
                std::string(what) + " on rank " + std::to_string(rank_) + ": " + problem);
  }
  const bool uneven = has_splits(call);
  const uint64_t signature = sign_for_gpu(call, size_);
  const uint64_t longest = longest_part(call, size_);
  if (longest == 0 && !uneven && call.collective != Collective::kBarrier) {
    return log(++number_, signature);  // nobody has anything to wait for
  }
  if (size_ == 1 && !(reduces(call.collective) && call.reduce == ReduceOp::kPremulSum)) {
    copy_own(call, longest, stream);
    return log(++number_, signature);
  }
  const GpuKernels& kernels = gpu_kernels(call.dtype);
  const int payload = reduces(call.collective) ? kernels.payload : kMovePayload;
  const GpuPlan plan = choose_gpu(call.collective, call.algorithm, longest, size_of(call.dtype),
                                  payload, uneven, layout_);
  GpuCall parameters = write_down(call, plan, layout_);
  parameters.signature = signature;
  if (!plan.pushes && !uneven && heap_.is_used()) offer_symmetric(call, parameters);
  const int which = is_sum(parameters.op) ? 0 : 1;
  const void* const kernel = !reduces(call.collective) ? gpu_move_kernel(plan.pushes)
                             : plan.pushes             ? kernels.push[which]
                                                       : kernels.reduce[which];
  follow_last(stream, capture_of(stream));
  start(kernel, plan, parameters, stream);
  log(++number_, signature);
}

// A message. Those of one channel follow each other in its stream, and share no memory with other
// channels or with collectives.
void GpuGroup::post(const Call& call, void* stream) {
  if (call.root < 0 || call.root >= size_ || call.root == rank_) {
    const std::string where = name_of(call.collective) + std::string(" on rank ");
    throw Error(Error::Kind::kInvalid,
                where + std::to_string(rank_) +
                    ": on GPUs a message goes between two different ranks of the group, and " +
                    std::to_string(call.root) + " is not another rank");
  }
  const uint64_t bytes = call.count * size_of(call.dtype);
  const GpuPlan plan = choose_message(bytes);
  GpuCall parameters = write_down(call, plan, layout_);
  const Capture capture = capture_of(stream);
  if (capture.id != 0) keep_for(capture.graph);
  start(gpu_message_kernel(), plan, parameters, stream);
}

void GpuGroup::start(const void* kernel, const GpuPlan& plan, GpuCall& parameters, void* stream) {
  for (int p = 0; p < size_; ++p) parameters.arena[p] = arenas_->base(p);
  parameters.rank = rank_;
  parameters.words = arenas_->words();
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(plan.blocks);
  config.blockDim = dim3(plan.threads);
  config.stream = stream_of(stream);
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = launches_early_ ? 1 : 0;
  void* arguments[] = {&parameters};
  check_gpu(cudaLaunchKernelExC(&config, kernel, arguments), "cannot launch a call");
}

// Calls of two streams must not meet in the arena: of those that are captured into one graph, and
// of those that are not captured. When a graph runs is for its owner to order.
void GpuGroup::follow_last(void* stream, const Capture& capture) {
  void*& last = capture.id != 0 ? last_captured_ : last_stream_;
  if (last != stream && (capture.id != 0 ? capture.id == last_capture_ : has_launched_)) {
    auto* const order = static_cast<cudaEvent_t>(order_);
    check_gpu(cudaEventRecord(order, stream_of(last)), "cannot order two streams");
    check_gpu(cudaStreamWaitEvent(stream_of(stream), order, 0), "cannot order two streams");
  }
  last = stream;
  if (capture.id == 0) {
    has_launched_ = true;
  } else if (capture.id != last_capture_) {
    last_capture_ = capture.id;
    keep_for(static_cast<cudaGraph_t>(capture.graph));
  }
}

// A graph may be replayed after the group was closed: what it addresses lives as long as it does.
void GpuGroup::keep_for(void* graph) {
  struct Kept {
    std::shared_ptr<GpuArenas> arenas;
    GpuHeap::Segments segments;
  };
  const auto drop = [](void* kept) { delete static_cast<Kept*>(kept); };
  cudaUserObject_t object = nullptr;
  check_gpu(cudaUserObjectCreate(&object, new Kept{arenas_, heap_.all()}, drop, 1,
                                 cudaUserObjectNoDestructorSync),
            "cannot tie a group to a graph");
  check_gpu(cudaGraphRetainUserObject(static_cast<cudaGraph_t>(graph), object, 1,
                                      cudaGraphUserObjectMove),
            "cannot tie a group to a graph");
}

void GpuGroup::abort(const std::string& why) noexcept {
  if (fork_generation() == made_in_) watch_.revoke(Error::Kind::kAborted, rank_, why);
}

void GpuGroup::set_timeout(milliseconds timeout) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (watch_.is_closed()) return;
  timeout_ = timeout;
  const int64_t ms = std::min(timeout, kLongestTimeout).count();
  arenas_->words()->budget_ns = static_cast<uint64_t>(ms) * 1'000'000;
}

void GpuGroup::close() noexcept {
  if (fork_generation() != made_in_) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (watch_.is_closed()) return;
    watch_.close();
  }
  const GpuScope scope(device_);
  const auto order = static_cast<cudaEvent_t>(order_);
  const auto finishes = [&] {
    for (milliseconds waited{0}; waited < kPatience; ++waited) {
      if (cudaEventQuery(order) != cudaErrorNotReady) return true;
      std::this_thread::sleep_for(milliseconds{1});
    }
    return false;
  };
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const bool known = has_launched_ &&
                     cudaStreamIsCapturing(stream_of(last_stream_), &status) == cudaSuccess &&
                     status == cudaStreamCaptureStatusNone &&
                     cudaEventRecord(order, stream_of(last_stream_)) == cudaSuccess;
  const bool finished = !known || finishes();
  unwatch(this);
  arenas_->words()->abort = 1;
  if (!finished) finishes();
  cudaEventDestroy(order);
  cudaGetLastError();  // nothing of this is the next caller's
  heap_.clear();
  arenas_.reset();
  GpuArenas::sweep();
}

std::string GpuGroup::error() const {
  return watch_.is_revoked() ? watch_.failure().why : std::string();
}

Explanation GpuGroup::explain(Collective collective, uint64_t bytes) const {
  return explain_gpu(collective, bytes, layout_);
}

}  // namespace dda
