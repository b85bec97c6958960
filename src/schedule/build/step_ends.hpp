// Begin and end of a program: inputs are uploaded, sums cleared, norms and scalars computed, results downloaded.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "schedule/build/emitter.hpp"

namespace tessera {

void emit_copy(Emitter& out, const char* verb, const std::string& to, const std::string& from);
void emit_upload(Emitter& out, const std::vector<std::string>& names);
void emit_download(Emitter& out, const std::string& name);
/// Adds up some of the step's scalars, int64, over all ranks.
void emit_sums_over_ranks(Emitter& out, const std::string& name, std::int64_t first, std::int64_t count,
                          const std::string& scalars = "scalars");
void emit_begin(Emitter& out);
/// Computes the factor of gradients of sums over tokens, before anything reads it.
void emit_gradient_scale(Emitter& out);
/// Clears the error feedback of gradients.
void emit_errors_cleared(Emitter& out);
/// Norms and scalars of a training step, and its updates unless they are late.
void emit_epilogue(Emitter& out);
/// Adds up the step's scalars over ranks, and computes the report.
void emit_finish(Emitter& out, bool evaluation);

}  // namespace tessera
