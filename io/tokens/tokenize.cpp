// Text to tokens in two passes: the first checks the whole input and counts, so that a bad input leaves nothing behind and the split is
// known; the second writes.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/check.hpp"
#include "base/types.hpp"
#include "io/files/byte_progress.hpp"
#include "io/files/posix_file.hpp"
#include "io/hdf5/hdf5.hpp"
#include "io/tokens/tokens.hpp"
#include "io/tokens/utf8.hpp"

namespace tessera::io {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t byte_vocab = 257;
constexpr std::uint16_t separator = 256;
constexpr std::size_t piece_bytes = 1 << 20;
constexpr std::int64_t chunk_tokens = 1 << 18;

struct Visitor {
  std::function<void(std::string_view)> text;  // a piece of the document under way
  std::function<void()> end_document;
  std::function<void(std::int64_t)> progress;  // bytes of input consumed
};

[[noreturn]] void refuse_utf8(const std::string& path, const Utf8Fault& f) {
  fail(ExitCode::data, "{}:{}: not UTF-8 at byte offset {}: {}. Convert the file, for example with iconv -t UTF-8.", path, f.line, f.offset,
       f.cut ? std::string("the text ends inside a character") : fmt::format("byte 0x{:02x} cannot stand here", f.byte));
}

/// A text file is one document.
void scan_text(const std::string& path, const Visitor& visit) {
  auto file = PosixFile::open(path, ExitCode::data);
  std::vector<char> buffer(piece_bytes);
  Utf8Checker checker;
  for (std::int64_t at = 0;;) {
    auto n = file.read(at, buffer.data(), buffer.size());
    if (n == 0) break;
    std::string_view piece(buffer.data(), n);
    if (auto fault = checker.feed(piece)) refuse_utf8(path, *fault);
    visit.text(piece);
    visit.progress(static_cast<std::int64_t>(n));
    at += static_cast<std::int64_t>(n);
  }
  if (auto fault = checker.finish()) refuse_utf8(path, *fault);
  visit.end_document();
}

/// The "text" of one line of JSON.
std::string text_of_line(const std::string& path, std::int64_t line_number, const std::string& line) {
  constexpr std::string_view wanted = "Every line must be an object with a string \"text\".";
  try {
    auto object = nlohmann::json::parse(line);
    if (!object.is_object()) fail(ExitCode::data, "{}:{}: the line is no JSON object. {}", path, line_number, wanted);
    auto text = object.find("text");
    if (text == object.end()) fail(ExitCode::data, "{}:{}: the object has no \"text\". {}", path, line_number, wanted);
    if (!text->is_string()) fail(ExitCode::data, "{}:{}: \"text\" is no string. {}", path, line_number, wanted);
    return text->get<std::string>();
  } catch (const nlohmann::json::parse_error& e) {
    fail(ExitCode::data, "{}:{}: broken JSON at byte {} of the line. {}", path, line_number, e.byte, wanted);
  }
}

/// JSON lines: a document a line. Blank lines and empty texts hold no tokens and are passed over.
void scan_lines(const std::string& path, const Visitor& visit) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(ExitCode::data, "{}: cannot open. Check the path and its permissions.", path);
  std::string line;
  std::int64_t number = 0, offset = 0;
  while (std::getline(in, line)) {
    ++number;
    Utf8Checker checker;
    auto fault = checker.feed(line);
    if (!fault) fault = checker.finish();
    if (fault) refuse_utf8(path, {number, offset + fault->offset, fault->byte, fault->cut});
    auto bytes = static_cast<std::int64_t>(line.size()) + (in.eof() ? 0 : 1);
    offset += bytes;
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      auto text = text_of_line(path, number, line);
      if (!text.empty()) {
        visit.text(text);
        visit.end_document();
      }
    }
    visit.progress(bytes);
  }
  if (in.bad()) fail(ExitCode::data, "{}: cannot read past byte {}.", path, offset);
}

