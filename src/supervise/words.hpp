// What is heard of a start: the words of its launcher and its ranks, and the report of its end (base/end_report.hpp).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "supervise/decide.hpp"

namespace tessera {

/// Listens to the lines that a launcher passes on or says itself, for the node at which the start ended and for its first step.
class RankWords {
 public:
  void hear(std::string_view line);
  /// By the launcher's word, else by that of the ranks that were left; the first that each named.
  std::optional<LostPlace> lost() const;
  bool stepped() const { return stepped_; }

 private:
  std::optional<LostPlace> by_launcher_, by_ranks_;
  std::string banner_node_;  ///< of MPICH's mpiexec, while its exit code has not come
  bool stepped_ = false;
};

struct ReportedEnd {
  std::optional<int> status = {};
  std::optional<std::int64_t> saved = {}, copied = {};
};
/// Of "status N", "saved STEP" and "copied STEP", a line each.
ReportedEnd read_end(std::string_view text);

/// The status of the cause. A launcher may return the signal by which it ended the ranks where one of them had a fault or was lost, so what
/// the first of them reported counts. Where none could speak, all were killed or none came up. MPICH's mpiexec returns bare numbers of
/// signals.
int cause_of_end(const ReportedEnd& end, int launcher_status, bool srun, bool asked);
/// Whether the launcher's status is that of the ranks, where none reported one.
bool is_of_ranks(int launcher_status, bool srun);
/// The report in a file, and what the ranks told beside it while they ran.
ReportedEnd read_end_of(const std::string& report);
/// NFS may remember that a file was not there: asks the folder again.
void look_again(const std::string& path);

/// What there is to say where no rank reported a status: whom its words or the launcher named, or that nobody could speak.
std::string words_of_no_report(const std::optional<LostPlace>& lost, int launcher_status);

}  // namespace tessera
