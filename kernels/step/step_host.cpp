#include "kernels/step/step_code.hpp"

namespace tessera::kernels::host {

void begin_step(const Context&, StepScalars* scalars, const StepInputs* inputs) { step::begin_step(scalars, inputs); }
void scale_gradients(const Context&, const ScaleGradients& p) { step::scale_gradients(p); }
void add_loss(const Context&, const AddLoss& p) { step::add_loss(p); }
void join_sums(const Context&, StepScalars* scalars, const StepScalars* other) { step::join_sums(scalars, other); }
void count_flags(const Context&, StepScalars* scalars, const StepInputs* inputs) { step::count_flags(scalars, inputs); }
void finish_step(const Context&, const FinishStep& p) { step::finish(p); }

}  // namespace tessera::kernels::host
