// What a step's FLOPs are a share of, and what that share is called: the one wording of logs, tables, pages and plans.
#pragma once
#include <string>

namespace tessera {

/// The model's FLOPs over what the ranks can do, by both counts of attention.
struct Mfu {
  double full = 0;      ///< all of attention counts, as in PaLM (arXiv:2204.02311, appendix B) and most programs: the headline
  double causal = 0;    ///< what a causal mask leaves of it
  bool of_peak = true;  ///< of the peak that a machine profile names; else of a product that this run has measured
};

/// "MFU", or "of the measured product", which is no MFU.
const char* mfu_name(bool of_peak);
/// "43.1 % (40.2 % causal)". More than all cannot be, and is said to be no share.
std::string mfu_numbers(const Mfu& mfu);
/// "MFU 43.1 % (40.2 % causal)", or "43.1 % (40.2 % causal) of the measured product"
std::string mfu_text(const Mfu& mfu);

}  // namespace tessera
