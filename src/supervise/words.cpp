#include "supervise/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/error.hpp"
#include "base/regular_file.hpp"

namespace tessera {
namespace {

/// What follows `words` in the line; nothing where they do not stand in it.
std::optional<std::string_view> after(std::string_view line, std::string_view words) {
  const std::size_t at = line.find(words);
  if (at == line.npos) return std::nullopt;
  return line.substr(at + words.size());
}

/// Takes the characters of `text` up to the first of `ends`.
std::string_view take_until(std::string_view& text, std::string_view ends) {
  const std::string_view taken = text.substr(0, text.find_first_of(ends));
  text.remove_prefix(taken.size());
  return taken;
}

bool take(std::string_view& text, std::string_view words) {
  if (!text.starts_with(words)) return false;
  text.remove_prefix(words.size());
  return true;
}

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || read.ptr == text.data()) return std::nullopt;
  return number;
}

constexpr std::string_view digits = "0123456789";

std::string_view take_of(std::string_view& text, std::string_view these) {
  const std::string_view taken = text.substr(0, std::min(text.find_first_not_of(these), text.size()));
  text.remove_prefix(taken.size());
  return taken;
}

/// "n3: task 2: Killed", "Node failure on n3", after "srun: error: ".
std::optional<LostPlace> of_srun(std::string_view words) {
  if (take(words, "Node failure on ")) return LostPlace{.node = std::string(words), .way = "node failure", .whole_node = true};
  const std::string_view node = take_until(words, ":");
  if (!take(words, ": task")) return std::nullopt;
  take(words, "s");
  if (!take(words, " ")) return std::nullopt;
  const std::string_view ranks = take_of(words, "0123456789,-");
  if (ranks.empty() || !take(words, ": ")) return std::nullopt;
  // These saved, or left over another's loss.
  if (words == "Exited with exit code 75" || words == "Exited with exit code 76") return std::nullopt;
  LostPlace lost{.node = std::string(node), .rank = std::string(ranks), .way = std::string(words)};
  if (node.find_first_of("[], ") != node.npos) lost = {};  // several: none of them alone
  return lost;
}

/// "rank 2 on n3 was lost 0.4 s after it was last heard", "process of rank 2 on n3 has ended", "rank 2 on n3 does not answer", "nobody has
/// come from n3".
std::optional<LostPlace> of_ranks(std::string_view line) {
  constexpr std::string_view no_host = "][,; ";
  if (auto words = after(line, "process of rank ")) {
    const std::string rank(take_of(*words, digits));
    std::string node;
    if (take(*words, " on ")) node = take_until(*words, no_host);
    if (!rank.empty() && words->starts_with(" has ended")) return LostPlace{.node = node, .rank = rank, .way = "ended"};
  }
  if (auto words = after(line, "warning: rank ")) {
    const std::string rank(take_of(*words, digits));
    if (take(*words, " on ")) {
      const std::string node(take_until(*words, no_host));
      if (!rank.empty() && words->starts_with(" was lost ")) return LostPlace{.node = node, .rank = rank, .way = "ended"};
    }
  }
  std::string_view words = line.substr(std::min(line.find_first_not_of(' '), line.size()));
  if (take(words, "rank ")) {
    const std::string rank(take_of(words, digits));
    if (take(words, " on ")) {
      const std::string node(take_until(words, no_host));
      if (!rank.empty() && words.starts_with(" does not answer")) return LostPlace{.node = node, .rank = rank, .way = "no answer"};
    }
  }
  if (auto from = after(line, "nobody has come from ")) {
    const std::string node(take_until(*from, no_host));
    if (!node.empty() && (from->empty() || from->starts_with("."))) return LostPlace{.node = node, .way = "did not come"};
  }
  return std::nullopt;
}

}  // namespace

void RankWords::hear(std::string_view line) {
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
  if (line.find("first step done ") != line.npos) stepped_ = true;
  if (const auto words = after(line, "srun: error: "); words && !by_launcher_) by_launcher_ = of_srun(*words);
  // MPICH's mpiexec: "=   PID 7 RUNNING AT n3", then "=   EXIT CODE: 9".
  if (const auto at = after(line, " RUNNING AT "); at && line.starts_with("= ")) banner_node_ = *at;
  if (auto code = after(line, "EXIT CODE: "); code && line.starts_with("= ") && !banner_node_.empty()) {
    const auto status = number_in<int>(*code);
    const bool left = status == static_cast<int>(ExitCode::interrupted) || status == static_cast<int>(ExitCode::lost);
    if (!left && !by_launcher_) by_launcher_ = LostPlace{.node = banner_node_, .way = "ended with " + std::string(*code)};
    banner_node_.clear();
  }
  if (!by_ranks_) by_ranks_ = of_ranks(line);
}

std::optional<LostPlace> RankWords::lost() const {
  const bool alone = by_launcher_ && !by_launcher_->node.empty();
  if (!alone) return by_ranks_;
  LostPlace lost = *by_launcher_;
  if (lost.rank == "-" && by_ranks_ && (by_ranks_->node.empty() || by_ranks_->node == lost.node)) lost.rank = by_ranks_->rank;
  return lost;
}

ReportedEnd read_end(std::string_view text) {
  ReportedEnd end;
  if (const auto status = after(text, "status ")) end.status = number_in<int>(*status);
  if (const auto saved = after(text, "saved ")) end.saved = number_in<std::int64_t>(*saved);
  if (const auto copied = after(text, "copied ")) end.copied = number_in<std::int64_t>(*copied);
  return end;
}

bool is_of_ranks(int launcher_status, bool srun) {
  constexpr int cannot_be_run = 126, not_found = 127;
  return launcher_status == 0 || launcher_status == static_cast<int>(ExitCode::interrupted) ||
         launcher_status == static_cast<int>(ExitCode::lost) || launcher_status == static_cast<int>(ExitCode::do_not_requeue) ||
         launcher_status == cannot_be_run || launcher_status == not_found ||
         (srun && launcher_status >= static_cast<int>(ExitCode::usage) && launcher_status <= static_cast<int>(ExitCode::numerics));
}

int cause_of_end(const ReportedEnd& end, int launcher_status, bool srun, bool asked) {
  if (end.status) return *end.status;
  if (is_of_ranks(launcher_status, srun)) return launcher_status;
  return static_cast<int>(asked ? ExitCode::interrupted : ExitCode::lost);
}

ReportedEnd read_end_of(const std::string& report) {
  const auto read = [](const std::string& path) {
    constexpr std::int64_t most_bytes = 4096;
    std::string text, why;
    return read_end(read_regular(path, most_bytes, text, why) ? text : "");
  };
  ReportedEnd end = read(report);
  const ReportedEnd told = read(report + ".saved");
  if (!end.status) end.saved = told.saved;
  end.copied = told.copied;
  return end;
}

void look_again(const std::string& path) {
  std::error_code error;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(path).parent_path(), error)) break;
}

std::string words_of_no_report(const std::optional<LostPlace>& lost, int launcher_status) {
  const std::string named = lost ? name_of(*lost) : "";
  if (named.empty()) return fmt::format("no rank reported how it ended, and the launcher ended with {}", launcher_status);
  return fmt::format("the run lost {}, and the launcher ended with {}", named, launcher_status);
}

}  // namespace tessera
