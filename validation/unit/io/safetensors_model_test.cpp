// A model's folder: any box of any tensor, one file or several, and every way in which such a folder can be wrong.
#include "io/safetensors/safetensors_model.hpp"
#include "base/printable.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <future>
#include <map>
#include <random>

#include "../scratch.hpp"
#include "io/safetensors/safetensors.hpp"

namespace tessera::io::test::safetensors_model_test {
using namespace tessera::test;
namespace {

/// A file with this header and so many bytes of data.
void spill_header(const std::string& path, const std::string& json, const std::string& data) {
  std::string text(8, '\0');
  for (int i = 0; i < 8; ++i) text[static_cast<std::size_t>(i)] = static_cast<char>(json.size() >> (8 * i));
  spill(path, text + json + data);
}

float value(std::int64_t i) { return static_cast<float>(std::sin(0.7 * static_cast<double>(i))); }

/// Tensors of fp32 and bf16, in as many files as `most` bytes make.
void write_model(const std::string& folder, std::int64_t most) {
  fs::create_directories(folder);
  const std::vector<SafetensorsEntry> entries = {{"a", DType::f32, {37, 29}},
                                                 {"b", DType::bf16, {5, 7, 11}},
                                                 {"c", DType::f32, {1300, 1200}},
                                                 {"d", DType::bf16, {13}},
                                                 {"e", DType::f32, Shape()}};
  const auto files = plan_safetensors(entries, most);
  for (const auto& file : files) {
    SafetensorsWriter writer(folder + "/" + file.name, file.entries);
    for (const auto& entry : file.entries)
      for (std::int64_t i = 0; i < entry.shape.elements(); ++i) {
        const float f = value(i);
        const bf16 narrow(f);
        writer.append(entry.dtype == DType::f32 ? std::as_bytes(std::span(&f, 1)) : std::as_bytes(std::span(&narrow, 1)));
      }
    writer.finish();
  }
  if (files.size() > 1) spill(folder + "/model.safetensors.index.json", safetensors_index(files));
}

/// Takes what was written out of the page cache, where the file system has one of its own.
void forget(const std::string& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    ::fsync(file);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

std::string refused(const std::string& folder) {
  return error_of(ExitCode::data, [&] { SafetensorsModel model(folder); });
}

TEST(SafetensorsModel, AnyPartOfAnyBoxIsWhatTheFileHas) {
  for (const int way : {0, 1, 2, 3}) {
    const bool once = way >= 2;
    const Scratch dir;
    write_model(dir / "m", way % 2 == 0 ? std::int64_t{1} << 40 : std::int64_t{4000});
    SafetensorsModel model(dir / "m");
    if (once) model.read_once(), forget(dir / "m");
    EXPECT_EQ(model.tensors().size(), 5u);
    EXPECT_EQ(model.bytes(), 4 * (37 * 29 + 1300 * 1200 + 1) + 2 * (5 * 7 * 11 + 13));
    EXPECT_EQ(model.find("f"), nullptr);
    std::mt19937 engine(3);
    const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(n)); };
    for (const SafetensorsModel::Tensor& t : model.tensors())
      for (int trial = 0; trial < 40; ++trial) {
        Box box;
        for (const std::int64_t dim : t.shape.dims) {
          box.start.push_back(below(dim));
          box.count.push_back(1 + below(dim - box.start.back()));
        }
        const std::int64_t begin = trial % 3 ? 0 : below(box.elements()), n = 1 + below(box.elements() - begin);
        std::vector<float> got(static_cast<std::size_t>(n), -9.0f);
        model.read_box(t, box, got, begin);
        for (std::int64_t i = 0; i < n; ++i) {
          std::int64_t left = begin + i, at = 0, stride = 1;  // the element of the box in the tensor
          for (std::size_t d = t.shape.dims.size(); d-- > 0;) {
            at += (box.start[d] + left % box.count[d]) * stride;
            left /= box.count[d], stride *= t.shape.dims[d];
          }
          const float want = t.type == "F32" ? value(at) : static_cast<float>(bf16(value(at)));
          ASSERT_EQ(got[static_cast<std::size_t>(i)], want) << t.name << " " << box.str() << " element " << begin + i;
        }
      }
  }
}

/// Readers of an import are several, in files of which only some stay open.
TEST(SafetensorsModel, SeveralThreadsRead) {
  const Scratch dir;
  write_model(dir / "m", 4000);
  SafetensorsModel model(dir / "m");
  model.read_once(), forget(dir / "m");
  std::vector<std::future<std::int64_t>> readers;
  for (std::int64_t reader = 0; reader < 4; ++reader)
    readers.push_back(std::async(std::launch::async, [&, reader] {
      std::int64_t wrong = 0;
      for (std::int64_t turn = reader; turn < 200; ++turn) {
        const SafetensorsModel::Tensor& t = model.tensors()[static_cast<std::size_t>(turn) % model.tensors().size()];
        const std::int64_t n = std::min<std::int64_t>(t.shape.elements(), 30000), begin = (turn * 7919) % (t.shape.elements() - n + 1);
        std::vector<float> out(static_cast<std::size_t>(n));
        model.read_box(t, whole_box(t.shape), out, begin);
        for (std::int64_t i = 0; i < n; ++i)
          wrong += out[static_cast<std::size_t>(i)] != (t.type == "F32" ? value(begin + i) : static_cast<float>(bf16(value(begin + i))));
      }
      return wrong;
    }));
  for (auto& reader : readers) EXPECT_EQ(reader.get(), 0);
}

TEST(SafetensorsModel, EveryHalfBecomesItsValue) {
  const Scratch dir;
  std::string data;
  for (int h = 0; h < 65536; ++h) data += {static_cast<char>(h & 255), static_cast<char>(h >> 8)};
  spill_header(dir / "model.safetensors", R"({"h":{"dtype":"F16","shape":[65536],"data_offsets":[0,131072]}})", data);
  const SafetensorsModel model(dir.path());
  std::vector<float> got(65536);
  model.read_box(*model.find("h"), whole_box({65536}), got);
  for (int h = 0; h < 65536; ++h) {
    const int exponent = (h >> 10) & 31, mantissa = h & 1023;
    const float f = got[static_cast<std::size_t>(h)];
    EXPECT_EQ(std::signbit(f), h >= 32768) << h;
    if (exponent == 31)
      EXPECT_TRUE(mantissa ? std::isnan(f) : std::isinf(f)) << h;
    else
      EXPECT_EQ(std::abs(f), exponent ? std::ldexp(1024.0f + static_cast<float>(mantissa), exponent - 25)
                                      : std::ldexp(static_cast<float>(mantissa), -24))
          << h;
  }
}

TEST(SafetensorsModel, HeadersThatSayTheImpossible) {
  const Scratch dir;
  const std::string path = dir / "model.safetensors";
  const auto with = [&](const std::string& json, std::size_t bytes = 16) {
    spill_header(path, json, std::string(bytes, 'x'));
    const std::string text = refused(dir.path());
    EXPECT_HAS(text, path);
    return text;
  };
  const auto tensor = [](const char* name, const char* type, const char* shape, int begin, int end) {
    return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, type, shape, begin, end);
  };
  const std::string a = tensor("a", "F32", "[2]", 0, 8), b = tensor("b", "F32", "[2]", 8, 16);
  spill_header(path, fmt::format("{{{},{}}}", a, b), std::string(16, 'x'));
  EXPECT_EQ(SafetensorsModel(dir.path()).tensors().size(), 2u);
  EXPECT_HAS(with(fmt::format("{{{},{}}}", a, tensor("b", "F32", "[2]", 4, 12))), "tensor b overlaps tensor a");
  EXPECT_HAS(with(fmt::format("{{{},{}}}", a, tensor("b", "F32", "[1]", 12, 16))), "4 bytes before tensor b");
  EXPECT_HAS(with(fmt::format("{{{}}}", a)), "8 bytes after tensor a");
  EXPECT_HAS(with(fmt::format("{{{},{}}}", a, a)), "a is there twice");
  EXPECT_HAS(with(fmt::format("{{{},{}}}", a, tensor("b", "F32", "[3]", 8, 16))), "the bytes of tensor b do not fit its shape 3");
  EXPECT_HAS(with(fmt::format("{{{},{}}}", a, tensor("b", "F32", "[4]", 8, 24))), "truncated inside tensor b");
  EXPECT_HAS(with(fmt::format("{{{},{}}}", a, tensor("b", "F32", "[-2]", 8, 16))), "tensor b has an impossible shape");
  EXPECT_HAS(with(fmt::format("{{{},{}}}", a, tensor("b", "F32", "[4611686018427387904,4]", 8, 16))), "tensor b has an impossible shape");
  EXPECT_HAS(with(fmt::format("{{{},{}}}", a, tensor("b", "Q4", "[2]", 8, 16))), "type Q4");
  EXPECT_HAS(with(fmt::format("{{{},\"b\":3}}", a)), "cannot be parsed");
  EXPECT_HAS(with("[]"), "it is not an object");
  EXPECT_HAS(with("{", 0), "cannot be parsed");
  spill(path, "short");
  EXPECT_HAS(refused(dir.path()), "5 bytes are not a safetensors file");
  spill(path, std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8) + "{}");
  EXPECT_HAS(refused(dir.path()), "does not fit a file of 10");
}

