// One thread each: these are a few hundred bytes, bound by the launch.
#include "kernels/cuda/device.hpp"
#include "kernels/step/step_code.hpp"

namespace tessera::kernels::cuda {
namespace {

__global__ void begin_step_kernel(StepScalars* scalars, const StepInputs* inputs) { step::begin_step(scalars, inputs); }
__global__ void scale_gradients_kernel(ScaleGradients p) { step::scale_gradients(p); }
__global__ void add_loss_kernel(AddLoss p) { step::add_loss(p); }
__global__ void join_sums_kernel(StepScalars* scalars, const StepScalars* other) { step::join_sums(scalars, other); }
__global__ void count_flags_kernel(StepScalars* scalars, const StepInputs* inputs) { step::count_flags(scalars, inputs); }
__global__ void finish_kernel(FinishStep p) { step::finish(p); }

}  // namespace

using tessera::cuda::launch;
using tessera::cuda::stream_of;

void begin_step(const Context& context, StepScalars* scalars, const StepInputs* inputs) {
  launch(stream_of(context), 1, 1, 0, begin_step_kernel, scalars, inputs);
}
void scale_gradients(const Context& context, const ScaleGradients& p) { launch(stream_of(context), 1, 1, 0, scale_gradients_kernel, p); }
void add_loss(const Context& context, const AddLoss& p) { launch(stream_of(context), 1, 1, 0, add_loss_kernel, p); }
void join_sums(const Context& context, StepScalars* scalars, const StepScalars* other) {
  launch(stream_of(context), 1, 1, 0, join_sums_kernel, scalars, other);
}
void count_flags(const Context& context, StepScalars* scalars, const StepInputs* inputs) {
  launch(stream_of(context), 1, 1, 0, count_flags_kernel, scalars, inputs);
}
void finish_step(const Context& context, const FinishStep& p) { launch(stream_of(context), 1, 1, 0, finish_kernel, p); }

}  // namespace tessera::kernels::cuda
