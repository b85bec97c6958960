#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>
#include <utility>

#include "base/check.hpp"
#include "base/log.hpp"
#include "commands/command_rows.hpp"
#include "commands/commands.hpp"
#include "deck/schema/hints.hpp"
#include "deck/schema/schema.hpp"

namespace tessera {
namespace {

/// Takes numbers from `least` to `most` and no NaN; the name of the range stands in the help.
CLI::Validator number_between(double least, double most) {
  return {[least, most](std::string& text) {
            double value = 0;
            return CLI::detail::lexical_cast(text, value) && value >= least && value <= most
                       ? std::string()
                       : fmt::format("{} is not a number from {} to {}", text, least, most);
          },
          fmt::format("{} to {}", least, most)};
}

/// Names of positionals as people read them. CLI11 2.4 and newer refuse '=' and spaces in a name, so the library knows them by another.
struct ShownName {
  std::string_view library, shown;
};
constexpr ShownName shown_names[] = {{"KEY_VALUE", "key=value"}, {"INPUTS", "INPUT... FOLDER"}};

std::string library_name(const std::string& name) {
  for (const ShownName& row : shown_names)
    if (name == row.shown) return std::string(row.library);
  return name;
}

/// Replaces the library's names in a message or a name.
std::string with_shown_names(std::string text) {
  for (const ShownName& row : shown_names)
    for (std::size_t at = 0; (at = text.find(row.library, at)) != std::string::npos; at += row.shown.size())
      text.replace(at, row.library.size(), row.shown);
  return text;
}

struct ShownNamesFormatter : CLI::Formatter {
  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    return with_shown_names(CLI::Formatter::make_option_name(option, positional));
  }
};

struct PlacesFormatter : ShownNamesFormatter {
  explicit PlacesFormatter(std::string places) : places(std::move(places)) {}
  std::string make_option_usage(const CLI::Option*) const override { return places; }
  std::string places;
};

/// The innermost command that was understood.
const CLI::App& innermost(const CLI::App& app) {
  auto chosen = app.get_subcommands();
  return chosen.empty() ? app : innermost(*chosen.front());
}

/// "tessera deck check"
std::string path_of(const CLI::App& app) { return app.get_parent() ? path_of(*app.get_parent()) + " " + app.get_name() : app.get_name(); }

/// What other programs call a command.
constexpr std::pair<std::string_view, std::string_view> other_commands[] = {
    {"export", "consolidate"}, {"convert", "import"}, {"eval", "evaluate"}, {"sample", "generate"},
    {"chat", "generate"},      {"finetune", "train"}, {"pretrain", "train"}};

/// The command that was probably meant, or "".
std::string_view meant_command(std::string_view word, const std::vector<std::string>& names) {
  std::vector<std::string_view> words(names.begin(), names.end());
  for (const auto& [theirs, ours] : other_commands)
    if (word == theirs && std::ranges::find(words, ours) != words.end()) return ours;
  return nearest(word, words);
}

/// Of an option that the command has not: a key of a deck, which has no dashes, or another option. "" where it is neither.
std::string said_of_option(const CLI::App& at, std::string_view extra) {
  const std::string_view word = extra.substr(0, extra.find('='));
  if (const std::string_view key = word.substr(std::min(word.find_first_not_of('-'), word.size())); find_key(key))
    return fmt::format("{} is a key of a deck, and keys have no dashes: write {}", key,
                       extra.find('=') == extra.npos ? fmt::format("{}=VALUE", key) : extra.substr(extra.find_first_not_of('-')));
  std::vector<std::string> names;
  for (const CLI::Option* option : at.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  const std::string_view near = nearest(word, std::vector<std::string_view>(names.begin(), names.end()));
  return fmt::format("{} is not an option of {}{}", word, path_of(at), near.empty() ? "" : fmt::format("; did you mean {}?", near));
}

int usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& at = innermost(app);
  std::string message = with_shown_names(error.what());
  std::vector<std::string> names, extra = at.remaining();
  for (const CLI::App* c : at.get_subcommands([](const CLI::App*) { return true; })) names.push_back(c->get_name());
  if (!names.empty() && !extra.empty() && !extra.front().starts_with('-')) {
    const std::string_view near = meant_command(extra.front(), names);
    message =
        fmt::format("{} is not a command of {}{}", extra.front(), path_of(at), near.empty() ? "" : fmt::format("; did you mean {}?", near));
  }
  // The library names all that it did not expect, a value of such an option among them.
  const auto option = std::ranges::find_if(extra, [](const std::string& word) { return word.starts_with("--") && word.size() > 2; });
  if (names.empty() && option != extra.end()) message = said_of_option(at, *option);
  log_line(LogLevel::error, fmt::format("{}\n  try: {} --help", message, path_of(at)));
  return static_cast<int>(ExitCode::usage);
}

}  // namespace

Option Option::required() const { return Option(option_->required()); }
Option Option::one_of(const std::vector<std::string>& names) const { return Option(option_->check(CLI::IsMember(names))); }
Option Option::between(int least, int most) const { return Option(option_->check(CLI::Range(least, most))); }
Option Option::between(double least, double most) const { return Option(option_->check(number_between(least, most))); }
Option Option::positive() const { return Option(option_->check(CLI::PositiveNumber)); }
Option Option::not_negative() const { return Option(option_->check(CLI::NonNegativeNumber)); }
Option Option::shows_default() const { return Option(option_->capture_default_str()); }
Option Option::shows_default(const std::string& text) const { return Option(option_->default_str(text)); }
Option Option::needs(Option other) const { return Option(option_->needs(other.option_)); }
Option Option::excludes(Option other) const { return Option(option_->excludes(other.option_)); }
Option Option::excludes(const std::string& name) const { return Option(option_->excludes(name)); }
Option Option::at_least(int values) const { return Option(option_->expected(values, CLI::detail::expected_max_vector_size)); }
Option Option::parted_by(char separator) const { return Option(option_->delimiter(separator)); }
Option Option::one_word() const { return Option(option_->allow_extra_args(false)); }
bool Option::given() const { return !option_->empty(); }

