// cuDNN's graphs of causal attention. One plan a shape and pass, built at its first use and kept.
// The statistics that cuDNN's forward pass leaves for its backward pass are the log-sum-exp of the scaled scores, as ours are, so that
// either pass may be ours.
#include "kernels/attention/cudnn_attention.hpp"

#include <cudnn.h>
#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>

#include "base/check.hpp"
#include "kernels/cuda/cudnn_library.hpp"
#include "kernels/cuda/runtime.hpp"

namespace tessera::kernels::cuda {
namespace {

namespace frontend = cudnn_frontend;
using frontend::graph::Graph;
using Tensor = frontend::graph::Tensor_attributes;
using Uid = CudnnTensor;

std::shared_ptr<Tensor> heads_of(Graph& graph, const AttentionShape& s, std::int64_t uid, std::int64_t heads) {
  const std::int64_t row = (s.H + 2 * s.G) * s.D;
  return graph.tensor(Tensor().set_uid(uid).set_dim({s.B, heads, s.T, s.D}).set_stride({s.T * row, s.D, row, 1}));
}
Tensor rows_like_out(const AttentionShape& s, std::int64_t uid) {
  return Tensor().set_uid(uid).set_dim({s.B, s.H, s.T, s.D}).set_stride({s.T * s.H * s.D, s.D, s.H * s.D, 1});
}
Tensor statistics(const AttentionShape& s) {
  return Tensor()
      .set_uid(Uid::lse)
      .set_dim({s.B, s.H, s.T, 1})
      .set_stride({s.H * s.T, s.T, 1, 1})
      .set_data_type(frontend::DataType_t::FLOAT);
}
/// Gives an output of an operation the place that `like` describes.
void place(const std::shared_ptr<Tensor>& output, const Tensor& like) {
  output->set_output(true).set_uid(like.get_uid()).set_dim(like.get_dim()).set_stride(like.get_stride());
}
float scale_of(const AttentionShape& s) { return s.scale > 0 ? s.scale : static_cast<float>(1 / std::sqrt(static_cast<double>(s.D))); }

void describe_forward(Graph& graph, const AttentionShape& s) {
  auto [out, lse] = graph.sdpa(heads_of(graph, s, Uid::q, s.H), heads_of(graph, s, Uid::k, s.G), heads_of(graph, s, Uid::v, s.G),
                               frontend::graph::SDPA_attributes()
                                   .set_name("attention_forward")
                                   .set_generate_stats(true)
                                   .set_attn_scale(scale_of(s))
                                   .set_causal_mask(true)
                                   .set_implementation(frontend::AttentionImplementation_t::COMPOSITE));
  place(out, rows_like_out(s, Uid::out));
  place(lse, statistics(s));
  lse->set_data_type(frontend::DataType_t::FLOAT);
}

void describe_backward(Graph& graph, const AttentionShape& s) {
  const auto q = heads_of(graph, s, Uid::q, s.H), k = heads_of(graph, s, Uid::k, s.G), v = heads_of(graph, s, Uid::v, s.G);
  // The frontend turns K and V around in place when it expands the operation, so what the outputs shall look like is noted first.
  const Tensor like_q = *q, like_k = *k;
  auto [d_q, d_k, d_v] = graph.sdpa_backward(q, k, v, graph.tensor(rows_like_out(s, Uid::out)), graph.tensor(rows_like_out(s, Uid::d_out)),
                                             graph.tensor(statistics(s)),
                                             frontend::graph::SDPA_backward_attributes()
                                                 .set_name("attention_backward")
                                                 .set_attn_scale(scale_of(s))
                                                 .set_causal_mask(true)
                                                 .set_deterministic_algorithm(s.deterministic));
  place(d_q, Tensor(like_q).set_uid(Uid::d_q));
  place(d_k, Tensor(like_k).set_uid(Uid::d_k));
  place(d_v, Tensor(like_k).set_uid(Uid::d_v));
}

/// Nothing where cuDNN has no attention in that type.
std::optional<frontend::DataType_t> type_of(DType type) {
  switch (type) {
    case DType::bf16:
      return frontend::DataType_t::BFLOAT16;
    case DType::f16:
      return frontend::DataType_t::HALF;
    case DType::f32:
    case DType::i64:
    case DType::u16:
    case DType::u32:
    case DType::e4m3:
    case DType::e5m2:
      break;
  }
  return std::nullopt;
}

/// Why cuDNN never runs this, whatever its version; empty where it may.
std::string why_never(const AttentionShape& s) {
  if (!type_of(s.dtype)) return fmt::format("it has no attention in {}", name_of(s.dtype));
  if (s.value_dim() != s.D) return fmt::format("its graphs here have values as wide as keys, and {} is not {}", s.value_dim(), s.D);
  if (s.D % 8 != 0) return fmt::format("its head dims are multiples of 8, and {} is none", s.D);
  return "";
}

/// The first line of what the frontend says: cuDNN's own account of every engine follows it.
std::string reason_of(frontend::error_t& status) {
  const std::string text = status.get_message();
  return text.substr(0, text.find('\n'));
}

/// Describes the pass, and has cuDNN find engines within the workspace. `handle` is of this GPU, `properties` of one that is described.
std::string find_engines(Graph& graph, const AttentionShape& s, AttentionPass pass, cudnnHandle_t handle,
                         std::shared_ptr<const frontend::DeviceProperties> properties) {
  graph.set_io_data_type(type_of(s.dtype).value())
      .set_intermediate_data_type(frontend::DataType_t::FLOAT)
      .set_compute_data_type(frontend::DataType_t::FLOAT);
  if (properties) graph.set_device_properties(std::move(properties));
  pass == AttentionPass::forward ? describe_forward(graph, s) : describe_backward(graph, s);
  frontend::error_t status = graph.validate();
  if (status.is_good()) status = handle ? graph.build_operation_graph(handle) : graph.build_operation_graph();
  if (status.is_good()) status = graph.create_execution_plans({frontend::HeurMode_t::A});
  if (status.is_good()) {
    graph.deselect_workspace_greater_than(cudnn_workspace(s, pass).engine);
    status = graph.check_support();
  }
  return status.is_good() ? "" : reason_of(status);
}

/// A plan, or why there is none.
struct Plan {
  Graph graph;
  std::string reason;
};

cudnnHandle_t handle() {
  static const cudnnHandle_t made = [] {
    cudnnHandle_t h = nullptr;
    const cudnnStatus_t status = cudnnCreate(&h);
    if (status != CUDNN_STATUS_SUCCESS) fail(ExitCode::environment, "cudnnCreate: {}", cudnnGetErrorString(status));
    return h;
  }();
  return made;
}

std::string build(Plan& plan, const AttentionShape& s, AttentionPass pass) try {
  if (std::string reason = why_never(s); !reason.empty()) return reason;
  if (std::string reason = cudnn_library::why_not(); !reason.empty()) return reason;
  if (std::string reason = find_engines(plan.graph, s, pass, handle(), nullptr); !reason.empty()) return reason;
  if (auto status = plan.graph.build_plans(frontend::BuildPlanPolicy_t::HEURISTICS_CHOICE); status.is_bad()) return reason_of(status);
  std::int64_t needed = 0;
  if (auto status = plan.graph.get_workspace_size(needed); status.is_bad()) return reason_of(status);
  const std::int64_t planned = cudnn_workspace(s, pass).bytes();
  if (needed > planned) return fmt::format("it needs {} bytes of workspace and {} are planned", needed, planned);
  return "";
} catch (const std::exception& error) {
  // cuDNN is there and does not work: libraries of several versions, no memory left for its handle.
  cudaGetLastError();
  return error.what();
}

const Plan& plan_of(const AttentionShape& s, AttentionPass pass) {
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, DType, bool, float, AttentionPass>;
  static std::mutex mutex;
  // Never destroyed: at exit cuDNN's own libraries may be gone before it.
  static auto& plans = *new std::map<Key, std::unique_ptr<Plan>>;
  const std::lock_guard lock(mutex);
  auto [found, is_new] = plans.try_emplace(Key{s.B, s.T, s.H, s.G, s.D, s.dtype, s.deterministic, s.scale, pass});
  if (is_new) {
    found->second = std::make_unique<Plan>();
    found->second->reason = build(*found->second, s, pass);
  }
  return *found->second;
}

using Pointers = std::unordered_map<std::int64_t, void*>;

void execute(const Context& context, const AttentionShape& s, AttentionPass pass, Pointers pointers) {
  const Plan& plan = plan_of(s, pass);
  if (!plan.reason.empty())
    fail(ExitCode::environment,
         "cuDNN cannot run attention of B={} T={} H={} G={} D={} here: {}. Set kernels.attention = \"native\" or \"auto\"", s.B, s.T, s.H,
         s.G, s.D, plan.reason);
  if (const cudnnStatus_t status = cudnnSetStream(handle(), static_cast<cudaStream_t>(context.stream)); status != CUDNN_STATUS_SUCCESS)
    fail(ExitCode::environment, "cudnnSetStream: {}", cudnnGetErrorString(status));
  if (auto status = plan.graph.execute(handle(), pointers, context.workspace.data()); status.is_bad())
    fail(ExitCode::environment, "cuDNN's attention failed: {}. Set kernels.attention = \"native\" to go on without it", reason_of(status));
}

/// Pointers to packed rows, which the graphs are of; cuDNN's interface takes all of them without const.
template <class P>
void add_rows(Pointers& pointers, const QueryKeyValue<P>& rows, const std::array<std::int64_t, 3>& ids) {
  const HeadRows<P> all[] = {rows.q, rows.k, rows.v};
  for (std::size_t i = 0; i < ids.size(); ++i) pointers[ids[i]] = const_cast<void*>(static_cast<const void*>(all[i].data));
}

}  // namespace

std::string why_not_cudnn(const AttentionShape& s, AttentionPass pass) { return plan_of(s, pass).reason; }

std::string why_not_cudnn_on(std::string_view properties, const AttentionShape& s, AttentionPass pass) {
  if (std::string reason = why_never(s); !reason.empty()) return reason;
  if (std::string reason = cudnn_library::why_not(); !reason.empty()) return reason;
  auto device = std::make_shared<frontend::DeviceProperties>();
  if (auto status = device->deserialize({properties.begin(), properties.end()}); status.is_bad()) return reason_of(status);
  Graph graph;
  return find_engines(graph, s, pass, nullptr, device);
}

std::string cudnn_name() {
  if (!cudnn_library::why_not().empty()) return "";
  const std::size_t version = cudnnGetVersion();
  return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void cudnn_attention_forward(const Context& context, const AttentionForward& a) {
  Pointers pointers = {{Uid::out, a.out}, {Uid::lse, a.lse}};
  add_rows(pointers, a.qkv, {Uid::q, Uid::k, Uid::v});
  execute(context, a.shape, AttentionPass::forward, std::move(pointers));
}

void cudnn_attention_backward(const Context& context, const AttentionBackward& a) {
  Pointers pointers = {
      {Uid::out, const_cast<void*>(a.out)}, {Uid::lse, const_cast<float*>(a.lse)}, {Uid::d_out, const_cast<void*>(a.d_out)}};
  add_rows(pointers, a.qkv, {Uid::q, Uid::k, Uid::v}), add_rows(pointers, a.d_qkv, {Uid::d_q, Uid::d_k, Uid::d_v});
  execute(context, a.shape, AttentionPass::backward, std::move(pointers));
}

}  // namespace tessera::kernels::cuda
