#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/check.hpp"
#include "base/printable.hpp"
#include "io/files/posix_file.hpp"
#include "io/files/utf8.hpp"
#include "io/hdf5/hdf5.hpp"
#include "io/tokens/bin_layout.hpp"
#include "io/tokens/input_form.hpp"
#include "io/tokens/loss_mask.hpp"
#include "io/tokens/tokens.hpp"

namespace tessera::io {

const char* const documents_digest_name = "documents.xxh3";

namespace {

std::int64_t id_at(const char* ids, std::size_t i, std::size_t token_bytes) {
  std::uint32_t id = 0;  // little-endian, as the machine
  std::memcpy(&id, ids + i * token_bytes, token_bytes);
  return id;
}

}  // namespace

struct TokenFile::Impl {
  std::string path;
  std::int64_t documents = 0, vocab = 0, end_token = -1;
  std::string tokenizer, digest;
  std::string documents_digest, labels_digest, margins_digest;  // "" where the writer said none
  TokenSet set = TokenSet::documents;
  BinLayout layout;
  PosixFile raw;
  FileStamp stamp;                       // when it was opened
  std::optional<hdf5::Dataset> dataset;  // the tokens, where the file is HDF5
  std::optional<hdf5::Dataset> mask;     // which of them count in the loss
  std::optional<hdf5::Dataset> document_begins, labels, margins;
  std::optional<TokenFacts> facts;  // once all tokens have been read
  TokenSums sums;                   // what they were then: nothing of the file is believed later
  bool sums_of_writer = false;      // they came with the file
  struct Block {
    std::int64_t number = -1;  // none
    std::vector<char> ids;
    std::vector<std::uint8_t> mask;
  };
  mutable std::array<Block, 2> blocks;  // what was last compared, of even and of odd number: a sample has seldom more than two

  /// A dataset of the file that can be read piece by piece.
  hdf5::Dataset open(const hdf5::File& file, const char* name) const {
    hdf5::Dataset dataset = file.open_dataset(name);
    if (const std::int64_t bytes = dataset.filtered_chunk_bytes(); bytes > hdf5::most_filtered_chunk_bytes)
      fail(ExitCode::data,
           "{}: the dataset '{}' is compressed in chunks of {}. One chunk must be unpacked for any token in it, and {} is the limit. Write "
           "it again in smaller chunks, or without compression (h5repack -l {}:CHUNK=262144).",
           path, name, human_bytes(static_cast<double>(bytes)), human_bytes(static_cast<double>(hdf5::most_filtered_chunk_bytes)), name);
    return dataset;
  }

  std::string text_attribute(const hdf5::File& file, const char* name) const {
    std::string text = file.text_attribute(name).value_or("");
    Utf8Checker checker;
    if (checker.feed(text) || checker.finish())
      fail(ExitCode::data, "{}: its attribute '{}' is not text in UTF-8. The file is damaged: restore it, or write the attribute again.",
           path, name);
    return text;
  }

  void open_hdf5() {
    auto file = hdf5::File::open(path, ExitCode::data);
    if (!file.has("tokens"))
      fail(ExitCode::data, "{}: it has no dataset 'tokens'. Make token files with `tessera tokenize`, or write uint16 or uint32 'tokens'.",
           path);
    dataset.emplace(open(file, "tokens"));
    auto element = dataset->element();
    if (dataset->dims().size() != 1 || (element != hdf5::Element::u16 && element != hdf5::Element::u32))
      fail(ExitCode::data, "{}: the dataset 'tokens' must be one-dimensional and of type uint16 or uint32.", path);
    if (const auto missing = dataset->missing(); !missing.empty())
      fail(ExitCode::data, "{}: the dataset 'tokens' is not whole: {}. Copy the file again, or tokenize again.", path, missing);
    layout = {0, dataset->elements(), element == hdf5::Element::u16 ? std::size_t{2} : std::size_t{4}};
    if (file.has("documents")) documents = document_begins.emplace(open(file, "documents")).elements();
    vocab = file.integer_attribute("vocab").value_or(0);
    tokenizer = text_attribute(file, "tokenizer");
    digest = text_attribute(file, "tokenizer.xxh3");
    documents_digest = text_attribute(file, documents_digest_name);
    end_token = file.integer_attribute("end_token").value_or(-1);
    if (file.has(mask_name)) open_mask(file);
    open_preferences(file);
    if (file.has(checksums_name)) open_checksums(file);
  }