/// One output file under its temporary name until finish().
class TokenWriter {
 public:
  TokenWriter(std::string path, std::int64_t expected_tokens, std::int64_t expected_documents)
      : path_(std::move(path)), temporary_(path_ + ".partial") {
    // HDF5 cannot take back a write that failed: find a full disk before it starts.
    PosixFile::create(temporary_).reserve(expected_tokens * 2 + expected_documents * 8 + 2 * chunk_tokens + 65536);
    file_.emplace(hdf5::File::create(temporary_, {}, ExitCode::storage));
    auto chunk = [](std::int64_t n) { return std::clamp<std::int64_t>(n, 1, chunk_tokens); };
    tokens_.emplace(file_->create_extendible("tokens", hdf5::Element::u16, chunk(expected_tokens)));
    documents_.emplace(file_->create_extendible("documents", hdf5::Element::i64, chunk(expected_documents)));
    buffer_.reserve(static_cast<std::size_t>(chunk_tokens));
  }
  ~TokenWriter() {
    if (committed_) return;
    tokens_.reset(), documents_.reset(), file_.reset();
    ::unlink(temporary_.c_str());  // if this fails a .partial stays that nobody reads
  }
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  void begin_document() {
    starts_.push_back(total());
    if (starts_.size() >= 65536) flush_documents();
  }
  void add(std::uint16_t token) {
    buffer_.push_back(token);
    if (static_cast<std::int64_t>(buffer_.size()) == chunk_tokens) flush_tokens();
  }
  void add(std::string_view bytes) {
    for (unsigned char b : bytes) add(b);
  }
  std::int64_t total() const { return tokens_->elements() + static_cast<std::int64_t>(buffer_.size()); }

  /// Everything is written and on the disk, still under the temporary name.
  void close() {
    flush_tokens(), flush_documents();
    file_->set_attribute("tokenizer", std::string_view("byte"));
    file_->set_attribute("vocab", byte_vocab);
    file_->set_attribute("documents", documents_->elements());
    tokens_.reset(), documents_.reset();
    file_->close();
    file_.reset();
    PosixFile::open(temporary_, ExitCode::storage).sync();
  }
  void commit() {
    rename_path(temporary_, path_);
    committed_ = true;
  }

 private:
  void flush_tokens() { tokens_->append<std::uint16_t>(buffer_), buffer_.clear(); }
  void flush_documents() { documents_->append<std::int64_t>(starts_), starts_.clear(); }
  std::string path_, temporary_;
  std::optional<hdf5::File> file_;
  std::optional<hdf5::Dataset> tokens_, documents_;
  std::vector<std::uint16_t> buffer_;
  std::vector<std::int64_t> starts_;
  bool committed_ = false;
};

/// How the input is divided.
struct Split {
  std::int64_t bytes = 0, documents = 0;              // of the input's texts
  std::int64_t train_documents = 0, train_bytes = 0;  // train_bytes only counts where there is one document
};

Split plan_split(const std::string& path, std::int64_t bytes, std::int64_t documents, double share) {
  if (bytes == 0) fail(ExitCode::data, "{}: the file holds no text. Give a file with some.", path);
  Split s{bytes, documents, documents, bytes};
  if (share <= 0) return s;
  auto portion = [&](std::int64_t whole) {
    if (whole < 2) fail(ExitCode::data, "{}: one byte cannot be split. Give more text or no --validation.", path);
    return std::clamp<std::int64_t>(std::llround(static_cast<double>(whole) * share), 1, whole - 1);
  };
  if (documents > 1) {
    s.train_documents -= portion(documents);
  } else {
    s.train_bytes -= portion(bytes);
  }
  return s;
}

/// The second pass: sends every byte to the file that it belongs to.
class Router {
 public:
  Router(const Split& split, TokenWriter& train, TokenWriter* validation) : split_(split), train_(train), validation_(validation) {}

