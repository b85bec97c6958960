#include "io/safetensors/safetensors_model.hpp"
#include "base/json.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <list>
#include <mutex>
#include <set>

#include "base/printable.hpp"
#include "base/some_of.hpp"
#include "io/checkpoint/finite.hpp"
#include "io/files/page_buffer.hpp"
#include "io/files/path_state.hpp"
#include "io/files/posix_file.hpp"
#include "models/foreign_model.hpp"
#include "models/llmc_model.hpp"
#include "models/mistral_model.hpp"

namespace tessera::io {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t most_index_bytes = 100 << 20;
constexpr std::int64_t window_bytes = 4 << 20;     // one read
constexpr std::int64_t most_gap_bytes = 64 << 10;  // read over rather than read apart
constexpr std::size_t most_open = 16;

template <class T>
void widen_from(const std::byte* from, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    T element;
    std::memcpy(&element, from + sizeof(T) * i, sizeof(T));
    out[i] = static_cast<float>(element);
  }
}

void widen(std::string_view type, const std::byte* from, std::span<float> out) {
  if (type == "F32")
    std::memcpy(out.data(), from, out.size_bytes());
  else if (type == "BF16")
    widen_from<bf16>(from, out);
  else if (type == "U8")
    widen_from<std::uint8_t>(from, out);
  else
    widen_from<f16>(from, out);
}

/// (tensor, file) as the index has them.
std::vector<std::pair<std::string, std::string>> read_index(const std::string& path) {
  std::vector<std::pair<std::string, std::string>> map;
  try {
    const auto index = Json::parse_strict(read_small_file(path, ExitCode::data, most_index_bytes));
    const auto& weights = index.at("weight_map");
    if (!weights.is_object() || weights.empty()) throw std::runtime_error("its weight_map is not an object with tensors");
    for (const auto& [tensor, file] : weights.items()) map.emplace_back(tensor, file.get<std::string>());
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    fail(ExitCode::data, "{}: it cannot be parsed ({}). The file is damaged: get it again.", path, e.what());
  }
  for (const auto& [tensor, file] : map)
    if (printable_name(tensor) != tensor || printable_name(file) != file || file.empty() || file == "." || file == ".." ||
        file.find('/') != file.npos)
      fail(ExitCode::data, "{}: it names tensor {} in '{}', which is not a file of this folder. Get the file again.", path,
           printable_name(tensor), printable_name(file));
  return map;
}

/// A file as it was when its header was read.
struct Shard {
  std::string path;
  PathState state;
  std::int64_t bytes = 0, modified_ns = 0;

  static Shard of(const std::string& path) {
    const auto file = PosixFile::open(path, ExitCode::data);
    return {path, file.state(), file.size(), file.modified_ns()};
  }
  bool is(const PosixFile& file) const { return file.state().same_as(state) && file.size() == bytes && file.modified_ns() == modified_ns; }
};

}  // namespace

struct SafetensorsModel::Impl {
  using Window = PageBuffer;
  std::string folder;
  std::vector<Shard> shards;
  std::vector<Tensor> tensors;
  std::int64_t bytes = 0;
  bool once = false;
  using OpenFile = std::shared_ptr<const PosixFile>;  // a reader's, also once it is at hand no more
  std::mutex lock;                                    // of what follows
  std::list<std::pair<int, OpenFile>> open;           // most recently used first
  std::vector<Window> windows;                        // that no reader has

  void add_shard(const std::string& path) {
    const int number = static_cast<int>(shards.size());
    shards.push_back(Shard::of(path));
    for (SafetensorsTensor& t : read_safetensors_header(path)) {
      bytes += t.end - t.begin;
      tensors.push_back({std::move(t), number});
    }
  }

  void add_llmc(const std::string& path) {
    std::string fault;
    shards.push_back(Shard::of(path));
    const LlmcModel model = read_llmc_model(path, fault);
    if (!fault.empty()) fail(ExitCode::data, "{}: {}", path, fault);
    for (const LlmcModel::Tensor& t : model.tensors()) {
      const std::int64_t size = t.shape.elements() * static_cast<std::int64_t>(size_of(model.dtype));
      bytes += size;
      tensors.push_back({{t.name, std::string(row_of(model.dtype).safetensors), t.shape, t.begin, t.begin + size}, 0});
    }
    sort();
  }

  void sort() {
    std::ranges::stable_sort(tensors, {}, &Tensor::name);
    const auto twice = std::ranges::adjacent_find(tensors, {}, &Tensor::name);
    if (twice != tensors.end())
      fail(ExitCode::data, "{}: tensor {} is in {} and in {}. Get the files again.", folder, twice->name, path_of(*twice),
           path_of(*std::next(twice)));
  }

  const std::string& path_of(const Tensor& t) const { return shards[static_cast<std::size_t>(t.file)].path; }

