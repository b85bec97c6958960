// What an engine does with a GPU before its first step: its memory is zeroed, kernels are chosen and loaded.
#include <optional>

#include "base/backend.hpp"
#include "base/log.hpp"
#include "kernels/cuda/devices.hpp"
#include "kernels/cuda/kernel_search.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "train/engine/engine.hpp"

namespace tessera {

void Engine::clear_device() {
#ifdef TESSERA_CUDA
  // Gaps between tensors are summed and moved along with them, and nobody writes them.
  for (Tier tier : {Tier::device, Tier::pinned}) {
    const Arena& arena = memory_.arena(tier);
    if (arena.bytes() > 0) kernels::cuda::fill_zero({}, arena.data(), arena.bytes());
  }
  cuda::synchronize();  // lanes do not wait for the stream of this
#endif
}

void Engine::wait_for_device() const {
#ifdef TESSERA_CUDA
  if (schedule().shape.backend == kernels::Backend::cuda) cuda::synchronize();
#endif
}

void Engine::fill_parameters_with_noise() {
#ifdef TESSERA_CUDA
  // In fp32 pairs of bf16 numbers, which read as fp32 are of the same size.
  DType type = schedule().shape.dtype;
  if (type == DType::f32) type = DType::bf16;
  const auto element = static_cast<std::int64_t>(size_of(type));
  constexpr std::int64_t most = std::int64_t{1} << 16;
  constexpr float std = 0.02f;
  const Arena memory(Tier::device, static_cast<std::size_t>(most) * (sizeof(float) + size_of(type)), "tessera.noise");
  auto* wide = reinterpret_cast<float*>(memory.data());
  const std::byte* noise = memory.data() + most * sizeof(float);
  kernels::cuda::normal({}, wide, most, std, 1, 1, 0);
  kernels::cuda::cast({}, const_cast<std::byte*>(noise), type, wide, DType::f32, most);
  for (std::size_t b = 0; b < schedule().buffers.size(); ++b) {
    const Buffer& buffer = schedule().buffers[b];
    const bool weights = buffer.category == Category::parameters || buffer.category == Category::gathered;
    if (!weights || buffer.tier != Tier::device) continue;  // what lies below comes up as copies, which warm nothing up
    for (std::int64_t at = 0, piece = most * element; at < buffer.bytes; at += piece)
      kernels::cuda::copy({}, memory_.address(static_cast<int>(b), at), noise,
                          static_cast<std::size_t>(std::min(piece, buffer.bytes - at)));
  }
  cuda::synchronize();
#endif
}

void Engine::warm_up([[maybe_unused]] const std::string& kernel_choices) {
#ifdef TESSERA_CUDA
  // Tokens are 0 and so valid. Weights are not: a GPU multiplies zeros faster than numbers, and kernels would be chosen by that.
  fill_parameters_with_noise();
  std::optional<kernels::cuda::KernelSearch> search;
  if (!kernel_choices.empty())
    search.emplace(kernel_choices,
                   kernels::cuda::KernelSearch::Wanted{.products = plan_.request.deck.kernels.gemm_search, .attention = true});
  executor_->warm_up(ProgramKind::train);
  if (search && !search->save() && data().rank == 0)
    warning("could not write {}: the next start searches for the fastest kernels again", kernel_choices);
  clear_device();
#endif
}

}  // namespace tessera
