// Damages what the program reads, from a seed: bits, bytes and pages, truncated, extended, repeated and swapped files. Each reader must
// refuse with its documented status or give what was written: no other status, no signal, no hang, and of what carries checksums no damaged
// value.
//   damage [--trials N] [--seed S] [--trial K]      K: that trial alone, with what was said
// 200 trials; with TESSERA_TEST_FULL in the environment 15,000.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>

#include "base/hash.hpp"
#include "deck/deck.hpp"
#include "io/checkpoint/format.hpp"
#include "io/safetensors/safetensors.hpp"
#include "io/safetensors/safetensors_model.hpp"
#include "io/tokens/tokens.hpp"
#include "validation/unit/model/random_models.hpp"
#include "validation/unit/scratch.hpp"
#include "validation/unit/sharded_checkpoint.hpp"

namespace tessera {
namespace {

constexpr unsigned hang_seconds = 300;
constexpr rlim_t most_memory = rlim_t{8} << 30;  // a declared size that is no file's is seen before memory for it is taken

/// Something that is read: one of `files` is damaged, `digest` is a text that says all that was read.
struct Subject {
  std::string name;
  ExitCode refusal;
  bool sealed = false;  // checksums: what is accepted is what was written
  std::vector<std::string> files;
  std::function<std::string()> digest;
};

std::string checkpoint_digest(const std::string& folder) {
  const io::CheckpointReader reader(folder);
  reader.verify([](std::int64_t, std::int64_t) {});
  const io::CheckpointMeta& meta = reader.meta();
  std::string text = fmt::format("{} {} {} {} {} {}\n", meta.step, meta.sample_cursor, meta.seed, meta.identity, meta.version, meta.deck);
  text += io::values_text(meta.values) + "\n";
  for (const std::string& group : reader.layout().groups)
    for (const io::CheckpointTensor& tensor : reader.layout().tensors)
      text += fmt::format("{} {} {}\n", group, tensor.name, reader.tensor_hash(group, tensor));
  return text;
}

std::string tokens_digest(const std::string& path, std::int64_t vocab) {
  const io::TokenFile file(path);
  std::string text = fmt::format("{} {} {}\n", file.tokens(), file.documents(), file.declared_vocab());
  std::vector<std::int32_t> piece(1000);
  for (std::int64_t begin = 0; begin < file.tokens(); begin += std::ssize(piece)) {
    piece.resize(static_cast<std::size_t>(std::min<std::int64_t>(std::ssize(piece), file.tokens() - begin)));
    file.read(begin, piece, vocab);
    text += hash_bytes(piece.data(), piece.size() * sizeof(piece[0])).hex();
  }
  return text;
}

/// A deck that is accepted can be printed and read again.
std::string deck_digest(const std::string& path) {
  const Deck deck = require_deck(parse_deck(path, {}, 1));
  TESSERA_REQUIRE(require_deck(parse_deck_text(print_deck(deck), "printed", {}, 1)) == deck, "{} is not what it prints", path);
  return print_deck(deck);
}

std::string safetensors_digest(const std::string& path) {
  std::string text;
  for (const io::SafetensorsTensor& tensor : io::read_safetensors_header(path)) {
    const auto bytes = io::read_safetensors_tensor(path, tensor);
    text += fmt::format("{} {} {}\n", tensor.name, tensor.shape.elements(), hash_bytes(bytes.data(), bytes.size()).hex());
  }
  return text;
}

/// All subjects, written into a folder.
std::vector<Subject> make_subjects(const test::Scratch& scratch) {
  std::vector<Subject> all;
  const Deck deck = test::tiny_deck();
  for (const auto& [shards, cuts] : {std::pair(1, 1), std::pair(3, 1), std::pair(1, 2)}) {
    const std::string name = fmt::format("checkpoint of {}{}", shards * cuts, cuts > 1 ? " with cut tensors" : "");
    const std::string folder = test::write_sharded(scratch / name, deck, shards, 5, cuts);
    std::vector<std::string> files{folder + "/checkpoint.h5"};
    for (int shard = 0; shard < shards * cuts; ++shard) files.push_back(fmt::format("{}/shard-{:05}.h5", folder, shard));
    all.push_back({name, ExitCode::checkpoint, true, files, [folder] { return checkpoint_digest(folder); }});
  }
  const std::string shared = test::write_sharded(scratch / "shared files", deck, 3, 5, 1, {0, 1, 0});
  all.push_back({"checkpoint of 3 in 2 files",
                 ExitCode::checkpoint,
                 true,
                 {shared + "/checkpoint.h5", shared + "/shard-00000.h5", shared + "/shard-00001.h5"},
                 [shared] { return checkpoint_digest(shared); }});
  std::string words;
  for (int i = 0; i < 700; ++i) words += fmt::format("line {} of a text\n", i * i);
  test::spill(scratch / "text.txt", words);
  io::tokenize({.inputs = {scratch / "text.txt"}, .output_dir = scratch / "tokens"});
  const std::string h5 = scratch / "tokens/train.h5", bin = scratch / "plain.bin", llm = scratch / "llm.bin", toml = scratch / "deck.toml";
  std::string ids;
  for (unsigned i = 0; i < 8000; ++i) ids += {static_cast<char>(i * 7 % 211), 0};
  test::spill(bin, ids);
  std::string header(1024, '\0');
  const std::int32_t fields[] = {20240520, 1, 8000};
  std::memcpy(header.data(), fields, sizeof(fields));
  test::spill(llm, header + ids);
  test::spill(toml, print_deck(deck));
  all.push_back({"tokens .h5", ExitCode::data, true, {h5}, [h5] { return tokens_digest(h5, 257); }});
  all.push_back({"tokens .bin", ExitCode::data, false, {bin}, [bin] { return tokens_digest(bin, 211); }});
  all.push_back({"tokens of llm.c", ExitCode::data, false, {llm}, [llm] { return tokens_digest(llm, 211); }});
  all.push_back({"deck", ExitCode::usage, false, {toml}, [toml] { return deck_digest(toml); }});
  const std::string weights = scratch / "model.safetensors";
  io::SafetensorsWriter writer(weights, {{"a", DType::f32, Shape{30, 20}}, {"b", DType::bf16, Shape{77}}});
  writer.append(std::vector<std::byte>(30 * 20 * 4 + 77 * 2, std::byte{5}));
  writer.finish();
  all.push_back({"safetensors", ExitCode::data, false, {weights}, [weights] { return safetensors_digest(weights); }});
  return all;
}

using Chance = std::mt19937_64;
std::size_t below(Chance& chance, std::size_t n) { return n == 0 ? 0 : chance() % n; }

/// Changes `bytes`; says what was done. `others` are what a mixed-up copy may put in their place.
std::string change(Chance& chance, std::string& bytes, const std::vector<std::string>& others) {
  if (bytes.empty()) bytes = "\n";
  const std::size_t size = bytes.size(), at = below(chance, size), page = at / 4096 * 4096;
  // Half of what is hit lies in the first pages, where sizes and offsets stand.
  const std::size_t near = chance() % 2 ? below(chance, std::min<std::size_t>(size, 2048)) : at;
  const std::size_t length = std::min<std::size_t>(4096, size - page);
  switch (chance() % 9) {
    case 0:
    case 1:
      bytes[near] = static_cast<char>(bytes[near] ^ (1 << chance() % 8));
      return fmt::format("a bit of byte {} flipped", near);
    case 2:
      for (std::size_t i = near; i < std::min(size, near + 8); ++i) bytes[i] = static_cast<char>(chance());
      return fmt::format("8 bytes at {} replaced", near);
    case 3:
      for (std::size_t i = near; i < std::min(size, near + 8); ++i) bytes[i] = static_cast<char>(0xff);
      return fmt::format("8 bytes at {} set to 255", near);
    case 4:
      std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(page), length, '\0');
      return fmt::format("the page at {} zeroed", page);
    case 5:
      bytes.resize(at);
      return fmt::format("truncated to {} bytes", at);
    case 6:
      bytes.append(1 + below(chance, 5000), static_cast<char>(chance() % 2 ? 0 : chance()));
      return fmt::format("extended to {} bytes", bytes.size());
    case 7: {
      const std::size_t other = below(chance, size / 4096 + 1) * 4096,
                        n = std::min<std::size_t>({4096, size - page, size - std::min(size, other)});
      const std::string copied = bytes.substr(std::min(size, other), n);
      std::copy(copied.begin(), copied.end(), bytes.begin() + static_cast<std::ptrdiff_t>(page));
      return fmt::format("the page at {} is the one at {}", page, other);
    }
    default: {
      const std::size_t other = below(chance, others.size());
      bytes = others[other];
      return fmt::format("another file in its place ({})", other);
    }
  }
}

struct Ending {
  int status = 0, signal = 0;
  bool same = false;
  std::string said;
};

/// Reads in a process of its own.
Ending read_apart(const Subject& subject, const std::string& expected) {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  const pid_t child = fork();
  if (child == 0) {
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
#ifndef TESSERA_SANITIZE
    const rlimit memory{most_memory, most_memory};
    setrlimit(RLIMIT_AS, &memory);
#endif
    alarm(hang_seconds);
    int status = 0;
    std::string said;
    try {
      said = subject.digest() == expected ? "same" : "other";
    } catch (const Error& error) {
      status = static_cast<int>(error.code), said = error.what();
    } catch (const std::exception& error) {
      status = 1, said = fmt::format("{}: {}", typeid(error).name(), error.what());
    }
    said.resize(std::min<std::size_t>(said.size(), 4000));  // fits into a pipe
    if (write(ends[1], said.data(), said.size()) < 0) status = 1;
    _exit(status);
  }
  close(ends[1]);
  Ending ending;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) ending.said.append(buffer, static_cast<std::size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status))
    ending.signal = WTERMSIG(status);
  else
    ending.status = WEXITSTATUS(status);
  ending.same = ending.said == "same";
  return ending;
}