  /// Of a file with the attribute "kind". What its documents are counted by must be there.
  void open_preferences(const hdf5::File& file) {
    const std::string kind = text_attribute(file, "kind");
    if (kind.empty()) return;
    const std::optional<TokenSet> found = token_set_of(kind);
    if (!found)
      fail(ExitCode::data,
           "{}: its attribute 'kind' is \"{}\", which this version does not know; it is \"pairs\", \"labels\" or absent. Write the file "
           "again.",
           path, printable_name(kind));
    set = *found;
    if (set == TokenSet::documents) return;
    const bool labelled = set == TokenSet::labels;
    for (const char* name : {"documents", mask_name, labelled ? labels_name : "documents"})
      if (!file.has(name))
        fail(ExitCode::data, "{}: it is of kind \"{}\", but has no dataset '{}'. Write the file again.", path, kind, name);
    if (!labelled && documents % 2 != 0)
      fail(ExitCode::data, "{}: it is of kind \"pairs\", but has {} documents, an odd number. Write the file again.", path, documents);
    if (labelled) labels.emplace(open(file, labels_name)), labels_digest = text_attribute(file, digest_name(labels_name).c_str());
    if (!labelled && file.has(margins_name))
      margins.emplace(open(file, margins_name)), margins_digest = text_attribute(file, digest_name(margins_name).c_str());
  }

  struct Column {
    const hdf5::Dataset& dataset;
    const char* name;
    const std::string& digest;  ///< "" where the writer said none
    std::int64_t count;
    const char* what;
  };
  /// All of a dataset beside the tokens.
  template <class T>
  std::vector<T> read_column(const Column& column) const {
    if (column.dataset.dims().size() != 1 || column.dataset.element() != hdf5::element_of<T>() || column.dataset.elements() != column.count)
      fail(ExitCode::data, "{}: the dataset '{}' must be one-dimensional, with {} elements of {}.", path, column.name, column.count,
           column.what);
    if (const auto missing = column.dataset.missing(); !missing.empty())
      fail(ExitCode::data, "{}: the dataset '{}' is not whole: {}. Copy the file again, or tokenize again.", path, column.name, missing);
    std::vector<T> values(static_cast<std::size_t>(column.count));
    if (!values.empty()) column.dataset.read<T>(0, values);
    if (!column.digest.empty() && hash_bytes(values.data(), values.size() * sizeof(T)).hex() != column.digest)
      fail(ExitCode::data,
           "{}: the dataset '{}' has changed since the file was written: its digest differs, so the file was changed, or it or its disk is "
           "damaged. Restore the file from a copy, or tokenize again. If it was changed on purpose, remove the attribute '{}'.",
           path, column.name, digest_name(column.name));
    return values;
  }

  void open_mask(const hdf5::File& file) {
    mask.emplace(open(file, mask_name));
    if (mask->dims().size() != 1 || mask->element() != hdf5::Element::u8 || mask->elements() != mask_bytes(layout.tokens))
      fail(ExitCode::data, "{}: the dataset '{}' must have a bit for each of the {} tokens: uint8, one-dimensional, {} of them.", path,
           mask_name, layout.tokens, mask_bytes(layout.tokens));
    if (const auto missing = mask->missing(); !missing.empty())
      fail(ExitCode::data, "{}: the dataset '{}' is not whole: {}. Copy the file again, or tokenize again.", path, mask_name, missing);
  }

  bool describes(const TokenFacts& f) const {
    return f.tokens == layout.tokens && f.token_bytes == static_cast<std::int64_t>(layout.token_bytes) && f.documents == documents &&
           f.vocab == vocab && f.tokenizer == tokenizer && f.digest == digest && f.end_token == end_token && f.set == set &&
           (f.counted >= 0) == mask.has_value();
  }

