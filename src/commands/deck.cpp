// tessera deck check | print | reference | import | from-hf
#include "deck/deck.hpp"

#include <cstdio>
#include <memory>
#include "base/json.hpp"

#include "base/check.hpp"
#include "base/log.hpp"
#include "commands/commands.hpp"
#include "commands/deck_from_hf.hpp"
#include "commands/deck_reference.hpp"
#include "commands/plan_options.hpp"
#include "deck/import/foreign_keys.hpp"
#include "deck/import/import.hpp"
#include "deck/import/model_source.hpp"
#include "deck/schema/update_keys.hpp"
#include "deck/schema/value.hpp"
#include "exchange/own_head.hpp"
#include "optimizer/check_names.hpp"
#include "train/data/training_data.hpp"

namespace tessera {
namespace {

constexpr const char* machine_help =
    "Machine profile (a file, or the name of one of inputs/machines, for example h100_8): warns of keys that cost more than 2 % of a step "
    "there";

struct DeckOptions {
  std::string path;
  std::vector<std::string> overrides;
  std::string machine;
  int ranks = 0;
  bool json = false;
};

ParsedDeck parse(const DeckOptions& o) { return parse_deck(o.path, o.overrides, o.ranks, count_steps_if_readable); }

/// With what only the model knows.
ParsedDeck parse_for_model(const DeckOptions& o) {
  ParsedDeck parsed = parse(o);
  check_names(parsed);
  return parsed;
}

Json json_of(const Literal& literal);

Json groups_json(const std::vector<OptimizerGroup>& groups) {
  auto list = Json::array();
  for (const OptimizerGroup& group : groups) {
    list.push_back({{"tensors", group.tensors}});
    if (group.learning_rate) list.back()["learning_rate"] = *group.learning_rate;
    if (group.weight_decay) list.back()["weight_decay"] = *group.weight_decay;
    if (!group.update) continue;
    list.back()["type"] = group.update->type;
    const Deck deck = deck_of_update(*group.update);
    for (const Key* key : keys_of_update(group.update->type)) list.back()[std::string(key->leaf())] = json_of(read_value(*key, deck));
  }
  return list;
}

Json phases_json(const std::vector<RampPhase>& phases) {
  auto list = Json::array();
  for (const RampPhase& phase : phases) {
    list.push_back({{"until_step", phase.until_step}});
    if (phase.global > 0) list.back()["global"] = phase.global;
    if (phase.sequence_length > 0) list.back()["sequence_length"] = phase.sequence_length;
  }
  return list;
}

Json kinds_json(const std::vector<KindKeys>& kinds) {
  auto list = Json::array();
  for (const KindKeys& kind : kinds) {
    list.push_back({{"name", kind.name}});
    if (kind.window) list.back()["window"] = *kind.window;
    if (kind.positions) list.back()["positions"] = word_of(*kind.positions);
    if (kind.rope_theta) list.back()["rope_theta"] = *kind.rope_theta;
    if (kind.rope_scaling) list.back()["rope_scaling"] = word_of(*kind.rope_scaling);
    if (kind.experts) list.back()["experts"] = *kind.experts;
  }
  return list;
}

/// Null of none.
Json json_of(const Literal& literal) {
  Json json;
  std::visit(
      [&](const auto& v) {
        using Value = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<Value, std::vector<OptimizerGroup>>)
          json = groups_json(v);
        else if constexpr (std::is_same_v<Value, std::vector<RampPhase>>)
          json = phases_json(v);
        else if constexpr (std::is_same_v<Value, std::vector<KindKeys>>)
          json = kinds_json(v);
        else if constexpr (!std::is_same_v<Value, std::monostate>)
          json = v;
      },
      literal.value);
  return json;
}

/// Every key with its typed value, nested by section.
Json values_json(const Deck& deck) {
  Json values;
  for (const Key& key : deck_keys()) values.nested(key.name, '.') = json_of(read_value(key, deck));
  return values;
}

/// Of a deck without faults, where a machine is named: what its keys cost there.
std::vector<std::string> costs(const DeckOptions& o, const ParsedDeck& parsed) {
  if (o.machine.empty() || !parsed.faults.empty()) return {};
  PlanOptions plan;
  plan.path = o.path, plan.machine = o.machine, plan.overrides = o.overrides, plan.ranks = std::max(o.ranks, 1);
  return costly_lines(plan);
}

int check_json(const DeckOptions& o, const ParsedDeck& parsed) {
  Json out;
  out["deck"] = o.path;
  out["ok"] = parsed.faults.empty();
  out["faults"] = Json::array();
  for (const Fault& f : parsed.faults) {
    out["faults"].push_back({{"file", f.file}, {"line", f.line}, {"column", f.column}, {"key", f.key}, {"message", f.message}});
  }
  if (parsed.faults.empty()) {
    out["resolved"] = parsed.resolved;
    if (!o.machine.empty()) out["costs"] = costs(o, parsed);
    out["hash"] = deck_hash(parsed.deck).hex();
    out["identity"] = deck_identity(parsed.deck).hex();
    out["values"] = values_json(parsed.deck);
  }
  // Text of a deck that is not UTF-8 is itself a fault, so it may stand in a message: replace it, do not throw.
  put("{}\n", out.dump(2, BadText::replace));
  return static_cast<int>(parsed.faults.empty() ? ExitCode::ok : ExitCode::usage);
}

int check(const DeckOptions& o) {
  ParsedDeck parsed = parse_for_model(o);
  if (o.json) return check_json(o, parsed);
  if (!parsed.faults.empty()) {
    for (const Fault& f : parsed.faults) put("{}\n", f.str());
    log_line(LogLevel::error, fmt::format("{}: {} fault{}", o.path, parsed.faults.size(), parsed.faults.size() == 1 ? "" : "s"));
    return static_cast<int>(ExitCode::usage);
  }
  put("{}: ok\n", o.path);
  for (const std::string& r : parsed.resolved) put("  {}\n", r);
  for (const std::string& line : costs(o, parsed)) log_line(LogLevel::warning, line);
  return 0;
}

int print_tables() {
  put("{}\n{}\n{}", deepspeed_table().reference(), trainer_table().reference(), accelerate_table().reference());
  return 0;
}

/// What keys cost, in lines of the log: what is printed is the deck.
int print_imported_for(const ImportRequest& request, const ImportedDeck& imported, const std::string& machine) {
  const std::string& name = request.path.empty() ? request.trainer : request.path;
  print_imported(name, imported);
  if (machine.empty()) return 0;
  PlanOptions plan;
  plan.path = name, plan.machine = machine, plan.text = imported.text, plan.ranks = request.ranks;
  for (const std::string& line : costly_lines(plan)) log_line(LogLevel::warning, line);
  return 0;
}

int import_files(ImportRequest request, const std::string& machine) {
  // With --trainer alone the first word may be an override.
  if (!request.trainer.empty() && find_key(request.path.substr(0, request.path.find('=')))) {
    request.overrides.insert(request.overrides.begin(), request.path);
    request.path.clear();
  }
  if (request.path.empty() && request.trainer.empty())
    fail(ExitCode::usage,
         "name DeepSpeed's JSON file, for example ds_config.json, or --trainer and the Trainer's arguments\n  try: tessera deck import "
         "--help");
  if (request.model.empty())
    fail(ExitCode::usage, "such a file does not describe the model: add --model, one of {}; or a deck (FILE.toml), or a config.json",
         known_models());
  return print_imported_for(request, import_configuration(request), machine);
}

void add_from_deepspeed(const Command& deck) {
  struct Options {
    ImportRequest request;
    std::string machine;
    bool keys = false;
  };
  auto options = std::make_shared<Options>();
  options->request.own_head = has_own_head;
  const Command app =
      deck.command("import", "Print the deck that a DeepSpeed configuration or the Trainer's arguments give, or all their faults");
  app.option("FILE", options->request.path, "DeepSpeed's JSON, with comments and \"auto\", or the configuration of Accelerate as JSON");
  app.option("--trainer", options->request.trainer,
             "JSON of transformers' TrainingArguments, as to_json_string() writes it. Alone it gives a deck; with FILE it replaces "
             "\"auto\" in FILE or in the configuration that FILE names");
  app.option("key=value", options->request.overrides, "Keys of the deck that the configuration lacks, or other values for them");
  app.option("--model", options->request.model,
             fmt::format("{}; or a deck (FILE.toml) with a [model]; or the config.json of a model on Hugging Face, or its folder",
                         known_models()));
  const Option ranks =
      app.option("--ranks", options->request.ranks, "Ranks of the launch, if the global batch depends on them").between(1, 10000000);
  app.option("--machine", options->machine, machine_help).needs(ranks);
  app.flag("--keys", options->keys,
           "Print the tables of DeepSpeed's keys, the Trainer's arguments and Accelerate's keys, each with its key of the deck");
  app.footer(
      "Example:\n  tessera deck import ds_config.json --model llama3-8b --ranks 8 data.train=data/train.h5 > mine.toml\n  tessera plan "
      "mine.toml --ranks 8");
  app.does([options] { return options->keys ? print_tables() : import_files(options->request, options->machine); });
}

Command add_reader(const Command& deck, const char* name, const char* what, const char* example, const std::shared_ptr<DeckOptions>& o) {
  const Command app = deck.command(name, what);
  app.option("DECK", o->path, "TOML file").required();
  app.option("key=value", o->overrides, "Overrides, for example model.layers=4; applied in order");
  app.option("--ranks", o->ranks, "Ranks of the launch: also checks rules that depend on them").between(1, 10000000);
  app.footer(fmt::format("Example:\n  {}", example));
  return app;
}

}  // namespace

