// tessera completion bash | zsh | fish | man
#include "commands/completion.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "base/check.hpp"
#include "base/log.hpp"
#include "commands/commands.hpp"
#include "deck/schema/schema.hpp"

namespace tessera {
namespace {

std::vector<std::string> option_names(const CommandRow& row) {
  std::vector<std::string> names;
  for (const OptionRow& option : row.options)
    if (!option.place) names.insert(names.end(), option.names.begin(), option.names.end());
  return names;
}

std::string deck_key_words() {
  std::string words;
  for (const Key& key : deck_keys()) words += fmt::format("{}{}=", words.empty() ? "" : " ", key.name);
  return words;
}

/// The first sentence of a help, or as many of its words as a line has room for, for single quotes, which have `quote` in the place of one.
std::string brief(const std::string& help, std::string_view quote) {
  constexpr std::size_t most = 80;
  std::string text = help.substr(0, std::min({help.find('\n'), help.find(". "), help.size()}));
  if (text.size() > most) text.resize(text.rfind(' ', most)), text += " ...";
  std::string quoted;
  for (const char c : text)
    if (c == '\'')
      quoted += quote;
    else if (c != '\\')
      quoted += c;
  return quoted;
}
constexpr std::string_view zsh_quote = "'\\''", fish_quote = "\\'";

/// The arms of a case that follows the words of a command line down to a command.
std::string paths_of(const std::vector<CommandRow>& rows, const char* arm) {
  std::string text;
  for (const CommandRow& row : rows)
    if (row.path.find(' ') != row.path.npos) text += fmt::format(fmt::runtime(arm), row.path);
  return text;
}

/// The arms for values with fixed words: `body` is given them.
template <class Body>
std::string values_of(const std::vector<CommandRow>& rows, const Body& body) {
  std::string text;
  for (const CommandRow& row : rows)
    for (const OptionRow& option : row.options) {
      if (option.choices.empty() || option.place) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : option.names) patterns.push_back(fmt::format("\"{} {}\"", row.path, name));
      text += fmt::format("    {}) {} ;;\n", fmt::join(patterns, "|"), body(option));
    }
  return text;
}

std::vector<std::string> place_words(const CommandRow& row) {
  std::vector<std::string> words = row.commands;
  for (const OptionRow& option : row.options)
    if (option.place) words.insert(words.end(), option.choices.begin(), option.choices.end());
  return words;
}

}  // namespace

std::string bash_completion(const std::vector<CommandRow>& rows) {
  std::string text =
      "# bash completion of tessera, made by `tessera completion bash`. In ~/.bashrc:  source <(tessera completion bash)\n"
      "_tessera() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} path=tessera options='' words='' keys=false i\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n    case \"$path ${COMP_WORDS[i]}\" in\n";
  text += paths_of(rows, "      \"{0}\") path=\"{0}\" ;;\n");
  text += "    esac\n  done\n  case \"$path $before\" in\n";
  text += values_of(rows, [](const OptionRow& option) {
    return fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$current\")); return", fmt::join(option.choices, " "));
  });
  text += "  esac\n  case \"$path\" in\n";
  for (const CommandRow& row : rows)
    text += fmt::format("    \"{}\") options='{}' words='{}' keys={} ;;\n", row.path, fmt::join(option_names(row), " "),
                        fmt::join(place_words(row), " "), row.takes_keys);
  text += fmt::format(
      "  esac\n  if [[ $current == -* ]]; then\n    COMPREPLY=($(compgen -W \"$options\" -- \"$current\"))\n"
      "  elif $keys && [[ $current == *.* && $current != */* ]]; then\n    COMPREPLY=($(compgen -W '{}' -- \"$current\"))\n"
      "    [ ${{#COMPREPLY[@]}} = 0 ] || compopt -o nospace 2>/dev/null\n"
      "  else\n    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n  fi\n  return 0\n}}\n"
      "complete -o default -F _tessera tessera\n",
      deck_key_words());
  return text;
}