  void open_checksums(const hdf5::File& file) {
    const std::string text = file.text_attribute("facts").value_or("");
    facts = TokenFacts::parse(text);
    const auto checksums = open(file, checksums_name);
    bool whole = facts && file.text_attribute("facts.xxh3") == hash_text(text).hex() && describes(*facts) &&
                 checksums.element() == hdf5::Element::u64 && checksums.dims().size() == 1 &&
                 checksums.elements() == ceil_div(layout.tokens, block_tokens);
    if (whole) {
      sums.blocks.resize(static_cast<std::size_t>(checksums.elements()));
      checksums.read<std::uint64_t>(0, sums.blocks);
      whole = sums.content() == facts->content;
      sums_of_writer = true;
    }
    if (!whole)
      fail(ExitCode::data,
           "{}: its facts and checksums do not match its tokens: the file was damaged, or changed after it was written. Restore it or "
           "tokenize again. If it was changed on purpose, remove its dataset '{}', and the next start checks it again.",
           path, checksums_name);
  }

  /// The file's own numbers.
  void load(std::int64_t begin, char* to, std::int64_t count) const {
    const auto bytes = static_cast<std::size_t>(count) * layout.token_bytes;
    if (dataset) {
      dataset->read_box({{begin}, {count}}, layout.token_bytes == 2 ? hdf5::Element::u16 : hdf5::Element::u32, to);
    } else if (raw.read(layout.begin + begin * static_cast<std::int64_t>(layout.token_bytes), to, bytes) != bytes) {
      fail(ExitCode::data, "{}: the file ends before token {}: it was truncated after it was opened. Restore it.", path, begin + count);
    }
  }

  /// The loss mask of tokens from a multiple of 8 on; empty where there is none.
  std::vector<std::uint8_t> load_mask(std::int64_t begin, std::int64_t count) const {
    std::vector<std::uint8_t> bits;
    if (!mask) return bits;
    bits.resize(static_cast<std::size_t>(mask_bytes(count)));
    mask->read<std::uint8_t>(begin / 8, bits);
    return bits;
  }

  /// A block as it was when all tokens were read: a copy of what the file has is compared, and that copy is what is used.
  const Block& compared(std::int64_t number) const {
    Block& block = blocks[static_cast<std::size_t>(number % 2)];
    if (block.number == number) return block;
    block.number = -1;
    const std::int64_t begin = number * block_tokens, count = std::min(block_tokens, layout.tokens - begin);
    block.ids.resize(static_cast<std::size_t>(count) * layout.token_bytes);
    load(begin, block.ids.data(), count);
    block.mask = load_mask(begin, count);
    if (block_checksum(block.ids.data(), block.ids.size(), block.mask) != sums.blocks[static_cast<std::size_t>(number)])
      fail(ExitCode::data,
           "{}: tokens {} to {} (block {} of {}) have changed since the file was {}: their checksum differs, so the file was changed, or "
           "it or its disk is damaged. Restore the file from a copy, or make it again.",
           path, begin, begin + count - 1, number, sums.blocks.size(), sums_of_writer ? "written" : "checked");
    block.number = number;
    return block;
  }

  /// Calls `part(block, first, count)` for each block that has some of tokens [begin, begin + count).
  template <class Part>
  void for_blocks(std::int64_t begin, std::int64_t count, Part&& part) const {
    for (const std::int64_t end = begin + count; begin < end;) {
      const std::int64_t number = begin / block_tokens, n = std::min(end, (number + 1) * block_tokens) - begin;
      part(compared(number), begin - number * block_tokens, n);
      begin += n;
    }
  }

  /// As load(), through the checksums where there are any.
  void load_compared(std::int64_t begin, char* to, std::int64_t count) const {
    if (!facts) return load(begin, to, count);
    for_blocks(begin, count, [&](const Block& block, std::int64_t first, std::int64_t n) {
      const std::size_t bytes = static_cast<std::size_t>(n) * layout.token_bytes;
      std::memcpy(to, block.ids.data() + static_cast<std::size_t>(first) * layout.token_bytes, bytes);
      to += bytes;
    });
  }

  [[noreturn]] void refuse_id(std::int64_t id, std::int64_t at, std::int64_t limit) const {
    fail(ExitCode::data,
         "{}: token {} at position {} is outside the vocabulary of {}.{} Set model.vocab to the tokenizer's, or tokenize again.", path, id,
         at, limit, vocab > 0 ? fmt::format(" The file declares a vocabulary of {}.", vocab) : "");
  }