/// Names of others come into messages and onto terminals.
TEST(SafetensorsModel, NamesThatATerminalWouldObeyAreRefused) {
  Scratch dir;
  const std::string path = dir / "model.safetensors", index = path + ".index.json";
  for (const char* odd : {"\\u001b[2J", "\\n", "\\u0000", "\\u009b31m", "\\u202e", "\\u007f"}) {
    SCOPED_TRACE(odd);
    struct {
      std::string what, header;
    } headers[] = {{"a tensor", fmt::format(R"({{"a{}b":{{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}}})", odd)},
                   {"a name twice", fmt::format(R"({{"a{0}b":1,"a{0}b":2}})", odd)},
                   {"a type", fmt::format(R"({{"a":{{"dtype":"F32{}","shape":[4],"data_offsets":[0,16]}}}})", odd)},
                   {"metadata", fmt::format(R"({{"__metadata__{}":{{}},"a":{{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}}})", odd)}};
    for (const auto& c : headers) {
      SCOPED_TRACE(c.what);
      fs::remove(index);
      spill_header(path, c.header, std::string(16, 'x'));
      const std::string why = refused(dir.path());
      EXPECT_HAS(why, path);
      EXPECT_EQ(printable_name(why), why);
    }
    fs::remove(path);
    for (const std::string& map : {fmt::format(R"("a{}b":"model.safetensors")", odd), fmt::format(R"("a":"model{}.safetensors")", odd)}) {
      spill(index, R"({"weight_map":{)" + map + "}}");
      const std::string why = refused(dir.path());
      EXPECT_HAS(why, index);
      EXPECT_EQ(printable_name(why), why);
    }
    fs::remove(index);
  }
}

