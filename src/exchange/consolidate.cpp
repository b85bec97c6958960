#include "exchange/consolidate.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <optional>

#include "base/check.hpp"
#include "base/glob.hpp"
#include "deck/deck.hpp"
#include "exchange/adapter_export.hpp"
#include "exchange/carried_files.hpp"
#include "exchange/elements.hpp"
#include "exchange/export_records.hpp"
#include "exchange/lora_merge.hpp"
#include "exchange/part_values.hpp"
#include "families/write_config.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/finite.hpp"
#include "io/export/hdf5_export.hpp"
#include "io/files/byte_progress.hpp"
#include "io/files/posix_file.hpp"
#include "io/safetensors/safetensors.hpp"
#include "model/table/huggingface.hpp"
#include "model/table/lora.hpp"
#include "model/table/parameters.hpp"
#include "topology/world.hpp"
#include "train/data/run_tokenizer.hpp"

namespace tessera {
namespace fs = std::filesystem;
namespace {

/// Passes a tensor's fp32 values on in chunks.
void stream(const io::CheckpointReader& reader, const std::string& group, const std::string& name, std::int64_t n,
            std::vector<float>& buffer, io::ByteProgress& progress, const std::function<void(std::span<const float>)>& sink) {
  const io::CheckpointTensor* tensor = reader.find(group, name);
  if (!tensor) fail(ExitCode::checkpoint, "{} lacks tensor {}, which its own deck needs", reader.folder(), name);
  for (std::int64_t begin = 0; begin < n; begin += io::hash_block) {
    const std::span<float> chunk(buffer.data(), static_cast<std::size_t>(std::min(io::hash_block, n - begin)));
    reader.read(group, *tensor, begin, chunk);
    if (const std::int64_t bad = io::first_not_finite(chunk); bad >= 0)
      fail(ExitCode::numerics, "{}: {} of {}, element {}, is {}: a model with it would be useless. Use an older checkpoint of the run.",
           reader.folder(), group, name, begin + bad, io::text_not_finite(chunk[static_cast<std::size_t>(bad)]));
    sink(chunk);
    progress.add(static_cast<std::int64_t>(chunk.size_bytes()));
  }
}

void write_text(const std::string& path, const std::string& text) {
  io::AtomicFile out(path);
  out.file().write(0, text.data(), text.size());
  out.commit();
}

/// An export goes into a folder of its own, or over an earlier one of the same files. Beside files of something else nobody could tell what
/// belongs to what, and transformers takes whatever it finds: model.safetensors before an index, for one.
void refuse_other_files(const std::string& folder, const std::vector<std::string>& planned) {
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    const std::string there = entry.path().lexically_relative(folder).string();
    std::string name = there;
    if (name.ends_with(".partial")) name.resize(name.size() - 8);  // of an export that was ended
    if (std::ranges::none_of(planned, [&](const std::string& file) { return file == name || file.starts_with(name + "/"); }))
      fail(ExitCode::usage,
           "{} holds {}, which does not belong to this export. Give a new or an empty folder, or one with an earlier export of the same "
           "files.",
           folder, there);
  }
  if (error && error != std::errc::no_such_file_or_directory)
    fail(ExitCode::environment, "cannot write into {}: {}. Give a folder.", folder, error.message());
}

void make_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) io::fail_storage("make the folder", folder, error.value());
}

struct Source {
  const io::CheckpointReader& reader;
  Deck deck;
  std::vector<Parameter> table;
};

bool wanted(const ConsolidateOptions& o, std::string_view ours, std::string_view theirs) {
  return o.tensors.empty() || std::ranges::any_of(o.tensors, [&](const std::string& pattern) {
           return matches_glob(pattern, ours) || matches_glob(pattern, theirs);
         });
}

/// A part of a tensor asks for all of it.
bool wanted(const ConsolidateOptions& o, const ExportTensor& tensor) {
  return wanted(o, "", tensor.name) || std::ranges::any_of(tensor.parts, [&](const TensorPart& p) { return wanted(o, p.ours, ""); });
}

