#include "report/job_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "base/progress.hpp"
#include "base/shell_word.hpp"
#include "base/types.hpp"

namespace tessera {
namespace {

constexpr std::int64_t gib = std::int64_t{1} << 30;

std::int64_t process_bytes(const JobNeeds& needs) { return needs.gpus ? process_bytes_of_gpu : process_bytes_of_host; }

std::string memory_words(std::int64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

std::string time_line(const JobNeeds& needs, const JobHeader& header) {
  if (!header.minutes)
    return fmt::format("not predicted, so the limit is --hours, and a longer run queues itself again: {}",
                       needs.steps == 0 ? "the number of steps is known only on a machine that can read the data, or from run.steps"
                                        : "--machine PROFILE predicts it (inputs/machines, or `tessera report --measure`)");
  const std::string run =
      fmt::format("{} steps in {}, predicted for {}; with a tenth for saves and evaluations, and {} for each start, {}", needs.steps,
                  human_duration(*needs.seconds), needs.machine, human_duration(start_seconds), human_duration(*header.run_seconds));
  return header.jobs == 1 ? run : fmt::format("{}: {} starts, which the job requests by itself", run, header.jobs);
}

}  // namespace

std::string slurm_time(std::int64_t minutes) {
  const std::int64_t days = minutes / 1440, hours = minutes / 60 % 24;
  return days > 0 ? fmt::format("{}-{:02}:{:02}:00", days, hours, minutes % 60) : fmt::format("{:02}:{:02}:00", hours, minutes % 60);
}

JobHeader job_header(const JobNeeds& needs) {
  if (needs.ranks > needs.per_node && needs.ranks % needs.per_node != 0)
    fail(ExitCode::usage, "{} ranks do not fill nodes of {}: give --ranks {} or {}, or --ranks-per-node", needs.ranks, needs.per_node,
         needs.ranks / needs.per_node * needs.per_node, (needs.ranks / needs.per_node + 1) * needs.per_node);
  JobHeader header;
  header.tasks_per_node = std::min(needs.ranks, needs.per_node);
  header.nodes = needs.ranks / header.tasks_per_node;
  header.cpus_per_task = needs.cores;
  header.gpus_per_node = needs.gpus ? header.tasks_per_node : 0;
  header.mem_gib = (header.tasks_per_node * (needs.host_bytes + process_bytes(needs)) + gib - 1) / gib;
  if (needs.state_on_host) header.notice = 600;
  if (!needs.seconds || needs.steps == 0) return header;
  const double work = *needs.seconds * (1 + beside_steps), most = std::max(needs.hours * 3600, 2 * start_seconds + header.notice);
  // Each start has its beginning, and is asked to save some time before its end.
  const double of_start = most - start_seconds - header.notice - 60;
  header.jobs = work + start_seconds <= most ? 1 : static_cast<std::int64_t>(std::ceil(work / of_start));
  header.run_seconds = work + static_cast<double>(header.jobs) * start_seconds;
  const double limit = header.jobs == 1 ? std::max(*header.run_seconds, header.notice + 2 * 60.0 + start_seconds) : most;
  header.minutes = static_cast<std::int64_t>(std::ceil(limit / 60));
  return header;
}

std::string print_job(const JobNeeds& needs, const JobHeader& h) {
  std::string text = "#!/usr/bin/env bash\n";
  text += fmt::format("# {} on {} ranks, made by `tessera slurm`.\n", needs.deck, needs.ranks);
  text += fmt::format("# memory of a node: {} a rank by the plan, and {} for program and libraries (allowed)\n",
                      memory_words(needs.host_bytes), memory_words(process_bytes(needs)));
  text += fmt::format("# time: {}\n", time_line(needs, h));
  for (const std::string& note : needs.notes) text += fmt::format("# {}\n", note);
  const auto line = [&](const std::string& option) { text += fmt::format("#SBATCH --{}\n", option); };
  line("job-name=tessera");
  line(fmt::format("nodes={}", h.nodes));
  line(fmt::format("ntasks-per-node={}", h.tasks_per_node));
  if (h.gpus_per_node > 0) line(fmt::format("gpus-per-node={}", h.gpus_per_node));
  line(fmt::format("cpus-per-task={}", h.cpus_per_task));
  line(fmt::format("mem={}G", h.mem_gib));
  line(fmt::format("time={}", slurm_time(h.minutes.value_or(static_cast<std::int64_t>(std::ceil(needs.hours * 60))))));
  line(fmt::format("signal=B:USR1@{}", h.notice));
  line("requeue");
  line("open-mode=append");
  line("output=slurm-%j.log");
  text += "asked=false ended=false\ntrap 'asked=true' USR1\ntrap 'ended=true' TERM\n";
  text += fmt::format("here={}\n", shell_word(needs.scripts));
  text += ". \"$here/common.sh\" || { echo \"found no $here/common.sh: submit from the folder that holds it\" >&2; exit 6; }\n";
  text.append("train ").append(shell_word(needs.deck));
  for (const std::string& override_text : needs.overrides) text.append(1, ' ').append(shell_word(override_text));
  return text + " \"$@\"\n";
}

Json job_json(const JobNeeds& needs, const JobHeader& h) {
  Json out = {{"deck", needs.deck},
              {"ranks", needs.ranks},
              {"nodes", h.nodes},
              {"ntasks_per_node", h.tasks_per_node},
              {"gpus_per_node", h.gpus_per_node},
              {"cpus_per_task", h.cpus_per_task},
              {"mem_gib", h.mem_gib},
              {"plan_bytes_per_rank", needs.host_bytes},
              {"signal_seconds", h.notice},
              {"jobs", h.jobs},
              {"notes", needs.notes}};
  if (h.minutes)
    out.update(
        Json{{"time_minutes", *h.minutes}, {"run_seconds", *h.run_seconds}, {"steps_seconds", *needs.seconds}, {"machine", needs.machine}});
  return out;
}

}  // namespace tessera
