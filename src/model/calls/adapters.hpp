// What adapters add to the products of linear layers and of experts (lora.hpp). Texts know nothing of them: a product of matrices that have
// some is followed by theirs, in columns of the same result. With `offsets`, those of the rows of experts (R rows), each expert's with its
// own matrices.
#pragma once
#include "model/record/recorder.hpp"

namespace tessera {

/// y += what the adapters of w and the tensors joined to it make of x.
void add_adapters(Recorder& r, Value y, Value x, const std::string& w, std::int64_t N, std::int64_t K, Value offsets = {});
void adapter_weight_gradients(Recorder& r, Value d_y, Value x, const std::string& w, std::int64_t N, std::int64_t K, Value offsets = {});
void add_adapter_input_gradients(Recorder& r, Value d_x, Value d_y, const std::string& w, std::int64_t N, std::int64_t K,
                                 Value offsets = {});
/// Under this a recorder notes a value whose rows have been multiplied by what they count for.
inline std::string weighed(Value value) { return "weighed " + std::to_string(value.id); }

}  // namespace tessera
