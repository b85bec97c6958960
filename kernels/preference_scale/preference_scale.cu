// One thread, bound by the launch.
#include "kernels/cuda/device.hpp"
#include "kernels/preference_scale/preference_scale.hpp"

namespace tessera::kernels::cuda {
namespace {
__global__ void preference_scale_kernel(PreferenceScale* scale, const StepScalars* scalars) { *scale = scale_of_preferences(*scalars); }
}  // namespace

void preference_scale(const Context& context, PreferenceScale* scale, const StepScalars* scalars) {
  tessera::cuda::launch(tessera::cuda::stream_of(context), 1, 1, 0, preference_scale_kernel, scale, scalars);
}

}  // namespace tessera::kernels::cuda
