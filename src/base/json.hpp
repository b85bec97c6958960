// JSON: a value, its text and back. The library that knows the format's words stands behind json.cpp, where alone it is compiled.
#pragma once
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera {

/// What cannot be read as JSON, or is of another kind than it is taken for. The message says what, and for texts where.
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What becomes of bytes that are no UTF-8 where a text is written.
enum class BadText : std::uint8_t { refuse, replace };

/// null, true or false, a number, a text, a list, or an object whose members stay in their order.
class Json {
 public:
  struct Member;

  Json() = default;
  Json(std::nullptr_t) {}
  template <class T>
  requires std::same_as<T, bool> Json(T value) : kind_(Kind::boolean) { of_.boolean = value; }
  template <std::integral T>
  requires(!std::same_as<T, bool> && !std::same_as<T, char>) Json(T value)
      : kind_(std::unsigned_integral<T> ? Kind::natural : Kind::integer) {
    if constexpr (std::unsigned_integral<T>)
      of_.natural = value;
    else
      of_.integer = value;
  }
  template <std::floating_point T>
  Json(T value) : kind_(Kind::real) {
    of_.real = value;
  }
  Json(std::string text);
  Json(std::string_view text) : Json(std::string(text)) {}
  Json(const char* text) : Json(std::string(text)) {}
  /// Pairs of a text and a value make an object, everything else a list.
  Json(std::initializer_list<Json> values);
  template <class R>
  requires requires(const R& r) {
    typename R::value_type;
    r.begin() != r.end();
  } &&(!std::convertible_to<const R&, std::string_view>)Json(const R& values) {
    become_list();
    for (const auto& value : values) push_back(static_cast<typename R::value_type>(value));
  }
  static Json array(std::initializer_list<Json> values = {});
  static Json object();
  Json(const Json& other);
  Json(Json&& other) noexcept : kind_(other.kind_), of_(other.of_) { other.kind_ = Kind::null; }
  Json& operator=(Json other) noexcept {
    std::swap(kind_, other.kind_), std::swap(of_, other.of_);
    return *this;
  }
  ~Json() {
    if (kind_ >= Kind::text) destroy();
  }

  bool is_null() const { return kind_ == Kind::null; }
  bool is_boolean() const { return kind_ == Kind::boolean; }
  bool is_number() const { return is_number_integer() || kind_ == Kind::real; }
  bool is_number_integer() const { return kind_ == Kind::integer || kind_ == Kind::natural; }
  bool is_string() const { return kind_ == Kind::text; }
  bool is_array() const { return kind_ == Kind::list; }
  bool is_object() const { return kind_ == Kind::object; }

  /// Of a list or an object; null has none.
  std::size_t size() const;
  bool empty() const { return size() == 0; }

  // Lists. Null counts as an empty one; what is no list throws JsonError.
  const Json* begin() const { return elements().data(); }
  const Json* end() const { return begin() + elements().size(); }
  Json* begin() { return elements().data(); }
  Json* end() { return begin() + elements().size(); }
  const Json& operator[](std::size_t index) const { return at(index); }
  Json& operator[](std::size_t index) { return const_cast<Json&>(std::as_const(*this).at(index)); }
  const Json& at(std::size_t index) const;
  const Json& back() const { return at(size() - 1); }
  Json& back() { return (*this)[size() - 1]; }
  /// Null becomes a list.
  void push_back(Json value);

  // Objects. Null counts as an empty one; what is no object throws JsonError.
  const std::vector<Member>& items() const;
  bool contains(std::string_view key) const { return is_object() && find(key) != nullptr; }
  /// nullptr where there is no such key.
  const Json* find(std::string_view key) const;
  const Json& at(std::string_view key) const;
  const Json& operator[](std::string_view key) const { return at(key); }
  /// Null becomes an object; a key that is not there joins it with null.
  Json& operator[](std::string_view key);
  /// Where the names lead, which the separator parts: "model/layers" is ["model"]["layers"].
  Json& nested(std::string_view path, char separator = '/');
  void erase(std::string_view key);
  /// Takes over the members of another object.
  void update(const Json& object);
  /// The value of a key, or `otherwise` where there is none.
  template <class T>
  T value(std::string_view key, T otherwise) const {
    const Json* found = find(key);
    return found ? found->get<T>() : std::move(otherwise);
  }
  std::string value(std::string_view key, const char* otherwise) const { return value(key, std::string(otherwise)); }

  /// The value as bool, a number, std::string, or std::vector of such. What is of another kind throws JsonError, and so does a number that
  /// T cannot hold.
  template <class T>
  T get() const {
    if constexpr (std::same_as<T, Json>)
      return *this;
    else if constexpr (std::same_as<T, bool>)
      return boolean();
    else if constexpr (std::floating_point<T>)
      return static_cast<T>(real());
    else if constexpr (std::signed_integral<T>)
      return static_cast<T>(integer(std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
    else if constexpr (std::unsigned_integral<T>)
      return static_cast<T>(natural(std::numeric_limits<T>::max()));
    else if constexpr (std::same_as<T, std::string>)
      return text();
    else {
      T all;
      for (const Json& one : list()) all.push_back(one.get<typename T::value_type>());
      return all;
    }
  }
  template <class T>
  void get_to(T& value) const {
    value = get<T>();
  }
  template <class T>
  requires(std::integral<T> && !std::same_as<T, char>) || std::floating_point<T> || std::same_as<T, std::string> || requires {
    requires std::same_as<T, std::vector<typename T::value_type>>;
  }
  operator T() const { return get<T>(); }
  const std::string& text() const;

  /// Numbers are equal by value, objects whatever the order of their members.
  friend bool operator==(const Json& a, const Json& b) { return equal(a, b); }
  template <class T>
  requires(!std::same_as<T, Json> && std::constructible_from<Json, const T&>) friend bool operator==(const Json& a, const T& b) {
    return equal(a, Json(b));
  }

  /// Of numbers; anything else has no order.
  friend std::partial_ordering operator<=>(const Json& a, const Json& b) { return order(a, b); }
  template <class T>
  requires(!std::same_as<T, Json> && std::constructible_from<Json, const T&>) friend std::partial_ordering operator<=>(const Json& a,
                                                                                                                       const T& b) {
    return order(a, Json(b));
  }

  /// `indent`: spaces a level; -1: all on one line.
  std::string dump(int indent = -1, BadText bad = BadText::refuse) const;

  /// Throws JsonError. Of a key that stands twice in an object the last value counts.
  static Json parse(std::string_view text);
  /// A key that stands twice in an object is an error: others may take the first value.
  static Json parse_strict(std::string_view text);
  /// nullopt where the text is no JSON.
  static std::optional<Json> try_parse(std::string_view text);

 private:
  enum class Kind : std::uint8_t { null, boolean, integer, natural, real, text, list, object };
  union Of {
    bool boolean;
    std::int64_t integer;
    std::uint64_t natural;
    double real;
    std::string* text;
    std::vector<Json>* list;
    std::vector<Member>* object;
  };
  static bool equal(const Json& a, const Json& b);
  static std::partial_ordering order(const Json& a, const Json& b);
  [[noreturn]] void refuse(const char* wanted) const;
  const char* kind_name() const;
  void destroy();
  void become_list();
  bool boolean() const;
  double real() const;
  std::int64_t integer(std::int64_t least, std::int64_t most) const;
  std::uint64_t natural(std::uint64_t most) const;
  const std::vector<Json>& list() const;      ///< no null
  const std::vector<Json>& elements() const;  ///< of null none
  std::vector<Json>& elements();
  void write(std::string& to, int indent, int depth, BadText bad) const;
  friend class JsonTree;

  Kind kind_ = Kind::null;
  Of of_ = {};
};

struct Json::Member {
  std::string key;
  Json value;
};

std::ostream& operator<<(std::ostream& out, const Json& json);

/// Hears what a text holds, value by value, so that nothing is kept that nobody asks for. False ends the reading.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual bool null() = 0;
  virtual bool boolean(bool value) = 0;
  virtual bool integer(std::int64_t value) = 0;
  /// One that no int64 holds.
  virtual bool natural(std::uint64_t value) = 0;
  virtual bool real(double value) = 0;
  /// It may be taken: nobody reads it afterwards.
  virtual bool text(std::string& value) = 0;
  virtual bool key(std::string& name) = 0;
  virtual bool begin_object() = 0;
  virtual bool end_object() = 0;
  virtual bool begin_list() = 0;
  virtual bool end_list() = 0;
  /// The text is broken at this byte, from 1; where it can be read but not be held (`syntax` is false), the reason alone says why.
  virtual bool fault(std::size_t byte, const std::string& reason, bool syntax) = 0;
};

/// Whether the text was read to its end. `taken`: where the reader is, for those who want to know a value's place.
bool read_json_events(std::string_view text, JsonEvents& events, const char** taken = nullptr);

}  // namespace tessera
