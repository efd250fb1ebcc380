#include "torch/backend.h"

#include <ATen/record_function.h>
#include <unistd.h>

#include <utility>

#include "torch/errors.h"

namespace dda {
namespace {

using c10d::OpType;

// How long shutdown waits for the worker, whose call the closed group ends.
constexpr std::chrono::milliseconds kPatience{2000};

// What torch passes when the user gives no timeout is negative; the engine's word for it is 0.
milliseconds timeout_of(milliseconds timeout) { return std::max(timeout, milliseconds{0}); }

const at::Tensor& only(const Tensors& tensors) {
  TORCH_CHECK(tensors.size() == 1, "dda: a call takes one tensor a rank, not ", tensors.size());
  return tensors[0];
}

// On the root the one list of tensors; elsewhere nothing.
at::TensorList list_of(const std::vector<Tensors>& lists) {
  TORCH_CHECK(lists.size() <= 1, "dda: a call takes one list of tensors, not ", lists.size());
  return lists.empty() ? at::TensorList() : at::TensorList(lists[0]);
}

bool on_gpu(const at::Tensor& tensor) { return tensor.defined() && tensor.is_cuda(); }
bool on_gpu(const Tensors& tensors) { return !tensors.empty() && on_gpu(tensors[0]); }

// Holds the place of a call that this rank cannot make, behind those that are queued.
class RefusalJob final : public Job {
 public:
  RefusalJob(std::shared_ptr<Group> group, std::string why)
      : group_(std::move(group)), why_(std::move(why)) {}

 private:
  void run() noexcept override { group_->refuse(why_); }

  std::shared_ptr<Group> group_;
  std::string why_;
};

}  // namespace

DdaBackend::DdaBackend(std::shared_ptr<Group> group, std::unique_ptr<GpuSide> gpu,
                       c10::intrusive_ptr<DdaOptions> options)
    : Backend(group->rank(), group->size()),
      group_(std::move(group)),
      gpu_(std::move(gpu)),
      options_(std::move(options)),
      owner_(getpid()),
      courier_(std::make_shared<Courier>(group_)) {}

// `fill` puts the operations of the call into the batch.
template <typename CallOptions, typename Fill>
WorkPtr DdaBackend::issue(const char* title, OpType type, const CallOptions& opts, bool on_gpu,
                          Fill fill) {
  RECORD_FUNCTION(title, c10::ArrayRef<const c10::IValue>{});
  Batch batch;
  try {
    fill(batch);
  } catch (const std::exception& error) {
    refuse(error, on_gpu);
    throw;
  }
  for (Operation& operation : batch) operation.call.timeout = timeout_of(opts.timeout);
  return start(type, opts.asyncOp, batch);
}

WorkPtr DdaBackend::start(OpType type, bool is_async, Batch& batch) {
  if (!batch.empty() && batch.front().is_on_gpu()) {
    return track(gpu_->start(type, is_async, std::move(batch)));
  }
  if (is_async) {
    auto job = std::make_shared<BatchJob>(group_, std::move(batch));
    queue_->push(job);
    return track(c10::make_intrusive<QueuedWork>(type, std::move(job), queue_));
  }
  Tensors results;
  for (const Operation& operation : batch) {
    execute(operation);
    for (const at::Tensor& tensor : operation.results()) results.push_back(tensor);
  }
  return track(c10::make_intrusive<FinishedWork>(type, std::move(results)));
}

WorkPtr DdaBackend::track(WorkPtr work) {
  if (block_) block_->push_back(work);
  return work;
}

void DdaBackend::execute(const Operation& operation) {
  if (operation.is_on_gpu()) return gpu_->execute(operation);
  if (!queue_->is_idle()) queue_->drain();
  operation.run(*group_);
}

void DdaBackend::refuse(const std::exception& error, bool on_gpu) noexcept {
  if (on_gpu) return gpu_->refuse(message_of(error));
  if (queue_->is_idle()) return dda::refuse(*group_, error);
  try {
    queue_->push(std::make_shared<RefusalJob>(group_, message_of(error)));
  } catch (const std::exception&) {
    // No memory, or a child made by fork(): the peers run into their timeouts.
  }
}

WorkPtr DdaBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const bool is_sparse = tensors.size() == 1 && tensors[0].is_sparse();
  const OpType type = is_sparse ? OpType::_ALLREDUCE_SPARSE : OpType::ALLREDUCE;
  return issue("dda:all_reduce", type, opts, on_gpu(tensors), [&](Batch& batch) {
    const at::Tensor& tensor = only(tensors);
    const Reduction reduction = to_reduction(opts.reduceOp);
    batch.push_back(is_sparse ? calls::all_reduce_sparse(tensor, reduction)
                              : calls::all_reduce(tensor, tensor, reduction));
  });
}