void add_deck(const Command& app) {
  const Command deck = app.command(
      "deck", "Check or print a deck, make one from a DeepSpeed configuration or a Hugging Face model, or print the reference of all keys");
  deck.requires_command();
  deck.footer("Example:\n  tessera deck check inputs/quickstart.toml --ranks 2");
  auto options = std::make_shared<DeckOptions>();

  const Command checker = add_reader(deck, "check", "Print every fault of a deck, or the values that replace auto",
                                     "tessera deck check inputs/quickstart.toml batch.global=60 --ranks 4", options);
  checker.option("--machine", options->machine, machine_help);
  checker.flag("--json", options->json, "Print faults, or all values, as JSON");
  checker.does([options] { return check(*options); });

  const Command printer = add_reader(deck, "print", "Print the whole deck, every key with its resolved value",
                                     "tessera deck print inputs/quickstart.toml zero.stage=2 > mine.toml", options);
  printer.does([options] {
    put("{}", print_deck(require_deck(parse(*options))));
    return 0;
  });

  add_from_deepspeed(deck);
  add_from_hf(deck);

  const Command reference = deck.command("reference", "Print the table of all keys as Markdown");
  reference.flag("--json", options->json,
                 "Print it as JSON. Each key has its type, unit, choices, limits, default (as written in a deck) and refused values. It "
                 "also has whether the key is part of a run's identity, which a resume must not change");
  reference.footer("Example:\n  tessera deck reference > docs/deck.md");
  reference.does([options] {
    put("{}", options->json ? reference_json() : deck_reference());
    return 0;
  });
}

}  // namespace tessera
