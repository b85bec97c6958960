#include "train/saving.hpp"

#include <fmt/format.h>

#include "base/clock.hpp"
#include "base/end_report.hpp"
#include "base/version.hpp"
#include "train/program_identity.hpp"

namespace tessera {

Saver::Saver(const World& world, const Engine& engine, const Deck& deck, std::string root)
    : world_(world), engine_(engine), deck_(deck), root_(std::move(root)) {}

std::string Saver::save(std::int64_t step) {
  const double begin = now_seconds();
  const io::CheckpointLayout layout = engine_.checkpoint_layout();
  const bool leader = world_.rank() == 0;
  try {
    world_.together([&] {
      if (leader) io::begin_checkpoint(root_, step);
    });
    world_.together([&] { io::write_shard(root_, step, layout, world_.rank(), engine_.checkpoint_slices()); });
    world_.together([&] {
      if (!leader) return;
      io::write_index(root_, layout,
                      {.step = step,
                       .sample_cursor = step * deck_.batch.global,
                       .seed = static_cast<std::uint64_t>(deck_.run.seed),
                       .deck = print_deck(deck_),
                       .identity = deck_identity(deck_).hex(),
                       .version = version(),
                       .program = describe(program_identity())});
      io::commit_checkpoint(root_, step, deck_.checkpoint.keep);
    });
  } catch (const AgreedError& error) {
    if (leader) io::discard_checkpoint(root_, step);
    throw AgreedError(
        error.code,
        fmt::format("{}\nThe checkpoint of step {} was not written; the one before it is intact. Training stops here.", error.what(), step),
        error.speaker);
  }
  note_saved(step);
  std::int64_t bytes = 0;
  for (const auto& unit : layout.units) bytes += unit.elements * 4 * static_cast<std::int64_t>(layout.groups.size());
  const double seconds = now_seconds() - begin;
  return fmt::format("saved {}/{} ({} in {:.2f} s)", root_, io::checkpoint_name(step), human_bytes(static_cast<double>(bytes)), seconds);
}

void load_checkpoint(const World& world, Engine& engine, const std::string& path) {
  std::optional<io::CheckpointReader> reader;
  world.together([&] { reader.emplace(path); });
  world.together([&] { engine.read_state(*reader); });
  engine.publish();
}

}  // namespace tessera
