// Text as a page may hold it.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Of a user's: no character of it is markup, neither between tags nor in an attribute's quotes.
std::string html(std::string_view text);

/// The same, where what stands between backticks is code.
std::string html_words(std::string_view text);

/// JSON as it may stand in a script element: nothing in it ends that.
std::string script_json(std::string_view json);

/// Rows of a table under their heads; all cells are text of anybody's. A column of numbers stands to the right.
std::string html_table(const std::vector<std::string>& heads, const std::vector<std::vector<std::string>>& rows,
                       const std::string& caption = "");

/// "3 d 4 h", "12.3 s", "4.1 ms"
std::string span_text(double seconds);
/// "2026-11-26 15:30:05 UTC"
std::string moment_text(double time);
std::string percent(double share);

}  // namespace tessera