  void text(std::string_view piece) {
    bytes_ += static_cast<std::int64_t>(piece.size());
    if (validation_ && split_.documents == 1 && target_ != validation_) piece = cut_here(piece);
    if (piece.empty()) return;
    open_document();
    target_->add(piece);
  }
  void end_document() { ++documents_, open_ = false; }
  bool same_as_first_pass() const { return bytes_ == split_.bytes && documents_ == split_.documents; }

 private:
  /// The only document is cut at train_bytes, moved on to where a character starts; what comes before goes to train.
  std::string_view cut_here(std::string_view piece) {
    auto before = bytes_ - static_cast<std::int64_t>(piece.size());
    auto cut = static_cast<std::size_t>(std::clamp<std::int64_t>(split_.train_bytes - before, 0, static_cast<std::int64_t>(piece.size())));
    while (cut < piece.size() && (static_cast<unsigned char>(piece[cut]) & 0xc0) == 0x80) ++cut;
    if (cut > 0) {
      open_document();
      target_->add(piece.substr(0, cut));
    }
    if (cut == piece.size()) return {};
    target_ = validation_, open_ = false;
    return piece.substr(cut);
  }
  void open_document() {
    if (open_) return;
    if (documents_ >= split_.train_documents && validation_) target_ = validation_;
    if (target_->total() > 0) target_->add(separator);
    target_->begin_document();
    open_ = true;
  }
  const Split& split_;
  TokenWriter& train_;
  TokenWriter* validation_;
  TokenWriter* target_ = &train_;
  std::int64_t bytes_ = 0, documents_ = 0;
  bool open_ = false;
};

}  // namespace

TokenizeResult tokenize(const TokenizeOptions& o) {
  if (o.tokenizer != "byte") fail(ExitCode::usage, "tokenizer '{}' does not exist; the one there is: byte.", o.tokenizer);
  if (!(o.validation >= 0 && o.validation < 1)) fail(ExitCode::usage, "--validation {} is not in [0, 1).", o.validation);
  // 1. Check and count.
  auto size = PosixFile::open(o.input, ExitCode::data).size();
  bool lines = o.input.ends_with(".jsonl") || o.input.ends_with(".ndjson");
  auto scan = lines ? scan_lines : scan_text;
  ByteProgress progress("tokenize", 2 * size, o.progress);
  auto advance = [&](std::int64_t n) { progress.add(n); };
  std::int64_t bytes = 0, documents = 0;
  scan(o.input, {[&](std::string_view t) { bytes += static_cast<std::int64_t>(t.size()); }, [&] { ++documents; }, advance});
  auto split = plan_split(o.input, bytes, documents, o.validation);
  // 2. Write under temporary names.
  std::error_code e;
  fs::create_directories(o.output_dir, e);
  if (e) fail_storage("create the folder", o.output_dir, e.value());
  TokenWriter train(o.output_dir + "/train.h5", bytes + documents, documents);
  std::unique_ptr<TokenWriter> validation;
  if (o.validation > 0)
    validation = std::make_unique<TokenWriter>(o.output_dir + "/val.h5",
                                               static_cast<std::int64_t>(static_cast<double>(bytes + documents) * o.validation), documents);
  Router router(split, train, validation.get());
  scan(o.input, {[&](std::string_view t) { router.text(t); }, [&] { router.end_document(); }, advance});
  if (!router.same_as_first_pass()) fail(ExitCode::data, "{}: the file changed while it was read. Run again when it is complete.", o.input);
  TokenizeResult result{train.total(), validation ? validation->total() : 0, documents, byte_vocab};
  if (validation && (result.validation_tokens == 0 || result.train_tokens == 0))
    fail(ExitCode::data, "{}: too little text to split. Give more text or no --validation.", o.input);
  // 3. Give them their names.
  train.close();
  if (validation) validation->close();
  train.commit();
  if (validation) validation->commit();
  sync_folder(o.output_dir);
  return result;
}

}  // namespace tessera::io
