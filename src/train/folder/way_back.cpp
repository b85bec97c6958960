#include "train/folder/way_back.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "io/checkpoint/survey.hpp"

namespace tessera {

void count_way(io::Ways& ways, std::int64_t step, std::int64_t every) {
  const std::int64_t saved = every > 0 ? (step - 1) / every * every : 0;
  ways.times = saved >= ways.reached ? 1 : ways.times + 1;
  ways.reached = std::max(ways.reached, step);
}

std::int64_t step_to_go_back_to(const CheckpointKeys& keys, std::int64_t begin, std::int64_t step, const io::Ways& ways) {
  const std::int64_t every = keys.every, newest = (step - 1) / every * every, first = (begin / every + 1) * every;
  if (newest < first) return begin;
  const std::int64_t ever = (ways.reached - 1) / every * every, oldest = keys.keep > 0 ? ever - (keys.keep - 1) * every : first;
  return std::max({first, newest - (ways.times - 1) * every, std::min(oldest, newest)});
}

std::vector<std::string> checkpoints_for(const std::string& checkpoints, const io::Lineage& lineage, std::int64_t target, std::int64_t step,
                                         std::int64_t every) {
  const io::CheckpointSurvey survey = io::survey_checkpoints(checkpoints);
  if (!survey.fault.empty())
    fail(ExitCode::checkpoint, "{} The run cannot roll back by itself: fix the path or the file system.", survey.fault);
  const io::CheckpointLine& begin = lineage.front();
  const std::int64_t far = target - 2 * every;  // steps before it are no price for the same numbers
  std::vector<std::string> near, after, rest;
  for (const io::CheckpointEntry& entry : io::by_descent(survey, lineage)) {
    if (!io::descends(entry, lineage) || entry.step >= step) continue;
    if (entry.step > target)
      after.insert(after.begin(), entry.path);
    else
      (entry.step >= far ? near : rest).push_back(entry.path);
  }
  const bool begin_is_near = begin.from_step >= far && begin.from_step <= target;
  if (near.empty() && begin_is_near && begin.from.empty()) return {};
  if (begin_is_near && !begin.from.empty()) near.push_back(begin.from);
  near.insert(near.end(), after.begin(), after.end());
  near.insert(near.end(), rest.begin(), rest.end());
  if (!begin_is_near && !begin.from.empty()) near.push_back(begin.from);
  return near;
}

std::vector<io::LeftOut> left_out_along(const io::Lineage& lineage) {
  std::vector<io::LeftOut> along;
  for (std::size_t line = 0; line < lineage.size(); ++line)
    for (const io::LeftOut& part : lineage[line].way.left_out)
      if (line + 1 == lineage.size() || part.after < lineage[line + 1].from_step) along.push_back(part);
  return along;
}

std::int64_t left_out_by(const std::vector<io::LeftOut>& along, std::int64_t step) {
  std::int64_t samples = 0;
  for (const io::LeftOut& part : along)
    if (part.after <= step) samples = part.samples;
  return samples;
}

std::vector<io::LeftOut> left_out_from(const std::vector<io::LeftOut>& along, std::int64_t begin, std::int64_t until,
                                       const std::vector<io::LeftOut>& more) {
  std::vector<io::LeftOut> left;
  for (const io::LeftOut& part : along)
    if (part.after >= begin && part.after < until) left.push_back(part);
  left.insert(left.end(), more.begin(), more.end());
  return left;
}

}  // namespace tessera
