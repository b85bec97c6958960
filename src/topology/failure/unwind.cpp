#include "topology/failure/unwind.hpp"

#if TESSERA_LIBDW
#include <cxxabi.h>
#include <elfutils/libdwfl.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string_view>
#endif

namespace tessera {
#if TESSERA_LIBDW
namespace {

constexpr int most_frames = 32;
constexpr std::size_t most_name = 120;

/// Files of debug information beside a library are not looked for: that may ask a server.
int no_debug_file(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*, GElf_Word, char**) { return -1; }

std::string readable(const char* name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string read(status == 0 ? text : name);
  std::free(text);
  if (read.size() > most_name) read = read.substr(0, most_name) + "...";
  return read;
}

class DwflUnwinder final : public Unwinder {
 public:
  explicit DwflUnwinder(pid_t process) : dwfl_(dwfl_begin(&callbacks_)) {
    const bool read = dwfl_ && dwfl_linux_proc_report(dwfl_, process) == 0 && dwfl_report_end(dwfl_, nullptr, nullptr) == 0 &&
                      dwfl_linux_proc_attach(dwfl_, process, true) == 0;
    if (!read) fault_ = fmt::format("\n      (no stack: {})", dwfl_errmsg(-1));
  }
  ~DwflUnwinder() override {
    if (dwfl_) dwfl_end(dwfl_);
  }
  DwflUnwinder(const DwflUnwinder&) = delete;
  DwflUnwinder& operator=(const DwflUnwinder&) = delete;

  std::string stack(pid_t thread) override {
    if (!fault_.empty()) return fault_;
    text_.clear(), frames_ = 0;
    if (dwfl_getthread_frames(dwfl_, thread, add_frame, this) != 0 && frames_ == 0)
      text_ = fmt::format("\n      (no stack: {})", dwfl_errmsg(-1));
    return text_;
  }

 private:
  static int add_frame(Dwfl_Frame* frame, void* self) { return static_cast<DwflUnwinder*>(self)->add(frame); }
  int add(Dwfl_Frame* frame) {
    Dwarf_Addr at = 0;
    bool interrupted = false;
    if (!dwfl_frame_pc(frame, &at, &interrupted)) return DWARF_CB_ABORT;
    Dwfl_Module* module = dwfl_addrmodule(dwfl_, interrupted ? at : at - 1);  // a caller's address is that behind its call
    const char* name = module ? dwfl_module_addrname(module, interrupted ? at : at - 1) : nullptr;
    const char* path = module ? dwfl_module_info(module, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr) : nullptr;
    const std::string_view file(path ? path : "?");
    text_ += fmt::format("\n      {} in {}", name ? readable(name) : fmt::format("{:#x}", at), file.substr(file.rfind('/') + 1));
    return ++frames_ < most_frames ? DWARF_CB_OK : DWARF_CB_ABORT;
  }

  static constexpr Dwfl_Callbacks callbacks_ = {
      .find_elf = dwfl_linux_proc_find_elf, .find_debuginfo = no_debug_file, .section_address = nullptr, .debuginfo_path = nullptr};
  Dwfl* dwfl_;
  std::string text_, fault_;
  int frames_ = 0;
};

}  // namespace

std::unique_ptr<Unwinder> make_unwinder(pid_t process) { return std::make_unique<DwflUnwinder>(process); }
#else
std::unique_ptr<Unwinder> make_unwinder(pid_t) { return nullptr; }
#endif
}  // namespace tessera
