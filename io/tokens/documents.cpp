#include "io/tokens/documents.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "base/json.hpp"
#include "io/tokens/json_input.hpp"
#include "io/tokens/preference_form.hpp"

namespace tessera::io {
namespace {

constexpr std::size_t request_bytes = 256 << 10;  // of a request: a twentieth of a second of work

/// Whether a character that begins with this byte can be no blank and stands alone. Blanks beyond ASCII begin with 0xc2, 0xe1, 0xe2 and
/// 0xe3.
bool visible(unsigned char lead) { return (lead > ' ' && lead < 0x7f) || (lead >= 0xc3 && lead != 0xe1 && lead != 0xe2 && lead != 0xe3); }

/// The first byte of the character that ends before `end`.
unsigned char lead_before(std::string_view text, std::size_t end) {
  while (end > 0 && (static_cast<unsigned char>(text[end - 1]) & 0xc0) == 0x80) --end;
  return end > 0 ? static_cast<unsigned char>(text[end - 1]) : ' ';
}

}  // namespace

std::size_t last_cut(std::string_view text) {
  for (std::size_t at = text.rfind('\n'); at != text.npos && at > 0; at = text.rfind('\n', at - 1))
    if (at + 1 < text.size() && visible(static_cast<unsigned char>(text[at + 1])) && visible(lead_before(text, at))) return at + 1;
  return 0;
}

void ByteDocuments::begin(const std::string&) {
  if (writer_.total() > 0) writer_.add(TokenWriter::separator);
  writer_.begin_document();
}

void EncodingQueue::add(EncoderPool::Work work, TokenWriter& writer) {
  pending_.push_back({pool_.submit(std::move(work)), &writer});
  while (pending_.size() > 2 * pool_.workers()) write_first();
}

void EncodingQueue::finish() {
  while (!pending_.empty()) write_first();
}

void EncodingQueue::write_first() {
  Pending first = std::move(pending_.front());
  pending_.pop_front();
  const std::vector<Encoded> documents = first.answer.get();
  for (const Encoded& document : documents) {
    if (document.begins) first.writer->begin_document();
    first.writer->add(document.ids, document.counts);
  }
  if (first.writer->set() != TokenSet::documents) add_preferences(documents, *first.writer);
}

void EncodingQueue::add_preferences(const std::vector<Encoded>& documents, TokenWriter& writer) {
  const bool pairs = writer.set() == TokenSet::pairs;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const Encoded& document = documents[i];
    const bool chosen = i % 2 == 0;  // of pairs: an answer has whole ones
    const std::int64_t tokens = std::ranges::count(document.counts, 1);
    if (!pairs) {
      writer.add_label(*document.label);
      ++preferences_.documents, preferences_.desirable += *document.label;
    } else if (chosen) {
      if (document.margin) writer.add_margin(*document.margin);
      ++preferences_.documents, preferences_.chosen_tokens += tokens;
    } else {
      preferences_.rejected_tokens += tokens;
    }
  }
}

void ModelDocuments::begin(const std::string& place) { part_ = {}, part_bytes_ = 0, place_ = place; }

void ModelDocuments::text(std::string_view piece, bool counts) {
  if (part_.pieces.empty() || part_.pieces.back().counts != counts) part_.pieces.push_back({"", counts});
  part_.pieces.back().text += piece;
  part_bytes_ += piece.size();
  if (part_bytes_ >= request_bytes && part_.pieces.size() == 1 && queue_.pool().facts().cuts) cut();
  if (longest_ > 0 && std::cmp_greater(part_bytes_, longest_)) refuse_long(place_, "text, which cannot be tokenized in parts,", longest_);
}

void ModelDocuments::cut() {
  std::string& text = part_.pieces[0].text;
  const bool counts = part_.pieces[0].counts;
  const std::size_t end = last_cut(text);
  if (end == 0) return;
  const std::string_view all(text);
  for (std::size_t at = 0; at < end;) {  // parts of about a batch, for several workers
    std::size_t stop = at + request_bytes < end ? at + last_cut(all.substr(at, request_bytes)) : end;
    if (stop == at) stop = end;
    batch_.push_back({.begins = part_.begins && at == 0, .ends = false, .pieces = {{std::string(all.substr(at, stop - at)), counts}}});
    flush();
    at = stop;
  }
  part_ = {.begins = false, .ends = true, .pieces = {{text.substr(end), counts}}};
  part_bytes_ = part_.pieces[0].text.size();
}

