// Fixtures as the tests and tools of this folder read them.
#pragma once
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "io/hdf5/hdf5.hpp"

namespace tessera::fixture {

namespace hdf5 = io::hdf5;

inline std::vector<std::int64_t> dims_of(const hdf5::File& file, const std::string& name) { return file.open_dataset(name).dims(); }

template <class T>
std::vector<T> values(const hdf5::File& file, const std::string& name) {
  const hdf5::Dataset d = file.open_dataset(name);
  std::vector<T> out(static_cast<std::size_t>(d.elements()));
  d.read_box({std::vector<std::int64_t>(d.dims().size(), 0), d.dims()}, hdf5::element_of<T>(), out.data());
  return out;
}
inline std::vector<float> floats(const hdf5::File& file, const std::string& name) { return values<float>(file, name); }
inline std::vector<std::uint32_t> integers(const hdf5::File& file, const std::string& name) { return values<std::uint32_t>(file, name); }

/// The deck of a fixture's model and of its ten steps; reproducible runs take one sequence a micro-batch, but where routers balance the
/// experts of a micro-batch: their loss is another one then.
inline Deck deck_of(const hdf5::File& file, bool bf16, bool reproducible, const std::string& device = "host") {
  const auto tokens = dims_of(file, "tokens");
  std::string text = *file.text_attribute("model_toml");
  const std::int64_t micro = reproducible && text.find("router_aux_loss") == std::string::npos ? 1 : tokens[0];
  text += fmt::format(
      "[run]\nsteps = 1000\nreproducible = {}\ndevice = \"{}\"\n[batch]\nglobal = {}\nmicro = {}\nsequence_length = {}\n[data]\ntrain = "
      "\"none.bin\"\n"
      "[optimizer]\nlearning_rate = 1e-3\nbeta1 = 0.9\nbeta2 = 0.95\neps = 1e-8\nweight_decay = 0.1\ngradient_clipping = 1.0\n"
      "[learning_rate]\nschedule = \"constant\"\nwarmup_steps = 0\n[precision]\ncompute = \"{}\"\n",
      reproducible, device, tokens[0], micro, tokens[1], bf16 ? "bf16" : "fp32");
  return require_deck(parse_deck_text(text, file.file(), {}, 1));
}

}  // namespace tessera::fixture