/// A pattern of nothing is a slip.
void require_patterns(const ConsolidateOptions& o, const Source& source) {
  for (const std::string& pattern : o.tensors)
    if (std::ranges::none_of(source.table,
                             [&](const Parameter& p) { return matches_glob(pattern, p.name) || matches_glob(pattern, p.export_name); }))
      fail(ExitCode::usage, "--tensor '{}' is not a tensor of this model. `tessera inspect {} --brief` lists them.", pattern, o.checkpoint);
}

using Sink = std::function<void(std::span<const float>)>;

/// Passes the values of parts of a tensor of the export on, with their adapters, each in its order.
class ExportParts {
 public:
  ExportParts(const Source& source, std::vector<float>& buffer, io::ByteProgress& progress)
      : source_(source), buffer_(buffer), progress_(progress), merge_(source.reader, source.deck.model.lora) {}

  void stream_part(const TensorPart& part, const Sink& sink) {
    const bool adapted = merge_.adapts(part.ours);
    std::int64_t at = 0;
    stream(source_.reader, "master", part.ours, part.shape.elements(), buffer_, progress_, [&](std::span<const float> values) {
      if (!adapted) return sink(values);
      merged_.assign(values.begin(), values.end());
      merge_.add(part.ours, at, merged_);
      at += std::ssize(values);
      sink(merged_);
    });
  }
  /// Of parts whose values lie in turns or turned, all that theirs has of an expert: memory for one of them.
  void stream_slabs(const ExportTensor& tensor, const Sink& sink) {
    const bool of_experts = tensor.parts.front().box.start.size() > tensor.parts.front().shape.dims.size();
    std::vector<float> slab(static_cast<std::size_t>(tensor.shape.elements() / (of_experts ? tensor.shape.dims.front() : 1)));
    for (std::size_t i = 0; i < tensor.parts.size();) {
      const std::int64_t expert = tensor.parts[i].box.start.front();
      for (; i < tensor.parts.size() && (!of_experts || tensor.parts[i].box.start.front() == expert); ++i) {
        std::int64_t at = 0;
        stream_part(tensor.parts[i], [&](std::span<const float> values) {
          put_part(tensor.parts[i], tensor.shape.dims.back(), at, values, slab);
          at += std::ssize(values);
        });
      }
      sink(slab);
    }
  }

 private:
  const Source& source_;
  std::vector<float>& buffer_;
  io::ByteProgress& progress_;
  LoraMerge merge_;
  std::vector<float> merged_;
};

/// Passes the values of a tensor of the export on: those of ours, or its one value.
void stream_export(const Source& source, const ExportTensor& tensor, std::vector<float>& buffer, io::ByteProgress& progress,
                   const Sink& sink) {
  ExportParts parts(source, buffer, progress);
  if (std::ranges::any_of(tensor.parts, [](const TensorPart& part) { return !part.in_order(); })) return parts.stream_slabs(tensor, sink);
  for (const TensorPart& part : tensor.parts) parts.stream_part(part, sink);
  if (!tensor.parts.empty()) return;
  for (std::int64_t left = tensor.shape.elements(); left > 0;) {
    const std::span<float> chunk(buffer.data(), static_cast<std::size_t>(std::min(io::hash_block, left)));
    std::ranges::fill(chunk, tensor.value);
    sink(chunk);
    left -= static_cast<std::int64_t>(chunk.size());
  }
}

/// What stands beside the weights of a whole model: its configuration, and what its run has kept of the model that it began with.
class ModelFiles {
 public:
  explicit ModelFiles(const ConsolidateOptions& o) : kept_(kept_folder(o.checkpoint)), carried_(carried_files(kept_)) {}

