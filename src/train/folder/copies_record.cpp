#include "train/folder/copies_record.hpp"

#include <filesystem>
#include <random>

#include "base/json.hpp"
#include "base/log.hpp"
#include "io/checkpoint/state_copies.hpp"
#include "io/files/path_state.hpp"
#include "io/files/posix_file.hpp"

namespace tessera {

std::string CopiesRecord::run_folder() const { return io::state_copies_folder(folder, token); }

std::optional<CopiesRecord> read_copies_record(const RunFolder& folder) {
  const std::string path = folder.neighbours();
  if (io::look_at(path).nothing()) return {};
  try {
    const Json record = Json::parse(io::read_small_file(path, ExitCode::checkpoint));
    CopiesRecord found{.folder = record.at("folder").get<std::string>(),
                       .token = record.at("token").get<std::string>(),
                       .start = record.at("start").get<std::string>()};
    found.from = record.at("from").get<std::string>(), found.from_step = record.at("from_step").get<std::int64_t>();
    return found;
  } catch (const JsonError& error) {
    warning("{}: it cannot be parsed ({}), so in-memory replicas are not used", path, error.what());
  } catch (const Error& error) {
    warning("{} In-memory replicas are not used.", error.what());
  }
  return {};
}

void write_copies_record(const RunFolder& folder, const CopiesRecord& record) {
  const Json all = {
      {"folder", record.folder}, {"token", record.token}, {"start", record.start}, {"from", record.from}, {"from_step", record.from_step}};
  const std::string text = all.dump(2) + "\n";
  io::AtomicFile out(folder.neighbours());
  out.file().write(0, text.data(), text.size());
  out.commit();
}

void remove_copies_record(const RunFolder& folder) {
  std::error_code ignored;  // one that stays names copies that are not there
  std::filesystem::remove(folder.neighbours(), ignored);
}

std::string draw_name() {
  std::random_device draw;
  std::string name;
  for (int k = 0; k < 4; ++k) name += fmt::format("{:08x}", draw());
  return name;
}

}  // namespace tessera
