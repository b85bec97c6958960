// One row a key of a DeepSpeed configuration: what becomes of it here. The import and its page in docs/ are made from this table.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

/// What DeepSpeed takes for a key.
enum class DeepSpeedType { integer, real, boolean, text, list, section, any };

enum class DeepSpeedOutcome {
  mapped,    ///< becomes a value of our key `ours`
  unneeded,  ///< needs no key here; `says` why
  refused,   ///< not there; `says` what to do. Its value `off` changes nothing and is let pass
  part       ///< of the section that it stands in, whose outcome it has
};

struct DeepSpeedKey {
  std::string_view name;  ///< "zero_optimization.stage"
  DeepSpeedType type = DeepSpeedType::any;
  DeepSpeedOutcome outcome = DeepSpeedOutcome::part;
  std::string_view ours = {};  ///< mapped: our key; refused: the key that, given on the command line, takes the place of this one
  std::string_view says = {};
  std::string_view off = {};  ///< refused: "false"; of a section with a switch: the switch's name
  /// What stands in the place of "auto", and who would have filled it in.
  std::string_view automatic = {}, filled_by = {};
  /// Values that have another word here: as DeepSpeed writes them, as a deck does.
  std::vector<std::pair<std::string_view, std::string_view>> words = {};
  bool together = false;  ///< translated with others, not by itself: batch, precision, optimizer, schedule
  bool open = false;      ///< a section whose keys are not looked at

  std::string_view section() const { return name.substr(0, name.rfind('.') == name.npos ? 0 : name.rfind('.')); }
  std::string_view leaf() const { return name.substr(name.rfind('.') + 1); }
};

/// The whole table. Sections that have no row are there because a key stands in them.
std::span<const DeepSpeedKey> deepspeed_keys();
/// The row of a full name, or nullptr.
const DeepSpeedKey* find_deepspeed_key(std::string_view name);
/// Some key stands in or below it.
bool is_deepspeed_section(std::string_view name);
/// The row that says what becomes of a key: its own, or that of the section that it is a part of.
const DeepSpeedKey& deciding_row(const DeepSpeedKey& key);

/// The two halves of the table: what a step is made of, and what stands around it.
std::vector<DeepSpeedKey> deepspeed_step_keys();
std::vector<DeepSpeedKey> deepspeed_other_keys();

}  // namespace tessera
