// tessera ends RECORD: what follows where the ranks of a job have ended. Job scripts ask it (slurm/ends.sh).
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>

#include "base/check.hpp"
#include "base/log.hpp"
#include "base/printable.hpp"
#include "base/regular_file.hpp"
#include "commands/commands.hpp"
#include "supervise/job_end.hpp"
#include "supervise/record.hpp"
#include "supervise/words.hpp"

namespace tessera {
namespace {

struct EndsOptions {
  std::string record, report, log;
  std::int64_t log_from = 1;
  int start = 1, status = 0;
  bool srun = false, asked = false, ended = false;
  JobRules rules = {};
};

/// The starts before this one; none where there is no record yet.
JobRecord earlier_starts(const std::string& path) {
  std::string text, why;
  constexpr std::int64_t most = 16 << 20;
  std::error_code error;
  // A record that cannot be looked at is not taken for none: the job would be queued again for ever.
  if (std::filesystem::status(path, error).type() == std::filesystem::file_type::not_found) return {};
  if (!read_regular(path, most, text, why)) fail(ExitCode::environment, "cannot read the record of starts {}: {}", path, why);
  return read_record(text);
}

/// Whom launcher and ranks name, in what the log has of this start.
RankWords words_in(const std::string& path, std::int64_t from) {
  RankWords words;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return words;  // a pipe would be waited for
  std::ifstream log(path, std::ios::binary);
  log.seekg(std::max<std::int64_t>(from - 1, 0));
  for (std::string line; std::getline(log, line);) words.hear(line);
  return words;
}

/// A word and what it says, a line each.
void tell(std::string_view word, const std::string& value) { put("{} {}\n", word, printable_name(value)); }

int run_ends(const EndsOptions& o) {
  // 1. How the start ended.
  look_again(o.report);
  const ReportedEnd report = read_end_of(o.report);
  const std::optional<LostPlace> lost = words_in(o.log, o.log_from).lost();
  const bool known = report.status || is_of_ranks(o.status, o.srun);
  SupervisedStart start{.number = o.start, .end = StartEnd{.saved = report.saved}};
  start.end->status = !known && o.ended ? ended_by_scheduler : cause_of_end(report, o.status, o.srun, o.asked);
  if (start.end->status == static_cast<int>(ExitCode::lost)) start.end->lost = lost;

  // 2. What follows, after the starts before it.
  JobRecord record = earlier_starts(o.record);
  record.ends.push_back(*start.end);
  const JobDecision decision = decide_job(o.rules, record);

  // 3. For a script to read.
  tell("status", fmt::format("{}", start.end->status));
  if (!known) tell("say", words_of_no_report(lost, o.status));
  tell("note", words_of_end(start));
  if (const std::string loss = words_of_loss(start); !loss.empty()) tell("note", loss);
  tell("what", decision.words);
  for (const std::string& node : decision.suspects) tell("suspect", node);
  tell("pause", fmt::format("{}", decision.pause_seconds));
  if (decision.next == JobDecision::Next::give_up) tell("given-up", fmt::format("{}", decision.status));
  tell("next", std::string(word_of(decision.next)));
  return 0;
}

}  // namespace

void add_ends(const Command& app) {
  const Command command =
      app.command("ends", "Say what follows after the ranks of a job have ended: lines of a word and its value, for job scripts");
  auto options = std::make_shared<EndsOptions>();
  command.option("RECORD", options->record, "The job's lines on its starts (NAME.ends); there is none before the first end").required();
  command.option("--report", options->report, "The file in which ranks reported how they ended").required();
  command.option("--launcher-status", options->status, "Status that the launcher returned").between(0, 255).required();
  command.option("--start", options->start, "Number of this start").between(1, 1000000).shows_default();
  command.option("--log", options->log, "Log of the launcher and the ranks");
  command.option("--log-from", options->log_from, "Byte of the log, from 1, at which this start begins").shows_default();
  command.flag("--srun", options->srun, "The launcher is srun");
  command.flag("--asked", options->asked, "The ranks were asked to stop");
  command.flag("--ended", options->ended, "The scheduler was ending the job");
  command.option("--tries", options->rules.tries, "Starts in a row that save no newer step, after which the run is given up (status 79)")
      .between(1, 1000)
      .shows_default();
  command.option("--pause", options->rules.pause_seconds, "Seconds before a start after a loss; doubled after each further one")
      .not_negative()
      .shows_default();
  command.footer(
      "Lines: status, say, note (for RECORD), what, suspect (a node), pause (seconds), given-up (a status), and next, which is done, "
      "ended, again or give-up.\nExample:\n  tessera ends slurm-7.ends --report slurm-7.report --launcher-status 143 --start 2 --srun");
  command.does([options] { return run_ends(*options); });
}

}  // namespace tessera
