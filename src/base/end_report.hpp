// How a run ended, for whoever started it, in a file. An exit status does not always arrive: srun kills every rank of a step when one of
// them ends the run, and returns the number of the signal.
#pragma once
#include <cstdint>
#include <string>

namespace tessera {

/// From now on the end of this process is reported in the file `path`, if nobody has reported one there. Call it first.
void prepare_end_report(const std::string& path);
/// As at the start of the process, for one that runs another command now.
void forget_end_report();

/// A checkpoint of this step was written by this start of the run: it has made progress. One rank tells of it at once ("saved STEP", in
/// the file `path`.saved), since all of them may be killed without a word.
void note_saved(std::int64_t step, bool told);

/// The state after this step can be gone on from without a checkpoint: progress too, for whoever starts the run again. A line "copied STEP"
/// beside the other, at most one a second.
void note_copied(std::int64_t step, bool told);

/// Writes "status N" and "saved STEP" (or "saved nothing"), a line each. The first end that is reported stands: the file appears whole and
/// is never replaced, also where ranks of several nodes write over a shared file system. Does nothing without a path, and in all calls of a
/// process but the first. May be called in a signal's handler. A file that cannot be written is not worth another error here.
void report_end(int status) noexcept;

/// Another rank reports for this one.
void leave_end_report_to_others() noexcept;

}  // namespace tessera