WorkPtr DdaBackend::allreduce_coalesced(Tensors& tensors,
                                        const c10d::AllreduceCoalescedOptions& opts) {
  return issue("dda:all_reduce", OpType::ALLREDUCE_COALESCED, opts, on_gpu(tensors),
               [&](Batch& batch) {
                 const Reduction reduction = to_reduction(opts.reduceOp);
                 for (const at::Tensor& tensor : tensors) {
                   batch.push_back(calls::all_reduce(tensor, tensor, reduction));
                 }
               });
}

WorkPtr DdaBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  return issue("dda:reduce", OpType::REDUCE, opts, on_gpu(tensors), [&](Batch& batch) {
    batch.push_back(calls::reduce(only(tensors), only(tensors), to_reduction(opts.reduceOp),
                                  opts.rootRank, place()));
  });
}

WorkPtr DdaBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  return issue("dda:broadcast", OpType::BROADCAST, opts, on_gpu(tensors), [&](Batch& batch) {
    batch.push_back(calls::broadcast(only(tensors), opts.rootRank, place()));
  });
}

WorkPtr DdaBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) {
  return issue("dda:all_gather", OpType::ALLGATHER, opts, on_gpu(inputs), [&](Batch& batch) {
    batch.push_back(calls::all_gather(only(inputs), list_of(outputs), place()));
  });
}

WorkPtr DdaBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                    const c10d::AllgatherOptions& opts) {
  return issue("dda:all_gather", OpType::_ALLGATHER_BASE, opts, on_gpu(input),
               [&](Batch& batch) { batch.push_back(calls::all_gather(input, output, place())); });
}

// outputs[r][i] is what rank r has as inputs[i].
WorkPtr DdaBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                        const c10d::AllgatherOptions& opts) {
  return issue("dda:all_gather", OpType::ALLGATHER_COALESCED, opts, on_gpu(inputs),
               [&](Batch& batch) {
                 for (const Tensors& of_rank : outputs)
                   check_same_length(of_rank.size(), inputs.size());
                 for (size_t i = 0; i < inputs.size(); ++i) {
                   Tensors parts;
                   for (const Tensors& of_rank : outputs) parts.push_back(of_rank[i]);
                   batch.push_back(calls::all_gather(inputs[i], parts, place()));
                 }
               });
}

WorkPtr DdaBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& opts) {
  return issue("dda:all_gather", OpType::_ALLGATHER_BASE, opts, on_gpu(inputs), [&](Batch& batch) {
    check_same_length(outputs.size(), inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      batch.push_back(calls::all_gather(inputs[i], outputs[i], place()));
    }
  });
}

WorkPtr DdaBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                   const c10d::ReduceScatterOptions& opts) {
  return issue("dda:reduce_scatter", OpType::REDUCE_SCATTER, opts, on_gpu(outputs),
               [&](Batch& batch) {
                 batch.push_back(calls::reduce_scatter(list_of(inputs), only(outputs),
                                                       to_reduction(opts.reduceOp), place()));
               });
}

WorkPtr DdaBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                         const c10d::ReduceScatterOptions& opts) {
  return issue(
      "dda:reduce_scatter", OpType::_REDUCE_SCATTER_BASE, opts, on_gpu(input), [&](Batch& batch) {
        batch.push_back(calls::reduce_scatter(input, output, to_reduction(opts.reduceOp), place()));
      });
}

WorkPtr DdaBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                    const c10d::ReduceScatterOptions& opts) {
  return issue(
      "dda:reduce_scatter", OpType::_REDUCE_SCATTER_BASE, opts, on_gpu(inputs), [&](Batch& batch) {
        check_same_length(outputs.size(), inputs.size());
        const Reduction reduction = to_reduction(opts.reduceOp);
        for (size_t i = 0; i < inputs.size(); ++i) {
          batch.push_back(calls::reduce_scatter(inputs[i], outputs[i], reduction, place()));
        }
      });
}

WorkPtr DdaBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                           const c10d::GatherOptions& opts) {
  return issue("dda:gather", OpType::GATHER, opts, on_gpu(inputs), [&](Batch& batch) {
    batch.push_back(calls::gather(only(inputs), list_of(outputs), opts.rootRank, place()));
  });
}