  std::vector<std::string> names() const {
    std::vector<std::string> all{"config.json"};
    all.insert(all.end(), carried_.begin(), carried_.end());
    if (!carries_generation_config()) all.emplace_back("generation_config.json");
    return all;
  }
  void write(const Deck& deck, const ConsolidateOptions& o) const {
    const std::optional<TokenIds> ids = carried_ids(kept_);
    write_text(o.output + "/config.json", huggingface_config(deck, o.dtype, ids));
    if (!carries_generation_config()) write_text(o.output + "/generation_config.json", huggingface_generation_config(deck, ids));
    copy_files(kept_, o.output, carried_);
  }

 private:
  bool carries_generation_config() const { return std::ranges::find(carried_, "generation_config.json") != carried_.end(); }
  std::string kept_;
  std::vector<std::string> carried_;
};

/// The process alone, or a rank of several.
struct Ranks {
  const World* world = nullptr;
  int rank = 0, count = 1;

  explicit Ranks(const World* w) : world(w) {
    if (world) rank = world->rank(), count = world->ranks();
  }
  void together(const std::function<void()>& part) const { world ? world->together(part) : part(); }
  /// By rank 0, before any rank goes on.
  void first(const std::function<void()>& part) const {
    together([&] {
      if (rank == 0) part();
    });
  }
  std::int64_t sum(std::int64_t mine) const { return world ? world->sum(mine) : mine; }
  /// What rank 0 finds.
  bool agree(bool mine) const { return sum(rank == 0 && mine ? 1 : 0) > 0; }
};

/// Runs `part` of all ranks together, and `undo` where it fails because the checkpoint was removed under it.
void unless_gone(const io::CheckpointReader& reader, const Ranks& ranks, const std::function<void()>& part,
                 const std::function<void()>& undo) {
  try {
    ranks.together(part);
  } catch (const Error&) {
    if (ranks.agree(reader.gone())) undo();
    throw;
  }
}

/// A file of the export and its tensors, in the order of its entries.
struct WeightFile {
  io::SafetensorsFile file;
  std::span<const ExportTensor> tensors;
};

/// In which it is written.
DType type_of(const ExportTensor& tensor, const ConsolidateOptions& o) { return tensor.fp32 ? DType::f32 : o.dtype; }

Hash128 write_weights(const WeightFile& weights, const Source& source, const ConsolidateOptions& o, std::vector<float>& buffer,
                      io::ByteProgress& progress) {
  std::vector<std::byte> narrow;
  io::SafetensorsWriter writer(o.output + "/" + weights.file.name, weights.file.entries);
  for (const ExportTensor& tensor : weights.tensors)
    stream_export(source, tensor, buffer, progress,
                  [&](std::span<const float> values) { writer.append(elements_of(values, type_of(tensor, o), narrow)); });
  return writer.finish();
}

/// Which files of which checkpoint an export is.
Hash128 identity_of(const Source& source, const ConsolidateOptions& o, const std::vector<io::SafetensorsFile>& files) {
  std::string text = fmt::format("{}\n{}\n", source.reader.digest(), name_of(o.dtype));
  for (const auto& file : files)
    for (const auto& entry : file.entries) text += fmt::format("{} {} {}\n", file.name, entry.name, entry.shape.str());
  return hash_text(text);
}

/// This rank's files, each of which is left as it is where an earlier start has finished it; how many those are.
std::int64_t write_files(const std::vector<WeightFile>& files, const ExportRecords& records, const Ranks& ranks, const Source& source,
                         const ConsolidateOptions& o, std::vector<float>& buffer, io::ByteProgress& progress) {
  std::int64_t kept = 0;
  for (std::size_t i = static_cast<std::size_t>(ranks.rank); i < files.size(); i += static_cast<std::size_t>(ranks.count)) {
    const std::string& name = files[i].file.name;
    if (records.stands(name, io::safetensors_bytes(files[i].file)))
      ++kept;
    else
      records.finished(name, write_weights(files[i], source, o, buffer, progress));
  }
  return kept;
}