  static constexpr const char *checksums_name = "tokens.xxh3", *mask_name = "loss_mask";
};

TokenFile::TokenFile(const std::string& path, BinIds bin_ids) : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  std::error_code unknown;
  if (!std::filesystem::exists(path, unknown) && !unknown)
    fail(ExitCode::data,
         "{}: the file is missing. Correct the path (in a deck data.train or data.validation), or make token files from texts: tessera "
         "tokenize TEXTS FOLDER --tokenizer MODEL",
         path);
  impl_->raw = PosixFile::open(path, ExitCode::data);  // says why, where the file is closed to us
  impl_->stamp = FileStamp::of(impl_->raw);
  const bool hdf5 = has_hdf5_signature(impl_->raw), headed = has_bin_header(impl_->raw);  // say more than a name
  if (hdf5) {
    impl_->open_hdf5();
  } else if (headed || path.ends_with(".bin")) {
    impl_->layout = bin_layout(impl_->raw, bin_ids);
  } else if (ends_with_any(path, {".h5", ".hdf5"})) {
    fail(ExitCode::data,
         "{}: cannot open as HDF5: it does not begin like HDF5, so it is damaged, or in another format. Copy or make it again; files of "
         "16-bit ids alone are named .bin.",
         path);
  } else {
    fail(ExitCode::data, "{}: a token file ends in .h5, .hdf5 or .bin. Make one from text with `tessera tokenize`.", path);
  }
  if (tokens() <= 0) fail(ExitCode::data, "{}: it holds no tokens.", path);
  if (!impl_->facts)
    if (auto kept = KeptChecks::read(path, impl_->stamp); kept && impl_->describes(kept->facts)) {
      impl_->facts = kept->facts;
      impl_->sums = std::move(kept->sums);
    }
}
TokenFile::~TokenFile() = default;
TokenFile::TokenFile(TokenFile&&) noexcept = default;

const std::string& TokenFile::path() const { return impl_->path; }
std::int64_t TokenFile::tokens() const { return impl_->layout.tokens; }
std::int64_t TokenFile::bytes() const { return impl_->stamp.bytes; }
std::int64_t TokenFile::documents() const { return impl_->documents; }
std::vector<std::int64_t> TokenFile::read_documents() const {
  if (!impl_->document_begins) return {};
  return impl_->read_column<std::int64_t>({.dataset = *impl_->document_begins,
                                           .name = "documents",
                                           .digest = impl_->documents_digest,
                                           .count = documents(),
                                           .what = "type int64: the token that each begins with"});
}
TokenSet TokenFile::set() const { return impl_->set; }
std::vector<std::uint8_t> TokenFile::read_labels() const {
  TESSERA_REQUIRE(impl_->labels, "{}", path());
  std::vector<std::uint8_t> labels = impl_->read_column<std::uint8_t>({.dataset = *impl_->labels,
                                                                       .name = labels_name,
                                                                       .digest = impl_->labels_digest,
                                                                       .count = documents(),
                                                                       .what = "type uint8: 1 or 0 for each document"});
  if (const auto odd = std::ranges::find_if(labels, [](std::uint8_t label) { return label > 1; }); odd != labels.end())
    fail(ExitCode::data, "{}: document {} has the label {}, but a label is 1 (desirable) or 0. Write the file again.", path(),
         odd - labels.begin(), *odd);
  return labels;
}
std::vector<float> TokenFile::read_margins() const {
  if (!impl_->margins) return {};
  std::vector<float> margins = impl_->read_column<float>({.dataset = *impl_->margins,
                                                          .name = margins_name,
                                                          .digest = impl_->margins_digest,
                                                          .count = documents() / 2,
                                                          .what = "type float32: one for each pair"});
  if (const auto odd = std::ranges::find_if(margins, [](float margin) { return !std::isfinite(margin); }); odd != margins.end())
    fail(ExitCode::data, "{}: pair {} has the margin {}, which is not a finite number. Write the file again.", path(),
         odd - margins.begin(), *odd);
  return margins;
}
std::int64_t TokenFile::declared_vocab() const { return impl_->vocab; }
std::string TokenFile::tokenizer() const { return impl_->tokenizer; }
std::string TokenFile::tokenizer_digest() const { return impl_->digest; }
std::int64_t TokenFile::end_token() const { return impl_->end_token; }
std::size_t TokenFile::token_bytes() const { return impl_->layout.token_bytes; }
bool TokenFile::masked() const { return impl_->mask.has_value(); }
const TokenFacts* TokenFile::facts() const { return impl_->facts ? &*impl_->facts : nullptr; }

