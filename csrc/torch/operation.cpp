#include "torch/operation.h"

#include <functional>
#include <optional>

#include "torch/errors.h"
#include "torch/sparse.h"
#include "torch/staging.h"

namespace dda {
namespace {

const char* begin_of(const at::Tensor& tensor) {
  return static_cast<const char*>(tensor.const_data_ptr());
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const std::less<const char*> before;
  return before(begin_of(a), begin_of(b) + b.nbytes()) &&
         before(begin_of(b), begin_of(a) + a.nbytes());
}

// Whether the engine allows input `i` and output `j` to overlap as they do (see dda::Call).
bool may_share(const Operation& op, const at::Tensor& in, const at::Tensor& out, size_t i, size_t j,
               size_t rank) {
  if (op.in_listed && i != rank) return false;
  if (op.out_listed && j != rank) return false;
  const char* from = begin_of(in);
  const char* to = begin_of(out);
  switch (op.call.collective) {
    case Collective::kAllGather:
      return from == to + (op.out_listed ? 0 : rank * in.nbytes());
    case Collective::kReduceScatter:
      return to == from + (op.in_listed ? 0 : rank * out.nbytes());
    default:
      return from == to && in.nbytes() == out.nbytes();
  }
}

// The tensors of one operation, or their stand-ins, and the call that points at them.
class Staging {
 public:
  Staging(const Operation& op, size_t rank) : op_(op), call(op.call) {
    for (const at::Tensor& tensor : op.in) {
      in_.push_back(is_plain(tensor) ? tensor : contiguous_copy(tensor));
    }
    for (size_t j = 0; j < op.out.size(); ++j) {
      const at::Tensor& tensor = op.out[j];
      const bool in_place = j < op.in.size() && tensor.is_same(op.in[j]);
      out_.push_back(is_plain(tensor) ? tensor : in_place ? in_[j] : stand_in(tensor));
    }
    separate(rank);
    point();
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  void copy_back() const {
    for (size_t j = 0; j < out_.size(); ++j) {
      if (!out_[j].is_same(op_.out[j])) overwrite(op_.out[j], out_[j]);
    }
  }

 private:
  void separate(size_t rank) {
    for (size_t i = 0; i < in_.size(); ++i) {
      for (size_t j = 0; j < out_.size(); ++j) {
        if (overlap(in_[i], out_[j]) && !may_share(op_, in_[i], out_[j], i, j, rank)) {
          in_[i] = contiguous_copy(in_[i]);
        }
      }
    }
  }

  void point() {
    for (const at::Tensor& tensor : in_) in_parts_.push_back(tensor.const_data_ptr());
    for (const at::Tensor& tensor : out_) out_parts_.push_back(tensor.mutable_data_ptr());
    if (op_.in_listed) {
      call.in_parts = in_parts_.data();
    } else if (!in_.empty()) {
      call.in = in_parts_[0];
    }
    if (op_.out_listed) {
      call.out_parts = out_parts_.data();
    } else if (!out_.empty()) {
      call.out = out_parts_[0];
    } else if (op_.call.collective == Collective::kBroadcast) {
      call.out = const_cast<void*>(call.in);  // the root's: in place, so nothing is written
    }
    if (!op_.in_counts.empty()) call.in_counts = op_.in_counts.data();
    if (!op_.out_counts.empty()) call.out_counts = op_.out_counts.data();
  }

  const Operation& op_;
  TensorVector in_, out_;
  c10::SmallVector<const void*, 8> in_parts_;
  c10::SmallVector<void*, 8> out_parts_;

 public:
  Call call;
};

}  // namespace

void Operation::run(Group& group) const {
  if (is_sparse) return sparse_all_reduce(group, *this);
  perform(
      group.rank(), [&](const Call& call) { raising([&] { group.run(call); }); },
      [&](const std::exception& error) { refuse(group, error); });
}

void Operation::perform(int rank, c10::function_ref<void(const Call&)> perform,
                        c10::function_ref<void(const std::exception&)> refuse) const {
  std::optional<Staging> staging;
  try {
    staging.emplace(*this, rank);
  } catch (const std::exception& error) {
    refuse(error);
    throw;
  }
  perform(staging->call);
  staging->copy_back();
}

std::vector<at::Tensor> Operation::results() const {
  const TensorVector& tensors = out.empty() ? in : out;
  return {tensors.begin(), tensors.end()};
}

void check_same_length(size_t outputs, size_t inputs) {
  TORCH_CHECK(outputs == inputs, "dda: ", outputs, " outputs for ", inputs, " inputs");
}

std::string message_of(const std::exception& error) {
  const auto* from_torch = dynamic_cast<const c10::Error*>(&error);
  return from_torch != nullptr ? from_torch->what_without_backtrace() : error.what();
}

void refuse(Group& group, const std::exception& error) noexcept { group.refuse(message_of(error)); }

}  // namespace dda