/// What is wrong with how a damaged subject was taken; nothing where that is as it must be.
std::string fault_of(const Subject& subject, const std::string& file, const Ending& ending) {
  if (ending.signal == SIGALRM) return "hangs";
  if (ending.signal != 0) return fmt::format("ends by signal {}", ending.signal);
  if (ending.status == 0) return ending.same || !subject.sealed ? "" : "is accepted with other values";
  if (ending.status != static_cast<int>(subject.refusal))
    return fmt::format("ends with status {}, not {}", ending.status, static_cast<int>(subject.refusal));
  const std::string name = file.substr(file.rfind('/') + 1);
  return subject.files.size() > 1 || ending.said.find(name) != std::string::npos ? "" : "is refused without the name of the file";
}

struct Options {
  std::uint64_t trials = std::getenv("TESSERA_TEST_FULL") ? 15000 : 200, seed = 1;
  std::int64_t trial = -1;
};

class Trials {
 public:
  explicit Trials(const Options& options) : options_(options), subjects_(make_subjects(scratch_)) {
    for (const Subject& subject : subjects_) {
      expected_.push_back(subject.digest());
      for (const std::string& file : subject.files) others_.push_back(test::slurp(file));
    }
  }
  /// Whether all went as it must.
  bool run() {
    for (std::uint64_t trial = 0; trial < options_.trials; ++trial)
      if (options_.trial < 0 || static_cast<std::uint64_t>(options_.trial) == trial) one(trial);
    for (const auto& [what, count] : counts_) fmt::print("{:6}  {}\n", count, what);
    if (options_.trial < 0)
      for (const Subject& subject : subjects_) {
        require(counts_[subject.name + " refused"] > 0, subject.name + " was never refused");
        // Whole again, it is what it was: the trials leave nothing behind.
        require(read_apart(subject, expected_[static_cast<std::size_t>(&subject - subjects_.data())]).same,
                subject.name + " is not read as before");
      }
    return good_;
  }