TEST(SafetensorsModel, FoldersThatAreNotWhole) {
  const Scratch dir;
  fs::create_directories(dir / "empty");
  EXPECT_HAS(refused(dir / "empty"), "neither model.safetensors nor model.safetensors.index.json");
  EXPECT_HAS(refused(dir / "none"), dir / "none");
  write_model(dir / "m", 4000);
  const std::string index = dir / "m/model.safetensors.index.json", good = slurp(index);
  fs::rename(dir / "m/model-00002-of-00004.safetensors", dir / "elsewhere");
  EXPECT_HAS(refused(dir / "m"), "1 of the 4 files that model.safetensors.index.json names are missing: model-00002-of-00004.safetensors");
  fs::rename(dir / "elsewhere", dir / "m/model-00002-of-00004.safetensors");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    spill(index, text);
    return refused(dir / "m");
  };
  EXPECT_HAS(with("\"a\"", "\"z\""), "z in model-00001-of-00004.safetensors");
  EXPECT_HAS(with("\"a\": \"model-00001", "\"a\": \"model-00002"), "a in model-00002-of-00004.safetensors");
  EXPECT_HAS(with("model-00001-of-00004", "../m/model-00001-of-00004"), "which is not a file of this folder");
  EXPECT_HAS(with("\"d\"", "\"c\""), "c is there twice");
  EXPECT_HAS(with("{", "["), "cannot be parsed");
  EXPECT_HAS(with("weight_map", "weights"), "cannot be parsed");
  spill(index, good);
  fs::copy_file(dir / "m/model-00001-of-00004.safetensors", dir / "copy");
  fs::remove(dir / "m/model-00002-of-00004.safetensors");
  fs::rename(dir / "copy", dir / "m/model-00002-of-00004.safetensors");
  EXPECT_HAS(refused(dir / "m"), "tensor a is in ");
}

TEST(SafetensorsModel, FilesThatChangeAndTypesThatAreNone) {
  const Scratch dir;
  write_model(dir / "m", std::int64_t{1} << 40);
  const std::string path = dir / "m/model.safetensors", good = slurp(path);
  const auto read = [&](const SafetensorsModel& model) {
    return error_of(ExitCode::data, [&] {
      std::vector<float> values(37 * 29);
      model.read_box(*model.find("a"), whole_box({37, 29}), values);
    });
  };
  {
    const SafetensorsModel model(dir / "m");
    fs::resize_file(path, 300);
    const std::string text = read(model);
    EXPECT_HAS(text, path + ": the file is truncated inside tensor a");
  }
  spill(path, good);
  {
    const SafetensorsModel model(dir / "m");
    fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(2));
    EXPECT_HAS(read(model), "was changed while tensor a was read");
  }
  {
    const SafetensorsModel model(dir / "m");
    fs::rename(path, dir / "old");
    spill(path, good);
    EXPECT_HAS(read(model), "was changed while tensor a was read");
  }
  spill_header(path, R"({"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}})", "abcd");
  const SafetensorsModel model(dir / "m");
  std::vector<float> values(4);
  const std::string text = error_of(ExitCode::data, [&] { model.read_box(*model.find("a"), whole_box({4}), values); });
  EXPECT_HAS(text, "tensor a is of type F8_E4M3");
}

}  // namespace
}  // namespace tessera::io::test::safetensors_model_test
