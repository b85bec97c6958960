// The manual page, made of what --help shows.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/version.hpp"
#include "commands/completion.hpp"

namespace tessera {
namespace {

/// Text as roff takes it: a backslash, a minus, and a line that would begin with a request.
std::string roff(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool begins = i == 0 || text[i - 1] == '\n';
    if (begins && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out;
}

std::string usage(const CommandRow& row) {
  std::string text = row.path;
  if (!row.commands.empty()) return fmt::format("{} COMMAND", text);
  for (const OptionRow& option : row.options)
    if (option.place) text += " " + option.names.front();
  return text + " [OPTIONS]";
}

/// The footer: examples stand in lines of their own, which begin with two spaces.
std::string footer(const std::string& text) {
  if (text.empty()) return "";
  std::string out = ".PP\n";
  bool verbatim = false;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    const bool example = line.starts_with("  ");
    if (example != verbatim) out += example ? ".nf\n" : ".fi\n";
    verbatim = example;
    out += line.empty() ? ".PP\n" : roff(line) + "\n";
    at = end + 1;
  }
  return verbatim ? out + ".fi\n" : out;
}

std::string section_of(const CommandRow& row) {
  std::string text = fmt::format(".SS {}\n.B {}\n.PP\n{}\n", roff(row.path), roff(usage(row)), roff(row.help));
  for (const OptionRow& option : row.options)
    text += fmt::format(".TP\n.B {}\n{}\n", roff(fmt::format("{}", fmt::join(option.names, ", "))), roff(option.help));
  return text + footer(row.footer);
}

}  // namespace

std::string man_page(const std::vector<CommandRow>& rows) {
  std::string text =
      fmt::format(".TH TESSERA 1 \"\" \"Tessera {}\" \"Tessera\"\n.SH NAME\ntessera \\- {}\n", version(), roff(rows.front().help));
  text += ".SH SYNOPSIS\n.B tessera\nCOMMAND ...\n.SH DESCRIPTION\nThe commands are:\n";
  for (const std::string& name : rows.front().commands)
    for (const CommandRow& row : rows)
      if (row.path == "tessera " + name) text += fmt::format(".TP\n.B {}\n{}\n", roff(name), roff(row.help));
  text += ".SH COMMANDS\n";
  for (const CommandRow& row : rows)
    if (&row != &rows.front()) text += section_of(row);
  return text;
}

}  // namespace tessera
