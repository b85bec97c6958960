// Enums whose values have words, in decks, in options and in what is printed. Each stands beside its words, in the order of its values.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

namespace tessera {

/// The words of E, in the order of its enumerators: an array, of which an enum with words has a specialization.
template <class E>
inline constexpr auto enum_words = std::array<std::string_view, 0>{};

template <class E>
concept Worded = std::is_enum_v<E> && !enum_words<E>.empty();

template <Worded E>
constexpr std::string_view word_of(E value) {
  return enum_words<E>.at(static_cast<std::size_t>(value));
}
/// The value that a word stands for; none where the text is no word of E.
template <Worded E>
constexpr std::optional<E> from_word(std::string_view text) {
  for (std::size_t i = 0; i < enum_words<E>.size(); ++i)
    if (enum_words<E>[i] == text) return static_cast<E>(i);
  return std::nullopt;
}

/// data.bin_ids, the type of ids in token files without a header: here, since readers of files know no deck.
enum class BinIds : std::uint8_t { automatic, uint16, uint32 };
template <>
inline constexpr auto enum_words<BinIds> = std::to_array<std::string_view>({"auto", "uint16", "uint32"});

}  // namespace tessera
