// Files and folders of ours under names that anybody can guess. Where others may write, somebody may have put a link, a file or a folder
// of his own there first: nothing is written through it. All that is made goes through here.
#pragma once
#include <sys/types.h>

#include <string>

namespace tessera {

/// A new and empty file, open to read and write. What stood under the name goes, be it a link; what a link leads to stays as it is. -1:
/// errno says why. May be called in a signal's handler.
int create_file(const char* path, mode_t mode = 0666) noexcept;

/// A new file; -1 with EEXIST where something has its name. Else as create_file().
int new_file(const char* path, mode_t mode = 0666) noexcept;

/// The file of this name, open to read and write, made where there is none. A link is not followed: ELOOP then. -1: errno says why.
int update_file(const char* path, mode_t mode = 0666) noexcept;

/// Opens what a user names as an output, made or emptied: a link is followed, a terminal or a pipe is taken. -1: errno says why.
int open_output(const char* path) noexcept;

/// Makes a folder that nobody else may look into, where there is none. Text why it is not ours: a link, no folder, another user's. Empty
/// where it is.
std::string make_own_folder(const std::string& path);

}  // namespace tessera
