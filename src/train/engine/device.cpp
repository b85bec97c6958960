#include "train/engine/device.hpp"

#include <set>

#include "base/backend.hpp"
#include "base/check.hpp"
#include "base/log.hpp"
#include "kernels/attention/attention_path.hpp"
#include "kernels/attention/cudnn_attention.hpp"
#include "kernels/cuda/devices.hpp"
#include "kernels/libraries/libraries.hpp"
#include "kernels/product_proof/product_proof.hpp"

namespace tessera {
namespace {

/// A GPU that auto may take. The emulator is none: it serves those who ask for it.
bool sees_gpu() {
#if defined(TESSERA_CUDA) && !defined(TESSERA_EMULATED_GPU)
  return cuda::device_count() > 0;
#else
  return false;
#endif
}

void require_device(RunDevice device) {
  if (device != RunDevice::cuda) return;
#ifdef TESSERA_CUDA
  if (const std::string why = cuda::why_no_device(); !why.empty())
    fail(ExitCode::environment, "this machine has no GPU to use ({}): use one that has, or set run.device = \"host\" (or \"auto\")", why);
#else
  fail(ExitCode::environment, "this build has no CUDA backend: build with the cuda preset, or set run.device = \"host\"");
#endif
}

}  // namespace

bool has_gpu_backend() {
#ifdef TESSERA_CUDA
  return true;
#else
  return false;
#endif
}

RunDevice choose_device(RunDevice asked) {
  require_device(asked);
  return asked != RunDevice::automatic ? asked : sees_gpu() ? RunDevice::cuda : RunDevice::host;
}

void choose_device(const World& world, ParsedDeck& parsed) {
  RunDevice& device = parsed.deck.run.device;
  if (device == RunDevice::automatic) {
    // The first rank looks for all: where ranks see different machines, those without a GPU say so below.
    const bool seen = !world.broadcast_text(sees_gpu() ? "seen" : "").empty();
    device = seen ? RunDevice::cuda : RunDevice::host;
    parsed.resolved.push_back(fmt::format("run.device = \"{}\" (auto: {})", word_of(device),
                                          !has_gpu_backend() ? "the only backend of this build"
                                          : seen             ? "a GPU is seen"
                                                             : "no GPU is seen"));
  }
  world.together([&] { require_device(device); });
#ifdef TESSERA_CUDA
  if (device != RunDevice::cuda || world.rank() != 0) return;
  if (const std::string notice = cuda::describe_translation(); !notice.empty()) warning("{}", notice);
#endif
}

Spaces spaces_of(RunDevice device) { return device == RunDevice::cuda ? Spaces::host_and_gpu : Spaces::host; }

void require_attention([[maybe_unused]] const ModelShape& shape) {
#ifdef TESSERA_CUDA
  using kernels::cuda::AttentionPass;
  if (shape.backend != kernels::Backend::cuda || shape.attention.path != kernels::AttentionPath::cudnn) return;
  for (AttentionPass pass : {AttentionPass::forward, AttentionPass::backward})
    if (const std::string reason = kernels::cuda::why_not_cudnn(attention_shape(shape), pass); !reason.empty())
      fail(ExitCode::environment,
           "kernels.attention = \"cudnn\", but cuDNN cannot run this model's attention here: {}. Set \"native\" or \"auto\"", reason);
#endif
}

void require_fp8([[maybe_unused]] const ModelShape& shape) {
#ifdef TESSERA_CUDA
  if (shape.backend != kernels::Backend::cuda || shape.fp8.recipe == Fp8Recipe::none) return;
  if (!cuda::multiplies_fp8())
    fail(ExitCode::environment,
         "precision.fp8 = \"{}\", but this GPU ({}) has no fp8 products, which need compute capability 8.9. Set precision.fp8 = \"none\", "
         "or run.device = \"host\", which emulates them",
         word_of(shape.fp8.recipe), cuda::device_model());
  if (shape.fp8.recipe == Fp8Recipe::rowwise && !cuda::is_hopper())
    fail(ExitCode::environment,
         "precision.fp8 = \"rowwise\", but cuBLASLt scales rows only on GPUs of compute capability 9.0, which this one ({}) does not have. "
         "Set precision.fp8 = \"tensorwise\"",
         cuda::device_model());
#endif
}

void require_true_products(const ModelShape& shape, bool reproducible) {
  if (shape.backend != kernels::Backend::host) return;
  // Optimizers multiply in fp32 (Muon), and codes of fp8 are multiplied as fp16 is: in fp32, in pieces.
  std::set<DType> types{DType::f32, shape.dtype};
  if (shape.fp8.recipe != Fp8Recipe::none) types.insert(DType::f16);
  for (const DType type : types)
    if (const std::string fault = kernels::fault_of_products(type, reproducible); !fault.empty())
      fail(ExitCode::environment,
           "oneDNN {} multiplies wrongly on this processor ({}): {}{}, {}. Numbers of a run would be wrong. Start the program with "
           "ONEDNN_MAX_CPU_ISA=AVX2 in the environment of all ranks, which selects other code of the library, or with another version of "
           "oneDNN (libdnnl)",
           kernels::onednn_version(), kernels::onednn_instructions(), name_of(type), reproducible ? ", reproducible" : "", fault);
}

std::vector<std::string> describe_attention([[maybe_unused]] const ModelShape& shape) {
#ifdef TESSERA_CUDA
  if (shape.backend != kernels::Backend::cuda) return {};
  if (shape.attention.path == kernels::AttentionPath::cudnn) return {"attention: " + kernels::cuda::cudnn_name()};
  if (const auto choices = kernels::cuda::attention_choices(); !choices.empty()) return choices;
  return {"attention: ours"};
#else
  return {};
#endif
}

std::string describe_hardware([[maybe_unused]] RunDevice device) {
#ifdef TESSERA_CUDA
  if (device == RunDevice::cuda) return fmt::format("{}, {}, NCCL {}", cuda::device_model(), kernels::cuda_libraries(), nccl_version());
#endif
  return kernels::onednn_instructions();
}

std::int64_t used_device_memory() {
#ifdef TESSERA_CUDA
  return static_cast<std::int64_t>(cuda::used_memory());
#else
  return 0;
#endif
}

void wait_for_device([[maybe_unused]] kernels::Backend backend) {
#ifdef TESSERA_CUDA
  if (backend == kernels::Backend::cuda) cuda::synchronize();
#endif
}

}  // namespace tessera