 private:
  void require(bool condition, const std::string& what) {
    if (condition) return;
    fmt::print("FAIL {}\n", what);
    good_ = false;
  }
  void one(std::uint64_t trial) {
    std::seed_seq seed{options_.seed, trial};
    Chance chance(seed);
    const std::size_t which = below(chance, subjects_.size());
    const Subject& subject = subjects_[which];
    const std::string& file = subject.files[below(chance, subject.files.size())];
    const std::string whole = test::slurp(file);
    std::string bytes = whole, done = change(chance, bytes, others_);
    for (std::size_t more = chance() % 4 == 0 ? 1 + below(chance, 3) : 0; more > 0; --more) done += ", " + change(chance, bytes, others_);
    test::spill(file, bytes);
    const Ending ending = read_apart(subject, expected_[which]);
    test::spill(file, whole);
    ++counts_[fmt::format("{} {}", subject.name,
                          ending.status || ending.signal ? "refused"
                          : ending.same                  ? "read as it was"
                                                         : "read with other values")];
    const std::string fault = fault_of(subject, file, ending);
    require(fault.empty(), fmt::format("trial {} of seed {}: {}, {}, {}: {}\n     | {}", trial, options_.seed, subject.name,
                                       file.substr(file.rfind('/') + 1), done, fault, ending.said));
    if (options_.trial >= 0) fmt::print("{}: {}: {}\n{}\n", subject.name, file, done, ending.said);
  }

  Options options_;
  test::Scratch scratch_;
  std::vector<Subject> subjects_;
  std::vector<std::string> expected_, others_;
  std::map<std::string, std::int64_t> counts_;
  bool good_ = true;
};

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::Options options;
  CLI::App app("Damages what the program reads, and looks at how it is taken.");
  app.add_option("--trials", options.trials, "how many");
  app.add_option("--seed", options.seed, "of the damages");
  app.add_option("--trial", options.trial, "this one alone");
  CLI11_PARSE(app, argc, argv);
  return tessera::Trials(options).run() ? 0 : 1;
}
