#include "io/tokens/preference_form.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "base/check.hpp"

namespace tessera::io {
namespace {

using FieldKind = JsonField::Kind;

enum Place : std::uint8_t { chosen, rejected, label, kto_tag, margin, score_chosen, score_rejected };
constexpr std::string_view names[] = {"chosen", "rejected", "label", "kto_tag", "margin", "score_chosen", "score_rejected"};

bool stands(const JsonField& field) { return field.kind != FieldKind::missing && field.kind != FieldKind::null; }

[[noreturn]] void refuse(const std::string& place, const JsonField& field, const std::string& why) {
  fail(ExitCode::data, "{}:{} \"{}\" {}.", place, field.byte > 0 ? fmt::format(" byte {}:", field.byte) : "", field.key, why);
}

void require_kind(const std::string& place, const JsonField& field, std::initializer_list<FieldKind> kinds, const char* wanted) {
  if (std::ranges::find(kinds, field.kind) == kinds.end()) refuse(place, field, fmt::format("must be {}", wanted));
}

/// A pair that lacks one of both.
void require_both(const std::string& place, const JsonField& there, const JsonField& missing) {
  if (stands(missing)) return;
  refuse(place, there, fmt::format("stands without \"{}\", but a pair needs both. Add the other one, or remove the line", missing.key));
}

}  // namespace

std::vector<JsonField> PreferenceForm::fields() {
  std::vector<JsonField> fields;
  for (const std::string_view name : names) fields.push_back({.key = std::string(name)});
  return fields;
}

float PreferenceForm::margin_of(const std::string& place, const Json& object, const std::vector<std::string>& ignored) {
  const auto said = [&](Place which) -> const Json* {
    const Json* found = object.find(names[which]);
    return found && !found->is_null() && std::ranges::find(ignored, names[which]) == ignored.end() ? found : nullptr;
  };
  const Json* whole = said(margin);
  const double value = whole ? whole->get<double>() : said(score_chosen)->get<double>() - said(score_rejected)->get<double>();
  if (!(std::abs(value) <= std::numeric_limits<float>::max()))
    fail(ExitCode::data,
         "{}: its margin is not a finite number of 32 bits. Correct it, or leave margins out: --ignore margin,score_chosen,score_rejected.",
         place);
  return static_cast<float>(value);
}

bool PreferenceForm::label_of(const Json& object) {
  const Json* found = object.find(names[label]);
  return (found && !found->is_null() ? found : &object.at(names[kto_tag]))->get<bool>();
}

bool PreferenceForm::uses(std::string_view key) { return std::ranges::find(names, key) != std::end(names); }

bool PreferenceForm::ignores(const std::string& key) const { return std::ranges::find(ignored_, key) != ignored_.end(); }

bool PreferenceForm::has_margin(const std::string& place, std::span<const JsonField> fields) const {
  const auto says = [&](Place which) {
    const JsonField& field = fields[which];
    if (!stands(field) || ignores(field.key)) return false;
    require_kind(place, field, {FieldKind::number}, "a number");
    return true;
  };
  const bool of_chosen = says(score_chosen), of_rejected = says(score_rejected);
  return says(margin) || (of_chosen && of_rejected);
}

void PreferenceForm::take_set(const std::string& place, TokenSet set) {
  const auto what = [](TokenSet of) { return of == TokenSet::pairs ? "a pair" : "a completion with a label"; };
  if (set_ != TokenSet::documents && set_ != set)
    fail(ExitCode::data, "{}: this is {}, but {} is {}. A token file holds one kind: tokenize them into two folders.", place, what(set),
         first_, what(set_));
  if (set_ == TokenSet::documents) set_ = set, first_ = place;
}

void PreferenceForm::take(const std::string& place, std::span<const JsonField> fields) {
  const bool tagged = stands(fields[label]) || stands(fields[kto_tag]);
  if (stands(fields[chosen]) || stands(fields[rejected])) {
    require_both(place, fields[stands(fields[chosen]) ? chosen : rejected], fields[stands(fields[chosen]) ? rejected : chosen]);
    if (tagged)
      refuse(place, fields[stands(fields[label]) ? label : kto_tag],
             "stands beside \"chosen\" and \"rejected\", but an object is a pair or has a label. Leave one of them out");
    for (const Place which : {chosen, rejected})
      require_kind(place, fields[which], {FieldKind::text, FieldKind::list, FieldKind::object}, "a text, a message, or a list of messages");
    const bool first = set_ == TokenSet::documents, has = has_margin(place, fields);
    take_set(place, TokenSet::pairs);
    if (first) margins_ = has;
    if (has != margins_)
      fail(ExitCode::data,
           "{}: the pair has {} margin, but {} has {}. Give all pairs one, or leave margins out: --ignore "
           "margin,score_chosen,score_rejected.",
           place, has ? "a" : "no", first_, margins_ ? "one" : "none");
    return;
  }
  if (!tagged)
    fail(ExitCode::data,
         "{}: the object is no preference: it has neither \"chosen\" and \"rejected\", nor \"label\" or \"kto_tag\". Without --preferences "
         "documents are learnt as they stand.",
         place);
  if (stands(fields[label]) && stands(fields[kto_tag])) refuse(place, fields[kto_tag], "stands beside \"label\". Leave one of them out");
  require_kind(place, fields[stands(fields[label]) ? label : kto_tag], {FieldKind::boolean}, "true (a desirable completion) or false");
  take_set(place, TokenSet::labels);
}

}  // namespace tessera::io
