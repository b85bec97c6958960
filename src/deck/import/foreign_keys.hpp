// One row a key of another program's configuration: what becomes of it here. The imports and their pages in docs/ are made from these
// tables.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

/// What the other program takes for a key.
enum class ForeignType { integer, real, boolean, text, list, section, any };

enum class ForeignOutcome {
  mapped,    ///< becomes a value of our key `ours`
  unneeded,  ///< needs no key here; `says` why
  refused,   ///< not there; `says` what to do. Its value `off` changes nothing and is let pass
  part       ///< of the section that it stands in, whose outcome it has
};

struct ForeignKey {
  std::string_view name;  ///< "zero_optimization.stage"
  ForeignType type = ForeignType::any;
  ForeignOutcome outcome = ForeignOutcome::part;
  std::string_view ours = {};  ///< mapped: our key; refused: the key that, given on the command line, takes the place of this one
  std::string_view says = {};
  std::string_view off = {};  ///< refused: "false"; of a section with a switch: the switch's name
  /// What stands in the place of "auto", and who would have filled it in.
  std::string_view automatic = {}, filled_by = {};
  /// Values that have another word here: as they are written there, as a deck does.
  std::vector<std::pair<std::string_view, std::string_view>> words = {};
  std::string_view gone = {};  ///< the version of the other program since which it refuses the key itself
  bool together = false;       ///< translated with others, not by itself: batch, precision, optimizer, schedule
  bool open = false;           ///< a section whose keys are not looked at

  /// What `says`, and since when the other program has no such key.
  std::string reason() const;
  std::string_view section() const { return name.substr(0, name.rfind('.') == name.npos ? 0 : name.rfind('.')); }
  std::string_view leaf() const { return name.substr(name.rfind('.') + 1); }
};

/// All keys of a program. Sections that have no row are there because a key stands in them.
struct ForeignTable {
  std::string_view owner;    ///< "DeepSpeed", for messages
  std::string_view command;  ///< that lists the table
  std::vector<ForeignKey> rows;
  /// Older names of keys and sections, or beginnings of names (`fsdp_config.fsdp_`), and those of the rows.
  std::vector<std::pair<std::string_view, std::string_view>> renamed = {};
  /// Names that guides write and nobody reads, with what is meant.
  std::vector<std::pair<std::string_view, std::string_view>> misnamed = {};
  bool knows_auto = false;  ///< "auto" is a value there

  /// The name that a row has.
  std::string canonical(const std::string& name) const;
  /// The row of a full name, or nullptr.
  const ForeignKey* find(std::string_view name) const;
  /// Some key stands in or below it.
  bool is_section(std::string_view name) const;
  /// The row that says what becomes of a key: its own, or that of the section that it is a part of.
  const ForeignKey& deciding(const ForeignKey& key) const;
  /// Markdown table of the keys with what becomes of each.
  std::string reference() const;
};

const ForeignTable& deepspeed_table();
/// Of what `accelerate config` writes.
const ForeignTable& accelerate_table();
/// Of transformers' TrainingArguments.
const ForeignTable& trainer_table();

/// The two halves of DeepSpeed's: what a step is made of, and what stands around it.
std::vector<ForeignKey> deepspeed_step_keys();
std::vector<ForeignKey> deepspeed_other_keys();

}  // namespace tessera