WorkPtr DdaBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                            const c10d::ScatterOptions& opts) {
  return issue("dda:scatter", OpType::SCATTER, opts, on_gpu(outputs), [&](Batch& batch) {
    batch.push_back(calls::scatter(list_of(inputs), only(outputs), opts.rootRank, place()));
  });
}

WorkPtr DdaBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                  std::vector<int64_t>& output_splits,
                                  std::vector<int64_t>& input_splits,
                                  const c10d::AllToAllOptions& opts) {
  return issue("dda:all_to_all", OpType::ALLTOALL_BASE, opts, on_gpu(input), [&](Batch& batch) {
    batch.push_back(calls::all_to_all(input, output, input_splits, output_splits, place()));
  });
}

WorkPtr DdaBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  return issue("dda:all_to_all", OpType::ALLTOALL, opts, on_gpu(inputs),
               [&](Batch& batch) { batch.push_back(calls::all_to_all(inputs, outputs, place())); });
}

WorkPtr DdaBackend::barrier(const c10d::BarrierOptions& opts) {
  gpu_->synchronize();
  return issue("dda:barrier", OpType::BARRIER, opts, false,
               [&](Batch& batch) { batch.push_back(calls::barrier()); });
}

WorkPtr DdaBackend::send(Tensors& tensors, int peer, int tag) {
  RECORD_FUNCTION("dda:send", c10::ArrayRef<const c10::IValue>{});
  if (on_gpu(tensors)) return message_on_gpu(OpType::SEND, calls::send(only(tensors)), peer);
  return dispatch(send_message(group_, only(tensors), peer, tag));
}

WorkPtr DdaBackend::recv(Tensors& tensors, int peer, int tag) {
  RECORD_FUNCTION("dda:recv", c10::ArrayRef<const c10::IValue>{});
  TORCH_CHECK(peer >= 0, "dda recv: there is no rank ", peer);
  if (on_gpu(tensors)) return message_on_gpu(OpType::RECV, calls::receive(only(tensors)), peer);
  return dispatch(receive_message(group_, only(tensors), peer, tag));
}

WorkPtr DdaBackend::recvAnysource(Tensors& tensors, int tag) {
  TORCH_CHECK(!on_gpu(tensors), "dda recv: on GPUs a message has a source; name its rank");
  RECORD_FUNCTION("dda:recv", c10::ArrayRef<const c10::IValue>{});
  return dispatch(receive_message(group_, only(tensors), -1, tag));
}

// Tags are for the CPU: between GPUs messages are received in the order in which they are sent.
WorkPtr DdaBackend::message_on_gpu(OpType type, Operation operation, int peer) {
  operation.call.root = peer;
  return track(gpu_->message(type, std::move(operation)));
}

WorkPtr DdaBackend::dispatch(const c10::intrusive_ptr<MessageWork>& work) {
  if (!work->poll()) courier_->look_after(work);
  return track(work);
}

WorkPtr DdaBackend::endCoalescing() {
  TORCH_CHECK(block_, "dda: endCoalescing without startCoalescing");
  auto work = c10::make_intrusive<CombinedWork>(std::move(*block_));
  block_.reset();
  return work;
}

void DdaBackend::setTimeout(milliseconds timeout) {
  options_->timeout = timeout;
  group_->set_timeout(timeout);
  gpu_->set_timeout(timeout);
}

c10d::ErrorType DdaBackend::getError() {
  return group_->error().empty() && gpu_->error().empty() ? c10d::ErrorType::SUCCESS
                                                          : c10d::ErrorType::COMM_ERROR;
}

void DdaBackend::abort(const std::string& why) {
  gpu_->abort(why);
  group_->abort(why);
}

void DdaBackend::shutdown() {
  if (getpid() != owner_) return;  // a child made by fork() has none of the threads
  // The worker may need the interpreter to end its call, and torch destroys groups holding it.
  std::optional<pybind11::gil_scoped_release> without_gil;
  if (Py_IsInitialized() && PyGILState_Check()) without_gil.emplace();
  gpu_->close();
  group_->close();
  courier_->close();
  queue_->close(kPatience);
}

at::Tensor DdaBackend::allocate(int64_t bytes, at::Device device) {
  if (!device.is_cpu()) return gpu_->allocate(bytes, device);
  if (!queue_->is_idle()) queue_->drain();
  const std::shared_ptr<SymmetricMemory> memory =
      raising([&] { return group_->allocate(std::max<int64_t>(bytes, 1)); });
  return at::from_blob(data_of(*memory), {bytes}, [memory](void*) {}, at::kByte);
}

}  // namespace dda