  OpenFile file_of(const Tensor& t) {
    const std::lock_guard held(lock);
    const auto found = std::ranges::find(open, t.file, &std::pair<int, OpenFile>::first);
    if (found != open.end()) {
      open.splice(open.begin(), open, found);
      return open.front().second;
    }
    if (open.size() == most_open) open.pop_back();
    PosixFile file = PosixFile::open(path_of(t), ExitCode::data);
    if (once && !file.is_cached()) file.use_direct();
    open.emplace_front(t.file, std::make_shared<const PosixFile>(std::move(file)));
    return open.front().second;
  }

  Window take_window() {
    const std::lock_guard held(lock);
    if (windows.empty()) return {};
    Window window = std::move(windows.back());
    windows.pop_back();
    return window;
  }
  void give_back(Window window) {
    const std::lock_guard held(lock);
    windows.push_back(std::move(window));
  }

  void require_unchanged(const Tensor& t, const PosixFile& file) const {
    const Shard& shard = shards[static_cast<std::size_t>(t.file)];
    if (shard.is(file)) return;
    if (file.size() < t.end) fail(ExitCode::data, "{}: the file is truncated inside tensor {}. Get it again.", shard.path, t.name);
    fail(ExitCode::data, "{}: the file was changed while tensor {} was read. Start again when nothing writes there.", shard.path, t.name);
  }

  /// Of a file that is read past the page cache, whole pages around them.
  const std::byte* read_bytes(const Tensor& t, const PosixFile& file, Window& window, std::int64_t at, std::int64_t n) const {
    const std::int64_t before = file.is_direct() ? at % PageBuffer::page : 0;
    const std::int64_t all = file.is_direct() ? round_up(before + n, PageBuffer::page) : n;
    std::byte* to = window.bytes(window_bytes + 2 * PageBuffer::page).data();
    require_read(t, static_cast<std::int64_t>(file.read(at - before, to, static_cast<std::size_t>(all))) >= before + n);
    return to + before;
  }

  void require_read(const Tensor& t, bool whole) const {
    if (!whole) fail(ExitCode::data, "{}: the file is truncated inside tensor {}. Get it again.", path_of(t), t.name);
  }

  /// Runs that are near each other, by one read. Together they lie in a window, unless there is only one.
  void read_runs(const Tensor& t, const PosixFile& file, Window& window, const std::vector<BoxRun>& runs, std::span<float> out) const {
    const std::int64_t size = safetensors_type_bytes(t.type), first = runs.front().from;
    const std::int64_t end = runs.back().from + runs.back().elements, most = window_bytes / size;
    const auto part = [&](std::int64_t to, std::int64_t n) {
      return out.subspan(static_cast<std::size_t>(to), static_cast<std::size_t>(n));
    };
    if (runs.size() == 1 && t.type == "F32" && !file.is_direct()) {  // as it stands there
      const std::span<float> whole = part(runs.front().to, runs.front().elements);
      return require_read(t, file.read(t.begin + first * size, whole.data(), whole.size_bytes()) == whole.size_bytes());
    }
    if (runs.size() > 1 || end - first <= most) {
      const std::byte* bytes = read_bytes(t, file, window, t.begin + first * size, (end - first) * size);
      for (const BoxRun& run : runs) widen(t.type, bytes + (run.from - first) * size, part(run.to, run.elements));
      return;
    }
    for (std::int64_t at = 0, n = 0; at < runs.front().elements; at += n) {
      n = std::min(most, runs.front().elements - at);
      const std::byte* bytes = read_bytes(t, file, window, t.begin + (first + at) * size, n * size);
      widen(t.type, bytes, part(runs.front().to + at, n));
    }
  }

  /// A box of the tensor into `out`, row-major.
  void read_part(const Tensor& t, const PosixFile& file, Window& window, const Box& box, std::span<float> out) const {
    const std::int64_t size = safetensors_type_bytes(t.type);
    std::vector<BoxRun> runs;
    for_each_run(box, whole_box(t.shape), box, [&](const BoxRun& run) {
      const bool apart = !runs.empty() && ((run.from - runs.back().from - runs.back().elements) * size > most_gap_bytes ||
                                           (run.from + run.elements - runs.front().from) * size > window_bytes);
      if (apart) {
        read_runs(t, file, window, runs, out);
        runs.clear();
      }
      runs.push_back(run);
    });
    if (!runs.empty()) read_runs(t, file, window, runs, out);
  }
};

