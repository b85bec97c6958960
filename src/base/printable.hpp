// Texts of others on a terminal: names in files, words of programs. What a terminal would take for a command is shown and not done.
#pragma once
#include <string>
#include <string_view>

namespace tessera {

/// The text as it is but for control characters other than line feed and tab, characters that turn the direction of what follows, and
/// bytes that are no UTF-8. The first two are written as \u and four digits, as in JSON and TOML, the last as \x and two.
std::string printable(std::string_view text);
/// The same with line feeds and tabs written so too: for a name, which is to stay in its line.
std::string printable_name(std::string_view name);

}  // namespace tessera