TokenSums TokenFile::scan(std::int64_t first, std::int64_t last, std::int64_t vocab) const {
  constexpr std::int64_t piece = 32 * block_tokens;
  TokenSums sums;
  std::vector<char> ids;
  for (std::int64_t at = first * block_tokens, end = std::min(last * block_tokens, tokens()); at < end; at += piece) {
    const std::int64_t count = std::min(piece, end - at);
    ids.resize(static_cast<std::size_t>(count) * token_bytes());
    impl_->load(at, ids.data(), count);
    sums.add(ids.data(), count, token_bytes(), at, impl_->load_mask(at, count));
    if (sums.largest_id < vocab) continue;
    for (std::int64_t i = 0; i < count; ++i)  // the first such token, not the largest
      if (const auto id = id_at(ids.data(), static_cast<std::size_t>(i), token_bytes()); id >= vocab) impl_->refuse_id(id, at + i, vocab);
  }
  return sums;
}

void TokenFile::accept(TokenSums all) {
  TESSERA_REQUIRE(static_cast<std::int64_t>(all.blocks.size()) == blocks(), "{}: {} blocks", path(), all.blocks.size());
  if (FileStamp::of(impl_->raw) != impl_->stamp)
    fail(ExitCode::data, "{}: the file changed while it was checked. Start again when it is complete.", path());
  impl_->facts = TokenFacts{.tokens = tokens(),
                            .token_bytes = static_cast<std::int64_t>(token_bytes()),
                            .largest_id = all.largest_id,
                            .largest_at = all.largest_at,
                            .content = all.content(),
                            .documents = impl_->documents,
                            .vocab = impl_->vocab,
                            .counted = masked() ? all.counted : -1,
                            .tokenizer = impl_->tokenizer,
                            .digest = impl_->digest,
                            .end_token = impl_->end_token,
                            .set = impl_->set};
  impl_->sums = std::move(all);
  impl_->sums_of_writer = false;
  impl_->blocks = {};
}

void TokenFile::require_ids_below(std::int64_t vocab) const {
  TESSERA_REQUIRE(impl_->facts, "{}", path());
  if (impl_->facts->largest_id >= vocab) impl_->refuse_id(impl_->facts->largest_id, impl_->facts->largest_at, vocab);
}

void TokenFile::keep() const {
  TESSERA_REQUIRE(impl_->facts, "{}", path());
  KeptChecks{*impl_->facts, impl_->sums}.write(path(), impl_->stamp);
}

void TokenFile::read(std::int64_t begin, std::span<std::int32_t> out, std::int64_t vocab) const {
  const auto count = static_cast<std::int64_t>(out.size());
  TESSERA_REQUIRE(begin >= 0 && begin + count <= tokens(), "{}: [{}, +{}) of {}", path(), begin, count, tokens());
  // The narrow numbers land in the tail of `out` and are widened from the front: each is read before its place is overwritten, and no
  // second buffer is needed.
  const auto width = token_bytes();
  char* narrow = reinterpret_cast<char*>(out.data()) + out.size() * (4 - width);
  impl_->load_compared(begin, narrow, count);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto id = id_at(narrow, i, width);
    if (id >= vocab) impl_->refuse_id(id, begin + static_cast<std::int64_t>(i), vocab);
    out[i] = static_cast<std::int32_t>(id);
  }
}

void TokenFile::drop_uncounted(std::int64_t begin, std::span<float> weights) const {
  if (!masked() || weights.empty()) return;
  auto weight = weights.begin();
  const auto drop = [&](std::span<const std::uint8_t> bits, std::int64_t first, std::int64_t count) {
    for (std::int64_t at = first; at < first + count; ++at, ++weight)
      if (!counts(bits, at)) *weight = 0;
  };
  const auto count = static_cast<std::int64_t>(weights.size());
  if (impl_->facts)
    impl_->for_blocks(begin, count, [&](const Impl::Block& block, std::int64_t first, std::int64_t n) { drop(block.mask, first, n); });
  else
    drop(impl_->load_mask(begin / 8 * 8, begin % 8 + count), begin % 8, count);
}

}  // namespace tessera::io