void ModelDocuments::end() {
  batch_bytes_ += part_bytes_;
  batch_.push_back(std::move(part_));
  if (batch_bytes_ >= request_bytes) flush();
}

void ModelDocuments::flush() {
  if (batch_.empty()) return;
  queue_.add([batch = std::move(batch_), masked = masked_](Tokenizer& tokenizer) { return tokenizer.encode(batch, masked); }, writer_);
  batch_.clear(), batch_bytes_ = 0;
}

void ObjectDocuments::end() {
  if (bytes_ >= request_bytes) finish();
}

void ObjectDocuments::finish() {
  if (batch_.empty()) return;
  queue_.add(work_on(std::move(batch_)), writer_);
  batch_.clear(), bytes_ = 0;
}

EncoderPool::Work ChatDocuments::work_on(std::vector<ChatLine> batch) const {
  return [batch = std::move(batch), keys = keys_, &seen = unused_](Tokenizer& tokenizer) {
    std::vector<std::string> unused;
    auto encoded = tokenizer.encode_chats(batch, keys, unused);
    seen.add(unused);
    return encoded;
  };
}

EncoderPool::Work PreferenceDocuments::work_on(std::vector<ChatLine> batch) const {
  return [batch = std::move(batch), keys = keys_, &seen = unused_, &found = found_](Tokenizer& tokenizer) {
    std::vector<std::string> unused;
    PreferenceNotes notes;
    auto encoded = tokenizer.encode_preferences(batch, keys, unused, notes);
    seen.add(unused), found.add(notes);
    return encoded;
  };
}

const std::string& BytePreferences::text_of(const Json& line, const char* key) const {
  const Json* found = line.find(key);
  if (!found || !found->is_string())
    fail(ExitCode::data,
         "{}: \"{}\" is no text, and the byte tokenizer takes texts alone: \"prompt\" with \"chosen\" and \"rejected\", or with "
         "\"completion\" and \"label\". For other forms give --tokenizer DIR.",
         place_, key);
  return found->text();
}

std::int64_t BytePreferences::write(const std::string& prompt, const std::string& completion) {
  std::vector<std::uint32_t> ids;
  for (const std::string* text : {&prompt, &completion})
    for (const unsigned char byte : *text) ids.push_back(byte);
  ids.push_back(TokenWriter::separator);
  const std::size_t begin = std::max<std::size_t>(1, prompt.size());  // the first token is no target
  if (keys_.longest > 0 && std::cmp_greater(ids.size(), keys_.longest))
    ids.resize(static_cast<std::size_t>(keys_.longest)), ++notes_.truncated;
  std::vector<std::uint8_t> counts(ids.size(), 1);
  std::fill_n(counts.begin(), std::min(begin, ids.size()), 0);
  writer_.begin_document();
  writer_.add(ids, counts);
  return std::ssize(ids) - static_cast<std::int64_t>(begin);
}

void BytePreferences::end() {
  const Json line = Json::parse(object_);
  const bool pairs = writer_.set() == TokenSet::pairs;
  const std::string& prompt = text_of(line, "prompt");
  std::vector<std::string> unused;
  for (const Json::Member& member : line.items())
    if (!PreferenceForm::uses(member.key) && member.key != "prompt" && (pairs || member.key != "completion")) unused.push_back(member.key);
  unused_.add(unused);
  const std::string& first = text_of(line, pairs ? "chosen" : "completion");
  const std::string& second = pairs ? text_of(line, "rejected") : first;
  if (keys_.longest > 0 && std::cmp_greater_equal(prompt.size(), keys_.longest)) return void(++notes_.too_long);
  ++counts_.documents;
  counts_.chosen_tokens += write(prompt, first);
  if (pairs) {
    counts_.rejected_tokens += write(prompt, second), notes_.equal += first == second;
    if (writer_.margins()) writer_.add_margin(PreferenceForm::margin_of(place_, line, keys_.ignored));
  } else {
    const bool label = PreferenceForm::label_of(line);
    writer_.add_label(label), counts_.desirable += label;
  }
}

void BytePreferences::finish() { found_.add(std::exchange(notes_, {})); }

}  // namespace tessera::io
