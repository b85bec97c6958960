#include "base/identity.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/check.hpp"
#include "base/commit.hpp"
#include "base/version.hpp"

namespace tessera {

// Weak: the tessera program brings the commit's own (src/base/CMakeLists.txt).
[[gnu::weak]] const char* commit() { return "unknown"; }

namespace {

constexpr std::size_t shown_members = 8;

Hash128 digest_of_file(const char* path) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  struct stat status = {};
  void* data = MAP_FAILED;
  if (file >= 0 && fstat(file, &status) == 0)
    data = mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file, 0);
  const int error = errno;
  if (file >= 0) close(file);
  if (data == MAP_FAILED && error == ENOMEM) throw std::bad_alloc();
  if (data == MAP_FAILED)
    fail(ExitCode::environment, "{}: the program's own file cannot be read: {}. Ranks compare it; let it be readable for who runs it.",
         path, std::strerror(error));
  const Hash128 digest = hash_bytes(data, static_cast<std::size_t>(status.st_size));
  munmap(data, static_cast<std::size_t>(status.st_size));
  return digest;
}

/// What differs of a kind, "commit 1a2b here, 3c4d there; ...".
std::string differing(const Identity& first, const Identity& other, bool of_processor) {
  std::string text;
  for (const IdentityField& field : other) {
    if (field.of_processor != of_processor) continue;
    const auto same = std::ranges::find(first, field.name, &IdentityField::name);
    const std::string before = same == first.end() ? "nothing" : same->value;
    if (before != field.value) text += fmt::format("{}{} {} and not {}", text.empty() ? "" : "; ", field.name, field.value, before);
  }
  for (const IdentityField& field : first)
    if (field.of_processor == of_processor && std::ranges::find(other, field.name, &IdentityField::name) == other.end())
      text += fmt::format("{}{} nothing and not {}", text.empty() ? "" : "; ", field.name, field.value);
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
  if (found > shown_members) lines += fmt::format("\n  and {} ranks more", found - shown_members);
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

Hash128 program_digest() {
  static const Hash128 digest = digest_of_file("/proc/self/exe");
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
        "not all ranks run the program that rank {} on {} runs, so their numbers would not fit together:{}\n  Start one and the "
        "same file on all nodes, with the same libraries.",
        first.rank, first.host, lines);
  if (const std::string lines = lines_of(members, true); !lines.empty() && !mixed_processors)
    return fmt::format(
        "not all ranks compute as rank {} on {} does, because their processors differ:{}\n  Take nodes of one kind, or set "
        "ONEDNN_MAX_CPU_ISA everywhere to what all of them have, or allow it with topology.mixed_processors=true, which "
        "run.reproducible does not take.",
        first.rank, first.host, lines);
  return "";
}

}  // namespace tessera