SafetensorsModel::SafetensorsModel(const std::string& folder, const std::string& given_stem) : impl_(std::make_unique<Impl>()) {
  const std::string stem = given_stem == "model" ? stem_of_model(folder) : given_stem;
  const std::string single_name = stem + ".safetensors", index_name = single_name + ".index.json";
  Impl& model = *impl_;
  model.folder = folder;
  if (stem == "model" && is_llmc_model(folder)) {
    model.add_llmc(folder);
    return;
  }
  const std::string single = (fs::path(folder) / single_name).string(), index = (fs::path(folder) / index_name).string();
  const PathState one = look_at(single), many = look_at(index);
  if (one.nothing() && many.nothing()) {
    const std::string foreign = stem == "model" ? foreign_weights(folder) : "";
    fail(ExitCode::data, "{}: it has neither {} nor {}.{}", folder, single_name, index_name,
         foreign.empty() ? " Give the folder of a model as transformers saves it." : foreign);
  }
  if (!one.nothing()) {
    model.add_shard(single);
    model.sort();
    return;
  }
  const auto map = read_index(index);
  std::set<std::string> files;
  for (const auto& [tensor, file] : map) files.insert(file);
  std::vector<std::string> missing, lacking;
  for (const std::string& file : files)
    if (look_at((fs::path(folder) / file).string()).nothing()) missing.push_back(file);
  if (!missing.empty())
    fail(ExitCode::data, "{}: {} of the {} files that {} names are missing: {}. Get them again.", folder, missing.size(), files.size(),
         index_name, some_of(missing));
  for (const std::string& file : files) model.add_shard((fs::path(folder) / file).string());
  model.sort();
  for (const auto& [tensor, file] : map) {
    const Tensor* found = find(tensor);
    if (!found || fs::path(model.path_of(*found)).filename() != file) lacking.push_back(fmt::format("{} in {}", tensor, file));
  }
  if (!lacking.empty())
    fail(ExitCode::data, "{}: it names tensors that are missing: {}. Get the files of one download again.", index, some_of(lacking));
}
SafetensorsModel::~SafetensorsModel() = default;
SafetensorsModel::SafetensorsModel(SafetensorsModel&&) noexcept = default;

void SafetensorsModel::rename(const std::function<std::optional<std::string>(std::string_view)>& name) {
  std::vector<Tensor> kept;
  impl_->bytes = 0;
  for (Tensor& t : impl_->tensors)
    if (std::optional<std::string> other = name(t.name)) {
      t.name = std::move(*other), impl_->bytes += t.end - t.begin;
      kept.push_back(std::move(t));
    }
  impl_->tensors = std::move(kept);
  impl_->sort();
}

void SafetensorsModel::read_once() { impl_->once = true; }

const std::string& SafetensorsModel::folder() const { return impl_->folder; }
const std::vector<SafetensorsModel::Tensor>& SafetensorsModel::tensors() const { return impl_->tensors; }
std::int64_t SafetensorsModel::bytes() const { return impl_->bytes; }
const std::string& SafetensorsModel::path_of(const Tensor& tensor) const { return impl_->path_of(tensor); }

const SafetensorsModel::Tensor* SafetensorsModel::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(impl_->tensors, name, {}, [](const Tensor& t) { return std::string_view(t.name); });
  return found != impl_->tensors.end() && found->name == name ? &*found : nullptr;
}

void SafetensorsModel::read_box(const Tensor& tensor, const Box& box, std::span<float> out, std::int64_t begin) const {
  const auto n = static_cast<std::int64_t>(out.size());
  TESSERA_REQUIRE(lies_in(box, tensor.shape) && begin >= 0 && begin + n <= box.elements(), "{} ({}), box {}: [{}, +{})", tensor.name,
                  tensor.shape.str(), box.str(), begin, n);
  if (tensor.type != "F32" && tensor.type != "BF16" && tensor.type != "F16" && tensor.type != "U8")
    fail(ExitCode::data, "{}: tensor {} is of type {}, but only F32, BF16 and F16 can be read. Convert the model.", impl_->path_of(tensor),
         tensor.name, tensor.type);
  const Impl::OpenFile file = impl_->file_of(tensor);
  Impl::Window window = impl_->take_window();
  for (const Box& part : flat_range_boxes(box.count, begin, begin + n)) {
    const auto elements = static_cast<std::size_t>(part.elements());
    impl_->read_part(tensor, *file, window, outside(part, box), out.first(elements));
    out = out.subspan(elements);
  }
  impl_->give_back(std::move(window));
  impl_->require_unchanged(tensor, *file);
}

void SafetensorsModel::read_finite(const Tensor& tensor, const Box& box, std::span<float> out, std::int64_t begin) const {
  read_box(tensor, box, out, begin);
  if (const std::int64_t bad = first_not_finite(out); bad >= 0)
    fail(ExitCode::data, "{}: tensor {}, element {} of {}, is {}, so the model is useless. Get it again, or find the cause.",
         path_of(tensor), tensor.name, element_around(box, begin + bad, tensor.shape), tensor.shape.str(),
         text_not_finite(out[static_cast<std::size_t>(bad)]));
}

bool has_model(const std::string& folder) {
  const std::string single = (fs::path(folder) / (stem_of_model(folder) + ".safetensors")).string();
  return !look_at(single).nothing() || !look_at(single + ".index.json").nothing();
}

}  // namespace tessera::io