Command Command::command(const std::string& name, const std::string& help) const { return {app_->add_subcommand(name, help), chosen_}; }
Option Command::option(const std::string& name, std::string& value, const std::string& help) const {
  return Option(app_->add_option(library_name(name), value, help));
}
Option Command::option(const std::string& name, std::vector<std::string>& values, const std::string& help) const {
  return Option(app_->add_option(library_name(name), values, help));
}
Option Command::option(const std::string& name, std::vector<int>& values, const std::string& help) const {
  return Option(app_->add_option(library_name(name), values, help));
}
Option Command::option(const std::string& name, int& value, const std::string& help) const {
  return Option(app_->add_option(library_name(name), value, help));
}
Option Command::option(const std::string& name, std::int64_t& value, const std::string& help) const {
  return Option(app_->add_option(library_name(name), value, help));
}
Option Command::option(const std::string& name, double& value, const std::string& help) const {
  return Option(app_->add_option(library_name(name), value, help));
}
Option Command::option(const std::string& name, const std::function<void(double)>& take, const std::string& help) const {
  return Option(app_->add_option_function<double>(library_name(name), take, help));
}
Option Command::flag(const std::string& name, bool& value, const std::string& help) const {
  return Option(app_->add_flag(name, value, help));
}
void Command::usage(const std::string& places) const { app_->formatter(std::make_shared<PlacesFormatter>(places)); }
void Command::footer(const std::string& text) const { app_->footer(text); }
void Command::requires_command() const { app_->require_subcommand(1); }

void Command::does(Chosen run, std::function<std::string()> lacks) const {
  app_->final_callback([run = std::move(run), lacks = std::move(lacks), chosen = chosen_, app = app_] {
    if (!app->get_subcommands().empty()) return;  // a command below it has been chosen
    if (const std::string what = lacks ? lacks() : ""; !what.empty()) throw CLI::RequiredError(what);
    *chosen = run;
  });
}

Option add_worker_memory(const Command& command, std::int64_t& bytes, const std::string& who) {
  constexpr double gibibyte = 1 << 30;
  return command
      .option(
          "--worker-memory", [&bytes](double gib) { bytes = static_cast<std::int64_t>(gib * gibibyte); },
          "GiB that " + who + " may take before its work is stopped; 0: all free memory")
      .between(0.0, 1e6)
      .shows_default(fmt::format("{:g}", static_cast<double>(bytes) / gibibyte));
}

namespace {

/// The program's commands and options.
void fill(CLI::App& app, Chosen& chosen) {
  app.formatter(std::make_shared<ShownNamesFormatter>());
  app.set_version_flag("--version", version_text);
  app.require_subcommand(1);
  app.footer("Example:\n  tessera deck check inputs/quickstart.toml\n\nEvery command has its own --help.");
  const Command root(&app, &chosen);
#define TESSERA_ADD_COMMAND(name) add_##name(root);
  TESSERA_COMMANDS(TESSERA_ADD_COMMAND)
#undef TESSERA_ADD_COMMAND
}

constexpr const char* what_tessera_does = "Tessera trains transformers from an input deck on MPI ranks.";

/// The words of one_of, which the library shows as "TEXT:{a,b}".
std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t from = type.find('{'), to = type.find('}');
  if (from == type.npos || to == type.npos) return {};
  return CLI::detail::split(type.substr(from + 1, to - from - 1), ',');
}

OptionRow row_of(const CLI::Option& option) {
  OptionRow row{.names = {}, .help = option.get_description(), .choices = choices_of(option)};
  for (const std::string& name : option.get_snames()) row.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) row.names.push_back("--" + name);
  row.place = row.names.empty();
  if (row.place) row.names.push_back(with_shown_names(option.get_name(true)));
  row.takes_value = !row.place && option.get_items_expected_max() > 0;
  if (!option.get_default_str().empty()) row.help += fmt::format(" [{}]", option.get_default_str());
  return row;
}

void add_rows(const CLI::App& app, std::vector<CommandRow>& rows) {
  CommandRow row{.path = path_of(app), .help = app.get_description(), .footer = app.get_footer(), .options = {}};
  for (const CLI::Option* option : app.get_options()) {
    row.options.push_back(row_of(*option));
    row.takes_keys |= row.options.back().names.front() == "key=value";
  }
  const auto below = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* command : below) row.commands.push_back(command->get_name());
  rows.push_back(std::move(row));
  for (const CLI::App* command : below) add_rows(*command, rows);
}

}  // namespace

std::vector<CommandRow> command_rows() {
  Chosen nothing;
  CLI::App app(what_tessera_does, "tessera");
  fill(app, nothing);
  std::vector<CommandRow> rows;
  add_rows(app, rows);
  return rows;
}

CommandLine read_command_line(int argc, const char* const* argv) {
  CommandLine line;
  CLI::App app(what_tessera_does, "tessera");
  fill(app, line.chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help and version arrive as errors with status 0.
    line.status = error.get_exit_code() == 0 ? app.exit(error) : usage_error(app, error);
  }
  line.trains = app.got_subcommand("train") || app.got_subcommand("resume");
  return line;
}

}  // namespace tessera