/// A folder whose weights are being replaced is no model: what leads to them goes first.
void remove_index(const std::string& folder) {
  const std::string index = folder + "/model.safetensors.index.json";
  if (::unlink(index.c_str()) != 0 && errno != ENOENT) io::fail_storage("remove", index, errno);
}

ConsolidateResult to_safetensors(const Source& source, const ConsolidateOptions& o, const Ranks& ranks, std::vector<float>& buffer) {
  std::vector<ExportTensor> tensors = huggingface_tensors(source.deck, source.table);
  std::erase_if(tensors, [&](const ExportTensor& t) { return !wanted(o, t); });
  std::vector<io::SafetensorsEntry> entries;
  for (const ExportTensor& t : tensors) entries.push_back({t.name, type_of(t, o), t.shape});
  const auto files = io::plan_safetensors(entries, o.max_file_bytes);
  const bool whole = o.tensors.empty();  // a part is no model that anything loads
  const ModelFiles beside(o);
  ConsolidateResult result;
  std::vector<WeightFile> weights;
  for (std::span<const ExportTensor> left = tensors; const auto& file : files) {
    weights.push_back({file, left.first(file.entries.size())});
    left = left.subspan(file.entries.size());
    result.files.push_back(file.name);
  }
  const std::vector<std::string> names = result.files;
  if (files.size() > 1) result.files.push_back("model.safetensors.index.json");
  if (whole) std::ranges::copy(beside.names(), std::back_inserter(result.files));
  const ExportRecords records(o.output, identity_of(source, o, files),
                              fmt::format("{} ({} files of {})", source.reader.folder(), files.size(), name_of(o.dtype)));
  ranks.first([&] {
    records.require_none_of_another();
    std::vector<std::string> planned = result.files;
    for (const std::string& name : names) planned.push_back(ExportRecords::name(name));
    refuse_other_files(o.output, planned);
    make_folder(o.output);
    if (files.size() > 1) remove_index(o.output);
  });
  std::int64_t elements = 0, kept = 0;
  for (const ExportTensor& t : tensors) elements += t.shape.elements();
  io::ByteProgress progress("consolidate", 4 * elements / ranks.count, o.progress && ranks.rank == 0);
  unless_gone(
      source.reader, ranks, [&] { kept = write_files(weights, records, ranks, source, o, buffer, progress); },
      [&] { ranks.first([&] { records.remove(names); }); });
  ranks.first([&] {
    if (files.size() > 1) write_text(o.output + "/model.safetensors.index.json", io::safetensors_index(files));
    if (whole) beside.write(source.deck, o);
    records.remove(names);
  });
  result.kept = ranks.sum(kept);
  for (const ExportTensor& t : tensors) result.bytes += t.shape.elements() * static_cast<std::int64_t>(size_of(type_of(t, o)));
  result.tensors = static_cast<std::int64_t>(tensors.size());
  return result;
}

ConsolidateResult to_adapter(const Source& source, const ConsolidateOptions& o, const Ranks& ranks) {
  ConsolidateResult result{.files = adapter_files()};
  ranks.first([&] {
    require_adapter(source.reader, source.deck, source.table, kept_folder(o.checkpoint));
    refuse_other_files(o.output, result.files);
    make_folder(o.output);
    result.bytes = export_adapter(source.reader, source.deck, source.table, o.output, o.dtype);
  });
  result.tensors = std::ranges::count_if(source.table, is_saved_with_adapter);
  return result;
}