std::string zsh_completion(const std::vector<CommandRow>& rows) {
  std::string text =
      "#compdef tessera\n# zsh completion of tessera, made by `tessera completion zsh`. In ~/.zshrc, after compinit:  source <(tessera "
      "completion zsh)\n"
      "_tessera() {\n  local at=tessera before=${words[CURRENT-1]} keys=false i\n  local -a options names\n"
      "  for ((i = 2; i < CURRENT; ++i)); do\n    case \"$at ${words[i]}\" in\n";
  text += paths_of(rows, "      \"{0}\") at=\"{0}\" ;;\n");
  text += "    esac\n  done\n  case \"$at $before\" in\n";
  text += values_of(rows, [](const OptionRow& option) { return fmt::format("compadd -- {}; return", fmt::join(option.choices, " ")); });
  text += "  esac\n  case \"$at\" in\n";
  for (const CommandRow& row : rows) {
    text += fmt::format("    \"{}\") keys={}\n      options=(", row.path, row.takes_keys);
    for (const OptionRow& option : row.options)
      for (const std::string& name : option.names)
        if (!option.place) text += fmt::format("'{}:{}' ", name, brief(option.help, zsh_quote));
    text += ")\n      names=(";
    for (const std::string& below : place_words(row)) {
      std::string help;
      for (const CommandRow& other : rows)
        if (other.path == row.path + " " + below) help = brief(other.help, zsh_quote);
      text += fmt::format("'{}:{}' ", below, help);
    }
    text += ") ;;\n";
  }
  text += fmt::format(
      "  esac\n  if [[ ${{words[CURRENT]}} == -* ]]; then\n    _describe option options\n"
      "  elif $keys && [[ ${{words[CURRENT]}} == *.* && ${{words[CURRENT]}} != */* ]]; then\n    compadd -S '' -- {}\n"
      "  else\n    [ ${{#names}} = 0 ] || _describe command names\n    _files\n  fi\n}}\n"
      "[ \"$funcstack[1]\" = _tessera ] && _tessera \"$@\" || compdef _tessera tessera\n",
      deck_key_words());
  return text;
}

std::string fish_completion(const std::vector<CommandRow>& rows) {
  std::string text =
      "# fish completion of tessera, made by `tessera completion fish`. In config.fish:  tessera completion fish | source\n"
      "function __tessera_at\n  set -l at tessera\n  for word in (commandline -opc)[2..-1]\n    switch \"$at $word\"\n";
  text += paths_of(rows, "      case '{0}'\n        set at '{0}'\n");
  text += "    end\n  end\n  test \"$at\" = \"$argv[1]\"\nend\n";
  for (const CommandRow& row : rows) {
    const std::string at = fmt::format("complete -c tessera -n '__tessera_at \"{}\"'", row.path);
    for (const CommandRow& other : rows)
      if (other.path.starts_with(row.path + " ") && other.path.find(' ', row.path.size() + 1) == other.path.npos)
        text += fmt::format("{} -a '{}' -d '{}'\n", at, other.path.substr(row.path.size() + 1), brief(other.help, fish_quote));
    for (const OptionRow& option : row.options) {
      if (option.place) {
        if (!option.choices.empty()) text += fmt::format("{} -a '{}'\n", at, fmt::join(option.choices, " "));
        continue;
      }
      text += at;
      for (const std::string& name : option.names)
        text += name.starts_with("--") ? fmt::format(" -l {}", name.substr(2)) : fmt::format(" -s {}", name.substr(1));
      if (option.takes_value) text += " -r";
      if (!option.choices.empty()) text += fmt::format(" -a '{}'", fmt::join(option.choices, " "));
      text += fmt::format(" -d '{}'\n", brief(option.help, fish_quote));
    }
    if (row.takes_keys) text += fmt::format("{} -a '{}'\n", at, deck_key_words());
  }
  return text;
}

void add_completion(const Command& app) {
  const Command command = app.command("completion", "Print a shell's completion of commands, options and keys; or the manual page");
  auto shell = std::make_shared<std::string>();
  command.option("SHELL", *shell, "bash, zsh, fish; or man for the manual page tessera(1)")
      .required()
      .one_of({"bash", "zsh", "fish", "man"});
  command.footer(
      "Examples:\n  source <(tessera completion bash)\n  tessera completion fish | source\n  tessera completion man > tessera.1; man -l "
      "tessera.1");
  command.does([shell] {
    const std::vector<CommandRow> rows = command_rows();
    put("{}", *shell == "bash"   ? bash_completion(rows)
              : *shell == "zsh"  ? zsh_completion(rows)
              : *shell == "fish" ? fish_completion(rows)
                                 : man_page(rows));
    return 0;
  });
}

}  // namespace tessera
