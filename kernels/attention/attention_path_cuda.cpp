// Attention on a GPU: our kernels or cuDNN's.
#include "kernels/attention/attention_path.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "base/check.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/attention/cudnn_attention.hpp"
#include "kernels/attention/native_attention.hpp"
#include "kernels/cuda/kernel_search.hpp"
#include "kernels/cuda/runtime.hpp"

namespace tessera::kernels::cuda {
namespace {

constexpr const char* words[] = {"forward", "backward"};

/// The shape's name in the file of a search.
std::string name_of_choice(const AttentionShape& s, AttentionPass pass) {
  return fmt::format("attention {}, B {} T {} H {} G {} D {}{}, ours {}, {}", words[static_cast<int>(pass)], s.B, s.T, s.H, s.G, s.D,
                     s.deterministic ? " deterministic" : "", native_revision, cudnn_name());
}

struct Choice {
  bool cudnn;
  std::string said;
};
std::mutex g_mutex;
std::map<std::string, Choice> g_choices;

/// What an earlier start found, or what timing both codes on the operands finds. A plan of cuDNN's takes seconds to build: not for nothing.
template <class Native, class Cudnn>
Choice search(const Context& context, const std::string& name, KernelSearch& search, const AttentionShape& s, AttentionPass pass,
              Native native, Cudnn cudnn) {
  const auto line = [&](bool chosen, const std::string& why) {
    return Choice{chosen, fmt::format("attention {}: {} ({})", words[static_cast<int>(pass)], chosen ? cudnn_name() : "ours", why)};
  };
  const std::string* known = search.find(name);
  if (known && *known == "native") return line(false, "known from an earlier start");
  if (const std::string reason = why_not_cudnn(s, pass); !reason.empty()) return line(false, reason);
  if (known) return line(true, "known from an earlier start");
  native();  // loads the code
  const float ours = best_seconds(context.stream, native);
  float theirs = 0;
  try {
    cudnn();
    theirs = best_seconds(context.stream, cudnn);
  } catch (const Error& error) {
    cudaGetLastError();
    return line(false, error.what());
  }
  search.keep(name, theirs < ours ? "cudnn" : "native");
  return line(theirs < ours, fmt::format("ours {:.3f} ms, {} {:.3f} ms", 1e3f * ours, cudnn_name(), 1e3f * theirs));
}

/// Whether cuDNN runs this pass.
template <class Native, class Cudnn>
bool takes_cudnn(const Context& context, const AttentionShape& s, AttentionPass pass, Native native, Cudnn cudnn) {
  if (s.path != AttentionPath::fastest || s.dtype == DType::f32) return s.path == AttentionPath::cudnn;
  const std::lock_guard lock(g_mutex);
  const std::string name = name_of_choice(s, pass);
  if (const auto found = g_choices.find(name); found != g_choices.end()) return found->second.cudnn;
  KernelSearch* active = KernelSearch::active();
  if (!active || !active->wanted().attention) return false;
  return g_choices.emplace(name, search(context, name, *active, s, pass, native, cudnn)).first->second.cudnn;
}

}  // namespace

void attention_forward(const Context& context, const AttentionForward& a) {
  TESSERA_CUDA_REQUIRE(context.workspace.size() >= cuda::attention_forward_workspace_bytes(a.shape));
  if (a.shape.B == 0 || a.shape.T == 0) return;
  const ForwardPass pass = pass_of(a);
  const auto native = [&] { native_attention_forward(context, pass); };
  const auto cudnn = [&] { cudnn_attention_forward(context, a); };
  !pass.is_ours_alone() && takes_cudnn(context, a.shape, AttentionPass::forward, native, cudnn) ? cudnn() : native();
}

void attention_backward(const Context& context, const AttentionBackward& a) {
  TESSERA_CUDA_REQUIRE(context.workspace.size() >= cuda::attention_backward_workspace_bytes(a.shape));
  if (a.shape.B == 0 || a.shape.T == 0) return;
  const BackwardPass pass = pass_of(a);
  const auto native = [&] { native_attention_backward(context, pass); };
  const auto cudnn = [&] { cudnn_attention_backward(context, a); };
  !pass.is_ours_alone() && takes_cudnn(context, a.shape, AttentionPass::backward, native, cudnn) ? cudnn() : native();
}

void attention_block_forward(const Context& context, const AttentionBlockForward& a) {
  TESSERA_CUDA_REQUIRE(context.workspace.size() >= cuda::attention_block_forward_workspace_bytes(a.block));
  if (a.block.shape.B > 0) native_attention_forward(context, pass_of(a));
}

void attention_block_backward(const Context& context, const AttentionBlockBackward& a) {
  TESSERA_CUDA_REQUIRE(context.workspace.size() >= cuda::attention_block_backward_workspace_bytes(a.block));
  if (a.block.shape.B > 0) native_attention_backward(context, pass_of(a));
}

std::vector<std::string> attention_choices() {
  const std::lock_guard lock(g_mutex);
  std::vector<std::string> lines;
  for (const auto& [name, choice] : g_choices) lines.push_back(choice.said);
  return lines;
}

}  // namespace tessera::kernels::cuda
