#include "kernels/preference_scale/preference_scale.hpp"

namespace tessera::kernels::host {

void preference_scale(const Context&, PreferenceScale* scale, const StepScalars* scalars) { *scale = scale_of_preferences(*scalars); }

}  // namespace tessera::kernels::host
