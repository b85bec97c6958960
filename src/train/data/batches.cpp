#include "train/data/batches.hpp"

#include <algorithm>
#include <numeric>

#include "base/check.hpp"
#include "base/log.hpp"
#include "model/axes/ring_turns.hpp"
#include "train/data/documents.hpp"

namespace tessera {
namespace {

/// Of a file whose vocabulary is larger than the model's. The tokenizer of a model may have more tokens than the model, for padding as an
/// example: then what stands in the file counts, which SampleFile::check() looks at where it is not known yet.
void require_rows(const io::TokenFile& file, std::int64_t vocab) {
  const bool of_model = !file.tokenizer_digest().empty();
  if (of_model && (!file.facts() || file.facts()->largest_id < vocab)) return;
  fail(ExitCode::data,
       "{} was tokenized with a vocabulary of {} and model.vocab is {}{}. Set model.vocab={} (or a larger multiple of 64){}.", file.path(),
       file.declared_vocab(), vocab,
       of_model ? fmt::format(": it has token {} at position {}", file.facts()->largest_id, file.facts()->largest_at) : "",
       file.declared_vocab(),
       of_model ? ", so that a model of run.init gets rows for new tokens, or remove that token from the texts" : "");
}

/// What a run cannot take for preferences.
void require_preferences(const io::TokenFile& file, io::TokenSet wanted) {
  if (file.set() == wanted) return;
  const auto named = [](io::TokenSet set) {
    return set == io::TokenSet::pairs ? "preference pairs" : set == io::TokenSet::labels ? "completions with labels" : "texts";
  };
  fail(ExitCode::data, "{} holds {}, but the objective of this run takes {}. Make a file of them: tessera tokenize --preferences.",
       file.path(), named(file.set()), named(wanted));
}

/// Learnt as texts, rejected and undesirable completions would be learnt like the others.
void refuse_preferences(const io::TokenFile& file) {
  if (file.set() == io::TokenSet::documents) return;
  const bool pairs = file.set() == io::TokenSet::pairs;
  fail(ExitCode::data,
       "{} holds {} (its kind is \"{}\"), which this run would learn as texts, {} ones too. {}To learn the {} completions alone, tokenize "
       "each as a \"prompt\" and a \"completion\", without --preferences.",
       file.path(), pairs ? "preference pairs" : "completions with labels", io::name_of(file.set()), pairs ? "rejected" : "undesirable",
       pairs ? "To learn from pairs, set preference.objective=dpo. " : "", pairs ? "chosen" : "desirable");
}

std::int64_t places_of(std::span<const Range> positions) {
  std::int64_t places = 0;
  for (const Range& part : positions) places += part.size();
  return places;
}

/// `starts` of a whole sequence.
void put_starts(std::span<const std::int32_t> starts, std::span<const Range> positions, const MicroBatch& to, std::int64_t row) {
  if (to.document_starts.empty()) return;
  const auto places = to.in_ring ? static_cast<std::size_t>(places_of(positions)) : starts.size();
  const std::span<std::int32_t> here = to.document_starts.subspan(static_cast<std::size_t>(row) * places, places);
  to.in_ring ? ring_document_starts(starts, positions, here) : void(std::ranges::copy(starts, here.begin()));
}

}  // namespace

SampleFile::SampleFile(const std::string& path, std::int64_t sequence_length, std::int64_t vocab, const DataKeys& data, std::int64_t seed,
                       const PreferenceUse& use)
    : file_(path, data.bin_ids), T_(sequence_length), vocab_(vocab) {
  if (file_.declared_vocab() > vocab) require_rows(file_, vocab);
  const bool preferences = use.set != io::TokenSet::documents;
  preferences ? require_preferences(file_, use.set) : refuse_preferences(file_);
  TESSERA_REQUIRE(!preferences || (data.document_mask && data.too_long != TooLong::split), "{}: preferences are masked and never split",
                  path);
  if (data.document_mask) documents_.emplace(file_);
  if (use.set == io::TokenSet::pairs) margins_ = file_.read_margins();
  if (use.set == io::TokenSet::labels) labels_ = file_.read_labels();
  if (data.packing == Packing::documents || preferences)
    packed_.emplace(*documents_, file_,
                    PackingOptions{.places = T_,
                                   .too_long = data.too_long,
                                   .seed = static_cast<std::uint64_t>(seed),
                                   .one_a_row = preferences && data.packing != Packing::documents});
  samples_ = packed_ ? packed_->rows() : (file_.tokens() - 1) / T_;
  if (samples_ < 1)
    fail(ExitCode::data, "{} has {} tokens, fewer than one sample of batch.sequence_length + 1 = {}. Use more text or a shorter sequence.",
         path, file_.tokens(), T_ + 1);
  scratch_.resize(static_cast<std::size_t>(T_ + 1));
}

void SampleFile::check(const World* world) {
  check_tokens(file_, vocab_, world);
  if (world && documents_) world->require_same("documents of " + file_.path(), documents_hash());
  if (packed_ && (!world || world->rank() == 0)) info("{}: {}", file_.path(), packed_->describe());
}

io::CheckpointData SampleFile::record() const {
  const io::TokenFacts& facts = *file_.facts();
  return {.path = path(),
          .digest = facts.content.hex(),
          .tokens = facts.tokens,
          .token_bytes = facts.token_bytes,
          .bytes = file_.bytes(),
          .documents = documents_ ? documents_hash().hex() : ""};
}

Hash128 SampleFile::documents_hash() const {
  if (margins_.empty() && labels_.empty()) return documents_->hash();
  const Hash128 begins = documents_->hash();
  Hasher hasher;
  hasher.update(&begins, sizeof begins);
  hasher.update(margins_.data(), margins_.size() * sizeof(float)), hasher.update(labels_.data(), labels_.size());
  return hasher.digest();
}

bool SampleFile::holds_the_same(const SampleFile& other) const {
  const io::TokenFacts &a = *file_.facts(), &b = *other.file_.facts();
  return a.tokens == b.tokens && a.token_bytes == b.token_bytes && a.content == b.content && a.counted == b.counted &&
         labels_ == other.labels_ && margins_ == other.margins_;
}

void SampleFile::read_preferences(std::int64_t sample, std::span<const float> weights, std::span<std::int32_t> sequences,
                                  const PreferenceInputs& to) const {
  std::size_t at = 0;
  std::int64_t number = to.first;
  for (const PackedDocument& piece : packed_->row(sample)) {
    const std::size_t end = at + static_cast<std::size_t>(piece.places);
    std::int64_t counted = 0;
    for (; at < end; ++at)
      if (weights[at] != 0) sequences[at] = static_cast<std::int32_t>(number), ++counted;
    if (counted == 0)
      fail(ExitCode::data, "{}: no target of document {} counts in the loss, so its completion has no probability. Tokenize again.", path(),
           piece.document);
    if (!to.counts.empty()) to.counts[static_cast<std::size_t>(number)] = static_cast<std::int32_t>(counted);
    const auto n = static_cast<std::size_t>(number++), d = static_cast<std::size_t>(piece.document);
    if (!to.labels.empty()) to.labels[n] = labels_.empty() ? 0 : labels_[d];
    if (!to.margins.empty() && n % 2 == 0) to.margins[n / 2] = margins_.empty() ? 0 : margins_[d / 2];
  }
}

std::int64_t SampleFile::read_packed(std::int64_t sample, std::span<const Range> positions, const MicroBatch& to, std::int64_t row) {
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(T_), 0), targets(inputs.size(), 0), starts(inputs.size());
  std::vector<float> weights(inputs.size(), 0);
  std::vector<std::int32_t> sequences(inputs.size(), -1);
  std::size_t at = 0;
  for (const PackedDocument& piece : packed_->row(sample)) {
    const auto places = static_cast<std::size_t>(piece.places);
    const std::span<std::int32_t> tokens = std::span(scratch_).first(places + 1);
    const std::span<float> counted = std::span(weights).subspan(at, places);
    file_.read(piece.begin, tokens, vocab_);
    std::ranges::copy(tokens.first(places), inputs.begin() + static_cast<std::ptrdiff_t>(at));
    std::ranges::copy(tokens.last(places), targets.begin() + static_cast<std::ptrdiff_t>(at));
    std::ranges::fill(counted, 1.0f);
    file_.drop_uncounted(piece.begin + 1, counted);
    std::fill_n(starts.begin() + static_cast<std::ptrdiff_t>(at), places, static_cast<std::int32_t>(at));
    at += places;
  }
  // A scale of fp8 is of the largest number among all rows. Padding has none that the documents have not: it is their first token, alone.
  std::fill(inputs.begin() + static_cast<std::ptrdiff_t>(at), inputs.end(), inputs.front());
  std::iota(starts.begin() + static_cast<std::ptrdiff_t>(at), starts.end(), static_cast<std::int32_t>(at));
  if (file_.set() != io::TokenSet::documents) read_preferences(sample, weights, sequences, to.preferences);
  const std::span<std::int32_t> numbered = to.preferences.sequences;
  put_starts(starts, positions, to, row);
  std::int64_t place = row * places_of(positions);
  for (const Range& part : positions) {
    if (!to.tokens.empty()) std::copy(inputs.begin() + part.begin, inputs.begin() + part.end, to.tokens.begin() + place);
    if (!to.targets.empty()) std::copy(targets.begin() + part.begin, targets.begin() + part.end, to.targets.begin() + place);
    if (!to.weights.empty()) std::copy(weights.begin() + part.begin, weights.begin() + part.end, to.weights.begin() + place);
    if (!numbered.empty()) std::copy(sequences.begin() + part.begin, sequences.begin() + part.end, numbered.begin() + place);
    for (std::int64_t i = 0; !to.padding.empty() && i < part.size(); ++i)
      to.padding[static_cast<std::size_t>(place + i)] = part.begin + i >= static_cast<std::int64_t>(at) ? 1 : 0;
    place += part.size();
  }
  return T_ - static_cast<std::int64_t>(at);
}

