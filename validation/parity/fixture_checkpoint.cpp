// fixture_checkpoint FIXTURE.h5 ROOT: writes a checkpoint of the fixture's weights as one rank would, so that the path from checkpoint to
// export can be compared with what PyTorch computed for the same weights.
#include <cstdio>

#include "io/checkpoint/checkpoint.hpp"
#include "memory/runtime.hpp"
#include "train/engine/engine.hpp"
#include "validation/parity/fixture.hpp"

int main(int argc, char** argv) {
  using namespace tessera;
  if (argc != 3) return std::fputs("usage: fixture_checkpoint FIXTURE.h5 ROOT\n", stderr), 2;
  const KernelRuntime runtime(1);
  const auto file = fixture::hdf5::File::open(argv[1], ExitCode::data);
  const Deck deck = fixture::deck_of(file, false, false);
  Engine engine(plan_run(request_for(deck, Mesh{}, 0, Purpose::training)));
  engine.set_weights([&](const Parameter& p, std::int64_t first, std::span<float> out) {
    const auto values = fixture::floats(file, "weights/" + p.name);
    std::copy_n(values.begin() + first, out.size(), out.begin());
  });
  const io::CheckpointLayout layout = engine.state().checkpoint_layout();
  io::begin_checkpoint(argv[2], 0);
  io::write_shard(argv[2], 0, layout, 0, engine.state().checkpoint_slices());
  io::write_index(argv[2], layout, {.deck = print_deck(deck), .identity = deck_identity(deck).hex(), .version = "test"});
  io::commit_checkpoint(argv[2], 0, {});
  return 0;
}
