// The two calls that a frozen step has, as one update.
#pragma once
#include "kernels/onebit/onebit.hpp"
#include "update_cases.hpp"

namespace tessera::kernels::testing {

/// The first call changes no weight, so it makes no copy.
inline void frozen_step(void (*momentum)(const Context&, const Update&), void (*frozen)(const Context&, const Update&), Update p) {
  Update first = p;
  first.param = nullptr;
  momentum({}, first);
  p.grad = nullptr;
  frozen({}, p);
}

}  // namespace tessera::kernels::testing
