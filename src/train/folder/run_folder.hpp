// The folder of a run: deck.toml, metrics.jsonl (.csv, tensorboard/), events.jsonl, checkpoints/, trace/, profile.json. It belongs to one
// deck.
#pragma once
#include <fmt/format.h>

#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "train/folder/run_lock.hpp"

namespace tessera {

struct RunFolder {
  std::string path;
  std::string checkpoints() const { return path + "/checkpoints"; }
  std::string weights() const { return path + "/weights"; }
  std::string metrics() const { return path + "/metrics.jsonl"; }
  std::string events() const { return path + "/events.jsonl"; }
  std::string csv() const { return path + "/metrics.csv"; }
  std::string tensorboard() const { return path + "/tensorboard"; }
  /// Where its figures are served, as Prometheus reads lists of what it is to look at.
  std::string prometheus() const { return path + "/prometheus.json"; }
  /// What a service of metrics.wandb or metrics.mlflow calls the run.
  std::string tracker(const std::string& package) const { return path + "/" + package + ".json"; }
  /// Texts of [samples].
  std::string samples() const { return path + "/samples.jsonl"; }
  std::string deck() const { return path + "/deck.toml"; }
  /// Of the newest start, in full: the log shows the first lines of it.
  std::string plan() const { return path + "/plan.txt"; }
  /// Of a step that run.trace names: a file each rank.
  std::string trace(std::int64_t step) const { return fmt::format("{}/trace/step-{:08}", path, step); }
  /// Of all ranks and steps together.
  std::string joined_trace(std::int64_t first, std::int64_t last) const {
    return fmt::format("{}/trace/steps-{:08}-{:08}.json", path, first, last);
  }
  /// With run.profile: kernels beside their floors.
  std::string profile() const { return path + "/profile.json"; }
  /// Where copies of the state lie in the memory of nodes (CopiesRecord).
  std::string neighbours() const { return path + "/neighbours.json"; }
  std::string lock() const { return path + "/run.lock"; }
  /// Of starts whose standard error has lost its reader.
  std::string log() const { return path + "/log.txt"; }
};

/// What a run starts from.
struct StartPoint {
  RunFolder folder;
  std::string checkpoint = {};               ///< step folder to load; "" starts from new weights
  bool move_aside = false;                   ///< an earlier run stands in the folder and run.overwrite says to move it
  std::vector<std::string> candidates = {};  ///< see Origin; then `checkpoint` is still to be chosen
  bool goes_back = false;
  RunLock lock = {};  ///< rank 0's, until the run claims its folder
};

/// Whether the run goes on from a checkpoint of its own folder.
bool is_of_folder(const StartPoint& start);

/// A run's hold on its folder, from the start to the end.
class RunClaim {
 public:
  /// Of a folder whose lock is held.
  RunClaim(const Deck& deck, std::string plan, RunFolder folder, io::Lineage lineage, RunLock lock);
  const io::Lineage& lineage() const { return lineage_; }
  /// Whether the folder is still the one that was claimed.
  bool stands() const { return lock_.stands(); }
  /// The run goes back by itself, to one of its checkpoints or ("") to its beginning: another line of descent begins there, and `latest`
  /// leads to it.
  void go_back(const std::string& checkpoint, const std::string& why, const io::WayBack& way);
  /// The run saves and leaves: whoever waits for the folder may wait for that.
  void say_leaving() { lock_.say_leaving(); }
  /// Where the folder was moved or removed while the run writes in it: makes it again, with deck and lock, and says so. To be called before
  /// anything is written.
  void renew();
  /// deck.toml, plan.txt and checkpoints/line.json.
  void write() const;

 private:
  RunFolder folder_;
  std::string deck_, plan_;  ///< the texts of deck.toml and plan.txt
  io::Lineage lineage_;
  RunLock lock_;
};

/// Rank 0 only, before any work: checks that the folder may be written. Its lock is to be waited for.
StartPoint reach_run_folder(const Deck& deck);

/// Where the run's last start staged its saves, as its deck.toml says; empty: nowhere.
std::string last_staging(const RunFolder& folder);

/// Rank 0 only, with the lock held, so that all that follows from this is true until the run ends: checks that the folder belongs to this
/// deck (else refuses, naming the keys that differ), and finds the checkpoint that run.resume asks for. Changes nothing: a run that is
/// refused leaves no trace.
void examine_run_folder(const Deck& deck, StartPoint& start);

/// Rank 0 only: the run that stands in the folder is another one after all, and is to be moved aside.
void begin_anew(StartPoint& start);

/// Rank 0 only, when everything else of the start has succeeded: moves an earlier run aside (never deletes one), makes the folder, takes
/// the lock over, removes what killed saves left there, lets `latest` lead to the checkpoint that the run goes on from, and writes
/// deck.toml and `plan`, the text of plan.txt.
[[nodiscard]] RunClaim claim_run_folder(const Deck& deck, StartPoint& start, std::string plan = "");

}  // namespace tessera
