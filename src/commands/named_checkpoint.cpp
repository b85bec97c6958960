#include "commands/named_checkpoint.hpp"

#include <filesystem>

#include "base/check.hpp"
#include "base/log.hpp"
#include "io/checkpoint/survey.hpp"

namespace tessera {
namespace fs = std::filesystem;

std::string named_checkpoint(const std::string& path) {
  std::error_code ignored;  // what cannot be looked at is refused where it is opened
  if (!fs::is_directory(path, ignored) || fs::exists(path + "/checkpoint.h5", ignored)) return path;
  const std::string inside = path + "/checkpoints";
  const bool is_run = fs::is_directory(inside, ignored), is_folder_of_steps = fs::path(path).lexically_normal().filename() == "checkpoints";
  if (!is_run && !is_folder_of_steps) return path;
  const io::Head head = io::find_head(io::survey_checkpoints(is_run ? inside : path));
  if (!head.fault.empty()) fail(ExitCode::checkpoint, "{} Name one of its steps instead.", head.fault);
  if (!head.entry)
    fail(ExitCode::checkpoint, "{}: this run has no checkpoint yet. It saves one every checkpoint.every steps and at its end.", path);
  info("{}: its newest checkpoint is {}", path, head.entry->path);
  return head.entry->path;
}

}  // namespace tessera
