#include "report/page/html.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

/// Whether a cell reads as a number, with a unit perhaps.
bool is_numeric(const std::string& cell) {
  return !cell.empty() && cell.size() < 24 && std::isdigit(static_cast<unsigned char>(cell[0])) &&
         cell.find_first_of("/:") == std::string::npos;
}

/// Whether all of a column's cells do.
bool is_column_of_numbers(const std::vector<std::vector<std::string>>& rows, std::size_t column) {
  return !rows.empty() && std::ranges::all_of(rows, [&](const auto& row) { return column < row.size() && is_numeric(row[column]); });
}

constexpr const char* right = " class=\"number\"";

}  // namespace

std::string html(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default:
        safe += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? ' ' : c;
    }
  }
  return safe;
}

std::string html_words(std::string_view text) {
  std::string words = html(text);
  for (std::size_t at = 0;;) {
    const std::size_t begin = words.find('`', at), end = begin == words.npos ? begin : words.find('`', begin + 1);
    if (end == words.npos) return words;
    const std::string code = "<code>" + words.substr(begin + 1, end - begin - 1) + "</code>";
    words.replace(begin, end + 1 - begin, code);
    at = begin + code.size();
  }
}

std::string script_json(std::string_view json) {
  std::string safe;
  for (const char c : json)
    if (c == '<')
      safe += "\\u003c";
    else
      safe += c;
  return safe;
}

std::string html_table(const std::vector<std::string>& heads, const std::vector<std::vector<std::string>>& rows,
                       const std::string& caption) {
  std::string text = "<div class=\"wide\"><table>";
  if (!caption.empty()) text += "<caption>" + html(caption) + "</caption>";
  text += "<thead><tr>";
  std::vector<bool> numbers;
  for (std::size_t i = 0; i < heads.size(); ++i) {
    numbers.push_back(i > 0 && is_column_of_numbers(rows, i));
    text += fmt::format("<th scope=\"col\"{}>{}</th>", numbers[i] ? right : "", html(heads[i]));
  }
  text += "</tr></thead><tbody>";
  for (const auto& row : rows) {
    text += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i)
      text += i == 0 ? "<th scope=\"row\">" + html(row[i]) + "</th>" : fmt::format("<td{}>{}</td>", numbers[i] ? right : "", html(row[i]));
    text += "</tr>\n";
  }
  return text + "</tbody></table></div>\n";
}

std::string span_text(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds != 0 && seconds < 1e-3) return fmt::format("{:.3g} µs", 1e6 * seconds);
  if (seconds < 1) return fmt::format("{:.3g} ms", 1e3 * seconds);
  if (seconds < 120) return fmt::format("{:.3g} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 7200) return fmt::format("{} min {} s", whole / 60, whole % 60);
  if (whole < 172800) return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
  return fmt::format("{} d {} h", whole / 86400, whole / 3600 % 24);
}

std::string moment_text(double time) {
  if (!std::isfinite(time) || time <= 0 || time > 1e11) return "-";
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(static_cast<std::time_t>(time)));
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

}  // namespace tessera
