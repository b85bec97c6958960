#include "base/identity.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/check.hpp"
#include "base/commit.hpp"
#include "base/types.hpp"
#include "base/version.hpp"

namespace tessera {

// Weak: the tessera program brings the commit's own (src/base/CMakeLists.txt).
[[gnu::weak]] const char* commit() { return "unknown"; }

namespace {

constexpr std::size_t shown_members = 8;

/// All that a file's bytes are, where its linker has left no word for them.
Hash128 digest_of_file(const char* path, std::size_t bytes) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  void* const data = file < 0 ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
  const int error = errno;
  if (file >= 0) close(file);
  if (data == MAP_FAILED && error == ENOMEM) throw std::bad_alloc();
  if (data == MAP_FAILED)
    fail(ExitCode::environment, "{}: the program's own file cannot be read: {}. Ranks compare it, so its user needs permission to read it.",
         path, std::strerror(error));
  const Hash128 digest = hash_bytes(data, bytes);
  munmap(data, bytes);
  return digest;
}

/// The build ID among the notes of an object that is loaded: "" where it has none.
std::string build_id_of(const dl_phdr_info& object) {
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const auto& part = object.dlpi_phdr[i];
    if (part.p_type != PT_NOTE) continue;
    const auto* at = reinterpret_cast<const char*>(object.dlpi_addr + part.p_vaddr);
    const std::size_t align = std::max<std::size_t>(part.p_align, 4);
    for (std::size_t left = part.p_memsz; left >= sizeof(ElfW(Nhdr));) {
      ElfW(Nhdr) note;
      std::memcpy(&note, at, sizeof note);
      const std::size_t name = round_up(sizeof note + note.n_namesz, align), all = round_up(name + note.n_descsz, align);
      if (all > left) break;
      if (note.n_type == NT_GNU_BUILD_ID && std::string_view(at + sizeof note, note.n_namesz) == std::string_view("GNU\0", 4))
        return {at + name, note.n_descsz};
      at += all, left -= all;
    }
  }
  return "";
}

/// What differs of a kind, "commit 1a2b here, 3c4d there; ...".
std::string differing(const Identity& first, const Identity& other, bool of_processor) {
  std::string text;
  for (const IdentityField& field : other) {
    if (field.of_processor != of_processor) continue;
    const auto same = std::ranges::find(first, field.name, &IdentityField::name);
    const std::string before = same == first.end() ? "nothing" : same->value;
    if (before != field.value) text += fmt::format("{}{} {}, not {}", text.empty() ? "" : "; ", field.name, field.value, before);
  }
  for (const IdentityField& field : first)
    if (field.of_processor == of_processor && std::ranges::find(other, field.name, &IdentityField::name) == other.end())
      text += fmt::format("{}{} nothing, not {}", text.empty() ? "" : "; ", field.name, field.value);
  return text;
}

std::string lines_of(std::span<const Member> members, bool of_processor) {
  std::string lines;
  std::size_t found = 0;
  for (const Member& member : members) {
    const std::string difference = differing(members.front().identity, member.identity, of_processor);
    if (!difference.empty() && ++found <= shown_members)
      lines += fmt::format("\n  rank {} on {}: {}", member.rank, member.host, difference);
  }
  if (found > shown_members) lines += fmt::format("\n  and {} more ranks", found - shown_members);
  return lines;
}

}  // namespace

Identity program_fields() {
  return {{"version", version()},
          {"commit", commit()},
          {"compiler", compiler()},
          {"compiled for", host_architecture()},
          {"program file", program_digest().hex()}};
}

std::string build_id() {
  std::string id;
  dl_iterate_phdr([](dl_phdr_info* program, std::size_t, void* to) { return *static_cast<std::string*>(to) = build_id_of(*program), 1; },
                  &id);
  return id;
}

Hash128 program_digest() {
  static const Hash128 digest = [] {
    constexpr const char* path = "/proc/self/exe";
    struct stat status = {};
    if (stat(path, &status) != 0)
      fail(ExitCode::environment, "{}: the program's own file cannot be accessed: {}", path, std::strerror(errno));
    const std::string id = build_id();
    return id.empty() ? digest_of_file(path, static_cast<std::size_t>(status.st_size))
                      : hash_text(fmt::format("{} {}", id, status.st_size));
  }();
  return digest;
}

std::string print_identity(const Identity& identity) {
  std::string text;
  for (const IdentityField& field : identity) text += fmt::format("{}\t{}\t{}\n", field.of_processor ? 1 : 0, field.name, field.value);
  return text;
}

Identity parse_identity(std::string_view text) {
  Identity identity;
  for (std::size_t end = 0; (end = text.find('\n')) != std::string_view::npos; text.remove_prefix(end + 1)) {
    const std::string_view line = text.substr(0, end);
    const std::size_t name = line.find('\t'), value = name == line.npos ? line.npos : line.find('\t', name + 1);
    if (value == line.npos) continue;
    identity.push_back(
        {std::string(line.substr(name + 1, value - name - 1)), std::string(line.substr(value + 1)), line.substr(0, name) == "1"});
  }
  return identity;
}

std::string describe(const Identity& identity) {
  std::string text;
  for (const IdentityField& field : identity) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", field.name, field.value);
  return text;
}

std::string identity_differences(std::span<const Member> members, bool mixed_processors) {
  if (members.empty()) return "";
  const Member& first = members.front();
  if (const std::string lines = lines_of(members, false); !lines.empty())
    return fmt::format(
        "not all ranks run the same program as rank {} on {}, so their numbers would not match:{}\n  Start the same file on all nodes, "
        "with the same libraries.",
        first.rank, first.host, lines);
  if (const std::string lines = lines_of(members, true); !lines.empty() && !mixed_processors)
    return fmt::format(
        "not all ranks compute like rank {} on {}, because their processors differ:{}\n  Use nodes of one kind, or set ONEDNN_MAX_CPU_ISA "
        "everywhere to an instruction set that all of them have. topology.mixed_processors=true allows it, but not with run.reproducible.",
        first.rank, first.host, lines);
  return "";
}

}  // namespace tessera
