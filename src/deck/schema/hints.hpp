// What a user probably meant: nearest key by edit distance, and the words of DeepSpeed, Hugging Face, Megatron and llm.c for ours.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Insertions, deletions, replacements and swaps of neighbours that turn one word into the other; `most` + 1 where there are more than
/// `most`.
int edit_distance(std::string_view a, std::string_view b, int most = 1 << 20);

/// The nearest of `words`, or empty if none is near enough to be a misspelling.
std::string_view nearest(std::string_view word, std::span<const std::string_view> words);

/// A word that users of other programs write. `ours` is a key or section here; where there is none, `note` says why.
struct HintWord {
  std::string_view theirs, ours, note = "";
};
/// All of them.
std::span<const HintWord> hint_words();

struct Hint {
  std::string message;      ///< for the user: what is wrong and what to write instead
  std::string replacement;  ///< the key or section that was meant, or empty
};

/// For a key that is not in the schema. `name` is its full path.
Hint hint_for_key(std::string_view name);
/// For a section that is not in the schema.
Hint hint_for_section(std::string_view name);

}  // namespace tessera