/// Options that contradict each other or the checkpoint.
void require_possible(const ConsolidateOptions& o, const io::CheckpointReader& reader, const Ranks& ranks) {
  const bool hdf5 = o.format == "hdf5";
  if (o.adapter && (hdf5 || !o.tensors.empty()))
    fail(ExitCode::usage, "--adapter writes the whole adapter as PEFT reads it: leave --format and --tensor out");
  if (hdf5 && ranks.count > 1)
    fail(ExitCode::usage, "--format hdf5 is one file, which one process writes: start it without mpiexec, or use --format safetensors");
  if (hdf5 && o.dtype != DType::f32) fail(ExitCode::usage, "HDF5 has no {}: use --dtype fp32, or --format safetensors", name_of(o.dtype));
  if (o.optimizer && !hdf5) fail(ExitCode::usage, "--optimizer needs --format hdf5: transformers' files cannot store moments");
  if (o.optimizer && reader.layout().groups.size() < 2)
    fail(ExitCode::usage, "{} holds only weights, as `tessera import` makes it: there are no moments to write", reader.folder());
}

ConsolidateResult to_hdf5(const Source& source, const ConsolidateOptions& o, std::vector<float>& buffer) {
  std::vector<std::pair<std::string, const Parameter*>> rows;  // group and tensor
  std::vector<io::Hdf5ExportEntry> entries;
  ConsolidateResult result{.files = {"model.h5"}};
  for (const std::string& group : source.reader.layout().groups) {
    if (group != "master" && !o.optimizer) continue;
    for (const Parameter& p : source.table) {
      const io::CheckpointTensor* tensor = source.reader.find(group, p.name);
      if (!wanted(o, p.name, p.export_name) || !tensor) continue;
      rows.emplace_back(group, &p);
      entries.push_back({.name = p.name, .shape = tensor->shape, .group = group == "master" ? "" : group});
      result.bytes += 4 * tensor->shape.elements(), ++result.tensors;
    }
  }
  refuse_other_files(o.output, result.files);
  make_folder(o.output);
  io::ByteProgress progress("consolidate", result.bytes, o.progress);
  io::Hdf5ExportWriter writer(o.output + "/model.h5", entries, source.reader.meta().deck);
  for (const auto& [group, p] : rows)
    stream(source.reader, group, p->name, source.reader.find(group, p->name)->shape.elements(), buffer, progress,
           [&](std::span<const float> values) { writer.append(values); });
  writer.finish();
  return result;
}

ConsolidateResult consolidate_from(std::optional<io::CheckpointReader>& reader, const ConsolidateOptions& o, const Ranks& ranks) {
  std::optional<Source> opened;
  ranks.together([&] {
    if (o.output.empty()) fail(ExitCode::usage, "OUT is empty: give the folder to write");
    reader.emplace(o.checkpoint);
    Deck deck = require_deck(parse_stored_deck(reader->meta().deck, reader->folder() + "/checkpoint.h5:deck"));
    opened.emplace(*reader, deck, parameter_table(deck.model));
    require_patterns(o, *opened);
    require_possible(o, *reader, ranks);
  });
  const Source& source = *opened;
  if (o.adapter) return to_adapter(source, o, ranks);
  std::vector<float> buffer(static_cast<std::size_t>(io::hash_block));
  return o.format == "hdf5" ? to_hdf5(source, o, buffer) : to_safetensors(source, o, ranks, buffer);
}

/// Whether all ranks begin again, with what the path leads to now.
bool goes_on(const std::optional<io::CheckpointReader>& reader, const ConsolidateOptions& o, const Ranks& ranks, const Error& error) {
  return ranks.agree(reader && reader->gone() && io::goes_on_with_next({error.code, error.what()}, o.checkpoint));
}

}  // namespace

ConsolidateResult consolidate(const ConsolidateOptions& o, const World* world) {
  const Ranks ranks(world);
  for (int tries = 1;; ++tries) {
    std::optional<io::CheckpointReader> reader;
    try {
      return consolidate_from(reader, o, ranks);
    } catch (const AgreedError& error) {
      if (tries == io::most_checkpoints_tried || !goes_on(reader, o, ranks, error)) throw;
    } catch (const io::CheckpointGone& gone) {  // of several ranks this one alone knows it
      if (world || tries == io::most_checkpoints_tried || !goes_on(reader, o, ranks, gone)) throw;
    }
  }
}

}  // namespace tessera