std::int64_t SampleFile::longest(const Sequence& sequence) const {
  if (packed_) return std::ranges::max(packed_->row(sequence.sample), {}, &PackedDocument::places).places;
  const std::int64_t length = T_ / sequence.parts;
  return documents_ ? documents_->longest(sequence.sample * T_ + sequence.part * length, length) : length;
}

std::int64_t SampleFile::read(const Sequence& sequence, std::span<const Range> positions, const MicroBatch& to, std::int64_t row) {
  TESSERA_REQUIRE(T_ % sequence.parts == 0 && (!packed_ || sequence.parts == 1), "a sample of {} tokens cannot be cut into {} parts", T_,
                  sequence.parts);
  if (packed_) return read_packed(sequence.sample, positions, to, row);
  const std::int64_t length = T_ / sequence.parts, first = sequence.sample * T_ + sequence.part * length;
  if (!to.document_starts.empty()) {
    std::vector<std::int32_t> starts(static_cast<std::size_t>(length));
    documents_->find_starts(first, starts);
    put_starts(starts, positions, to, row);
  }
  if (!to.padding.empty()) {
    const auto places = static_cast<std::size_t>(places_of(positions));
    std::ranges::fill(to.padding.subspan(static_cast<std::size_t>(row) * places, places), 0);
  }
  if (to.tokens.empty() && to.targets.empty() && to.weights.empty()) return 0;
  std::int64_t at = row * places_of(positions);
  for (const Range& part : positions) {
    const std::span<std::int32_t> tokens = std::span(scratch_).first(static_cast<std::size_t>(part.size() + 1));
    file_.read(first + part.begin, tokens, vocab_);
    if (!to.tokens.empty()) std::copy(tokens.begin(), tokens.end() - 1, to.tokens.begin() + at);
    if (!to.targets.empty()) std::copy(tokens.begin() + 1, tokens.end(), to.targets.begin() + at);
    if (!to.weights.empty()) {
      const auto weights = to.weights.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(part.size()));
      std::ranges::fill(weights, 1.0f);
      file_.drop_uncounted(first + part.begin + 1, weights);
      if (documents_) documents_->drop_first_tokens(first + part.begin + 1, weights);
    }
    at += part.size();
  }
  return 0;
}

}  // namespace tessera
